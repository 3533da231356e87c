/* tile_stats_grad.cu - the first read and the gradient in one. A row is brought into the shared memory of a cluster of
 * blocks, each of which holds a share of its columns; there it is looked at three times: for its maximum, for its sums
 * relative to that, and for its gradient, which is all that goes back to memory. Beside tile_stats and tile_grad that is
 * two thirds of the bytes.
 *
 * Warps tell each other what they found by writing it into the shared memory of every block of the cluster, before one of
 * the two barriers of a row. While the gradient is written, what lay under it is filled with the cluster's next row.
 *
 * Here for a drafter's tile of 16-bit logits alone, by terms of its softmax and label. */
#include <cooperative_groups.h>
#include <cuda/ptx>

#include "tile_grad.cuh"
#include "tile_stream.cuh"

enum {
    ONCE_STAGES = 4,              /* of a block's share, each with a barrier of its own */
    ONCE_CLUSTER_MAX = 8,         /* blocks; what every device can do */
    ONCE_BLOCKS = 3,              /* of a multiprocessor: while one waits for its cluster, others work */
    ONCE_SHARE_BYTES = 72 * 1024, /* of a row, at most */
    ONCE_POSTS = ONCE_CLUSTER_MAX * TILE_WARPS
};

enum { SUM_Z, SUM_Z_DOT, SUM_TOTAL, SUM_COUNT };

/* What a kernel is given of an oh_tile_stats_grad. */
struct once_pass {
    oh_tile_view tile;
    oh_row_stats *stats;
    const int32_t *label;
    oh_objective objective;
    int32_t has_target, out_dtype, share; /* vectors of a block */
};

struct once_shared {
    uint64_t full[ONCE_STAGES], empty[ONCE_STAGES];
    /* Of every warp of the cluster: before a row's first barrier, before its second, and of a row that is not all finite
     * once more between the two. */
    unsigned max[2][ONCE_POSTS], flags[2][ONCE_POSTS];
    double sums[SUM_COUNT][ONCE_POSTS];
    int argmax[ONCE_POSTS];
    oh_row_coef coef;
    row_softmax softmax;
};

/* A block's part of the rows. */
template <int FORMAT> struct once_share {
    static constexpr int N = tile_format<FORMAT>::VECTOR;
    int first, count; /* vectors */
    int stage;        /* vectors of a stage */
    int tail_column;  /* a column behind the last whole vector, which this thread holds; -1: none */

    __device__ once_share(const once_pass &p, int rank, int ranks) {
        const int columns = (int)p.tile.columns, whole = columns / N;
        first = min(rank * p.share, whole);
        count = min(p.share, whole - first);
        const int column = whole * N + (int)threadIdx.x;
        tail_column = rank == ranks - 1 && column < columns ? column : -1;
        stage = (p.share + ONCE_STAGES * TILE_THREADS - 1) / (ONCE_STAGES * TILE_THREADS) * TILE_THREADS;
    }
    __device__ __forceinline__ int stage_first(int s) const { return min(s * stage, count); }
};

/* Largest and smallest of a thread's pairs of 16-bit logits; a NaN is the largest. */
template <int FORMAT> struct once_extremes;
template <> struct once_extremes<OH_TILE_BF16> {
    __nv_bfloat162 max, min;
    __device__ __forceinline__ void add(unsigned bits) {
        const __nv_bfloat162 pair = *(const __nv_bfloat162 *)&bits;
        max = __hmax2_nan(max, pair), min = __hmin2(min, pair);
    }
    __device__ __forceinline__ void unpack(float *of_max, float *of_min) const {
        unpack_bf16(*(const unsigned *)&max, of_max), unpack_bf16(*(const unsigned *)&min, of_min);
    }
};
template <> struct once_extremes<OH_TILE_F16> {
    __half2 max, min;
    __device__ __forceinline__ void add(unsigned bits) {
        const __half2 pair = *(const __half2 *)&bits;
        max = __hmax2_nan(max, pair), min = __hmin2(min, pair);
    }
    __device__ __forceinline__ void unpack(float *of_max, float *of_min) const {
        unpack_f16(*(const unsigned *)&max, of_max), unpack_f16(*(const unsigned *)&min, of_min);
    }
};

