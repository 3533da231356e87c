/* A step whose backend leaves the gradient in its first read is, bit for bit, the step of one that doesn't: where it can
 * be used it is, with a read less a chunk, and the rows that it leaves are seen to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "stats_grad.h"
#include "step_case.h"

enum { BLOCKS = 6, BLOCK = 4, HIDDEN = 12, VOCAB = 200, CHUNKS = 3, NAN_ROW = 5, NEGATIVE_ROW = 10, OVER_ROW = 18 };

/* ------------------------------------------------------------------------------------------ a backend with the pair -- */

static int64_t asked, taken;

static int32_t pair_takes(oh_device *device, const oh_tile_stats_grad *pass) {
    (void)device;
    ++asked;
    return stats_grad_takes(pass);
}

static oh_status pair_run(oh_queue *queue, const oh_tile_stats_grad *pass) {
    (void)queue;
    ++taken;
    return stats_grad_takes(pass) ? stats_grad_by_parts(pass, NULL, NULL) : OH_UNSUPPORTED;
}

static oh_context *open_context(int with_pair) {
    static oh_backend table;
    table = *step_context_table();
    table.tile_stats_grad_takes = pair_takes;
    table.tile_stats_grad = pair_run;
    const oh_context_options options = {.table = with_pair ? &table : step_context_table()};
    oh_context *context = NULL;
    oh_error error = {OH_OK, ""};
    if (oh_context_open(&options, &context, &error) != OH_OK) fail_msg("%s", error.message);
    asked = taken = 0;
    return context;
}

/* ------------------------------------------------------------------------------------------------------------ steps -- */

static void open_case(step_case *c, uint64_t seed, const char *terms, int32_t tile, int32_t policy) {
    draws d = draws_open("test_stats_grad", seed);
    step_case_open(c, &d, BLOCKS, BLOCK, HIDDEN, VOCAB);
    assert_int_equal(oh_objective_set_terms(&c->request.objective, terms, NULL), OH_OK);
    for (int64_t i = 0; i < c->rows; ++i)
        c->mask[i] = 1;
    oh_request *r = &c->request;
    r->objective.first_slot = 0;
    r->produce = OH_PRODUCE_LOSS | OH_PRODUCE_GRAD | OH_PRODUCE_HEAD_GRAD | OH_PRODUCE_METRICS | OH_PRODUCE_GRAD_NORM;
    r->tile = tile;
    r->policy = policy;
    r->chunk = BLOCKS * BLOCK / CHUNKS;
    r->memory = INT64_C(1) << 30;
}

/* A row of NaN; and one that has a single logit of -inf, which leaves ce a loss and a gradient and kl none. */
static void break_rows(step_case *c) {
    c->draft[NAN_ROW * HIDDEN + 3] = NAN;
    for (int64_t h = 0; h < HIDDEN; ++h)
        c->draft[NEGATIVE_ROW * HIDDEN + h] = h == 0 ? 3e38f : 0;
    for (int64_t v = 0; v < VOCAB; ++v)
        c->head[v * HIDDEN] = v == 7 ? -2 : 0;
    c->label[NEGATIVE_ROW] = 11;
}

/* The step with the pair and without: the same, but for the reads. */
static void assert_same_step(const step_case *c, int64_t passes, step_output *out) {
    step_output without;
    oh_context *context = open_context(0);
    step_run(context, c, &without);
    oh_context_close(context);
    context = open_context(1);
    step_run(context, c, out);
    oh_context_close(context);
    assert_int_equal(taken, passes);
    assert_int_equal(out->results.tile_reads, without.results.tile_reads - passes);
    assert_memory_equal(out->sums, without.sums, (size_t)out->sum_count * sizeof *out->sums);
    assert_memory_equal(out->grad, without.grad, (size_t)(out->rows * out->hidden) * sizeof *out->grad);
    assert_memory_equal(out->head_grad, without.head_grad, (size_t)(out->vocab * out->hidden) * sizeof *out->head_grad);
    assert_memory_equal(out->row_loss, without.row_loss, (size_t)out->rows * sizeof *out->row_loss);
    assert_memory_equal(out->label, without.label, (size_t)out->rows * sizeof *out->label);
    assert_memory_equal(out->argmax, without.argmax, (size_t)out->rows * sizeof *out->argmax);
    assert_true(out->results.loss == without.results.loss);
    assert_true(out->results.grad_norm == without.results.grad_norm);
    step_output_close(&without);
}

static double row_norm(const step_output *out, int64_t row) {
    double sum = 0;
    for (int64_t h = 0; h < HIDDEN; ++h)
        sum += (double)out->grad[row * HIDDEN + h] * (double)out->grad[row * HIDDEN + h];
    return sum;
}

