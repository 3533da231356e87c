/* A plan asks for scratch for the products that it runs. */
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

/* By far the most for the smallest of all, the bias'. */
static int64_t answer(const oh_gemm *g) {
    return g->n == 1 ? 1 << 20 : 1 << 10;
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_product_of_a_step_was_asked_about),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
