#include "bench_copy.h"

#include "step.h"

enum { ROWS = 4096, COLUMNS = 16384, COPIES = 4 }; /* 256 MiB of f32 */

/* Seconds of `copies` copies that are waited for together; below 0 when one fails. */
static double time_copies(const oh_backend *backend, oh_queue *queue, const oh_copy_rows *copy, int copies) {
    const double start = step_clock();
    for (int i = 0; i < copies; i++) {
        if (backend->copy_rows(queue, copy) != OH_OK) return -1;
    }
    return backend->queue_wait(queue) == OH_OK ? step_clock() - start : -1;
}

double bench_copy_rate(const oh_backend *backend, oh_device *device) {
    const uint64_t bytes = (uint64_t)ROWS * COLUMNS * sizeof(float);
    oh_queue *queue = NULL;
    void *from = NULL, *to = NULL;
    double seconds = -1;
    if (backend->copy_rows == NULL || backend->queue_open(device, NULL, &queue) != OH_OK) return 0;
    if (backend->alloc(device, bytes, &from) == OH_OK && backend->alloc(device, bytes, &to) == OH_OK &&
        backend->fill(queue, from, 0, bytes) == OH_OK) {
        const oh_copy_rows copy = {.rows = ROWS,
                                   .columns = COLUMNS,
                                   .src = from,
                                   .src_ld = COLUMNS,
                                   .dst = to,
                                   .dst_ld = COLUMNS,
                                   .src_dtype = OH_F32,
                                   .dst_dtype = OH_F32};
        if (time_copies(backend, queue, &copy, 1) >= 0) seconds = time_copies(backend, queue, &copy, COPIES);
    }
    backend->queue_close(queue);
    backend->free(device, from);
    backend->free(device, to);
    return seconds > 0 ? 2.0 * (double)bytes * COPIES / seconds : 0;
}
