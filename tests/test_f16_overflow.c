/* A step whose logits leave f16's range is told from one whose inputs aren't finite, and says so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fake_device.h"

enum { BLOCKS = 6, BLOCK = 4, HIDDEN = 12, VOCAB = 200, BAD = 9 };

typedef struct overflow_case {
    step_case c;
    oh_status status;
    oh_error error;
    oh_results results;
    double device_count;
    float grad[BLOCKS * BLOCK * HIDDEN];
    const float *target_head; /* or NULL: the draft's */
} overflow_case;

static void open_case(overflow_case *o, uint64_t seed) {
    draws d = draws_open("test_f16_overflow", seed);
    memset(o, 0, sizeof *o);
    step_case_open(&o->c, &d, BLOCKS, BLOCK, HIDDEN, VOCAB);
    for (int64_t i = 0; i < o->c.rows; ++i)
        o->c.mask[i] = 1;
    o->c.request.produce |= OH_PRODUCE_OVERLAP;
    o->c.request.memory = INT64_C(1) << 30;
}

static void run_case(overflow_case *o, oh_context *context) {
    oh_inputs in = step_case_inputs(&o->c);
    in.target_lm_head = o->target_head;
    step_output unused;
    step_output_open(&unused, &o->c);
    oh_outputs out = step_outputs(&unused, &o->c.request);
    out.draft_grad = o->grad;
    oh_plan *plan = NULL;
    if (oh_plan_create(context, &o->c.request, &plan, &o->error) != OH_OK) fail_msg("%s", o->error.message);
    if (oh_plan_run(plan, &in, &out, &o->error) != OH_OK) fail_msg("%s", o->error.message);
    o->status = oh_plan_results(plan, &o->results, &o->error);
    o->device_count = *oh_plan_device_overflow(plan);
    assert_ptr_equal(oh_plan_device_loss(plan), oh_plan_device_sums(plan) + oh_sum_count(&o->c.request.objective));
    assert_ptr_equal(oh_plan_device_overflow(plan), oh_plan_device_loss(plan) + 3);
    oh_plan_destroy(plan);
    step_output_close(&unused);
}

static void scale_row(float *rows, int64_t row, float factor) {
    for (int64_t h = 0; h < HIDDEN; ++h)
        rows[row * HIDDEN + h] *= factor;
}

/* Where one row's logits reach some 1e5 or -1e5, all but it is as if it had never been: its own gradient is 0, and the
 * others are within the tile's rounding of f32's. */
static void test_a_row_over_the_range_marks_the_step(void **state) {
    (void)state;
    for (int32_t tile = OH_TILE_F16; tile <= OH_TILE_DIFF; ++tile)
        for (int32_t policy = OH_POLICY_CACHED; policy <= OH_POLICY_NAIVE; ++policy)
            for (int panels = 0; panels < 1 + (policy == OH_POLICY_RECOMPUTE); ++panels) {
                overflow_case o, exact;
                open_case(&o, 1);
                scale_row(o.c.draft, BAD, 1e5f);
                oh_context *context = step_context_open();
                o.c.request.policy = policy;
                o.c.request.tile = tile;
                o.c.request.chunk = 2 * BLOCK;
                if (panels) o.c.request.memory = INT64_C(16) << 10;
                run_case(&o, context);
                assert_int_equal(o.status, OH_OVERFLOW);
                assert_non_null(strstr(o.error.message, "the first is row 9"));
                assert_true(o.device_count >= 1);
                assert_int_equal(o.results.nonfinite_rows, 1);
                assert_int_equal(o.results.first_nonfinite_row, BAD);

                open_case(&exact, 1);
                run_case(&exact, context);
                assert_int_equal(exact.status, OH_OK);
                for (int64_t h = 0; h < HIDDEN; ++h)
                    assert_true(o.grad[BAD * HIDDEN + h] == 0), exact.grad[BAD * HIDDEN + h] = 0;
                /* f16 tiles of logits up to 8 and an f16 gradient's rounding: 2^-11 * 8 and little more. */
                assert_true(step_distance(o.grad, exact.grad, o.c.rows * HIDDEN) < 8 * 0x1p-11 * 2);
                oh_context_close(context);
                step_case_close(&o.c);
                step_case_close(&exact.c);
            }
}

