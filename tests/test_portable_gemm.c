/* The portable product against sums written out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "draws.h"
#include "portable/dtype.h"
#include "portable/portable.h"

enum { M = 37, N = 70, K = 131, LD = 140, BYTES = LD * LD * 4 + 1 };

static const struct {
    int32_t a, b, result;
} kinds[] = {{OH_F32, OH_F32, OH_F32},  {OH_BF16, OH_BF16, OH_F32},  {OH_F16, OH_F16, OH_F32},
             {OH_F32, OH_BF16, OH_F32}, {OH_BF16, OH_BF16, OH_BF16}, {OH_F16, OH_F16, OH_F16}};

/* Elements start at byte 1 of each; all other bytes are 0xff, a NaN in every dtype. */
static unsigned char a[BYTES], b[BYTES], c[BYTES], before[BYTES];

static float at(const unsigned char *matrix, int64_t i, int64_t j, int32_t dtype) {
    float value;
    oh_load_elements(matrix + 1, i * LD + j, 1, dtype, &value);
    return value;
}

static void set(unsigned char *matrix, int64_t i, int64_t j, int32_t dtype, double value) {
    const float narrow = (float)value;
    oh_store_elements(matrix + 1, i * LD + j, 1, dtype, &narrow);
}

static oh_gemm product_of(int32_t op, size_t kind, int64_t m, int64_t n, int64_t k) {
    return (oh_gemm){.op = op,
                     .m = m,
                     .n = n,
                     .k = k,
                     .a = a + 1,
                     .b = b + 1,
                     .c = c + 1,
                     .lda = LD,
                     .ldb = LD,
                     .ldc = LD,
                     .a_dtype = kinds[kind].a,
                     .b_dtype = kinds[kind].b,
                     .c_dtype = kinds[kind].result};
}

/* Operands of small integers make every sum exact; normal ones round. */
static void draw_operands(const oh_gemm *g, int integers, draws *d) {
    memset(a, 0xff, sizeof a);
    memset(b, 0xff, sizeof b);
    memset(c, 0xff, sizeof c);
    for (int64_t l = 0; l < g->k; ++l) {
        for (int64_t i = 0; i < g->m; ++i) {
            const double x = integers ? (double)(draw_below(d, 7) - 3) : draw_normal(d);
            set(a, g->op == OH_GEMM_TN ? l : i, g->op == OH_GEMM_TN ? i : l, g->a_dtype, x);
        }
        for (int64_t j = 0; j < g->n; ++j) {
            const double x = integers ? (double)(draw_below(d, 7) - 3) : draw_normal(d);
            set(b, g->op == OH_GEMM_NT ? j : l, g->op == OH_GEMM_NT ? l : j, g->b_dtype, x);
        }
    }
    if (!g->accumulate) return;
    for (int64_t i = 0; i < g->m; ++i)
        for (int64_t j = 0; j < g->n; ++j)
            set(c, i, j, g->c_dtype, integers ? (double)(draw_below(d, 7) - 3) : draw_normal(d));
}

/* Rounded once: from f64 to the f32 sum, and that to the result. */
static float expected_at(const oh_gemm *g, int64_t i, int64_t j, double *size) {
    double sum = g->accumulate ? (double)at(before, i, j, g->c_dtype) : 0;
    *size = fabs(sum);
    for (int64_t l = 0; l < g->k; ++l) {
        const double x = (double)(g->op == OH_GEMM_TN ? at(a, l, i, g->a_dtype) : at(a, i, l, g->a_dtype));
        const double y = (double)(g->op == OH_GEMM_NT ? at(b, j, l, g->b_dtype) : at(b, l, j, g->b_dtype));
        sum += x * y;
        *size += fabs(x * y);
    }
    float value = (float)sum;
    uint16_t half[2];
    oh_store_elements(half, 0, 1, g->c_dtype == OH_F32 ? OH_BF16 : g->c_dtype, &value);
    if (g->c_dtype != OH_F32) oh_load_elements(half, 0, 1, g->c_dtype, &value);
    return value;
}

static void check(const oh_gemm *g, int integers) {
    /* f64 sums in another order: k 2^-53 of the terms' sizes apart, which may fall on two sides of a rounding. */
    const double unit = g->c_dtype == OH_F32 ? 0x1p-23 : g->c_dtype == OH_BF16 ? 0x1p-7 : 0x1p-10;
    memcpy(before, c, sizeof before);
    assert_int_equal(oh_portable_gemm(g), OH_OK);
    for (int64_t i = 0; i < LD; ++i)
        for (int64_t j = 0; j < LD; ++j) {
            const int64_t element = g->c_dtype == OH_F32 ? 4 : 2, byte = 1 + (i * LD + j) * element;
            if (i >= g->m || j >= g->n) {
                assert_memory_equal(c + byte, before + byte, (size_t)element);
                continue;
            }
            double size;
            const float expected = expected_at(g, i, j, &size), got = at(c, i, j, g->c_dtype);
            if (integers) assert_true(got == expected);
            const double apart = (double)(g->k + 1) * 0x1p-53 * size;
            assert_true(fabs((double)got - (double)expected) <= apart + unit * fabs((double)expected));
        }
}

