/* Conversions, copy_rows and matrix_norm of the portable operations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "draws.h"
#include "portable/dtype.h"
#include "portable/portable.h"

#define INF INFINITY

/* ---------------------------------------------------------------------------------------------- conversions ---- */

/* A 16-bit format by its definition: fraction bits, exponent bias, value of the all-ones exponent special. */
static double value_of(uint16_t half, int fraction_bits, int bias) {
    const int exponent = (half & 0x7fff) >> fraction_bits, fraction = half & ((1 << fraction_bits) - 1);
    const int special = 0x7fff >> fraction_bits;
    const double sign = half & 0x8000 ? -1 : 1;
    if (exponent == special) return fraction ? (double)NAN : sign * (double)INF;
    if (exponent == 0) return sign * ldexp(fraction, 1 - bias - fraction_bits);
    return sign * ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

/* The nearest multiple of the unit at x, by rint's ties to even, or infinity at half a unit beyond the largest. */
static double nearest(double x, int fraction_bits, int bias) {
    const int lowest = 1 - bias;
    if (x == 0 || isinf(x)) return x;
    const int exponent = ilogb(x) > lowest ? ilogb(x) : lowest;
    const double unit = ldexp(1, exponent - fraction_bits), rounded = rint(x / unit) * unit;
    return fabs(rounded) >= ldexp(1, bias + 1) ? copysign((double)INF, x) : rounded;
}

static void test_every_16_bit_value_is_read_exactly_and_written_back(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 0x10000u; ++i) {
        const uint16_t half = (uint16_t)i;
        const float f16 = oh_f32_from_f16(half), bf16 = oh_f32_from_bf16(half);
        const double f16_value = value_of(half, 10, 15), bf16_value = value_of(half, 7, 127);
        if (isnan(f16_value)) {
            assert_true(isnan(f16) && isnan(oh_f32_from_f16(oh_f16_from_f32(f16))));
        } else {
            assert_true((double)f16 == f16_value);
            assert_int_equal(oh_f16_from_f32(f16), half);
        }
        if (isnan(bf16_value)) {
            assert_true(isnan(bf16) && isnan(oh_f32_from_bf16(oh_bf16_from_f32(bf16))));
        } else {
            assert_true((double)bf16 == bf16_value);
            assert_int_equal(oh_bf16_from_f32(bf16), half);
        }
    }
}

static void check_rounding(float x) {
    if (isnan(x)) {
        assert_true(isnan(oh_f32_from_f16(oh_f16_from_f32(x))) && isnan(oh_f32_from_bf16(oh_bf16_from_f32(x))));
        return;
    }
    const double f16 = (double)oh_f32_from_f16(oh_f16_from_f32(x));
    const double bf16 = (double)oh_f32_from_bf16(oh_bf16_from_f32(x));
    assert_true(f16 == nearest((double)x, 10, 15) && signbit(f16) == signbit((double)x));
    assert_true(bf16 == nearest((double)x, 7, 127) && signbit(bf16) == signbit((double)x));
}

/* Every pair of neighbouring 16-bit values, their middle and the f32 next to the middle; then any bits at all. */
static void test_rounding_is_to_nearest_even_in_every_range(void **state) {
    draws d = draws_open("rounding", 61);
    (void)state;
    for (uint32_t i = 0; i < 0x7fffu; ++i) {
        const float below[2] = {oh_f32_from_f16((uint16_t)i), oh_f32_from_bf16((uint16_t)i)};
        const float above[2] = {oh_f32_from_f16((uint16_t)(i + 1)), oh_f32_from_bf16((uint16_t)(i + 1))};
        for (int f = 0; f < 2; ++f) {
            const float middle = isinf(above[f]) ? below[f] : (below[f] + above[f]) / 2;
            check_rounding(middle);
            check_rounding(nextafterf(middle, 0));
            check_rounding(nextafterf(-middle, -INF));
        }
    }
    for (int i = 0; i < 1000000; ++i)
        check_rounding(oh_f32_from_bits((uint32_t)draw_bits(&d)));
    check_rounding(65519.996f);
    check_rounding(65520.0f);
    check_rounding(0x1p-25f);
    check_rounding(oh_f32_from_bits(0x7f7fffffu));
    check_rounding(oh_f32_from_bits(0x7f800001u)); /* a NaN whose payload bf16 would lose */
}

