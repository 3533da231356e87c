/* tile_grad of the portable operations against the f64 oracle, column by column, within bounds that oracle.h derives.
 * Coefficients come from the library's own reads and row_finish. test_portable_f64 has the derivatives themselves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "oracle.h"
#include "portable/dtype.h"
#include "portable/portable.h"
#include "tile_case.h"

enum { ROWS_MAX = 16, GAP = 2 };
#define INF INFINITY

static oh_objective objective_of(uint32_t terms, int64_t columns) {
    oh_objective o = {.eta = 3, .block_size = 1, .valid_columns = columns, .terms = terms};
    for (int i = 0; i < OH_TERM_COUNT; ++i)
        o.lambda[i] = terms >> i & 1u ? 1 - 0.1 * i : 0;
    return o;
}

/* The reads and the row algebra that stand before a gradient. */
static void read_coef(const oh_tile_view *view, const oh_objective *o, const int32_t *label, oh_row_coef *coef) {
    oh_row_stats stats[ROWS_MAX];
    oh_row_overlap overlap[ROWS_MAX];
    oh_row_result results[ROWS_MAX];
    int32_t compact[ROWS_MAX];
    float mask[ROWS_MAX], row_scale[ROWS_MAX];
    double partial[ROWS_MAX * 64], sums[64] = {0};
    for (int32_t i = 0; i < ROWS_MAX; ++i)
        compact[i] = i, mask[i] = 1;
    const uint32_t want = oh_objective_want(o);
    const oh_tile_stats s = {.tile = *view, .stats = stats, .label = label, .want = want & 0xffu, .restart = 1};
    assert_int_equal(oh_portable_tile_stats(&s), OH_OK);
    const oh_tile_overlap v = {.tile = *view, .stats = stats, .overlap = overlap, .want = want & ~0xffu, .restart = 1};
    assert_int_equal(oh_portable_tile_overlap(&v), OH_OK);
    const oh_row_finish f = {.objective = *o,
                             .rows = view->rows,
                             .compact_rows = view->rows,
                             .compact = compact,
                             .mask = mask,
                             .stats = stats,
                             .overlap = overlap,
                             .scale = 1,
                             .parts = OH_FINISH_COEF,
                             .want = want,
                             .has_target = view->target != NULL,
                             .results = results,
                             .partial = partial,
                             .sums = sums,
                             .coef = coef,
                             .row_scale = row_scale};
    assert_int_equal(oh_portable_row_finish(&f), OH_OK);
}

/* Half a unit in the last place of the output, and half of the smallest subnormal. */
static double rounding_of(int32_t dtype, double value) {
    if (dtype == OH_F32) return ORACLE_U * fabs(value) + 0x1p-150;
    return dtype == OH_BF16 ? 0x1p-8 * fabs(value) + 0x1p-134 : 0x1p-11 * fabs(value) + 0x1p-25;
}

static void check_row(const tile_case *c, const oh_objective *o, const oh_row_coef *coef, const void *out,
                      int64_t out_ld, int32_t out_dtype, int64_t row) {
    const int64_t columns = c->shape.columns;
    const double *z = c->z + row * columns, *t = c->shape.target_rows > 0 ? c->t + row * columns : NULL;
    const double scale = (double)c->view.draft_transform.scale, softcap = (double)c->view.draft_transform.softcap;
    const int32_t label = coef->label < 0 ? -1 : (int32_t)(coef->label - c->shape.first_column);
    double dz[8100], bound[8100];
    oracle_grad(o, z, t, columns, label, c->z_error, c->t_error, dz, bound);
    for (int64_t v = 0; v < columns; ++v) {
        float got;
        oh_load_elements(out, row * out_ld + v, 1, out_dtype, &got);
        if (coef->zero || z[v] == -INF) {
            assert_true(got == 0);
            continue;
        }
        const double slope = c->slope[row * columns + v], expected = dz[v] * slope;
        const double y = softcap > 0 ? z[v] / softcap : 0;
        const double slope_error =
            fabs(scale) * (softcap > 0 ? 2 * fabs(y) * (c->z_error / softcap + 2 * ORACLE_U) + 3 * ORACLE_U : 0);
        double error = bound[v] * (fabs(slope) + slope_error) + fabs(dz[v]) * slope_error + ORACLE_U * fabs(expected);
        error += rounding_of(out_dtype, fabs(expected) + error);
        if (fabs((double)got - expected) <= error) continue;
        fail_msg("terms %#x, row %lld, column %lld: %.9g, expected %.9g within %.3g", o->terms, (long long)row,
                 (long long)v, (double)got, expected, error);
    }
}

