/* What a step promises whatever its objective: sums that add, memory it may and may not touch, clear refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "step_case.h"

#define U 0x1p-24

static void open_small(step_case *c, draws *d) {
    step_case_open(c, d, 6, 5, 12, 67);
    c->request.memory = INT64_C(1) << 30;
}

/* cases.md 9: seven supervised rows in one call and one in another, with N = 8 given, add up to one call with 8. */
static void test_calls_with_a_given_norm_add_up(void **state) {
    (void)state;
    draws d = draws_open("test_step", 9);
    step_case whole, part[2];
    step_output all, some[2];
    oh_context *context = step_context_open();
    open_small(&whole, &d);
    for (int64_t i = 0; i < whole.rows; ++i)
        whole.mask[i] = i >= 1 && i < 5 ? 1 : i >= 6 && i < 9 ? 1 : i == 27 ? 1 : 0; /* 4 + 3, then 1 */
    assert_int_equal(oh_objective_set_norm(&whole.request.objective, "8", NULL), OH_OK);
    step_run(context, &whole, &all);
    assert_int_equal(all.results.supervised, 8);
    for (int i = 0; i < 2; ++i) {
        part[i] = whole; /* shares the arrays: masks are the views' own */
        part[i].mask = calloc((size_t)whole.rows, sizeof(float));
        assert_non_null(part[i].mask);
        for (int64_t r = 0; r < whole.rows; ++r)
            part[i].mask[r] = (r < 20) == (i == 0) ? whole.mask[r] : 0;
        step_run(context, &part[i], &some[i]);
        free(part[i].mask);
    }
    assert_int_equal(some[0].results.supervised, 7);
    for (int64_t k = 0; k < all.sum_count; ++k)
        assert_true(fabs(some[0].sums[k] + some[1].sums[k] - all.sums[k]) <= 1e-14 * fabs(all.sums[k]));
    assert_true(fabs(some[0].results.loss + some[1].results.loss - all.results.loss) <= 1e-14 * all.results.loss);
    for (int64_t i = 0; i < all.rows * all.hidden; ++i)
        assert_true(some[0].grad[i] + some[1].grad[i] == all.grad[i]); /* each row is whole in one of them */
    step_output_close(&all);
    step_output_close(&some[0]);
    step_output_close(&some[1]);
    step_case_close(&whole);
    oh_context_close(context);
}

/* cases.md 7 */
static void test_the_upstream_gradient_scales_the_gradient(void **state) {
    (void)state;
    draws d = draws_open("test_step", 7);
    static const char *const decays[] = {"exp:10", "dpace:0.5"}; /* N before and after the rows */
    for (int i = 0; i < 2; ++i) {
        step_case c;
        step_output one, some;
        oh_context *context = step_context_open();
        open_small(&c, &d);
        assert_int_equal(oh_objective_set_decay(&c.request.objective, decays[i], NULL), OH_OK);
        step_run(context, &c, &one);
        c.request.objective.upstream = 0.37;
        step_run(context, &c, &some);
        assert_true(one.results.loss == some.results.loss);
        assert_true(one.results.grad_norm > 0);
        assert_true(fabs(some.results.grad_norm / one.results.grad_norm - 0.37) <= 4 * U);
        step_output_close(&one);
        step_output_close(&some);
        step_case_close(&c);
        oh_context_close(context);
    }
}

/* cases.md 4 */
static void test_a_step_without_supervised_rows_is_zero_and_finite(void **state) {
    (void)state;
    draws d = draws_open("test_step", 4);
    static const char *const norms[] = {"weights", "count", "none", "0"};
    for (int i = 0; i < 4; ++i)
        for (int late = 0; late < 2; ++late) {
            step_case c;
            step_output out;
            oh_context *context = step_context_open();
            open_small(&c, &d);
            c.request.produce |= OH_PRODUCE_HEAD_GRAD;
            memset(c.mask, 0, (size_t)c.rows * sizeof(float));
            assert_int_equal(oh_objective_set_norm(&c.request.objective, norms[i], NULL), OH_OK);
            if (late) assert_int_equal(oh_objective_set_decay(&c.request.objective, "dpace:0.5", NULL), OH_OK);
            step_run(context, &c, &out);
            assert_int_equal(out.results.supervised, 0);
            assert_int_equal(out.results.gemms, 0);
            assert_true(out.results.loss == 0 && out.results.grad_norm == 0 && out.results.eal == 0);
            assert_true(out.results.alpha == 0 && out.results.tau == 0 && out.results.draft_entropy == 0);
            assert_true(out.results.top_k[1].rate == 0 && out.results.top_k[1].streak == 0);
            for (int64_t k = 0; k < c.rows * c.request.hidden; ++k)
                assert_true(out.grad[k] == 0);
            for (int64_t k = 0; k < c.request.vocab * c.request.hidden; ++k)
                assert_true(out.head_grad[k] == 0);
            for (int64_t k = 0; k < c.rows; ++k)
                assert_true(out.row_loss[k] == 0 && out.weight[k] == 0 && out.label[k] == -1 && out.rank[k] == -1);
            step_output_close(&out);
            step_case_close(&c);
            oh_context_close(context);
        }
}

