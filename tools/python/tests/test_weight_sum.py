"""N of a batch before its step."""

import pytest
import torch

import draws
import onehead


@pytest.mark.parametrize("decay", ["none", ("exp", 3.0), "power:0.7"])
@pytest.mark.parametrize("norm", ["weights", "count"])
def test_weight_sum_is_the_steps_own(decay, norm):
    batch = draws.batch(seed=11)
    _, metrics = onehead.draft_loss(**batch, decay=decay, norm=norm)
    found = onehead.weight_sum(batch["loss_mask"], batch["labels"], vocab=67, decay=decay, norm=norm)
    assert float(found) == pytest.approx(float(metrics.loss_den), rel=1e-7)
    with pytest.raises(onehead.InvalidArgument, match="dpace"):
        onehead.weight_sum(batch["loss_mask"], decay=("dpace", 0.5))


@pytest.mark.parametrize("outside", ["drop", "keep"])
def test_a_subsets_dropped_rows_have_no_weight(outside):
    batch, g = draws.batch(seed=12), torch.Generator().manual_seed(5)
    ids = torch.arange(0, 67, 2)
    whole = torch.randn(67, 24, generator=g)
    rest = dict(batch, lm_head=whole[ids].contiguous(), target_lm_head=whole, draft_to_target=ids, outside=outside)
    _, metrics = onehead.draft_loss(**rest)
    found = onehead.weight_sum(batch["loss_mask"], batch["labels"], vocab=67, draft_to_target=ids, outside=outside)
    assert float(found) == pytest.approx(float(metrics.loss_den), rel=1e-7)


def test_none_is_no_decay():
    assert float(onehead.weight_sum(rows=64, decay=None)) == 60


NAN = float("nan")
REFUSALS = {
    "first_slot -1": dict(rows=64, first_slot=-1),
    "first_slot 16": dict(rows=64, first_slot=16),
    "block_size 0": dict(rows=64, block_size=0),
    "whole blocks": dict(rows=65),
    "row 3 is -1.0": dict(loss_mask=torch.ones(64).index_fill(0, torch.tensor([3]), -1.0)),
    "row 5 is nan": dict(loss_mask=torch.ones(64).index_fill(0, torch.tensor([5]), NAN)),
    "loss_mask is a list": dict(loss_mask=[1.0] * 64),
    "labels of torch.float32": dict(labels=torch.ones(64), vocab=67),
    "vocab: missing": dict(labels=torch.ones(64, dtype=torch.int64)),
    "decay 'exp:0.0'": dict(rows=64, decay=("exp", 0)),
    "decay 'exp:-1'": dict(rows=64, decay="exp:-1"),
    "decay 'exp'": dict(rows=64, decay="exp"),
    "decay 'none:1'": dict(rows=64, decay="none:1"),
    "norm 'none'": dict(rows=64, norm="none"),
    "known only after the step": dict(rows=64, draft_to_target=torch.arange(67)),
    "outside 'lose'": dict(rows=64, draft_to_target=torch.arange(67), outside="lose"),
}


@pytest.mark.parametrize("words", REFUSALS)
def test_refusals_are_those_of_the_step(words):
    with pytest.raises(onehead.InvalidArgument, match=words):
        onehead.weight_sum(**REFUSALS[words])


def test_it_is_compiled_whole():
    compiled = torch.compile(onehead.weight_sum, backend="eager", fullgraph=True) if hasattr(torch, "compile") else None
    if compiled is None:
        pytest.skip("this PyTorch has no torch.compile")
    batch = draws.batch(seed=11)
    arguments = dict(loss_mask=batch["loss_mask"], labels=batch["labels"], vocab=67)
    assert torch.equal(compiled(**arguments), onehead.weight_sum(**arguments))