/* ------------------------------------------------------------------------------------------------------------ tests -- */

static const char *const losses[] = {"ce=1", "kl=1", "ce=0.5,kl=0.5"};
enum { LOSSES = sizeof losses / sizeof *losses };

/* Cached tiles are read once before their gradient is taken; recomputed ones are other tiles by then. */
static void test_a_step_with_the_pass_is_the_step_without(void **state) {
    (void)state;
    for (int loss = 0; loss < LOSSES; ++loss)
        for (int32_t tile = OH_TILE_F32; tile <= OH_TILE_BF16; ++tile)
            for (int32_t policy = OH_POLICY_CACHED; policy <= OH_POLICY_NAIVE; ++policy)
                for (int given = 0; given < 2; ++given) {
                    step_case c;
                    step_output out;
                    open_case(&c, 1, losses[loss], tile, policy);
                    if (given) assert_int_equal(oh_objective_set_labels(&c.request.objective, "given", NULL), OH_OK);
                    assert_same_step(&c, policy == OH_POLICY_CACHED ? CHUNKS : 0, &out);
                    assert_int_equal(out.results.nonfinite_rows, 0);
                    assert_true(out.results.grad_norm > 0);
                    step_output_close(&out);
                    step_case_close(&c);
                }
}

static void test_flagged_rows_get_their_gradient_after_it(void **state) {
    (void)state;
    for (int loss = 0; loss < LOSSES; ++loss)
        for (int32_t tile = OH_TILE_F32; tile <= OH_TILE_BF16; ++tile) {
            step_case c;
            step_output out;
            open_case(&c, 2, losses[loss], tile, OH_POLICY_CACHED);
            break_rows(&c);
            assert_int_equal(oh_objective_set_labels(&c.request.objective, "given", NULL), OH_OK);
            assert_same_step(&c, CHUNKS, &out);
            assert_int_equal(out.results.nonfinite_rows, loss == 0 ? 1 : 2);
            assert_int_equal(out.results.first_nonfinite_row, NAN_ROW);
            assert_true(row_norm(&out, NAN_ROW) == 0);
            assert_true(loss == 0 ? row_norm(&out, NEGATIVE_ROW) > 0 : row_norm(&out, NEGATIVE_ROW) == 0);
            assert_true(row_norm(&out, NAN_ROW + 1) > 0);
            step_output_close(&out);
            step_case_close(&c);
        }
}

/* Rows without a label are no label's: their gradient is 0, and the pass has to say so. */
static void test_rows_without_a_label_have_no_gradient(void **state) {
    (void)state;
    step_case c;
    step_output out;
    open_case(&c, 3, "ce=1", OH_TILE_F32, OH_POLICY_CACHED);
    assert_int_equal(oh_objective_set_labels(&c.request.objective, "given", NULL), OH_OK);
    c.label[2] = c.label[9] = -100;
    assert_same_step(&c, CHUNKS, &out);
    assert_true(row_norm(&out, 2) == 0 && row_norm(&out, 9) == 0);
    step_output_close(&out);
    step_case_close(&c);
}

/* Each is seen from the plan: the backend isn't even asked. */
static void test_who_reads_twice_or_in_panels_does_without(void **state) {
    (void)state;
    for (int kind = 0; kind < 4; ++kind) {
        step_case c;
        step_output out;
        open_case(&c, 4, kind == 1 ? "tv=1" : "kl=1", OH_TILE_F32, kind == 3 ? OH_POLICY_RECOMPUTE : OH_POLICY_CACHED);
        if (kind == 0) c.request.produce |= OH_PRODUCE_OVERLAP;
        if (kind == 2) c.request.produce &= ~(OH_PRODUCE_GRAD | OH_PRODUCE_HEAD_GRAD | OH_PRODUCE_GRAD_NORM);
        if (kind == 3) c.request.memory = INT64_C(16) << 10;
        if (kind == 2) {
            oh_results results;
            oh_error error = {OH_OK, ""};
            const oh_inputs in = step_case_inputs(&c);
            const oh_outputs none = {.draft_grad = NULL};
            oh_context *context = open_context(1);
            if (step_run_plan(context, &c, &c.request, &in, &none, &results, &error) != OH_OK)
                fail_msg("%s", error.message);
            oh_context_close(context);
        } else {
            assert_same_step(&c, 0, &out);
            step_output_close(&out);
        }
        assert_int_equal(asked, 0);
        step_case_close(&c);
    }
}

static void test_who_is_asked_and_declines_gets_the_passes_one_by_one(void **state) {
    (void)state;
    step_case c;
    step_output out;
    open_case(&c, 5, "kl=1", OH_TILE_F32, OH_POLICY_CACHED);
    c.request.softcap = 30;
    assert_same_step(&c, 0, &out);
    assert_int_equal(asked, CHUNKS);
    step_output_close(&out);
    step_case_close(&c);
}