/* -70000 under a softcap of 30 is -30, not a probability of 0. */
static void test_a_negative_logit_over_the_range_is_no_minus_infinity(void **state) {
    (void)state;
    overflow_case o;
    open_case(&o, 2);
    assert_int_equal(oh_objective_set_terms(&o.c.request.objective, "ce=1", NULL), OH_OK);
    o.c.request.tile = OH_TILE_F16;
    o.c.request.softcap = 30;
    for (int64_t h = 0; h < HIDDEN; ++h)
        o.c.head[50 * HIDDEN + h] = h == 0, o.c.draft[BAD * HIDDEN + h] = h == 0 ? -70000 : 0;
    for (int64_t v = 0; v < VOCAB; ++v)
        if (v != 50) o.c.head[v * HIDDEN] = 0;
    oh_context *context = step_context_open();
    run_case(&o, context);
    assert_int_equal(o.status, OH_OVERFLOW);
    oh_context_close(context);
    step_case_close(&o.c);
}

/* A target's logit in a column that is no draft column, which only the read of its whole vocabulary meets: over the range;
 * under it, where a softcap makes it finite; and not finite in the source either. */
static void test_the_whole_target_over_the_range_marks_the_step(void **state) {
    (void)state;
    enum { WHOLE = VOCAB + 20, OUTSIDE = VOCAB + 7, ROW = 3 };
    static const struct {
        float logit, softcap;
        oh_status status;
    } kinds[] = {{160000, 0, OH_OVERFLOW}, {160000, 30, OH_OVERFLOW}, {-160000, 30, OH_OVERFLOW}, {INFINITY, 0, OH_OK}};
    static float target_head[WHOLE * HIDDEN];
    int32_t ids[VOCAB];
    for (int32_t v = 0; v < VOCAB; ++v)
        ids[v] = v;
    for (size_t kind = 0; kind < sizeof kinds / sizeof kinds[0]; ++kind)
        for (int32_t policy = OH_POLICY_CACHED; policy <= OH_POLICY_NAIVE; ++policy)
            for (int panels = 0; panels < 1 + (policy == OH_POLICY_RECOMPUTE); ++panels) {
                overflow_case o;
                open_case(&o, 7);
                for (int64_t i = 0; i < o.c.target_rows; ++i)
                    o.c.target[i * HIDDEN] = i == ROW;
                memset(target_head, 0, sizeof target_head);
                memcpy(target_head, o.c.head, (size_t)VOCAB * HIDDEN * sizeof(float));
                target_head[(int64_t)OUTSIDE * HIDDEN] = kinds[kind].logit;
                int64_t judged = 0, first = -1;
                for (int64_t i = o.c.rows - 1; i >= 0; --i) {
                    if (i % BLOCK < o.c.request.objective.first_slot || o.c.target_row[i] != ROW) continue;
                    ++judged;
                    first = i;
                }
                assert_true(judged > 0);
                o.target_head = target_head;
                o.c.request.target_hidden = HIDDEN;
                o.c.request.target_vocab = WHOLE;
                o.c.request.draft_to_target = ids;
                o.c.request.outside = OH_OUTSIDE_KEEP;
                o.c.request.target_softcap = kinds[kind].softcap;
                o.c.request.policy = policy;
                o.c.request.tile = OH_TILE_F16;
                o.c.request.chunk = 2 * BLOCK;
                if (panels) o.c.request.memory = INT64_C(16) << 10;
                oh_context *context = step_context_open();
                run_case(&o, context);
                assert_int_equal(o.status, kinds[kind].status);
                assert_int_equal(o.device_count > 0, kinds[kind].status == OH_OVERFLOW);
                if (o.status == OH_OVERFLOW)
                    assert_non_null(strstr(o.error.message, "rows of drafter or target, the first is row 3:"));
                const int every = isinf(kinds[kind].logit); /* 0 times it is NaN */
                assert_int_equal(o.results.nonfinite_rows, every ? o.results.supervised : judged);
                if (!every) assert_int_equal(o.results.first_nonfinite_row, first);
                oh_context_close(context);
                step_case_close(&o.c);
            }
}