/* ------------------------------------------------------------------------------------------------ copy_rows ---- */

enum { ROWS = 9, COLUMNS = 1100, LD = COLUMNS + 3 };

typedef struct matrix {
    unsigned char bytes[ROWS * LD * 4 + 1]; /* elements start at byte 1 */
    int32_t dtype;
} matrix;

static float at(const matrix *m, int64_t i, int64_t j) {
    float value;
    oh_load_elements(m->bytes + 1, i * LD + j, 1, m->dtype, &value);
    return value;
}

static void draw_matrix(matrix *m, int32_t dtype, draws *d) {
    memset(m->bytes, 0xff, sizeof m->bytes);
    m->dtype = dtype;
    for (int64_t i = 0; i < ROWS; ++i)
        for (int64_t j = 0; j < COLUMNS; ++j) {
            const float value = (float)draw_normal(d);
            oh_store_elements(m->bytes + 1, i * LD + j, 1, dtype, &value);
        }
}

static float rounded(float value, int32_t dtype) {
    if (dtype == OH_F32) return value;
    return dtype == OH_BF16 ? oh_f32_from_bf16(oh_bf16_from_f32(value)) : oh_f32_from_f16(oh_f16_from_f32(value));
}

/* The same f32 operations in the same order: equal bits. */
static void test_every_option_and_dtype_copies_what_the_formula_says(void **state) {
    static matrix src, other, dst, before;
    draws d = draws_open("copy", 62);
    const int32_t map[ROWS] = {3, -1, 0, 8, 8, 1, 5, -7, 2}, other_map[ROWS] = {0, 0, 5, 4, 8, 7, 6, 1, 2};
    float row_scale[ROWS];
    const float factor = 0.37f;
    (void)state;
    for (int i = 0; i < ROWS; ++i)
        row_scale[i] = (float)draw_normal(&d);
    row_scale[5] = 0;
    for (int options = 0; options < 32; ++options)
        for (int dtypes = 0; dtypes < 27; ++dtypes) {
            draw_matrix(&src, dtypes % 3, &d);
            draw_matrix(&other, dtypes / 3 % 3, &d);
            memset(dst.bytes, 0xff, sizeof dst.bytes);
            dst.dtype = dtypes / 9;
            before = dst;
            const oh_copy_rows c = {.rows = ROWS,
                                    .columns = COLUMNS,
                                    .src = src.bytes + 1,
                                    .src_ld = LD,
                                    .map = options & 1 ? map : NULL,
                                    .subtract = options & 2 ? other.bytes + 1 : NULL,
                                    .subtract_ld = LD,
                                    .subtract_map = options & 4 ? other_map : NULL,
                                    .row_scale = options & 8 ? row_scale : NULL,
                                    .factor = options & 16 ? &factor : NULL,
                                    .dst = dst.bytes + 1,
                                    .dst_ld = LD,
                                    .src_dtype = src.dtype,
                                    .subtract_dtype = other.dtype,
                                    .dst_dtype = dst.dtype};
            assert_int_equal(oh_portable_copy_rows(&c), OH_OK);
            for (int64_t i = 0; i < ROWS; ++i) {
                const int64_t m = c.map ? map[i] : i;
                for (int64_t j = 0; j < COLUMNS; j += j < 8 || j > COLUMNS - 9 ? 1 : 31) {
                    float expected = 0;
                    if (m >= 0 && !(c.row_scale && row_scale[m] == 0)) {
                        expected = at(&src, m, j);
                        if (c.subtract) expected -= at(&other, c.subtract_map ? other_map[m] : m, j);
                        expected *= (c.factor ? factor : 1.0f) * (c.row_scale ? row_scale[m] : 1.0f);
                    }
                    assert_true(at(&dst, i, j) == rounded(expected, dst.dtype));
                }
                const int64_t size = dst.dtype == OH_F32 ? 4 : 2;
                assert_memory_equal(dst.bytes + 1 + (i * LD + COLUMNS) * size, before.bytes, (size_t)(3 * size));
            }
        }
}

