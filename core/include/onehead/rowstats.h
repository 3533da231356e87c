/* rowstats.h - a row's statistics as they are merged, and one transformed logit: what the tile operations of every
 * backend share. Inline functions in f64 that compile as C and as CUDA device code. */
#ifndef ONEHEAD_ROWSTATS_H
#define ONEHEAD_ROWSTATS_H

#include "objective.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The state before any column. */
OH_ROW void oh_row_stats_empty(oh_row_stats *s) {
    s->z_max = s->t_max = s->z_label = -INFINITY;
    s->label = s->z_argmax = s->t_argmax = -1;
    s->flags = s->reserved = 0;
    s->z_sum = s->t_sum = s->z_dot = s->kl_dot = s->rkl_dot = s->z_total = 0;
}

/* Moves the offsets of a state to (z_max, t_max), each at least what it was. With dz = old - new offset and likewise
 * dt: sum e^(x-new) = e^dz sum e^(x-old), and (x - new) = (x - old) + dz inside the sums of products. */
OH_ROW void oh_row_stats_shift(oh_row_stats *s, oh_real z_max, oh_real t_max) {
    /* An offset of -inf means an empty sum: there is nothing to move and no distance to speak of. */
    const double dz = z_max > s->z_max && s->z_max > -INFINITY ? (double)s->z_max - (double)z_max : 0.0;
    const double dt = t_max > s->t_max && s->t_max > -INFINITY ? (double)s->t_max - (double)t_max : 0.0;
    if (dz != 0.0) {
        const double e = exp(dz);
        s->z_dot = e * (s->z_dot + dz * s->z_sum);
        s->rkl_dot = e * (s->rkl_dot + dz * s->z_sum);
        s->kl_dot -= dz * s->t_sum;
        s->z_sum *= e;
    }
    if (dt != 0.0) {
        const double e = exp(dt);
        s->kl_dot = e * (s->kl_dot + dt * s->t_sum);
        s->rkl_dot -= dt * s->z_sum;
        s->t_sum *= e;
    }
    s->z_max = z_max;
    s->t_max = t_max;
}

/* Merges `other`, over columns disjoint from `s`'s and, for the tie rule, in any order. Associative up to rounding.
 * Whether the target's argmax decides the label is the caller's `label_is_argmax`. */
OH_ROW void oh_row_stats_merge(oh_row_stats *s, const oh_row_stats *other, int label_is_argmax) {
    oh_row_stats b = *other;
    if (b.z_argmax >= 0 && (s->z_argmax < 0 || b.z_max > s->z_max || (b.z_max == s->z_max && b.z_argmax < s->z_argmax)))
        s->z_argmax = b.z_argmax;
    if (b.t_argmax >= 0 &&
        (s->t_argmax < 0 || b.t_max > s->t_max || (b.t_max == s->t_max && b.t_argmax < s->t_argmax))) {
        s->t_argmax = b.t_argmax;
        if (label_is_argmax) {
            s->label = b.t_argmax;
            s->z_label = b.z_label;
        }
    }
    if (!label_is_argmax && b.z_label > s->z_label) s->z_label = b.z_label;
    const oh_real z_max = s->z_max > b.z_max ? s->z_max : b.z_max;
    const oh_real t_max = s->t_max > b.t_max ? s->t_max : b.t_max;
    oh_row_stats_shift(s, z_max, t_max);
    oh_row_stats_shift(&b, z_max, t_max);
    s->z_sum += b.z_sum;
    s->t_sum += b.t_sum;
    s->z_dot += b.z_dot;
    s->kl_dot += b.kl_dot;
    s->rkl_dot += b.rkl_dot;
    s->z_total += b.z_total;
    s->flags |= b.flags;
}

/* tanh of an oh_real. */
#ifdef OH_REAL_IS_DOUBLE
#define OH_REAL_TANH tanh
#else
#define OH_REAL_TANH tanhf
#endif

/* Statistics that a second read of `row` compares with: the row's own, or q's offset and sum over the full vocabulary. */
OH_ROW oh_row_stats oh_overlap_stats(const oh_tile_overlap *overlap, int64_t row) {
    oh_row_stats s = overlap->stats[row];
    if (overlap->full) {
        const oh_row_stats *full = &overlap->full[overlap->tile.target_row ? overlap->tile.target_row[row] : row];
        s.t_max = full->t_max;
        s.t_sum = full->t_sum;
        s.flags |= full->flags & OH_ROW_T_BAD;
    }
    return s;
}

/* One transformed logit. Infinite logits stay what they are: -inf is a probability of 0 even under scale 0, and a
 * softcap must not hide a +inf. */
OH_ROW oh_real oh_logit(oh_real raw, oh_real scale, oh_real bias, oh_real softcap) {
    if (bias == -INFINITY || raw == -INFINITY) return -INFINITY;
    const oh_real x = scale * raw + bias;
    return softcap > 0 && x > -INFINITY && x < INFINITY ? softcap * OH_REAL_TANH(x / softcap) : x;
}

/* Its derivative by the raw logit, which a gradient is multiplied by last. */
OH_ROW oh_real oh_logit_slope(oh_real z, oh_real scale, oh_real softcap) {
    if (!(softcap > 0)) return scale;
    const oh_real y = z / softcap;
    return scale * (1 - y * y);
}

#ifdef __cplusplus
}
#endif
#endif
