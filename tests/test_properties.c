/* What must hold for any step: random shapes, masks and objectives, on any backend (ONEHEAD_TEST_BACKEND).
 *
 * Logits are exact (step_case_make_exact), so every count, rank and top-K id has to be equal however rows are chunked
 * and products are blocked, ties included. Figures then differ by the roundings of exponentials at other offsets and of
 * sums in another order: U = 2^-24 a rounding, offsets of up to about 30, lanes of up to about 64 terms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "step_case.h"

#define U 0x1p-24
#define FIGURE (128 * U)

enum { ROUNDS = 24 };

static int64_t draw_vocab(draws *d) {
    if (draw_below(d, 2)) return 1 + draw_below(d, 300);
    const int64_t power = INT64_C(1) << (3 + draw_below(d, 8));
    return power - 1 + draw_below(d, 3);
}

static void draw_objective(draws *d, step_case *c) {
    static const char *const terms[] = {
        "kl=1",        "ce=1",         "rkl=1",
        "jsd=1",       "tv=1",         "nla=1",
        "lk_hybrid=1", "kl=1,cap=0.1", "ce=0.2,kl=0.3,rkl=0.1,jsd=0.5,tv=0.7,nla=0.05,lk_hybrid=0.4,cap=0.02"};
    static const char *const decays[] = {"none", "exp:10", "power:0.9", "dpace:0.5"};
    static const char *const norms[] = {"weights", "count", "none", "17.5"};
    static const char *const lists[] = {"1,4,8", "1", "3", "2,64"};
    oh_objective *o = &c->request.objective;
    assert_int_equal(oh_objective_set_terms(o, terms[draw_below(d, 9)], NULL), OH_OK);
    assert_int_equal(oh_objective_set_decay(o, decays[draw_below(d, 4)], NULL), OH_OK);
    assert_int_equal(oh_objective_set_norm(o, norms[draw_below(d, 4)], NULL), OH_OK);
    assert_int_equal(oh_objective_set_top_k(o, lists[draw_below(d, 4)], NULL), OH_OK);
    o->labels = (int32_t)draw_below(d, 2);
    o->gap = (int32_t)draw_below(d, 2);
    o->first_slot = (int32_t)draw_below(d, o->block_size < 3 ? o->block_size : 3);
}

static void open_random(step_case *c, draws *d) {
    const int64_t block = 1 + draw_below(d, 17), blocks = 1 + draw_below(d, 6);
    step_case_open(c, d, blocks, block, 1 + draw_below(d, 70), draw_vocab(d));
    step_case_make_exact(c, d);
    const int64_t density = draw_below(d, 3); /* few, most, all */
    for (int64_t i = 0; i < c->rows; ++i)
        if (density != 1) c->mask[i] = density == 2 || draw_below(d, 8) == 0;
    draw_objective(d, c);
    c->request.memory = INT64_C(1) << 34;
    /* Logits well inside 30 of each other. */
    c->request.scale = c->request.target_scale = 0.5f;
}

/* Sums equal up to `bound` of the larger of them and of one unit a row: a loss near 0 is a difference of logarithms. */
static void assert_sums(const step_output *a, const step_output *b, double bound) {
    for (int64_t i = 0; i < a->sum_count; ++i) {
        const int exact = i == OH_SUM_SUPERVISED || i == OH_SUM_NONFINITE || i == OH_SUM_FIRST_NONFINITE ||
                          i == OH_SUM_BLOCKS || i == OH_SUM_MASK || i >= OH_SUM_FIXED;
        const double size = fabs(b->sums[i]) + b->sums[OH_SUM_WEIGHT] + b->sums[OH_SUM_SUPERVISED];
        if (!(fabs(a->sums[i] - b->sums[i]) <= (exact ? 0 : bound * size)))
            fail_msg("sum %lld: %.17g and %.17g", (long long)i, a->sums[i], b->sums[i]);
    }
}

/* dD equal up to `bound` of what a row's gradient can be: weights of at most 1, |dz| summing to at most 2 a unit of
 * coefficient, |W| at most 1; nla's coefficient is 1 / alpha, up to 1e5, so the norm itself bounds as well. */
static void assert_grads(const step_output *a, const step_output *b, double bound) {
    double size = 0, difference = 0;
    for (int64_t i = 0; i < a->rows * a->hidden; ++i) {
        size += (double)b->grad[i] * (double)b->grad[i];
        difference += ((double)a->grad[i] - (double)b->grad[i]) * ((double)a->grad[i] - (double)b->grad[i]);
    }
    const double scale = b->results.loss_den > 0 ? (double)b->results.supervised / b->results.loss_den : 0;
    if (!(sqrt(difference) <= bound * (sqrt(size) + scale)))
        fail_msg("dD: %g apart at norm %g", sqrt(difference), sqrt(size));
}

