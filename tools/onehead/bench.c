#include "bench.h"

#include "bench_accuracy.h"
#include "bench_copy.h"
#include "error_line.h"
#include "machine.h"
#include "progress.h"
#include "run_report.h"
#include "step.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UP = 2, REPEATS_LEAST = 3, REPEATS_MOST = 200 };

typedef struct bench_case {
    oh_plan *plan;
    bench_result *result;
    span_log *log;
    oh_results figures;
    /* By repetition. */
    double step[BENCH_REPEATS_MAX], gemms[BENCH_REPEATS_MAX], ratio[BENCH_REPEATS_MAX], traced[BENCH_REPEATS_MAX];
    double step_cpu[BENCH_REPEATS_MAX], gemms_cpu[BENCH_REPEATS_MAX], cpu_ratio[BENCH_REPEATS_MAX];
    double pass[OH_SPAN_COUNT][BENCH_REPEATS_MAX];
} bench_case;

typedef struct bench_run {
    const bench_setup *setup;
    oh_context *context;
    bench_inputs inputs;
    bench_case *cases;
    int count;
    bench_case *order[BENCH_CASES_MAX]; /* those that can run */
    int running;
} bench_run;

/* ------------------------------------------------------------------------------------------------ one measurement ---- */

typedef oh_status run_function(oh_plan *plan, const oh_inputs *in, const oh_outputs *out, oh_error *error);

static oh_status timed(const bench_run *b, bench_case *c, run_function *run, double *ms, double *cpu_ms,
                       oh_error *error) {
    const double cpu = machine_cpu_seconds(), start = step_clock();
    oh_status status = run(c->plan, &b->inputs.in, &b->inputs.out, error);
    if (status == OH_OK) status = oh_plan_wait(c->plan, error);
    *ms = 1e3 * (step_clock() - start);
    *cpu_ms = 1e3 * (machine_cpu_seconds() - cpu);
    return status;
}

static oh_status measure_passes(const bench_run *b, bench_case *c, int64_t at, oh_error *error) {
    double cpu;
    span_log_clear(c->log);
    oh_plan_trace(c->plan, span_log_observe, c->log);
    const oh_status status = timed(b, c, oh_plan_run, &c->traced[at], &cpu, error);
    oh_plan_trace(c->plan, NULL, NULL);
    if (status != OH_OK) return status;
    const oh_status read = span_log_read(c->log, error);
    if (read != OH_OK) return read;
    for (int64_t i = 0; i < c->log->count; i++) {
        const span_record *const record = &c->log->records[i];
        c->pass[record->span.kind][at] += 1e3 * (record->end - record->begin);
    }
    return OH_OK;
}

static oh_status repeat(const bench_run *b, bench_case *c, oh_error *error) {
    const int64_t at = c->result->repeats;
    oh_status status = timed(b, c, oh_plan_run, &c->step[at], &c->step_cpu[at], error);
    if (status == OH_OK) status = timed(b, c, oh_plan_run_products, &c->gemms[at], &c->gemms_cpu[at], error);
    if (status == OH_OK) status = measure_passes(b, c, at, error);
    if (status != OH_OK) return status;
    c->ratio[at] = c->step[at] / c->gemms[at];
    c->cpu_ratio[at] = c->step_cpu[at] / c->gemms_cpu[at];
    c->result->repeats++;
    return OH_OK;
}

static void summarise(bench_case *c) {
    bench_result *const r = c->result;
    for (int64_t i = 0; i < c->log->count; i++) {
        const oh_span *const span = &c->log->records[i].span;
        bench_pass *const pass = &r->passes[span->kind];
        pass->calls++;
        pass->flops += span->flops;
        pass->bytes += span->bytes;
        r->flops += span->flops;
    }
    for (int kind = 0; kind < OH_SPAN_COUNT; kind++)
        r->passes[kind].ms = samples_summarise(c->pass[kind], r->repeats);
    r->pass_clock = c->log->clock;
    r->step_ms = samples_summarise(c->step, r->repeats);
    r->gemms_ms = samples_summarise(c->gemms, r->repeats);
    r->ratio = samples_summarise(c->ratio, r->repeats);
    r->traced_ms = samples_summarise(c->traced, r->repeats);
    r->step_cpu_ms = samples_summarise(c->step_cpu, r->repeats);
    r->gemms_cpu_ms = samples_summarise(c->gemms_cpu, r->repeats);
    r->cpu_ratio = samples_summarise(c->cpu_ratio, r->repeats);
    r->projections_draft = c->figures.projections_draft;
    r->projections_target = c->figures.projections_target;
    r->gemms = c->figures.gemms;
    r->tile_reads = c->figures.tile_reads;
}

/* --------------------------------------------------------------------------------------------------------- groups ---- */

