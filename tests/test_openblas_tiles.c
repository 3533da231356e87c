/* Tile operations of the OpenBLAS plugin, for every set of kernels that this CPU has: figures against the f64 oracle,
 * everything discrete against the portable operations.
 *
 * Bounds are oracle.h's, which hold for f32 logits and exponentials (these kernels' exponential is within one unit in
 * the last place, as expf is) added in f64. Here up to FLUSH = 16 vectors are added in f32 before, in two lanes that
 * are then added: 8 roundings in each sum, SUMS relative to the sum of the terms' magnitudes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "openblas_device.h"
#include "oracle.h"
#include "portable/dtype.h"
#include "portable/portable.h"
#include "tile_case.h"

enum { ROWS_MAX = 16, TOP_K_MAX = OH_TOP_K_MAX, WIDTH_MAX = 8200 };
#define INF INFINITY
#define SUMS (16 * ORACLE_U) /* a block of masked lanes has one accumulator: 16 */
#define WANT_FIRST (OH_WANT_ENTROPY | OH_WANT_KL | OH_WANT_RKL | OH_WANT_TOTAL)
#define WANT_SECOND (OH_WANT_OVERLAP | OH_WANT_JSD | OH_WANT_RANK)

/* Widths around vectors, flushes, blocks and their tails. */
static const int64_t widths[] = {1,   2,   3,   7,   8,    15,   16,   17,   31,   33,  64,
                                 129, 255, 257, 300, 1023, 1024, 1025, 2047, 2080, 8003};
enum { WIDTHS = sizeof widths / sizeof *widths };

static openblas plugin; /* the device under test */

/* Runs `check` on a device for each set of kernels. */
static void on_every_kernel(void (*check)(draws *d), const char *name, uint64_t seed) {
    for (int tiles = 0; tiles < OPENBLAS_TILES; ++tiles) {
        if (!openblas_cpu_has(tiles)) continue;
        draws d = draws_open(name, seed);
        fprintf(stderr, "%s: tiles %s\n", name, openblas_tiles[tiles]);
        plugin = openblas_open(tiles, 2);
        check(&d);
        openblas_close(&plugin);
    }
}

/* ---------------------------------------------------------------------------------------------- first read ---- */

typedef struct collected {
    oh_row_stats stats[ROWS_MAX];
    int32_t id[ROWS_MAX * TOP_K_MAX];
    float logit[ROWS_MAX * TOP_K_MAX];
} collected;

static oh_tile_stats request(collected *to, oh_tile_view view, const int32_t *label, uint32_t want, int32_t top_k,
                             int restart) {
    oh_tile_stats r = {.tile = view, .stats = to->stats, .label = label, .want = want, .restart = restart};
    if (view.draft) r.topk_id = to->id, r.topk_logit = to->logit, r.top_k = top_k;
    return r;
}

static uint32_t possible(oh_tile_view view, uint32_t want) {
    if (!view.draft) return 0;
    return view.target ? want : want & (OH_WANT_ENTROPY | OH_WANT_TOTAL);
}

static void assert_near(double value, oracle_figure expected, double more, const char *name, int64_t row) {
    if (value == expected.value || fabs(value - expected.value) <= expected.bound + more) return;
    fail_msg("row %lld: %s is %.17g, expected %.17g within %.3g", (long long)row, name, value, expected.value,
             expected.bound + more);
}

/* Sums of magnitudes that the roundings of sums are relative to: sum p |z - z_max|, sum q |gap|, sum p |gap|. */
typedef struct magnitudes {
    double p_distance, q_gap, p_gap;
} magnitudes;

static magnitudes magnitudes_of(const tile_case *c, const oh_row_stats *s, int64_t row) {
    const double *z = c->z + row * c->shape.columns, *t = c->t + row * c->shape.columns;
    magnitudes m = {0, 0, 0};
    for (int64_t v = 0; v < c->shape.columns; ++v) {
        if (z[v] == -INF) continue;
        const double p = exp(z[v] - (double)s->z_max) / s->z_sum;
        m.p_distance += p * fabs(z[v] - (double)s->z_max);
        if (c->shape.target_rows == 0 || t[v] == -INF) continue;
        const double gap = fabs((t[v] - (double)s->t_max) - (z[v] - (double)s->z_max));
        m.q_gap += exp(t[v] - (double)s->t_max) / s->t_sum * gap;
        m.p_gap += p * gap;
    }
    return m;
}

