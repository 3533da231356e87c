/* gemm.h - products and the algorithms chosen for them. */
#ifndef ONEHEAD_CUDA_GEMM_H
#define ONEHEAD_CUDA_GEMM_H

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <onehead/backend.h>

/* What an algorithm depends on. Compared as bytes: no padding. */
struct gemm_key {
    int32_t op, accumulate;
    int64_t m, n, k, lda, ldb, ldc;
    int32_t operand, result;                        /* oh_dtype */
    uint32_t a_alignment, b_alignment, c_alignment; /* of the addresses, in bytes, at most 256 */
    uint32_t reserved;
    int64_t scratch_bytes;
};

struct gemm_choice {
    gemm_key key;
    cublasLtMatmulAlgo_t algorithm;
    uint64_t used;   /* when last asked for; 0: empty */
    int32_t by_hand; /* cuBLASLt has none: gemm_plain multiplies */
    int32_t tuned;   /* by the clock, in this process or in one that left a file */
};

/* Of fixed size, so that a step allocates nothing; the oldest choice makes way. */
#define GEMM_TABLE_SIZE 256

struct gemm_table {
    gemm_choice choices[GEMM_TABLE_SIZE];
    uint64_t clock;
};

/* A product with one thread per result, for shapes and addresses that no algorithm of cuBLASLt takes. */
cudaError_t gemm_plain(cudaStream_t stream, const oh_gemm *product);

#endif
