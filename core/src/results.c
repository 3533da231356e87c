/* results.c - from sums to figures: the only place where sums become ratios. */
#include <math.h>
#include <string.h>

#include "ops.h"
#include "plan.h"
#include "status.h"

static double ratio(double sum, double count) {
    return count > 0 ? sum / count : 0;
}

/* Expected accepted length from the slots' hit rates: sum over k of the product of rates up to k, from first_slot. */
static double expected_accepted_length(const oh_objective *o, const double *hits, const double *count) {
    double product = 1, length = 0;
    for (int64_t slot = o->first_slot; slot < o->block_size; ++slot) {
        product *= ratio(hits[slot], count[slot]);
        length += product;
    }
    return length;
}

void oh_results_from_sums(const oh_objective *o, const double *sums, const double *loss, int has_target,
                          uint32_t produce, oh_results *r) {
    memset(r, 0, sizeof *r);
    const double finite = sums[OH_SUM_SUPERVISED] - sums[OH_SUM_NONFINITE];
    r->supervised = (int64_t)sums[OH_SUM_SUPERVISED];
    r->blocks = (int64_t)sums[OH_SUM_BLOCKS];
    r->nonfinite_rows = (int64_t)sums[OH_SUM_NONFINITE];
    r->first_nonfinite_row = (int64_t)sums[OH_SUM_FIRST_NONFINITE] - 1;
    r->block_size = o->block_size;

    const int has_loss = (produce & OH_PRODUCE_LOSS) != 0, metrics = (produce & OH_PRODUCE_METRICS) != 0;
    r->weight_sum = has_loss ? sums[OH_SUM_WEIGHT] : NAN;
    r->loss = has_loss ? loss[0] : NAN;
    r->loss_num = has_loss ? loss[1] : NAN;
    r->loss_den = has_loss ? loss[2] : NAN;
    for (int i = 0; i < OH_TERM_COUNT; ++i) {
        const int used = has_loss && o->terms & OH_TERM_BIT(i);
        r->terms[i] = used ? ratio(sums[OH_SUM_TERM + i], sums[OH_SUM_WEIGHT]) : NAN;
    }
    if (produce & OH_PRODUCE_TOP_K) r->top_k_count = o->top_k_count;
    for (int32_t i = 0; i < r->top_k_count; ++i) {
        const double hits = sums[oh_sum_hits(o) + i], streak = sums[oh_sum_streak(o) + i];
        r->top_k[i] = (oh_top_k_result){.k = o->top_k[i],
                                        .hits = (int64_t)hits,
                                        .streak_sum = (int64_t)streak,
                                        .rate = ratio(hits, finite),
                                        .streak = ratio(streak, sums[OH_SUM_BLOCKS])};
    }
    r->slot_hits = sums + oh_sum_slot_hits(o);
    r->slot_count = sums + oh_sum_slot_count(o);
    r->eal = metrics ? expected_accepted_length(o, r->slot_hits, r->slot_count) : NAN;
    r->draft_entropy = metrics ? ratio(sums[OH_SUM_ENTROPY], finite) : NAN;
    r->draft_top1 = metrics ? ratio(sums[OH_SUM_DRAFT_TOP1], finite) : NAN;
    r->target_top1 = metrics && has_target ? ratio(sums[OH_SUM_TARGET_TOP1], finite) : NAN;
    const int overlap = (produce & OH_PRODUCE_OVERLAP) != 0;
    r->alpha = overlap ? ratio(sums[OH_SUM_ALPHA], finite) : NAN;
    r->tau = overlap ? ratio(sums[OH_SUM_TAU], sums[OH_SUM_BLOCKS]) : NAN;
    r->grad_norm = r->grad_abs_max = NAN;
}