static void assert_rows(const step_output *a, int64_t a_row, const step_output *b, int64_t b_row, int64_t count) {
    const size_t bytes = (size_t)count * sizeof(int32_t);
    assert_memory_equal(a->label + a_row, b->label + b_row, bytes);
    assert_memory_equal(a->argmax + a_row, b->argmax + b_row, bytes);
    assert_memory_equal(a->rank + a_row, b->rank + b_row, bytes);
    const size_t list = (size_t)(count * a->top_k) * sizeof(int32_t);
    assert_memory_equal(a->topk_id + a_row * a->top_k, b->topk_id + b_row * b->top_k, list);
}

static void for_random_steps(const char *name, uint64_t seed, void (*check)(oh_context *, step_case *, draws *)) {
    oh_context *context = step_context_open();
    draws d = draws_open(name, seed);
    for (int round = 0; round < ROUNDS; ++round) {
        step_case c;
        const uint64_t state = d.state;
        open_random(&c, &d);
        print_message("  ONEHEAD_TEST_SEED=%llu: T %lld H %lld V %lld block %lld\n", (unsigned long long)state,
                      (long long)c.rows, (long long)c.request.hidden, (long long)c.request.vocab,
                      (long long)c.request.objective.block_size);
        check(context, &c, &d);
        step_case_close(&c);
    }
    oh_context_close(context);
}

/* --------------------------------------------------------------------------------------------------- properties ---- */

static void check_ways(oh_context *context, step_case *c, draws *d) {
    step_output reference, out;
    c->request.policy = OH_POLICY_CACHED;
    step_run(context, c, &reference);
    for (int32_t way = 0; way < 5; ++way) {
        const int64_t blocks = c->rows / c->request.objective.block_size;
        c->request.policy = way == 0 ? OH_POLICY_CACHED : way == 4 ? OH_POLICY_NAIVE : OH_POLICY_RECOMPUTE;
        c->request.chunk = way == 1 ? 0 : (1 + draw_below(d, blocks)) * c->request.objective.block_size;
        oh_plan *plan = NULL;
        c->request.memory = INT64_C(1) << 34;
        if (way == 3) { /* as little as will do */
            oh_error error = {OH_OK, ""};
            c->request.memory = 1;
            if (oh_plan_describe(&c->request, &plan, &error) != OH_OK)
                c->request.memory = strtoll(strstr(error.message, "least ") + 6, NULL, 10);
            oh_plan_destroy(plan);
            /* Backends may want scratch of their own. */
            c->request.memory += oh_context_backend(context)->gemm_scratch ? INT64_C(1) << 26 : 0;
        }
        step_run(context, c, &out);
        assert_sums(&out, &reference, FIGURE);
        assert_grads(&out, &reference, FIGURE);
        assert_rows(&out, 0, &reference, 0, c->rows);
        step_output_close(&out);
    }
    step_output_close(&reference);
}

static void test_policies_and_chunks_agree(void **state) {
    (void)state;
    for_random_steps("ways", 101, check_ways);
}

static void swap_rows(void *array, int64_t a, int64_t b, int64_t count) {
    float *x = (float *)array + a * count, *y = (float *)array + b * count;
    for (int64_t i = 0; i < count; ++i) {
        float bits;
        memcpy(&bits, &x[i], sizeof bits);
        memmove(&x[i], &y[i], sizeof bits);
        memcpy(&y[i], &bits, sizeof bits);
    }
}

static void check_permutation(oh_context *context, step_case *c, draws *d) {
    step_output before, after;
    const int64_t block = c->request.objective.block_size, blocks = c->rows / block;
    const int64_t a = draw_below(d, blocks), b = draw_below(d, blocks);
    step_run(context, c, &before);
    swap_rows(c->draft, a, b, block * c->request.hidden);
    swap_rows(c->mask, a, b, block);
    swap_rows(c->target_row, a, b, block);
    swap_rows(c->label, a, b, block);
    step_run(context, c, &after);
    assert_sums(&after, &before, FIGURE);
    for (int64_t i = 0; i < blocks; ++i) {
        const int64_t from = i == a ? b : i == b ? a : i;
        assert_rows(&after, i * block, &before, from * block, block);
    }
    swap_rows(after.grad, a, b, block * c->request.hidden);
    assert_grads(&after, &before, FIGURE);
    step_output_close(&before);
    step_output_close(&after);
}

static void test_permuting_blocks_permutes_rows(void **state) {
    (void)state;
    for_random_steps("permutation", 102, check_permutation);
}

