/* row_finish and step_finish against the definitions written out: supervised rows, weights, losses, hits, streaks,
 * slots and N. Statistics are made in f64 here, so that sums agree to f64 rounding: 1e-12 relative. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "draws.h"
#include "oracle.h"
#include "portable/portable.h"

enum { BLOCK = 4, BLOCKS = 7, ROWS = BLOCK * BLOCKS, V = 11, TOP_K = 4, SUMS = 64 };
#define INF INFINITY

typedef struct chunk {
    oh_objective objective;
    double z[ROWS][V], t[ROWS][V]; /* by row */
    int32_t compact[ROWS], label[ROWS], rows_of[ROWS];
    int32_t compact_rows, bad_row; /* bad_row: a supervised row that is not finite */
    float mask[ROWS];
    oh_row_stats stats[ROWS];
    oh_row_overlap overlap[ROWS];
    int32_t topk_id[ROWS * TOP_K];
    float topk_logit[ROWS * TOP_K];
    /* outputs */
    oh_row_result results[ROWS];
    double partial[BLOCKS * SUMS], sums[SUMS + 1];
    oh_row_coef coef[ROWS];
    float row_scale[ROWS], row_loss[ROWS], weight[ROWS], logprob[ROWS * TOP_K];
    int32_t label_out[ROWS], row_label[ROWS], argmax[ROWS], rank[ROWS], id_out[ROWS * TOP_K];
} chunk;

static void make_stats(chunk *c, int32_t row, int32_t i) {
    const double *z = c->z[row], *t = c->t[row];
    oracle_row e;
    oracle_measure(z, t, V, -1, 0, 0, &e);
    const int32_t y = e.t_argmax;
    oracle_measure(z, t, V, y, 0, 0, &e);
    oh_row_stats *s = &c->stats[i];
    oh_row_stats_empty(s);
    s->z_argmax = e.z_argmax;
    s->t_argmax = s->label = c->label[row] = y;
    s->z_max = (float)z[e.z_argmax];
    s->t_max = (float)t[y];
    s->z_label = (float)z[y];
    for (int v = 0; v < V; ++v) {
        const double x = z[v] - z[e.z_argmax], u = t[v] - t[y];
        s->z_sum += exp(x);
        s->t_sum += exp(u);
        s->z_dot += exp(x) * x;
        s->kl_dot += exp(u) * (u - x);
        s->rkl_dot += exp(x) * (x - u);
        s->z_total += z[v];
    }
    c->overlap[i] = (oh_row_overlap){e.alpha.value, e.tv.value, e.p_le.value, e.jsd.value, e.kl_pm.value, e.rank};
    oracle_top_k(z, V, TOP_K, c->topk_id + (int64_t)i * TOP_K);
    for (int k = 0; k < TOP_K; ++k)
        c->topk_logit[i * TOP_K + k] = (float)z[c->topk_id[i * TOP_K + k]];
}

static void draw_chunk(chunk *c, draws *d) {
    memset(c, 0, sizeof *c);
    c->objective = (oh_objective){.label_smoothing = 0.1,
                                  .z_loss = 0.01,
                                  .eta = 3,
                                  .decay_param = 2,
                                  .block_size = BLOCK,
                                  .valid_columns = V,
                                  .terms = 0xffu,
                                  .first_slot = 1,
                                  .top_k_count = 3,
                                  .top_k = {1, 2, 4}};
    for (int i = 0; i < OH_TERM_COUNT; ++i)
        c->objective.lambda[i] = 1 - 0.1 * i;
    for (int32_t row = 0; row < ROWS; ++row) {
        for (int v = 0; v < V; ++v) {
            /* Halves give ties; a near target gives hits. */
            c->t[row][v] = rint(4 * draw_normal(d)) / 2;
            c->z[row][v] = c->t[row][v] + rint(2 * draw_normal(d)) / 2;
        }
        const int supervised = row % BLOCK >= 1 && draw_below(d, 5) != 0 && row / BLOCK != 3; /* block 3: none */
        c->mask[row] = supervised ? (float)(0.25 + draw_uniform(d)) : 0;
        c->compact[row] = supervised ? c->compact_rows : -1;
        if (!supervised) continue;
        make_stats(c, row, c->compact_rows);
        c->rows_of[c->compact_rows++] = row;
    }
    c->bad_row = c->rows_of[c->compact_rows / 2];
    c->stats[c->compact[c->bad_row]].flags |= OH_ROW_Z_BAD;
}

