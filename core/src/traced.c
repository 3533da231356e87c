/* traced.c - a step's operations, shown to the plan's span observer around the call that enqueues them. Without one it
 * costs a pointer test each. In a step of products only everything else is left out here. */
#include "traced.h"

#include <stddef.h>

#include "ops.h"

const char *oh_span_name(int32_t kind) {
    static const char *const names[OH_SPAN_COUNT] = {
        "selection",      "convert_weight", "gather_draft", "gather_target", "project_draft", "round_tile",
        "project_target", "statistics",     "second_read",  "row_finish",    "tile_grad",     "widen_grad",
        "grad",           "scale_rows",     "head_grad",    "scatter",       "step_finish",   "divide",
        "norm",           "clear",          "stats_grad",
    };
    return kind >= 0 && kind < OH_SPAN_COUNT ? names[kind] : "unknown";
}

static void begin(const oh_step *step, oh_span *span) {
    span->queue = step->queue;
    span->chunk = step->chunk_index;
    span->stage = step->stage_index;
    step->plan->tracer(step->plan->tracer_user, span, 1);
}

static void end(const oh_step *step, const oh_span *span) {
    step->plan->tracer(step->plan->tracer_user, span, 0);
}

static double area(int64_t rows, int64_t columns, int64_t element) {
    return (double)rows * (double)columns * (double)element;
}

static oh_span gemm_span(int32_t kind, const oh_gemm *g) {
    const double m = (double)g->m, n = (double)g->n, k = (double)g->k;
    const double c = area(g->m, g->n, oh_dtype_size(g->c_dtype));
    return (oh_span){.kind = kind,
                     .rows = g->m,
                     .columns = g->n,
                     .depth = g->k,
                     .flops = 2 * m * n * k,
                     .bytes = area(g->m, g->k, oh_dtype_size(g->a_dtype)) +
                              area(g->k, g->n, oh_dtype_size(g->b_dtype)) + (g->accumulate ? 2 * c : c)};
}

static oh_span copy_span(int32_t kind, const oh_copy_rows *c) {
    const double subtracted = c->subtract ? area(c->rows, c->columns, oh_dtype_size(c->subtract_dtype)) : 0;
    return (oh_span){.kind = kind,
                     .rows = c->rows,
                     .columns = c->columns,
                     .bytes = area(c->rows, c->columns, oh_dtype_size(c->src_dtype) + oh_dtype_size(c->dst_dtype)) +
                              subtracted};
}

/* A pass over tiles: each element of the draft's and, where `target`, of the target's distinct rows once. */
static oh_span tile_span(const oh_step *step, int32_t kind, const oh_tile_view *tile, int target) {
    const int64_t element = oh_dtype_size(step->plan->formats.tile_dtype);
    const int64_t rows = (tile->draft ? tile->rows : 0) + (target && tile->target ? step->target_tile_rows : 0);
    return (oh_span){.kind = kind,
                     .rows = tile->rows,
                     .columns = tile->columns,
                     .first_column = tile->first_column,
                     .bytes = area(rows, tile->columns, element),
                     .tile_reads = 1};
}

/* The operation between the two calls of the observer. */
#define TRACED(step, make_span, operation)                                                                             \
    do {                                                                                                               \
        if (!(step)->plan->tracer) return operation;                                                                   \
        oh_span span = make_span;                                                                                      \
        begin(step, &span);                                                                                            \
        const oh_status status = operation;                                                                            \
        end(step, &span);                                                                                              \
        return status;                                                                                                 \
    } while (0)

oh_status oh_traced_gemm(oh_step *step, int32_t kind, const oh_gemm *product) {
    TRACED(step, gemm_span(kind, product), oh_op_gemm(step->plan->context, step->queue, product, step->error));
}

oh_status oh_traced_copy_rows(oh_step *step, int32_t kind, const oh_copy_rows *copy) {
    if (step->products_only) return OH_OK;
    TRACED(step, copy_span(kind, copy), oh_op_copy_rows(step->plan->context, step->queue, copy, step->error));
}

oh_status oh_traced_selection(oh_step *step, void *to) {
    if (step->products_only) return OH_OK;
    const double bytes = (double)step->plan->layout.bytes[OH_BUFFER_SELECTION];
    TRACED(step, ((oh_span){.kind = OH_SPAN_SELECTION, .rows = step->in->rows, .bytes = 2 * bytes}),
           oh_ring_upload(&step->plan->ring, step->queue, to, step->error));
}

oh_status oh_traced_upload(oh_step *step, void *to, const void *from, uint64_t bytes) {
    if (step->products_only) return OH_OK;
    TRACED(step, ((oh_span){.kind = OH_SPAN_SELECTION, .rows = step->in->rows, .bytes = 2 * (double)bytes}),
           oh_op_upload(step->plan->context, step->queue, to, from, bytes, step->error));
}

oh_status oh_traced_fill(oh_step *step, void *to, int32_t byte, uint64_t bytes) {
    if (step->products_only) return OH_OK;
    TRACED(step, ((oh_span){.kind = OH_SPAN_CLEAR, .bytes = (double)bytes}),
           oh_op_fill(step->plan->context, step->queue, to, byte, bytes, step->error));
}

