/* The row operations: loops over rowmath.h, which has the algebra. */
#include "portable.h"

oh_status oh_portable_row_finish(const oh_row_finish *finish) {
    if (!finish || !oh_finish_valid(finish)) return OH_INVALID_ARGUMENT;
    if (finish->rows == 0) return OH_OK;
    const int64_t blocks = finish->rows / finish->objective.block_size, sums = oh_sum_count(&finish->objective);
    for (int64_t i = 0; i < finish->compact_rows; ++i)
        oh_finish_row(finish, i);
    for (int64_t b = 0; b < blocks; ++b)
        oh_finish_block(finish, b);
    for (int64_t k = 0; k < sums; ++k)
        oh_finish_sum(finish, k);
    return OH_OK;
}

oh_status oh_portable_step_finish(const oh_step_finish *finish) {
    if (!finish || !oh_objective_valid(&finish->objective) || !finish->sums || !finish->loss || !finish->factor)
        return OH_INVALID_ARGUMENT;
    oh_step_close(finish);
    return OH_OK;
}

oh_status oh_portable_row_labels(const oh_row_labels *labels) {
    if (!labels || !oh_labels_valid(labels)) return OH_INVALID_ARGUMENT;
    for (int64_t i = 0; i < labels->rows; ++i)
        oh_label_row(labels, i);
    return OH_OK;
}
