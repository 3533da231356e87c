/* run.c - one step of a plan: chunk by chunk, stage by stage, panel by panel. Enqueues only. */
#include <string.h>

#include "ops.h"
#include "request.h"
#include "status.h"
#include "traced.h"

/* ------------------------------------------------------------------------------------------------------ checks ---- */

static oh_status missing(oh_error *error, const char *what, const char *why) {
    return oh_fail(error, OH_INVALID_ARGUMENT, "%s: NULL, and %s", what, why);
}

static oh_status check_ld(const char *name, int64_t ld, int64_t columns, oh_error *error) {
    if (ld == 0 || ld >= columns) return OH_OK;
    return oh_fail(error, OH_INVALID_ARGUMENT, "%s stride %lld: expected 0 (as long as the row) or at least %lld", name,
                   (long long)ld, (long long)columns);
}

static oh_status check_inputs(const oh_request *r, const oh_inputs *in, oh_error *error) {
    const int64_t target_hidden = r->target_hidden ? r->target_hidden : r->hidden;
    if (in->rows < 0 || in->rows > r->rows || in->rows % r->objective.block_size != 0)
        return oh_fail(error, OH_BAD_DATA, "rows %lld: expected 0 to %lld in whole blocks of %lld", (long long)in->rows,
                       (long long)r->rows, (long long)r->objective.block_size);
    if (in->rows > 0) {
        if (in->target_rows < 0 || in->target_rows > r->target_rows)
            return oh_fail(error, OH_BAD_DATA, "target_rows %lld: expected 0 to %lld", (long long)in->target_rows,
                           (long long)r->target_rows);
        if (!in->draft_hidden) return missing(error, "draft_hidden", "there are rows");
        if (!in->lm_head) return missing(error, "lm_head", "there are rows");
        if (r->target_rows > 0 && !in->target_hidden) return missing(error, "target_hidden", "the plan has a target");
        if (r->target_hidden && !in->target_lm_head)
            return missing(error, "target_lm_head", "the plan has a target head of its own");
        if (r->has_bias && !in->bias) return missing(error, "bias", "the plan has a bias");
        if (r->has_target_bias && !in->target_bias) return missing(error, "target_bias", "the plan has a target bias");
        if (r->norm_on_device && !in->norm) return missing(error, "norm", "the plan takes N from the device");
    }
    oh_status status = check_ld("draft_hidden", in->draft_ld, r->hidden, error);
    if (status == OH_OK) status = check_ld("target_hidden", in->target_ld, target_hidden, error);
    if (status == OH_OK) status = check_ld("lm_head", in->lm_head_ld, r->hidden, error);
    if (status == OH_OK) status = check_ld("target_lm_head", in->target_lm_head_ld, target_hidden, error);
    return status;
}

static oh_status check_outputs(const oh_request *r, const oh_outputs *out, oh_error *error) {
    if (r->produce & OH_PRODUCE_GRAD && !out->draft_grad) return missing(error, "draft_grad", "the plan produces it");
    if (r->produce & OH_PRODUCE_BIAS_GRAD && !out->bias_grad)
        return missing(error, "bias_grad", "the plan produces it");
    if (r->produce & OH_PRODUCE_HEAD_GRAD && !out->lm_head_grad)
        return missing(error, "lm_head_grad", "the plan produces it");
    const oh_status status = check_ld("draft_grad", out->draft_grad_ld, r->hidden, error);
    return status == OH_OK ? check_ld("lm_head_grad", out->lm_head_grad_ld, r->hidden, error) : status;
}

