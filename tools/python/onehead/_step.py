"""One call of the library: a batch and options in, tensors out."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Dict, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor

from . import _structs as S
from ._batch import Batch, bias_column, to_host
from ._context import Plan, context_for
from ._options import Options, copy_request


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

    data: Tensor  # f64 [sums, loss, numerator, denominator, T]: see metrics.py
    draft_grad: Optional[Tensor] = None  # [T, H]
    head_grad: Optional[Tensor] = None  # f32 [V, H]
    bias_grad: Optional[Tensor] = None  # f32 [V]
    rows: Optional[Rows] = None
    topk: Optional[Tuple[Tensor, Tensor]] = None  # i32, f32 [T, largest K]


def _capacity(count: int, unit: int) -> int:
    """Rows that a plan is made for: up to 1/8 more than `count`, so that batches of slightly different lengths share a
    plan. A function of `count` alone: what ran before changes nothing."""
    blocks = -(-count // unit)
    step = max(1, 1 << max(0, blocks.bit_length() - 4))
    return max(1, -(-blocks // step) * step) * unit


def _complete(request: S.Request, batch: Batch, produce: int, trains: bool, rows: int, target_rows: int) -> None:
    request.rows = rows
    request.target_rows = target_rows
    request.hidden = batch.weight.shape[1]
    request.vocab = batch.weight.shape[0]
    request.target_hidden = 0 if batch.target_weight is None else batch.target_weight.shape[1]
    request.hidden_dtype = S.DTYPES[batch.draft.dtype]
    request.weight_dtype = S.DTYPES[batch.weight.dtype]
    request.target_weight_dtype = S.DTYPES[(batch.weight if batch.target_weight is None else batch.target_weight).dtype]
    request.has_bias = batch.bias is not None
    request.has_target_bias = batch.target_bias is not None
    request.produce = produce
    request.weight_trains = trains


def request_for(options: Options, batch: Batch, produce: int, trains: bool, exact: bool = False) -> S.Request:
    """The request of a batch's plan; `exact`: for its own row counts rather than the cache's size classes."""
    block = options.block_size
    rows, target_rows = batch.draft.shape[0], 0 if batch.target is None else batch.target.shape[0]
    request = copy_request(options)
    if not exact:
        rows = _capacity(rows, block)
        target_rows = target_rows and _capacity(target_rows, block if batch.target_row is None else 1)
    _complete(request, batch, produce, trains, rows, target_rows)
    return request


def _inputs(batch: Batch, host: Batch) -> S.Inputs:
    inputs = S.Inputs()
    inputs.rows = batch.draft.shape[0]
    inputs.draft_hidden, inputs.draft_ld = batch.draft.data_ptr(), batch.draft.stride(0)
    inputs.lm_head, inputs.lm_head_ld = batch.weight.data_ptr(), batch.weight.stride(0)
    if batch.target is not None:
        inputs.target_rows = batch.target.shape[0]
        inputs.target_hidden, inputs.target_ld = batch.target.data_ptr(), batch.target.stride(0)
    if batch.target_weight is not None:
        inputs.target_lm_head = batch.target_weight.data_ptr()
        inputs.target_lm_head_ld = batch.target_weight.stride(0)
    if batch.bias is not None:
        inputs.bias = batch.bias.data_ptr()
    if batch.target_bias is not None:
        inputs.target_bias = batch.target_bias.data_ptr()
    if host.target_row is not None:
        inputs.target_row, inputs.target_row_dtype = host.target_row.data_ptr(), S.DTYPES[host.target_row.dtype]
    if host.labels is not None:
        inputs.label, inputs.label_dtype = host.labels.data_ptr(), S.DTYPES[host.labels.dtype]
    if host.mask is not None:
        inputs.mask, inputs.mask_dtype = host.mask.data_ptr(), S.DTYPES[host.mask.dtype]
    # Rows of a single row may have any stride in PyTorch; here it has to hold the row.
    inputs.draft_ld = max(inputs.draft_ld, batch.draft.shape[1])
    inputs.target_ld = max(inputs.target_ld, 0 if batch.target is None else batch.target.shape[1])
    inputs.lm_head_ld = max(inputs.lm_head_ld, batch.weight.shape[1])
    if batch.target_weight is not None:
        inputs.target_lm_head_ld = max(inputs.target_lm_head_ld, batch.target_weight.shape[1])
    return inputs


def _allocate(options: Options, batch: Batch, produce: int) -> Dict[str, Tensor]:
    """Outputs of a step by their names in oh_outputs."""
    rows, device = batch.draft.shape[0], batch.draft.device
    made: Dict[str, Tensor] = {}
    if produce & S.PRODUCE_GRAD:
        made["draft_grad"] = torch.empty(batch.draft.shape, dtype=getattr(torch, options.grad_dtype), device=device)
    if produce & S.PRODUCE_HEAD_GRAD:
        made["lm_head_grad"] = torch.empty(batch.weight.shape, dtype=torch.float32, device=device)
    if produce & S.PRODUCE_ROWS:
        for name in ("row_loss", "weight"):
            made[name] = torch.empty(rows, dtype=torch.float32, device=device)
        for name in ("label", "argmax", "rank"):
            made[name] = torch.empty(rows, dtype=torch.int32, device=device)
    if produce & S.PRODUCE_TOP_K_ROWS:
        k = options.topk[-1]
        made["topk_id"] = torch.empty((rows, k), dtype=torch.int32, device=device)
        made["topk_logprob"] = torch.empty((rows, k), dtype=torch.float32, device=device)
    return made


def _figures(
    plan: Plan, workspace: Tensor, sum_count: int, rows: int, norm: Union[Tensor, float, None]
) -> Tensor:
    """Copies what the step summed out of the workspace, and divides by a caller's own N."""
    sums_at, loss_at = plan.sums_at()
    base = workspace.data_ptr()
    sums = workspace.narrow(0, (sums_at - base) // 8, sum_count)
    loss = workspace.narrow(0, (loss_at - base) // 8, 3)
    if norm is not None:
        n = norm.detach().to(loss).reshape(1) if isinstance(norm, Tensor) else loss.new_full((1,), norm)
        loss = torch.cat((loss[1:2] * inverse(n), loss[1:2], n))
    return torch.cat((sums, loss, torch.full((1,), float(rows), dtype=torch.float64, device=workspace.device)))


def inverse(n: Tensor) -> Tensor:
    """1 / N, and 0 for N = 0: a step with nothing in it has loss and gradient 0."""
    return torch.where(n > 0, 1 / n, torch.zeros_like(n))


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
    bias_grad: bool = False,
) -> Step:
    """Runs one step on the batch's device and current stream.

    `norm`: the caller's N, in place of the options' rule; gradients are then not divided yet, which is left to the
    multiplication by the upstream gradient. `trains`: the weight changes between steps. `bias_grad`: also the bias's
    gradient, at the cost of copies of draft and weight (the library has no such product of its own).
    """
    bias_at = 0
    if bias_grad:
        batch, bias_at = bias_column(batch)
        produce |= S.PRODUCE_HEAD_GRAD
    host = batch._replace(
        target_row=to_host("target_row", batch.target_row),
        labels=to_host("labels", batch.labels),
        mask=to_host("loss_mask", batch.mask),
    )
    device = batch.draft.device
    context = context_for(options.backend, device, options.threads)
    inputs, made = _inputs(batch, host), _allocate(options, batch, produce)
    outputs = S.Outputs(**{name: tensor.data_ptr() for name, tensor in made.items()})
    request = request_for(options, batch, produce, trains)
    request.external_workspace = 1
    with context.lock, torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        plan = context.plan(bytes(request), request)
        workspace = context.workspace(plan.workspace_bytes)
        inputs.workspace, inputs.workspace_bytes = workspace.data_ptr(), workspace.numel() * 8
        inputs.stream = context.stream()
        plan.run(inputs, outputs, (batch.weight, batch.target_weight))
        data = _figures(plan, workspace, sum_count(options), batch.draft.shape[0], norm)
    return _collect(options, produce, made, data, bias_at)


def _collect(options: Options, produce: int, made: Dict[str, Tensor], data: Tensor, bias_at: int) -> Step:
    step = Step(data, made.get("draft_grad"), made.get("lm_head_grad"))
    if bias_at:
        step.bias_grad = step.head_grad[:, bias_at] / options.scale
        step.head_grad = step.head_grad[:, :bias_at]
        if step.draft_grad is not None:
            step.draft_grad = step.draft_grad[:, :bias_at]
    if "topk_id" in made:
        step.topk = made["topk_id"], made["topk_logprob"]
    if produce & S.PRODUCE_ROWS:
        names = ("row_loss", "weight", "label", "argmax", "rank")
        step.rows = Rows(*(made[name] for name in names), *(step.topk or (None, None)))
    return step
