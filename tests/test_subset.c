/* A draft vocabulary that is a part of the target's equals a whole vocabulary whose other columns are -inf. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "step_case.h"

#define U 0x1p-24

enum { H = 12, VT = 67, VD = 23, BLOCKS = 6, BLOCK = 5, T = BLOCKS * BLOCK };

/* The same step twice: `part` with VD draft columns and their ids, `whole` with VT columns of which only those are
 * not -inf. The target's head is its own and has VT rows in both. */
typedef struct subset_case {
    step_case part, whole;
    int32_t ids[VD];
    float target_head[VT * H], draft_bias[VT];
} subset_case;

static void open_case(subset_case *c, draws *d) {
    step_case_open(&c->part, d, BLOCKS, BLOCK, H, VD);
    step_case_open(&c->whole, d, BLOCKS, BLOCK, H, VT);
    step_case_make_exact(&c->part, d); /* counts are then equal whatever the shape of a product */
    for (int i = 0, id = 0; i < VD; ++i) {
        id += 1 + (int)draw_below(d, 3);
        c->ids[i] = id;
    }
    assert_true(c->ids[VD - 1] < VT);
    for (int i = 0; i < VT * H; ++i)
        c->target_head[i] = (float)(draw_below(d, 9) - 4) / 4;
    for (int v = 0; v < VT; ++v)
        c->draft_bias[v] = -INFINITY;
    for (int i = 0; i < VD; ++i) {
        c->draft_bias[c->ids[i]] = 0;
        memcpy(c->whole.head + c->ids[i] * H, c->part.head + i * H, H * sizeof(float));
    }
    memcpy(c->whole.draft, c->part.draft, T * H * sizeof(float));
    memcpy(c->whole.target, c->part.target, (size_t)(c->part.target_rows * H) * sizeof(float));
    memcpy(c->whole.mask, c->part.mask, T * sizeof(float));
    memcpy(c->whole.target_row, c->part.target_row, T * sizeof(int32_t));
    memcpy(c->whole.bias, c->draft_bias, sizeof c->draft_bias);
    for (int i = 0; i < T; ++i)
        c->part.label[i] = c->whole.label[i] = (int32_t)draw_below(d, VT);
    c->part.request.target_hidden = c->whole.request.target_hidden = H;
    c->part.request.target_vocab = VT;
    c->part.request.draft_to_target = c->ids;
    c->whole.request.has_bias = 1;
    c->part.request.memory = c->whole.request.memory = INT64_C(1) << 30;
}

static void close_case(subset_case *c) {
    step_case_close(&c->part);
    step_case_close(&c->whole);
}

/* step_run with the target's head in its place. */
static void run(oh_context *context, const subset_case *c, const step_case *s, const float *target_bias,
                step_output *out) {
    oh_error error = {OH_OK, ""};
    oh_request request = s->request;
    step_output_open(out, s);
    oh_inputs inputs = step_case_inputs(s);
    inputs.target_lm_head = c->target_head;
    inputs.target_bias = target_bias;
    request.has_target_bias = target_bias != NULL;
    const oh_outputs outputs = step_outputs(out, &request);
    if (step_run_plan(context, s, &request, &inputs, &outputs, &out->results, &error) != OH_OK)
        fail_msg("%s", error.message);
}

static int close_to(double a, double b) {
    return fabs(a - b) <= 64 * U * fabs(b);
}

/* The target's argmax over all of its tokens, from an ordinary run over the whole vocabulary with the target's logits
 * as they are: rows judged by it, in draft columns; -1 where it is none. */
static void expected_labels(oh_context *context, subset_case *c, int32_t *column) {
    step_output out;
    /* kl would be infinite where the target may draw what the draft can't; tv never is. */
    assert_int_equal(oh_objective_set_terms(&c->whole.request.objective, "tv=1", NULL), OH_OK);
    c->whole.request.objective.labels = OH_LABELS_TARGET;
    run(context, c, &c->whole, NULL, &out);
    for (int i = 0; i < T; ++i)
        column[i] = out.label[i] < 0 ? -1 : oh_position_of(c->ids, VD, out.label[i]);
    step_output_close(&out);
}

