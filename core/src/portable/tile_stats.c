/* The first read of a tile. Columns are taken in blocks: the block's maxima first, then its sums against those fixed
 * references, then one merge (oh_row_stats_merge), so that the row's running references move at most once a block.
 * Exponentials are formed in oh_real, sums in f64. */
#include "portable.h"

#include <math.h>

#include "logits.h"

/* What a row's block holds; NULL where there is no such tile. */
typedef struct block {
    oh_real *z, *t;
    int64_t first_column, count; /* in the vocabulary */
} block;

/* In several lanes, because a compiler may not reorder one chain of comparisons. No NaN among them. */
static oh_real largest(const oh_real *x, int64_t count) {
    enum { LANES = 16 };
    oh_real lane[LANES], max = -INFINITY;
    for (int l = 0; l < LANES; ++l)
        lane[l] = -INFINITY;
    int64_t j = 0;
    for (; j + LANES <= count; j += LANES)
        for (int l = 0; l < LANES; ++l)
            lane[l] = x[j + l] > lane[l] ? x[j + l] : lane[l];
    for (; j < count; ++j)
        max = x[j] > max ? x[j] : max;
    for (int l = 0; l < LANES; ++l)
        max = lane[l] > max ? lane[l] : max;
    return max;
}

static int any_bad(const oh_real *x, int64_t count) {
    int bad = 0;
    for (int64_t j = 0; j < count; ++j)
        bad |= !(x[j] < INFINITY);
    return bad;
}

static int any_neg_inf(const oh_real *x, int64_t count) {
    int found = 0;
    for (int64_t j = 0; j < count; ++j)
        found |= x[j] == -INFINITY;
    return found;
}

/* NaN and +inf are reported by a flag and then count as -inf, so that what follows never meets one. */
static void set_aside_bad(oh_real *x, int64_t count) {
    for (int64_t j = 0; j < count; ++j)
        if (!(x[j] < INFINITY)) x[j] = -INFINITY;
}

static uint32_t block_flags(block *b) {
    uint32_t flags = 0;
    const int z_neg_inf = b->z && any_neg_inf(b->z, b->count), t_neg_inf = b->t && any_neg_inf(b->t, b->count);
    if (z_neg_inf) flags |= OH_ROW_Z_NEG_INF;
    if (b->z && b->t && (z_neg_inf || t_neg_inf))
        for (int64_t j = 0; j < b->count; ++j) {
            if (b->z[j] == -INFINITY && isfinite(b->t[j])) flags |= OH_ROW_P0_Q;
            if (b->t[j] == -INFINITY && isfinite(b->z[j])) flags |= OH_ROW_Q0_P;
        }
    if (b->z && any_bad(b->z, b->count)) {
        flags |= OH_ROW_Z_BAD;
        set_aside_bad(b->z, b->count);
    }
    if (b->t && any_bad(b->t, b->count)) {
        flags |= OH_ROW_T_BAD;
        set_aside_bad(b->t, b->count);
    }
    return flags;
}

/* The lowest column of the block that holds `max`, which one does. */
static int32_t column_of(const block *b, const oh_real *x, oh_real max) {
    int64_t j = 0;
    while (x[j] != max)
        ++j;
    return (int32_t)(b->first_column + j);
}

/* Sum of exp(x - max), the terms into e. Nothing is added for a logit of -inf, also where all are. */
static double exp_sum(const oh_real *x, int64_t count, oh_real max, oh_real *e) {
    double sum = 0;
    for (int64_t j = 0; j < count; ++j) {
        e[j] = x[j] > -INFINITY ? OH_REAL_EXP(x[j] - max) : 0;
        sum += (double)e[j];
    }
    return sum;
}

static void block_sums(const block *b, uint32_t want, oh_row_stats *s) {
    oh_real ez[OH_LOGITS_BLOCK], et[OH_LOGITS_BLOCK];
    const double z_max = (double)s->z_max, t_max = (double)s->t_max;
    if (b->z) s->z_sum = exp_sum(b->z, b->count, s->z_max, ez);
    if (b->t) s->t_sum = exp_sum(b->t, b->count, s->t_max, et);
    if (b->z && want & OH_WANT_ENTROPY)
        for (int64_t j = 0; j < b->count; ++j)
            if (b->z[j] > -INFINITY) s->z_dot += (double)ez[j] * ((double)b->z[j] - z_max);
    if (b->z && want & OH_WANT_TOTAL)
        for (int64_t j = 0; j < b->count; ++j)
            if (b->z[j] > -INFINITY) s->z_total += (double)b->z[j];
    if (b->z && b->t && want & (OH_WANT_KL | OH_WANT_RKL))
        for (int64_t j = 0; j < b->count; ++j) {
            if (!(b->z[j] > -INFINITY && b->t[j] > -INFINITY)) continue;
            const double distance = ((double)b->t[j] - t_max) - ((double)b->z[j] - z_max);
            s->kl_dot += (double)et[j] * distance;
            s->rkl_dot -= (double)ez[j] * distance;
        }
}

