/* row_finish.cu - loops over rowmath.h, which has the algebra.
 *
 * Two launches: a warp takes a block of rows, lane by lane its rows and then, by one lane, the block; one thread block
 * adds up the sums, a thread each, in the order of the blocks. What one lane reads and writes often lies in shared
 * memory: rowmath's functions are given a description whose arrays point there. */
#include <onehead/rowmath.h>

#include "device.h"

enum { ROW_THREADS = 32, SUM_THREADS = 1024 };

/* 48 KB, less what the compiler keeps. */
enum { SHARED_BYTES = 47 * 1024, SUM_ELEMENTS = SHARED_BYTES / 8 };

/* Rows of a block at most whose results lie in shared memory beside its sums; longer blocks are left to the kernels
 * below. */
static int64_t block_shared_bytes(const oh_objective *o) {
    return o->block_size * (int64_t)sizeof(oh_row_result) + oh_sum_count(o) * (int64_t)sizeof(double);
}

__global__ void __launch_bounds__(ROW_THREADS) finish_block_kernel(const oh_row_finish f) {
    extern __shared__ double shared[];
    const int64_t b = blockIdx.x, size = f.objective.block_size, count = oh_sum_count(&f.objective);
    double *const sums = shared;
    oh_row_result *const results = (oh_row_result *)(shared + count);
    /* Compact rows follow each other within a block: this one's start at its first supervised row. */
    int64_t first = 0, rows = 0;
    for (int64_t slot = size - 1; slot >= 0; --slot) {
        const int32_t i = f.compact[b * size + slot];
        if (i >= 0) first = i, rows += 1;
    }
    oh_row_finish here = f;
    here.results = results - first;
    here.partial = sums - b * count;
    for (int64_t i = threadIdx.x; i < rows; i += ROW_THREADS)
        oh_finish_row(&here, first + i);
    __syncwarp();
    if (threadIdx.x == 0) oh_finish_block(&here, b);
    __syncwarp();
    for (int64_t k = threadIdx.x; k < count; k += ROW_THREADS)
        f.partial[b * count + k] = sums[k];
}

__global__ void __launch_bounds__(ROW_THREADS) finish_rows_kernel(const oh_row_finish f) {
    const int64_t i = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x;
    if (i < f.compact_rows) oh_finish_row(&f, i);
}

__global__ void __launch_bounds__(ROW_THREADS) finish_long_blocks_kernel(const oh_row_finish f) {
    const int64_t b = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x;
    if (b < f.rows / f.objective.block_size) oh_finish_block(&f, b);
}

/* As many blocks' sums at a time as shared memory holds; where it doesn't hold one block's, from where they are. */
__global__ void __launch_bounds__(SUM_THREADS) finish_sums_kernel(const oh_row_finish f) {
    extern __shared__ double shared[];
    const int64_t count = oh_sum_count(&f.objective), size = f.objective.block_size, blocks = f.rows / size;
    const int64_t stretch = SUM_ELEMENTS / count;
    if (stretch == 0) {
        for (int64_t k = threadIdx.x; k < count; k += SUM_THREADS)
            oh_finish_sum(&f, k);
        return;
    }
    for (int64_t b = 0; b < blocks; b += stretch) {
        const int64_t some = blocks - b < stretch ? blocks - b : stretch;
        for (int64_t i = threadIdx.x; i < some * count; i += SUM_THREADS)
            shared[i] = f.partial[b * count + i];
        __syncthreads();
        oh_row_finish here = f;
        here.partial = shared;
        here.rows = some * size;
        for (int64_t k = threadIdx.x; k < count; k += SUM_THREADS)
            oh_finish_sum(&here, k);
        __syncthreads();
    }
}

__global__ void step_finish_kernel(const oh_step_finish f) {
    oh_step_close(&f);
}

__global__ void __launch_bounds__(ROW_THREADS) row_labels_kernel(const oh_row_labels l) {
    const int64_t i = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x;
    if (i < l.rows) oh_label_row(&l, i);
}