static oh_status check_run(const oh_plan *plan, const oh_inputs *in, const oh_outputs *out, oh_error *error) {
    if (!plan->context)
        return oh_fail(error, OH_INVALID_ARGUMENT, "this plan is a description (oh_plan_describe): it has no device");
    oh_status status = check_inputs(&plan->request, in, error);
    if (status == OH_OK) status = check_outputs(&plan->request, out, error);
    if (status != OH_OK || !plan->request.external_workspace) return status;
    if (!in->workspace || in->workspace_bytes < (uint64_t)plan->layout.workspace_bytes)
        return oh_fail(error, OH_INVALID_ARGUMENT, "workspace of %llu bytes: this plan needs %lld",
                       (unsigned long long)(in->workspace ? in->workspace_bytes : 0),
                       (long long)plan->layout.workspace_bytes);
    if ((uintptr_t)in->workspace % OH_ALIGNMENT != 0)
        return oh_fail(error, OH_INVALID_ARGUMENT, "workspace at %p: expected an address that is a multiple of %d",
                       in->workspace, (int)OH_ALIGNMENT);
    return OH_OK;
}

/* ------------------------------------------------------------------------------------------------------- start ---- */

static oh_status open_queue(oh_plan *plan, void *stream, oh_error *error) {
    if (plan->queue && plan->queue_stream == stream) return OH_OK;
    const oh_backend *backend = plan->context->backend;
    if (plan->queue) {
        backend->queue_close(plan->queue);
        plan->queue = NULL;
    }
    const oh_status status = backend->queue_open(plan->context->device, stream, &plan->queue);
    if (status != OH_OK) return oh_context_fail(plan->context, status, "opening a queue", error);
    plan->queue_stream = stream;
    return OH_OK;
}

/* The factor of every row's gradient: upstream / N where N follows from what the host knows. */
static double row_scale(const oh_step *step) {
    const oh_objective *o = &step->plan->request.objective;
    if (step->late || oh_norm_is_selected(&step->plan->request)) return o->upstream;
    double sums[OH_SUM_FIXED] = {0};
    sums[OH_SUM_WEIGHT] = step->plan->selection.weight_sum;
    sums[OH_SUM_MASK] = step->plan->selection.mask_sum;
    const double n = oh_step_norm(o, sums, NULL);
    return n > 0 ? o->upstream / n : 0;
}

static oh_status begin(oh_step *step) {
    oh_plan *plan = step->plan;
    const int64_t sums = oh_sum_count(&plan->request.objective) + OH_SUMS_EXTRA;
    oh_status status = OH_OK;
    if (plan->selection.uploads) status = oh_traced_selection(step, oh_step_buffer(step, OH_BUFFER_SELECTION));
    if (status != OH_OK) return status;
    status = oh_traced_fill(step, oh_step_buffer(step, OH_BUFFER_SUMS), 0, (uint64_t)sums * 8);
    if (status == OH_OK && plan->request.target_vocab)
        status = oh_traced_upload(step, oh_step_buffer(step, OH_BUFFER_SUBSET), plan->subset,
                                  (uint64_t)plan->layout.bytes[OH_BUFFER_SUBSET]);
    if (status == OH_OK && plan->request.device_inputs) status = oh_step_select_rows(step);
    if (status == OH_OK && plan->bias_factor) {
        double *extra = (double *)oh_step_buffer(step, OH_BUFFER_SUMS) + oh_sum_count(&plan->request.objective);
        status = oh_traced_upload(step, extra + OH_SUMS_BIAS_FACTOR, plan->bias_factor, sizeof *plan->bias_factor);
    }
    if (status == OH_OK && plan->request.produce & OH_PRODUCE_BIAS_GRAD)
        status = oh_traced_fill(step, step->out->bias_grad, 0, (uint64_t)plan->request.vocab * sizeof(float));
    return status == OH_OK && plan->selection.supervised > 0 ? oh_step_convert_weights(step) : status;
}

/* ------------------------------------------------------------------------------------------------------- tiles ---- */

/* Tile row of each compact row's target; NULL: the same row. */
static const int32_t *target_index(const oh_step *step, const oh_chunk *chunk) {
    return chunk->target_is_identity ? NULL : oh_step_selection(step, OH_SELECT_TARGET_INDEX, chunk->first_compact);
}

