/* stats_sums.cuh - what a thread of tile_stats keeps of a row: maxima and sums over the elements that it has seen.
 *
 * Sums are kept in f32, in units of log 2 (tiles.cuh has why), relative to an offset that follows the thread's running
 * maximum only when that has moved by more than SLACK, so that the loop seldom rescales and no exponential exceeds
 * e^SLACK. A larger slack would cost digits: where most of a sum of e^x x lies far above the offset, it cancels when it
 * is moved to the maximum. The first offset is the warp's largest logit in its first vectors. What takes one look at
 * several elements (maxima, whether all are finite, adding to the sums) is done once a unit: the two neighbouring vectors
 * that a thread takes at a time, whose terms are added up before they are added to the sum.
 *
 * A unit that holds NaN or an infinity shows in its own sums, which are then not finite (0 times -inf is NaN): it is added
 * element by element instead, as are the edges of a row. */
#ifndef ONEHEAD_CUDA_STATS_SUMS_CUH
#define ONEHEAD_CUDA_STATS_SUMS_CUH

#include "tile_stream.cuh"

#define SLACK 4.0f

/* Sums relative to the offsets, alike for both tiles, so that equal ones have equal sums. An offset is the rounded product
 * of its base, a logit, with C. z_dot alone is in natural units and relative to z_base: an entropy near 0 is a sum of terms
 * far smaller than that rounding. */
struct thread_stats {
    float z_max, t_max;
    float z_second;       /* the largest maximum of the draft's other units than z_unit */
    float z_base, t_base; /* -inf: none yet */
    float z_offset, t_offset;
    float z_sum, t_sum, z_dot, kl_dot, rkl_dot, z_total;
    int z_unit, t_unit; /* first vector of the lowest unit with the maximum; -1: none */
    unsigned flags;
};

/* A factor of 0 leaves nothing, whatever the sum: what is that far below a maximum may have had sums that f32 can't hold. */
template <class T> static __device__ __forceinline__ T moved(T factor, T sum) {
    return factor == 0 ? 0 : factor * sum;
}

/* As oh_row_stats_shift moves a row's. */
static __device__ __forceinline__ void move_z_offset(thread_stats *s, float max) {
    const float offset = exponent_offset(max);
    if (s->z_base > -INFINITY) {
        const float d = s->z_offset - offset, e = exp2f(d);
        s->z_dot = moved(e, s->z_dot + (s->z_base - max) * s->z_sum);
        s->rkl_dot = moved(e, s->rkl_dot + d * s->z_sum);
        s->kl_dot -= d * s->t_sum;
        s->z_sum = moved(e, s->z_sum);
    }
    s->z_base = max;
    s->z_offset = offset;
}

static __device__ __forceinline__ void move_t_offset(thread_stats *s, float max) {
    const float offset = exponent_offset(max);
    if (s->t_base > -INFINITY) {
        const float d = s->t_offset - offset, e = exp2f(d);
        s->kl_dot = moved(e, s->kl_dot + d * s->t_sum);
        s->rkl_dot -= d * s->z_sum;
        s->t_sum = moved(e, s->t_sum);
    }
    s->t_base = max;
    s->t_offset = offset;
}

/* -------------------------------------------------------------------------------------------- single elements ---- */

template <class ROW> static __device__ __forceinline__ unsigned element_flags(float z, float t) {
    unsigned flags = 0;
    if (ROW::HAS_Z && z == -INFINITY) flags |= OH_ROW_Z_NEG_INF;
    if (ROW::HAS_Z && !(z < INFINITY)) flags |= OH_ROW_Z_BAD;
    if (ROW::HAS_T && !(t < INFINITY)) flags |= OH_ROW_T_BAD;
    if (!ROW::HAS_Z || !ROW::HAS_T) return flags;
    if (z == -INFINITY && isfinite(t)) flags |= OH_ROW_P0_Q;
    if (t == -INFINITY && isfinite(z)) flags |= OH_ROW_Q0_P;
    return flags;
}

template <class ROW> static __device__ void add_element(thread_stats *s, float z, float t, int unit) {
    s->flags |= element_flags<ROW>(z, t);
    z = ROW::HAS_Z ? set_aside_bad(z) : -INFINITY;
    t = ROW::HAS_T ? set_aside_bad(t) : -INFINITY;
    if (ROW::HAS_Z && (s->z_unit < 0 || z > s->z_max || (z == s->z_max && unit < s->z_unit))) {
        s->z_max = z;
        s->z_unit = unit;
    }
    if (ROW::HAS_T && (s->t_unit < 0 || t > s->t_max || (t == s->t_max && unit < s->t_unit))) {
        s->t_max = t;
        s->t_unit = unit;
    }
    /* Offsets move, here with every new maximum, before anything of this element is added. */
    if (z > s->z_base) move_z_offset(s, z);
    if (t > s->t_base) move_t_offset(s, t);
    const float dz = exponent(z, s->z_offset), dt = exponent(t, s->t_offset);
    const float ez = z > -INFINITY ? exp2_fast(dz) : 0, et = t > -INFINITY ? exp2_fast(dt) : 0;
    s->z_sum += ez;
    s->t_sum += et;
    if (z > -INFINITY) {
        s->z_dot += ez > 0 ? ez * (z - s->z_base) : 0;
        s->z_total += z;
    }
    if (z > -INFINITY && t > -INFINITY) {
        s->kl_dot += et > 0 ? et * (dt - dz) : 0;
        s->rkl_dot += ez > 0 ? ez * (dz - dt) : 0;
    }
}