typedef struct reads {
    int64_t tiles, passes, gradients;
    double rest_bytes;
} reads;

static void count_reads(void *user, const oh_span *span, int begin) {
    reads *r = user;
    if (!begin) return;
    r->tiles += span->tile_reads;
    r->passes += span->kind == OH_SPAN_STATS_GRAD;
    r->gradients += span->kind == OH_SPAN_TILE_GRAD;
    if (span->kind == OH_SPAN_TILE_GRAD) r->rest_bytes += span->bytes;
}

/* The gradient of rows that the pass left is a span, but no read of a tile. */
static void test_spans_count_the_reads_that_results_count(void **state) {
    (void)state;
    step_case c;
    step_output out;
    oh_results results;
    oh_plan *plan = NULL;
    reads r = {.tiles = 0};
    open_case(&c, 7, "kl=1", OH_TILE_F32, OH_POLICY_CACHED);
    oh_context *context = open_context(1);
    step_output_open(&out, &c);
    const oh_inputs in = step_case_inputs(&c);
    const oh_outputs outputs = step_outputs(&out, &c.request);
    assert_int_equal(oh_plan_create(context, &c.request, &plan, NULL), OH_OK);
    oh_plan_trace(plan, count_reads, &r);
    assert_int_equal(oh_plan_run(plan, &in, &outputs, NULL), OH_OK);
    assert_int_equal(oh_plan_results(plan, &results, NULL), OH_OK);
    assert_int_equal(r.passes, CHUNKS);
    assert_int_equal(r.gradients, CHUNKS);
    assert_int_equal(r.tiles, results.tile_reads);
    assert_true(r.rest_bytes == 0);
    assert_string_equal(oh_span_name(OH_SPAN_STATS_GRAD), "stats_grad");
    oh_plan_destroy(plan);
    oh_context_close(context);
    step_output_close(&out);
    step_case_close(&c);
}

/* --------------------------------------------------------------------------------------------------------- overflow -- */

typedef struct overflow_step {
    oh_status status;
    oh_error error;
    oh_results results;
    step_output out;
} overflow_step;

static void run_overflowing(const step_case *c, int with_pair, overflow_step *s) {
    memset(s, 0, sizeof *s);
    oh_context *context = open_context(with_pair);
    step_output_open(&s->out, c);
    const oh_inputs in = step_case_inputs(c);
    const oh_outputs out = step_outputs(&s->out, &c->request);
    s->status = step_run_plan(context, c, &c->request, &in, &out, &s->results, &s->error);
    oh_context_close(context);
}

/* What overflowed is found between the pass and the gradient of the rows that it left. */
static void test_f16_tiles_that_overflow_say_the_same(void **state) {
    (void)state;
    for (int loss = 0; loss < LOSSES; ++loss)
        for (int32_t tile = OH_TILE_F16; tile <= OH_TILE_DIFF; ++tile) {
            step_case c;
            overflow_step with, without;
            open_case(&c, 6, losses[loss], tile, OH_POLICY_CACHED);
            for (int64_t h = 0; h < HIDDEN; ++h)
                c.draft[OVER_ROW * HIDDEN + h] *= 1e5f;
            run_overflowing(&c, 0, &without);
            run_overflowing(&c, 1, &with);
            assert_int_equal(taken, CHUNKS);
            assert_int_equal(without.status, OH_OVERFLOW);
            assert_int_equal(with.status, OH_OVERFLOW);
            assert_string_equal(with.error.message, without.error.message);
            assert_non_null(strstr(with.error.message, "the first is row 18"));
            assert_true(with.results.loss == without.results.loss);
            assert_int_equal(with.results.nonfinite_rows, 1);
            assert_true(row_norm(&with.out, OVER_ROW) == 0);
            assert_memory_equal(with.out.grad, without.out.grad, (size_t)(c.rows * HIDDEN) * sizeof *with.out.grad);
            step_output_close(&with.out);
            step_output_close(&without.out);
            step_case_close(&c);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_step_with_the_pass_is_the_step_without),
        cmocka_unit_test(test_flagged_rows_get_their_gradient_after_it),
        cmocka_unit_test(test_rows_without_a_label_have_no_gradient),
        cmocka_unit_test(test_who_reads_twice_or_in_panels_does_without),
        cmocka_unit_test(test_who_is_asked_and_declines_gets_the_passes_one_by_one),
        cmocka_unit_test(test_spans_count_the_reads_that_results_count),
        cmocka_unit_test(test_f16_tiles_that_overflow_say_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
