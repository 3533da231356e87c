/* plugin.c - the oneDNN backend: a CPU backend that multiplies bf16 as bf16 where the CPU does.
 *
 * What it claims
 *   gemm           f32 x f32 -> f32 everywhere. Where the CPU multiplies bf16 faster (AMX, AMD's AVX-512 BF16: device.c)
 *                  also bf16 x bf16 -> f32 and f32 x bf16 -> f32 (gemm.c): products of bf16 are exact in f32 and are
 *                  added up in f32. No f16: oneDNN 2.6 has none on CPUs.
 *   tile formats   f32, bf16, f16 and diff.
 *   deterministic  C's partition is a function of shape and threads, and each part is multiplied on one thread.
 *   calls return when their work is done; queues exist in name only.
 *
 * Threads: device_options.threads, else OpenMP's default. The caller's OpenMP settings are not changed. Devices are
 * independent of each other. A child after fork runs on one thread.
 *
 * Files: device.c, parallel.c (threads, fork), queue_memory.c, gemm.c (products), matmul.c (oneDNN's primitives),
 * tiles.c (copies and tiles). */
#include "device.h"

#ifndef ONEHEAD_BUILD_STRING
#define ONEHEAD_BUILD_STRING "built by hand"
#endif
#ifndef ONEHEAD_SANITIZER
#define ONEHEAD_SANITIZER ""
#endif

#if defined(ONEHEAD_ONEDNN_TILES)
#define TILES                                                                                                          \
    .copy_rows = on_copy_rows, .matrix_norm = on_matrix_norm, .tile_stats = on_tile_stats,                             \
    .tile_overlap = on_tile_overlap, .tile_grad = on_tile_grad, .tile_grad_overlap = on_tile_grad_overlap,
#else
#define TILES
#endif

/* What a table claims holds for the process, so there is one for each kind of CPU. */
#define TABLE(kinds)                                                                                                   \
    {                                                                                                                  \
        .size = sizeof(oh_backend), .minor = OH_BACKEND_MINOR, .caps = OH_CAP_HOST_MEMORY | OH_CAP_DETERMINISTIC,      \
        .gemm_kinds = (kinds),                                                                                         \
        .tile_formats = 1u << OH_TILE_F32 | 1u << OH_TILE_BF16 | 1u << OH_TILE_F16 | 1u << OH_TILE_DIFF,               \
        .name = "onednn", .build = ONEHEAD_BUILD_STRING, .sanitizer = ONEHEAD_SANITIZER,                               \
        .device_count = on_device_count, .device_open = on_device_open, .device_close = on_device_close,               \
        .device_info = on_device_info, .last_error = on_last_error, .queue_open = on_queue_open,                       \
        .queue_wait = on_queue_wait, .queue_close = on_queue_close, .alloc = on_alloc, .free = on_free,                \
        .upload = on_copy, .download = on_copy, .fill = on_fill, .gemm = on_gemm, .gemm_scratch = on_gemm_scratch,     \
        TILES                                                                                                          \
    }

static const oh_backend f32_table = TABLE(OH_GEMM_F32_F32);
static const oh_backend bf16_table = TABLE(OH_GEMM_F32_F32 | OH_GEMM_BF16_F32 | OH_GEMM_F32_BF16_F32);

__attribute__((visibility("default"))) const oh_backend *oh_backend_v1(void);

const oh_backend *oh_backend_v1(void) {
    return on_cpu_bf16() == ON_BF16_NONE ? &f32_table : &bf16_table;
}
