/* What a plan shows of itself: spans that cover a step's operations, and its products alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "step_case.h"

enum { SPANS_MAX = 2000 };

typedef struct seen {
    oh_span spans[SPANS_MAX];
    int count, open;
} seen;

static void see(void *user, const oh_span *span, int begin) {
    seen *s = user;
    if (begin) {
        assert_int_equal(s->open, 0); /* operations don't nest */
        assert_true(s->count < SPANS_MAX);
        s->spans[s->count] = *span;
        s->open = 1;
        return;
    }
    assert_int_equal(s->open, 1);
    assert_memory_equal(&s->spans[s->count], span, sizeof *span);
    s->open = 0;
    s->count++;
}

static int is_product(const oh_span *span) {
    return span->kind == OH_SPAN_PROJECT_DRAFT || span->kind == OH_SPAN_PROJECT_TARGET || span->kind == OH_SPAN_GRAD ||
           span->kind == OH_SPAN_HEAD_GRAD;
}

typedef struct traced_step {
    step_case c;
    step_output out;
    oh_context *context;
    oh_plan *plan;
    oh_inputs in;
    oh_outputs outputs;
} traced_step;

static const int32_t policies[] = {OH_POLICY_CACHED, OH_POLICY_RECOMPUTE, OH_POLICY_NAIVE};
enum { POLICIES = sizeof policies / sizeof policies[0] };

static void open_step(traced_step *t, int32_t policy) {
    draws d = draws_open("test_traced", 1);
    memset(t, 0, sizeof *t);
    t->context = step_context_open();
    step_case_open(&t->c, &d, 6, 5, 12, 67);
    for (int64_t i = 0; i < t->c.rows; ++i)
        t->c.mask[i] = 1;
    t->c.request.policy = policy;
    t->c.request.chunk = 10;
    t->c.request.memory = INT64_C(1) << 30;
    step_output_open(&t->out, &t->c);
    assert_int_equal(oh_plan_create(t->context, &t->c.request, &t->plan, NULL), OH_OK);
    t->in = step_case_inputs(&t->c);
    t->outputs = step_outputs(&t->out, &t->c.request);
}

static void close_step(traced_step *t) {
    oh_plan_destroy(t->plan);
    step_output_close(&t->out);
    step_case_close(&t->c);
    oh_context_close(t->context);
}

static void test_spans_count_what_results_count(void **state) {
    (void)state;
    for (int p = 0; p < POLICIES; ++p) {
        traced_step t;
        seen s = {.count = 0};
        oh_results results;
        open_step(&t, policies[p]);
        oh_plan_trace(t.plan, see, &s);
        assert_int_equal(oh_plan_run(t.plan, &t.in, &t.outputs, NULL), OH_OK);
        assert_int_equal(oh_plan_results(t.plan, &results, NULL), OH_OK);
        int64_t draft = 0, target = 0, products = 0, reads = 0;
        double flops = 0;
        for (int i = 0; i < s.count; ++i) {
            const oh_span *span = &s.spans[i];
            draft += span->kind == OH_SPAN_PROJECT_DRAFT;
            target += span->kind == OH_SPAN_PROJECT_TARGET;
            products += is_product(span);
            reads += span->tile_reads;
            flops += span->flops;
            assert_true(is_product(span) == (span->flops > 0));
            assert_non_null(span->queue);
            assert_string_not_equal(oh_span_name(span->kind), "unknown");
            if (is_product(span)) assert_true(span->chunk >= 0 && span->chunk < 3 && span->stage >= 0);
        }
        assert_int_equal(draft, results.projections_draft);
        assert_int_equal(target, results.projections_target);
        assert_int_equal(products, results.gemms);
        assert_int_equal(reads, results.tile_reads);
        assert_true(flops > 0);
        close_step(&t);
    }
}

/* Same shapes in the same order, and nothing besides. */
static void test_products_alone_are_those_of_the_step(void **state) {
    (void)state;
    for (int p = 0; p < POLICIES; ++p) {
        traced_step t;
        seen whole = {.count = 0}, alone = {.count = 0};
        open_step(&t, policies[p]);
        oh_plan_trace(t.plan, see, &whole);
        assert_int_equal(oh_plan_run(t.plan, &t.in, &t.outputs, NULL), OH_OK);
        oh_plan_trace(t.plan, see, &alone);
        assert_int_equal(oh_plan_run_products(t.plan, &t.in, &t.outputs, NULL), OH_OK);
        int at = 0;
        for (int i = 0; i < whole.count; ++i) {
            if (!is_product(&whole.spans[i])) continue;
            assert_true(at < alone.count);
            assert_memory_equal(&whole.spans[i], &alone.spans[at], sizeof(oh_span));
            at++;
        }
        assert_true(at > 0);
        assert_int_equal(at, alone.count);
        close_step(&t);
    }
}