template <class ROW>
static __device__ __forceinline__ void add_elements(thread_stats *s, const ROW &row, const oh_tile_view &view,
                                                    int vector, int unit) {
    const int from = row.column_of(vector), first = max(from, 0), end = min(from + ROW::VECTOR, row.columns);
#pragma unroll 1
    for (int column = first; column < end; ++column)
        add_element<ROW>(s, ROW::HAS_Z ? row.z(view, column) : 0.0f, ROW::HAS_T ? row.t(view, column) : 0.0f, unit);
}

/* ----------------------------------------------------------------------------------------------- whole vectors ---- */

template <int FORMAT, int COUNT> static __device__ __forceinline__ float bits_max(const uint4 *raw) {
    float pair[2];
    if constexpr (FORMAT == OH_TILE_BF16) {
        const __nv_bfloat162 *word = (const __nv_bfloat162 *)raw;
        __nv_bfloat162 max = word[0];
#pragma unroll
        for (int i = 1; i < 4 * COUNT; ++i)
            max = __hmax2(max, word[i]);
        unpack_bf16(*(const unsigned *)&max, pair);
    } else {
        const __half2 *word = (const __half2 *)raw;
        __half2 max = word[0];
#pragma unroll
        for (int i = 1; i < 4 * COUNT; ++i)
            max = __hmax2(max, word[i]);
        unpack_f16(*(const unsigned *)&max, pair);
    }
    return fmaxf(pair[0], pair[1]);
}

template <int COUNT> static __device__ __forceinline__ float vector_max(const float *x) {
    float max = x[0];
#pragma unroll
    for (int e = 1; e < COUNT; ++e)
        max = fmaxf(max, x[e]);
    return max;
}

/* Sums of a unit. */
struct unit_sums {
    float z, t, z_dot, t_dot, kl, rkl, total;
};

/* Adds a vector's. Four elements at a time: more at once don't fit the registers, and exponentials would be formed
 * twice. */
template <class ROW, uint32_t WANT>
static __device__ __forceinline__ void sum_vector(unit_sums *v, const thread_stats *s, const float *z, const float *t) {
#pragma unroll
    for (int first = 0; first < ROW::VECTOR; first += 4) {
        float dz[4], ez[4], dt[4], et[4];
        if constexpr (ROW::HAS_Z) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                dz[e] = exponent(z[first + e], s->z_offset);
                ez[e] = exp2_fast(dz[e]);
                if (WANT & OH_WANT_ENTROPY) v->z_dot = fmaf(ez[e], z[first + e] - s->z_base, v->z_dot);
            }
            v->z += (ez[0] + ez[1]) + (ez[2] + ez[3]);
            if (WANT & OH_WANT_TOTAL) v->total += (z[first] + z[first + 1]) + (z[first + 2] + z[first + 3]);
        }
        if constexpr (ROW::HAS_T) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                dt[e] = exponent(t[first + e], s->t_offset);
                et[e] = exp2_fast(dt[e]);
            }
            v->t += (et[0] + et[1]) + (et[2] + et[3]);
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            if constexpr (ROW::HAS_Z && ROW::HAS_T && (WANT & (OH_WANT_KL | OH_WANT_RKL)) != 0) {
                const float distance = dt[e] - dz[e];
                v->kl = fmaf(et[e], distance, v->kl);
                if (WANT & OH_WANT_RKL) v->rkl = fmaf(ez[e], -distance, v->rkl);
            } else if constexpr (ROW::HAS_T) {
                v->t_dot = fmaf(et[e], dt[e], v->t_dot);
            }
        }
    }
}

/* Largest logits of a unit whose first vector is `vector`. NaN is left out; a tile that isn't there has -inf. */
template <int FORMAT, class ROW, bool TRANSFORM, int COUNT>
static __device__ __forceinline__ void unit_maxima(const ROW &row, const oh_tile_view &view, const int *vector,
                                                   const unit_bits<COUNT> &bits, float *z_max, float *t_max) {
    constexpr int N = ROW::VECTOR;
    constexpr bool READS_Z = FORMAT == OH_TILE_F32 || FORMAT == OH_TILE_DIFF || TRANSFORM;
    *z_max = *t_max = -INFINITY;
    if constexpr (READS_Z) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            float z[N], t[N];
            row.logits(view, vector[i], bits.z[i], bits.t[i], z, t);
            if (ROW::HAS_Z) *z_max = fmaxf(*z_max, vector_max<N>(z));
            if (ROW::HAS_T && (FORMAT == OH_TILE_F32 || TRANSFORM)) *t_max = fmaxf(*t_max, vector_max<N>(t));
        }
    }
    if constexpr (FORMAT != OH_TILE_F32 && !TRANSFORM) {
        if (ROW::HAS_T) *t_max = bits_max<FORMAT, COUNT>(bits.t);
        if (ROW::HAS_Z && !READS_Z) *z_max = bits_max<FORMAT, COUNT>(bits.z);
    }
}

