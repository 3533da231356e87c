/* tile_grad.cu - the gradient of a tile with respect to its raw draft logits: the linear form of oh_row_coef, times the
 * transform's slope, in f32, rounded once; at the speed of memory.
 *
 * Where elements of the result are as wide as the tile's, or it lies elsewhere, every element stands for itself, and
 * several blocks share a row so that the last ones to run leave little of the chip idle. Where the result is narrower
 * and lies in the draft tile, element j is written over element j / 2 or so: then one block walks the row from the
 * front, and a barrier stands between reading a stretch and writing it.
 *
 * With the second read in it, blocks that share a row are a cluster: the first of them adds up what they found, in their
 * order. */
#include <cooperative_groups.h>

#include "tile_grad.cuh"

enum { SHARES = 4 }; /* blocks that share a row */

template <int FORMAT, int FORM, bool TRANSFORM>
__global__ void __launch_bounds__(TILE_THREADS, 4)
    tile_grad_kernel(const oh_tile_grad g, const int shares, const int narrows) {
    grad_share<FORMAT, FORM, TRANSFORM, false>(g, shares, narrows,
                                               softmax_from_coef(&g.coef[blockIdx.x / (unsigned)shares]), NULL);
}

/* In thread 0, over the threads of the block. */
struct block_compared {
    double least;
    int64_t rank;
};

