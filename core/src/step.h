/* step.h - one run of a plan while it is being enqueued. */
#ifndef ONEHEAD_CORE_STEP_H
#define ONEHEAD_CORE_STEP_H

#include "plan.h"

typedef struct oh_step {
    oh_plan *plan;
    const oh_inputs *in;
    const oh_outputs *out;
    oh_queue *queue;
    oh_error *error;
    char *workspace;
    double scale;             /* of row_scale: upstream / N, or upstream where N is late */
    int late;                 /* gradients lack 1 / N until the closing pass */
    int64_t chunks_with_rows; /* finished so far: whether dW is written or added to */
    /* Which rows of which weight OH_BUFFER_WEIGHT_PANEL holds; count 0: none. */
    int32_t panel_kind; /* oh_weight_kind */
    int64_t panel_first, panel_count;
    int products_only;
    /* What is being enqueued, for spans; -1 outside of any chunk or stage. */
    int64_t chunk_index, target_tile_rows;
    int32_t stage_index;
} oh_step;

/* Rows [first, first + count) of a weight in the operand dtype, on the device. */
typedef struct oh_weight_rows {
    const void *rows;
    int64_t ld;
} oh_weight_rows;

void *oh_step_buffer(const oh_step *step, oh_buffer buffer);
/* Device address of a selection array's element. */
void *oh_step_selection(const oh_step *step, oh_selection_array array, int64_t index);

/* select_rows.c: row selection where only the device knows it. */
oh_status oh_step_select_rows(oh_step *step);
/* Before a chunk's row_finish, and after it: places that no row took have gradient 0, and the others the factor 1 / N. */
oh_status oh_step_clear_places(oh_step *step, const oh_chunk *chunk);
oh_status oh_step_divide_places(oh_step *step, const oh_chunk *chunk);

/* project.c: products with the vocabulary. Converts what plan keeps converted, once. */
oh_status oh_step_convert_weights(oh_step *step);
/* Gathers a chunk's rows of D and G into operand dtypes. */
oh_status oh_step_gather(oh_step *step, const oh_chunk *chunk);
/* Columns [first, first + count) of the chunk's tiles. */
oh_status oh_step_project(oh_step *step, const oh_chunk *chunk, const oh_stage *stage, int64_t first, int64_t count);
/* Finds what an f16 tile could not hold of them, after their first read. */
oh_status oh_step_find_overflow(oh_step *step, const oh_chunk *chunk, const oh_tile_view *view);
/* Columns of the target's tile over its whole vocabulary. */
oh_status oh_step_project_full(oh_step *step, const oh_chunk *chunk, int64_t first, int64_t count);
/* Finds what these could not hold, after their read: by target rows, as if they were rows of a draft. */
oh_status oh_step_find_full_overflow(oh_step *step, const oh_chunk *chunk, const oh_tile_stats *read);
/* dD of the chunk's compact rows += dz W and dW += dz^T D over columns [first, first + count); the first panel writes. */
oh_status oh_step_grad_products(oh_step *step, const oh_chunk *chunk, const oh_stage *stage, int64_t first,
                                int64_t count);
/* Writes zeros to rows of dW that no product wrote. */
oh_status oh_step_clear_head_grad(oh_step *step);

/* Row weights as the operand of the bias' gradient. */
oh_status oh_step_scale_bias(oh_step *step, const oh_chunk *chunk);
/* D of the chunk's compact rows times row_scale, for dW. */
oh_status oh_step_scale_rows(oh_step *step, const oh_chunk *chunk);

#endif
