/* check_figures.h - every figure of a result by name, and how far two of them may lie apart.
 *
 * Bounds. Logits are f32 sums; what two correct runs can differ by is their rounding, u = 2^-24 with f32 tiles, 2^-11
 * with f16 and diff, 2^-8 with bf16, seen through the figure's formula. With logits of a few tens a loss moves by up to
 * some 80 u of itself, and never by less than the rounding of numbers near 1:
 *
 *     figures     |a - b| <= 5e-6 max(|a|, |b|) + 2^-23 scale     5e-6 = 84 * 2^-24
 *     gradient    |a - b| <= 2e-5 |a|           + 2^-20 s         row by row, in the 2-norm
 *
 * scale is what the figure is made of: 1 for means and probabilities, the weights' sum for loss_num and so on. s is the
 * size of a row's gradient before its parts cancel: dD_r = w_r upstream / N sum_v dz_v W_v with sum |dz_v| of the order
 * of the terms' factors, so s_r = w_r |upstream| / N * sum |lambda| * |scale| * max_v |W_v|. A drafter that equals its
 * target has gradient 0 but rounding of size s. For 16-bit tiles every bound grows with u, of the coarser of the two.
 *
 * A gradient tile of 16 bits (whatever the tile's format; oh_plan_summary.grad_dtype) has its own rounding u_g, 2^-8 of bf16
 * and 2^-11 of f16: |e_v| <= u_g |dz_v|, and 2^-25 where f16 is subnormal. With sum |dz_v| <= 2 sum |lambda| a row of dD
 * moves by at most
 *
 *     (2 u_g + 2^-25 V) s                                        twice that in dW, whose rows of D are rounded too
 *
 * which is added for each of the two results that has one.
 *
 * Counts are equal exactly with f32 tiles; with 16-bit ones the counts that an argmax decides are shown, not judged.
 * tv, nla and lk_hybrid hold the step [p <= q]: a column where both agree to within rounding may fall on either side,
 * and moves its row by up to p_v of s. One row in a thousand, and one more, may do so. */
#ifndef ONEHEAD_TOOL_CHECK_FIGURES_H
#define ONEHEAD_TOOL_CHECK_FIGURES_H

#include "step.h"

typedef enum figure_kind {
    FIGURE_COUNT,    /* integers that no logit decides */
    FIGURE_DECISION, /* counts and ratios of what an argmax or rank decides */
    FIGURE_MEASURE,  /* real numbers */
    FIGURE_GRADIENT,
} figure_kind;

typedef struct figure {
    char name[40]; /* keys of run's JSON, joined by '.': "topk.4.hits", "slot_hits.3" */
    figure_kind kind;
    double value;
    double scale; /* of what it is made of; of FIGURE_GRADIENT: s */
} figure;

typedef struct figure_list {
    figure *figures;
    size_t count;
} figure_list;

/* What the bounds of a request on a batch are made of. */
typedef struct check_scale {
    double rounding;      /* of the tile's, in units of 2^-24 */
    double grad_rounding; /* of the gradient tiles', in units of s */
    double factors;       /* sum |lambda| */
    double row_unit;      /* s_r / w_r */
    double head_unit;     /* s of the head's gradient: sum of w_r s' with |D_r| in the place of |W_v| */
    bool exact;           /* decisions must be equal */
    int64_t step_rows;    /* rows that may be moved by [p <= q] */
} check_scale;

/* The largest 2-norm of a matrix's rows; rows that are not finite are left out. */
double largest_row_norm(const batch_matrix *matrix);

/* What bounds a batch's figures, besides the request and its result. */
typedef struct check_norms {
    double weight, hidden; /* largest_row_norm of lm_head and draft_hidden */
} check_norms;

/* `other`: the result that is compared with it, NULL for exact values. */
check_scale check_scale_of(const oh_request *request, const step_result *result, const step_result *other,
                           const check_norms *norms);

/* Owned by the caller: free(list.figures). */
oh_status figures_collect(figure_list *list, const oh_request *request, const step_result *result,
                          const check_scale *scale, oh_error *error);

/* The most that `f` and `other` may differ by; 0: they must be equal; infinite: not judged. */
double figure_bound(const figure *f, double other, const check_scale *scale);

#endif
