/* Row selection from arrays on the device: a loop over rowmath.h's rules. */
#include "portable.h"

static int dtypes_valid(const oh_row_select *s) {
    if (s->mask && s->mask_dtype != OH_U8 && s->mask_dtype != OH_BOOL && s->mask_dtype != OH_F32) return 0;
    if (s->label && s->label_dtype != OH_I32 && s->label_dtype != OH_I64) return 0;
    return !s->target_row || s->target_row_dtype == OH_I32 || s->target_row_dtype == OH_I64;
}

static int select_valid(const oh_row_select *s) {
    const oh_objective *o = &s->objective;
    if (o->block_size <= 0 || o->first_slot < 0 || o->first_slot > o->block_size) return 0;
    if (s->rows < 0 || s->chunk <= 0 || s->rows % o->block_size != 0 || s->chunk % o->block_size != 0) return 0;
    if (s->places != s->chunk / o->block_size * (o->block_size - o->first_slot) || !dtypes_valid(s)) return 0;
    if (!s->sums || !s->factor) return 0;
    if (s->rows == 0) return 1;
    if (!s->mask_out || !s->compact || !s->draft_row || !s->label_out) return 0;
    if (o->labels == OH_LABELS_GIVEN && !s->label) return 0;
    return s->target_rows == 0 || (s->target_tile ? s->target_index != NULL : s->target_source != NULL);
}

oh_status oh_portable_row_select(const oh_row_select *s) {
    if (!s || !select_valid(s)) return OH_INVALID_ARGUMENT;
    for (int k = 0; k < OH_SELECTED_COUNT; ++k)
        s->sums[k] = 0;
    for (int64_t first = 0, c = 0; first < s->rows; first += s->chunk, ++c) {
        const int64_t end = first + s->chunk < s->rows ? first + s->chunk : s->rows;
        int32_t place = 0;
        for (int64_t row = first; row < end; ++row) {
            const oh_selected_row r = oh_select_row(s, row);
            oh_select_write(s, c, row, &r, r.supervised ? place++ : -1);
            for (int k = 0; k < OH_SELECTED_COUNT; ++k)
                s->sums[k] = oh_select_merge(k, s->sums[k], oh_select_part(s, row, &r, k));
        }
        for (int64_t i = place; i < oh_select_places(s, first); ++i)
            oh_select_clear(s, c * s->places + i);
    }
    oh_select_close(s);
    return OH_OK;
}
