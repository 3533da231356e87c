/* tile_overlap of the portable operations against the f64 oracle, whose bounds oracle.h derives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "oracle.h"
#include "portable/portable.h"
#include "tile_case.h"

enum { ROWS_MAX = 16 };
#define INF INFINITY
#define WANT_ALL (OH_WANT_OVERLAP | OH_WANT_JSD | OH_WANT_RANK)

static void read_stats(oh_tile_view view, const int32_t *label, oh_row_stats *stats) {
    const oh_tile_stats r = {.tile = view, .stats = stats, .label = label, .restart = 1};
    assert_int_equal(oh_portable_tile_stats(&r), OH_OK);
}

static void read_overlap(oh_tile_view view, const oh_row_stats *stats, uint32_t want, int restart, oh_row_overlap *v) {
    const oh_tile_overlap r = {.tile = view, .stats = stats, .overlap = v, .want = want, .restart = restart};
    assert_int_equal(oh_portable_tile_overlap(&r), OH_OK);
}

static void assert_near(double value, oracle_figure expected, const char *name, int64_t row) {
    if (fabs(value - expected.value) <= expected.bound) return;
    fail_msg("row %lld: %s is %.17g, expected %.17g within %.3g", (long long)row, name, value, expected.value,
             expected.bound);
}

static void check_row(const tile_case *c, const oh_row_stats *s, const oh_row_overlap *v, int64_t row) {
    const int64_t columns = c->shape.columns;
    const int32_t label = s->label < 0 ? -1 : (int32_t)(s->label - c->shape.first_column);
    oracle_row e;
    oracle_measure(c->z + row * columns, c->t + row * columns, columns, label, c->z_error, c->t_error, &e);
    assert_near(v->alpha, e.alpha, "alpha", row);
    assert_near(v->tv, e.tv, "tv", row);
    assert_near(v->p_le, e.p_le, "p_le", row);
    assert_near(v->jsd, e.jsd, "jsd", row);
    assert_near(v->kl_pm, e.kl_pm, "kl_pm", row);
    if (c->z_error == 0) assert_int_equal(v->rank, e.rank);
}

static void check_shape(const tile_shape *shape, draws *d, int given_labels) {
    tile_case c;
    oh_row_stats stats[ROWS_MAX];
    oh_row_overlap got[ROWS_MAX + 1], untouched;
    int32_t label[ROWS_MAX];
    tile_case_open(&c, shape, d);
    for (int64_t i = 0; i < shape->rows; ++i)
        label[i] = (int32_t)(shape->first_column + draw_below(d, shape->columns));
    if (shape->columns > 4) {
        tile_case_put_draft(&c, 0, 2, -INF); /* columns that neither, only q, and only p has */
        tile_case_put_target(&c, 0, 2, -INF);
        tile_case_put_draft(&c, 1, 3, -INF);
        if (shape->format != OH_TILE_DIFF) tile_case_put_target(&c, 1, 4, -INF);
        tile_case_refresh(&c);
    }
    const uint64_t before = tile_case_checksum(&c);
    memset(got, 0x5a, sizeof got);
    untouched = got[shape->rows];
    read_stats(c.view, given_labels ? label : NULL, stats);
    read_overlap(c.view, stats, WANT_ALL, 1, got);
    for (int64_t i = 0; i < shape->rows; ++i)
        check_row(&c, &stats[i], &got[i], i);
    assert_memory_equal(&got[shape->rows], &untouched, sizeof untouched);
    assert_true(before == tile_case_checksum(&c));
    tile_case_close(&c);
}

static void test_every_format_shape_and_transform_agrees_with_the_oracle(void **state) {
    static const int64_t widths[] = {1, 2, 7, 19, 511, 512, 513, 1025, 8003};
    draws d = draws_open("overlap", 31);
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
                                          .nearness = transform % 2 == 0 ? 0.01 : 0};
                check_shape(&shape, &d, w % 2 == 0);
            }
}

