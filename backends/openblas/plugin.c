/* plugin.c - the OpenBLAS + OpenMP backend: the reference for CPUs.
 *
 * What it claims
 *   gemm           f32 x f32 -> f32 by OpenBLAS's OpenMP build; the core converts 16-bit weights by copy_rows first.
 *   tile formats   f32, bf16, f16 and diff, converted when a block of a row is read.
 *   everything else in the table, on any number of threads; no entry is left to the portable operations.
 *   deterministic  Tile, row and copy operations give the same bits for any number of threads, products for the same
 *                  number: C's partition is a function of shape and threads. Bits may differ between instruction sets.
 *   calls return when their work is done; queues exist in name only.
 *
 * Threads: device_options.threads, else OpenMP's default (OMP_NUM_THREADS, cores). Neither OpenBLAS's nor the caller's
 * OpenMP settings are changed. Devices are independent of each other. A child after fork runs on one thread.
 *
 * Environment: ONEHEAD_OPENBLAS_TILES = baseline, avx2 or avx512 overrides the tile kernels chosen by CPU. The product
 * kernel is OpenBLAS's own choice; device_info says which it is.
 *
 * Files: device.c, parallel.c (threads, fork), queue_memory.c, gemm.c, rows.c, tiles.c (copies and tiles, which are
 * backends/tiles's work). */
#include "device.h"

#ifndef ONEHEAD_BUILD_STRING
#define ONEHEAD_BUILD_STRING "built by hand"
#endif
#ifndef ONEHEAD_SANITIZER
#define ONEHEAD_SANITIZER ""
#endif

static const oh_backend backend = {
    .size = sizeof(oh_backend),
    .minor = OH_BACKEND_MINOR,
    .caps = OH_CAP_HOST_MEMORY | OH_CAP_DETERMINISTIC,
    .gemm_kinds = OH_GEMM_F32_F32,
    .tile_formats = 1u << OH_TILE_F32 | 1u << OH_TILE_BF16 | 1u << OH_TILE_F16 | 1u << OH_TILE_DIFF,
    .name = "openblas",
    .build = ONEHEAD_BUILD_STRING,
    .sanitizer = ONEHEAD_SANITIZER,
    .device_count = ob_device_count,
    .device_open = ob_device_open,
    .device_close = ob_device_close,
    .device_info = ob_device_info,
    .last_error = ob_last_error,
    .queue_open = ob_queue_open,
    .queue_wait = ob_queue_wait,
    .queue_close = ob_queue_close,
    .alloc = ob_alloc,
    .free = ob_free,
    .upload = ob_upload,
    .download = ob_download,
    .fill = ob_fill,
    .gemm = ob_gemm,
    .copy_rows = ob_copy_rows,
    .matrix_norm = ob_matrix_norm,
    .tile_stats = ob_tile_stats,
    .tile_overlap = ob_tile_overlap,
    .tile_grad = ob_tile_grad,
    .row_finish = ob_row_finish,
    .step_finish = ob_step_finish,
    .row_labels = ob_row_labels,
    .tile_grad_overlap = ob_tile_grad_overlap,
};

__attribute__((visibility("default"))) const oh_backend *oh_backend_v1(void);

const oh_backend *oh_backend_v1(void) {
    return &backend;
}
