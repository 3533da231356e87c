/* rowmath.h - the row algebra: from a row's statistics to its losses, gradient coefficients, weight and metrics.
 *
 * Every definition of the mission stands here once, as inline functions in f64 that compile as C and as CUDA device
 * code. The portable operations and every accelerator's row_finish kernel are loops over oh_finish_row,
 * oh_finish_block and oh_finish_sum; a plugin passes the description through and interprets nothing.
 *
 * With p = softmax(z), q = softmax(t), lp = log p, lq = log q, m = (p + q) / 2, alpha = sum min(p, q):
 *
 *   term       l                                        dl/dz_v
 *   ce         -(1-e) lp_y - e/V sum lp + beta lse^2    p_v (1 + 2 beta lse) - (1-e) [v=y] - e/V
 *   kl         sum q (lq - lp)                          p_v - q_v
 *   rkl        sum p (lp - lq)                          p_v (lp_v - lq_v - l)
 *   jsd        (KL(p|m) + KL(q|m)) / 2                  p_v (lp_v - lm_v - KL(p|m)) / 2
 *   tv         1 - alpha                                -p_v ([p_v <= q_v] - s),  s = sum p over p <= q
 *   nla        -log max(alpha, 1e-5)                    tv's / alpha; 0 where alpha < 1e-5
 *   lk_hybrid  u kl + (1-u) tv, u = exp(-eta alpha)     u (p_v - q_v) + (1-u) tv's, u held constant
 *   cap        H(p) where argmax z = y, else 0          -p_v (lp_v + H)
 *
 * e: label smoothing over the V valid columns, beta: z-loss. */
#ifndef ONEHEAD_ROWMATH_H
#define ONEHEAD_ROWMATH_H

#include "objective.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------- statistics ---- */

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

/* ------------------------------------------------------------------------------------------------- results ---- */

/* One supervised row after its statistics are complete. Lives in the workspace between oh_finish_row and
 * oh_finish_block. */
typedef struct oh_row_result {
    double term[OH_TERM_COUNT]; /* l_i, 0 for terms not in use */
    double loss;                /* sum lambda_i l_i */
    double label_p;             /* p_y */
    double alpha, entropy, draft_top1, target_top1;
    double weight;   /* w_r, written by oh_finish_block */
    uint32_t hits;   /* bit k: the row hits at top_k[k]; bit 31: at 1 */
    int32_t finite;  /* 0: reported, left out of sums, gradient 0 */
    int32_t outside; /* 1: unsupervised after all, its token is no draft column (OH_OUTSIDE_DROP) */
    int32_t label, argmax;
    int32_t rank; /* exact with OH_WANT_RANK, else -1 */
} oh_row_result;

/* The bit of oh_row_result.hits for K = 1. */
#define OH_HIT_TOP1 (1u << 31)

/* Where y would stand: no draft column, and a row that an earlier read of the chunk found not finite. */
#define OH_LABEL_NONE (-1)
#define OH_LABEL_BROKEN (-2)

/* Which sums and outputs one row_finish adds; each part exactly once a chunk, however many reads a policy makes. */
#define OH_FINISH_COUNTS (1u << 0)     /* rows, masks, blocks and rows that are not finite */
#define OH_FINISH_LOSS (1u << 1)       /* loss, weights, terms; row_loss_out and weight_out */
#define OH_FINISH_COEF (1u << 2)       /* coef and row_scale */
#define OH_FINISH_METRICS (1u << 3)    /* slots, entropy, top-1, alpha, tau; row_label_out, argmax_out, rank_out */
#define OH_FINISH_TOP_K (1u << 4)      /* hits and streaks of the K in top_k_mask */
#define OH_FINISH_TOP_K_ROWS (1u << 5) /* topk_id_out, topk_logprob_out */
#define OH_FINISH_PARTS 0x3fu

/* One chunk's rows. Arrays are on the device. A chunk's rows are whole blocks; the supervised ones are numbered
 * 0..compact_rows-1 in row order ("compact rows"), as the tiles are. */
