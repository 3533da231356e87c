/* The second read of a tile: how much p and q have in common, their mixture, and the label's rank. Probabilities are
 * formed in oh_real, sums in f64. */
#include "portable.h"

#include <math.h>

#include "logits.h"
#include "softmax.h"

static int row_is_finite(const oh_row_stats *s, int has_target) {
    if (s->flags & OH_ROW_Z_BAD || !(s->z_max > -INFINITY)) return 0;
    return !has_target || (!(s->flags & OH_ROW_T_BAD) && s->t_max > -INFINITY);
}

static void add_overlap(const oh_softmax *s, const oh_real *z, const oh_real *t, int64_t count, oh_row_overlap *v) {
    for (int64_t j = 0; j < count; ++j) {
        const oh_real p = oh_softmax_p(s, z[j]), q = oh_softmax_q(s, t[j]);
        const int le = p <= q;
        /* Selections, not branches: which of the two is larger can't be predicted where they are close. */
        v->alpha += (double)(le ? p : q);
        v->p_le += (double)(le ? p : 0);
        v->tv += (double)(le ? q - p : 0);
    }
}

/* With r = log q - log p and g = log m less the larger logarithm: the larger's log less log m is -g, the smaller's
 * -|r| - g. Where one of the two is 0, m is half of the other. */
static void add_mixture(const oh_softmax *s, const oh_real *z, const oh_real *t, int64_t count, oh_row_overlap *v) {
    const double log_2 = 0.69314718055994530942;
    double of_p = 0, of_q = 0;
    for (int64_t j = 0; j < count; ++j) {
        const double p = (double)oh_softmax_p(s, z[j]), q = (double)oh_softmax_q(s, t[j]);
        if (z[j] > -INFINITY && t[j] > -INFINITY) {
            const oh_real r = oh_softmax_log_ratio(s, z[j], t[j]), g = oh_softmax_mixture(r);
            of_p -= p * (double)(r > 0 ? r + g : g);
            of_q -= q * (double)(r > 0 ? g : g - r);
        } else {
            of_p += p * log_2;
            of_q += q * log_2;
        }
    }
    v->jsd += 0.5 * (of_p + of_q);
    v->kl_pm += of_p;
}

static int64_t count_ahead(const oh_real *z, int64_t count, int64_t first_column, const oh_row_stats *s) {
    int64_t ahead = 0;
    for (int64_t j = 0; j < count; ++j)
        ahead += z[j] > s->z_label || (z[j] == s->z_label && first_column + j < s->label);
    return ahead;
}

static int overlap_valid(const oh_tile_overlap *o) {
    const uint32_t known = OH_WANT_OVERLAP | OH_WANT_JSD | OH_WANT_RANK;
    if (!oh_logits_valid(&o->tile)) return 0;
    if (o->tile.rows == 0) return 1;
    if (!o->stats || !o->overlap || (o->full && o->want & OH_WANT_JSD)) return 0;
    if (o->tile.columns == 0 || !(o->want & known)) return 1;
    return o->tile.draft && (o->tile.target || !(o->want & (OH_WANT_OVERLAP | OH_WANT_JSD)));
}

oh_status oh_portable_tile_overlap(const oh_tile_overlap *overlap) {
    if (!overlap || !overlap_valid(overlap)) return OH_INVALID_ARGUMENT;
    const oh_tile_view *tile = &overlap->tile;
    const int has_target = tile->target != NULL;
    const oh_row_overlap nothing = {0};
    oh_real z[OH_LOGITS_BLOCK], t[OH_LOGITS_BLOCK];

    for (int64_t row = 0; row < tile->rows; ++row) {
        const oh_row_stats of_row = oh_overlap_stats(overlap, row), *s = &of_row;
        oh_row_overlap *v = &overlap->overlap[row];
        const int finite = row_is_finite(s, has_target);
        if (overlap->restart || !finite) *v = nothing;
        if (!finite) continue;
        const oh_softmax softmax = oh_softmax_from_stats(s, has_target);
        for (int64_t first = 0; first < tile->columns; first += OH_LOGITS_BLOCK) {
            const int64_t left = tile->columns - first, count = left < OH_LOGITS_BLOCK ? left : OH_LOGITS_BLOCK;
            oh_logits_read(tile, row, first, count, z, t);
            if (overlap->want & OH_WANT_OVERLAP) add_overlap(&softmax, z, t, count, v);
            if (overlap->want & OH_WANT_JSD) add_mixture(&softmax, z, t, count, v);
            /* Without a label there is nothing to rank: z_label is -inf then and everything would stand ahead. */
            if (overlap->want & OH_WANT_RANK && s->label >= 0)
                v->rank += count_ahead(z, count, tile->first_column + first, s);
        }
    }
    return OH_OK;
}
