"""The public functions: draft_loss, topk, weight_sum. plan is in plans.py."""

from __future__ import annotations

import math
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from . import _structs as S
from ._autograd import DraftLoss, gradients
from ._batch import Batch, check_tensors, make_batch, row_count
from ._call import call_of
from ._library import InvalidArgument
from ._opaque import opaque_draft_loss, opaque_top_k
from ._options import (
    Decay,
    Memory,
    Options,
    Terms,
    choice,
    compiling,
    decay_parts,
    integer,
    make_options,
    norm_rule,
    options_of,
)
from ._recall import TENSORS, key_of, recall, remember
from ._step import run_step, run_top_k
from .metrics import Metrics, Spec

Labels = Union[Tensor, str, None]
Norm = Union[str, float, Tensor]


def _judged_by(labels: Labels, has_target: bool) -> Tuple[str, Optional[Tensor]]:
    """How a row's y is found, and the labels where they are given."""
    if isinstance(labels, Tensor):
        return "given", labels
    if labels not in (None, "target"):
        raise InvalidArgument(f"labels {labels!r}: expected a tensor, None or 'target'")
    if not has_target:
        raise InvalidArgument("labels: missing, and there is no target_hidden to judge rows by")
    return "target", None


def prepare(tensors: Sequence[Any], terms: Terms, options: Dict[str, Any]) -> Tuple[Options, Batch]:
    """Options and batch of a call of draft_loss or plan, whose tensor arguments `tensors` are."""
    draft_hidden, lm_head, target_hidden, target_row, labels, loss_mask, target_lm_head, bias, target_bias, subset = tensors
    has_target = target_hidden is not None
    judged, given = _judged_by(labels, has_target)
    if terms is None:
        terms = "kl=1" if has_target else "ce=1"
    made = options_of(terms=terms, labels=judged, **options)
    own_bias = None if target_bias is True else target_bias
    given_ones = (
        draft_hidden, lm_head, target_hidden, target_row, given, loss_mask, target_lm_head, bias, own_bias, subset,
    )  # fmt: skip
    try:
        batch = make_batch(*given_ones, made.block_size)
    except (AttributeError, TypeError):
        check_tensors(TENSORS, given_ones)
        raise
    return made, batch