static void check_shape(const tile_shape *shape, const oh_objective *o, const int32_t *label, int32_t out_dtype,
                        draws *d) {
    tile_case c;
    oh_row_coef coef[ROWS_MAX];
    tile_case_open(&c, shape, d);
    if (shape->columns > 4 && !(o->terms & OH_TERM_BIT(OH_TERM_CE))) {
        tile_case_put_draft(&c, 0, 2, -INF); /* columns that neither, only q, and only p has */
        tile_case_put_target(&c, 0, 2, -INF);
        tile_case_put_draft(&c, 1, 3, -INF);
        if (shape->format != OH_TILE_DIFF) tile_case_put_target(&c, 1, 4, -INF);
        tile_case_refresh(&c);
    }
    const int64_t size = oh_element_size(out_dtype), ld = shape->columns + GAP, row_bytes = ld * size;
    unsigned char *out = malloc((size_t)(shape->rows * row_bytes + 1));
    assert_non_null(out);
    memset(out, 0x5a, (size_t)(shape->rows * row_bytes + 1));
    read_coef(&c.view, o, label, coef);
    const uint64_t before = tile_case_checksum(&c);
    const oh_tile_grad g = {.tile = c.view,
                            .coef = coef,
                            .out = out + 1, /* aligned to nothing */
                            .out_ld = ld,
                            .out_dtype = out_dtype,
                            .form = oh_objective_form(o)};
    assert_int_equal(oh_portable_tile_grad(&g), OH_OK);
    for (int64_t i = 0; i < shape->rows; ++i) {
        check_row(&c, o, &coef[i], out + 1, ld, out_dtype, i);
        for (int64_t b = shape->columns * size; b < row_bytes; ++b)
            assert_int_equal(out[1 + i * row_bytes + b], 0x5a);
    }
    assert_true(before == tile_case_checksum(&c));
    free(out);
    tile_case_close(&c);
}

static void test_every_term_format_and_transform_agrees_with_the_oracle(void **state) {
    static const int64_t widths[] = {1, 2, 7, 19, 511, 512, 513, 1025, 8003};
    draws d = draws_open("grad", 41);
    (void)state;
    for (int term = 0; term <= OH_TERM_COUNT; ++term)
        for (int32_t format = OH_TILE_F32; format <= OH_TILE_DIFF; ++format)
            for (int32_t transform = 0; transform < 4; ++transform) {
                const int w = (term + 2 * format + transform) % 9;
                const tile_shape shape = {.rows = 3,
                                          .target_rows = w % 2 ? 3 : 2,
                                          .columns = widths[w],
                                          .first_column = w % 3 ? 100 : 0,
                                          .format = format,
                                          .misaligned = transform & 1,
                                          .transform = transform,
                                          .nearness = format % 2 ? 0.01 : 0};
                oh_objective o = objective_of(term < OH_TERM_COUNT ? OH_TERM_BIT(term) : 0xffu, shape.columns);
                o.label_smoothing = transform > 1 ? 0.1 : 0;
                o.z_loss = transform % 2 ? 1e-2 : 0;
                check_shape(&shape, &o, NULL, format % 3, &d);
            }
}

static void test_given_labels_and_no_target_give_cross_entropys_gradient(void **state) {
    draws d = draws_open("ce", 42);
    (void)state;
    for (int round = 0; round < 6; ++round) {
        const tile_shape shape = {.rows = 4, .columns = 1200, .format = round % 3, .transform = round % 4};
        const int32_t label[4] = {0, 1199, 512, 511};
        oh_objective o = objective_of(OH_TERM_BIT(OH_TERM_CE), 1200);
        o.labels = OH_LABELS_GIVEN;
        o.label_smoothing = round % 2 ? 0.2 : 0;
        check_shape(&shape, &o, label, round / 2, &d);
    }
}

