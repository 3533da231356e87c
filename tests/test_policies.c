/* Policies, chunks and panels are ways to spend memory: none of them is a way to get other numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "step_case.h"

/* The template backend multiplies in f64 and rounds once, whatever the shape, so a logit has the same bits in every
 * tile; sums over columns are f64 sums of f32 terms in an order that panels change. U = 2^-24 is the unit roundoff. */
#define U 0x1p-24
#define FIGURE_BOUND (4 * U)
#define GRAD_BOUND (16 * U) /* an f32 running sum over panels where one panel has a single rounding */

static const struct {
    const char *name;
    int32_t policy;
    int64_t chunk_blocks; /* 0: as the plan chooses */
    int64_t memory_kib;   /* 0: unlimited */
    int panels;           /* the budget is under one tile of that chunk */
} ways[] = {
    {"cached, one chunk", OH_POLICY_CACHED, 0, 0, 0},
    {"cached, chunks", OH_POLICY_CACHED, 2, 0, 0},
    {"cached, block by block", OH_POLICY_CACHED, 1, 0, 0},
    {"recompute", OH_POLICY_RECOMPUTE, 0, 0, 0},
    {"recompute, chunks", OH_POLICY_RECOMPUTE, 3, 0, 0},
    {"recompute, panels", OH_POLICY_RECOMPUTE, 4, 48, 1},
    {"recompute, narrow panels", OH_POLICY_RECOMPUTE, 2, 24, 1},
    {"naive", OH_POLICY_NAIVE, 0, 0, 0},
    {"naive, chunks", OH_POLICY_NAIVE, 2, 0, 0},
    {"auto, small budget", OH_POLICY_AUTO, 2, 24, 1},
};

enum { WAYS = sizeof ways / sizeof ways[0], CACHED = 0, RECOMPUTE = 3, PANELS = 5 };

static void set_way(oh_request *r, int way) {
    r->policy = ways[way].policy;
    r->chunk = ways[way].chunk_blocks * r->objective.block_size;
    r->memory = ways[way].memory_kib ? ways[way].memory_kib << 10 : INT64_C(1) << 40;
}

static void compare_ways(step_case *c) {
    oh_context *context = step_context_open();
    step_output reference;
    set_way(&c->request, 0);
    step_run(context, c, &reference);
    assert_true(reference.results.supervised > 0);
    for (int way = 1; way < WAYS; ++way) {
        step_output out;
        print_message("  %s\n", ways[way].name);
        set_way(&c->request, way);
        step_run(context, c, &out);
        assert_int_equal(out.plan.panel < c->request.vocab, ways[way].panels);
        step_assert_same(&out, &reference, FIGURE_BOUND, GRAD_BOUND);
        step_output_close(&out);
    }
    step_output_close(&reference);
    oh_context_close(context);
}

static void test_every_way_gives_the_same_numbers(void **state) {
    (void)state;
    static const char *const terms[] = {"kl=1", "ce=1",
                                        "ce=0.2,kl=0.3,rkl=0.1,jsd=0.5,tv=0.7,nla=0.05,lk_hybrid=0.4,cap=0.02"};
    static const char *const decays[] = {"exp:10", "power:0.9", "dpace:0.5"};
    draws d = draws_open("test_policies", 1);
    for (int i = 0; i < 3; ++i) {
        step_case c;
        step_case_open(&c, &d, 7, 5, 24, 333);
        oh_objective *o = &c.request.objective;
        assert_int_equal(oh_objective_set_terms(o, terms[i], NULL), OH_OK);
        assert_int_equal(oh_objective_set_decay(o, decays[i], NULL), OH_OK);
        o->labels = i == 1 ? OH_LABELS_GIVEN : OH_LABELS_TARGET;
        o->gap = i == 2 ? OH_GAP_SKIP : OH_GAP_STOP;
        compare_ways(&c);
        step_case_close(&c);
    }
}