static oh_row_finish finish_of(chunk *c) {
    return (oh_row_finish){.objective = c->objective,
                           .rows = ROWS,
                           .compact_rows = c->compact_rows,
                           .first_row = 1000,
                           .compact = c->compact,
                           .mask = c->mask,
                           .stats = c->stats,
                           .overlap = c->overlap,
                           .topk_id = c->topk_id,
                           .topk_logit = c->topk_logit,
                           .scale = 0.37,
                           .parts = OH_FINISH_PARTS,
                           .want = OH_WANT_ENTROPY | OH_WANT_OVERLAP | OH_WANT_RANK,
                           .top_k_mask = 7,
                           .top_k = TOP_K,
                           .has_target = 1,
                           .results = c->results,
                           .partial = c->partial,
                           .sums = c->sums,
                           .coef = c->coef,
                           .row_scale = c->row_scale,
                           .label_out = c->label_out,
                           .row_loss_out = c->row_loss,
                           .weight_out = c->weight,
                           .row_label_out = c->row_label,
                           .argmax_out = c->argmax,
                           .rank_out = c->rank,
                           .topk_id_out = c->id_out,
                           .topk_logprob_out = c->logprob};
}

static int supervised(const chunk *c, int row) {
    return c->compact[row] >= 0;
}

static int counts(const chunk *c, int row) {
    return supervised(c, row) && row != c->bad_row;
}

static double log_p(const chunk *c, int row, int32_t v) {
    double sum = 0;
    for (int u = 0; u < V; ++u)
        sum += exp(c->z[row][u]);
    return c->z[row][v] - log(sum);
}

static double expected_weight(const chunk *c, int row) {
    const oh_objective *o = &c->objective;
    const int first = row / BLOCK * BLOCK;
    const double k = row % BLOCK - o->first_slot;
    double decay = 1;
    if (!supervised(c, row)) return 0;
    if (o->decay == OH_DECAY_EXP) decay = exp(-k / o->decay_param);
    if (o->decay == OH_DECAY_POWER) decay = pow(o->decay_param, k);
    if (o->decay == OH_DECAY_DPACE) {
        decay = 0;
        for (int i = row; i < first + BLOCK; ++i) {
            double product = 1;
            for (int j = first; j <= i; ++j)
                if (counts(c, j)) product *= (1 - o->decay_param) * exp(log_p(c, j, c->label[j])) + o->decay_param;
            if (supervised(c, i)) decay += product;
        }
    }
    return (double)c->mask[row] * decay;
}

static int hit(const chunk *c, int row, int K) {
    oracle_row e;
    oracle_measure(c->z[row], c->t[row], V, c->label[row], 0, 0, &e);
    return e.rank < K;
}

static double streak(const chunk *c, int block, int K) {
    double length = 0;
    for (int slot = c->objective.first_slot; slot < BLOCK; ++slot) {
        const int row = block * BLOCK + slot;
        if (!counts(c, row) && c->objective.gap == OH_GAP_STOP) return length;
        if (!counts(c, row)) continue;
        if (!hit(c, row, K)) return length;
        ++length;
    }
    return length;
}

static void expected_sums(const chunk *c, double *sums) {
    const oh_objective *o = &c->objective;
    memset(sums, 0, SUMS * sizeof *sums);
    for (int row = 0; row < ROWS; ++row) {
        const double weight = expected_weight(c, row);
        if (!supervised(c, row)) continue;
        sums[OH_SUM_WEIGHT] += weight;
        sums[OH_SUM_MASK] += (double)c->mask[row];
        sums[OH_SUM_SUPERVISED] += 1;
        if (!counts(c, row)) continue;
        double term[OH_TERM_COUNT];
        oracle_row e;
        oracle_terms(o, c->z[row], c->t[row], V, c->label[row], term);
        oracle_measure(c->z[row], c->t[row], V, c->label[row], 0, 0, &e);
        for (int i = 0; i < OH_TERM_COUNT; ++i) {
            sums[OH_SUM_TERM + i] += weight * term[i];
            sums[OH_SUM_LOSS_NUM] += weight * o->lambda[i] * term[i];
        }
        sums[OH_SUM_ALPHA] += e.alpha.value;
        sums[OH_SUM_ENTROPY] += e.entropy.value;
        sums[OH_SUM_DRAFT_TOP1] += exp(log_p(c, row, e.z_argmax));
        sums[OH_SUM_TARGET_TOP1] += exp(c->t[row][e.t_argmax] - e.t_lse.value);
        for (int k = 0; k < o->top_k_count; ++k)
            sums[OH_SUM_FIXED + k] += hit(c, row, o->top_k[k]);
        sums[OH_SUM_FIXED + 6 + row % BLOCK] += hit(c, row, 1);
        sums[OH_SUM_FIXED + 6 + BLOCK + row % BLOCK] += 1;
    }
    sums[OH_SUM_NONFINITE] = 1;
    sums[OH_SUM_FIRST_NONFINITE] = 1000 + c->bad_row + 1;
    for (int b = 0; b < BLOCKS; ++b) {
        double product = 1;
        int any = 0;
        for (int slot = o->first_slot; slot < BLOCK; ++slot) {
            const int row = b * BLOCK + slot;
            oracle_row e = {0};
            if (counts(c, row)) oracle_measure(c->z[row], c->t[row], V, -1, 0, 0, &e);
            product *= e.alpha.value;
            sums[OH_SUM_TAU] += product;
            any |= supervised(c, row);
        }
        sums[OH_SUM_BLOCKS] += any;
        for (int k = 0; k < o->top_k_count; ++k)
            sums[OH_SUM_FIXED + 3 + k] += streak(c, b, o->top_k[k]);
    }
}