static __device__ __forceinline__ unsigned flags_of(float x) {
    return x == -INFINITY ? OH_ROW_Z_NEG_INF : x < INFINITY ? 0 : OH_ROW_Z_BAD;
}

struct once_found {
    float max;
    unsigned flags;
};

/* One cluster's work. */
template <int FORMAT, uint32_t WANT> struct once_block {
    static constexpr int N = tile_format<FORMAT>::VECTOR, SUMS = WANT & OH_WANT_TOTAL ? 4 : 2;
    const once_pass &p;
    once_shared *const shared;
    uint4 *const held; /* [share] */
    const cooperative_groups::cluster_group cluster;
    const once_share<FORMAT> share;
    unsigned phase;

    __device__ once_block(const once_pass &pass, once_shared *memory, uint4 *buffer)
        : p(pass), shared(memory), held(buffer), cluster(cooperative_groups::this_cluster()),
          share(pass, (int)cluster.block_rank(), (int)cluster.num_blocks()), phase(0) {}

    __device__ __forceinline__ const unsigned short *row_at(int row) const {
        return (const unsigned short *)p.tile.draft + (int64_t)row * p.tile.draft_ld;
    }

    /* By thread 0. */
    __device__ __forceinline__ void bring(int row, int s) const {
        const int first = share.stage_first(s), count = share.stage_first(s + 1) - first;
        if (count == 0 || row >= (int)p.tile.rows) return;
        const uint32_t bytes = (uint32_t)count * (uint32_t)sizeof(uint4);
        (void)cuda::ptx::mbarrier_arrive_expect_tx(cuda::ptx::sem_release, cuda::ptx::scope_cta,
                                                   cuda::ptx::space_shared, &shared->full[s], bytes);
        cuda::ptx::cp_async_bulk(cuda::ptx::space_cluster, cuda::ptx::space_global, held + first,
                                 (const uint4 *)row_at(row) + share.first + first, bytes, &shared->full[s]);
    }

    __device__ __forceinline__ static void wait(uint64_t *barrier, unsigned phase) {
        while (!cuda::ptx::mbarrier_try_wait_parity(barrier, phase)) {
        }
    }

    __device__ __forceinline__ void wait_full(int s) const {
        if (share.stage_first(s + 1) > share.stage_first(s)) wait(&shared->full[s], phase);
    }

    /* Once a stage's gradient is formed: thread 0 fills the stage before it again. */
    __device__ __forceinline__ void release(int next, int s) const {
        (void)cuda::ptx::mbarrier_arrive(&shared->empty[s]);
        if (threadIdx.x != 0) return;
        if (s > 0) wait(&shared->empty[s - 1], phase), bring(next, s - 1);
        if (s == ONCE_STAGES - 1) wait(&shared->empty[s], phase), bring(next, s);
    }

    __device__ __forceinline__ int posts() const { return (int)cluster.num_blocks() * TILE_WARPS; }
    __device__ __forceinline__ int post() const {
        return (int)cluster.block_rank() * TILE_WARPS + (int)threadIdx.x / 32;
    }
    /* A place of one block of the cluster. */
    template <class T> __device__ __forceinline__ T *of_block(T *place, int rank) const {
        return cluster.map_shared_rank(place, rank);
    }

    __device__ __forceinline__ void post_found(int round, float max, unsigned flags) const {
        const unsigned of_warp = __reduce_max_sync(0xffffffffu, ordered_bits(max));
        flags = __reduce_or_sync(0xffffffffu, flags);
        const int lane = (int)threadIdx.x % 32;
        if (lane < (int)cluster.num_blocks()) {
            *of_block(&shared->max[round][post()], lane) = of_warp;
            *of_block(&shared->flags[round][post()], lane) = flags;
        }
    }
    __device__ __forceinline__ once_found found(int round) const {
        unsigned max = 0, flags = 0;
        for (int i = (int)threadIdx.x % 32; i < posts(); i += 32)
            max = ::max(max, shared->max[round][i]), flags |= shared->flags[round][i];
        return once_found{from_ordered_bits(__reduce_max_sync(0xffffffffu, max)), __reduce_or_sync(0xffffffffu, flags)};
    }

    /* The row's maximum and flags while it arrives; of a row with flags, the flags alone are right. */
    __device__ __forceinline__ float first_look(float tail, unsigned *flags) const {
        once_extremes<FORMAT> extremes;
        float max[2], min[2];
        const unsigned none = FORMAT == OH_TILE_BF16 ? 0xff80ff80u : 0xfc00fc00u; /* -inf twice */
        *(unsigned *)&extremes.max = none, *(unsigned *)&extremes.min = none ^ 0x80008000u;
#pragma unroll
        for (int s = 0; s < ONCE_STAGES; ++s) {
            wait_full(s);
#pragma unroll 4
            for (int v = share.stage_first(s) + (int)threadIdx.x; v < share.stage_first(s + 1); v += TILE_THREADS) {
                const uint4 bits = held[v];
                extremes.add(bits.x), extremes.add(bits.y), extremes.add(bits.z), extremes.add(bits.w);
            }
        }
        extremes.unpack(max, min);
        *flags = flags_of(min[0]) & OH_ROW_Z_NEG_INF | flags_of(min[1]) & OH_ROW_Z_NEG_INF;
        *flags |= flags_of(max[0]) & OH_ROW_Z_BAD | flags_of(max[1]) & OH_ROW_Z_BAD;
        if (share.tail_column >= 0) *flags |= flags_of(tail);
        return fmaxf(fmaxf(max[0], max[1]), share.tail_column >= 0 ? tail : -INFINITY);
    }

    /* The maximum of a row with flags: of what is not set aside. */
    __device__ float second_look(float tail) const {
        float max = share.tail_column >= 0 ? set_aside_bad(tail) : -INFINITY;
        for (int v = (int)threadIdx.x; v < share.count; v += TILE_THREADS) {
            float z[N];
            unpack_vector<FORMAT>(held[v], z);
#pragma unroll
            for (int e = 0; e < N; ++e)
                max = fmaxf(max, set_aside_bad(z[e]));
        }
        return max;
    }

    template <bool ALL_FINITE>
    __device__ __forceinline__ void add(float *sums, float z, float offset, float max) const {
        if (!ALL_FINITE) z = set_aside_bad(z);
        if (!ALL_FINITE && z == -INFINITY) return;
        const float e = exp2_fast(exponent(z, offset));
        sums[SUM_Z] += e;
        if (WANT & OH_WANT_ENTROPY) sums[SUM_Z_DOT] = fmaf(e, z - max, sums[SUM_Z_DOT]);
        if (WANT & OH_WANT_TOTAL) sums[SUM_TOTAL] += z;
    }

    template <bool ALL_FINITE> __device__ __forceinline__ void add_share(double *total, float max, float tail) const {
        const float offset = exponent_offset(max);
        float sums[SUM_COUNT] = {0, 0, 0};
#pragma unroll 2
        for (int v = (int)threadIdx.x; v < share.count; v += TILE_THREADS) {
            float z[N], of_vector[SUM_COUNT] = {-0.0f, -0.0f, -0.0f};
            unpack_vector<FORMAT>(held[v], z);
#pragma unroll
            for (int e = 0; e < N; ++e)
                add<ALL_FINITE>(of_vector, z[e], offset, max);
#pragma unroll
            for (int k = 0; k < SUM_COUNT; ++k)
                sums[k] += of_vector[k];
        }
        if (share.tail_column >= 0) add<ALL_FINITE>(sums, tail, offset, max);
#pragma unroll
        for (int k = 0; k < SUM_COUNT; ++k)
            total[k] = (double)sums[k];
    }

    /* The lowest column with the maximum, by a thread that has it. */
    __device__ int column_of(float max, float tail) const {
        for (int v = (int)threadIdx.x; v < share.count; v += TILE_THREADS) {
            float z[N];
            unpack_vector<FORMAT>(held[v], z);
#pragma unroll
            for (int e = 0; e < N; ++e)
                if (z[e] == max) return (share.first + v) * N + e;
        }
        return share.tail_column >= 0 && tail == max ? share.tail_column : INT32_MAX;
    }

    __device__ __forceinline__ void post_sums(double *sums, int best) const {
        constexpr int LANES = 32 / SUMS;
        const int lane = (int)threadIdx.x % 32;
        int which;
        const double sum = warp_sums<SUMS>(sums, &which);
        best = __reduce_min_sync(0xffffffffu, best);
        if (lane % LANES < (int)cluster.num_blocks() && which < SUM_COUNT)
            *of_block(&shared->sums[which][post()], lane % LANES) = sum;
        if (lane < (int)cluster.num_blocks()) *of_block(&shared->argmax[post()], lane) = best;
    }

    /* By a whole warp, in the same order by each of the cluster's: the row's statistics, and into shared memory what its
     * gradient is formed by. */
    __device__ __forceinline__ void finish(int row, const once_found &of, int label, float z_label) const {
        const int lane = (int)threadIdx.x % 32, first = (int)p.tile.first_column;
        const float one = exp2_fast(exponent(of.max, exponent_offset(of.max)));
        double sums[SUM_COUNT] = {0, 0, 0};
        int best = INT32_MAX;
        for (int i = lane; i < posts(); i += 32) {
#pragma unroll
            for (int k = 0; k < SUM_COUNT; ++k)
                if (k < SUMS) sums[k] += shared->sums[k][i];
            best = min(best, shared->argmax[i]);
        }
#pragma unroll
        for (int k = 0; k < SUM_COUNT; ++k)
            if (k < SUMS) sums[k] = __shfl_sync(0xffffffffu, warp_sum(sums[k]), 0);
        best = __reduce_min_sync(0xffffffffu, best);
        oh_row_stats s;
        oh_row_stats_empty(&s);
        s.flags = of.flags;
        s.label = label;
        s.z_max = of.max;
        s.z_label = z_label;
        s.z_argmax = best == INT32_MAX ? -1 : first + best;
        if (of.max > -INFINITY) {
            s.z_sum = sums[SUM_Z] / (double)one;
            s.z_dot = sums[SUM_Z_DOT] / (double)one;
        }
        if (WANT & OH_WANT_TOTAL) s.z_total = sums[SUM_TOTAL];
        oh_row_coef coef;
        oh_row_coefficients(&p.objective, &s, p.has_target, &coef);
        if (lane != 0) return;
        shared->coef = coef;
        shared->softmax = softmax_from_coef(&coef);
        if (cluster.block_rank() == 0) p.stats[row] = s;
    }

    /* The gradient of a row without flags; each stage is then free for the next row. */
    __device__ __forceinline__ void write(int row, int next, bool leaves, float tail) const {
        const oh_row_coef c = shared->coef;
        row_softmax softmax = shared->softmax;
        softmax.z_factor *= c.c0;
        if (c.zero) softmax.z_offset = INFINITY; /* exponentials of 0, and factors of 0 */
        unsigned short *const out = (unsigned short *)row_at(row);
        const int label = c.label >= 0 ? c.label - (int)p.tile.first_column : -1;
#pragma unroll
        for (int s = 0; s < ONCE_STAGES; ++s) {
#pragma unroll 2
            for (int v = share.stage_first(s) + (int)threadIdx.x; v < share.stage_first(s + 1) && !leaves;
                 v += TILE_THREADS) {
                const int from = (share.first + v) * N;
                float z[N], dz[N];
                unpack_vector<FORMAT>(held[v], z);
#pragma unroll
                for (int e = 0; e < N; ++e)
                    dz[e] = grad_at<FORM_PLAIN>(0, c, softmax, z[e], 0, exp2_fast(exponent(z[e], softmax.z_offset)), 0);
                if ((unsigned)(label - from) < (unsigned)N)
#pragma unroll
                    for (int e = 0; e < N; ++e)
                        if (from + e == label) dz[e] -= c.cy;
                write_vector<N>(out, from, p.out_dtype, dz);
            }
            release(next, s);
        }
        if (share.tail_column < 0 || leaves) return;
        float dz = grad_at<FORM_PLAIN>(0, c, softmax, tail, 0, exp2_fast(exponent(tail, softmax.z_offset)), 0);
        if (share.tail_column == label) dz -= c.cy;
        element_write(out, share.tail_column, p.out_dtype, dz);
    }

    __device__ __forceinline__ void do_row(int row, int next) {
        const unsigned short *const raw = row_at(row);
        const float tail = share.tail_column >= 0 ? tile_element<FORMAT>(raw, share.tail_column) : 0;
        const int label = p.label[row], place = label - (int)p.tile.first_column;
        float z_label = -INFINITY;
        /* Before another block of the cluster may write its gradient there. */
        if (label >= 0 && place >= 0 && place < (int)p.tile.columns)
            z_label = set_aside_bad(tile_element<FORMAT>(raw, place));
        unsigned flags;
        float max = first_look(tail, &flags);
        post_found(0, max, flags);
        cluster.sync();
        once_found of = found(0);
        double sums[4] = {0, 0, 0, 0};
        if (of.flags == 0) {
            add_share<true>(sums, of.max, tail);
        } else {
            max = second_look(tail);
            post_found(1, max, 0);
            cluster.sync();
            of.max = found(1).max;
            add_share<false>(sums, of.max, tail);
        }
        post_sums(sums, max == of.max && max > -INFINITY ? column_of(max, tail) : INT32_MAX);
        cluster.sync();
        if (threadIdx.x / 32 == 0) finish(row, of, label, z_label);
        __syncthreads();
        write(row, next, of.flags != 0, tail);
        phase ^= 1;
    }
};

