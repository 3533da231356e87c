/* ops.h - a backend's operations with the portable ones in the places it left NULL. */
#ifndef ONEHEAD_CORE_OPS_H
#define ONEHEAD_CORE_OPS_H

#include "context.h"

/* Each enqueues on `queue` and, on failure, says in `error` which operation failed and why. A portable operation waits
 * for the queue first and has run when the call returns. */
oh_status oh_op_upload(oh_context *c, oh_queue *queue, void *to, const void *from, uint64_t bytes, oh_error *error);
oh_status oh_op_download(oh_context *c, oh_queue *queue, void *to, const void *from, uint64_t bytes, oh_error *error);
oh_status oh_op_fill(oh_context *c, oh_queue *queue, void *to, int32_t byte, uint64_t bytes, oh_error *error);
oh_status oh_op_wait(oh_context *c, oh_queue *queue, oh_error *error);
/* Whether what is enqueued is recorded, to run when a graph is replayed, or never. */
int oh_op_is_capturing(const oh_context *c, oh_queue *queue);
oh_status oh_op_gemm(oh_context *c, oh_queue *queue, const oh_gemm *product, oh_error *error);
oh_status oh_op_copy_rows(oh_context *c, oh_queue *queue, const oh_copy_rows *copy, oh_error *error);
oh_status oh_op_matrix_norm(oh_context *c, oh_queue *queue, const oh_matrix_norm *norm, oh_error *error);
oh_status oh_op_tile_stats(oh_context *c, oh_queue *queue, const oh_tile_stats *stats, oh_error *error);
oh_status oh_op_tile_overlap(oh_context *c, oh_queue *queue, const oh_tile_overlap *overlap, oh_error *error);
oh_status oh_op_tile_grad(oh_context *c, oh_queue *queue, const oh_tile_grad *grad, oh_error *error);
oh_status oh_op_tile_grad_overlap(oh_context *c, oh_queue *queue, const oh_tile_grad_overlap *both, oh_error *error);
/* No portable one: three operations do the same. Whether the backend does it is asked first. */
int oh_op_takes_tile_stats_grad(const oh_context *c, const oh_tile_stats_grad *pass);
oh_status oh_op_tile_stats_grad(oh_context *c, oh_queue *queue, const oh_tile_stats_grad *pass, oh_error *error);
oh_status oh_op_row_finish(oh_context *c, oh_queue *queue, const oh_row_finish *finish, oh_error *error);
oh_status oh_op_step_finish(oh_context *c, oh_queue *queue, const oh_step_finish *finish, oh_error *error);
oh_status oh_op_row_labels(oh_context *c, oh_queue *queue, const oh_row_labels *labels, oh_error *error);
oh_status oh_op_tile_overflow(oh_context *c, oh_queue *queue, const oh_tile_overflow *overflow, oh_error *error);
oh_status oh_op_row_select(oh_context *c, oh_queue *queue, const oh_row_select *select, oh_error *error);

#endif