static void check_figures(const tile_case *c, const collected *got, uint32_t want, int64_t row) {
    const oh_row_stats *s = &got->stats[row];
    const double *z = c->z + row * c->shape.columns, *t = c->t + row * c->shape.columns;
    const int has_target = c->shape.target_rows > 0;
    oracle_row e;
    oracle_measure(z, has_target ? t : NULL, c->shape.columns, -1, c->z_error, c->t_error, &e);
    const magnitudes m = magnitudes_of(c, s, row);
    const double log_z = log(s->z_sum), log_t = has_target ? log(s->t_sum) : 0;
    assert_near((double)s->z_max + log_z, e.lse, SUMS, "lse", row);
    if (want & OH_WANT_ENTROPY)
        assert_near(log_z - s->z_dot / s->z_sum, e.entropy, SUMS * (1 + 2 * m.p_distance), "entropy", row);
    if (want & OH_WANT_TOTAL) assert_near(s->z_total, e.total, 0, "total", row);
    if (!has_target) return;
    assert_near((double)s->t_max + log_t, e.t_lse, SUMS, "target's lse", row);
    if (want & OH_WANT_KL && !(s->flags & OH_ROW_P0_Q))
        assert_near(s->kl_dot / s->t_sum + log_z - log_t, e.kl, SUMS * (2 + 2 * m.q_gap), "kl", row);
    if (want & OH_WANT_RKL && !(s->flags & OH_ROW_Q0_P))
        assert_near(s->rkl_dot / s->z_sum + log_t - log_z, e.rkl, SUMS * (2 + 2 * m.p_gap), "rkl", row);
}

/* Equal where both see the same f32 logits; with a softcap tanh may differ in the last place. */
static void check_discrete(const tile_case *c, const collected *got, const collected *expected, int32_t top_k,
                           int64_t row) {
    const oh_row_stats *s = &got->stats[row], *e = &expected->stats[row];
    assert_int_equal(s->flags, e->flags);
    if (c->shape.transform > 2) {
        assert_true(fabs((double)s->z_max - (double)e->z_max) <= 2 * c->z_error || s->z_max == e->z_max);
        assert_true(fabs((double)s->t_max - (double)e->t_max) <= 2 * c->t_error || s->t_max == e->t_max);
        return;
    }
    assert_int_equal(s->label, e->label);
    assert_int_equal(s->z_argmax, e->z_argmax);
    assert_int_equal(s->t_argmax, e->t_argmax);
    assert_true(s->z_max == e->z_max && s->t_max == e->t_max && s->z_label == e->z_label);
    assert_memory_equal(&got->id[row * top_k], &expected->id[row * top_k], (size_t)top_k * sizeof(int32_t));
    assert_memory_equal(&got->logit[row * top_k], &expected->logit[row * top_k], (size_t)top_k * sizeof(float));
}

/* One case whole and in panels, from the last to the first and from the first to the last. */
static void check_stats(const tile_case *c, const int32_t *label, uint32_t want, int32_t top_k) {
    static collected got, expected, panels;
    const int64_t columns = c->shape.columns, part = columns / 3 + 1;
    const uint64_t before = tile_case_checksum(c);
    want = possible(c->view, want);
    oh_tile_stats r = request(&expected, c->view, label, want, top_k, 1);
    assert_int_equal(oh_portable_tile_stats(&r), OH_OK);
    memset(&got, 0x5a, sizeof got);
    r = request(&got, c->view, label, want, top_k, 1);
    assert_int_equal(plugin.table->tile_stats(plugin.queue, &r), OH_OK);
    for (int order = 0; order < 2; ++order) {
        const int64_t last = (columns - 1) / part;
        for (int64_t i = 0; i <= last; ++i) {
            const int64_t first = (order ? i : last - i) * part,
                          count = columns - first < part ? columns - first : part;
            r = request(&panels, tile_case_panel(c, first, count), label, want, top_k, i == 0);
            assert_int_equal(plugin.table->tile_stats(plugin.queue, &r), OH_OK);
        }
        for (int64_t row = 0; row < c->shape.rows; ++row) {
            check_discrete(c, &panels, &expected, c->view.draft ? top_k : 0, row);
            if (c->view.draft && !(expected.stats[row].flags & (OH_ROW_Z_BAD | OH_ROW_T_BAD)))
                check_figures(c, &panels, want, row);
        }
    }
    for (int64_t row = 0; row < c->shape.rows; ++row) {
        check_discrete(c, &got, &expected, c->view.draft ? top_k : 0, row);
        if (c->view.draft && !(expected.stats[row].flags & (OH_ROW_Z_BAD | OH_ROW_T_BAD)))
            check_figures(c, &got, want, row);
    }
    assert_true(before == tile_case_checksum(c));
}

