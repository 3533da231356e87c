/* tile_stats of the portable operations against the f64 oracle, whose bounds oracle.h derives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "oracle.h"
#include "portable/portable.h"
#include "tile_case.h"

enum { TOP_K = 8, ROWS_MAX = 64 };
#define INF INFINITY
#define WANT_ALL (OH_WANT_ENTROPY | OH_WANT_KL | OH_WANT_RKL | OH_WANT_TOTAL)

/* Results of one call with a canary behind each array. */
typedef struct collected {
    oh_row_stats stats[ROWS_MAX + 1];
    int32_t id[(ROWS_MAX + 1) * TOP_K];
    float logit[(ROWS_MAX + 1) * TOP_K];
} collected;

static oh_tile_stats request(collected *to, oh_tile_view view, const int32_t *label, int restart) {
    oh_tile_stats r = {.tile = view, .stats = to->stats, .label = label, .restart = restart};
    r.want = view.draft && view.target ? WANT_ALL : view.draft ? OH_WANT_ENTROPY | OH_WANT_TOTAL : 0;
    if (view.draft) r.topk_id = to->id, r.topk_logit = to->logit, r.top_k = TOP_K;
    return r;
}

static void collect(collected *to, oh_tile_view view, const int32_t *label, int restart) {
    const oh_tile_stats r = request(to, view, label, restart);
    assert_int_equal(oh_portable_tile_stats(&r), OH_OK);
}

static void assert_near(double value, oracle_figure expected, const char *name, int64_t row) {
    if (value == expected.value || fabs(value - expected.value) <= expected.bound) return;
    fail_msg("row %lld: %s is %.17g, expected %.17g within %.3g", (long long)row, name, value, expected.value,
             expected.bound);
}

static double lse_of(const oh_row_stats *s) {
    return (double)s->z_max + log(s->z_sum);
}

static double kl_of(const oh_row_stats *s) {
    return s->flags & OH_ROW_P0_Q ? INF : s->kl_dot / s->t_sum + log(s->z_sum) - log(s->t_sum);
}

static double rkl_of(const oh_row_stats *s) {
    return s->flags & OH_ROW_Q0_P ? INF : s->rkl_dot / s->z_sum + log(s->t_sum) - log(s->z_sum);
}

static double entropy_of(const oh_row_stats *s) {
    return log(s->z_sum) - s->z_dot / s->z_sum;
}

/* Argmax and list: exact ids where the logits are exact, else entries as large as the oracle's within the error. */
static void check_ids(const tile_case *c, const collected *got, int64_t row) {
    const double *z = c->z + row * c->shape.columns;
    int32_t expected[TOP_K];
    oracle_top_k(z, c->shape.columns, TOP_K, expected);
    for (int k = 0; k < TOP_K; ++k) {
        const int32_t id = got->id[row * TOP_K + k];
        if (expected[k] < 0) {
            assert_int_equal(id, -1);
            continue;
        }
        const int64_t v = id - c->shape.first_column;
        assert_in_range(v, 0, c->shape.columns - 1);
        if (c->z_error == 0) assert_int_equal(v, expected[k]);
        assert_true(z[v] == z[expected[k]] || fabs(z[v] - z[expected[k]]) <= 2 * c->z_error);
        assert_true((double)got->logit[row * TOP_K + k] == z[v] ||
                    fabs((double)got->logit[row * TOP_K + k] - z[v]) <= c->z_error);
    }
}

