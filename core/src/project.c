/* project.c - products with the vocabulary: W in the dtype that the backend multiplies, panel by panel. */
#include "ops.h"
#include "traced.h"

void *oh_step_buffer(const oh_step *step, oh_buffer buffer) {
    return step->plan->layout.bytes[buffer] ? step->workspace + step->plan->layout.offset[buffer] : NULL;
}

void *oh_step_selection(const oh_step *step, oh_selection_array array, int64_t index) {
    return step->workspace + step->plan->layout.offset[OH_BUFFER_SELECTION] +
           oh_selection_offset(&step->plan->selection, array, index);
}

/* ----------------------------------------------------------------------------------------------------- weights ---- */

/* A weight: the caller's tensor and what becomes of it. */
typedef struct oh_weight {
    const void *data;
    const int32_t *map; /* device: the tensor's rows that it consists of, or NULL: all */
    int64_t ld, columns, rows;
    int32_t kind, dtype, operand, copied; /* copied: converted or gathered before it is multiplied */
} oh_weight;

static oh_weight weight_of(const oh_step *step, oh_weight_kind kind) {
    const oh_request *r = &step->plan->request;
    const oh_formats *f = &step->plan->formats;
    if (kind == OH_WEIGHT_DRAFT || !r->target_hidden)
        return (oh_weight){.data = step->in->lm_head,
                           .ld = step->in->lm_head_ld ? step->in->lm_head_ld : r->hidden,
                           .columns = r->hidden,
                           .rows = r->vocab_valid,
                           .kind = OH_WEIGHT_DRAFT,
                           .dtype = r->weight_dtype,
                           .operand = f->draft_operand,
                           .copied = f->convert_weight};
    const int gathered = kind == OH_WEIGHT_TARGET && f->gather_target_weight;
    return (oh_weight){.data = step->in->target_lm_head,
                       .map = gathered ? oh_step_buffer(step, OH_BUFFER_SUBSET) : NULL,
                       .ld = step->in->target_lm_head_ld ? step->in->target_lm_head_ld : r->target_hidden,
                       .columns = r->target_hidden,
                       .rows = kind == OH_WEIGHT_FULL ? r->target_vocab : r->vocab_valid,
                       .kind = (int32_t)kind,
                       .dtype = r->target_weight_dtype,
                       .operand = f->target_operand,
                       .copied = gathered || f->convert_target_weight};
}

static oh_status copy_weight(oh_step *step, const oh_weight *w, int64_t first, int64_t count, void *to) {
    const int64_t skipped = w->map ? 0 : first * w->ld * oh_dtype_size(w->dtype);
    const oh_copy_rows copy = {.rows = count,
                               .columns = w->columns,
                               .src = (const char *)w->data + skipped,
                               .src_ld = w->ld,
                               .src_dtype = w->dtype,
                               .map = w->map ? w->map + first : NULL,
                               .dst = to,
                               .dst_ld = w->columns,
                               .dst_dtype = w->operand};
    return oh_traced_copy_rows(step, OH_SPAN_CONVERT_WEIGHT, &copy);
}

oh_status oh_step_convert_weights(oh_step *step) {
    for (int kind = 0; kind < OH_WEIGHT_COUNT; ++kind) {
        oh_resident *resident = &step->plan->resident[kind];
        if (!resident->rows) continue;
        const oh_weight w = weight_of(step, (oh_weight_kind)kind);
        if (resident->from == w.data && resident->from_ld == w.ld) continue;
        resident->from = NULL;
        const oh_status status = copy_weight(step, &w, 0, w.rows, resident->rows);
        if (status != OH_OK) return status;
        if (oh_op_is_capturing(step->plan->context, step->queue)) continue;
        resident->from = w.data;
        resident->from_ld = w.ld;
    }
    return OH_OK;
}

