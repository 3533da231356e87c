/* template.c - the smallest onehead backend: copy me.
 *
 * A GEMM, memory, a queue and a table. Device memory is host memory here, so the core's portable operations do the
 * rest; add operations of your own one at a time and run `onehead conform` after each. The contract of every entry is
 * in <onehead/backend.h>. Replace "template" by your backend's name here and in CMakeLists.txt. */
#include <onehead/backend.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct oh_device {
    oh_error last; /* of the latest call that failed */
};

struct oh_queue {
    oh_device *device;
};

static oh_status say(oh_error *error, oh_status status, const char *message) {
    error->status = status;
    snprintf(error->message, sizeof error->message, "template: %s", message);
    return status;
}

static oh_status fail(oh_device *device, oh_status status, const char *message) {
    return say(&device->last, status, message);
}

/* ----------------------------------------------------------------------------------------------------- devices ---- */

static int32_t device_count(void) {
    return 1;
}

static oh_status device_open(const oh_device_options *options, const oh_host *host, oh_device **device,
                             oh_error *error) {
    (void)host;
    if (options->index != 0) return say(error, OH_NO_BACKEND, "the only device is 0");
    *device = calloc(1, sizeof **device);
    return *device ? OH_OK : say(error, OH_OUT_OF_MEMORY, "no memory for a device");
}

static void device_close(oh_device *device) {
    free(device);
}

static oh_status device_info(oh_device *device, oh_device_info *info) {
    (void)device;
    memset(info, 0, sizeof *info);
    snprintf(info->name, sizeof info->name, "host processor, 1 thread");
    snprintf(info->kernel, sizeof info->kernel, "plain C loops");
    info->threads = 1;
    return OH_OK;
}

static void last_error(oh_device *device, oh_error *error) {
    *error = device->last;
}

/* ------------------------------------------------------------------------------------------- queues and memory ---- */

/* Every call below has finished when it returns, so a queue has nothing to wait for. */
static oh_status queue_open(oh_device *device, void *native, oh_queue **queue) {
    if (native) return fail(device, OH_UNSUPPORTED, "there are no streams to run on");
    *queue = calloc(1, sizeof **queue);
    if (!*queue) return fail(device, OH_OUT_OF_MEMORY, "no memory for a queue");
    (*queue)->device = device;
    return OH_OK;
}

static oh_status queue_wait(oh_queue *queue) {
    (void)queue;
    return OH_OK;
}

static void queue_close(oh_queue *queue) {
    free(queue);
}

static oh_status alloc_memory(oh_device *device, uint64_t bytes, void **address) {
    const uint64_t alignment = 256;
    *address = NULL;
    if (bytes == 0 || bytes > UINT64_MAX - alignment)
        return fail(device, OH_INVALID_ARGUMENT, "a size that can't be allocated");
    *address = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    return *address ? OH_OK : fail(device, OH_OUT_OF_MEMORY, "out of memory");
}

static void free_memory(oh_device *device, void *address) {
    (void)device;
    free(address);
}

static oh_status copy(oh_queue *queue, void *to, const void *from, uint64_t bytes) {
    if (bytes > 0 && (!to || !from)) return fail(queue->device, OH_INVALID_ARGUMENT, "copy of NULL");
    if (bytes > 0) memcpy(to, from, bytes);
    return OH_OK;
}

static oh_status fill(oh_queue *queue, void *to, int32_t byte, uint64_t bytes) {
    if (bytes > 0 && !to) return fail(queue->device, OH_INVALID_ARGUMENT, "fill of NULL");
    if (bytes > 0) memset(to, byte, bytes);
    return OH_OK;
}

/* -------------------------------------------------------------------------------------------------------- gemm ---- */

static int is_possible(const oh_gemm *g) {
    if (g->op < OH_GEMM_NT || g->op > OH_GEMM_TN || g->m < 0 || g->n < 0 || g->k < 0) return 0;
    if (g->a_dtype != OH_F32 || g->b_dtype != OH_F32 || g->c_dtype != OH_F32) return 0;
    if (g->m == 0 || g->n == 0) return 1;
    if (!g->c || g->ldc < g->n) return 0;
    if (g->k == 0) return 1;
    const int64_t a_columns = g->op == OH_GEMM_TN ? g->m : g->k, b_columns = g->op == OH_GEMM_NT ? g->k : g->n;
    return g->a && g->b && g->lda >= a_columns && g->ldb >= b_columns;
}

static oh_status gemm(oh_queue *queue, const oh_gemm *g) {
    if (!is_possible(g)) return fail(queue->device, OH_INVALID_ARGUMENT, "gemm with impossible arguments");
    /* How far apart the rows of C find their operands, and the terms of a sum theirs. */
    const int64_t a_row = g->op == OH_GEMM_TN ? 1 : g->lda, a_term = g->op == OH_GEMM_TN ? g->lda : 1;
    const int64_t b_column = g->op == OH_GEMM_NT ? g->ldb : 1, b_term = g->op == OH_GEMM_NT ? 1 : g->ldb;
    for (int64_t i = 0; i < g->m; ++i)
        for (int64_t j = 0; j < g->n; ++j) {
            const float *a = (const float *)g->a + i * a_row, *b = (const float *)g->b + j * b_column;
            float *c = (float *)g->c + i * g->ldc + j;
            double sum = g->accumulate ? (double)*c : 0; /* C may hold NaN where nothing is added to it */
            for (int64_t l = 0; l < g->k; ++l)
                sum += (double)a[l * a_term] * (double)b[l * b_term];
            *c = (float)sum;
        }
    return OH_OK;
}

/* ------------------------------------------------------------------------------------------------------- table ---- */

#ifndef ONEHEAD_SANITIZER
#define ONEHEAD_SANITIZER ""
#endif

static const oh_backend table = {
    .size = sizeof(oh_backend),
    .minor = OH_BACKEND_MINOR,
    .caps = OH_CAP_HOST_MEMORY | OH_CAP_DETERMINISTIC,
    .gemm_kinds = OH_GEMM_F32_F32,
    .tile_formats = 1u << OH_TILE_F32 | 1u << OH_TILE_BF16 | 1u << OH_TILE_F16 | 1u << OH_TILE_DIFF,
    .name = "template",
    .build = "template 1.0",
    .sanitizer = ONEHEAD_SANITIZER,
    .device_count = device_count,
    .device_open = device_open,
    .device_close = device_close,
    .device_info = device_info,
    .last_error = last_error,
    .queue_open = queue_open,
    .queue_wait = queue_wait,
    .queue_close = queue_close,
    .alloc = alloc_memory,
    .free = free_memory,
    .upload = copy,
    .download = copy,
    .fill = fill,
    .gemm = gemm,
};

__attribute__((visibility("default"))) const oh_backend *oh_backend_v1(void);
const oh_backend *oh_backend_v1(void) {
    return &table;
}