/* Room for `count` more results: cases of a group point to theirs. */
static oh_status reserve(bench_output *output, int64_t count, oh_error *error) {
    const int64_t needed = output->count + count;
    if (needed <= output->capacity) return OH_OK;
    const int64_t capacity = 2 * needed;
    bench_result *const grown = realloc(output->results, (size_t)capacity * sizeof *grown);
    if (grown == NULL) return error_line(error, OH_OUT_OF_MEMORY, "results", "out of memory");
    output->results = grown;
    output->capacity = capacity;
    return OH_OK;
}

static oh_status open_case(bench_run *b, bench_output *output, oh_request request, const char *series,
                           oh_error *error) {
    bench_result *const result = &output->results[output->count++]; /* reserved */
    oh_error said;
    *result = (bench_result){.series = series,
                             .policy = request.policy,
                             .tile = request.tile,
                             .rows = request.rows,
                             .hidden = request.hidden,
                             .vocab = request.vocab,
                             .chunk = request.chunk,
                             .threads = output->device.threads};
    bench_case *const c = &b->cases[b->count];
    if (oh_plan_create(b->context, &request, &c->plan, &said) != OH_OK) {
        memcpy(result->error, said.message, sizeof result->error);
        return OH_OK;
    }
    result->plan = *oh_plan_get_summary(c->plan);
    result->policy = result->plan.policy;
    result->tile = result->plan.tile;
    result->chunk = result->plan.chunk;
    c->result = result;
    c->log = &output->logs[b->count];
    snprintf(output->log_names[b->count], sizeof output->log_names[0], "%s, %s tiles", policy_name(result->policy),
             tile_name(result->tile));
    output->log_count = ++b->count;
    return span_log_open(c->log, b->inputs.backend, oh_context_device(b->context), error);
}

static oh_status open_cases(bench_run *b, bench_output *output, const char *series, oh_error *error) {
    const bench_setup *const setup = b->setup;
    b->cases = calloc((size_t)setup->policy_count * (size_t)setup->tile_count, sizeof *b->cases);
    if (b->cases == NULL) return error_line(error, OH_OUT_OF_MEMORY, "results", "out of memory");
    oh_status status = reserve(output, (int64_t)setup->policy_count * setup->tile_count, error);
    output->log_count = 0;
    for (int p = 0; p < setup->policy_count; p++) {
        for (int t = 0; t < setup->tile_count && status == OH_OK; t++) {
            oh_request request = setup->request;
            request.policy = setup->policies[p];
            request.tile = setup->tiles[t];
            status = open_case(b, output, request, series, error);
        }
    }
    return status;
}

static oh_status warm_up_case(const bench_run *b, bench_case *c, oh_error *error) {
    oh_status status = OH_OK;
    for (int n = 0; n < WARM_UP && status == OH_OK; n++) {
        status = oh_plan_run(c->plan, &b->inputs.in, &b->inputs.out, error);
        if (status == OH_OK) status = oh_plan_results(c->plan, &c->figures, error);
    }
    return status;
}

/* A case that can't run is left out, as one that can't be planned. */
static void warm_up(bench_run *b) {
    int running = 0;
    for (int i = 0; i < b->count; i++) {
        bench_case *const c = &b->cases[i];
        oh_error said;
        if (warm_up_case(b, c, &said) == OH_OK) {
            b->order[running++] = c;
            continue;
        }
        memcpy(c->result->error, said.message, sizeof c->result->error);
    }
    b->running = running;
}

static bool enough(const bench_run *b, int64_t done, double start) {
    const options *const o = b->setup->options;
    if (o->repeats > 0) return done >= o->repeats;
    if (done < REPEATS_LEAST) return false;
    return done >= REPEATS_MOST || step_clock() - start >= o->seconds;
}

/* Where formats are compared, every case's gradient with that of the first with f32 tiles. */
static oh_status compare_formats(const bench_run *b, oh_error *error) {
    const bench_case *reference = NULL;
    for (int i = b->running - 1; i >= 0; i--) {
        b->order[i]->result->grad_error = NAN;
        if (b->order[i]->result->tile == OH_TILE_F32) reference = b->order[i];
    }
    if (reference == NULL || b->setup->tile_count == 1) return OH_OK;
    bench_answers expected, got = {.grad = NULL};
    oh_status status = bench_answers_take(&expected, reference->plan, &b->inputs, &b->setup->request, error);
    for (int i = 0; i < b->running && status == OH_OK; i++) {
        status = bench_answers_take(&got, b->order[i]->plan, &b->inputs, &b->setup->request, error);
        if (status == OH_OK) b->order[i]->result->grad_error = bench_grad_error(&got, &expected);
        bench_answers_free(&got);
    }
    bench_answers_free(&expected);
    return status;
}

static oh_status measure(bench_run *b, oh_error *error) {
    progress_show("warming up");
    warm_up(b);
    oh_status status = OH_OK;
    const double start = step_clock();
    for (int64_t round = 0; b->running > 0 && status == OH_OK && !enough(b, round, start); round++) {
        char text[80];
        snprintf(text, sizeof text, "measuring, round %" PRId64 ", %.0f s so far", round + 1, step_clock() - start);
        progress_show(text);
        for (int i = 0; i < b->running && status == OH_OK; i++)
            status = repeat(b, b->order[i], error);
    }
    for (int i = 0; i < b->running && status == OH_OK; i++)
        summarise(b->order[i]);
    if (status == OH_OK) status = compare_formats(b, error);
    progress_show(NULL);
    return status;
}

