"""A call that came before is known again by all that its outcome follows from."""

import subprocess
import sys

import pytest
import torch
from conftest import PACKAGE

import draws
import onehead
from onehead import _recall
from onehead import _structs as S


@pytest.fixture(autouse=True)
def forget():
    _recall._known.clear()
    yield
    _recall._known.clear()


def figures(arguments, grad_of=("draft_hidden",)):
    """Loss, ratios and gradients of a call, by the names of its leaves."""
    arguments = {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
    leaves = [arguments[name].requires_grad_() for name in grad_of]
    loss, metrics = onehead.draft_loss(**arguments)
    if leaves:
        loss.backward()
    return float(loss.detach()), metrics.ratios(), [leaf.grad for leaf in leaves]


def fresh(*call, **options):
    kept = dict(_recall._known)
    _recall._known.clear()
    found = figures(*call, **options)
    _recall._known.clear()
    _recall._known.update(kept)
    return found


def assert_same(a, b):
    assert a[:2] == b[:2] and all(torch.equal(x, y) for x, y in zip(a[2], b[2]))


def test_other_contents_are_one_call():
    for seed in range(3):
        batch = dict(draws.batch(seed=seed), labels=None)
        assert_same(figures(batch), fresh(batch))
    assert len(_recall._known) == 1


def given(**change):
    return lambda b: b.update(change)


CHANGES = {
    "another K": given(topk=(2,)),
    "other terms": given(terms={"ce": 1.0, "kl": 0.5}),
    "text for terms": given(terms="tv=1"),
    "a number for N": given(norm=7.0),
    "no N": given(norm="none"),
    "no mask": given(loss_mask=None),
    "skipped gaps": given(gap="skip"),
    "rows": given(rows=True),
    "fewer rows": lambda b: b.update({k: b[k][:-8] for k in ("draft_hidden", "target_hidden", "loss_mask")}),
    "leading dimensions": lambda b: b.update({k: b[k].reshape(-1, 8, 24) for k in ("draft_hidden", "target_hidden")}),
    "a mask of bits": lambda b: b.update(loss_mask=b["loss_mask"] > 0),
    "bf16": lambda b: b.update({k: b[k].bfloat16() for k in ("draft_hidden", "target_hidden", "lm_head")}),
    "a bias": lambda b: b.update(bias=torch.linspace(-1, 1, b["lm_head"].shape[0])),
    "the drafter's alone": lambda b: b.update(bias=torch.linspace(-1, 1, b["lm_head"].shape[0]), target_bias=False),
    "a head of the target's": lambda b: b.update(target_lm_head=b["lm_head"] * 2),
    "labels": lambda b: b.update(labels=torch.arange(b["draft_hidden"].shape[0])),
    "strided": lambda b: b.update(draft_hidden=torch.cat([b["draft_hidden"]] * 2, 1)[:, : b["draft_hidden"].shape[1]]),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_is_else_is_another_call(change, batch):
    batch.update(block_size=8)
    figures(batch)
    CHANGES[change](batch)
    right = fresh(batch)
    for _ in range(2):
        assert_same(figures(batch), right)
    assert len(_recall._known) == 2


def test_which_gradients_are_asked_for(batch):
    batch["bias"] = torch.linspace(-1, 1, batch["lm_head"].shape[0])
    for _ in range(2):
        for leaves in ((), ("lm_head",), ("draft_hidden", "bias"), ("draft_hidden", "lm_head", "bias")):
            assert_same(figures(batch, leaves), fresh(batch, leaves))
    batch["draft_hidden"].requires_grad_()
    _recall._known.clear()
    for enabled in (True, False, True):
        with torch.set_grad_enabled(enabled):
            assert onehead.draft_loss(**batch)[0].requires_grad == enabled
    produced = [known.call.produce & S.PRODUCE_GRADIENTS for known in _recall._known.values()]
    assert produced == [S.PRODUCE_GRAD, 0]


def test_autocast_is_another_call(batch):
    plain = figures(batch)
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = figures(batch)
        assert cast[0] != plain[0]
        assert_same(figures(batch), plain)


def test_a_tensor_in_two_places_is_two_tensors(batch):
    alike = dict(batch, target_hidden=batch["draft_hidden"], target_lm_head=batch["lm_head"])
    with torch.no_grad():  # one and the same object, unlike in figures()
        onehead.draft_loss(**alike)
        onehead.draft_loss(**dict(alike, target_lm_head=None))
        others = dict(batch, target_lm_head=batch["lm_head"] * 3)
        for call in (dict(batch, target_lm_head=batch["lm_head"]), others, batch):
            right = fresh(call, ())
            loss, metrics = onehead.draft_loss(**call)
            assert (float(loss), metrics.ratios()) == right[:2]


def test_what_can_change_is_looked_at_each_time(batch):
    terms, eta = {"lk_hybrid": 1.0}, torch.tensor(3.0)

    def loss(**options):
        return float(onehead.draft_loss(**batch, **options)[0])

    first = loss(terms=terms, eta=eta)
    assert first == loss(terms=terms)
    eta.fill_(0.5)
    assert loss(terms=terms, eta=eta) == loss(terms=dict(terms), eta=0.5) != first
    terms["ce"] = 0.25
    assert loss(terms=terms) == loss(terms="lk_hybrid=1,ce=0.25") != first


def test_the_memory_of_calls_is_bounded(batch):
    for i in range(_recall.MAX_CALLS + 10):
        onehead.draft_loss(**batch, z_loss=i / 1024, metrics="none")
    assert len(_recall._known) <= _recall.MAX_CALLS


def test_what_is_refused_stays_refused(batch):
    for _ in range(2):
        with pytest.raises(onehead.InvalidArgument, match="multiple of block_size"):
            onehead.draft_loss(**batch, block_size=batch["draft_hidden"].shape[0] - 1)
        with pytest.raises(onehead.InvalidArgument, match="requires a gradient"):
            onehead.draft_loss(**dict(batch, target_hidden=batch["target_hidden"].clone().requires_grad_()))
        onehead.draft_loss(**batch, memory=1 << 30)
        with pytest.raises(onehead.InvalidArgument, match="memory 1073741824.0: expected a whole number"):
            onehead.draft_loss(**batch, memory=float(1 << 30))


def test_import_brings_no_compiler_in():
    look = "print('torch._dynamo' in sys.modules)"
    program = f"import sys, torch; {look}; import onehead; {look}"
    found = subprocess.run([sys.executable, "-c", program], cwd=PACKAGE, stdout=subprocess.PIPE, check=True, text=True)
    before, after = found.stdout.split()
    assert before == after
