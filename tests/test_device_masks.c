/* Masks, labels and target rows that only the device has give what the same arrays on the host give. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "step_case.h"

/* U = 2^-24. A row's place in its tile is another one, and a backend may add the H = 24 products of a logit in another
 * order there: 2 H U times their absolute sum, some 8, moves logits, and with them losses and probabilities, by 400 U.
 * The gradient's factor is rounded once more. */
#define U 0x1p-24
#define BOUND (512 * U)

enum { BLOCKS = 9, BLOCK = 5, HIDDEN = 24, VOCAB = 211 };

static void open_case(step_case *c, uint64_t seed) {
    draws d = draws_open("test_device_masks", seed);
    step_case_open(c, &d, BLOCKS, BLOCK, HIDDEN, VOCAB);
    c->request.memory = INT64_C(1) << 30;
    c->request.chunk = 4 * BLOCK; /* two chunks and a shorter one */
    c->request.produce |= OH_PRODUCE_HEAD_GRAD;
}

static void compare(oh_context *context, step_case *c) {
    step_output host, device;
    c->request.device_inputs = 0;
    step_run(context, c, &host);
    assert_true(host.results.supervised > 0);
    for (uint32_t bits = 1; bits < 8; ++bits) {
        c->request.device_inputs = bits;
        step_run(context, c, &device);
        step_assert_same(&device, &host, BOUND, BOUND);
        const double distance = step_distance(device.head_grad, host.head_grad, VOCAB * HIDDEN);
        if (!(distance <= BOUND)) fail_msg("dW: %g apart, inputs 0x%x", distance, bits);
        for (int64_t row = 0; row < c->rows; ++row) {
            assert_true(fabs((double)device.weight[row] - (double)host.weight[row]) <= BOUND);
            if (host.weight[row] != 0) continue;
            for (int64_t h = 0; h < HIDDEN; ++h)
                assert_true(device.grad[row * HIDDEN + h] == 0);
        }
        step_output_close(&device);
    }
    step_output_close(&host);
}

static void test_device_arrays_give_the_host_arrays_figures(void **state) {
    (void)state;
    static const char *const terms[] = {"kl=1", "ce=1", "ce=0.2,kl=0.3,rkl=0.1,jsd=0.5,lk_hybrid=0.4,cap=0.02"};
    static const char *const decays[] = {"exp:10", "none", "dpace:0.5"};
    static const char *const norms[] = {"weights", "count", "none", "7.5"};
    oh_context *context = step_context_open();
    for (int i = 0; i < 12; ++i) {
        step_case c;
        open_case(&c, 1 + (uint64_t)i);
        oh_objective *o = &c.request.objective;
        assert_int_equal(oh_objective_set_terms(o, terms[i % 3], NULL), OH_OK);
        assert_int_equal(oh_objective_set_decay(o, decays[(i + i / 3) % 3], NULL), OH_OK);
        assert_int_equal(oh_objective_set_norm(o, norms[i % 4], NULL), OH_OK);
        o->labels = i % 2 ? OH_LABELS_GIVEN : OH_LABELS_TARGET;
        o->first_slot = i % 5 != 0;
        o->upstream = 0.37;
        c.request.policy = i % 3 == 0 ? OH_POLICY_CACHED : i % 3 == 1 ? OH_POLICY_RECOMPUTE : OH_POLICY_NAIVE;
        if (i == 4) c.request.memory = INT64_C(48) << 10; /* panels */
        compare(context, &c);
        step_case_close(&c);
    }
    oh_context_close(context);
}