/* Of a device with memory of its own, how fast a copy is, and what the plans and inputs took, by what is free now and was
 * before them. */
static void note_device(const bench_run *b, bench_output *output) {
    oh_device_info now;
    if (output->table->caps & OH_CAP_HOST_MEMORY) return;
    if (output->copy_rate == 0) output->copy_rate = bench_copy_rate(output->table, oh_context_device(b->context));
    if (output->device.memory_free == 0 || oh_context_device_info(b->context, &now, NULL) != OH_OK) return;
    const int64_t taken = output->device.memory_free - now.memory_free;
    if (taken > output->device_bytes) output->device_bytes = taken;
}

static void keep_note(void *user, const char *line) {
    bench_output *const output = user;
    snprintf(output->note, sizeof output->note, "%s", line);
}

oh_status bench_group(bench_output *output, const bench_setup *setup, const char *series, oh_error *error) {
    bench_run b = {.setup = setup};
    const options *const o = setup->options;
    const oh_context_options wanted = {.backend = o->backend,
                                       .device = (int32_t)o->device,
                                       .threads = (int32_t)setup->threads,
                                       .user = output,
                                       .log = keep_note};
    progress_show("preparing");
    oh_status status = oh_context_open(&wanted, &b.context, error);
    if (status == OH_OK) status = oh_context_device_info(b.context, &output->device, error);
    if (status == OH_OK) status = bench_inputs_open(&b.inputs, b.context, &setup->request, (uint64_t)o->seed, error);
    if (status == OH_OK) output->table = b.inputs.backend;
    if (status == OH_OK) status = open_cases(&b, output, series, error);
    if (status == OH_OK) status = measure(&b, error);
    if (status == OH_OK) note_device(&b, output);
    progress_show(NULL);
    for (int i = 0; i < b.count; i++) {
        oh_plan_destroy(b.cases[i].plan);
        span_log_stop(b.cases[i].log);
    }
    free(b.cases);
    bench_inputs_close(&b.inputs);
    oh_context_close(b.context);
    return status;
}

/* --------------------------------------------------------------------------------------------------------- series ---- */

/* What a series varies, and the multiple that its values keep. */
static int64_t *varied(bench_setup *setup, const char *series, int64_t *unit) {
    *unit = setup->request.objective.block_size;
    if (strcmp(series, "rows") == 0) return &setup->request.rows;
    if (strcmp(series, "chunk") == 0) return &setup->request.chunk;
    *unit = 1;
    return strcmp(series, "vocab") == 0 ? &setup->request.vocab : &setup->threads;
}

/* A series over chunk or threads starts from the value that would be chosen. */
static oh_status settle(bench_setup *setup, oh_error *error) {
    oh_context *context;
    const options *const o = setup->options;
    const oh_context_options wanted = {
        .backend = o->backend, .device = (int32_t)o->device, .threads = (int32_t)setup->threads};
    oh_device_info info;
    oh_status status = oh_context_open(&wanted, &context, error);
    if (status != OH_OK) return status;
    status = oh_context_device_info(context, &info, error);
    if (status == OH_OK && setup->threads == 0) setup->threads = info.threads;
    if (status == OH_OK && setup->request.chunk == 0) {
        oh_plan *plan;
        oh_request request = setup->request;
        request.policy = setup->policies[0];
        request.tile = setup->tiles[0];
        status = oh_plan_describe(&request, &plan, error);
        if (status == OH_OK) {
            setup->request.chunk = oh_plan_get_summary(plan)->chunk;
            oh_plan_destroy(plan);
        }
    }
    oh_context_close(context);
    return status;
}

oh_status bench_series(bench_output *output, const bench_setup *setup, const char *series, oh_error *error) {
    if (series == NULL) return bench_group(output, setup, "", error);
    bench_setup point = *setup;
    oh_status status = settle(&point, error);
    if (status != OH_OK) return status;
    int64_t unit;
    int64_t *const value = varied(&point, series, &unit);
    const int64_t full = *value, target_rows = point.request.target_rows;
    int64_t last = 0;
    for (int64_t part = 8; part >= 1 && status == OH_OK; part /= 2) {
        *value = full / part / unit * unit;
        if (*value == last || *value == 0) continue;
        last = *value;
        if (point.request.target_rows > 0 && value == &point.request.rows)
            point.request.target_rows = target_rows < *value ? target_rows : *value;
        status = bench_group(output, &point, series, error);
    }
    return status;
}

void bench_output_close(bench_output *output) {
    for (int i = 0; i < BENCH_CASES_MAX; i++)
        span_log_close(&output->logs[i]);
    free(output->results);
    memset(output, 0, sizeof *output);
}
