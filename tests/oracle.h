/* oracle.h - one row's objective in f64, from its logits, written from the definitions in plain steps and sharing
 * nothing with the library but the objective's description; and how far f32 arithmetic may be from it.
 *
 * Bounds. U = 2^-24 is the unit roundoff of f32. A value that the library forms in f32 is off by its roundings; sums
 * are f64 and add nothing that counts. With x = z - z_max, computed to U |x|, exp(x) is off by the relative
 * (|x| + 2) U (expf is within one unit in the last place, 2 U); weighted by p, a normaliser by (M + 2) U with
 * M = sum p |x|; and p = exp(x) / sum, two more roundings, by (|x| + M + 6) U. Every bound below follows from these by
 * the triangle inequality. Logits that are themselves off by D (a transform in f32) move x by 2 D. */
#ifndef ONEHEAD_TESTS_ORACLE_H
#define ONEHEAD_TESTS_ORACLE_H

#include <stdint.h>

#include <onehead/objective.h>

#define ORACLE_U 0x1p-24

typedef struct oracle_figure {
    double value, bound;
} oracle_figure;

/* What the reads of a row are to find. Without a target only lse, entropy, total and rank are set. */
typedef struct oracle_row {
    oracle_figure lse, entropy, total, t_lse, kl, rkl; /* kl, rkl: infinite where they are */
    oracle_figure alpha, tv, p_le, jsd, kl_pm;
    int32_t z_argmax, t_argmax;
    int64_t rank; /* of `label` */
} oracle_row;

/* z and t (or NULL): transformed logits, -inf allowed, not all. z_error, t_error: D of each. */
void oracle_measure(const double *z, const double *t, int64_t count, int32_t label, double z_error, double t_error,
                    oracle_row *row);

/* Losses of the eight terms, each for lambda = 1, by the table of the design. */
void oracle_terms(const oh_objective *o, const double *z, const double *t, int64_t count, int32_t label,
                  double term[OH_TERM_COUNT]);

/* d(sum lambda_i l_i)/dz and, with `bound` not NULL, how far an f32 computation may be from it at each column. */
void oracle_grad(const oh_objective *o, const double *z, const double *t, int64_t count, int32_t label, double z_error,
                 double t_error, double *dz, double *bound);

/* z and dz/draw of one logit. */
double oracle_transform(double raw, double scale, double bias, double softcap, double *slope);

/* The first `top_k` ids by descending logit, ties by lowest id; -1 beyond the columns. */
void oracle_top_k(const double *z, int64_t count, int32_t top_k, int32_t *ids);

#endif