static void test_tiles_of_differences_and_16_bit_gradients(void **state) {
    (void)state;
    oh_context *context = step_context_open();
    step_case c;
    open_case(&c, 20);
    c.request.tile = OH_TILE_DIFF;
    step_output host, device;
    step_run(context, &c, &host);
    c.request.device_inputs = OH_DEVICE_MASK | OH_DEVICE_TARGET_ROW;
    step_run(context, &c, &device);
    /* An f32 logit that differs may round to the next f16: 2^-11 of it, in t and in d. */
    assert_true(step_distance(device.grad, host.grad, c.rows * HIDDEN) <= 0x1p-9);
    assert_true(device.results.supervised == host.results.supervised);
    assert_true(fabs(device.results.loss - host.results.loss) <= 0x1p-9 * host.results.loss);
    step_output_close(&host);
    step_output_close(&device);
    step_case_close(&c);
    oh_context_close(context);
}

/* NaN in rows that aren't supervised, in D and in G rows that only they use, goes nowhere: dW too. */
static void test_a_nan_in_an_unsupervised_row_goes_nowhere(void **state) {
    (void)state;
    oh_context *context = step_context_open();
    step_case c;
    open_case(&c, 30);
    for (int64_t row = 0; row < c.rows; ++row) {
        const int masked = row % 3 == 0;
        c.mask[row] = masked ? 0 : 1;
        c.target_row[row] = (int32_t)(masked ? c.target_rows - 1 : row % (c.target_rows - 1));
    }
    step_output clean, device;
    step_run(context, &c, &clean);
    for (int64_t row = 0; row < c.rows; ++row)
        if (c.mask[row] == 0 || row % BLOCK == 0)
            for (int64_t h = 0; h < HIDDEN; ++h)
                c.draft[row * HIDDEN + h] = h % 2 ? NAN : INFINITY;
    for (int64_t h = 0; h < HIDDEN; ++h)
        c.target[(c.target_rows - 1) * HIDDEN + h] = NAN;
    for (uint32_t bits = 1; bits < 8; ++bits) {
        c.request.device_inputs = bits;
        step_run(context, &c, &device);
        assert_int_equal(device.results.nonfinite_rows, 0);
        step_assert_same(&device, &clean, BOUND, BOUND);
        assert_true(step_distance(device.head_grad, clean.head_grad, VOCAB * HIDDEN) <= BOUND);
        step_output_close(&device);
    }
    step_output_close(&clean);
    step_case_close(&c);
    oh_context_close(context);
}

static void test_no_supervised_row_gives_zeros(void **state) {
    (void)state;
    oh_context *context = step_context_open();
    step_case c;
    open_case(&c, 40);
    memset(c.mask, 0, (size_t)c.rows * sizeof *c.mask);
    c.request.device_inputs = OH_DEVICE_MASK;
    step_output out;
    step_run(context, &c, &out);
    assert_int_equal(out.results.supervised, 0);
    assert_true(out.results.loss == 0 && out.results.loss_den == 0);
    for (int64_t i = 0; i < c.rows * HIDDEN; ++i)
        assert_true(out.grad[i] == 0);
    for (int64_t i = 0; i < VOCAB * HIDDEN; ++i)
        assert_true(out.head_grad[i] == 0);
    step_output_close(&out);
    step_case_close(&c);
    oh_context_close(context);
}

/* ------------------------------------------------------------------------------- on the template: host addresses ---- */

static oh_context *template_open(void) {
    const oh_context_options options = {.table = step_context_table()};
    oh_context *context = NULL;
    assert_int_equal(oh_context_open(&options, &context, NULL), OH_OK);
    return context;
}

static oh_status run_once(oh_context *context, const step_case *c, const oh_inputs *in, step_output *out,
                          oh_error *error) {
    oh_plan *plan = NULL;
    step_output_open(out, c);
    const oh_outputs outputs = step_outputs(out, &c->request);
    assert_int_equal(oh_plan_create(context, &c->request, &plan, error), OH_OK);
    oh_status status = oh_plan_run(plan, in, &outputs, error);
    if (status == OH_OK) status = oh_plan_results(plan, &out->results, error);
    oh_plan_destroy(plan);
    return status;
}

