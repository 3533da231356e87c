/* device.h - what the parts of the OpenBLAS backend share: the device, its thread team and the table's functions. */
#ifndef ONEHEAD_OPENBLAS_DEVICE_H
#define ONEHEAD_OPENBLAS_DEVICE_H

#include "onehead/backend.h"

struct tile_kernels;

/* OpenBLAS keeps a buffer for each thread that is inside a call: room for 128 in Debian's build, more at the price of
 * a warning on stderr. */
#define OB_THREADS_DEFAULT_MAX 128
#define OB_THREADS_MAX 512

struct oh_device {
    const oh_host *host; /* the core's services, or NULL */
    int32_t threads;     /* logical: what products are partitioned for */
    int32_t buffers;     /* threads for whose buffers there was room */
    const struct tile_kernels *kernels;
    char kernel_line[256];
    oh_error error; /* the latest failure */
};

/* Work is done before a call returns, so a queue is only the way back to its device. */
struct oh_queue {
    oh_device *device;
};

/* Records a failure for last_error and returns its status. */
__attribute__((format(printf, 3, 4))) oh_status ob_fail(oh_device *device, oh_status status, const char *format, ...);

/* ------------------------------------------------------------------------------------------------- threads ---- */

/* Runs run(work, part) for every part in [0, parts), each exactly once, on up to device->threads threads, and returns
 * when all are done. Parts are handed out as threads come free: a part must not depend on who runs it or when. While
 * it runs, BLAS calls are single-threaded; the caller's own OpenMP settings are as before afterwards. */
void ob_parallel(oh_device *device, int64_t parts, void (*run)(void *work, int64_t part), void *work);

/* OpenMP's own number of threads for the calling thread. */
int32_t ob_default_threads(void);

/* Before `threads` of the device go into BLAS calls: OH_OUT_OF_MEMORY where there is no room for their buffers. */
oh_status ob_buffers_take(oh_device *device, int32_t threads);
/* No thread of the device will be inside any more. */
void ob_buffers_return(oh_device *device);

/* ----------------------------------------------------------------------------------- functions of the table ---- */

int32_t ob_device_count(void);
oh_status ob_device_open(const oh_device_options *options, const oh_host *host, oh_device **device, oh_error *error);
void ob_device_close(oh_device *device);
oh_status ob_device_info(oh_device *device, oh_device_info *info);
void ob_last_error(oh_device *device, oh_error *error);

oh_status ob_queue_open(oh_device *device, void *native, oh_queue **queue);
oh_status ob_queue_wait(oh_queue *queue);
void ob_queue_close(oh_queue *queue);
oh_status ob_alloc(oh_device *device, uint64_t bytes, void **address);
void ob_free(oh_device *device, void *address);
oh_status ob_upload(oh_queue *queue, void *to, const void *from_host, uint64_t bytes);
oh_status ob_download(oh_queue *queue, void *to_host, const void *from, uint64_t bytes);
oh_status ob_fill(oh_queue *queue, void *to, int32_t byte, uint64_t bytes);

oh_status ob_gemm(oh_queue *queue, const oh_gemm *product);
oh_status ob_copy_rows(oh_queue *queue, const oh_copy_rows *copy);
oh_status ob_matrix_norm(oh_queue *queue, const oh_matrix_norm *norm);
oh_status ob_tile_stats(oh_queue *queue, const oh_tile_stats *stats);
oh_status ob_tile_overlap(oh_queue *queue, const oh_tile_overlap *overlap);
oh_status ob_tile_grad(oh_queue *queue, const oh_tile_grad *grad);
oh_status ob_tile_grad_overlap(oh_queue *queue, const oh_tile_grad_overlap *both);
oh_status ob_row_finish(oh_queue *queue, const struct oh_row_finish *finish);
oh_status ob_step_finish(oh_queue *queue, const struct oh_step_finish *finish);
oh_status ob_row_labels(oh_queue *queue, const oh_row_labels *labels);

#endif
