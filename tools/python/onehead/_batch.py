"""A step's tensors, checked and brought into the shapes and dtypes that the library takes."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from ._context import CPU
from ._library import InvalidArgument
from ._options import compiling

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_INTEGERS = (torch.int32, torch.int64)
_AUTOCAST_BY_DEVICE = hasattr(torch, "get_autocast_dtype")


class Batch(NamedTuple):
    """As the library takes them: one stride leads from a matrix' row to its next. None: not given.

    Leading dimensions stay where that is so without an operation of PyTorch's, each of which costs a small step."""

    draft: Tensor  # [..., H], T rows
    weight: Tensor  # [V, H]
    bias: Optional[Tensor]  # f32 [V]
    target: Optional[Tensor]  # [..., H or Ht], S rows, of draft's dtype
    target_weight: Optional[Tensor]  # [V, Ht]
    target_bias: Optional[Tensor]  # f32 [V]
    target_row: Optional[Tensor]  # i32 or i64, T contiguous elements
    labels: Optional[Tensor]  # i32 or i64, as target_row
    mask: Optional[Tensor]  # bool, u8 or f32, as target_row
    draft_to_target: Optional[Tensor]  # i32 [V]


def row_count(hidden: Tensor) -> int:
    """Of hidden states [..., H]."""
    return hidden.numel() // hidden.shape[-1]


def autocast_dtype(device: torch.device) -> Optional[torch.dtype]:
    """The dtype that autocast would give a linear layer on this device; None outside of autocast."""
    kind = "cpu" if device == CPU else device.type
    if kind not in ("cpu", "cuda"):
        return None
    if _AUTOCAST_BY_DEVICE:
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    if kind == "cpu":
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None


def check_tensors(names: Sequence[str], values: Sequence[Any]) -> None:
    """Refuses what is given and no tensor. Asked before or, where a call is to cost little, after it went wrong."""
    for name, value in zip(names, values):
        if value is None or value is False or isinstance(value, Tensor):
            continue
        hint = f": pass {name}.weight?" if isinstance(value, torch.nn.Module) else ""
        raise InvalidArgument(f"{name} is a {type(value).__name__}: expected a tensor{hint}")


def _check_float(name: str, tensor: Tensor, dims: Optional[int] = None) -> None:
    if type(tensor).__name__ == "DTensor":
        raise InvalidArgument(
            f"{name} is a DTensor: gather it first ({name}.full_tensor(), or call inside the module that FSDP unshards)"
        )
    if tensor.dtype not in _FLOATS:
        check_tensors((name,), (tensor,))
        raise InvalidArgument(f"{name} of {tensor.dtype}: expected float32, bfloat16 or float16")
    if dims is not None and tensor.dim() != dims or tensor.dim() < 1:
        raise InvalidArgument(f"{name} of shape {tuple(tensor.shape)}: expected {dims or 'at least 1'} dimensions")


def _rows(name: str, tensor: Tensor, columns: int) -> Tensor:
    """[..., columns] with one stride from row to row; a copy only where there is none."""
    if tensor.shape[-1] != columns:
        raise InvalidArgument(f"{name} of shape {tuple(tensor.shape)}: expected {columns} columns, as its weight has")
    if tensor.is_contiguous():
        return tensor
    rows = tensor if tensor.dim() == 2 else tensor.reshape(-1, columns)
    return rows if _strided(rows) else rows.contiguous()


def _strided(matrix: Tensor) -> bool:
    return matrix.stride(1) == 1 and matrix.stride(0) >= matrix.shape[1]


def _weight(name: str, tensor: Tensor) -> Tensor:
    _check_float(name, tensor, 2)
    if tensor.shape[1] == 0:
        raise InvalidArgument(f"{name} of shape {tuple(tensor.shape)}: expected at least one column")
    if not (tensor.is_contiguous() or _strided(tensor)):
        raise InvalidArgument(
            f"{name} of shape {tuple(tensor.shape)} with strides {tensor.stride()}: expected rows of adjacent elements; "
            "a copy every step would cost as much memory as the weight, so make it contiguous once"
        )
    return tensor


def laid_out(batch: Batch) -> Batch:
    """A batch in the layout that the library takes. make_batch's is, but an exported program may be run on tensors of other
    strides than it was traced with."""
    target, target_weight = batch.target, batch.target_weight
    return Batch(
        _rows("draft_hidden", batch.draft, batch.draft.shape[-1]),
        _weight("lm_head", batch.weight),
        None if batch.bias is None else batch.bias.contiguous(),
        None if target is None else _rows("target_hidden", target, target.shape[-1]),
        None if target_weight is None else _weight("target_lm_head", target_weight),
        *[None if vector is None else vector.contiguous() for vector in batch[5:]],
    )


