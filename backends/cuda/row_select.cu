/* row_select.cu - row selection from arrays on the device; rowmath.h has the rules. A block numbers one chunk's rows, 1,024
 * at a time; another then adds up what they leave, each thread every 1,024th row and the threads in a fixed order. */
#include <onehead/rowmath.h>

#include "device.h"

enum { THREADS = 1024, WARPS = THREADS / 32 };

/* Rows before this thread's whose `taken` is set, and in *total all of them; by all threads of a block. */
static __device__ int place_of(bool taken, int *of_warp, int *total) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned votes = __ballot_sync(0xffffffffu, taken);
    if (lane == 0) of_warp[warp] = __popc(votes);
    __syncthreads();
    int before = 0, all = 0;
    for (int w = 0; w < WARPS; ++w) {
        before += w < warp ? of_warp[w] : 0;
        all += of_warp[w];
    }
    __syncthreads();
    *total = all;
    return before + __popc(votes & ((1u << lane) - 1u));
}

__global__ void __launch_bounds__(THREADS) select_rows_kernel(const oh_row_select s) {
    __shared__ int of_warp[WARPS];
    const int64_t c = blockIdx.x, first = c * s.chunk;
    const int64_t end = first + s.chunk < s.rows ? first + s.chunk : s.rows;
    int32_t taken = 0;
    for (int64_t stretch = first; stretch < end; stretch += THREADS) {
        const int64_t row = stretch + threadIdx.x;
        oh_selected_row r = {};
        if (row < end) r = oh_select_row(&s, row);
        int count;
        const int32_t place = taken + place_of(row < end && r.supervised, of_warp, &count);
        if (row < end) oh_select_write(&s, c, row, &r, r.supervised ? place : -1);
        taken += count;
    }
    for (int64_t i = taken + (int64_t)threadIdx.x; i < oh_select_places(&s, first); i += THREADS)
        oh_select_clear(&s, c * s.places + i);
}

__global__ void __launch_bounds__(THREADS) select_sums_kernel(const oh_row_select s) {
    __shared__ double of_thread[THREADS];
    double parts[OH_SELECTED_COUNT];
    for (int k = 0; k < OH_SELECTED_COUNT; ++k)
        parts[k] = 0;
    for (int64_t row = threadIdx.x; row < s.rows; row += THREADS) {
        const oh_selected_row r = oh_select_row(&s, row);
        for (int k = 0; k < OH_SELECTED_COUNT; ++k)
            parts[k] = oh_select_merge(k, parts[k], oh_select_part(&s, row, &r, k));
    }
    for (int k = 0; k < OH_SELECTED_COUNT; ++k) {
        of_thread[threadIdx.x] = parts[k];
        __syncthreads();
        for (int half = THREADS / 2; half > 0; half /= 2) {
            if ((int)threadIdx.x < half)
                of_thread[threadIdx.x] =
                    oh_select_merge(k, of_thread[threadIdx.x], of_thread[threadIdx.x + (unsigned)half]);
            __syncthreads();
        }
        if (threadIdx.x == 0) s.sums[k] = of_thread[0];
        __syncthreads();
    }
    if (threadIdx.x == 0) oh_select_close(&s);
}

oh_status cuda_row_select(oh_queue *queue, const oh_row_select *select) {
    if (queue_ready(queue) != OH_OK) return queue_ready(queue);
    if (!oh_select_valid(select)) return queue_refuse(queue, "row_select");
    const device_guard guard(queue->device);
    const int64_t chunks = (select->rows + select->chunk - 1) / select->chunk;
    if (chunks > INT32_MAX) return queue_refuse(queue, "row_select");
    /* Sums first: target_row_out may be target_row. */
    select_sums_kernel<<<1, THREADS, 0, queue->stream>>>(*select);
    if (chunks > 0) select_rows_kernel<<<(unsigned)chunks, THREADS, 0, queue->stream>>>(*select);
    return queue_launched(queue, "row_select");
}

cudaError_t row_select_load(void) {
    return load_kernels(select_rows_kernel, select_sums_kernel);
}