static oh_tile_view tile_view(const oh_step *step, const oh_chunk *chunk, const oh_stage *stage, int64_t first,
                              int64_t count) {
    const oh_plan *plan = step->plan;
    const oh_request *r = &plan->request;
    return (oh_tile_view){
        .draft = stage->project_draft ? oh_step_buffer(step, OH_BUFFER_DRAFT_TILE) : NULL,
        .target = stage->project_target ? oh_step_buffer(step, OH_BUFFER_TARGET_TILE) : NULL,
        .draft_ld = plan->layout.tile_ld,
        .target_ld = plan->layout.tile_ld,
        .target_row = target_index(step, chunk),
        .rows = chunk->compact_rows,
        .columns = count,
        .first_column = first,
        .draft_transform = {r->has_bias ? step->in->bias : NULL, r->scale, r->softcap},
        .target_transform = {r->has_target_bias ? step->in->target_bias : NULL, r->target_scale, r->target_softcap},
        .format = plan->formats.tile,
    };
}

/* y of the chunk's rows where it is known before the tile is read: given, or learnt by an earlier stage. */
static const int32_t *known_label(const oh_step *step, const oh_chunk *chunk, const oh_stage *stage) {
    if (stage->label_is_known) return oh_step_buffer(step, OH_BUFFER_ROW_LABEL);
    if (step->plan->request.objective.labels == OH_LABELS_GIVEN)
        return oh_step_selection(step, OH_SELECT_LABEL, chunk->first_compact);
    return NULL;
}

static oh_tile_stats first_read(const oh_step *step, const oh_chunk *chunk, const oh_stage *stage,
                                const oh_tile_view *view) {
    return (oh_tile_stats){.tile = *view,
                           .stats = oh_step_buffer(step, OH_BUFFER_STATS),
                           .label = known_label(step, chunk, stage),
                           .topk_id = stage->top_k ? oh_step_buffer(step, OH_BUFFER_TOP_K_ID) : NULL,
                           .topk_logit = stage->top_k ? oh_step_buffer(step, OH_BUFFER_TOP_K_LOGIT) : NULL,
                           .top_k = stage->top_k,
                           .want = stage->want,
                           .restart = view->first_column == 0};
}

static oh_status read_tiles(oh_step *step, const oh_chunk *chunk, const oh_stage *stage, const oh_tile_view *view) {
    oh_plan *plan = step->plan;
    if (stage->first_read) {
        const oh_tile_stats stats = first_read(step, chunk, stage, view);
        const oh_status status = oh_traced_tile_stats(step, &stats);
        if (status != OH_OK) return status;
        plan->counts.tile_reads += 1;
        const oh_status found = oh_step_find_overflow(step, chunk, view);
        if (found != OH_OK) return found;
    }
    if (!stage->second_read || stage->overlap_in_grad) return OH_OK;
    const oh_tile_overlap overlap = {.tile = *view,
                                     .stats = oh_step_buffer(step, OH_BUFFER_STATS),
                                     .overlap = oh_step_buffer(step, OH_BUFFER_OVERLAP),
                                     .want = stage->overlap_want,
                                     .restart = view->first_column == 0};
    if (stage->overlap_want) {
        plan->counts.tile_reads += 1;
        const oh_status status = oh_traced_tile_overlap(step, &overlap);
        if (status != OH_OK) return status;
    }
    if (!stage->full_overlap) return OH_OK;
    oh_tile_overlap full = overlap;
    full.overlap = oh_step_buffer(step, OH_BUFFER_FULL_OVERLAP);
    full.full = oh_step_buffer(step, OH_BUFFER_FULL_STATS);
    full.want = OH_WANT_OVERLAP;
    plan->counts.tile_reads += 1;
    return oh_traced_tile_overlap(step, &full);
}

