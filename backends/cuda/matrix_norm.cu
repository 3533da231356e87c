/* matrix_norm.cu - sum of squares and largest absolute value. Eight blocks form one cluster and merge their sums
 * through each other's shared memory, in the order of their ranks, so that no scratch is needed and the bits don't
 * depend on timing. Once a step, and only where asked for: a twentieth of the chip is enough. */
#include <cooperative_groups.h>

#include <math.h>

#include "device.h"
#include "elements.cuh"

namespace cg = cooperative_groups;

enum { CLUSTER = 8, THREADS = 1024, WARPS = THREADS / 32 };

struct norm_sums {
    double square;
    float max;
};

static __device__ norm_sums merge(norm_sums a, double square, float max) {
    a.square += square;
    a.max = max > a.max ? max : a.max;
    return a;
}

static __device__ norm_sums warp_merge(norm_sums sums) {
    for (int offset = 16; offset > 0; offset /= 2) {
        const double square = __shfl_down_sync(0xffffffffu, sums.square, offset);
        const float max = __shfl_down_sync(0xffffffffu, sums.max, offset);
        sums = merge(sums, square, max);
    }
    return sums;
}

__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS) matrix_norm_kernel(const oh_matrix_norm n) {
    __shared__ norm_sums of_warp[WARPS], of_block;
    const cg::cluster_group cluster = cg::this_cluster();
    norm_sums sums = {0, 0};
    for (int64_t row = blockIdx.x; row < n.rows; row += CLUSTER) {
        const int64_t first = row * n.ld;
#pragma unroll 4
        for (int64_t j = threadIdx.x; j < n.columns; j += THREADS) {
            const float size = fabsf(element_read(n.data, first + j, n.dtype));
            sums = merge(sums, (double)size * (double)size, size);
        }
    }
    sums = warp_merge(sums);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sums;
    __syncthreads();
    if (threadIdx.x < 32) {
        sums = warp_merge(of_warp[threadIdx.x]);
        if (threadIdx.x == 0) of_block = sums;
    }
    cluster.sync();
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        norm_sums total = {0, 0};
        for (int rank = 0; rank < CLUSTER; ++rank) {
            const norm_sums *other = cluster.map_shared_rank(&of_block, rank);
            total = merge(total, other->square, other->max);
        }
        n.sums[0] += total.square;
        /* Squares are NaN exactly where an element is: a largest value must not hide it. */
        if (isnan(total.square) || (double)total.max > n.sums[1])
            n.sums[1] = isnan(total.square) ? total.square : (double)total.max;
    }
    cluster.sync(); /* shared memory stays until it has been read */
}

oh_status cuda_matrix_norm(oh_queue *queue, const oh_matrix_norm *n) {
    if (queue_ready(queue) != OH_OK) return queue_ready(queue);
    if (n->rows < 0 || n->columns < 0 || (n->dtype != OH_F32 && n->dtype != OH_BF16 && n->dtype != OH_F16) ||
        n->ld < n->columns || !n->sums || (!n->data && n->rows > 0 && n->columns > 0) ||
        (uintptr_t)n->data % (uintptr_t)element_bytes(n->dtype) != 0)
        return queue_refuse(queue, "matrix_norm");
    const device_guard guard(queue->device);
    matrix_norm_kernel<<<CLUSTER, THREADS, 0, queue->stream>>>(*n);
    return queue_launched(queue, "matrix_norm");
}

cudaError_t matrix_norm_load(void) {
    return load_kernels(matrix_norm_kernel);
}
