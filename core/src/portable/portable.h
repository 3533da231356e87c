/* portable.h - the core's own operations on host memory, in plain C: they fill the entries that a plugin with
 * OH_CAP_HOST_MEMORY leaves NULL, and they are the reference that every backend is compared with.
 *
 * Each takes what the table's function of the same name takes (backend.h has the semantics), without a queue: it works
 * on the calling thread and has finished when it returns. No state, so any number of threads may call. Arguments that
 * can't be (negative sizes, NULL where something must be read or written, a row stride shorter than the row, an unknown
 * dtype, format or operation, top_k outside [0, OH_TOP_K_MAX]) give OH_INVALID_ARGUMENT and nothing is touched; what
 * arrays contain (maps, labels) is trusted as the contract states it. Matrices, tiles and biases need no alignment
 * beyond bytes; arrays that the core makes (maps, statistics, coefficients) are aligned to their type.
 *
 * Sizes of zero are fine everywhere and touch no data. */
#ifndef ONEHEAD_PORTABLE_H
#define ONEHEAD_PORTABLE_H

#include <onehead/backend.h>
#include <onehead/rowmath.h>

#ifdef OH_REAL_IS_DOUBLE
/* The same sources a second time, for derivative tests; see oh_real. */
#define oh_portable_tile_stats oh_portable_f64_tile_stats
#define oh_portable_tile_overlap oh_portable_f64_tile_overlap
#define oh_portable_tile_grad oh_portable_f64_tile_grad
#define oh_portable_tile_grad_overlap oh_portable_f64_tile_grad_overlap
#endif

/* The kinds of every OH_GEMM_*_* bit, all three operations, accumulated in f64. Needs no scratch. For tests: slow. */
oh_status oh_portable_gemm(const oh_gemm *product);

oh_status oh_portable_copy_rows(const oh_copy_rows *copy);

/* A NaN in the matrix makes both sums NaN: a largest value that hides it would pass for a good gradient. */
oh_status oh_portable_matrix_norm(const oh_matrix_norm *norm);

/* Panels may come in any order; each column once. */
oh_status oh_portable_tile_stats(const oh_tile_stats *stats);
oh_status oh_portable_tile_overlap(const oh_tile_overlap *overlap);
oh_status oh_portable_tile_grad(const oh_tile_grad *grad);
oh_status oh_portable_tile_grad_overlap(const oh_tile_grad_overlap *both);
oh_status oh_portable_tile_overflow(const oh_tile_overflow *overflow);

oh_status oh_portable_row_finish(const oh_row_finish *finish);
oh_status oh_portable_step_finish(const oh_step_finish *finish);
oh_status oh_portable_row_labels(const oh_row_labels *labels);
oh_status oh_portable_row_select(const oh_row_select *select);

#endif
