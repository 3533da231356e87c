#include "bench_report.h"
#include "format.h"
#include "run_report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Operations that take less of a step are summed up. */
#define SHARE_SHOWN 0.001
/* A process that gets less of the CPU time its threads can use shares its cores with others. */
#define QUIET 0.9

static format_text format_ms(double ms) {
    return format_seconds(1e-3 * ms);
}

static format_text format_rate(double per_second, const char *unit) {
    format_text result;
    if (!(per_second > 0))
        snprintf(result.text, sizeof result.text, "-");
    else
        snprintf(result.text, sizeof result.text, "%.1f G%s/s", 1e-9 * per_second, unit);
    return result;
}

static format_text format_spread(const samples_summary *s) {
    format_text result;
    snprintf(result.text, sizeof result.text, "%.1f %%", 50 * (s->high - s->low) / s->median);
    return result;
}

static format_text format_range(const samples_summary *s) {
    format_text result;
    snprintf(result.text, sizeof result.text, "%.3f to %.3f", s->low, s->high);
    return result;
}

static void print_machine(const bench_report *report) {
    const machine_facts *const m = report->machine;
    const oh_device_info *const device = &report->output->device;
    printf("machine     %s, %d CPUs, load %.2f before and %.2f after\n", m->cpu[0] != '\0' ? m->cpu : "CPU", m->cpus,
           m->load[0], report->load_after);
    printf("backend     %s: %s; %s\n", report->backend, device->name, device->kernel);
    printf("build       onehead %s%s%s, %s, %s\n", oh_version(), m->commit[0] != '\0' ? " at " : "", m->commit,
           m->compiler, m->build_type);
    if (report->output->note[0] != '\0') printf("note        %s\n", report->output->note);
    if (report->copy_rate > 0) printf("copy        %s, read and written\n", format_rate(report->copy_rate, "B").text);
    printf("memory      %s at most", format_bytes(report->peak_memory).text);
    if (report->output->device_bytes > 0)
        printf(" on the host, %s on the device, inputs included", format_bytes(report->output->device_bytes).text);
    printf("\n");
}

static void print_request(const bench_report *report) {
    const oh_request *const r = &report->setup->request;
    printf("step        T = %s, S = %s, H = %s, V = %s; %s; terms", format_count(r->rows).text,
           format_count(r->target_rows).text, format_count(r->hidden).text, format_count(r->vocab).text,
           oh_dtype_name(r->hidden_dtype));
    for (int32_t term = 0; term < OH_TERM_COUNT; term++) {
        if (r->objective.terms & OH_TERM_BIT(term)) printf(" %s", oh_term_name(term));
    }
    if (r->produce & OH_PRODUCE_METRICS) printf("; metrics%s", r->produce & OH_PRODUCE_OVERLAP ? "" : " of one read");
    for (int32_t i = 0; r->produce & OH_PRODUCE_TOP_K && i < r->objective.top_k_count; i++)
        printf("%s%" PRId32, i == 0 ? "; top-" : ", ", r->objective.top_k[i]);
    printf("; seed %" PRId64 "\n", report->setup->options->seed);
}

static void print_errors(const bench_output *out) {
    bool titled = false;
    for (int64_t i = 0; i < out->count; i++) {
        const bench_result *const r = &out->results[i];
        if (r->error[0] != '\0' || isnan(r->grad_error)) continue;
        if (!titled) printf("\nGradient against the one with f32 tiles, relative, 2-norms:\n");
        titled = true;
        printf("%-10s %-5s %10.2e\n", policy_name(r->policy), tile_name(r->tile), r->grad_error);
    }
}

/* What varies in a series, in front of each line. */
static format_text series_value(const bench_result *r) {
    const int64_t value = strcmp(r->series, "rows") == 0    ? r->rows
                          : strcmp(r->series, "vocab") == 0 ? r->vocab
                          : strcmp(r->series, "chunk") == 0 ? r->chunk
                                                            : r->threads;
    return format_count(value);
}

static void print_results(const bench_report *report) {
    const bench_output *const out = report->output;
    const bool series = out->count > 0 && out->results[0].series[0] != '\0';
    printf("\nMedian of repetitions; spread: half the distance between the quartiles.\n");
    if (series) printf("%9s ", out->results[0].series);
    printf("%-10s %-5s %7s %6s %11s %7s %11s %9s %16s %9s %5s %6s %13s %12s\n", "policy", "tile", "chunk", "times",
           "step", "spread", "its GEMMs", "ratio", "quartiles", "by CPU", "proj", "GEMMs", "GEMM rate", "workspace");
    for (int64_t i = 0; i < out->count; i++) {
        const bench_result *const r = &out->results[i];
        if (series) printf("%9s ", series_value(r).text);
        printf("%-10s %-5s ", policy_name(r->policy), tile_name(r->tile));
        if (r->error[0] != '\0') {
            printf("left out: %s\n", r->error);
            continue;
        }
        printf("%7s %6" PRId64 " %11s %7s %11s %7.3f x %16s %7.3f x %5" PRId64 " %6" PRId64 " %13s %12s\n",
               format_count(r->chunk).text, r->repeats, format_ms(r->step_ms.median).text,
               format_spread(&r->step_ms).text, format_ms(r->gemms_ms.median).text, r->ratio.median,
               format_range(&r->ratio).text, r->cpu_ratio.median, r->projections_draft + r->projections_target,
               r->gemms, format_rate(1e3 * r->flops / r->gemms_ms.median, "FLOP").text,
               format_bytes(oh_plan_bytes(&r->plan)).text);
    }
}