static void test_what_the_host_would_refuse_is_said_with_the_results(void **state) {
    (void)state;
    static const float bad[] = {-1, NAN, INFINITY};
    oh_context *context = template_open();
    for (int i = 0; i < 4; ++i) {
        step_case c;
        step_output out;
        oh_error error = {OH_OK, ""};
        open_case(&c, 50);
        for (int64_t row = 0; row < c.rows; ++row)
            c.mask[row] = 1;
        c.request.device_inputs = OH_DEVICE_MASK | OH_DEVICE_TARGET_ROW;
        if (i < 3)
            c.mask[7] = bad[i];
        else
            c.target_row[7] = (int32_t)c.target_rows;
        const oh_inputs in = step_case_inputs(&c);
        assert_int_equal(run_once(context, &c, &in, &out, &error), OH_BAD_DATA);
        assert_non_null(strstr(error.message, i < 3 ? "loss_mask[7]" : "target_row[7]"));
        assert_int_equal(out.results.supervised, BLOCKS * (BLOCK - 1) - 1);
        for (int64_t h = 0; h < HIDDEN; ++h)
            assert_true(out.grad[7 * HIDDEN + h] == 0);
        step_output_close(&out);
        /* A target row that the host has and only an unsupervised row uses is nobody's concern. */
        c.request.device_inputs = OH_DEVICE_MASK;
        c.mask[7] = 0;
        c.target_row[7] = -5;
        assert_int_equal(run_once(context, &c, &in, &out, &error), OH_OK);
        step_output_close(&out);
        c.mask[7] = 1;
        assert_int_equal(run_once(context, &c, &in, &out, &error), OH_BAD_DATA);
        step_output_close(&out);
        step_case_close(&c);
    }
    oh_context_close(context);
}

/* The bias' gradient sums dz times the rows' weights: places that no row took must have weight 0. */
static void test_the_bias_gradient_leaves_out_places_without_a_row(void **state) {
    (void)state;
    oh_context *context = template_open();
    step_case c;
    oh_error error = {OH_OK, ""};
    float bias[2][VOCAB];
    open_case(&c, 55);
    c.request.has_bias = 1;
    c.request.produce |= OH_PRODUCE_BIAS_GRAD;
    const oh_inputs in = step_case_inputs(&c);
    for (int device = 0; device < 2; ++device) {
        step_output out;
        oh_plan *plan = NULL;
        step_output_open(&out, &c);
        oh_outputs outputs = step_outputs(&out, &c.request);
        outputs.bias_grad = bias[device];
        c.request.device_inputs = device ? OH_DEVICE_MASK : 0;
        assert_int_equal(oh_plan_create(context, &c.request, &plan, &error), OH_OK);
        assert_int_equal(oh_plan_run(plan, &in, &outputs, &error), OH_OK);
        assert_int_equal(oh_plan_results(plan, &out.results, &error), OH_OK);
        oh_plan_destroy(plan);
        step_output_close(&out);
    }
    assert_true(step_distance(bias[1], bias[0], VOCAB) <= BOUND);
    step_case_close(&c);
    oh_context_close(context);
}