static void test_panels_add_to_the_whole(void **state) {
    draws d = draws_open("panels", 32);
    (void)state;
    for (int round = 0; round < 8; ++round) {
        tile_case c;
        oh_row_stats stats[ROWS_MAX];
        oh_row_overlap whole[ROWS_MAX], added[ROWS_MAX];
        const tile_shape shape = {.rows = 6, .target_rows = 4, .columns = 1300, .format = round % 4};
        const int64_t cut = draw_below(&d, 1300);
        tile_case_open(&c, &shape, &d);
        read_stats(c.view, NULL, stats);
        read_overlap(c.view, stats, WANT_ALL, 1, whole);
        read_overlap(tile_case_panel(&c, cut, 1300 - cut), stats, WANT_ALL, 1, added);
        read_overlap(tile_case_panel(&c, 0, cut), stats, WANT_ALL, 0, added);
        for (int64_t i = 0; i < 6; ++i) {
            /* The same terms in another order: f64 sums of 1,300 of them. */
            check_row(&c, &stats[i], &added[i], i);
            assert_true(fabs(whole[i].alpha - added[i].alpha) <= 1300 * 0x1p-53);
            assert_int_equal(whole[i].rank, added[i].rank);
        }
        tile_case_close(&c);
    }
}

/* The draft's vocabulary is the target's first 300 of 700 columns; two rows share a target row. */
static void test_a_full_vocabulary_gives_its_own_probabilities(void **state) {
    draws d = draws_open("full", 35);
    const tile_shape shape = {.rows = 3, .target_rows = 2, .columns = 700};
    tile_case c;
    oh_row_stats full[2], part[3];
    oh_row_overlap got[3];
    (void)state;
    tile_case_open(&c, &shape, &d);
    oh_tile_view target = c.view, draft = tile_case_panel(&c, 0, 300);
    target.draft = NULL, target.target_row = NULL, target.rows = 2;
    read_stats(target, NULL, full);
    read_stats(draft, NULL, part);
    oh_tile_overlap r = {
        .tile = draft, .stats = part, .overlap = got, .full = full, .want = OH_WANT_OVERLAP, .restart = 1};
    assert_int_equal(oh_portable_tile_overlap(&r), OH_OK);
    for (int64_t i = 0; i < 3; ++i) {
        const double *z = c.z + i * 700, *t = c.t + i * 700;
        double z_sum = 0, t_sum = 0, alpha = 0;
        for (int v = 0; v < 700; ++v) {
            z_sum += v < 300 ? exp(z[v]) : 0;
            t_sum += exp(t[v]);
        }
        for (int v = 0; v < 300; ++v)
            alpha += fmin(exp(z[v]) / z_sum, exp(t[v]) / t_sum);
        /* Each p and q is off by (|x| + M + 6) U of itself; |x| < 32 among normal logits of deviation 3, M < 16. */
        assert_true(fabs(got[i].alpha - alpha) < 2 * 54 * ORACLE_U);
        assert_true(alpha < 0.9); /* what lies outside is missing */
    }
    r.want = OH_WANT_OVERLAP | OH_WANT_JSD;
    assert_int_equal(oh_portable_tile_overlap(&r), OH_INVALID_ARGUMENT);
    tile_case_close(&c);
}

static oh_row_overlap overlap_of(int64_t columns, const float *z, const float *t, int32_t label) {
    tile_case c;
    oh_row_stats s;
    oh_row_overlap v;
    tile_case_literal(&c, 1, columns, z, t);
    read_stats(c.view, &label, &s);
    read_overlap(c.view, &s, WANT_ALL, 1, &v);
    tile_case_close(&c);
    return v;
}