static void check_offset(oh_context *context, step_case *c, draws *d) {
    step_output before, after;
    c->request.has_bias = c->request.has_target_bias = 1;
    step_run(context, c, &before);
    /* A multiple of the grid: every logit moves by it exactly, and no difference of two logits moves at all. */
    const float offset = (float)(draw_below(d, 2000) - 1000);
    for (int64_t v = 0; v < c->request.vocab; ++v)
        c->bias[v] += offset;
    step_run(context, c, &after);
    assert_sums(&after, &before, FIGURE);
    assert_grads(&after, &before, FIGURE);
    assert_rows(&after, 0, &before, 0, c->rows);
    step_output_close(&before);
    step_output_close(&after);
}

static void test_adding_a_constant_to_all_logits_changes_nothing(void **state) {
    (void)state;
    for_random_steps("offset", 103, check_offset);
}

static void check_masked(oh_context *context, step_case *c, draws *d) {
    step_output before, after;
    step_run(context, c, &before);
    for (int64_t i = 0; i < c->rows; ++i) {
        if (c->mask[i] > 0 && i % c->request.objective.block_size >= c->request.objective.first_slot) continue;
        for (int64_t h = 0; h < c->request.hidden; ++h)
            c->draft[i * c->request.hidden + h] = draw_below(d, 2) ? NAN : INFINITY;
    }
    step_run(context, c, &after);
    assert_memory_equal(before.sums, after.sums, (size_t)before.sum_count * sizeof(double));
    assert_memory_equal(before.grad, after.grad, (size_t)(c->rows * c->request.hidden) * sizeof(float));
    assert_rows(&after, 0, &before, 0, c->rows);
    step_output_close(&before);
    step_output_close(&after);
}

static void test_unsupervised_rows_never_matter(void **state) {
    (void)state;
    for_random_steps("masked", 104, check_masked);
}

static void check_equal_tiles(oh_context *context, step_case *c, draws *d) {
    (void)d;
    step_output out;
    for (int64_t i = 0; i < c->rows; ++i)
        memcpy(c->draft + i * c->request.hidden, c->target + c->target_row[i] * c->request.hidden,
               (size_t)c->request.hidden * sizeof(float));
    assert_int_equal(oh_objective_set_terms(&c->request.objective, "kl=1,rkl=1,jsd=1,tv=1", NULL), OH_OK);
    c->request.objective.labels = OH_LABELS_TARGET;
    c->request.objective.norm = OH_NORM_WEIGHTS;
    step_run(context, c, &out);
    for (int term = OH_TERM_KL; term <= OH_TERM_TV; ++term)
        assert_true(fabs(out.results.terms[term]) <= 32 * U);
    if (out.results.supervised > 0) {
        assert_true(fabs(out.results.alpha - 1) <= 32 * U);
        assert_true(out.results.top_k_count == 0 || out.results.top_k[0].hits == out.results.supervised);
    }
    /* dz = 0 within the rounding of p, at most 32 U each of a sum of 1, times |W| <= 1 and H entries. */
    assert_true(out.results.grad_norm <= 32 * U * 4 * sqrt((double)(c->request.hidden * (c->rows + 1))));
    step_output_close(&out);
}

static void test_a_drafter_that_is_the_target_has_nothing_to_learn(void **state) {
    (void)state;
    for_random_steps("equal", 105, check_equal_tiles);
}

static void check_repeat(oh_context *context, step_case *c, draws *d) {
    (void)d;
    step_output a, b;
    c->request.produce |= OH_PRODUCE_HEAD_GRAD;
    step_run(context, c, &a);
    step_run(context, c, &b);
    assert_memory_equal(a.sums, b.sums, (size_t)a.sum_count * sizeof(double));
    assert_memory_equal(a.grad, b.grad, (size_t)(c->rows * c->request.hidden) * sizeof(float));
    assert_memory_equal(a.head_grad, b.head_grad, (size_t)(c->request.vocab * c->request.hidden) * sizeof(float));
    assert_memory_equal(a.row_loss, b.row_loss, (size_t)c->rows * sizeof(float));
    step_output_close(&a);
    step_output_close(&b);
}

static void test_the_same_plan_gives_the_same_bits(void **state) {
    (void)state;
    for_random_steps("repeat", 106, check_repeat);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_policies_and_chunks_agree),
        cmocka_unit_test(test_permuting_blocks_permutes_rows),
        cmocka_unit_test(test_adding_a_constant_to_all_logits_changes_nothing),
        cmocka_unit_test(test_unsupervised_rows_never_matter),
        cmocka_unit_test(test_a_drafter_that_is_the_target_has_nothing_to_learn),
        cmocka_unit_test(test_the_same_plan_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
