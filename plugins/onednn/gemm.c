/* gemm.c - products, cut into parts here and multiplied by oneDNN on one thread each.
 *
 * C is cut along its rows and columns and k into blocks, as functions of the product's shape and the device's number of
 * threads: whoever computes a part, its sums are added in the same order.
 *
 *   PLAIN   Operands are multiplied where they lie.
 *   COPY    B's block becomes f32 in scratch memory, which holds every bf16: A f32 x B bf16 is what a gradient tile in
 *           f32 times the weight is, and oneDNN has no such product; rounding A to bf16 would cost it 16 of its 24 bits.
 *           Also f32 x f32 where k goes down B's rows (NN, TN): H is a power of two as often as not, its rows then fall
 *           into the same few lines of a cache, and oneDNN's kernels ran at a quarter of their speed (measured on Zen 4).
 *           The copy's rows are an odd number of cache lines apart.
 *   MATRIX  bf16 on matrix units (AMX). oneDNN has its AMX kernels only for matrices whose rows lie next to each other,
 *           so B is packed (pack.c) and C collected in scratch. Of A f32 x B bf16, A becomes three bf16 matrices, one
 *           below the other, of its leading, middle and last 8 bits, which add up to A exactly: matrix units multiply
 *           bf16 far more than three times as fast as f32 is multiplied. One product with B gives three sums, which are
 *           added at the end. (A finite value times an infinite one is NaN then.)
 *
 * In all of them every product of two elements is exact or an f32 product, and every sum is f32: nothing is rounded to
 * bf16. AMX and AVX-512 BF16 take subnormal numbers for 0 and write 0 for them. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "matmul.h"
#include "pack.h"

/* Below this many multiply-adds a product isn't worth waking threads for, or a place in the plan's memory. */
#define SMALL_WORK ((double)(1 << 17))
/* Sides of parts are multiples of the kernels' largest register tile, 32 x 64. */
#define ROWS_UNIT ((int64_t)32)
#define COLUMNS_UNIT ((int64_t)64)
/* Up to this many parts a thread. One that gets less of its core holds the others up by a part: counted as a tenth. */
#define ROUNDS_MAX 4
#define HELD_UP 0.1
#define ALIGNMENT 256
#define CACHE_LINE ((int64_t)16) /* in f32 */
/* Fewer rows of C than this don't earn a copy of B. */
#define COPY_ROWS_MIN 16

typedef enum mode { PLAIN, COPY, MATRIX, MODES } mode;

/* The largest part, by what a core's caches hold, and what a block's copies cost: multiply-adds in the time of one
 * element of A and of B. Of MATRIX with A in one piece and in three. k_block of PLAIN: far from 32 bits. */
typedef struct limit {
    int64_t rows, columns, k_block;
    double a_cost, b_cost;
} limit;

static const limit plain_limit = {512, 1024, (int64_t)1 << 20, 30, 30}, copy_limit = {512, 1024, 256, 10, 30};
static const limit matrix_limit = {512, 1024, 8192, 0, 100}, thirds_limit = {256, 512, 512, 125, 65};
/* Elements of packed B of a part, with A in one piece. */
#define PACKED_ELEMENTS ((int64_t)1 << 18)

typedef struct product {
    const oh_gemm *g;
    const oh_device *device;
    mode how;
    int64_t pieces;                 /* that A is multiplied in: 1 or 3 */
    int64_t rows, columns, k_block; /* of a part; the last of each may be smaller */
    int64_t parts_down, parts_across;
    char *scratch; /* [members][member_bytes] */
    int64_t members, member_bytes, scratch_bytes;
    _Atomic int32_t failed; /* dnnl_status_t of a part */
} product;

/* A part of one product, at work. */
typedef struct part {
    int64_t i, j, m, n; /* first row and column of C, and how many */
    dnnl_stream_t stream;
    char *a, *b, *c, *own; /* scratch: blocks of the three matrices, and oneDNN's */
} part;

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static int64_t round_up(int64_t a, int64_t b) {
    return ceil_div(a, b) * b;
}