/* In place, and narrowed in place, are the bits of the same call out of place. */
static void test_in_place_gives_the_same_bits(void **state) {
    static const struct {
        int32_t format, out_dtype;
    } pairs[] = {{OH_TILE_F32, OH_F32},  {OH_TILE_F32, OH_BF16}, {OH_TILE_F32, OH_F16}, {OH_TILE_BF16, OH_BF16},
                 {OH_TILE_F16, OH_BF16}, {OH_TILE_F16, OH_F16},  {OH_TILE_DIFF, OH_F16}};
    draws d = draws_open("in place", 43);
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; ++i) {
        const tile_shape shape = {.rows = 3, .target_rows = 3, .columns = 1300, .format = pairs[i].format};
        const int64_t size = oh_element_size(pairs[i].out_dtype);
        const oh_objective o = objective_of(OH_TERM_BIT(OH_TERM_KL) | OH_TERM_BIT(OH_TERM_JSD), 1300);
        tile_case c;
        oh_row_coef coef[ROWS_MAX];
        tile_case_open(&c, &shape, &d);
        read_coef(&c.view, &o, NULL, coef);
        coef[1].zero = 1;
        oh_tile_grad g = {.tile = c.view,
                          .coef = coef,
                          .out = malloc((size_t)(size * 3 * 1300)),
                          .out_ld = 1300,
                          .out_dtype = pairs[i].out_dtype,
                          .form = oh_objective_form(&o)};
        unsigned char *apart = g.out;
        assert_non_null(apart);
        assert_int_equal(oh_portable_tile_grad(&g), OH_OK);
        g.out = c.view.draft;
        g.out_ld = c.view.draft_ld * (pairs[i].format == OH_TILE_F32 ? 4 : 2) / size;
        assert_int_equal(oh_portable_tile_grad(&g), OH_OK);
        for (int64_t row = 0; row < 3; ++row)
            assert_memory_equal((unsigned char *)g.out + row * g.out_ld * size, apart + row * 1300 * size,
                                (size_t)(1300 * size));
        free(apart);
        tile_case_close(&c);
    }
}

static void test_a_row_marked_zero_is_zero_whatever_its_coefficients(void **state) {
    const oh_objective o = objective_of(OH_TERM_BIT(OH_TERM_KL), 2);
    float dz[4] = {NAN, NAN, NAN, NAN};
    tile_case c;
    oh_row_coef coef[ROWS_MAX];
    (void)state;
    tile_case_literal(&c, 2, 2, (const float[]){1, 2, 1, 2}, (const float[]){2, 1, 2, 1});
    read_coef(&c.view, &o, NULL, coef);
    coef[0].zero = 1;
    const oh_tile_grad g = {.tile = c.view, .coef = coef, .out = dz, .out_ld = 2, .form = oh_objective_form(&o)};
    assert_int_equal(oh_portable_tile_grad(&g), OH_OK);
    assert_true(dz[0] == 0 && dz[1] == 0 && dz[2] < 0 && dz[3] > 0);
    tile_case_close(&c);
}

static void test_panels_are_the_bits_of_the_whole(void **state) {
    draws d = draws_open("panels", 44);
    const tile_shape shape = {.rows = 2, .target_rows = 2, .columns = 1300, .transform = 3};
    const oh_objective o = objective_of(0xffu, 1300);
    static float whole[2 * 1300], parts[2 * 1300];
    tile_case c;
    oh_row_coef coef[ROWS_MAX];
    (void)state;
    tile_case_open(&c, &shape, &d);
    read_coef(&c.view, &o, NULL, coef);
    oh_tile_grad g = {.tile = c.view, .coef = coef, .out = whole, .out_ld = 1300, .form = oh_objective_form(&o)};
    assert_int_equal(oh_portable_tile_grad(&g), OH_OK);
    for (int64_t first = 0; first < 1300; first += 333) {
        g.tile = tile_case_panel(&c, first, first + 333 < 1300 ? 333 : 1300 - first);
        g.out = parts + first;
        assert_int_equal(oh_portable_tile_grad(&g), OH_OK);
    }
    assert_memory_equal(whole, parts, sizeof whole);
    tile_case_close(&c);
}

static void grad_of_literal(uint32_t terms, int64_t columns, const float *z, const float *t, const int32_t *label,
                            float *dz) {
    tile_case c;
    oh_row_coef coef[ROWS_MAX];
    oh_objective o = objective_of(terms, columns);
    for (int i = 0; i < OH_TERM_COUNT; ++i)
        o.lambda[i] = terms >> i & 1u;
    tile_case_literal(&c, 1, columns, z, t);
    read_coef(&c.view, &o, label, coef);
    const oh_tile_grad g = {.tile = c.view, .coef = coef, .out = dz, .out_ld = columns, .form = oh_objective_form(&o)};
    assert_int_equal(oh_portable_tile_grad(&g), OH_OK);
    tile_case_close(&c);
}