static void check_row(const tile_case *c, const collected *got, const int32_t *label, int64_t row) {
    const tile_shape *shape = &c->shape;
    const oh_row_stats *s = &got->stats[row];
    const double *z = c->z + row * shape->columns, *t = shape->target_rows > 0 ? c->t + row * shape->columns : NULL;
    oracle_row e;
    oracle_measure(z, t, shape->columns, -1, c->z_error, c->t_error, &e);
    assert_near(lse_of(s), e.lse, "lse", row);
    assert_near(entropy_of(s), e.entropy, "entropy", row);
    assert_near(s->z_total, e.total, "total", row);
    check_ids(c, got, row);
    if (shape->columns >= 1) assert_int_equal(s->z_argmax, got->id[row * TOP_K]);
    if (label) assert_int_equal(s->label, label[row]);
    if (!label) assert_int_equal(s->label, s->t_argmax);
    const int64_t y = s->label - shape->first_column;
    if (y >= 0 && y < shape->columns) assert_near((double)s->z_label, (oracle_figure){z[y], c->z_error}, "z_y", row);
    if (y < 0 || y >= shape->columns) assert_true(s->z_label == -INF);
    if (!t) return;
    assert_near((double)s->t_max + log(s->t_sum), e.t_lse, "target's lse", row);
    assert_near(kl_of(s), e.kl, "kl", row);
    assert_near(rkl_of(s), e.rkl, "rkl", row);
    if (c->t_error == 0) assert_int_equal(s->t_argmax - shape->first_column, e.t_argmax);
}

static void check_shape(const tile_shape *shape, draws *d, int given_labels) {
    tile_case c;
    collected got;
    int32_t label[ROWS_MAX];
    tile_case_open(&c, shape, d);
    for (int64_t i = 0; i < shape->rows; ++i)
        label[i] = (int32_t)(shape->first_column + draw_below(d, shape->columns + 2) - 1);
    if (shape->columns > 4) {
        tile_case_put_draft(&c, 0, 2, -INF); /* a column that neither has, and later one that only q has */
        if (shape->target_rows > 0) tile_case_put_target(&c, 0, 2, -INF);
        if (shape->rows > 2) tile_case_put_draft(&c, 2, 3, -INF);
        tile_case_refresh(&c);
    }
    const uint64_t before = tile_case_checksum(&c);
    memset(&got, 0x5a, sizeof got);
    const collected untouched = got;
    collect(&got, c.view, given_labels ? label : NULL, 1);
    for (int64_t i = 0; i < shape->rows; ++i)
        check_row(&c, &got, given_labels ? label : NULL, i);
    assert_memory_equal(&got.stats[shape->rows], &untouched.stats[0], sizeof(oh_row_stats));
    assert_memory_equal(&got.id[shape->rows * TOP_K], untouched.id, TOP_K * sizeof(int32_t));
    assert_memory_equal(&got.logit[shape->rows * TOP_K], untouched.logit, TOP_K * sizeof(float));
    assert_true(before == tile_case_checksum(&c));
    tile_case_close(&c);
}

static void test_every_format_shape_and_transform_agrees_with_the_oracle(void **state) {
    static const int64_t widths[] = {1, 2, 7, 19, 511, 512, 513, 1025, 8003};
    draws d = draws_open("stats", 20240611);
    (void)state;
    for (int32_t format = OH_TILE_F32; format <= OH_TILE_DIFF; ++format)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; ++w)
            for (int32_t transform = 0; transform < 4; ++transform) {
                const tile_shape shape = {.rows = 5,
                                          .target_rows = w % 2 ? 5 : 3,
                                          .columns = widths[w],
                                          .first_column = w % 3 ? 100 : 0,
                                          .format = format,
                                          .misaligned = transform & 1,
                                          .transform = transform,
                                          .nearness = transform == 2 ? 0.01 : 0};
                check_shape(&shape, &d, w % 2 == 0);
            }
}

static void test_a_draft_alone_has_its_statistics(void **state) {
    draws d = draws_open("draft alone", 5);
    (void)state;
    const tile_shape shape = {.rows = 4, .columns = 700, .format = OH_TILE_F16};
    check_shape(&shape, &d, 1);
}

