/* tile_stats.cu - the first read of a tile: maxima, sums of exponentials and their dot products, argmaxes, the label's
 * logit, flags and top-K, in one pass at the speed of memory.
 *
 * Threads keep sums of their own (stats_sums.cuh), which are merged in f64, in a fixed order, relative to the row's maxima;
 * the panel is merged into the row's statistics by oh_row_stats_merge, which has the definitions. A row ends with two
 * barriers, and two more for top-K; what comes last, by one warp, goes on while the others read the next row. */
#include <onehead/rowmath.h>

#include "device.h"
#include "stats_sums.cuh"
#include "top_k.cuh"

enum { SUM_Z, SUM_T, SUM_Z_DOT, SUM_KL, SUM_RKL, SUM_TOTAL, SUM_COUNT };

/* How many of the sums a kernel forms: a power of two of them, for warp_sums. */
static __host__ __device__ constexpr int sums_formed(uint32_t want) {
    return want & (OH_WANT_RKL | OH_WANT_TOTAL) ? 8 : want & OH_WANT_KL ? 4 : want & OH_WANT_ENTROPY ? 4 : 2;
}

/* Before the row's first barrier: bests and flags; between the two: sums. */
struct stats_shared {
    unsigned long long z_best[TILE_WARPS], t_best[TILE_WARPS];
    unsigned flags[TILE_WARPS];
    double sums[8][TILE_WARPS];
};

/* A row's, as every thread knows them. */
struct row_bests {
    unsigned long long z, t;
    unsigned flags;
};

enum { FINISHING_WARP = 1 }; /* not the one that ranks the top-K */

/* x / one, correctly rounded, and nearly so: `one` is an exponential of a rounding, near 1. */
struct divisor {
    double one, inverse;
};

static __device__ __forceinline__ divisor divisor_of(float one) {
    float about;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(about) : "f"(one));
    const double first = (double)about;
    return divisor{(double)one, fma(first, fma((double)-one, first, 1.0), first)};
}

static __device__ __forceinline__ double divided(double x, const divisor &by) {
    const double quotient = x * by.inverse;
    return fma(fma(-quotient, by.one, x), by.inverse, quotient);
}

/* dot + d sum, where a dot that cancels to the rounding of its terms is 0: with an offset that is the maximum but for the
 * rounding of its product with C, a sum of one term is. */
static __device__ __forceinline__ double moved_dot(double dot, double d, double sum) {
    const double moved = fma(d, sum, dot);
    return fabs(moved) < 1e-6 * fabs(dot) && fabs(d) < 1e-4 ? 0 : moved;
}

/* A tile's part of a thread's sums on its way to the row's maximum. */
struct base_move {
    double d;      /* the offset less the maximum's */
    double base;   /* the base less the maximum */
    double factor; /* of the sums */
    divisor by;    /* the base's own exponential: a row of one finite logit sums to exactly 1 */
};

static __device__ __forceinline__ base_move move_to(float base, float offset, float max) {
    if (!(base > -INFINITY)) return base_move{0, 0, 1, divisor{1, 1}};
    const double distance = (double)base - (double)max, d = exponent_correction(offset, max);
    const float factor = exp2f((float)(distance * (double)LOG2_E));
    /* So far below the maximum that its own exponentials, whose offset is rounded too, may be none of f32. */
    if (factor == 0) return base_move{d, distance, 0, divisor{1, 1}};
    return base_move{d, distance, (double)factor, divisor_of(exp2_fast(exponent(base, offset)))};
}

/* The thread's sums relative to the row's maxima, in natural units. */
template <uint32_t WANT>
static __device__ __forceinline__ void thread_sums(const thread_stats &s, float z_max, float t_max, double *sums) {
    const double to_natural = 1.0 / (double)LOG2_E;
    const base_move z = move_to(s.z_base, s.z_offset, z_max), t = move_to(s.t_base, s.t_offset, t_max);
    const double z_sum = divided((double)s.z_sum, z.by), t_sum = divided((double)s.t_sum, t.by);
    sums[SUM_Z] = moved(z.factor, z_sum);
    sums[SUM_T] = moved(t.factor, t_sum);
    if constexpr (sums_formed(WANT) >= 4) {
        sums[SUM_Z_DOT] = moved(z.factor, fma(z.base, z_sum, divided((double)s.z_dot, z.by)));
        sums[SUM_KL] = to_natural * moved(t.factor, moved_dot((double)s.kl_dot * t.by.inverse, t.d - z.d, t_sum));
    }
    if constexpr (sums_formed(WANT) >= 8) {
        sums[SUM_RKL] = to_natural * moved(z.factor, moved_dot((double)s.rkl_dot * z.by.inverse, z.d - t.d, z_sum));
        sums[SUM_TOTAL] = (double)s.z_total;
        sums[SUM_COUNT] = sums[SUM_COUNT + 1] = 0;
    }
}

