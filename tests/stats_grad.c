#include "stats_grad.h"

#include <stdlib.h>

#include "portable/dtype.h"
#include "portable/logits.h"
#include "portable/portable.h"

static int is_plain(const oh_transform *t) {
    return t->scale == 1 && t->softcap == 0 && !t->bias;
}

int stats_grad_takes(const oh_tile_stats_grad *pass) {
    const oh_tile_view *tile = &pass->stats.tile;
    if (oh_objective_want(pass->objective) & (OH_WANT_OVERLAP | OH_WANT_JSD)) return 0;
    return is_plain(&tile->draft_transform) && (!tile->target || is_plain(&tile->target_transform));
}

static int is_possible(const oh_tile_stats_grad *pass) {
    const oh_tile_view *tile = &pass->stats.tile;
    if (!pass->objective || !pass->stats.restart || pass->grad.out != tile->draft) return 0;
    return oh_element_size(pass->grad.out_dtype) == oh_element_size(oh_logits_dtype(tile->format));
}

static void set_coef(const oh_tile_stats_grad *pass, oh_row_coef *coef, stats_grad_edit *edit, void *user) {
    for (int64_t i = 0; i < pass->stats.tile.rows; ++i) {
        const oh_row_stats *s = &pass->stats.stats[i];
        oh_row_coefficients(pass->objective, s, pass->has_target, &coef[i]);
        if (s->flags != 0) coef[i].zero = OH_ZERO_DONE;
        if (edit) edit(user, s, &coef[i]);
    }
}

oh_status stats_grad_by_parts(const oh_tile_stats_grad *pass, stats_grad_edit *edit, void *user) {
    if (!is_possible(pass)) return OH_INVALID_ARGUMENT;
    const int64_t rows = pass->stats.tile.rows > 0 ? pass->stats.tile.rows : 1;
    oh_tile_grad grad = pass->grad;
    oh_row_coef *coef = calloc((size_t)rows, sizeof *coef);
    if (!coef) return OH_OUT_OF_MEMORY;
    grad.coef = coef;
    for (int64_t i = 0; i < rows; ++i)
        coef[i].zero = OH_ZERO_DONE;
    /* Of rows that are all done it checks the arguments and does no more. */
    oh_status status = oh_portable_tile_grad(&grad);
    if (status == OH_OK) status = oh_portable_tile_stats(&pass->stats);
    if (status == OH_OK) {
        set_coef(pass, coef, edit, user);
        status = oh_portable_tile_grad(&grad);
    }
    free(coef);
    return status;
}
