/* tile_stats.cu - the first read of a tile: maxima, sums of exponentials and their dot products, argmaxes, the label's
 * logit, flags and top-K, in one pass at the speed of memory.
 *
 * A thread keeps its sums in f32, in units of log 2 (tiles.cuh has why), relative to an offset that follows its running
 * maximum only when that has moved by more than SLACK, so that the loop seldom rescales and no exponential exceeds
 * e^SLACK. A larger slack would cost digits: where most of a sum of e^x x lies far above the offset, it cancels when it
 * is moved to the maximum. The first offset is the warp's largest logit in its first vectors. What takes one look at
 * several elements (maxima, whether all are finite, adding to the sums) is done once a unit: the two neighbouring vectors
 * that a thread takes at a time, whose terms are added up before they are added to the sum. Threads are merged in f64, in
 * a fixed order, relative to the row's maxima; the panel is merged into the row's statistics by oh_row_stats_merge, which
 * has the definitions.
 *
 * A unit that holds NaN or an infinity shows in its own sums, which are then not finite (0 times -inf is NaN): it is added
 * element by element instead, as are the edges of a row. */
#include <onehead/rowmath.h>

#include "device.h"
#include "tile_stream.cuh"
#include "top_k.cuh"

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

enum { SUM_Z, SUM_T, SUM_Z_DOT, SUM_KL, SUM_RKL, SUM_TOTAL, SUM_COUNT };

/* As oh_row_stats_shift moves a row's. */
static __device__ __forceinline__ void move_z_offset(thread_stats *s, float max) {
    const float offset = exponent_offset(max);
    if (s->z_base > -INFINITY) {
        const float d = s->z_offset - offset, e = exp2f(d);
        s->z_dot = e * (s->z_dot + (s->z_base - max) * s->z_sum);
        s->rkl_dot = e * (s->rkl_dot + d * s->z_sum);
        s->kl_dot -= d * s->t_sum;
        s->z_sum *= e;
    }
    s->z_base = max;
    s->z_offset = offset;
}

