#include "bench_report.h"
#include "run_report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

bench_name bench_result_name(const bench_result *r) {
    bench_name name;
    snprintf(name.text, sizeof name.text,
             "%s/%s/rows:%" PRId64 "/hidden:%" PRId64 "/vocab:%" PRId64 "/chunk:%" PRId64 "/threads:%" PRId64,
             policy_name(r->policy), tile_name(r->tile), r->rows, r->hidden, r->vocab, r->chunk, r->threads);
    return name;
}

bool bench_is_product(int kind) {
    return kind == OH_SPAN_PROJECT_DRAFT || kind == OH_SPAN_PROJECT_TARGET || kind == OH_SPAN_GRAD ||
           kind == OH_SPAN_HEAD_GRAD;
}

/* Adds `more`'s keys to `object`, and drops `more`. NULL when either is NULL. */
static json_t *merged(json_t *object, json_t *more) {
    if (object != NULL && more != NULL && json_object_update(object, more) == 0) {
        json_decref(more);
        return object;
    }
    json_decref(object);
    json_decref(more);
    return NULL;
}

static json_t *rate(double amount, double ms) {
    return json_number(ms > 0 && amount > 0 ? 1e3 * amount / ms : NAN);
}

static json_t *pass_json(const bench_pass *pass, int kind, const bench_result *r, double copy_rate) {
    const double ms = pass->ms.median;
    const double of_copy = copy_rate > 0 && ms > 0 ? 1e3 * pass->bytes / ms / copy_rate : NAN;
    return json_pack("{s:s, s:b, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name", oh_span_name(kind),
                     "product", bench_is_product(kind), "calls", (json_int_t)pass->calls, "ms", json_number(ms),
                     "ms_low", json_number(pass->ms.low), "ms_high", json_number(pass->ms.high), "share",
                     json_number(ms / r->traced_ms.median), "flops", json_number(pass->flops), "bytes",
                     json_number(pass->bytes), "flops_per_second", rate(pass->flops, ms), "bytes_per_second",
                     rate(pass->bytes, ms), "of_copy", json_number(of_copy));
}

static json_t *passes_json(const bench_result *r, double copy_rate) {
    json_t *const array = json_array();
    for (int kind = 0; kind < OH_SPAN_COUNT; kind++) {
        if (r->passes[kind].calls == 0) continue;
        if (json_array_append_new(array, pass_json(&r->passes[kind], kind, r, copy_rate)) == 0) continue;
        json_decref(array);
        return NULL;
    }
    return array;
}

static json_t *figures_json(const bench_result *r, double copy_rate) {
    json_t *const times =
        json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "step_ms",
                  json_number(r->step_ms.median), "step_ms_low", json_number(r->step_ms.low), "step_ms_high",
                  json_number(r->step_ms.high), "step_ms_least", json_number(r->step_ms.least), "gemms_ms",
                  json_number(r->gemms_ms.median), "gemms_ms_low", json_number(r->gemms_ms.low), "gemms_ms_high",
                  json_number(r->gemms_ms.high), "gemms_ms_least", json_number(r->gemms_ms.least), "ratio_to_gemms",
                  json_number(r->ratio.median), "ratio_low", json_number(r->ratio.low), "ratio_high",
                  json_number(r->ratio.high), "traced_ms", json_number(r->traced_ms.median), "gemms_cpu_ms",
                  json_number(r->gemms_cpu_ms.median), "cpu_ratio", json_number(r->cpu_ratio.median));
    json_t *const counts = json_pack(
        "{s:I, s:{s:I, s:I}, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:s, s:o}", "chunks", (json_int_t)r->plan.chunks,
        "projections", "draft", (json_int_t)r->projections_draft, "target", (json_int_t)r->projections_target, "gemms",
        (json_int_t)r->gemms, "tile_reads", (json_int_t)r->tile_reads, "workspace_bytes",
        (json_int_t)r->plan.workspace_bytes, "weight_bytes", (json_int_t)r->plan.weight_bytes, "flops",
        json_number(r->flops), "flops_per_second", rate(r->flops, r->gemms_ms.median), "grad_error",
        json_number(r->grad_error), "pass_clock", span_clock_name(r->pass_clock), "passes", passes_json(r, copy_rate));
    return merged(times, counts);
}

