#include "step.h"

#include "error_line.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double step_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* --------------------------------------------------------------------------------------- to and from the device ---- */

static oh_status device_failure(const step *s, oh_status status, const char *what, oh_error *error) {
    oh_error said = {.status = status, .message = ""};
    s->backend->last_error(oh_context_device(s->context), &said);
    return error_line(error, status, s->backend->name, "%s: %s", what,
                      said.message[0] != '\0' ? said.message : oh_status_name(status));
}

static oh_status device_alloc(const step *s, uint64_t bytes, void **address, oh_error *error) {
    const oh_status status = s->backend->alloc(oh_context_device(s->context), bytes > 0 ? bytes : 1, address);
    return status == OH_OK ? OH_OK : device_failure(s, status, "memory for the batch", error);
}

/* The address on the device of `bytes` bytes that lie at `host`. */
static oh_status to_device(step *s, const void *host, int64_t bytes, const void **address, oh_error *error) {
    if (s->on_host || host == NULL) {
        *address = host;
        return OH_OK;
    }
    void *made;
    oh_status status = device_alloc(s, (uint64_t)bytes, &made, error);
    if (status != OH_OK) return status;
    s->uploaded[s->uploaded_count++] = made;
    *address = made;
    if (bytes == 0) return OH_OK;
    status = s->backend->upload(s->queue, made, host, (uint64_t)bytes);
    return status == OH_OK ? OH_OK : device_failure(s, status, "upload of the batch", error);
}

static oh_status matrix_to_device(step *s, const batch_matrix *matrix, const void **address, oh_error *error) {
    /* The file that holds the matrix was checked: its size in bytes fits. */
    return to_device(s, matrix->data, matrix->rows * matrix->columns * oh_dtype_size(matrix->dtype), address, error);
}

static oh_status fill_inputs(step *s, const batch *b, oh_error *error) {
    oh_inputs *const in = &s->inputs;
    in->rows = b->draft_hidden.rows;
    in->target_rows = b->target_hidden.rows;
    in->target_row = b->target_hidden.data != NULL ? b->target_row.data : NULL;
    in->target_row_dtype = b->target_row.dtype;
    in->label = b->label.data;
    in->label_dtype = b->label.dtype;
    in->mask = b->loss_mask.data;
    in->mask_dtype = b->loss_mask.dtype;

    const void *bias = NULL, *target_bias = NULL;
    oh_status status = OH_OK;
    if (in->lm_head == NULL) status = matrix_to_device(s, &b->lm_head, &in->lm_head, error);
    if (status == OH_OK) status = matrix_to_device(s, &b->draft_hidden, &in->draft_hidden, error);
    if (status == OH_OK) status = matrix_to_device(s, &b->target_hidden, &in->target_hidden, error);
    if (status == OH_OK) status = matrix_to_device(s, &b->target_lm_head, &in->target_lm_head, error);
    if (status == OH_OK) status = to_device(s, b->bias, b->lm_head.rows * (int64_t)sizeof(float), &bias, error);
    if (status == OH_OK)
        status = to_device(s, b->target_bias, b->lm_head.rows * (int64_t)sizeof(float), &target_bias, error);
    if (status != OH_OK) return status;
    in->bias = bias;
    in->target_bias = in->target_hidden == NULL ? NULL : target_bias != NULL ? target_bias : bias;
    if (s->on_host) return OH_OK;
    status = s->backend->queue_wait(s->queue);
    return status == OH_OK ? OH_OK : device_failure(s, status, "upload of the batch", error);
}

oh_status step_open(step *s, const batch *b, const char *backend, const options *o, oh_error *error) {
    memset(s, 0, sizeof *s);
    const oh_context_options wanted = {
        .backend = backend, .device = (int32_t)o->device, .threads = (int32_t)o->threads};
    oh_status status = oh_context_open(&wanted, &s->context, error);
    if (status != OH_OK) return status;
    s->backend = oh_context_backend(s->context);
    s->on_host = (s->backend->caps & OH_CAP_HOST_MEMORY) != 0;
    if (!s->on_host) {
        status = s->backend->queue_open(oh_context_device(s->context), NULL, &s->queue);
        if (status != OH_OK) device_failure(s, status, "a queue", error);
    }
    if (status == OH_OK) status = fill_inputs(s, b, error);
    if (status != OH_OK) step_close(s);
    return status;
}

