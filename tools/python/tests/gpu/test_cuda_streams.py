"""A step is enqueued on the current stream, waits for nothing, and can be captured."""

import threading

import pytest
import torch
from device_step import batch, held_back, no_synchronisation

import onehead
from onehead import _context


def step(draft, rest, **options):
    leaf = draft.detach().clone().requires_grad_()
    loss, metrics = onehead.draft_loss(leaf, **rest, **options)
    loss.backward()
    return loss.detach(), leaf.grad, metrics


def on_device(rest):
    names = ("loss_mask", "labels", "target_row")
    return {k: v.cuda() if k in names and v is not None else v for k, v in rest.items()}


def kinds():
    """(name, batch, options): what may need something from the host."""
    draft, rest = batch()
    labels = torch.randint(-1, 5003, (256,))
    trained = dict(rest, lm_head=rest["lm_head"].clone().requires_grad_())
    bias = torch.zeros(5003, device="cuda", requires_grad=True)
    rows = torch.arange(256).flip(0).contiguous()
    return [
        pytest.param(draft, rest, {}, id="kl"),
        pytest.param(draft, rest, {"tile": "diff"}, id="diff"),
        pytest.param(draft, dict(lm_head=rest["lm_head"], labels=labels), {"tile": "f16"}, id="ce"),
        pytest.param(draft, dict(rest, target_row=rows), {"terms": {"jsd": 1.0}}, id="jsd target_row"),
        pytest.param(draft, trained, {"bias": bias}, id="head and bias"),
        pytest.param(draft, on_device(rest), {}, id="mask on the device"),
        pytest.param(draft, dict(rest, labels=labels.cuda(), target_row=rows.cuda()), {}, id="rows on the device"),
        pytest.param(draft, rest, {"norm": 100.0}, id="a number as norm"),
        pytest.param(draft, rest, {"norm": torch.tensor(100.0)}, id="a host tensor as norm"),
        pytest.param(draft, rest, {"norm": torch.tensor(100.0, device="cuda")}, id="a device tensor as norm"),
        pytest.param(draft, rest, {"decay": ("dpace", 0.5)}, id="dpace"),
        pytest.param(draft, rest, {"policy": "recompute", "chunk": 64}, id="recompute"),
        pytest.param(draft, rest, {"grad_dtype": torch.bfloat16}, id="bf16 gradient"),
        pytest.param(draft, rest, {"rows": True}, id="rows"),
        pytest.param(draft.float(), {k: v.float() for k, v in rest.items()}, {}, id="f32"),
    ]


CASES = kinds() if torch.cuda.is_available() else [pytest.param(None, None, None, id="all")]


@pytest.mark.parametrize("draft, rest, options", CASES)
def test_nothing_waits(draft, rest, options):
    right = step(draft, rest, **options)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        metrics = step(draft, rest, **options)[2]  # the plan comes to this stream, which waits once
        (metrics + metrics).supervised + metrics.hits[1]  # loads kernels
    with held_back(stream), no_synchronisation():
        loss, grad, metrics = step(draft, rest, **options)
        added = metrics + metrics
        total = added.supervised + added.hits[1]
    stream.synchronize()
    assert torch.equal(loss, right[0]) and torch.equal(grad, right[1])
    ratios = right[2].ratios()
    assert metrics.ratios() == ratios
    assert float(total) == 2 * (ratios["supervised"] + ratios["topk"]["1"]["hits"])


def test_several_steps_are_under_way_at_once():
    """Each with a mask of its own, all enqueued before the first has begun."""
    draft, rest = batch()
    masks = [((torch.arange(256) * 7 + i) % 5 > 0).float() for i in range(6)]
    right = [step(draft, dict(rest, loss_mask=mask)) for mask in masks]
    stream = torch.cuda.current_stream()
    with held_back(stream), no_synchronisation():
        found = [step(draft, dict(rest, loss_mask=mask)) for mask in masks]
    stream.synchronize()
    for a, b in zip(right, found):
        assert torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])


def test_topk_and_weight_sum_do_not_wait():
    draft, rest = batch()
    mask = rest["loss_mask"].cuda()
    onehead.topk(draft, rest["lm_head"], 4)
    onehead.weight_sum(mask)
    with held_back(torch.cuda.current_stream()), no_synchronisation():
        found = onehead.topk(draft, rest["lm_head"], 4)
        n = onehead.weight_sum(mask)
    assert found.ids.is_cuda and n.is_cuda
    assert float(n) == pytest.approx(float(onehead.weight_sum(rest["loss_mask"])), rel=1e-12)


def test_the_current_stream_is_used():
    """Inputs that are written late on the current stream are read late; a step on another stream would see zeros."""
    draft, rest = batch()
    right = step(draft, rest)
    late = torch.zeros_like(draft)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(int(2e8))
        late.copy_(draft)
        loss, grad, _ = step(late, rest)
    stream.synchronize()
    assert torch.equal(loss, right[0]) and torch.equal(grad, right[1])


def context_workspace():
    return _context.context_for(None, torch.device("cuda", 0), 0).last_plan.workspace_bytes