static oh_status weight_rows(oh_step *step, oh_weight_kind kind, int64_t first, int64_t count, oh_weight_rows *rows) {
    const oh_weight w = weight_of(step, kind);
    if (!w.copied) {
        *rows = (oh_weight_rows){(const char *)w.data + first * w.ld * oh_dtype_size(w.dtype), w.ld};
        return OH_OK;
    }
    const oh_resident *resident = &step->plan->resident[w.kind];
    if (resident->rows) {
        const int64_t at = first * w.columns * oh_dtype_size(w.operand);
        *rows = (oh_weight_rows){(const char *)resident->rows + at, w.columns};
        return OH_OK;
    }
    void *panel = oh_step_buffer(step, OH_BUFFER_WEIGHT_PANEL);
    *rows = (oh_weight_rows){panel, w.columns};
    if (step->panel_kind == w.kind && step->panel_first == first && step->panel_count == count) return OH_OK;
    step->panel_count = 0;
    const oh_status status = copy_weight(step, &w, first, count, panel);
    if (status != OH_OK) return status;
    step->panel_kind = w.kind;
    step->panel_first = first;
    step->panel_count = count;
    return OH_OK;
}

/* ------------------------------------------------------------------------------------------------------ gather ---- */

/* Consecutive rows are multiplied where they lie, if they need no converting and lie as gathered ones would: side by side,
 * at an address as round, so that products choose the same algorithm and give the same bits. */
static const void *rows_in_place(const void *rows, int64_t first, int64_t columns, int64_t ld, int32_t dtype,
                                 int32_t operand) {
    const char *at = (const char *)rows + first * columns * oh_dtype_size(dtype);
    return dtype == operand && (ld == 0 || ld == columns) && (uintptr_t)at % OH_ALIGNMENT == 0 ? at : NULL;
}

static const void *draft_in_place(const oh_step *step, const oh_chunk *chunk) {
    const oh_plan *plan = step->plan;
    if (!chunk->draft_in_place || plan->formats.tile == OH_TILE_DIFF) return NULL;
    return rows_in_place(step->in->draft_hidden, chunk->first_row, plan->request.hidden, step->in->draft_ld,
                         plan->request.hidden_dtype, plan->formats.draft_operand);
}

static const void *target_in_place(const oh_step *step, const oh_chunk *chunk) {
    const oh_request *r = &step->plan->request;
    if (!chunk->target_in_place) return NULL;
    return rows_in_place(step->in->target_hidden, chunk->first_source, r->target_hidden ? r->target_hidden : r->hidden,
                         step->in->target_ld, r->hidden_dtype, step->plan->formats.target_operand);
}

static const void *draft_rows(const oh_step *step, const oh_chunk *chunk) {
    const void *rows = draft_in_place(step, chunk);
    return rows ? rows : oh_step_buffer(step, OH_BUFFER_DRAFT_ROWS);
}

static const void *target_rows(const oh_step *step, const oh_chunk *chunk) {
    const void *rows = target_in_place(step, chunk);
    return rows ? rows : oh_step_buffer(step, OH_BUFFER_TARGET_ROWS);
}

oh_status oh_step_gather(oh_step *step, const oh_chunk *chunk) {
    const oh_plan *plan = step->plan;
    const oh_request *r = &plan->request;
    const oh_inputs *in = step->in;
    const int diff = plan->formats.tile == OH_TILE_DIFF;
    const int64_t target_hidden = r->target_hidden ? r->target_hidden : r->hidden;
    const int64_t target_ld = in->target_ld ? in->target_ld : target_hidden;
    oh_copy_rows draft = {.rows = chunk->compact_rows,
                          .columns = r->hidden,
                          .src = in->draft_hidden,
                          .src_ld = in->draft_ld ? in->draft_ld : r->hidden,
                          .src_dtype = r->hidden_dtype,
                          .map = oh_step_selection(step, OH_SELECT_DRAFT_ROW, chunk->first_compact),
                          .dst = oh_step_buffer(step, OH_BUFFER_DRAFT_ROWS),
                          .dst_ld = r->hidden,
                          .dst_dtype = plan->formats.draft_operand};
    if (diff) {
        draft.subtract = in->target_hidden;
        draft.subtract_ld = target_ld;
        draft.subtract_dtype = r->hidden_dtype;
        draft.subtract_map = oh_step_selection(step, OH_SELECT_TARGET_ROW, 0);
    }
    oh_status status = OH_OK;
    if (!draft_in_place(step, chunk)) status = oh_traced_copy_rows(step, OH_SPAN_GATHER_DRAFT, &draft);
    if (status != OH_OK || chunk->target_rows == 0 || target_in_place(step, chunk)) return status;
    const oh_copy_rows target = {.rows = chunk->target_rows,
                                 .columns = target_hidden,
                                 .src = in->target_hidden,
                                 .src_ld = target_ld,
                                 .src_dtype = r->hidden_dtype,
                                 .map = oh_step_selection(step, OH_SELECT_TARGET_SOURCE, chunk->first_target),
                                 .dst = oh_step_buffer(step, OH_BUFFER_TARGET_ROWS),
                                 .dst_ld = target_hidden,
                                 .dst_dtype = plan->formats.target_operand};
    return oh_traced_copy_rows(step, OH_SPAN_GATHER_TARGET, &target);
}