static void test_every_way_leaves_out_the_same_broken_rows(void **state) {
    (void)state;
    draws d = draws_open("test_policies", 2);
    step_case c;
    step_case_open(&c, &d, 7, 5, 24, 333);
    for (int64_t i = 0; i < c.rows; ++i)
        c.mask[i] = 1;
    c.draft[9 * 24 + 3] = NAN;                      /* one drafter row */
    c.target[c.target_row[14] * 24 + 1] = INFINITY; /* one target row, and every draft row that shares it */
    compare_ways(&c);
    step_output out;
    oh_context *context = step_context_open();
    set_way(&c.request, 0);
    step_run(context, &c, &out);
    assert_true(out.results.nonfinite_rows >= 2);
    assert_int_equal(out.results.first_nonfinite_row, 9);
    for (int64_t h = 0; h < 24; ++h)
        assert_true(out.grad[9 * 24 + h] == 0);
    step_output_close(&out);
    oh_context_close(context);
    step_case_close(&c);
}

/* In a tile of differences no draft logit can be read without the target's. Logits are off by f16's rounding of t and
 * of t - z, at most 2^-11 of about 8 each, the same in every stage that projects them; what differs is f32 rounding. */
static void test_every_way_reads_tiles_of_differences(void **state) {
    (void)state;
    draws d = draws_open("test_policies", 4);
    for (int i = 0; i < 2; ++i) {
        step_case c;
        step_case_open(&c, &d, 7, 5, 24, 333);
        c.request.tile = OH_TILE_DIFF;
        assert_int_equal(oh_objective_set_terms(&c.request.objective, i ? "ce=1" : "kl=1", NULL), OH_OK);
        c.request.objective.labels = i ? OH_LABELS_GIVEN : OH_LABELS_TARGET;
        oh_context *context = step_context_open();
        step_output reference;
        c.request.memory = INT64_C(1) << 40;
        c.request.policy = OH_POLICY_CACHED;
        step_run(context, &c, &reference);
        for (int32_t policy = OH_POLICY_RECOMPUTE; policy <= OH_POLICY_NAIVE; ++policy) {
            step_output out;
            c.request.policy = policy;
            step_run(context, &c, &out);
            step_assert_same(&out, &reference, FIGURE_BOUND, GRAD_BOUND);
            step_output_close(&out);
        }
        step_output_close(&reference);
        oh_context_close(context);
        step_case_close(&c);
    }
}

/* A target's logit where the draft's is -inf makes kl infinite: no way of reading differences counts the row's lists, also
 * where they alone are read and the target is there to form z. */
static void test_every_way_leaves_rows_of_infinite_divergence_out_of_lists(void **state) {
    (void)state;
    draws d = draws_open("test_policies", 5);
    step_case c;
    step_case_open(&c, &d, 7, 5, 24, 333);
    c.request.tile = OH_TILE_DIFF;
    c.request.has_bias = 1;
    c.request.memory = INT64_C(1) << 40;
    c.bias[5] = -INFINITY;
    oh_context *context = step_context_open();
    for (int32_t policy = OH_POLICY_CACHED; policy <= OH_POLICY_NAIVE; ++policy) {
        step_output out;
        c.request.policy = policy;
        step_run(context, &c, &out);
        assert_true(out.results.supervised > 0);
        assert_int_equal(out.results.nonfinite_rows, out.results.supervised);
        for (int32_t k = 0; k < out.results.top_k_count; ++k)
            assert_int_equal(out.results.top_k[k].hits, 0);
        step_output_close(&out);
    }
    oh_context_close(context);
    step_case_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_way_gives_the_same_numbers),
        cmocka_unit_test(test_every_way_leaves_out_the_same_broken_rows),
        cmocka_unit_test(test_every_way_reads_tiles_of_differences),
        cmocka_unit_test(test_every_way_leaves_rows_of_infinite_divergence_out_of_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