static void test_cases_3_and_11_equal_logits_overlap_wholly(void **state) {
    draws d = draws_open("equal", 33);
    float z[1500];
    (void)state;
    for (int v = 0; v < 1500; ++v)
        z[v] = (float)(4 * draw_normal(&d));
    oh_row_overlap v = overlap_of(1500, z, z, 0);
    assert_true(v.jsd == 0 && v.kl_pm == 0 && v.tv == 0);
    /* p sums to 1 but for exp's and the normaliser's roundings: (|x| + M + 6) U with |x| weighted by p, M < 16. */
    assert_true(fabs(v.alpha - 1) < 40 * ORACLE_U && v.alpha == v.p_le);
    v = overlap_of(2, (const float[]){0, -110}, (const float[]){0, -110}, 0);
    assert_true(v.jsd == 0 && v.tv == 0 && v.alpha == 1);
}

static void test_case_2_a_column_that_neither_distribution_has(void **state) {
    const oh_row_overlap v = overlap_of(3, (const float[]){1, 2, -INF}, (const float[]){2, 1, -INF}, 0);
    const double p = 1 / (1 + exp(1.0)), tv = 1 - 2 * p;
    (void)state;
    assert_true(fabs(v.tv - tv) < 16 * ORACLE_U && fabs(v.alpha - 2 * p) < 16 * ORACLE_U);
    assert_true(fabs(v.jsd - (p * log(2 * p) + (1 - p) * log(2 * (1 - p)))) < 16 * ORACLE_U);
}

static void test_disjoint_distributions_reach_the_largest_divergence(void **state) {
    const oh_row_overlap v = overlap_of(2, (const float[]){0, -INF}, (const float[]){-INF, 3}, 0);
    (void)state;
    assert_true(v.alpha == 0 && v.tv == 1 && v.p_le == 0);
    assert_true(fabs(v.jsd - log(2.0)) < 1e-15 && fabs(v.kl_pm - log(2.0)) < 1e-15);
}

static void test_probabilities_that_underflow_keep_their_logarithms(void **state) {
    const oh_row_overlap v = overlap_of(2, (const float[]){0, -300}, (const float[]){-300, 0}, 0);
    (void)state;
    assert_true(fabs(v.jsd - log(2.0)) < 4 * ORACLE_U && fabs(v.tv - 1) < 4 * ORACLE_U);
}

static void test_case_12_a_small_difference_is_kept(void **state) {
    const float z[] = {logf(.9012f), logf(.0988f)}, t[] = {logf(.9000f), logf(.1000f)};
    const oh_row_overlap v = overlap_of(2, z, t, 0);
    (void)state;
    /* Inputs are logarithms rounded to f32, each within U |log|: that much of p. */
    assert_true(fabs(v.tv - 0.0012) < 16 * ORACLE_U);
}

static void test_case_20_rank_counts_ties_of_lower_columns(void **state) {
    const float z[] = {3, 2, 3, 2, 1, 1}, t[6] = {0};
    static const int64_t rank[] = {0, 2, 1, 3, 4, 5};
    (void)state;
    for (int32_t y = 0; y < 6; ++y)
        assert_int_equal(overlap_of(6, z, t, y).rank, rank[y]);
}

static void test_a_rank_needs_no_target_and_a_row_without_label_has_none(void **state) {
    tile_case c;
    oh_row_stats s[2];
    oh_row_overlap v[2];
    (void)state;
    tile_case_literal(&c, 2, 3, (const float[]){1, 2, 3, 1, 2, 3}, NULL);
    read_stats(c.view, (const int32_t[]){1, -1}, s);
    read_overlap(c.view, s, OH_WANT_RANK, 1, v);
    assert_int_equal(v[0].rank, 1);
    assert_int_equal(v[1].rank, 0);
    tile_case_close(&c);
}

