/* `check` allows a gradient what the rounding of its tile can do to it, and no more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "check_compare.h"

enum { ROWS = 2, HIDDEN = 4, VOCAB = 8 };

/* Two results whose gradients lie `apart` units of s from each other in one row; s = w |lambda| max |W| / N. */
static bool agrees_by(int32_t tile, int32_t grad_dtype, double apart) {
    static float weight[ROWS] = {1, 0.5f}, a[ROWS * HIDDEN], b[ROWS * HIDDEN];
    oh_request request;
    oh_request_init(&request);
    request.rows = ROWS;
    request.hidden = HIDDEN;
    request.vocab = VOCAB;
    request.objective.top_k_count = 0;
    const check_norms norms = {.weight = 3, .hidden = 1};
    step_result expected = {.rows = ROWS, .hidden = HIDDEN, .vocab = VOCAB, .draft_grad = a, .weight = weight};
    expected.plan.tile = OH_TILE_F32;
    expected.plan.grad_dtype = OH_F32;
    expected.figures.loss_den = 1.5;
    expected.figures.weight_sum = 1.5;
    step_result found = expected;
    found.draft_grad = b;
    found.plan.tile = tile;
    found.plan.grad_dtype = grad_dtype;
    memset(a, 0, sizeof a);
    memset(b, 0, sizeof b);
    b[HIDDEN + 2] = (float)(apart * 0.5 * norms.weight / 1.5);
    check_comparison comparison = {.agrees = false};
    oh_error error;
    const check_scale scale = check_scale_of(&request, &expected, &found, &norms);
    assert_int_equal(compare_results(&comparison, &request, &scale, &expected, &found, &error), OH_OK);
    const bool agrees = comparison.agrees;
    comparison_free(&comparison);
    return agrees;
}

static void test_a_gradient_tile_is_judged_by_its_own_rounding(void **state) {
    (void)state;
    assert_true(agrees_by(OH_TILE_F32, OH_F32, 0.9 * 0x1p-20));
    assert_false(agrees_by(OH_TILE_F32, OH_F32, 1.1 * 0x1p-20));
    assert_true(agrees_by(OH_TILE_F32, OH_BF16, 0.99 * 0x1p-7));
    assert_false(agrees_by(OH_TILE_F32, OH_BF16, 1.01 * 0x1p-7));
    assert_true(agrees_by(OH_TILE_F32, OH_F16, 0.99 * 0x1p-10));
    assert_false(agrees_by(OH_TILE_F32, OH_F16, 1.01 * 0x1p-10));
    /* A tile of f16 adds 2^-20 2^-11 / 2^-24 = 2^-7 for its logits. */
    assert_true(agrees_by(OH_TILE_DIFF, OH_F16, 0.99 * (0x1p-7 + 0x1p-10)));
    assert_false(agrees_by(OH_TILE_DIFF, OH_F16, 1.01 * (0x1p-7 + 0x1p-10)));
    assert_false(agrees_by(OH_TILE_F32, OH_BF16, (double)NAN));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_gradient_tile_is_judged_by_its_own_rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