template <int FORMAT, uint32_t WANT>
__global__ void __launch_bounds__(TILE_THREADS, ONCE_BLOCKS)
    tile_stats_grad_kernel(const __grid_constant__ once_pass p) {
    extern __shared__ __align__(128) uint4 held[];
    __shared__ once_shared shared;
    once_block<FORMAT, WANT> block(p, &shared, held);
    const int ranks = (int)block.cluster.num_blocks(), clusters = (int)gridDim.x / ranks;
    const int first = (int)blockIdx.x / ranks;
    if (threadIdx.x == 0) {
        for (int s = 0; s < ONCE_STAGES; ++s) {
            cuda::ptx::mbarrier_init(&shared.full[s], 1);
            cuda::ptx::mbarrier_init(&shared.empty[s], TILE_THREADS);
        }
        cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
        for (int s = 0; s < ONCE_STAGES; ++s)
            block.bring(first, s);
    }
    block.cluster.sync();
    for (int row = first; row < (int)p.tile.rows; row += clusters)
        block.do_row(row, row + clusters);
}

/* ----------------------------------------------------------------------------------------------------- dispatch ---- */

typedef void (*once_kernel)(const once_pass);

#define ALL_WANTS (OH_WANT_ENTROPY | OH_WANT_TOTAL)
#define KERNELS(format)                                                                                                \
    {                                                                                                                  \
        tile_stats_grad_kernel<format, 0>, tile_stats_grad_kernel<format, OH_WANT_ENTROPY>,                            \
            tile_stats_grad_kernel<format, ALL_WANTS>                                                                  \
    }