static int objective_valid(const oh_objective *o) {
    if (o->block_size <= 0 || o->first_slot < 0 || o->first_slot > o->block_size) return 0;
    if (o->terms >> OH_TERM_COUNT != 0 || o->top_k_count < 0 || o->top_k_count > OH_TOP_K_LIST_MAX) return 0;
    for (int32_t k = 0; k < o->top_k_count; ++k)
        if (o->top_k[k] < 1 || o->top_k[k] > OH_TOP_K_MAX) return 0;
    return 1;
}

/* K = 1 is read off the argmax; a larger one off the list of ids. */
static int top_k_valid(const oh_row_finish *f) {
    const oh_objective *o = &f->objective;
    if (f->top_k < 0 || f->top_k > OH_TOP_K_MAX || (uint64_t)f->top_k_mask >> o->top_k_count != 0) return 0;
    for (int32_t k = 0; k < o->top_k_count; ++k)
        if (f->top_k_mask >> k & 1u && o->top_k[k] > 1 && (o->top_k[k] > f->top_k || !f->topk_id)) return 0;
    if (!(f->parts & OH_FINISH_TOP_K_ROWS) || f->top_k == 0) return 1;
    return f->topk_id && (f->topk_logit || !f->topk_logprob_out);
}

static int finish_valid(const oh_row_finish *f) {
    const oh_objective *o = &f->objective;
    if (!objective_valid(o) || f->rows < 0 || f->rows % o->block_size != 0) return 0;
    if (f->compact_rows < 0 || f->compact_rows > f->rows) return 0;
    if (f->rows == 0) return 1;
    if (!f->compact || !f->partial || !f->sums) return 0;
    if (f->parts & (OH_FINISH_COUNTS | OH_FINISH_LOSS | OH_FINISH_COEF) && !f->mask) return 0;
    if (f->compact_rows == 0) return 1;
    if (!f->stats || !f->results || (f->parts & OH_FINISH_COEF && (!f->coef || !f->row_scale))) return 0;
    if (f->parts & (OH_FINISH_LOSS | OH_FINISH_COEF)) {
        if (o->terms & OH_TERMS_WITH_TARGET && !f->has_target) return 0;
        if (!f->overlap && oh_objective_want(o) & (OH_WANT_JSD | OH_WANT_OVERLAP)) return 0;
    }
    return top_k_valid(f);
}

static unsigned grid(int64_t count, int64_t threads) {
    return (unsigned)((count + threads - 1) / threads);
}

oh_status cuda_row_finish(oh_queue *queue, const oh_row_finish *finish) {
    if (queue_ready(queue) != OH_OK) return queue_ready(queue);
    if (!finish_valid(finish)) return queue_refuse(queue, "row_finish");
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
    finish_sums_kernel<<<1, SUM_THREADS, SHARED_BYTES, queue->stream>>>(*finish);
    return queue_launched(queue, "row_finish");
}

oh_status cuda_step_finish(oh_queue *queue, const oh_step_finish *finish) {
    if (queue_ready(queue) != OH_OK) return queue_ready(queue);
    if (!objective_valid(&finish->objective) || !finish->sums || !finish->loss || !finish->factor)
        return queue_refuse(queue, "step_finish");
    const device_guard guard(queue->device);
    step_finish_kernel<<<1, 1, 0, queue->stream>>>(*finish);
    return queue_launched(queue, "step_finish");
}

oh_status cuda_row_labels(oh_queue *queue, const oh_row_labels *labels) {
    if (queue_ready(queue) != OH_OK) return queue_ready(queue);
    if (labels->rows < 0 || labels->id_count < 0 || (labels->rows > 0 && (!labels->full || !labels->label)) ||
        (labels->rows > 0 && labels->id_count > 0 && !labels->ids))
        return queue_refuse(queue, "row_labels");
    if (labels->rows == 0) return OH_OK;
    const device_guard guard(queue->device);
    row_labels_kernel<<<grid(labels->rows, ROW_THREADS), ROW_THREADS, 0, queue->stream>>>(*labels);
    return queue_launched(queue, "row_labels");
}

cudaError_t row_finish_load(void) {
    const void *const kernels[] = {(const void *)finish_block_kernel,       (const void *)finish_rows_kernel,
                                   (const void *)finish_long_blocks_kernel, (const void *)finish_sums_kernel,
                                   (const void *)step_finish_kernel,        (const void *)row_labels_kernel};
    cudaFuncAttributes attributes;
    for (const void *kernel : kernels) {
        const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}