/* Statistics of one block. `row` is what earlier blocks left: an argmax is looked for only where it can win, and a
 * block without one merges as having none. */
static void block_stats(block *b, const oh_row_stats *row, const int32_t *label, uint32_t want, oh_row_stats *s) {
    oh_row_stats_empty(s);
    s->flags = block_flags(b);
    if (b->z) {
        s->z_max = largest(b->z, b->count);
        if (row->z_argmax < 0 || s->z_max >= row->z_max) s->z_argmax = column_of(b, b->z, s->z_max);
    }
    if (b->t) {
        s->t_max = largest(b->t, b->count);
        if (row->t_argmax < 0 || s->t_max >= row->t_max) s->t_argmax = column_of(b, b->t, s->t_max);
    }
    s->label = label ? *label : s->t_argmax;
    if (b->z && s->label >= b->first_column && s->label < b->first_column + b->count)
        s->z_label = b->z[s->label - b->first_column];
    block_sums(b, want, s);
}

/* Whether (logit, id) stands before entry k of a list: larger, or as large in a lower column. */
static int stands_before(oh_real logit, int32_t id, const int32_t *ids, const oh_real *logits, int32_t k) {
    return ids[k] < 0 || logit > logits[k] || (logit == logits[k] && id < ids[k]);
}

static void top_k_insert(oh_real logit, int32_t id, int32_t *ids, oh_real *logits, int32_t top_k) {
    int32_t k = top_k - 1;
    for (; k > 0 && stands_before(logit, id, ids, logits, k - 1); --k) {
        ids[k] = ids[k - 1];
        logits[k] = logits[k - 1];
    }
    ids[k] = id;
    logits[k] = logit;
}

static void top_k_block(const block *b, oh_real max, int32_t *ids, oh_real *logits, int32_t top_k) {
    const int32_t last = top_k - 1;
    if (ids[last] >= 0 && max < logits[last]) return;
    for (int64_t j = 0; j < b->count; ++j) {
        const int32_t id = (int32_t)(b->first_column + j);
        if (stands_before(b->z[j], id, ids, logits, last)) top_k_insert(b->z[j], id, ids, logits, top_k);
    }
}

static void row_restart(const oh_tile_stats *s, int64_t row) {
    oh_row_stats_empty(&s->stats[row]);
    if (s->label) s->stats[row].label = s->label[row];
    for (int32_t k = 0; k < s->top_k; ++k) {
        s->topk_id[row * s->top_k + k] = -1;
        s->topk_logit[row * s->top_k + k] = -INFINITY;
    }
}

static int stats_valid(const oh_tile_stats *s) {
    const oh_tile_view *tile = &s->tile;
    if (!oh_logits_valid(tile) || s->top_k < 0 || s->top_k > OH_TOP_K_MAX) return 0;
    if (tile->rows == 0) return 1;
    if (!s->stats || (s->top_k > 0 && (!s->topk_id || !s->topk_logit))) return 0;
    if (tile->columns == 0) return 1;
    if (!tile->draft && (!tile->target || s->top_k > 0)) return 0;
    if (s->want & (OH_WANT_ENTROPY | OH_WANT_TOTAL) && !tile->draft) return 0;
    return !(s->want & (OH_WANT_KL | OH_WANT_RKL)) || (tile->draft && tile->target);
}

oh_status oh_portable_tile_stats(const oh_tile_stats *stats) {
    if (!stats || !stats_valid(stats)) return OH_INVALID_ARGUMENT;
    const oh_tile_view *tile = &stats->tile;
    oh_real z[OH_LOGITS_BLOCK], t[OH_LOGITS_BLOCK];

    for (int64_t row = 0; row < tile->rows; ++row) {
        oh_row_stats *s = &stats->stats[row], part;
        const int32_t *label = stats->label ? &stats->label[row] : NULL;
        if (stats->restart) row_restart(stats, row);
        for (int64_t first = 0; first < tile->columns; first += OH_LOGITS_BLOCK) {
            const int64_t left = tile->columns - first;
            block b = {tile->draft ? z : NULL, tile->target ? t : NULL, tile->first_column + first,
                       left < OH_LOGITS_BLOCK ? left : OH_LOGITS_BLOCK};
            oh_logits_read(tile, row, first, b.count, z, t);
            block_stats(&b, s, label, stats->want, &part);
            oh_row_stats_merge(s, &part, label == NULL);
            if (stats->top_k > 0)
                top_k_block(&b, part.z_max, stats->topk_id + row * stats->top_k, stats->topk_logit + row * stats->top_k,
                            stats->top_k);
        }
    }
    return OH_OK;
}