static const once_kernel kernels[2][3] = {KERNELS(OH_TILE_BF16), KERNELS(OH_TILE_F16)};

static once_kernel kernel_for(const oh_tile_stats_grad *pass) {
    const uint32_t want = pass->stats.want;
    return kernels[pass->stats.tile.format == OH_TILE_F16][want & OH_WANT_TOTAL ? 2 : want ? 1 : 0];
}

static int pass_valid(const oh_tile_stats_grad *pass) {
    const oh_tile_view *tile = &pass->stats.tile;
    const oh_tile_grad *g = &pass->grad;
    if (!tile_view_valid(tile) || g->out_ld < tile->columns || !pass->objective || !pass->stats.restart) return 0;
    if (!oh_objective_valid(pass->objective)) return 0;
    if (tile->rows == 0) return 1;
    return pass->stats.stats && tile->draft && g->out == tile->draft &&
           (tile->rows == 1 || g->out_ld == tile->draft_ld);
}

/* How many blocks a cluster has, so that several find room on a multiprocessor; 0: no cluster is large enough. */
static int ranks_for(const oh_device *device, int64_t columns) {
    const size_t other = sizeof(once_shared) + 1024,
                 share = device->shared_bytes / ONCE_BLOCKS; /* 1024: the system's */
    if (share <= other) return 0;
    const size_t room = share - other < ONCE_SHARE_BYTES ? share - other : ONCE_SHARE_BYTES;
    const int64_t vectors = columns / 8, most = (int64_t)(room / sizeof(uint4));
    const int64_t ranks = vectors <= most ? 1 : (vectors + most - 1) / most;
    return ranks <= ONCE_CLUSTER_MAX ? (int)ranks : 0;
}