oh_status oh_step_scale_rows(oh_step *step, const oh_chunk *chunk) {
    const oh_plan *plan = step->plan;
    const oh_request *r = &plan->request;
    oh_copy_rows copy = {.rows = chunk->compact_rows,
                         .columns = r->hidden,
                         .src = draft_rows(step, chunk),
                         .src_ld = r->hidden,
                         .src_dtype = plan->formats.draft_operand,
                         .row_scale = oh_step_buffer(step, OH_BUFFER_ROW_SCALE),
                         .dst = oh_step_buffer(step, OH_BUFFER_SCALED_ROWS),
                         .dst_ld = r->hidden,
                         .dst_dtype = plan->formats.grad_operand};
    if (plan->formats.tile == OH_TILE_DIFF) { /* the gathered rows are D - G there: gather D itself, then scale */
        const oh_copy_rows gather = {.rows = chunk->compact_rows,
                                     .columns = r->hidden,
                                     .src = step->in->draft_hidden,
                                     .src_ld = step->in->draft_ld ? step->in->draft_ld : r->hidden,
                                     .src_dtype = r->hidden_dtype,
                                     .map = oh_step_selection(step, OH_SELECT_DRAFT_ROW, chunk->first_compact),
                                     .dst = copy.dst,
                                     .dst_ld = r->hidden,
                                     .dst_dtype = copy.dst_dtype};
        const oh_status status = oh_traced_copy_rows(step, OH_SPAN_GATHER_DRAFT, &gather);
        if (status != OH_OK) return status;
        copy.src = copy.dst;
        copy.src_dtype = copy.dst_dtype;
    }
    return oh_traced_copy_rows(step, OH_SPAN_SCALE_ROWS, &copy);
}

/* ---------------------------------------------------------------------------------------------------- products ---- */

static oh_status multiply(oh_step *step, int32_t kind, oh_gemm product) {
    product.scratch = oh_step_buffer(step, OH_BUFFER_GEMM_SCRATCH);
    product.scratch_bytes = step->plan->layout.bytes[OH_BUFFER_GEMM_SCRATCH];
    return oh_traced_gemm(step, kind, &product);
}

/* Columns [first, first + count) of one tile, by way of f32 columns where products don't come out in its dtype. */
static oh_status project_columns(oh_step *step, const oh_chunk *chunk, oh_weight_kind kind, int64_t first,
                                 int64_t count, void *tile) {
    const oh_plan *plan = step->plan;
    const oh_formats *f = &plan->formats;
    const int target = kind != OH_WEIGHT_DRAFT;
    const int64_t rows = target ? chunk->target_rows : chunk->compact_rows;
    const int64_t hidden = target && plan->request.target_hidden ? plan->request.target_hidden : plan->request.hidden;
    const int32_t operand = target ? f->target_operand : f->draft_operand;
    const int cast = target ? f->cast_target_tile : f->cast_tile;
    oh_weight_rows w;
    oh_status status = weight_rows(step, kind, first, count, &w);
    if (status != OH_OK) return status;
    const oh_gemm product = {.op = OH_GEMM_NT,
                             .m = rows,
                             .n = count,
                             .k = hidden,
                             .a = target ? target_rows(step, chunk) : draft_rows(step, chunk),
                             .lda = hidden,
                             .a_dtype = operand,
                             .b = w.rows,
                             .ldb = w.ld,
                             .b_dtype = operand,
                             .c = cast ? oh_step_buffer(step, OH_BUFFER_CAST) : tile,
                             .ldc = cast ? count : plan->layout.tile_ld,
                             .c_dtype = cast ? OH_F32 : f->tile_dtype};
    status = multiply(step, target ? OH_SPAN_PROJECT_TARGET : OH_SPAN_PROJECT_DRAFT, product);
    if (status != OH_OK || !cast) return status;
    const oh_copy_rows copy = {.rows = rows,
                               .columns = count,
                               .src = product.c,
                               .src_ld = count,
                               .src_dtype = OH_F32,
                               .dst = tile,
                               .dst_ld = plan->layout.tile_ld,
                               .dst_dtype = f->tile_dtype};
    return oh_traced_copy_rows(step, OH_SPAN_ROUND_TILE, &copy);
}

