/* gemm.c - products, partitioned here and multiplied by single-threaded OpenBLAS calls.
 *
 * OpenBLAS's own threads are a setting of the whole process; two devices would fight over it. So C is split into a grid
 * of parts, a function of the product's shape and the device's number of threads alone: the same product on the same
 * device gives the same bits, whoever computes which part. k is never split between parts.
 *
 * cblas takes 32-bit sizes. m, n and k are cut below that (k by accumulating); a row stride beyond it is refused. */
#include <string.h>

#include <cblas.h>

#include "device.h"

/* Parts begin at multiples of this: the kernels' register tiles are up to 16 rows or columns, and a cache line of C is
 * 16 elements. */
#define UNIT 16
#define SIDE_MAX ((int64_t)1 << 30)
/* A part's cost in multiply-adds a step of k: its area, and the packing of its two sides, where moving one element
 * costs about as much as this many multiply-adds. */
#define PACKING 32
/* Below this many multiply-adds a product isn't worth waking threads for. */
#define SERIAL_WORK (1 << 17)
/* Up to this many parts a thread, where they cost nearly nothing: they level out threads that get less of their core. */
#define ROUNDS_MAX 4

typedef struct grid {
    int64_t rows, columns; /* parts along m and n */
} grid;

typedef struct product {
    const oh_gemm *g;
    grid parts;
} product;

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* First element of part `index` of `parts` along a side of `size`. */
static int64_t cut(int64_t size, int64_t parts, int64_t index) {
    if (index == parts) return size;
    const int64_t units = ceil_div(size, UNIT);
    return units / parts * index * UNIT + units % parts * index / parts * UNIT;
}

static double grid_cost(int64_t m, int64_t n, grid parts, int64_t threads) {
    const double rows = (double)(ceil_div(ceil_div(m, UNIT), parts.rows) * UNIT);
    const double columns = (double)(ceil_div(ceil_div(n, UNIT), parts.columns) * UNIT);
    return (double)ceil_div(parts.rows * parts.columns, threads) * (rows * columns + PACKING * (rows + columns));
}

static grid choose_grid(const oh_gemm *g, int64_t threads) {
    const int64_t units_m = ceil_div(g->m, UNIT), units_n = ceil_div(g->n, UNIT);
    grid best = {1, 1};
    if (threads > 1 && (double)g->m * (double)g->n * (double)g->k >= SERIAL_WORK) {
        double least = grid_cost(g->m, g->n, best, threads);
        for (int64_t round = 1; round <= ROUNDS_MAX; ++round) {
            const double slack = round == 1 ? 1.0 : 1.02; /* more rounds may cost 2 % */
            const double bound = least * slack;
            grid chosen = best;
            double cost = 0;
            for (int64_t rows = 1; rows <= round * threads && rows <= units_m; ++rows) {
                const int64_t columns = round * threads / rows;
                const grid tried = {rows, columns < units_n ? columns : units_n};
                const double c = grid_cost(g->m, g->n, tried, threads);
                if (c <= bound && (cost == 0 || c < cost)) chosen = tried, cost = c;
            }
            if (cost == 0) continue;
            best = chosen;
            if (cost < least) least = cost;
        }
    }
    while (ceil_div(units_m, best.rows) * UNIT > SIDE_MAX)
        best.rows *= 2;
    while (ceil_div(units_n, best.columns) * UNIT > SIDE_MAX)
        best.columns *= 2;
    return best;
}