static void test_no_rows_at_all_is_a_step(void **state) {
    (void)state;
    draws d = draws_open("test_step", 0);
    step_case c;
    step_output out;
    oh_context *context = step_context_open();
    step_case_open(&c, &d, 0, 5, 12, 67);
    c.request.rows = c.request.target_rows = 0;
    step_run(context, &c, &out);
    assert_true(out.results.loss == 0 && out.results.rows == 0 && out.results.blocks == 0);
    step_output_close(&out);
    step_case_close(&c);
    oh_context_close(context);
}

/* cases.md 23: what an unsupervised row holds goes nowhere, dW included. */
static void test_unsupervised_rows_never_matter(void **state) {
    (void)state;
    draws d = draws_open("test_step", 23);
    step_case c;
    step_output before, after;
    oh_context *context = step_context_open();
    open_small(&c, &d);
    c.request.produce |= OH_PRODUCE_HEAD_GRAD;
    step_run(context, &c, &before);
    int64_t changed = 0;
    for (int64_t i = 0; i < c.rows; ++i) {
        if (c.mask[i] > 0 && i % 5 != 0) continue;
        ++changed;
        for (int64_t h = 0; h < 12; ++h)
            c.draft[i * 12 + h] = h % 2 ? NAN : INFINITY;
        c.target_row[i] = -7;
    }
    assert_true(changed > 0);
    step_run(context, &c, &after);
    assert_memory_equal(before.sums, after.sums, (size_t)before.sum_count * sizeof(double));
    assert_memory_equal(before.grad, after.grad, (size_t)(c.rows * 12) * sizeof(float));
    assert_memory_equal(before.head_grad, after.head_grad, (size_t)(67 * 12) * sizeof(float));
    step_output_close(&before);
    step_output_close(&after);
    step_case_close(&c);
    oh_context_close(context);
}

/* A supervised row that is not finite is reported and touches no other row, dW included (0 * NaN is NaN). */
static void test_a_broken_row_stays_out_of_the_head_gradient(void **state) {
    (void)state;
    draws d = draws_open("test_step", 22);
    step_case c;
    step_output broken, masked;
    oh_context *context = step_context_open();
    open_small(&c, &d);
    for (int64_t i = 0; i < c.rows; ++i)
        c.mask[i] = 1;
    c.request.produce |= OH_PRODUCE_HEAD_GRAD;
    assert_int_equal(oh_objective_set_norm(&c.request.objective, "100", NULL), OH_OK);
    for (int64_t h = 0; h < 12; ++h)
        c.draft[8 * 12 + h] = NAN;
    step_run(context, &c, &broken);
    assert_int_equal(broken.results.nonfinite_rows, 1);
    assert_int_equal(broken.results.first_nonfinite_row, 8);
    c.mask[8] = 0;
    step_run(context, &c, &masked);
    assert_true(broken.results.loss_num == masked.results.loss_num);
    assert_true(broken.results.weight_sum > masked.results.weight_sum); /* it stays in N */
    assert_memory_equal(broken.grad, masked.grad, (size_t)(c.rows * 12) * sizeof(float));
    assert_memory_equal(broken.head_grad, masked.head_grad, (size_t)(67 * 12) * sizeof(float));
    step_output_close(&broken);
    step_output_close(&masked);
    step_case_close(&c);
    oh_context_close(context);
}