/* Those of the stage's parts that are given. */
static oh_status finish_rows(oh_step *step, const oh_chunk *chunk, const oh_stage *stage, uint32_t parts) {
    const oh_plan *plan = step->plan;
    /* Before the gradient's pass there is no overlap yet. */
    const int overlapped = !stage->overlap_in_grad || parts & OH_FINISH_METRICS;
    const oh_outputs *out = step->out;
    const int64_t at = chunk->first_row, k = plan->layout.bytes[OH_BUFFER_TOP_K_ID] / 4 / plan->layout.tile_rows;
    const oh_row_finish finish = {
        .objective = plan->request.objective,
        .rows = chunk->rows,
        .compact_rows = chunk->compact_rows,
        .first_row = chunk->first_row,
        .compact = oh_step_selection(step, OH_SELECT_COMPACT, chunk->first_row),
        .mask = oh_step_selection(step, OH_SELECT_MASK, chunk->first_row),
        .stats = oh_step_buffer(step, OH_BUFFER_STATS),
        .overlap = overlapped ? oh_step_buffer(step, OH_BUFFER_OVERLAP) : NULL,
        .full = stage->finish_has_full ? oh_step_buffer(step, OH_BUFFER_FULL_STATS) : NULL,
        .full_overlap = stage->full_overlap ? oh_step_buffer(step, OH_BUFFER_FULL_OVERLAP) : NULL,
        .target_row = target_index(step, chunk),
        .topk_id = oh_step_buffer(step, OH_BUFFER_TOP_K_ID),
        .topk_logit = oh_step_buffer(step, OH_BUFFER_TOP_K_LOGIT),
        .scale = step->scale,
        .parts = parts,
        .want = overlapped ? stage->finish_want : stage->finish_want & ~stage->overlap_want,
        .top_k_mask = stage->top_k_mask,
        .top_k = stage->top_k,
        .has_target = stage->finish_has_target,
        .outside = plan->request.target_vocab ? plan->request.outside : OH_OUTSIDE_NEVER,
        .results = oh_step_buffer(step, OH_BUFFER_RESULTS),
        .partial = oh_step_buffer(step, OH_BUFFER_PARTIAL),
        .sums = oh_step_buffer(step, OH_BUFFER_SUMS),
        .coef = oh_step_buffer(step, OH_BUFFER_COEF),
        .row_scale = oh_step_buffer(step, OH_BUFFER_ROW_SCALE),
        .label_out = oh_step_buffer(step, OH_BUFFER_ROW_LABEL),
        .row_loss_out = out->row_loss ? out->row_loss + at : NULL,
        .weight_out = out->weight ? out->weight + at : NULL,
        .row_label_out = out->label ? out->label + at : NULL,
        .argmax_out = out->argmax ? out->argmax + at : NULL,
        .rank_out = out->rank ? out->rank + at : NULL,
        .topk_id_out = out->topk_id ? out->topk_id + at * k : NULL,
        .topk_logprob_out = out->topk_logprob ? out->topk_logprob + at * k : NULL,
    };
    oh_status status = parts & OH_FINISH_COEF ? oh_step_clear_places(step, chunk) : OH_OK;
    if (status == OH_OK) status = oh_traced_row_finish(step, &finish);
    if (status == OH_OK && parts & OH_FINISH_COEF) status = oh_step_divide_places(step, chunk);
    return status;
}

static oh_tile_grad gradient(const oh_step *step, const oh_tile_view *view) {
    const oh_plan *plan = step->plan;
    const int64_t element = oh_dtype_size(plan->formats.grad_dtype);
    return (oh_tile_grad){.tile = *view,
                          .coef = oh_step_buffer(step, OH_BUFFER_COEF),
                          .out = view->draft,
                          .out_ld = plan->layout.tile_ld * oh_dtype_size(plan->formats.tile_dtype) / element,
                          .out_dtype = plan->formats.grad_dtype,
                          .form = oh_objective_form(&plan->request.objective)};
}

/* Whether the stage's first read can take the gradient with it. */
static int takes_both(const oh_step *step, const oh_chunk *chunk, const oh_stage *stage, const oh_tile_view *view,
                      oh_tile_stats_grad *pass) {
    const oh_plan *plan = step->plan;
    if (!stage->first_read || !stage->tile_grad || stage->second_read || !(stage->parts & OH_FINISH_COEF)) return 0;
    if (view->columns != plan->request.vocab_valid || plan->request.target_vocab) return 0;
    if (oh_dtype_size(plan->formats.grad_dtype) != oh_dtype_size(plan->formats.tile_dtype)) return 0;
    *pass = (oh_tile_stats_grad){.stats = first_read(step, chunk, stage, view),
                                 .grad = gradient(step, view),
                                 .objective = &plan->request.objective,
                                 .has_target = stage->finish_has_target};
    return oh_op_takes_tile_stats_grad(plan->context, pass);
}