static int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static mode how_of(const oh_device *device, const oh_gemm *g) {
    if (g->b_dtype == OH_F32) return g->op == OH_GEMM_NT || g->m < COPY_ROWS_MIN ? PLAIN : COPY;
    if (device->bf16 == ON_BF16_MATRIX) return MATRIX;
    return g->a_dtype == OH_F32 ? COPY : PLAIN;
}

/* --------------------------------------------------------------------------------------------------- partition ---- */

static int is_small(const oh_gemm *g) {
    return (double)g->m * (double)g->n * (double)g->k < SMALL_WORK;
}

static limit limit_of(const product *p) {
    if (p->how != MATRIX) return p->how == PLAIN ? plain_limit : copy_limit;
    if (p->pieces == 3) return thirds_limit;
    limit l = matrix_limit;
    const int64_t columns = PACKED_ELEMENTS / min64(p->g->k, l.k_block) / 64 * 64;
    l.columns = columns < 64 ? 64 : min64(columns, l.columns);
    return l;
}

typedef struct grid {
    int64_t rows, columns; /* of a part */
    double cost;           /* the time of a step of k, in multiply-adds */
} grid;

static grid grid_of(const product *p, const limit *l, int64_t threads, int64_t down, int64_t across) {
    grid g = {round_up(ceil_div(p->g->m, down), ROWS_UNIT), round_up(ceil_div(p->g->n, across), COLUMNS_UNIT), 0};
    g.rows = min64(g.rows, l->rows);
    g.columns = min64(g.columns, l->columns);
    const double rows = (double)g.rows, columns = (double)g.columns;
    const int64_t rounds = ceil_div(ceil_div(p->g->m, g.rows) * ceil_div(p->g->n, g.columns), threads);
    g.cost = (double)rounds * (rows * columns * (double)p->pieces + rows * l->a_cost + columns * l->b_cost);
    if (threads > 1) g.cost *= 1 + HELD_UP / (double)rounds;
    return g;
}

static void cut(product *p) {
    const limit l = limit_of(p);
    const int64_t threads = is_small(p->g) ? 1 : p->device->threads;
    const int64_t down_min = ceil_div(p->g->m, l.rows), across_min = ceil_div(p->g->n, l.columns);
    grid best = grid_of(p, &l, threads, down_min, across_min);
    for (int64_t down = down_min; threads > 1 && down < down_min + ROUNDS_MAX * threads; ++down)
        for (int64_t round = 1; round <= ROUNDS_MAX; ++round) {
            const int64_t across = ceil_div(round * threads, down);
            const grid tried = grid_of(p, &l, threads, down, across > across_min ? across : across_min);
            if (tried.cost < best.cost) best = tried;
        }
    p->rows = best.rows;
    p->columns = best.columns;
    p->k_block = min64(p->g->k, l.k_block);
    p->parts_down = ceil_div(p->g->m, p->rows);
    p->parts_across = ceil_div(p->g->n, p->columns);
}

/* A as oneDNN may have it where it lies: in one piece, its rows next to each other. */
static int a_is_ready(const product *p) {
    const oh_gemm *g = p->g;
    return p->pieces == 1 && g->op != OH_GEMM_TN && g->lda == g->k && p->k_block == g->k;
}

static int64_t a_bytes(const product *p) {
    return p->how == MATRIX ? round_up(p->pieces * p->rows * p->k_block * 2, ALIGNMENT) : 0;
}

/* The stride of a copy's rows of so many elements: an odd number of cache lines. */
static int64_t copied_row(int64_t elements) {
    return (ceil_div(elements, CACHE_LINE) | 1) * CACHE_LINE;
}

static int64_t b_bytes(const product *p) {
    if (p->how == MATRIX) return round_up(p->columns, 64) * round_up(p->k_block, 32) * 2;
    if (p->how == PLAIN) return 0;
    const int across = p->g->op == OH_GEMM_NT;
    const int64_t rows = across ? p->columns : p->k_block, row = across ? p->k_block : p->columns;
    return round_up(rows * copied_row(row) * (int64_t)sizeof(float), ALIGNMENT);
}

static int64_t c_bytes(const product *p) {
    return p->how == MATRIX ? round_up(p->pieces * p->rows * p->columns * 4, ALIGNMENT) : 0;
}

