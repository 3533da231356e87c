/* softmax.h - p, q and what compares them, as the gradient's linear form means them (oh_row_coef).
 *
 * The one home of these expressions: tile_overlap sums what tile_grad differentiates, and [p <= q] must come out the
 * same in both. */
#ifndef ONEHEAD_PORTABLE_SOFTMAX_H
#define ONEHEAD_PORTABLE_SOFTMAX_H

#include <math.h>

#include <onehead/rowmath.h>

#include "logits.h"

/* A row's normalisers; those of the target are unused where there is none. */
typedef struct oh_softmax {
    oh_real z_max, z_inv, z_log, t_max, t_inv;
    double ratio; /* (t_max + log t_sum) - (z_max + log z_sum) */
} oh_softmax;

static inline oh_softmax oh_softmax_of(oh_real z_max, oh_real z_inv, oh_real z_log, oh_real t_max, oh_real t_inv,
                                       oh_real t_log) {
    const double ratio = ((double)t_max - (double)z_max) + ((double)t_log - (double)z_log);
    return (oh_softmax){z_max, z_inv, z_log, t_max, t_inv, ratio};
}

/* Rounded as oh_finish_row rounds what it puts into oh_row_coef. */
static inline oh_softmax oh_softmax_from_stats(const oh_row_stats *s, int has_target) {
    return oh_softmax_of(s->z_max, (oh_real)(1 / s->z_sum), (oh_real)log(s->z_sum), has_target ? s->t_max : 0,
                         has_target ? (oh_real)(1 / s->t_sum) : 0, has_target ? (oh_real)log(s->t_sum) : 0);
}

static inline oh_softmax oh_softmax_from_coef(const oh_row_coef *c) {
    return oh_softmax_of(c->z_max, c->z_inv, c->z_log, c->t_max, c->t_inv, c->t_log);
}

static inline oh_real oh_softmax_p(const oh_softmax *s, oh_real z) {
    return OH_REAL_EXP(z - s->z_max) * s->z_inv;
}

static inline oh_real oh_softmax_q(const oh_softmax *s, oh_real t) {
    return OH_REAL_EXP(t - s->t_max) * s->t_inv;
}

/* log q - log p for finite z; -inf for t = -inf. From t - z rather than from the two logarithms, so that it is as
 * small, and as exact, as the logits are near. */
static inline oh_real oh_softmax_log_ratio(const oh_softmax *s, oh_real z, oh_real t) {
    return (oh_real)(((double)t - (double)z) - s->ratio);
}

/* log m less the logarithm of the larger of p and q, m = (p + q) / 2: log((1 + exp(-|ratio|)) / 2), exactly 0 at 0 and
 * -log 2 at an infinite ratio. Probabilities that underflow keep their logarithms. */
static inline oh_real oh_softmax_mixture(oh_real ratio) {
    return OH_REAL_LOG1P(OH_REAL_EXPM1(ratio > 0 ? -ratio : ratio) / 2);
}

#endif
