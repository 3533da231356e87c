"""Inside torch.compile the loss is one opaque operation."""

import pytest
import torch

import draws
import onehead
from onehead import _options

pytestmark = pytest.mark.skipif(not _options.TRACED, reason="this PyTorch has no torch.library.custom_op")


def arguments():
    batch = dict(draws.batch(seed=0), labels=None)
    return batch.pop("draft_hidden"), batch


@pytest.mark.parametrize("norm", ["weights", 30.0, torch.tensor(30.0)], ids=str)
def test_a_compiled_step_is_the_eager_step(norm):
    draft, rest = arguments()
    layer = torch.nn.Linear(24, 24)
    rest["lm_head"].requires_grad_()

    def step(x):
        return onehead.draft_loss(layer(x), **rest, norm=norm)

    found = []
    for run in (step, torch.compile(step, backend="aot_eager", fullgraph=True)):
        layer.zero_grad()
        rest["lm_head"].grad = None
        loss, metrics = run(draft)
        (loss * 2).backward()
        found.append((loss.detach(), layer.weight.grad.clone(), rest["lm_head"].grad.clone(), metrics.ratios()))
    (loss, grad, head, ratios), (compiled, compiled_grad, compiled_head, compiled_ratios) = found
    assert torch.equal(loss, compiled) and ratios == compiled_ratios
    assert torch.allclose(grad, compiled_grad, rtol=1e-6) and torch.allclose(head, compiled_head, rtol=1e-6)


def test_the_operation_keeps_its_promises():
    draft, rest = arguments()
    _, batch = onehead.functions.prepare(
        (draft, rest["lm_head"], rest["target_hidden"], None, None, rest["loss_mask"], None, None, None, None), None,
        dict(decay="none", norm="weights", topk=(1,)),
    )
    options = onehead.functions.make_options(terms="kl=1", decay="none", norm="weights", topk=(1,), labels="target")
    blocks = draft.reshape(-1, 8, draft.shape[1])
    for layout in (draft, blocks, blocks.transpose(0, 1).contiguous().transpose(0, 1)):
        batch = batch._replace(draft=layout.detach().requires_grad_())
        torch.library.opcheck(
            torch.ops.onehead.draft_loss.default, (*batch, None, options.encode(), [True, False, False]),
            test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
        )


def test_a_number_as_norm_is_not_compiled_anew():
    draft, rest = arguments()
    torch._dynamo.reset()
    step = torch.compile(lambda x, n: onehead.draft_loss(x, **rest, norm=n)[0], backend="eager", fullgraph=True)
    for n in range(2, 22):  # more than a function may be compiled for
        assert torch.equal(step(draft, float(n)), onehead.draft_loss(draft, **rest, norm=float(n))[0])


def test_top_k_is_an_operation():
    draft, rest = arguments()
    mask = torch.arange(draft.shape[0]) % 3 > 0

    def step(x):
        found = onehead.topk(x * 2, rest["lm_head"], 4, row_mask=mask)
        return found.ids + 1, found.logprobs

    for found, right in zip(torch.compile(step, backend="aot_eager", fullgraph=True)(draft), step(draft)):
        assert torch.equal(found, right)
    options = onehead.functions.make_options(
        terms="ce=1", decay="none", norm="none", topk=(4,), labels="given", block_size=1, first_slot=0, metrics="none"
    )
    torch.library.opcheck(
        torch.ops.onehead.topk.default,
        (draft, rest["lm_head"], None, mask, options.encode(), False),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )


def test_top_k_that_is_refused_leaves_gradients_on():
    draft, rest = arguments()
    step = torch.compile(lambda x, m: onehead.topk(x, rest["lm_head"], 2, row_mask=m).ids, backend="eager")
    with pytest.raises(onehead.InvalidArgument, match="loss_mask|row_mask"):
        step(draft, -torch.ones(draft.shape[0]))
    assert torch.is_grad_enabled()


def test_an_exported_step_takes_other_layouts():
    draft, rest = arguments()
    lead = dict(draft_hidden=draft, target_hidden=rest["target_hidden"], loss_mask=rest["loss_mask"])
    lead = {name: value.reshape(8, 8, *value.shape[1:]) for name, value in lead.items()}

    class Step(torch.nn.Module):
        def forward(self, draft_hidden, target_hidden, loss_mask):
            loss, _ = onehead.draft_loss(draft_hidden, rest["lm_head"], target_hidden, loss_mask=loss_mask, block_size=8)
            return loss, onehead.topk(draft_hidden, rest["lm_head"], 3, row_mask=loss_mask).ids

    program = torch.export.export(Step(), tuple(lead.values())).module()
    layouts = {
        "as traced": lambda t: t,
        "transposed": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
        "a slice": lambda t: torch.stack([t, t + 1], -1)[..., 0] if t.dim() == 2 else torch.cat([t, t], -1)[..., : t.shape[-1]],
    }
    for layout in layouts.values():
        batch = [layout(value) for value in lead.values()]
        for found, right in zip(program(*batch), Step()(*lead.values())):
            assert torch.equal(found, right)


def test_figures_are_read_within_a_graph():
    draft, rest = arguments()

    def step(x):
        loss, metrics = onehead.draft_loss(x, **rest)
        return loss + metrics.term_sums["kl"] + metrics.hits[1] + (metrics + metrics).loss

    assert torch.equal(torch.compile(step, backend="eager", fullgraph=True)(draft), step(draft))