typedef struct oh_row_finish {
    oh_objective objective;
    int64_t rows; /* of the chunk, a multiple of block_size */
    int64_t compact_rows;
    int64_t first_row;             /* of the chunk within the step: for reports */
    const int32_t *compact;        /* [rows] compact row, or -1: unsupervised */
    const float *mask;             /* [rows] */
    const oh_row_stats *stats;     /* [compact_rows] */
    const oh_row_overlap *overlap; /* [compact_rows] or NULL */
    /* Where the draft's vocabulary is a part of the target's, else NULL: statistics over all of the target's [target tile
     * rows], overlaps with that distribution (alpha) and the rows' target tile rows (NULL: identity). */
    const oh_row_stats *full;
    const oh_row_overlap *full_overlap;
    const int32_t *target_row;
    const int32_t *topk_id; /* [compact_rows, top_k] or NULL */
    const oh_real *topk_logit;
    double scale;        /* of row_scale: upstream / N, or upstream where N is late */
    uint32_t parts;      /* OH_FINISH_* */
    uint32_t want;       /* OH_WANT_* that stats and overlap hold */
    uint32_t top_k_mask; /* bit k: top_k[k] */
    int32_t top_k;       /* of topk_id */
    int32_t has_target;  /* the statistics hold a target's */
    int32_t outside;     /* oh_outside; OH_OUTSIDE_NEVER without `full` */

    oh_row_result *results; /* [compact_rows] scratch */
    double *partial;        /* [rows / block_size, oh_sum_count] scratch */
    double *sums;           /* [oh_sum_count], added to */
    oh_row_coef *coef;      /* [compact_rows] */
    float *row_scale;       /* [compact_rows] w_r * scale: multiplies the rows of dD, and of D for dW */
    int32_t *label_out;     /* [compact_rows] y, or OH_LABEL_*; may be NULL */

    /* Per-row outputs, [rows], each may be NULL; 0 or -1 on unsupervised rows. */
    float *row_loss_out, *weight_out;
    int32_t *row_label_out, *argmax_out, *rank_out;
    int32_t *topk_id_out; /* [rows, top_k] */
    float *topk_logprob_out;
} oh_row_finish;

/* Closes a step: N, the loss, and the factor that late gradients still lack. */
typedef struct oh_step_finish {
    oh_objective objective;
    const double *norm; /* caller's N on the device, or NULL: the objective's rule */
    const double *sums; /* [oh_sum_count] */
    double *loss;       /* [3]: loss, numerator, denominator */
    float *factor;      /* [1]: 1 / N, or 0 where N = 0 */
} oh_step_finish;

/* ------------------------------------------------------------------------------------------ rows of a chunk ---- */

/* Whether every number asked of the row is finite (design.md section 3). */
OH_ROW int oh_row_is_finite(const oh_objective *o, const oh_row_stats *s, int has_target) {
    if (s->flags & OH_ROW_Z_BAD || !(s->z_max > -INFINITY)) return 0;
    if (o->terms & OH_TERM_BIT(OH_TERM_CE)) {
        if (!(s->z_label > -INFINITY)) return 0;
        if (o->label_smoothing != 0 && s->flags & OH_ROW_Z_NEG_INF) return 0;
    }
    if (!has_target) return 1;
    if (s->flags & OH_ROW_T_BAD || !(s->t_max > -INFINITY)) return 0;
    if (o->terms & (OH_TERM_BIT(OH_TERM_KL) | OH_TERM_BIT(OH_TERM_LK_HYBRID)) && s->flags & OH_ROW_P0_Q) return 0;
    return !(o->terms & OH_TERM_BIT(OH_TERM_RKL) && s->flags & OH_ROW_Q0_P);
}

/* The target's statistics over its whole vocabulary for compact row i; NULL where that is the draft's vocabulary. */
OH_ROW const oh_row_stats *oh_row_full_stats(const oh_row_finish *f, int64_t i) {
    return f->full ? &f->full[f->target_row ? f->target_row[i] : i] : NULL;
}

/* The losses of a finite row and, in c (c0..c4, cy, cq, ck), the gradient of sum lambda_i l_i. The header has the
 * algebra. */
