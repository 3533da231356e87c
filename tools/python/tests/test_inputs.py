"""Shapes, strides, dtypes that are taken, and plans over many calls."""

import math
import warnings

import pytest
import torch

import draws
import onehead
from onehead import _context


def grad_of(draft, **rest):
    d = draft.detach().requires_grad_()
    loss, _ = onehead.draft_loss(d, **rest)
    loss.backward()
    return loss, d.grad


def test_leading_dimensions_are_flattened(batch):
    draft = batch.pop("draft_hidden")
    loss, grad = grad_of(draft, **batch)
    shaped = dict(batch, target_hidden=batch["target_hidden"].reshape(2, 2, 16, 24), loss_mask=batch["loss_mask"].reshape(4, 16))
    deep, deep_grad = grad_of(draft.reshape(4, 16, 24), **shaped)
    assert torch.equal(loss, deep) and torch.equal(grad.reshape(4, 16, 24), deep_grad)


@pytest.mark.parametrize("kind", ["row stride", "transposed", "expanded mask", "offset"])
def test_strided_inputs(batch, kind):
    draft = batch.pop("draft_hidden")
    if kind == "expanded mask":
        batch["loss_mask"] = torch.rand(16).expand(4, 16)
        right = grad_of(draft, **dict(batch, loss_mask=batch["loss_mask"].contiguous()))
    else:
        right = grad_of(draft, **batch)
    if kind == "row stride":
        wide = torch.full((64, 40), float("nan"))
        wide[:, 3:27] = draft
        draft = wide[:, 3:27]
        head = torch.full((67, 30), float("nan"))
        head[:, 1:25] = batch["lm_head"]
        batch["lm_head"] = head[:, 1:25]
    elif kind == "transposed":
        draft = draft.T.contiguous().T
        batch["target_hidden"] = batch["target_hidden"].T.contiguous().T
    elif kind == "offset":
        draft = torch.cat((torch.zeros(1), draft.flatten()))[1:].reshape(64, 24)
    loss, grad = grad_of(draft, **batch)
    assert torch.equal(loss, right[0]) and torch.equal(grad, right[1])


def test_hidden_states_of_two_dtypes_meet_in_the_wider(batch):
    batch["target_hidden"] = batch["target_hidden"].bfloat16()
    loss, _ = onehead.draft_loss(**batch)
    right, _ = onehead.draft_loss(**dict(batch, target_hidden=batch["target_hidden"].float()))
    assert torch.equal(loss, right)


def test_cpu_tensors_are_taken_whatever_the_default_device_is(batch):
    right = float(onehead.draft_loss(**batch)[0])
    ids = onehead.topk(batch["draft_hidden"], batch["lm_head"], 4).ids
    device = torch.device("meta")
    if not hasattr(device, "__enter__"):
        pytest.skip("this PyTorch has no scopes of a device")
    for norm in ("weights", 7.0, torch.tensor(7.0)):
        with device:
            loss, metrics = onehead.draft_loss(**batch, norm=norm)
        assert loss.device.type == "cpu" and metrics.loss.device.type == "cpu"
        assert norm != "weights" or float(loss) == right
    _context.contexts()[0]._workspace = None  # made anew within the scope
    with device:
        assert float(onehead.draft_loss(**batch)[0]) == right
        assert torch.equal(onehead.topk(batch["draft_hidden"], batch["lm_head"], 4).ids, ids)


def test_a_target_head_that_is_the_head_is_none(batch):
    half = sixteen_bit(batch)  # converted weights are kept, and counted
    one = onehead.plan(**half)
    for head in (half["lm_head"], half["lm_head"].detach(), half["lm_head"].view(67, 24)):
        assert onehead.plan(**half, target_lm_head=head).weight_bytes == one.weight_bytes
    assert onehead.plan(**half, target_lm_head=half["lm_head"].clone()).weight_bytes > one.weight_bytes


