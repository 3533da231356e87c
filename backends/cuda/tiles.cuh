/* tiles.cuh - how the tile kernels read a tile, so that every read of it sees the same bits: rank compares with a logit
 * that an earlier read found, and tile_grad decides p <= q as tile_overlap did.
 *
 * A block of THREADS threads takes a row. The row is cut into vectors of 16 bytes at addresses that are multiples of
 * 16: vector v covers columns [v * VECTOR - shift, v * VECTOR - shift + VECTOR), so that the first and the last may be
 * partly outside the row. Vectors [first_whole, end_whole) are inside and are read whole. The others, and all of them
 * where the two tiles' rows lie differently in their 16 bytes, are read element by element ("edges"). */
#ifndef ONEHEAD_CUDA_TILES_CUH
#define ONEHEAD_CUDA_TILES_CUH

#include <cfloat>

#include <onehead/rowmath.h>

#include "elements.cuh"

enum { TILE_THREADS = 256, TILE_WARPS = TILE_THREADS / 32 };

/* Columns are counted in int32 with room for the last stride of a loop. */
#define TILE_COLUMNS_MAX (INT32_MAX - 65536)

enum tile_set { TILES_BOTH, TILES_DRAFT, TILES_TARGET };

template <int FORMAT> struct tile_format {
    typedef unsigned short element;
    enum { VECTOR = 8 };
};
template <> struct tile_format<OH_TILE_F32> {
    typedef float element;
    enum { VECTOR = 4 };
};

template <int FORMAT> static __device__ __forceinline__ float tile_element(const void *row, int column) {
    return element_read(row, column, FORMAT == OH_TILE_F32 ? OH_F32 : FORMAT == OH_TILE_BF16 ? OH_BF16 : OH_F16);
}

template <int FORMAT> static __device__ __forceinline__ void unpack_vector(uint4 raw, float *to) {
    if constexpr (FORMAT == OH_TILE_F32) {
        to[0] = __uint_as_float(raw.x), to[1] = __uint_as_float(raw.y);
        to[2] = __uint_as_float(raw.z), to[3] = __uint_as_float(raw.w);
    } else if constexpr (FORMAT == OH_TILE_BF16) {
        unpack_bf16(raw.x, to), unpack_bf16(raw.y, to + 2), unpack_bf16(raw.z, to + 4), unpack_bf16(raw.w, to + 6);
    } else {
        unpack_f16(raw.x, to), unpack_f16(raw.y, to + 2), unpack_f16(raw.z, to + 4), unpack_f16(raw.w, to + 6);
    }
}