static void test_inputs_that_are_not_finite_are_no_overflow(void **state) {
    (void)state;
    static const char *const what[] = {"a NaN in D", "an infinity in D", "a NaN in G", "an infinity in W"};
    for (int kind = 0; kind < 4; ++kind)
        for (int32_t tile = OH_TILE_F16; tile <= OH_TILE_DIFF; ++tile) {
            overflow_case o;
            open_case(&o, 3);
            print_message("  %s\n", what[kind]);
            if (kind == 0) o.c.draft[BAD * HIDDEN + 1] = NAN;
            if (kind == 1) o.c.draft[BAD * HIDDEN + 1] = INFINITY;
            if (kind == 2) o.c.target[o.c.target_row[BAD] * HIDDEN] = NAN;
            if (kind == 3) o.c.head[77 * HIDDEN + 3] = INFINITY;
            o.c.request.tile = tile;
            oh_context *context = step_context_open();
            run_case(&o, context);
            if (o.status != OH_OK) fail_msg("%s", o.error.message);
            assert_true(o.results.nonfinite_rows >= 1);
            assert_true(o.device_count == 0);
            oh_context_close(context);
            step_case_close(&o.c);
        }
}

static void test_logits_just_within_the_range_are_fine(void **state) {
    (void)state;
    for (int over = 0; over < 2; ++over) {
        overflow_case o;
        open_case(&o, 4);
        assert_int_equal(oh_objective_set_terms(&o.c.request.objective, "ce=1", NULL), OH_OK);
        for (int64_t h = 0; h < HIDDEN; ++h)
            o.c.draft[BAD * HIDDEN + h] = 0;
        o.c.draft[BAD * HIDDEN] = 1;
        o.c.head[0] = over ? 65520 : 65504; /* 65520 is where f16 rounds to infinity */
        for (int64_t i = 0; i < o.c.rows; ++i)
            if (i != BAD) o.c.draft[i * HIDDEN] = 0;
        for (int64_t i = 0; i < o.c.target_rows; ++i)
            o.c.target[i * HIDDEN] = 0;
        o.c.request.tile = OH_TILE_F16;
        oh_context *context = step_context_open();
        run_case(&o, context);
        assert_int_equal(o.status, over ? OH_OVERFLOW : OH_OK);
        oh_context_close(context);
        step_case_close(&o.c);
    }
}

/* ---------------------------------------------------------------------------------------------- 16-bit operands ---- */

static uint16_t *to_bf16(const float *from, int64_t count) {
    uint16_t *to = malloc((size_t)count * sizeof *to);
    assert_non_null(to);
    for (int64_t i = 0; i < count; ++i) {
        uint32_t bits;
        memcpy(&bits, &from[i], sizeof bits);
        to[i] = (uint16_t)(bits >> 16);
    }
    return to;
}