def draft_loss(
    draft_hidden: Tensor,
    lm_head: Tensor,
    target_hidden: Optional[Tensor] = None,
    target_row: Optional[Tensor] = None,
    labels: Labels = None,
    loss_mask: Optional[Tensor] = None,
    *,
    block_size: int = 16,
    first_slot: int = 1,
    terms: Terms = None,
    decay: Decay = ("exp", 10.0),
    norm: Norm = "weights",
    topk: Sequence[int] = (1, 4, 8),
    gap: str = "stop",
    policy: str = "cached",
    chunk: Optional[int] = None,
    memory: Memory = None,
    tile: Optional[str] = None,
    target_lm_head: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    target_bias: Union[Tensor, bool, None] = None,
    scale: Optional[float] = None,
    softcap: Optional[float] = None,
    target_scale: Optional[float] = None,
    target_softcap: Optional[float] = None,
    vocab_valid: Optional[int] = None,
    draft_to_target: Optional[Tensor] = None,
    outside: str = "drop",
    eta: float = 3.0,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    metrics: str = "all",
    rows: bool = False,
    grad_dtype: Optional[torch.dtype] = None,
    backend: Optional[str] = None,
    threads: Optional[int] = None,
) -> Tuple[Tensor, Metrics]:
    """Loss of a drafter's hidden states, with every figure of the step, in one pass over the vocabulary.

    The projection onto the vocabulary runs once for the drafter and once for the target, whoever needs the logits; the
    gradient is formed in the same pass and scaled by the upstream gradient in ``backward()``.

    Tensors (T draft rows, S target rows, hidden sizes H and Ht, vocabulary V; float32, bfloat16 or float16):

    draft_hidden
        ``[..., H]``, the drafter's hidden states after its final norm. Leading dimensions are flattened to T rows, which
        lie in blocks of ``block_size``: T must be a multiple of it.
    lm_head
        ``[V, H]``, a linear layer's weight. Frozen unless it requires a gradient: then it gets one (through the draft
        logits only: the target is a constant even where both use one weight).
    target_hidden
        ``[..., Ht]``, the target's hidden states after its final norm, S rows. Constant: a tensor that requires a
        gradient is refused. Hidden states of two dtypes are brought to the wider one.
    target_row
        int32 or int64 ``[T]``: for each draft row the target row that predicts the same token. None: row for row, S = T.
    labels
        int32 or int64 ``[T]``, the token that each row predicts, already shifted: rows are then judged by it, and rows
        whose label is out of [0, V) (-100, say) are unsupervised. None or "target": judged by the target's argmax.
    loss_mask
        ``[T]``, bool, or numbers that multiply a row's weight; 0: unsupervised. None: all 1.
    target_lm_head, bias, target_bias
        ``[V, Ht]``, the target's own head; ``[V]`` f32 added to logits. target_bias None: bias; False: none.
        A target_lm_head that is lm_head counts as none.

    draft_to_target, outside
        int32 or int64 ``[V]``, for a drafter whose vocabulary is a part of the target's: ascending target ids of its
        columns (ids, not the offsets that checkpoints call d2t: those plus arange(V)); target_lm_head then has the
        target's whole vocabulary, and no bias. Labels are target ids. Rows whose token is no
        draft column are unsupervised ("drop") or supervised without ever being hit ("keep").

    target_row, labels and loss_mask select rows, and may lie on the host or beside draft_hidden. On the host, rows that are
    not supervised cost nothing. On a GPU nothing is read back, so every row from first_slot on is computed, to the same
    figures and gradients (target rows are shared where target_row is on the host); a negative mask or a target_row out of
    range is refused on the host and makes its row unsupervised on the GPU.

    Objective (design of the command ``onehead run``, which has the same names and defaults):

    block_size, first_slot
        Rows of a block, and the first supervised slot (0 where the anchor is supervised too).
    terms
        Factors of ``ce``, ``kl``, ``rkl``, ``jsd``, ``tv``, ``nla``, ``lk_hybrid``, ``cap``: a dict, or "kl=1,cap=0.1".
        None: kl = 1, or ce = 1 without a target.
    decay
        Weight by slot: "none", ("exp", gamma), ("power", gamma), ("dpace", a), or as text, "exp:10".
    norm
        What the sum of weighted losses is divided by: "weights", "count", "none", a number, or a scalar tensor (on any
        device, not waited for): a global count under gradient accumulation or data parallelism; see weight_sum.
    eta, label_smoothing, z_loss
        Of lk_hybrid, ce and ce.
    scale, softcap, target_scale, target_softcap, vocab_valid
        logit = softcap * tanh(x / softcap), x = scale * raw + bias; the target's default to the drafter's (0: no cap).
        Columns from vocab_valid on are padding.
    topk, gap, metrics, rows
        Sizes of the top-K figures, 1 to 64; whether an unsupervised slot stops a streak or is skipped; "all", "one-read"
        (no alpha and tau, which need a second read of the logits) or "none"; per-row figures in ``Metrics.rows``.

    Execution:

    policy, chunk, memory, tile
        "cached", "recompute", "naive" or "auto"; rows a chunk; bytes for workspace and converted weights ("2G"); "auto",
        "f32", "bf16", "f16" or "diff". All give the same numbers up to rounding. See plan().
    grad_dtype
        Of the gradient that is kept between forward and backward, torch.float32 by default.
    backend, threads
        Name or path of a backend; None: "openblas" for CPU tensors, "cuda" for CUDA tensors. Threads of a CPU backend;
        None: torch.get_num_threads().

    Returns the loss, a float32 scalar that backward() can be called on once, and the step's Metrics. Under no_grad, or
    where nothing requires a gradient, no gradient is formed. Under autocast, hidden states and weights are cast as a
    linear layer's would be. Raises InvalidArgument (a ValueError), NoBackend, OutOfMemory or OneheadError.
    """
    tensors = (
        draft_hidden, lm_head, target_hidden, target_row, labels, loss_mask, target_lm_head, bias, target_bias,
        draft_to_target,
    )  # fmt: skip
    options = dict(
        decay=decay,
        topk=topk,
        gap=gap,
        outside=outside,
        block_size=block_size,
        first_slot=first_slot,
        eta=eta,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
        scale=scale,
        softcap=softcap,
        target_scale=target_scale,
        target_softcap=target_softcap,
        vocab_valid=vocab_valid,
        policy=policy,
        chunk=chunk,
        memory=memory,
        tile=tile,
        metrics=metrics,
        rows=rows,
        grad_dtype=grad_dtype,
        backend=backend,
        threads=threads,
    )
    given = None if isinstance(norm, str) else norm
    rule = norm_rule(norm)
    key = key_of(tensors, terms, (rule, given is None), options)
    found = None if key is None else recall(key, tensors)
    if found is not None:
        (call, spec, _), batch = found
    else:
        made, batch = prepare(tensors, terms, dict(options, norm=rule))
        spec = Spec(made, row_count(batch.draft), batch.target is not None, given is not None)
        needs = [t is not None and t.requires_grad and torch.is_grad_enabled() for t in batch[:3]]
        if compiling():
            loss, data = opaque_draft_loss(batch, made, given, needs)
            return loss, Metrics(data, spec)
        call = call_of(made, batch, made.produce | gradients(*needs), lm_head.requires_grad)
        if key is not None:
            remember(key, tensors, batch, call, spec)
    if call.produce & S.PRODUCE_GRADIENTS:
        loss, step = DraftLoss.apply(*batch[:3], batch, call, given)
    else:
        step = run_step(call, batch, given)
        loss = step.loss
    return loss, Metrics(step.data, spec, step.rows)