def test_a_vocabulary_subset(batch):
    """As if the target's logits stood only where the drafter has columns."""
    ids = torch.arange(0, 67, 2)
    full = batch["lm_head"]
    g = torch.Generator().manual_seed(3)
    whole = torch.randn(67, 24, generator=g)
    rest = dict(batch, lm_head=full[ids].contiguous(), target_lm_head=whole, draft_to_target=ids)
    loss, metrics = onehead.draft_loss(**rest, rows=True)
    y = (batch["target_hidden"] @ whole.T).argmax(1)
    kept = (y % 2 == 0) & (batch["loss_mask"] > 0) & (torch.arange(64) % 16 > 0)
    assert metrics.ratios()["supervised"] == int(kept.sum())
    assert torch.equal(metrics.rows.label.long()[kept], y[kept] // 2)
    other = onehead.draft_loss(**dict(rest, draft_to_target=ids[:34].clone().add_(0)))[0]
    assert torch.equal(other, loss)
    # A bias is the drafter's: the target's head has none, which need not be said.
    biased = onehead.draft_loss(**rest, bias=torch.zeros(34))[0]
    assert torch.equal(biased, loss)


# ---------------------------------------------------------------------------------------------- plans and weights


def sixteen_bit(batch):
    return {k: v.bfloat16() if k in ("draft_hidden", "lm_head", "target_hidden") else v for k, v in batch.items()}


def losses(rest):
    """Two functions of a weight: by one plan throughout, and by a plan that has seen no other weight before."""
    fresh = iter(range(1000, 2000))

    def loss(w):
        return float(onehead.draft_loss(lm_head=w, **rest)[0])

    def right(w):
        return float(onehead.draft_loss(lm_head=w.detach().clone(), **rest, eta=float(next(fresh)))[0])

    return loss, right


def test_a_changed_weight_is_seen_in_every_way_that_pytorch_shows(batch):
    rest = sixteen_bit(batch)
    weight = rest.pop("lm_head")
    loss, right = losses(rest)
    first = loss(weight)
    plan = _context.context_for(None, torch.device("cpu"), 0).last_plan
    assert plan.weight_bytes > 0, "this test is about converted weights"
    assert first == right(weight) and loss(weight.detach()) == first
    with torch.no_grad():
        weight.mul_(2)
    assert loss(weight) == right(weight) != first

    address = weight.data_ptr()
    del weight  # another tensor may get its address, and in PyTorch's allocator soon does
    kept = []
    for _ in range(200):
        other = torch.full((67, 24), 0.25, dtype=torch.bfloat16)
        other[0, 0] = 3
        if other.data_ptr() == address:
            break
        kept.append(other)
    assert loss(other) == right(other)


def test_a_write_that_pytorch_does_not_show_needs_saying(batch):
    rest = sixteen_bit(batch)
    weight = rest.pop("lm_head")
    loss, right = losses(rest)
    first = loss(weight)
    weight.data.copy_(torch.randn(67, 24))  # escapes the version counter
    assert loss(weight) == first
    onehead.weight_changed()
    assert loss(weight) == right(weight) != first


def test_a_trained_weight_is_never_stale(batch):
    rest = sixteen_bit(batch)
    weight = torch.nn.Parameter(rest.pop("lm_head"))
    loss, right = losses(rest)
    seen = set()
    for _ in range(3):
        onehead.draft_loss(lm_head=weight, **rest)[0].backward()
        weight.data.add_(weight.grad, alpha=-1.0)
        weight.grad = None
        with torch.no_grad():
            assert loss(weight) == right(weight)
            seen.add(loss(weight))
    assert len(seen) == 3


def test_batches_of_slightly_different_lengths_share_a_plan():
    context = _context.context_for(None, torch.device("cpu"), 0)
    before = set(context.plans)
    for rows in range(1040, 1152, 16):
        batch = dict(draws.batch(rows=rows, hidden=4, vocab=9), labels=None)
        loss, metrics = onehead.draft_loss(**batch, chunk=64)
        assert metrics.ratios()["rows"] == rows
    assert len(set(context.plans) - before) <= 2


def test_few_plans_are_kept(batch):
    context = _context.context_for(None, torch.device("cpu"), 0)
    for eta in range(40):
        onehead.draft_loss(**batch, eta=float(eta))
    assert len(context.plans) <= _context.MAX_PLANS


def test_an_f16_tile_that_overflows_says_so():
    draft, target, weight = torch.randn(16, 4), torch.randn(16, 4), torch.randn(9, 4)
    draft[5] = 1e5 * weight[0]
    loss, metrics = onehead.draft_loss(draft, weight, target, tile="f16")
    assert int(metrics.overflow_rows) == int(metrics.nonfinite_rows) == 1 and math.isfinite(loss)
    with pytest.warns(onehead.OverflowWarning, match="1 rows"):
        metrics.ratios()
    for tile in ("f32", "f16"):
        right = onehead.draft_loss(draft if tile == "f32" else target, weight, target, tile=tile)[1]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert int(right.overflow_rows) == 0 and right.ratios()["nonfinite_rows"] == 0
    with pytest.warns(onehead.OverflowWarning, match="2 rows"):
        sum([metrics, metrics]).ratios()


def test_figures_are_read_from_whichever_workspace_the_step_used(batch):
    loss, metrics = onehead.draft_loss(**batch)
    context = _context.context_for(None, torch.device("cpu"), 0)
    before = context._workspace
    context._workspace = _context._aligned(torch.empty(len(before) + 64, dtype=torch.float64))
    before.fill_(7.0)
    again, figures = onehead.draft_loss(**batch)
    assert torch.equal(loss, again) and figures.ratios() == metrics.ratios()


def test_a_plan_that_a_graph_replays_is_kept(batch):
    context = _context.context_for(None, torch.device("cpu"), 0)
    onehead.draft_loss(**batch, eta=0.5)
    replayed = context.last_plan
    replayed.captured = True  # as a capture on a GPU does
    for eta in range(2 * _context.MAX_PLANS):
        onehead.draft_loss(**batch, eta=float(eta))
    assert replayed in context.plans.values() and len(context.plans) <= _context.MAX_PLANS
    replayed.captured = False


def test_a_plan_that_does_not_fit_beside_the_others_replaces_them(batch, monkeypatch):
    context = _context.context_for(None, torch.device("cpu"), 0)
    half = {k: v.bfloat16() if k in ("draft_hidden", "lm_head", "target_hidden") else v for k, v in batch.items()}
    onehead.draft_loss(**half)
    assert context.last_plan.weight_bytes > 0
    make, failures = _context.Plan, []

    def fails_once(*arguments):
        if not failures:
            failures.append(1)
            raise onehead.OutOfMemory("full")
        return make(*arguments)

    monkeypatch.setattr(_context, "Plan", fails_once)
    loss, _ = onehead.draft_loss(**half, eta=0.25)
    assert len(context.plans) == 1 and float(loss) > 0


def test_a_plan_says_what_would_run(batch):
    d = batch["draft_hidden"].requires_grad_()
    plan = onehead.plan(**batch)
    assert plan.projections == {"draft": 1, "target": 1} and plan.gemms == 3 and plan.nodes_before > len(plan.nodes)
    naive = onehead.plan(**batch, policy="naive")
    assert naive.projections["draft"] + naive.projections["target"] == 8 and naive.gemms == 9
    with torch.no_grad():
        assert onehead.plan(**batch).gemms == 2
    meta = {k: v.to("meta") if v is not None and v.is_floating_point() and k != "loss_mask" else v for k, v in batch.items()}
    assert onehead.plan(**meta, gradient=True).nodes == plan.nodes
    assert "topk:8" in str(plan) and d is batch["draft_hidden"]


def test_top_k_is_ordered_and_ties_go_to_the_lowest_id():
    weight = torch.tensor([[3.0], [2.0], [3.0], [2.0], [1.0], [1.0]])
    found = onehead.topk(torch.ones(1, 1), weight, 8)
    assert found.ids.tolist() == [[0, 2, 1, 3, 4, 5, -1, -1]]
    assert found.logprobs[0, 6:].tolist() == [float("-inf")] * 2
    draft, head = torch.randn(3, 5, 24), torch.randn(67, 24)
    found = onehead.topk(draft, head, 4, row_mask=torch.tensor([[True] * 4 + [False]] * 3))
    right = (draft @ head.T).double().log_softmax(-1).topk(4)
    assert torch.equal(found.ids[:, :4], right.indices[:, :4]) and (found.ids[:, 4] == -1).all()
    assert torch.allclose(found.logprobs[:, :4].double(), right.values[:, :4], atol=1e-5)