OH_ROW void oh_row_terms(const oh_objective *o, const oh_row_stats *s, const oh_row_overlap *v, double *term,
                         double *c) {
    const double log_z = log(s->z_sum);
    const double entropy = log_z - s->z_dot / s->z_sum;
    for (int i = 0; i < OH_TERM_COUNT; ++i)
        term[i] = 0;
    for (int i = 0; i < 8; ++i)
        c[i] = 0;

    if (o->terms & OH_TERM_BIT(OH_TERM_CE)) {
        const double lambda = o->lambda[OH_TERM_CE], e = o->label_smoothing;
        const double lse = (double)s->z_max + log_z;
        /* Offset and log-sum stay apart: folded, an offset of 1e6 would swallow the loss. */
        double l = -(1 - e) * (((double)s->z_label - (double)s->z_max) - log_z) + o->z_loss * lse * lse;
        if (e != 0) {
            const double columns = (double)o->valid_columns;
            l -= e * ((s->z_total / columns - (double)s->z_max) - log_z);
            c[7] += lambda * e / columns;
        }
        term[OH_TERM_CE] = l;
        c[0] += lambda * (1 + 2 * o->z_loss * lse);
        c[5] += lambda * (1 - e);
    }
    double kl = 0;
    if (o->terms & (OH_TERM_BIT(OH_TERM_KL) | OH_TERM_BIT(OH_TERM_LK_HYBRID)))
        kl = s->kl_dot / s->t_sum + log_z - log(s->t_sum);
    if (o->terms & OH_TERM_BIT(OH_TERM_KL)) {
        term[OH_TERM_KL] = kl;
        c[0] += o->lambda[OH_TERM_KL];
        c[6] += o->lambda[OH_TERM_KL];
    }
    if (o->terms & OH_TERM_BIT(OH_TERM_RKL)) {
        const double lambda = o->lambda[OH_TERM_RKL];
        const double rkl = s->rkl_dot / s->z_sum + log(s->t_sum) - log_z;
        term[OH_TERM_RKL] = rkl;
        c[0] -= lambda * rkl;
        c[1] += lambda;
        c[2] -= lambda;
    }
    if (o->terms & OH_TERM_BIT(OH_TERM_JSD)) {
        const double half = 0.5 * o->lambda[OH_TERM_JSD];
        term[OH_TERM_JSD] = v->jsd;
        c[0] -= half * v->kl_pm;
        c[1] += half;
        c[3] -= half;
    }
    double overlap_slope = 0; /* factor of tv's gradient over its terms */
    if (o->terms & OH_TERM_BIT(OH_TERM_TV)) {
        term[OH_TERM_TV] = v->tv;
        overlap_slope += o->lambda[OH_TERM_TV];
    }
    if (o->terms & OH_TERM_BIT(OH_TERM_NLA)) {
        term[OH_TERM_NLA] = -log(v->alpha > OH_NLA_FLOOR ? v->alpha : OH_NLA_FLOOR);
        if (v->alpha >= OH_NLA_FLOOR) overlap_slope += o->lambda[OH_TERM_NLA] / v->alpha;
    }
    if (o->terms & OH_TERM_BIT(OH_TERM_LK_HYBRID)) {
        const double lambda = o->lambda[OH_TERM_LK_HYBRID], u = exp(-o->eta * v->alpha);
        term[OH_TERM_LK_HYBRID] = u * kl + (1 - u) * v->tv;
        c[0] += lambda * u;
        c[6] += lambda * u;
        overlap_slope += lambda * (1 - u);
    }
    if (overlap_slope != 0) {
        c[0] += overlap_slope * v->p_le;
        c[4] -= overlap_slope;
    }
    if (o->terms & OH_TERM_BIT(OH_TERM_CAP) && s->z_argmax == s->label) {
        const double lambda = o->lambda[OH_TERM_CAP];
        term[OH_TERM_CAP] = entropy;
        c[0] -= lambda * entropy;
        c[1] -= lambda;
    }
}

/* Whether column y is among the first K of a row's list. */
OH_ROW int oh_row_hit(const int32_t *ids, int32_t K, int32_t y) {
    for (int32_t k = 0; k < K; ++k)
        if (ids[k] == y) return 1;
    return 0;
}