/* oneDNN packs a few columns of k elements at a time (measured). */
static int64_t own_bytes(const product *p) {
    return round_up(32768 + min64(64 * p->k_block * 4, (int64_t)1 << 20), ALIGNMENT);
}

static product product_of(const oh_device *device, const oh_gemm *g) {
    product p = {.g = g, .device = device, .how = how_of(device, g)};
    p.pieces = p.how == MATRIX && g->a_dtype == OH_F32 ? 3 : 1;
    cut(&p);
    p.member_bytes = a_bytes(&p) + b_bytes(&p) + c_bytes(&p) + own_bytes(&p);
    p.members = min64(p.parts_down * p.parts_across, device->threads);
    p.scratch_bytes = p.members * p.member_bytes + ALIGNMENT;
    return p;
}

/* Not always more for a larger product: on_gemm borrows what a plan's smaller ones lack. */
int64_t on_gemm_scratch(oh_device *device, const oh_gemm *g) {
    if (g->m <= 0 || g->n <= 0 || g->k <= 0 || is_small(g)) return 0;
    return product_of(device, g).scratch_bytes;
}

/* ---------------------------------------------------------------------------------------------------- operands ---- */

static const char *a_at(const oh_gemm *g, int64_t row, int64_t k) {
    const int64_t at = g->op == OH_GEMM_TN ? k * g->lda + row : row * g->lda + k;
    return (const char *)g->a + at * (g->a_dtype == OH_F32 ? 4 : 2);
}

static const char *b_at(const oh_gemm *g, int64_t k, int64_t column) {
    const int64_t at = g->op == OH_GEMM_NT ? column * g->ldb + k : k * g->ldb + column;
    return (const char *)g->b + at * (g->b_dtype == OH_F32 ? 4 : 2);
}

/* ------------------------------------------------------------------------------------------------------- parts ---- */

static dnnl_status_t run_block(const product *p, const part *at, const matmul_shape *shape, const void *a,
                               const void *b, void *c) {
    return matmul_run(p->device->matmuls, at->stream, shape, a, b, c, at->own, (size_t)own_bytes(p));
}

static float *c_at(const oh_gemm *g, int64_t row, int64_t column) {
    return (float *)g->c + row * g->ldc + column;
}

static dnnl_status_t plain_block(const product *p, const part *at, int64_t k, int64_t count) {
    const oh_gemm *g = p->g;
    const matmul_shape shape = {.m = at->m,
                                .n = at->n,
                                .k = count,
                                .lda = g->lda,
                                .ldb = g->ldb,
                                .ldc = g->ldc,
                                .operand = g->a_dtype,
                                .a_transposed = g->op == OH_GEMM_TN,
                                .b_transposed = g->op == OH_GEMM_NT,
                                .accumulate = g->accumulate || k > 0};
    return run_block(p, at, &shape, a_at(g, at->i, k), b_at(g, k, at->j), c_at(g, at->i, at->j));
}

static dnnl_status_t copy_block(const product *p, const part *at, int64_t k, int64_t count) {
    const oh_gemm *g = p->g;
    const int across = g->op == OH_GEMM_NT; /* rows of B are columns of the product */
    const int64_t rows = across ? at->n : count, columns = across ? count : at->n, ld = copied_row(columns);
    for (int64_t row = 0; row < rows; ++row) {
        const void *from = across ? b_at(g, k, at->j + row) : b_at(g, k + row, at->j);
        float *to = (float *)(void *)at->b + row * ld;
        if (g->b_dtype == OH_F32)
            memcpy(to, from, (size_t)columns * sizeof *to);
        else
            widen(from, to, columns);
    }
    const matmul_shape shape = {.m = at->m,
                                .n = at->n,
                                .k = count,
                                .lda = g->lda,
                                .ldb = ld,
                                .ldc = g->ldc,
                                .operand = OH_F32,
                                .a_transposed = g->op == OH_GEMM_TN,
                                .b_transposed = across,
                                .accumulate = g->accumulate || k > 0};
    return run_block(p, at, &shape, a_at(g, at->i, k), at->b, c_at(g, at->i, at->j));
}

