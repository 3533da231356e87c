/* defects.h - every way in which the shim can be wrong, and what its parts share. */
#ifndef ONEHEAD_TESTS_CONFORM_DEFECTS_H
#define ONEHEAD_TESTS_CONFORM_DEFECTS_H

#include <onehead/rowmath.h>

/* X(constant, name, the operation that the kit must reject). The list is read by CMake too: one a line. */
#define DEFECTS(X)                                                                                                     \
    X(NO_DEFECT, "none", none)                                                                                         \
    X(ANY_DEVICE, "any-device", device)                                                                                \
    X(MISALIGNED_ALLOC, "misaligned-alloc", memory)                                                                    \
    X(NO_WORK_FILL, "no-work-fill", memory)                                                                            \
    X(CLOCK_STANDS, "clock-stands", event)                                                                             \
    X(NEVER_RECORDED, "never-recorded", event)                                                                         \
    X(NO_WORK_GEMM, "no-work-gemm", gemm)                                                                              \
    X(BETA_READS_C, "beta-reads-c", gemm)                                                                              \
    X(ROW_OFF_TWICE_THE_BOUND, "row-off-twice-the-bound", gemm)                                                        \
    X(ROW_OFF_IN_THE_BOUND, "row-off-in-the-bound", gemm)                                                              \
    X(TF32, "tf32", gemm)                                                                                              \
    X(PAST_END_GEMM, "past-end-gemm", gemm)                                                                            \
    X(BETWEEN_ROWS_GEMM, "between-rows-gemm", gemm)                                                                    \
    X(OFFSET_32_GEMM, "offset-32-gemm", gemm)                                                                          \
    X(NOT_THREAD_SAFE_GEMM, "not-thread-safe-gemm", gemm)                                                              \
    X(SILENT_REFUSAL, "silent-refusal", gemm)                                                                          \
    X(CRASH, "crash", gemm)                                                                                            \
    X(NO_WORK_COPY_ROWS, "no-work-copy-rows", copy_rows)                                                               \
    X(TRUNCATES, "truncates", copy_rows)                                                                               \
    X(ZERO_SCALE_READS, "zero-scale-reads", copy_rows)                                                                 \
    X(PAST_END_COPY_ROWS, "past-end-copy-rows", copy_rows)                                                             \
    X(ACCEPTS_IMPOSSIBLE, "accepts-impossible", copy_rows)                                                             \
    X(INPUT_WRITTEN, "input-written", copy_rows)                                                                       \
    X(NO_WORK_MATRIX_NORM, "no-work-matrix-norm", matrix_norm)                                                         \
    X(NAN_LOST, "nan-lost", matrix_norm)                                                                               \
    X(NOT_DETERMINISTIC, "not-deterministic", matrix_norm)                                                             \
    X(NO_WORK_TILE_STATS, "no-work-tile-stats", tile_stats)                                                            \
    X(TIE_REVERSED, "tie-reversed", tile_stats)                                                                        \
    X(TOP_K_TIE_REVERSED, "top-k-tie-reversed", tile_stats)                                                            \
    X(LAST_COLUMN_DROPPED, "last-column-dropped", tile_stats)                                                          \
    X(MASK_IGNORED, "mask-ignored", tile_stats)                                                                        \
    X(PADDING_READ, "padding-read", tile_stats)                                                                        \
    X(STALE_STATISTICS, "stale-statistics", tile_stats)                                                                \
    X(PANEL_OFF_BY_ONE, "panel-off-by-one", tile_stats)                                                                \
    X(RESTART_IGNORED, "restart-ignored", tile_stats)                                                                  \
    X(TARGET_ROW_IGNORED, "target-row-ignored", tile_stats)                                                            \
    X(PAST_END_TILE_STATS, "past-end-tile-stats", tile_stats)                                                          \
    X(OFFSET_32_TILE_STATS, "offset-32-tile-stats", tile_stats)                                                        \
    X(NOT_THREAD_SAFE_TILE_STATS, "not-thread-safe-tile-stats", tile_stats)                                            \
    X(NO_WORK_TILE_OVERLAP, "no-work-tile-overlap", tile_overlap)                                                      \
    X(RANK_WITHOUT_TIES, "rank-without-ties", tile_overlap)                                                            \
    X(FULL_IGNORED, "full-ignored", tile_overlap)                                                                      \
    X(NO_WORK_TILE_GRAD, "no-work-tile-grad", tile_grad)                                                               \
    X(GRADIENT_SCALED_TWICE, "gradient-scaled-twice", tile_grad)                                                       \
    X(LABEL_OFF_BY_ONE, "label-off-by-one", tile_grad)                                                                 \
    X(PAST_END_TILE_GRAD, "past-end-tile-grad", tile_grad)                                                             \
    X(ZERO_ROWS_IGNORED, "zero-rows-ignored", tile_grad)                                                               \
    X(DONE_ROWS_WRITTEN, "done-rows-written", tile_grad)                                                               \
    X(NO_WORK_TILE_STATS_GRAD, "no-work-tile-stats-grad", tile_stats_grad)                                             \
    X(FLAGGED_ROWS_WRITTEN, "flagged-rows-written", tile_stats_grad)                                                   \
    X(LABEL_OF_THE_ROW_BEFORE, "label-of-the-row-before", tile_stats_grad)                                             \
    X(WRONG_NORMALISER, "wrong-normaliser", tile_stats_grad)                                                           \
    X(LAST_COLUMN_KEPT, "last-column-kept", tile_stats_grad)                                                           \
    X(UNLABELLED_NOT_ZEROED, "unlabelled-not-zeroed", tile_stats_grad)                                                 \
    X(TAKEN_AND_REFUSED, "taken-and-refused", tile_stats_grad)                                                         \
    X(WORKS_UNTAKEN, "works-untaken", tile_stats_grad)                                                                 \
    X(TAKES_SECOND_READ, "takes-second-read", tile_stats_grad)                                                         \
    X(NO_WORK_TILE_OVERFLOW, "no-work-tile-overflow", tile_overflow)                                                   \
    X(SOURCE_NOT_ASKED, "source-not-asked", tile_overflow)                                                             \
    X(FIRST_FROM_ZERO, "first-from-zero", tile_overflow)                                                               \
    X(FIRST_FORGOTTEN, "first-forgotten", tile_overflow)                                                               \
    X(FLAGS_REPLACED, "flags-replaced", tile_overflow)                                                                 \
    X(UNFLAGGED_SEARCHED, "unflagged-searched", tile_overflow)                                                         \
    X(FOUND_AGAIN, "found-again", tile_overflow)                                                                       \
    X(NEGATIVE_OVERLOOKED, "negative-overlooked", tile_overflow)                                                       \
    X(TARGET_NOT_SEARCHED, "target-not-searched", tile_overflow)                                                       \
    X(SUBTRACT_IGNORED, "subtract-ignored", tile_overflow)                                                             \
    X(WEIGHT_MAP_IGNORED, "weight-map-ignored", tile_overflow)                                                         \
    X(NOT_COUNTED, "not-counted", tile_overflow)                                                                       \
    X(EMPTY_PLACE_SEARCHED, "empty-place-searched", tile_overflow)                                                     \
    X(STATISTICS_WRITTEN, "statistics-written", tile_overflow)                                                         \
    X(IMPOSSIBLE_SEARCH, "impossible-search", tile_overflow)                                                           \
    X(NO_WORK_ROW_FINISH, "no-work-row-finish", row_finish)                                                            \
    X(LAST_BLOCK_DROPPED, "last-block-dropped", row_finish)                                                            \
    X(DONE_NOT_TOLD, "done-not-told", row_finish)                                                                      \
    X(NO_WORK_STEP_FINISH, "no-work-step-finish", step_finish)                                                         \
    X(DIVIDES_BY_ZERO, "divides-by-zero", step_finish)                                                                 \
    X(NO_WORK_ROW_LABELS, "no-work-row-labels", row_labels)                                                            \
    X(NEAREST_LABEL, "nearest-label", row_labels)