oh_status step_use(step *s, const batch *b, bool same_weight, oh_error *error) {
    const int kept = same_weight && s->uploaded_count > 0 ? 1 : 0;
    while (s->uploaded_count > kept)
        s->backend->free(oh_context_device(s->context), s->uploaded[--s->uploaded_count]);
    s->inputs = (oh_inputs){.lm_head = same_weight ? s->inputs.lm_head : NULL};
    return fill_inputs(s, b, error);
}

void step_close(step *s) {
    if (s->context == NULL) return;
    for (int i = 0; i < s->uploaded_count; i++)
        s->backend->free(oh_context_device(s->context), s->uploaded[i]);
    if (s->queue != NULL) s->backend->queue_close(s->queue);
    oh_context_close(s->context);
    memset(s, 0, sizeof *s);
}

/* ------------------------------------------------------------------------------------------------------ outputs ---- */

/* The outputs: what asks for each, its columns, and where its pointer lies in both records. */
typedef enum output_columns { ONE_COLUMN, TOP_K_COLUMNS, HIDDEN_COLUMNS } output_columns;

typedef struct output_kind {
    uint32_t produce;
    output_columns columns;
    size_t in_result, in_outputs;
} output_kind;

#define OUTPUT(member, outputs_member) offsetof(step_result, member), offsetof(oh_outputs, outputs_member)
static const output_kind output_kinds[] = {
    {OH_PRODUCE_GRAD, HIDDEN_COLUMNS, OUTPUT(draft_grad, draft_grad)},
    {OH_PRODUCE_HEAD_GRAD, HIDDEN_COLUMNS, OUTPUT(head_grad, lm_head_grad)},
    {OH_PRODUCE_BIAS_GRAD, ONE_COLUMN, OUTPUT(bias_grad, bias_grad)},
    {OH_PRODUCE_ROWS, ONE_COLUMN, OUTPUT(row_loss, row_loss)},
    {OH_PRODUCE_ROWS, ONE_COLUMN, OUTPUT(weight, weight)},
    {OH_PRODUCE_ROWS, ONE_COLUMN, OUTPUT(label, label)},
    {OH_PRODUCE_ROWS, ONE_COLUMN, OUTPUT(argmax, argmax)},
    {OH_PRODUCE_ROWS, ONE_COLUMN, OUTPUT(rank, rank)},
    {OH_PRODUCE_TOP_K_ROWS, TOP_K_COLUMNS, OUTPUT(topk_id, topk_id)},
    {OH_PRODUCE_TOP_K_ROWS, TOP_K_COLUMNS, OUTPUT(topk_logprob, topk_logprob)},
};
#undef OUTPUT

enum { OUTPUT_KINDS = sizeof output_kinds / sizeof output_kinds[0] };

/* One output array: where it ends up on the host, and where the step writes it. */
typedef struct output_array {
    void *host, *device;
    uint64_t bytes;
} output_array;

typedef struct output_list {
    output_array arrays[OUTPUT_KINDS];
    int count;
} output_list;

static oh_status output_bytes(const output_kind *kind, const step_result *r, uint64_t *bytes, oh_error *error) {
    const int64_t rows = kind->produce & (OH_PRODUCE_HEAD_GRAD | OH_PRODUCE_BIAS_GRAD) ? r->vocab : r->rows;
    const int64_t columns = kind->columns == ONE_COLUMN ? 1 : kind->columns == TOP_K_COLUMNS ? r->top_k : r->hidden;
    const int64_t element = kind->produce == OH_PRODUCE_GRAD ? oh_dtype_size(r->grad_dtype) : 4; /* else f32, i32 */
    int64_t elements, size;
    if (__builtin_mul_overflow(rows, columns, &elements) || __builtin_mul_overflow(elements, element, &size))
        return error_line(error, OH_OUT_OF_MEMORY, "outputs", "more bytes than 64 bits can count");
    *bytes = (uint64_t)size;
    return OH_OK;
}

static oh_status make_outputs(const step *s, uint32_t produce, step_result *r, output_list *list, oh_outputs *out,
                              oh_error *error) {
    for (int i = 0; i < OUTPUT_KINDS; i++) {
        const output_kind *const kind = &output_kinds[i];
        if (!(produce & kind->produce)) continue;
        output_array array;
        oh_status status = output_bytes(kind, r, &array.bytes, error);
        if (status != OH_OK) return status;
        array.host = array.device = malloc(array.bytes > 0 ? array.bytes : 1);
        if (array.host == NULL)
            return error_line(error, OH_OUT_OF_MEMORY, "outputs", "out of memory, %" PRIu64 " bytes", array.bytes);
        memcpy((char *)r + kind->in_result, &array.host, sizeof array.host);
        if (!s->on_host) status = device_alloc(s, array.bytes, &array.device, error);
        if (status != OH_OK) return status;
        memcpy((char *)out + kind->in_outputs, &array.device, sizeof array.device);
        list->arrays[list->count++] = array;
    }
    return OH_OK;
}

