/* plan.c - from a request to a plan: graph, passes, formats, chunk and panel, workspace. */
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops.h"
#include "request.h"
#include "status.h"

/* ------------------------------------------------------------------------------------------- graph and layout ---- */

static void build_graph(oh_plan *plan, int32_t policy, int32_t panels) {
    const oh_request *r = &plan->request;
    const oh_backend *backend = plan->context ? plan->context->backend : NULL; /* a description has none */
    const oh_graph_spec spec = {.objective = r->objective,
                                .produce = r->produce,
                                .policy = policy,
                                .has_target = r->target_rows > 0,
                                .subset = r->target_vocab != 0,
                                .diff = plan->formats.tile == OH_TILE_DIFF,
                                .panels = panels,
                                .overlap_in_grad = backend && OH_BACKEND_HAS(backend, tile_grad_overlap)};
    oh_graph_build(&plan->before, &spec);
    oh_graph_merge(&plan->before, &plan->after);
    oh_schedule_build(&plan->schedule, &plan->after, &spec);
}

static void cost_graphs(oh_plan *plan) {
    const oh_request *r = &plan->request;
    const oh_graph_shape shape = {
        .rows = plan->layout.tile_rows < r->rows ? plan->layout.tile_rows : r->rows,
        .hidden = r->hidden,
        .target_hidden = r->target_hidden ? r->target_hidden : r->hidden,
        .vocab = r->vocab_valid,
        .target_vocab = r->target_vocab,
        .tile_bytes = oh_dtype_size(plan->formats.tile_dtype),
        .operand_bytes = oh_dtype_size(plan->formats.draft_operand),
    };
    oh_graph_cost(&plan->before, &shape);
    oh_graph_cost(&plan->after, &shape);
}

/* Scratch for the largest products of a layout: what the backend answers for each that project.c will ask for, at the
 * strides that they have where the caller's weights and gradients are packed. */
static int64_t gemm_scratch(void *user, const oh_formats *f, const oh_layout *layout) {
    const oh_plan *plan = user;
    const oh_backend *backend = plan->context->backend;
    if (!backend->gemm_scratch) return 0;
    const oh_request *r = &plan->request;
    const int64_t rows = layout->tile_rows, columns = layout->choice.weight_panel;
    const int64_t target_hidden = r->target_hidden ? r->target_hidden : r->hidden;
    const int64_t grad_ld = layout->tile_ld * oh_dtype_size(f->tile_dtype) / oh_dtype_size(f->grad_dtype);
    const oh_gemm draft = {.op = OH_GEMM_NT,
                           .m = rows,
                           .n = columns,
                           .k = r->hidden,
                           .lda = r->hidden,
                           .ldb = r->hidden,
                           .ldc = f->cast_tile ? columns : layout->tile_ld,
                           .a_dtype = f->draft_operand,
                           .b_dtype = f->draft_operand,
                           .c_dtype = f->cast_tile ? OH_F32 : f->tile_dtype};
    const oh_gemm target = {.op = OH_GEMM_NT,
                            .m = layout->target_tile_rows,
                            .n = columns,
                            .k = target_hidden,
                            .lda = target_hidden,
                            .ldb = target_hidden,
                            .ldc = f->cast_target_tile ? columns : layout->tile_ld,
                            .a_dtype = f->target_operand,
                            .b_dtype = f->target_operand,
                            .c_dtype = f->cast_target_tile ? OH_F32 : f->tile_dtype};
    const oh_gemm grad = {.op = OH_GEMM_NN,
                          .accumulate = 1,
                          .m = rows,
                          .n = r->hidden,
                          .k = columns,
                          .lda = f->cast_grad ? columns : grad_ld,
                          .ldb = r->hidden,
                          .ldc = r->hidden,
                          .a_dtype = f->grad_operand,
                          .b_dtype = f->draft_operand,
                          .c_dtype = OH_F32};
    oh_gemm head = grad;
    head.op = OH_GEMM_TN;
    head.m = columns;
    head.k = rows;
    head.b_dtype = f->grad_operand;
    oh_gemm bias = head;
    bias.n = 1;
    bias.ldb = 2;
    bias.ldc = 1;
    const oh_gemm *const products[] = {&draft, &target, &grad, &head, r->produce & OH_PRODUCE_BIAS_GRAD ? &bias : NULL};
    int64_t bytes = 0;
    for (size_t i = 0; i < sizeof products / sizeof products[0]; ++i) {
        const int64_t asked = products[i] ? backend->gemm_scratch(plan->context->device, products[i]) : 0;
        if (asked > bytes) bytes = asked;
    }
    return bytes;
}

