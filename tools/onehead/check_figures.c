#include "check_figures.h"

#include "error_line.h"
#include "narrow_float.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { FIXED_FIGURES = 32 };

double largest_row_norm(const batch_matrix *matrix) {
    const float *const wide = matrix->data;
    const uint16_t *const narrow = matrix->data;
    double most = 0;
    for (int64_t row = 0; row < matrix->rows; row++) {
        double sum = 0;
        for (int64_t i = row * matrix->columns; i < (row + 1) * matrix->columns; i++) {
            const float value = matrix->dtype == OH_F32    ? wide[i]
                                : matrix->dtype == OH_BF16 ? bf16_value(narrow[i])
                                                           : f16_value(narrow[i]);
            sum += (double)value * (double)value;
        }
        if (isfinite(sum) && sum > most) most = sum;
    }
    return sqrt(most);
}

static double unit_roundoff(int32_t dtype) {
    return dtype == OH_BF16 ? 0x1p-8 : dtype == OH_F16 ? 0x1p-11 : 0x1p-24;
}

static double tile_roundoff(int32_t tile) {
    return tile == OH_TILE_F32 ? 0x1p-24 : tile == OH_TILE_BF16 ? 0x1p-8 : 0x1p-11;
}

/* What rounding a gradient tile's elements does to a row of dD at most, in units of s. */
static double grad_rounding(const oh_request *request, const oh_plan_summary *plan) {
    if (plan->grad_dtype == OH_F32) return 0; /* in the general bound */
    const double subnormal = plan->grad_dtype == OH_F16 ? 0x1p-25 * (double)request->vocab : 0;
    return 2 * unit_roundoff(plan->grad_dtype) + subnormal;
}

check_scale check_scale_of(const oh_request *request, const step_result *result, const step_result *other,
                           const check_norms *norms) {
    const oh_objective *const o = &request->objective;
    const uint32_t steps = OH_TERM_BIT(OH_TERM_TV) | OH_TERM_BIT(OH_TERM_NLA) | OH_TERM_BIT(OH_TERM_LK_HYBRID);
    const double n = result->figures.loss_den;
    double u = tile_roundoff(result->plan.tile);
    check_scale s = {.grad_rounding = grad_rounding(request, &result->plan)};
    if (other != NULL) {
        u = fmax(u, tile_roundoff(other->plan.tile));
        s.grad_rounding += grad_rounding(request, &other->plan);
    }
    s.rounding = u / 0x1p-24;
    s.exact = u <= 0x1p-24;
    for (int32_t term = 0; term < OH_TERM_COUNT; term++)
        s.factors += fabs(o->lambda[term]);
    if (n > 0) {
        const double logit_unit = fabs(o->upstream) / n * s.factors * fabs((double)request->scale);
        s.row_unit = logit_unit * norms->weight;
        s.head_unit = logit_unit * norms->hidden * result->figures.weight_sum;
    }
    if (o->terms & steps) s.step_rows = 1 + result->figures.supervised / 1000;
    return s;
}