static void assert_close(double got, double expected, const char *what, int64_t at) {
    if (fabs(got - expected) <= 1e-12 * (1 + fabs(expected))) return;
    fail_msg("%s %lld: %.17g, expected %.17g", what, (long long)at, got, expected);
}

static const struct {
    double param;
    int32_t decay, gap;
} rules[] = {{0, OH_DECAY_NONE, OH_GAP_STOP},
             {10, OH_DECAY_EXP, OH_GAP_SKIP},
             {0.8, OH_DECAY_POWER, OH_GAP_STOP},
             {0.3, OH_DECAY_DPACE, OH_GAP_SKIP}};

static void draw_ruled(chunk *c, draws *d, size_t rule) {
    draw_chunk(c, d);
    c->objective.decay = rules[rule].decay;
    c->objective.decay_param = rules[rule].param;
    c->objective.gap = rules[rule].gap;
}

static void test_sums_are_the_definitions_and_add(void **state) {
    static chunk c;
    draws d = draws_open("rows", 81);
    double expected[SUMS], hits = 0, streaks = 0;
    (void)state;
    for (size_t rule = 0; rule < 4; ++rule)
        for (int round = 0; round < 8; ++round) {
            draw_ruled(&c, &d, rule);
            const oh_row_finish f = finish_of(&c);
            const int64_t count = oh_sum_count(&c.objective);
            c.sums[count] = 77;
            expected_sums(&c, expected);
            for (int twice = 1; twice <= 2; ++twice) {
                assert_int_equal(oh_portable_row_finish(&f), OH_OK);
                for (int64_t k = 0; k < count; ++k)
                    assert_close(c.sums[k], k == OH_SUM_FIRST_NONFINITE ? expected[k] : twice * expected[k], "sum", k);
            }
            assert_true(c.sums[count] == 77);
            hits += expected[OH_SUM_FIXED];
            streaks += expected[OH_SUM_FIXED + 5];
        }
    assert_true(hits > 20 && streaks > 20); /* else nothing was counted */
}

static void test_rows_outputs_are_the_definitions(void **state) {
    static chunk c;
    draws d = draws_open("row outputs", 82);
    (void)state;
    for (size_t rule = 0; rule < 4; ++rule) {
        draw_ruled(&c, &d, rule);
        const oh_row_finish f = finish_of(&c);
        assert_int_equal(oh_portable_row_finish(&f), OH_OK);
        for (int row = 0; row < ROWS; ++row) {
            const int32_t i = c.compact[row];
            double term[OH_TERM_COUNT], loss = 0;
            oracle_row e = {.z_argmax = -1, .rank = -1};
            if (counts(&c, row)) {
                oracle_terms(&c.objective, c.z[row], c.t[row], V, c.label[row], term);
                oracle_measure(c.z[row], c.t[row], V, c.label[row], 0, 0, &e);
                for (int k = 0; k < OH_TERM_COUNT; ++k)
                    loss += c.objective.lambda[k] * term[k];
            }
            /* These are f32: one rounding. */
            assert_true(fabs((double)c.row_loss[row] - loss) <= 1.01 * ORACLE_U * fabs(loss));
            assert_true(fabs((double)c.weight[row] - expected_weight(&c, row)) <=
                        1.01 * ORACLE_U * expected_weight(&c, row));
            assert_int_equal(c.row_label[row], counts(&c, row) ? c.label[row] : -1);
            assert_int_equal(c.argmax[row], e.z_argmax);
            assert_int_equal(c.rank[row], e.rank);
            for (int k = 0; k < TOP_K; ++k) {
                const int32_t id = counts(&c, row) ? c.topk_id[i * TOP_K + k] : -1;
                const double log_of = id >= 0 ? log_p(&c, row, id) : supervised(&c, row) ? -INF : 0;
                assert_int_equal(c.id_out[row * TOP_K + k], id);
                assert_true((double)c.logprob[row * TOP_K + k] == log_of ||
                            fabs((double)c.logprob[row * TOP_K + k] - log_of) <= 1.01 * ORACLE_U * fabs(log_of));
            }
            if (i < 0) continue;
            assert_int_equal(c.coef[i].zero, row == c.bad_row);
            assert_true(counts(&c, row) ? c.label_out[i] == c.label[row] : c.label_out[i] < 0);
            const double scale = counts(&c, row) ? 0.37 * expected_weight(&c, row) : 0;
            assert_true(fabs((double)c.row_scale[i] - scale) <= 1.01 * ORACLE_U * scale);
        }
    }
}