static void test_every_operation_and_kind_multiplies(void **state) {
    static const int64_t shapes[][3] = {{M, N, K}, {1, 1, 1}, {16, 64, 64}, {3, 65, 2}, {17, 1, 129}};
    draws d = draws_open("gemm", 71);
    (void)state;
    for (int32_t op = OH_GEMM_NT; op <= OH_GEMM_TN; ++op)
        for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; ++kind)
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes; ++s)
                for (int variant = 0; variant < 4; ++variant) {
                    oh_gemm g = product_of(op, kind, shapes[s][0], shapes[s][1], shapes[s][2]);
                    g.accumulate = variant & 1;
                    draw_operands(&g, variant & 2, &d);
                    check(&g, variant & 2);
                }
}

/* A 16-bit accumulator would stay at 1. */
static void test_case_14_one_and_512_small_terms_are_two(void **state) {
    static float ones[513], small[513];
    (void)state;
    for (int l = 0; l < 513; ++l) {
        const float x = l == 0 ? 1 : 0x1p-9f, one = 1;
        oh_store_elements(small, l, 1, OH_BF16, &x);
        oh_store_elements(ones, l, 1, OH_BF16, &one);
    }
    for (int round = 0; round < 2; ++round) {
        oh_gemm g = product_of(OH_GEMM_TN, round ? 4 : 1, 1, 1, 513);
        g.a = small, g.b = ones, g.lda = g.ldb = 1;
        assert_int_equal(oh_portable_gemm(&g), OH_OK);
        assert_true(at(c, 0, 0, g.c_dtype) == 2);
    }
}

static void test_no_depth_writes_zeros_or_keeps_what_is_there(void **state) {
    draws d = draws_open("no depth", 72);
    (void)state;
    oh_gemm g = product_of(OH_GEMM_NT, 0, 3, 5, 0);
    draw_operands(&g, 1, &d);
    g.a = g.b = NULL;
    check(&g, 1);
    g.accumulate = 1;
    draw_operands(&g, 1, &d);
    check(&g, 1);
}

static void test_impossible_products_are_refused_and_nothing_is_touched(void **state) {
    draws d = draws_open("refused", 73);
    const oh_gemm good = product_of(OH_GEMM_NT, 0, 4, 5, 6);
    oh_gemm g;
    (void)state;
    draw_operands(&good, 1, &d);
    memcpy(before, c, sizeof before);
#define REFUSE(change)                                                                                                 \
    do {                                                                                                               \
        g = good;                                                                                                      \
        change;                                                                                                        \
        assert_int_equal(oh_portable_gemm(&g), OH_INVALID_ARGUMENT);                                                   \
        assert_memory_equal(c, before, sizeof before);                                                                 \
    } while (0)
    REFUSE(g.op = 3);
    REFUSE(g.m = -1);
    REFUSE(g.n = -1);
    REFUSE(g.k = -1);
    REFUSE(g.lda = 5);
    REFUSE(g.ldb = 5);
    REFUSE(g.ldc = 4);
    REFUSE((g.op = OH_GEMM_TN, g.lda = 3));
    REFUSE((g.op = OH_GEMM_NN, g.ldb = 4));
    REFUSE(g.a = NULL);
    REFUSE(g.b = NULL);
    REFUSE(g.c = NULL);
    REFUSE(g.a_dtype = OH_BF16);
    REFUSE(g.c_dtype = OH_F16);
    REFUSE(g.b_dtype = OH_F16);
    REFUSE((g.b_dtype = OH_BF16, g.c_dtype = OH_BF16));
    REFUSE((g.a_dtype = OH_F64, g.b_dtype = OH_F64));
#undef REFUSE
    assert_int_equal(oh_portable_gemm(NULL), OH_INVALID_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_operation_and_kind_multiplies),
        cmocka_unit_test(test_case_14_one_and_512_small_terms_are_two),
        cmocka_unit_test(test_no_depth_writes_zeros_or_keeps_what_is_there),
        cmocka_unit_test(test_impossible_products_are_refused_and_nothing_is_touched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