static void draw_labels(const tile_case *c, draws *d, int32_t *label) {
    for (int64_t i = 0; i < c->shape.rows; ++i)
        label[i] = draw_below(d, 5) ? (int32_t)(c->shape.first_column + draw_below(d, c->shape.columns + 2) - 1) : -1;
}

static void stats_of_every_shape(draws *d) {
    static const uint32_t wants[] = {0,           OH_WANT_ENTROPY, OH_WANT_KL, OH_WANT_KL | OH_WANT_ENTROPY,
                                     OH_WANT_RKL, OH_WANT_TOTAL,   WANT_FIRST};
    static const int32_t lists[] = {0, 1, 8, 64};
    int round = 0;
    for (int32_t format = OH_TILE_F32; format <= OH_TILE_DIFF; ++format)
        for (int w = 0; w < WIDTHS; ++w)
            for (int32_t transform = 0; transform < 4; ++transform, ++round) {
                const int tiles = format == OH_TILE_DIFF ? 0 : round % 5; /* both three times; draft; target */
                const tile_shape shape = {.rows = 4,
                                          .target_rows = tiles == 3                ? 0
                                                         : round % 2 || tiles == 4 ? 4
                                                                                   : 3,
                                          .no_draft = tiles == 4,
                                          .columns = widths[w],
                                          .first_column = w % 3 ? 100 : 0,
                                          .format = format,
                                          .transform = transform,
                                          .nearness = round % 3 ? 0 : 0.01};
                int32_t label[ROWS_MAX];
                tile_case c;
                tile_case_open(&c, &shape, d);
                draw_labels(&c, d, label);
                check_stats(&c, round % 2 ? label : NULL, wants[round % 7], lists[round % 4]);
                tile_case_close(&c);
            }
}

static void test_first_read_of_every_format_shape_and_transform(void **state) {
    (void)state;
    on_every_kernel(stats_of_every_shape, "stats", 71);
}

static void stats_of_every_width(draws *d) {
    for (int64_t columns = 1; columns <= 300; ++columns) {
        const tile_shape shape = {.rows = 2, .target_rows = 2, .columns = columns, .spread = columns % 2 ? 1 : 30};
        tile_case c;
        tile_case_open(&c, &shape, d);
        check_stats(&c, NULL, WANT_FIRST, 8);
        tile_case_close(&c);
    }
}

static void test_first_read_of_every_width_to_300(void **state) {
    (void)state;
    on_every_kernel(stats_of_every_width, "widths", 72);
}

/* Whole numbers in [-2, 2]: every value many times. */
static void stats_of_ties(draws *d) {
    for (int w = 0; w < WIDTHS; ++w) {
        const tile_shape shape = {.rows = 3, .target_rows = 3, .columns = widths[w], .format = w % 3};
        tile_case c;
        tile_case_open(&c, &shape, d);
        for (int64_t i = 0; i < 3; ++i)
            for (int64_t v = 0; v < widths[w]; ++v) {
                tile_case_put_draft(&c, i, v, (double)draw_below(d, 5) - 2);
                tile_case_put_target(&c, i, v, (double)draw_below(d, 5) - 2);
            }
        tile_case_refresh(&c);
        check_stats(&c, NULL, WANT_FIRST, 8);
        tile_case_close(&c);
    }
}

static void test_ties_go_to_the_lowest_column(void **state) {
    (void)state;
    on_every_kernel(stats_of_ties, "ties", 73);
}

