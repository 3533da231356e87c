/* cmd_bench.c - `onehead bench`: how long a step takes here, and how far that is from its bare matrix products. */
#include "atomic_file.h"
#include "bench_report.h"
#include "chrome_trace.h"
#include "command.h"
#include "error_line.h"
#include "progress.h"
#include "run_report.h"
#include "shape.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const options_command bench_command = {
    .bit = OPTIONS_BENCH,
    .name = "bench",
    .synopsis = "[--preset NAME | --rows T --hidden H --vocab V] [OPTION]...",
    .about = "Steps on random normal data, and the bare matrix products of each plan, measured\n"
             "in turns in one process: time, ratio to the products, where the time goes,\n"
             "memory.\n"
             "Without a shape the preset `cpu` is measured.",
};

/* ------------------------------------------------------------------------------------------------------- lists ---- */

/* Reads "a,b" by `name_of`, which names the values 0 to most; `first` may also be read and stands for itself. */
static oh_status read_list(const char *option, const char *text, const char *(*name_of)(int32_t), int32_t first,
                           int32_t most, int32_t *values, int capacity, int *count, oh_error *error) {
    *count = 0;
    for (const char *at = text;;) {
        const size_t length = strcspn(at, ",");
        int32_t value = first;
        while (value <= most && (strlen(name_of(value)) != length || strncmp(name_of(value), at, length) != 0))
            value++;
        if (value > most) {
            char known[80] = "";
            for (int32_t i = first; i <= most; i++) {
                const size_t used = strlen(known);
                snprintf(known + used, sizeof known - used, "%s%s", used > 0 ? ", " : "", name_of(i));
            }
            return error_line(error, OH_INVALID_ARGUMENT, option, "'%.60s', expected a list of %s", text, known);
        }
        if (*count == capacity)
            return error_line(error, OH_INVALID_ARGUMENT, option, "'%.60s', expected at most %d names", text, capacity);
        values[(*count)++] = value;
        if (at[length] == '\0') return OH_OK;
        at += length + 1;
    }
}

static oh_status check_series(const char *series, oh_error *error) {
    static const char *const known[] = {"rows", "vocab", "chunk", "threads"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (series == NULL || strcmp(series, known[i]) == 0) return OH_OK;
    }
    return error_line(error, OH_INVALID_ARGUMENT, "--series", "'%.60s', expected rows, vocab, chunk or threads",
                      series);
}

static oh_status make_setup(options *o, bench_setup *setup, oh_error *error) {
    memset(setup, 0, sizeof *setup);
    setup->options = o;
    setup->threads = o->threads;
    oh_status status = shape_complete(o, "cpu", error);
    if (status == OH_OK) status = shape_request(o, &setup->request, error);
    if (status == OH_OK) status = check_series(o->series, error);
    if (status == OH_OK)
        status =
            read_list("--policy", o->policies != NULL ? o->policies : "cached,recompute,naive", policy_name,
                      OH_POLICY_CACHED, OH_POLICY_NAIVE, setup->policies, BENCH_POLICIES, &setup->policy_count, error);
    if (status == OH_OK)
        status = read_list("--tile", o->tiles != NULL ? o->tiles : "auto", tile_name, OH_TILE_AUTO, OH_TILE_DIFF,
                           setup->tiles, BENCH_TILES, &setup->tile_count, error);
    setup->request.produce &= ~OH_PRODUCE_GRAD_NORM; /* a figure for people, not a part of training */
    return status;
}

/* ------------------------------------------------------------------------------------------------------- output ---- */

/* Opened before anything is measured, so that a name that can't be written is told at once; they appear together. */
typedef struct bench_files {
    atomic_file *out;
    chrome_trace *trace;
} bench_files;

static oh_status open_files(bench_files *files, const options *o, oh_error *error) {
    oh_status status = OH_OK;
    if (o->trace_file != NULL) status = chrome_trace_open(&files->trace, o->trace_file, error);
    if (status == OH_OK && o->out_file != NULL) status = atomic_file_open(&files->out, o->out_file, error);
    return status;
}

static void discard_files(bench_files *files) {
    chrome_trace_discard(files->trace);
    atomic_file_discard(files->out);
}