static __device__ __forceinline__ unsigned long long best_of_warps(const unsigned long long *best) {
    unsigned long long key = best[0];
#pragma unroll
    for (int w = 1; w < TILE_WARPS; ++w)
        key = best[w] > key ? best[w] : key;
    return key;
}

/* Before the first barrier. */
static __device__ __forceinline__ void post_bests(stats_shared *shared, const thread_stats &own) {
    const int warp = threadIdx.x / 32;
    const unsigned long long z = warp_best(best_key(own.z_max, own.z_unit));
    const unsigned long long t = warp_best(best_key(own.t_max, own.t_unit));
    const unsigned flags = __reduce_or_sync(0xffffffffu, own.flags);
    if (threadIdx.x % 32 == 0) shared->z_best[warp] = z, shared->t_best[warp] = t, shared->flags[warp] = flags;
}

/* Between the barriers. */
template <uint32_t WANT>
static __device__ __forceinline__ row_bests post_sums(stats_shared *shared, const thread_stats &own) {
    constexpr int COUNT = sums_formed(WANT);
    row_bests bests = {best_of_warps(shared->z_best), best_of_warps(shared->t_best), 0};
    double sums[COUNT];
    int which;
    thread_sums<WANT>(own, key_value(bests.z), key_value(bests.t), sums);
    const double sum = warp_sums<COUNT>(sums, &which);
    if (threadIdx.x % (32 / COUNT) == 0) shared->sums[which][threadIdx.x / 32] = sum;
#pragma unroll
    for (int w = 0; w < TILE_WARPS; ++w)
        bests.flags |= shared->flags[w];
    return bests;
}

/* A lane's column of the unit that holds a maximum; -1: none. */
template <class ROW> static __device__ __forceinline__ int best_column(const ROW &row, unsigned long long best) {
    static_assert(STREAM_TAKEN * ROW::VECTOR <= 32, "a lane for each column of a unit");
    const int lane = (int)(threadIdx.x % 32), column = row.column_of(key_place(best)) + lane;
    return best && lane < STREAM_TAKEN * ROW::VECTOR && column >= 0 && column < row.columns ? column : -1;
}

/* The lowest of the lanes' columns whose logit is the best; -1: none. */
static __device__ __forceinline__ int column_of_best(int column, float logit, unsigned long long best) {
    const unsigned found = __ballot_sync(0xffffffffu, column >= 0 && logit == key_value(best));
    return found ? __shfl_sync(0xffffffffu, column, __ffs((int)found) - 1) : -1;
}

/* What the finishing warp reads of a row, ahead of its use. */
struct best_logits {
    int z_column, t_column;
    float z, t;
};

template <class ROW>
static __device__ __forceinline__ best_logits read_bests(const oh_tile_view &view, const ROW &row,
                                                         const row_bests &bests) {
    best_logits of = {-1, -1, 0, 0};
    if (ROW::HAS_Z) of.z_column = best_column(row, bests.z);
    if (ROW::HAS_T) of.t_column = best_column(row, bests.t);
    if (of.z_column >= 0) of.z = set_aside_bad(row.z(view, of.z_column));
    if (of.t_column >= 0) of.t = set_aside_bad(row.t(view, of.t_column));
    return of;
}

/* Whether an offset is rounded so coarsely that the maximum's own exponential may be none of f32. Beside logits that are
 * some, these add nothing, and their sum is only not to be infinite: a panel of masked columns has such a maximum. */
static __device__ __forceinline__ bool is_far(float max) {
    return max > -INFINITY && fabsf(max) > 0x1p30f;
}