oh_status oh_step_project(oh_step *step, const oh_chunk *chunk, const oh_stage *stage, int64_t first, int64_t count) {
    const int64_t panel = step->plan->layout.choice.weight_panel;
    const int64_t element = oh_dtype_size(step->plan->formats.tile_dtype);
    char *draft = oh_step_buffer(step, OH_BUFFER_DRAFT_TILE), *target = oh_step_buffer(step, OH_BUFFER_TARGET_TILE);
    /* Both tiles a panel of W at a time, so that a panel converted for one serves the other. */
    for (int64_t done = 0; done < count; done += panel) {
        const int64_t columns = count - done < panel ? count - done : panel;
        oh_status status = OH_OK;
        if (stage->project_draft)
            status = project_columns(step, chunk, OH_WEIGHT_DRAFT, first + done, columns, draft + done * element);
        if (status == OH_OK && stage->project_target)
            status = project_columns(step, chunk, OH_WEIGHT_TARGET, first + done, columns, target + done * element);
        if (status != OH_OK) return status;
    }
    return OH_OK;
}

oh_status oh_step_project_full(oh_step *step, const oh_chunk *chunk, int64_t first, int64_t count) {
    const int64_t panel = step->plan->layout.choice.weight_panel;
    const int64_t element = oh_dtype_size(step->plan->formats.tile_dtype);
    char *tile = oh_step_buffer(step, OH_BUFFER_TARGET_TILE);
    for (int64_t done = 0; done < count; done += panel) {
        const int64_t columns = count - done < panel ? count - done : panel;
        const oh_status status =
            project_columns(step, chunk, OH_WEIGHT_FULL, first + done, columns, tile + done * element);
        if (status != OH_OK) return status;
    }
    return OH_OK;
}

static oh_tile_source source_of(const oh_step *step, const oh_weight *w, const void *rows, int64_t ld,
                                const int32_t *map) {
    return (oh_tile_source){.rows = rows,
                            .map = map,
                            .weight = w->data,
                            .weight_map = w->map,
                            .ld = ld ? ld : w->columns,
                            .weight_ld = w->ld,
                            .hidden = w->columns,
                            .rows_dtype = step->plan->request.hidden_dtype,
                            .weight_dtype = w->dtype};
}

static int looks_for_overflow(const oh_plan *plan) {
    return plan->formats.tile_dtype == OH_F16 && plan->machine.finds_overflow;
}

static double *overflow_found(const oh_step *step) {
    double *sums = oh_step_buffer(step, OH_BUFFER_SUMS);
    return sums + oh_sum_count(&step->plan->request.objective) + OH_SUMS_OVERFLOW;
}

oh_status oh_step_find_overflow(oh_step *step, const oh_chunk *chunk, const oh_tile_view *view) {
    const oh_plan *plan = step->plan;
    const oh_inputs *in = step->in;
    if (!looks_for_overflow(plan) || !view->draft) return OH_OK;
    const oh_weight draft = weight_of(step, OH_WEIGHT_DRAFT), target = weight_of(step, OH_WEIGHT_TARGET);
    oh_tile_overflow overflow = {.tile = *view,
                                 .stats = oh_step_buffer(step, OH_BUFFER_STATS),
                                 .draft = source_of(step, &draft, in->draft_hidden, in->draft_ld,
                                                    oh_step_selection(step, OH_SELECT_DRAFT_ROW, chunk->first_compact)),
                                 .found = overflow_found(step)};
    if (view->target)
        overflow.target = source_of(step, &target, in->target_hidden, in->target_ld,
                                    oh_step_selection(step, OH_SELECT_TARGET_SOURCE, chunk->first_target));
    if (plan->formats.tile == OH_TILE_DIFF) {
        overflow.draft.subtract = in->target_hidden;
        overflow.draft.subtract_ld = in->target_ld ? in->target_ld : draft.columns;
        overflow.draft.subtract_map = oh_step_selection(step, OH_SELECT_TARGET_ROW, 0);
    }
    return oh_traced_tile_overflow(step, &overflow);
}

