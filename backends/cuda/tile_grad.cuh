/* tile_grad.cuh - a block's share of a row of the gradient.
 *
 * p and q are rounded before they are subtracted, so that equal ones give exactly 0. */
#ifndef ONEHEAD_CUDA_TILE_GRAD_CUH
#define ONEHEAD_CUDA_TILE_GRAD_CUH

#include <onehead/rowmath.h>

#include "device.h"
#include "overlap_sums.cuh"

/* What a kernel computes: with cq, and with the terms of logarithms and comparisons. */
enum grad_form { FORM_PLAIN, FORM_TARGET, FORM_DRAFT_LOGS, FORM_ALL, FORMS };

/* c1 log p + c2 log q + c3 log m, written with log q - log p and log m - log p: for rkl and jsd the logarithm of p,
 * which is large where the difference is small, then cancels in the coefficients. */
static __device__ __forceinline__ float log_terms(const oh_row_coef &c, const row_softmax &s, uint32_t form, float z,
                                                  float t) {
    float sum = (c.c1 + c.c2 + c.c3) * ((z - c.z_max) - c.z_log);
    if (form & (OH_FORM_LOG_Q | OH_FORM_LOG_M)) {
        const float ratio = softmax_log_ratio(s, z, t);
        /* A finite row has c2 = 0 where q = 0 < p. */
        if (form & OH_FORM_LOG_Q && ratio > -INFINITY) sum += c.c2 * ratio;
        if (form & OH_FORM_LOG_M) sum += c.c3 * ((ratio > 0 ? ratio : 0) + softmax_mixture(ratio));
    }
    return sum;
}

/* Without its label's term; from the exponentials of z and t at the softmax's offsets, et being 0 without a target. */
template <int FORM>
static __device__ __forceinline__ float grad_at(const oh_tile_grad &g, const oh_row_coef &c, const row_softmax &s,
                                                float z, float t, float ez, float et) {
    constexpr bool TARGET = FORM == FORM_TARGET || FORM == FORM_ALL;
    if (FORM == FORM_PLAIN || FORM == FORM_TARGET) {
        /* The factors c0 and cq are in the softmax's. */
        const float grad = fmaf(ez, s.z_factor, -c.ck);
        return TARGET ? grad - et * s.t_factor : grad;
    }
    const float p = ez * s.z_factor, q = et * s.t_factor;
    const uint32_t form = g.form;
    float factor = c.c0;
    if (form & (OH_FORM_LOG_P | OH_FORM_LOG_Q | OH_FORM_LOG_M)) factor += log_terms(c, s, form, z, t);
    if (TARGET && form & OH_FORM_LE && p <= q) factor += c.c4;
    /* Where p is 0 its logarithm, and with that the factor, may be too large for f32. */
    float grad = p > 0 ? p * factor : 0;
    if (TARGET && form & OH_FORM_Q) grad -= c.cq * q;
    return grad - c.ck;
}

template <int N> static __device__ __forceinline__ bool any_neg_inf(const float *z) {
    float min = z[0];
#pragma unroll
    for (int e = 1; e < N; ++e)
        min = fminf(min, z[e]);
    return min == -INFINITY;
}

/* What a thread finds of p against q beside the gradient. */
struct row_compare {
    /* Of the row: q's factor over p's, so that min(p, q) is p's factor times min(e^z, e^t ratio); the label, by which
     * columns are ranked. */
    float ratio, z_label;
    int label;
    bool wants_rank;
    /* Sums. */
    float least;
    int rank;
};

/* dz[e] of columns from + e; 0 where z is -inf. */
template <int FORM, bool TRANSFORM, bool COMPARES, int N>
static __device__ __forceinline__ void grad_vector(const oh_tile_grad &g, const oh_row_coef &c, const row_softmax &s,
                                                   const float *z, const float *t, int from, int label, float *dz,
                                                   row_compare *compare) {
    constexpr bool TARGET = COMPARES || FORM == FORM_TARGET || FORM == FORM_ALL;
    float least = 0;
#pragma unroll
    for (int e = 0; e < N; ++e) {
        const float ez = exp2_fast(exponent(z[e], s.z_offset));
        const float et = TARGET ? exp2_fast(exponent(t[e], s.t_offset)) : 0;
        if (COMPARES) least += fminf(ez, et * compare->ratio);
        dz[e] = grad_at<FORM>(g, c, s, z[e], TARGET ? t[e] : 0.0f, ez, et);
    }
    if (COMPARES) {
        compare->least += least;
        if (compare->wants_rank) compare->rank += count_ahead<N>(z, from, compare->z_label, compare->label);
    }
    if ((unsigned)(label - from) < (unsigned)N)
#pragma unroll
        for (int e = 0; e < N; ++e)
            if (from + e == label) dz[e] -= c.cy;
    if (TRANSFORM)
#pragma unroll
        for (int e = 0; e < N; ++e)
            dz[e] *= oh_logit_slope(z[e], g.tile.draft_transform.scale, g.tile.draft_transform.softcap);
    if (any_neg_inf<N>(z))
#pragma unroll
        for (int e = 0; e < N; ++e)
            if (z[e] == -INFINITY) dz[e] = 0;
}

/* Columns [from, from + N) of a row of the result, all inside it, at an address of the right alignment. */
template <int N>
static __device__ __forceinline__ void write_vector(void *row, int from, int32_t dtype, const float *x) {
    if (dtype == OH_F32) {
        float4 *to = (float4 *)((float *)row + from);
#pragma unroll
        for (int i = 0; i < N / 4; ++i)
            __stcs(to + i, make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]));
        return;
    }
    unsigned word[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i)
        word[i] = dtype == OH_BF16 ? pack_bf16(x[2 * i], x[2 * i + 1]) : pack_f16(x[2 * i], x[2 * i + 1]);
    unsigned short *to = (unsigned short *)row + from;
    if constexpr (N == 8)
        __stcs((uint4 *)to, make_uint4(word[0], word[1], word[2], word[3]));
    else
        __stcs((uint2 *)to, make_uint2(word[0], word[1]));
}

