#include "bench_inputs.h"

#include "error_line.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A prime, so that multiples of a stride visit every offset before any twice: rows differ up to this many. */
#define POOL INT64_C(1048583)
#define STRIDE INT64_C(611953)
#define STAGING_BYTES (INT64_C(64) << 20)
#define LOGIT_SPREAD 2.0
/* The drafter's share of noise: cos(D, G) = sqrt(1 - DRAFT_NOISE^2). */
#define DRAFT_NOISE 0.1

static uint64_t next_random(uint64_t *state) { /* SplitMix64 */
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static double next_normal(uint64_t *state) { /* Box-Muller */
    const double u = ((double)(next_random(state) >> 11) + 1) * 0x1p-53, v = (double)(next_random(state) >> 11);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * 0x1p-53 * v);
}

static uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static uint16_t bf16_bits(float value) {
    const uint32_t bits = float_bits(value);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* For finite values below the largest f16. Results under its normal range are rounded there: adding 2^-1 to |value| in
 * units of 2^-24 leaves them in an f32's low bits. */
static uint16_t f16_bits(float value) {
    const uint32_t sign = float_bits(value) >> 16 & 0x8000u, size = float_bits(fabsf(value));
    if (size < 0x38800000u) return (uint16_t)(sign | (float_bits(fabsf(value) + 0.5f) - float_bits(0.5f)));
    return (uint16_t)(sign | ((size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13));
}

/* POOL normals times `scale` in `dtype`, of which the share `noise` is of a seed of its own; NULL when out of memory. */
static char *make_pool(int32_t dtype, double scale, double noise, uint64_t seed) {
    uint64_t noise_seed = seed ^ UINT64_C(0x5deece66d);
    const double kept = sqrt(1 - noise * noise);
    const size_t element = (size_t)oh_dtype_size(dtype);
    char *const pool = malloc((size_t)POOL * element);
    if (pool == NULL) return NULL;
    for (int64_t i = 0; i < POOL; i++) {
        const float value =
            (float)(scale * (kept * next_normal(&seed) + (noise > 0 ? noise * next_normal(&noise_seed) : 0)));
        const uint16_t narrow = dtype == OH_BF16 ? bf16_bits(value) : f16_bits(value);
        if (dtype == OH_F32)
            memcpy(pool + (size_t)i * element, &value, element);
        else
            memcpy(pool + (size_t)i * element, &narrow, element);
    }
    return pool;
}

static void fill_row(char *row, int64_t columns, const char *pool, int64_t offset, int64_t element) {
    while (columns > 0) {
        const int64_t count = columns < POOL - offset ? columns : POOL - offset;
        memcpy(row, pool + offset * element, (size_t)(count * element));
        row += count * element;
        columns -= count;
        offset = 0;
    }
}

static oh_status failed(bench_inputs *b, oh_status status, const char *what, oh_error *error) {
    oh_error said = {.message = ""};
    b->backend->last_error(b->device, &said);
    return error_line(error, status, b->backend->name, "%s: %s", what,
                      said.message[0] != '\0' ? said.message : oh_status_name(status));
}

static oh_status device_memory(bench_inputs *b, int64_t bytes, void **address, oh_error *error) {
    const oh_status status = b->backend->alloc(b->device, bytes > 0 ? (uint64_t)bytes : 1, address);
    if (status != OH_OK) return failed(b, status, "memory for the inputs", error);
    b->tensors[b->tensor_count++] = *address;
    return OH_OK;
}

typedef struct matrix {
    int64_t rows, columns;
    int32_t dtype;
} matrix;

static oh_status upload_rows(bench_inputs *b, oh_queue *queue, const matrix *m, const char *pool, char *to,
                             oh_error *error) {
    const int64_t element = oh_dtype_size(m->dtype), row_bytes = m->columns * element;
    const int64_t step = STAGING_BYTES > row_bytes ? STAGING_BYTES / row_bytes : 1;
    char *const staging = malloc((size_t)(step * row_bytes));
    if (staging == NULL) return error_line(error, OH_OUT_OF_MEMORY, "inputs", "out of memory");
    oh_status status = OH_OK;
    for (int64_t first = 0; first < m->rows && status == OH_OK; first += step) {
        const int64_t rows = m->rows - first < step ? m->rows - first : step;
        for (int64_t i = 0; i < rows; i++)
            fill_row(staging + i * row_bytes, m->columns, pool, (first + i) * STRIDE % POOL, element);
        status = b->backend->upload(queue, to + first * row_bytes, staging, (uint64_t)(rows * row_bytes));
        if (status == OH_OK) status = b->backend->queue_wait(queue);
    }
    free(staging);
    return status == OH_OK ? OH_OK : failed(b, status, "upload of the inputs", error);
}

static oh_status make_matrix(bench_inputs *b, oh_queue *queue, const matrix *m, const char *pool, const void **at,
                             oh_error *error) {
    int64_t elements, bytes;
    if (__builtin_mul_overflow(m->rows, m->columns, &elements) ||
        __builtin_mul_overflow(elements, oh_dtype_size(m->dtype), &bytes))
        return error_line(error, OH_OUT_OF_MEMORY, "inputs", "more bytes than 63 bits can count");
    void *to;
    const oh_status status = device_memory(b, bytes, &to, error);
    if (status != OH_OK) return status;
    *at = to;
    return upload_rows(b, queue, m, pool, to, error);
}

static oh_status make_tensors(bench_inputs *b, oh_queue *queue, const oh_request *r, uint64_t seed, oh_error *error) {
    const double scale = LOGIT_SPREAD / sqrt((double)r->hidden);
    char *const drafter = make_pool(r->hidden_dtype, 1, DRAFT_NOISE, seed);
    char *const target_model = make_pool(r->hidden_dtype, 1, 0, seed);
    char *const weight = make_pool(r->weight_dtype, scale, 0, ~seed);
    const matrix draft = {r->rows, r->hidden, r->hidden_dtype};
    const matrix target = {r->target_rows, r->hidden, r->hidden_dtype};
    const matrix head = {r->vocab, r->hidden, r->weight_dtype};
    oh_status status = OH_OK;
    if (drafter == NULL || target_model == NULL || weight == NULL)
        status = error_line(error, OH_OUT_OF_MEMORY, "inputs", "out of memory");
    if (status == OH_OK) status = make_matrix(b, queue, &draft, drafter, &b->in.draft_hidden, error);
    if (status == OH_OK && r->target_rows > 0)
        status = make_matrix(b, queue, &target, target_model, &b->in.target_hidden, error);
    if (status == OH_OK) status = make_matrix(b, queue, &head, weight, &b->in.lm_head, error);
    free(drafter);
    free(target_model);
    free(weight);
    return status;
}

static oh_status make_maps(bench_inputs *b, const oh_request *r, uint64_t seed, oh_error *error) {
    b->label = calloc((size_t)r->rows, sizeof *b->label);
    if (b->label == NULL) return error_line(error, OH_OUT_OF_MEMORY, "inputs", "out of memory");
    const int64_t valid = r->vocab_valid > 0 ? r->vocab_valid : r->vocab;
    for (int64_t i = 0; i < r->rows; i++)
        b->label[i] = (int32_t)(next_random(&seed) % (uint64_t)valid);
    b->in.label = b->label;
    b->in.label_dtype = OH_I32;
    if (r->target_rows == 0 || r->target_rows == r->rows) return OH_OK;
    b->target_row = calloc((size_t)r->rows, sizeof *b->target_row);
    if (b->target_row == NULL) return error_line(error, OH_OUT_OF_MEMORY, "inputs", "out of memory");
    for (int64_t i = 0; i < r->rows; i++)
        b->target_row[i] = (int32_t)(i % r->target_rows);
    b->in.target_row = b->target_row;
    b->in.target_row_dtype = OH_I32;
    return OH_OK;
}

static oh_status make_outputs(bench_inputs *b, const oh_request *r, oh_error *error) {
    oh_status status = device_memory(b, r->rows * r->hidden * 4, &b->out.draft_grad, error);
    if (status != OH_OK || !(r->produce & OH_PRODUCE_HEAD_GRAD)) return status;
    void *head;
    status = device_memory(b, r->vocab * r->hidden * 4, &head, error);
    if (status == OH_OK) b->out.lm_head_grad = head;
    return status;
}

oh_status bench_inputs_open(bench_inputs *b, oh_context *context, const oh_request *r, uint64_t seed, oh_error *error) {
    memset(b, 0, sizeof *b);
    b->backend = oh_context_backend(context);
    b->device = oh_context_device(context);
    b->in.rows = r->rows;
    b->in.target_rows = r->target_rows;
    oh_queue *queue;
    oh_status status = b->backend->queue_open(b->device, NULL, &queue);
    if (status != OH_OK) {
        status = failed(b, status, "a queue", error);
    } else {
        status = make_tensors(b, queue, r, seed, error);
        b->backend->queue_close(queue);
    }
    if (status == OH_OK) status = make_maps(b, r, seed, error);
    if (status == OH_OK) status = make_outputs(b, r, error);
    if (status != OH_OK) bench_inputs_close(b);
    return status;
}

void bench_inputs_close(bench_inputs *b) {
    for (int i = 0; i < b->tensor_count; i++)
        b->backend->free(b->device, b->tensors[i]);
    free(b->label);
    free(b->target_row);
    memset(b, 0, sizeof *b);
}
