/* operations.h - a backend's operations as the core runs them: the table's entry, or the portable operation once the
 * queue is empty. */
#ifndef ONEHEAD_CONFORM_OPERATIONS_H
#define ONEHEAD_CONFORM_OPERATIONS_H

#include <onehead/backend.h>
#include <onehead/rowmath.h>

/* Where a call runs. */
typedef struct kit_seat {
    const oh_backend *table;
    oh_device *device;
    oh_queue *queue;
} kit_seat;

/* Arguments are the struct of the same name in backend.h and rowmath.h. */
oh_status kit_run_gemm(const kit_seat *seat, const void *arguments);
oh_status kit_run_copy_rows(const kit_seat *seat, const void *arguments);
oh_status kit_run_matrix_norm(const kit_seat *seat, const void *arguments);
oh_status kit_run_tile_stats(const kit_seat *seat, const void *arguments);
oh_status kit_run_tile_overlap(const kit_seat *seat, const void *arguments);
oh_status kit_run_tile_grad(const kit_seat *seat, const void *arguments);
oh_status kit_run_tile_grad_overlap(const kit_seat *seat, const void *arguments);
/* No portable one; whether the table's takes the pass is asked first. */
int kit_takes_tile_stats_grad(const kit_seat *seat, const oh_tile_stats_grad *pass);
oh_status kit_run_tile_stats_grad(const kit_seat *seat, const void *arguments);
oh_status kit_run_tile_overflow(const kit_seat *seat, const void *arguments);
oh_status kit_run_row_finish(const kit_seat *seat, const void *arguments);
oh_status kit_run_step_finish(const kit_seat *seat, const void *arguments);
oh_status kit_run_row_labels(const kit_seat *seat, const void *arguments);
oh_status kit_run_row_select(const kit_seat *seat, const void *arguments);

#endif