class TopK(NamedTuple):
    """What a draft tree is built from."""

    ids: Tensor  # int64 [..., k]: descending by logit, ties by lowest id; -1 where the vocabulary ends
    logprobs: Tensor  # float32 [..., k]


def topk(
    draft_hidden: Tensor,
    lm_head: Tensor,
    k: int,
    *,
    row_mask: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    scale: Optional[float] = None,
    softcap: Optional[float] = None,
    vocab_valid: Optional[int] = None,
    chunk: Optional[int] = None,
    memory: Memory = None,
    tile: Optional[str] = None,
    backend: Optional[str] = None,
    threads: Optional[int] = None,
) -> TopK:
    """The k most probable tokens of each row and their log-probabilities, in one projection; no gradient.

    draft_hidden ``[..., H]``, lm_head ``[V, H]``, ``1 <= k <= 64``. row_mask ``[...]``: rows where it is 0 are not
    computed and get id -1. The other arguments are draft_loss's.
    """
    options = make_options(
        terms="ce=1",
        labels="given",
        decay="none",
        norm="none",
        topk=(k,),
        block_size=1,
        first_slot=0,
        scale=scale,
        softcap=softcap,
        vocab_valid=vocab_valid,
        policy="auto",
        chunk=chunk,
        memory=memory,
        tile=tile,
        metrics="none",
        backend=backend,
        threads=threads,
    )
    check_tensors(("draft_hidden", "lm_head", "row_mask", "bias"), (draft_hidden, lm_head, row_mask, bias))
    batch = make_batch(draft_hidden, lm_head, loss_mask=row_mask, bias=bias, mask_name="row_mask")
    if compiling():
        ids, logprobs = opaque_top_k(options, batch, lm_head.requires_grad)
    else:
        with torch.no_grad():
            ids, logprobs = run_top_k(options, batch, lm_head.requires_grad)
    lead = draft_hidden.shape[:-1]
    return TopK(ids.reshape(*lead, k), logprobs.reshape(*lead, k))