/* -inf here and there and everywhere, NaN and +inf in the draft, in the target: at any place of a vector. */
static void stats_of_infinities(draws *d) {
    static const double bad[] = {NAN, INF, -INF};
    for (int w = 3; w < WIDTHS; ++w)
        for (int round = 0; round < 6; ++round) {
            const int64_t columns = widths[w];
            const tile_shape shape = {.rows = 8, .target_rows = 8, .columns = columns, .format = round % 3};
            tile_case c;
            tile_case_open(&c, &shape, d);
            for (int64_t i = 0; i < 3; ++i) /* rows 0 to 2: some and rows 3 and 4: all but one, all */
                for (int64_t n = 0; n < columns / 4 + 1; ++n) {
                    if (i != 1) tile_case_put_draft(&c, i, draw_below(d, columns), -INF);
                    if (i != 0) tile_case_put_target(&c, i, draw_below(d, columns), -INF);
                }
            const int64_t survivor = draw_below(d, columns);
            for (int64_t v = 0; v < columns; ++v) {
                if (v != survivor) tile_case_put_draft(&c, 3, v, -INF);
                tile_case_put_draft(&c, 4, v, -INF);
                tile_case_put_target(&c, 4, v, -INF);
            }
            tile_case_put_draft(&c, 5, draw_below(d, columns), bad[round % 2]);
            tile_case_put_target(&c, 6, draw_below(d, columns), bad[round / 2 % 2]);
            tile_case_put_draft(&c, 7, draw_below(d, columns), bad[round % 3]);
            tile_case_put_target(&c, 7, draw_below(d, columns), bad[round % 3]);
            tile_case_refresh(&c);
            static collected got, expected;
            oh_tile_stats r = request(&expected, c.view, NULL, WANT_FIRST, 8, 1);
            assert_int_equal(oh_portable_tile_stats(&r), OH_OK);
            r = request(&got, c.view, NULL, WANT_FIRST, 8, 1);
            assert_int_equal(plugin.table->tile_stats(plugin.queue, &r), OH_OK);
            for (int64_t row = 0; row < 8; ++row)
                check_discrete(&c, &got, &expected, 8, row);
            for (int64_t row = 0; row < 4; ++row)
                check_figures(&c, &got, WANT_FIRST, row);
            assert_true(got.stats[4].z_sum == 0 && got.stats[4].t_sum == 0 && got.stats[4].kl_dot == 0);
            tile_case_close(&c);
        }
}

static void test_infinities_and_nans_are_flagged_and_kept_out_of_sums(void **state) {
    (void)state;
    on_every_kernel(stats_of_infinities, "infinities", 74);
}

/* Two columns 0 and x: z_sum - 1 is the f32 exponential of x. */
static void exponentials(draws *d) {
    enum { COUNT = 4096 };
    static float z[2 * COUNT];
    static oh_row_stats stats[COUNT];
    for (int step = 0; step < 8; ++step) {
        for (int64_t i = 0; i < COUNT; ++i)
            z[2 * i + 1] = -(float)(step < 7 ? ldexp(draw_uniform(d), step) : 87.3 * draw_uniform(d));
        const oh_transform none = {NULL, 1, 0};
        const oh_tile_stats r = {.tile = {.draft = z,
                                          .draft_ld = 2,
                                          .rows = COUNT,
                                          .columns = 2,
                                          .draft_transform = none,
                                          .target_transform = none},
                                 .stats = stats,
                                 .restart = 1};
        assert_int_equal(plugin.table->tile_stats(plugin.queue, &r), OH_OK);
        for (int64_t i = 0; i < COUNT; ++i) {
            const double x = (double)z[2 * i + 1], expected = x < -87.33 ? 0 : exp(x), got = stats[i].z_sum - 1;
            /* One unit in the last place is at most 2 U; the f64 sum with 1 has its own rounding. */
            if (fabs(got - expected) <= 2 * ORACLE_U * expected + 0x1p-52) continue;
            fail_msg("exp(%.9g) is %.17g, expected %.17g", x, got, expected);
        }
    }
}

