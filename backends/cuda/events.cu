/* events.cu - moments of a stream by the GPU's clock. */
#include <cstdlib>

#include "device.h"

struct oh_event {
    oh_device *device;
    cudaEvent_t event;
};

oh_status cuda_event_open(oh_device *device, oh_event **event) {
    *event = NULL;
    if (device->fault != OH_OK) return device->fault;
    oh_event *opened = (oh_event *)calloc(1, sizeof *opened);
    if (!opened) return device_fail(device, OH_OUT_OF_MEMORY, "cuda: no memory for an event's record");
    opened->device = device;
    const device_guard guard(device);
    const oh_status status = device_check(device, cudaEventCreate(&opened->event), "opening an event");
    if (status != OH_OK) {
        free(opened);
        return status;
    }
    *event = opened;
    return OH_OK;
}

void cuda_event_close(oh_event *event) {
    if (!event) return;
    {
        const device_guard guard(event->device);
        (void)device_check(event->device, cudaEventDestroy(event->event), "closing an event");
    }
    free(event);
}

oh_status cuda_event_record(oh_queue *queue, oh_event *event) {
    if (queue_ready(queue) != OH_OK) return queue_ready(queue);
    const device_guard guard(queue->device);
    return device_check(queue->device, cudaEventRecord(event->event, queue->stream), "recording an event");
}

/* CUDA tells of an event that was not recorded, or whose moment is still ahead, by errors that are no faults. */
oh_status cuda_event_seconds(oh_event *from, oh_event *to, double *seconds) {
    oh_device *device = from->device;
    if (device->fault != OH_OK) return device->fault;
    const device_guard guard(device);
    float milliseconds = 0;
    const cudaError_t error = cudaEventElapsedTime(&milliseconds, from->event, to->event);
    if (error == cudaErrorInvalidResourceHandle || error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return device_fail(device, OH_INVALID_ARGUMENT, "cuda: the time between events of which one was not %s",
                           error == cudaErrorNotReady ? "reached yet" : "recorded");
    }
    *seconds = 1e-3 * (double)milliseconds;
    return device_check(device, error, "the time between events");
}