oh_status oh_traced_tile_stats(oh_step *step, const oh_tile_stats *stats) {
    if (step->products_only) return OH_OK;
    TRACED(step, tile_span(step, OH_SPAN_STATISTICS, &stats->tile, 1),
           oh_op_tile_stats(step->plan->context, step->queue, stats, step->error));
}

/* Part of the first read: it looks at flags, and hardly ever at a tile. */
oh_status oh_traced_tile_overflow(oh_step *step, const oh_tile_overflow *overflow) {
    if (step->products_only) return OH_OK;
    TRACED(step, ((oh_span){.kind = OH_SPAN_ROW_FINISH, .rows = overflow->tile.rows}),
           oh_op_tile_overflow(step->plan->context, step->queue, overflow, step->error));
}

oh_status oh_traced_tile_overlap(oh_step *step, const oh_tile_overlap *overlap) {
    if (step->products_only) return OH_OK;
    TRACED(step, tile_span(step, OH_SPAN_SECOND_READ, &overlap->tile, 1),
           oh_op_tile_overlap(step->plan->context, step->queue, overlap, step->error));
}

static int reads_target(const oh_tile_grad *grad) {
    return (grad->form & (OH_FORM_Q | OH_FORM_LOG_Q | OH_FORM_LOG_M | OH_FORM_LE)) != 0;
}

static oh_span grad_span(const oh_step *step, int32_t kind, const oh_tile_grad *grad, int target) {
    oh_span span = tile_span(step, kind, &grad->tile, target);
    span.bytes += area(grad->tile.rows, grad->tile.columns, oh_dtype_size(grad->out_dtype));
    return span;
}

static oh_span rest_span(const oh_tile_grad *grad) {
    return (oh_span){.kind = OH_SPAN_TILE_GRAD, .rows = grad->tile.rows, .columns = grad->tile.columns};
}

oh_status oh_traced_tile_grad(oh_step *step, const oh_tile_grad *grad, int is_rest) {
    if (step->products_only) return OH_OK;
    TRACED(step, is_rest ? rest_span(grad) : grad_span(step, OH_SPAN_TILE_GRAD, grad, reads_target(grad)),
           oh_op_tile_grad(step->plan->context, step->queue, grad, step->error));
}

oh_status oh_traced_tile_grad_overlap(oh_step *step, const oh_tile_grad_overlap *both) {
    if (step->products_only) return OH_OK;
    TRACED(step, grad_span(step, OH_SPAN_TILE_GRAD, &both->grad, 1),
           oh_op_tile_grad_overlap(step->plan->context, step->queue, both, step->error));
}

oh_status oh_traced_tile_stats_grad(oh_step *step, const oh_tile_stats_grad *pass) {
    if (step->products_only) return OH_OK;
    TRACED(step, grad_span(step, OH_SPAN_STATS_GRAD, &pass->grad, 1),
           oh_op_tile_stats_grad(step->plan->context, step->queue, pass, step->error));
}

oh_status oh_traced_row_finish(oh_step *step, const oh_row_finish *finish) {
    if (step->products_only) return OH_OK;
    TRACED(step,
           ((oh_span){.kind = OH_SPAN_ROW_FINISH,
                      .rows = finish->compact_rows,
                      .bytes = (double)finish->compact_rows *
                               (double)(sizeof(oh_row_stats) + sizeof(oh_row_coef) + 2 * sizeof(oh_row_result))}),
           oh_op_row_finish(step->plan->context, step->queue, finish, step->error));
}

oh_status oh_traced_row_select(oh_step *step, const oh_row_select *select) {
    if (step->products_only) return OH_OK;
    TRACED(step, ((oh_span){.kind = OH_SPAN_SELECTION, .rows = select->rows, .bytes = 24 * (double)select->rows}),
           oh_op_row_select(step->plan->context, step->queue, select, step->error));
}

oh_status oh_traced_row_labels(oh_step *step, const oh_row_labels *labels) {
    if (step->products_only) return OH_OK;
    TRACED(step, ((oh_span){.kind = OH_SPAN_ROW_FINISH, .rows = labels->rows}),
           oh_op_row_labels(step->plan->context, step->queue, labels, step->error));
}

oh_status oh_traced_step_finish(oh_step *step, const oh_step_finish *finish) {
    if (step->products_only) return OH_OK;
    TRACED(step, ((oh_span){.kind = OH_SPAN_STEP_FINISH}),
           oh_op_step_finish(step->plan->context, step->queue, finish, step->error));
}

oh_status oh_traced_matrix_norm(oh_step *step, const oh_matrix_norm *norm) {
    if (step->products_only) return OH_OK;
    TRACED(step,
           ((oh_span){.kind = OH_SPAN_NORM,
                      .rows = norm->rows,
                      .columns = norm->columns,
                      .bytes = area(norm->rows, norm->columns, oh_dtype_size(norm->dtype))}),
           oh_op_matrix_norm(step->plan->context, step->queue, norm, step->error));
}