def _check_lead(name: str, shape: Tuple[int, ...], lead: Tuple[int, ...]) -> None:
    """Refuses leading dimensions in another order than the draft's [B, L]: as many elements, and each beside a wrong row."""
    if shape != lead and len(shape) == len(lead) and sorted(shape) == sorted(lead):
        raise InvalidArgument(f"{name} has leading dimensions {shape} and draft_hidden {lead}: expected them in one order")


def _vector(name: str, tensor: Optional[Tensor], rows: int, lead: Tuple[int, ...]) -> Optional[Tensor]:
    if tensor is None:
        return None
    if tensor.numel() != rows:
        raise InvalidArgument(f"{name} of shape {tuple(tensor.shape)}: expected {rows} elements, one for each draft row")
    if tensor.requires_grad:
        raise InvalidArgument(f"{name} requires a gradient, and none is formed for it: pass {name}.detach()")
    if tensor.dim() > 1:
        _check_lead(name, tuple(tensor.shape), lead)
    return tensor.contiguous()


def _constant(tensor: Tensor) -> Tensor:
    return tensor.detach() if tensor.requires_grad else tensor


def _to(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def _bias(name: str, tensor: Optional[Tensor], vocab: int) -> Optional[Tensor]:
    if tensor is None:
        return None
    _check_float(name, tensor, 1)
    if tensor.shape[0] != vocab:
        raise InvalidArgument(f"{name} of shape {tuple(tensor.shape)}: expected [{vocab}], one for each row of lm_head")
    return _to(tensor, torch.float32).contiguous()


def _integers(name: str, tensor: Optional[Tensor], rows: int, lead: Tuple[int, ...]) -> Optional[Tensor]:
    if tensor is not None and tensor.dtype not in _INTEGERS:
        raise InvalidArgument(f"{name} of {tensor.dtype}: expected int32 or int64")
    return _vector(name, tensor, rows, lead)


def _mask(name: str, tensor: Optional[Tensor], rows: int, lead: Tuple[int, ...]) -> Optional[Tensor]:
    if tensor is not None and tensor.dtype not in (torch.bool, torch.uint8, torch.float32):
        tensor = tensor.to(torch.float32)
    return _vector(name, tensor, rows, lead)


def _subset(tensor: Optional[Tensor], vocab: int) -> Optional[Tensor]:
    if tensor is None:
        return None
    if tensor.dtype not in _INTEGERS or tuple(tensor.shape) != (vocab,):
        raise InvalidArgument(f"draft_to_target of {tensor.dtype} {tuple(tensor.shape)}: expected int32 or int64 [{vocab}]")
    ids = _to(tensor, torch.int32).contiguous()
    if ids is not tensor and tensor.is_cpu and not torch.equal(ids, tensor):
        raise InvalidArgument(f"draft_to_target: {int(tensor.max())} is no token id")
    return ids


def one_weight(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same memory, read alike."""
    if a is b or compiling() or a.is_meta or b.is_meta:
        return a is b
    return (a.data_ptr(), a.shape, a.stride(), a.dtype) == (b.data_ptr(), b.shape, b.stride(), b.dtype)


def _refuse_target_grad(**tensors: Union[Tensor, bool, None]) -> None:
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and tensor.requires_grad:
            raise InvalidArgument(f"{name} requires a gradient, and the target is a constant: pass {name}.detach()")


def make_batch(
    draft_hidden: Tensor,
    lm_head: Tensor,
    target_hidden: Optional[Tensor] = None,
    target_row: Optional[Tensor] = None,
    labels: Optional[Tensor] = None,
    loss_mask: Optional[Tensor] = None,
    target_lm_head: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    target_bias: Union[Tensor, bool, None] = None,
    draft_to_target: Optional[Tensor] = None,
    block_size: int = 1,
    mask_name: str = "loss_mask",
) -> Batch:
    """Checks a step's tensors. Draft, weight and bias stay in autograd's graph."""
    _check_float("draft_hidden", draft_hidden)
    weight = _weight("lm_head", lm_head)
    vocab = weight.shape[0]
    draft = _rows("draft_hidden", draft_hidden, weight.shape[1])
    rows = row_count(draft)
    if rows % block_size != 0:
        raise InvalidArgument(f"{rows} draft rows: expected whole blocks, a multiple of block_size {block_size}")
    lead = tuple(draft_hidden.shape[:-1])
    if len(lead) > 1 and rows > 0 and lead[-1] % block_size != 0 and block_size % lead[-1] != 0:
        raise InvalidArgument(
            f"draft_hidden of shape {tuple(draft_hidden.shape)}: blocks of {block_size} rows would cross its sequences of "
            f"{lead[-1]}"
        )
    if torch.is_grad_enabled():
        _refuse_target_grad(target_hidden=target_hidden, target_lm_head=target_lm_head, target_bias=target_bias)

    target, target_weight = None, None
    if target_hidden is not None:
        _check_float("target_hidden", target_hidden)
        if target_lm_head is not None and not (draft_to_target is None and one_weight(target_lm_head, lm_head)):
            target_weight = _weight("target_lm_head", _constant(target_lm_head))
            if draft_to_target is None and target_weight.shape[0] != vocab:
                raise InvalidArgument(
                    f"target_lm_head has {target_weight.shape[0]} rows and lm_head {vocab}: expected as many, "
                    "or draft_to_target"
                )
        columns = (weight if target_weight is None else target_weight).shape[1]
        target = _rows("target_hidden", _constant(target_hidden), columns)
        if target_row is None:
            _check_lead("target_hidden", tuple(target_hidden.shape[:-1]), lead)
        elif rows > 0 and row_count(target) == 0:
            raise InvalidArgument(f"target_hidden of shape {tuple(target_hidden.shape)}: expected the rows of target_row")
        if target_row is None and rows > 0 and row_count(target) != rows:
            raise InvalidArgument(
                f"target_row: missing with {rows} draft and {row_count(target)} target rows; "
                "expected as many of each, or the map"
            )
    elif target_row is not None or target_lm_head is not None:
        raise InvalidArgument("target_row and target_lm_head have no meaning without target_hidden")
    if draft_to_target is not None and target_weight is None:
        raise InvalidArgument("draft_to_target: expected target_hidden and a target_lm_head of the whole vocabulary")

    cast = autocast_dtype(draft.device)
    same = target is None or target.dtype == draft.dtype
    hidden = draft.dtype if same else torch.promote_types(draft.dtype, target.dtype)
    draft = _to(draft, cast or hidden)
    target = None if target is None else _to(target, cast or hidden)
    if cast is not None:
        weight = weight.to(cast)
        target_weight = None if target_weight is None else target_weight.to(cast)
    batch_bias = _bias("bias", bias, vocab)
    batch_target_bias = None
    if draft_to_target is not None:
        if isinstance(target_bias, Tensor):
            raise InvalidArgument("target_bias: not with draft_to_target")
    elif target is not None and target_bias is not False:
        if isinstance(target_bias, Tensor):
            batch_target_bias = _bias("target_bias", _constant(target_bias), vocab)
        elif batch_bias is not None:
            batch_target_bias = batch_bias
    batch = Batch(
        draft,
        weight,
        batch_bias,
        target,
        target_weight,
        batch_target_bias,
        _integers("target_row", target_row, rows, lead),
        _integers("labels", labels, rows, lead),
        _mask(mask_name, loss_mask, rows, lead),
        _subset(draft_to_target, vocab),
    )
    device = draft.device
    for name, tensor in zip(Batch._fields[1:6], batch[1:6]):
        if tensor is not None and tensor.device != device:
            raise InvalidArgument(f"{name} is on {tensor.device} and draft_hidden on {device}")
    for name, tensor in (("target_row", target_row), ("labels", labels), (mask_name, loss_mask)):
        if tensor is not None and tensor.device != device and not tensor.is_cpu:
            raise InvalidArgument(f"{name} is on {tensor.device} and draft_hidden on {device}: expected it there or on cpu")
    return batch


class HostCopyWarning(UserWarning):
    """draft_to_target lay on a CUDA device: it was copied to the host, which waits for the device."""


def to_host(name: str, tensor: Optional[Tensor]) -> Optional[Tensor]:
    """A plan is made for it, so it is needed on the host. One that lies elsewhere costs a wait, said once a process."""
    if tensor is None or tensor.is_cpu:
        return tensor
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        raise InvalidArgument(f"{name} is on {tensor.device}: a captured step needs it in host memory")
    warnings.warn(
        f"onehead: {name} is on {tensor.device}; a plan is made for it, so it is copied to the host each step and the "
        "device waited for. Pass a CPU tensor to avoid the wait.",
        HostCopyWarning,
        stacklevel=2,
    )
    return tensor.to("cpu")