static __device__ __forceinline__ block_compared compared_by_block(const row_compare &own) {
    __shared__ double sums[TILE_WARPS];
    __shared__ int ranks[TILE_WARPS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    block_compared all = {0, 0};
    const double sum = warp_sum((double)own.least);
    const int rank = __reduce_add_sync(0xffffffffu, own.rank);
    if (lane == 0) sums[warp] = sum, ranks[warp] = rank;
    __syncthreads();
    for (int w = 0; w < TILE_WARPS && threadIdx.x == 0; ++w)
        all.least += sums[w], all.rank += ranks[w];
    return all;
}

/* The gradient by the coefficients, p against q by the statistics: the offsets of both are the same, and so exponentials
 * are formed once. */
template <int FORMAT, int FORM, bool TRANSFORM>
__global__ void __launch_bounds__(TILE_THREADS, 4)
    tile_grad_overlap_kernel(const __grid_constant__ oh_tile_grad_overlap both, const int shares, const int narrows) {
    __shared__ block_compared of_block;
    const int64_t index = blockIdx.x / (unsigned)shares;
    const oh_row_stats *stats = &both.stats[index];
    const row_softmax plain = softmax_from_stats(stats, true);
    row_softmax of_coef = softmax_from_coef(&both.grad.coef[index]);
    of_coef.z_offset = plain.z_offset, of_coef.t_offset = plain.t_offset;
    row_compare own;
    own.ratio = plain.t_factor / plain.z_factor;
    own.z_label = stats->z_label;
    own.label = stats->label - (int)both.grad.tile.first_column;
    own.wants_rank = both.want & OH_WANT_RANK && stats->label >= 0;
    own.least = 0, own.rank = 0;
    grad_share<FORMAT, FORM, TRANSFORM, true>(both.grad, shares, narrows, of_coef, &own);
    const block_compared found = compared_by_block(own);
    if (threadIdx.x == 0) of_block = found;
    const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
    cluster.sync();
    if (threadIdx.x == 0 && cluster.block_rank() == 0) {
        oh_row_overlap row = {0, 0, 0, 0, 0, 0};
        for (unsigned b = 0; b < (unsigned)shares; ++b) {
            const block_compared *part = cluster.map_shared_rank(&of_block, b);
            row.alpha += part->least, row.rank += part->rank;
        }
        row.alpha *= (double)plain.z_factor;
        both.overlap[index] = row;
    }
    cluster.sync(); /* a block's memory lasts until it was read */
}

/* ----------------------------------------------------------------------------------------------------- dispatch ---- */

typedef void (*grad_kernel)(const oh_tile_grad, const int, const int);
typedef void (*both_kernel)(const oh_tile_grad_overlap, const int, const int);

#define KERNELS(format)                                                                                                \
    {                                                                                                                  \
        {tile_grad_kernel<format, FORM_PLAIN, false>, tile_grad_kernel<format, FORM_TARGET, false>,                    \
         tile_grad_kernel<format, FORM_DRAFT_LOGS, false>, tile_grad_kernel<format, FORM_ALL, false>},                 \
            {tile_grad_kernel<format, FORM_PLAIN, true>, tile_grad_kernel<format, FORM_TARGET, true>,                  \
             tile_grad_kernel<format, FORM_DRAFT_LOGS, true>, tile_grad_kernel<format, FORM_ALL, true>},               \
    }

static const grad_kernel kernels[4][2][FORMS] = {KERNELS(OH_TILE_F32), KERNELS(OH_TILE_BF16), KERNELS(OH_TILE_F16),
                                                 KERNELS(OH_TILE_DIFF)};

/* With the target always there: without logarithms and comparisons in the gradient, and with them. */
#define BOTH_KERNELS(format)                                                                                           \
    {                                                                                                                  \
        {tile_grad_overlap_kernel<format, FORM_TARGET, false>, tile_grad_overlap_kernel<format, FORM_ALL, false>},     \
            {tile_grad_overlap_kernel<format, FORM_TARGET, true>, tile_grad_overlap_kernel<format, FORM_ALL, true>},   \
    }

static const both_kernel both_kernels[4][2][2] = {BOTH_KERNELS(OH_TILE_F32), BOTH_KERNELS(OH_TILE_BF16),
                                                  BOTH_KERNELS(OH_TILE_F16), BOTH_KERNELS(OH_TILE_DIFF)};

static int form_of(uint32_t form) {
    if (form & (OH_FORM_LOG_Q | OH_FORM_LOG_M | OH_FORM_LE)) return FORM_ALL;
    if (form & OH_FORM_Q) return form & OH_FORM_LOG_P ? FORM_ALL : FORM_TARGET;
    return form & OH_FORM_LOG_P ? FORM_DRAFT_LOGS : FORM_PLAIN;
}

static int in_place(const oh_tile_grad *g) {
    return g->out == g->tile.draft;
}

static int64_t tile_bytes(const oh_tile_grad *g) {
    return g->tile.format == OH_TILE_F32 ? 4 : 2;
}

static int grad_valid(const oh_tile_grad *g) {
    const uint32_t of_target = OH_FORM_LOG_Q | OH_FORM_LOG_M | OH_FORM_LE | OH_FORM_Q;
    const oh_tile_view *tile = &g->tile;
    if (!tile_view_valid(tile) || g->out_ld < tile->columns) return 0;
    if (g->out_dtype != OH_F32 && g->out_dtype != OH_BF16 && g->out_dtype != OH_F16) return 0;
    if (tile->rows == 0 || tile->columns == 0) return 1;
    const int64_t size = element_bytes(g->out_dtype);
    if (!tile->draft || !g->coef || !g->out || (uintptr_t)g->out % (uintptr_t)size != 0) return 0;
    if (g->form & of_target && !tile->target) return 0;
    if (!in_place(g)) return 1;
    /* In place, a wider element would overwrite what is still to be read. */
    return size <= tile_bytes(g) && (tile->rows == 1 || g->out_ld * size == tile->draft_ld * tile_bytes(g));
}

static int narrows_in_place(const oh_tile_grad *g) {
    return in_place(g) && element_bytes(g->out_dtype) < tile_bytes(g);
}

static int shares_of(const oh_tile_grad *g) {
    if (narrows_in_place(g) || g->tile.columns < SHARES * 4 * TILE_THREADS) return 1;
    return g->tile.rows > INT32_MAX / SHARES ? 1 : SHARES;
}

oh_status cuda_tile_grad(oh_queue *queue, const oh_tile_grad *grad) {
    if (queue_ready(queue) != OH_OK) return queue_ready(queue);
    if (!grad_valid(grad)) return queue_refuse(queue, "tile_grad");
    if (grad->tile.rows == 0 || grad->tile.columns == 0) return OH_OK;
    const int shares = shares_of(grad);
    const device_guard guard(queue->device);
    kernels[grad->tile.format][has_transform(&grad->tile.draft_transform) || tile_view_transforms(&grad->tile)]
           [form_of(grad->form)]<<<(unsigned)grad->tile.rows *(unsigned)shares, TILE_THREADS, 0, queue->stream>>>(
               *grad, shares, narrows_in_place(grad));
    return queue_launched(queue, "tile_grad");
}

static int both_valid(const oh_tile_grad_overlap *b) {
    if (!grad_valid(&b->grad) || !(b->want & OH_WANT_OVERLAP) || b->want & ~(OH_WANT_OVERLAP | OH_WANT_RANK)) return 0;
    if (b->grad.tile.rows == 0) return 1;
    return b->stats && b->overlap && (b->grad.tile.columns == 0 || b->grad.tile.target);
}

oh_status cuda_tile_grad_overlap(oh_queue *queue, const oh_tile_grad_overlap *both) {
    if (queue_ready(queue) != OH_OK) return queue_ready(queue);
    if (!both_valid(both)) return queue_refuse(queue, "tile_grad_overlap");
    const oh_tile_view *tile = &both->grad.tile;
    if (tile->rows == 0) return OH_OK;
    if (tile->columns == 0) return cuda_fill(queue, both->overlap, 0, (uint64_t)tile->rows * sizeof *both->overlap);
    const int shares = shares_of(&both->grad), form = form_of(both->grad.form);
    const int logs = form == FORM_DRAFT_LOGS || form == FORM_ALL;
    const device_guard guard(queue->device);
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {(unsigned)shares, 1, 1};
    cudaLaunchConfig_t launch = {};
    launch.gridDim = (unsigned)tile->rows * (unsigned)shares;
    launch.blockDim = TILE_THREADS;
    launch.stream = queue->stream;
    launch.attrs = &cluster;
    launch.numAttrs = 1;
    const cudaError_t error = cudaLaunchKernelEx(&launch, both_kernels[tile->format][tile_view_transforms(tile)][logs],
                                                 *both, shares, narrows_in_place(&both->grad));
    return device_check(queue->device, error, "tile_grad_overlap");
}

cudaError_t tile_grad_load(void) {
    return load_kernels(kernels, both_kernels);
}
