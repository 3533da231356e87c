#include "schedule.h"

#include <string.h>

/* What each op adds to its stage. A new statistic is a new line here. */
static const struct {
    uint32_t want, overlap_want;
    int32_t first_read;
} statistic[OH_OP_COUNT] = {
    [OH_OP_LSE_DRAFT] = {.first_read = 1},
    [OH_OP_LSE_TARGET] = {.first_read = 1},
    [OH_OP_ARGMAX_DRAFT] = {.first_read = 1},
    [OH_OP_ARGMAX_TARGET] = {.first_read = 1},
    [OH_OP_LABEL_LOGIT] = {.first_read = 1},
    [OH_OP_TOP_K] = {.first_read = 1},
    [OH_OP_ENTROPY] = {.first_read = 1, .want = OH_WANT_ENTROPY},
    [OH_OP_KL_SUM] = {.first_read = 1, .want = OH_WANT_KL},
    [OH_OP_RKL_SUM] = {.first_read = 1, .want = OH_WANT_RKL},
    [OH_OP_LOGIT_SUM] = {.first_read = 1, .want = OH_WANT_TOTAL},
    [OH_OP_OVERLAP] = {.overlap_want = OH_WANT_OVERLAP},
    [OH_OP_JSD_SUM] = {.overlap_want = OH_WANT_JSD},
    [OH_OP_RANK] = {.overlap_want = OH_WANT_RANK},
};

static uint32_t top_k_bit(const oh_objective *o, int32_t k) {
    for (int32_t i = 0; i < o->top_k_count; ++i)
        if (o->top_k[i] == k) return 1u << i;
    return 0;
}

static int32_t largest_top_k(const oh_objective *o) {
    return o->top_k_count ? o->top_k[o->top_k_count - 1] : 0;
}

/* Statistics that a result node can see: those among its inputs, whichever stage read them. */
static uint32_t wants_of_inputs(const oh_graph *graph, const oh_node *node) {
    uint32_t want = 0;
    for (int32_t i = 0; i < node->input_count; ++i) {
        const int32_t op = graph->nodes[node->inputs[i]].op;
        want |= statistic[op].want | statistic[op].overlap_want;
    }
    return want;
}

static int has_input(const oh_graph *graph, const oh_node *node, int32_t op) {
    for (int32_t i = 0; i < node->input_count; ++i)
        if (graph->nodes[node->inputs[i]].op == op) return 1;
    return 0;
}

static void add_node(oh_stage *s, const oh_graph *graph, const oh_node *node, const oh_graph_spec *spec) {
    const oh_objective *o = &spec->objective;
    s->first_read |= statistic[node->op].first_read;
    s->want |= statistic[node->op].want;
    s->overlap_want |= statistic[node->op].overlap_want;
    switch (node->op) {
    case OH_OP_PROJECT_DRAFT:
        s->project_draft = 1;
        break;
    case OH_OP_PROJECT_TARGET:
        s->project_target = 1;
        break;
    case OH_OP_TOP_K:
        s->top_k = node->k > s->top_k ? node->k : s->top_k;
        break;
    case OH_OP_ROW_LOSS:
    case OH_OP_METRICS:
        s->parts |= node->op == OH_OP_ROW_LOSS ? OH_FINISH_LOSS | OH_FINISH_COEF : OH_FINISH_METRICS;
        s->finish_want |= wants_of_inputs(graph, node);
        s->finish_has_target |= has_input(graph, node, OH_OP_LSE_TARGET);
        break;
    case OH_OP_LSE_TARGET:
        s->finish_has_target = 1;
        break;
    case OH_OP_PROJECT_TARGET_FULL:
        s->project_full = 1;
        break;
    case OH_OP_ARGMAX_TARGET:
        s->full_label = spec->subset;
        break;
    case OH_OP_OVERLAP_FULL:
        s->full_overlap = s->second_read = 1;
        break;
    case OH_OP_BIAS_GRAD:
        s->bias_grad = 1;
        break;
    case OH_OP_TOP_K_METRICS:
        s->parts |= OH_FINISH_TOP_K;
        s->top_k_mask |= top_k_bit(o, node->k);
        if (spec->produce & OH_PRODUCE_TOP_K_ROWS && node->k == largest_top_k(o)) s->parts |= OH_FINISH_TOP_K_ROWS;
        break;
    case OH_OP_TILE_GRAD:
        s->tile_grad = 1;
        break;
    case OH_OP_GRAD:
        s->grad = 1;
        break;
    case OH_OP_HEAD_GRAD:
        s->head_grad = 1;
        break;
    default:
        break;
    }
}

/* A second read that the loss doesn't need can wait for the gradient's pass over the same whole tiles. */
static int overlap_in_grad(const oh_stage *s, const oh_graph_spec *spec) {
    const uint32_t of_loss = oh_objective_want(&spec->objective) & (OH_WANT_OVERLAP | OH_WANT_JSD);
    return spec->overlap_in_grad && !spec->panels && s->tile_grad && s->overlap_want & OH_WANT_OVERLAP && !of_loss &&
           !s->full_overlap;
}

void oh_schedule_build(oh_schedule *schedule, const oh_graph *merged, const oh_graph_spec *spec) {
    int finished = 0, full_is_read = 0;
    memset(schedule, 0, sizeof *schedule);
    for (int32_t stage = 0; stage < merged->stage_count; ++stage) {
        oh_stage s = {.stage = stage};
        int64_t nodes = 0;
        for (int64_t i = 0; i < merged->count; ++i) {
            if (merged->nodes[i].stage != stage) continue;
            ++nodes;
            add_node(&s, merged, &merged->nodes[i], spec);
        }
        if (nodes == 0) continue;
        s.second_read |= s.overlap_want != 0;
        s.overlap_in_grad = overlap_in_grad(&s, spec);
        /* A stage that doesn't judge the target (it may project it to form z) learns y, and which rows were not finite,
         * from one that did. */
        s.label_is_known =
            s.first_read && !s.project_full &&
            ((finished && !s.finish_has_target) || (spec->subset && spec->objective.labels == OH_LABELS_TARGET));
        s.finish_has_full = s.parts && full_is_read;
        full_is_read |= s.project_full;
        if (s.parts && !finished) s.parts |= OH_FINISH_COUNTS;
        finished |= s.parts != 0;
        schedule->projections_draft += s.project_draft;
        schedule->projections_target += s.project_target + s.project_full;
        schedule->gemms += s.project_draft + s.project_target + s.project_full + s.grad + s.head_grad;
        schedule->stages[schedule->count++] = s;
    }
}