/* Case 4: nothing supervised leaves zeros, and N = 0 a loss and a factor of 0. */
static void test_case_4_nothing_supervised_is_a_step_of_zeros(void **state) {
    static chunk c;
    draws d = draws_open("nothing", 83);
    double loss[3] = {NAN, NAN, NAN};
    float factor = NAN;
    (void)state;
    for (size_t rule = 0; rule < 4; ++rule) {
        draw_ruled(&c, &d, rule);
        for (int row = 0; row < ROWS; ++row)
            c.compact[row] = -1, c.mask[row] = 0;
        c.compact_rows = 0;
        memset(c.row_loss, 0xff, sizeof c.row_loss);
        const oh_row_finish f = finish_of(&c);
        assert_int_equal(oh_portable_row_finish(&f), OH_OK);
        for (int64_t k = 0; k < oh_sum_count(&c.objective); ++k)
            assert_true(c.sums[k] == 0);
        assert_true(c.row_loss[5] == 0 && c.row_label[5] == -1 && c.id_out[5] == -1 && c.logprob[5] == 0);
        const oh_step_finish s = {.objective = c.objective, .sums = c.sums, .loss = loss, .factor = &factor};
        assert_int_equal(oh_portable_step_finish(&s), OH_OK);
        assert_true(loss[0] == 0 && loss[1] == 0 && loss[2] == 0 && factor == 0);
    }
}

static void test_the_normaliser_follows_its_rule(void **state) {
    double sums[SUMS] = {0}, loss[3], given = 5;
    float factor;
    oh_objective o = {.block_size = BLOCK, .norm_value = 8};
    (void)state;
    sums[OH_SUM_LOSS_NUM] = 12;
    sums[OH_SUM_WEIGHT] = 3;
    sums[OH_SUM_MASK] = 4;
    static const struct {
        int32_t norm;
        double n;
    } cases[] = {{OH_NORM_WEIGHTS, 3}, {OH_NORM_COUNT, 4}, {OH_NORM_NONE, 1}, {OH_NORM_NUMBER, 8}};
    for (int i = 0; i < 8; ++i) {
        o.norm = cases[i % 4].norm;
        const double n = i < 4 ? cases[i].n : given; /* the caller's scalar goes first */
        const oh_step_finish s = {
            .objective = o, .norm = i < 4 ? NULL : &given, .sums = sums, .loss = loss, .factor = &factor};
        assert_int_equal(oh_portable_step_finish(&s), OH_OK);
        assert_true(loss[0] == 12 / n && loss[1] == 12 && loss[2] == n && factor == (float)(1 / n));
    }
}

static void test_labels_of_a_subset_are_positions_among_its_ids(void **state) {
    const int32_t ids[] = {2, 3, 7, 40, 41}, target_row[] = {5, 0, 1, 2, 3, 4};
    static const int32_t argmax[] = {2, 41, 4, 7, -1, 99}, expected[] = {-1, 0, 4, -1, 2, -1};
    oh_row_stats full[6];
    int32_t label[7];
    (void)state;
    for (int i = 0; i < 6; ++i) {
        oh_row_stats_empty(&full[i]);
        full[i].t_argmax = argmax[i];
        full[i].t_max = argmax[i] >= 0 ? 1 : -INF;
    }
    label[6] = 77;
    oh_row_labels l = {.rows = 6, .id_count = 5, .full = full, .target_row = target_row, .ids = ids, .label = label};
    assert_int_equal(oh_portable_row_labels(&l), OH_OK);
    assert_memory_equal(label, expected, sizeof expected);
    assert_int_equal(label[6], 77);
    l.target_row = NULL;
    assert_int_equal(oh_portable_row_labels(&l), OH_OK);
    assert_true(label[0] == 0 && label[1] == 4 && label[5] == -1);
    l.ids = NULL;
    assert_int_equal(oh_portable_row_labels(&l), OH_INVALID_ARGUMENT);
    assert_int_equal(oh_portable_row_labels(NULL), OH_INVALID_ARGUMENT);
}