static void compare(const step_output *part, const step_output *whole, const step_output *full) {
    assert_int_equal(part->results.supervised, whole->results.supervised);
    assert_int_equal(part->results.blocks, whole->results.blocks);
    assert_true(close_to(part->results.weight_sum, whole->results.weight_sum));
    assert_true(close_to(part->results.loss_den, whole->results.loss_den));
    assert_true(close_to(part->results.loss, whole->results.loss));
    assert_true(close_to(part->results.draft_entropy, whole->results.draft_entropy));
    for (int32_t k = 0; k < part->results.top_k_count; ++k) {
        assert_int_equal(part->results.top_k[k].hits, whole->results.top_k[k].hits);
        assert_int_equal(part->results.top_k[k].streak_sum, whole->results.top_k[k].streak_sum);
    }
    assert_true(step_distance(part->grad, whole->grad, T * H) <= 64 * U);
    /* Acceptance is against the distribution that the target samples from. */
    assert_true(close_to(part->results.alpha, full->results.alpha));
    assert_true(close_to(part->results.tau, full->results.tau));
    assert_true(close_to(part->results.target_top1, full->results.target_top1));
    assert_true(full->results.alpha < whole->results.alpha);
}

/* Rows whose token is no draft column leave the mask; the rest are judged by columns given as labels. */
static void check(const char *terms, int32_t policy, int64_t memory, int given) {
    draws d = draws_open("test_subset", 5);
    subset_case c;
    step_output part, whole, full;
    int32_t column[T];
    oh_context *context = step_context_open();
    open_case(&c, &d);
    if (given)
        for (int i = 0; i < T; ++i)
            column[i] = oh_position_of(c.ids, VD, c.part.label[i]);
    else
        expected_labels(context, &c, column);
    oh_objective *objectives[2] = {&c.part.request.objective, &c.whole.request.objective};
    for (int i = 0; i < 2; ++i) {
        assert_int_equal(oh_objective_set_terms(objectives[i], terms, NULL), OH_OK);
        objectives[i]->labels = OH_LABELS_GIVEN;
    }
    if (!given) c.part.request.objective.labels = OH_LABELS_TARGET;
    c.part.request.policy = policy;
    if (memory) {
        c.part.request.memory = memory;
        c.part.request.chunk = 2 * BLOCK;
    }
    run(context, &c, &c.part, NULL, &part);
    int dropped = 0;
    for (int i = 0; i < T; ++i) {
        if (column[i] < 0 && c.whole.mask[i] > 0) ++dropped;
        if (column[i] < 0) c.whole.mask[i] = 0;
        c.whole.label[i] = column[i] < 0 ? -1 : c.ids[column[i]];
    }
    assert_true(dropped > 3);
    run(context, &c, &c.whole, c.draft_bias, &whole); /* q over the draft's columns */
    assert_int_equal(oh_objective_set_terms(objectives[1], "tv=1", NULL), OH_OK);
    run(context, &c, &c.whole, NULL, &full); /* q over all */
    compare(&part, &whole, &full);
    for (int i = 0; i < T; ++i) {
        const int32_t argmax = part.argmax[i];
        assert_int_equal(argmax < 0 ? -1 : c.ids[argmax], whole.argmax[i]);
        assert_int_equal(part.rank[i], whole.rank[i] < VD ? whole.rank[i] : part.rank[i]);
    }
    step_output_close(&part);
    step_output_close(&whole);
    step_output_close(&full);
    close_case(&c);
    oh_context_close(context);
}

static void test_rows_outside_are_dropped_by_the_target_s_argmax(void **state) {
    (void)state;
    check("kl=1", OH_POLICY_CACHED, 0, 0);
    check("ce=1", OH_POLICY_CACHED, 0, 0);
    check("ce=0.2,kl=0.3,rkl=0,jsd=0.5,tv=0.7,nla=0.05,lk_hybrid=0.4,cap=0.02", OH_POLICY_CACHED, 0, 0);
}

