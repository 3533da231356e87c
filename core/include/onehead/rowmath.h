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
#include "rowselect.h"
#include "rowstats.h"

#ifdef __cplusplus
extern "C" {
#endif

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
        c[0] += o->z_loss != 0 ? lambda * (1 + 2 * o->z_loss * lse) : lambda;
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

/* A row's coefficients from the eight of its gradient, c, and its statistics; of a row whose gradient is 0 where s is
 * NULL. */
OH_ROW void oh_row_coef_set(oh_row_coef *g, const oh_row_stats *s, int has_target, const double *c) {
    g->zero = s ? OH_ZERO_NOT : OH_ZERO_ROW;
    g->c0 = g->c1 = g->c2 = g->c3 = g->c4 = g->cy = g->cq = g->ck = 0;
    g->z_max = g->z_inv = g->z_log = g->t_max = g->t_inv = g->t_log = 0;
    g->label = -1;
    if (!s) return;
    g->c0 = (oh_real)c[0], g->c1 = (oh_real)c[1], g->c2 = (oh_real)c[2], g->c3 = (oh_real)c[3];
    g->c4 = (oh_real)c[4], g->cy = (oh_real)c[5], g->cq = (oh_real)c[6], g->ck = (oh_real)c[7];
    g->label = s->label;
    g->z_max = s->z_max, g->z_inv = (oh_real)(1 / s->z_sum), g->z_log = (oh_real)log(s->z_sum);
    if (!has_target) return;
    g->t_max = s->t_max, g->t_inv = (oh_real)(1 / s->t_sum), g->t_log = (oh_real)log(s->t_sum);
}

/* The coefficients of a row by its statistics alone: without a target of another vocabulary, and of terms that need no
 * second read. What oh_finish_row gives it too. */
OH_ROW void oh_row_coefficients(const oh_objective *o, const oh_row_stats *s, int has_target, oh_row_coef *g) {
    double term[OH_TERM_COUNT], c[8];
    if (s->label < 0 || !oh_row_is_finite(o, s, has_target)) {
        oh_row_coef_set(g, NULL, has_target, NULL);
        return;
    }
    oh_row_terms(o, s, NULL, term, c);
    oh_row_coef_set(g, s, has_target, c);
}

/* Whether column y is among the first K of a row's list. Without a label it is not, though a list longer than the
 * vocabulary ends in ids of -1. */
OH_ROW int oh_row_hit(const int32_t *ids, int32_t K, int32_t y) {
    if (y < 0) return 0;
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
    const int full_bad = full && (full->flags & (OH_ROW_T_BAD | OH_ROW_OVERFLOW) || !(full->t_max > -INFINITY));
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
        if (v && f->want & OH_WANT_RANK && s->label >= 0) r.rank = (int32_t)v->rank;
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
    if (!(f->parts & OH_FINISH_COEF)) return;
    oh_row_coef_set(&f->coef[i], finite ? s : NULL, f->has_target, c);
    if (finite && f->parts & OH_FINISH_GRAD_DONE && s->flags == 0) f->coef[i].zero = OH_ZERO_DONE;
}

/* --------------------------------------------------------------------------------------- blocks of a chunk ---- */

/* The compact row of row `row` of the chunk, -1 where it is unsupervised: by the mask, or by what the target's argmax
 * turned out to be. */
OH_ROW int32_t oh_supervised_row(const oh_row_finish *f, int64_t row) {
    const int32_t i = f->compact[row];
    return i >= 0 && f->results[i].outside ? -1 : i;
}

/* Weight of one supervised row, mask * decay, into results[].weight; D-PACE's decay is a matter of the block. */
OH_ROW void oh_finish_weight(const oh_row_finish *f, int64_t b, int64_t slot) {
    const oh_objective *o = &f->objective;
    const int64_t row = b * o->block_size + slot;
    const int32_t i = oh_supervised_row(f, row);
    if (i >= 0 && o->decay != OH_DECAY_DPACE) f->results[i].weight = (double)f->mask[row] * oh_slot_decay(o, slot);
}

/* D-PACE: with g_i = (1-a) p_y + a on supervised slots (1 elsewhere and on rows that are not finite) and C its running
 * product, decay_j = sum of C_i over the supervised i >= j; held constant in the gradient. */
OH_ROW void oh_finish_pace(const oh_row_finish *f, int64_t b) {
    const oh_objective *o = &f->objective;
    const int64_t first = b * o->block_size;
    double product = 1, suffix = 0;
    if (o->decay != OH_DECAY_DPACE) return;
    for (int64_t slot = 0; slot < o->block_size; ++slot) {
        const int32_t i = oh_supervised_row(f, first + slot);
        if (i < 0) continue;
        oh_row_result *r = &f->results[i];
        if (r->finite) product *= (1 - o->decay_param) * r->label_p + o->decay_param;
        r->weight = product;
    }
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

/* Row `slot` of block b once its weight is known: its row_scale and outputs, and into part[OH_SUM_FIXED] what it adds to
 * the sums of fixed number. */
OH_ROW void oh_finish_slot(const oh_row_finish *f, int64_t b, int64_t slot, double *part) {
    const int64_t row = b * f->objective.block_size + slot;
    const int32_t i = oh_supervised_row(f, row);
    for (int k = 0; k < OH_SUM_FIXED; ++k)
        part[k] = 0;
    oh_finish_row_outputs(f, row, i);
    if (i < 0) {
        if (f->compact[row] >= 0 && f->parts & OH_FINISH_COEF) f->row_scale[f->compact[row]] = 0;
        return;
    }
    const oh_row_result *r = &f->results[i];
    /* 0 for a row that is not finite: its hidden state may be NaN and must not reach the head's gradient. */
    if (f->parts & OH_FINISH_COEF) f->row_scale[i] = r->finite ? (float)(r->weight * f->scale) : 0;
    if (f->parts & OH_FINISH_COUNTS) {
        part[OH_SUM_SUPERVISED] = 1;
        part[OH_SUM_MASK] = (double)f->mask[row];
        part[OH_SUM_NONFINITE] = !r->finite;
        part[OH_SUM_FIRST_NONFINITE] = r->finite ? 0 : (double)(f->first_row + row + 1);
    }
    if (f->parts & OH_FINISH_LOSS) {
        part[OH_SUM_WEIGHT] = r->weight;
        part[OH_SUM_LOSS_NUM] = r->weight * r->loss;
        for (int k = 0; k < OH_TERM_COUNT; ++k)
            part[OH_SUM_TERM + k] = r->weight * r->term[k];
    }
    if (r->finite && f->parts & OH_FINISH_METRICS) {
        part[OH_SUM_ENTROPY] = r->entropy;
        part[OH_SUM_DRAFT_TOP1] = r->draft_top1;
        part[OH_SUM_TARGET_TOP1] = r->target_top1;
        part[OH_SUM_ALPHA] = r->alpha;
    }
}

/* Whether sum k is a figure of a block as a whole, oh_block_sum's, not the sum of its rows' parts. */
OH_ROW int oh_sum_is_of_blocks(int64_t k) {
    return k == OH_SUM_BLOCKS || k == OH_SUM_TAU || k >= OH_SUM_FIXED;
}

/* Rows of block b that are finite and hit at position `bit` of results[].hits. */
OH_ROW double oh_block_hits(const oh_row_finish *f, int64_t b, uint32_t bit) {
    const int64_t first = b * f->objective.block_size;
    double hits = 0;
    for (int64_t slot = 0; slot < f->objective.block_size; ++slot) {
        const int32_t i = oh_supervised_row(f, first + slot);
        hits += i >= 0 && f->results[i].finite && f->results[i].hits & bit;
    }
    return hits;
}

/* Sum k of block b as a whole. */
OH_ROW double oh_block_sum(const oh_row_finish *f, int64_t b, int64_t k) {
    const oh_objective *o = &f->objective;
    const int64_t first = b * o->block_size;
    if (k == OH_SUM_BLOCKS) {
        int any = 0;
        for (int64_t slot = 0; slot < o->block_size && f->parts & OH_FINISH_COUNTS; ++slot)
            any |= oh_supervised_row(f, first + slot) >= 0;
        return any;
    }
    if (k == OH_SUM_TAU) {
        const int compared = f->full_overlap || f->want & OH_WANT_OVERLAP;
        return compared && f->parts & OH_FINISH_METRICS ? oh_block_tau(f, b) : 0;
    }
    if (k < oh_sum_slot_hits(o)) {
        const int64_t entry = (k - OH_SUM_FIXED) % o->top_k_count;
        const uint32_t bit = 1u << entry;
        if (!(f->parts & OH_FINISH_TOP_K && f->top_k_mask & bit)) return 0;
        return k < oh_sum_streak(o) ? oh_block_hits(f, b, bit) : oh_block_streak(f, b, bit);
    }
    const int32_t i = oh_supervised_row(f, first + (k - oh_sum_slot_hits(o)) % o->block_size);
    if (i < 0 || !f->results[i].finite || !(f->parts & OH_FINISH_METRICS)) return 0;
    return k >= oh_sum_slot_count(o) || f->results[i].hits & OH_HIT_TOP1;
}

/* Second loop of a row_finish: block b. Writes its rows' weights, row_scale and outputs, and its sums into
 * partial[b, :]. What it calls for each slot and sum is independent of the others and may be done side by side:
 * weights, then D-PACE's, then the slots, then the sums over the slots' parts in order. */
OH_ROW void oh_finish_block(const oh_row_finish *f, int64_t b) {
    const oh_objective *o = &f->objective;
    const int64_t count = oh_sum_count(o);
    double *sum = f->partial + b * count, part[OH_SUM_FIXED];
    for (int64_t k = 0; k < count; ++k)
        sum[k] = 0;
    if (f->parts & (OH_FINISH_LOSS | OH_FINISH_COEF)) {
        for (int64_t slot = 0; slot < o->block_size; ++slot)
            oh_finish_weight(f, b, slot);
        oh_finish_pace(f, b);
    }
    for (int64_t slot = 0; slot < o->block_size; ++slot) {
        oh_finish_slot(f, b, slot, part);
        for (int k = 0; k < OH_SUM_FIXED; ++k)
            sum[k] = oh_sum_merge(k, sum[k], part[k]);
    }
    for (int64_t k = 0; k < count; ++k)
        if (oh_sum_is_of_blocks(k)) sum[k] = oh_block_sum(f, b, k);
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

/* ------------------------------------------------------------------------------------------------ arguments ---- */

/* Whether a backend can finish rows by this objective. For the host side of every backend, as are the next two: what is
 * refused enqueues nothing. */
OH_ROW int oh_objective_valid(const oh_objective *o) {
    if (o->block_size <= 0 || o->first_slot < 0 || o->first_slot > o->block_size) return 0;
    if (o->terms >> OH_TERM_COUNT != 0 || o->top_k_count < 0 || o->top_k_count > OH_TOP_K_LIST_MAX) return 0;
    for (int32_t k = 0; k < o->top_k_count; ++k)
        if (o->top_k[k] < 1 || o->top_k[k] > OH_TOP_K_MAX) return 0;
    return 1;
}

/* Whether the lists of ids and logits hold every K that is asked for. K = 1 is read off the argmax. */
OH_ROW int oh_finish_top_k_valid(const oh_row_finish *f) {
    const oh_objective *o = &f->objective;
    if (f->top_k < 0 || f->top_k > OH_TOP_K_MAX || (uint64_t)f->top_k_mask >> o->top_k_count != 0) return 0;
    for (int32_t k = 0; k < o->top_k_count; ++k)
        if (f->top_k_mask >> k & 1u && o->top_k[k] > 1 && (o->top_k[k] > f->top_k || !f->topk_id)) return 0;
    if (!(f->parts & OH_FINISH_TOP_K_ROWS) || f->top_k == 0) return 1;
    return f->topk_id && (f->topk_logit || !f->topk_logprob_out);
}

/* Whether a row_finish can be done: sizes, and the arrays that its parts read and write. */
OH_ROW int oh_finish_valid(const oh_row_finish *f) {
    const oh_objective *o = &f->objective;
    if (f->parts & ~(OH_FINISH_PARTS | OH_FINISH_GRAD_DONE)) return 0;
    if (f->parts & OH_FINISH_GRAD_DONE && !(f->parts & OH_FINISH_COEF)) return 0;
    if (!oh_objective_valid(o) || f->rows < 0 || f->rows % o->block_size != 0) return 0;
    if (f->compact_rows < 0 || f->compact_rows > f->rows) return 0;
    if (f->rows == 0) return 1;
    if (!f->compact || !f->partial || !f->sums) return 0;
    if (f->parts & (OH_FINISH_COUNTS | OH_FINISH_LOSS | OH_FINISH_COEF) && !f->mask) return 0;
    if (f->compact_rows == 0) return 1;
    if (!f->stats || !f->results || (f->parts & OH_FINISH_COEF && (!f->coef || !f->row_scale))) return 0;
    if (f->parts & (OH_FINISH_LOSS | OH_FINISH_COEF)) {
        if (o->terms & OH_TERMS_WITH_TARGET && !f->has_target) return 0;
        if (!f->overlap && oh_objective_want(o) & (OH_WANT_JSD | OH_WANT_OVERLAP)) return 0;
    }
    return oh_finish_top_k_valid(f);
}

#ifdef __cplusplus
}
#endif
#endif
