/* Small inputs with known answers that broke code of this kind elsewhere, as whole steps: every policy, every chunking
 * and every tile format that can hold the answer, on any backend (ONEHEAD_TEST_BACKEND).
 *
 * A step takes hidden states, a case is made of logits: with H rows and one-hot hidden states, head[v][r] is row r's raw
 * logit v, and the head's gradient is dz itself (row weights 1, N = 1). -inf comes in through the bias. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "step_case.h"

enum { ROWS_MAX = 4, F32 = 1 << OH_TILE_F32, F16 = 1 << OH_TILE_F16, BF16 = 1 << OH_TILE_BF16 };

/* One step of `rows` rows, each a block of its own. */
typedef struct logits_case {
    const char *name, *terms;
    int64_t rows, columns;
    int formats; /* those whose rounding of these logits keeps the answer */
    void (*fill)(step_case *c);
    void (*check)(const step_case *c, const step_output *out);
} logits_case;

static float *draft_logit(step_case *c, int64_t row, int64_t column) {
    return &c->head[column * c->request.hidden + row];
}

/* The target's logits of row 0 sit in the same head, at one more hidden dimension that only the target uses. */
static float *target_logit(step_case *c, int64_t column) {
    return &c->head[column * c->request.hidden + c->request.hidden - 1];
}

static void set_row(step_case *c, int64_t row, const float *z) {
    for (int64_t v = 0; v < c->request.vocab; ++v)
        *draft_logit(c, row, v) = z[v];
}

static void set_target(step_case *c, const float *t) {
    for (int64_t v = 0; v < c->request.vocab; ++v)
        *target_logit(c, v) = t[v];
}

static void set_bias(step_case *c, float bias) {
    c->request.has_bias = c->request.has_target_bias = 1;
    for (int64_t v = 0; v < c->request.vocab; ++v)
        c->bias[v] = bias;
}

/* Rows judged by a given label, no target. */
static void give_labels(step_case *c, int32_t label) {
    c->request.objective.labels = OH_LABELS_GIVEN;
    for (int64_t i = 0; i < c->rows; ++i)
        c->label[i] = label;
}

static double dz(const step_output *out, int64_t row, int64_t column) {
    return (double)out->head_grad[column * out->hidden + row];
}

static void assert_near(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance)) fail_msg("%.9g, expected %.9g within %g", got, want, tolerance);
}

/* ------------------------------------------------------------------------------------------------------- cases ---- */

static void fill_one_finite(step_case *c) {
    set_bias(c, -INFINITY);
    c->bias[50000] = 0;
    *draft_logit(c, 0, 50000) = 10;
    give_labels(c, 50000);
}

static void check_one_finite(const step_case *c, const step_output *out) {
    (void)c;
    assert_true(out->results.nonfinite_rows == 0);
    assert_true(out->results.loss_num == 0);
    assert_true(dz(out, 0, 50000) == 0 && dz(out, 0, 0) == 0);
    assert_int_equal(out->argmax[0], 50000);
    assert_int_equal(out->topk_id[0], 50000);
    for (int k = 1; k < 8; ++k) /* then -inf columns, lowest first, each once */
        assert_int_equal(out->topk_id[k], k - 1);
    assert_true(out->topk_logprob[0] == 0 && out->topk_logprob[1] == -INFINITY);
}

static void fill_excluded_column(step_case *c) {
    set_row(c, 0, (const float[]){1, 2, 0});
    set_target(c, (const float[]){2, 1, 0});
    set_bias(c, 0);
    c->bias[2] = -INFINITY;
}

static void check_excluded_column(const step_case *c, const step_output *out) {
    (void)c;
    assert_near(out->results.terms[OH_TERM_KL], 0.462117157, 1e-6); /* tanh(1/2) */
    assert_near(out->results.terms[OH_TERM_RKL], 0.462117157, 1e-6);
    assert_true(dz(out, 0, 2) == 0);
    assert_near(dz(out, 0, 0) + dz(out, 0, 1), 0, 1e-6);
}

static void fill_underflow(step_case *c) {
    set_row(c, 0, (const float[]){0, -110});
    set_target(c, (const float[]){0, -110});
}

static void check_underflow(const step_case *c, const step_output *out) {
    (void)c;
    for (int term = OH_TERM_KL; term <= OH_TERM_TV; ++term)
        assert_near(out->results.terms[term], 0, 1e-7);
    assert_near(out->results.alpha, 1, 1e-7);
    assert_near(dz(out, 0, 0), 0, 1e-7);
}