/* cases.md 15: a caller's workspace is scratch; whatever it held, and whoever used it in between, the bits stay. */
static void test_a_dirty_workspace_changes_no_bit(void **state) {
    (void)state;
    draws d = draws_open("test_step", 15);
    step_case c;
    oh_context *context = step_context_open();
    oh_error error = {OH_OK, ""};
    oh_plan *plan = NULL, *other = NULL;
    step_output out[2];
    open_small(&c, &d);
    c.request.external_workspace = 1;
    oh_inputs inputs = step_case_inputs(&c);
    assert_int_equal(oh_plan_create(context, &c.request, &plan, &error), OH_OK);
    c.request.policy = OH_POLICY_NAIVE;
    assert_int_equal(oh_plan_create(context, &c.request, &other, &error), OH_OK);
    const int64_t a = oh_plan_get_summary(plan)->workspace_bytes, b = oh_plan_get_summary(other)->workspace_bytes;
    const uint64_t bytes = (uint64_t)(a > b ? a : b);
    char *workspace = aligned_alloc(256, (bytes + 255) / 256 * 256);
    assert_non_null(workspace);
    inputs.workspace_bytes = bytes;
    for (int i = 0; i < 2; ++i) {
        step_output scratch;
        step_output_open(&out[i], &c);
        step_output_open(&scratch, &c);
        const oh_outputs outputs = step_outputs(&out[i], &c.request), elsewhere = step_outputs(&scratch, &c.request);
        inputs.workspace = workspace + 8;
        assert_int_equal(oh_plan_run(plan, &inputs, &outputs, &error), OH_INVALID_ARGUMENT);
        assert_non_null(strstr(error.message, "a multiple of 256"));
        inputs.workspace = workspace;
        memset(workspace, i ? 0xff : 0x00, bytes);
        if (i) assert_int_equal(oh_plan_run(other, &inputs, &elsewhere, &error), OH_OK);
        assert_int_equal(oh_plan_run(plan, &inputs, &outputs, &error), OH_OK);
        step_output_close(&scratch);
    }
    assert_memory_equal(out[0].grad, out[1].grad, (size_t)(c.rows * 12) * sizeof(float));
    assert_memory_equal(out[0].row_loss, out[1].row_loss, (size_t)c.rows * sizeof(float));
    assert_memory_equal(out[0].topk_id, out[1].topk_id, (size_t)(c.rows * 8) * sizeof(int32_t));

    inputs.workspace_bytes = (uint64_t)a - 1;
    const oh_outputs outputs = step_outputs(&out[0], &c.request);
    assert_int_equal(oh_plan_run(plan, &inputs, &outputs, &error), OH_INVALID_ARGUMENT);
    free(workspace);
    oh_plan_destroy(plan);
    oh_plan_destroy(other);
    step_output_close(&out[0]);
    step_output_close(&out[1]);
    step_case_close(&c);
    oh_context_close(context);
}

/* cases.md 16 */
static void test_inputs_are_left_as_they_were(void **state) {
    (void)state;
    draws d = draws_open("test_step", 16);
    step_case c;
    step_output out;
    oh_context *context = step_context_open();
    open_small(&c, &d);
    float *draft = malloc((size_t)(c.rows * 12) * sizeof(float)), *head = malloc(67 * 12 * sizeof(float));
    assert_true(draft && head);
    memcpy(draft, c.draft, (size_t)(c.rows * 12) * sizeof(float));
    memcpy(head, c.head, 67 * 12 * sizeof(float));
    step_run(context, &c, &out);
    assert_memory_equal(draft, c.draft, (size_t)(c.rows * 12) * sizeof(float));
    assert_memory_equal(head, c.head, 67 * 12 * sizeof(float));
    free(draft);
    free(head);
    step_output_close(&out);
    step_case_close(&c);
    oh_context_close(context);
}

/* cases.md 17: rows further apart than they are long, in and out. */
static void test_strides_longer_than_the_row(void **state) {
    (void)state;
    draws d = draws_open("test_step", 17);
    enum { H = 12, V = 67, LD = 17 };
    step_case c;
    step_output plain, strided;
    oh_context *context = step_context_open();
    oh_error error = {OH_OK, ""};
    oh_plan *plan = NULL;
    open_small(&c, &d);
    step_run(context, &c, &plain);
    float *draft = malloc((size_t)(c.rows * LD) * sizeof(float)), *head = malloc(V * LD * sizeof(float));
    float *grad = malloc((size_t)(c.rows * LD) * sizeof(float));
    assert_true(draft && head && grad);
    for (int64_t i = 0; i < c.rows * LD; ++i)
        draft[i] = i % LD < H ? c.draft[i / LD * H + i % LD] : NAN;
    for (int64_t i = 0; i < V * LD; ++i)
        head[i] = i % LD < H ? c.head[i / LD * H + i % LD] : NAN;
    for (int64_t i = 0; i < c.rows * LD; ++i)
        grad[i] = 42;
    step_output_open(&strided, &c);
    oh_inputs inputs = step_case_inputs(&c);
    oh_outputs outputs = step_outputs(&strided, &c.request);
    inputs.draft_hidden = draft;
    inputs.lm_head = head;
    inputs.draft_ld = inputs.lm_head_ld = outputs.draft_grad_ld = LD;
    outputs.draft_grad = grad;
    assert_int_equal(oh_plan_create(context, &c.request, &plan, &error), OH_OK);
    assert_int_equal(oh_plan_run(plan, &inputs, &outputs, &error), OH_OK);
    for (int64_t i = 0; i < c.rows * LD; ++i)
        assert_true(grad[i] == (i % LD < H ? plain.grad[i / LD * H + i % LD] : 42)); /* nothing between the rows */
    inputs.draft_ld = H - 1;
    assert_int_equal(oh_plan_run(plan, &inputs, &outputs, &error), OH_INVALID_ARGUMENT);
    assert_string_equal(error.message, "draft_hidden stride 11: expected 0 (as long as the row) or at least 12");
    free(draft);
    free(head);
    free(grad);
    oh_plan_destroy(plan);
    step_output_close(&plain);
    step_output_close(&strided);
    step_case_close(&c);
    oh_context_close(context);
}