static void test_impossible_arguments_are_refused_and_nothing_is_touched(void **state) {
    static chunk c, before;
    draws d = draws_open("refused", 84);
    (void)state;
    draw_chunk(&c, &d);
    before = c;
    const oh_row_finish good = finish_of(&c);
    oh_row_finish f;
#define REFUSE(change)                                                                                                 \
    do {                                                                                                               \
        f = good;                                                                                                      \
        change;                                                                                                        \
        assert_int_equal(oh_portable_row_finish(&f), OH_INVALID_ARGUMENT);                                             \
        assert_memory_equal(&c, &before, sizeof c);                                                                    \
    } while (0)
    REFUSE(f.rows = -BLOCK);
    REFUSE(f.rows = ROWS - 1);
    REFUSE(f.compact_rows = -1);
    REFUSE(f.compact_rows = ROWS + 1);
    REFUSE(f.objective.block_size = 0);
    REFUSE(f.objective.first_slot = -1);
    REFUSE(f.objective.first_slot = BLOCK + 1);
    REFUSE(f.objective.terms = 1u << OH_TERM_COUNT);
    REFUSE(f.objective.top_k_count = OH_TOP_K_LIST_MAX + 1);
    REFUSE(f.objective.top_k[2] = OH_TOP_K_MAX + 1);
    REFUSE(f.objective.top_k[0] = 0);
    REFUSE(f.top_k = 3); /* hits at 4 need 4 ids */
    REFUSE(f.top_k = -1);
    REFUSE(f.top_k = OH_TOP_K_MAX + 1);
    REFUSE(f.top_k_mask = 8);
    REFUSE(f.topk_id = NULL);
    REFUSE(f.topk_logit = NULL);
    REFUSE(f.parts = OH_FINISH_PARTS + 1);
    REFUSE(f.has_target = 0);
    REFUSE(f.overlap = NULL);
    REFUSE(f.compact = NULL);
    REFUSE(f.mask = NULL);
    REFUSE(f.stats = NULL);
    REFUSE(f.results = NULL);
    REFUSE(f.partial = NULL);
    REFUSE(f.sums = NULL);
    REFUSE(f.coef = NULL);
    REFUSE(f.row_scale = NULL);
#undef REFUSE
    assert_int_equal(oh_portable_row_finish(NULL), OH_INVALID_ARGUMENT);
    f = good;
    f.rows = 0, f.compact_rows = 0, f.compact = NULL, f.partial = NULL, f.sums = NULL;
    assert_int_equal(oh_portable_row_finish(&f), OH_OK);
    assert_memory_equal(&c, &before, sizeof c);
}

static void test_impossible_steps_are_refused_and_nothing_is_touched(void **state) {
    double sums[SUMS] = {0}, loss[3] = {7, 7, 7};
    float factor = 7;
    (void)state;
    const oh_step_finish good = {.objective = {.block_size = BLOCK}, .sums = sums, .loss = loss, .factor = &factor};
    oh_step_finish s;
#define REFUSE(change)                                                                                                 \
    do {                                                                                                               \
        s = good;                                                                                                      \
        change;                                                                                                        \
        assert_int_equal(oh_portable_step_finish(&s), OH_INVALID_ARGUMENT);                                            \
        assert_true(loss[0] == 7 && factor == 7);                                                                      \
    } while (0)
    REFUSE(s.sums = NULL);
    REFUSE(s.loss = NULL);
    REFUSE(s.factor = NULL);
    REFUSE(s.objective.block_size = 0);
#undef REFUSE
    assert_int_equal(oh_portable_step_finish(NULL), OH_INVALID_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_are_the_definitions_and_add),
        cmocka_unit_test(test_rows_outputs_are_the_definitions),
        cmocka_unit_test(test_case_4_nothing_supervised_is_a_step_of_zeros),
        cmocka_unit_test(test_the_normaliser_follows_its_rule),
        cmocka_unit_test(test_labels_of_a_subset_are_positions_among_its_ids),
        cmocka_unit_test(test_impossible_arguments_are_refused_and_nothing_is_touched),
        cmocka_unit_test(test_impossible_steps_are_refused_and_nothing_is_touched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
