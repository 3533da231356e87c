/* Contexts are independent: steps on eight threads at once, each on a context of its own, give the bits of one alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "step_case.h"

enum { THREADS = 8, ROUNDS = 50 };

/* cmocka's assertions are for the main thread: a worker says what went wrong and the test looks at it. */
typedef struct worker {
    const step_case *c;
    const step_output *expected;
    const char *failure;
    oh_error error;
    pthread_t thread;
} worker;

static const char *compare(const step_output *out, const step_output *expected) {
    if (memcmp(out->grad, expected->grad, (size_t)(out->rows * out->hidden) * sizeof(float)) != 0) return "dD differs";
    if (memcmp(out->row_loss, expected->row_loss, (size_t)out->rows * sizeof(float)) != 0) return "row_loss differs";
    if (memcmp(out->topk_id, expected->topk_id, (size_t)(out->rows * out->top_k) * sizeof(int32_t)) != 0)
        return "topk_id differs";
    return NULL;
}

static void *work(void *argument) {
    worker *w = argument;
    const char *name = getenv("ONEHEAD_TEST_BACKEND");
    const oh_context_options options = {
        .backend = name, .table = name ? NULL : step_context_table(), .threads = 1 + (int32_t)(w->c->rows % 2)};
    oh_context *context = NULL;
    oh_plan *plan = NULL;
    step_output out;
    step_output_open(&out, w->c);
    const oh_inputs inputs = step_case_inputs(w->c);
    const oh_outputs outputs = step_outputs(&out, &w->c->request);
    oh_status status = oh_context_open(&options, &context, &w->error);
    if (status == OH_OK) status = oh_plan_create(context, &w->c->request, &plan, &w->error);
    for (int round = 0; round < ROUNDS && status == OH_OK && !w->failure; ++round) {
        status = oh_plan_run(plan, &inputs, &outputs, &w->error);
        if (status == OH_OK) status = oh_plan_results(plan, &out.results, &w->error);
        if (status == OH_OK) w->failure = compare(&out, w->expected);
    }
    if (status != OH_OK) w->failure = w->error.message;
    oh_plan_destroy(plan);
    oh_context_close(context);
    step_output_close(&out);
    return NULL;
}

static void run_alone(const step_case *c, step_output *out) {
    worker alone = {.c = c};
    const char *name = getenv("ONEHEAD_TEST_BACKEND");
    const oh_context_options options = {
        .backend = name, .table = name ? NULL : step_context_table(), .threads = 1 + (int32_t)(c->rows % 2)};
    oh_context *context = NULL;
    if (oh_context_open(&options, &context, &alone.error) != OH_OK) fail_msg("%s", alone.error.message);
    step_run(context, c, out);
    oh_context_close(context);
}

static void test_eight_contexts_on_eight_threads(void **state) {
    (void)state;
    draws d = draws_open("test_threads", 27);
    step_case cases[2];
    step_output expected[2];
    worker workers[THREADS];
    for (int i = 0; i < 2; ++i) {
        step_case_open(&cases[i], &d, 3 + i, 5, 16, 131 + 17 * i);
        cases[i].request.memory = INT64_C(1) << 28;
        cases[i].request.policy = i ? OH_POLICY_RECOMPUTE : OH_POLICY_CACHED;
        run_alone(&cases[i], &expected[i]);
    }
    for (int i = 0; i < THREADS; ++i) {
        workers[i] = (worker){.c = &cases[i % 2], .expected = &expected[i % 2]};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; ++i)
        pthread_join(workers[i].thread, NULL);
    for (int i = 0; i < THREADS; ++i)
        if (workers[i].failure) fail_msg("thread %d: %s", i, workers[i].failure);
    for (int i = 0; i < 2; ++i) {
        step_output_close(&expected[i]);
        step_case_close(&cases[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_eight_contexts_on_eight_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