/* First loop of a row_finish: compact row i, independent of all others. Writes results[i], coef[i], label_out[i]. */
OH_ROW void oh_finish_row(const oh_row_finish *f, int64_t i) {
    const oh_objective *o = &f->objective;
    const oh_row_stats *s = &f->stats[i];
    const oh_row_overlap *v = f->overlap ? &f->overlap[i] : NULL;
    oh_row_result r;
    double c[8];
    const oh_row_stats *full = oh_row_full_stats(f, i);
    const int full_bad = full && (full->flags & OH_ROW_T_BAD || !(full->t_max > -INFINITY));
    const int outside = s->label == OH_LABEL_NONE && f->outside != OH_OUTSIDE_NEVER && !full_bad;
    const int dropped = outside && f->outside == OH_OUTSIDE_DROP;
    const int finite = !dropped && !full_bad && (s->label >= 0 || outside) && oh_row_is_finite(o, s, f->has_target);

    r.loss = r.label_p = r.alpha = r.entropy = r.draft_top1 = r.target_top1 = r.weight = 0;
    r.hits = 0;
    r.finite = finite;
    r.outside = dropped;
    r.label = r.argmax = r.rank = -1;
    for (int k = 0; k < OH_TERM_COUNT; ++k)
        r.term[k] = 0;
    if (finite) {
        const double log_z = log(s->z_sum);
        r.label = s->label;
        r.argmax = s->z_argmax;
        r.label_p = exp(((double)s->z_label - (double)s->z_max) - log_z);
        r.draft_top1 = 1 / s->z_sum;
        if (f->has_target) r.target_top1 = 1 / (full ? full->t_sum : s->t_sum);
        if (f->want & OH_WANT_ENTROPY) r.entropy = log_z - s->z_dot / s->z_sum;
        if (f->full_overlap)
            r.alpha = f->full_overlap[i].alpha;
        else if (v && f->want & OH_WANT_OVERLAP)
            r.alpha = v->alpha;
        if (v && f->want & OH_WANT_RANK) r.rank = (int32_t)v->rank;
        if (s->z_argmax == s->label) r.hits |= OH_HIT_TOP1; /* an argmax is never -1 here */
        for (int32_t k = 0; k < o->top_k_count; ++k) {
            if (!(f->top_k_mask >> k & 1u)) continue;
            const int32_t K = o->top_k[k];
            const int hit = K == 1 ? s->z_argmax == s->label : oh_row_hit(f->topk_id + i * f->top_k, K, s->label);
            if (hit) r.hits |= 1u << k;
        }
        if (f->parts & (OH_FINISH_LOSS | OH_FINISH_COEF)) {
            oh_row_terms(o, s, v, r.term, c);
            for (int k = 0; k < OH_TERM_COUNT; ++k)
                r.loss += o->lambda[k] * r.term[k];
        }
    }
    f->results[i] = r;
    if (f->label_out) f->label_out[i] = finite || dropped ? r.label : OH_LABEL_BROKEN;
    if (f->parts & OH_FINISH_COEF) {
        oh_row_coef *g = &f->coef[i];
        g->zero = !finite;
        g->label = r.label;
        if (finite) {
            g->c0 = (oh_real)c[0], g->c1 = (oh_real)c[1], g->c2 = (oh_real)c[2], g->c3 = (oh_real)c[3];
            g->c4 = (oh_real)c[4], g->cy = (oh_real)c[5], g->cq = (oh_real)c[6], g->ck = (oh_real)c[7];
            g->z_max = s->z_max, g->z_inv = (oh_real)(1 / s->z_sum), g->z_log = (oh_real)log(s->z_sum);
            g->t_max = g->t_inv = g->t_log = 0;
            if (f->has_target)
                g->t_max = s->t_max, g->t_inv = (oh_real)(1 / s->t_sum), g->t_log = (oh_real)log(s->t_sum);
        } else {
            g->c0 = g->c1 = g->c2 = g->c3 = g->c4 = g->cy = g->cq = g->ck = 0;
            g->z_max = g->z_inv = g->z_log = g->t_max = g->t_inv = g->t_log = 0;
        }
    }
}

/* --------------------------------------------------------------------------------------- blocks of a chunk ---- */

/* The compact row of row `row` of the chunk, -1 where it is unsupervised: by the mask, or by what the target's argmax
 * turned out to be. */
OH_ROW int32_t oh_supervised_row(const oh_row_finish *f, int64_t row) {
    const int32_t i = f->compact[row];
    return i >= 0 && f->results[i].outside ? -1 : i;
}

/* Weights of block b's supervised rows, into results[].weight: mask * decay.
 * D-PACE: with g_i = (1-a) p_y + a on supervised slots (1 elsewhere and on rows that are not finite) and C its running
 * product, decay_j = sum of C_i over the supervised i >= j; held constant in the gradient. */
OH_ROW void oh_block_weights(const oh_row_finish *f, int64_t b) {
    const oh_objective *o = &f->objective;
    const int64_t first = b * o->block_size;
    const int dpace = o->decay == OH_DECAY_DPACE;
    double product = 1;
    for (int64_t slot = 0; slot < o->block_size; ++slot) {
        const int32_t i = oh_supervised_row(f, first + slot);
        if (i < 0) continue;
        oh_row_result *r = &f->results[i];
        if (dpace) {
            if (r->finite) product *= (1 - o->decay_param) * r->label_p + o->decay_param;
            r->weight = product;
        } else {
            r->weight = (double)f->mask[first + slot] * oh_slot_decay(o, slot);
        }
    }
    if (!dpace) return;
    double suffix = 0;
    for (int64_t slot = o->block_size - 1; slot >= 0; --slot) {
        const int32_t i = oh_supervised_row(f, first + slot);
        if (i < 0) continue;
        oh_row_result *r = &f->results[i];
        suffix += r->weight;
        r->weight = (double)f->mask[first + slot] * suffix;
    }
}

