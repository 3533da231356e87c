"""One call of the library: a batch and options in, tensors out."""

from __future__ import annotations

import contextlib
import ctypes as C
import dataclasses
import functools
import math
from typing import Dict, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor

from . import _structs as S
from ._batch import Batch, to_host
from ._context import CPU, Plan, context_for
from ._options import Options, check_norm, copy_request


# What Step.data has behind the sums: loss, numerator, denominator, rows whose f16 tiles overflowed.
EXTRA = 4

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
    draft_grad: Optional[Tensor] = None  # [T, H]
    head_grad: Optional[Tensor] = None  # f32 [V, H]
    bias_grad: Optional[Tensor] = None  # f32 [V]
    rows: Optional[Rows] = None
    topk: Optional[Tuple[Tensor, Tensor]] = None  # i32, f32 [T, largest K]

    @property
    def norm(self) -> Tensor:
        """N, the denominator."""
        return self.data[-EXTRA + 2]


@functools.lru_cache(maxsize=1024)
def _capacity(count: int, unit: int) -> int:
    """Rows that a plan is made for: up to 1/8 more than `count`, so that batches of slightly different lengths share a
    plan. A function of `count` alone: what ran before changes nothing."""
    blocks = -(-count // unit)
    step = max(1, 1 << max(0, blocks.bit_length() - 4))
    return max(1, -(-blocks // step) * step) * unit


class Shape(NamedTuple):
    """What a request says about tensors, by its own names."""

    rows: int
    target_rows: int
    hidden: int
    vocab: int
    target_hidden: int
    hidden_dtype: int
    weight_dtype: int
    target_weight_dtype: int
    has_bias: bool
    has_target_bias: bool
    produce: int
    weight_trains: bool
    target_vocab: int
    device_inputs: int  # OH_DEVICE_* bits
    subset: Optional[bytes]  # draft_to_target's ids


def device_inputs(batch: Batch) -> int:
    """OH_DEVICE_* bits of the row-selection tensors that lie on a device."""
    lies = [t is not None and t.is_cuda for t in (batch.mask, batch.labels, batch.target_row)]
    return lies[0] * S.DEVICE_MASK | lies[1] * S.DEVICE_LABEL | lies[2] * S.DEVICE_TARGET_ROW


def shape_of(options: Options, batch: Batch, produce: int, trains: bool, exact: bool = False) -> Shape:
    """The shape of a batch's plan; `exact`: its own row counts rather than the cache's size classes."""
    block = options.block_size
    rows, target_rows = batch.draft.shape[0], 0 if batch.target is None else max(1, batch.target.shape[0])
    if not exact:
        rows = _capacity(rows, block)
        target_rows = target_rows and _capacity(target_rows, block if batch.target_row is None else 1)
    vocab, hidden = batch.weight.shape
    target_weight = batch.weight if batch.target_weight is None else batch.target_weight
    return Shape(
        rows,
        target_rows,
        hidden,
        vocab,
        0 if batch.target_weight is None else target_weight.shape[1],
        S.DTYPES[batch.draft.dtype],
        S.DTYPES[batch.weight.dtype],
        S.DTYPES[target_weight.dtype],
        batch.bias is not None,
        batch.target_bias is not None,
        produce,
        trains,
        0 if batch.draft_to_target is None else target_weight.shape[0],
        device_inputs(batch),
        None if batch.draft_to_target is None else C.string_at(batch.draft_to_target.data_ptr(), 4 * vocab),
    )


def request_for(
    options: Options, shape: Shape, external_workspace: bool, weight: Optional[Tensor] = None
) -> S.Request:
    """A complete request. `weight`: lm_head as it is now, for the plan to see whether f16 holds it."""
    request = copy_request(options)
    for name, value in zip(Shape._fields[:-1], shape):
        setattr(request, name, value)
    if shape.subset is not None:
        request.draft_to_target = C.cast(C.c_char_p(shape.subset), C.c_void_p)  # the plan copies it
    request.external_workspace = external_workspace
    if weight is not None and not weight.is_meta:
        request.lm_head, request.lm_head_ld = weight.data_ptr(), max(weight.stride(0), weight.shape[1])
    return request


def _matrix(tensor: Tensor) -> Tuple[int, int]:
    """Address and leading dimension. A single row may have any stride in PyTorch; here it has to hold the row."""
    return tensor.data_ptr(), max(tensor.stride(0), tensor.shape[1])


def _inputs(batch: Batch) -> S.Inputs:
    inputs = S.Inputs()
    inputs.rows = batch.draft.shape[0]
    inputs.draft_hidden, inputs.draft_ld = _matrix(batch.draft)
    inputs.lm_head, inputs.lm_head_ld = _matrix(batch.weight)
    if batch.target is not None:
        inputs.target_rows = batch.target.shape[0] if inputs.rows else 0
        inputs.target_hidden, inputs.target_ld = _matrix(batch.target)
    if batch.target_weight is not None:
        inputs.target_lm_head, inputs.target_lm_head_ld = _matrix(batch.target_weight)
    if batch.bias is not None:
        inputs.bias = batch.bias.data_ptr()
    if batch.target_bias is not None:
        inputs.target_bias = batch.target_bias.data_ptr()
    if batch.target_row is not None:
        inputs.target_row, inputs.target_row_dtype = batch.target_row.data_ptr(), S.DTYPES[batch.target_row.dtype]
    if batch.labels is not None:
        inputs.label, inputs.label_dtype = batch.labels.data_ptr(), S.DTYPES[batch.labels.dtype]
    if batch.mask is not None:
        inputs.mask, inputs.mask_dtype = batch.mask.data_ptr(), S.DTYPES[batch.mask.dtype]
    return inputs


def _allocate(options: Options, batch: Batch, produce: int) -> Dict[str, Tensor]:
    """Outputs of a step by their names in oh_outputs."""
    rows, device = batch.draft.shape[0], batch.draft.device
    made: Dict[str, Tensor] = {}
    # Sizes one by one: PyTorch 2.11 takes three times as long to read a tuple.
    if produce & S.PRODUCE_GRAD:
        made["draft_grad"] = torch.empty(*batch.draft.shape, dtype=getattr(torch, options.grad_dtype), device=device)
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
        k = options.topk[-1]
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
            self.data = torch.empty(count + EXTRA, dtype=torch.float64, device=CPU)
            self.loss = torch.scalar_tensor(0.0, dtype=torch.float32, device=CPU)
            self._data_at, self._loss_at = self.data.data_ptr(), self.loss.data_ptr()

    def copy(self, plan: Plan, workspace: Tensor) -> None:
        """Copies the last run's figures, and divides by a caller's own N."""
        at = workspace.data_ptr()
        sums_at, loss_at, overflow_at = plan.figures_at(at)
        if self._plain:
            C.memmove(self._data_at, at + sums_at, 8 * self._count)
            C.memmove(self._data_at + 8 * self._count, at + loss_at, 24)
            C.memmove(self._data_at + 8 * self._count + 24, at + overflow_at, 8)
            C.c_float.from_address(self._loss_at).value = C.c_double.from_address(at + loss_at).value
            return
        sums = workspace.narrow(0, sums_at // 8, self._count)
        loss = workspace.narrow(0, loss_at // 8, 3)
        overflow = workspace.narrow(0, overflow_at // 8, 1)
        if self._norm is not None:
            norm = self._norm
            n = norm.detach().to(loss).reshape(1) if isinstance(norm, Tensor) else loss.new_full((1,), norm)
            loss = torch.cat((loss[1:2] * inverse(n), loss[1:2], n))
        self.data = torch.cat((sums, loss, overflow))
        self.loss = self.data[-EXTRA].to(torch.float32)


def inverse(n: Tensor) -> Tensor:
    """1 / N, and 0 for N = 0: a step with nothing in it has loss and gradient 0. NaN where N is no norm: nothing waits for
    one on a device, to refuse it."""
    n = torch.where((n >= 0) & (n < math.inf), n, torch.full_like(n, math.nan))
    return torch.where(n == 0, torch.zeros_like(n), 1 / n)


def sum_count(options: Options) -> int:
    """oh_sum_count"""
    return S.SUM_FIXED + 2 * len(options.topk) + 2 * options.block_size


def run_step(
    options: Options,
    batch: Batch,
    produce: int,
    *,
    norm: Union[Tensor, float, None] = None,
    trains: bool = False,
) -> Step:
    """Runs one step on the batch's device and current stream.

    `produce`: OH_PRODUCE_* bits. `norm`: the caller's N, in place of the options' rule; gradients are then not divided
    yet, which is left to the multiplication by the upstream gradient. `trains`: the weight changes between steps.
    """
    device = batch.draft.device
    if batch.draft_to_target is not None:
        batch = batch._replace(draft_to_target=to_host("draft_to_target", batch.draft_to_target))
    if isinstance(norm, Tensor) and norm.is_cpu:
        norm = check_norm(float(norm.detach()))  # a copy from pageable memory would wait for the device
    context = context_for(options.backend, device, options.threads)
    inputs, made = _inputs(batch), _allocate(options, batch, produce)
    figures = _Figures(sum_count(options), context.on_cpu, norm)
    outputs = S.Outputs(**{name: tensor.data_ptr() or _NOWHERE for name, tensor in made.items()})
    shape = shape_of(options, batch, produce, trains)
    with context.lock, _NOTHING if context.on_cpu else torch.cuda.device(device):
        plan = context.plan((options, shape), lambda: request_for(options, shape, True, batch.weight))
        workspace = context.workspace(plan.workspace_bytes)
        inputs.workspace, inputs.workspace_bytes = workspace.data_ptr(), workspace.numel() * 8
        inputs.stream = context.stream()
        plan.run(inputs, outputs, (batch.weight, batch.target_weight))
        figures.copy(plan, workspace)
    return _collect(produce, made, figures)


def _collect(produce: int, made: Dict[str, Tensor], figures: _Figures) -> Step:
    step = Step(figures.data, figures.loss, made.get("draft_grad"), made.get("lm_head_grad"), made.get("bias_grad"))
    if "topk_id" in made:
        step.topk = made["topk_id"], made["topk_logprob"]
    if produce & S.PRODUCE_ROWS:
        names = ("row_loss", "weight", "label", "argmax", "rank")
        step.rows = Rows(*(made[name] for name in names), *(step.topk or (None, None)))
    return step