/* p - q is exactly 0; rkl and jsd are 0 but for exp's roundings; tv's s is sum p, off by the normaliser's rounding. */
static void test_case_11_equal_logits_have_no_gradient(void **state) {
    draws d = draws_open("equal", 45);
    float z[1500], dz[1500];
    (void)state;
    for (int v = 0; v < 1500; ++v)
        z[v] = (float)(4 * draw_normal(&d));
    for (int term = OH_TERM_KL; term <= OH_TERM_LK_HYBRID; ++term) {
        grad_of_literal(OH_TERM_BIT(term), 1500, z, z, NULL, dz);
        for (int v = 0; v < 1500; ++v)
            assert_true(term <= OH_TERM_JSD ? dz[v] == 0 : fabsf(dz[v]) < 40 * (float)ORACLE_U);
    }
}

static void test_cases_2_and_3_stay_finite_under_every_term(void **state) {
    float dz[3];
    (void)state;
    for (int term = 0; term < OH_TERM_COUNT; ++term) {
        grad_of_literal(OH_TERM_BIT(term), 3, (const float[]){1, 2, -INF}, (const float[]){2, 1, -INF}, NULL, dz);
        assert_true(isfinite(dz[0]) && isfinite(dz[1]) && dz[2] == 0);
        grad_of_literal(OH_TERM_BIT(term), 2, (const float[]){0, -110}, (const float[]){0, -110}, NULL, dz);
        assert_true(isfinite(dz[0]) && isfinite(dz[1]));
    }
    grad_of_literal(OH_TERM_BIT(OH_TERM_KL), 3, (const float[]){1, 2, -INF}, (const float[]){2, 1, -INF}, NULL, dz);
    const double tv = 1 - 2 / (1 + exp(1.0));
    assert_true(fabs((double)dz[0] + tv) < 16 * ORACLE_U && fabs((double)dz[1] - tv) < 16 * ORACLE_U);
}

static void test_case_12_a_small_difference_is_kept(void **state) {
    float dz[2];
    const float z[] = {logf(.9012f), logf(.0988f)}, t[] = {logf(.9000f), logf(.1000f)};
    (void)state;
    grad_of_literal(OH_TERM_BIT(OH_TERM_KL), 2, z, t, NULL, dz);
    assert_true(fabs((double)dz[0] - 0.0012) < 16 * ORACLE_U);
}

static void test_case_13_a_confident_right_row_keeps_its_gradient(void **state) {
    float dz[2];
    const int32_t label = 0;
    (void)state;
    grad_of_literal(OH_TERM_BIT(OH_TERM_CE), 2, (const float[]){8, 0}, NULL, &label, dz);
    /* p_0 - 1 cancels: what remains of p_0's error is a few U, 1e-3 of the gradient at most. */
    assert_true(fabs((double)dz[0] + 1 / (1 + exp(8.0))) < 1e-3 * 3.354e-4);
}

static void test_case_30_a_saturated_softcap_has_no_gradient(void **state) {
    const float z[] = {1e4f, 1, 2, 0}, bias[] = {0, 0, -INF, 0};
    const oh_objective o = objective_of(OH_TERM_BIT(OH_TERM_CE), 4);
    const int32_t label = 1;
    tile_case c;
    oh_row_coef coef[ROWS_MAX];
    float dz[4];
    double expected[4], slope, logits[4];
    (void)state;
    tile_case_literal(&c, 1, 4, z, NULL);
    c.view.draft_transform = (oh_transform){bias, 0.1f, 30};
    read_coef(&c.view, &o, &label, coef);
    const oh_tile_grad g = {.tile = c.view, .coef = coef, .out = dz, .out_ld = 4, .form = oh_objective_form(&o)};
    assert_int_equal(oh_portable_tile_grad(&g), OH_OK);
    for (int v = 0; v < 4; ++v)
        logits[v] = oracle_transform((double)z[v], (double)0.1f, (double)bias[v], 30, &slope);
    oracle_grad(&o, logits, NULL, 4, label, 0, 0, expected, NULL);
    for (int v = 0; v < 4; ++v) {
        oracle_transform((double)z[v], (double)0.1f, (double)bias[v], 30, &slope);
        assert_true(fabs((double)dz[v] - expected[v] * slope) < 64 * ORACLE_U * 0.1);
    }
    assert_true(dz[0] == 0 && dz[2] == 0);
    tile_case_close(&c);
}