static void test_a_list_of_one_is_the_argmax(void **state) {
    (void)state;
    draws d = draws_open("test_step", 1);
    step_case c;
    step_output out;
    oh_context *context = step_context_open();
    open_small(&c, &d);
    assert_int_equal(oh_objective_set_top_k(&c.request.objective, "1", NULL), OH_OK);
    step_run(context, &c, &out);
    assert_true(out.results.supervised > 0);
    for (int64_t i = 0; i < c.rows; ++i) {
        assert_int_equal(out.topk_id[i], out.argmax[i]);
        assert_true(out.argmax[i] < 0 ? out.topk_logprob[i] == 0 : out.topk_logprob[i] < 0);
    }
    step_output_close(&out);
    step_case_close(&c);
    oh_context_close(context);
}

/* Reads of the tiles are counted, not believed: one for the statistics of these, one read-write for the gradient, and
 * one more for what needs the complete sums of the first. */
static int64_t reads_of(const char *terms, uint32_t produce) {
    draws d = draws_open("test_step", 1);
    step_case c;
    step_output out;
    oh_context *context = step_context_open();
    open_small(&c, &d);
    c.request.produce = produce;
    assert_int_equal(oh_objective_set_terms(&c.request.objective, terms, NULL), OH_OK);
    step_run(context, &c, &out);
    const int64_t reads = out.results.tile_reads;
    assert_int_equal(out.plan.chunks, 1);
    step_output_close(&out);
    step_case_close(&c);
    oh_context_close(context);
    return reads;
}

static void test_a_second_read_only_where_something_needs_it(void **state) {
    (void)state;
    const uint32_t one = OH_PRODUCE_LOSS | OH_PRODUCE_GRAD | OH_PRODUCE_METRICS | OH_PRODUCE_TOP_K;
    assert_int_equal(reads_of("ce=1,kl=1,rkl=1,cap=1", one), 2);
    assert_int_equal(reads_of("ce=1,kl=1,rkl=1,cap=1", one & ~(uint32_t)OH_PRODUCE_GRAD), 1);
    assert_int_equal(reads_of("kl=1", one | OH_PRODUCE_OVERLAP), 3);
    assert_int_equal(reads_of("kl=1", one | OH_PRODUCE_ROWS), 3); /* exact ranks */
    assert_int_equal(reads_of("tv=1", one), 3);
    assert_int_equal(reads_of("jsd=1", one), 3);
    assert_int_equal(reads_of("nla=1", one), 3);
    assert_int_equal(reads_of("lk_hybrid=1", one), 3);
    assert_int_equal(reads_of("ce=1,kl=1,rkl=1,jsd=1,tv=1,nla=1,lk_hybrid=1,cap=1", one | OH_PRODUCE_OVERLAP), 3);
}

/* ---------------------------------------------------------------------------------------------------- refusals ---- */