/* The pass, after which row_finish and the gradient's own pass see to rows that it left. */
static oh_status read_and_grad(oh_step *step, const oh_chunk *chunk, const oh_tile_stats_grad *pass) {
    const oh_status status = oh_traced_tile_stats_grad(step, pass);
    if (status != OH_OK) return status;
    step->plan->counts.tile_reads += 1;
    return oh_step_find_overflow(step, chunk, &pass->stats.tile);
}

static oh_status grad_tile(oh_step *step, const oh_stage *stage, const oh_tile_view *view, int is_rest) {
    oh_plan *plan = step->plan;
    const oh_tile_grad grad = gradient(step, view);
    if (!is_rest) plan->counts.tile_reads += 1;
    if (!stage->overlap_in_grad) return oh_traced_tile_grad(step, &grad, is_rest);
    const oh_tile_grad_overlap both = {.grad = grad,
                                       .stats = oh_step_buffer(step, OH_BUFFER_STATS),
                                       .overlap = oh_step_buffer(step, OH_BUFFER_OVERLAP),
                                       .want = stage->overlap_want};
    return oh_traced_tile_grad_overlap(step, &both);
}

static oh_status observe(oh_step *step, const oh_chunk *chunk, const oh_stage *stage, const oh_tile_view *view) {
    const oh_plan *plan = step->plan;
    if (!plan->observer || step->products_only) return OH_OK;
    const oh_status status = oh_op_wait(plan->context, step->queue, step->error);
    if (status == OH_OK) plan->observer(plan->observer_user, chunk - plan->selection.chunks, stage->stage, view);
    return status;
}

/* ------------------------------------------------------------------------------------------------------ chunks ---- */

static oh_status run_panel(oh_step *step, const oh_chunk *chunk, const oh_stage *stage, int64_t first, int64_t count) {
    const int last = first + count == step->plan->request.vocab_valid;
    oh_status status = oh_step_project(step, chunk, stage, first, count);
    if (status != OH_OK) return status;
    const oh_tile_view view = tile_view(step, chunk, stage, first, count);
    status = observe(step, chunk, stage, &view);
    oh_tile_stats_grad pass;
    const int both = takes_both(step, chunk, stage, &view, &pass);
    if (status == OH_OK) status = both ? read_and_grad(step, chunk, &pass) : read_tiles(step, chunk, stage, &view);
    const uint32_t later = stage->overlap_in_grad ? OH_FINISH_METRICS : 0, done = both ? OH_FINISH_GRAD_DONE : 0;
    if (status == OH_OK && stage->parts && last)
        status = finish_rows(step, chunk, stage, (stage->parts & ~later) | done);
    if (status != OH_OK || !stage->tile_grad) return status;
    status = grad_tile(step, stage, &view, both);
    if (status == OH_OK && later) status = finish_rows(step, chunk, stage, later);
    if (status == OH_OK && stage->head_grad && first == 0) status = oh_step_scale_rows(step, chunk);
    if (status == OH_OK && stage->bias_grad && first == 0) status = oh_step_scale_bias(step, chunk);
    return status == OH_OK ? oh_step_grad_products(step, chunk, stage, first, count) : status;
}

static oh_tile_stats full_read(const oh_step *step, const oh_chunk *chunk, int64_t first, int64_t count) {
    const oh_plan *plan = step->plan;
    const oh_transform transform = {NULL, plan->request.target_scale, plan->request.target_softcap};
    void *tile = oh_step_buffer(step, OH_BUFFER_TARGET_TILE);
    /* Only a draft's logits of -inf are flagged. A softcap makes finite what f16 could not hold below, so there the tile is
     * read as a draft's, too. */
    const int flags_neg_inf = plan->formats.tile_dtype == OH_F16 && transform.softcap != 0;
    return (oh_tile_stats){
        .tile = {.draft = flags_neg_inf ? tile : NULL,
                 .target = tile,
                 .draft_ld = plan->layout.tile_ld,
                 .target_ld = plan->layout.tile_ld,
                 .rows = chunk->target_rows,
                 .columns = count,
                 .first_column = first,
                 .draft_transform = {NULL, 1, 0},
                 .target_transform = transform,
                 .format = plan->formats.tile},
        .stats = oh_step_buffer(step, OH_BUFFER_FULL_STATS),
        .restart = first == 0,
    };
}