oh_status oh_step_find_full_overflow(oh_step *step, const oh_chunk *chunk, const oh_tile_stats *read) {
    const oh_inputs *in = step->in;
    if (!looks_for_overflow(step->plan)) return OH_OK;
    const oh_weight full = weight_of(step, OH_WEIGHT_FULL);
    oh_tile_overflow overflow = {.tile = read->tile,
                                 .stats = read->stats,
                                 .draft =
                                     source_of(step, &full, in->target_hidden, in->target_ld,
                                               oh_step_selection(step, OH_SELECT_TARGET_SOURCE, chunk->first_target)),
                                 .found = overflow_found(step)};
    overflow.tile.draft = oh_step_buffer(step, OH_BUFFER_TARGET_TILE);
    overflow.tile.draft_ld = read->tile.target_ld;
    overflow.tile.target = NULL;
    return oh_traced_tile_overflow(step, &overflow);
}

/* The gradient tile's columns as an operand: itself, or widened to f32. */
static oh_status grad_operand(oh_step *step, int64_t rows, int64_t at, int64_t columns, const void **operand,
                              int64_t *ld) {
    const oh_plan *plan = step->plan;
    const oh_formats *f = &plan->formats;
    const int64_t element = oh_dtype_size(f->grad_dtype);
    const char *tile = oh_step_buffer(step, OH_BUFFER_DRAFT_TILE);
    *operand = tile + at * element;
    *ld = plan->layout.tile_ld * oh_dtype_size(f->tile_dtype) / element;
    if (!f->cast_grad) return OH_OK;
    const oh_copy_rows copy = {.rows = rows,
                               .columns = columns,
                               .src = *operand,
                               .src_ld = *ld,
                               .src_dtype = f->grad_dtype,
                               .dst = oh_step_buffer(step, OH_BUFFER_CAST),
                               .dst_ld = columns,
                               .dst_dtype = f->grad_operand};
    *operand = copy.dst;
    *ld = columns;
    return oh_traced_copy_rows(step, OH_SPAN_WIDEN_GRAD, &copy);
}

/* db[first..] += dz^T s, s the rows' weights: as one column in f32, as two whose sum is closer in 16 bits. */
static oh_status bias_product(oh_step *step, const oh_chunk *chunk, const void *dz, int64_t ld, int64_t first,
                              int64_t columns) {
    const int32_t dtype = step->plan->formats.grad_operand;
    char *scale = oh_step_buffer(step, OH_BUFFER_BIAS_SCALE);
    for (int half = 0; half < (dtype == OH_F32 ? 1 : 2); ++half) {
        const oh_gemm product = {.op = OH_GEMM_TN,
                                 .accumulate = 1,
                                 .m = columns,
                                 .n = 1,
                                 .k = chunk->compact_rows,
                                 .a = dz,
                                 .lda = ld,
                                 .a_dtype = dtype,
                                 .b = scale + half * oh_dtype_size(dtype),
                                 .ldb = 2,
                                 .b_dtype = dtype,
                                 .c = step->out->bias_grad + first,
                                 .ldc = 1,
                                 .c_dtype = OH_F32};
        const oh_status status = multiply(step, OH_SPAN_HEAD_GRAD, product);
        if (status != OH_OK) return status;
    }
    return OH_OK;
}