static oh_status write_json(atomic_file *file, const bench_report *report, oh_error *error) {
    if (file == NULL) return OH_OK;
    json_t *const root = bench_report_json(report);
    char *const text = root == NULL ? NULL : json_text(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    json_decref(root);
    if (text == NULL) return error_line(error, OH_OUT_OF_MEMORY, atomic_file_path(file), "out of memory");
    const oh_status status = atomic_file_write(file, text, strlen(text), error);
    free(text);
    return status;
}

static oh_status print_report(const bench_report *report, oh_error *error) {
    if (report->setup->options->json) {
        const oh_status status = json_print(bench_report_json(report), error);
        return status == OH_OK ? command_flush(error) : status;
    }
    bench_report_print(report);
    return command_flush(error);
}

/* Where nothing could be measured, the reason of the last case is the command's. */
static oh_status check_measured(const bench_output *output, oh_error *error) {
    for (int64_t i = 0; i < output->count; i++) {
        if (output->results[i].error[0] == '\0') return OH_OK;
    }
    if (output->count == 0) return OH_OK;
    return error_line(error, OH_OUT_OF_MEMORY, bench_result_name(&output->results[output->count - 1]).text, "%.300s",
                      output->results[output->count - 1].error);
}

static void trace_logs(chrome_trace *trace, const bench_output *output) {
    for (int i = 0; i < output->log_count; i++) {
        const span_log *const log = &output->logs[i];
        if (log->count == 0) continue;
        chrome_trace_phase(trace, output->log_names[i], log->records[0].begin, log->records[log->count - 1].end);
        chrome_trace_spans(trace, output->log_names[i], log);
    }
}

static oh_status end_trace(bench_files *files, atomic_file **file, oh_error *error) {
    chrome_trace *const trace = files->trace;
    files->trace = NULL; /* freed, whatever comes of it */
    return chrome_trace_end(trace, file, error);
}

/* The files appear when everything is written and printed, or not at all. */
static oh_status put_out(bench_files *files, const bench_report *report, oh_error *error) {
    atomic_file *outputs[2] = {NULL, NULL};
    trace_logs(files->trace, report->output);
    oh_status status = end_trace(files, &outputs[1], error);
    if (status == OH_OK) status = write_json(files->out, report, error);
    if (status == OH_OK) status = print_report(report, error);
    if (status != OH_OK) {
        atomic_file_discard(outputs[1]);
        return status;
    }
    outputs[0] = files->out;
    files->out = NULL;
    return atomic_file_commit_all(outputs, 2, error);
}

static oh_status bench(options *o, const char *executable, bench_output *output, bench_files *files, oh_error *error) {
    bench_setup setup;
    machine_facts before, after;
    oh_status status = make_setup(o, &setup, error);
    if (status == OH_OK) status = open_files(files, o, error);
    if (status != OH_OK) return status;
    machine_read(&before);
    status = bench_series(output, &setup, o->series, error);
    if (status == OH_OK) status = check_measured(output, error);
    if (status != OH_OK) return status;
    machine_read(&after);
    progress_show("measuring a copy");
    bench_report report = {.setup = &setup,
                           .output = output,
                           .machine = &before,
                           .backend = o->backend != NULL ? o->backend : "openblas",
                           .executable = executable,
                           .load_after = after.load[0],
                           .peak_memory = machine_peak_memory()};
    report.copy_rate =
        output->table->caps & OH_CAP_HOST_MEMORY ? machine_copy_rate(output->device.threads) : output->copy_rate;
    progress_show(NULL);
    return put_out(files, &report, error);
}

int cmd_bench(int argc, char **argv) {
    options o;
    int code = EXIT_OK;
    if (!options_begin(&o, &bench_command, argc, argv, &code)) return code;
    bench_output output = {.results = NULL};
    bench_files files = {NULL, NULL};
    oh_error error;
    const oh_status status = bench(&o, "onehead", &output, &files, &error);
    discard_files(&files);
    bench_output_close(&output);
    return status == OH_OK ? EXIT_OK : command_fail(bench_command.name, &error);
}