/* The row, formed anew: what the loop over its units doesn't read would only take registers there. */
template <class ROW> static __device__ __forceinline__ ROW row_again(const oh_tile_view &view, int index) {
    asm volatile("" : "+r"(index));
    return ROW(view, index);
}

template <int FORMAT, class ROW, bool TRANSFORM, uint32_t WANT, int COUNT>
static __device__ __forceinline__ void add_unit(thread_stats *s, const ROW &row, int index, const oh_tile_view &view,
                                                int unit, const int *vector, const unit_bits<COUNT> &bits) {
    float z_max, t_max;
    unit_maxima<FORMAT, ROW, TRANSFORM, COUNT>(row, view, vector, bits, &z_max, &t_max);
    /* -inf less -inf is NaN, which fmaxf leaves out: a unit of nothing moves nothing. */
    if (fmaxf(z_max - s->z_base, t_max - s->t_base) > SLACK) {
        if (z_max - s->z_base > SLACK && z_max < INFINITY) move_z_offset(s, z_max);
        if (t_max - s->t_base > SLACK && t_max < INFINITY) move_t_offset(s, t_max);
    }
    /* To start from -0 is to start from the first term. */
    unit_sums v = {-0.0f, -0.0f, -0.0f, -0.0f, -0.0f, -0.0f, -0.0f};
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        float z[ROW::VECTOR], t[ROW::VECTOR];
        row.logits(view, vector[i], bits.z[i], bits.t[i], z, t);
        sum_vector<ROW, WANT>(&v, s, z, t);
    }
    if (ROW::HAS_Z) s->z_second = fmaxf(s->z_second, fminf(s->z_max, z_max));
    /* Exponentials of finite elements are at most e^SLACK: only an element that is not finite can make this so. */
    if (!(fabsf(v.z_dot + v.t_dot + v.kl) < INFINITY)) {
        const ROW whole = row_again<ROW>(view, index);
#pragma unroll 1
        for (int i = 0; i < COUNT; ++i)
            add_elements(s, whole, view, unit + i, unit);
        return;
    }
    if (ROW::HAS_Z && z_max > s->z_max) s->z_max = z_max, s->z_unit = unit;
    if (ROW::HAS_T && t_max > s->t_max) s->t_max = t_max, s->t_unit = unit;
    s->z_sum += v.z;
    s->t_sum += v.t;
    if (WANT & OH_WANT_ENTROPY) s->z_dot += v.z_dot;
    if (WANT & OH_WANT_KL) s->kl_dot += v.kl;
    if (WANT & OH_WANT_RKL) s->rkl_dot += v.rkl;
    if (WANT & OH_WANT_TOTAL) s->z_total += v.total;
}

static __device__ __forceinline__ float warp_max(float x) {
    return from_ordered_bits(__reduce_max_sync(0xffffffffu, ordered_bits(x)));
}

/* First offsets, from the vectors that the lanes of a warp start with; by all of them. */
template <int FORMAT, class ROW, bool TRANSFORM>
static __device__ void first_offsets(thread_stats *s, const tile_stream<ROW> &stream, const ROW &row,
                                     const oh_tile_view &view) {
    const int vector = row.first_whole + (int)threadIdx.x * STREAM_TAKEN;
    float z_max = -INFINITY, t_max = -INFINITY;
    if (vector < row.end_whole) {
        const unit_bits<1> bits = stream.first();
        unit_maxima<FORMAT, ROW, TRANSFORM, 1>(row, view, &vector, bits, &z_max, &t_max);
    }
    z_max = warp_max(set_aside_bad(z_max));
    t_max = warp_max(set_aside_bad(t_max));
    if (z_max > -INFINITY) move_z_offset(s, z_max);
    if (t_max > -INFINITY) move_t_offset(s, t_max);
}

/* Adds the thread's unit of a stage; `unit` is its first vector. */
template <int FORMAT, class ROW, bool TRANSFORM, uint32_t WANT>
static __device__ __forceinline__ void add_stage(thread_stats *s, const tile_stream<ROW> &stream, const ROW &row,
                                                 int index, const oh_tile_view &view, int unit) {
    if (unit + STREAM_TAKEN <= row.end_whole) {
        int vector[STREAM_TAKEN];
#pragma unroll
        for (int i = 0; i < STREAM_TAKEN; ++i)
            vector[i] = unit + stream.in_unit(i);
        add_unit<FORMAT, ROW, TRANSFORM, WANT, STREAM_TAKEN>(s, row, index, view, unit, vector, stream.unit());
    } else if (unit < row.end_whole) {
        add_unit<FORMAT, ROW, TRANSFORM, WANT, 1>(s, row, index, view, unit, &unit, stream.first());
    }
}

#endif
