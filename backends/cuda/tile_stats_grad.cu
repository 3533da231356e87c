/* tile_stats_grad.cu - the first read and the gradient in one: a row stays in the shared memory of a cluster of blocks
 * between the two (warp_share.cuh), so that the tile crosses the bus once each way, two thirds of the bytes of tile_stats
 * and tile_grad.
 *
 * Here for a drafter's tile of 16-bit logits alone, by terms of its softmax and label. */
#include <onehead/rowmath.h>

#include "tile_stream.cuh"
#include "warp_share.cuh"

template <int FORMAT, uint32_t WANT>
__global__ void __launch_bounds__(SHARE_THREADS, SHARE_BLOCKS)
    tile_stats_grad_kernel(const __grid_constant__ share_pass p) {
    extern __shared__ __align__(128) uint4 held[];
    __shared__ share_shared shared;
    warp_share<FORMAT, WANT> share(p, &shared, held);
    const int first_row = (int)blockIdx.x / share.ranks;
    share.open(first_row);
    share.do_rows(first_row, (int)gridDim.x / share.ranks);
}

/* ----------------------------------------------------------------------------------------------------- dispatch ---- */

typedef void (*share_kernel)(const share_pass);

#define ALL_WANTS (OH_WANT_ENTROPY | OH_WANT_TOTAL)
#define KERNELS(format)                                                                                                \
    {                                                                                                                  \
        tile_stats_grad_kernel<format, 0>, tile_stats_grad_kernel<format, OH_WANT_ENTROPY>,                            \
            tile_stats_grad_kernel<format, ALL_WANTS>                                                                  \
    }

static const share_kernel kernels[2][3] = {KERNELS(OH_TILE_BF16), KERNELS(OH_TILE_F16)};

static share_kernel kernel_for(const oh_tile_stats_grad *pass) {
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

struct share_launch {
    int share;
    cudaLaunchAttribute cluster;
    cudaLaunchConfig_t config;
};

static void launch_for(share_launch *l, int ranks, int64_t columns, cudaStream_t stream) {
    const int64_t vectors = columns / 8, warps = (int64_t)ranks * SHARE_WARPS;
    l->share = (int)((vectors + warps - 1) / warps);
    l->cluster.id = cudaLaunchAttributeClusterDimension;
    l->cluster.val.clusterDim = {(unsigned)ranks, 1, 1};
    l->config = cudaLaunchConfig_t{};
    l->config.gridDim = (unsigned)ranks;
    l->config.blockDim = SHARE_THREADS;
    l->config.dynamicSmemBytes = (size_t)l->share * SHARE_WARPS * sizeof(uint4);
    l->config.stream = stream;
    l->config.attrs = &l->cluster;
    l->config.numAttrs = 1;
}

/* Blocks of a cluster, by the row's length alone, so that sums are in the same order on every device: the fewest that hold
 * a row, of the sizes that leave no place unused in a graphics cluster of 16 multiprocessors, and two where one would do:
 * memcheck refuses what a block posts to itself (st.async, "Cluster needs to have at least 2 blocks"). 0: none does. */
static int ranks_for(int64_t columns) {
    for (int ranks = 2; ranks <= SHARE_RANKS_MAX; ++ranks) {
        share_launch l;
        launch_for(&l, ranks, columns, NULL);
        if (16 * SHARE_BLOCKS % ranks == 0 && l.config.dynamicSmemBytes <= SHARE_BYTES) return ranks;
    }
    return 0;
}

/* How it is launched, asked once for a shape; 0 clusters: the device can't. */
static share_fit fit_for(oh_device *device, share_kernel kernel, int64_t columns) {
    share_fit *fit = &device->share;
    if (fit->kernel == (const void *)kernel && fit->columns == columns) return *fit;
    *fit = share_fit{(const void *)kernel, columns, ranks_for(columns), 0};
    if (fit->ranks == 0) return *fit;
    const device_guard guard(device);
    share_launch l;
    launch_for(&l, fit->ranks, columns, NULL);
    if (cudaOccupancyMaxActiveClusters(&fit->clusters, kernel, &l.config) == cudaSuccess) return *fit;
    (void)cudaGetLastError();
    fit->clusters = 0;
    return *fit;
}

int32_t cuda_tile_stats_grad_takes(oh_device *device, const oh_tile_stats_grad *pass) {
    if (!pass_valid(pass)) return 0;
    const oh_tile_view *tile = &pass->stats.tile;
    const uint32_t terms = pass->objective->terms;
    if (tile->format != OH_TILE_BF16 && tile->format != OH_TILE_F16) return 0;
    if (tile->target || has_transform(&tile->draft_transform) || !pass->stats.label || pass->has_target) return 0;
    if (pass->stats.top_k > 0 || pass->stats.want & ~ALL_WANTS || pass->grad.form != 0) return 0;
    if (terms & ~OH_TERM_BIT(OH_TERM_CE) || oh_objective_form(pass->objective) != 0) return 0;
    if (pass->grad.out_dtype != (tile->format == OH_TILE_BF16 ? OH_BF16 : OH_F16)) return 0;
    if ((uintptr_t)tile->draft % 16 != 0 || (tile->rows > 1 && tile->draft_ld % 8 != 0)) return 0;
    return fit_for(device, kernel_for(pass), tile->columns).clusters > 0;
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
    const share_kernel kernel = kernel_for(pass);
    const share_fit fit = fit_for(device, kernel, tile->columns);
    share_launch launch;
    launch_for(&launch, fit.ranks, tile->columns, queue->stream);
    launch.config.gridDim.x = (unsigned)((fit.clusters < tile->rows ? fit.clusters : tile->rows) * fit.ranks);
    /* No column has the maximum yet: z_argmax of all rows is -1. */
    const cudaError_t cleared =
        cudaMemsetAsync(pass->stats.stats, 0xff, (size_t)tile->rows * sizeof *pass->stats.stats, queue->stream);
    if (cleared != cudaSuccess) return device_check(device, cleared, "tile_stats_grad");
    const share_pass arguments = {*tile, pass->stats.stats, pass->stats.label, *pass->objective, launch.share};
    return device_check(device, cudaLaunchKernelEx(&launch.config, kernel, arguments), "tile_stats_grad");
}

cudaError_t tile_stats_grad_load(void) {
    for (const auto &of_format : kernels)
        for (share_kernel kernel : of_format) {
            const cudaError_t error = stream_load((const void *)kernel, SHARE_BYTES);
            if (error != cudaSuccess) return error;
        }
    return cudaSuccess;
}
