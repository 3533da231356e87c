/* cmd_conform.c - `onehead conform`: whether a backend keeps the contract of backend.h. */
#include "command.h"
#include "error_line.h"
#include "json_text.h"
#include "options.h"
#include "progress.h"

#include "conform.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const options_command conform_command = {
    .bit = OPTIONS_CONFORM,
    .name = "conform",
    .synopsis = "NAME|PATH [OPTION]...",
    .about = "Calls every entry of a backend's table with known answers and judges what comes\n"
             "back. Entries that the backend leaves out are judged as the portable operations\n"
             "that stand in for them. Each failure comes with the line that repeats it.",
    .input = "NAME",
};

/* "onehead conform NAME --seed N --filter CASE" */
typedef struct repeat_line {
    char text[4096 + 200];
} repeat_line;

static repeat_line repeat_of(const options *o, const char *name) {
    repeat_line line;
    snprintf(line.text, sizeof line.text, "onehead conform %.4000s --seed %" PRId64 " --filter %s", o->input, o->seed,
             name);
    return line;
}

/* --------------------------------------------------------------------------------------------------------- JSON ---- */

static json_t *ops_json(const conform_report *r) {
    json_t *const array = json_array();
    for (int i = 0; i < CONFORM_OP_COUNT; i++) {
        const conform_op_report *const op = &r->ops[i];
        json_t *const entry =
            json_pack("{s:s, s:s, s:I, s:I, s:I, s:o, s:s, s:s}", "op", op->name, "source",
                      op->is_portable ? "portable" : "plugin", "cases", (json_int_t)op->cases, "failed",
                      (json_int_t)op->failed, "skipped", (json_int_t)op->skipped, "worst", json_number(op->worst),
                      "worst_case", op->worst_case, "skip_reason", op->skip_reason);
        if (json_array_append_new(array, entry) == 0) continue;
        json_decref(array);
        return NULL;
    }
    return array;
}

static json_t *failures_json(const options *o, const conform_report *r) {
    json_t *const array = json_array();
    for (int64_t i = 0; i < r->failure_count; i++) {
        const conform_failure *const f = &r->failures[i];
        json_t *const entry = json_pack("{s:s, s:s, s:s, s:s}", "op", r->ops[f->op].name, "case", f->name, "text",
                                        f->text, "repeat", repeat_of(o, f->name).text);
        if (json_array_append_new(array, entry) == 0) continue;
        json_decref(array);
        return NULL;
    }
    return array;
}

static json_t *timings_json(const conform_report *r) {
    json_t *const array = json_array();
    for (int64_t i = 0; i < r->timing_count; i++) {
        const conform_timing *const t = &r->timings[i];
        json_t *const entry = json_pack("{s:s, s:s, s:f, s:f, s:f}", "op", r->ops[t->op].name, "case", t->name,
                                        "seconds", t->seconds, "bytes", t->bytes, "flops", t->flops);
        if (json_array_append_new(array, entry) == 0) continue;
        json_decref(array);
        return NULL;
    }
    return array;
}

static json_t *report_json(const options *o, const conform_report *r) {
    return json_pack("{s:s, s:s, s:s, s:s, s:I, s:b, s:o, s:o, s:o}", "backend", r->backend, "build", r->build,
                     "device", r->device.name, "kernel", r->device.kernel, "seed", (json_int_t)o->seed, "conforms",
                     r->failure_count == 0, "ops", ops_json(r), "failures", failures_json(o, r), "timings",
                     timings_json(r));
}

/* -------------------------------------------------------------------------------------------------------- tables ---- */

static void print_ops(const conform_report *r) {
    printf("%-17s %-9s %6s %7s %8s  %s\n", "operation", "source", "cases", "failed", "skipped",
           "largest error / bound");
    for (int i = 0; i < CONFORM_OP_COUNT; i++) {
        const conform_op_report *const op = &r->ops[i];
        if (op->cases + op->skipped == 0) continue;
        printf("%-17s %-9s %6" PRId64 " %7" PRId64 " %8" PRId64, op->name, op->is_portable ? "portable" : "plugin",
               op->cases, op->failed, op->skipped);
        if (op->worst > 0) printf("  %.3f in %s", op->worst, op->worst_case);
        printf("\n");
        if (op->skip_reason[0] != '\0') printf("%-17s skipped: %s\n", "", op->skip_reason);
    }
}

