/* Logits that aren't finite in an f16 tile though their products are: looked for in rows that the first read flagged. */
#include "portable.h"

#include "dtype.h"

static int source_valid(const oh_tile_source *s) {
    if (!s->rows) return 1;
    if (!oh_element_size(s->rows_dtype) || !oh_element_size(s->weight_dtype) || s->hidden < 0) return 0;
    if (s->ld < s->hidden || s->weight_ld < s->hidden || !s->weight) return 0;
    return !s->subtract || s->subtract_ld >= s->hidden;
}

static int overflow_valid(const oh_tile_overflow *o) {
    const oh_tile_view *tile = &o->tile;
    if (tile->format != OH_TILE_F16 && tile->format != OH_TILE_DIFF) return 0;
    if (tile->rows < 0 || tile->columns < 0 || !source_valid(&o->draft) || !source_valid(&o->target)) return 0;
    if (tile->rows == 0) return 1;
    if (!o->stats || !o->found || !tile->draft || !o->draft.rows || tile->draft_ld < tile->columns) return 0;
    return !tile->target || (o->target.rows && tile->target_ld >= tile->columns);
}

/* Element h of source row m, in f32. */
static float source_at(const oh_tile_source *s, int64_t m, int64_t h) {
    float value, other;
    oh_load_elements(s->rows, m * s->ld + h, 1, s->rows_dtype, &value);
    if (!s->subtract) return value;
    const int64_t from = s->subtract_map ? s->subtract_map[m] : m;
    oh_load_elements(s->subtract, from * s->subtract_ld + h, 1, s->rows_dtype, &other);
    return value - other;
}

static int source_is_finite(const oh_tile_source *s, int64_t m) {
    for (int64_t h = 0; h < s->hidden; ++h)
        if (!isfinite(source_at(s, m, h))) return 0;
    return 1;
}

static int product_is_finite(const oh_tile_source *s, int64_t m, int64_t column) {
    const int64_t w = s->weight_map ? s->weight_map[column] : column;
    float sum = 0, weight;
    for (int64_t h = 0; h < s->hidden; ++h) {
        oh_load_elements(s->weight, w * s->weight_ld + h, 1, s->weight_dtype, &weight);
        sum += source_at(s, m, h) * weight;
    }
    return isfinite(sum);
}

static int row_overflows(const oh_tile_view *tile, const oh_tile_source *s, const void *data, int64_t ld, int64_t row) {
    const int64_t m = s->map ? s->map[row] : row;
    if (m < 0 || !source_is_finite(s, m)) return 0;
    for (int64_t j = 0; j < tile->columns; ++j) {
        float logit;
        oh_load_elements(data, row * ld + j, 1, OH_F16, &logit);
        if (!isfinite(logit) && product_is_finite(s, m, tile->first_column + j)) return 1;
    }
    return 0;
}

oh_status oh_portable_tile_overflow(const oh_tile_overflow *o) {
    if (!o || !overflow_valid(o)) return OH_INVALID_ARGUMENT;
    const oh_tile_view *tile = &o->tile;
    for (int64_t i = 0; i < tile->rows; ++i) {
        oh_row_stats *stats = &o->stats[i];
        const int64_t source = o->draft.map ? o->draft.map[i] : i;
        if (stats->flags == 0 || stats->flags & OH_ROW_OVERFLOW || source < 0) continue;
        int overflows = row_overflows(tile, &o->draft, tile->draft, tile->draft_ld, i);
        if (!overflows && tile->target) {
            const int64_t t = tile->target_row ? tile->target_row[i] : i;
            overflows = row_overflows(tile, &o->target, tile->target, tile->target_ld, t);
        }
        if (!overflows) continue;
        stats->flags |= OH_ROW_Z_BAD | OH_ROW_OVERFLOW;
        o->found[0] += 1;
        o->found[1] = oh_sum_merge(OH_SUM_FIRST_NONFINITE, o->found[1], (double)(source + 1));
    }
    return OH_OK;
}