static void test_case_22_a_bad_row_gets_zero_and_touches_no_other(void **state) {
    draws d = draws_open("bad rows", 46);
    const tile_shape shape = {.rows = 3, .target_rows = 3, .columns = 700};
    const oh_objective o = objective_of(0xffu, 700);
    static float clean[3 * 700], got[3 * 700];
    tile_case c;
    oh_row_coef coef[ROWS_MAX];
    (void)state;
    tile_case_open(&c, &shape, &d);
    oh_tile_grad g = {.tile = c.view, .coef = coef, .out = clean, .out_ld = 700, .form = oh_objective_form(&o)};
    read_coef(&c.view, &o, NULL, coef);
    assert_int_equal(oh_portable_tile_grad(&g), OH_OK);
    for (int64_t v = 0; v < 700; ++v)
        tile_case_put_draft(&c, 1, v, NAN);
    read_coef(&c.view, &o, NULL, coef);
    g.out = got;
    assert_int_equal(oh_portable_tile_grad(&g), OH_OK);
    memset(clean + 700, 0, 700 * sizeof(float));
    assert_memory_equal(got, clean, sizeof got);
    tile_case_close(&c);
}

static void test_impossible_arguments_are_refused_and_nothing_is_touched(void **state) {
    tile_case c;
    oh_row_coef coef[ROWS_MAX];
    float out[8], before[8];
    const oh_objective o = objective_of(OH_TERM_BIT(OH_TERM_KL), 3);
    (void)state;
    tile_case_literal(&c, 2, 3, (const float[]){1, 2, 3, 4, 5, 6}, (const float[]){1, 2, 3, 4, 5, 6});
    read_coef(&c.view, &o, NULL, coef);
    memset(out, 0x33, sizeof out);
    memcpy(before, out, sizeof out);
    const oh_tile_grad good = {.tile = c.view, .coef = coef, .out = out, .out_ld = 3, .form = oh_objective_form(&o)};
    const uint64_t tiles = tile_case_checksum(&c);
    oh_tile_grad r;
#define REFUSE(change)                                                                                                 \
    do {                                                                                                               \
        r = good;                                                                                                      \
        change;                                                                                                        \
        assert_int_equal(oh_portable_tile_grad(&r), OH_INVALID_ARGUMENT);                                              \
        assert_memory_equal(out, before, sizeof out);                                                                  \
        assert_true(tiles == tile_case_checksum(&c));                                                                  \
    } while (0)
    REFUSE(r.tile.rows = -1);
    REFUSE(r.tile.draft = NULL);
    REFUSE(r.tile.target = NULL);
    REFUSE(r.coef = NULL);
    REFUSE(r.out = NULL);
    REFUSE(r.out_ld = 2);
    REFUSE(r.out_dtype = OH_F64);
    REFUSE(r.out = r.tile.draft);                                               /* rows start elsewhere */
    REFUSE((r.out = r.tile.draft, r.tile.format = OH_TILE_BF16, r.out_ld = 3)); /* wider than what it replaces */
#undef REFUSE
    assert_int_equal(oh_portable_tile_grad(NULL), OH_INVALID_ARGUMENT);
    tile_case_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_term_format_and_transform_agrees_with_the_oracle),
        cmocka_unit_test(test_given_labels_and_no_target_give_cross_entropys_gradient),
        cmocka_unit_test(test_in_place_gives_the_same_bits),
        cmocka_unit_test(test_a_row_marked_zero_is_zero_whatever_its_coefficients),
        cmocka_unit_test(test_panels_are_the_bits_of_the_whole),
        cmocka_unit_test(test_case_11_equal_logits_have_no_gradient),
        cmocka_unit_test(test_cases_2_and_3_stay_finite_under_every_term),
        cmocka_unit_test(test_case_12_a_small_difference_is_kept),
        cmocka_unit_test(test_case_13_a_confident_right_row_keeps_its_gradient),
        cmocka_unit_test(test_case_30_a_saturated_softcap_has_no_gradient),
        cmocka_unit_test(test_case_22_a_bad_row_gets_zero_and_touches_no_other),
        cmocka_unit_test(test_impossible_arguments_are_refused_and_nothing_is_touched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