static void fill_tail(step_case *c) {
    for (int64_t v = 0; v < c->request.vocab; ++v)
        *draft_logit(c, 0, v) = v == 77 ? -10 : -20;
    give_labels(c, 77);
}

static void check_tail(const step_case *c, const step_output *out) {
    (void)c;
    assert_near(out->results.loss_num, log1p(128 * exp(-10)), 1e-7);
}

static void fill_close(step_case *c) {
    set_row(c, 0, (const float[]){2.211104f, 0}); /* p = .9012 */
    set_target(c, (const float[]){2.197225f, 0}); /* q = .9000 */
}

static void check_close(const step_case *c, const step_output *out) {
    (void)c;
    const double p = 1 / (1 + exp(-(double)2.211104f)), q = 1 / (1 + exp(-(double)2.197225f));
    assert_near(dz(out, 0, 0), p - q, 0.01 * (p - q)); /* 1 % of .0012 */
    assert_near(dz(out, 0, 1), q - p, 0.01 * (p - q));
}

static void fill_confident(step_case *c) {
    set_row(c, 0, (const float[]){8, 0});
    give_labels(c, 0);
}

static void check_confident(const step_case *c, const step_output *out) {
    (void)c;
    assert_near(dz(out, 0, 0), -3.3535e-4, 3.3535e-7);
    assert_near(dz(out, 0, 1), 3.3535e-4, 3.3535e-7);
}

static void fill_ties(step_case *c) {
    set_row(c, 0, (const float[]){3, 2, 3, 2, 1, 1});
    give_labels(c, 3);
}

static void check_ties(const step_case *c, const step_output *out) {
    (void)c;
    const int32_t order[6] = {0, 2, 1, 3, 4, 5};
    for (int k = 0; k < 6; ++k)
        assert_int_equal(out->topk_id[k], order[k]);
    for (int k = 6; k < 8; ++k) /* K > V */
        assert_true(out->topk_id[k] == -1 && out->topk_logprob[k] == -INFINITY);
    assert_int_equal(out->rank[0], 3);
    assert_int_equal(out->results.top_k[0].hits, 0);
    assert_int_equal(out->results.top_k[1].hits, 1); /* K = 4 */
}

static void fill_offset(step_case *c) {
    set_row(c, 0, (const float[]){0, 0, 0});
    set_bias(c, 1e6f);
    give_labels(c, 0);
}

static void check_offset(const step_case *c, const step_output *out) {
    (void)c;
    assert_near(out->results.loss_num, log(3), 1e-6);
    assert_near(dz(out, 0, 0), -2.0 / 3, 1e-6);
}

/* One model's logits a million above the other's: the same distributions, so the same divergences. */
static void fill_one_sided_offset(step_case *c) {
    set_row(c, 0, (const float[]){1, 2, 0});
    set_target(c, (const float[]){2, 1, 0});
    c->request.has_bias = 1;
    for (int v = 0; v < 3; ++v)
        c->bias[v] = 1e6f;
}

static void check_one_sided_offset(const step_case *c, const step_output *out) {
    (void)c;
    const double e1 = exp(1), e2 = exp(2), sum = e1 + e2 + 1;
    const double p[3] = {e1 / sum, e2 / sum, 1 / sum}, q[3] = {e2 / sum, e1 / sum, 1 / sum};
    double jsd = 0;
    for (int v = 0; v < 3; ++v)
        jsd += (p[v] * log(2 * p[v] / (p[v] + q[v])) + q[v] * log(2 * q[v] / (p[v] + q[v]))) / 2;
    assert_near(out->results.terms[OH_TERM_KL], (e2 - e1) / sum, 1e-6);
    assert_near(out->results.terms[OH_TERM_RKL], (e2 - e1) / sum, 1e-6);
    assert_near(out->results.terms[OH_TERM_JSD], jsd, 1e-6);
    assert_near(out->results.alpha, (2 * e1 + 1) / sum, 1e-6);
    assert_near(dz(out, 0, 0) + dz(out, 0, 1) + dz(out, 0, 2), 0, 1e-6);
}

static void fill_far(step_case *c) {
    set_row(c, 0, (const float[]){0, 110});
    give_labels(c, 0);
}

