"""Draws small batches whose answers are well-conditioned.

Hidden states and weights lie on a binary grid, so their products and sums are exact in float64
(and, for bf16, in float32): the answers do not depend on a BLAS library's order of summation.
"""

import numpy as np

import conditioning
import options as command

# Grid step and largest multiple of it. bf16 holds integers up to 256, f16 up to 2048; the f32
# grid needs 20 bits, which TF32 and bf16 would lose.
GRID = {"bf16": (2.0 ** -6, 255), "f16": (2.0 ** -8, 2047), "f32": (2.0 ** -17, 2 ** 20 - 1)}
ATTEMPTS = 500


def on_grid(values, dtype):
    step, largest = GRID[dtype]
    return np.clip(np.round(values / step), -largest, largest) * step


def draw(rng, args, *, rows=32, vocab=19, hidden=16, noise=0.55, spread=2.4, dtype="bf16",
         integers=False, target=True, identity=False, density=0.85, lm_head=None, bias=None,
         target_hidden_size=None):
    """A batch as float64 tensors. Draft rows are noisy copies of the target rows they predict;
    rows that `conditioning` finds fragile are drawn again.

    spread: standard deviation of the logits. integers: small integers, whose logits tie often.
    identity: no target_row. density: share of rows with a mask of 1. target_hidden_size: the
    target has its own weight of this hidden size."""
    options = command.parse_args(args, target)
    if lm_head is None and integers:
        lm_head = rng.integers(-1, 2, (vocab, hidden)).astype(np.float64)
    elif lm_head is None:
        lm_head = on_grid(rng.normal(0, spread / np.sqrt(hidden), (vocab, hidden)), dtype)

    def fresh(count, size):
        if integers:
            return rng.integers(-2, 3, (count, size)).astype(np.float64)
        return on_grid(rng.normal(size=(count, size)), dtype)

    def near(source):
        if integers:
            moved = rng.random(source.shape) < 0.2
            return np.where(moved, rng.integers(-2, 3, source.shape), source)
        return on_grid(source + noise * rng.normal(size=source.shape), dtype)

    tensors = {"lm_head": lm_head,
               "label": rng.integers(0, options.transform.vocab_valid or vocab,
                                     rows).astype(np.int32),
               "loss_mask": (rng.random(rows) < density).astype(np.uint8)}
    if bias is not None:
        tensors["bias"] = np.asarray(bias, np.float32)
    if target:
        block = options.block_size
        source_rows = rows if identity else rows // 2 + block
        row_of = np.arange(rows)
        if not identity:  # blocks start anywhere and overlap
            start = rng.integers(0, source_rows - block + 1, rows // block)
            row_of = (start[:, None] + np.arange(block)).reshape(-1)
            tensors["target_row"] = row_of.astype(np.int32)
        size = target_hidden_size or hidden
        tensors["target_hidden"] = fresh(source_rows, size)
        source = tensors["target_hidden"]
        if target_hidden_size:
            tensors["target_lm_head"] = on_grid(
                rng.normal(0, spread / np.sqrt(size), (vocab, size)), dtype)

    def draft_rows(which):
        if target and not target_hidden_size:
            return near(source[row_of[which]])
        return fresh(len(which), hidden)

    def redraw_fragile_rows():
        for _ in range(ATTEMPTS):
            bad_draft, bad_target = conditioning.fragile(tensors, options)
            if not len(bad_draft) and not len(bad_target):
                return
            if len(bad_target):
                source[bad_target] = fresh(len(bad_target), source.shape[1])
                bad_draft = np.union1d(bad_draft, np.flatnonzero(np.isin(row_of, bad_target)))
            tensors["draft_hidden"][bad_draft] = draft_rows(bad_draft)

    tensors["draft_hidden"] = draft_rows(np.arange(rows))
    redraw_fragile_rows()
    if options.labels == "given":
        keep_easy_labels(rng, tensors, options)
        redraw_fragile_rows()
    return tensors


def keep_easy_labels(rng, tensors, options):
    """Most given labels become the drafter's first or second choice, as in real data."""
    logits = tensors["draft_hidden"] @ tensors["lm_head"].T
    width = options.transform.vocab_valid or logits.shape[1]
    order = np.argsort(-logits[:, :width], axis=1, kind="stable")
    choice = order[np.arange(len(order)), rng.integers(0, min(2, width), len(order))]
    easy = rng.random(len(order)) < 0.6
    tensors["label"] = np.where(easy, choice, tensors["label"]).astype(np.int32)


def from_logits(draft, target=None, label=None, bias=None):
    """A batch whose raw logits are the given numbers: lm_head is the identity."""
    draft = np.asarray(draft, np.float64)
    tensors = {"draft_hidden": draft, "lm_head": np.eye(draft.shape[1])}
    if target is not None:
        tensors["target_hidden"] = np.asarray(target, np.float64)
    if label is not None:
        tensors["label"] = np.asarray(label, np.int32)
    if bias is not None:
        tensors["bias"] = np.asarray(bias, np.float32)
    return tensors
