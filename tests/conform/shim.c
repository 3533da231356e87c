/* shim.c - the portable operations as a plugin, right in everything or wrong in the one way that the environment variable
 * ONEHEAD_SHIM_DEFECT names: what the conformance kit must reject, and by which operation. */
#include "defects.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "portable/portable.h"

static const char *const names[DEFECT_COUNT] = {
#define NAME(name, text, op) [name] = text,
    DEFECTS(NAME)
#undef NAME
};

oh_status shim_fail(oh_queue *queue, oh_status status) {
    if (queue->device->defect == SILENT_REFUSAL) return status;
    queue->device->last.status = status;
    snprintf(queue->device->last.message, sizeof queue->device->last.message, "shim: refused with status %d",
             (int)status);
    return status;
}

/* ----------------------------------------------------------------------------------------------------- devices ---- */

static int32_t device_count(void) {
    return 1;
}

static oh_status refuse(oh_error *error, oh_status status, const char *message) {
    error->status = status;
    snprintf(error->message, sizeof error->message, "shim: %s", message);
    return status;
}

static oh_status device_open(const oh_device_options *options, const oh_host *host, oh_device **device,
                             oh_error *error) {
    (void)host;
    const char *wanted = getenv("ONEHEAD_SHIM_DEFECT");
    int defect = 0;
    while (wanted && defect < DEFECT_COUNT && strcmp(names[defect], wanted) != 0)
        ++defect;
    if (defect == DEFECT_COUNT) return refuse(error, OH_INVALID_ARGUMENT, "ONEHEAD_SHIM_DEFECT names no defect");
    if (options->index != 0 && defect != ANY_DEVICE) return refuse(error, OH_NO_BACKEND, "the only device is 0");
    *device = calloc(1, sizeof **device);
    if (!*device) return refuse(error, OH_OUT_OF_MEMORY, "out of memory");
    (*device)->defect = (defect_kind)defect;
    return OH_OK;
}

static void device_close(oh_device *device) {
    free(device);
}

static oh_status device_info(oh_device *device, oh_device_info *info) {
    memset(info, 0, sizeof *info);
    snprintf(info->name, sizeof info->name, "host processor");
    snprintf(info->kernel, sizeof info->kernel, "portable operations, defect: %s", names[device->defect]);
    return OH_OK;
}

static void last_error(oh_device *device, oh_error *error) {
    *error = device->last;
}

/* ------------------------------------------------------------------------------------------- queues and memory ---- */

static oh_status queue_open(oh_device *device, void *native, oh_queue **queue) {
    (void)native;
    *queue = calloc(1, sizeof **queue);
    if (!*queue) return OH_OUT_OF_MEMORY;
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

#define ALIGNMENT UINT64_C(256)

/* The misaligned block starts 64 bytes into its allocation, which stands 64 bytes before it. */
static oh_status alloc_memory(oh_device *device, uint64_t bytes, void **address) {
    oh_queue queue = {device};
    *address = NULL;
    if (bytes == 0 || bytes > (uint64_t)PTRDIFF_MAX - 2 * ALIGNMENT) return shim_fail(&queue, OH_INVALID_ARGUMENT);
    unsigned char *block = aligned_alloc(ALIGNMENT, (bytes + 2 * ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    if (!block) return shim_fail(&queue, OH_OUT_OF_MEMORY);
    *address = device->defect == MISALIGNED_ALLOC ? block + 64 : block;
    return OH_OK;
}

static void free_memory(oh_device *device, void *address) {
    if (!address) return;
    free(device->defect == MISALIGNED_ALLOC ? (unsigned char *)address - 64 : address);
}

static oh_status copy(oh_queue *queue, void *to, const void *from, uint64_t bytes) {
    (void)queue;
    memcpy(to, from, bytes);
    return OH_OK;
}

static oh_status fill(oh_queue *queue, void *to, int32_t byte, uint64_t bytes) {
    if (queue->device->defect != NO_WORK_FILL) memset(to, byte, bytes);
    return OH_OK;
}

/* ------------------------------------------------------------------------------------------------------ events ---- */

static oh_status event_open(oh_device *device, oh_event **event) {
    *event = calloc(1, sizeof **event);
    if (!*event) return OH_OUT_OF_MEMORY;
    (*event)->device = device;
    return OH_OK;
}

static void event_close(oh_event *event) {
    free(event);
}

static oh_status event_record(oh_queue *queue, oh_event *event) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    event->seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    if (queue->device->defect == CLOCK_STANDS) event->seconds = 1;
    return OH_OK;
}

static oh_status event_seconds(oh_event *from, oh_event *to, double *seconds) {
    oh_queue queue = {from->device};
    const int recorded = from->seconds > 0 && to->seconds > 0;
    if (!recorded && from->device->defect != NEVER_RECORDED) return shim_fail(&queue, OH_INVALID_ARGUMENT);
    *seconds = to->seconds - from->seconds;
    return OH_OK;
}

/* ------------------------------------------------------------------------------------------------------- table ---- */

static const oh_backend table = {
    .size = sizeof(oh_backend),
    .minor = OH_BACKEND_MINOR,
    .caps = OH_CAP_HOST_MEMORY | OH_CAP_DETERMINISTIC,
    .gemm_kinds = OH_GEMM_F32_F32 | OH_GEMM_BF16_F32 | OH_GEMM_F16_F32 | OH_GEMM_BF16_BF16 | OH_GEMM_F16_F16 |
                  OH_GEMM_F32_BF16_F32,
    .tile_formats = 1u << OH_TILE_F32 | 1u << OH_TILE_BF16 | 1u << OH_TILE_F16 | 1u << OH_TILE_DIFF,
    .name = "shim",
    .build = "the portable operations, for tests of the conformance kit",
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
    .gemm = shim_gemm,
    .copy_rows = shim_copy_rows,
    .matrix_norm = shim_matrix_norm,
    .tile_stats = shim_tile_stats,
    .tile_overlap = shim_tile_overlap,
    .tile_grad = shim_tile_grad,
    .row_finish = shim_row_finish,
    .step_finish = shim_step_finish,
    .row_labels = shim_row_labels,
    .event_open = event_open,
    .event_close = event_close,
    .event_record = event_record,
    .event_seconds = event_seconds,
    .tile_overflow = shim_tile_overflow,
    .tile_stats_grad_takes = shim_tile_stats_grad_takes,
    .tile_stats_grad = shim_tile_stats_grad,
};

__attribute__((visibility("default"))) const oh_backend *oh_backend_v1(void);
const oh_backend *oh_backend_v1(void) {
    return &table;
}