/* Hits of block b at position `bit` of results[].hits, counted from first_slot until the first miss. An unsupervised
 * slot, or a row that is not finite, ends the streak (OH_GAP_STOP) or is stepped over (OH_GAP_SKIP). */
OH_ROW double oh_block_streak(const oh_row_finish *f, int64_t b, uint32_t bit) {
    const oh_objective *o = &f->objective;
    double streak = 0;
    for (int64_t slot = o->first_slot; slot < o->block_size; ++slot) {
        const int32_t i = oh_supervised_row(f, b * o->block_size + slot);
        if (i < 0 || !f->results[i].finite) {
            if (o->gap == OH_GAP_STOP) break;
            continue;
        }
        if (!(f->results[i].hits & bit)) break;
        streak += 1;
    }
    return streak;
}

/* Expected accepted length of block b: sum over k of the product of alpha up to k; alpha = 0 on unsupervised slots. */
OH_ROW double oh_block_tau(const oh_row_finish *f, int64_t b) {
    const oh_objective *o = &f->objective;
    double product = 1, tau = 0;
    for (int64_t slot = o->first_slot; slot < o->block_size; ++slot) {
        const int32_t i = oh_supervised_row(f, b * o->block_size + slot);
        if (i < 0) break;
        product *= f->results[i].alpha; /* 0 on rows that are not finite */
        tau += product;
    }
    return tau;
}

/* Per-row outputs of row `row` of the chunk; i its compact row or -1. */
OH_ROW void oh_finish_row_outputs(const oh_row_finish *f, int64_t row, int32_t i) {
    const oh_row_result *r = i >= 0 ? &f->results[i] : NULL;
    const int finite = r && r->finite;
    if (f->parts & OH_FINISH_LOSS) {
        if (f->row_loss_out) f->row_loss_out[row] = finite ? (float)r->loss : 0;
        if (f->weight_out) f->weight_out[row] = r ? (float)r->weight : 0;
    }
    if (f->parts & OH_FINISH_METRICS) {
        if (f->row_label_out) f->row_label_out[row] = finite ? r->label : -1;
        if (f->argmax_out) f->argmax_out[row] = finite ? r->argmax : -1;
        if (f->rank_out) f->rank_out[row] = finite ? r->rank : -1;
    }
    if (!(f->parts & OH_FINISH_TOP_K_ROWS)) return;
    const double log_z = finite ? log(f->stats[i].z_sum) : 0;
    for (int32_t k = 0; k < f->top_k; ++k) {
        const int64_t to = row * f->top_k + k;
        const int32_t id = finite ? f->topk_id[(int64_t)i * f->top_k + k] : -1;
        if (f->topk_id_out) f->topk_id_out[to] = id;
        if (!f->topk_logprob_out) continue;
        const oh_real logit = id >= 0 ? f->topk_logit[(int64_t)i * f->top_k + k] : -INFINITY;
        const float none = r ? -INFINITY : 0; /* an entry beyond V_valid; an unsupervised row is all 0 */
        f->topk_logprob_out[to] = id >= 0 ? (float)(((double)logit - (double)f->stats[i].z_max) - log_z) : none;
    }
}

/* Second loop of a row_finish: block b. Writes its rows' weights, row_scale and outputs, and its sums into
 * partial[b, :]. */