static oh_layout_input layout_input(oh_plan *plan) {
    return (oh_layout_input){.request = &plan->request,
                             .formats = plan->formats,
                             .prefers_copies = !(plan->machine.caps & OH_CAP_HOST_MEMORY),
                             .scratch = plan->context ? gemm_scratch : NULL,
                             .scratch_user = plan};
}

static int64_t whole_tile_bytes(oh_plan *plan, int32_t policy) {
    const oh_layout_input input = layout_input(plan);
    oh_layout_choice choice = plan->layout.choice;
    choice.policy = policy;
    choice.panel = plan->request.vocab_valid;
    oh_layout layout;
    oh_layout_compute(&layout, &input, &choice);
    return oh_size_add(layout.workspace_bytes, layout.weight_bytes);
}

static void summarise(oh_plan *plan) {
    const oh_request *r = &plan->request;
    const oh_layout *l = &plan->layout;
    oh_plan_summary *s = &plan->summary;
    *s = (oh_plan_summary){
        .policy = l->choice.policy,
        .tile = plan->formats.tile,
        .chunk = l->choice.chunk,
        .chunks = (r->rows + l->choice.chunk - 1) / l->choice.chunk,
        .panel = l->choice.panel,
        .weight_panel = l->choice.weight_panel,
        .weight_converted = l->choice.resident,
        .stages = plan->schedule.count,
        .workspace_bytes = l->workspace_bytes,
        .weight_bytes = l->weight_bytes,
        .memory = r->memory,
        .operand_dtype = plan->formats.draft_operand,
        .grad_dtype = plan->formats.grad_dtype,
        .workspace_cached = whole_tile_bytes(plan, OH_POLICY_CACHED),
        .workspace_recompute = l->choice.policy == OH_POLICY_RECOMPUTE
                                   ? oh_size_add(l->workspace_bytes, l->weight_bytes)
                                   : whole_tile_bytes(plan, OH_POLICY_RECOMPUTE),
    };
    memcpy(s->tile_reason, plan->tile_reason, sizeof s->tile_reason);
    s->projections_draft = s->chunks * plan->schedule.projections_draft;
    s->projections_target = s->chunks * plan->schedule.projections_target;
    s->gemms = s->chunks * plan->schedule.gemms;
    const double slots = (double)(r->objective.block_size - r->objective.first_slot);
    const double rows = (double)r->rows * slots / (double)r->objective.block_size;
    const double chunk_rows = (double)plan->layout.tile_rows < rows ? (double)plan->layout.tile_rows : rows;
    double flops = 0;
    for (int64_t i = 0; i < plan->after.count; ++i)
        flops += plan->after.nodes[i].flops;
    s->flops = chunk_rows > 0 ? flops / chunk_rows * rows : 0;

    plan->buffer_count = 0;
    for (int i = 0; i < OH_BUFFER_COUNT; ++i) {
        if (l->bytes[i] == 0) continue;
        oh_plan_buffer *b = &plan->buffers[plan->buffer_count++];
        strncpy(b->name, oh_buffer_name(i), sizeof b->name - 1);
        b->bytes = l->bytes[i];
        b->offset = l->offset[i];
    }
    if (l->weight_bytes) {
        oh_plan_buffer *b = &plan->buffers[plan->buffer_count++];
        strncpy(b->name, "converted weights (kept)", sizeof b->name - 1);
        b->bytes = l->weight_bytes;
        b->offset = -1;
    }
}

#define DEFAULT_MEMORY (INT64_C(2) << 30)