static void check_far(const step_case *c, const step_output *out) {
    (void)c;
    assert_near(out->results.loss_num, 110, 1e-5);
    assert_near(dz(out, 0, 0), -1, 1e-6);
    assert_near(dz(out, 0, 1), 1, 1e-6);
}

static void fill_capped(step_case *c) {
    set_row(c, 0, (const float[]){1e4f, -1e4f, 100});
    set_bias(c, 0);
    c->bias[1] = -INFINITY;
    c->request.scale = 0.1f;
    c->request.softcap = 30;
    give_labels(c, 2);
}

static void check_capped(const step_case *c, const step_output *out) {
    (void)c;
    const double a = 30 * tanh(1000.0 / 30), b = 30 * tanh(10.0 / 30), p = 1 / (1 + exp(a - b));
    assert_near(out->results.loss_num, log1p(exp(a - b)), 1e-4);
    assert_near(dz(out, 0, 0), 0, 1e-9); /* saturated: no slope */
    assert_true(dz(out, 0, 1) == 0);
    const double slope = 0.1 * (1 - tanh(10.0 / 30) * tanh(10.0 / 30));
    assert_near(dz(out, 0, 2), (p - 1) * slope, 1e-6);
}

static void fill_broken_row(step_case *c) {
    for (int64_t row = 0; row < 3; ++row)
        set_row(c, row, (const float[]){1, 2, 3, 4, 5});
    give_labels(c, 4);
    c->draft[1 * c->request.hidden] = NAN; /* 0 * NaN reaches every logit of row 1 */
}

static void check_broken_row(const step_case *c, const step_output *out) {
    (void)c;
    const double ce = log(1 + exp(-1) + exp(-2) + exp(-3) + exp(-4));
    assert_int_equal(out->results.nonfinite_rows, 1);
    assert_int_equal(out->results.first_nonfinite_row, 1);
    assert_int_equal(out->results.supervised, 3);
    assert_near(out->results.loss_num, 2 * ce, 1e-6);
    assert_int_equal(out->results.top_k[0].hits, 2);
    assert_near(out->results.top_k[0].rate, 1, 0);
    for (int64_t v = 0; v < 5; ++v) {
        assert_true(dz(out, 1, v) == 0);
        assert_true(isfinite(dz(out, 0, v)) && dz(out, 0, v) == dz(out, 2, v));
    }
    assert_int_equal(out->topk_id[8], -1);
    assert_int_equal(out->topk_id[0], 4);
}

static void fill_single_column(step_case *c) {
    set_row(c, 0, (const float[]){-3});
    set_target(c, (const float[]){7});
}

static void check_single_column(const step_case *c, const step_output *out) {
    (void)c;
    assert_near(out->results.terms[OH_TERM_KL], 0, 1e-7);
    assert_near(dz(out, 0, 0), 0, 1e-7);
    assert_int_equal(out->rank[0], 0);
    assert_int_equal(out->results.top_k[0].hits, 1);
}

static const logits_case cases[] = {
    {"all -inf but one, V = 248,320", "ce=1", 1, 248320, F32 | BF16 | F16, fill_one_finite, check_one_finite},
    {"-inf in drafter and target", "kl=1,rkl=1", 1, 3, F32 | BF16 | F16, fill_excluded_column, check_excluded_column},
    {"underflowing probability", "kl=1,rkl=1,jsd=1,tv=1", 1, 2, F32 | BF16 | F16, fill_underflow, check_underflow},
    {"V = 129, tail lanes", "ce=1", 1, 129, F32 | BF16 | F16, fill_tail, check_tail},
    {"p - q = .0012", "kl=1", 1, 2, F32, fill_close, check_close},
    {"dz = -3.35e-4", "ce=1", 1, 2, F32 | F16, fill_confident, check_confident},
    {"ties, K > V", "ce=1", 1, 6, F32 | BF16 | F16, fill_ties, check_ties},
    {"offset 1e6", "ce=1", 1, 3, F32, fill_offset, check_offset},
    {"offset 1e6 of one model", "kl=1,rkl=1,jsd=1", 1, 3, F32, fill_one_sided_offset, check_one_sided_offset},
    {"ce = 110", "ce=1", 1, 2, F32 | BF16 | F16, fill_far, check_far},
    {"softcap, scale, -inf bias", "ce=1", 1, 3, F32, fill_capped, check_capped},
    {"one NaN row among others", "ce=1", 3, 5, F32 | BF16 | F16, fill_broken_row, check_broken_row},
    {"V = 1", "kl=1", 1, 1, F32 | BF16 | F16, fill_single_column, check_single_column},
};