OH_ROW void oh_finish_block(const oh_row_finish *f, int64_t b) {
    const oh_objective *o = &f->objective;
    const int64_t count = oh_sum_count(o), first = b * o->block_size;
    double *sum = f->partial + b * count;
    int64_t supervised = 0;
    for (int64_t k = 0; k < count; ++k)
        sum[k] = 0;
    if (f->parts & (OH_FINISH_LOSS | OH_FINISH_COEF)) oh_block_weights(f, b);

    for (int64_t slot = 0; slot < o->block_size; ++slot) {
        const int32_t i = oh_supervised_row(f, first + slot);
        oh_finish_row_outputs(f, first + slot, i);
        if (i < 0) {
            if (f->compact[first + slot] >= 0 && f->parts & OH_FINISH_COEF) f->row_scale[f->compact[first + slot]] = 0;
            continue;
        }
        const oh_row_result *r = &f->results[i];
        ++supervised;
        /* 0 for a row that is not finite: its hidden state may be NaN and must not reach the head's gradient. */
        if (f->parts & OH_FINISH_COEF) f->row_scale[i] = r->finite ? (float)(r->weight * f->scale) : 0;
        if (f->parts & OH_FINISH_COUNTS) {
            sum[OH_SUM_SUPERVISED] += 1;
            sum[OH_SUM_MASK] += (double)f->mask[first + slot];
            if (!r->finite) {
                const double row = (double)(f->first_row + first + slot + 1);
                sum[OH_SUM_NONFINITE] += 1;
                sum[OH_SUM_FIRST_NONFINITE] = oh_sum_merge(OH_SUM_FIRST_NONFINITE, sum[OH_SUM_FIRST_NONFINITE], row);
            }
        }
        if (f->parts & OH_FINISH_LOSS) {
            sum[OH_SUM_WEIGHT] += r->weight;
            sum[OH_SUM_LOSS_NUM] += r->weight * r->loss;
            for (int k = 0; k < OH_TERM_COUNT; ++k)
                sum[OH_SUM_TERM + k] += r->weight * r->term[k];
        }
        if (!r->finite) continue;
        if (f->parts & OH_FINISH_METRICS) {
            sum[OH_SUM_ENTROPY] += r->entropy;
            sum[OH_SUM_DRAFT_TOP1] += r->draft_top1;
            sum[OH_SUM_TARGET_TOP1] += r->target_top1;
            sum[OH_SUM_ALPHA] += r->alpha;
            sum[oh_sum_slot_count(o) + slot] += 1;
            if (r->hits & OH_HIT_TOP1) sum[oh_sum_slot_hits(o) + slot] += 1;
        }
        if (f->parts & OH_FINISH_TOP_K)
            for (int32_t k = 0; k < o->top_k_count; ++k)
                if (f->top_k_mask >> k & 1u && r->hits >> k & 1u) sum[oh_sum_hits(o) + k] += 1;
    }
    if (f->parts & OH_FINISH_COUNTS) sum[OH_SUM_BLOCKS] = supervised > 0;
    if (f->parts & OH_FINISH_METRICS && (f->full_overlap || f->want & OH_WANT_OVERLAP))
        sum[OH_SUM_TAU] = oh_block_tau(f, b);
    if (f->parts & OH_FINISH_TOP_K)
        for (int32_t k = 0; k < o->top_k_count; ++k)
            if (f->top_k_mask >> k & 1u) sum[oh_sum_streak(o) + k] = oh_block_streak(f, b, 1u << k);
}

/* Third loop of a row_finish: sum k over the chunk's blocks, in order, so that the bits depend on nothing else. */
OH_ROW void oh_finish_sum(const oh_row_finish *f, int64_t k) {
    const int64_t count = oh_sum_count(&f->objective), blocks = f->rows / f->objective.block_size;
    double total = f->sums[k];
    for (int64_t b = 0; b < blocks; ++b)
        total = oh_sum_merge(k, total, f->partial[b * count + k]);
    f->sums[k] = total;
}

/* N by the objective's rule; a caller's device scalar goes before it. */
OH_ROW double oh_step_norm(const oh_objective *o, const double *sums, const double *norm) {
    if (norm) return *norm;
    if (o->norm == OH_NORM_WEIGHTS) return sums[OH_SUM_WEIGHT];
    if (o->norm == OH_NORM_COUNT) return sums[OH_SUM_MASK];
    return o->norm == OH_NORM_NUMBER ? o->norm_value : 1.0;
}

/* The step's loss, its numerator and N, and 1/N for the closing pass; 0 where N is. */
OH_ROW void oh_step_close(const oh_step_finish *f) {
    const double n = oh_step_norm(&f->objective, f->sums, f->norm);
    f->loss[0] = n > 0 ? f->sums[OH_SUM_LOSS_NUM] / n : 0;
    f->loss[1] = f->sums[OH_SUM_LOSS_NUM];
    f->loss[2] = n;
    *f->factor = n > 0 ? (float)(1 / n) : 0;
}