static oh_status download_outputs(const step *s, const output_list *list, oh_error *error) {
    if (s->on_host) return OH_OK;
    oh_status status = OH_OK;
    for (int i = 0; i < list->count && status == OH_OK; i++) {
        const output_array *const array = &list->arrays[i];
        if (array->bytes > 0) status = s->backend->download(s->queue, array->host, array->device, array->bytes);
    }
    if (status == OH_OK) status = s->backend->queue_wait(s->queue);
    return status == OH_OK ? OH_OK : device_failure(s, status, "download of the outputs", error);
}

/* ---------------------------------------------------------------------------------------------------------- run ---- */

/* The slot arrays belong to the plan: copies outlive it. */
static oh_status keep_slots(step_result *r, oh_error *error) {
    oh_results *const figures = &r->figures;
    if (figures->slot_hits == NULL || figures->slot_count == NULL) return OH_OK;
    const size_t count = (size_t)figures->block_size;
    r->slots = calloc(2 * count, sizeof *r->slots);
    if (r->slots == NULL) return error_line(error, OH_OUT_OF_MEMORY, "slots", "out of memory");
    memcpy(r->slots, figures->slot_hits, count * sizeof *r->slots);
    memcpy(r->slots + count, figures->slot_count, count * sizeof *r->slots);
    figures->slot_hits = r->slots;
    figures->slot_count = r->slots + count;
    return OH_OK;
}

static oh_status run_once(step *s, const oh_request *request, step_result *r, oh_error *error) {
    const oh_objective *const objective = &request->objective;
    oh_plan *plan = NULL;
    output_list list = {.count = 0};
    oh_outputs out = {0};
    memset(r, 0, sizeof *r);
    r->rows = request->rows;
    r->hidden = request->hidden;
    r->vocab = request->vocab;
    r->top_k = objective->top_k_count > 0 ? objective->top_k[objective->top_k_count - 1] : 0;
    r->grad_dtype = request->grad_dtype;

    const double start = step_clock();
    oh_status status = oh_plan_create(s->context, request, &plan, error);
    if (status != OH_OK) goto done;
    r->plan = *oh_plan_get_summary(plan);
    r->plan_seconds = step_clock() - start;
    if (s->spans != NULL) {
        status = span_log_open(s->spans, s->backend, oh_context_device(s->context), error);
        if (status != OH_OK) goto done;
        oh_plan_trace(plan, span_log_observe, s->spans);
    }

    status = make_outputs(s, request->produce, r, &list, &out, error);
    if (status != OH_OK) goto done;
    const double begin = step_clock();
    status = oh_plan_run(plan, &s->inputs, &out, error);
    if (status == OH_OK) status = oh_plan_results(plan, &r->figures, error);
    r->run_seconds = step_clock() - begin;
    if (status == OH_OK && s->spans != NULL) status = span_log_read(s->spans, error);
    if (status == OH_OK) status = keep_slots(r, error);
    if (status == OH_OK) status = download_outputs(s, &list, error);

done:
    oh_plan_destroy(plan); /* waits: nothing writes the outputs any more */
    if (s->spans != NULL) span_log_stop(s->spans);
    for (int i = 0; i < list.count && !s->on_host; i++)
        s->backend->free(oh_context_device(s->context), list.arrays[i].device);
    if (status != OH_OK) step_result_free(r);
    return status;
}

oh_status step_run(step *s, const oh_request *request, step_result *r, oh_error *error) {
    oh_request given = *request;
    given.lm_head = s->inputs.lm_head;
    given.lm_head_ld = s->inputs.lm_head_ld;
    const oh_status status = run_once(s, &given, r, error);
    /* Logits over f16's range: from now on auto means f32. */
    return status == OH_OVERFLOW && request->tile == OH_TILE_AUTO ? run_once(s, &given, r, error) : status;
}

void step_result_free(step_result *r) {
    free(r->slots);
    free(r->draft_grad);
    free(r->head_grad);
    free(r->bias_grad);
    free(r->row_loss);
    free(r->weight);
    free(r->label);
    free(r->argmax);
    free(r->rank);
    free(r->topk_id);
    free(r->topk_logprob);
    memset(r, 0, sizeof *r);
}
