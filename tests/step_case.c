#include "step_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "context.h"

const oh_backend *oh_backend_v1(void); /* plugins/template/template.c */

static void *allocate(int64_t count, size_t element) {
    void *memory = calloc((size_t)(count > 0 ? count : 1), element);
    assert_non_null(memory);
    return memory;
}

static float *normals(draws *d, int64_t count, double spread) {
    float *values = allocate(count, sizeof *values);
    for (int64_t i = 0; i < count; ++i)
        values[i] = (float)(spread * draw_normal(d));
    return values;
}

void step_case_open(step_case *c, draws *d, int64_t blocks, int64_t block_size, int64_t hidden, int64_t vocab) {
    memset(c, 0, sizeof *c);
    c->rows = blocks * block_size;
    c->target_rows = c->rows / 2 + 1;
    c->draft = normals(d, c->rows * hidden, 1);
    c->target = normals(d, c->target_rows * hidden, 1);
    c->head = normals(d, vocab * hidden, 2 / sqrt((double)hidden));
    c->bias = normals(d, vocab, 1);
    c->mask = allocate(c->rows, sizeof *c->mask);
    c->target_row = allocate(c->rows, sizeof *c->target_row);
    c->label = allocate(c->rows, sizeof *c->label);
    for (int64_t i = 0; i < c->rows; ++i) {
        const int64_t kind = draw_below(d, 8);
        c->mask[i] = kind == 0 ? 0 : kind == 1 ? 0.5f : 1;
        c->target_row[i] = (int32_t)draw_below(d, c->target_rows);
        c->label[i] = draw_below(d, 16) == 0 ? -100 : (int32_t)draw_below(d, vocab);
    }
    oh_request *r = &c->request;
    oh_request_init(r);
    r->rows = c->rows;
    r->target_rows = c->target_rows;
    r->hidden = hidden;
    r->vocab = vocab;
    r->hidden_dtype = r->weight_dtype = r->target_weight_dtype = OH_F32;
    r->produce = OH_PRODUCE_LOSS | OH_PRODUCE_GRAD | OH_PRODUCE_METRICS | OH_PRODUCE_OVERLAP | OH_PRODUCE_TOP_K |
                 OH_PRODUCE_ROWS | OH_PRODUCE_TOP_K_ROWS | OH_PRODUCE_GRAD_NORM;
    r->objective.block_size = block_size;
    r->objective.first_slot = block_size > 1;
}

void step_case_close(step_case *c) {
    free(c->draft);
    free(c->target);
    free(c->head);
    free(c->bias);
    free(c->mask);
    free(c->target_row);
    free(c->label);
}

oh_inputs step_case_inputs(const step_case *c) {
    return (oh_inputs){.rows = c->rows,
                       .target_rows = c->request.target_rows ? c->target_rows : 0,
                       .draft_hidden = c->draft,
                       .target_hidden = c->request.target_rows ? c->target : NULL,
                       .lm_head = c->head,
                       .bias = c->bias,
                       .target_bias = c->bias,
                       .target_row = c->target_row,
                       .target_row_dtype = OH_I32,
                       .label = c->label,
                       .label_dtype = OH_I32,
                       .mask = c->mask,
                       .mask_dtype = OH_F32};
}

const oh_backend *step_context_table(void) {
    return oh_backend_v1();
}

oh_context *step_context_open(void) {
    const char *name = getenv("ONEHEAD_TEST_BACKEND");
    const oh_context_options options = {.backend = name, .table = name ? NULL : oh_backend_v1()};
    oh_context *context = NULL;
    oh_error error = {OH_OK, ""};
    if (oh_context_open(&options, &context, &error) != OH_OK) fail_msg("%s", error.message);
    return context;
}

static void quarters(draws *d, float *values, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
        values[i] = (float)(draw_below(d, 9) - 4) / 4;
}

void step_case_make_exact(step_case *c, draws *d) {
    quarters(d, c->draft, c->rows * c->request.hidden);
    quarters(d, c->target, c->target_rows * c->request.hidden);
    quarters(d, c->head, c->request.vocab * c->request.hidden);
    quarters(d, c->bias, c->request.vocab);
}

/* ----------------------------------------------------------------------------------- memory that isn't the host's -- */

enum { DEVICE_ARRAYS_MAX = 24 };

/* Device copies of a step's tensors; each remembers where it came from or goes to. */
typedef struct device_arrays {
    oh_context *context;
    oh_queue *queue;
    struct {
        void *device, *host;
        uint64_t bytes;
        int output;
    } array[DEVICE_ARRAYS_MAX];
    int count;
} device_arrays;

