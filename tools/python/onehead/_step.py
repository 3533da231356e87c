"""One call of the library: a batch and its call in, tensors out."""

from __future__ import annotations

import contextlib
import ctypes as C
import dataclasses
import math
from typing import Dict, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor

from . import _structs as S
from ._batch import Batch, row_count
from ._call import EXTRA, Call, call_of, request_for
from ._context import CPU, Plan, context_for
from ._options import Options, check_norm

# A tensor without elements has no address, and the library wants one for everything that a plan produces.
_NOWHERE = 256

_NOTHING = contextlib.nullcontext()


class Rows(NamedTuple):
    """Per-row figures, [T] or [T, largest K]; 0 or -1 on unsupervised rows."""

    row_loss: Tensor  # f32: with the terms' factors, without the weight
    weight: Tensor  # f32: mask times decay
    label: Tensor  # i32: y
    argmax: Tensor  # i32: of the draft logits
    rank: Tensor  # i32: of y
    topk_id: Optional[Tensor]  # i32
    topk_logprob: Optional[Tensor]  # f32


@dataclasses.dataclass
class Step:
    """What a step leaves behind, all on the batch's device."""

    data: Tensor  # f64: the sums, then EXTRA more
    loss: Tensor  # f32 scalar
    draft_grad: Optional[Tensor] = None  # as draft_hidden
    head_grad: Optional[Tensor] = None  # f32 [V, H]
    bias_grad: Optional[Tensor] = None  # f32 [V]
    rows: Optional[Rows] = None
    topk: Optional[Tuple[Tensor, Tensor]] = None  # i32, f32 [T, largest K]

    @property
    def norm(self) -> Tensor:
        """N, the denominator."""
        return self.data[-EXTRA + 2]


def _address(tensor: Optional[Tensor]) -> Optional[int]:
    return None if tensor is None else tensor.data_ptr()


def _inputs(call: Call, batch: Batch, workspace: Tensor, stream: Optional[int]) -> S.Inputs:
    return S.Inputs(
        rows=call.rows,
        target_rows=call.target_rows,
        draft_hidden=batch.draft.data_ptr(),
        draft_ld=call.draft_ld,
        target_hidden=_address(batch.target),
        target_ld=call.target_ld,
        lm_head=batch.weight.data_ptr(),
        lm_head_ld=call.lm_head_ld,
        target_lm_head=_address(batch.target_weight),
        target_lm_head_ld=call.target_lm_head_ld,
        bias=_address(batch.bias),
        target_bias=_address(batch.target_bias),
        target_row=_address(batch.target_row),
        label=_address(batch.labels),
        mask=_address(batch.mask),
        target_row_dtype=call.target_row_dtype,
        label_dtype=call.label_dtype,
        mask_dtype=call.mask_dtype,
        workspace=workspace.data_ptr(),
        workspace_bytes=workspace.numel() * 8,
        stream=stream,
    )


def _allocate(call: Call, batch: Batch) -> Dict[str, Tensor]:
    """Outputs of a step by their names in oh_outputs."""
    rows, device, produce = call.rows, batch.draft.device, call.produce
    made: Dict[str, Tensor] = {}
    # Sizes one by one: PyTorch 2.11 takes three times as long to read a tuple.
    if produce & S.PRODUCE_GRAD:
        made["draft_grad"] = torch.empty(*batch.draft.shape, dtype=call.grad_dtype, device=device)
    if produce & S.PRODUCE_HEAD_GRAD:
        made["lm_head_grad"] = torch.empty(*batch.weight.shape, dtype=torch.float32, device=device)
    if produce & S.PRODUCE_BIAS_GRAD:
        made["bias_grad"] = torch.empty(batch.weight.shape[0], dtype=torch.float32, device=device)
    if produce & S.PRODUCE_ROWS:
        for name in ("row_loss", "weight"):
            made[name] = torch.empty(rows, dtype=torch.float32, device=device)
        for name in ("label", "argmax", "rank"):
            made[name] = torch.empty(rows, dtype=torch.int32, device=device)
    if produce & S.PRODUCE_TOP_K_ROWS:
        k = call.options.topk[-1]
        made["topk_id"] = torch.empty(rows, k, dtype=torch.int32, device=device)
        made["topk_logprob"] = torch.empty(rows, k, dtype=torch.float32, device=device)
    return made


