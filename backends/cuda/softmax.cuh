/* softmax.cuh - p, q and what compares them, as the gradient's linear form means them (oh_row_coef). The one home of
 * these expressions on the device: tile_overlap sums what tile_grad differentiates. */
#ifndef ONEHEAD_CUDA_SOFTMAX_CUH
#define ONEHEAD_CUDA_SOFTMAX_CUH

#include "tiles.cuh"

/* A row's normalisers. */
struct row_softmax {
    float z_offset, z_factor, t_offset, t_factor; /* p = 2^(z C - z_offset) z_factor, and so q */
    float ratio_high, ratio_low;                  /* (t_max + log t_sum) - (z_max + log z_sum), as the sum of the two */
};

static __device__ row_softmax softmax_of(float z_max, float z_inv, float z_log, float t_max, float t_inv, float t_log) {
    row_softmax s;
    s.z_offset = exponent_offset(z_max);
    s.t_offset = exponent_offset(t_max);
    /* The maximum's exponential is divided by itself: a row of one finite logit has p = 1 exactly. */
    s.z_factor = (float)((double)z_inv / (double)exp2_fast(exponent(z_max, s.z_offset)));
    s.t_factor = (float)((double)t_inv / (double)exp2_fast(exponent(t_max, s.t_offset)));
    const double ratio = ((double)t_max - (double)z_max) + ((double)t_log - (double)z_log);
    s.ratio_high = (float)ratio;
    s.ratio_low = (float)(ratio - (double)s.ratio_high);
    return s;
}

/* Rounded as oh_finish_row rounds what it puts into oh_row_coef. */
static __device__ row_softmax softmax_from_stats(const oh_row_stats *s, bool has_target) {
    return softmax_of(s->z_max, (float)(1 / s->z_sum), (float)log(s->z_sum), has_target ? s->t_max : 0,
                      has_target ? (float)(1 / s->t_sum) : 0, has_target ? (float)log(s->t_sum) : 0);
}

static __device__ row_softmax softmax_from_coef(const oh_row_coef *c) {
    return softmax_of(c->z_max, c->z_inv, c->z_log, c->t_max, c->t_inv, c->t_log);
}

static __device__ __forceinline__ float softmax_p(const row_softmax &s, float z) {
    return exp2_fast(exponent(z, s.z_offset)) * s.z_factor;
}

static __device__ __forceinline__ float softmax_q(const row_softmax &s, float t) {
    return exp2_fast(exponent(t, s.t_offset)) * s.t_factor;
}

/* log q - log p for finite z; -inf for t = -inf. From t - z, with its rounding error (Knuth's two-sum), so that it is
 * as small, and as exact, as the logits are near. */
static __device__ __forceinline__ float softmax_log_ratio(const row_softmax &s, float z, float t) {
    if (t == -INFINITY) return -INFINITY;
    const float d = t - z, back = d - t, error = (t - (d - back)) + (-z - back);
    return (d - s.ratio_high) + (error - s.ratio_low);
}

/* log m less the logarithm of the larger of p and q, m = (p + q) / 2: log((1 + e^-x) / 2) with x = |ratio|. Near 0, where
 * it is as small as x, it is log cosh(x / 2) - x / 2 by Taylor's series of the first (next term below 6e-8 of the
 * result); from 1 on it is far enough from 0 for the logarithm itself. */
static __device__ __forceinline__ float softmax_mixture(float ratio) {
    const float x = fabsf(ratio), y = 0.5f * x, square = y * y;
    float series = fmaf(square, -691.0f / 935550, 31.0f / 14175);
    series = fmaf(square, series, -17.0f / 2520);
    series = fmaf(square, series, 1.0f / 45);
    series = fmaf(square, series, -1.0f / 12);
    series = fmaf(square, series, 0.5f);
    const float near = fmaf(square, series, -y);
    const float far = fmaf(__log2f(1 + exp2_fast(x * -LOG2_E)), (float)LN_2, (float)-LN_2);
    return x < 1 ? near : far;
}

#endif