enum { CASES = sizeof cases / sizeof cases[0] };

static void run_case(oh_context *context, const logits_case *l, int32_t format, int32_t policy, int64_t chunk) {
    draws d = {1};
    step_case c;
    step_output out;
    step_case_open(&c, &d, l->rows, 1, l->rows + 1, l->columns);
    oh_request *r = &c.request;
    memset(c.draft, 0, (size_t)(c.rows * r->hidden) * sizeof(float));
    memset(c.target, 0, (size_t)(c.target_rows * r->hidden) * sizeof(float));
    memset(c.head, 0, (size_t)(r->vocab * r->hidden) * sizeof(float));
    memset(c.bias, 0, (size_t)r->vocab * sizeof(float));
    for (int64_t i = 0; i < c.rows; ++i) {
        c.draft[i * r->hidden + i] = 1;
        c.mask[i] = 1;
        c.target_row[i] = 0;
    }
    c.target[r->hidden - 1] = 1;
    assert_int_equal(oh_objective_set_terms(&r->objective, l->terms, NULL), OH_OK);
    assert_int_equal(oh_objective_set_decay(&r->objective, "none", NULL), OH_OK);
    assert_int_equal(oh_objective_set_norm(&r->objective, "none", NULL), OH_OK);
    r->produce |= OH_PRODUCE_HEAD_GRAD;
    r->memory = INT64_C(1) << 34;
    r->policy = policy;
    r->chunk = chunk;
    r->tile = format;
    l->fill(&c);
    if (r->objective.labels == OH_LABELS_GIVEN) r->target_rows = 0;
    step_run(context, &c, &out);
    l->check(&c, &out);
    step_output_close(&out);
    step_case_close(&c);
}

static void test_every_case_under_every_policy_chunk_and_format(void **state) {
    (void)state;
    oh_context *context = step_context_open();
    const uint32_t claimed = oh_context_backend(context)->tile_formats;
    for (int i = 0; i < CASES; ++i)
        for (int32_t format = OH_TILE_F32; format <= OH_TILE_F16; ++format) {
            if (!(cases[i].formats >> format & 1) || !(claimed >> format & 1u)) continue;
            for (int32_t policy = OH_POLICY_CACHED; policy <= OH_POLICY_NAIVE; ++policy)
                for (int64_t chunk = 1; chunk <= cases[i].rows; ++chunk) {
                    print_message("  %s: tile %d, policy %d, chunk %d\n", cases[i].name, (int)format, (int)policy,
                                  (int)chunk);
                    run_case(context, &cases[i], format, policy, chunk);
                }
        }
    oh_context_close(context);
}

/* One row of weight 1 and 512 of 2^-9, each with dz = -1 at column 0: their sum is -2, and -1 in a bf16 accumulator. */
static void test_the_head_gradient_adds_small_to_large(void **state) {
    (void)state;
    enum { SMALL = 512 };
    draws d = {1};
    step_case c;
    step_output out;
    oh_context *context = step_context_open();
    step_case_open(&c, &d, SMALL + 1, 1, 1, 2);
    for (int64_t i = 0; i < c.rows; ++i) {
        c.draft[i] = 1;
        c.mask[i] = i == 0 ? 1 : 0x1p-9f;
    }
    c.head[0] = -200; /* p of column 0 is 0 */
    c.head[1] = 200;
    give_labels(&c, 0);
    oh_request *r = &c.request;
    r->target_rows = 0;
    r->produce |= OH_PRODUCE_HEAD_GRAD;
    assert_int_equal(oh_objective_set_terms(&r->objective, "ce=1", NULL), OH_OK);
    assert_int_equal(oh_objective_set_decay(&r->objective, "none", NULL), OH_OK);
    assert_int_equal(oh_objective_set_norm(&r->objective, "none", NULL), OH_OK);
    for (int64_t chunk = 1; chunk <= c.rows; chunk *= 3) {
        r->chunk = chunk;
        step_run(context, &c, &out);
        assert_near((double)out.head_grad[0], -2, 1e-6);
        assert_near((double)out.head_grad[1], 2, 1e-6);
        step_output_close(&out);
    }
    step_case_close(&c);
    oh_context_close(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_case_under_every_policy_chunk_and_format),
        cmocka_unit_test(test_the_head_gradient_adds_small_to_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