/* The target over its whole vocabulary, a panel at a time in the memory of its tile: statistics, and y out of them. */
static oh_status run_full_target(oh_step *step, const oh_chunk *chunk, const oh_stage *stage) {
    oh_plan *plan = step->plan;
    const oh_request *r = &plan->request;
    for (int64_t first = 0; first < r->target_vocab; first += plan->layout.choice.panel) {
        const int64_t left = r->target_vocab - first;
        const int64_t count = left < plan->layout.choice.panel ? left : plan->layout.choice.panel;
        oh_status status = oh_step_project_full(step, chunk, first, count);
        if (status != OH_OK) return status;
        const oh_tile_stats stats = full_read(step, chunk, first, count);
        status = oh_traced_tile_stats(step, &stats);
        if (status != OH_OK) return status;
        plan->counts.tile_reads += 1;
        status = oh_step_find_full_overflow(step, chunk, &stats);
        if (status != OH_OK) return status;
    }
    plan->counts.projections_target += 1;
    plan->counts.gemms += 1;
    if (!stage->full_label) return OH_OK;
    const oh_row_labels labels = {.rows = chunk->compact_rows,
                                  .id_count = r->vocab,
                                  .full = oh_step_buffer(step, OH_BUFFER_FULL_STATS),
                                  .target_row = target_index(step, chunk),
                                  .ids = oh_step_buffer(step, OH_BUFFER_SUBSET),
                                  .label = oh_step_buffer(step, OH_BUFFER_ROW_LABEL)};
    return oh_traced_row_labels(step, &labels);
}

static oh_status run_stage(oh_step *step, const oh_chunk *chunk, const oh_stage *stage) {
    oh_plan *plan = step->plan;
    step->stage_index = stage->stage;
    /* Nothing to compute, but the chunk's outputs still have to say so. */
    if (chunk->compact_rows == 0) return stage->parts ? finish_rows(step, chunk, stage, stage->parts) : OH_OK;
    if (stage->project_full) return run_full_target(step, chunk, stage);
    for (int64_t first = 0; first < plan->request.vocab_valid; first += plan->layout.choice.panel) {
        const int64_t left = plan->request.vocab_valid - first;
        const int64_t count = left < plan->layout.choice.panel ? left : plan->layout.choice.panel;
        const oh_status status = run_panel(step, chunk, stage, first, count);
        if (status != OH_OK) return status;
    }
    plan->counts.projections_draft += stage->project_draft;
    plan->counts.projections_target += stage->project_target;
    plan->counts.gemms += stage->project_draft + stage->project_target + stage->grad + stage->head_grad;
    return OH_OK;
}

/* dD in f32 where the closing pass still divides it, else where and as the caller wants it. */
static void grad_destination(const oh_step *step, void **to, int64_t *ld, int32_t *dtype) {
    const oh_request *r = &step->plan->request;
    void *own = oh_step_buffer(step, OH_BUFFER_GRAD_STEP);
    *to = own ? own : step->out->draft_grad;
    *ld = own || step->out->draft_grad_ld == 0 ? r->hidden : step->out->draft_grad_ld;
    *dtype = own ? OH_F32 : r->grad_dtype;
}

static oh_status scatter(oh_step *step, const oh_chunk *chunk) {
    const oh_request *r = &step->plan->request;
    void *to;
    int64_t ld;
    int32_t dtype;
    grad_destination(step, &to, &ld, &dtype);
    const oh_copy_rows copy = {.rows = chunk->rows,
                               .columns = r->hidden,
                               .src = oh_step_buffer(step, OH_BUFFER_GRAD_ROWS),
                               .src_ld = r->hidden,
                               .src_dtype = OH_F32,
                               .map = oh_step_selection(step, OH_SELECT_COMPACT, chunk->first_row),
                               .row_scale = oh_step_buffer(step, OH_BUFFER_ROW_SCALE),
                               .dst = (char *)to + chunk->first_row * ld * oh_dtype_size(dtype),
                               .dst_ld = ld,
                               .dst_dtype = dtype};
    return oh_traced_copy_rows(step, OH_SPAN_SCATTER, &copy);
}