static void test_given_labels_are_target_ids(void **state) {
    (void)state;
    check("kl=1,ce=1", OH_POLICY_CACHED, 0, 1);
}

static void test_every_policy_reads_the_whole_target(void **state) {
    (void)state;
    check("kl=1,tv=1", OH_POLICY_RECOMPUTE, 0, 0);
    check("kl=1,tv=1", OH_POLICY_RECOMPUTE, 24 << 10, 0);
    check("kl=1,tv=1", OH_POLICY_NAIVE, 0, 0);
    check("kl=1,tv=1", OH_POLICY_NAIVE, 0, 1);
}

/* Kept rows count and never hit, also where a list is longer than the vocabulary and ends in ids that aren't there. */
static void test_rows_outside_can_be_kept(void **state) {
    (void)state;
    draws d = draws_open("test_subset", 6);
    subset_case c;
    step_output drop, keep, all;
    oh_context *context = step_context_open();
    open_case(&c, &d);
    c.part.request.objective.top_k[2] = VD + 5;
    run(context, &c, &c.part, NULL, &drop);
    c.part.request.outside = OH_OUTSIDE_KEEP;
    run(context, &c, &c.part, NULL, &keep);
    run(context, &c, &c.whole, c.draft_bias, &all); /* every row, judged by the draft's part of the target */
    assert_true(keep.results.supervised > drop.results.supervised);
    assert_int_equal(keep.results.supervised, all.results.supervised);
    assert_int_equal(keep.results.nonfinite_rows, 0);
    for (int32_t k = 0; k < keep.results.top_k_count; ++k)
        assert_int_equal(keep.results.top_k[k].hits, drop.results.top_k[k].hits);
    for (int i = 0; i < T; ++i) /* a rank of 0 would be a hit to whoever counts ranks */
        assert_true((keep.label[i] < 0) == (keep.rank[i] < 0));
    assert_true(close_to(keep.results.loss, all.results.loss)); /* kl doesn't look at the label */
    assert_true(step_distance(keep.grad, all.grad, T * H) <= 64 * U);
    step_output_close(&drop);
    step_output_close(&keep);
    step_output_close(&all);

    oh_error error = {OH_OK, ""};
    oh_plan *plan = NULL;
    assert_int_equal(oh_objective_set_terms(&c.part.request.objective, "ce=1", NULL), OH_OK);
    assert_int_equal(oh_plan_create(context, &c.part.request, &plan, &error), OH_INVALID_ARGUMENT);
    assert_string_equal(error.message,
                        "term 'ce' has no label on a row outside the draft's vocabulary: expected outside drop");
    close_case(&c);
    oh_context_close(context);
}

static void assert_same_rows(const oh_results *a, const oh_results *b) {
    assert_int_equal(a->supervised, b->supervised);
    assert_int_equal(a->blocks, b->blocks);
    assert_int_equal(a->nonfinite_rows, b->nonfinite_rows);
    assert_int_equal(a->first_nonfinite_row, b->first_nonfinite_row);
    assert_true(close_to(a->loss, b->loss));
    assert_true(close_to(a->target_top1, b->target_top1));
    for (int32_t k = 0; k < b->top_k_count; ++k) {
        assert_int_equal(a->top_k[k].hits, b->top_k[k].hits);
        assert_int_equal(a->top_k[k].streak_sum, b->top_k[k].streak_sum);
    }
}

/* A target logit over the range of f32, in a column that is no draft column: the row has no target distribution, and all
 * that finishes rows leaves it out, whichever stage counts it and whether or not the loss would need to look. */
