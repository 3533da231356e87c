/* reference.h - the tile operations of one row in f64, from their definitions in backend.h, each figure with its bound.
 *
 * u = 2^-24. An exponential e^x of x = z - offset: the subtraction rounds x, u |x|; an implementation that multiplies by
 * log2 e rounds once more, u |x|; expf, or a vector one, is within 4 units in the last place, 8 u; and a logit that is
 * itself off by D moves it by D: relative error (2 |x| + 8) u + D. Below 2^-126 it may be flushed to 0.
 * A sum over columns may hold up to 256 terms in f32 before it is added in f64 (or compensated), and may be rescaled as
 * its offset moves: (min(columns, 256) + 16) u of the sum of the terms' sizes.
 * (t - t_max) - (z - z_max), or log q - log p, may be formed as (t - z) - (t_max - z_max), which is better where t and z are near and no
 * worse than a rounding of the logits elsewhere: u (|t - z| + |t_max - z_max|) more.
 * A probability e^x / sum has two more roundings: (2 |x| + 10) u + D. A logarithm x - log sum: u (2 |x| + 2 |log sum| +
 * 2 |x - log sum|) + D. log m from p and q is off by their relative errors, and 4 u of itself. Everything else is the
 * triangle inequality. */
#ifndef ONEHEAD_CONFORM_REFERENCE_H
#define ONEHEAD_CONFORM_REFERENCE_H

#include <onehead/rowmath.h>

#include "tile.h"

typedef struct figure {
    double value, bound;
} figure;

/* Row `row`, first read. The sums are relative to the offsets in `offsets` (z_max and t_max of it). */
typedef struct row_sums {
    figure z_sum, t_sum, z_dot, kl_dot, rkl_dot, z_total;
} row_sums;

row_sums reference_sums(const tile *t, int64_t row, const oh_row_stats *offsets);
uint32_t reference_flags(const tile *t, int64_t row);

/* Second read, by the statistics that the operation is given. */
typedef struct row_overlap {
    figure alpha, tv, p_le, jsd, kl_pm;
    int64_t rank_least, rank_most; /* differ where rounding may decide an order */
} row_overlap;

row_overlap reference_overlap(const tile *t, int64_t row, const oh_row_stats *stats);

/* The gradient by the coefficients that the operation is given. want, bound, spread: [columns]; spread is the bound but
 * for columns where rounding may decide p <= q either way, or whose error is that of others too: NaN. */
void reference_grad(const tile *t, int64_t row, const oh_row_coef *coef, uint32_t form, int32_t out_dtype, double *want,
                    double *bound, double *spread);

#endif