static oh_status run_chunk(oh_step *step, const oh_chunk *chunk) {
    const oh_plan *plan = step->plan;
    step->chunk_index = chunk - plan->selection.chunks;
    step->target_tile_rows = chunk->target_rows;
    oh_status status = chunk->compact_rows > 0 ? oh_step_gather(step, chunk) : OH_OK;
    for (int32_t i = 0; i < plan->schedule.count && status == OH_OK; ++i)
        status = run_stage(step, chunk, &plan->schedule.stages[i]);
    step->stage_index = -1;
    if (status != OH_OK) return status;
    if (chunk->compact_rows > 0) step->chunks_with_rows += 1;
    return plan->request.produce & OH_PRODUCE_GRAD ? scatter(step, chunk) : OH_OK;
}

/* ----------------------------------------------------------------------------------------------------- closing ---- */

/* The bias' gradient by the bias, not by the raw logit, and divided by N where that was late. */
static oh_status close_bias(oh_step *step, const double *extra, const float *late_factor) {
    const float *factors[2] = {step->plan->bias_factor ? (const float *)(extra + OH_SUMS_BIAS_FACTOR) : NULL,
                               late_factor};
    for (int i = 0; i < 2; ++i) {
        if (!factors[i]) continue;
        const oh_copy_rows copy = {.rows = 1,
                                   .columns = step->plan->request.vocab,
                                   .src = step->out->bias_grad,
                                   .src_ld = step->plan->request.vocab,
                                   .src_dtype = OH_F32,
                                   .factor = factors[i],
                                   .dst = step->out->bias_grad,
                                   .dst_ld = step->plan->request.vocab,
                                   .dst_dtype = OH_F32};
        const oh_status status = oh_traced_copy_rows(step, OH_SPAN_DIVIDE, &copy);
        if (status != OH_OK) return status;
    }
    return OH_OK;
}

/* Multiplies late gradients by 1 / N, which the device has only now. */
static oh_status divide_late(oh_step *step, const float *factor) {
    const oh_plan *plan = step->plan;
    const oh_request *r = &plan->request;
    if (r->produce & OH_PRODUCE_GRAD) {
        oh_copy_rows copy = {.rows = step->in->rows, .columns = r->hidden, .factor = factor};
        void *from;
        grad_destination(step, &from, &copy.src_ld, &copy.src_dtype);
        copy.src = from;
        copy.dst = step->out->draft_grad;
        copy.dst_ld = step->out->draft_grad_ld ? step->out->draft_grad_ld : r->hidden;
        copy.dst_dtype = r->grad_dtype;
        const oh_status status = oh_traced_copy_rows(step, OH_SPAN_DIVIDE, &copy);
        if (status != OH_OK) return status;
    }
    if (!(r->produce & OH_PRODUCE_HEAD_GRAD)) return OH_OK;
    const int64_t ld = step->out->lm_head_grad_ld ? step->out->lm_head_grad_ld : r->hidden;
    const oh_copy_rows copy = {.rows = r->vocab_valid,
                               .columns = r->hidden,
                               .src = step->out->lm_head_grad,
                               .src_ld = ld,
                               .src_dtype = OH_F32,
                               .factor = factor,
                               .dst = step->out->lm_head_grad,
                               .dst_ld = ld,
                               .dst_dtype = OH_F32};
    return oh_traced_copy_rows(step, OH_SPAN_DIVIDE, &copy);
}