class _Figures:
    """Step.data and Step.loss, which lie in the workspace only until the next run."""

    def __init__(self, count: int, on_cpu: bool, norm: Union[Tensor, float, None]) -> None:
        self._count, self._norm = count, norm
        # On a CPU into tensors made before the step, not by PyTorch's operations after it: once a step has been through
        # the caches, a single one of those costs as much as all of this.
        self._plain = norm is None and on_cpu
        if self._plain:
            self.data = torch.empty(count, dtype=torch.float64, device=CPU)
            self.loss = torch.empty((), dtype=torch.float32, device=CPU)
            self._data_at, self._loss_at = self.data.data_ptr(), self.loss.data_ptr()

    def copy(self, plan: Plan, workspace: Tensor) -> None:
        """Copies the last run's figures, and divides by a caller's own N."""
        at, count = plan.figures_at(workspace.data_ptr()), self._count
        if self._plain:
            C.memmove(self._data_at, workspace.data_ptr() + at, 8 * count)
            loss = C.c_double.from_address(self._data_at + 8 * (count - EXTRA)).value
            C.c_float.from_address(self._loss_at).value = loss
            return
        data = workspace.narrow(0, at // 8, count).clone()
        if self._norm is not None:
            norm = self._norm
            n = norm.detach().to(data).reshape(1) if isinstance(norm, Tensor) else data.new_full((1,), norm)
            num = data[-EXTRA + 1 : -EXTRA + 2]
            data = torch.cat((data[:-EXTRA], num * inverse(n), num, n, data[-1:]))
        self.data = data
        self.loss = data[-EXTRA].to(torch.float32)


def inverse(n: Tensor) -> Tensor:
    """1 / N, and 0 for N = 0: a step with nothing in it has loss and gradient 0. NaN where N is no norm: nothing waits for
    one on a device, to refuse it."""
    n = torch.where((n >= 0) & (n < math.inf), n, torch.full_like(n, math.nan))
    return torch.where(n == 0, torch.zeros_like(n), 1 / n)


def run_step(call: Call, batch: Batch, norm: Union[Tensor, float, None] = None) -> Step:
    """Runs one step on the batch's device and current stream.

    `norm`: the caller's N, in place of the options' rule; gradients are then not divided yet, which is left to the
    multiplication by the upstream gradient.
    """
    options, device = call.options, batch.draft.device
    if isinstance(norm, Tensor) and norm.is_cpu:
        norm = check_norm(float(norm.detach()))  # a copy from pageable memory would wait for the device
    context = context_for(options.backend, device, options.threads)
    made, figures = _allocate(call, batch), _Figures(call.figures, context.on_cpu, norm)
    outputs = S.Outputs(**{name: tensor.data_ptr() or _NOWHERE for name, tensor in made.items()})
    with context.lock, _NOTHING if context.on_cpu else torch.cuda.device(device):
        plan = context.plan((options, call.shape), lambda: request_for(options, call.shape, True, batch.weight))
        workspace = context.workspace(plan.workspace_bytes)
        plan.run(_inputs(call, batch, workspace, context.stream()), outputs, (batch.weight, batch.target_weight))
        figures.copy(plan, workspace)
    return _collect(call.produce, made, figures)


def _collect(produce: int, made: Dict[str, Tensor], figures: _Figures) -> Step:
    step = Step(figures.data, figures.loss, made.get("draft_grad"), made.get("lm_head_grad"), made.get("bias_grad"))
    if "topk_id" in made:
        step.topk = made["topk_id"], made["topk_logprob"]
    if produce & S.PRODUCE_ROWS:
        names = ("row_loss", "weight", "label", "argmax", "rank")
        step.rows = Rows(*(made[name] for name in names), *(step.topk or (None, None)))
    return step


def run_top_k(options: Options, batch: Batch, trains: bool) -> Tuple[Tensor, Tensor]:
    """Ids (i64) and log-probabilities [T, K] of the options' one K, of a batch without labels."""
    # Any label in range: without one a row isn't computed.
    label = torch.zeros(row_count(batch.draft), dtype=torch.int32, device="cpu")
    batch = batch._replace(labels=label)
    step = run_step(call_of(options, batch, S.PRODUCE_TOP_K | S.PRODUCE_TOP_K_ROWS, trains), batch)
    assert step.topk is not None
    return step.topk[0].long(), step.topk[1]