static void print_failures(const options *o, const conform_report *r) {
    for (int64_t i = 0; i < r->failure_count; i++) {
        const conform_failure *const f = &r->failures[i];
        printf("FAIL %s\n  %s\n  repeat: %s\n", f->name, f->text, repeat_of(o, f->name).text);
    }
}

static void print_timings(const conform_report *r) {
    if (r->timing_count > 0) printf("%-40s %10s %10s %10s\n", "call", "ms", "GB/s", "GFLOP/s");
    for (int64_t i = 0; i < r->timing_count; i++) {
        const conform_timing *const t = &r->timings[i];
        const double seconds = t->seconds > 0 ? t->seconds : 1e-9;
        printf("%-40s %10.4f %10.2f %10.2f\n", t->name, 1e3 * t->seconds, 1e-9 * t->bytes / seconds,
               1e-9 * t->flops / seconds);
    }
}

static void print_report(const options *o, const conform_report *r) {
    int64_t cases = 0;
    for (int i = 0; i < CONFORM_OP_COUNT; i++)
        cases += r->ops[i].cases;
    printf("%s: %s\n%s: %s\n\n", r->backend, r->build, r->device.name, r->device.kernel);
    print_failures(o, r);
    if (o->bench) {
        print_timings(r);
        return;
    }
    print_ops(r);
    if (r->failure_count == 0)
        printf("\n%s conforms: %" PRId64 " cases, seed %" PRId64 "\n", r->backend, cases, o->seed);
    else
        printf("\n%s does not conform: %" PRId64 " of %" PRId64 " cases failed\n", r->backend, r->failure_count, cases);
}

/* ------------------------------------------------------------------------------------------------------ command ---- */

static void show_case(void *user, const char *name) {
    (void)user;
    progress_show(name);
}

static oh_status require_cases(const options *o, const conform_report *r, oh_error *error) {
    int64_t cases = 0;
    for (int i = 0; i < CONFORM_OP_COUNT; i++)
        cases += r->ops[i].cases + r->ops[i].skipped;
    if (cases > 0) return OH_OK;
    return error_line(error, OH_INVALID_ARGUMENT, "--filter", "'%.100s' begins the name of no case, expected gemm, say",
                      o->filter);
}

static oh_status conform(const options *o, bool *conforms, oh_error *error) {
    if (o->input == NULL)
        return error_line(error, OH_INVALID_ARGUMENT, "NAME",
                          "not given, expected a backend's name or its file's path");
    const conform_options wanted = {.backend = o->input,
                                    .filter = o->filter,
                                    .seed = (uint64_t)o->seed,
                                    .device = (int32_t)o->device,
                                    .threads = (int32_t)o->threads,
                                    .bench = o->bench,
                                    .starting = show_case};
    conform_report *report = NULL;
    oh_status status = conform_run(&wanted, &report, error);
    progress_show(NULL);
    if (status != OH_OK) return status;
    status = require_cases(o, report, error);
    *conforms = report->failure_count == 0;
    if (status == OH_OK && o->json)
        status = json_print(report_json(o, report), error);
    else if (status == OH_OK)
        print_report(o, report);
    conform_free(report);
    return status;
}

int cmd_conform(int argc, char **argv) {
    options o;
    int code = EXIT_OK;
    if (!options_begin(&o, &conform_command, argc, argv, &code)) return code;
    oh_error error;
    bool conforms = false;
    if (conform(&o, &conforms, &error) != OH_OK) return command_fail(conform_command.name, &error);
    return conforms ? EXIT_OK : EXIT_DISAGREES;
}