static void test_exponentials_are_within_one_unit_in_the_last_place(void **state) {
    (void)state;
    on_every_kernel(exponentials, "exp", 75);
}

/* --------------------------------------------------------------------------------------------- second read ---- */

static void check_overlap_row(const tile_case *c, const oh_row_stats *s, const oh_row_overlap *v, uint32_t want,
                              int64_t row) {
    const int64_t columns = c->shape.columns;
    const int32_t label = s->label < 0 ? -1 : (int32_t)(s->label - c->shape.first_column);
    const int has_target = c->shape.target_rows > 0;
    oracle_row e;
    oracle_measure(c->z + row * columns, has_target ? c->t + row * columns : NULL, columns, label, c->z_error,
                   c->t_error, &e);
    if (want & OH_WANT_OVERLAP) {
        assert_near(v->alpha, e.alpha, SUMS * e.alpha.value, "alpha", row);
        assert_near(v->tv, e.tv, SUMS * e.tv.value, "tv", row);
        assert_near(v->p_le, e.p_le, SUMS * e.p_le.value, "p_le", row);
    }
    if (want & OH_WANT_JSD) {
        /* Its terms are rounded in f32, each a product of a probability and a logarithm of at most log 2 or |r|. */
        assert_near(v->jsd, e.jsd, SUMS * e.jsd.value, "jsd", row);
        assert_near(v->kl_pm, e.kl_pm, SUMS * e.kl_pm.value, "kl_pm", row);
    }
    if (want & OH_WANT_RANK && c->z_error == 0) assert_int_equal(v->rank, label < 0 ? 0 : e.rank);
}

/* Rows whose first read isn't finite are 0; the others are the oracle's and, but for a softcap's last place, the
 * portable rank. */
static void check_overlap(const tile_case *c, const oh_row_stats *stats, const oh_row_overlap *v, uint32_t want) {
    const oh_row_overlap nothing = {0};
    oh_row_overlap expected[ROWS_MAX];
    const oh_tile_overlap o = {.tile = c->view, .stats = stats, .overlap = expected, .want = want, .restart = 1};
    assert_int_equal(oh_portable_tile_overlap(&o), OH_OK);
    for (int64_t i = 0; i < c->shape.rows; ++i) {
        if (stats[i].flags & OH_ROW_Z_BAD)
            assert_memory_equal(&v[i], &nothing, sizeof nothing);
        else
            check_overlap_row(c, &stats[i], &v[i], want, i);
        if (c->shape.transform < 3) assert_int_equal(v[i].rank, expected[i].rank);
    }
}

/* Whole, then in two panels that add. */
static void overlaps(draws *d) {
    static const uint32_t wants[] = {OH_WANT_OVERLAP, OH_WANT_JSD, OH_WANT_RANK, OH_WANT_OVERLAP | OH_WANT_RANK,
                                     WANT_SECOND};
    int round = 0;
    for (int32_t format = OH_TILE_F32; format <= OH_TILE_DIFF; ++format)
        for (int w = 0; w < WIDTHS; ++w)
            for (int32_t transform = 0; transform < 4; ++transform, ++round) {
                const int64_t columns = widths[w], cut = columns * 2 / 3;
                const tile_shape shape = {.rows = 4,
                                          .target_rows = round % 2 ? 4 : 3,
                                          .columns = columns,
                                          .first_column = w % 3 ? 100 : 0,
                                          .format = format,
                                          .transform = transform,
                                          .nearness = round % 3 ? 0 : 0.01};
                static collected first;
                oh_row_overlap v[ROWS_MAX];
                int32_t label[ROWS_MAX];
                tile_case c;
                tile_case_open(&c, &shape, d);
                if (columns > 3) {
                    tile_case_put_draft(&c, 0, 1, -INF);
                    tile_case_put_target(&c, 1, 2, format == OH_TILE_DIFF ? 0 : -INF);
                    tile_case_refresh(&c);
                }
                draw_labels(&c, d, label);
                const oh_tile_stats r = request(&first, c.view, round % 2 ? label : NULL, 0, 0, 1);
                assert_int_equal(plugin.table->tile_stats(plugin.queue, &r), OH_OK);
                first.stats[3].flags |= round % 4 ? 0 : OH_ROW_Z_BAD;
                oh_tile_overlap o = {
                    .tile = c.view, .stats = first.stats, .overlap = v, .want = wants[round % 5], .restart = 1};
                memset(v, 0x5a, sizeof v);
                assert_int_equal(plugin.table->tile_overlap(plugin.queue, &o), OH_OK);
                check_overlap(&c, first.stats, v, o.want);
                memset(v, 0x5a, sizeof v);
                o.tile = tile_case_panel(&c, cut, columns - cut);
                assert_int_equal(plugin.table->tile_overlap(plugin.queue, &o), OH_OK);
                if (first.stats[3].flags & OH_ROW_Z_BAD) memset(&v[3], 0x5a, sizeof v[3]);
                o.tile = tile_case_panel(&c, 0, cut);
                o.restart = 0;
                assert_int_equal(plugin.table->tile_overlap(plugin.queue, &o), OH_OK);
                check_overlap(&c, first.stats, v, o.want);
                tile_case_close(&c);
            }
}

