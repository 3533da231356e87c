/* The reference product: every operation and kind, accumulated in f64, whose products of two f32 are exact. Operands
 * are packed into small f64 panels (which is where dtypes and transposition end), and a block of C is their sum of
 * outer products. */
#include "portable.h"

#include "dtype.h"

enum { ROWS = 16, COLUMNS = 64, DEPTH = 64 };

/* Element (i, j) of an operand lies at i * row_stride + j * column_stride. */
typedef struct operand {
    const void *data;
    int64_t row_stride, column_stride;
    int32_t dtype;
} operand;

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static double element(const operand *x, int64_t i, int64_t j) {
    float value;
    oh_load_elements(x->data, i * x->row_stride + j * x->column_stride, 1, x->dtype, &value);
    return (double)value;
}

static int kind_valid(const oh_gemm *g) {
    if (!oh_element_size(g->a_dtype)) return 0;
    if (g->a_dtype == OH_F32 && g->b_dtype == OH_BF16) return g->c_dtype == OH_F32;
    if (g->a_dtype != g->b_dtype) return 0;
    return g->c_dtype == OH_F32 || g->c_dtype == g->a_dtype;
}

static int gemm_valid(const oh_gemm *g) {
    if (g->op < OH_GEMM_NT || g->op > OH_GEMM_TN || !kind_valid(g)) return 0;
    if (g->m < 0 || g->n < 0 || g->k < 0) return 0;
    if (g->lda < (g->op == OH_GEMM_TN ? g->m : g->k) || g->ldb < (g->op == OH_GEMM_NT ? g->k : g->n)) return 0;
    if (g->ldc < g->n) return 0;
    if (g->m == 0 || g->n == 0) return 1;
    return g->c && (g->k == 0 || (g->a && g->b));
}

static void multiply_block(const operand *a, const operand *b, int64_t i, int64_t rows, int64_t j, int64_t columns,
                           int64_t depth, double sum[ROWS][COLUMNS]) {
    double left[ROWS][DEPTH], right[DEPTH][COLUMNS];
    memset(sum, 0, ROWS * sizeof *sum);
    for (int64_t first = 0; first < depth; first += DEPTH) {
        const int64_t count = smaller(DEPTH, depth - first);
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t l = 0; l < count; ++l)
                left[r][l] = element(a, i + r, first + l);
        for (int64_t l = 0; l < count; ++l)
            for (int64_t c = 0; c < COLUMNS; ++c)
                right[l][c] = c < columns ? element(b, first + l, j + c) : 0;
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t l = 0; l < count; ++l)
                for (int c = 0; c < COLUMNS; ++c)
                    sum[r][c] += left[r][l] * right[l][c];
    }
}

static void store_block(const oh_gemm *g, int64_t i, int64_t rows, int64_t j, int64_t columns,
                        double sum[ROWS][COLUMNS]) {
    float value[COLUMNS];
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t first = (i + r) * g->ldc + j;
        if (g->accumulate) {
            oh_load_elements(g->c, first, columns, g->c_dtype, value);
            for (int64_t c = 0; c < columns; ++c)
                sum[r][c] += (double)value[c];
        }
        for (int64_t c = 0; c < columns; ++c)
            value[c] = (float)sum[r][c];
        oh_store_elements(g->c, first, columns, g->c_dtype, value);
    }
}

oh_status oh_portable_gemm(const oh_gemm *product) {
    if (!product || !gemm_valid(product)) return OH_INVALID_ARGUMENT;
    const oh_gemm *g = product;
    const int a_transposed = g->op == OH_GEMM_TN, b_transposed = g->op == OH_GEMM_NT;
    const operand a = {g->a, a_transposed ? 1 : g->lda, a_transposed ? g->lda : 1, g->a_dtype};
    const operand b = {g->b, b_transposed ? 1 : g->ldb, b_transposed ? g->ldb : 1, g->b_dtype};
    double sum[ROWS][COLUMNS];
    for (int64_t i = 0; i < g->m; i += ROWS)
        for (int64_t j = 0; j < g->n; j += COLUMNS) {
            const int64_t rows = smaller(ROWS, g->m - i), columns = smaller(COLUMNS, g->n - j);
            multiply_block(&a, &b, i, rows, j, columns, g->k, sum);
            store_block(g, i, rows, j, columns, sum);
        }
    return OH_OK;
}
