/* The portable tile operations and the row algebra, built in double: their gradient is the derivative of their loss,
 * and both are the oracle's to f64 rounding. */
#define OH_REAL_IS_DOUBLE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "draws.h"
#include "oracle.h"
#include "portable/portable.h"

enum { V = 13 };

typedef struct row_case {
    double raw[V], target[V];
    float bias[V];
    oh_transform transform;
    oh_objective objective;
    int32_t label; /* -1: the target's argmax */
} row_case;

static oh_tile_view view_of(const row_case *c, double *raw) {
    return (oh_tile_view){.draft = raw,
                          .target = c->target,
                          .draft_ld = V,
                          .target_ld = V,
                          .rows = 1,
                          .columns = V,
                          .draft_transform = c->transform,
                          .target_transform = {NULL, 1, 0}};
}

static void read_row(const row_case *c, double *raw, oh_row_stats *stats, oh_row_overlap *overlap) {
    const oh_tile_view view = view_of(c, raw);
    const oh_tile_stats s = {.tile = view,
                             .stats = stats,
                             .label = c->label >= 0 ? &c->label : NULL,
                             .want = OH_WANT_ENTROPY | OH_WANT_KL | OH_WANT_RKL | OH_WANT_TOTAL,
                             .restart = 1};
    assert_int_equal(oh_portable_tile_stats(&s), OH_OK);
    const oh_tile_overlap v = {
        .tile = view, .stats = stats, .overlap = overlap, .want = OH_WANT_OVERLAP | OH_WANT_JSD, .restart = 1};
    assert_int_equal(oh_portable_tile_overlap(&v), OH_OK);
}

static void library_terms(const row_case *c, double *raw, double term[OH_TERM_COUNT], double *alpha) {
    oh_row_stats stats;
    oh_row_overlap overlap;
    double coef[8];
    oh_objective o = c->objective;
    read_row(c, raw, &stats, &overlap);
    o.terms = 0xffu;
    oh_row_terms(&o, &stats, &overlap, term, coef);
    *alpha = overlap.alpha;
}

/* The loss whose derivative the gradient is: lk_hybrid's mixing weight stays what it was. */
static double loss_at(const row_case *c, double *raw, double mixing) {
    double term[OH_TERM_COUNT], alpha, loss = 0;
    library_terms(c, raw, term, &alpha);
    term[OH_TERM_LK_HYBRID] = mixing * term[OH_TERM_KL] + (1 - mixing) * term[OH_TERM_TV];
    for (int i = 0; i < OH_TERM_COUNT; ++i)
        loss += c->objective.lambda[i] * term[i];
    return loss;
}

static void library_grad(const row_case *c, double *raw, double dz[V], int32_t *label) {
    oh_row_stats stats;
    oh_row_overlap overlap;
    oh_row_coef coef;
    oh_row_result result;
    read_row(c, raw, &stats, &overlap);
    const oh_row_finish f = {.objective = c->objective,
                             .stats = &stats,
                             .overlap = &overlap,
                             .parts = OH_FINISH_COEF,
                             .has_target = 1,
                             .results = &result,
                             .coef = &coef};
    oh_finish_row(&f, 0);
    assert_false(coef.zero);
    *label = stats.label;
    const oh_tile_grad g = {.tile = view_of(c, raw),
                            .coef = &coef,
                            .out = dz,
                            .out_ld = V,
                            .out_dtype = OH_F32,
                            .form = oh_objective_form(&c->objective)};
    assert_int_equal(oh_portable_tile_grad(&g), OH_OK);
}

static void logits_of(const row_case *c, double z[V], double slope[V]) {
    for (int v = 0; v < V; ++v)
        z[v] = oracle_transform(c->raw[v], (double)c->transform.scale, (double)c->bias[v], (double)c->transform.softcap,
                                &slope[v]);
}

/* tv, nla, lk_hybrid and cap jump where p = q or where the argmax changes: keep a row's distance from that. */
static int away_from_jumps(const row_case *c) {
    double z[V], slope[V], z_lse = 0, t_lse = 0, first = -INFINITY, second = -INFINITY;
    logits_of(c, z, slope);
    for (int v = 0; v < V; ++v) {
        z_lse += exp(z[v]);
        t_lse += exp(c->target[v]);
        if (z[v] > first)
            second = first, first = z[v];
        else if (z[v] > second)
            second = z[v];
    }
    for (int v = 0; v < V; ++v)
        if (fabs((z[v] - log(z_lse)) - (c->target[v] - log(t_lse))) < 0.02) return 0;
    return first - second > 0.02;
}