/* The budget where none is given. A CPU converts weights panel by panel in its caches; a device keeps the copies. */
static int64_t default_memory(const oh_plan *plan) {
    const oh_machine *m = &plan->machine;
    if (m->caps & OH_CAP_HOST_MEMORY) return DEFAULT_MEMORY;
    const int64_t memory = oh_size_add(DEFAULT_MEMORY, oh_layout_copies(&plan->request, &plan->formats));
    return m->memory_free == 0 || memory <= m->memory_free / 2 ? memory : DEFAULT_MEMORY;
}

/* Formats and layout for one tile format. */
static oh_status lay_out(oh_plan *plan, int32_t tile, int64_t memory, oh_error *error) {
    plan->request.tile = tile;
    const oh_status status = oh_formats_choose(&plan->formats, &plan->request, &plan->machine, error);
    if (status != OH_OK) return status;
    plan->request.memory = memory ? memory : default_memory(plan);
    const oh_layout_input input = layout_input(plan);
    return oh_layout_choose(&plan->layout, &input, error);
}

/* The tile that auto stands for, or f32 where its copy of the weight doesn't fit beside a useful chunk: converting W for
 * every chunk again costs more than f32 tiles do. */
static oh_status lay_out_auto(oh_plan *plan, int64_t memory, oh_error *error) {
    const int32_t tile = oh_auto_tile(&plan->request, &plan->machine, plan->tile_reason);
    const oh_status status = lay_out(plan, tile, memory, error);
    if (tile == OH_TILE_F32) return status;
    const int64_t copies = oh_layout_copies(&plan->request, &plan->formats);
    if (status == OH_OK && (copies == 0 || plan->layout.choice.resident)) return OH_OK;
    snprintf(plan->tile_reason, sizeof plan->tile_reason,
             "the f16 copy of the weight, %lld bytes, does not fit in the memory of %lld bytes", (long long)copies,
             (long long)plan->request.memory);
    return lay_out(plan, OH_TILE_F32, memory, error);
}

/* A weight that f16 can't hold would make every step invalid. */
static oh_status check_weight_fits(const oh_plan *plan, oh_error *error) {
    const oh_machine *m = &plan->machine;
    if (!m->weight_measured || !plan->formats.convert_weight || plan->formats.draft_operand != OH_F16 ||
        !(m->weight_max > 65504))
        return OH_OK;
    return oh_fail(error, OH_OVERFLOW,
                   "lm_head: its largest absolute value, %g, is over f16's 65504: expected tile f32", m->weight_max);
}

static oh_status describe(oh_plan *plan, oh_error *error) {
    const oh_request asked = plan->request;
    oh_status status;
    if (asked.tile == OH_TILE_AUTO) {
        status = lay_out_auto(plan, asked.memory, error);
    } else {
        snprintf(plan->tile_reason, sizeof plan->tile_reason, "as asked");
        status = lay_out(plan, asked.tile, asked.memory, error);
    }
    if (status == OH_OK) status = check_weight_fits(plan, error);
    if (status != OH_OK) return status;
    build_graph(plan, plan->layout.choice.policy, plan->layout.choice.panel < plan->request.vocab_valid);
    cost_graphs(plan);
    summarise(plan);
    return OH_OK;
}

/* ---------------------------------------------------------------------------------------------------- machine ---- */

static oh_machine machine_of(const oh_backend *backend) {
    return (oh_machine){.caps = backend->caps,
                        .gemm_kinds = backend->gemm_kinds,
                        .tile_formats = backend->tile_formats,
                        .finds_overflow = backend->caps & OH_CAP_HOST_MEMORY || OH_BACKEND_HAS(backend, tile_overflow)};
}

/* Enqueues the norm of lm_head, waits, and reads its largest absolute value. */
static oh_status read_weight_max(oh_plan *plan, oh_queue *queue, double *sums, oh_error *error) {
    const oh_request *r = &plan->request;
    oh_context *c = plan->context;
    const oh_matrix_norm norm = {.rows = r->vocab_valid,
                                 .columns = r->hidden,
                                 .data = r->lm_head,
                                 .ld = r->lm_head_ld ? r->lm_head_ld : r->hidden,
                                 .dtype = r->weight_dtype,
                                 .sums = sums};
    double found[2];
    oh_status status = oh_op_fill(c, queue, sums, 0, sizeof found, error);
    if (status == OH_OK) status = oh_op_matrix_norm(c, queue, &norm, error);
    if (status == OH_OK) status = oh_op_download(c, queue, found, sums, sizeof found, error);
    if (status == OH_OK) status = oh_op_wait(c, queue, error);
    if (status != OH_OK) return status;
    plan->machine.weight_measured = 1;
    plan->machine.weight_max = found[1];
    return OH_OK;
}

