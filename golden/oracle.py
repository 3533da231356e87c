"""The float64 oracle: a batch and options in, the answers of `onehead run` out.

It is written from the definitions and shares no code with the C library. The order is that of
the mathematics: which rows are supervised, their logits, the objective of each row, weights and
normaliser, gradient, metrics. `terms.py` holds the objective of a row.

    python3 oracle.py BATCH.safetensors [--lm-head FILE] [options of `onehead run`]

prints the answers as JSON.
"""

import json
import sys
from dataclasses import dataclass
from typing import Optional

import numpy as np

import options as command
import safetensors_numpy as safetensors
import terms


# ---- input -----------------------------------------------------------------------------------


@dataclass
class Batch:
    """Shapes: T draft rows, S target rows, V tokens, H and Ht hidden sizes."""

    draft_hidden: np.ndarray  # [T, H]
    lm_head: np.ndarray  # [V, H]
    loss_mask: np.ndarray  # [T]
    label: Optional[np.ndarray]  # [T]
    target_hidden: Optional[np.ndarray]  # [S, Ht]
    target_row: Optional[np.ndarray]  # [T]
    target_lm_head: Optional[np.ndarray]  # [V, Ht]; the drafter's when absent
    bias: Optional[np.ndarray]  # [V], for both
    target_bias: Optional[np.ndarray] = None  # [V], where the target's differs

    @property
    def has_target(self):
        return self.target_hidden is not None


def batch_from(tensors):
    """A batch from the tensors of a file; refuses masks that are no weights."""
    wide = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()
            if name in ("draft_hidden", "target_hidden", "lm_head", "target_lm_head", "bias",
                        "target_bias", "loss_mask")}
    row_count = len(wide["draft_hidden"])
    mask = wide.get("loss_mask", np.ones(row_count))
    if not np.all((mask >= 0) & np.isfinite(mask)):
        raise ValueError("loss_mask is negative or not finite")
    target_row = None
    if "target_hidden" in wide:
        target_row = np.asarray(tensors.get("target_row", np.arange(row_count)), np.int64)
    label = tensors.get("label")
    return Batch(
        wide["draft_hidden"], wide["lm_head"], mask,
        None if label is None else np.asarray(label, np.int64),
        wide.get("target_hidden"), target_row, wide.get("target_lm_head"), wide.get("bias"),
        wide.get("target_bias"))


def check(batch, options):
    if len(batch.draft_hidden) % options.block_size:
        raise ValueError("rows must fill blocks")
    if not batch.has_target and options.labels == "target":
        raise ValueError("labels come from a target, and there is none")
    if not batch.has_target and command.NEEDS_TARGET & set(options.terms):
        raise ValueError("a term needs a target, and there is none")
    if options.labels == "given" and batch.label is None:
        raise ValueError("labels are to be given, and there are none")


def supervised_rows(batch, options):
    slot = np.arange(len(batch.draft_hidden)) % options.block_size
    supervised = (batch.loss_mask > 0) & (slot >= options.first_slot)
    if options.labels == "given":
        supervised &= (batch.label >= 0) & (batch.label < len(batch.lm_head))
    return np.flatnonzero(supervised)


# ---- logits ----------------------------------------------------------------------------------


def apply_transform(raw, bias, transform):
    """Transformed logits over the valid columns, and their derivative by the raw ones.

    -inf in a logit or bias stays -inf. +inf stays +inf as well, so that a softcap does not hide
    a row that is not finite."""
    width = transform.vocab_valid or raw.shape[1]
    raw = raw[:, :width]
    bias = np.zeros(width) if bias is None else bias[:width]
    with np.errstate(invalid="ignore"):
        x = transform.scale * raw + bias
    x = np.where((raw == -np.inf) | (bias == -np.inf), -np.inf, x)
    if transform.softcap is None:
        return x, np.full_like(x, transform.scale)
    squashed = np.tanh(x / transform.softcap)
    z = np.where(np.isinf(x), x, transform.softcap * squashed)
    return z, transform.scale * (1 - squashed ** 2)