static json_t *result_json(const bench_report *report, const bench_result *r) {
    json_t *const names =
        json_pack("{s:s, s:s, s:s, s:I, s:I, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I}", "name",
                  bench_result_name(r).text, "run_name", bench_result_name(r).text, "run_type", "iteration",
                  "repetitions", (json_int_t)1, "iterations", (json_int_t)r->repeats, "time_unit", "ms", "backend",
                  report->backend, "policy", policy_name(r->policy), "tile", tile_name(r->tile), "series", r->series,
                  "rows", (json_int_t)r->rows, "hidden", (json_int_t)r->hidden, "vocab", (json_int_t)r->vocab, "chunk",
                  (json_int_t)r->chunk, "threads", (json_int_t)r->threads);
    if (r->error[0] != '\0')
        return merged(names, json_pack("{s:b, s:s}", "error_occurred", 1, "error_message", r->error));
    json_t *const times = json_pack("{s:o, s:o}", "real_time", json_number(r->step_ms.median), "cpu_time",
                                    json_number(r->step_cpu_ms.median));
    return merged(merged(names, times), figures_json(r, report->copy_rate));
}

static json_t *terms_json(const oh_objective *objective) {
    json_t *const object = json_object();
    for (int32_t term = 0; term < OH_TERM_COUNT; term++) {
        if (!(objective->terms & OH_TERM_BIT(term))) continue;
        if (json_object_set_new(object, oh_term_name(term), json_number(objective->lambda[term])) == 0) continue;
        json_decref(object);
        return NULL;
    }
    return object;
}

static json_t *top_k_json(const oh_request *request) {
    json_t *const array = json_array();
    for (int32_t i = 0; request->produce & OH_PRODUCE_TOP_K && i < request->objective.top_k_count; i++) {
        if (json_array_append_new(array, json_integer(request->objective.top_k[i])) == 0) continue;
        json_decref(array);
        return NULL;
    }
    return array;
}

static json_t *context_json(const bench_report *report) {
    static const char *const levels[] = {"all", "one-read", "none"};
    const machine_facts *const m = report->machine;
    const oh_device_info *const device = &report->output->device;
    const options *const o = report->setup->options;
    const oh_request *const request = &report->setup->request;
    json_t *const machine =
        json_pack("{s:s, s:s, s:i, s:o, s:s, s:[o, o, o], s:o, s:s, s:s, s:s, s:s}", "date", m->date, "executable",
                  report->executable, "num_cpus", m->cpus, "mhz_per_cpu", json_number(m->mhz > 0 ? m->mhz : NAN), "cpu",
                  m->cpu, "load_avg", json_number(m->load[0]), json_number(m->load[1]), json_number(m->load[2]),
                  "load_avg_after", json_number(report->load_after), "library_version", oh_version(),
                  "library_build_type", m->build_type, "compiler", m->compiler, "commit", m->commit);
    json_t *const setup = json_pack(
        "{s:s, s:s, s:s, s:s, s:i, s:I, s:s, s:s, s:o, s:s, s:o, s:o, s:I, s:I}", "note", report->output->note,
        "backend", report->backend, "device", device->name, "kernel", device->kernel, "threads", (int)device->threads,
        "seed", (json_int_t)o->seed, "dtype", oh_dtype_name(request->hidden_dtype), "preset",
        o->preset != NULL ? o->preset : "", "terms", terms_json(&request->objective), "metrics", levels[o->metrics],
        "topk", top_k_json(request), "copy_bytes_per_second",
        json_number(report->copy_rate > 0 ? report->copy_rate : NAN), "peak_memory_bytes",
        (json_int_t)report->peak_memory, "device_memory_bytes", (json_int_t)report->output->device_bytes);
    return merged(machine, setup);
}

/* What policies take at other chunks than the measured one. */
static json_t *memory_json(const bench_report *report) {
    const bench_setup *const setup = report->setup;
    json_t *const array = json_array();
    for (int i = 0; i < setup->policy_count * setup->tile_count; i++) {
        oh_request r = setup->request;
        r.policy = setup->policies[i / setup->tile_count];
        r.tile = setup->tiles[i % setup->tile_count];
        for (r.chunk = r.objective.block_size; r.chunk / 2 < r.rows; r.chunk *= 2) {
            oh_plan *plan;
            if (oh_plan_describe_for(report->output->table, &r, &plan, NULL) != OH_OK) continue;
            const oh_plan_summary *const s = oh_plan_get_summary(plan);
            json_t *const entry =
                json_pack("{s:s, s:s, s:I, s:I, s:I}", "policy", policy_name(s->policy), "tile", tile_name(s->tile),
                          "chunk", (json_int_t)s->chunk, "workspace_bytes", (json_int_t)s->workspace_bytes,
                          "weight_bytes", (json_int_t)s->weight_bytes);
            oh_plan_destroy(plan);
            if (json_array_append_new(array, entry) == 0) continue;
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

json_t *bench_report_json(const bench_report *report) {
    json_t *const array = json_array();
    for (int64_t i = 0; i < report->output->count; i++) {
        if (json_array_append_new(array, result_json(report, &report->output->results[i])) == 0) continue;
        json_decref(array);
        return NULL;
    }
    return json_pack("{s:o, s:o, s:o}", "context", context_json(report), "benchmarks", array, "memory",
                     memory_json(report));
}