static oh_status measure_weight(oh_plan *plan, oh_error *error) {
    const oh_backend *backend = plan->context->backend;
    oh_queue *queue = NULL;
    void *sums = NULL;
    oh_status status = backend->queue_open(plan->context->device, NULL, &queue);
    if (status != OH_OK) return oh_context_fail(plan->context, status, "opening a queue", error);
    status = oh_context_alloc(plan->context, 2 * sizeof(double), "two sums", &sums, error);
    if (status == OH_OK) status = read_weight_max(plan, queue, sums, error);
    backend->queue_close(queue);
    oh_context_free(plan->context, sums);
    return status;
}

/* What is known of the context's device; lm_head is read only where the tile hangs on it. */
static oh_status look_at_machine(oh_plan *plan, oh_error *error) {
    const oh_request *r = &plan->request;
    oh_device_info info;
    char reason[OH_TILE_REASON_SIZE];
    plan->machine = machine_of(plan->context->backend);
    plan->machine.has_overflowed = plan->context->f16_overflowed;
    if (!(plan->machine.caps & OH_CAP_HOST_MEMORY) && r->memory == 0) {
        const oh_status status = oh_context_device_info(plan->context, &info, error);
        if (status != OH_OK) return status;
        plan->machine.memory_free = info.memory_free;
    }
    if (!r->lm_head || r->weight_dtype == OH_F16) return OH_OK;
    const int32_t tile = r->tile == OH_TILE_AUTO ? oh_auto_tile(r, &plan->machine, reason) : r->tile;
    return tile == OH_TILE_F16 || tile == OH_TILE_DIFF ? measure_weight(plan, error) : OH_OK;
}

/* ----------------------------------------------------------------------------------------------------- memory ---- */

static oh_status allocate_selection(oh_plan *plan, oh_error *error) {
    oh_selection *s = &plan->selection;
    const oh_request *r = &plan->request;
    const oh_status status =
        oh_ring_open(&plan->ring, plan->context, plan->layout.bytes[OH_BUFFER_SELECTION] - OH_RING_TICKET_BYTES, error);
    if (status != OH_OK) return status;
    s->row_capacity = r->rows;
    s->target_capacity = r->target_rows;
    s->chunk_capacity = plan->summary.chunks;
    s->chunks = calloc((size_t)(s->chunk_capacity + 1), sizeof *s->chunks);
    s->stamp = calloc((size_t)(s->target_capacity + 1), sizeof *s->stamp);
    s->stamp_index = calloc((size_t)(s->target_capacity + 1), sizeof *s->stamp_index);
    plan->host_sums = calloc((size_t)(oh_sum_count(&r->objective) + OH_SUMS_EXTRA), sizeof(double));
    if (s->chunks && s->stamp && s->stamp_index && plan->host_sums) return OH_OK;
    return oh_fail(error, OH_OUT_OF_MEMORY, "row selection of %lld rows: out of memory", (long long)r->rows);
}

static oh_status check_device_inputs(const oh_plan *plan, oh_error *error) {
    const oh_backend *backend = plan->context->backend;
    if (!plan->request.device_inputs || backend->caps & OH_CAP_HOST_MEMORY || OH_BACKEND_HAS(backend, row_select))
        return OH_OK;
    return oh_fail(error, OH_UNSUPPORTED, "device_inputs: backend %s has no row_select", backend->name);
}

