"""draft_loss as a citizen of autograd."""

import threading

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import draws
import onehead
from onehead import _context, _step


def leaf(batch):
    return batch["draft_hidden"].clone().requires_grad_()


def arguments(seed=0, **kinds):
    batch = dict(draws.batch(seed=seed, **kinds), labels=None)
    return batch.pop("draft_hidden"), batch


def last_run():
    """Counts of the last run on CPU tensors."""
    context = _context.context_for(None, torch.device("cpu"), 0)
    return context.last_plan.results()


def test_the_upstream_gradient_scales_the_gradient():
    draft, rest = arguments()
    grads = []
    for factor in (1.0, 0.37):
        d = draft.clone().requires_grad_()
        loss, _ = onehead.draft_loss(d, **rest)
        (loss * factor).backward()
        grads.append(d.grad)
    assert torch.equal(grads[1], grads[0] * torch.tensor(0.37))


def test_an_upstream_of_zero_gives_zero():
    draft, rest = arguments()
    d = draft.clone().requires_grad_()
    (onehead.draft_loss(d, **rest)[0] * 0).backward()
    assert not d.grad.any()


def test_a_second_backward_pass_is_refused():
    draft, rest = arguments()
    d = draft.clone().requires_grad_()
    loss, _ = onehead.draft_loss(d, **rest)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="second backward pass"):
        loss.backward()


def test_a_gradient_of_the_gradient_is_refused():
    draft, rest = arguments()
    d = draft.clone().requires_grad_()
    loss, _ = onehead.draft_loss(d, **rest)
    (grad,) = torch.autograd.grad(loss, d, create_graph=True)
    with pytest.raises(RuntimeError, match="no derivative"):
        grad.sum().backward()


def test_a_gradient_of_the_gradient_is_not_lost_in_a_sum():
    draft, rest = arguments()
    d = draft.clone().requires_grad_()
    (grad,) = torch.autograd.grad(onehead.draft_loss(d, **rest)[0], d, create_graph=True)
    with pytest.raises(RuntimeError, match="no derivative"):
        ((d**2).sum() + (grad**2).sum()).backward()
    right = d.detach().requires_grad_()
    onehead.draft_loss(right, **rest)[0].backward()
    assert torch.equal(grad.detach(), right.grad)


def test_no_grad_forms_no_gradient():
    draft, rest = arguments()
    d = draft.clone().requires_grad_()
    loss, _ = onehead.draft_loss(d, **rest)
    with_grad = last_run()
    with torch.no_grad():
        same, metrics = onehead.draft_loss(d, **rest)
    without = last_run()
    assert (with_grad.projections_draft, with_grad.projections_target, with_grad.gemms) == (1, 1, 3)
    assert (without.projections_draft, without.projections_target, without.gemms) == (1, 1, 2)
    assert torch.equal(loss, same) and not same.requires_grad and loss.requires_grad
    onehead.draft_loss(draft, **rest)
    assert last_run().gemms == 2  # nothing requires a gradient


def test_a_frozen_head_costs_no_product_and_a_trained_one_gets_its_gradient():
    draft, rest = arguments()
    rest["lm_head"].requires_grad_()
    d = draft.clone().requires_grad_()
    onehead.draft_loss(d, **rest)[0].backward()
    assert last_run().gemms == 4
    assert rest["lm_head"].grad.abs().sum() > 0 and d.grad is not None
    onehead.draft_loss(draft, **rest)[0].backward()
    assert last_run().gemms == 3  # no dD


def test_inputs_stay_as_they_are():
    draft, rest = arguments(target_rows=20)
    before = [t.clone() for t in (draft, *rest.values()) if t is not None]
    d = draft.clone().requires_grad_()
    onehead.draft_loss(d, **rest)[0].backward()
    after = [t for t in (d.detach(), *rest.values()) if t is not None]
    assert all(torch.equal(a, b) for a, b in zip(before, after))