static void test_every_way_leaves_out_rows_whose_whole_target_is_not_finite(void **state) {
    (void)state;
    enum { WIDE = 450, PART = 400, OUTSIDE = 430 };
    static const int32_t policies[] = {OH_POLICY_CACHED, OH_POLICY_RECOMPUTE, OH_POLICY_RECOMPUTE, OH_POLICY_NAIVE};
    static float target_head[WIDE][H];
    int32_t ids[PART];
    for (int32_t v = 0; v < PART; ++v)
        ids[v] = v;
    oh_context *context = step_context_open();
    for (int32_t labels = OH_LABELS_TARGET; labels <= OH_LABELS_GIVEN; ++labels) {
        draws d = draws_open("test_subset", 10);
        step_case c;
        step_output out[sizeof policies / sizeof policies[0]];
        step_case_open(&c, &d, BLOCKS, BLOCK, H, PART);
        step_case_make_exact(&c, &d);
        for (int v = 0; v < WIDE; ++v)
            for (int h = 0; h < H; ++h)
                target_head[v][h] = v == OUTSIDE ? 0 : (float)(draw_below(&d, 9) - 4) / 4;
        target_head[OUTSIDE][0] = target_head[OUTSIDE][1] = 3e38f;
        for (int64_t i = 0; i < c.target_rows; ++i) { /* infinite, and 0 in any order of summation */
            c.target[i * H] = 1;
            c.target[i * H + 1] = i % 3 == 0 ? 1 : -1;
        }
        c.request.target_hidden = H;
        c.request.target_vocab = WIDE;
        c.request.draft_to_target = ids;
        c.request.objective.labels = labels;
        /* A loss of a second read: in panels it is lists that count rows. */
        assert_int_equal(oh_objective_set_terms(&c.request.objective, "tv=1", NULL), OH_OK);
        oh_inputs inputs = step_case_inputs(&c);
        inputs.target_lm_head = target_head;
        for (int way = 0; way < (int)(sizeof policies / sizeof policies[0]); ++way) {
            const int panels = way == 2;
            oh_error error = {OH_OK, ""};
            c.request.policy = policies[way];
            c.request.chunk = panels ? 2 * BLOCK : 0;
            c.request.memory = panels ? 24 << 10 : INT64_C(1) << 30;
            step_output_open(&out[way], &c);
            const oh_outputs outputs = step_outputs(&out[way], &c.request);
            oh_plan *plan = NULL;
            assert_int_equal(oh_plan_describe(&c.request, &plan, NULL), OH_OK);
            assert_int_equal(oh_plan_get_summary(plan)->panel < PART, panels);
            oh_plan_destroy(plan);
            if (oh_context_backend(context)->gemm_scratch) c.request.memory += INT64_C(1) << 26;
            if (step_run_plan(context, &c, &c.request, &inputs, &outputs, &out[way].results, &error) != OH_OK)
                fail_msg("%s", error.message);
            assert_same_rows(&out[way].results, &out[0].results);
            step_assert_same(&out[way], &out[0], 64 * U, 64 * U);
        }
        assert_true(out[0].results.nonfinite_rows > 0);
        assert_true(out[0].results.nonfinite_rows < out[0].results.supervised);
        for (int way = 0; way < (int)(sizeof policies / sizeof policies[0]); ++way)
            step_output_close(&out[way]);
        step_case_close(&c);
    }
    oh_context_close(context);
}

static void test_ids_must_ascend_within_the_target(void **state) {
    (void)state;
    draws d = draws_open("test_subset", 7);
    subset_case c;
    oh_context *context = step_context_open();
    oh_plan *plan = NULL;
    oh_error error = {OH_OK, ""};
    open_case(&c, &d);
    const int32_t last = c.ids[VD - 1];
    c.ids[VD - 1] = VT;
    assert_int_equal(oh_plan_create(context, &c.part.request, &plan, &error), OH_BAD_DATA);
    assert_non_null(strstr(error.message, "draft_to_target[22] = 67 after"));
    c.ids[VD - 1] = last;
    c.ids[3] = c.ids[2];
    assert_int_equal(oh_plan_create(context, &c.part.request, &plan, &error), OH_BAD_DATA);
    c.part.request.draft_to_target = NULL;
    assert_int_equal(oh_plan_create(context, &c.part.request, &plan, &error), OH_INVALID_ARGUMENT);
    assert_string_equal(error.message, "draft_to_target: NULL, and target_vocab is 67");
    close_case(&c);
    oh_context_close(context);
}

