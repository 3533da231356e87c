/* What a step only records, for a graph to replay or never, counts as not done: steps after it are those of a plan that
 * nothing was captured of. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "portable/portable.h"
#include "step_case.h"

enum { BLOCKS = 4, BLOCK = 4, HIDDEN = 12, VOCAB = 70 };

/* ------------------------------------------------------------------------------------ a backend that only records -- */

static int capturing;

static int32_t queue_is_capturing(oh_queue *queue) {
    (void)queue;
    return capturing;
}

static oh_status copy_rows(oh_queue *queue, const oh_copy_rows *copy) {
    (void)queue;
    return capturing ? OH_OK : oh_portable_copy_rows(copy);
}

static oh_context *open_context(void) {
    static oh_backend table;
    table = *step_context_table();
    table.queue_is_capturing = queue_is_capturing;
    table.copy_rows = copy_rows;
    const oh_context_options options = {.table = &table};
    oh_context *context = NULL;
    oh_error error = {OH_OK, ""};
    if (oh_context_open(&options, &context, &error) != OH_OK) fail_msg("%s", error.message);
    return context;
}

/* ----------------------------------------------------------------------------------------------------------- steps -- */

/* A head in bf16, which this backend multiplies as f32: its copy is kept. */
static uint16_t head[VOCAB * HIDDEN];

static void open_case(step_case *c) {
    draws d = draws_open("test_captured", 1);
    step_case_open(c, &d, BLOCKS, BLOCK, HIDDEN, VOCAB);
    for (int i = 0; i < VOCAB * HIDDEN; ++i) {
        uint32_t bits;
        memcpy(&bits, &c->head[i], sizeof bits);
        head[i] = (uint16_t)(bits >> 16);
    }
    c->request.weight_dtype = OH_BF16;
    c->request.produce = OH_PRODUCE_LOSS | OH_PRODUCE_GRAD;
}

/* Loss of a run on `plan`. */
static double run(oh_plan *plan, const step_case *c, step_output *out) {
    oh_inputs inputs = step_case_inputs(c);
    const oh_outputs outputs = step_outputs(out, &c->request);
    oh_error error = {OH_OK, ""};
    inputs.lm_head = head;
    if (oh_plan_run(plan, &inputs, &outputs, &error) != OH_OK) fail_msg("%s", error.message);
    oh_results results;
    if (oh_plan_results(plan, &results, &error) != OH_OK) fail_msg("%s", error.message);
    return results.loss;
}

static void test_a_weight_whose_conversion_was_recorded_is_converted(void **state) {
    (void)state;
    step_case c;
    step_output out;
    oh_error error = {OH_OK, ""};
    oh_plan *plain = NULL, *captured = NULL;
    open_case(&c);
    oh_context *context = open_context();
    assert_int_equal(oh_plan_create(context, &c.request, &plain, &error), OH_OK);
    assert_int_equal(oh_plan_create(context, &c.request, &captured, &error), OH_OK);
    assert_true(oh_plan_get_summary(plain)->weight_bytes > 0);
    step_output_open(&out, &c);
    const double right = run(plain, &c, &out);
    capturing = 1;
    (void)run(captured, &c, &out);
    capturing = 0;
    assert_true(run(captured, &c, &out) == right);
    capturing = 1; /* its weight is there by now */
    (void)run(captured, &c, &out);
    capturing = 0;
    assert_true(run(captured, &c, &out) == right);
    step_output_close(&out);
    oh_plan_destroy(plain);
    oh_plan_destroy(captured);
    oh_context_close(context);
    step_case_close(&c);
}

static void test_a_recorded_step_is_no_warm_one(void **state) {
    (void)state;
    step_case c;
    step_output out;
    oh_error error = {OH_OK, ""};
    oh_plan *plan = NULL;
    open_case(&c);
    oh_context *context = open_context();
    assert_int_equal(oh_plan_create(context, &c.request, &plan, &error), OH_OK);
    step_output_open(&out, &c);
    oh_inputs inputs = step_case_inputs(&c);
    const oh_outputs outputs = step_outputs(&out, &c.request);
    inputs.lm_head = head;
    capturing = 1;
    (void)run(plan, &c, &out);
    capturing = 0;
    assert_int_equal(oh_plan_run_products(plan, &inputs, &outputs, &error), OH_INVALID_ARGUMENT);
    (void)run(plan, &c, &out);
    assert_int_equal(oh_plan_run_products(plan, &inputs, &outputs, &error), OH_OK);
    step_output_close(&out);
    oh_plan_destroy(plan);
    oh_context_close(context);
    step_case_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_weight_whose_conversion_was_recorded_is_converted),
        cmocka_unit_test(test_a_recorded_step_is_no_warm_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
