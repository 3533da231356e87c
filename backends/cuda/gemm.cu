/* gemm.cu - products by cuBLASLt.
 *
 * cuBLASLt's matrices are column-major. A row-major matrix [rows, columns] is a column-major one [columns, rows] with
 * the same leading dimension, so each product is computed as its transpose, C^T = B^T A^T, with cuBLASLt's first
 * operand being our B:
 *
 *     NT  C^T[n,m] = B[n,k]   A^T[k,m]    first: B, stored as [k,n], transposed; second: A, stored as [k,m]
 *     NN  C^T[n,m] = B^T[n,k] A^T[k,m]    first: B, stored as [n,k];             second: A, stored as [k,m]
 *     TN  C^T[n,m] = B^T[n,k] A[k,m]      first: B, stored as [n,k];             second: A, stored as [m,k], transposed
 *
 * Algorithms are chosen by cuBLASLt's heuristic for the exact shape, strides and alignment, once a device, and then
 * kept, so that the same product always runs the same kernel. Reductions that add partial sums in the order of their
 * arrival, or in the result's own dtype, are not allowed. */
#include <cstdio>
#include <cstring>

#include "device.h"
#include "gemm_tune.h"

/* Scratch at most: room for a large product in three parts over k, whose results are added in their order. */
#define SCRATCH (INT64_C(32) << 20)
#define SCRATCH_OF_LARGE (INT64_C(128) << 20)

enum { TUNED_ANSWERS = 16 };

/* ----------------------------------------------------------------------------------------------------- product ---- */

static cudaDataType_t cuda_type(int32_t dtype) {
    return dtype == OH_F32 ? CUDA_R_32F : dtype == OH_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

static int64_t element_size(int32_t dtype) {
    return dtype == OH_F32 ? 4 : 2;
}

static int is_dtype(int32_t dtype) {
    return dtype == OH_F32 || dtype == OH_BF16 || dtype == OH_F16;
}

static int is_claimed(const oh_gemm *g) {
    return g->a_dtype == g->b_dtype && (g->c_dtype == OH_F32 || g->c_dtype == g->a_dtype);
}

static int is_possible(const oh_gemm *g) {
    if (g->op < OH_GEMM_NT || g->op > OH_GEMM_TN || g->m < 0 || g->n < 0 || g->k < 0) return 0;
    if (!is_dtype(g->a_dtype) || !is_dtype(g->b_dtype) || !is_dtype(g->c_dtype)) return 0;
    if (g->m == 0 || g->n == 0) return 1;
    if (!g->c || g->ldc < g->n || (uintptr_t)g->c % (uintptr_t)element_size(g->c_dtype)) return 0;
    if (g->k == 0) return 1;
    const int64_t a_columns = g->op == OH_GEMM_TN ? g->m : g->k, b_columns = g->op == OH_GEMM_NT ? g->k : g->n;
    return g->a && g->b && g->lda >= a_columns && g->ldb >= b_columns &&
           (uintptr_t)g->a % (uintptr_t)element_size(g->a_dtype) == 0 &&
           (uintptr_t)g->b % (uintptr_t)element_size(g->b_dtype) == 0;
}

static uint32_t alignment_of(const void *address) {
    uint32_t alignment = 256;
    while ((uintptr_t)address % alignment != 0)
        alignment /= 2;
    return alignment;
}

static gemm_key key_of(const oh_gemm *g, int64_t scratch_bytes) {
    gemm_key key;
    memset(&key, 0, sizeof key);
    key.op = g->op;
    key.accumulate = g->accumulate != 0;
    key.m = g->m, key.n = g->n, key.k = g->k;
    key.lda = g->lda, key.ldb = g->ldb, key.ldc = g->ldc;
    key.operand = g->a_dtype;
    key.result = g->c_dtype;
    key.a_alignment = alignment_of(g->a);
    key.b_alignment = alignment_of(g->b);
    key.c_alignment = alignment_of(g->c);
    key.scratch_bytes = scratch_bytes;
    return key;
}

/* What cuBLASLt calls the product and its matrices; on the stack, so that nothing is allocated. */
struct cublas_product {
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t first, second, result;
};

static cublasStatus_t describe(cublas_product *p, const gemm_key *k) {
    cublasStatus_t status = cublasLtMatmulDescInit(&p->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const cublasOperation_t first = k->op == OH_GEMM_NT ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = k->op == OH_GEMM_TN ? CUBLAS_OP_T : CUBLAS_OP_N;
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulDescSetAttribute(&p->operation, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulDescSetAttribute(&p->operation, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
    const int first_t = first == CUBLAS_OP_T, second_t = second == CUBLAS_OP_T;
    const cudaDataType_t operand = cuda_type(k->operand);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatrixLayoutInit(&p->first, operand, (uint64_t)(first_t ? k->k : k->n),
                                          (uint64_t)(first_t ? k->n : k->k), k->ldb);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatrixLayoutInit(&p->second, operand, (uint64_t)(second_t ? k->m : k->k),
                                          (uint64_t)(second_t ? k->k : k->m), k->lda);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatrixLayoutInit(&p->result, cuda_type(k->result), (uint64_t)k->n, (uint64_t)k->m, k->ldc);
    return status;
}

/* --------------------------------------------------------------------------------------------------- algorithm ---- */

static cublasStatus_t set_preference(cublasLtMatmulPreferenceOpaque_t *preference, const gemm_key *k) {
    const uint64_t scratch = (uint64_t)k->scratch_bytes;
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t size;
    } attributes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &scratch, sizeof scratch},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &k->b_alignment, sizeof k->b_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &k->a_alignment, sizeof k->a_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &k->c_alignment, sizeof k->c_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &k->c_alignment, sizeof k->c_alignment},
    };
    cublasStatus_t status = cublasLtMatmulPreferenceInit(preference);
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0] && status == CUBLAS_STATUS_SUCCESS; ++i)
        status = cublasLtMatmulPreferenceSetAttribute(preference, attributes[i].name, attributes[i].value,
                                                      attributes[i].size);
    return status;
}

