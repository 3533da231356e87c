/* gemm_plain.cu - the product for whatever cuBLASLt refuses: tiles of both operands in shared memory, one result a
 * thread, accumulated in f32 in the order of k. */
#include "device.h"
#include "elements.cuh"

enum { SIDE = 16 };

__global__ void __launch_bounds__(SIDE *SIDE) gemm_plain_kernel(const oh_gemm g) {
    __shared__ float a[SIDE][SIDE + 1], b[SIDE][SIDE + 1];
    const int x = threadIdx.x, y = threadIdx.y;
    /* Rows may be many: they are what the grid's first, widest, dimension counts. */
    const int64_t row = (int64_t)blockIdx.x * SIDE + y, column = (int64_t)blockIdx.y * SIDE + x;
    const int64_t b_column = (int64_t)blockIdx.y * SIDE + y;
    float sum = 0;
    for (int64_t first = 0; first < g.k; first += SIDE) {
        /* Neighbouring threads read neighbouring elements of what is stored as rows. */
        const int64_t a_row = (int64_t)blockIdx.x * SIDE + (g.op == OH_GEMM_TN ? x : y);
        const int64_t a_k = first + (g.op == OH_GEMM_TN ? y : x);
        float value = 0;
        if (a_row < g.m && a_k < g.k)
            value = element_read(g.a, g.op == OH_GEMM_TN ? a_k * g.lda + a_row : a_row * g.lda + a_k, g.a_dtype);
        if (g.op == OH_GEMM_TN)
            a[x][y] = value;
        else
            a[y][x] = value;
        value = 0;
        if (g.op == OH_GEMM_NT) {
            if (b_column < g.n && first + x < g.k) value = element_read(g.b, b_column * g.ldb + first + x, g.b_dtype);
            b[x][y] = value;
        } else {
            if (column < g.n && first + y < g.k) value = element_read(g.b, (first + y) * g.ldb + column, g.b_dtype);
            b[y][x] = value;
        }
        __syncthreads();
        for (int k = 0; k < SIDE; ++k)
            sum = fmaf(a[y][k], b[k][x], sum);
        __syncthreads();
    }
    if (row >= g.m || column >= g.n) return;
    const int64_t at = row * g.ldc + column;
    element_write(g.c, at, g.c_dtype, g.accumulate ? element_read(g.c, at, g.c_dtype) + sum : sum);
}

/* A grid's second dimension ends at 65,535 blocks: more columns are strips. */
#define STRIP ((int64_t)65535 * SIDE)

static oh_gemm columns_from(const oh_gemm *product, int64_t first) {
    const int64_t left = product->n - first, at = product->op == OH_GEMM_NT ? first * product->ldb : first;
    oh_gemm strip = *product;
    strip.n = left < STRIP ? left : STRIP;
    strip.b = (const char *)product->b + at * element_bytes(product->b_dtype);
    strip.c = (char *)product->c + first * element_bytes(product->c_dtype);
    return strip;
}

cudaError_t gemm_plain(cudaStream_t stream, const oh_gemm *product) {
    const int64_t rows = (product->m + SIDE - 1) / SIDE;
    if (rows > INT32_MAX) return cudaErrorInvalidConfiguration;
    for (int64_t first = 0; first < product->n; first += STRIP) {
        const oh_gemm strip = columns_from(product, first);
        const dim3 grid((unsigned)rows, (unsigned)((strip.n + SIDE - 1) / SIDE)), block(SIDE, SIDE);
        gemm_plain_kernel<<<grid, block, 0, stream>>>(strip);
        const cudaError_t error = cudaGetLastError();
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

cudaError_t gemm_plain_load(void) {
    return load_kernels(gemm_plain_kernel);
}
