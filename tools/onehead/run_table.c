#include "format.h"
#include "run_report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static void print_objective(const run_report *report) {
    const oh_results *const f = &report->result->figures;
    printf("loss        %s   (%s / %s)\n", format_real(f->loss).text, format_real(f->loss_num).text,
           format_real(f->loss_den).text);
    for (int32_t term = 0; term < OH_TERM_COUNT; term++) {
        if (!(report->request->objective.terms & OH_TERM_BIT(term))) continue;
        printf("  %-9s %s   (factor %s)\n", oh_term_name(term), format_real(f->terms[term]).text,
               format_real(report->request->objective.lambda[term]).text);
    }
    printf("gradient    norm %s, largest %s\n", format_real(f->grad_norm).text, format_real(f->grad_abs_max).text);
}

static void print_top_k(const oh_results *f) {
    if (f->top_k_count == 0) return;
    printf("\n%6s %10s %19s %10s %19s\n", "top-K", "rate", "hits", "streak", "sum / blocks");
    for (int32_t i = 0; i < f->top_k_count; i++) {
        const oh_top_k_result *const top = &f->top_k[i];
        printf("%6" PRId32 " %10s %19s %10s %19s\n", top->k, format_percent(top->rate).text,
               format_fraction(top->hits, f->supervised - f->nonfinite_rows).text, format_real(top->streak).text,
               format_fraction(top->streak_sum, f->blocks).text);
    }
}

static void print_slots(const oh_results *f) {
    if (f->slot_hits == NULL || isnan(f->eal)) return;
    printf("\n%6s %10s %19s\n", "slot", "top-1", "hits");
    for (int64_t slot = 0; slot < f->block_size; slot++) {
        const int64_t hits = (int64_t)f->slot_hits[slot], count = (int64_t)f->slot_count[slot];
        if (count == 0) continue;
        printf("%6" PRId64 " %10s %19s\n", slot, format_percent((double)hits / (double)count).text,
               format_fraction(hits, count).text);
    }
}

static void print_means(const run_report *report) {
    const oh_results *const f = &report->result->figures;
    if (isnan(f->eal)) return; /* no metrics */
    printf("\nexpected accepted length  %s\n", format_real(f->eal).text);
    if (report->has_target) {
        printf("acceptance rate alpha     %s\n", format_percent(f->alpha).text);
        printf("accepted length tau       %s\n", format_real(f->tau).text);
    }
    printf("draft entropy             %s nats\n", format_real(f->draft_entropy).text);
    printf("draft top probability     %s\n", format_percent(f->draft_top1).text);
    if (report->has_target) printf("target top probability    %s\n", format_percent(f->target_top1).text);
}

static void print_cost(const run_report *report) {
    const oh_results *const f = &report->result->figures;
    const oh_plan_summary *const plan = &report->result->plan;
    const run_seconds *const s = &report->seconds;
    printf("\nprojections  %" PRId64 " draft, %" PRId64 " target; %" PRId64 " GEMMs in %" PRId64 " chunk%s of %" PRId64
           " rows\n",
           f->projections_draft, f->projections_target, f->gemms, plan->chunks, plan->chunks == 1 ? "" : "s",
           plan->chunk);
    printf("memory       %s workspace, %s converted weights\n", format_bytes(plan->workspace_bytes).text,
           format_bytes(plan->weight_bytes).text);
    printf("time         %s: read %s, open %s, plan %s, run %s, write %s\n", format_seconds(s->total).text,
           format_seconds(s->read).text, format_seconds(s->open).text, format_seconds(s->plan).text,
           format_seconds(s->run).text, format_seconds(s->write).text);
}

void run_report_print(const run_report *report, const char *name) {
    const oh_results *const f = &report->result->figures;
    printf("batch       %s\n", name);
    if (report->embedding != NULL) printf("lm_head     the input embedding, %s\n", report->embedding);
    printf("backend     %s, policy %s, tile %s\n", report->backend, policy_name(report->result->plan.policy),
           tile_name(report->result->plan.tile));
    printf("rows        %s: %s supervised in %s blocks\n", format_count(f->rows).text, format_count(f->supervised).text,
           format_count(f->blocks).text);
    if (f->nonfinite_rows > 0) {
        printf("NOT FINITE  %s rows, the first is row %" PRId64 "\n", format_count(f->nonfinite_rows).text,
               f->first_nonfinite_row);
    }
    print_objective(report);
    print_top_k(f);
    print_slots(f);
    print_means(report);
    print_cost(report);
}
