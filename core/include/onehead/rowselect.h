/* rowselect.h - which rows of a step are supervised, and what their labels are, where only the device knows. Inline
 * functions that compile as C and as CUDA device code; rowmath.h has what becomes of the rows. */
#ifndef ONEHEAD_ROWSELECT_H
#define ONEHEAD_ROWSELECT_H

#include "objective.h"

#ifdef __cplusplus
extern "C" {
#endif

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

/* Whether an oh_row_labels can be done. */
OH_ROW int oh_labels_valid(const oh_row_labels *l) {
    if (l->rows < 0 || l->id_count < 0) return 0;
    return l->rows == 0 || (l->full && l->label && (l->id_count == 0 || l->ids));
}

/* One row of an oh_row_labels. */
OH_ROW void oh_label_row(const oh_row_labels *l, int64_t i) {
    l->label[i] = oh_position_of(l->ids, l->id_count, l->full[l->target_row ? l->target_row[i] : i].t_argmax);
}

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

#ifdef __cplusplus
}
#endif
#endif