struct once_launch {
    int ranks, share;
    cudaLaunchAttribute cluster;
    cudaLaunchConfig_t config;
};

static void launch_for(once_launch *l, int ranks, int64_t columns, cudaStream_t stream) {
    const int64_t vectors = columns / 8;
    l->ranks = ranks;
    l->share = (int)((vectors + ranks - 1) / ranks);
    l->cluster.id = cudaLaunchAttributeClusterDimension;
    l->cluster.val.clusterDim = {(unsigned)ranks, 1, 1};
    l->config = cudaLaunchConfig_t{};
    l->config.gridDim = (unsigned)ranks;
    l->config.blockDim = TILE_THREADS;
    l->config.dynamicSmemBytes = (size_t)l->share * sizeof(uint4);
    l->config.stream = stream;
    l->config.attrs = &l->cluster;
    l->config.numAttrs = 1;
}

/* Clusters of this launch that run at a time, 0 where the device has none such. Asked once for a shape. */
static int clusters_at_once(oh_device *device, once_kernel kernel, const once_launch *l) {
    once_fit *fit = &device->once;
    if (fit->kernel == (const void *)kernel && fit->ranks == l->ranks && fit->bytes == l->config.dynamicSmemBytes)
        return fit->clusters;
    int clusters = 0;
    const device_guard guard(device);
    if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &l->config) != cudaSuccess) {
        (void)cudaGetLastError();
        clusters = 0;
    }
    *fit = once_fit{(const void *)kernel, l->ranks, l->config.dynamicSmemBytes, clusters};
    return clusters;
}