static void test_a_target_alone_has_its_statistics(void **state) {
    draws d = draws_open("target alone", 6);
    tile_case c;
    collected got;
    oracle_row e;
    (void)state;
    const tile_shape shape = {.rows = 4, .target_rows = 4, .columns = 700, .no_draft = 1};
    tile_case_open(&c, &shape, &d);
    collect(&got, c.view, NULL, 1);
    for (int64_t i = 0; i < 4; ++i) {
        oracle_measure(c.t + i * 700, NULL, 700, -1, 0, 0, &e);
        assert_near((double)got.stats[i].t_max + log(got.stats[i].t_sum), e.lse, "target's lse", i);
        assert_int_equal(got.stats[i].label, e.z_argmax);
        assert_int_equal(got.stats[i].z_argmax, -1);
        assert_true(got.stats[i].z_max == -INF && got.stats[i].z_sum == 0);
    }
    tile_case_close(&c);
}

/* Merged states are within the same bounds of the oracle, and what has no rounding is identical, in any order. */
static void test_panels_merge_to_the_whole(void **state) {
    draws d = draws_open("panels", 7);
    (void)state;
    for (int round = 0; round < 12; ++round) {
        tile_case c;
        collected whole, merged;
        const tile_shape shape = {.rows = 6, .target_rows = 4, .columns = 1300, .format = round % 4};
        tile_case_open(&c, &shape, &d);
        collect(&whole, c.view, NULL, 1);
        const int64_t cut[] = {0, draw_below(&d, 600), 600 + draw_below(&d, 500), 1300};
        for (int i = 0; i < 3; ++i) {
            const int part = round % 2 ? 2 - i : i;
            collect(&merged, tile_case_panel(&c, cut[part], cut[part + 1] - cut[part]), NULL, i == 0);
        }
        for (int64_t i = 0; i < 6; ++i) {
            const oh_row_stats *a = &whole.stats[i], *b = &merged.stats[i];
            check_row(&c, &merged, NULL, i);
            assert_true(a->z_max == b->z_max && a->t_max == b->t_max && a->z_label == b->z_label);
            assert_true(a->label == b->label && a->z_argmax == b->z_argmax && a->flags == b->flags);
        }
        assert_memory_equal(whole.id, merged.id, sizeof(int32_t) * 6 * TOP_K);
        assert_memory_equal(whole.logit, merged.logit, sizeof(float) * 6 * TOP_K);
        tile_case_close(&c);
    }
}

static void test_ties_go_to_the_lowest_column_whatever_panel_comes_first(void **state) {
    float z[40], t[40];
    tile_case c;
    collected got;
    (void)state;
    for (int v = 0; v < 40; ++v)
        z[v] = 1, t[v] = 2;
    tile_case_literal(&c, 1, 40, z, t);
    collect(&got, tile_case_panel(&c, 20, 20), NULL, 1);
    collect(&got, tile_case_panel(&c, 0, 20), NULL, 0);
    assert_memory_equal(got.id, ((const int32_t[]){0, 1, 2, 3, 4, 5, 6, 7}), sizeof(int32_t) * 8);
    assert_true(got.stats[0].z_argmax == 0 && got.stats[0].t_argmax == 0 && got.stats[0].label == 0);
    tile_case_close(&c);
}

static void collect_literal(collected *got, int64_t columns, const float *z, const float *t, const int32_t *label) {
    tile_case c;
    tile_case_literal(&c, 1, columns, z, t);
    collect(got, c.view, label, 1);
    tile_case_close(&c);
}

static double ce_of(const oh_row_stats *s) {
    return -(((double)s->z_label - (double)s->z_max) - log(s->z_sum));
}

static void test_case_1_a_single_finite_logit_far_from_the_start(void **state) {
    enum { V = 248320 };
    static float z[V];
    const int32_t label = 50000;
    collected got;
    (void)state;
    for (int v = 0; v < V; ++v)
        z[v] = -INF;
    z[50000] = 10;
    collect_literal(&got, V, z, NULL, &label);
    assert_true(ce_of(&got.stats[0]) == 0);
    assert_int_equal(got.id[0], 50000);
    for (int k = 1; k < TOP_K; ++k)
        assert_int_equal(got.id[k], k - 1);
}

