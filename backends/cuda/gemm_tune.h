/* gemm_tune.h - algorithms by the clock; gemm_tune.cu says when. */
#ifndef ONEHEAD_CUDA_GEMM_TUNE_H
#define ONEHEAD_CUDA_GEMM_TUNE_H

#include "gemm.h"

/* Runs the product that is being tuned by an algorithm. */
struct gemm_call {
    cublasStatus_t (*run)(void *user, const cublasLtMatmulAlgo_t *algorithm);
    void *user;
};

/* Whether a product is worth a search. */
int gemm_is_large(int64_t m, int64_t n, int64_t k);
/* Whether a product's choice may come out of the file, or go there. */
int gemm_tune_has_file(const oh_gemm *product);
int gemm_tune_wanted(const gemm_key *key);
/* Index of the fastest. Waits for the queue. */
int gemm_tune(oh_queue *queue, const gemm_call *call, const cublasLtMatmulHeuristicResult_t *results, int count);

/* The device's tuned choices from and to the file, where there is one. */
void gemm_tune_load(oh_device *device);
void gemm_tune_save(const oh_device *device);

#endif