/* A's pieces one below the other; of a transposed A side by side. Returns the stride of the rows. */
static int64_t gather_a(const product *p, const part *at, int64_t k, int64_t count) {
    const oh_gemm *g = p->g;
    const int transposed = g->op == OH_GEMM_TN;
    const int64_t rows = transposed ? count : at->m, columns = transposed ? at->m : count;
    const int64_t ld = transposed ? p->pieces * columns : columns, apart = transposed ? columns : rows * columns;
    for (int64_t row = 0; row < rows; ++row) {
        const char *from = transposed ? a_at(g, at->i, k + row) : a_at(g, at->i + row, k);
        uint16_t *to = (uint16_t *)(void *)at->a + row * ld;
        if (p->pieces == 3)
            split((const float *)(const void *)from, to, to + apart, to + 2 * apart, columns);
        else
            memcpy(to, from, (size_t)columns * sizeof *to);
    }
    return ld;
}

static dnnl_status_t matrix_block(const product *p, const part *at, int64_t k, int64_t count) {
    const oh_gemm *g = p->g;
    const void *a = a_is_ready(p) ? a_at(g, at->i, k) : at->a, *b = at->b;
    matmul_shape shape = {.m = p->pieces * at->m,
                          .n = at->n,
                          .k = count,
                          .lda = a == at->a ? gather_a(p, at, k, count) : g->lda,
                          .ldc = at->n,
                          .operand = OH_BF16,
                          .a_transposed = g->op == OH_GEMM_TN,
                          .b_packed = 1,
                          .accumulate = k > 0};
    packing packed;
    dnnl_status_t status;
    const int known = matmul_packing(p->device->matmuls, &shape, &packed, &status);
    if (status != dnnl_success) return status;
    if (known && packing_bytes(&packed) <= b_bytes(p)) {
        pack_b(&packed, (const uint16_t *)(const void *)b_at(g, k, at->j), g->op == OH_GEMM_NT, g->ldb, at->n, count,
               (uint16_t *)(void *)at->b);
    } else { /* a kernel that would have it otherwise */
        b = b_at(g, k, at->j);
        shape.ldb = g->ldb;
        shape.b_packed = 0;
        shape.b_transposed = g->op == OH_GEMM_NT;
    }
    return run_block(p, at, &shape, a, b, at->c);
}

/* C of a part out of its pieces, the smallest first. */
static void collect(const product *p, const part *at) {
    const int64_t piece = at->m * at->n;
    for (int64_t row = 0; row < at->m; ++row) {
        const float *high = (const float *)(const void *)at->c + row * at->n;
        const float *middle = high + piece, *low = middle + piece;
        float *c = c_at(p->g, at->i + row, at->j);
        if (p->pieces == 1 && !p->g->accumulate) {
            memcpy(c, high, (size_t)at->n * sizeof *c);
            continue;
        }
        for (int64_t column = 0; column < at->n; ++column) {
            const float sum = p->pieces == 1 ? high[column] : low[column] + middle[column] + high[column];
            c[column] = p->g->accumulate ? c[column] + sum : sum;
        }
    }
}

static void run_part(void *work, int64_t index, int32_t member) {
    static dnnl_status_t (*const blocks[MODES])(const product *, const part *, int64_t, int64_t) = {
        [PLAIN] = plain_block, [COPY] = copy_block, [MATRIX] = matrix_block};
    product *p = work;
    const oh_gemm *g = p->g;
    /* Parts of the same columns of B follow each other: they find them in the cache. */
    part at = {.i = index % p->parts_down * p->rows, .j = index / p->parts_down * p->columns};
    at.m = min64(p->rows, g->m - at.i);
    at.n = min64(p->columns, g->n - at.j);
    at.stream = p->device->streams[member];
    at.a = p->scratch + member * p->member_bytes;
    at.b = at.a + a_bytes(p);
    at.c = at.b + b_bytes(p);
    at.own = at.c + c_bytes(p);
    for (int64_t k = 0; k < g->k; k += p->k_block) {
        if (atomic_load_explicit(&p->failed, memory_order_relaxed) != dnnl_success) return;
        const dnnl_status_t status = blocks[p->how](p, &at, k, min64(p->k_block, g->k - k));
        if (status != dnnl_success) atomic_store_explicit(&p->failed, (int32_t)status, memory_order_relaxed);
    }
    if (p->how == MATRIX) collect(p, &at);
}