static void test_case_2_a_column_that_neither_distribution_has(void **state) {
    const float z[] = {1, 2, -INF}, t[] = {2, 1, -INF};
    collected got;
    (void)state;
    collect_literal(&got, 3, z, t, NULL);
    assert_true(fabs(kl_of(&got.stats[0]) - 0.46211715726000976) < 8 * ORACLE_U);
    assert_int_equal(got.stats[0].flags, OH_ROW_Z_NEG_INF);
}

static void test_cases_3_and_11_equal_logits_have_no_divergence(void **state) {
    draws d = draws_open("equal", 11);
    float z[1500];
    collected got;
    (void)state;
    for (int v = 0; v < 1500; ++v)
        z[v] = (float)(4 * draw_normal(&d));
    collect_literal(&got, 1500, z, z, NULL);
    assert_true(fabs(kl_of(&got.stats[0])) < 1e-14 && fabs(rkl_of(&got.stats[0])) < 1e-14);
    collect_literal(&got, 2, (const float[]){0, -110}, (const float[]){0, -110}, NULL);
    assert_true(kl_of(&got.stats[0]) == 0 && rkl_of(&got.stats[0]) == 0);
}

static void test_case_6_a_tail_adds_nothing(void **state) {
    float z[129];
    const int32_t label = 77;
    collected got;
    (void)state;
    for (int v = 0; v < 129; ++v)
        z[v] = -20;
    z[label] = -10;
    collect_literal(&got, 129, z, NULL, &label);
    assert_true(fabs(ce_of(&got.stats[0]) - log1p(128 * exp(-10.0))) < 1e-6);
}

static void test_cases_20_and_21_ties_go_to_the_lowest_column(void **state) {
    const float z[] = {3, 2, 3, 2, 1, 1};
    float lone[40];
    collected got;
    (void)state;
    collect_literal(&got, 6, z, NULL, (const int32_t[]){3});
    assert_memory_equal(got.id, ((const int32_t[]){0, 2, 1, 3, 4, 5, -1, -1}), sizeof(int32_t) * 8);
    assert_int_equal(got.stats[0].z_argmax, 0);
    for (int v = 0; v < 40; ++v)
        lone[v] = -INF;
    lone[5] = 0;
    collect_literal(&got, 40, lone, NULL, (const int32_t[]){5});
    assert_memory_equal(got.id, ((const int32_t[]){5, 0, 1, 2, 3, 4, 6, 7}), sizeof(int32_t) * 8);
}

static void test_cases_24_and_25_offsets_and_gaps_keep_the_loss(void **state) {
    collected got;
    (void)state;
    collect_literal(&got, 3, (const float[]){1e6f, 1e6f, 1e6f}, NULL, (const int32_t[]){0});
    assert_true(fabs(ce_of(&got.stats[0]) - log(3.0)) < 1e-15);
    collect_literal(&got, 2, (const float[]){0, 110}, NULL, (const int32_t[]){0});
    assert_true(fabs(ce_of(&got.stats[0]) - 110) < 1e-12);
}

/* Case 30's overflow: a softcap takes 1e4 to its cap, a bias of -inf removes its column. */
static void test_case_30_softcap_saturates_and_bias_removes(void **state) {
    const float z[] = {1e4f, -1e4f, 5, 0}, bias[] = {0, 0, -INF, 0};
    tile_case c;
    collected got;
    (void)state;
    tile_case_literal(&c, 1, 4, z, NULL);
    c.view.draft_transform = (oh_transform){bias, 0.1f, 30};
    collect(&got, c.view, (const int32_t[]){0}, 1);
    assert_true(got.logit[0] == 30 && got.logit[2] == -30 && got.logit[3] == -INF);
    assert_int_equal(got.id[3], 2);
    assert_int_equal(got.stats[0].flags, OH_ROW_Z_NEG_INF);
    tile_case_close(&c);
}