static oh_status close_step(oh_step *step) {
    const oh_plan *plan = step->plan;
    const oh_request *r = &plan->request;
    step->chunk_index = -1;
    double *sums = oh_step_buffer(step, OH_BUFFER_SUMS);
    double *extra = sums + oh_sum_count(&r->objective);
    const oh_step_finish finish = {.objective = r->objective,
                                   .norm = r->norm_on_device && step->in->rows > 0 ? step->in->norm : NULL,
                                   .sums = sums,
                                   .loss = extra + OH_SUMS_LOSS,
                                   .factor = (float *)(extra + OH_SUMS_FACTOR)};
    oh_status status = oh_traced_step_finish(step, &finish);
    if (status == OH_OK && r->produce & OH_PRODUCE_HEAD_GRAD) status = oh_step_clear_head_grad(step);
    if (status == OH_OK && step->late && step->in->rows > 0) status = divide_late(step, finish.factor);
    if (status == OH_OK && r->produce & OH_PRODUCE_BIAS_GRAD)
        status = close_bias(step, extra, step->late ? finish.factor : NULL);
    if (status != OH_OK || !(r->produce & OH_PRODUCE_GRAD_NORM) || step->in->rows == 0) return status;
    const oh_matrix_norm norm = {.rows = step->in->rows,
                                 .columns = r->hidden,
                                 .data = step->out->draft_grad,
                                 .ld = step->out->draft_grad_ld ? step->out->draft_grad_ld : r->hidden,
                                 .dtype = r->grad_dtype,
                                 .sums = extra + OH_SUMS_NORMS};
    return oh_traced_matrix_norm(step, &norm);
}

static oh_status run(oh_plan *plan, const oh_inputs *inputs, const oh_outputs *outputs, int products_only,
                     oh_error *error) {
    oh_status status = check_run(plan, inputs, outputs, error);
    if (status != OH_OK) return status;
    status = oh_ring_take(&plan->ring, plan->queue, &plan->selection.block, error);
    if (status == OH_OK)
        status = oh_selection_fill(&plan->selection, &plan->request, plan->layout.choice.chunk, inputs, error);
    if (status == OH_OK) status = open_queue(plan, inputs->stream, error);
    if (status != OH_OK) return status;

    oh_step step = {.plan = plan,
                    .in = inputs,
                    .out = outputs,
                    .queue = plan->queue,
                    .error = error,
                    .workspace = plan->request.external_workspace ? inputs->workspace : plan->workspace,
                    .late = oh_norm_is_late(&plan->request),
                    .products_only = products_only,
                    .chunk_index = -1,
                    .stage_index = -1};
    step.scale = row_scale(&step);
    plan->has_run = 0;
    plan->rows = inputs->rows;
    plan->run_workspace = step.workspace;
    memset(&plan->counts, 0, sizeof plan->counts);
    if (!products_only) {
        if (plan->request.weight_trains) plan->resident[OH_WEIGHT_DRAFT].from = NULL;
        status = begin(&step);
    }
    for (int64_t i = 0; i < plan->selection.chunk_count && status == OH_OK; ++i)
        status = run_chunk(&step, &plan->selection.chunks[i]);
    if (products_only || status != OH_OK) return status;
    status = close_step(&step);
    plan->has_run = status == OH_OK;
    if (status == OH_OK && !oh_op_is_capturing(plan->context, plan->queue)) plan->is_warm = 1;
    return status;
}

oh_status oh_plan_run(oh_plan *plan, const oh_inputs *inputs, const oh_outputs *outputs, oh_error *error) {
    if (!plan || !inputs || !outputs)
        return oh_fail(error, OH_INVALID_ARGUMENT, "oh_plan_run: plan, inputs and outputs must not be NULL");
    return run(plan, inputs, outputs, 0, error);
}

oh_status oh_plan_run_products(oh_plan *plan, const oh_inputs *inputs, const oh_outputs *outputs, oh_error *error) {
    if (!plan || !inputs || !outputs)
        return oh_fail(error, OH_INVALID_ARGUMENT, "oh_plan_run_products: plan, inputs and outputs must not be NULL");
    if (!plan->is_warm)
        return oh_fail(error, OH_INVALID_ARGUMENT,
                       "oh_plan_run_products: the plan has not run a step yet, expected oh_plan_run before it");
    return run(plan, inputs, outputs, 1, error);
}
