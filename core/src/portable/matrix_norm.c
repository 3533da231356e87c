/* Sum of squares and largest absolute value of a matrix, in f64. Sums run in several lanes, so that they do not wait
 * for each other; their order is fixed. */
#include "portable.h"

#include <math.h>

#include "dtype.h"

enum { BLOCK = 1024, LANES = 8 };

typedef struct lanes {
    double square[LANES];
    float max[LANES];
} lanes;

static void add_block(lanes *sum, const float *x, int64_t count) {
    for (int64_t j = 0; j < count; j += LANES)
        for (int l = 0; l < LANES; ++l) {
            const float size = fabsf(x[j + l]);
            sum->square[l] += (double)size * (double)size;
            sum->max[l] = size > sum->max[l] ? size : sum->max[l];
        }
}

oh_status oh_portable_matrix_norm(const oh_matrix_norm *norm) {
    if (!norm || norm->rows < 0 || norm->columns < 0 || !oh_element_size(norm->dtype) || norm->ld < norm->columns ||
        !norm->sums || (!norm->data && norm->rows > 0 && norm->columns > 0))
        return OH_INVALID_ARGUMENT;
    lanes sum = {{0}, {0}};
    float x[BLOCK];
    for (int64_t row = 0; row < norm->rows; ++row)
        for (int64_t first = 0; first < norm->columns; first += BLOCK) {
            const int64_t left = norm->columns - first, count = left < BLOCK ? left : BLOCK;
            oh_load_elements(norm->data, row * norm->ld + first, count, norm->dtype, x);
            int64_t filled = count;
            while (filled % LANES != 0)
                x[filled++] = 0;
            add_block(&sum, x, filled);
        }
    double square = 0, max = norm->sums[1];
    for (int l = 0; l < LANES; ++l) {
        square += sum.square[l];
        max = (double)sum.max[l] > max ? (double)sum.max[l] : max;
    }
    norm->sums[0] += square;
    /* Squares are NaN exactly where an element is. */
    norm->sums[1] = isnan(square) ? square : max;
    return OH_OK;
}
