/* Tile and row operations of the shim. Each runs the portable operation, on arguments made wrong or with its results
 * made wrong after. */
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "defects.h"
#include "portable/dtype.h"
#include "portable/logits.h"
#include "portable/portable.h"

/* -------------------------------------------------------------------------------------------------- first read ---- */

/* The last of equal largest logits. */
static void reverse_ties(const oh_tile_stats *s) {
    oh_real z, t;
    for (int64_t i = 0; i < s->tile.rows && s->tile.draft; ++i)
        for (int64_t j = 0; j < s->tile.columns; ++j) {
            oh_logits_read(&s->tile, i, j, 1, &z, &t);
            if (z == s->stats[i].z_max) s->stats[i].z_argmax = (int32_t)(s->tile.first_column + j);
        }
}

static void reverse_top_k_ties(const oh_tile_stats *s) {
    for (int64_t i = 0; i < s->tile.rows; ++i)
        for (int32_t k = 1; k < s->top_k; ++k) {
            int32_t *id = s->topk_id + i * s->top_k + k;
            const oh_real *logit = s->topk_logit + i * s->top_k + k;
            if (logit[0] != logit[-1] || id[0] < 0 || id[-1] < 0) continue;
            const int32_t first = id[-1];
            id[-1] = id[0];
            id[0] = first;
            ++k;
        }
}

static oh_status stats_without_mask(const oh_tile_stats *s) {
    const int64_t count = s->tile.first_column + s->tile.columns;
    oh_tile_stats unmasked = *s;
    if (!s->tile.draft_transform.bias || !s->tile.draft || count <= 0) return oh_portable_tile_stats(s);
    float *bias = malloc((size_t)count * sizeof *bias);
    if (!bias) return OH_OUT_OF_MEMORY;
    for (int64_t v = 0; v < count; ++v)
        bias[v] = s->tile.draft_transform.bias[v] == -INFINITY ? 0 : s->tile.draft_transform.bias[v];
    unmasked.tile.draft_transform.bias = bias;
    const oh_status status = oh_portable_tile_stats(&unmasked);
    free(bias);
    return status;
}

/* Remembers by address and width, so that other logits in the same place get the statistics of the first. */
static oh_status stats_remembered(oh_device *device, const oh_tile_stats *s) {
    const oh_tile_view *v = &s->tile;
    const int whole = s->restart && v->draft && v->rows > 0 && v->rows <= STALE_MAX;
    if (whole && v->draft == device->stale_from && v->columns == device->stale_columns) {
        memcpy(s->stats, device->stale, (size_t)v->rows * sizeof *s->stats);
        return OH_OK;
    }
    const oh_status status = oh_portable_tile_stats(s);
    if (status != OH_OK || !whole) return status;
    device->stale_from = v->draft;
    device->stale_columns = v->columns;
    memcpy(device->stale, s->stats, (size_t)v->rows * sizeof *s->stats);
    return OH_OK;
}

/* The first row's target for all of them. */
static oh_status stats_of_first_target(const oh_tile_stats *s) {
    oh_tile_stats wrong = *s;
    int32_t map[STALE_MAX];
    if (!s->tile.target_row || s->tile.rows > STALE_MAX) return oh_portable_tile_stats(s);
    for (int64_t i = 0; i < s->tile.rows; ++i)
        map[i] = s->tile.target_row[0];
    wrong.tile.target_row = map;
    return oh_portable_tile_stats(&wrong);
}

/* Row by row, with byte offsets into the draft tile that wrap at 2^32. */
static oh_status stats_short_offsets(const oh_tile_stats *s) {
    const int64_t size = oh_element_size(oh_logits_dtype(s->tile.format));
    oh_status status = oh_portable_tile_stats(s);
    if (status != OH_OK || !s->restart || s->top_k > 0 || s->tile.target) return status;
    for (int64_t i = 0; i < s->tile.rows && status == OH_OK; ++i) {
        oh_tile_stats row = *s;
        row.tile.rows = 1;
        row.tile.draft = (unsigned char *)s->tile.draft + (uint32_t)(i * s->tile.draft_ld * size);
        row.stats = s->stats + i;
        row.label = s->label ? s->label + i : NULL;
        status = oh_portable_tile_stats(&row);
    }
    return status;
}