oh_status oh_step_scale_bias(oh_step *step, const oh_chunk *chunk) {
    const int32_t dtype = step->plan->formats.grad_operand;
    char *scale = oh_step_buffer(step, OH_BUFFER_BIAS_SCALE);
    oh_copy_rows copy = {.rows = chunk->compact_rows,
                         .columns = 1,
                         .src = oh_step_buffer(step, OH_BUFFER_ROW_SCALE),
                         .src_ld = 1,
                         .src_dtype = OH_F32,
                         .dst = scale,
                         .dst_ld = 2,
                         .dst_dtype = dtype};
    const oh_status status = oh_traced_copy_rows(step, OH_SPAN_SCALE_ROWS, &copy);
    if (status != OH_OK || dtype == OH_F32) return status;
    copy.subtract = scale; /* the second column is what rounding left of the first */
    copy.subtract_ld = 2;
    copy.subtract_dtype = dtype;
    copy.dst = scale + oh_dtype_size(dtype);
    return oh_traced_copy_rows(step, OH_SPAN_SCALE_ROWS, &copy);
}

oh_status oh_step_grad_products(oh_step *step, const oh_chunk *chunk, const oh_stage *stage, int64_t first,
                                int64_t count) {
    const oh_plan *plan = step->plan;
    const oh_request *r = &plan->request;
    const int32_t dtype = plan->formats.grad_operand;
    const int64_t head_ld = step->out->lm_head_grad_ld ? step->out->lm_head_grad_ld : r->hidden;
    for (int64_t done = 0; done < count; done += plan->layout.choice.weight_panel) {
        const int64_t left = count - done;
        const int64_t columns = left < plan->layout.choice.weight_panel ? left : plan->layout.choice.weight_panel;
        const void *dz;
        int64_t ld;
        oh_status status = grad_operand(step, chunk->compact_rows, done, columns, &dz, &ld);
        if (status != OH_OK) return status;
        if (stage->grad) {
            oh_weight_rows w;
            status = weight_rows(step, OH_WEIGHT_DRAFT, first + done, columns, &w);
            if (status != OH_OK) return status;
            const oh_gemm product = {.op = OH_GEMM_NN,
                                     .accumulate = first + done > 0,
                                     .m = chunk->compact_rows,
                                     .n = r->hidden,
                                     .k = columns,
                                     .a = dz,
                                     .lda = ld,
                                     .a_dtype = dtype,
                                     .b = w.rows,
                                     .ldb = w.ld,
                                     .b_dtype = plan->formats.draft_operand,
                                     .c = oh_step_buffer(step, OH_BUFFER_GRAD_ROWS),
                                     .ldc = r->hidden,
                                     .c_dtype = OH_F32};
            status = multiply(step, OH_SPAN_GRAD, product);
            if (status != OH_OK) return status;
        }
        if (stage->bias_grad) {
            status = bias_product(step, chunk, dz, ld, first + done, columns);
            if (status != OH_OK) return status;
        }
        if (!stage->head_grad) continue;
        const oh_gemm product = {.op = OH_GEMM_TN,
                                 .accumulate = step->chunks_with_rows > 0,
                                 .m = columns,
                                 .n = r->hidden,
                                 .k = chunk->compact_rows,
                                 .a = dz,
                                 .lda = ld,
                                 .a_dtype = dtype,
                                 .b = oh_step_buffer(step, OH_BUFFER_SCALED_ROWS),
                                 .ldb = r->hidden,
                                 .b_dtype = dtype,
                                 .c = step->out->lm_head_grad + (first + done) * head_ld,
                                 .ldc = head_ld,
                                 .c_dtype = OH_F32};
        status = multiply(step, OH_SPAN_HEAD_GRAD, product);
        if (status != OH_OK) return status;
    }
    return OH_OK;
}

oh_status oh_step_clear_head_grad(oh_step *step) {
    const oh_request *r = &step->plan->request;
    const int64_t ld = step->out->lm_head_grad_ld ? step->out->lm_head_grad_ld : r->hidden;
    const int64_t first = step->chunks_with_rows > 0 ? r->vocab_valid : 0;
    if (first == r->vocab) return OH_OK;
    /* A product over nothing writes zeros, row by row at any stride. */
    const oh_gemm zeros = {.op = OH_GEMM_NN,
                           .m = r->vocab - first,
                           .n = r->hidden,
                           .a = step->out->lm_head_grad,
                           .lda = 1,
                           .b = step->out->lm_head_grad,
                           .ldb = r->hidden,
                           .c = step->out->lm_head_grad + first * ld,
                           .ldc = ld};
    return oh_traced_gemm(step, OH_SPAN_CLEAR, &zeros);
}