/* Position of `id` among `count` ascending ids, or -1. */
OH_ROW int32_t oh_position_of(const int32_t *ids, int64_t count, int32_t id) {
    int64_t low = 0, high = count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (ids[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && ids[low] == id ? (int32_t)low : -1;
}

/* One row of an oh_row_labels. */
OH_ROW void oh_label_row(const oh_row_labels *l, int64_t i) {
    l->label[i] = oh_position_of(l->ids, l->id_count, l->full[l->target_row ? l->target_row[i] : i].t_argmax);
}

/* ---------------------------------------------------------------------------------------------- row selection ---- */

enum {
    OH_SELECTED_WEIGHT,
    OH_SELECTED_MASK,
    OH_SELECTED_BAD_MASKS,
    OH_SELECTED_BAD_MASK,
    OH_SELECTED_BAD_TARGETS,
    OH_SELECTED_BAD_TARGET,
    OH_SELECTED_COUNT
};

/* Which rows of a step are supervised, where only the device knows: compact rows numbered chunk by chunk from the front,
 * the rest of a chunk's places marked as rows of zeros. Everything is on the device. What a host would refuse (a mask
 * that is negative or not finite, a target row out of range on a supervised row) makes its row unsupervised and is
 * counted. */
typedef struct oh_row_select {
    oh_objective objective;
    int64_t rows, chunk; /* of the step and of a chunk, whole blocks */
    int64_t places; /* compact rows of a whole chunk, block_size - first_slot a block; chunk c's start at c places */
    int64_t target_rows;    /* S, 0: no target */
    int64_t label_end;      /* given labels are in [0, label_end) */
    int64_t id_count;       /* of ids */
    const int32_t *ids;     /* target ids of the draft's columns, or NULL: labels are columns */
    const void *mask;       /* [rows] u8, bool or f32, or NULL: all 1 */
    const void *label;      /* [rows] i32 or i64, NULL: not given */
    const void *target_row; /* [rows] i32 or i64, or NULL: identity */
    const int32_t
        *target_tile; /* [rows] target tile row of each row, where target rows are shared; NULL: its compact row */
    int32_t mask_dtype, label_dtype, target_row_dtype;
    int32_t outside; /* oh_outside */

    float *mask_out;         /* [rows] */
    int32_t *compact;        /* [rows] place within the chunk, or -1 */
    int32_t *draft_row;      /* [places of all chunks] row of D, or -1 */
    int32_t *label_out;      /* [places] draft column, or -1 */
    int32_t *target_index;   /* [places] from target_tile; not written without it */
    int32_t *target_source;  /* [places] row of G, or -1; not written with target_tile */
    int32_t *target_row_out; /* [rows] row of G, 0 where unsupervised; may be target_row (i32) */
    double *sums;  /* [OH_SELECTED_COUNT] weights and masks of supervised rows; bad masks, the first's row + 1; bad
                              * target rows, the first's row + 1. Written. */
    float *factor; /* [1]: 1 / N by norm weights or count, 0 where N = 0, 1 for other norms */
} oh_row_select;

/* A row as its own entries select it. */
typedef struct oh_selected_row {
    float mask;
    int32_t label; /* draft column or -1 */
    int32_t target;
    int32_t supervised, bad_mask, bad_target;
} oh_selected_row;

/* An entry of an array of i32 or i64. */
OH_ROW int64_t oh_integer_at(const void *array, int32_t dtype, int64_t index) {
    return dtype == OH_I64 ? ((const int64_t *)array)[index] : (int64_t)((const int32_t *)array)[index];
}

/* A row's mask: u8, bool or f32; 1 without a mask. */
OH_ROW float oh_mask_at(const void *mask, int32_t dtype, int64_t index) {
    if (!mask) return 1;
    if (dtype == OH_F32) return ((const float *)mask)[index];
    const unsigned char value = ((const unsigned char *)mask)[index];
    return dtype == OH_BOOL ? (float)(value != 0) : (float)value;
}

/* What is known of a row from its own entries: design.md section 1's supervised rows. */
OH_ROW oh_selected_row oh_select_row(const oh_row_select *s, int64_t row) {
    const oh_objective *o = &s->objective;
    oh_selected_row r;
    const float mask = oh_mask_at(s->mask, s->mask_dtype, row);
    r.bad_mask = !(mask >= 0) || mask == INFINITY;
    r.mask = r.bad_mask ? 0 : mask;
    r.label = -1;
    r.target = 0;
    r.bad_target = 0;
    r.supervised = r.mask > 0 && row % o->block_size >= o->first_slot;
    if (r.supervised && o->labels == OH_LABELS_GIVEN) {
        const int64_t label = oh_integer_at(s->label, s->label_dtype, row);
        const int known = label >= 0 && label < s->label_end;
        if (known) r.label = s->ids ? oh_position_of(s->ids, s->id_count, (int32_t)label) : (int32_t)label;
        r.supervised = r.label >= 0 || (known && s->ids && s->outside == OH_OUTSIDE_KEEP);
    }
    if (r.supervised && s->target_rows > 0) {
        const int64_t target = s->target_row ? oh_integer_at(s->target_row, s->target_row_dtype, row) : row;
        r.bad_target = target < 0 || target >= s->target_rows;
        if (r.bad_target)
            r.supervised = 0;
        else
            r.target = (int32_t)target;
    }
    return r;
}

/* Row `row` of chunk `c` in place `place` of it, or unsupervised (-1). */
OH_ROW void oh_select_write(const oh_row_select *s, int64_t c, int64_t row, const oh_selected_row *r, int32_t place) {
    s->mask_out[row] = r->mask;
    s->compact[row] = place;
    if (s->target_row_out) s->target_row_out[row] = place >= 0 ? r->target : 0;
    if (place < 0) return;
    const int64_t at = c * s->places + place;
    s->draft_row[at] = (int32_t)row;
    s->label_out[at] = r->label;
    if (s->target_rows == 0) return;
    if (s->target_tile)
        s->target_index[at] = s->target_tile[row];
    else
        s->target_source[at] = r->target;
}

/* A place that no row takes. */
OH_ROW void oh_select_clear(const oh_row_select *s, int64_t at) {
    s->draft_row[at] = s->label_out[at] = -1;
    if (s->target_rows == 0) return;
    if (s->target_tile)
        s->target_index[at] = 0;
    else
        s->target_source[at] = -1;
}

/* Places of the chunk that starts at row `first`. */
OH_ROW int64_t oh_select_places(const oh_row_select *s, int64_t first) {
    const int64_t rows = s->rows - first < s->chunk ? s->rows - first : s->chunk;
    return rows / s->objective.block_size * (s->objective.block_size - s->objective.first_slot);
}

/* Whether the given arrays have dtypes that are read. */
OH_ROW int oh_select_dtypes_valid(const oh_row_select *s) {
    if (s->mask && s->mask_dtype != OH_U8 && s->mask_dtype != OH_BOOL && s->mask_dtype != OH_F32) return 0;
    if (s->label && s->label_dtype != OH_I32 && s->label_dtype != OH_I64) return 0;
    return !s->target_row || s->target_row_dtype == OH_I32 || s->target_row_dtype == OH_I64;
}

/* Whether a selection can be made: sizes, dtypes, and the arrays that it reads and writes. For the host side of every
 * backend: what is refused enqueues nothing. */
OH_ROW int oh_select_valid(const oh_row_select *s) {
    const oh_objective *o = &s->objective;
    if (o->block_size <= 0 || o->first_slot < 0 || o->first_slot > o->block_size) return 0;
    if (s->rows < 0 || s->chunk <= 0 || s->rows % o->block_size != 0 || s->chunk % o->block_size != 0) return 0;
    if (s->places != s->chunk / o->block_size * (o->block_size - o->first_slot) || !oh_select_dtypes_valid(s)) return 0;
    if (!s->sums || !s->factor) return 0;
    if (s->rows == 0) return 1;
    if (!s->mask_out || !s->compact || !s->draft_row || !s->label_out) return 0;
    if (o->labels == OH_LABELS_GIVEN && !s->label) return 0;
    return s->target_rows == 0 || (s->target_tile ? s->target_index != NULL : s->target_source != NULL);
}

/* What a written row adds to sum k. */
OH_ROW double oh_select_part(const oh_row_select *s, int64_t row, const oh_selected_row *r, int k) {
    if (k == OH_SELECTED_BAD_MASKS) return r->bad_mask;
    if (k == OH_SELECTED_BAD_MASK) return r->bad_mask ? (double)(row + 1) : 0;
    if (k == OH_SELECTED_BAD_TARGETS) return r->bad_target;
    if (k == OH_SELECTED_BAD_TARGET) return r->bad_target ? (double)(row + 1) : 0;
    if (!r->supervised) return 0;
    const double mask = (double)r->mask;
    return k == OH_SELECTED_MASK ? mask : mask * oh_slot_decay(&s->objective, row % s->objective.block_size);
}

/* Two parts of sum k. */
OH_ROW double oh_select_merge(int k, double a, double b) {
    const int first = k == OH_SELECTED_BAD_MASK || k == OH_SELECTED_BAD_TARGET;
    return oh_sum_merge(first ? OH_SUM_FIRST_NONFINITE : OH_SUM_LOSS_NUM, a, b);
}

/* 1/N from the complete sums. */
OH_ROW void oh_select_close(const oh_row_select *s) {
    const int norm = s->objective.norm;
    const double n = norm == OH_NORM_WEIGHTS ? s->sums[OH_SELECTED_WEIGHT]
                     : norm == OH_NORM_COUNT ? s->sums[OH_SELECTED_MASK]
                                             : 1;
    *s->factor = n > 0 ? (float)(1 / n) : 0;
}

OH_STATIC_ASSERT(sizeof(oh_row_result) == 144, "oh_row_result");

#ifdef __cplusplus
}
#endif
#endif
