/* select.h - which rows of a step are computed: supervised rows numbered chunk by chunk, target rows without repeats. */
#ifndef ONEHEAD_CORE_SELECT_H
#define ONEHEAD_CORE_SELECT_H

#include <onehead/onehead.h>

/* One chunk's share of the step's arrays. */
typedef struct oh_chunk {
    int64_t first_row, rows;             /* of the step */
    int64_t first_compact, compact_rows; /* supervised rows, numbered over the step */
    int64_t first_target, target_rows;   /* distinct target rows */
    int32_t target_is_identity;          /* compact row i uses target tile row i */
    int32_t draft_in_place;              /* compact rows are consecutive rows of D */
    int32_t target_in_place;             /* target tile rows are consecutive rows of G */
    int32_t reserved;
    int64_t first_source; /* row of G of the first target tile row */
} oh_chunk;

/* Arrays of one step, in one block that is uploaded whole; the same offsets hold on the device. */
typedef enum oh_selection_array {
    OH_SELECT_MASK,          /* f32 [T] */
    OH_SELECT_COMPACT,       /* i32 [T] compact row within its chunk, -1: unsupervised */
    OH_SELECT_DRAFT_ROW,     /* i32 [supervised] row of D */
    OH_SELECT_TARGET_INDEX,  /* i32 [supervised] row of the chunk's target tile */
    OH_SELECT_TARGET_SOURCE, /* i32 [distinct] row of G */
    OH_SELECT_LABEL,         /* i32 [supervised] given label */
    OH_SELECT_TARGET_ROW,    /* i32 [T] row of G for each row of D, 0 where unsupervised */
    OH_SELECT_TARGET_TILE,   /* i32 [T] where the device selects: the row's row of its chunk's target tile */
    OH_SELECT_COUNT
} oh_selection_array;

typedef struct oh_selection {
    int64_t row_capacity, target_capacity, chunk_capacity;
    void *block; /* host, oh_selection_bytes(row_capacity); the plan owns it */
    oh_chunk *chunks;
    int64_t chunk_count;
    int64_t supervised;
    int32_t uploads;              /* the block holds something: not where the device has all of it */
    int32_t shares_targets;       /* where the device selects: the host has numbered target rows */
    double weight_sum, mask_sum;  /* over supervised rows; weight_sum without dpace's factors */
    int32_t *stamp, *stamp_index; /* [target_capacity] last chunk that used a target row, and its tile row there */
} oh_selection;

int64_t oh_selection_bytes(int64_t rows);
/* Offset in the block of `array`'s element `index`. */
int64_t oh_selection_offset(const oh_selection *selection, oh_selection_array array, int64_t index);

/* Fills the block from a step's host arrays. Where the device selects, every row that may be supervised has a place in
 * `chunks`, and the block has what the host knows: masks, labels (in OH_SELECT_COMPACT) and target rows; the device then
 * fills in the rest. Refuses a mask that is negative or not finite, and on supervised rows a
 * target_row outside [0, S). */
oh_status oh_selection_fill(oh_selection *selection, const oh_request *request, int64_t chunk, const oh_inputs *inputs,
                            oh_error *error);

#endif