def test_gradients_accumulate_over_micro_batches_to_those_of_one_batch():
    """Case 9: parts with the whole's N given add up to the whole."""
    draft, rest = arguments(seed=3)
    mask = rest["loss_mask"]
    whole = draft.clone().requires_grad_()
    loss, metrics = onehead.draft_loss(whole, **rest)
    loss.backward()
    parts = draft.clone().requires_grad_()
    n = onehead.weight_sum(mask)
    total, added = 0.0, []
    for rows in (slice(0, 48), slice(48, 64)):
        cut = dict(rest, target_hidden=rest["target_hidden"][rows], loss_mask=mask[rows])
        part, figures = onehead.draft_loss(parts[rows], **cut, norm=n)
        part.backward()
        total, added = total + float(part), added + [figures]
    # A BLAS adds up an element's V products p - q times W in another order where there are fewer rows: each of the two sums
    # is within V u of the sum of their magnitudes, at most 2 max |W| times w / N. Division by N rounds both once more.
    weight, u = rest["lm_head"], 2.0**-24
    bound = 2 * weight.shape[0] * u * 2 * float(weight.abs().max()) * float(mask.max()) / float(n)
    assert torch.allclose(parts.grad, whole.grad, rtol=4 * u, atol=bound)
    assert bound < 1e-3 * float(whole.grad.abs().max())
    assert total == pytest.approx(float(loss), rel=1e-6)
    figures, right = sum(added).ratios(), metrics.ratios()
    assert figures.pop("loss_den") == pytest.approx(right.pop("loss_den"), rel=1e-12)
    assert compare(figures, right)