def is_finite_row(z):
    return ~np.isnan(z).any(axis=1) & ~(z == np.inf).any(axis=1) & np.isfinite(z).any(axis=1)


class Logits:
    """Logits of the supervised rows. `finite` marks the ones that can be used; `rows`,
    `derivative` and `order` hold those only."""

    def __init__(self, batch, supervised, options):
        transform = options.transform
        with np.errstate(invalid="ignore", over="ignore"):
            raw = batch.draft_hidden[supervised] @ batch.lm_head.T
        z, derivative = apply_transform(raw, batch.bias, transform)
        self.finite = is_finite_row(z)
        t = None
        if batch.has_target:
            t, _ = self.target_logits(batch, supervised, options)
            self.finite &= is_finite_row(t)
            t = t[self.finite]
        self.derivative = derivative[self.finite]
        self.rows = terms.Rows(z[self.finite], t)
        # A stable sort of -z gives falling logits with ties in rising token order.
        self.order = np.argsort(-self.rows.z, axis=1, kind="stable")

    @staticmethod
    def target_logits(batch, supervised, options):
        target_row = batch.target_row[supervised]
        if np.any((target_row < 0) | (target_row >= len(batch.target_hidden))):
            raise ValueError("target_row of a supervised row is out of range")
        head = batch.lm_head if batch.target_lm_head is None else batch.target_lm_head
        bias = batch.bias if batch.target_bias is None else batch.target_bias
        with np.errstate(invalid="ignore", over="ignore"):
            raw = batch.target_hidden[target_row] @ head.T
        return apply_transform(raw, bias, options.target_transform or options.transform)

    def rank(self, y):
        """#{v: z_v > z_y} + #{v < y: z_v = z_y}; a padding column comes after all valid ones."""
        z = self.rows.z
        width = z.shape[1]
        z_y = z[np.arange(len(y)), np.minimum(y, width - 1)][:, None]
        before = (z > z_y) | ((z == z_y) & (np.arange(width) < y[:, None]))
        return np.where(y < width, before.sum(axis=1), y)

    def topk(self, k):
        """Ids and log-probabilities; beyond the valid columns id -1 and -inf."""
        count = min(k, self.order.shape[1])
        ids = np.full((len(self.order), k), -1)
        log_probabilities = np.full((len(self.order), k), -np.inf)
        ids[:, :count] = self.order[:, :count]
        log_probabilities[:, :count] = np.take_along_axis(
            self.rows.log_p, self.order[:, :count], axis=1)
        return ids, log_probabilities


# ---- weights ---------------------------------------------------------------------------------


def dpace_decay(confidence, supervised, a):
    """decay_j = sum over supervised i >= j of C_i, C the running product of
    (1 - a) p_y + a within the block; `confidence` is that factor's p_y [blocks, slots], NaN on
    slots that count as 1."""
    factor = np.where(np.isnan(confidence), 1.0, (1 - a) * confidence + a)
    product = np.cumprod(factor, axis=1) * supervised
    return np.cumsum(product[:, ::-1], axis=1)[:, ::-1] * supervised


def row_weights(batch, supervised, confidence, options):
    """mask * decay on supervised rows, 0 elsewhere."""
    kind, parameter = options.decay
    step = np.arange(len(batch.draft_hidden)) % options.block_size - options.first_slot
    if kind == "none":
        decay = np.ones(len(step))
    elif kind == "exp":
        decay = np.exp(-step / parameter)
    elif kind == "power":
        decay = parameter ** step.astype(np.float64)
    else:
        blocks = (-1, options.block_size)
        decay = dpace_decay(confidence.reshape(blocks), supervised.reshape(blocks),
                            parameter).reshape(-1)
    return np.where(supervised, batch.loss_mask * decay, 0.0)