static void draw_case(row_case *c, draws *d, int term, int transform) {
    memset(c, 0, sizeof *c);
    oh_objective *o = &c->objective;
    o->terms = term < OH_TERM_COUNT ? OH_TERM_BIT(term) : 0xffu;
    for (int i = 0; i < OH_TERM_COUNT; ++i)
        o->lambda[i] = o->terms >> i & 1u ? 1 - 0.1 * i : 0;
    o->eta = 3;
    o->block_size = 1;
    o->valid_columns = V;
    o->label_smoothing = transform % 2 ? 0.1 : 0;
    o->z_loss = transform > 1 ? 0.01 : 0;
    c->label = term == OH_TERM_CE ? (int32_t)draw_below(d, V) : -1;
    do {
        for (int v = 0; v < V; ++v) {
            c->target[v] = 2 * draw_normal(d);
            c->raw[v] = 2 * draw_normal(d);
            c->bias[v] = transform > 1 ? (float)draw_normal(d) : 0;
        }
        c->transform = (oh_transform){transform > 1 ? c->bias : NULL, transform > 0 ? 0.7f : 1, transform > 2 ? 5 : 0};
        if (term == OH_TERM_CAP) { /* acts only where the drafter is right */
            for (int v = 0; v < V; ++v)
                c->target[v] = 0.5 * c->target[v] + c->raw[v] + (double)c->bias[v];
        }
    } while (!away_from_jumps(c));
}

/* Five-point differences at h = 1e-3: the truncation is h^4 / 30 of the fifth derivative, which for these terms and
 * logits of a few units is below 1e3, and the rounding 1.5 * 2^-52 |l| / h, with |l| < 100: 1e-10 together. */
static void test_the_gradient_is_the_derivative_of_the_loss(void **state) {
    const double h = 1e-3, bound = 1e-10;
    draws d = draws_open("differences", 51);
    double largest = 0;
    (void)state;
    for (int term = 0; term <= OH_TERM_COUNT; ++term)
        for (int transform = 0; transform < 4; ++transform)
            for (int round = 0; round < 8; ++round) {
                row_case c;
                double dz[V], at[5], unused[OH_TERM_COUNT], alpha;
                int32_t label;
                draw_case(&c, &d, term, transform);
                library_grad(&c, c.raw, dz, &label);
                library_terms(&c, c.raw, unused, &alpha);
                for (int v = 0; v < V; ++v) {
                    double raw[V];
                    memcpy(raw, c.raw, sizeof raw);
                    for (int i = 0; i < 5; ++i) {
                        raw[v] = c.raw[v] + (i - 2) * h;
                        at[i] = loss_at(&c, raw, exp(-3 * alpha));
                    }
                    const double slope = (8 * (at[3] - at[1]) - (at[4] - at[0])) / (12 * h);
                    largest = fmax(largest, fabs(dz[v]));
                    if (fabs(slope - dz[v]) <= bound) continue;
                    fail_msg("term %d, transform %d, column %d: gradient %.12g, differences %.12g", term, transform, v,
                             dz[v], slope);
                }
            }
    assert_true(largest > 0.1); /* gradients that vanish would prove nothing */
}

/* Sums of 13 terms of a few units and logarithms: some tens of 2^-53 times a few units. */
static void test_losses_and_gradients_are_the_oracles_to_f64_rounding(void **state) {
    const double bound = 1e-13;
    draws d = draws_open("f64", 52);
    (void)state;
    for (int term = 0; term <= OH_TERM_COUNT; ++term)
        for (int transform = 0; transform < 4; ++transform)
            for (int round = 0; round < 8; ++round) {
                row_case c;
                double z[V], slope[V], dz[V], expected[V], got_term[OH_TERM_COUNT], term_of[OH_TERM_COUNT], alpha;
                int32_t label;
                draw_case(&c, &d, term, transform);
                library_grad(&c, c.raw, dz, &label);
                library_terms(&c, c.raw, got_term, &alpha);
                logits_of(&c, z, slope);
                oracle_terms(&c.objective, z, c.target, V, label, term_of);
                oracle_grad(&c.objective, z, c.target, V, label, 0, 0, expected, NULL);
                for (int i = 0; i < OH_TERM_COUNT; ++i)
                    assert_true(fabs(got_term[i] - term_of[i]) <= bound * (1 + fabs(term_of[i])));
                for (int v = 0; v < V; ++v)
                    assert_true(fabs(dz[v] - expected[v] * slope[v]) <= bound);
            }
}

static void test_cap_acts_in_some_of_the_cases(void **state) {
    draws d = draws_open("cap", 51);
    int acts = 0;
    (void)state;
    for (int round = 0; round < 32; ++round) {
        row_case c;
        double dz[V], size = 0;
        int32_t label;
        draw_case(&c, &d, OH_TERM_CAP, round % 4);
        library_grad(&c, c.raw, dz, &label);
        for (int v = 0; v < V; ++v)
            size += fabs(dz[v]);
        acts += size > 0;
    }
    assert_in_range(acts, 8, 32);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_gradient_is_the_derivative_of_the_loss),
        cmocka_unit_test(test_losses_and_gradients_are_the_oracles_to_f64_rounding),
        cmocka_unit_test(test_cap_acts_in_some_of_the_cases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
