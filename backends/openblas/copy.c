/* copy.c - copy_rows and matrix_norm: matrices cut into pieces of rows and columns that threads take. */
#include <math.h>
#include <string.h>

#include "device.h"
#include "tiles.h"

/* A piece has at most this many columns of a row, and enough rows to make about as many elements. */
#define PIECE 32768

typedef struct copy_job {
    const oh_copy_rows *copy;
    const ob_kernels *kernels;
    int64_t rows_per_piece, columns_per_piece, pieces_across;
} copy_job;

static void copy_piece_row(const copy_job *job, int64_t row, int64_t first, int64_t count) {
    const oh_copy_rows *c = job->copy;
    const int64_t to_size = ob_element_size(c->dst_dtype), m = c->map ? c->map[row] : row;
    uint8_t *to = (uint8_t *)c->dst + (row * c->dst_ld + first) * to_size;
    if (m < 0 || (c->row_scale && c->row_scale[m] == 0)) {
        memset(to, 0, (size_t)(count * to_size));
        return;
    }
    ob_copy_row r = {
        .from = (const uint8_t *)c->src + (m * c->src_ld + first) * ob_element_size(c->src_dtype),
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
        r.subtract = (const uint8_t *)c->subtract + (s * c->subtract_ld + first) * ob_element_size(c->subtract_dtype);
    }
    job->kernels->copy(&r);
}

static void copy_piece(void *work, int64_t part) {
    const copy_job *job = work;
    const oh_copy_rows *c = job->copy;
    const int64_t row = part / job->pieces_across * job->rows_per_piece;
    const int64_t end = row + job->rows_per_piece < c->rows ? row + job->rows_per_piece : c->rows;
    const int64_t first = part % job->pieces_across * job->columns_per_piece, left = c->columns - first;
    const int64_t count = left < job->columns_per_piece ? left : job->columns_per_piece;
    for (int64_t i = row; i < end; ++i)
        copy_piece_row(job, i, first, count);
}

static oh_status check_copy(oh_device *device, const oh_copy_rows *c) {
    if (c->rows < 0 || c->columns < 0)
        return ob_fail(device, OH_INVALID_ARGUMENT, "openblas: copy_rows of %lld rows x %lld columns",
                       (long long)c->rows, (long long)c->columns);
    if (!ob_element_size(c->src_dtype) || !ob_element_size(c->dst_dtype) ||
        (c->subtract && !ob_element_size(c->subtract_dtype)))
        return ob_fail(device, OH_INVALID_ARGUMENT,
                       "openblas: copy_rows of dtypes %d - %d -> %d, expected f32, bf16 or f16", c->src_dtype,
                       c->subtract_dtype, c->dst_dtype);
    if (c->dst_ld < c->columns || (c->src && c->src_ld < c->columns) || (c->subtract && c->subtract_ld < c->columns))
        return ob_fail(device, OH_INVALID_ARGUMENT, "openblas: copy_rows with a row stride below its %lld columns",
                       (long long)c->columns);
    if (c->rows == 0 || c->columns == 0) return OH_OK;
    int64_t zeros = 0;
    while (!c->src && c->map && zeros < c->rows && c->map[zeros] < 0)
        ++zeros;
    if (!c->dst || (!c->src && zeros < c->rows))
        return ob_fail(device, OH_INVALID_ARGUMENT, "openblas: copy_rows without a source or a destination");
    if (c->dst == c->src && (c->map || c->dst_ld != c->src_ld || c->dst_dtype != c->src_dtype))
        return ob_fail(device, OH_INVALID_ARGUMENT,
                       "openblas: copy_rows in place with a map, another stride or another dtype");
    return OH_OK;
}

oh_status ob_copy_rows(oh_queue *queue, const oh_copy_rows *copy) {
    const oh_status status = check_copy(queue->device, copy);
    if (status != OH_OK || copy->rows == 0 || copy->columns == 0) return status;
    copy_job job = {copy, queue->device->kernels, 1, copy->columns < PIECE ? copy->columns : PIECE, 1};
    job.rows_per_piece = PIECE / job.columns_per_piece;
    job.pieces_across = (copy->columns + job.columns_per_piece - 1) / job.columns_per_piece;
    const int64_t down = (copy->rows + job.rows_per_piece - 1) / job.rows_per_piece;
    ob_parallel(queue->device, down * job.pieces_across, copy_piece, &job);
    return OH_OK;
}

/* --------------------------------------------------------------------------------------------------- norm ---- */

/* The matrix is always cut into as many bands, whose sums are added in order: the bits don't depend on threads. */
#define BANDS 64

typedef struct norm_job {
    const oh_matrix_norm *norm;
    const ob_kernels *kernels;
    double sums[BANDS][2];
} norm_job;

static void norm_band(void *work, int64_t part) {
    norm_job *job = work;
    const oh_matrix_norm *n = job->norm;
    const int64_t size = ob_element_size(n->dtype),
                  end = n->rows / BANDS * (part + 1) + n->rows % BANDS * (part + 1) / BANDS;
    for (int64_t row = n->rows / BANDS * part + n->rows % BANDS * part / BANDS; row < end; ++row)
        job->kernels->norm((const uint8_t *)n->data + row * n->ld * size, n->dtype, n->columns, job->sums[part]);
}

oh_status ob_matrix_norm(oh_queue *queue, const oh_matrix_norm *norm) {
    if (norm->rows < 0 || norm->columns < 0 || norm->ld < norm->columns || !ob_element_size(norm->dtype) ||
        !norm->sums || (!norm->data && norm->rows > 0 && norm->columns > 0))
        return ob_fail(queue->device, OH_INVALID_ARGUMENT,
                       "openblas: matrix_norm of %lld x %lld, ld %lld, dtype %d, expected a matrix and two sums",
                       (long long)norm->rows, (long long)norm->columns, (long long)norm->ld, norm->dtype);
    if (norm->rows == 0 || norm->columns == 0) return OH_OK;
    norm_job job = {.norm = norm, .kernels = queue->device->kernels};
    ob_parallel(queue->device, BANDS, norm_band, &job);
    for (int i = 0; i < BANDS; ++i) {
        norm->sums[0] += job.sums[i][0];
        if (job.sums[i][1] > norm->sums[1]) norm->sums[1] = job.sums[i][1];
    }
    /* Squares are NaN exactly where an element is; a largest value that hides it would pass for a good gradient. */
    if (isnan(norm->sums[0])) norm->sums[1] = norm->sums[0];
    return OH_OK;
}
