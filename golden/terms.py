"""The terms of the objective: per row, the loss and its gradient by the draft logits.

p = softmax(z) is the drafter, q = softmax(t) the target, y the token the row is judged by;
alpha = sum min(p, q) is the acceptance rate. Natural logarithms.

    ce         -(1-e) log p_y - e/V sum log p_v + b lse(z)^2
    kl         sum q (log q - log p)
    rkl        sum p (log p - log q)
    jsd        KL(p|m)/2 + KL(q|m)/2,  m = (p+q)/2
    tv         1 - alpha
    nla        -log max(alpha, 1e-5)
    lk_hybrid  k kl + (1-k) tv,  k = exp(-eta alpha) held constant
    cap        entropy of p where the drafter's argmax is y, else 0

Everything is computed from log p and log q, never from log(p): a probability that underflows
keeps its logarithm. A column with log p = -inf has probability 0 and takes part in no sum.
"""

import numpy as np

NLA_FLOOR = 1e-5


def first_argmax(x):
    """Ties go to the lowest token id."""
    return np.argmax(x, axis=1)


def log_softmax(x):
    """The maximum and the log-sum stay apart: folded into one number, an offset of 1e6 in the
    logits would eat the digits of the loss. Returns log-probabilities and both parts of lse."""
    top = x.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(x - top).sum(axis=1, keepdims=True))
    return (x - top) - log_sum, top[:, 0] + log_sum[:, 0]


def times(probability, log_probability, factor):
    """probability * factor, where 0 * infinity counts as 0."""
    with np.errstate(invalid="ignore"):
        return np.where(log_probability == -np.inf, 0.0, probability * factor)


def log_mean_exp_with_zero(d):
    """log((1 + exp(d)) / 2); exactly 0 at d = 0, no overflow, -log 2 at d = -inf."""
    return np.maximum(d, 0) + np.log1p(np.expm1(-np.abs(d)) / 2)


class Rows:
    """Finite rows of transformed logits over the valid columns, and what follows from them."""

    def __init__(self, z, t=None):
        self.z, self.t = z, t
        self.log_p, self.lse = log_softmax(z)
        self.p = np.exp(self.log_p)
        self.draft_argmax = first_argmax(z)
        self.entropy = -times(self.p, self.log_p, self.log_p).sum(axis=1)
        self.draft_top1 = self.p.max(axis=1)
        if t is None:
            return
        self.log_q, _ = log_softmax(t)
        self.q = np.exp(self.log_q)
        self.target_argmax = first_argmax(t)
        self.target_top1 = self.q.max(axis=1)
        self.alpha = np.minimum(self.p, self.q).sum(axis=1)
        with np.errstate(invalid="ignore"):
            self.log_ratio = self.log_p - self.log_q  # NaN where both are -inf, in no sum

    def log_p_at(self, y):
        """log p of one token a row; padding columns have probability 0."""
        width = self.z.shape[1]
        chosen = self.log_p[np.arange(len(y)), np.minimum(y, width - 1)]
        return np.where(y < width, chosen, -np.inf)

    def one_hot(self, y):
        return (np.arange(self.z.shape[1]) == y[:, None]).astype(np.float64)


def ce(rows, y, options):
    smooth, z_loss = options.label_smoothing, options.z_loss
    width = rows.z.shape[1]
    loss = -(1 - smooth) * rows.log_p_at(y)
    grad = rows.p - (1 - smooth) * rows.one_hot(y)
    if smooth:
        loss = loss - smooth / width * rows.log_p.sum(axis=1)
        grad = grad - smooth / width
    if z_loss:
        loss = loss + z_loss * rows.lse ** 2
        grad = grad + 2 * z_loss * rows.lse[:, None] * rows.p
    return loss, grad


def kl(rows, y, options):
    loss = times(rows.q, rows.log_q, -rows.log_ratio).sum(axis=1)
    return loss, rows.p - rows.q


def rkl(rows, y, options):
    loss = times(rows.p, rows.log_p, rows.log_ratio).sum(axis=1)
    with np.errstate(invalid="ignore"):  # an infinite loss: the row is set aside later
        return loss, times(rows.p, rows.log_p, rows.log_ratio - loss[:, None])


def jsd(rows, y, options):
    p_over_m = -log_mean_exp_with_zero(-rows.log_ratio)  # log p - log m
    q_over_m = -log_mean_exp_with_zero(rows.log_ratio)
    p_to_m = times(rows.p, rows.log_p, p_over_m).sum(axis=1)
    q_to_m = times(rows.q, rows.log_q, q_over_m).sum(axis=1)
    grad = 0.5 * times(rows.p, rows.log_p, p_over_m - p_to_m[:, None])
    return 0.5 * (p_to_m + q_to_m), grad


def tv(rows, y, options):
    """1 - alpha written as sum max(p - q, 0), which does not cancel when p is near q."""
    loss = np.maximum(rows.p - rows.q, 0).sum(axis=1)
    below = rows.log_p <= rows.log_q  # in logarithms: both may underflow to 0
    share = np.where(below, rows.p, 0).sum(axis=1)
    return loss, -rows.p * (below - share[:, None])


def nla(rows, y, options):
    alpha = np.maximum(rows.alpha, NLA_FLOOR)
    _, tv_grad = tv(rows, y, options)
    inside = (rows.alpha >= NLA_FLOOR)[:, None]
    return -np.log(alpha), np.where(inside, tv_grad / alpha[:, None], 0.0)


def lk_hybrid(rows, y, options):
    blend = np.exp(-options.eta * rows.alpha)
    kl_loss, kl_grad = kl(rows, y, options)
    tv_loss, tv_grad = tv(rows, y, options)
    grad = blend[:, None] * kl_grad + (1 - blend)[:, None] * tv_grad
    return blend * kl_loss + (1 - blend) * tv_loss, grad


def cap(rows, y, options):
    right = rows.draft_argmax == y
    grad = -times(rows.p, rows.log_p, rows.log_p + rows.entropy[:, None])
    return np.where(right, rows.entropy, 0.0), np.where(right[:, None], grad, 0.0)


TERM = {term.__name__: term for term in (ce, kl, rkl, jsd, tv, nla, lk_hybrid, cap)}


def objective(rows, y, options):
    """Unweighted losses of a row: each term's without its factor, and their sum with the
    factors with its gradient by z."""
    losses, total, grad = {}, 0.0, 0.0
    for name, factor in options.terms.items():
        losses[name], term_grad = TERM[name](rows, y, options)
        total = total + factor * losses[name]
        grad = grad + factor * term_grad
    return losses, total, grad