static void test_second_read_of_every_format_shape_and_transform(void **state) {
    (void)state;
    on_every_kernel(overlaps, "overlap", 76);
}

/* q from statistics over more columns than the tile has: straight sums in f64. With x the distance to an offset, at most
 * `far`, p and q are off by (far + 8) U, two of them and SUMS make up a figure; where log p and log q are nearer than
 * that to each other, [p <= q] may come out either way. */
static void check_full_row(const tile_case *c, const oh_row_stats *s, const oh_row_stats *full, const oh_row_overlap *v,
                           int64_t row) {
    const double *z = c->z + row * c->shape.columns, *t = c->t + row * c->shape.columns;
    double alpha = 0, tv = 0, p_le = 0, either = 0, far = 0;
    for (int64_t j = 0; j < c->shape.columns; ++j)
        far = fmax(far, fmax((double)s->z_max - z[j], (double)full->t_max - t[j]));
    const double near = 2 * (far + 8) * ORACLE_U;
    for (int64_t j = 0; j < c->shape.columns; ++j) {
        const double p = exp(z[j] - (double)s->z_max) / s->z_sum, q = exp(t[j] - (double)full->t_max) / full->t_sum;
        alpha += fmin(p, q);
        tv += fmax(q - p, 0);
        p_le += p <= q ? p : 0;
        either += fabs(log(p) - log(q)) <= near ? p : 0;
    }
    assert_near(v->alpha, (oracle_figure){alpha, near * alpha}, SUMS * alpha, "alpha", row);
    assert_near(v->tv, (oracle_figure){tv, near * (tv + alpha)}, SUMS * tv, "tv", row);
    assert_near(v->p_le, (oracle_figure){p_le, near * p_le + either}, SUMS * p_le, "p_le", row);
}

static void overlaps_with_full_statistics(draws *d) {
    for (int w = 0; w < WIDTHS; ++w) {
        const tile_shape shape = {.rows = 4, .target_rows = w % 2 ? 4 : 3, .columns = widths[w]};
        static collected first;
        oh_row_stats full[ROWS_MAX];
        oh_row_overlap v[ROWS_MAX];
        tile_case c;
        tile_case_open(&c, &shape, d);
        const oh_tile_stats r = request(&first, c.view, NULL, 0, 0, 1);
        assert_int_equal(plugin.table->tile_stats(plugin.queue, &r), OH_OK);
        for (int64_t i = 0; i < shape.target_rows; ++i) {
            oh_row_stats_empty(&full[i]);
            full[i].t_max = 14 + (float)i;
            full[i].t_sum = 1 + draw_uniform(d);
        }
        full[0].flags = w % 4 ? 0 : OH_ROW_T_BAD;
        const oh_tile_overlap o = {
            .tile = c.view, .stats = first.stats, .overlap = v, .full = full, .want = OH_WANT_OVERLAP, .restart = 1};
        assert_int_equal(plugin.table->tile_overlap(plugin.queue, &o), OH_OK);
        for (int64_t i = 0; i < 4; ++i) {
            const oh_row_stats *of_target = &full[c.target_row ? c.target_row[i] : i];
            if (of_target->flags & OH_ROW_T_BAD)
                assert_true(v[i].alpha == 0 && v[i].tv == 0);
            else
                check_full_row(&c, &first.stats[i], of_target, &v[i], i);
        }
        tile_case_close(&c);
    }
}

