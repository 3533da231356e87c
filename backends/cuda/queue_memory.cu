/* queue_memory.cu - streams, memory and copies. */
#include <cstdlib>

#include "device.h"

/* ------------------------------------------------------------------------------------------------------ queues ---- */

oh_status cuda_queue_open(oh_device *device, void *native, oh_queue **queue) {
    if (device->fault != OH_OK) return device->fault;
    oh_queue *opened = (oh_queue *)calloc(1, sizeof *opened);
    if (!opened) return device_fail(device, OH_OUT_OF_MEMORY, "cuda: no memory for a queue's record");
    opened->device = device;
    opened->stream = (cudaStream_t)native;
    if (!native) {
        const device_guard guard(device);
        opened->own = 1;
        const oh_status status =
            device_check(device, cudaStreamCreateWithFlags(&opened->stream, cudaStreamNonBlocking), "opening a stream");
        if (status != OH_OK) {
            free(opened);
            return status;
        }
    }
    *queue = opened;
    return OH_OK;
}

oh_status cuda_queue_wait(oh_queue *queue) {
    const device_guard guard(queue->device);
    if (queue->device->fault != OH_OK) return queue->device->fault;
    return device_check(queue->device, cudaStreamSynchronize(queue->stream), "waiting for the stream");
}

int32_t cuda_queue_is_capturing(oh_queue *queue) {
    const device_guard guard(queue->device);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (device_check(queue->device, cudaStreamIsCapturing(queue->stream, &capture), "asking for a capture") != OH_OK)
        return 0;
    return capture == cudaStreamCaptureStatusActive;
}

/* Waits for a stream while another one of this thread may be under capture: CUDA forbids that in the global mode, lest the
 * wait belong into the graph, which this one doesn't. A stream that is captured itself has nothing to wait for. */
static void wait_beside_capture(oh_queue *queue) {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    (void)device_check(queue->device, cudaThreadExchangeStreamCaptureMode(&mode), "leaving the capture mode");
    if (!cuda_queue_is_capturing(queue))
        (void)device_check(queue->device, cudaStreamSynchronize(queue->stream), "waiting for the stream");
    (void)device_check(queue->device, cudaThreadExchangeStreamCaptureMode(&mode), "restoring the capture mode");
}

void cuda_queue_close(oh_queue *queue) {
    if (!queue) return;
    {
        const device_guard guard(queue->device);
        wait_beside_capture(queue);
        if (queue->own) (void)device_check(queue->device, cudaStreamDestroy(queue->stream), "closing a stream");
    }
    free(queue);
}

/* ------------------------------------------------------------------------------------------------------ memory ---- */

oh_status cuda_alloc(oh_device *device, uint64_t bytes, void **address) {
    *address = NULL;
    if (device->fault != OH_OK) return device->fault;
    if (bytes == 0) return device_fail(device, OH_INVALID_ARGUMENT, "cuda: an allocation of 0 bytes");
    const device_guard guard(device);
    const cudaError_t error = cudaMalloc(address, bytes);
    if (error != cudaErrorMemoryAllocation) return device_check(device, error, "allocating memory");
    (void)cudaGetLastError();
    size_t available = 0, total = 0;
    (void)cudaMemGetInfo(&available, &total);
    return device_fail(device, OH_OUT_OF_MEMORY, "cuda: device %d has no %llu bytes: %zu of %zu are free",
                       device->index, (unsigned long long)bytes, available, total);
}

void cuda_free(oh_device *device, void *address) {
    if (!address) return;
    const device_guard guard(device);
    (void)device_check(device, cudaFree(address), "freeing memory");
}

oh_status cuda_host_alloc(oh_device *device, uint64_t bytes, void **address) {
    *address = NULL;
    if (device->fault != OH_OK) return device->fault;
    if (bytes == 0) return device_fail(device, OH_INVALID_ARGUMENT, "cuda: an allocation of 0 bytes");
    const device_guard guard(device);
    return device_check(device, cudaHostAlloc(address, bytes, cudaHostAllocPortable), "allocating pinned host memory");
}

void cuda_host_free(oh_device *device, void *address) {
    if (!address) return;
    const device_guard guard(device);
    (void)device_check(device, cudaFreeHost(address), "freeing pinned host memory");
}

/* ------------------------------------------------------------------------------------------------------ copies ---- */

static oh_status copy(oh_queue *queue, void *to, const void *from, uint64_t bytes, cudaMemcpyKind kind,
                      const char *what) {
    if (queue_ready(queue) != OH_OK) return queue_ready(queue);
    if (bytes == 0) return OH_OK;
    if (!to || !from) return queue_refuse(queue, what);
    const device_guard guard(queue->device);
    return device_check(queue->device, cudaMemcpyAsync(to, from, bytes, kind, queue->stream), what);
}

oh_status cuda_upload(oh_queue *queue, void *to, const void *from_host, uint64_t bytes) {
    return copy(queue, to, from_host, bytes, cudaMemcpyHostToDevice, "upload");
}

oh_status cuda_download(oh_queue *queue, void *to_host, const void *from, uint64_t bytes) {
    return copy(queue, to_host, from, bytes, cudaMemcpyDeviceToHost, "download");
}

oh_status cuda_fill(oh_queue *queue, void *to, int32_t byte, uint64_t bytes) {
    if (queue_ready(queue) != OH_OK) return queue_ready(queue);
    if (bytes == 0) return OH_OK;
    if (!to) return queue_refuse(queue, "fill");
    const device_guard guard(queue->device);
    return device_check(queue->device, cudaMemsetAsync(to, byte, bytes, queue->stream), "fill");
}
