/* queue_memory.c - queues that have nothing to wait for, and host memory. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "device.h"

#define ALIGNMENT 256u
#define HUGE_PAGE ((uint64_t)2 << 20)

oh_status on_queue_open(oh_device *device, void *native, oh_queue **queue) {
    if (native) return on_fail(device, OH_INVALID_ARGUMENT, "a CPU has no native stream to queue on");
    oh_queue *q = malloc(sizeof *q);
    if (!q) return on_fail(device, OH_OUT_OF_MEMORY, "no memory for a queue of %zu bytes", sizeof *q);
    q->device = device;
    *queue = q;
    return OH_OK;
}

oh_status on_queue_wait(oh_queue *queue) {
    (void)queue;
    return OH_OK;
}

void on_queue_close(oh_queue *queue) {
    free(queue);
}

/* Tiles and weights are streamed through once a pass: with 4 KiB pages the walk through the page tables shows. */
oh_status on_alloc(oh_device *device, uint64_t bytes, void **address) {
    const uint64_t alignment = bytes >= 2 * HUGE_PAGE ? HUGE_PAGE : ALIGNMENT;
    if (bytes == 0 || bytes > (uint64_t)PTRDIFF_MAX - alignment)
        return on_fail(device, OH_INVALID_ARGUMENT, "alloc of %llu bytes, expected 1 to 2^63 - 2^21",
                       (unsigned long long)bytes);
    const uint64_t rounded = (bytes + alignment - 1) / alignment * alignment;
    void *block = aligned_alloc(alignment, rounded);
    if (!block) return on_fail(device, OH_OUT_OF_MEMORY, "the system has no %llu bytes", (unsigned long long)rounded);
#if defined(MADV_HUGEPAGE)
    /* Advice only: a kernel without huge pages refuses it and the memory is as good as before. */
    if (alignment == HUGE_PAGE) (void)madvise(block, rounded, MADV_HUGEPAGE);
#endif
    *address = block;
    return OH_OK;
}

void on_free(oh_device *device, void *address) {
    (void)device;
    free(address);
}

oh_status on_copy(oh_queue *queue, void *to, const void *from, uint64_t bytes) {
    if (bytes == 0) return OH_OK;
    if (!to || !from) return on_fail(queue->device, OH_INVALID_ARGUMENT, "a copy needs two addresses");
    memcpy(to, from, bytes);
    return OH_OK;
}

oh_status on_fill(oh_queue *queue, void *to, int32_t byte, uint64_t bytes) {
    if (bytes == 0) return OH_OK;
    if (!to) return on_fail(queue->device, OH_INVALID_ARGUMENT, "fill needs an address");
    memset(to, byte, bytes);
    return OH_OK;
}