typedef enum defect_kind {
#define CONSTANT(name, text, op) name,
    DEFECTS(CONSTANT)
#undef CONSTANT
        DEFECT_COUNT
} defect_kind;

enum { STALE_MAX = 64 };

struct oh_device {
    oh_error last;
    defect_kind defect;
    int64_t calls;
    /* STALE_STATISTICS: the latest first read. */
    const void *stale_from;
    int64_t stale_columns;
    oh_row_stats stale[STALE_MAX];
};

struct oh_queue {
    oh_device *device;
};

struct oh_event {
    oh_device *device;
    double seconds; /* of the host's clock; 0: not recorded */
};

/* Leaves words for last_error, returns the status. */
oh_status shim_fail(oh_queue *queue, oh_status status);

oh_status shim_gemm(oh_queue *queue, const oh_gemm *product);
oh_status shim_copy_rows(oh_queue *queue, const oh_copy_rows *rows);
oh_status shim_matrix_norm(oh_queue *queue, const oh_matrix_norm *norm);
oh_status shim_tile_stats(oh_queue *queue, const oh_tile_stats *stats);
oh_status shim_tile_overlap(oh_queue *queue, const oh_tile_overlap *overlap);
oh_status shim_tile_grad(oh_queue *queue, const oh_tile_grad *grad);
int32_t shim_tile_stats_grad_takes(oh_device *device, const oh_tile_stats_grad *pass);
oh_status shim_tile_stats_grad(oh_queue *queue, const oh_tile_stats_grad *pass);
oh_status shim_tile_overflow(oh_queue *queue, const oh_tile_overflow *overflow);
oh_status shim_row_finish(oh_queue *queue, const oh_row_finish *finish);
oh_status shim_step_finish(oh_queue *queue, const oh_step_finish *finish);
oh_status shim_row_labels(oh_queue *queue, const oh_row_labels *labels);

#endif
