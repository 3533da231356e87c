/* A plan asks for scratch for the products that it runs, and keeps its budget whatever a backend answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "step_case.h"

enum { BLOCKS = 6, BLOCK = 4, HIDDEN = 12, VOCAB = 2000, ASKED_MAX = 4096 };

static struct {
    oh_gemm product[ASKED_MAX];
    int64_t count;
} asked;

/* Which products want more than others do: the smallest of all, or those of panels that a search by size runs into. */
static enum { BIAS, MULTIPLES_OF_64, ALL_BUT_64 } wanting;

static int64_t answer(const oh_gemm *g) {
    if (wanting == BIAS) return g->n == 1 ? 1 << 20 : 1 << 10;
    if (g->op != OH_GEMM_NT) return 0;
    return (wanting == MULTIPLES_OF_64 ? g->n % 64 == 0 : g->n != 64) ? 1 << 17 : 0;
}

static int64_t scratch(oh_device *device, const oh_gemm *product) {
    (void)device;
    asked.product[asked.count++ % ASKED_MAX] = *product;
    return answer(product);
}

/* Whether the plan asked about a product of this kind and strides, and at least this size. */
static int was_asked(const oh_gemm *g) {
    for (int64_t i = 0; i < asked.count && i < ASKED_MAX; ++i) {
        const oh_gemm *a = &asked.product[i];
        if (a->op == g->op && a->m >= g->m && a->n == g->n && a->k >= g->k && a->lda == g->lda && a->ldb == g->ldb &&
            a->ldc == g->ldc && a->a_dtype == g->a_dtype && a->b_dtype == g->b_dtype && a->c_dtype == g->c_dtype)
            return g->scratch && g->scratch_bytes >= answer(a);
    }
    return 0;
}

static oh_status multiply(oh_queue *queue, const oh_gemm *product) {
    if (product->k > 0) assert_true(was_asked(product));
    return step_context_table()->gemm(queue, product);
}

static oh_context *open_context(void) {
    static oh_backend table;
    table = *step_context_table();
    table.gemm = multiply;
    table.gemm_scratch = scratch;
    const oh_context_options options = {.table = &table};
    oh_context *context = NULL;
    assert_int_equal(oh_context_open(&options, &context, NULL), OH_OK);
    asked.count = 0;
    return context;
}

static void test_every_product_of_a_step_was_asked_about(void **state) {
    (void)state;
    wanting = BIAS;
    for (int32_t tile = OH_TILE_F32; tile <= OH_TILE_DIFF; ++tile) {
        draws d = draws_open("test_gemm_scratch", 1);
        step_case c;
        step_output out;
        oh_error error = {OH_OK, ""};
        float bias_grad[VOCAB];
        step_case_open(&c, &d, BLOCKS, BLOCK, HIDDEN, VOCAB);
        c.request.tile = tile;
        c.request.has_bias = 1;
        c.request.produce |= OH_PRODUCE_HEAD_GRAD | OH_PRODUCE_BIAS_GRAD;
        c.request.memory = INT64_C(1) << 30;
        oh_context *context = open_context();
        step_output_open(&out, &c);
        const oh_inputs in = step_case_inputs(&c);
        oh_outputs outputs = step_outputs(&out, &c.request);
        outputs.bias_grad = bias_grad;
        if (step_run_plan(context, &c, &c.request, &in, &outputs, &out.results, &error) != OH_OK)
            fail_msg("%s", error.message);
        step_output_close(&out);
        step_case_close(&c);
        oh_context_close(context);
    }
}

/* Layouts then don't grow with their panels, and a search by size ends at one that doesn't fit, or at none. */
static void test_a_budget_is_kept_from_what_was_said_to_be_needed(void **state) {
    (void)state;
    draws d = draws_open("test_gemm_scratch", 2);
    step_case c;
    step_case_open(&c, &d, BLOCKS, BLOCK, HIDDEN, VOCAB);
    c.request.policy = OH_POLICY_RECOMPUTE;
    c.request.chunk = c.rows;
    for (wanting = MULTIPLES_OF_64; wanting <= ALL_BUT_64; ++wanting) {
        oh_context *context = open_context();
        oh_plan *plan = NULL;
        oh_error error = {OH_OK, ""};
        c.request.memory = 1;
        assert_int_equal(oh_plan_create(context, &c.request, &plan, &error), OH_OUT_OF_MEMORY);
        const char *at = strstr(error.message, "needs at least ");
        assert_non_null(at);
        const int64_t needed = strtoll(at + strlen("needs at least "), NULL, 10);
        for (int64_t memory = needed; memory < 3 * needed; memory += 2048) {
            c.request.memory = memory;
            if (oh_plan_create(context, &c.request, &plan, &error) != OH_OK) fail_msg("%s", error.message);
            assert_true(oh_plan_bytes(oh_plan_get_summary(plan)) <= memory);
            oh_plan_destroy(plan);
        }
        oh_context_close(context);
    }
    step_case_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_product_of_a_step_was_asked_about),
        cmocka_unit_test(test_a_budget_is_kept_from_what_was_said_to_be_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