static void test_a_row_of_scale_0_or_no_source_keeps_no_nan(void **state) {
    const float src[6] = {NAN, INF, 1, 2, NAN, NAN}, row_scale[3] = {0, 2, 1}, zero[2] = {0, 0};
    const int32_t map[3] = {0, 1, -1};
    float dst[6] = {NAN, NAN, NAN, NAN, NAN, NAN};
    (void)state;
    const oh_copy_rows c = {
        .rows = 3, .columns = 2, .src = src, .src_ld = 2, .map = map, .row_scale = row_scale, .dst = dst, .dst_ld = 2};
    assert_int_equal(oh_portable_copy_rows(&c), OH_OK);
    assert_memory_equal(dst, zero, sizeof zero); /* +0 */
    assert_memory_equal(dst + 4, zero, sizeof zero);
    assert_true(dst[2] == 2 && dst[3] == 4);
}

static void test_a_plain_copy_keeps_every_bit(void **state) {
    const uint16_t src[4] = {0x7f81, 0xff81, 0x8000, 0x0001}; /* signalling NaNs, -0, a subnormal */
    uint16_t dst[4] = {0};
    (void)state;
    const oh_copy_rows c = {.rows = 1,
                            .columns = 4,
                            .src = src,
                            .src_ld = 4,
                            .dst = dst,
                            .dst_ld = 4,
                            .src_dtype = OH_BF16,
                            .dst_dtype = OH_BF16};
    assert_int_equal(oh_portable_copy_rows(&c), OH_OK);
    assert_memory_equal(src, dst, sizeof src);
}

static void test_rows_scale_in_place(void **state) {
    float rows[4] = {1, 2, 3, 4};
    const float row_scale[2] = {2, 0.5f};
    (void)state;
    oh_copy_rows c = {
        .rows = 2, .columns = 2, .src = rows, .src_ld = 2, .row_scale = row_scale, .dst = rows, .dst_ld = 2};
    assert_int_equal(oh_portable_copy_rows(&c), OH_OK);
    assert_true(rows[0] == 2 && rows[1] == 4 && rows[2] == 1.5f && rows[3] == 2);
    c.row_scale = NULL;
    assert_int_equal(oh_portable_copy_rows(&c), OH_OK);
    assert_true(rows[0] == 2 && rows[3] == 2);
}

static void test_zeros_need_no_source(void **state) {
    float dst[2] = {NAN, NAN};
    const int32_t nowhere[1] = {-1}, somewhere[1] = {0};
    (void)state;
    oh_copy_rows c = {.rows = 1, .columns = 2, .map = nowhere, .dst = dst, .dst_ld = 2};
    assert_int_equal(oh_portable_copy_rows(&c), OH_OK);
    assert_true(dst[0] == 0 && dst[1] == 0);
    c.map = somewhere;
    assert_int_equal(oh_portable_copy_rows(&c), OH_INVALID_ARGUMENT);
}

static void test_impossible_copies_are_refused_and_nothing_is_touched(void **state) {
    float src[6] = {1, 2, 3, 4, 5, 6}, dst[6] = {0};
    const float before[6] = {0};
    const int32_t map[2] = {0, 1};
    (void)state;
    const oh_copy_rows good = {.rows = 2, .columns = 3, .src = src, .src_ld = 3, .dst = dst, .dst_ld = 3};
    oh_copy_rows c;
#define REFUSE(change)                                                                                                 \
    do {                                                                                                               \
        c = good;                                                                                                      \
        change;                                                                                                        \
        assert_int_equal(oh_portable_copy_rows(&c), OH_INVALID_ARGUMENT);                                              \
        assert_memory_equal(dst, before, sizeof dst);                                                                  \
    } while (0)
    REFUSE(c.rows = -1);
    REFUSE(c.columns = -1);
    REFUSE(c.src = NULL);
    REFUSE(c.dst = NULL);
    REFUSE(c.src_ld = 2);
    REFUSE(c.dst_ld = 2);
    REFUSE(c.src_dtype = OH_F64);
    REFUSE(c.dst_dtype = OH_I32);
    REFUSE((c.subtract = src, c.subtract_ld = 2));
    REFUSE((c.subtract = src, c.subtract_ld = 3, c.subtract_dtype = -1));
    REFUSE((c.dst = src, c.map = map));
    REFUSE((c.dst = src, c.dst_dtype = OH_BF16));
#undef REFUSE
    assert_int_equal(oh_portable_copy_rows(NULL), OH_INVALID_ARGUMENT);
    const oh_copy_rows none = {0};
    assert_int_equal(oh_portable_copy_rows(&none), OH_OK);
}

