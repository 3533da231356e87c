"""What steps share whose options and shapes are alike: the plan's key, and all that a run needs beside addresses."""

from __future__ import annotations

import ctypes as C
import functools
from typing import NamedTuple, Optional

import torch
from torch import Tensor

from . import _structs as S
from ._batch import Batch, row_count, to_host
from ._options import Options, copy_request

#: What a step's figures have behind the sums: loss, numerator, denominator, rows whose f16 tiles overflowed.
EXTRA = 4


def sum_count(options: Options) -> int:
    """oh_sum_count"""
    return S.SUM_FIXED + 2 * len(options.topk) + 2 * options.block_size


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
    rows, target_rows = row_count(batch.draft), 0 if batch.target is None else max(1, row_count(batch.target))
    if not exact:
        rows = _capacity(rows, block)
        target_rows = target_rows and _capacity(target_rows, block if batch.target_row is None else 1)
    vocab, hidden = batch.weight.shape
    target_weight = batch.weight if batch.target_weight is None else batch.target_weight
    subset = to_host("draft_to_target", batch.draft_to_target)
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
        0 if subset is None else target_weight.shape[0],
        device_inputs(batch),
        None if subset is None else C.string_at(subset.data_ptr(), 4 * vocab),
    )


def _leading(matrix: Optional[Tensor]) -> int:
    """Elements from one row to the next. What PyTorch calls contiguous may have any stride where it has a single row."""
    if matrix is None:
        return 0
    return matrix.shape[-1] if matrix.is_contiguous() else matrix.stride(0)


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
        request.lm_head, request.lm_head_ld = weight.data_ptr(), _leading(weight)
    return request


class Call(NamedTuple):
    """A step without its tensors."""

    options: Options
    shape: Shape
    figures: int  # elements of Step.data
    grad_dtype: torch.dtype
    # Of oh_inputs, whose names they have.
    rows: int
    target_rows: int
    draft_ld: int
    target_ld: int
    lm_head_ld: int
    target_lm_head_ld: int
    target_row_dtype: int
    label_dtype: int
    mask_dtype: int

    @property
    def produce(self) -> int:
        return self.shape.produce


def call_of(options: Options, batch: Batch, produce: int, trains: bool) -> Call:
    """`produce`: OH_PRODUCE_* bits. `trains`: the weight changes between steps."""
    shape = shape_of(options, batch, produce, trains)
    rows = row_count(batch.draft)
    return Call(
        options,
        shape,
        sum_count(options) + EXTRA,
        getattr(torch, options.grad_dtype),
        rows,
        row_count(batch.target) if rows and batch.target is not None else 0,
        *[_leading(matrix) for matrix in (batch.draft, batch.target, batch.weight, batch.target_weight)],
        *[0 if t is None else S.DTYPES[t.dtype] for t in (batch.target_row, batch.labels, batch.mask)],
    )
