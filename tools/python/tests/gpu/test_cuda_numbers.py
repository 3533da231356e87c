"""Losses, gradients and figures on a CUDA device against float64."""

import pytest
import torch
from device_step import ROUNDING, SUBNORMAL, Exact, batch

import onehead

# With 16-bit hidden states the gradient tile has 16 bits: f16 for diff and f16 tiles, which multiply in f16.
GRAD_TILE = {"f32": torch.bfloat16, "bf16": torch.bfloat16, "f16": torch.float16, "diff": torch.float16}


def within(found, exact, bound):
    """Element by element, with an eighth for f32 sums and half a unit of the leaf's dtype for its own rounding."""
    bound = 1.125 * bound + ROUNDING[found.dtype] * exact.abs() + SUBNORMAL[found.dtype]
    excess = ((found.double() - exact).abs() / bound.clamp(min=1e-30)).max()
    return float(excess) <= 1, f"{float(excess):.3g} of the bound"


@pytest.mark.parametrize(
    "terms",
    [{"kl": 1.0}, {"ce": 1.0}, {"rkl": 1.0}, {"jsd": 1.0}, {"tv": 1.0}, {"nla": 1.0}, {"lk_hybrid": 1.0},
     {"kl": 0.7, "ce": 0.2, "cap": 0.1}],
    ids=lambda terms: "+".join(terms),
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_a_step_is_that_of_float64_autograd(terms, dtype):
    draft, rest = batch(dtype=dtype)
    exact = Exact(draft, **rest, terms=terms)
    leaf = draft.clone().requires_grad_()
    loss, metrics = onehead.draft_loss(leaf, **rest, terms=terms, tile="f32", chunk=64)
    loss.backward()
    assert leaf.grad.dtype == dtype and leaf.grad.is_cuda
    # f32 logits: the relative rounding of a 192-term dot product; its size is at most about 15.
    error = 15 * 192**0.5 * 2.0**-24 * 8
    assert abs(float(loss.detach()) / float(exact.loss.detach()) - 1) < 4 * error
    rounding = ROUNDING[dtype] if dtype != torch.float32 else error
    good, said = within(leaf.grad, exact.draft.grad, exact.grad_bound(rounding, error, SUBNORMAL[dtype]))
    assert good, said

    figures = metrics.ratios()
    rank, gap = exact.rank_and_gap()
    close = int(((gap < error) & exact.supervised).sum())
    assert close < 20
    assert figures["supervised"] == int(exact.supervised.sum()) and figures["nonfinite_rows"] == 0
    for k in (1, 4, 8):
        assert abs(figures["topk"][str(k)]["hits"] - int(((rank < k) & exact.supervised).sum())) <= close
    for name, rows in (("alpha", exact.alpha), ("draft_entropy", exact.entropy)):
        assert figures[name] == pytest.approx(float(rows[exact.supervised].mean()), rel=1e-4)


@pytest.mark.parametrize("tile", ["f32", "bf16", "f16", "diff"])
@pytest.mark.parametrize("noise", [0.5, 0.05], ids=["far", "near"])
def test_every_tile_format_keeps_its_digits(tile, noise):
    draft, rest = batch(noise=noise, seed=1)
    exact = Exact(draft, **rest)
    leaf = draft.clone().requires_grad_()
    onehead.draft_loss(leaf, **rest, tile=tile)[0].backward()
    z, t = exact.logits.detach(), exact.target_logits
    largest = torch.maximum(z.abs().amax(1), t.abs().amax(1))[:, None]
    error = 15 * 192**0.5 * 2.0**-24 * 8 + torch.zeros_like(largest)
    if tile in ("bf16", "f16"):
        error = error + largest * ROUNDING[torch.bfloat16 if tile == "bf16" else torch.float16]
    if tile == "diff":  # D - G and the difference of logits rounded to f16; t's rounding is common to both
        away = (draft.double() - rest["target_hidden"].double()).abs() @ rest["lm_head"].double().abs().T
        error = error + ROUNDING[torch.float16] * (away.amax(1) + (z - t).abs().amax(1))[:, None]
    dtype = GRAD_TILE[tile]
    bound = exact.grad_bound(ROUNDING[dtype], error.clamp(max=0.1), SUBNORMAL[dtype])
    if tile == "diff":  # both softmaxes by exp(2 * t's rounding): p - q in proportion
        bound = bound + 2.5 * ROUNDING[torch.float16] * float(largest.max()) * exact.grad_bound(1.0)
    good, said = within(leaf.grad, exact.draft.grad, bound)
    assert good, said


def test_labels_a_trained_head_and_its_bias():
    draft, rest = batch(dtype=torch.float32, seed=2)
    labels = (draft @ rest["lm_head"].T).argmax(1).cpu()
    labels[::5] = -100
    exact = Exact(draft, rest["lm_head"], labels=labels, loss_mask=rest["loss_mask"], terms={"ce": 1.0})
    d, w = draft.clone().requires_grad_(), rest["lm_head"].clone().requires_grad_()
    bias = torch.zeros(len(w), device="cuda", requires_grad=True)
    loss, metrics = onehead.draft_loss(d, w, labels=labels, loss_mask=rest["loss_mask"], terms={"ce": 1.0}, bias=bias)
    (2 * loss).backward()
    for found, right in ((d, exact.draft), (w, exact.head)):
        assert (found.grad - 2 * right.grad).norm() < 1e-4 * (2 * right.grad).norm()
    db = exact.logits.grad.sum(0)
    assert (bias.grad - 2 * db).norm() < 1e-4 * (2 * db).norm()
    assert metrics.ratios()["supervised"] == int(exact.supervised.sum())


def test_autocast_casts_as_for_a_linear_layer():
    draft, rest = batch(dtype=torch.float32)
    plain = draft.clone().requires_grad_()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss, _ = onehead.draft_loss(plain, **rest)
    loss.backward()
    cast = draft.bfloat16().requires_grad_()
    halves = {k: v.bfloat16() if k != "loss_mask" else v for k, v in rest.items()}
    right, _ = onehead.draft_loss(cast, **halves)
    right.backward()
    assert torch.equal(loss, right) and loss.dtype == torch.float32
    assert plain.grad.dtype == torch.float32 and torch.equal(plain.grad, cast.grad.float())


def test_topk_is_that_of_the_logits():
    draft, rest = batch(dtype=torch.float32)
    found = onehead.topk(draft, rest["lm_head"], 8, tile="f32")
    logits = draft.double() @ rest["lm_head"].double().T
    values, ids = logits.topk(9)
    apart = (values[:, :-1] - values[:, 1:]).min(1).values > 1e-4
    assert apart.sum() > len(draft) // 2
    assert torch.equal(found.ids[apart], ids[apart, :8])
    assert torch.allclose(found.logprobs.double(), logits.log_softmax(-1).gather(1, found.ids), atol=1e-4)


def test_policies_agree_on_the_device():
    draft, rest = batch(dtype=torch.float32)
    grads, hits = [], []
    for policy in ("cached", "recompute", "naive"):
        leaf = draft.clone().requires_grad_()
        loss, metrics = onehead.draft_loss(leaf, **rest, policy=policy, chunk=64)
        loss.backward()
        grads.append(leaf.grad)
        hits.append(metrics.ratios()["topk"])
    assert hits[0] == hits[1] == hits[2]
    for grad in grads[1:]:
        assert (grad - grads[0]).norm() < 1e-5 * grads[0].norm()


def test_the_self_check_runs_on_the_device():
    from onehead.__main__ import self_check

    assert max(self_check("cuda")) < 2e-5
