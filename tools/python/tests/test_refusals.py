"""What is refused, with words that name the argument, its value and what was expected."""

import pytest
import torch

import onehead


REFUSALS = {
    "whole blocks": lambda b: b.update(draft_hidden=torch.zeros(40, 24)),
    "expected 24 columns": lambda b: b.update(draft_hidden=torch.zeros(64, 20)),
    "expected float32, bfloat16 or float16": lambda b: b.update(draft_hidden=torch.zeros(64, 24).double()),
    "rows of adjacent elements": lambda b: b.update(lm_head=b["lm_head"].T.contiguous().T),
    "expected 64 elements": lambda b: b.update(loss_mask=torch.ones(63)),
    "expected int32 or int64": lambda b: b.update(labels=torch.zeros(64)),
    "expected as many of each, or the map": lambda b: b.update(target_hidden=torch.zeros(10, 24)),
    "target_row\\[1\\] = 64": lambda b: b.update(target_row=torch.full((64,), 64), loss_mask=None),
    "target_hidden requires a gradient": lambda b: b["target_hidden"].requires_grad_(),
    "no meaning without target_hidden": lambda b: b.update(
        target_hidden=None, target_row=torch.zeros(64, dtype=torch.int64), labels=torch.zeros(64, dtype=torch.int64)
    ),
    "no target_hidden to judge rows by": lambda b: b.update(target_hidden=None),
    "not negative": lambda b: b.update(loss_mask=-torch.ones(64)),
    "unknown term 'kll'": lambda b: b.update(terms={"kll": 1.0}),
    "decay 'exp:-1.0'": lambda b: b.update(decay=("exp", -1.0)),
    "policy 'fast'": lambda b: b.update(policy="fast"),
    "norm -1": lambda b: b.update(norm=-1.0),
    "norm 'sum'": lambda b: b.update(norm="sum"),
    "memory '2 GB'": lambda b: b.update(memory="2 GB"),
    "topk 99: expected an integer from 1 to 64": lambda b: b.update(topk=[99]),
    "budget of 1024 bytes is too small": lambda b: b.update(memory=1024),
    "blocks of 16 rows would cross its sequences of 10": lambda b: b.update(
        draft_hidden=torch.zeros(8, 10, 24), target_hidden=torch.zeros(80, 24), loss_mask=None
    ),
    "loss_mask has leading dimensions \\(16, 4\\)": lambda b: b.update(
        draft_hidden=torch.zeros(4, 16, 24), loss_mask=torch.ones(16, 4)
    ),
    "target_hidden has leading dimensions \\(16, 4\\)": lambda b: b.update(
        draft_hidden=torch.zeros(4, 16, 24), target_hidden=torch.zeros(16, 4, 24)
    ),
    "expected the rows of target_row": lambda b: b.update(
        target_row=torch.zeros(64, dtype=torch.int64), target_hidden=torch.zeros(0, 24)
    ),
    "loss_mask requires a gradient": lambda b: b.update(loss_mask=torch.ones(64, requires_grad=True)),
    "norm requires a gradient": lambda b: b.update(norm=torch.ones((), requires_grad=True)),
    "norm nan": lambda b: b.update(norm=torch.tensor(float("nan"))),
    "norm -60": lambda b: b.update(norm=torch.tensor(-60.0)),
    "norm inf": lambda b: b.update(norm=torch.tensor(float("inf"))),
    "lm_head is a Linear: expected a tensor: pass lm_head.weight": lambda b: b.update(lm_head=torch.nn.Linear(24, 67)),
    "loss_mask is a list: expected a tensor": lambda b: b.update(loss_mask=[1.0] * 64),
    "terms \\['kl'\\]: expected a dict": lambda b: b.update(terms=["kl"]),
    "decay 10.0: expected": lambda b: b.update(decay=10.0),
    "topk 4: expected a list": lambda b: b.update(topk=4),
    "memory 2000000000.0": lambda b: b.update(memory=2e9),
    "memory '99999999999G'": lambda b: b.update(memory="99999999999G"),
    "block_size 0": lambda b: b.update(block_size=0),
    "block_size 16.5": lambda b: b.update(block_size=16.5),
    "chunk 1180591620717411303424": lambda b: b.update(chunk=2**70),
    "threads 1099511627776": lambda b: b.update(threads=2**40),
    "4294967362 is no token id": lambda b: b.update(
        draft_to_target=torch.arange(67) + 2**32, target_lm_head=torch.zeros(67, 24)
    ),
    "target_bias: not with draft_to_target": lambda b: b.update(
        draft_to_target=torch.arange(67), target_lm_head=torch.zeros(70, 24), target_bias=torch.zeros(70)
    ),
    "nosuch": lambda b: b.update(backend="nosuch"),
    "expected target_hidden and a target_lm_head": lambda b: b.update(draft_to_target=torch.arange(67), target_lm_head=None),
}


@pytest.mark.parametrize("words", REFUSALS)
def test_refusals_say_what_was_wanted(batch, words):
    REFUSALS[words](batch)
    with pytest.raises(onehead.OneheadError, match=words):
        onehead.draft_loss(batch.pop("draft_hidden"), batch.pop("lm_head"), **batch)


def test_a_refusal_is_a_value_error_and_memory_a_memory_error(batch):
    with pytest.raises(ValueError):
        onehead.draft_loss(**batch, policy="fast")
    with pytest.raises(MemoryError):
        onehead.draft_loss(**batch, memory=1024)


@pytest.mark.parametrize("k", [0, -1, 65, 3.7])
def test_top_k_of_no_size(k):
    with pytest.raises(onehead.InvalidArgument, match="topk"):
        onehead.topk(torch.ones(2, 4), torch.ones(5, 4), k)


def test_top_k_speaks_of_its_own_arguments():
    with pytest.raises(onehead.InvalidArgument, match="row_mask of shape"):
        onehead.topk(torch.ones(2, 4), torch.ones(5, 4), 1, row_mask=torch.ones(3))