def compare(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(compare(a[k], b[k]) for k in a)
    return a == b if not isinstance(a, float) else a == pytest.approx(b, rel=1e-6)


def test_metrics_of_steps_add_as_one_step_over_all():
    draft, rest = arguments(seed=4)
    _, whole = onehead.draft_loss(draft, **rest)
    halves = [
        onehead.draft_loss(
            draft[r], **dict(rest, target_hidden=rest["target_hidden"][r], loss_mask=rest["loss_mask"][r])
        )[1]
        for r in (slice(0, 32), slice(32, 64))
    ]
    assert compare((halves[0] + halves[1]).ratios(), whole.ratios())


LABELS = torch.arange(64)


@pytest.mark.parametrize(
    "what, change",
    [
        ("topk", dict(topk=(1,))),
        ("terms", dict(terms="kl=1,ce=1")),
        ("labels", dict(labels=LABELS)),
        ("target_hidden", dict(labels=LABELS, target_hidden=None, terms="ce=1")),
        ("first_slot", dict(first_slot=0)),
        ("gap", dict(gap="skip")),
        ("norm", dict(norm=3.0)),
        ("metrics", dict(metrics="one-read")),
    ],
)
def test_metrics_of_different_kinds_do_not_add(what, change):
    draft, rest = arguments()
    if what == "target_hidden":
        rest.update(labels=LABELS, terms="ce=1")
    a, b = onehead.draft_loss(draft, **rest)[1], onehead.draft_loss(draft, **dict(rest, **change))[1]
    with pytest.raises(onehead.InvalidArgument, match=f"metrics with {what} "):
        a + b


def test_metrics_of_an_objective_whose_factors_change_add():
    draft, rest = arguments()
    a, b = [onehead.draft_loss(draft, **rest, terms=terms)[1] for terms in ("kl=1, cap=0.1", {"kl": 0.5, "cap": 0.2})]
    both = (a + b).ratios()
    assert both["terms"]["kl"] == pytest.approx(a.ratios()["terms"]["kl"], rel=1e-12)
    assert both["loss"] == pytest.approx((a.ratios()["loss"] + b.ratios()["loss"]) / 2, rel=1e-12)


@pytest.mark.parametrize("n", [float("nan"), float("inf"), -60.0, 0.0])
def test_an_n_on_a_device_that_is_no_norm_makes_nan_and_zero_none(n):
    """On a device nothing waits to refuse it: it must not look like a batch without rows."""
    found = float(_step.inverse(torch.tensor(n, dtype=torch.float64)))
    assert found == 0 if n == 0 else found != found


def test_a_row_that_is_not_finite_is_reported_and_touches_no_other():
    draft, rest = arguments(seed=5)
    rest["loss_mask"] = None
    clean = draft.clone().requires_grad_()
    loss, metrics = onehead.draft_loss(clean, **rest, norm="none")
    loss.backward()
    broken = draft.clone()
    broken[5] = float("nan")
    d = broken.requires_grad_()
    _, figures = onehead.draft_loss(d, **rest, norm="none")
    _.backward()
    assert not d.grad[5].any() and torch.equal(d.grad[6:], clean.grad[6:])
    later = onehead.draft_loss(draft, **rest, norm="none")[1]
    assert (later + figures + figures).ratios()["first_nonfinite_row"] == 5
    assert figures.ratios()["nonfinite_rows"] == 1
    draft[20] = float("inf")
    behind = onehead.draft_loss(draft, **rest, norm="none")[1]
    assert behind.ratios()["first_nonfinite_row"] == 20
    assert (behind + figures).ratios()["first_nonfinite_row"] == (figures + behind).ratios()["first_nonfinite_row"] == 5


def test_checkpointing_runs_it_again_with_gradients():
    draft, rest = arguments()
    plain, again = draft.clone().requires_grad_(), draft.clone().requires_grad_()
    onehead.draft_loss(plain, **rest)[0].backward()
    checkpoint(lambda d: onehead.draft_loss(d, **rest)[0], again).backward()
    assert torch.equal(plain.grad, again.grad)


def test_a_norm_that_changes_needs_no_new_plan():
    draft, rest = arguments()
    context = _context.context_for(None, torch.device("cpu"), 0)
    onehead.draft_loss(draft, **rest, norm=1.0)
    plans = len(context.plans)
    for n in range(2, 8):
        loss, metrics = onehead.draft_loss(draft, **rest, norm=float(n))
        assert float(loss) == pytest.approx(float(metrics.loss_num) / n, rel=1e-6)
    assert len(context.plans) == plans


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_hidden_states_give_gradients_of_their_dtype_rounded_once(dtype):
    draft, rest = arguments()
    half = {k: v.to(dtype) if k in ("lm_head", "target_hidden") else v for k, v in rest.items()}
    d = draft.to(dtype).requires_grad_()
    (onehead.draft_loss(d, **half)[0] * 3).backward()
    wide = draft.to(dtype).float().requires_grad_()
    floats = {k: v.float() if k in ("lm_head", "target_hidden") else v for k, v in half.items()}
    (onehead.draft_loss(wide, **floats)[0] * 3).backward()
    assert d.grad.dtype == dtype and torch.equal(d.grad, wide.grad.to(dtype))


def test_a_sixteen_bit_gradient_is_kept_on_request():
    draft, rest = arguments()
    d = draft.clone().requires_grad_()
    onehead.draft_loss(d, **rest, grad_dtype=torch.bfloat16)[0].backward()
    right = draft.clone().requires_grad_()
    onehead.draft_loss(right, **rest)[0].backward()
    assert torch.equal(d.grad, right.grad.bfloat16().float())


def test_autocast_casts_as_for_a_linear_layer():
    draft, rest = arguments()
    plain = draft.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, _ = onehead.draft_loss(plain, **rest)
    loss.backward()
    cast = draft.bfloat16().float().requires_grad_()
    floats = {k: v.bfloat16().float() if k in ("lm_head", "target_hidden") else v for k, v in rest.items()}
    right, _ = onehead.draft_loss(cast, **floats)
    right.backward()
    assert torch.equal(loss, right) and loss.dtype == torch.float32
    assert plain.grad.dtype == torch.float32 and torch.equal(plain.grad, cast.grad.bfloat16().float())


def test_threads_share_a_device():
    draft, rest = arguments()
    right, _ = onehead.draft_loss(draft, **rest)
    found = []

    def work():
        torch.set_num_threads(2)
        for _ in range(10):
            found.append(onehead.draft_loss(draft, **rest)[0])

    threads = [threading.Thread(target=work) for _ in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(found) == 30 and all(torch.equal(right, f) for f in found)


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


def test_a_backward_pass_without_an_upstream_gradient_forms_none(batch):
    draft = batch.pop("draft_hidden").requires_grad_()
    loss, _ = onehead.draft_loss(draft, **batch)
    _Dropped.apply(loss).backward(retain_graph=True)
    assert draft.grad is None
    loss.backward()
    assert draft.grad.abs().max() > 0
