/* select_rows.c - row selection by the device, from masks, labels and target rows that only it has. */
#include "request.h"
#include "traced.h"

static double *extra_sums(const oh_step *step) {
    double *sums = oh_step_buffer(step, OH_BUFFER_SUMS);
    return sums + oh_sum_count(&step->plan->request.objective);
}

/* The caller's array where it is the device's, else what the host put into the selection's block. */
static const void *array_or_upload(const oh_step *step, uint32_t bit, const void *given, oh_selection_array uploaded,
                                   int32_t dtype, int32_t uploaded_dtype, int32_t *is) {
    const int on_device = (step->plan->request.device_inputs & bit) != 0;
    *is = on_device ? dtype : uploaded_dtype;
    if (!given || on_device) return given;
    return oh_step_selection(step, uploaded, 0);
}

oh_status oh_step_select_rows(oh_step *step) {
    const oh_plan *plan = step->plan;
    const oh_request *r = &plan->request;
    const oh_inputs *in = step->in;
    const int shared = plan->selection.shares_targets, given = r->objective.labels == OH_LABELS_GIVEN;
    double *extra = extra_sums(step);
    oh_row_select select = {.objective = r->objective,
                            .rows = in->rows,
                            .chunk = plan->layout.choice.chunk,
                            .places = plan->layout.tile_rows,
                            .target_rows = r->target_rows > 0 ? in->target_rows : 0,
                            .label_end = r->target_vocab ? r->target_vocab : r->vocab,
                            .id_count = r->target_vocab ? r->vocab : 0,
                            .ids = r->target_vocab ? oh_step_buffer(step, OH_BUFFER_SUBSET) : NULL,
                            .target_tile = shared ? oh_step_selection(step, OH_SELECT_TARGET_TILE, 0) : NULL,
                            .outside = r->target_vocab ? r->outside : OH_OUTSIDE_NEVER,
                            .mask_out = oh_step_selection(step, OH_SELECT_MASK, 0),
                            .compact = oh_step_selection(step, OH_SELECT_COMPACT, 0),
                            .draft_row = oh_step_selection(step, OH_SELECT_DRAFT_ROW, 0),
                            .label_out = oh_step_selection(step, OH_SELECT_LABEL, 0),
                            .target_index = oh_step_selection(step, OH_SELECT_TARGET_INDEX, 0),
                            .target_source = oh_step_selection(step, OH_SELECT_TARGET_SOURCE, 0),
                            .target_row_out = oh_step_selection(step, OH_SELECT_TARGET_ROW, 0),
                            .sums = extra + OH_SUMS_SELECTED,
                            .factor = (float *)(extra + OH_SUMS_SELECTED_FACTOR)};
    select.mask =
        array_or_upload(step, OH_DEVICE_MASK, in->mask, OH_SELECT_MASK, in->mask_dtype, OH_F32, &select.mask_dtype);
    if (given)
        select.label = array_or_upload(step, OH_DEVICE_LABEL, in->label, OH_SELECT_COMPACT, in->label_dtype, OH_I32,
                                       &select.label_dtype);
    if (r->target_rows > 0)
        select.target_row = array_or_upload(step, OH_DEVICE_TARGET_ROW, in->target_row, OH_SELECT_TARGET_ROW,
                                            in->target_row_dtype, OH_I32, &select.target_row_dtype);
    return oh_traced_row_select(step, &select);
}

oh_status oh_step_clear_places(oh_step *step, const oh_chunk *chunk) {
    if (!step->plan->request.device_inputs) return OH_OK;
    /* Every byte 1: oh_row_coef.zero is not 0, and no coefficient is large. */
    const oh_status status = oh_traced_fill(step, oh_step_buffer(step, OH_BUFFER_COEF), 1,
                                            (uint64_t)chunk->compact_rows * sizeof(oh_row_coef));
    if (status != OH_OK) return status;
    return oh_traced_fill(step, oh_step_buffer(step, OH_BUFFER_ROW_SCALE), 0,
                          (uint64_t)chunk->compact_rows * sizeof(float));
}

oh_status oh_step_divide_places(oh_step *step, const oh_chunk *chunk) {
    if (!oh_norm_is_selected(&step->plan->request)) return OH_OK;
    void *scale = oh_step_buffer(step, OH_BUFFER_ROW_SCALE);
    const oh_copy_rows copy = {.rows = 1,
                               .columns = chunk->compact_rows,
                               .src = scale,
                               .src_ld = chunk->compact_rows,
                               .src_dtype = OH_F32,
                               .factor = (const float *)(extra_sums(step) + OH_SUMS_SELECTED_FACTOR),
                               .dst = scale,
                               .dst_ld = chunk->compact_rows,
                               .dst_dtype = OH_F32};
    return oh_traced_copy_rows(step, OH_SPAN_DIVIDE, &copy);
}