static void *on_device(device_arrays *d, const void *host, int64_t count, int output) {
    if (!host || count == 0) return NULL;
    assert_true(d->count < DEVICE_ARRAYS_MAX);
    const oh_backend *backend = oh_context_backend(d->context);
    const int i = d->count++;
    d->array[i].host = (void *)(uintptr_t)host;
    d->array[i].bytes = (uint64_t)count * 4;
    d->array[i].output = output;
    assert_int_equal(backend->alloc(d->context->device, d->array[i].bytes, &d->array[i].device), OH_OK);
    assert_int_equal(backend->upload(d->queue, d->array[i].device, host, d->array[i].bytes), OH_OK);
    return d->array[i].device;
}

static void move_to_device(device_arrays *d, const step_case *c, const oh_request *r, oh_inputs *in, oh_outputs *out) {
    const int64_t target_vocab = r->target_vocab ? r->target_vocab : r->vocab;
    const int64_t top_k = r->objective.top_k_count ? r->objective.top_k[r->objective.top_k_count - 1] : 0;
    assert_int_equal(oh_context_backend(d->context)->queue_open(d->context->device, NULL, &d->queue), OH_OK);
    in->draft_hidden = on_device(d, in->draft_hidden, c->rows * r->hidden, 0);
    in->target_hidden = on_device(d, in->target_hidden, c->target_rows * r->hidden, 0);
    in->lm_head = on_device(d, in->lm_head, r->vocab * r->hidden, 0);
    in->target_lm_head =
        on_device(d, in->target_lm_head, target_vocab * (r->target_hidden ? r->target_hidden : r->hidden), 0);
    in->bias = on_device(d, in->bias, r->vocab, 0);
    in->target_bias = on_device(d, r->has_target_bias ? in->target_bias : NULL, target_vocab, 0);
    if (r->device_inputs & OH_DEVICE_MASK) in->mask = on_device(d, in->mask, c->rows, 0);
    if (r->device_inputs & OH_DEVICE_LABEL) in->label = on_device(d, in->label, c->rows, 0);
    if (r->device_inputs & OH_DEVICE_TARGET_ROW) in->target_row = on_device(d, in->target_row, c->rows, 0);
    out->draft_grad = on_device(d, out->draft_grad, c->rows * r->hidden, 1);
    out->lm_head_grad = on_device(d, out->lm_head_grad, r->vocab * r->hidden, 1);
    out->bias_grad = on_device(d, out->bias_grad, r->vocab, 1);
    out->row_loss = on_device(d, out->row_loss, c->rows, 1);
    out->weight = on_device(d, out->weight, c->rows, 1);
    out->label = on_device(d, out->label, c->rows, 1);
    out->argmax = on_device(d, out->argmax, c->rows, 1);
    out->rank = on_device(d, out->rank, c->rows, 1);
    out->topk_id = on_device(d, out->topk_id, c->rows * top_k, 1);
    out->topk_logprob = on_device(d, out->topk_logprob, c->rows * top_k, 1);
}

static void move_back(device_arrays *d) {
    const oh_backend *backend = oh_context_backend(d->context);
    for (int i = 0; i < d->count; ++i)
        if (d->array[i].output)
            assert_int_equal(backend->download(d->queue, d->array[i].host, d->array[i].device, d->array[i].bytes),
                             OH_OK);
    assert_int_equal(backend->queue_wait(d->queue), OH_OK);
    for (int i = 0; i < d->count; ++i)
        backend->free(d->context->device, d->array[i].device);
    backend->queue_close(d->queue);
}

static void *poisoned(int64_t count) {
    void *memory = allocate(count, 4);
    memset(memory, 0xff, (size_t)count * 4); /* a NaN, or -1 */
    return memory;
}

void step_output_open(step_output *out, const step_case *c) {
    const oh_request *r = &c->request;
    memset(out, 0, sizeof *out);
    out->rows = c->rows;
    out->hidden = r->hidden;
    out->vocab = r->vocab;
    out->top_k = r->objective.top_k_count ? r->objective.top_k[r->objective.top_k_count - 1] : 0;
    out->grad = poisoned(c->rows * r->hidden);
    out->head_grad = poisoned(r->vocab * r->hidden);
    out->row_loss = poisoned(c->rows);
    out->weight = poisoned(c->rows);
    out->label = poisoned(c->rows);
    out->argmax = poisoned(c->rows);
    out->rank = poisoned(c->rows);
    out->topk_id = poisoned(c->rows * out->top_k);
    out->topk_logprob = poisoned(c->rows * out->top_k);
}

oh_outputs step_outputs(const step_output *out, const oh_request *r) {
    return (oh_outputs){.draft_grad = out->grad,
                        .lm_head_grad = r->produce & OH_PRODUCE_HEAD_GRAD ? out->head_grad : NULL,
                        .row_loss = out->row_loss,
                        .weight = out->weight,
                        .label = out->label,
                        .argmax = out->argmax,
                        .rank = out->rank,
                        .topk_id = out->topk_id,
                        .topk_logprob = out->topk_logprob};
}