/* One row of a view. The tiles of OH_TILE_DIFF need the target's to form z. */
template <int FORMAT, int TILES, bool TRANSFORM> struct tile_row {
    typedef typename tile_format<FORMAT>::element element;
    static constexpr int VECTOR = tile_format<FORMAT>::VECTOR;
    static constexpr bool HAS_Z = TILES != TILES_TARGET;
    static constexpr bool HAS_T = TILES != TILES_DRAFT;
    static constexpr bool NEEDS_T = FORMAT == OH_TILE_DIFF; /* to form z */
    static constexpr bool READS_T = HAS_T || NEEDS_T;

    const element *z_raw, *t_raw;
    int columns, shift, first_whole, end_whole, vectors;

    __device__ tile_row(const oh_tile_view &view, int64_t row) {
        z_raw = t_raw = NULL;
        if (HAS_Z) z_raw = (const element *)view.draft + row * view.draft_ld;
        if (READS_T)
            t_raw = (const element *)view.target + (view.target_row ? view.target_row[row] : row) * view.target_ld;
        columns = (int)view.columns;
        const int z_shift = (int)((uintptr_t)z_raw % 16 / sizeof(element));
        const int t_shift = (int)((uintptr_t)t_raw % 16 / sizeof(element));
        shift = HAS_Z ? z_shift : t_shift;
        vectors = (columns + shift + VECTOR - 1) / VECTOR;
        first_whole = shift ? 1 : 0;
        end_whole = (columns + shift) / VECTOR;
        if (end_whole < first_whole) end_whole = first_whole;
        if (HAS_Z && READS_T && z_shift != t_shift) first_whole = end_whole = 0;
    }

    __device__ __forceinline__ int column_of(int vector) const { return vector * VECTOR - shift; }

    /* Edges are numbered from 0. */
    __device__ __forceinline__ int edges() const {
        return first_whole + (vectors > end_whole ? vectors - end_whole : 0);
    }
    __device__ __forceinline__ int edge_vector(int edge) const {
        return edge < first_whole ? edge : end_whole + (edge - first_whole);
    }

    /* Not kept in the cache: a tile is far larger. */
    __device__ __forceinline__ uint4 load_z(int vector) const {
        return __ldcs((const uint4 *)(z_raw + column_of(vector)));
    }
    __device__ __forceinline__ uint4 load_t(int vector) const {
        return __ldcs((const uint4 *)(t_raw + column_of(vector)));
    }

    static __device__ __forceinline__ float transform(const oh_transform &by, float raw, int64_t vocabulary_column) {
        if (!TRANSFORM) return raw;
        return oh_logit(raw, by.scale, by.bias ? by.bias[vocabulary_column] : 0.0f, by.softcap);
    }

    /* The transformed logits of a whole vector from its two raw ones. */
    __device__ __forceinline__ void logits(const oh_tile_view &view, int vector, uint4 z_bits, uint4 t_bits, float *z,
                                           float *t) const {
        if (READS_T) unpack_vector<FORMAT>(t_bits, t);
        if (HAS_Z) {
            unpack_vector<FORMAT>(z_bits, z);
            if (FORMAT == OH_TILE_DIFF)
#pragma unroll
                for (int e = 0; e < VECTOR; ++e)
                    z[e] += t[e];
        }
        if (!TRANSFORM) return;
        const int64_t column = view.first_column + column_of(vector);
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) {
            if (HAS_Z) z[e] = transform(view.draft_transform, z[e], column + e);
            if (HAS_T) t[e] = transform(view.target_transform, t[e], column + e);
        }
    }

    __device__ __forceinline__ float z(const oh_tile_view &view, int column) const {
        float raw = tile_element<FORMAT>(z_raw, column);
        if (FORMAT == OH_TILE_DIFF) raw += tile_element<FORMAT>(t_raw, column);
        return transform(view.draft_transform, raw, view.first_column + column);
    }
    __device__ __forceinline__ float t(const oh_tile_view &view, int column) const {
        return transform(view.target_transform, tile_element<FORMAT>(t_raw, column), view.first_column + column);
    }
};

/* NaN and +inf are reported by a flag and then count as -inf. */
static __device__ __forceinline__ float set_aside_bad(float x) {
    return x < INFINITY ? x : -INFINITY;
}

/* ---------------------------------------------------------------------------------------------- exponentials ---- */

/* e^(x - max) is formed as 2^(x C - max C) with C = log2 e in f32: one multiply-add and one instruction whose relative
 * error is below 2^-22. The multiply-add rounds the exponent once, so the relative error of a probability is at most
 * 3e-7 + 6e-8 |log p|. C is off by 1.3e-8 of itself, which counts where it multiplies differences of logits only: the
 * product max C is kept with its own rounding (`exponent_offset`), whose effect exponent_correction undoes. */
#define LOG2_E 1.44269504088896340736f
#define LN_2 0.69314718055994530942

static __device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Finite for a finite maximum, masks of the least number among them: where maxima move, what is nothing is multiplied by
 * their distance. */
static __device__ __forceinline__ float exponent_offset(float max) {
    return fmaxf(__fmul_rn(max, LOG2_E), -FLT_MAX);
}

static __device__ __forceinline__ float exponent(float x, float offset) {
    return fmaf(x, LOG2_E, -offset);
}

/* How far an offset lies above max C, exactly enough for f64 sums. */
static __device__ __forceinline__ double exponent_correction(float offset, float max) {
    return (double)offset - (double)max * (double)LOG2_E;
}