static oh_status multiply(oh_device *device, const oh_gemm *g) {
    product p = product_of(device, g);
    atomic_init(&p.failed, dnnl_success);
    void *borrowed = NULL;
    p.scratch =
        g->scratch && g->scratch_bytes >= p.scratch_bytes ? g->scratch : (borrowed = malloc((size_t)p.scratch_bytes));
    if (!p.scratch)
        return on_fail(device, OH_OUT_OF_MEMORY, "gemm: no memory for %lld bytes of scratch",
                       (long long)p.scratch_bytes);
    p.scratch += (ALIGNMENT - (uintptr_t)p.scratch % ALIGNMENT) % ALIGNMENT;
    on_parallel(device, p.parts_down * p.parts_across, run_part, &p);
    free(borrowed);
    const int32_t failed = atomic_load(&p.failed);
    if (failed == dnnl_success) return OH_OK;
    return on_fail(device, failed == dnnl_out_of_memory ? OH_OUT_OF_MEMORY : OH_DEVICE_ERROR,
                   "gemm of m, n, k = %lld, %lld, %lld: oneDNN's matmul failed with dnnl_status_t %d", (long long)g->m,
                   (long long)g->n, (long long)g->k, failed);
}

/* --------------------------------------------------------------------------------------------------- the entry ---- */

static int claims(const oh_gemm *g) {
    const int bf16 = on_cpu_bf16() != ON_BF16_NONE;
    if (g->c_dtype != OH_F32) return 0;
    if (g->a_dtype == OH_F32) return g->b_dtype == OH_F32 || (g->b_dtype == OH_BF16 && bf16);
    return g->a_dtype == OH_BF16 && g->b_dtype == OH_BF16 && bf16;
}

static oh_status check_product(oh_device *device, const oh_gemm *g) {
    if (!claims(g))
        return on_fail(device, OH_UNSUPPORTED, "gemm of dtypes %d x %d -> %d, expected a combination of gemm_kinds",
                       g->a_dtype, g->b_dtype, g->c_dtype);
    if (g->op != OH_GEMM_NT && g->op != OH_GEMM_NN && g->op != OH_GEMM_TN)
        return on_fail(device, OH_INVALID_ARGUMENT, "gemm op %d, expected NT, NN or TN", g->op);
    if (g->m < 0 || g->n < 0 || g->k < 0)
        return on_fail(device, OH_INVALID_ARGUMENT, "gemm of m, n, k = %lld, %lld, %lld, expected none < 0",
                       (long long)g->m, (long long)g->n, (long long)g->k);
    const int64_t a_row = g->op == OH_GEMM_TN ? g->m : g->k, b_row = g->op == OH_GEMM_NT ? g->k : g->n;
    if (g->lda < a_row || g->ldb < b_row || g->ldc < g->n)
        return on_fail(device, OH_INVALID_ARGUMENT,
                       "gemm with lda, ldb, ldc = %lld, %lld, %lld, expected at least %lld, %lld, %lld",
                       (long long)g->lda, (long long)g->ldb, (long long)g->ldc, (long long)a_row, (long long)b_row,
                       (long long)g->n);
    if (g->m == 0 || g->n == 0) return OH_OK;
    if (!g->c || (g->k > 0 && (!g->a || !g->b)))
        return on_fail(device, OH_INVALID_ARGUMENT, "gemm with an operand that is NULL");
    return OH_OK;
}

oh_status on_gemm(oh_queue *queue, const oh_gemm *g) {
    const oh_status status = check_product(queue->device, g);
    if (status != OH_OK || g->m == 0 || g->n == 0) return status;
    if (g->k == 0) {
        for (int64_t i = 0; i < g->m && !g->accumulate; ++i)
            memset((float *)g->c + i * g->ldc, 0, (size_t)g->n * sizeof(float));
        return OH_OK;
    }
    return multiply(queue->device, g);
}