def normaliser(batch, supervised, weight, options):
    kind, number = options.norm
    return {"weights": weight.sum(), "count": batch.loss_mask[supervised].sum(), "none": 1.0,
            "number": number}[kind]


# ---- metrics ---------------------------------------------------------------------------------


def ratio(numerator, denominator):
    return numerator / denominator if denominator else 0.0


def streaks(hit, counted, options):
    """Hits of each block from first_slot until the first miss. A slot that does not count ends
    the streak under `stop` and is stepped over under `skip`."""
    running = np.ones(len(hit), bool)
    total = np.zeros(len(hit), np.int64)
    for slot in range(options.first_slot, options.block_size):
        stepped_over = ~counted[:, slot] & (options.gap == "skip")
        running &= hit[:, slot] | stepped_over
        total += running & hit[:, slot]
    return total


def expected_accepted_length(hits, counts, options):
    rates = [ratio(h, c) for h, c in zip(hits[options.first_slot:], counts[options.first_slot:])]
    return np.cumprod(rates).sum()


def metrics(answers, rows, counted, block_count, options):
    """`counted` marks the supervised rows with finite logits and loss; `rows` are theirs."""
    shape = (-1, options.block_size)
    counted_blocks = counted.reshape(shape)
    hit = {k: (counted & (answers.rank >= 0) & (answers.rank < k)).reshape(shape)
           for k in {1, *options.topk}}
    topk = {}
    for k in options.topk:
        hits = int(hit[k].sum())
        streak_sum = int(streaks(hit[k], counted_blocks, options).sum())
        topk[str(k)] = {"hits": hits, "rate": ratio(hits, int(counted.sum())),
                        "streak_sum": streak_sum, "streak": ratio(streak_sum, block_count)}
    slot_hits, slot_count = hit[1].sum(axis=0), counted_blocks.sum(axis=0)
    figures = {
        "topk": topk,
        "slot_hits": slot_hits.tolist(),
        "slot_count": slot_count.tolist(),
        "eal": expected_accepted_length(slot_hits, slot_count, options),
        "draft_entropy": ratio(rows["entropy"].sum(), counted.sum()),
        "draft_top1": ratio(rows["draft_top1"].sum(), counted.sum()),
    }
    if "alpha" in rows:
        alpha = np.zeros(len(counted))
        alpha[counted] = rows["alpha"]
        accepted = np.cumprod(alpha.reshape(shape)[:, options.first_slot:], axis=1)
        figures["alpha"] = ratio(rows["alpha"].sum(), counted.sum())
        figures["tau"] = ratio(accepted.sum(), block_count)
        figures["target_top1"] = ratio(rows["target_top1"].sum(), counted.sum())
    return figures


# ---- the whole -------------------------------------------------------------------------------


class Answers:
    """`summary` as the command's JSON; arrays over all T rows as its files. Rows that are not
    supervised or not finite hold 0 and -1. A supervised row that is not finite keeps its weight,
    and its top-K log-probabilities are -inf as wherever there is no id to give."""

    def __init__(self, row_count, hidden_size, k):
        self.draft_grad = np.zeros((row_count, hidden_size))
        self.head_grad = None
        self.row_loss = np.zeros(row_count)
        self.weight = np.zeros(row_count)
        self.label = np.full(row_count, -1)
        self.argmax = np.full(row_count, -1)
        self.rank = np.full(row_count, -1)
        self.topk_id = np.full((row_count, k), -1)
        self.topk_logprob = np.zeros((row_count, k))
        self.summary = {}