/* ------------------------------------------------------------------------------------------------- bias gradient -- */

/* Central differences of the loss; the template's f64 products leave f32 logits, so a step of 2^-6 keeps their rounding
 * under the error of the difference: 2^-12 / 6 times a third derivative of order one. */
static void test_the_bias_gradient_is_the_loss_s_derivative(void **state) {
    (void)state;
    static const char *const decays[] = {"exp:10", "dpace:1"};
    for (int late = 0; late < 2; ++late) {
        draws d = draws_open("test_subset", 8);
        step_case c;
        oh_context *context = step_context_open();
        oh_error error = {OH_OK, ""};
        step_output out;
        oh_results results;
        float gradient[VD];
        step_case_open(&c, &d, BLOCKS, BLOCK, H, VD);
        oh_request *r = &c.request;
        r->has_bias = 1;
        r->scale = 0.5f;
        r->softcap = 20;
        r->produce = OH_PRODUCE_LOSS | OH_PRODUCE_BIAS_GRAD;
        assert_int_equal(oh_objective_set_decay(&r->objective, decays[late], NULL), OH_OK);
        step_output_open(&out, &c);
        const oh_inputs inputs = step_case_inputs(&c);
        oh_outputs outputs = step_outputs(&out, r);
        outputs.bias_grad = gradient;
        for (int v = 0; v < VD; ++v)
            gradient[v] = NAN;
        if (step_run_plan(context, &c, r, &inputs, &outputs, &results, &error) != OH_OK) fail_msg("%s", error.message);
        float scratch[VD];
        outputs.bias_grad = scratch;
        double size = 0;
        for (int v = 0; v < VD; ++v)
            size += fabs((double)gradient[v]) / VD;
        assert_true(size > 0);
        for (int v = 0; v < VD; v += 3) {
            const float at = c.bias[v], step = 0x1p-6f;
            double loss[2];
            for (int side = 0; side < 2; ++side) {
                c.bias[v] = side ? at + step : at - step;
                assert_int_equal(step_run_plan(context, &c, r, &inputs, &outputs, &results, &error), OH_OK);
                loss[side] = results.loss;
            }
            c.bias[v] = at;
            const double derivative = (loss[1] - loss[0]) / (2 * (double)step);
            assert_true(fabs(derivative - (double)gradient[v]) <= 0x1p-12 * size + 0x1p-12 * fabs(derivative));
        }
        step_output_close(&out);
        step_case_close(&c);
        oh_context_close(context);
    }
}

static void test_a_bias_gradient_needs_a_bias(void **state) {
    (void)state;
    draws d = draws_open("test_subset", 9);
    step_case c;
    oh_plan *plan = NULL;
    oh_error error = {OH_OK, ""};
    step_case_open(&c, &d, 1, BLOCK, H, VD);
    c.request.produce |= OH_PRODUCE_BIAS_GRAD;
    assert_int_equal(oh_plan_describe(&c.request, &plan, &error), OH_INVALID_ARGUMENT);
    assert_string_equal(error.message, "bias gradient: expected a bias and a scale that is not 0");
    step_case_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_outside_are_dropped_by_the_target_s_argmax),
        cmocka_unit_test(test_given_labels_are_target_ids),
        cmocka_unit_test(test_every_policy_reads_the_whole_target),
        cmocka_unit_test(test_rows_outside_can_be_kept),
        cmocka_unit_test(test_every_way_leaves_out_rows_whose_whole_target_is_not_finite),
        cmocka_unit_test(test_ids_must_ascend_within_the_target),
        cmocka_unit_test(test_the_bias_gradient_is_the_loss_s_derivative),
        cmocka_unit_test(test_a_bias_gradient_needs_a_bias),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