/* A copy of what every run uploads, which mustn't wait for it: in pinned memory where the backend has some. */
static oh_status keep_for_upload(const oh_plan *plan, const char *what, const void *from, size_t bytes, void **kept,
                                 oh_error *error) {
    const oh_backend *backend = plan->context->backend;
    void *memory = NULL;
    if (backend->host_alloc) {
        const oh_status status = backend->host_alloc(plan->context->device, bytes, &memory);
        if (status != OH_OK) return oh_context_fail(plan->context, status, what, error);
    } else {
        memory = malloc(bytes);
        if (!memory) return oh_fail(error, OH_OUT_OF_MEMORY, "%s: out of memory", what);
    }
    memcpy(memory, from, bytes);
    *kept = memory;
    return OH_OK;
}

static void free_kept(const oh_plan *plan, void *kept) {
    if (kept && plan->context->backend->host_alloc)
        plan->context->backend->host_free(plan->context->device, kept);
    else
        free(kept);
}

static oh_status copy_subset(oh_plan *plan, oh_error *error) {
    const oh_request *r = &plan->request;
    if (!r->target_vocab) return OH_OK;
    if (!plan->context->backend->row_labels && !(plan->context->backend->caps & OH_CAP_HOST_MEMORY))
        return oh_fail(error, OH_UNSUPPORTED, "target_vocab %lld: backend %s has no vocabulary subsets (row_labels)",
                       (long long)r->target_vocab, plan->context->backend->name);
    if (!r->draft_to_target)
        return oh_fail(error, OH_INVALID_ARGUMENT, "draft_to_target: NULL, and target_vocab is %lld",
                       (long long)r->target_vocab);
    int64_t last = -1;
    for (int64_t i = 0; i < r->vocab; ++i) {
        const int64_t id = r->draft_to_target[i];
        if (id <= last || id >= r->target_vocab)
            return oh_fail(error, OH_BAD_DATA,
                           "draft_to_target[%lld] = %lld after %lld: expected ascending ids below target_vocab %lld",
                           (long long)i, (long long)id, (long long)last, (long long)r->target_vocab);
        last = id;
    }
    void *subset = NULL;
    const oh_status status = keep_for_upload(plan, "draft_to_target", r->draft_to_target,
                                             (size_t)r->vocab * sizeof *plan->subset, &subset, error);
    if (status == OH_OK) plan->request.draft_to_target = plan->subset = subset;
    return status;
}

static oh_status make_bias_factor(oh_plan *plan, oh_error *error) {
    const oh_request *r = &plan->request;
    if (!(r->produce & OH_PRODUCE_BIAS_GRAD) || r->scale == 1) return OH_OK;
    const float factor = 1 / r->scale;
    void *kept = NULL;
    const oh_status status = keep_for_upload(plan, "the bias' factor", &factor, sizeof factor, &kept, error);
    if (status == OH_OK) plan->bias_factor = kept;
    return status;
}

static oh_status allocate(oh_plan *plan, oh_error *error) {
    const oh_layout *l = &plan->layout;
    oh_status status = allocate_selection(plan, error);
    if (status != OH_OK) return status;
    if (l->workspace_bytes == INT64_MAX || l->weight_bytes == INT64_MAX)
        return oh_fail(error, OH_OUT_OF_MEMORY, "workspace: its size does not fit 63 bits");
    if (!plan->request.external_workspace) {
        status = oh_context_alloc(plan->context, (uint64_t)l->workspace_bytes, "workspace", &plan->workspace, error);
        if (status != OH_OK) return status;
    }
    status = oh_context_alloc(plan->context, (uint64_t)l->weight_bytes, "converted weights", &plan->weights, error);
    if (status != OH_OK || l->weight_bytes == 0) return status;
    for (int kind = 0; kind < OH_WEIGHT_COUNT; ++kind)
        if (l->resident[kind]) plan->resident[kind].rows = (char *)plan->weights + l->resident_offset[kind];
    return OH_OK;
}

/* ----------------------------------------------------------------------------------------------------- public ---- */

