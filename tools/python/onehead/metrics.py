"""A step's figures as sums and counts, so that steps and ranks can be added before anything is divided."""

from __future__ import annotations

import ctypes as C
import dataclasses
import math
import warnings
from typing import Any, Dict, Optional

import torch
from torch import Tensor

from . import _structs as S
from ._call import EXTRA as _EXTRA
from ._call import sum_count
from ._library import InvalidArgument, library
from ._options import Options, request_of
from ._step import Rows


class OverflowWarning(UserWarning):
    """Logits left the range of f16 tiles."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """What the numbers of a Metrics mean."""

    options: Options
    draft_rows: int  # T of the step or, after adding, of all
    has_target: bool
    given_norm: bool  # N came from the caller: losses of a step's parts add

    @property
    def kind(self) -> Dict[str, Any]:
        """What figures must have in common to be added. Not factors and parameters of terms, which a trainer may anneal."""
        o = self.options
        return dict(
            terms=",".join(sorted(o.term_names)),
            topk=o.topk,
            labels=o.labels,
            target_hidden=self.has_target,
            block_size=o.block_size,
            first_slot=o.first_slot,
            gap=o.gap,
            outside=o.outside,
            metrics=o.metrics,
            norm="given" if self.given_norm else o.norm,
        )

    @property
    def adds_loss(self) -> bool:
        return self.given_norm or self.options.norm == "none"


class Metrics:
    """Figures of one step, or of several added ones.

    All tensors are float64 on the step's device and nothing waits for the device until a value is read (``ratios()``,
    ``float(...)``). Sums are over supervised rows that are finite, unless said otherwise.

    ``a + b`` adds steps (``sum([a, b, c])`` works too), ``all_reduce()`` adds ranks. Of the sum, ``loss`` is the ratio
    of the added numerators and denominators where N follows from the batch (``norm`` "weights" and "count"); with
    ``norm="none"`` or an N of the caller's it is the sum of the losses, as parts of one step add up: of several steps, or
    of ranks whose N is a rank's share, divide it by their number, or read ``terms`` of ``ratios()``, which are means over all
    rows and need no N.
    """

    def __init__(self, data: Tensor, spec: Spec, rows: Optional[Rows] = None) -> None:
        self._data = data
        self.spec = spec
        #: Per-row figures, when ``rows=True`` asked for them; not kept by ``+``.
        self.rows = rows

    # ---- the tensors ----

    def _fixed(self, index: int) -> Tensor:
        return self._data[index]

    @property
    def loss(self) -> Tensor:
        """Scalar: loss_num / loss_den."""
        return self._data[-_EXTRA]

    @property
    def loss_num(self) -> Tensor:
        """Scalar: sum of w * l."""
        return self._data[-_EXTRA + 1]

    @property
    def loss_den(self) -> Tensor:
        """Scalar: N."""
        return self._data[-_EXTRA + 2]

    @property
    def weight_sum(self) -> Tensor:
        """Scalar: sum of w over all supervised rows."""
        return self._fixed(S.SUM_WEIGHT)

    @property
    def mask_sum(self) -> Tensor:
        """Scalar: sum of the mask over all supervised rows."""
        return self._fixed(S.SUM_MASK)

    @property
    def supervised(self) -> Tensor:
        """Scalar: supervised rows, finite or not."""
        return self._fixed(S.SUM_SUPERVISED)

    @property
    def nonfinite_rows(self) -> Tensor:
        """Scalar: supervised rows with NaN or infinite logits or loss: left out of everything but the counts."""
        return self._fixed(S.SUM_NONFINITE)

    @property
    def overflow_rows(self) -> Tensor:
        """Scalar: of the nonfinite_rows, those whose logits are finite and left the range of an f16 or diff tile. Such a
        step's gradient is that of the other rows; better left out, and ``tile="f32"`` taken. ratios() warns of it."""
        return self._data[-_EXTRA + 3]

    @property
    def blocks(self) -> Tensor:
        """Scalar: blocks with a supervised row."""
        return self._fixed(S.SUM_BLOCKS)

    @property
    def alpha_sum(self) -> Tensor:
        """Scalar: sum over rows of the acceptance rate, sum of min(p, q). Needs ``metrics="all"`` and a target."""
        return self._fixed(S.SUM_ALPHA)

    @property
    def tau_sum(self) -> Tensor:
        """Scalar: sum over blocks of the expected accepted length. Needs ``metrics="all"`` and a target."""
        return self._fixed(S.SUM_TAU)

    @property
    def draft_entropy_sum(self) -> Tensor:
        """Scalar: sum over rows of H(p), in nats."""
        return self._fixed(S.SUM_ENTROPY)

    @property
    def draft_top1_sum(self) -> Tensor:
        """Scalar: sum over rows of the drafter's largest probability."""
        return self._fixed(S.SUM_DRAFT_TOP1)

    @property
    def target_top1_sum(self) -> Tensor:
        """Scalar: sum over rows of the target's largest probability."""
        return self._fixed(S.SUM_TARGET_TOP1)

    @property
    def term_sums(self) -> Dict[str, Tensor]:
        """For each term in use: sum of w * l_i, without the term's factor."""
        used = self.spec.options.term_names
        return {name: self._fixed(S.SUM_TERM + i) for i, name in enumerate(S.TERMS) if name in used}

    def _top_k(self, offset: int) -> Dict[int, Tensor]:
        if not self.spec.options.produce & S.PRODUCE_TOP_K:
            return {}
        return {k: self._fixed(S.SUM_FIXED + offset + i) for i, k in enumerate(self.spec.options.topk)}

    @property
    def hits(self) -> Dict[int, Tensor]:
        """For each K: rows whose y is among the K largest draft logits."""
        return self._top_k(0)

    @property
    def streak_sums(self) -> Dict[int, Tensor]:
        """For each K: sum over blocks of the hits before the first miss."""
        return self._top_k(len(self.spec.options.topk))

    @property
    def slot_hits(self) -> Tensor:
        """[block_size]: top-1 hits of each slot."""
        return self._data[-_EXTRA - 2 * self.spec.options.block_size : -_EXTRA - self.spec.options.block_size]

    @property
    def slot_count(self) -> Tensor:
        """[block_size]: rows of each slot."""
        return self._data[-_EXTRA - self.spec.options.block_size : -_EXTRA]

    # ---- adding ----

    def _same_kind(self, other: "Metrics") -> None:
        mine, theirs = self.spec.kind, other.spec.kind
        for what, value in mine.items():
            if value != theirs[what]:
                raise InvalidArgument(f"metrics with {what} {value} and {theirs[what]} can't be added")

    def __add__(self, other: Any) -> "Metrics":
        if isinstance(other, int) and other == 0:  # sum() starts from it
            return self
        if not isinstance(other, Metrics):
            return NotImplemented
        self._same_kind(other)
        a, b = self._data, other._data.to(self._data.device)
        data = a + b
        first_a, first_b = a[S.SUM_FIRST_NONFINITE], b[S.SUM_FIRST_NONFINITE]
        data[S.SUM_FIRST_NONFINITE] = torch.where(
            (first_a > 0) & (first_b > 0), torch.minimum(first_a, first_b), torch.maximum(first_a, first_b)
        )
        if self.spec.adds_loss:
            data[-_EXTRA + 2] = a[-_EXTRA + 2]
        rows = self.spec.draft_rows + other.spec.draft_rows
        return Metrics(self._closed(data), dataclasses.replace(self.spec, draft_rows=rows))

    __radd__ = __add__

    def _closed(self, data: Tensor) -> Tensor:
        """The loss from added numerators and denominators, where those are what adds."""
        if not self.spec.adds_loss:
            num, den = data[-_EXTRA + 1], data[-_EXTRA + 2]
            data[-_EXTRA] = torch.where(den > 0, num / den, torch.zeros_like(num))
        return data

    def all_reduce(self, group: Any = None) -> "Metrics":
        """The sum over the ranks of a process group (None: all), on every rank. Collective: all ranks must call it.

        With an N of the caller's, ``loss`` adds as well and ``loss_den`` stays this rank's: where that is the global N over
        the number of ranks, as DistributedDataParallel's averaging wants it, ``loss`` is that number times the global loss.
        All ranks' metrics must be of one kind, as for ``+``; nothing looks. ``first_nonfinite_row`` is
        counted within whichever rank has the smallest, and ``rows`` is this rank's times the ranks'.
        """
        import torch.distributed as dist

        first = self._data[S.SUM_FIRST_NONFINITE]
        first = torch.where(first > 0, first, torch.full_like(first, math.inf))
        data = self._data.clone()
        dist.all_reduce(data, op=dist.ReduceOp.SUM, group=group)
        dist.all_reduce(first, op=dist.ReduceOp.MIN, group=group)
        data[S.SUM_FIRST_NONFINITE] = torch.where(torch.isinf(first), torch.zeros_like(first), first)
        if self.spec.adds_loss:
            data[-_EXTRA + 2] = self._data[-_EXTRA + 2]
        rows = self.spec.draft_rows * dist.get_world_size(group)
        return Metrics(self._closed(data), dataclasses.replace(self.spec, draft_rows=rows))

    def to(self, device: Any) -> "Metrics":
        """The same figures on another device."""
        rows = None if self.rows is None else Rows(*[None if row is None else row.to(device) for row in self.rows])
        return Metrics(self._data.to(device), self.spec, rows)

    # ---- reading ----

    def ratios(self) -> Dict[str, Any]:
        """Figures as Python numbers, with the keys of ``onehead run --json``. Waits for the device.

        Figures that were not asked for or need a target that isn't there are None (of slot_hits and slot_count, 0); ratios
        over nothing are 0.
        """
        options, results = self.spec.options, S.Results()
        data = self._data.detach().to("cpu")
        if data[-_EXTRA + 3] > 0:
            warnings.warn(
                f"onehead: f16 tiles overflowed in {int(data[-_EXTRA + 3])} rows, which were left out: the step is not "
                'valid. Pass tile="f32".',
                OverflowWarning,
                stacklevel=2,
            )
        count, address = sum_count(options), data.data_ptr()
        library().oh_results_from_sums(
            request_of(options).objective,
            address,
            address + 8 * count,
            self.spec.has_target,
            options.produce if self.spec.has_target else options.produce & ~S.PRODUCE_OVERLAP,
            C.byref(results),
        )
        figures: Dict[str, Any] = {
            "rows": self.spec.draft_rows,
            "supervised": results.supervised,
            "blocks": results.blocks,
            "nonfinite_rows": results.nonfinite_rows,
            "first_nonfinite_row": results.first_nonfinite_row,
        }
        for name in ("weight_sum", "loss", "loss_num", "loss_den"):
            figures[name] = _number(getattr(results, name))
        figures["terms"] = {
            name: results.terms[i] for i, name in enumerate(S.TERMS) if not math.isnan(results.terms[i])
        }
        figures["topk"] = {
            str(top.k): {"hits": top.hits, "rate": top.rate, "streak_sum": top.streak_sum, "streak": top.streak}
            for top in results.top_k[: results.top_k_count]
        }
        figures["slot_hits"] = [int(n) for n in results.slot_hits[: options.block_size]]
        figures["slot_count"] = [int(n) for n in results.slot_count[: options.block_size]]
        for name in ("eal", "alpha", "tau", "draft_entropy", "draft_top1", "target_top1"):
            figures[name] = _number(getattr(results, name))
        return figures

    def __repr__(self) -> str:
        return f"Metrics(terms={self.spec.options.terms!r}, topk={self.spec.options.topk}, device={self._data.device})"


def _number(value: float) -> Optional[float]:
    return None if math.isnan(value) else value
