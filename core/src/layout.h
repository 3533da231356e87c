/* layout.h - where everything of a plan lies in its workspace, and what chunk and panel a budget allows. */
#ifndef ONEHEAD_CORE_LAYOUT_H
#define ONEHEAD_CORE_LAYOUT_H

#include "formats.h"
#include "schedule.h"

/* Of every buffer, in bytes: any dtype, vector or bulk copy. */
#define OH_ALIGNMENT 256

/* Buffers of the workspace. `step` ones live for a step, the others for a chunk. */
typedef enum oh_buffer {
    OH_BUFFER_SELECTION, /* step: what select.h uploads */
    OH_BUFFER_SUMS,      /* step: f64 sums, loss, norms, factor */
    OH_BUFFER_GRAD_STEP, /* step: dD in f32 where N is late and the caller's gradient is not f32 */
    OH_BUFFER_STATS,
    OH_BUFFER_OVERLAP,
    OH_BUFFER_FULL_STATS, /* of the target over its whole vocabulary */
    OH_BUFFER_FULL_OVERLAP,
    OH_BUFFER_SUBSET, /* step: target ids of the draft's columns */
    OH_BUFFER_TOP_K_ID,
    OH_BUFFER_TOP_K_LOGIT,
    OH_BUFFER_RESULTS,
    OH_BUFFER_PARTIAL,
    OH_BUFFER_COEF,
    OH_BUFFER_ROW_SCALE,
    OH_BUFFER_ROW_LABEL,
    OH_BUFFER_DRAFT_ROWS,  /* gathered D, in the operand dtype */
    OH_BUFFER_TARGET_ROWS, /* gathered G */
    OH_BUFFER_BIAS_SCALE,  /* row weights as a column, for the bias' gradient */
    OH_BUFFER_SCALED_ROWS, /* D with row weights, for the head's gradient */
    OH_BUFFER_GRAD_ROWS,   /* dD of the chunk's supervised rows, f32 */
    OH_BUFFER_DRAFT_TILE,
    OH_BUFFER_TARGET_TILE,
    OH_BUFFER_WEIGHT_PANEL, /* rows of W converted to the operand dtype */
    OH_BUFFER_CAST,         /* f32 columns of a product or a gradient tile */
    OH_BUFFER_GEMM_SCRATCH,
    OH_BUFFER_COUNT
} oh_buffer;

/* The weights of a step. Where one head serves both, it is OH_WEIGHT_DRAFT. */
typedef enum oh_weight_kind {
    OH_WEIGHT_DRAFT,
    OH_WEIGHT_TARGET, /* the target's own head, or of it the rows of the draft's vocabulary */
    OH_WEIGHT_FULL,   /* all of the target's head, where the draft's vocabulary is a part of it */
    OH_WEIGHT_COUNT
} oh_weight_kind;

/* What decides a layout's sizes. */
typedef struct oh_layout_choice {
    int32_t policy;
    int64_t chunk;        /* rows */
    int64_t panel;        /* columns a pass takes at once */
    int64_t weight_panel; /* rows of W a product takes at once */
    int32_t resident;     /* whole converted weights are kept */
} oh_layout_choice;

typedef struct oh_layout {
    oh_layout_choice choice;
    int64_t tile_rows;        /* most supervised rows of a chunk */
    int64_t target_tile_rows; /* most distinct target rows of a chunk */
    int64_t tile_ld;          /* elements */
    int64_t bytes[OH_BUFFER_COUNT], offset[OH_BUFFER_COUNT];
    int64_t resident[OH_WEIGHT_COUNT], resident_offset[OH_WEIGHT_COUNT]; /* bytes of converted weights, 0: not kept */
    int64_t workspace_bytes;                                             /* saturates at INT64_MAX */
    int64_t weight_bytes;
} oh_layout;

/* Device scratch that products need at most, asked of the backend by the plan: a function of the choice. */
typedef int64_t (*oh_scratch_query)(void *user, const oh_formats *formats, const oh_layout *layout);

typedef struct oh_layout_input {
    const oh_request *request; /* normalised */
    oh_formats formats;
    int32_t prefers_copies;   /* whole copies are kept at the price of smaller chunks, a trained weight's for a step */
    oh_scratch_query scratch; /* or NULL */
    void *scratch_user;
} oh_layout_input;

void oh_layout_compute(oh_layout *layout, const oh_layout_input *input, const oh_layout_choice *choice);

/* Bytes of whole copies of the weights that have to be converted or gathered. */
int64_t oh_layout_copies(const oh_request *request, const oh_formats *formats);

/* Largest useful chunk, panel and policy within request->memory, which is not 0. An explicit policy and chunk are kept. */
oh_status oh_layout_choose(oh_layout *layout, const oh_layout_input *input, oh_error *error);

const char *oh_buffer_name(int32_t buffer);

/* a * b and a + b for non-negative sizes, INT64_MAX where they don't fit. */
int64_t oh_size_mul(int64_t a, int64_t b);
int64_t oh_size_add(int64_t a, int64_t b);

#endif
