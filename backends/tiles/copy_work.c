/* copy_work.c - copies and norms: matrices cut into pieces of rows and columns. */
#include <math.h>
#include <string.h>

#include "tile_work.h"

/* A piece has at most this many columns of a row, and enough rows to make about as many elements. */
#define PIECE 32768

static void copy_piece_row(const tile_work *work, int64_t row, int64_t first, int64_t count) {
    const oh_copy_rows *c = work->request;
    const int64_t to_size = tile_element_size(c->dst_dtype), m = c->map ? c->map[row] : row;
    uint8_t *to = (uint8_t *)c->dst + (row * c->dst_ld + first) * to_size;
    if (m < 0 || (c->row_scale && c->row_scale[m] == 0)) {
        memset(to, 0, (size_t)(count * to_size));
        return;
    }
    tile_copy_row r = {
        .from = (const uint8_t *)c->src + (m * c->src_ld + first) * tile_element_size(c->src_dtype),
        .to = to,
        .count = count,
        .from_dtype = c->src_dtype,
        .to_dtype = c->dst_dtype,
        .scaled = c->factor || c->row_scale,
        .factor = (c->factor ? *c->factor : 1.0f) * (c->row_scale ? c->row_scale[m] : 1.0f),
    };
    if (c->subtract) {
        const int64_t s = c->subtract_map ? c->subtract_map[m] : m;
        r.subtract_dtype = c->subtract_dtype;
        r.subtract = (const uint8_t *)c->subtract + (s * c->subtract_ld + first) * tile_element_size(c->subtract_dtype);
    }
    work->kernels->copy(&r);
}

static void run_copy(const tile_work *work, int64_t part) {
    const oh_copy_rows *c = work->request;
    const int64_t row = part / work->parts_across * work->rows_per_part;
    const int64_t end = row + work->rows_per_part < c->rows ? row + work->rows_per_part : c->rows;
    const int64_t first = part % work->parts_across * work->columns_per_part, left = c->columns - first;
    const int64_t count = left < work->columns_per_part ? left : work->columns_per_part;
    for (int64_t i = row; i < end; ++i)
        copy_piece_row(work, i, first, count);
}

static oh_status check_copy(oh_error *why, const oh_copy_rows *c) {
    if (c->rows < 0 || c->columns < 0)
        return tile_refuse(why, OH_INVALID_ARGUMENT, "copy_rows of %lld rows x %lld columns", (long long)c->rows,
                           (long long)c->columns);
    if (!tile_element_size(c->src_dtype) || !tile_element_size(c->dst_dtype) ||
        (c->subtract && !tile_element_size(c->subtract_dtype)))
        return tile_refuse(why, OH_INVALID_ARGUMENT, "copy_rows of dtypes %d - %d -> %d, expected f32, bf16 or f16",
                           c->src_dtype, c->subtract_dtype, c->dst_dtype);
    if (c->dst_ld < c->columns || (c->src && c->src_ld < c->columns) || (c->subtract && c->subtract_ld < c->columns))
        return tile_refuse(why, OH_INVALID_ARGUMENT, "copy_rows with a row stride below its %lld columns",
                           (long long)c->columns);
    if (c->rows == 0 || c->columns == 0) return OH_OK;
    int64_t zeros = 0;
    while (!c->src && c->map && zeros < c->rows && c->map[zeros] < 0)
        ++zeros;
    if (!c->dst || (!c->src && zeros < c->rows))
        return tile_refuse(why, OH_INVALID_ARGUMENT, "copy_rows without a source or a destination");
    if (c->dst == c->src && (c->map || c->dst_ld != c->src_ld || c->dst_dtype != c->src_dtype))
        return tile_refuse(why, OH_INVALID_ARGUMENT, "copy_rows in place with a map, another stride or another dtype");
    return OH_OK;
}

oh_status tile_copy_work(const tile_kernels *kernels, const oh_copy_rows *copy, tile_work *work, oh_error *why) {
    *work = (tile_work){.parts = 0};
    const oh_status status = check_copy(why, copy);
    if (status != OH_OK || copy->rows == 0 || copy->columns == 0) return status;
    *work = (tile_work){.run = run_copy, .kernels = kernels, .request = copy, .rows = copy->rows};
    work->columns_per_part = copy->columns < PIECE ? copy->columns : PIECE;
    work->rows_per_part = PIECE / work->columns_per_part;
    work->parts_across = (copy->columns + work->columns_per_part - 1) / work->columns_per_part;
    work->parts = (copy->rows + work->rows_per_part - 1) / work->rows_per_part * work->parts_across;
    return OH_OK;
}

/* -------------------------------------------------------------------------------------------------------- norm ---- */

oh_status tile_norm_work(const tile_kernels *kernels, const oh_matrix_norm *n, tile_norm *work, oh_error *why) {
    *work = (tile_norm){.norm = n, .kernels = kernels};
    if (n->rows < 0 || n->columns < 0 || n->ld < n->columns || !tile_element_size(n->dtype) || !n->sums ||
        (!n->data && n->rows > 0 && n->columns > 0))
        return tile_refuse(why, OH_INVALID_ARGUMENT,
                           "matrix_norm of %lld x %lld, ld %lld, dtype %d, expected a matrix and two sums",
                           (long long)n->rows, (long long)n->columns, (long long)n->ld, n->dtype);
    return OH_OK;
}

/* The band's first row, or a row past the last for TILE_NORM_BANDS. */
static int64_t band_row(const oh_matrix_norm *n, int64_t band) {
    return n->rows / TILE_NORM_BANDS * band + n->rows % TILE_NORM_BANDS * band / TILE_NORM_BANDS;
}

void tile_norm_band(tile_norm *work, int64_t band) {
    const oh_matrix_norm *n = work->norm;
    const int64_t size = tile_element_size(n->dtype), end = band_row(n, band + 1);
    for (int64_t row = band_row(n, band); n->columns > 0 && row < end; ++row)
        work->kernels->norm((const uint8_t *)n->data + row * n->ld * size, n->dtype, n->columns, work->sums[band]);
}

void tile_norm_add(const tile_norm *work) {
    const oh_matrix_norm *n = work->norm;
    for (int i = 0; i < TILE_NORM_BANDS; ++i) {
        n->sums[0] += work->sums[i][0];
        if (work->sums[i][1] > n->sums[1]) n->sums[1] = work->sums[i][1];
    }
    /* Squares are NaN exactly where an element is; a largest value that hides it would pass for a good gradient. */
    if (isnan(n->sums[0])) n->sums[1] = n->sums[0];
}