static void test_products_alone_leave_the_next_step_right(void **state) {
    (void)state;
    traced_step t;
    oh_results before, after;
    open_step(&t, OH_POLICY_CACHED);
    assert_int_equal(oh_plan_run(t.plan, &t.in, &t.outputs, NULL), OH_OK);
    assert_int_equal(oh_plan_results(t.plan, &before, NULL), OH_OK);
    assert_int_equal(oh_plan_run_products(t.plan, &t.in, &t.outputs, NULL), OH_OK);
    assert_int_equal(oh_plan_results(t.plan, &after, NULL), OH_INVALID_ARGUMENT); /* they have none */
    assert_int_equal(oh_plan_run(t.plan, &t.in, &t.outputs, NULL), OH_OK);
    assert_int_equal(oh_plan_results(t.plan, &after, NULL), OH_OK);
    assert_true(before.loss == after.loss && before.grad_norm == after.grad_norm);
    close_step(&t);
}

static void test_products_alone_need_a_step_before(void **state) {
    (void)state;
    traced_step t;
    oh_error error;
    open_step(&t, OH_POLICY_CACHED);
    assert_int_equal(oh_plan_run_products(t.plan, &t.in, &t.outputs, &error), OH_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "expected oh_plan_run before"));
    close_step(&t);
}

static void test_an_observer_ends_with_null(void **state) {
    (void)state;
    traced_step t;
    seen s = {.count = 0};
    open_step(&t, OH_POLICY_CACHED);
    oh_plan_trace(t.plan, see, &s);
    oh_plan_trace(t.plan, NULL, NULL);
    assert_int_equal(oh_plan_run(t.plan, &t.in, &t.outputs, NULL), OH_OK);
    assert_int_equal(s.count, 0);
    close_step(&t);
}

/* How often rows of D and of G are gathered by a step over copies of them, `shift` elements from an aligned address. */
static int gathers(traced_step *t, int64_t shift, float *grad) {
    const int64_t count = t->c.rows * t->c.request.hidden;
    const size_t bytes = (size_t)count * sizeof(float) + 256;
    float *draft = aligned_alloc(256, bytes / 256 * 256 + 256), *target = aligned_alloc(256, bytes / 256 * 256 + 256);
    assert_true(draft && target);
    memcpy(draft + shift, t->c.draft, (size_t)count * sizeof(float));
    memcpy(target + shift, t->c.draft, (size_t)count * sizeof(float));
    oh_inputs in = t->in;
    in.draft_hidden = draft + shift;
    in.target_hidden = target + shift;
    seen s = {.count = 0};
    oh_plan_trace(t->plan, see, &s);
    assert_int_equal(oh_plan_run(t->plan, &in, &t->outputs, NULL), OH_OK);
    memcpy(grad, t->out.grad, (size_t)count * sizeof(float));
    int found = 0;
    for (int i = 0; i < s.count; ++i)
        found += s.spans[i].kind == OH_SPAN_GATHER_DRAFT || s.spans[i].kind == OH_SPAN_GATHER_TARGET;
    free(draft);
    free(target);
    return found;
}

/* Rows that lie as gathered ones would are multiplied where they are, to the same bits; a row less and they are gathered. */
static void test_rows_that_lie_ready_are_not_gathered(void **state) {
    (void)state;
    draws d = draws_open("test_traced ready", 1);
    traced_step t = {.context = step_context_open()};
    step_case_open(&t.c, &d, 6, 5, 64, 67); /* chunks of 10 rows of 256 bytes */
    for (int64_t i = 0; i < t.c.rows; ++i) {
        t.c.mask[i] = 1;
        t.c.target_row[i] = (int32_t)i;
    }
    t.c.request.objective.first_slot = 0;
    t.c.request.objective.labels = OH_LABELS_TARGET;
    t.c.request.target_rows = t.c.target_rows = t.c.rows;
    t.c.request.chunk = 10;
    t.c.request.memory = INT64_C(1) << 30;
    step_output_open(&t.out, &t.c);
    assert_int_equal(oh_plan_create(t.context, &t.c.request, &t.plan, NULL), OH_OK);
    t.in = step_case_inputs(&t.c);
    t.in.target_rows = t.c.rows;
    t.outputs = step_outputs(&t.out, &t.c.request);

    const size_t bytes = (size_t)(t.c.rows * t.c.request.hidden) * sizeof(float);
    float *ready = malloc(bytes), *gathered = malloc(bytes);
    assert_true(ready && gathered);
    assert_int_equal(gathers(&t, 0, ready), 0);
    assert_int_equal(gathers(&t, 1, gathered), 2 * 3); /* the address isn't aligned */
    assert_memory_equal(ready, gathered, bytes);
    t.c.mask[11] = 0; /* the middle chunk has a row less, and its target rows are no longer consecutive */
    assert_int_equal(gathers(&t, 0, ready), 2);
    assert_int_equal(gathers(&t, 1, gathered), 2 * 3);
    assert_memory_equal(ready, gathered, bytes);
    free(ready);
    free(gathered);
    close_step(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spans_count_what_results_count),
        cmocka_unit_test(test_products_alone_are_those_of_the_step),
        cmocka_unit_test(test_products_alone_leave_the_next_step_right),
        cmocka_unit_test(test_products_alone_need_a_step_before),
        cmocka_unit_test(test_an_observer_ends_with_null),
        cmocka_unit_test(test_rows_that_lie_ready_are_not_gathered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
