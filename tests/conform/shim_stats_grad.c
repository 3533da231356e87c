/* The shim's first read with gradient: the parts one after the other, on coefficients made wrong or with results made
 * wrong after. */
#include <string.h>

#include "defects.h"
#include "portable/dtype.h"
#include "portable/logits.h"
#include "stats_grad.h"

int32_t shim_tile_stats_grad_takes(oh_device *device, const oh_tile_stats_grad *pass) {
    if (device->defect == TAKES_SECOND_READ && oh_objective_want(pass->objective) & OH_WANT_OVERLAP) return 1;
    return stats_grad_takes(pass);
}

static void change_coef(void *user, const oh_row_stats *s, oh_row_coef *c) {
    const oh_device *device = user;
    if (device->defect == FLAGGED_ROWS_WRITTEN && s->flags != 0) c->zero = OH_ZERO_ROW;
    if (device->defect == WRONG_NORMALISER) c->z_inv *= 1 + 0x1p-12f;
    if (device->defect == UNLABELLED_NOT_ZEROED && s->label < 0) c->zero = OH_ZERO_DONE;
}

/* The last column as it was before, of the rows that have no flags. */
static oh_status without_last_column(oh_device *device, const oh_tile_stats_grad *pass) {
    enum { ROWS = 64 };
    const oh_tile_view *v = &pass->stats.tile;
    const int64_t size = oh_element_size(oh_logits_dtype(v->format)), last = v->columns - 1;
    unsigned char before[ROWS][8], *draft = v->draft;
    if (v->rows > ROWS || v->rows < 0 || last < 0) return stats_grad_by_parts(pass, change_coef, device);
    for (int64_t i = 0; i < v->rows; ++i)
        memcpy(before[i], draft + (i * v->draft_ld + last) * size, (size_t)size);
    const oh_status status = stats_grad_by_parts(pass, change_coef, device);
    for (int64_t i = 0; i < v->rows && status == OH_OK; ++i)
        memcpy(draft + (i * v->draft_ld + last) * size, before[i], (size_t)size);
    return status;
}

oh_status shim_tile_stats_grad(oh_queue *queue, const oh_tile_stats_grad *pass) {
    oh_device *device = queue->device;
    if (device->defect == NO_WORK_TILE_STATS_GRAD) return OH_OK;
    if (device->defect == TAKEN_AND_REFUSED) return shim_fail(queue, OH_UNSUPPORTED);
    const uint32_t of_second_read = OH_WANT_OVERLAP | OH_WANT_JSD;
    const int works =
        device->defect == WORKS_UNTAKEN && pass->objective && !(oh_objective_want(pass->objective) & of_second_read);
    if (pass->objective && !works && !stats_grad_takes(pass)) return shim_fail(queue, OH_UNSUPPORTED);
    const oh_status status = device->defect == LAST_COLUMN_KEPT ? without_last_column(device, pass)
                                                                : stats_grad_by_parts(pass, change_coef, device);
    if (status != OH_OK) return shim_fail(queue, status);
    for (int64_t i = 0; i < pass->stats.tile.rows && device->defect == LABEL_OF_THE_ROW_BEFORE; ++i)
        if (i > 0) pass->stats.stats[i].label = pass->stats.stats[i - 1].label;
    return OH_OK;
}