/* What only the device could see of a step's masks and target rows. */
static oh_status judge_selection(const double *selected, oh_error *error) {
    if (selected[OH_SELECTED_BAD_MASKS] > 0)
        return oh_fail(error, OH_BAD_DATA,
                       "loss_mask[%lld]: expected a finite number that is not negative; %lld such rows were left out",
                       (long long)selected[OH_SELECTED_BAD_MASK] - 1, (long long)selected[OH_SELECTED_BAD_MASKS]);
    if (selected[OH_SELECTED_BAD_TARGETS] > 0)
        return oh_fail(error, OH_BAD_DATA,
                       "target_row[%lld]: out of range on a supervised row; %lld such rows were left out",
                       (long long)selected[OH_SELECTED_BAD_TARGET] - 1, (long long)selected[OH_SELECTED_BAD_TARGETS]);
    return OH_OK;
}

/* Whether the figures can be believed. */
static oh_status judge(oh_plan *plan, const oh_results *r, const double *extra, oh_error *error) {
    const oh_status selected = judge_selection(extra + OH_SUMS_SELECTED, error);
    if (selected != OH_OK) return selected;
    const int f16_grad = plan->formats.grad_dtype == OH_F16 && plan->request.produce & OH_PRODUCE_GRAD_NORM;
    const int overflowed = extra[OH_SUMS_OVERFLOW] > 0;
    if (!overflowed && !(f16_grad && !isfinite(r->grad_abs_max) && r->nonfinite_rows == 0)) return OH_OK;
    plan->context->f16_overflowed = 1;
    if (!overflowed)
        return oh_fail(error, OH_OVERFLOW,
                       "the f16 gradient tile overflowed: this step's results are invalid, "
                       "expected tile f32");
    return oh_fail(
        error, OH_OVERFLOW,
        "f16 tiles overflowed in %lld rows%s, the first is row %lld: this step's results are invalid, expected "
        "tile f32",
        (long long)extra[OH_SUMS_OVERFLOW], plan->request.target_vocab ? " of drafter or target" : "",
        (long long)extra[OH_SUMS_OVERFLOW + 1] - 1);
}

oh_status oh_plan_results(oh_plan *plan, oh_results *results, oh_error *error) {
    if (!plan || !results)
        return oh_fail(error, OH_INVALID_ARGUMENT, "oh_plan_results: plan and results must not be NULL");
    if (!plan->has_run) return oh_fail(error, OH_INVALID_ARGUMENT, "oh_plan_results: the plan has no finished run");
    const oh_objective *o = &plan->request.objective;
    const int64_t count = oh_sum_count(o);
    oh_status status = oh_op_download(plan->context, plan->queue, plan->host_sums, oh_plan_device_sums(plan),
                                      (uint64_t)(count + OH_SUMS_EXTRA) * sizeof(double), error);
    if (status == OH_OK) status = oh_op_wait(plan->context, plan->queue, error);
    if (status != OH_OK) return status;
    const double *extra = plan->host_sums + count;
    oh_results_from_sums(o, plan->host_sums, extra + OH_SUMS_LOSS, plan->request.target_rows > 0, plan->request.produce,
                         results);
    results->rows = plan->rows;
    if (plan->request.produce & OH_PRODUCE_GRAD_NORM) {
        results->grad_norm = sqrt(extra[OH_SUMS_NORMS]);
        results->grad_abs_max = extra[OH_SUMS_NORMS + 1];
    }
    results->projections_draft = plan->counts.projections_draft;
    results->projections_target = plan->counts.projections_target;
    results->gemms = plan->counts.gemms;
    results->tile_reads = plan->counts.tile_reads;
    return judge(plan, results, extra, error);
}

const double *oh_plan_device_sums(const oh_plan *plan) {
    return plan->has_run ? (const double *)(plan->run_workspace + plan->layout.offset[OH_BUFFER_SUMS]) : NULL;
}

const double *oh_plan_device_loss(const oh_plan *plan) {
    return plan->has_run ? oh_plan_device_sums(plan) + oh_sum_count(&plan->request.objective) + OH_SUMS_LOSS : NULL;
}

const double *oh_plan_device_overflow(const oh_plan *plan) {
    return plan->has_run ? oh_plan_device_sums(plan) + oh_sum_count(&plan->request.objective) + OH_SUMS_OVERFLOW : NULL;
}
