/* device.h - what the parts of the oneDNN backend share: the device, its thread team, products that oneDNN has
 * compiled, and the table's functions. */
#ifndef ONEHEAD_ONEDNN_DEVICE_H
#define ONEHEAD_ONEDNN_DEVICE_H

#include <dnnl.h>
#include <onehead/backend.h>

struct matmul_cache;
struct tile_kernels;

/* Products of bf16 that are added up in f32, at a speed that makes them worth having. Read from the CPU once. */
typedef enum on_bf16 { ON_BF16_NONE = 0, ON_BF16_VECTOR = 1, ON_BF16_MATRIX = 2 } on_bf16; /* -, AVX-512, AMX */
on_bf16 on_cpu_bf16(void);

struct oh_device {
    const oh_host *host; /* the core's services, or NULL */
    int32_t threads;     /* what products are partitioned for */
    on_bf16 bf16;        /* of the CPU */
    dnnl_engine_t engine;
    dnnl_stream_t *streams; /* [threads]: one for each thread of a team */
    struct matmul_cache *matmuls;
    const struct tile_kernels *kernels; /* of tiles.c; NULL: the core's portable operations do its work */
    char kernel_line[256];
    oh_error error; /* the latest failure */
};

/* Work is done before a call returns, so a queue is only the way back to its device. */
struct oh_queue {
    oh_device *device;
};

/* Records a failure for last_error and returns its status. */
__attribute__((format(printf, 3, 4))) oh_status on_fail(oh_device *device, oh_status status, const char *format, ...);

/* ------------------------------------------------------------------------------------------------- threads ---- */

/* Runs run(work, part, member) for every part in [0, parts), each exactly once, on up to device->threads threads, and
 * returns when all are done. Parts are handed out as threads come free; `member` in [0, threads) is the one that runs
 * it. oneDNN uses one thread in each; the caller's OpenMP settings are as before afterwards. */
void on_parallel(const oh_device *device, int64_t parts, void (*run)(void *work, int64_t part, int32_t member),
                 void *work);

/* OpenMP's own number of threads for the calling thread. */
int32_t on_default_threads(void);

/* ----------------------------------------------------------------------------------- functions of the table ---- */

int32_t on_device_count(void);
oh_status on_device_open(const oh_device_options *options, const oh_host *host, oh_device **device, oh_error *error);
void on_device_close(oh_device *device);
oh_status on_device_info(oh_device *device, oh_device_info *info);
void on_last_error(oh_device *device, oh_error *error);

oh_status on_queue_open(oh_device *device, void *native, oh_queue **queue);
oh_status on_queue_wait(oh_queue *queue);
void on_queue_close(oh_queue *queue);
oh_status on_alloc(oh_device *device, uint64_t bytes, void **address);
void on_free(oh_device *device, void *address);
oh_status on_copy(oh_queue *queue, void *to, const void *from, uint64_t bytes); /* upload and download */
oh_status on_fill(oh_queue *queue, void *to, int32_t byte, uint64_t bytes);

oh_status on_gemm(oh_queue *queue, const oh_gemm *product);
int64_t on_gemm_scratch(oh_device *device, const oh_gemm *product);

/* tiles.c, where the build has the row kernels that it runs. */
const struct tile_kernels *on_kernels(void);
const char *on_kernels_name(const struct tile_kernels *kernels);
oh_status on_copy_rows(oh_queue *queue, const oh_copy_rows *copy);
oh_status on_matrix_norm(oh_queue *queue, const oh_matrix_norm *norm);
oh_status on_tile_stats(oh_queue *queue, const oh_tile_stats *stats);
oh_status on_tile_overlap(oh_queue *queue, const oh_tile_overlap *overlap);
oh_status on_tile_grad(oh_queue *queue, const oh_tile_grad *grad);
oh_status on_tile_grad_overlap(oh_queue *queue, const oh_tile_grad_overlap *both);

#endif