int32_t cuda_tile_stats_grad_takes(oh_device *device, const oh_tile_stats_grad *pass) {
    if (!pass_valid(pass)) return 0;
    const oh_tile_view *tile = &pass->stats.tile;
    const uint32_t terms = pass->objective->terms;
    if (tile->format != OH_TILE_BF16 && tile->format != OH_TILE_F16) return 0;
    if (tile->target || has_transform(&tile->draft_transform) || !pass->stats.label || pass->has_target) return 0;
    if (pass->stats.top_k > 0 || pass->stats.want & ~ALL_WANTS || pass->grad.form != 0) return 0;
    if (terms & ~OH_TERM_BIT(OH_TERM_CE) || oh_objective_form(pass->objective) != 0) return 0;
    if (pass->grad.out_dtype != OH_BF16 && pass->grad.out_dtype != OH_F16) return 0;
    if ((uintptr_t)tile->draft % 16 != 0 || (tile->rows > 1 && tile->draft_ld % 8 != 0)) return 0;
    const int ranks = ranks_for(device, tile->columns);
    if (ranks == 0) return 0;
    once_launch launch;
    launch_for(&launch, ranks, tile->columns, NULL);
    return clusters_at_once(device, kernel_for(pass), &launch) > 0;
}

oh_status cuda_tile_stats_grad(oh_queue *queue, const oh_tile_stats_grad *pass) {
    if (queue_ready(queue) != OH_OK) return queue_ready(queue);
    if (!pass_valid(pass)) return queue_refuse(queue, "tile_stats_grad");
    oh_device *device = queue->device;
    const oh_tile_view *tile = &pass->stats.tile;
    if (!cuda_tile_stats_grad_takes(device, pass))
        return device_fail(device, OH_UNSUPPORTED, "cuda: tile_stats_grad of a call that it doesn't take");
    if (tile->rows == 0) return OH_OK;
    const device_guard guard(device);
    const once_kernel kernel = kernel_for(pass);
    once_launch launch;
    launch_for(&launch, ranks_for(device, tile->columns), tile->columns, queue->stream);
    const int64_t clusters = clusters_at_once(device, kernel, &launch);
    launch.config.gridDim.x = (unsigned)((clusters < tile->rows ? clusters : tile->rows) * launch.ranks);
    const once_pass arguments = {
        *tile,       pass->stats.stats, pass->stats.label, *pass->objective, pass->has_target, pass->grad.out_dtype,
        launch.share};
    return device_check(device, cudaLaunchKernelEx(&launch.config, kernel, arguments), "tile_stats_grad");
}

cudaError_t tile_stats_grad_load(void) {
    for (const auto &of_format : kernels)
        for (once_kernel kernel : of_format) {
            const cudaError_t error = stream_load((const void *)kernel, ONCE_SHARE_BYTES);
            if (error != cudaSuccess) return error;
        }
    return cudaSuccess;
}