def test_memory_goes_back_to_the_stream_it_came_from():
    """Ten steps under way use the workspace one after another: no more memory than one."""
    draft, rest = batch(rows=2048, hidden=256, vocab=8192)
    step(draft, rest)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step(draft, rest)
    one = torch.cuda.max_memory_allocated()
    with held_back(torch.cuda.current_stream()):
        for _ in range(6):
            step(draft, rest)
    # blocks are cut from segments to within 1 MiB
    assert torch.cuda.max_memory_allocated() <= one + (3 << 20) < one + 2 * context_workspace()


def test_threads_on_streams_of_their_own():
    draft, rest = batch()
    right = step(draft, rest)
    found = []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            for _ in range(5):
                found.append(step(draft, rest)[:2])
            torch.cuda.current_stream().synchronize()

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work) for _ in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(found) == 15
    assert all(torch.equal(loss, right[0]) and torch.equal(grad, right[1]) for loss, grad in found)


# ---- capture ----


def capture(leaf, rest, **options):
    """(graph, loss, gradient, metrics) of a captured step, which reads the memory of `leaf` and `rest` at each replay;
    before it, as PyTorch's notes on CUDA graphs have it, some on a side stream."""

    def run():
        leaf.grad = None
        loss, metrics = onehead.draft_loss(leaf, **rest, **options)
        loss.backward()
        return loss.detach(), metrics

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    leaf.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss, metrics = run()
    return graph, loss, leaf.grad, metrics


def assert_replays(captured, right):
    """The captured step gives, once more, what the step `right` gave."""
    graph, loss, grad, metrics = captured
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(loss, right[0]) and torch.equal(grad, right[1])
    assert metrics.ratios() == right[2].ratios()


@pytest.mark.parametrize("tile", ["f32", "bf16", "diff"])
def test_a_captured_step_replays_on_new_data(tile):
    draft, rest = batch()
    other, other_rest = batch(seed=7)
    norm = torch.tensor(50.0, device="cuda", dtype=torch.float64)
    leaf = draft.clone().requires_grad_()
    target = rest["target_hidden"].clone()
    captured = capture(leaf, dict(rest, target_hidden=target), norm=norm, tile=tile)
    with torch.no_grad():
        leaf.copy_(other)
    target.copy_(other_rest["target_hidden"])
    norm.fill_(80.0)
    for _ in range(2):
        right = step(other, dict(rest, target_hidden=other_rest["target_hidden"]), norm=80.0, tile=tile)
        assert_replays(captured, right)


def test_a_captured_plan_outlives_the_cache():
    draft, rest = batch(rows=128)
    leaf = draft.clone().requires_grad_()
    captured = capture(leaf, rest, tile="diff")
    right = step(draft, rest, tile="diff")
    assert_replays(captured, right)
    plans = _context.context_for(None, draft.device, 0).plans
    kept = [plan for plan in plans.values() if plan.captured]
    for k in range(1, _context.MAX_PLANS + 4):
        onehead.draft_loss(draft, **rest, topk=(k,))
    assert kept and all(plan in plans.values() for plan in kept)
    assert_replays(captured, right)


def test_a_capture_before_the_first_run_is_refused():
    draft, rest = batch(rows=96)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(onehead.InvalidArgument, match="run the same call once"):
        with torch.cuda.graph(graph):
            onehead.draft_loss(draft, **rest, topk=(3,))


# ---- rows that only the device selects ----


@pytest.mark.parametrize("which", ["mask", "labels", "target_row"])
def test_rows_may_be_selected_on_the_device(which):
    draft, rest = batch(dtype=torch.float32)
    if which == "labels":
        rest = dict(rest, labels=torch.randint(-2, 5005, (256,)))
    if which == "target_row":
        rest = dict(rest, target_row=torch.randint(0, 256, (256,)))
    right = step(draft, rest)
    loss, grad, metrics = step(draft, on_device(rest))
    # Other shapes of products, so sums in another order.
    assert torch.allclose(loss, right[0], rtol=1e-5)
    assert (grad - right[1]).norm() < 1e-4 * right[1].norm()
    figures, host = metrics.ratios(), right[2].ratios()
    for name in ("rows", "supervised", "blocks", "slot_count", "nonfinite_rows"):
        assert figures[name] == host[name]
    assert abs(figures["topk"]["8"]["hits"] - host["topk"]["8"]["hits"]) <= 2
    assert figures["weight_sum"] == pytest.approx(host["weight_sum"], rel=1e-6)


def test_a_captured_step_takes_new_masks_from_the_device():
    draft, rest = batch(dtype=torch.float32)
    mask = rest["loss_mask"].cuda()
    leaf = draft.clone().requires_grad_()
    captured = capture(leaf, dict(rest, loss_mask=mask))
    for seed in (1, 2):
        other = batch(dtype=torch.float32, seed=seed)[1]["loss_mask"]
        mask.copy_(other)
        right = step(draft, dict(rest, loss_mask=mask))
        assert_replays(captured, right)
        assert right[2].ratios()["supervised"] == int(((other > 0) & (torch.arange(256) % 16 > 0)).sum())


def test_a_mask_of_another_device_is_refused():
    draft, rest = batch()
    with pytest.raises(onehead.InvalidArgument, match="loss_mask is on meta"):
        onehead.draft_loss(draft, **dict(rest, loss_mask=rest["loss_mask"].to("meta")))