void step_run(oh_context *context, const step_case *c, step_output *out) {
    step_run_observed(context, c, NULL, NULL, out);
}

void step_run_observed(oh_context *context, const step_case *c, oh_tile_observer observer, void *user,
                       step_output *out) {
    oh_plan *plan = NULL;
    oh_error error = {OH_OK, ""};
    step_output_open(out, c);
    oh_inputs inputs = step_case_inputs(c);
    oh_outputs outputs = step_outputs(out, &c->request);
    device_arrays device = {.context = context};
    const int elsewhere = !(oh_context_backend(context)->caps & OH_CAP_HOST_MEMORY);
    if (elsewhere) move_to_device(&device, c, &c->request, &inputs, &outputs);
    oh_status status = oh_plan_create(context, &c->request, &plan, &error);
    if (status == OH_OK) oh_plan_observe(plan, observer, user);
    if (status == OH_OK) status = oh_plan_run(plan, &inputs, &outputs, &error);
    if (status == OH_OK) status = oh_plan_results(plan, &out->results, &error);
    if (status != OH_OK) fail_msg("%s", error.message);
    if (elsewhere) move_back(&device);
    out->plan = *oh_plan_get_summary(plan);
    out->sum_count = oh_sum_count(&c->request.objective);
    out->sums = allocate(out->sum_count, sizeof *out->sums);
    /* What oh_plan_results read from the device; its slot arrays are the end of the sums. */
    memcpy(out->sums, out->results.slot_hits - oh_sum_slot_hits(&c->request.objective),
           (size_t)out->sum_count * sizeof *out->sums);
    out->results.slot_hits = out->sums + oh_sum_slot_hits(&c->request.objective);
    out->results.slot_count = out->sums + oh_sum_slot_count(&c->request.objective);
    oh_plan_destroy(plan);
}

oh_status step_run_plan(oh_context *context, const step_case *c, const oh_request *request, const oh_inputs *inputs,
                        const oh_outputs *outputs, oh_results *results, oh_error *error) {
    oh_plan *plan = NULL;
    oh_inputs in = *inputs;
    oh_outputs out = *outputs;
    device_arrays device = {.context = context};
    const int elsewhere = !(oh_context_backend(context)->caps & OH_CAP_HOST_MEMORY);
    if (elsewhere) move_to_device(&device, c, request, &in, &out);
    oh_status status = oh_plan_create(context, request, &plan, error);
    if (status == OH_OK) status = oh_plan_run(plan, &in, &out, error);
    if (status == OH_OK) status = oh_plan_results(plan, results, error);
    if (elsewhere) move_back(&device);
    oh_plan_destroy(plan);
    return status;
}

void step_output_close(step_output *out) {
    free(out->grad);
    free(out->head_grad);
    free(out->row_loss);
    free(out->weight);
    free(out->label);
    free(out->argmax);
    free(out->rank);
    free(out->topk_id);
    free(out->topk_logprob);
    free(out->sums);
}

double step_distance(const float *a, const float *b, int64_t count) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; ++i) {
        const double d = (double)a[i] - (double)b[i];
        difference += d * d;
        size += (double)b[i] * (double)b[i];
    }
    return difference == 0 ? 0 : sqrt(difference / size);
}

static int is_count(const oh_request *unused, int64_t index) {
    (void)unused;
    return index == OH_SUM_SUPERVISED || index == OH_SUM_NONFINITE || index == OH_SUM_FIRST_NONFINITE ||
           index == OH_SUM_BLOCKS || index >= OH_SUM_FIXED;
}

void step_assert_same(const step_output *a, const step_output *b, double bound, double grad_bound) {
    assert_int_equal(a->sum_count, b->sum_count);
    for (int64_t i = 0; i < a->sum_count; ++i) {
        const double difference = fabs(a->sums[i] - b->sums[i]);
        const double allowed = is_count(NULL, i) ? 0 : bound * fabs(b->sums[i]);
        if (!(difference <= allowed))
            fail_msg("sum %lld: %.17g and %.17g, bound %g relative", (long long)i, a->sums[i], b->sums[i], bound);
    }
    const double distance = step_distance(a->grad, b->grad, a->rows * a->hidden);
    if (!(distance <= grad_bound)) fail_msg("dD: %g apart, bound %g", distance, grad_bound);
    for (int64_t i = 0; i < a->rows; ++i) {
        assert_int_equal(a->label[i], b->label[i]);
        assert_int_equal(a->argmax[i], b->argmax[i]);
        assert_int_equal(a->rank[i], b->rank[i]);
        for (int64_t k = 0; k < a->top_k; ++k)
            assert_int_equal(a->topk_id[i * a->top_k + k], b->topk_id[i * a->top_k + k]);
    }
}
