"""Calls of draft_loss that came before.

A training loop makes the same call every step, on other tensors of the same kinds. What is found out about its arguments -
that they are valid, options, shapes, the plan's key - follows from what is compared here, so that it is found out once: in
caches that a step has swept, each of the many small things that it takes costs tens of microseconds.
"""

from __future__ import annotations

from typing import Any, Dict, Hashable, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from ._batch import Batch, autocast_dtype, one_weight
from ._call import Call
from ._options import are_plain, compiling, terms_text
from .metrics import Spec

MAX_CALLS = 256

#: Of draft_loss, in order.
TENSORS = (
    "draft_hidden", "lm_head", "target_hidden", "target_row", "labels", "loss_mask", "target_lm_head", "bias", "target_bias",
    "draft_to_target",
)  # fmt: skip
_LM_HEAD, _TARGET_LM_HEAD, _BIAS, _TARGET_BIAS, _DRAFT_TO_TARGET = map(
    TENSORS.index, ("lm_head", "target_lm_head", "bias", "target_bias", "draft_to_target")
)
_BY_FIELD = dict(
    draft="draft_hidden", weight="lm_head", target="target_hidden", target_weight="target_lm_head", mask="loss_mask"
)
#: By field of Batch: which of TENSORS it is, where it is one.
_PLACES = tuple([TENSORS.index(_BY_FIELD.get(field, field)) for field in Batch._fields])


class Known(NamedTuple):
    """What is kept of a call. No tensors."""

    call: Call
    spec: Spec
    sources: Tuple[Optional[int], ...]  # by field of Batch: which of TENSORS


_known: Dict[Hashable, Known] = {}


def _kind(value: Any) -> Hashable:
    """All of a tensor but its contents; of what may stand in a tensor's place, itself."""
    if value is None or value is False or isinstance(value, str):
        return value
    return value.shape, value.stride(), value.dtype, value.device, value.requires_grad, type(value)


def key_of(tensors: Sequence[Any], terms: Any, norm: Hashable, options: Mapping[str, Any]) -> Optional[Hashable]:
    """What a call is known by; None for one that can't be. `norm`: its rule."""
    if compiling() or tensors[_DRAFT_TO_TARGET] is not None:  # whose ids are part of a plan
        return None
    if not are_plain(options.values()):
        return None
    try:
        head, target_head = tensors[_LM_HEAD], tensors[_TARGET_LM_HEAD]
        key = (
            tuple([_kind(value) for value in tensors]),
            target_head is not None and one_weight(target_head, head),
            terms if terms is None else terms_text(terms),
            norm,
            tuple(options.values()),
            tuple(map(type, options.values())),  # equal and another thing: 0.0 is no size
            torch.is_grad_enabled(),
            autocast_dtype(tensors[0].device),
        )
    except (AttributeError, TypeError, RuntimeError):  # no tensor, or one without strides or an address
        return None
    return key


def recall(key: Hashable, tensors: Sequence[Any]) -> Optional[Tuple[Known, Batch]]:
    known = _known.get(key)
    if known is None:
        return None
    return known, Batch._make([None if source is None else tensors[source] for source in known.sources])


def remember(key: Hashable, tensors: Sequence[Any], batch: Batch, call: Call, spec: Spec) -> None:
    """Keeps a call whose batch is made of its own tensors: others would have to be made each time."""
    places = list(_PLACES)
    if not isinstance(tensors[_TARGET_BIAS], Tensor):
        places[places.index(_TARGET_BIAS)] = _BIAS
    if any(tensor is not None and tensor is not tensors[place] for tensor, place in zip(batch, places)):
        return
    sources = tuple([None if tensor is None else place for tensor, place in zip(batch, places)])
    if len(_known) >= MAX_CALLS:
        _known.clear()
    _known[key] = Known(call, spec, sources)
