/* The graph is data: what design.md's table says is counted off it, not written down in it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "graph.h"
#include "schedule.h"

#define UNLIMITED (INT64_C(1) << 50)

/* design.md's trainer: T = 32,768 rows in chunks of 2,048, loss, gradient, metrics, DDTree top-4 and top-8. */
static oh_request trainer(int32_t policy) {
    oh_request r;
    oh_request_init(&r);
    r.rows = r.target_rows = 32768;
    r.hidden = 5120;
    r.vocab = 248320;
    r.chunk = 2048;
    r.memory = UNLIMITED;
    r.policy = policy;
    r.objective.top_k_count = 2;
    r.objective.top_k[0] = 4;
    r.objective.top_k[1] = 8;
    return r;
}

static oh_plan *describe(const oh_request *request) {
    oh_plan *plan = NULL;
    oh_error error = {OH_OK, ""};
    if (oh_plan_describe(request, &plan, &error) != OH_OK) fail_msg("%s", error.message);
    return plan;
}

static int is_projection(const oh_node *node) {
    return node->op == OH_OP_PROJECT_DRAFT || node->op == OH_OP_PROJECT_TARGET;
}

static int64_t count_projections(const oh_plan *plan, int merged) {
    int64_t count, projections = 0;
    const oh_node *nodes = oh_plan_nodes(plan, merged, &count);
    for (int64_t i = 0; i < count; ++i)
        projections += is_projection(&nodes[i]);
    return projections;
}

static int64_t projections_a_step(int32_t policy) {
    const oh_request request = trainer(policy);
    oh_plan *plan = describe(&request);
    const oh_plan_summary *s = oh_plan_get_summary(plan);
    /* Two ways to the same number: off the nodes, and off the passes that would run. */
    const int64_t projections = count_projections(plan, 1) * s->chunks;
    assert_int_equal(projections, s->projections_draft + s->projections_target);
    assert_int_equal(s->gemms, projections + s->chunks); /* one dX a chunk */
    assert_int_equal(s->chunks, 16);
    oh_plan_destroy(plan);
    return projections;
}

static void test_projections_of_the_three_policies(void **state) {
    (void)state;
    assert_int_equal(projections_a_step(OH_POLICY_NAIVE), 128);
    assert_int_equal(projections_a_step(OH_POLICY_RECOMPUTE), 64);
    assert_int_equal(projections_a_step(OH_POLICY_CACHED), 32);
}

static void test_consumers_alone_are_the_naive_trainer(void **state) {
    (void)state;
    /* Before merging every policy asks for the same work. */
    for (int32_t policy = OH_POLICY_CACHED; policy <= OH_POLICY_NAIVE; ++policy) {
        const oh_request request = trainer(policy);
        oh_plan *plan = describe(&request);
        assert_int_equal(count_projections(plan, 0), 8);
        oh_plan_destroy(plan);
        /* Top-1 is the accuracy that metrics read anyway: no consumer of its own. */
        oh_request with_top_1 = request;
        assert_int_equal(oh_objective_set_top_k(&with_top_1.objective, "1,4,8", NULL), OH_OK);
        plan = describe(&with_top_1);
        assert_int_equal(count_projections(plan, 0), 8);
        oh_plan_destroy(plan);
    }
}

static void test_a_second_read_costs_a_third_sweep_only_in_panels(void **state) {
    (void)state;
    oh_request r = trainer(OH_POLICY_RECOMPUTE);
    r.produce |= OH_PRODUCE_OVERLAP;
    oh_plan *plan = describe(&r);
    assert_int_equal(count_projections(plan, 1), 4);
    assert_int_equal(oh_plan_get_summary(plan)->panel, r.vocab);
    oh_plan_destroy(plan);

    r.memory = INT64_C(256) << 20; /* under one tile of 2,048 x 248,320 */
    plan = describe(&r);
    assert_true(oh_plan_get_summary(plan)->panel < r.vocab);
    assert_int_equal(count_projections(plan, 1), 6);
    oh_plan_destroy(plan);

    r.produce &= ~OH_PRODUCE_OVERLAP;
    plan = describe(&r);
    assert_int_equal(count_projections(plan, 1), 4);
    oh_plan_destroy(plan);
}

static void test_no_gradient_is_two_projections_and_no_more(void **state) {
    (void)state;
    oh_request r = trainer(OH_POLICY_RECOMPUTE);
    r.produce &= ~OH_PRODUCE_GRAD;
    oh_plan *plan = describe(&r);
    assert_int_equal(count_projections(plan, 1), 2);
    assert_int_equal(oh_plan_get_summary(plan)->gemms, 32);
    oh_plan_destroy(plan);
}

static void test_no_target_is_one_projection(void **state) {
    (void)state;
    oh_request r = trainer(OH_POLICY_CACHED);
    oh_error error;
    r.target_rows = 0;
    assert_int_equal(oh_objective_set_terms(&r.objective, "ce=1", &error), OH_OK);
    assert_int_equal(oh_objective_set_labels(&r.objective, "given", &error), OH_OK);
    oh_plan *plan = describe(&r);
    assert_int_equal(count_projections(plan, 1), 1);
    assert_int_equal(oh_plan_get_summary(plan)->projections_target, 0);
    oh_plan_destroy(plan);
}

