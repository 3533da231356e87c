#include "run_report.h"

#include <stdio.h>

const char *policy_name(int32_t policy) {
    static const char *const names[] = {
        [OH_POLICY_AUTO] = "auto",
        [OH_POLICY_CACHED] = "cached",
        [OH_POLICY_RECOMPUTE] = "recompute",
        [OH_POLICY_NAIVE] = "naive",
    };
    return policy >= 0 && policy <= OH_POLICY_NAIVE ? names[policy] : "?";
}

const char *tile_name(int32_t tile) {
    static const char *const names[] = {
        [OH_TILE_F32] = "f32", [OH_TILE_BF16] = "bf16", [OH_TILE_F16] = "f16", [OH_TILE_DIFF] = "diff"};
    return tile >= 0 && tile <= OH_TILE_DIFF ? names[tile] : tile == OH_TILE_AUTO ? "auto" : "?";
}

static json_t *terms_json(const run_report *report) {
    json_t *const object = json_object();
    for (int32_t term = 0; term < OH_TERM_COUNT; term++) {
        if (!(report->request->objective.terms & OH_TERM_BIT(term))) continue;
        const double value = report->result->figures.terms[term];
        if (json_object_set_new(object, oh_term_name(term), json_number(value)) == 0) continue;
        json_decref(object);
        return NULL;
    }
    return object;
}

static json_t *top_k_json(const oh_results *f) {
    json_t *const object = json_object();
    for (int32_t i = 0; i < f->top_k_count; i++) {
        const oh_top_k_result *const top = &f->top_k[i];
        char key[16];
        snprintf(key, sizeof key, "%d", (int)top->k);
        json_t *const entry =
            json_pack("{s:I, s:o, s:I, s:o}", "hits", (json_int_t)top->hits, "rate", json_number(top->rate),
                      "streak_sum", (json_int_t)top->streak_sum, "streak", json_number(top->streak));
        if (json_object_set_new(object, key, entry) == 0) continue;
        json_decref(object);
        return NULL;
    }
    return object;
}

/* Counts by slot; empty where metrics were not asked for. */
static json_t *slots_json(const run_report *report, const double *counts) {
    json_t *const array = json_array();
    const int64_t count = report->request->produce & OH_PRODUCE_METRICS ? report->result->figures.block_size : 0;
    for (int64_t slot = 0; slot < count; slot++) {
        if (json_array_append_new(array, json_integer((json_int_t)counts[slot])) == 0) continue;
        json_decref(array);
        return NULL;
    }
    return array;
}

static json_t *seconds_json(const run_seconds *s) {
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "read", json_number(s->read), "open", json_number(s->open),
                     "plan", json_number(s->plan), "run", json_number(s->run), "write", json_number(s->write), "total",
                     json_number(s->total));
}

/* Figures that compare with the target, which are absent where there is none. */
static int add_target_figures(json_t *object, const oh_results *f) {
    if (json_object_set_new(object, "alpha", json_number(f->alpha)) != 0) return -1;
    if (json_object_set_new(object, "tau", json_number(f->tau)) != 0) return -1;
    return json_object_set_new(object, "target_top1", json_number(f->target_top1));
}

json_t *run_report_json(const run_report *report) {
    const oh_results *const f = &report->result->figures;
    const oh_plan_summary *const plan = &report->result->plan;
    json_t *const object = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:{s:I, s:I}, "
        "s:I, s:I, s:s, s:o}",
        "backend", report->backend, "policy", policy_name(plan->policy), "rows", (json_int_t)f->rows, "supervised",
        (json_int_t)f->supervised, "blocks", (json_int_t)f->blocks, "weight_sum", json_number(f->weight_sum), "loss",
        json_number(f->loss), "loss_num", json_number(f->loss_num), "loss_den", json_number(f->loss_den), "terms",
        terms_json(report), "grad_norm", json_number(f->grad_norm), "grad_abs_max", json_number(f->grad_abs_max),
        "topk", top_k_json(f), "slot_hits", slots_json(report, f->slot_hits), "slot_count",
        slots_json(report, f->slot_count), "eal", json_number(f->eal), "draft_entropy", json_number(f->draft_entropy),
        "draft_top1", json_number(f->draft_top1), "nonfinite_rows", (json_int_t)f->nonfinite_rows, "projections",
        "draft", (json_int_t)f->projections_draft, "target", (json_int_t)f->projections_target, "gemms",
        (json_int_t)f->gemms, "workspace_bytes", (json_int_t)plan->workspace_bytes, "tile", tile_name(plan->tile),
        "seconds", seconds_json(&report->seconds));
    if (object == NULL) return NULL;
    int failed = report->has_target ? add_target_figures(object, f) : 0;
    if (report->embedding != NULL)
        failed |= json_object_set_new(object, "lm_head_embedding", json_string(report->embedding));
    if (failed == 0) return object;
    json_decref(object);
    return NULL;
}
