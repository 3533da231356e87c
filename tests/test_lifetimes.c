/* What outlives a step: contexts made and closed many times leave nothing behind, and a child after fork goes on with
 * the context that it has inherited.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <malloc.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#include "step_case.h"

#if defined(__SANITIZE_ADDRESS__)
#define INSTRUMENTED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define INSTRUMENTED 1
#endif
#endif

#ifdef INSTRUMENTED
enum { ROUNDS = 400 };
#else
enum { ROUNDS = 10000 };
#endif

enum { CHILD_SECONDS = 10, PLAN_EVERY = 5, TWO_EVERY = 50, SETTLED = 100 };

/* ------------------------------------------------------------------------------------------------------- growth ---- */

/* Bytes of private memory that the process holds. */
static int64_t resident_bytes(void) {
    char line[200];
    long long kib = -1;
    FILE *const status = fopen("/proc/self/status", "r");
    assert_non_null(status);
    while (fgets(line, sizeof line, status) != NULL && sscanf(line, "RssAnon: %lld kB", &kib) != 1) {
    }
    (void)fclose(status);
    assert_true(kib >= 0);
    return kib * 1024;
}

static int open_files(void) {
    int count = 0;
    DIR *const entries = opendir("/proc/self/fd");
    assert_non_null(entries);
    while (readdir(entries) != NULL)
        ++count;
    (void)closedir(entries);
    return count;
}

static int threads(void) {
    int count = 0;
    DIR *const entries = opendir("/proc/self/task");
    assert_non_null(entries);
    while (readdir(entries) != NULL)
        ++count;
    (void)closedir(entries);
    return count;
}

static oh_context *open_context(int32_t use_threads) {
    const char *const name = getenv("ONEHEAD_TEST_BACKEND");
    const oh_context_options options = {
        .backend = name, .table = name ? NULL : step_context_table(), .threads = use_threads};
    oh_context *context = NULL;
    oh_error error;
    if (oh_context_open(&options, &context, &error) != OH_OK) fail_msg("%s", error.message);
    return context;
}

static void one_round(const step_case *c, int round) {
    oh_context *const context = open_context(round % TWO_EVERY == 0 ? 2 : 1);
    if (round % PLAN_EVERY == 0) {
        step_output out;
        step_run(context, c, &out);
        step_output_close(&out);
    }
    oh_context_close(context);
}

/* What the allocator and the C library keep for themselves has settled after the first rounds, but for a few buffers of
 * this test's own: 7 bytes a context would be seen. */
static void test_contexts_leave_nothing_behind(void **state) {
    (void)state;
    draws d = draws_open("test_lifetimes", 1);
    step_case c;
    step_case_open(&c, &d, 3, 4, 8, 37);
    for (int i = 0; i < SETTLED; ++i)
        one_round(&c, i);
    const int64_t bytes = resident_bytes(), used = (int64_t)mallinfo2().uordblks;
    const int files = open_files(), running = threads();
    for (int i = 0; i < ROUNDS; ++i)
        one_round(&c, i);
    const int64_t grown = resident_bytes() - bytes, kept = (int64_t)mallinfo2().uordblks - used;
    print_message(
        "%d contexts, %d of them with a step: %lld KiB more resident, %lld bytes more allocated, %d descriptors "
        "and %d threads more\n",
        ROUNDS, (ROUNDS + PLAN_EVERY - 1) / PLAN_EVERY, (long long)grown / 1024, (long long)kept, open_files() - files,
        threads() - running);
    assert_int_equal(open_files(), files);
    assert_int_equal(threads(), running);
#ifndef INSTRUMENTED /* whose allocator keeps what was freed, and has a leak check of its own */
    assert_true(kept < 1 << 16);
    assert_true(grown < 1 << 20);
#endif
    step_case_close(&c);
}

/* --------------------------------------------------------------------------------------------------------- fork ---- */

typedef struct inherited {
    oh_context *context;
    oh_plan *plan;
    const step_case *c;
    step_output out;
    const step_output *expected;
} inherited;

static bool runs_as_expected(inherited *i) {
    oh_error error;
    const oh_inputs inputs = step_case_inputs(i->c);
    const oh_outputs outputs = step_outputs(&i->out, &i->c->request);
    memset(i->out.grad, 0xff, (size_t)(i->out.rows * i->out.hidden) * sizeof(float));
    return oh_plan_run(i->plan, &inputs, &outputs, &error) == OH_OK &&
           oh_plan_results(i->plan, &i->out.results, &error) == OH_OK &&
           memcmp(i->out.grad, i->expected->grad, (size_t)(i->out.rows * i->out.hidden) * sizeof(float)) == 0 &&
           i->out.results.loss == i->expected->results.loss;
}

/* Exit codes of a child: what didn't work. */
enum { CHILD_OK, CHILD_INHERITED, CHILD_NEW, CHILD_GRANDCHILD };

static int in_child(inherited *i, int generation) {
    alarm(CHILD_SECONDS); /* ends it by a signal where it waits for threads that it doesn't have */
    if (!runs_as_expected(i)) return CHILD_INHERITED;
    inherited own = *i;
    const char *const name = getenv("ONEHEAD_TEST_BACKEND");
    const oh_context_options options = {.backend = name, .table = name ? NULL : step_context_table(), .threads = 2};
    if (oh_context_open(&options, &own.context, NULL) != OH_OK) return CHILD_NEW;
    if (oh_plan_create(own.context, &own.c->request, &own.plan, NULL) != OH_OK || !runs_as_expected(&own))
        return CHILD_NEW;
    oh_plan_destroy(own.plan);
    oh_context_close(own.context);
    if (generation > 0) return CHILD_OK;
    const pid_t grandchild = fork();
    int ended = -1;
    if (grandchild == 0) _exit(in_child(i, generation + 1));
    if (grandchild < 0 || waitpid(grandchild, &ended, 0) != grandchild || ended != 0) return CHILD_GRANDCHILD;
    oh_plan_destroy(i->plan);
    oh_context_close(i->context);
    return CHILD_OK;
}

static void test_case_28_a_child_after_fork_goes_on_with_its_parents_context(void **state) {
    (void)state;
    draws d = draws_open("test_lifetimes", 28);
    step_case c;
    step_output expected;
    step_case_open(&c, &d, 3, 8, 16, 131);
    inherited i = {.context = open_context(2), .c = &c, .expected = &expected};
    step_run(i.context, &c, &expected); /* the backend has its threads now */
    step_output_open(&i.out, &c);
    oh_error error;
    if (oh_plan_create(i.context, &c.request, &i.plan, &error) != OH_OK) fail_msg("%s", error.message);
    assert_true(runs_as_expected(&i));
    for (int round = 0; round < 2; ++round) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) _exit(in_child(&i, 0));
        assert_true(runs_as_expected(&i)); /* while the child runs */
        int ended;
        assert_int_equal(waitpid(child, &ended, 0), child);
        if (!WIFEXITED(ended)) fail_msg("the child ended by signal %d", WTERMSIG(ended));
        assert_int_equal(WEXITSTATUS(ended), CHILD_OK);
        assert_true(runs_as_expected(&i));
    }
    oh_plan_destroy(i.plan);
    oh_context_close(i.context);
    step_output_close(&i.out);
    step_output_close(&expected);
    step_case_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contexts_leave_nothing_behind),
        cmocka_unit_test(test_case_28_a_child_after_fork_goes_on_with_its_parents_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
