/* row_finish.cu - loops over rowmath.h, which has the algebra.
 *
 * Two launches: a warp takes a block of rows, its lanes the rows, then the slots, then the sums; a warp adds up each of the
 * blocks' sums, in an order that depends on their number alone. What lanes hand to each other lies in shared memory:
 * rowmath's functions are given a description whose arrays point there. */
#include <onehead/rowmath.h>

#include "device.h"

enum { ROW_THREADS = 32, SUM_WARPS = 4, SUM_THREADS = 32 * SUM_WARPS };

enum { SHARED_BYTES = 47 * 1024 }; /* 48 KB, less what the compiler keeps */

/* Of a block: results, the slots' parts of the sums, and the slots' compact rows. Longer blocks are left to the kernels
 * below. */
static int64_t block_shared_bytes(const oh_objective *o) {
    return o->block_size * (int64_t)(sizeof(oh_row_result) + OH_SUM_FIXED * sizeof(double) + sizeof(int32_t));
}

__global__ void __launch_bounds__(ROW_THREADS) finish_block_kernel(const __grid_constant__ oh_row_finish f) {
    extern __shared__ oh_row_result results[];
    const int64_t b = blockIdx.x, size = f.objective.block_size, count = oh_sum_count(&f.objective);
    double(*const part)[OH_SUM_FIXED] = (double(*)[OH_SUM_FIXED])(results + size);
    int32_t *const compact = (int32_t *)(part + size);
    /* Compact rows follow each other within a block, from its first supervised row's on. */
    int least = INT32_MAX, rows = 0;
    for (int64_t slot = threadIdx.x; slot < size; slot += ROW_THREADS) {
        const int32_t i = compact[slot] = f.compact[b * size + slot];
        if (i >= 0) least = min(least, i), rows += 1;
    }
    least = __reduce_min_sync(0xffffffffu, least);
    rows = __reduce_add_sync(0xffffffffu, rows);
    const int64_t first = rows > 0 ? least : 0;
    oh_row_finish here = f;
    here.results = results - first;
    here.compact = compact - b * size;
    for (int64_t i = threadIdx.x; i < rows; i += ROW_THREADS)
        oh_finish_row(&here, first + i);
    __syncwarp();
    if (f.parts & (OH_FINISH_LOSS | OH_FINISH_COEF)) {
        for (int64_t slot = threadIdx.x; slot < size; slot += ROW_THREADS)
            oh_finish_weight(&here, b, slot);
        __syncwarp();
        if (threadIdx.x == 0) oh_finish_pace(&here, b);
        __syncwarp();
    }
    for (int64_t slot = threadIdx.x; slot < size; slot += ROW_THREADS)
        oh_finish_slot(&here, b, slot, part[slot]);
    __syncwarp();
    for (int64_t k = threadIdx.x; k < count; k += ROW_THREADS) {
        double sum = 0;
        if (oh_sum_is_of_blocks(k))
            sum = oh_block_sum(&here, b, k);
        else
            for (int64_t slot = 0; slot < size; ++slot)
                sum = oh_sum_merge(k, sum, part[slot][k]);
        f.partial[b * count + k] = sum;
    }
}

__global__ void __launch_bounds__(ROW_THREADS) finish_rows_kernel(const oh_row_finish f) {
    const int64_t i = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x;
    if (i < f.compact_rows) oh_finish_row(&f, i);
}

__global__ void __launch_bounds__(ROW_THREADS) finish_long_blocks_kernel(const oh_row_finish f) {
    const int64_t b = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x;
    if (b < f.rows / f.objective.block_size) oh_finish_block(&f, b);
}

/* A warp takes a sum: its lanes a stretch of the blocks each, in their order, which are then put together in theirs. */
__global__ void __launch_bounds__(SUM_THREADS) finish_sums_kernel(const __grid_constant__ oh_row_finish f) {
    const int64_t count = oh_sum_count(&f.objective), blocks = f.rows / f.objective.block_size;
    const int64_t k = (int64_t)blockIdx.x * SUM_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (k >= count) return;
    const int64_t each = (blocks + 31) / 32, end = min((lane + 1) * each, blocks);
    double sum = 0;
#pragma unroll 4
    for (int64_t b = lane * each; b < end; ++b)
        sum = oh_sum_merge(k, sum, f.partial[b * count + k]);
    for (int distance = 1; distance < 32; distance *= 2)
        sum = oh_sum_merge(k, sum, __shfl_down_sync(0xffffffffu, sum, distance));
    if (lane == 0) f.sums[k] = oh_sum_merge(k, f.sums[k], sum);
}

__global__ void step_finish_kernel(const oh_step_finish f) {
    oh_step_close(&f);
}

__global__ void __launch_bounds__(ROW_THREADS) row_labels_kernel(const oh_row_labels l) {
    const int64_t i = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x;
    if (i < l.rows) oh_label_row(&l, i);
}

static unsigned grid(int64_t count, int64_t threads) {
    return (unsigned)((count + threads - 1) / threads);
}

oh_status cuda_row_finish(oh_queue *queue, const oh_row_finish *finish) {
    if (queue_ready(queue) != OH_OK) return queue_ready(queue);
    if (!oh_finish_valid(finish)) return queue_refuse(queue, "row_finish");
    if (finish->rows == 0) return OH_OK;
    const device_guard guard(queue->device);
    const int64_t blocks = finish->rows / finish->objective.block_size;
    const int64_t shared = block_shared_bytes(&finish->objective);
    if (blocks > INT32_MAX) return queue_refuse(queue, "row_finish");
    if (shared <= SHARED_BYTES) {
        finish_block_kernel<<<(unsigned)blocks, ROW_THREADS, (size_t)shared, queue->stream>>>(*finish);
    } else {
        if (finish->compact_rows > 0)
            finish_rows_kernel<<<grid(finish->compact_rows, ROW_THREADS), ROW_THREADS, 0, queue->stream>>>(*finish);
        finish_long_blocks_kernel<<<grid(blocks, ROW_THREADS), ROW_THREADS, 0, queue->stream>>>(*finish);
    }
    finish_sums_kernel<<<grid(oh_sum_count(&finish->objective), SUM_WARPS), SUM_THREADS, 0, queue->stream>>>(*finish);
    return queue_launched(queue, "row_finish");
}

oh_status cuda_step_finish(oh_queue *queue, const oh_step_finish *finish) {
    if (queue_ready(queue) != OH_OK) return queue_ready(queue);
    if (!oh_objective_valid(&finish->objective) || !finish->sums || !finish->loss || !finish->factor)
        return queue_refuse(queue, "step_finish");
    const device_guard guard(queue->device);
    step_finish_kernel<<<1, 1, 0, queue->stream>>>(*finish);
    return queue_launched(queue, "step_finish");
}

oh_status cuda_row_labels(oh_queue *queue, const oh_row_labels *labels) {
    if (queue_ready(queue) != OH_OK) return queue_ready(queue);
    if (!oh_labels_valid(labels)) return queue_refuse(queue, "row_labels");
    if (labels->rows == 0) return OH_OK;
    const device_guard guard(queue->device);
    row_labels_kernel<<<grid(labels->rows, ROW_THREADS), ROW_THREADS, 0, queue->stream>>>(*labels);
    return queue_launched(queue, "row_labels");
}

cudaError_t row_finish_load(void) {
    return load_kernels(finish_block_kernel, finish_rows_kernel, finish_long_blocks_kernel, finish_sums_kernel,
                        step_finish_kernel, row_labels_kernel);
}
