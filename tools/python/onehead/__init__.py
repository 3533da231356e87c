"""onehead: the lm_head stage of training a speculative-decoding drafter, one projection for every consumer.

    loss, metrics = onehead.draft_loss(draft_hidden, lm_head.weight, target_hidden, loss_mask=mask)
    loss.backward()

``draft_loss`` is the loss with its gradient and every figure of the step; ``topk`` what a draft tree is built from;
``plan`` what would run; ``weight_sum`` a batch's normaliser before its step.
"""

from ._batch import HostCopyWarning
from ._context import weight_changed
from ._library import InvalidArgument, NoBackend, OneheadError, OutOfMemory, version
from ._step import Rows
from .functions import TopK, draft_loss, topk, weight_sum
from .metrics import Metrics, OverflowWarning
from .plans import Plan, plan

__all__ = [
    "HostCopyWarning",
    "InvalidArgument",
    "Metrics",
    "NoBackend",
    "OneheadError",
    "OutOfMemory",
    "OverflowWarning",
    "Plan",
    "Rows",
    "TopK",
    "draft_loss",
    "plan",
    "topk",
    "version",
    "weight_changed",
    "weight_sum",
]
