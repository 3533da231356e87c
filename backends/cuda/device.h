/* device.h - an open GPU, its queues, and how errors of CUDA and cuBLASLt become statuses. */
#ifndef ONEHEAD_CUDA_DEVICE_H
#define ONEHEAD_CUDA_DEVICE_H

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <onehead/backend.h>

#include "gemm.h"

/* How tile_stats_grad is launched, for the last shape that was asked for: blocks of a cluster, and clusters at a time. */
struct share_fit {
    const void *kernel;
    int64_t columns;
    int ranks, clusters;
};

struct oh_device {
    int index;
    int multiprocessors;
    size_t shared_bytes; /* of a multiprocessor's memory that its blocks share among them */
    cublasLtHandle_t cublas;
    oh_host host;
    oh_error last;    /* of the latest call that failed */
    oh_status fault;  /* a fault of the device: every later call returns it */
    gemm_table gemms; /* algorithms by shape */
    share_fit share;
};

struct oh_queue {
    oh_device *device;
    cudaStream_t stream;
    int own; /* not the caller's stream */
};

/* Makes a device the thread's current one for a scope: callers (PyTorch) have their own idea of which it is. */
class device_guard {
  public:
    explicit device_guard(const oh_device *device) {
        if (cudaGetDevice(&previous_) != cudaSuccess) previous_ = device->index;
        if (previous_ != device->index) cudaSetDevice(device->index);
        index_ = device->index;
    }
    ~device_guard() {
        if (previous_ != index_) cudaSetDevice(previous_);
    }
    device_guard(const device_guard &) = delete;
    device_guard &operator=(const device_guard &) = delete;

  private:
    int previous_ = 0, index_ = 0;
};

/* Records what failed and returns its status. */
oh_status device_fail(oh_device *device, oh_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
oh_status device_check(oh_device *device, cudaError_t error, const char *doing);
oh_status device_check_cublas(oh_device *device, cublasStatus_t error, const char *doing);

/* After a kernel launch. */
static inline oh_status queue_launched(oh_queue *queue, const char *kernel) {
    return device_check(queue->device, cudaGetLastError(), kernel);
}

/* A call on a device that has faulted enqueues nothing. */
static inline oh_status queue_ready(const oh_queue *queue) {
    return queue->device->fault;
}

static inline oh_status queue_refuse(oh_queue *queue, const char *what) {
    return device_fail(queue->device, OH_INVALID_ARGUMENT, "cuda: %s with impossible arguments", what);
}

int32_t cuda_device_count(void);
oh_status cuda_device_open(const oh_device_options *options, const oh_host *host, oh_device **device, oh_error *error);
void cuda_device_close(oh_device *device);
oh_status cuda_device_info(oh_device *device, oh_device_info *info);
void cuda_last_error(oh_device *device, oh_error *error);

oh_status cuda_queue_open(oh_device *device, void *native, oh_queue **queue);
oh_status cuda_queue_wait(oh_queue *queue);
int32_t cuda_queue_is_capturing(oh_queue *queue);
void cuda_queue_close(oh_queue *queue);
oh_status cuda_event_open(oh_device *device, oh_event **event);
void cuda_event_close(oh_event *event);
oh_status cuda_event_record(oh_queue *queue, oh_event *event);
oh_status cuda_event_seconds(oh_event *from, oh_event *to, double *seconds);
oh_status cuda_alloc(oh_device *device, uint64_t bytes, void **address);
void cuda_free(oh_device *device, void *address);
oh_status cuda_host_alloc(oh_device *device, uint64_t bytes, void **address);
void cuda_host_free(oh_device *device, void *address);
oh_status cuda_upload(oh_queue *queue, void *to, const void *from_host, uint64_t bytes);
oh_status cuda_download(oh_queue *queue, void *to_host, const void *from, uint64_t bytes);
oh_status cuda_fill(oh_queue *queue, void *to, int32_t byte, uint64_t bytes);

oh_status cuda_gemm(oh_queue *queue, const oh_gemm *product);
int64_t cuda_gemm_scratch(oh_device *device, const oh_gemm *product);
oh_status cuda_copy_rows(oh_queue *queue, const oh_copy_rows *copy);
oh_status cuda_matrix_norm(oh_queue *queue, const oh_matrix_norm *norm);
oh_status cuda_tile_stats(oh_queue *queue, const oh_tile_stats *stats);
oh_status cuda_tile_overlap(oh_queue *queue, const oh_tile_overlap *overlap);
oh_status cuda_tile_overflow(oh_queue *queue, const oh_tile_overflow *overflow);
oh_status cuda_tile_grad(oh_queue *queue, const oh_tile_grad *grad);
oh_status cuda_tile_grad_overlap(oh_queue *queue, const oh_tile_grad_overlap *both);
int32_t cuda_tile_stats_grad_takes(oh_device *device, const oh_tile_stats_grad *pass);
oh_status cuda_tile_stats_grad(oh_queue *queue, const oh_tile_stats_grad *pass);
oh_status cuda_row_finish(oh_queue *queue, const struct oh_row_finish *finish);
oh_status cuda_step_finish(oh_queue *queue, const struct oh_step_finish *finish);
oh_status cuda_row_labels(oh_queue *queue, const oh_row_labels *labels);
oh_status cuda_row_select(oh_queue *queue, const struct oh_row_select *select);

/* Loads kernels, and tables of them, onto the current device. CUDA loads a kernel when it is first launched, which may
 * wait for the device: a step must not, and a stream under capture can't. */
template <class... Arguments> static inline cudaError_t load_kernels(void (*kernel)(Arguments...)) {
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, (const void *)kernel);
}
template <class Entry, size_t COUNT> static inline cudaError_t load_kernels(const Entry (&table)[COUNT]) {
    for (const Entry &entry : table) {
        const cudaError_t error = load_kernels(entry);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}
template <class First, class... Rest> static inline cudaError_t load_kernels(const First &first, const Rest &...rest) {
    const cudaError_t error = load_kernels(first);
    return error == cudaSuccess ? load_kernels(rest...) : error;
}

/* Those of a file. */
cudaError_t copy_rows_load(void);
cudaError_t matrix_norm_load(void);
cudaError_t tile_stats_load(void);
cudaError_t tile_stats_grad_load(void);
cudaError_t tile_overflow_load(void);
cudaError_t tile_overlap_load(void);
cudaError_t tile_grad_load(void);
cudaError_t row_finish_load(void);
cudaError_t row_select_load(void);
cudaError_t gemm_plain_load(void);

#endif