static void test_case_22_a_bad_row_is_left_out_and_touches_no_other(void **state) {
    static const double bad[] = {NAN, INF, -INF};
    draws d = draws_open("bad rows", 34);
    (void)state;
    for (int kind = 0; kind < 6; ++kind) {
        tile_case c;
        oh_row_stats s[3];
        oh_row_overlap clean[3], got[3], nothing = {0};
        const tile_shape shape = {.rows = 3, .target_rows = 3, .columns = 700};
        tile_case_open(&c, &shape, &d);
        read_stats(c.view, NULL, s);
        read_overlap(c.view, s, WANT_ALL, 1, clean);
        for (int64_t v = 0; v < 700; ++v) {
            if (kind % 2) tile_case_put_draft(&c, 1, v, bad[kind / 2]);
            if (kind % 2 == 0) tile_case_put_target(&c, 1, v, bad[kind / 2]);
        }
        read_stats(c.view, NULL, s);
        memcpy(got, clean, sizeof got);
        read_overlap(c.view, s, WANT_ALL, 1, got);
        assert_memory_equal(&got[0], &clean[0], sizeof nothing);
        assert_memory_equal(&got[1], &nothing, sizeof nothing);
        assert_memory_equal(&got[2], &clean[2], sizeof nothing);
        memset(&got[1], 0x33, sizeof got[1]);
        read_overlap(c.view, s, WANT_ALL, 0, got);
        assert_memory_equal(&got[1], &nothing, sizeof nothing);
        tile_case_close(&c);
    }
}

static void test_impossible_arguments_are_refused_and_nothing_is_touched(void **state) {
    tile_case c;
    oh_row_stats s[2];
    oh_row_overlap v[2], before[2];
    (void)state;
    tile_case_literal(&c, 2, 3, (const float[]){1, 2, 3, 4, 5, 6}, (const float[]){1, 2, 3, 4, 5, 6});
    read_stats(c.view, NULL, s);
    memset(v, 0x33, sizeof v);
    memcpy(before, v, sizeof v);
    const oh_tile_overlap good = {.tile = c.view, .stats = s, .overlap = v, .want = WANT_ALL, .restart = 1};
    oh_tile_overlap r;
#define REFUSE(change)                                                                                                 \
    do {                                                                                                               \
        r = good;                                                                                                      \
        change;                                                                                                        \
        assert_int_equal(oh_portable_tile_overlap(&r), OH_INVALID_ARGUMENT);                                           \
        assert_memory_equal(v, before, sizeof v);                                                                      \
    } while (0)
    REFUSE(r.tile.rows = -1);
    REFUSE(r.tile.columns = -1);
    REFUSE(r.tile.draft_ld = 2);
    REFUSE(r.tile.format = 9);
    REFUSE(r.tile.draft = NULL);
    REFUSE(r.tile.target = NULL);
    REFUSE(r.stats = NULL);
    REFUSE(r.overlap = NULL);
#undef REFUSE
    assert_int_equal(oh_portable_tile_overlap(NULL), OH_INVALID_ARGUMENT);
    tile_case_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_format_shape_and_transform_agrees_with_the_oracle),
        cmocka_unit_test(test_panels_add_to_the_whole),
        cmocka_unit_test(test_a_full_vocabulary_gives_its_own_probabilities),
        cmocka_unit_test(test_cases_3_and_11_equal_logits_overlap_wholly),
        cmocka_unit_test(test_case_2_a_column_that_neither_distribution_has),
        cmocka_unit_test(test_disjoint_distributions_reach_the_largest_divergence),
        cmocka_unit_test(test_probabilities_that_underflow_keep_their_logarithms),
        cmocka_unit_test(test_case_12_a_small_difference_is_kept),
        cmocka_unit_test(test_case_20_rank_counts_ties_of_lower_columns),
        cmocka_unit_test(test_a_rank_needs_no_target_and_a_row_without_label_has_none),
        cmocka_unit_test(test_case_22_a_bad_row_is_left_out_and_touches_no_other),
        cmocka_unit_test(test_impossible_arguments_are_refused_and_nothing_is_touched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
