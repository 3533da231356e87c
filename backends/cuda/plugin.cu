/* plugin.cu - the table. */
#include "device.h"

static const oh_backend table = {
    .size = sizeof(oh_backend),
    .minor = OH_BACKEND_MINOR,
    .caps = OH_CAP_DETERMINISTIC | OH_CAP_CAPTURE,
    .gemm_kinds = OH_GEMM_F32_F32 | OH_GEMM_BF16_F32 | OH_GEMM_F16_F32 | OH_GEMM_BF16_BF16 | OH_GEMM_F16_F16,
    .tile_formats = 1u << OH_TILE_F32 | 1u << OH_TILE_BF16 | 1u << OH_TILE_F16 | 1u << OH_TILE_DIFF,
    .name = "cuda",
    .build = ONEHEAD_BUILD_STRING,
    .sanitizer = ONEHEAD_SANITIZER,
    .device_count = cuda_device_count,
    .device_open = cuda_device_open,
    .device_close = cuda_device_close,
    .device_info = cuda_device_info,
    .last_error = cuda_last_error,
    .queue_open = cuda_queue_open,
    .queue_wait = cuda_queue_wait,
    .queue_close = cuda_queue_close,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .upload = cuda_upload,
    .download = cuda_download,
    .fill = cuda_fill,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .gemm = cuda_gemm,
    .gemm_scratch = cuda_gemm_scratch,
    .copy_rows = cuda_copy_rows,
    .matrix_norm = cuda_matrix_norm,
    .tile_stats = cuda_tile_stats,
    .tile_overlap = cuda_tile_overlap,
    .tile_grad = cuda_tile_grad,
    .row_finish = cuda_row_finish,
    .step_finish = cuda_step_finish,
    .row_labels = cuda_row_labels,
    .queue_is_capturing = cuda_queue_is_capturing,
    .event_open = cuda_event_open,
    .event_close = cuda_event_close,
    .event_record = cuda_event_record,
    .event_seconds = cuda_event_seconds,
    .tile_overflow = cuda_tile_overflow,
    .row_select = cuda_row_select,
};

extern "C" __attribute__((visibility("default"))) const oh_backend *oh_backend_v1(void) {
    return &table;
}