static void test_second_read_against_the_targets_whole_vocabulary(void **state) {
    (void)state;
    on_every_kernel(overlaps_with_full_statistics, "full", 79);
}

/* ------------------------------------------------------------------------------------------------ gradient ---- */

static oh_objective objective_of(uint32_t terms, int64_t columns) {
    oh_objective o = {.eta = 3, .block_size = 1, .valid_columns = columns, .terms = terms};
    for (int i = 0; i < OH_TERM_COUNT; ++i)
        o.lambda[i] = terms >> i & 1u ? 1 - 0.1 * i : 0;
    return o;
}

/* Both reads and row_finish, by the plugin. */
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
    assert_int_equal(plugin.table->tile_stats(plugin.queue, &s), OH_OK);
    const oh_tile_overlap v = {.tile = *view, .stats = stats, .overlap = overlap, .want = want & ~0xffu, .restart = 1};
    assert_int_equal(plugin.table->tile_overlap(plugin.queue, &v), OH_OK);
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
    assert_int_equal(plugin.table->row_finish(plugin.queue, &f), OH_OK);
}

/* Half a unit in the last place of the output, and half of the smallest subnormal; f32 subnormals are flushed. */
static double rounding_of(int32_t dtype, double value) {
    if (dtype == OH_F32) return ORACLE_U * fabs(value) + 0x1p-126;
    return dtype == OH_BF16 ? 0x1p-8 * fabs(value) + 0x1p-126 : 0x1p-11 * fabs(value) + 0x1p-25;
}

