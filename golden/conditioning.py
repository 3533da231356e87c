"""Keeps the cases fair: a count that a golden file states must not hang on a gap that float32
rounding can close. Every gap around a decision is either exactly 0, made of small integers so
that it is 0 in any precision and summation order, or wider than 1e-4 of the logits' size.
"""

import numpy as np

import oracle

GAP = 1e-4
JUMP = 1e-5  # |log p - log q| under which float32 may see [p <= q] the other way round
JUMP_MASS = 1e-7  # probability on such columns that a row may have


def fraction_bits(values):
    """Binary places after the point; 60 when there are more than a float32 would hold."""
    finite = values[np.isfinite(values)]
    for bits in range(60):
        scaled = np.ldexp(finite, bits)
        if np.all(scaled == np.round(scaled)):
            return bits
    return 60


def is_exact(hidden, head):
    """Whether every partial sum of the projection is a float32 number."""
    bits = fraction_bits(hidden) + fraction_bits(head)
    hidden, head = (np.where(np.isfinite(x), np.abs(x), 0.0) for x in (hidden, head))
    return bool(np.ldexp((hidden @ head.T).max(initial=0.0), bits) < 2 ** 24)


def is_float32(x):
    with np.errstate(over="ignore"):
        return bool(np.all(x.astype(np.float32) == x))


def fragile_pairs(z, reference, exact_ties, size):
    """Entries of z whose distance to the row's reference value is neither exactly 0 nor wide."""
    with np.errstate(invalid="ignore"):
        distance = np.abs(z - reference)
    both_minus_inf = (z == -np.inf) & (reference == -np.inf)
    tie = (distance == 0) | both_minus_inf
    narrow = ~tie & (distance < GAP * size)
    return narrow | (tie & ~both_minus_inf & (not exact_ties))


def sizes(z, exact):
    """What a gap is measured against: exact logits may carry an offset, others may not."""
    finite = np.where(np.isfinite(z), z, np.nan)
    with np.errstate(invalid="ignore"):
        if exact:
            return np.nanmax(finite, axis=1) - np.nanmin(finite, axis=1)
        return np.nanmax(np.abs(finite), axis=1)


def fragile(tensors, options):
    """Indices of draft rows and of target rows that a decision makes fragile."""
    batch = oracle.batch_from(tensors)
    supervised = oracle.supervised_rows(batch, options)
    logits = oracle.Logits(batch, supervised, options)
    rows, index = logits.rows, supervised[logits.finite]
    if not len(index):
        return index, index

    plain_cap = options.transform.softcap is None
    exact_gemm = is_exact(batch.draft_hidden[index], batch.lm_head)
    # Equal raw logits stay equal through one and the same transform; a bias per column needs
    # the sums to be exact as well.
    no_bias = batch.bias is None or len(np.unique(batch.bias[np.isfinite(batch.bias)])) <= 1
    exact = exact_gemm and plain_cap and is_float32(rows.z)
    saturated = np.abs(rows.z) == options.transform.softcap
    exact_ties = exact_gemm and (no_bias or exact or saturated.any())
    size = sizes(rows.z, exact)[:, None]

    y = batch.label[index] if options.labels == "given" else rows.target_argmax
    z_y = np.take_along_axis(rows.z, y[:, None], axis=1)
    others = np.arange(rows.z.shape[1]) != y[:, None]
    bad = (fragile_pairs(rows.z, z_y, exact_ties, size) & others).any(axis=1)

    top = np.take_along_axis(rows.z, logits.order[:, :max(options.topk) + 1], axis=1)
    bad |= fragile_pairs(top[:, 1:], top[:, :-1], exact_ties, size).any(axis=1)

    bad_target = np.zeros(len(index), bool)
    if options.labels == "target":
        head = batch.lm_head if batch.target_lm_head is None else batch.target_lm_head
        target_exact = is_exact(batch.target_hidden[batch.target_row[index]], head)
        exact = target_exact and plain_cap and is_float32(rows.t)
        best = -np.sort(-rows.t, axis=1)[:, :2]
        bad_target = fragile_pairs(best[:, 1:], best[:, :-1], target_exact and no_bias or exact,
                                   sizes(rows.t, exact)[:, None]).any(axis=1)

    if {"tv", "nla", "lk_hybrid"} & set(options.terms):
        bad |= jump_mass(rows) > JUMP_MASS
    target_rows = np.unique(batch.target_row[index[bad_target]]) if bad_target.any() else []
    return index[bad], target_rows


def jump_mass(rows):
    """Probability on columns where p and q are too close to say which is smaller. A drafter
    that equals the target is no such case: there both are the same numbers."""
    with np.errstate(invalid="ignore"):
        distance = np.abs(rows.log_ratio)
    same = (distance == 0) | np.isnan(distance)
    near = (distance < JUMP) & ~same.all(axis=1)[:, None]
    return np.where(near, rows.p, 0).sum(axis=1)