static void test_infinite_divergences_are_flagged(void **state) {
    collected got;
    (void)state;
    collect_literal(&got, 3, (const float[]){1, -INF, 0}, (const float[]){1, 2, 0}, NULL);
    assert_int_equal(got.stats[0].flags, OH_ROW_P0_Q | OH_ROW_Z_NEG_INF);
    assert_true(isfinite(got.stats[0].kl_dot) && isfinite(rkl_of(&got.stats[0])));
    collect_literal(&got, 3, (const float[]){1, 2, 0}, (const float[]){1, -INF, 0}, NULL);
    assert_int_equal(got.stats[0].flags, OH_ROW_Q0_P);
    assert_true(isfinite(got.stats[0].rkl_dot) && isfinite(kl_of(&got.stats[0])));
    collect_literal(&got, 2, (const float[]){-INF, -INF}, (const float[]){-INF, -INF}, NULL);
    assert_int_equal(got.stats[0].flags, OH_ROW_Z_NEG_INF);
    assert_true(got.stats[0].z_max == -INF && got.stats[0].z_sum == 0 && got.stats[0].z_argmax == 0);
}

static int all_finite(const oh_row_stats *s) {
    return isfinite(s->z_sum) && isfinite(s->t_sum) && isfinite(s->z_dot) && isfinite(s->kl_dot) &&
           isfinite(s->rkl_dot) && isfinite(s->z_total) && s->z_max < INF && s->t_max < INF;
}

static void test_case_22_a_bad_row_is_flagged_and_touches_no_other(void **state) {
    static const double bad[] = {NAN, INF};
    draws d = draws_open("bad rows", 22);
    (void)state;
    for (int kind = 0; kind < 4; ++kind)
        for (int everywhere = 0; everywhere < 2; ++everywhere) {
            tile_case c;
            collected clean, got;
            const tile_shape shape = {.rows = 3, .target_rows = 3, .columns = 900, .transform = kind % 2 ? 3 : 0};
            tile_case_open(&c, &shape, &d);
            collect(&clean, c.view, NULL, 1);
            for (int64_t v = everywhere ? 0 : 600; v < (everywhere ? 900 : 601); ++v) {
                if (kind / 2 == 0) tile_case_put_draft(&c, 1, v, bad[kind % 2]);
                if (kind / 2 == 1) tile_case_put_target(&c, 1, v, bad[kind % 2]);
            }
            collect(&got, c.view, NULL, 1);
            assert_int_equal(got.stats[1].flags & (OH_ROW_Z_BAD | OH_ROW_T_BAD),
                             kind / 2 ? OH_ROW_T_BAD : OH_ROW_Z_BAD);
            assert_true(all_finite(&got.stats[1]));
            assert_in_range(got.stats[1].label, 0, 899);
            assert_in_range(got.stats[1].z_argmax, 0, 899);
            for (int k = 0; k < TOP_K; ++k) {
                assert_in_range(got.id[TOP_K + k], 0, 899);
                assert_true(got.logit[TOP_K + k] < INF);
            }
            for (int64_t i = 0; i < 3; i += 2) {
                assert_memory_equal(&got.stats[i], &clean.stats[i], sizeof(oh_row_stats));
                assert_memory_equal(&got.id[i * TOP_K], &clean.id[i * TOP_K], TOP_K * sizeof(int32_t));
            }
            tile_case_close(&c);
        }
}

static void test_no_columns_leave_the_empty_state(void **state) {
    tile_case c;
    collected got;
    oh_row_stats empty;
    (void)state;
    tile_case_literal(&c, 1, 2, (const float[]){1, 2}, NULL);
    oh_row_stats_empty(&empty);
    collect(&got, tile_case_panel(&c, 0, 0), NULL, 1);
    assert_memory_equal(&got.stats[0], &empty, sizeof empty);
    assert_int_equal(got.id[0], -1);
    tile_case_close(&c);
}

