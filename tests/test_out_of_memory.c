/* A step whose 1st, 2nd, 3rd ... allocation fails, until none is left to fail: every time the cause is told, nothing
 * is leaked (AddressSanitizer's build says so at the end), and the same objects or new ones work afterwards. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "failing_alloc.h"
#include "step_case.h"

typedef struct attempt {
    oh_status status;
    oh_error error;
} attempt;

static void *host_alloc(void *user, uint64_t bytes) {
    (void)user;
    return aligned_alloc(256, (size_t)(bytes + 255) / 256 * 256);
}

static void host_free(void *user, void *address) {
    (void)user;
    free(address);
}

/* Context, plan, two runs and results, all within what fails. */
static attempt try_step(const oh_context_options *options, const step_case *c, step_output *out) {
    attempt a = {OH_OK, {OH_OK, ""}};
    oh_context *context = NULL;
    oh_plan *plan = NULL;
    oh_device_info info;
    const oh_inputs inputs = step_case_inputs(c);
    const oh_outputs outputs = step_outputs(out, &c->request);
    a.status = oh_context_open(options, &context, &a.error);
    if (a.status == OH_OK) a.status = oh_context_device_info(context, &info, &a.error);
    if (a.status == OH_OK) a.status = oh_plan_create(context, &c->request, &plan, &a.error);
    for (int round = 0; round < 2 && a.status == OH_OK; ++round) {
        a.status = oh_plan_run(plan, &inputs, &outputs, &a.error);
        if (a.status == OH_OK) a.status = oh_plan_results(plan, &out->results, &a.error);
    }
    out->results.slot_hits = out->results.slot_count = NULL; /* the plan's */
    oh_plan_destroy(plan);
    oh_context_close(context);
    return a;
}

static void assert_same_bits(const step_output *a, const step_output *b) {
    assert_memory_equal(a->grad, b->grad, (size_t)(a->rows * a->hidden) * sizeof(float));
    assert_memory_equal(a->row_loss, b->row_loss, (size_t)a->rows * sizeof(float));
    assert_memory_equal(a->topk_id, b->topk_id, (size_t)(a->rows * a->top_k) * sizeof(int32_t));
    assert_true(a->results.loss == b->results.loss);
}

static void fail_each_allocation(const oh_context_options *options, const step_case *c, bool lasting) {
    step_output out, expected;
    step_output_open(&out, c);
    step_output_open(&expected, c);
    int64_t nth = 1;
    for (bool reached = true; reached; ++nth) {
        failing_alloc_arm(nth, lasting);
        const attempt a = try_step(options, c, &out);
        reached = failing_alloc_disarm() >= nth;
        if (!reached) {
            if (a.status != OH_OK) fail_msg("%s", a.error.message);
            break;
        }
        if (a.status != OH_OUT_OF_MEMORY)
            fail_msg("allocation %lld: status %d, %s", (long long)nth, (int)a.status, a.error.message);
        assert_int_equal(a.error.status, OH_OUT_OF_MEMORY);
        assert_true(a.error.message[0] != 0);
    }
    const attempt again = try_step(options, c, &expected);
    assert_int_equal(again.status, OH_OK);
    assert_same_bits(&out, &expected);
    print_message("%lld allocations, each failed%s\n", (long long)nth - 1, lasting ? " with all after it" : "");
    assert_true(nth > 9); /* context, device, plan, queue, workspace, row selection: it can't be fewer */
    step_output_close(&out);
    step_output_close(&expected);
}

static void with_case(const oh_context_options *options, int64_t seed) {
    draws d = draws_open("test_out_of_memory", (uint64_t)seed);
    for (int lasting = 0; lasting < 2; ++lasting)
        for (int policy = OH_POLICY_CACHED; policy <= OH_POLICY_NAIVE; ++policy) {
            step_case c;
            step_case_open(&c, &d, 3, 4, 8, 37);
            c.request.policy = policy;
            if (policy == OH_POLICY_RECOMPUTE) c.request.produce |= OH_PRODUCE_HEAD_GRAD;
            fail_each_allocation(options, &c, lasting != 0);
            step_case_close(&c);
        }
}

/* By name the first failures are those of loading the plugin. */
static void test_every_allocation_of_a_step_can_fail(void **state) {
    (void)state;
    const char *const name = getenv("ONEHEAD_TEST_BACKEND");
    const oh_context_options options = {.backend = name, .table = name ? NULL : step_context_table(), .threads = 1};
    with_case(&options, 1);
}

static void test_every_allocation_of_a_step_on_the_callers_allocator_can_fail(void **state) {
    (void)state;
    const char *const name = getenv("ONEHEAD_TEST_BACKEND");
    const oh_context_options options = {
        .backend = name, .table = name ? NULL : step_context_table(), .alloc = host_alloc, .free = host_free};
    with_case(&options, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_allocation_of_a_step_can_fail),
        cmocka_unit_test(test_every_allocation_of_a_step_on_the_callers_allocator_can_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