static void add(figure_list *list, figure_kind kind, double value, double scale, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

static void add(figure_list *list, figure_kind kind, double value, double scale, const char *format, ...) {
    figure *const f = &list->figures[list->count++];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(f->name, sizeof f->name, format, arguments);
    va_end(arguments);
    f->kind = kind;
    f->value = value;
    f->scale = scale;
}

static void add_loss(figure_list *list, const oh_request *request, const step_result *result, const check_scale *s) {
    const oh_results *const f = &result->figures;
    const double sum = f->weight_sum * s->factors;
    add(list, FIGURE_MEASURE, f->weight_sum, f->weight_sum, "weight_sum");
    add(list, FIGURE_MEASURE, f->loss_num, sum, "loss_num");
    add(list, FIGURE_MEASURE, f->loss_den, 0, "loss_den");
    add(list, FIGURE_MEASURE, f->loss, f->loss_den > 0 ? sum / f->loss_den : 0, "loss");
    for (int32_t term = 0; term < OH_TERM_COUNT; term++) {
        if (request->objective.terms & OH_TERM_BIT(term))
            add(list, FIGURE_MEASURE, f->terms[term], 1, "terms.%s", oh_term_name(term));
    }
    if (result->draft_grad == NULL) return;
    /* s of the whole gradient: the 2-norm of the rows' s, and the largest. */
    double squares = 0, most = 0;
    for (int64_t row = 0; result->weight != NULL && row < result->rows; row++) {
        const double unit = s->row_unit * (double)result->weight[row];
        squares += unit * unit;
        most = fmax(most, unit);
    }
    add(list, FIGURE_GRADIENT, f->grad_norm, sqrt(squares), "grad_norm");
    add(list, FIGURE_GRADIENT, f->grad_abs_max, most, "grad_abs_max");
}

static void add_metrics(figure_list *list, const oh_results *f) {
    for (int32_t i = 0; i < f->top_k_count; i++) {
        const oh_top_k_result *const top = &f->top_k[i];
        add(list, FIGURE_DECISION, (double)top->hits, 0, "topk.%" PRId32 ".hits", top->k);
        add(list, FIGURE_DECISION, (double)top->streak_sum, 0, "topk.%" PRId32 ".streak_sum", top->k);
        add(list, FIGURE_DECISION, top->rate, 0x1p-23, "topk.%" PRId32 ".rate", top->k);
        add(list, FIGURE_DECISION, top->streak, 0x1p-23, "topk.%" PRId32 ".streak", top->k);
    }
    for (int64_t slot = 0; f->slot_hits != NULL && slot < f->block_size; slot++) {
        add(list, FIGURE_DECISION, f->slot_hits[slot], 0, "slot_hits.%" PRId64, slot);
        add(list, FIGURE_COUNT, f->slot_count[slot], 0, "slot_count.%" PRId64, slot);
    }
    add(list, FIGURE_DECISION, f->eal, 0x1p-23, "eal");
    add(list, FIGURE_MEASURE, f->alpha, 1, "alpha");
    add(list, FIGURE_MEASURE, f->tau, 1, "tau");
    add(list, FIGURE_MEASURE, f->draft_entropy, 1, "draft_entropy");
    add(list, FIGURE_MEASURE, f->draft_top1, 1, "draft_top1");
    add(list, FIGURE_MEASURE, f->target_top1, 1, "target_top1");
}

oh_status figures_collect(figure_list *list, const oh_request *request, const step_result *result,
                          const check_scale *scale, oh_error *error) {
    const oh_results *const f = &result->figures;
    const size_t slots = f->slot_hits != NULL ? (size_t)f->block_size : 0;
    list->count = 0;
    list->figures = calloc(FIXED_FIGURES + 4 * (size_t)f->top_k_count + 2 * slots, sizeof *list->figures);
    if (list->figures == NULL) return error_line(error, OH_OUT_OF_MEMORY, "figures", "out of memory");
    add(list, FIGURE_COUNT, (double)f->rows, 0, "rows");
    add(list, FIGURE_COUNT, (double)f->supervised, 0, "supervised");
    add(list, FIGURE_COUNT, (double)f->blocks, 0, "blocks");
    add(list, FIGURE_COUNT, (double)f->nonfinite_rows, 0, "nonfinite_rows");
    add_loss(list, request, result, scale);
    add_metrics(list, f);
    return OH_OK;
}

double figure_bound(const figure *f, double other, const check_scale *scale) {
    const double size = fmax(fabs(f->value), fabs(other));
    switch (f->kind) {
    case FIGURE_COUNT:
        return 0;
    case FIGURE_DECISION:
        if (!scale->exact) return INFINITY;
        /* Ratios of equal counts: the division's rounding, and the decimals of a golden file. */
        return f->scale > 0 ? 1e-12 * size : 0;
    case FIGURE_MEASURE:
        return scale->rounding * (5e-6 * size + 0x1p-23 * f->scale);
    case FIGURE_GRADIENT:
        break;
    }
    return scale->rounding * (2e-5 * size + 0x1p-20 * f->scale) + scale->grad_rounding * f->scale;
}
