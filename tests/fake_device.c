#include "fake_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

int64_t fake_device_free;
int64_t fake_device_converted;

#define BY_PORTABLE(name)                                                                                              \
    static oh_status fake_##name(oh_queue *queue, const oh_##name *arguments) {                                        \
        (void)queue;                                                                                                   \
        return oh_portable_##name(arguments);                                                                          \
    }

BY_PORTABLE(gemm)
BY_PORTABLE(matrix_norm)
BY_PORTABLE(tile_stats)
BY_PORTABLE(tile_overlap)
BY_PORTABLE(tile_grad)
BY_PORTABLE(row_finish)
BY_PORTABLE(step_finish)
BY_PORTABLE(row_labels)
BY_PORTABLE(tile_overflow)
BY_PORTABLE(row_select)

static oh_status fake_copy_rows(oh_queue *queue, const oh_copy_rows *copy) {
    (void)queue;
    if (copy->dst_dtype == OH_F16) fake_device_converted += copy->rows * copy->columns;
    return oh_portable_copy_rows(copy);
}

static oh_status fake_info(oh_device *device, oh_device_info *info) {
    const oh_status status = step_context_table()->device_info(device, info);
    info->memory_free = fake_device_free;
    return status;
}

const oh_backend *fake_device_table(void) {
    static oh_backend table;
    table = *step_context_table();
    table.caps &= ~OH_CAP_HOST_MEMORY;
    table.gemm_kinds = OH_GEMM_F32_F32 | OH_GEMM_BF16_F32 | OH_GEMM_F16_F32 | OH_GEMM_BF16_BF16 | OH_GEMM_F16_F16;
    table.device_info = fake_info;
    table.gemm = fake_gemm;
    table.copy_rows = fake_copy_rows;
    table.matrix_norm = fake_matrix_norm;
    table.tile_stats = fake_tile_stats;
    table.tile_overlap = fake_tile_overlap;
    table.tile_grad = fake_tile_grad;
    table.row_finish = fake_row_finish;
    table.step_finish = fake_step_finish;
    table.row_labels = fake_row_labels;
    table.tile_overflow = fake_tile_overflow;
    table.row_select = fake_row_select;
    return &table;
}

oh_context *fake_device_open(void) {
    const oh_context_options options = {.table = fake_device_table()};
    oh_context *context = NULL;
    oh_error error = {OH_OK, ""};
    if (oh_context_open(&options, &context, &error) != OH_OK) fail_msg("%s", error.message);
    return context;
}