static void test_bad_requests_are_refused_by_name(void **state) {
    (void)state;
    draws d = draws_open("test_step", 1);
    step_case c;
    open_small(&c, &d);
    const oh_request good = c.request;
    oh_request bad[12];
    static const char *const expected[] = {
        "rows 31: expected whole blocks, a multiple of block_size 5",
        "first_slot 5: expected 0 to 4",
        "hidden 0: expected 1 to 2147483647",
        "vocab_valid 68: expected 1 to 67",
        "chunk 7: expected whole blocks, a multiple of block_size 5",
        "hidden dtype i32: expected f32, bf16 or f16",
        "term 'kl' compares with a target, and there is none",
        "terms: a loss needs at least one",
        "label_smoothing 1: expected 0 <= e < 1",
        "softcap -1: expected 0 (none) or a finite positive number",
        "top-K: 4 after 4, expected ascending distinct values",
        "decay gamma 0: expected a finite positive number",
    };
    enum { COUNT = sizeof bad / sizeof bad[0] };
    for (int i = 0; i < COUNT; ++i)
        bad[i] = good;
    bad[0].rows = 31;
    bad[1].objective.first_slot = 5;
    bad[2].hidden = 0;
    bad[3].vocab_valid = 68;
    bad[4].chunk = 7;
    bad[5].hidden_dtype = OH_I32;
    bad[6].target_rows = 0;
    bad[7].objective.terms = 0;
    bad[8].objective.label_smoothing = 1;
    bad[9].softcap = -1;
    bad[10].objective.top_k[2] = 4;
    bad[11].objective.decay_param = 0;
    for (int i = 0; i < COUNT; ++i) {
        oh_plan *plan = NULL;
        oh_error error = {OH_OK, ""};
        assert_int_not_equal(oh_plan_describe(&bad[i], &plan, &error), OH_OK);
        assert_null(plan);
        assert_string_equal(error.message, expected[i]);
    }
    step_case_close(&c);
}

static void test_bad_inputs_are_refused_before_anything_runs(void **state) {
    (void)state;
    draws d = draws_open("test_step", 1);
    step_case c;
    step_output out;
    oh_context *context = step_context_open();
    oh_plan *plan = NULL;
    open_small(&c, &d);
    for (int64_t i = 0; i < c.rows; ++i)
        c.mask[i] = 1;
    step_output_open(&out, &c);
    assert_int_equal(oh_plan_create(context, &c.request, &plan, NULL), OH_OK);
    const oh_inputs good = step_case_inputs(&c);
    const oh_outputs outputs = step_outputs(&out, &c.request);
    static const char *const expected[] = {
        "loss_mask[3] = -1: expected a finite number that is not negative",
        "loss_mask[3] = nan: expected a finite number that is not negative",
        "target_row[3] = 16: expected 0 to 15 on a supervised row",
        "label dtype f32: expected i32 or i64",
        "rows 35: expected 0 to 30 in whole blocks of 5",
        "draft_hidden: NULL, and there are rows",
        "target_row: missing with 30 draft and 16 target rows; expected as many of each, or the map",
    };
    enum { COUNT = sizeof expected / sizeof expected[0] };
    for (int i = 0; i < COUNT; ++i) {
        oh_inputs bad = good;
        oh_error error = {OH_OK, ""};
        const float mask = c.mask[3];
        const int32_t target_row = c.target_row[3];
        if (i < 2) c.mask[3] = i == 0 ? -1 : NAN;
        if (i == 2) c.target_row[3] = 16;
        if (i == 3) bad.label_dtype = OH_F32;
        if (i == 4) bad.rows = 35;
        if (i == 5) bad.draft_hidden = NULL;
        if (i == 6) bad.target_row = NULL;
        assert_int_not_equal(oh_plan_run(plan, &bad, &outputs, &error), OH_OK);
        assert_string_equal(error.message, expected[i]);
        c.mask[3] = mask;
        c.target_row[3] = target_row;
    }
    for (int64_t i = 0; i < c.rows * 12; ++i)
        assert_true(isnan(out.grad[i])); /* still the poison */
    oh_results results;
    assert_int_equal(oh_plan_results(plan, &results, NULL), OH_INVALID_ARGUMENT);
    oh_plan_destroy(plan);
    step_output_close(&out);
    step_case_close(&c);
    oh_context_close(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_with_a_given_norm_add_up),
        cmocka_unit_test(test_the_upstream_gradient_scales_the_gradient),
        cmocka_unit_test(test_a_step_without_supervised_rows_is_zero_and_finite),
        cmocka_unit_test(test_no_rows_at_all_is_a_step),
        cmocka_unit_test(test_unsupervised_rows_never_matter),
        cmocka_unit_test(test_a_broken_row_stays_out_of_the_head_gradient),
        cmocka_unit_test(test_a_dirty_workspace_changes_no_bit),
        cmocka_unit_test(test_inputs_are_left_as_they_were),
        cmocka_unit_test(test_strides_longer_than_the_row),
        cmocka_unit_test(test_a_list_of_one_is_the_argmax),
        cmocka_unit_test(test_a_second_read_only_where_something_needs_it),
        cmocka_unit_test(test_bad_requests_are_refused_by_name),
        cmocka_unit_test(test_bad_inputs_are_refused_before_anything_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