/* The heuristic's first `wanted` answers; count 0: it has none. */
static cublasStatus_t ask_heuristic(const oh_device *device, const gemm_key *key, int wanted,
                                    cublasLtMatmulHeuristicResult_t *results, int *count) {
    cublas_product p;
    cublasLtMatmulPreferenceOpaque_t preference;
    *count = 0;
    cublasStatus_t status = describe(&p, key);
    if (status == CUBLAS_STATUS_SUCCESS) status = set_preference(&preference, key);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    status = cublasLtMatmulAlgoGetHeuristic(device->cublas, &p.operation, &p.first, &p.second, &p.result, &p.result,
                                            &preference, wanted, results, count);
    if (status != CUBLAS_STATUS_SUCCESS) *count = 0;
    if (*count > 0 && results[0].state != CUBLAS_STATUS_SUCCESS) *count = 0;
    /* A shape or address that it doesn't take is an answer, not a failure. */
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ? CUBLAS_STATUS_SUCCESS
                                                                                          : status;
}

static void log_choice(const oh_device *device, const gemm_choice *choice) {
    if (!device->host.log) return;
    static const char *const operations[] = {"NT", "NN", "TN"};
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    const gemm_key *k = &choice->key;
    int32_t id = -1, split = 1;
    uint32_t tile = 0, stages = 0, reduction = 0;
    size_t written;
    if (!choice->by_hand) {
        const cublasLtMatmulAlgo_t *a = &choice->algorithm;
        (void)cublasLtMatmulAlgoConfigGetAttribute(a, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id, &written);
        (void)cublasLtMatmulAlgoConfigGetAttribute(a, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof tile, &written);
        (void)cublasLtMatmulAlgoConfigGetAttribute(a, CUBLASLT_ALGO_CONFIG_STAGES_ID, &stages, sizeof stages, &written);
        (void)cublasLtMatmulAlgoConfigGetAttribute(a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof split, &written);
        (void)cublasLtMatmulAlgoConfigGetAttribute(a, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction,
                                                   sizeof reduction, &written);
    }
    char line[256];
    snprintf(line, sizeof line,
             "cuda: gemm %s %lld x %lld x %lld, %s -> %s%s: algorithm %d, tile %u, stages %u, split %d, reduction %u",
             operations[k->op], (long long)k->m, (long long)k->n, (long long)k->k, dtypes[k->operand],
             dtypes[k->result], k->accumulate ? ", added" : "", (int)id, tile, stages, (int)split, reduction);
    device->host.log(device->host.user, line);
}

/* A product ready to run. */
struct ready_product {
    oh_queue *queue;
    const oh_gemm *gemm;
    cublas_product described;
    int64_t scratch_bytes;
};

static cublasStatus_t run_product(void *user, const cublasLtMatmulAlgo_t *algorithm) {
    ready_product *p = (ready_product *)user;
    cublas_product *d = &p->described;
    const oh_gemm *g = p->gemm;
    const float one = 1, beta = g->accumulate ? 1.0f : 0.0f;
    return cublasLtMatmul(p->queue->device->cublas, &d->operation, &one, g->b, &d->first, g->a, &d->second, &beta, g->c,
                          &d->result, g->c, &d->result, algorithm, g->scratch, (size_t)p->scratch_bytes,
                          p->queue->stream);
}