static oh_status stats_shared_buffer(const oh_tile_stats *s) {
    enum { SHARED = 256 };
    static oh_row_stats shared[SHARED];
    oh_tile_stats inside = *s;
    if (!s->restart || s->tile.rows > SHARED || s->tile.rows <= 0) return oh_portable_tile_stats(s);
    inside.stats = s->stats ? shared : NULL;
    const oh_status status = oh_portable_tile_stats(&inside);
    sched_yield(); /* a moment in which another thread may come */
    if (status == OH_OK && s->stats) memcpy(s->stats, shared, (size_t)s->tile.rows * sizeof *shared);
    return status;
}

static oh_status read_first(oh_device *device, const oh_tile_stats *s) {
    oh_tile_stats changed = *s;
    switch (device->defect) {
    case NO_WORK_TILE_STATS:
        return OH_OK;
    case LAST_COLUMN_DROPPED:
        changed.tile.columns -= s->tile.columns > 1;
        return oh_portable_tile_stats(&changed);
    case PADDING_READ:
        changed.tile.columns += s->tile.draft_ld > s->tile.columns && !s->tile.target;
        return oh_portable_tile_stats(&changed);
    case PANEL_OFF_BY_ONE:
        changed.tile.first_column += !s->restart;
        return oh_portable_tile_stats(&changed);
    case RESTART_IGNORED:
        changed.restart = 1;
        return oh_portable_tile_stats(&changed);
    case MASK_IGNORED:
        return stats_without_mask(s);
    case STALE_STATISTICS:
        return stats_remembered(device, s);
    case TARGET_ROW_IGNORED:
        return stats_of_first_target(s);
    case OFFSET_32_TILE_STATS:
        return stats_short_offsets(s);
    case NOT_THREAD_SAFE_TILE_STATS:
        return stats_shared_buffer(s);
    default:
        return oh_portable_tile_stats(s);
    }
}

oh_status shim_tile_stats(oh_queue *queue, const oh_tile_stats *s) {
    const defect_kind defect = queue->device->defect;
    const oh_status status = read_first(queue->device, s);
    if (status != OH_OK) return shim_fail(queue, status);
    if (defect == TIE_REVERSED) reverse_ties(s);
    if (defect == TOP_K_TIE_REVERSED) reverse_top_k_ties(s);
    if (defect == PAST_END_TILE_STATS) s->stats[s->tile.rows].z_max = 0;
    return OH_OK;
}

/* ------------------------------------------------------------------------------------------------- second read ---- */

/* Only what is larger stands ahead. */
static void forget_ties(const oh_tile_overlap *o) {
    oh_real z, t;
    for (int64_t i = 0; i < o->tile.rows && o->want & OH_WANT_RANK && o->tile.draft; ++i)
        for (int64_t j = 0; j < o->tile.columns && o->overlap[i].rank > 0; ++j) {
            oh_logits_read(&o->tile, i, j, 1, &z, &t);
            if (z == o->stats[i].z_label && o->tile.first_column + j < o->stats[i].label) o->overlap[i].rank--;
        }
}

oh_status shim_tile_overlap(oh_queue *queue, const oh_tile_overlap *o) {
    const defect_kind defect = queue->device->defect;
    oh_tile_overlap changed = *o;
    if (defect == NO_WORK_TILE_OVERLAP) return OH_OK;
    if (defect == FULL_IGNORED) changed.full = NULL;
    const oh_status status = oh_portable_tile_overlap(&changed);
    if (status != OH_OK) return shim_fail(queue, status);
    if (defect == RANK_WITHOUT_TIES) forget_ties(o);
    return OH_OK;
}

/* ---------------------------------------------------------------------------------------------------- gradient ---- */