static __device__ __forceinline__ void move_t_offset(thread_stats *s, float max) {
    const float offset = exponent_offset(max);
    if (s->t_base > -INFINITY) {
        const float d = s->t_offset - offset, e = exp2f(d);
        s->kl_dot = e * (s->kl_dot + d * s->t_sum);
        s->rkl_dot -= d * s->z_sum;
        s->t_sum *= e;
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
static __device__ void add_elements(thread_stats *s, const ROW &row, const oh_tile_view &view, int vector, int unit) {
    const int from = row.column_of(vector), first = max(from, 0), end = min(from + ROW::VECTOR, row.columns);
#pragma unroll 1
    for (int column = first; column < end; ++column)
        add_element<ROW>(s, ROW::HAS_Z ? row.z(view, column) : 0.0f, ROW::HAS_T ? row.t(view, column) : 0.0f, unit);
}

/* ----------------------------------------------------------------------------------------------- whole vectors ---- */

/* Neighbouring vectors that are looked at together: what is done once for them is done once for as many elements. */
template <int COUNT> struct unit_bits { uint4 z[COUNT], t[COUNT]; };

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

template <int FORMAT, class ROW, bool TRANSFORM, uint32_t WANT, int COUNT>
static __device__ __forceinline__ void add_unit(thread_stats *s, const ROW &row, const oh_tile_view &view, int unit,
                                                const int *vector, const unit_bits<COUNT> &bits) {
    float z_max, t_max;
    unit_maxima<FORMAT, ROW, TRANSFORM, COUNT>(row, view, vector, bits, &z_max, &t_max);
    const bool moves_z = z_max - SLACK > s->z_base, moves_t = t_max - SLACK > s->t_base;
    if (moves_z || moves_t) {
        if (moves_z && z_max < INFINITY) move_z_offset(s, z_max);
        if (moves_t && t_max < INFINITY) move_t_offset(s, t_max);
    }
    unit_sums v = {0, 0, 0, 0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        float z[ROW::VECTOR], t[ROW::VECTOR];
        row.logits(view, vector[i], bits.z[i], bits.t[i], z, t);
        sum_vector<ROW, WANT>(&v, s, z, t);
    }
    if (ROW::HAS_Z) s->z_second = fmaxf(s->z_second, fminf(s->z_max, z_max));
    /* Exponentials of finite elements are at most e^SLACK: only an element that is not finite can make this so. */
    if (!(fabsf(v.z_dot + v.t_dot + v.kl) < INFINITY)) {
#pragma unroll 1
        for (int i = 0; i < COUNT; ++i)
            add_elements(s, row, view, unit + i, unit);
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
    const int place = (int)threadIdx.x * STREAM_TAKEN, vector = row.first_whole + place;
    float z_max = -INFINITY, t_max = -INFINITY;
    if (vector < row.end_whole) {
        const unit_bits<1> bits = {{stream.z(place)}, {stream.t(place)}};
        unit_maxima<FORMAT, ROW, TRANSFORM, 1>(row, view, &vector, bits, &z_max, &t_max);
    }
    z_max = warp_max(set_aside_bad(z_max));
    t_max = warp_max(set_aside_bad(t_max));
    if (z_max > -INFINITY) move_z_offset(s, z_max);
    if (t_max > -INFINITY) move_t_offset(s, t_max);
}

/* A thread's share of the stage that begins with vector `stretch`. */
template <int FORMAT, class ROW, bool TRANSFORM, uint32_t WANT>
static __device__ __forceinline__ void add_stage(thread_stats *s, const tile_stream<ROW> &stream, const ROW &row,
                                                 const oh_tile_view &view, int stretch) {
    const int unit = stretch + (int)threadIdx.x * STREAM_TAKEN;
    if (unit + STREAM_TAKEN <= row.end_whole) {
        int vector[STREAM_TAKEN];
        unit_bits<STREAM_TAKEN> bits;
#pragma unroll
        for (int i = 0; i < STREAM_TAKEN; ++i) {
            const int place = stream.place(i);
            vector[i] = stretch + place;
            bits.z[i] = stream.z(place);
            bits.t[i] = stream.t(place);
        }
        add_unit<FORMAT, ROW, TRANSFORM, WANT, STREAM_TAKEN>(s, row, view, unit, vector, bits);
    } else if (unit < row.end_whole) {
        const unit_bits<1> bits = {{stream.z(unit - stretch)}, {stream.t(unit - stretch)}};
        add_unit<FORMAT, ROW, TRANSFORM, WANT, 1>(s, row, view, unit, &unit, bits);
    }
}

/* ------------------------------------------------------------------------------------------------------- a row ---- */

struct stats_shared {
    unsigned long long z_best[TILE_WARPS], t_best[TILE_WARPS];
    unsigned flags[TILE_WARPS];
    double sums[SUM_COUNT][TILE_WARPS];
};

/* dot + d sum, where a dot that cancels to the rounding of its terms is 0: with an offset that is the maximum but for the
 * rounding of its product with C, a sum of one term is. */
static __device__ double moved_dot(double dot, double d, double sum) {
    const double moved = dot + d * sum;
    return fabs(moved) < 1e-6 * fabs(dot) && fabs(d) < 1e-4 ? 0 : moved;
}

/* A base's own exponential relative to its offset, by which sums are divided to be relative to the base: a row of one
 * finite logit sums to exactly 1. */
static __device__ double base_exponential(float base, float offset) {
    return base > -INFINITY ? (double)exp2_fast(exponent(base, offset)) : 1.0;
}

static __device__ double exponential(double distance) {
    return (double)exp2f((float)(distance * (double)LOG2_E));
}

/* The thread's sums relative to the row's maxima, in natural units. */
static __device__ void thread_sums(const thread_stats *s, float z_max, float t_max, double *sums) {
    const double to_natural = 1.0 / (double)LOG2_E;
    const bool has_z = s->z_base > -INFINITY, has_t = s->t_base > -INFINITY;
    const double dz = has_z ? exponent_correction(s->z_offset, z_max) : 0;
    const double dt = has_t ? exponent_correction(s->t_offset, t_max) : 0;
    const double base = has_z ? (double)s->z_base - (double)z_max : 0;
    const double ez = exponential(base), et = exponential(has_t ? (double)s->t_base - (double)t_max : 0);
    const double z_one = base_exponential(s->z_base, s->z_offset), t_one = base_exponential(s->t_base, s->t_offset);
    const double z_sum = (double)s->z_sum / z_one, t_sum = (double)s->t_sum / t_one;
    sums[SUM_Z] = ez * z_sum;
    sums[SUM_T] = et * t_sum;
    sums[SUM_Z_DOT] = ez * ((double)s->z_dot / z_one + base * z_sum);
    sums[SUM_KL] = to_natural * et * moved_dot((double)s->kl_dot / t_one, dt - dz, t_sum);
    sums[SUM_RKL] = to_natural * ez * moved_dot((double)s->rkl_dot / z_one, dz - dt, z_sum);
    sums[SUM_TOTAL] = (double)s->z_total;
}

/* Lowest column of a unit whose logit is `max`, by one warp: a lane looks at one column. */
template <class ROW, class READ>
static __device__ int column_with(const ROW &row, int unit, float max, const READ &read) {
    static_assert(STREAM_TAKEN * ROW::VECTOR <= 32, "a lane for each column of a unit");
    const int lane = (int)(threadIdx.x % 32), column = row.column_of(unit) + lane;
    const bool inside = lane < STREAM_TAKEN * ROW::VECTOR && column >= 0 && column < row.columns;
    const unsigned found = __ballot_sync(0xffffffffu, inside && set_aside_bad(read(inside ? column : 0)) == max);
    return found ? row.column_of(unit) + __ffs((int)found) - 1 : -1;
}

static __device__ unsigned long long best_of_warps(const unsigned long long *best) {
    unsigned long long key = best[0];
    for (int w = 1; w < TILE_WARPS; ++w)
        key = best[w] > key ? best[w] : key;
    return key;
}

/* What a row leaves, by one warp. */
template <class ROW>
static __device__ void finish_row(const oh_tile_stats &s, const stats_shared *shared, const ROW &row, int64_t index,
                                  unsigned long long z_best, unsigned long long t_best) {
    const oh_tile_view &view = s.tile;
    const int first = (int)view.first_column, lane = threadIdx.x % 32;
    oh_row_stats part;
    double sum = 0;
    oh_row_stats_empty(&part);
    for (int w = 0; w < TILE_WARPS && lane < SUM_COUNT; ++w)
        sum += shared->sums[lane][w];
    part.flags = __reduce_or_sync(0xffffffffu, lane < TILE_WARPS ? shared->flags[lane] : 0);
    part.z_max = key_value(z_best);
    part.t_max = key_value(t_best);
    part.z_sum = __shfl_sync(0xffffffffu, sum, SUM_Z);
    part.t_sum = __shfl_sync(0xffffffffu, sum, SUM_T);
    part.z_dot = __shfl_sync(0xffffffffu, sum, SUM_Z_DOT);
    part.kl_dot = __shfl_sync(0xffffffffu, sum, SUM_KL);
    part.rkl_dot = __shfl_sync(0xffffffffu, sum, SUM_RKL);
    part.z_total = __shfl_sync(0xffffffffu, sum, SUM_TOTAL);
    if (ROW::HAS_Z && z_best)
        part.z_argmax = first + column_with(row, key_place(z_best), part.z_max, [&](int c) { return row.z(view, c); });
    if (ROW::HAS_T && t_best)
        part.t_argmax = first + column_with(row, key_place(t_best), part.t_max, [&](int c) { return row.t(view, c); });
    if (lane != 0) return;
    part.label = s.label ? s.label[index] : part.t_argmax;
    if (ROW::HAS_Z && part.label >= first && part.label - first < row.columns)
        part.z_label = set_aside_bad(row.z(view, part.label - first));
    if (s.restart) {
        s.stats[index] = part;
        return;
    }
    oh_row_stats stats = s.stats[index];
    oh_row_stats_merge(&stats, &part, s.label == NULL);
    s.stats[index] = stats;
}

static __device__ __forceinline__ void start_row(thread_stats *own) {
    own->z_max = own->z_second = own->t_max = own->z_base = own->t_base = -INFINITY;
    own->z_offset = own->t_offset = 0;
    own->z_sum = own->t_sum = own->z_dot = own->kl_dot = own->rkl_dot = own->z_total = 0;
    own->z_unit = own->t_unit = -1;
    own->flags = 0;
}

/* What the threads found in a row, put together. */
template <class ROW>
static __device__ __forceinline__ void merge_threads(const oh_tile_stats &s, stats_shared *shared, const ROW &row,
                                                     int64_t index, const thread_stats &own) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned long long z_key = warp_best(best_key(own.z_max, own.z_unit));
    const unsigned long long t_key = warp_best(best_key(own.t_max, own.t_unit));
    const unsigned flags = __reduce_or_sync(0xffffffffu, own.flags);
    if (lane == 0) shared->z_best[warp] = z_key, shared->t_best[warp] = t_key, shared->flags[warp] = flags;
    __syncthreads();
    const unsigned long long z_best = best_of_warps(shared->z_best), t_best = best_of_warps(shared->t_best);
    double sums[SUM_COUNT];
    thread_sums(&own, key_value(z_best), key_value(t_best), sums);
#pragma unroll
    for (int k = 0; k < SUM_COUNT; ++k) {
        const double sum = warp_sum(sums[k]);
        if (lane == 0) shared->sums[k][warp] = sum;
    }
    __syncthreads();
    if (warp == 0) finish_row(s, shared, row, index, z_best, t_best);
}

template <int FORMAT, int TILES, bool TRANSFORM, uint32_t WANT>
__global__ void __launch_bounds__(TILE_THREADS, STREAM_BLOCKS)
    tile_stats_kernel(const __grid_constant__ oh_tile_stats s, const int stages) {
    typedef tile_row<FORMAT, TILES, TRANSFORM> row_type;
    extern __shared__ __align__(128) uint4 ring[];
    __shared__ stream_shared streaming;
    __shared__ stats_shared shared;
    __shared__ top_k_shared top_k;
    tile_stream<row_type> stream;
    stream.open(&streaming, ring, stages, s.tile);
    for (int64_t index = blockIdx.x; index < s.tile.rows; index += gridDim.x) {
        const row_type row(s.tile, index);
        thread_stats own;
        start_row(&own);
        for (int stretch = row.first_whole; stretch < row.end_whole; stretch += STREAM_VECTORS) {
            stream.wait();
            if (stretch == row.first_whole) first_offsets<FORMAT, row_type, TRANSFORM>(&own, stream, row, s.tile);
            add_stage<FORMAT, row_type, TRANSFORM, WANT>(&own, stream, row, s.tile, stretch);
            stream.release(s.tile);
        }
        const top_k_lead lead = {own.z_max, own.z_second, own.z_unit};
        for (int edge = threadIdx.x; edge < row.edges(); edge += TILE_THREADS)
            add_elements(&own, row, s.tile, row.edge_vector(edge), row.edge_vector(edge));
        merge_threads(s, &shared, row, index, own);
        if constexpr (row_type::HAS_Z)
            if (s.top_k > 0)
                top_k_row(&top_k, row, s.tile, lead, s.topk_id + index * s.top_k, s.topk_logit + index * s.top_k,
                          s.top_k, s.restart != 0);
        __syncthreads(); /* what the row's end shares is free again */
    }
}

/* ----------------------------------------------------------------------------------------------------- dispatch ---- */

typedef void (*stats_kernel)(const oh_tile_stats, const int);

/* A kernel with at least the sums that are asked for. */
struct stats_variant {
    int tiles, transform;
    uint32_t want;
    stats_kernel kernel;
};

#define ALL_WANTS (OH_WANT_ENTROPY | OH_WANT_KL | OH_WANT_RKL | OH_WANT_TOTAL)
#define VARIANT(format, tiles, transform, want)                                                                        \
    { tiles, transform, want, tile_stats_kernel<format, tiles, transform, want> }
#define VARIANTS(format)                                                                                               \
    {                                                                                                                  \
        VARIANT(format, TILES_BOTH, false, OH_WANT_ENTROPY), VARIANT(format, TILES_BOTH, false, OH_WANT_KL),           \
            VARIANT(format, TILES_BOTH, false, OH_WANT_ENTROPY | OH_WANT_KL),                                          \
            VARIANT(format, TILES_BOTH, false, ALL_WANTS), VARIANT(format, TILES_BOTH, true, ALL_WANTS),               \
            VARIANT(format, TILES_DRAFT, false, OH_WANT_ENTROPY), VARIANT(format, TILES_DRAFT, false, ALL_WANTS),      \
            VARIANT(format, TILES_DRAFT, true, ALL_WANTS), VARIANT(format, TILES_TARGET, false, 0u),                   \
            VARIANT(format, TILES_TARGET, true, 0u)                                                                    \
    }

enum { VARIANT_COUNT = 10 };
static const stats_variant variants[4][VARIANT_COUNT] = {VARIANTS(OH_TILE_F32), VARIANTS(OH_TILE_BF16),
                                                         VARIANTS(OH_TILE_F16), VARIANTS(OH_TILE_DIFF)};

static stats_kernel kernel_for(const oh_tile_stats *s) {
    const int tiles = !s->tile.draft ? TILES_TARGET : !s->tile.target ? TILES_DRAFT : TILES_BOTH;
    const int transform = tile_view_transforms(&s->tile);
    for (const stats_variant &v : variants[s->tile.format])
        if (v.tiles == tiles && v.transform == transform && (s->want & ALL_WANTS & ~v.want) == 0) return v.kernel;
    return NULL;
}

static int stats_valid(const oh_tile_stats *s) {
    const oh_tile_view *tile = &s->tile;
    if (!tile_view_valid(tile) || s->top_k < 0 || s->top_k > OH_TOP_K_MAX) return 0;
    if (tile->rows == 0) return 1;
    if (!s->stats || (s->top_k > 0 && (!s->topk_id || !s->topk_logit))) return 0;
    if (tile->columns == 0) return 1;
    if (!tile->draft && (!tile->target || s->top_k > 0)) return 0;
    if (s->want & (OH_WANT_ENTROPY | OH_WANT_TOTAL) && !tile->draft) return 0;
    return !(s->want & (OH_WANT_KL | OH_WANT_RKL)) || (tile->draft && tile->target);
}

oh_status cuda_tile_stats(oh_queue *queue, const oh_tile_stats *stats) {
    if (queue_ready(queue) != OH_OK) return queue_ready(queue);
    if (!stats_valid(stats)) return queue_refuse(queue, "tile_stats");
    if (stats->tile.rows == 0 || (stats->tile.columns == 0 && !stats->restart)) return OH_OK;
    const device_guard guard(queue->device);
    oh_tile_stats arguments = *stats;
    if (stats->tile.columns == 0) arguments.want = 0;
    const stats_kernel kernel = kernel_for(&arguments);
    if (!kernel) return queue_refuse(queue, "tile_stats");
    const int tiles = stats->tile.draft && stats->tile.target ? 2 : 1;
    const size_t other = sizeof(stream_shared) + sizeof(stats_shared) + sizeof(top_k_shared);
    const stream_launch launch = stream_launch_for(queue->device, tiles, stats->tile.rows, other);
    kernel<<<launch.blocks, TILE_THREADS, launch.bytes, queue->stream>>>(arguments, launch.stages);
    return queue_launched(queue, "tile_stats");
}

cudaError_t tile_stats_load(void) {
    for (const auto &of_format : variants)
        for (const stats_variant &v : of_format) {
            const cudaError_t error = stream_load((const void *)v.kernel);
            if (error != cudaSuccess) return error;
        }
    return cudaSuccess;
}