class Oracle:
    """Answers for one batch. The logits of the last call are kept: most option sets share
    them."""

    def __init__(self, tensors):
        self.batch = batch_from(tensors)
        self._key, self._logits = None, None

    def logits(self, supervised, options):
        key = (supervised.tobytes(), options.transform, options.target_transform)
        if key != self._key:
            self._key, self._logits = None, None
            self._logits = Logits(self.batch, supervised, options)
            self._key = key
        return self._logits

    def run(self, options):
        batch = self.batch
        check(batch, options)
        row_count, hidden_size = batch.draft_hidden.shape
        answers = Answers(row_count, hidden_size, max(options.topk))
        supervised = supervised_rows(batch, options)
        logits = self.logits(supervised, options)
        rows = logits.rows

        with_logits = supervised[logits.finite]
        y = batch.label[with_logits] if options.labels == "given" else rows.target_argmax
        losses, row_loss, dz = terms.objective(rows, y, options)
        usable = np.isfinite(row_loss)  # among the rows with finite logits
        used = with_logits[usable]
        counted = np.zeros(row_count, bool)
        counted[used] = True

        is_supervised = np.zeros(row_count, bool)
        is_supervised[supervised] = True
        confidence = np.full(row_count, np.nan)
        confidence[used] = np.exp(rows.log_p_at(y)[usable])
        answers.weight = row_weights(batch, is_supervised, confidence, options)
        weight_sum = answers.weight.sum()
        denominator = normaliser(batch, is_supervised, answers.weight, options)

        answers.row_loss[used] = row_loss[usable]
        answers.label[used] = y[usable]
        answers.argmax[used] = rows.draft_argmax[usable]
        answers.rank[used] = logits.rank(y)[usable]
        ids, log_probabilities = logits.topk(max(options.topk))
        answers.topk_id[used] = ids[usable]
        answers.topk_logprob[supervised] = -np.inf
        answers.topk_logprob[used] = log_probabilities[usable]

        factor = answers.weight[used] * ratio(options.upstream, denominator)
        draw = dz[usable] * logits.derivative[usable]
        head = batch.lm_head[:draw.shape[1]]
        answers.draft_grad[used] = (draw @ head) * factor[:, None]
        if options.head_grad:
            answers.head_grad = np.zeros(batch.lm_head.shape)
            answers.head_grad[:draw.shape[1]] = draw.T @ (factor[:, None]
                                                          * batch.draft_hidden[used])

        loss_num = (answers.weight * answers.row_loss).sum()
        block_of = supervised // options.block_size
        block_count = len(np.unique(block_of))
        summary = {
            "rows": row_count,
            "supervised": len(supervised),
            "blocks": block_count,
            "nonfinite_rows": len(supervised) - len(used),
            "weight_sum": weight_sum,
            "loss": ratio(loss_num, denominator),
            "loss_num": loss_num,
            "loss_den": denominator,
            "terms": {name: ratio((answers.weight[used] * loss[usable]).sum(), weight_sum)
                      for name, loss in losses.items()},
            "grad_norm": np.sqrt((answers.draft_grad ** 2).sum()),
            "grad_abs_max": np.abs(answers.draft_grad).max(initial=0.0),
        }
        figures = ("entropy", "draft_top1") + ("alpha", "target_top1") * batch.has_target
        per_row = {name: getattr(rows, name)[usable] for name in figures}
        summary.update(metrics(answers, per_row, counted, block_count, options))
        answers.summary = plain(summary)
        return answers


def plain(value):
    """numpy numbers as Python's, NaN as None, for JSON."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    if isinstance(value, (int, np.integer)):
        return int(value)
    return None if np.isnan(value) else float(value)


def main(arguments):
    tensors, _ = safetensors.read(arguments[0])
    rest = arguments[1:]
    if "--lm-head" in rest:
        at = rest.index("--lm-head")
        tensors.update(safetensors.read(rest[at + 1])[0])
        del rest[at:at + 2]
    chosen = command.parse_args(" ".join(rest), "target_hidden" in tensors)
    print(json.dumps(Oracle(tensors).run(chosen).summary, indent=1, sort_keys=True))


if __name__ == "__main__":
    main(sys.argv[1:])
