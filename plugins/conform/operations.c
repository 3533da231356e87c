#include "operations.h"

#include "portable/portable.h"

oh_status kit_run_gemm(const kit_seat *seat, const void *arguments) {
    return seat->table->gemm(seat->queue, arguments);
}

#define RUN(name)                                                                                                      \
    oh_status kit_run_##name(const kit_seat *seat, const void *arguments) {                                            \
        if (seat->table->name) return seat->table->name(seat->queue, arguments);                                       \
        const oh_status waited = seat->table->queue_wait(seat->queue);                                                 \
        return waited == OH_OK ? oh_portable_##name(arguments) : waited;                                               \
    }

RUN(copy_rows)
RUN(matrix_norm)
RUN(tile_stats)
RUN(tile_overlap)
RUN(tile_grad)
RUN(row_finish)
RUN(step_finish)
RUN(row_labels)

oh_status kit_run_tile_grad_overlap(const kit_seat *seat, const void *arguments) {
    if (OH_BACKEND_HAS(seat->table, tile_grad_overlap)) return seat->table->tile_grad_overlap(seat->queue, arguments);
    const oh_status waited = seat->table->queue_wait(seat->queue);
    return waited == OH_OK ? oh_portable_tile_grad_overlap(arguments) : waited;
}

int kit_takes_tile_stats_grad(const kit_seat *seat, const oh_tile_stats_grad *pass) {
    return seat->table->tile_stats_grad_takes(seat->device, pass) != 0;
}

oh_status kit_run_tile_stats_grad(const kit_seat *seat, const void *arguments) {
    return seat->table->tile_stats_grad(seat->queue, arguments);
}

oh_status kit_run_tile_overflow(const kit_seat *seat, const void *arguments) {
    if (OH_BACKEND_HAS(seat->table, tile_overflow)) return seat->table->tile_overflow(seat->queue, arguments);
    const oh_status waited = seat->table->queue_wait(seat->queue);
    return waited == OH_OK ? oh_portable_tile_overflow(arguments) : waited;
}

oh_status kit_run_row_select(const kit_seat *seat, const void *arguments) {
    if (OH_BACKEND_HAS(seat->table, row_select)) return seat->table->row_select(seat->queue, arguments);
    const oh_status waited = seat->table->queue_wait(seat->queue);
    return waited == OH_OK ? oh_portable_row_select(arguments) : waited;
}
