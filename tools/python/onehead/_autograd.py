"""The loss as one node of autograd: its gradient is formed in the forward pass, while the logits are there, and only
multiplied by the upstream gradient in the backward pass."""

from __future__ import annotations

from typing import Any, Optional, Tuple, Union

import torch
from torch import Tensor

from . import _structs as S
from ._batch import Batch
from ._call import Call
from ._step import Step, inverse, run_step

_TWICE = (
    "onehead: a second backward pass through the same loss; its gradient was formed once, in the forward pass, and "
    "handed out. Call draft_loss again"
)


_DERIVATIVE = "onehead: the gradient of draft_loss has no derivative; detach() it where it is taken as a constant"


class _Constant(torch.autograd.Function):
    """A gradient under create_graph=True: what is computed from it would lack a part of its own, in silence."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, requires: Tensor) -> Tensor:  # type: ignore[override]
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:  # type: ignore[override]
        raise RuntimeError(_DERIVATIVE)


def scaled(grad: Tensor, upstream: Tensor, dtype: torch.dtype) -> Tensor:
    """grad * upstream, formed in f32 and rounded once to `dtype`; in grad's own memory where it is of that dtype."""
    # One dimension: a scalar would first be rounded to a 16-bit gradient's dtype.
    factor = upstream.to(torch.float32).reshape(1)
    out = grad if grad.dtype == dtype else torch.empty(grad.shape, dtype=dtype, device=grad.device)
    return torch.mul(grad, factor, out=out)


def gradients(draft: bool, weight: bool, bias: bool) -> int:
    """OH_PRODUCE_* bits of the gradients that are needed."""
    return draft * S.PRODUCE_GRAD | weight * S.PRODUCE_HEAD_GRAD | bias * S.PRODUCE_BIAS_GRAD


class DraftLoss(torch.autograd.Function):
    """apply(draft, weight, bias, batch, call, norm) -> loss, step

    draft, weight and bias are batch's own, as arguments of their own so that autograd sees them. It sees no more of what
    comes out than the loss."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        draft: Tensor,
        weight: Tensor,
        bias: Optional[Tensor],
        batch: Batch,
        call: Call,
        norm: Union[Tensor, float, None],
    ) -> Tuple[Tensor, Step]:
        step = run_step(call, batch, norm)
        ctx.inverse_norm = None if norm is None else inverse(step.norm)
        ctx.dtypes = (draft.dtype, weight.dtype, torch.float32)
        ctx.used = False
        ctx.save_for_backward(step.draft_grad, step.head_grad, step.bias_grad)
        ctx.set_materialize_grads(False)
        return step.loss, step

    @staticmethod
    def backward(ctx: Any, grad_loss: Optional[Tensor], _: Any) -> Tuple[Optional[Tensor], ...]:  # type: ignore[override]
        if ctx.used:
            raise RuntimeError(_TWICE)
        if grad_loss is None:
            return (None,) * 6
        ctx.used = True
        with torch.no_grad():
            upstream = grad_loss if ctx.inverse_norm is None else grad_loss.to(torch.float64) * ctx.inverse_norm
            grads = [
                None if grad is None else scaled(grad, upstream, dtype)
                for grad, dtype in zip(ctx.saved_tensors, ctx.dtypes)
            ]
        if torch.is_grad_enabled():
            requires = torch.ones((), device=grad_loss.device, requires_grad=True)
            grads = [None if grad is None else _Constant.apply(grad, requires) for grad in grads]
        return (*grads, None, None, None)