static void multiply_part(void *work, int64_t part) {
    const product *p = work;
    const oh_gemm *g = p->g;
    const int64_t row = part / p->parts.columns, column = part % p->parts.columns;
    const int64_t i = cut(g->m, p->parts.rows, row), m = cut(g->m, p->parts.rows, row + 1) - i;
    const int64_t j = cut(g->n, p->parts.columns, column), n = cut(g->n, p->parts.columns, column + 1) - j;
    if (m <= 0 || n <= 0) return;

    const int a_transposed = g->op == OH_GEMM_TN, b_transposed = g->op == OH_GEMM_NT;
    const float *a = (const float *)g->a + (a_transposed ? i : i * g->lda);
    const float *b = (const float *)g->b + (b_transposed ? j * g->ldb : j);
    float *c = (float *)g->c + i * g->ldc + j;
    for (int64_t first = 0; first < g->k; first += SIDE_MAX) {
        const int64_t k = g->k - first < SIDE_MAX ? g->k - first : SIDE_MAX;
        cblas_sgemm(CblasRowMajor, a_transposed ? CblasTrans : CblasNoTrans, b_transposed ? CblasTrans : CblasNoTrans,
                    (blasint)m, (blasint)n, (blasint)k, 1.0f, a + (a_transposed ? first * g->lda : first),
                    (blasint)g->lda, b + (b_transposed ? first : first * g->ldb), (blasint)g->ldb,
                    g->accumulate || first > 0 ? 1.0f : 0.0f, c, (blasint)g->ldc);
    }
}

static oh_status check_product(oh_device *device, const oh_gemm *g) {
    if (g->a_dtype != OH_F32 || g->b_dtype != OH_F32 || g->c_dtype != OH_F32)
        return ob_fail(device, OH_UNSUPPORTED, "openblas: gemm of dtypes %d x %d -> %d, expected f32 x f32 -> f32",
                       g->a_dtype, g->b_dtype, g->c_dtype);
    if (g->op != OH_GEMM_NT && g->op != OH_GEMM_NN && g->op != OH_GEMM_TN)
        return ob_fail(device, OH_INVALID_ARGUMENT, "openblas: gemm op %d, expected NT, NN or TN", g->op);
    if (g->m < 0 || g->n < 0 || g->k < 0)
        return ob_fail(device, OH_INVALID_ARGUMENT, "openblas: gemm of m, n, k = %lld, %lld, %lld, expected none < 0",
                       (long long)g->m, (long long)g->n, (long long)g->k);
    const int64_t a_row = g->op == OH_GEMM_TN ? g->m : g->k, b_row = g->op == OH_GEMM_NT ? g->k : g->n;
    if (g->lda < a_row || g->ldb < b_row || g->ldc < g->n)
        return ob_fail(device, OH_INVALID_ARGUMENT,
                       "openblas: gemm with lda, ldb, ldc = %lld, %lld, %lld, expected at least %lld, %lld, %lld",
                       (long long)g->lda, (long long)g->ldb, (long long)g->ldc, (long long)a_row, (long long)b_row,
                       (long long)g->n);
    if (g->lda > INT32_MAX || g->ldb > INT32_MAX || g->ldc > INT32_MAX)
        return ob_fail(device, OH_UNSUPPORTED,
                       "openblas: gemm with lda, ldb, ldc = %lld, %lld, %lld, expected at most 2^31 - 1: this OpenBLAS "
                       "has 32-bit sizes",
                       (long long)g->lda, (long long)g->ldb, (long long)g->ldc);
    if (g->m == 0 || g->n == 0) return OH_OK;
    if (!g->c || (g->k > 0 && (!g->a || !g->b)))
        return ob_fail(device, OH_INVALID_ARGUMENT, "openblas: gemm with an operand that is NULL");
    return OH_OK;
}

oh_status ob_gemm(oh_queue *queue, const oh_gemm *g) {
    const oh_status status = check_product(queue->device, g);
    if (status != OH_OK || g->m == 0 || g->n == 0) return status;
    if (g->k == 0) {
        for (int64_t i = 0; i < g->m && !g->accumulate; ++i)
            memset((float *)g->c + i * g->ldc, 0, (size_t)g->n * sizeof(float));
        return OH_OK;
    }
    product p = {g, choose_grid(g, queue->device->threads)};
    const int64_t parts = p.parts.rows * p.parts.columns, threads = queue->device->threads;
    const oh_status room = ob_buffers_take(queue->device, (int32_t)(parts < threads ? parts : threads));
    if (room != OH_OK) return room;
    ob_parallel(queue->device, parts, multiply_part, &p);
    return OH_OK;
}
