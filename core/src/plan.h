/* plan.h - a plan's insides: what plan.c lays out and run.c executes. */
#ifndef ONEHEAD_CORE_PLAN_H
#define ONEHEAD_CORE_PLAN_H

#include "context.h"
#include "layout.h"
#include "ring.h"
#include "schedule.h"
#include "select.h"

/* A converted copy of a weight, kept between runs; a trained weight's is made again by every run. */
typedef struct oh_resident {
    void *rows;       /* device [V_valid, H] in the operand dtype, or NULL: not kept */
    const void *from; /* the caller's tensor that it was converted from, or NULL: not yet */
    int64_t from_ld;
} oh_resident;

typedef struct oh_step_counts {
    int64_t projections_draft, projections_target, gemms, tile_reads;
} oh_step_counts;

struct oh_plan {
    oh_context *context; /* NULL: described only */
    oh_request request;  /* normalised; tile and memory are what was chosen */
    oh_machine machine;
    char tile_reason[OH_TILE_REASON_SIZE];
    oh_graph before, after;
    oh_schedule schedule;
    oh_formats formats;
    oh_layout layout;
    oh_plan_summary summary;
    oh_plan_buffer buffers[OH_BUFFER_COUNT + 1];
    int64_t buffer_count;

    oh_selection selection;
    oh_ring ring;    /* host memory of selection.block */
    void *workspace; /* the plan's own, NULL with external_workspace */
    void *weights;
    oh_resident resident[OH_WEIGHT_COUNT];
    float *bias_factor; /* uploaded: the gradient tile is by raw logits, 1 / scale makes it one by the bias; NULL: 1 */
    int32_t *subset;    /* host [V] request.draft_to_target */
    oh_queue *queue;
    void *queue_stream;
    oh_tile_observer observer;
    void *observer_user;
    oh_span_observer tracer;
    void *tracer_user;

    /* The last run. */
    int has_run;
    int is_warm; /* a whole step has run: every operand of its products is in place */
    int64_t rows;
    char *run_workspace;
    oh_step_counts counts;
    double *host_sums; /* [oh_sum_count + OH_SUMS_EXTRA] as OH_BUFFER_SUMS */
};

/* OH_BUFFER_SUMS, in f64 elements after the sums themselves. Where loss and overflow lie is public (oh_plan_device_sums). */
enum {
    OH_SUMS_LOSS = 0,
    OH_SUMS_OVERFLOW = 3, /* oh_tile_overflow.found */
    OH_SUMS_NORMS = 5,
    OH_SUMS_FACTOR = 7,
    OH_SUMS_BIAS_FACTOR = 8,
    OH_SUMS_SELECTED = 9, /* oh_row_select.sums */
    OH_SUMS_SELECTED_FACTOR = OH_SUMS_SELECTED + OH_SELECTED_COUNT,
    OH_SUMS_EXTRA = 16
};

#endif
