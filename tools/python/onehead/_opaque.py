"""Loss and top-K lists as opaque operations for torch.compile, on PyTorch versions that have torch.library.custom_op."""

from __future__ import annotations

import inspect
from typing import Any, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from ._autograd import gradients
from ._batch import Batch, laid_out, row_count
from ._call import EXTRA, call_of, sum_count
from ._library import InvalidArgument
from ._options import TRACED, Options
from ._step import inverse, run_step, run_top_k


def _norm_tensor(norm: Union[Tensor, float, None], device: torch.device) -> Optional[Tensor]:
    if norm is None:
        return None
    if isinstance(norm, Tensor):
        return norm.detach()
    return torch.ones((), dtype=torch.float64, device=device) * norm  # torch.full would compile each number anew


def opaque_draft_loss(
    batch: Batch, options: Options, norm: Union[Tensor, float, None], needs: Sequence[bool]
) -> Tuple[Tensor, Tensor]:
    """Loss and figures by way of the operation."""
    if options.rows:
        raise InvalidArgument("rows=True is not supported inside torch.compile")
    n = _norm_tensor(norm, batch.draft.device)
    outputs = torch.ops.onehead.draft_loss(*batch, n, options.encode(), list(needs))
    return outputs[0], outputs[1]


def opaque_top_k(options: Options, batch: Batch, trains: bool) -> Tuple[Tensor, Tensor]:
    """run_top_k by way of an operation of its own. Of detached tensors: what turns gradients off in a graph leaves them off
    where the operation raises."""
    tensors = [None if t is None else t.detach() for t in (batch.draft, batch.weight, batch.bias, batch.mask)]
    ids, logprobs = torch.ops.onehead.topk(*tensors, options.encode(), trains)
    return ids, logprobs


if TRACED:
    # A CUDA graph of the compiler's own would replay the rows that were selected when it was captured, and would take the
    # memory that plans keep for its pool's. PyTorch that has the tag leaves the operation out of such graphs.
    _TAGS = (
        {"tags": (torch.Tag.cudagraph_unsafe,)}
        if hasattr(torch.Tag, "cudagraph_unsafe")
        and "tags" in inspect.signature(torch.library.custom_op).parameters
        else {}
    )

    @torch.library.custom_op("onehead::draft_loss", mutates_args=(), **_TAGS)
    def _draft_loss(
        draft: Tensor,
        weight: Tensor,
        bias: Optional[Tensor],
        target: Optional[Tensor],
        target_weight: Optional[Tensor],
        target_bias: Optional[Tensor],
        target_row: Optional[Tensor],
        labels: Optional[Tensor],
        mask: Optional[Tensor],
        draft_to_target: Optional[Tensor],
        norm: Optional[Tensor],
        options: str,
        needs: List[bool],
    ) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        batch = laid_out(
            Batch(draft, weight, bias, target, target_weight, target_bias, target_row, labels, mask, draft_to_target)
        )
        opts = Options.decode(options)
        step = run_step(call_of(opts, batch, opts.produce | gradients(*needs), needs[1]), batch, norm)
        draft_grad = None if step.draft_grad is None else step.draft_grad.view(draft.shape)
        grads = (draft_grad, step.head_grad, step.bias_grad)
        kept = [draft.new_empty(0, dtype=torch.float32) if grad is None else grad for grad in grads]
        return step.loss, step.data, kept[0], kept[1], kept[2]

    @_draft_loss.register_fake
    def _fake(draft, weight, bias, target, target_weight, target_bias, target_row, labels, mask, draft_to_target, norm, options, needs):  # type: ignore[no-untyped-def]
        opts = Options.decode(options)
        f32 = torch.float32
        return (
            draft.new_empty((), dtype=f32),
            draft.new_empty(sum_count(opts) + EXTRA, dtype=torch.float64),
            draft.new_empty(draft.shape if needs[0] else 0, dtype=getattr(torch, opts.grad_dtype) if needs[0] else f32),
            draft.new_empty(weight.shape if needs[1] else 0, dtype=f32),
            draft.new_empty(weight.shape[:1] if needs[2] else 0, dtype=f32),
        )

    def _setup(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[Tensor, ...]) -> None:
        _, data, *kept = output
        ctx.save_for_backward(data, *kept)
        ctx.needs = inputs[-1]
        ctx.given_norm = inputs[10] is not None
        ctx.dtypes = (inputs[0].dtype, inputs[1].dtype, torch.float32)
        ctx.mark_non_differentiable(data, *kept)

    def _backward(ctx: Any, grad_loss: Tensor, *_: Any) -> Tuple[Optional[Tensor], ...]:
        data, *kept = ctx.saved_tensors
        upstream = grad_loss.to(torch.float64)
        if ctx.given_norm:
            upstream = upstream * inverse(data[-EXTRA + 2])
        factor = upstream.to(torch.float32).reshape(1)
        grads = [
            torch.mul(grad, factor).to(dtype) if need else None
            for grad, dtype, need in zip(kept, ctx.dtypes, ctx.needs)
        ]
        return (*grads, *(None,) * 10)

    _draft_loss.register_autograd(_backward, setup_context=_setup)

    @torch.library.custom_op("onehead::topk", mutates_args=(), **_TAGS)
    def _topk(
        draft: Tensor, weight: Tensor, bias: Optional[Tensor], mask: Optional[Tensor], options: str, trains: bool
    ) -> Tuple[Tensor, Tensor]:
        batch = laid_out(Batch(draft, weight, bias, None, None, None, None, None, mask, None))
        return run_top_k(Options.decode(options), batch, trains)

    @_topk.register_fake
    def _fake_topk(draft, weight, bias, mask, options, trains):  # type: ignore[no-untyped-def]
        rows, k = row_count(draft), Options.decode(options).topk[-1]
        return draft.new_empty((rows, k), dtype=torch.int64), draft.new_empty((rows, k), dtype=torch.float32)
