"""Workspace and converted weights come out of PyTorch's allocator, and are as large as the plan said."""

import gc

import pytest
import torch
from device_step import batch

import onehead
from onehead import _context

SMALL = 64 << 10  # the step's figures and rounding to 512 bytes


def requested(which="current"):
    return torch.cuda.memory_stats()[f"requested_bytes.all.{which}"]


@pytest.mark.parametrize("tile", ["f32", "diff"])
@pytest.mark.parametrize("memory", ["64M", "512M"])
def test_the_peak_is_what_the_plan_said(tile, memory):
    draft, rest = batch(rows=4096, hidden=256, vocab=16384)
    leaf = draft.requires_grad_()
    options = dict(tile=tile, memory=memory)
    plan = onehead.plan(leaf, **rest, **options)
    context = _context.context_for(None, draft.device, 0)
    gc.collect()
    torch.cuda.synchronize()
    before = requested()
    loss, _ = onehead.draft_loss(leaf, **rest, **options)  # makes the plan
    kept = requested() - before - 4 * draft.numel()
    assert plan.weight_bytes <= kept <= plan.weight_bytes + SMALL
    del loss, _
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before, allocated = requested(), torch.cuda.memory_allocated()
    loss, _ = onehead.draft_loss(leaf, **rest, **options)
    expected = plan.workspace_bytes + 4 * draft.numel()  # and the gradient in f32
    assert expected <= requested("peak") - before <= expected + SMALL
    # blocks are cut from segments to within 1 MiB
    assert expected <= torch.cuda.max_memory_allocated() - allocated <= expected + (3 << 20)
    assert context.last_plan.workspace_bytes == plan.workspace_bytes


def test_without_gradients_there_is_no_gradient_to_hold():
    draft, rest = batch(rows=4096, hidden=256, vocab=16384)
    with torch.no_grad():
        plan = onehead.plan(draft, **rest)
        onehead.draft_loss(draft, **rest)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = requested()
        onehead.draft_loss(draft, **rest)
        assert requested("peak") - before <= plan.workspace_bytes + SMALL


def test_evicted_plans_give_their_memory_back():
    draft, rest = batch(hidden=512, vocab=16384)
    context = _context.context_for(None, draft.device, 0)
    for k in range(1, _context.MAX_PLANS + 1):  # pushes every other plan out
        onehead.draft_loss(draft, **rest, topk=(k,), tile="f32")
    torch.cuda.synchronize()
    without = requested()
    for k in range(1, _context.MAX_PLANS + 1):
        onehead.draft_loss(draft, **rest, topk=(k,), tile="diff")
    with_copies = requested()
    assert with_copies - without >= _context.MAX_PLANS // 2 * 2 * 512 * 16384
    for k in range(1, _context.MAX_PLANS + 1):
        onehead.draft_loss(draft, **rest, topk=(k,), tile="f32")
    assert requested() == without and len([p for p in context.plans.values() if not p.captured]) <= _context.MAX_PLANS