static void test_every_dtype_of_the_arrays_is_read(void **state) {
    (void)state;
    oh_context *context = template_open();
    step_case c;
    step_output want, got;
    oh_error error = {OH_OK, ""};
    open_case(&c, 60);
    c.request.objective.labels = OH_LABELS_GIVEN;
    for (int64_t row = 0; row < c.rows; ++row)
        c.mask[row] = c.mask[row] > 0;
    oh_inputs in = step_case_inputs(&c);
    assert_int_equal(run_once(context, &c, &in, &want, &error), OH_OK);
    int64_t label[BLOCKS * BLOCK], target_row[BLOCKS * BLOCK];
    uint8_t mask[BLOCKS * BLOCK];
    for (int64_t row = 0; row < c.rows; ++row) {
        label[row] = c.label[row] == -100 ? INT64_MIN : c.label[row];
        target_row[row] = c.target_row[row];
        mask[row] = c.mask[row] > 0;
    }
    in.label = label;
    in.target_row = target_row;
    in.mask = mask;
    in.label_dtype = in.target_row_dtype = OH_I64;
    for (int is_bool = 0; is_bool < 2; ++is_bool)
        for (uint32_t bits = 0; bits < 8; ++bits) {
            in.mask_dtype = is_bool ? OH_BOOL : OH_U8;
            c.request.device_inputs = bits;
            assert_int_equal(run_once(context, &c, &in, &got, &error), OH_OK);
            assert_int_equal(got.results.supervised, want.results.supervised);
            assert_true(got.results.loss == want.results.loss);
            assert_true(step_distance(got.grad, want.grad, c.rows * HIDDEN) <= BOUND);
            step_output_close(&got);
        }
    step_output_close(&want);
    step_case_close(&c);
    oh_context_close(context);
}

/* The same plan, the same device memory, other contents: as a captured step is replayed. */
static void test_a_plan_takes_new_masks_each_run(void **state) {
    (void)state;
    oh_context *context = template_open();
    step_case c;
    oh_error error = {OH_OK, ""};
    open_case(&c, 70);
    c.request.device_inputs = OH_DEVICE_MASK;
    const oh_inputs in = step_case_inputs(&c);
    oh_plan *plan = NULL;
    assert_int_equal(oh_plan_create(context, &c.request, &plan, &error), OH_OK);
    for (int round = 0; round < 6; ++round) {
        step_output out, fresh;
        for (int64_t row = 0; row < c.rows; ++row)
            c.mask[row] = round == 3 ? 0 : (float)((row * 7 + round * round) % (round + 2));
        step_output_open(&out, &c);
        const oh_outputs outputs = step_outputs(&out, &c.request);
        assert_int_equal(oh_plan_run(plan, &in, &outputs, &error), OH_OK);
        assert_int_equal(oh_plan_results(plan, &out.results, &error), OH_OK);
        assert_int_equal(run_once(context, &c, &in, &fresh, &error), OH_OK);
        assert_memory_equal(out.grad, fresh.grad, (size_t)(c.rows * HIDDEN) * sizeof(float));
        assert_memory_equal(out.head_grad, fresh.head_grad, (size_t)(VOCAB * HIDDEN) * sizeof(float));
        assert_true(out.results.loss == fresh.results.loss);
        step_output_close(&out);
        step_output_close(&fresh);
    }
    oh_plan_destroy(plan);
    oh_context_close(context);
    step_case_close(&c);
}

static void test_target_rows_are_shared_where_the_host_has_them(void **state) {
    (void)state;
    step_case c;
    open_case(&c, 80);
    c.request.distinct_target_rows = 3;
    for (uint32_t bits = OH_DEVICE_MASK; bits <= (OH_DEVICE_MASK | OH_DEVICE_TARGET_ROW);
         bits += OH_DEVICE_TARGET_ROW) {
        oh_plan *plan = NULL;
        int64_t count = 0, tile = 0;
        c.request.device_inputs = bits;
        assert_int_equal(oh_plan_describe(&c.request, &plan, NULL), OH_OK);
        const oh_plan_buffer *buffers = oh_plan_buffers(plan, &count);
        for (int64_t i = 0; i < count; ++i)
            if (strcmp(buffers[i].name, "target rows") == 0) tile = buffers[i].bytes / HIDDEN / 4;
        assert_int_equal(tile, bits & OH_DEVICE_TARGET_ROW ? 4 * (BLOCK - 1) : 3);
        oh_plan_destroy(plan);
    }
    c.request.device_inputs = 8;
    oh_error error = {OH_OK, ""};
    oh_plan *plan = NULL;
    assert_int_equal(oh_plan_describe(&c.request, &plan, &error), OH_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "device_inputs 0x8"));
    step_case_close(&c);
}