/* --------------------------------------------------------------------------------------------- reductions ---- */

/* Floats as unsigned integers of the same order; 0 is below all of them. -0 counts as 0. */
static __device__ __forceinline__ unsigned ordered_bits(float x) {
    const unsigned bits = __float_as_uint(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static __device__ __forceinline__ float from_ordered_bits(unsigned ordered) {
    return __uint_as_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

/* Largest value and, among equal ones, lowest place, as one number that is larger for the better; 0: none. */
static __device__ __forceinline__ unsigned long long best_key(float value, int place) {
    if (place < 0) return 0;
    return (unsigned long long)ordered_bits(value) << 32 | (unsigned)~place;
}
static __device__ __forceinline__ int key_place(unsigned long long key) {
    return key ? (int)~(unsigned)key : -1;
}
static __device__ __forceinline__ float key_value(unsigned long long key) {
    return key ? from_ordered_bits((unsigned)(key >> 32)) : -INFINITY;
}

static __device__ __forceinline__ unsigned long long warp_best(unsigned long long key) {
    const unsigned high = __reduce_max_sync(0xffffffffu, (unsigned)(key >> 32));
    const unsigned low = (unsigned)(key >> 32) == high ? (unsigned)key : 0;
    return (unsigned long long)high << 32 | __reduce_max_sync(0xffffffffu, low);
}

/* In a fixed order: lane i takes lane i + 16, then i + 8... */
static __device__ __forceinline__ double warp_sum(double value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_down_sync(0xffffffffu, value, offset);
    return value;
}

/* Sums of COUNT values of each lane, COUNT a power of two: each step hands half of them, or in the end the one, to the
 * lane across. Returns sum *which, the same bits in all lanes that hold it. */
template <int COUNT> static __device__ __forceinline__ double warp_sums(double *values, int *which) {
    const int lane = (int)(threadIdx.x % 32);
    int offset = 16;
    *which = 0;
#pragma unroll
    for (int half = COUNT / 2; half > 0; half /= 2, offset /= 2) {
        const bool upper = lane & offset;
#pragma unroll
        for (int i = 0; i < half; ++i) {
            const double kept = upper ? values[i + half] : values[i], given = upper ? values[i] : values[i + half];
            values[i] = kept + __shfl_xor_sync(0xffffffffu, given, offset);
        }
        if (upper) *which += half;
    }
#pragma unroll
    for (; offset > 0; offset /= 2)
        values[0] += __shfl_xor_sync(0xffffffffu, values[0], offset);
    return values[0];
}

/* Whether a view can be read: sizes, strides, alignment, format and transforms. */
static inline int tile_view_valid(const oh_tile_view *view) {
    const oh_transform *by[] = {&view->draft_transform, &view->target_transform};
    if (view->rows < 0 || view->rows > INT32_MAX || view->columns < 0 || view->first_column < 0) return 0;
    if (view->columns > TILE_COLUMNS_MAX || view->first_column > INT32_MAX - view->columns) return 0;
    if (view->format < OH_TILE_F32 || view->format > OH_TILE_DIFF) return 0;
    const uintptr_t size = view->format == OH_TILE_F32 ? 4 : 2;
    if (view->draft && (view->draft_ld < view->columns || (uintptr_t)view->draft % size != 0)) return 0;
    if (view->target && (view->target_ld < view->columns || (uintptr_t)view->target % size != 0)) return 0;
    if (view->format == OH_TILE_DIFF && view->draft && !view->target) return 0;
    for (const oh_transform *t : by)
        if (!(t->scale > -INFINITY && t->scale < INFINITY && t->softcap >= 0 && t->softcap < INFINITY)) return 0;
    return 1;
}

static inline int has_transform(const oh_transform *by) {
    return by->scale != 1 || by->softcap != 0 || by->bias;
}

static inline int tile_view_transforms(const oh_tile_view *view) {
    return (view->draft && has_transform(&view->draft_transform)) ||
           (view->target && has_transform(&view->target_transform));
}

#endif