/* ---------------------------------------------------------------------------------------------- matrix_norm ---- */

static void test_norms_are_the_sums_and_add_to_what_is_there(void **state) {
    static matrix m;
    draws d = draws_open("norm", 63);
    (void)state;
    for (int32_t dtype = OH_F32; dtype <= OH_F16; ++dtype)
        for (int64_t columns = 1; columns <= COLUMNS; columns = columns < 20 ? columns + 1 : columns * 2) {
            draw_matrix(&m, dtype, &d);
            double sums[3] = {3, 0.5, 77};
            long double square = 3;
            double max = 0.5;
            for (int64_t i = 0; i < ROWS; ++i)
                for (int64_t j = 0; j < columns; ++j) {
                    const double x = (double)at(&m, i, j);
                    square += (long double)x * (long double)x;
                    max = fmax(max, fabs(x));
                }
            const oh_matrix_norm n = {
                .rows = ROWS, .columns = columns, .data = m.bytes + 1, .ld = LD, .dtype = dtype, .sums = sums};
            assert_int_equal(oh_portable_matrix_norm(&n), OH_OK);
            /* Positive terms in f64: each addition is off by 2^-53 of a sum that is at most the last. */
            assert_true(fabs(sums[0] - (double)square) <= 0x1p-53 * (double)(ROWS * columns + 2) * (double)square);
            assert_true(sums[1] == max && sums[2] == 77);
        }
}

static void test_a_nan_is_not_hidden_by_the_largest_value(void **state) {
    float x[20] = {0};
    double sums[2] = {0, 0};
    (void)state;
    const oh_matrix_norm n = {.rows = 1, .columns = 20, .data = x, .ld = 20, .sums = sums};
    x[3] = NAN, x[11] = 5, x[19] = INF;
    assert_int_equal(oh_portable_matrix_norm(&n), OH_OK);
    assert_true(isnan(sums[0]) && isnan(sums[1]));
    x[3] = 0;
    assert_int_equal(oh_portable_matrix_norm(&n), OH_OK);
    assert_true(isnan(sums[1])); /* and stays */
    sums[0] = sums[1] = 0;
    assert_int_equal(oh_portable_matrix_norm(&n), OH_OK);
    assert_true(sums[0] == (double)INF && sums[1] == (double)INF);
}

static void test_impossible_norms_are_refused_and_nothing_is_touched(void **state) {
    const float x[2] = {1, 2};
    double sums[2] = {7, 8};
    (void)state;
    const oh_matrix_norm good = {.rows = 1, .columns = 2, .data = x, .ld = 2, .sums = sums};
    oh_matrix_norm n;
#define REFUSE(change)                                                                                                 \
    do {                                                                                                               \
        n = good;                                                                                                      \
        change;                                                                                                        \
        assert_int_equal(oh_portable_matrix_norm(&n), OH_INVALID_ARGUMENT);                                            \
        assert_true(sums[0] == 7 && sums[1] == 8);                                                                     \
    } while (0)
    REFUSE(n.rows = -1);
    REFUSE(n.columns = -1);
    REFUSE(n.data = NULL);
    REFUSE(n.ld = 1);
    REFUSE(n.dtype = OH_F64);
    REFUSE(n.sums = NULL);
#undef REFUSE
    assert_int_equal(oh_portable_matrix_norm(NULL), OH_INVALID_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_16_bit_value_is_read_exactly_and_written_back),
        cmocka_unit_test(test_rounding_is_to_nearest_even_in_every_range),
        cmocka_unit_test(test_every_option_and_dtype_copies_what_the_formula_says),
        cmocka_unit_test(test_a_row_of_scale_0_or_no_source_keeps_no_nan),
        cmocka_unit_test(test_a_plain_copy_keeps_every_bit),
        cmocka_unit_test(test_rows_scale_in_place),
        cmocka_unit_test(test_zeros_need_no_source),
        cmocka_unit_test(test_impossible_copies_are_refused_and_nothing_is_touched),
        cmocka_unit_test(test_norms_are_the_sums_and_add_to_what_is_there),
        cmocka_unit_test(test_a_nan_is_not_hidden_by_the_largest_value),
        cmocka_unit_test(test_impossible_norms_are_refused_and_nothing_is_touched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
