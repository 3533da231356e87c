/* Row selection from arrays on the device: a loop over rowmath.h's rules. */
#include "portable.h"

oh_status oh_portable_row_select(const oh_row_select *s) {
    if (!s || !oh_select_valid(s)) return OH_INVALID_ARGUMENT;
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