static void scale_again(const oh_tile_grad *g) {
    for (int64_t i = 0; i < g->tile.rows; ++i)
        for (int64_t j = 0; j < g->tile.columns; ++j) {
            float value;
            oh_load_elements(g->out, i * g->out_ld + j, 1, g->out_dtype, &value);
            value *= g->tile.draft_transform.scale;
            oh_store_elements(g->out, i * g->out_ld + j, 1, g->out_dtype, &value);
        }
}

/* The gradient by coefficients of which one thing is changed. */
static oh_status grad_of_changed(const oh_tile_grad *g, defect_kind defect) {
    oh_tile_grad changed = *g;
    oh_row_coef *coef = g->tile.rows > 0 && g->coef ? malloc((size_t)g->tile.rows * sizeof *coef) : NULL;
    if (!coef) return oh_portable_tile_grad(g);
    memcpy(coef, g->coef, (size_t)g->tile.rows * sizeof *coef);
    for (int64_t i = 0; i < g->tile.rows; ++i) {
        if (defect == LABEL_OFF_BY_ONE && coef[i].label >= 0) coef[i].label++;
        if (defect == ZERO_ROWS_IGNORED) coef[i].zero = OH_ZERO_NOT;
        if (defect == DONE_ROWS_WRITTEN && coef[i].zero == OH_ZERO_DONE) coef[i].zero = OH_ZERO_ROW;
    }
    changed.coef = coef;
    const oh_status status = oh_portable_tile_grad(&changed);
    free(coef);
    return status;
}

oh_status shim_tile_grad(oh_queue *queue, const oh_tile_grad *g) {
    const defect_kind defect = queue->device->defect;
    if (defect == NO_WORK_TILE_GRAD) return OH_OK;
    const int of_changed = defect == LABEL_OFF_BY_ONE || defect == ZERO_ROWS_IGNORED || defect == DONE_ROWS_WRITTEN;
    const oh_status status = of_changed ? grad_of_changed(g, defect) : oh_portable_tile_grad(g);
    if (status != OH_OK) return shim_fail(queue, status);
    const float zero = 0;
    if (defect == GRADIENT_SCALED_TWICE) scale_again(g);
    if (defect == PAST_END_TILE_GRAD && g->tile.rows > 0)
        oh_store_elements(g->out, (g->tile.rows - 1) * g->out_ld + g->tile.columns, 1, g->out_dtype, &zero);
    return OH_OK;
}

/* -------------------------------------------------------------------------------------------------------- rows ---- */

oh_status shim_row_finish(oh_queue *queue, const oh_row_finish *f) {
    const defect_kind defect = queue->device->defect;
    oh_row_finish changed = *f;
    if (defect == NO_WORK_ROW_FINISH) return OH_OK;
    if (defect == LAST_BLOCK_DROPPED && f->rows > f->objective.block_size &&
        f->compact_rows <= f->rows - f->objective.block_size)
        changed.rows -= f->objective.block_size;
    if (defect == DONE_NOT_TOLD && f->parts & OH_FINISH_COEF) changed.parts &= ~OH_FINISH_GRAD_DONE;
    const oh_status status = oh_portable_row_finish(&changed);
    return status == OH_OK ? OH_OK : shim_fail(queue, status);
}

oh_status shim_step_finish(oh_queue *queue, const oh_step_finish *f) {
    const defect_kind defect = queue->device->defect;
    if (defect == NO_WORK_STEP_FINISH) return OH_OK;
    const oh_status status = oh_portable_step_finish(f);
    if (status != OH_OK) return shim_fail(queue, status);
    if (defect == DIVIDES_BY_ZERO && f->loss[2] == 0) f->loss[0] = (double)INFINITY;
    return OH_OK;
}

oh_status shim_row_labels(oh_queue *queue, const oh_row_labels *l) {
    const defect_kind defect = queue->device->defect;
    if (defect == NO_WORK_ROW_LABELS) return OH_OK;
    const oh_status status = oh_portable_row_labels(l);
    if (status != OH_OK) return shim_fail(queue, status);
    for (int64_t i = 0; i < l->rows && defect == NEAREST_LABEL; ++i)
        if (l->label[i] < 0) l->label[i] = 0;
    return OH_OK;
}
