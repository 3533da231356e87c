/* step_finish: every rule for N, a caller's N, and N = 0, which gives a loss of 0 and a factor of 0. */
#include <math.h>
#include <string.h>

#include "verdict.h"

#define SUMS (INT64_C(2) * 1 + INT64_C(2) * 16 + OH_SUM_FIXED)

typedef struct step_spec {
    const char *name;
    int32_t norm;
    double weight, mask, given; /* given: the caller's N, 0 for none */
} step_spec;

static oh_objective objective(int32_t norm) {
    oh_objective o = {.block_size = 16, .first_slot = 1, .norm = norm, .norm_value = 12.5, .top_k_count = 1};
    o.top_k[0] = 1;
    o.lambda[OH_TERM_KL] = 1;
    o.terms = OH_TERM_BIT(OH_TERM_KL);
    return o;
}

static void check_step(kit *k, const step_spec *s) {
    if (!kit_begin(k, CONFORM_STEP_FINISH, "step_finish/%s", s->name)) return;
    double *sums = kit_doubles(k, SUMS);
    if (sums) sums[OH_SUM_LOSS_NUM] = 37.25, sums[OH_SUM_WEIGHT] = s->weight, sums[OH_SUM_MASK] = s->mask;
    kit_buffer *loss = kit_bytes(k, "loss", KIT_OUT, NULL, 3 * (int64_t)sizeof(double));
    kit_buffer *factor = kit_bytes(k, "factor", KIT_OUT, NULL, (int64_t)sizeof(float));
    const oh_step_finish f = {.objective = objective(s->norm),
                              .norm = s->given != 0 ? kit_at(kit_bytes(k, "norm", KIT_IN, &s->given, 8)) : NULL,
                              .sums = kit_at(kit_bytes(k, "sums", KIT_IN, sums, SUMS * 8)),
                              .loss = kit_at(loss),
                              .factor = kit_at(factor)};
    if (kit_run(k, kit_run_step_finish, &f)) {
        const double of_rule[] = {s->weight, s->mask, 1, 12.5}, n = s->given != 0 ? s->given : of_rule[s->norm];
        double got[3];
        float got_factor;
        memcpy(got, kit_result(loss), sizeof got);
        memcpy(&got_factor, kit_result(factor), sizeof got_factor);
        /* One division in f64, and one more rounding to f32. */
        verdict_number(k, "loss", 0, got[0], n > 0 ? 37.25 / n : 0, n > 0 ? 0x1p-50 * 37.25 / n : 0);
        verdict_number(k, "loss", 1, got[1], 37.25, 0);
        verdict_number(k, "loss", 2, got[2], n, 0);
        verdict_number(k, "factor", 0, (double)got_factor, n > 0 ? 1 / n : 0, n > 0 ? 2 * FLOAT_U / n : 0);
    }
    kit_end(k);
}

static void check_refusals(kit *k) {
    if (!kit_begin(k, CONFORM_STEP_FINISH, "step_finish/refused")) return;
    double *sums = kit_doubles(k, SUMS);
    const oh_step_finish good = {.objective = objective(OH_NORM_WEIGHTS),
                                 .sums = kit_at(kit_bytes(k, "sums", KIT_IN, sums, SUMS * 8)),
                                 .loss = kit_at(kit_bytes(k, "loss", KIT_OUT, NULL, 24)),
                                 .factor = kit_at(kit_bytes(k, "factor", KIT_OUT, NULL, 4))};
    oh_step_finish bad;
#define REFUSED(what, edit)                                                                                            \
    do {                                                                                                               \
        bad = good;                                                                                                    \
        edit;                                                                                                          \
        kit_refused(k, kit_run_step_finish, &bad, "a step_finish with " what, OH_INVALID_ARGUMENT);                    \
    } while (0)
    REFUSED("sums = NULL", bad.sums = NULL);
    REFUSED("loss = NULL", bad.loss = NULL);
    REFUSED("factor = NULL", bad.factor = NULL);
#undef REFUSED
    kit_end(k);
}

void cases_step_finish(kit *k) {
    static const step_spec specs[] = {
        {"weights", OH_NORM_WEIGHTS, 20.5, 31, 0}, {"count", OH_NORM_COUNT, 20.5, 31, 0},
        {"none", OH_NORM_NONE, 20.5, 31, 0},       {"number", OH_NORM_NUMBER, 20.5, 31, 0},
        {"given", OH_NORM_WEIGHTS, 20.5, 31, 64},  {"zero", OH_NORM_WEIGHTS, 0, 0, 0},
        {"zero-count", OH_NORM_COUNT, 3, 0, 0}};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; ++i)
        check_step(k, &specs[i]);
    check_refusals(k);
}