static void check_grad_row(const tile_case *c, const oh_objective *o, const oh_row_coef *coef, const void *out,
                           int64_t out_ld, int32_t out_dtype, int64_t row) {
    static double dz[WIDTH_MAX], bound[WIDTH_MAX];
    const int64_t columns = c->shape.columns;
    const double *z = c->z + row * columns, *t = c->shape.target_rows > 0 ? c->t + row * columns : NULL;
    const double scale = (double)c->view.draft_transform.scale, softcap = (double)c->view.draft_transform.softcap;
    const int32_t label = coef->label < 0 ? -1 : (int32_t)(coef->label - c->shape.first_column);
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

/* Out of place, with bytes between rows that must stay; then in place where the dtypes allow it: the same bits. */
static void check_grad(tile_case *c, const oh_objective *o, const int32_t *label, int32_t out_dtype) {
    oh_row_coef coef[ROWS_MAX];
    const int64_t columns = c->shape.columns, rows = c->shape.rows, ld = columns + 5;
    const int64_t size = oh_element_size(out_dtype), tile_size = c->shape.format == OH_TILE_F32 ? 4 : 2;
    unsigned char *out = malloc((size_t)(rows * ld * size));
    assert_non_null(out);
    memset(out, 0x5a, (size_t)(rows * ld * size));
    read_coef(&c->view, o, label, coef);
    coef[rows - 1].zero = 1;
    const uint64_t before = tile_case_checksum(c);
    oh_tile_grad g = {
        .tile = c->view, .coef = coef, .out = out, .out_ld = ld, .out_dtype = out_dtype, .form = oh_objective_form(o)};
    assert_int_equal(plugin.table->tile_grad(plugin.queue, &g), OH_OK);
    assert_true(before == tile_case_checksum(c));
    for (int64_t i = 0; i < rows; ++i) {
        check_grad_row(c, o, &coef[i], out, ld, out_dtype, i);
        for (int64_t b = columns * size; b < ld * size; ++b)
            assert_int_equal(out[i * ld * size + b], 0x5a);
    }
    if (size <= tile_size && c->view.draft_ld * tile_size % size == 0) {
        g.out = c->view.draft;
        g.out_ld = c->view.draft_ld * tile_size / size;
        assert_int_equal(plugin.table->tile_grad(plugin.queue, &g), OH_OK);
        for (int64_t i = 0; i < rows; ++i)
            assert_memory_equal((unsigned char *)g.out + i * g.out_ld * size, out + i * ld * size,
                                (size_t)(columns * size));
    }
    free(out);
}

static void gradients(draws *d) {
    int round = 0;
    for (int term = 0; term <= OH_TERM_COUNT; ++term)
        for (int32_t format = OH_TILE_F32; format <= OH_TILE_DIFF; ++format)
            for (int32_t transform = 0; transform < 4; ++transform, ++round) {
                const int64_t columns = widths[round * 5 % WIDTHS];
                const tile_shape shape = {.rows = 3,
                                          .target_rows = round % 2 ? 3 : 2,
                                          .columns = columns,
                                          .first_column = round % 3 ? 100 : 0,
                                          .format = format,
                                          .transform = transform,
                                          .nearness = format % 2 ? 0.01 : 0};
                oh_objective o = objective_of(term < OH_TERM_COUNT ? OH_TERM_BIT(term) : 0xffu, columns);
                tile_case c;
                o.label_smoothing = transform > 1 ? 0.1 : 0;
                o.z_loss = transform % 2 ? 1e-2 : 0;
                tile_case_open(&c, &shape, d);
                if (columns > 4 && !(o.terms & OH_TERM_BIT(OH_TERM_CE))) {
                    tile_case_put_draft(&c, 0, 2, -INF); /* columns that neither, only q, and only p has */
                    tile_case_put_target(&c, 0, 2, -INF);
                    tile_case_put_draft(&c, 1, 3, -INF);
                    if (format != OH_TILE_DIFF) tile_case_put_target(&c, 1, 4, -INF);
                    tile_case_refresh(&c);
                }
                check_grad(&c, &o, NULL, round % 3);
                tile_case_close(&c);
            }
}

static void test_gradient_of_every_term_format_and_transform(void **state) {
    (void)state;
    on_every_kernel(gradients, "grad", 77);
}

/* Drafter and target with the same logits: every difference is exactly 0. rkl's own value, a coefficient, is 0 within the
 * f64 roundings of moving references. */
static void equal_logits(draws *d) {
    for (int w = 0; w < WIDTHS; ++w) {
        const tile_shape shape = {.rows = 2, .target_rows = 2, .columns = widths[w]};
        tile_case c;
        oh_row_coef coef[ROWS_MAX];
        static float dz[2 * WIDTH_MAX];
        tile_case_open(&c, &shape, d);
        for (int64_t i = 0; i < 2; ++i)
            for (int64_t v = 0; v < widths[w]; ++v) {
                const double z = 4 * draw_normal(d);
                tile_case_put_draft(&c, i, v, z);
                tile_case_put_target(&c, i, v, z);
            }
        for (int term = OH_TERM_KL; term <= OH_TERM_JSD; ++term) {
            const oh_objective o = objective_of(OH_TERM_BIT(term), widths[w]);
            read_coef(&c.view, &o, NULL, coef);
            const oh_tile_grad g = {
                .tile = c.view, .coef = coef, .out = dz, .out_ld = widths[w], .form = oh_objective_form(&o)};
            assert_int_equal(plugin.table->tile_grad(plugin.queue, &g), OH_OK);
            for (int64_t v = 0; v < 2 * widths[w]; ++v)
                assert_true(term == OH_TERM_RKL ? fabsf(dz[v]) < 0x1p-48f : dz[v] == 0);
        }
        tile_case_close(&c);
    }
}

static void test_case_11_equal_logits_have_no_gradient(void **state) {
    (void)state;
    on_every_kernel(equal_logits, "equal", 78);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_read_of_every_format_shape_and_transform),
        cmocka_unit_test(test_first_read_of_every_width_to_300),
        cmocka_unit_test(test_ties_go_to_the_lowest_column),
        cmocka_unit_test(test_infinities_and_nans_are_flagged_and_kept_out_of_sums),
        cmocka_unit_test(test_exponentials_are_within_one_unit_in_the_last_place),
        cmocka_unit_test(test_second_read_of_every_format_shape_and_transform),
        cmocka_unit_test(test_second_read_against_the_targets_whole_vocabulary),
        cmocka_unit_test(test_gradient_of_every_term_format_and_transform),
        cmocka_unit_test(test_case_11_equal_logits_have_no_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