/* What a row leaves, by one warp. */
template <uint32_t WANT, class ROW>
static __device__ void finish_row(const oh_tile_stats &s, const stats_shared *shared, const ROW &row, int64_t index,
                                  const row_bests &bests, const best_logits &of) {
    const oh_tile_view &view = s.tile;
    const int first = (int)view.first_column, lane = threadIdx.x % 32;
    oh_row_stats part;
    double sum = 0;
    oh_row_stats_empty(&part);
    for (int w = 0; w < TILE_WARPS && lane < sums_formed(WANT); ++w)
        sum += shared->sums[lane][w];
    part.flags = bests.flags;
    part.z_max = key_value(bests.z);
    part.t_max = key_value(bests.t);
    part.z_sum = __shfl_sync(0xffffffffu, sum, SUM_Z);
    part.t_sum = __shfl_sync(0xffffffffu, sum, SUM_T);
    part.z_dot = __shfl_sync(0xffffffffu, sum, SUM_Z_DOT);
    part.kl_dot = __shfl_sync(0xffffffffu, sum, SUM_KL);
    part.rkl_dot = __shfl_sync(0xffffffffu, sum, SUM_RKL);
    part.z_total = __shfl_sync(0xffffffffu, sum, SUM_TOTAL);
    if (is_far(part.z_max)) part.z_sum = 1, part.z_dot = part.rkl_dot = 0;
    if (is_far(part.t_max)) part.t_sum = 1, part.kl_dot = 0;
    const int z_column = column_of_best(of.z_column, of.z, bests.z);
    const int t_column = column_of_best(of.t_column, of.t, bests.t);
    if (bests.z) part.z_argmax = first + z_column;
    if (bests.t) part.t_argmax = first + t_column;
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

template <int FORMAT, int TILES, bool TRANSFORM, uint32_t WANT>
__global__ void __launch_bounds__(TILE_THREADS, STREAM_BLOCKS)
    tile_stats_kernel(const __grid_constant__ oh_tile_stats s, const int stages) {
    typedef tile_row<FORMAT, TILES, TRANSFORM> row_type;
    extern __shared__ __align__(128) uint4 ring[];
    __shared__ stream_shared streaming;
    __shared__ stats_shared shared;
    __shared__ top_k_shared top_k;
    const bool lists = row_type::HAS_Z && s.top_k > 0;
    tile_stream<row_type> stream;
    stream.open(&streaming, ring, stages, s.tile);
    for (int index = (int)blockIdx.x; index < (int)s.tile.rows; index += (int)gridDim.x) {
        thread_stats own;
        start_row(&own);
        {
            const row_type row(s.tile, index);
            if (row.first_whole < row.end_whole) {
                stream.wait();
                first_offsets<FORMAT, row_type, TRANSFORM>(&own, stream, row, s.tile);
            }
            const int skipped = (int)threadIdx.x * STREAM_TAKEN;
            for (int unit = row.first_whole + skipped; unit - skipped < row.end_whole; unit += STREAM_VECTORS) {
                stream.wait();
                add_stage<FORMAT, row_type, TRANSFORM, WANT>(&own, stream, row, index, s.tile, unit);
                stream.release(s.tile);
            }
        }
        const row_type row = row_again<row_type>(s.tile, index);
        const top_k_lead lead = {own.z_max, own.z_second, own.z_unit};
        for (int edge = threadIdx.x; edge < row.edges(); edge += TILE_THREADS)
            add_elements(&own, row, s.tile, row.edge_vector(edge), row.edge_vector(edge));

        post_bests(&shared, own);
        if (lists) top_k_groups(&top_k, lead, s.top_k);
        __syncthreads();
        const row_bests bests = post_sums<WANT>(&shared, own);
        if (lists) top_k_threshold(&top_k, s.top_k);
        __syncthreads();
        best_logits of = {-1, -1, 0, 0};
        if (threadIdx.x / 32 == FINISHING_WARP) of = read_bests(s.tile, row, bests);
        if constexpr (row_type::HAS_Z)
            if (lists)
                top_k_row(&top_k, row, s.tile, lead, s.topk_id + (int64_t)index * s.top_k,
                          s.topk_logit + (int64_t)index * s.top_k, s.top_k, s.restart != 0);
        if (threadIdx.x / 32 == FINISHING_WARP) finish_row<WANT>(s, &shared, row, index, bests, of);
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
            const cudaError_t error = stream_load((const void *)v.kernel, STREAM_RING_BYTES);
            if (error != cudaSuccess) return error;
        }
    return cudaSuccess;
}