/* Hidden states that a plan has no use for are nobody's target, wherever rows are selected. */
static void test_a_plan_without_a_target_looks_at_none(void **state) {
    (void)state;
    oh_context *context = template_open();
    for (uint32_t bits = 0; bits < 8; ++bits) {
        step_case c;
        step_output without, with;
        oh_error error = {OH_OK, ""};
        open_case(&c, 85);
        assert_int_equal(oh_objective_set_terms(&c.request.objective, "ce=1", NULL), OH_OK);
        c.request.objective.labels = OH_LABELS_GIVEN;
        c.request.target_rows = 0;
        c.request.device_inputs = bits;
        oh_inputs in = step_case_inputs(&c);
        in.target_row = NULL;
        assert_int_equal(run_once(context, &c, &in, &without, &error), OH_OK);
        in.target_hidden = c.target;
        in.target_row = c.target_row;
        if (run_once(context, &c, &in, &with, &error) != OH_OK) fail_msg("%s", error.message);
        assert_true(with.results.supervised > 0);
        assert_memory_equal(with.grad, without.grad, (size_t)(c.rows * HIDDEN) * sizeof(float));
        step_output_close(&without);
        step_output_close(&with);
        step_case_close(&c);
    }
    oh_context_close(context);
}

/* The host can't tell which rows a mask on the device leaves, so a bound that only those keep is no bound: tiles of so few
 * target rows would be written past their end. */
static void test_a_bound_on_target_rows_holds_for_every_row_that_may_be_supervised(void **state) {
    (void)state;
    oh_context *context = template_open();
    for (int mapped = 0; mapped < 2; ++mapped)
        for (int kept = 0; kept < 2; ++kept) {
            step_case c;
            step_output out;
            oh_error error = {OH_OK, ""};
            open_case(&c, 90);
            for (int64_t row = 0; row < c.rows; ++row) {
                c.mask[row] = row % (4 * BLOCK) == 1; /* one row of each chunk */
                c.target_row[row] = (int32_t)(kept ? row / (4 * BLOCK) : row % c.target_rows);
            }
            c.request.device_inputs = OH_DEVICE_MASK;
            c.request.distinct_target_rows = mapped && kept ? 1 : kept ? 4 * (BLOCK - 1) : 4;
            oh_inputs in = step_case_inputs(&c);
            float *identity = calloc((size_t)(c.rows * HIDDEN), sizeof *identity);
            assert_non_null(identity);
            if (!mapped) {
                c.request.target_rows = in.target_rows = in.rows;
                in.target_hidden = identity;
                in.target_row = NULL;
            }
            assert_int_equal(run_once(context, &c, &in, &out, &error), kept ? OH_OK : OH_BAD_DATA);
            if (!kept) assert_non_null(strstr(error.message, "any of whose rows may be supervised, the plan was"));
            if (kept) assert_int_equal(out.results.supervised, 3);
            free(identity);
            step_output_close(&out);
            step_case_close(&c);
        }
    oh_context_close(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_arrays_give_the_host_arrays_figures),
        cmocka_unit_test(test_tiles_of_differences_and_16_bit_gradients),
        cmocka_unit_test(test_a_nan_in_an_unsupervised_row_goes_nowhere),
        cmocka_unit_test(test_no_supervised_row_gives_zeros),
        cmocka_unit_test(test_what_the_host_would_refuse_is_said_with_the_results),
        cmocka_unit_test(test_the_bias_gradient_leaves_out_places_without_a_row),
        cmocka_unit_test(test_every_dtype_of_the_arrays_is_read),
        cmocka_unit_test(test_a_plan_takes_new_masks_each_run),
        cmocka_unit_test(test_target_rows_are_shared_where_the_host_has_them),
        cmocka_unit_test(test_a_plan_without_a_target_looks_at_none),
        cmocka_unit_test(test_a_bound_on_target_rows_holds_for_every_row_that_may_be_supervised),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
