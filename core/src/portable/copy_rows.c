/* dst[i,:] = factor * row_scale[m] * (src[m,:] - subtract[s,:]) with m = map[i], s = subtract_map[m], in f32, rounded
 * once. A row with m < 0 or row_scale[m] = 0 is zero and its source is not read. */
#include "portable.h"

#include "dtype.h"

enum { BLOCK = 1024 };

static int copy_valid(const oh_copy_rows *c) {
    if (c->rows < 0 || c->columns < 0 || !oh_element_size(c->src_dtype) || !oh_element_size(c->dst_dtype)) return 0;
    if (c->dst_ld < c->columns || (c->src && c->src_ld < c->columns)) return 0;
    if (c->subtract && (c->subtract_ld < c->columns || !oh_element_size(c->subtract_dtype))) return 0;
    if (c->rows == 0 || c->columns == 0) return 1;
    if (!c->dst || (!c->src && !c->map)) return 0;
    if (c->dst == c->src && (c->map || c->dst_ld != c->src_ld || c->dst_dtype != c->src_dtype)) return 0;
    if (!c->src)
        for (int64_t i = 0; i < c->rows; ++i)
            if (c->map[i] >= 0) return 0;
    return 1;
}

static void zero_row(const oh_copy_rows *c, int64_t row) {
    const int64_t size = oh_element_size(c->dst_dtype);
    memset((unsigned char *)c->dst + row * c->dst_ld * size, 0, (size_t)(c->columns * size));
}

/* Same dtype and nothing to compute: the bits, a NaN's payload too. */
static void move_row(const oh_copy_rows *c, int64_t row, int64_t m) {
    const int64_t size = oh_element_size(c->dst_dtype);
    memmove((unsigned char *)c->dst + row * c->dst_ld * size, (const unsigned char *)c->src + m * c->src_ld * size,
            (size_t)(c->columns * size));
}

static void compute_row(const oh_copy_rows *c, int64_t row, int64_t m) {
    const int scaled = c->factor || c->row_scale;
    const float scale = (c->factor ? *c->factor : 1.0f) * (c->row_scale ? c->row_scale[m] : 1.0f);
    const int64_t s = c->subtract_map ? c->subtract_map[m] : m;
    float value[BLOCK], other[BLOCK];
    for (int64_t first = 0; first < c->columns; first += BLOCK) {
        const int64_t left = c->columns - first, count = left < BLOCK ? left : BLOCK;
        oh_load_elements(c->src, m * c->src_ld + first, count, c->src_dtype, value);
        if (c->subtract) {
            oh_load_elements(c->subtract, s * c->subtract_ld + first, count, c->subtract_dtype, other);
            for (int64_t j = 0; j < count; ++j)
                value[j] -= other[j];
        }
        if (scaled)
            for (int64_t j = 0; j < count; ++j)
                value[j] *= scale;
        oh_store_elements(c->dst, row * c->dst_ld + first, count, c->dst_dtype, value);
    }
}

oh_status oh_portable_copy_rows(const oh_copy_rows *copy) {
    if (!copy || !copy_valid(copy)) return OH_INVALID_ARGUMENT;
    if (copy->columns == 0) return OH_OK;
    const int plain = !copy->subtract && !copy->factor && !copy->row_scale && copy->src_dtype == copy->dst_dtype;
    for (int64_t row = 0; row < copy->rows; ++row) {
        const int64_t m = copy->map ? copy->map[row] : row;
        if (m < 0 || (copy->row_scale && copy->row_scale[m] == 0))
            zero_row(copy, row);
        else if (plain)
            move_row(copy, row, m);
        else
            compute_row(copy, row, m);
    }
    return OH_OK;
}
