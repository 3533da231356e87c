/* The shim's search for overflow: the portable one, on arguments made wrong or with its results made wrong after. */
#include <math.h>
#include <stdlib.h>

#include "defects.h"
#include "portable/dtype.h"
#include "portable/portable.h"

/* Whether a row of a tile has an element that is not finite, or one that isn't -inf either. */
static int has_infinity(const void *tile, int64_t ld, int64_t columns, int64_t row, int but_negative) {
    float logit;
    for (int64_t j = 0; j < columns; ++j) {
        oh_load_elements(tile, row * ld + j, 1, OH_F16, &logit);
        if (!isfinite(logit) && !(but_negative && logit < 0)) return 1;
    }
    return 0;
}

static int of_view(const oh_tile_view *v, int64_t i, int but_negative) {
    const int64_t t = v->target_row ? v->target_row[i] : i;
    return has_infinity(v->draft, v->draft_ld, v->columns, i, but_negative) ||
           (v->target && has_infinity(v->target, v->target_ld, v->columns, t, but_negative));
}

/* Before the search. */
static void spoil_row(uint32_t *flags, defect_kind defect) {
    if (defect == UNFLAGGED_SEARCHED && *flags == 0) *flags = OH_ROW_Q0_P;
    if (defect == FOUND_AGAIN) *flags &= ~OH_ROW_OVERFLOW;
}

/* After it, with what the row's flags were. */
static void change_row(const oh_tile_overflow *o, int64_t i, uint32_t before, defect_kind defect) {
    const uint32_t found = OH_ROW_Z_BAD | OH_ROW_OVERFLOW;
    uint32_t *flags = &o->stats[i].flags;
    const int is_new = *flags & OH_ROW_OVERFLOW && !(before & OH_ROW_OVERFLOW);
    if (defect == FLAGS_REPLACED && is_new) *flags = found;
    if (defect == UNFLAGGED_SEARCHED && before == 0 && !is_new) *flags = 0;
    if (defect == NOT_COUNTED && is_new && i == 1) o->found[0] -= 1;
    if (defect == EMPTY_PLACE_SEARCHED && o->draft.map && o->draft.map[i] < 0 && before != 0 && of_view(&o->tile, i, 0))
        *flags |= found, o->found[0] += 1;
    if (defect == STATISTICS_WRITTEN && is_new) o->stats[i].z_max = INFINITY;
    if (defect == SOURCE_NOT_ASKED && before != 0 && !(*flags & OH_ROW_OVERFLOW) && of_view(&o->tile, i, 0))
        *flags |= found, o->found[0] += 1;
    if (defect == NEGATIVE_OVERLOOKED && is_new && !of_view(&o->tile, i, 1)) *flags = before, o->found[0] -= 1;
}

oh_status shim_tile_overflow(oh_queue *queue, const oh_tile_overflow *o) {
    const defect_kind defect = queue->device->defect;
    if (defect == NO_WORK_TILE_OVERFLOW) return OH_OK;
    oh_tile_overflow changed = *o;
    if (defect == TARGET_NOT_SEARCHED) changed.tile.target = NULL;
    if (defect == SUBTRACT_IGNORED) changed.draft.subtract = NULL;
    if (defect == WEIGHT_MAP_IGNORED) changed.draft.weight_map = NULL;
    oh_tile_overflow none = *o; /* says whether the arguments are possible, and writes nothing */
    none.tile.columns = o->tile.columns < 0 ? o->tile.columns : 0;
    if (o->tile.draft_ld < o->tile.columns || (o->tile.target && o->tile.target_ld < o->tile.columns))
        none.tile.rows = -1;
    if (oh_portable_tile_overflow(&none) != OH_OK)
        return defect == IMPOSSIBLE_SEARCH ? OH_OK : shim_fail(queue, OH_INVALID_ARGUMENT);
    uint32_t *before = malloc(((size_t)o->tile.rows + 1) * sizeof *before);
    if (!before) return shim_fail(queue, OH_OUT_OF_MEMORY);
    for (int64_t i = 0; i < o->tile.rows; ++i) {
        before[i] = o->stats[i].flags;
        spoil_row(&o->stats[i].flags, defect);
    }
    if (defect == FIRST_FORGOTTEN && o->tile.rows > 0) o->found[1] = 0;
    const double count = o->tile.rows > 0 ? o->found[0] : 0;
    oh_status status = oh_portable_tile_overflow(&changed);
    for (int64_t i = 0; i < o->tile.rows && status == OH_OK; ++i)
        change_row(o, i, before[i], defect);
    if (defect == FIRST_FROM_ZERO && o->tile.rows > 0 && o->found[0] > count) o->found[1] -= 1;
    free(before);
    return status == OH_OK ? OH_OK : shim_fail(queue, status);
}