oh_status oh_plan_create(oh_context *context, const oh_request *request, oh_plan **plan, oh_error *error) {
    if (!context || !request || !plan)
        return oh_fail(error, OH_INVALID_ARGUMENT, "oh_plan_create: context, request and plan must not be NULL");
    oh_plan *p = calloc(1, sizeof *p);
    if (!p) return oh_fail(error, OH_OUT_OF_MEMORY, "a plan: out of memory");
    p->context = context;
    oh_status status = oh_request_normalise(request, &p->request, error);
    if (status == OH_OK) status = look_at_machine(p, error);
    if (status == OH_OK) status = describe(p, error);
    if (status == OH_OK) status = check_device_inputs(p, error);
    if (status == OH_OK) status = copy_subset(p, error);
    if (status == OH_OK) status = make_bias_factor(p, error);
    if (status == OH_OK) status = allocate(p, error);
    if (status != OH_OK) {
        oh_plan_destroy(p);
        return status;
    }
    *plan = p;
    return OH_OK;
}

static oh_status describe_on(const oh_machine *machine, const oh_request *request, oh_plan **plan, oh_error *error) {
    if (!request || !plan)
        return oh_fail(error, OH_INVALID_ARGUMENT, "oh_plan_describe: request and plan must not be NULL");
    oh_plan *p = calloc(1, sizeof *p);
    if (!p) return oh_fail(error, OH_OUT_OF_MEMORY, "a plan: out of memory");
    p->machine = *machine;
    oh_status status = oh_request_normalise(request, &p->request, error);
    if (status == OH_OK) status = describe(p, error);
    if (status != OH_OK) {
        oh_plan_destroy(p);
        return status;
    }
    *plan = p;
    return OH_OK;
}

oh_status oh_plan_describe(const oh_request *request, oh_plan **plan, oh_error *error) {
    const oh_machine cpu = {.caps = OH_CAP_HOST_MEMORY, .gemm_kinds = OH_GEMM_F32_F32, .tile_formats = 0xf};
    return describe_on(&cpu, request, plan, error);
}

oh_status oh_plan_describe_for(const oh_backend *backend, const oh_request *request, oh_plan **plan, oh_error *error) {
    if (!backend) return oh_fail(error, OH_INVALID_ARGUMENT, "oh_plan_describe_for: backend must not be NULL");
    const oh_machine machine = machine_of(backend);
    return describe_on(&machine, request, plan, error);
}

void oh_plan_destroy(oh_plan *plan) {
    if (!plan) return;
    if (plan->queue) plan->context->backend->queue_close(plan->queue);
    if (plan->context) {
        oh_context_free(plan->context, plan->workspace);
        oh_context_free(plan->context, plan->weights);
    }
    oh_ring_close(&plan->ring);
    free(plan->selection.chunks);
    free(plan->selection.stamp);
    free(plan->selection.stamp_index);
    free(plan->host_sums);
    free_kept(plan, plan->subset);
    free_kept(plan, plan->bias_factor);
    free(plan);
}

const oh_plan_summary *oh_plan_get_summary(const oh_plan *plan) {
    return &plan->summary;
}

int64_t oh_plan_bytes(const oh_plan_summary *summary) {
    return oh_size_add(summary->workspace_bytes, summary->weight_bytes);
}

const oh_node *oh_plan_nodes(const oh_plan *plan, int merged, int64_t *count) {
    const oh_graph *graph = merged ? &plan->after : &plan->before;
    *count = graph->count;
    return graph->nodes;
}

const oh_plan_buffer *oh_plan_buffers(const oh_plan *plan, int64_t *count) {
    *count = plan->buffer_count;
    return plan->buffers;
}

const char *oh_plan_consumer_name(const oh_plan *plan, int32_t consumer) {
    return consumer >= 0 && consumer < plan->before.consumer_count ? plan->before.consumer[consumer] : NULL;
}

void oh_plan_weight_changed(oh_plan *plan) {
    for (int kind = 0; kind < OH_WEIGHT_COUNT; ++kind)
        plan->resident[kind].from = NULL;
}

void oh_plan_observe(oh_plan *plan, oh_tile_observer observer, void *user) {
    plan->observer = observer;
    plan->observer_user = user;
}

void oh_plan_trace(oh_plan *plan, oh_span_observer observer, void *user) {
    plan->tracer = observer;
    plan->tracer_user = user;
}

oh_status oh_plan_wait(oh_plan *plan, oh_error *error) {
    return plan->queue ? oh_op_wait(plan->context, plan->queue, error) : OH_OK;
}