/* The choice for a key, made on its first use. */
static const gemm_choice *choose(ready_product *p, const gemm_key *key) {
    oh_device *device = p->queue->device;
    gemm_table *table = &device->gemms;
    gemm_choice *oldest = &table->choices[0];
    for (gemm_choice *c = table->choices; c < table->choices + GEMM_TABLE_SIZE; ++c) {
        if (c->used && memcmp(&c->key, key, sizeof *key) == 0) {
            c->used = ++table->clock;
            return c;
        }
        if (c->used < oldest->used) oldest = c;
    }
    cublasLtMatmulHeuristicResult_t results[TUNED_ANSWERS];
    int count = 0;
    oldest->used = 0;
    const int tunes = gemm_tune_wanted(key);
    /* cuBLASLt rounds a product to 16 bits before it adds it to a matrix of 16 bits. */
    const int rounds_twice = key->accumulate && key->result != OH_F32;
    const cublasStatus_t status =
        rounds_twice ? CUBLAS_STATUS_SUCCESS : ask_heuristic(device, key, tunes ? TUNED_ANSWERS : 1, results, &count);
    if (device_check_cublas(device, status, "choosing an algorithm") != OH_OK) return NULL;
    const gemm_call call = {run_product, p};
    const int best = tunes && count > 1 ? gemm_tune(p->queue, &call, results, count) : 0;
    oldest->key = *key;
    oldest->used = ++table->clock;
    oldest->by_hand = count == 0;
    oldest->tuned = tunes && count > 0;
    if (count > 0) oldest->algorithm = results[best].algo;
    if (oldest->tuned) gemm_tune_save(device);
    log_choice(device, oldest);
    return oldest;
}

/* -------------------------------------------------------------------------------------------------------- table ---- */

/* Scratch for a product at good alignment. The calls then choose among algorithms that make do with what they are
 * given. */
int64_t cuda_gemm_scratch(oh_device *device, const oh_gemm *product) {
    oh_gemm g = *product;
    if (device->fault != OH_OK || g.m <= 0 || g.n <= 0 || g.k <= 0) return 0;
    g.a = g.b = g.c = NULL;
    if (g.lda == 0) g.lda = g.op == OH_GEMM_TN ? g.m : g.k;
    if (g.ldb == 0) g.ldb = g.op == OH_GEMM_NT ? g.k : g.n;
    if (g.ldc == 0) g.ldc = g.n;
    if (gemm_tune_has_file(&g)) return SCRATCH_OF_LARGE;
    const device_guard guard(device);
    const gemm_key key = key_of(&g, gemm_is_large(g.m, g.n, g.k) ? SCRATCH_OF_LARGE : SCRATCH);
    cublasLtMatmulHeuristicResult_t result;
    int count = 0;
    if (ask_heuristic(device, &key, 1, &result, &count) != CUBLAS_STATUS_SUCCESS || count == 0) return 0;
    return (int64_t)result.workspaceSize;
}

static oh_status write_zeros(oh_queue *queue, const oh_gemm *g) {
    const size_t size = (size_t)element_size(g->c_dtype);
    return device_check(
        queue->device,
        cudaMemset2DAsync(g->c, (size_t)g->ldc * size, 0, (size_t)g->n * size, (size_t)g->m, queue->stream),
        "a product over nothing");
}

oh_status cuda_gemm(oh_queue *queue, const oh_gemm *g) {
    oh_device *device = queue->device;
    if (queue_ready(queue) != OH_OK) return queue_ready(queue);
    if (!is_possible(g)) return queue_refuse(queue, "gemm");
    if (!is_claimed(g))
        return device_fail(device, OH_UNSUPPORTED, "cuda: gemm of dtypes %d x %d -> %d, which gemm_kinds doesn't claim",
                           (int)g->a_dtype, (int)g->b_dtype, (int)g->c_dtype);
    if (g->m == 0 || g->n == 0 || (g->k == 0 && g->accumulate)) return OH_OK;
    const device_guard guard(device);
    if (g->k == 0) return write_zeros(queue, g);

    const gemm_key key = key_of(g, g->scratch ? g->scratch_bytes : 0);
    ready_product product = {queue, g, {}, key.scratch_bytes};
    const oh_status status = device_check_cublas(device, describe(&product.described, &key), "describing a product");
    if (status != OH_OK) return status;
    const gemm_choice *choice = choose(&product, &key);
    if (!choice) return OH_DEVICE_ERROR;
    if (choice->by_hand) return device_check(device, gemm_plain(queue->stream, g), "gemm_plain");
    return device_check_cublas(device, run_product(&product, &choice->algorithm), "gemm");
}