static void print_passes(const bench_report *report, const bench_result *r) {
    printf("\nWhere %s goes: %s policy, %s tiles\n", format_ms(r->traced_ms.median).text, policy_name(r->policy),
           tile_name(r->tile));
    printf("%-15s %6s %11s %7s %14s %13s %9s\n", "operation", "calls", "time", "share", "FLOP/s", "bytes/s", "of copy");
    double rest = r->traced_ms.median;
    for (int kind = 0; kind < OH_SPAN_COUNT; kind++) {
        const bench_pass *const pass = &r->passes[kind];
        const double ms = pass->ms.median;
        if (pass->calls == 0 || ms < SHARE_SHOWN * r->traced_ms.median) continue;
        rest -= ms;
        char of_copy[20] = "";
        if (report->copy_rate > 0 && !bench_is_product(kind) && pass->bytes > 1e6)
            snprintf(of_copy, sizeof of_copy, "%.2f x", 1e3 * pass->bytes / ms / report->copy_rate);
        printf("%-15s %6" PRId64 " %11s %7s %14s %13s %9s\n", oh_span_name(kind), pass->calls, format_ms(ms).text,
               format_percent(ms / r->traced_ms.median).text,
               pass->flops > 0 ? format_rate(1e3 * pass->flops / ms, "FLOP").text : "",
               format_rate(1e3 * pass->bytes / ms, "B").text, of_copy);
    }
    if (rest > 0)
        printf("%-15s %6s %11s %7s\n", "the rest", "", format_ms(rest).text,
               format_percent(rest / r->traced_ms.median).text);
}

static int is_tile_pass(int kind) {
    return kind == OH_SPAN_STATISTICS || kind == OH_SPAN_SECOND_READ || kind == OH_SPAN_TILE_GRAD ||
           kind == OH_SPAN_STATS_GRAD;
}

/* The sentence a newcomer is after. */
static void print_limit(const bench_result *r) {
    double products = 0, tiles = 0;
    for (int kind = 0; kind < OH_SPAN_COUNT; kind++) {
        const double ms = r->passes[kind].calls > 0 ? r->passes[kind].ms.median : 0;
        if (bench_is_product(kind)) products += ms;
        if (is_tile_pass(kind)) tiles += ms;
    }
    /* Medians of parts may add up to more than the median of the whole. */
    const double whole = fmax(r->traced_ms.median, products + tiles), other = whole - products - tiles;
    printf("limit       %s: products take %s of the step, passes over tiles %s, the rest %s\n",
           products >= fmax(tiles, other) ? "the products"
           : tiles >= other               ? "the passes over tiles"
                                          : "everything else",
           format_percent(products / whole).text, format_percent(tiles / whole).text,
           format_percent(other / whole).text);
}

/* Threads that wait for others of their team spin, so a quiet machine gives a product nearly all of its CPUs' time. */
static void print_noise(const bench_report *report) {
    double most = 0;
    for (int64_t i = 0; i < report->output->count; i++) {
        const bench_result *const r = &report->output->results[i];
        if (r->error[0] != '\0' || r->threads == 0) continue;
        const double got = r->gemms_cpu_ms.median / (r->gemms_ms.median * (double)r->threads);
        if (got > most) most = got;
    }
    if (most > 0 && most < QUIET)
        printf("\nOther processes were running: products got %s of their threads' CPU time. Times are too\n"
               "long and ratios uncertain; the ratio by CPU time suffers less.\n",
               format_percent(most).text);
}

/* Of one series point or of the only one: what sharing is worth. */
static void print_comparison(const bench_output *out) {
    const bench_result *by_policy[OH_POLICY_NAIVE + 1] = {NULL};
    for (int64_t i = 0; i < out->count; i++) {
        const bench_result *const r = &out->results[i];
        if (r->error[0] == '\0' && by_policy[r->policy] == NULL) by_policy[r->policy] = r;
    }
    const bench_result *const cached = by_policy[OH_POLICY_CACHED];
    if (cached == NULL) return;
    for (int policy = OH_POLICY_RECOMPUTE; policy <= OH_POLICY_NAIVE; policy++) {
        if (by_policy[policy] == NULL) continue;
        printf("%-11s takes %.2f times as long as cached\n", policy_name(policy),
               by_policy[policy]->step_ms.median / cached->step_ms.median);
    }
}

void bench_report_print(const bench_report *report) {
    const bench_output *const out = report->output;
    print_machine(report);
    print_request(report);
    print_results(report);
    print_noise(report);
    print_errors(out);
    if (out->count == 0 || out->results[0].series[0] != '\0') return;
    printf("\n");
    print_comparison(out);
    for (int64_t i = 0; i < out->count; i++) {
        if (out->results[i].error[0] != '\0') continue;
        print_passes(report, &out->results[i]);
        print_limit(&out->results[i]);
    }
}