static void test_a_trained_head_is_a_fourth_gemm(void **state) {
    (void)state;
    oh_request r = trainer(OH_POLICY_CACHED);
    r.produce |= OH_PRODUCE_HEAD_GRAD;
    oh_plan *plan = describe(&r);
    assert_int_equal(oh_plan_get_summary(plan)->gemms, 16 * 4);
    oh_plan_destroy(plan);
}

static int count_op(const oh_plan *plan, int32_t op, int32_t *k) {
    int64_t count;
    int found = 0;
    const oh_node *nodes = oh_plan_nodes(plan, 1, &count);
    for (int64_t i = 0; i < count; ++i) {
        if (nodes[i].op != op) continue;
        ++found;
        *k = nodes[i].k;
    }
    return found;
}

static void test_top_4_is_the_head_of_top_8(void **state) {
    (void)state;
    int32_t k = 0;
    oh_request r = trainer(OH_POLICY_CACHED);
    oh_plan *plan = describe(&r);
    assert_int_equal(count_op(plan, OH_OP_TOP_K, &k), 1);
    assert_int_equal(k, 8);
    assert_int_equal(count_op(plan, OH_OP_TOP_K_METRICS, &k), 2);
    oh_plan_destroy(plan);

    r = trainer(OH_POLICY_NAIVE);
    plan = describe(&r);
    assert_int_equal(count_op(plan, OH_OP_TOP_K, &k), 2);
    oh_plan_destroy(plan);
}

static void test_a_merged_graph_has_no_equal_nodes_and_keeps_every_edge(void **state) {
    (void)state;
    for (int32_t policy = OH_POLICY_CACHED; policy <= OH_POLICY_NAIVE; ++policy) {
        oh_request r = trainer(policy);
        r.produce |= OH_PRODUCE_OVERLAP | OH_PRODUCE_ROWS | OH_PRODUCE_HEAD_GRAD;
        r.objective.terms = (1u << OH_TERM_COUNT) - 1;
        oh_plan *plan = describe(&r);
        int64_t before_count, after_count;
        const oh_node *before = oh_plan_nodes(plan, 0, &before_count);
        const oh_node *after = oh_plan_nodes(plan, 1, &after_count);
        for (int64_t i = 0; i < before_count; ++i) {
            const oh_node *stand_in = &after[before[i].merged];
            assert_int_equal(stand_in->op, before[i].op);
            assert_int_equal(stand_in->stage, before[i].stage);
            assert_true((stand_in->consumers & before[i].consumers) == before[i].consumers);
            assert_int_equal(stand_in->input_count, before[i].input_count);
            for (int32_t j = 0; j < before[i].input_count; ++j)
                assert_int_equal(stand_in->inputs[j], before[before[i].inputs[j]].merged);
        }
        for (int64_t a = 0; a < after_count; ++a) {
            for (int32_t j = 0; j < after[a].input_count; ++j)
                assert_true(after[a].inputs[j] < a); /* a list in the order it can run */
            for (int64_t b = 0; b < a; ++b) {
                int equal = after[a].op == after[b].op && after[a].k == after[b].k &&
                            after[a].stage == after[b].stage && after[a].input_count == after[b].input_count;
                for (int32_t j = 0; equal && j < after[a].input_count; ++j)
                    equal = after[a].inputs[j] == after[b].inputs[j];
                assert_false(equal);
            }
        }
        oh_plan_destroy(plan);
    }
}

static void test_the_largest_request_fits_the_graph(void **state) {
    (void)state;
    oh_request r = trainer(OH_POLICY_NAIVE);
    r.produce = 0x1ff;
    r.objective.terms = (1u << OH_TERM_COUNT) - 1;
    r.objective.label_smoothing = 0.1;
    r.objective.top_k_count = OH_TOP_K_LIST_MAX;
    for (int32_t k = 0; k < OH_TOP_K_LIST_MAX; ++k)
        r.objective.top_k[k] = k + 1;
    oh_plan *plan = describe(&r);
    int64_t count;
    oh_plan_nodes(plan, 0, &count);
    assert_in_range(count, 1, OH_GRAPH_NODES_MAX);
    oh_plan_destroy(plan);
}

static void test_every_op_has_a_name(void **state) {
    (void)state;
    for (int32_t op = 0; op < OH_OP_COUNT; ++op)
        assert_non_null(oh_op_name(op));
    assert_string_equal(oh_op_name(OH_OP_SCATTER), "scatter");
    assert_string_equal(oh_op_name(OH_OP_COUNT), "unknown");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_projections_of_the_three_policies),
        cmocka_unit_test(test_consumers_alone_are_the_naive_trainer),
        cmocka_unit_test(test_a_second_read_costs_a_third_sweep_only_in_panels),
        cmocka_unit_test(test_no_gradient_is_two_projections_and_no_more),
        cmocka_unit_test(test_no_target_is_one_projection),
        cmocka_unit_test(test_a_trained_head_is_a_fourth_gemm),
        cmocka_unit_test(test_top_4_is_the_head_of_top_8),
        cmocka_unit_test(test_a_merged_graph_has_no_equal_nodes_and_keeps_every_edge),
        cmocka_unit_test(test_the_largest_request_fits_the_graph),
        cmocka_unit_test(test_every_op_has_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
