/* tiles.c - copies and tile operations: the CPU backends' common work (tile_work.h), on this backend's threads. */
#include "device.h"
#include "tile_work.h"

static void run_part(void *work, int64_t part) {
    const tile_work *w = work;
    w->run(w, part);
}

static oh_status run(oh_queue *queue, oh_status status, tile_work *work, const oh_error *why) {
    if (status != OH_OK) return ob_fail(queue->device, status, "openblas: %s", why->message);
    if (work->parts > 0) ob_parallel(queue->device, work->parts, run_part, work);
    return OH_OK;
}

oh_status ob_tile_stats(oh_queue *queue, const oh_tile_stats *stats) {
    tile_work work;
    oh_error why;
    return run(queue, tile_stats_work(queue->device->kernels, stats, &work, &why), &work, &why);
}

oh_status ob_tile_overlap(oh_queue *queue, const oh_tile_overlap *overlap) {
    tile_work work;
    oh_error why;
    return run(queue, tile_overlap_work(queue->device->kernels, overlap, &work, &why), &work, &why);
}

oh_status ob_tile_grad(oh_queue *queue, const oh_tile_grad *grad) {
    tile_work work;
    oh_error why;
    return run(queue, tile_grad_work(queue->device->kernels, grad, &work, &why), &work, &why);
}

oh_status ob_tile_grad_overlap(oh_queue *queue, const oh_tile_grad_overlap *both) {
    tile_work work;
    oh_error why;
    return run(queue, tile_grad_overlap_work(queue->device->kernels, both, &work, &why), &work, &why);
}

oh_status ob_copy_rows(oh_queue *queue, const oh_copy_rows *copy) {
    tile_work work;
    oh_error why;
    return run(queue, tile_copy_work(queue->device->kernels, copy, &work, &why), &work, &why);
}

static void run_band(void *work, int64_t band) {
    tile_norm_band(work, band);
}

oh_status ob_matrix_norm(oh_queue *queue, const oh_matrix_norm *norm) {
    tile_norm work;
    oh_error why;
    const oh_status status = tile_norm_work(queue->device->kernels, norm, &work, &why);
    if (status != OH_OK) return ob_fail(queue->device, status, "openblas: %s", why.message);
    ob_parallel(queue->device, TILE_NORM_BANDS, run_band, &work);
    tile_norm_add(&work);
    return OH_OK;
}
