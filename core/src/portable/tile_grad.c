/* The gradient of a tile with respect to its raw draft logits: the linear form of oh_row_coef, times the transform's
 * slope, in oh_real, rounded once. A block is read whole before any of it is written, so that the output may be the
 * draft tile itself. */
#include "portable.h"

#include <math.h>

#include "logits.h"
#include "softmax.h"

/* c1 log p + c2 log q + c3 log m, written with log q - log p and log m - log p: for rkl and jsd the logarithm of p,
 * which is large where the difference is small, then cancels in the coefficients. */
static oh_real log_terms(const oh_row_coef *c, const oh_softmax *s, uint32_t form, oh_real z, oh_real t) {
    oh_real sum = (c->c1 + c->c2 + c->c3) * ((z - s->z_max) - s->z_log);
    if (form & (OH_FORM_LOG_Q | OH_FORM_LOG_M)) {
        const oh_real ratio = oh_softmax_log_ratio(s, z, t);
        /* A finite row has c2 = 0 where q = 0 < p. */
        if (form & OH_FORM_LOG_Q && ratio > -INFINITY) sum += c->c2 * ratio;
        if (form & OH_FORM_LOG_M) sum += c->c3 * ((ratio > 0 ? ratio : 0) + oh_softmax_mixture(ratio));
    }
    return sum;
}

/* Gradient at one column with finite z; t only where the form has q. */
static oh_real grad_at(const oh_row_coef *c, const oh_softmax *s, uint32_t form, oh_real z, oh_real t) {
    const oh_real p = oh_softmax_p(s, z);
    const oh_real q = form & (OH_FORM_LE | OH_FORM_Q) ? oh_softmax_q(s, t) : 0;
    oh_real factor = c->c0;
    if (form & (OH_FORM_LOG_P | OH_FORM_LOG_Q | OH_FORM_LOG_M)) factor += log_terms(c, s, form, z, t);
    if (form & OH_FORM_LE && p <= q) factor += c->c4;
    /* Where p is 0 its logarithm, and with that the factor, may be too large for oh_real. */
    const oh_real of_p = p > 0 ? p * factor : 0, grad = form & OH_FORM_Q ? of_p - c->cq * q : of_p;
    return grad - c->ck;
}

static void grad_block(const oh_tile_grad *g, const oh_row_coef *c, const oh_softmax *s, int64_t first, int64_t count,
                       const oh_real *z, const oh_real *t, oh_real *dz) {
    const oh_transform *transform = &g->tile.draft_transform;
    const int64_t label = (int64_t)c->label - (g->tile.first_column + first);
    for (int64_t j = 0; j < count; ++j)
        dz[j] = z[j] > -INFINITY ? grad_at(c, s, g->form, z[j], t[j]) : 0;
    if (c->label >= 0 && label >= 0 && label < count && z[label] > -INFINITY) dz[label] -= c->cy;
    if (transform->scale == 1 && transform->softcap == 0) return;
    for (int64_t j = 0; j < count; ++j)
        if (z[j] > -INFINITY) dz[j] *= oh_logit_slope(z[j], transform->scale, transform->softcap);
}

static int grad_valid(const oh_tile_grad *g) {
    const uint32_t of_target = OH_FORM_LOG_Q | OH_FORM_LOG_M | OH_FORM_LE | OH_FORM_Q;
    const oh_tile_view *tile = &g->tile;
    const int64_t size = oh_logits_element_size(g->out_dtype);
    const int64_t tile_size = oh_logits_element_size(oh_logits_dtype(tile->format));
    if (!oh_logits_valid(tile) || size == 0 || g->out_ld < tile->columns) return 0;
    if (tile->rows == 0 || tile->columns == 0) return 1;
    if (!tile->draft || !g->coef || !g->out || (g->form & of_target && !tile->target)) return 0;
    if (g->out != tile->draft) return 1;
    /* In place, a wider element would overwrite what is still to be read. */
    return size <= tile_size && (tile->rows == 1 || g->out_ld * size == tile->draft_ld * tile_size);
}

oh_status oh_portable_tile_grad(const oh_tile_grad *grad) {
    if (!grad || !grad_valid(grad)) return OH_INVALID_ARGUMENT;
    const oh_tile_view *tile = &grad->tile;
    oh_real z[OH_LOGITS_BLOCK], t[OH_LOGITS_BLOCK] = {0}, dz[OH_LOGITS_BLOCK];

    for (int64_t row = 0; row < tile->rows; ++row) {
        const oh_row_coef *c = &grad->coef[row];
        if (c->zero == OH_ZERO_DONE) continue;
        const oh_softmax softmax = oh_softmax_from_coef(c);
        for (int64_t first = 0; first < tile->columns; first += OH_LOGITS_BLOCK) {
            const int64_t left = tile->columns - first, count = left < OH_LOGITS_BLOCK ? left : OH_LOGITS_BLOCK;
            if (c->zero) {
                for (int64_t j = 0; j < count; ++j)
                    dz[j] = 0;
            } else {
                oh_logits_read(tile, row, first, count, z, t);
                grad_block(grad, c, &softmax, first, count, z, t, dz);
            }
            oh_logits_store(grad->out, row * grad->out_ld + first, count, grad->out_dtype, dz);
        }
    }
    return OH_OK;
}

oh_status oh_portable_tile_grad_overlap(const oh_tile_grad_overlap *both) {
    const oh_tile_overlap overlap = {
        .tile = both->grad.tile, .stats = both->stats, .overlap = both->overlap, .want = both->want, .restart = 1};
    if (!(both->want & OH_WANT_OVERLAP) || both->want & ~(OH_WANT_OVERLAP | OH_WANT_RANK) || !grad_valid(&both->grad))
        return OH_INVALID_ARGUMENT;
    const oh_status status = oh_portable_tile_overlap(&overlap);
    return status == OH_OK ? oh_portable_tile_grad(&both->grad) : status;
}
