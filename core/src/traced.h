/* traced.h - ops.h for a step: each operation is shown to the plan's span observer, and all but products are left out
 * of a step of products only. */
#ifndef ONEHEAD_CORE_TRACED_H
#define ONEHEAD_CORE_TRACED_H

#include "step.h"

/* `kind` is an oh_span_kind where an operation serves several. */
oh_status oh_traced_gemm(oh_step *step, int32_t kind, const oh_gemm *product);
oh_status oh_traced_copy_rows(oh_step *step, int32_t kind, const oh_copy_rows *copy);
oh_status oh_traced_selection(oh_step *step, void *to); /* uploads the ring's block */
oh_status oh_traced_upload(oh_step *step, void *to, const void *from, uint64_t bytes);
oh_status oh_traced_fill(oh_step *step, void *to, int32_t byte, uint64_t bytes);
oh_status oh_traced_tile_stats(oh_step *step, const oh_tile_stats *stats);
oh_status oh_traced_tile_overflow(oh_step *step, const oh_tile_overflow *overflow);
oh_status oh_traced_tile_overlap(oh_step *step, const oh_tile_overlap *overlap);
/* is_rest: of rows that tile_stats_grad left, hardly ever any. It counts as no read of the tile. */
oh_status oh_traced_tile_grad(oh_step *step, const oh_tile_grad *grad, int is_rest);
oh_status oh_traced_tile_grad_overlap(oh_step *step, const oh_tile_grad_overlap *both);
oh_status oh_traced_tile_stats_grad(oh_step *step, const oh_tile_stats_grad *pass);
oh_status oh_traced_row_finish(oh_step *step, const oh_row_finish *finish);
oh_status oh_traced_row_select(oh_step *step, const oh_row_select *select);
oh_status oh_traced_row_labels(oh_step *step, const oh_row_labels *labels);
oh_status oh_traced_step_finish(oh_step *step, const oh_step_finish *finish);
oh_status oh_traced_matrix_norm(oh_step *step, const oh_matrix_norm *norm);

#endif