/* Columns [first, end) of vector `from`, of which some may lie outside the row or the result be unaligned. */
template <int N>
static __device__ __forceinline__ void write_columns(void *row, int from, int columns, int32_t dtype, const float *x) {
#pragma unroll
    for (int e = 0; e < N; ++e)
        if (from + e >= 0 && from + e < columns) element_write(row, from + e, dtype, x[e]);
}

/* A block's share of a row of the gradient, by the row's softmax; where COMPARES, also what the thread finds of p against
 * q. */
template <int FORMAT, int FORM, bool TRANSFORM, bool COMPARES>
static __device__ __forceinline__ void grad_share(const oh_tile_grad &g, int shares, int narrows, row_softmax s,
                                                  row_compare *compare) {
    constexpr int TILES = COMPARES || FORM == FORM_TARGET || FORM == FORM_ALL ? TILES_BOTH : TILES_DRAFT;
    typedef tile_row<FORMAT, TILES, TRANSFORM> row_type;
    constexpr int N = row_type::VECTOR;
    const int64_t index = blockIdx.x / (unsigned)shares;
    const row_type row(g.tile, index);
    const oh_row_coef c = g.coef[index];
    if (c.zero == OH_ZERO_DONE) return;
    if (FORM == FORM_PLAIN || FORM == FORM_TARGET) s.z_factor *= c.c0, s.t_factor *= c.cq;
    const int out_bytes = element_bytes(g.out_dtype);
    unsigned char *out = (unsigned char *)g.out + index * g.out_ld * out_bytes;
    const bool out_aligned = (uintptr_t)(out - (int64_t)row.shift * out_bytes) % (uintptr_t)(N * out_bytes) == 0;
    const int label = c.label >= 0 ? c.label - (int)g.tile.first_column : -1;

    const int share = (row.vectors + shares - 1) / shares, begin = (int)(blockIdx.x % (unsigned)shares) * share;
    const int end = min(begin + share, row.vectors);
    /* The next vectors are under way while others are turned into their gradients: they lie behind all that is written.
     * Vectors of four columns are taken in twos, so that as many bytes are under way and barriers are fewer. */
    constexpr int TAKEN = N == 4 ? 2 : 1;
    const uint4 none = make_uint4(0, 0, 0, 0);
    uint4 z_next[TAKEN], t_next[TAKEN];
    const auto load = [&](int first) {
#pragma unroll
        for (int i = 0; i < TAKEN; ++i) {
            const int vector = first + i * TILE_THREADS;
            if (c.zero || vector < row.first_whole || vector >= min(end, row.end_whole)) continue;
            z_next[i] = row.load_z(vector);
            if (row_type::READS_T) t_next[i] = row.load_t(vector);
        }
    };
#pragma unroll
    for (int i = 0; i < TAKEN; ++i)
        z_next[i] = t_next[i] = none;
    load(begin + (int)threadIdx.x);
    for (int stretch = begin; stretch < end; stretch += TAKEN * TILE_THREADS) {
        uint4 z_bits[TAKEN], t_bits[TAKEN];
        float dz[TAKEN][N];
#pragma unroll
        for (int i = 0; i < TAKEN; ++i)
            z_bits[i] = z_next[i], t_bits[i] = t_next[i];
        load(stretch + (int)threadIdx.x + TAKEN * TILE_THREADS);
#pragma unroll
        for (int i = 0; i < TAKEN; ++i) {
            const int vector = stretch + (int)threadIdx.x + i * TILE_THREADS, from = row.column_of(vector);
            float z[N], t[N];
            if (vector >= end || c.zero) {
#pragma unroll
                for (int e = 0; e < N; ++e)
                    dz[i][e] = 0;
                continue;
            }
            if (vector >= row.first_whole && vector < row.end_whole) {
                row.logits(g.tile, vector, z_bits[i], t_bits[i], z, t);
            } else {
#pragma unroll
                for (int e = 0; e < N; ++e) {
                    const bool inside = from + e >= 0 && from + e < row.columns;
                    z[e] = inside ? row.z(g.tile, from + e) : 0;
                    t[e] = inside && row_type::HAS_T ? row.t(g.tile, from + e) : 0;
                }
            }
            /* What is outside the row is written nowhere, but must not be compared. */
            if (!COMPARES || (from >= 0 && from + N <= row.columns)) {
                grad_vector<FORM, TRANSFORM, COMPARES, N>(g, c, s, z, t, from, label, dz[i], compare);
            } else {
#pragma unroll
                for (int e = 0; e < N; ++e)
                    if (from + e >= 0 && from + e < row.columns)
                        grad_vector<FORM, TRANSFORM, COMPARES, 1>(g, c, s, z + e, t + e, from + e, label, dz[i] + e,
                                                                  compare);
            }
        }
        if (narrows) __syncthreads();
#pragma unroll
        for (int i = 0; i < TAKEN; ++i) {
            const int vector = stretch + (int)threadIdx.x + i * TILE_THREADS, from = row.column_of(vector);
            if (vector >= end) continue;
            if (out_aligned && from >= 0 && from + N <= row.columns)
                write_vector<N>(out, from, g.out_dtype, dz[i]);
            else
                write_columns<N>(out, from, row.columns, g.out_dtype, dz[i]);
        }
    }
}

#endif