static oh_status run_bf16(oh_context *context, const step_case *c, int32_t tile, oh_plan_summary *summary) {
    uint16_t *draft = to_bf16(c->draft, c->rows * HIDDEN), *target = to_bf16(c->target, c->target_rows * HIDDEN);
    uint16_t *head = to_bf16(c->head, VOCAB * HIDDEN);
    oh_request r = c->request;
    r.hidden_dtype = r.weight_dtype = OH_BF16;
    r.tile = tile;
    oh_inputs in = step_case_inputs(c);
    in.draft_hidden = draft;
    in.target_hidden = target;
    in.lm_head = head;
    step_output out;
    step_output_open(&out, c);
    const oh_outputs outputs = step_outputs(&out, &r);
    oh_plan *plan = NULL;
    oh_error error = {OH_OK, ""};
    oh_results results;
    if (oh_plan_create(context, &r, &plan, &error) != OH_OK) fail_msg("%s", error.message);
    if (oh_plan_run(plan, &in, &outputs, &error) != OH_OK) fail_msg("%s", error.message);
    const oh_status status = oh_plan_results(plan, &results, &error);
    *summary = *oh_plan_get_summary(plan);
    oh_plan_destroy(plan);
    step_output_close(&out);
    free(draft);
    free(target);
    free(head);
    return status;
}

/* D or W of 1e5 are infinite as f16 operands, however small what they are multiplied with is. */
static void test_operands_over_the_range_mark_the_step(void **state) {
    (void)state;
    for (int in_weight = 0; in_weight < 2; ++in_weight)
        for (int zero = 0; zero < 2; ++zero) {
            overflow_case o;
            oh_plan_summary summary;
            open_case(&o, 5);
            for (int64_t v = 0; v < VOCAB; ++v)
                o.c.head[v * HIDDEN] = zero ? 0 : 1e-6f;
            for (int64_t i = 0; i < o.c.rows; ++i)
                o.c.draft[i * HIDDEN] = 0;
            for (int64_t i = 0; i < o.c.target_rows; ++i)
                o.c.target[i * HIDDEN] = 0;
            if (in_weight)
                o.c.head[33 * HIDDEN] = 1e5f;
            else
                o.c.draft[BAD * HIDDEN] = 1e5f;
            oh_context *context = fake_device_open();
            assert_int_equal(run_bf16(context, &o.c, OH_TILE_AUTO, &summary), OH_OVERFLOW);
            assert_int_equal(summary.tile, OH_TILE_DIFF);
            oh_context_close(context);
            step_case_close(&o.c);
        }
}

static void test_the_next_plan_of_the_context_uses_f32(void **state) {
    (void)state;
    overflow_case o;
    oh_plan_summary summary;
    open_case(&o, 6);
    oh_context *context = fake_device_open(), *other = fake_device_open();
    assert_int_equal(run_bf16(context, &o.c, OH_TILE_AUTO, &summary), OH_OK);
    assert_int_equal(summary.tile, OH_TILE_DIFF);
    const float was = o.c.draft[BAD * HIDDEN];
    o.c.draft[BAD * HIDDEN] = 1e6f;
    assert_int_equal(run_bf16(context, &o.c, OH_TILE_AUTO, &summary), OH_OVERFLOW);
    assert_int_equal(run_bf16(context, &o.c, OH_TILE_AUTO, &summary), OH_OK);
    assert_int_equal(summary.tile, OH_TILE_F32);
    assert_non_null(strstr(summary.tile_reason, "an earlier step"));
    assert_int_equal(run_bf16(context, &o.c, OH_TILE_F16, &summary), OH_OVERFLOW); /* asked for */
    o.c.draft[BAD * HIDDEN] = was;
    assert_int_equal(run_bf16(other, &o.c, OH_TILE_AUTO, &summary), OH_OK);
    assert_int_equal(summary.tile, OH_TILE_DIFF);
    oh_context_close(context);
    oh_context_close(other);
    step_case_close(&o.c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_row_over_the_range_marks_the_step),
        cmocka_unit_test(test_a_negative_logit_over_the_range_is_no_minus_infinity),
        cmocka_unit_test(test_the_whole_target_over_the_range_marks_the_step),
        cmocka_unit_test(test_inputs_that_are_not_finite_are_no_overflow),
        cmocka_unit_test(test_logits_just_within_the_range_are_fine),
        cmocka_unit_test(test_operands_over_the_range_mark_the_step),
        cmocka_unit_test(test_the_next_plan_of_the_context_uses_f32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