@torch.no_grad()
def weight_sum(
    loss_mask: Optional[Tensor] = None,
    labels: Optional[Tensor] = None,
    *,
    rows: Optional[int] = None,
    vocab: Optional[int] = None,
    draft_to_target: Optional[Tensor] = None,
    outside: str = "drop",
    block_size: int = 16,
    first_slot: int = 1,
    decay: Decay = ("exp", 10.0),
    norm: str = "weights",
) -> Tensor:
    """N of a batch before its step: the sum of weights (``norm="weights"``) or of the mask (``"count"``).

    For normalisers that span micro-batches or ranks: add the results (torch.distributed.all_reduce), then pass the sum
    as ``norm`` to draft_loss. loss_mask and labels as there; without either, ``rows`` says how many there are. ``vocab``:
    the number of tokens that a label may be, needed with labels: V, or the target's where draft_to_target is given (that
    and outside as in draft_loss: rows that are dropped have no weight). Returns a float64 scalar on the arguments' device;
    nothing waits for it.
    D-PACE's weights come out of the drafter's probabilities, and rows that are dropped by the target's argmax out of the
    target's: such a sum is not known before the step and refused.
    """
    kind, parameter = decay_parts(decay)
    block = integer("block_size", block_size, 1)
    first = integer("first_slot", first_slot, 0, block - 1)
    drops = draft_to_target is not None and choice("outside", outside, S.OUTSIDE[1:]) == "drop"
    choice("norm", norm, ("weights", "count"))
    if kind == "dpace" and norm == "weights":
        raise InvalidArgument("decay dpace: the sum of its weights is known only after the step")
    if drops and labels is None:
        raise InvalidArgument(
            "draft_to_target: rows whose target's argmax is no draft column are known only after the step: expected "
            "labels, or outside='keep'"
        )
    check_tensors(("loss_mask", "labels", "draft_to_target"), (loss_mask, labels, draft_to_target))
    sizes = {t.numel() for t in (loss_mask, labels) if t is not None} | ({rows} if rows is not None else set())
    if len(sizes) != 1:
        raise InvalidArgument(f"rows {sorted(sizes)}: expected one count of rows, from loss_mask, labels or rows")
    count = sizes.pop()
    if count % block != 0:
        raise InvalidArgument(f"{count} rows: expected whole blocks, a multiple of block_size {block}")
    like = labels if loss_mask is None else loss_mask
    device = torch.device("cpu") if like is None else like.device
    weight = torch.ones(count, dtype=torch.float64, device=device) if loss_mask is None else _mask_weights(loss_mask)
    if labels is not None:
        weight = weight * _in_vocabulary(labels, vocab, draft_to_target if drops else None).to(device)
    weight = weight.reshape(-1, block)[:, first:]
    if norm == "weights" and kind != "none":
        slot = torch.arange(block - first, dtype=torch.float64, device=device)
        weight = weight * (torch.exp(-slot / parameter) if kind == "exp" else parameter**slot)
    return weight.sum()


def _mask_weights(mask: Tensor) -> Tensor:
    """As a step reads a mask: what is no weight is refused on the host, and no row on a device, where nothing waits."""
    weight = mask.reshape(-1).to(torch.float64)
    good = (weight >= 0) & (weight < math.inf)
    if mask.is_cpu and not compiling() and not bool(good.all()):
        row = int((~good).nonzero()[0])
        raise InvalidArgument(f"loss_mask: row {row} is {float(weight[row])}: expected a finite number that is not negative")
    return torch.where(good, weight, torch.zeros_like(weight))


def _in_vocabulary(labels: Tensor, vocab: Optional[int], columns: Optional[Tensor]) -> Tensor:
    """[T] bool: rows whose label is a token; of `columns`, where those are given."""
    if labels.dtype not in (torch.int32, torch.int64):
        raise InvalidArgument(f"labels of {labels.dtype}: expected int32 or int64")
    if vocab is None:
        raise InvalidArgument("vocab: missing, and labels are in range or not by it")
    flat = labels.reshape(-1)
    inside = (flat >= 0) & (flat < vocab)
    return inside if columns is None else inside & torch.isin(flat, columns.to(flat))