static void refuse(oh_tile_stats r, collected *got) {
    const collected before = *got;
    assert_int_equal(oh_portable_tile_stats(&r), OH_INVALID_ARGUMENT);
    assert_memory_equal(got, &before, sizeof before);
}

static void test_impossible_arguments_are_refused_and_nothing_is_touched(void **state) {
    static collected got;
    tile_case c;
    (void)state;
    memset(&got, 0x33, sizeof got);
    tile_case_literal(&c, 2, 3, (const float[]){1, 2, 3, 4, 5, 6}, (const float[]){1, 2, 3, 4, 5, 6});
    const oh_tile_stats good = request(&got, c.view, NULL, 1);
    oh_tile_stats r;
#define REFUSE(change)                                                                                                 \
    do {                                                                                                               \
        r = good;                                                                                                      \
        change;                                                                                                        \
        refuse(r, &got);                                                                                               \
    } while (0)
    REFUSE(r.tile.rows = -1);
    REFUSE(r.tile.columns = -1);
    REFUSE(r.tile.first_column = -1);
    REFUSE(r.tile.first_column = INT32_MAX - 2);
    REFUSE(r.tile.draft_ld = 2);
    REFUSE(r.tile.target_ld = 2);
    REFUSE(r.tile.format = 4);
    REFUSE(r.tile.format = -1);
    REFUSE(r.tile.draft_transform.softcap = -1);
    REFUSE(r.tile.target_transform.scale = NAN);
    REFUSE((r.tile.format = OH_TILE_DIFF, r.tile.target = NULL));
    REFUSE((r.tile.draft = NULL, r.tile.target = NULL));
    REFUSE(r.tile.draft = NULL); /* KL of one distribution */
    REFUSE(r.stats = NULL);
    REFUSE(r.top_k = -1);
    REFUSE(r.top_k = OH_TOP_K_MAX + 1);
    REFUSE(r.topk_id = NULL);
    REFUSE(r.topk_logit = NULL);
#undef REFUSE
    assert_int_equal(oh_portable_tile_stats(NULL), OH_INVALID_ARGUMENT);
    r = good;
    r.tile.rows = 0, r.tile.draft = NULL, r.tile.target = NULL, r.stats = NULL;
    assert_int_equal(oh_portable_tile_stats(&r), OH_OK);
    tile_case_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_format_shape_and_transform_agrees_with_the_oracle),
        cmocka_unit_test(test_a_draft_alone_has_its_statistics),
        cmocka_unit_test(test_a_target_alone_has_its_statistics),
        cmocka_unit_test(test_panels_merge_to_the_whole),
        cmocka_unit_test(test_ties_go_to_the_lowest_column_whatever_panel_comes_first),
        cmocka_unit_test(test_case_1_a_single_finite_logit_far_from_the_start),
        cmocka_unit_test(test_case_2_a_column_that_neither_distribution_has),
        cmocka_unit_test(test_cases_3_and_11_equal_logits_have_no_divergence),
        cmocka_unit_test(test_case_6_a_tail_adds_nothing),
        cmocka_unit_test(test_cases_20_and_21_ties_go_to_the_lowest_column),
        cmocka_unit_test(test_cases_24_and_25_offsets_and_gaps_keep_the_loss),
        cmocka_unit_test(test_case_30_softcap_saturates_and_bias_removes),
        cmocka_unit_test(test_infinite_divergences_are_flagged),
        cmocka_unit_test(test_case_22_a_bad_row_is_flagged_and_touches_no_other),
        cmocka_unit_test(test_no_columns_leave_the_empty_state),
        cmocka_unit_test(test_impossible_arguments_are_refused_and_nothing_is_touched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
