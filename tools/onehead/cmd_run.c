/* cmd_run.c - `onehead run`: one step on a batch. */
#include "chrome_trace.h"
#include "command.h"
#include "progress.h"
#include "run_files.h"
#include "run_many.h"
#include "run_report.h"

#include <stdio.h>

static const options_command run_command = {
    .bit = OPTIONS_RUN,
    .name = "run",
    .synopsis = "[BATCH|DIR|GLOB]... [OPTION]...",
    .about = "One step on a batch: loss, gradient, accuracy, accepted streaks, top-K figures.\n\n"
             "BATCH is a safetensors file with draft_hidden [T,H] and, each optional,\n"
             "target_hidden [S,H], target_row [T], label [T], loss_mask [T], lm_head [V,H],\n"
             "bias [V] and target_lm_head [V,Ht]. Without it, a small built-in sample is used.\n\n"
             "Several batches, a folder of *.safetensors or a quoted pattern are one pass: the\n"
             "figures of all of them together, without gradients, files being read ahead.",
    .input = "BATCH",
    .many_inputs = true,
};

typedef struct run_state {
    options o;
    batch b;
    step s;
    oh_request request;
    step_result result;
    run_files files;
    span_log spans;
    chrome_trace *trace;
    run_seconds seconds;
} run_state;

static oh_status print_results(const run_state *r, oh_error *error) {
    const run_report report = {
        .backend = r->s.backend->name,
        .embedding = ckpt_embedding(&r->b.head),
        .request = &r->request,
        .result = &r->result,
        .has_target = r->b.target_hidden.data != NULL,
        .seconds = r->seconds,
    };
    oh_status status = OH_OK;
    if (r->o.json)
        status = json_print(run_report_json(&report), error);
    else
        run_report_print(&report, r->b.name);
    return status == OH_OK ? command_flush(error) : status;
}

/* The files get their names when everything is written and the results are printed: where any of that fails, none of
 * them appears. */
static oh_status commit_outputs(run_state *r, oh_error *error) {
    atomic_file *outputs[RUN_FILES_MOST + 1] = {NULL};
    chrome_trace *const trace = r->trace;
    r->trace = NULL; /* freed, whatever comes of it */
    oh_status status = chrome_trace_end(trace, &outputs[RUN_FILES_MOST], error);
    if (status == OH_OK) status = run_files_end(&r->files, outputs, error);
    if (status == OH_OK) {
        progress_show(NULL);
        status = print_results(r, error);
    }
    if (status == OH_OK) return atomic_file_commit_all(outputs, RUN_FILES_MOST + 1, error);
    for (int i = 0; i <= RUN_FILES_MOST; i++)
        atomic_file_discard(outputs[i]);
    return status;
}

static oh_status run_step(run_state *r, oh_error *error) {
    const double start = step_clock();
    progress_show("reading");
    oh_status status = OH_OK;
    if (r->o.trace_file != NULL) status = chrome_trace_open(&r->trace, r->o.trace_file, error);
    if (status == OH_OK) status = batch_open(&r->b, r->o.input, r->o.lm_head, error);
    if (status == OH_OK) status = batch_request(&r->b, &r->o, &r->request, error);
    if (status != OH_OK) return status;
    const double read = step_clock();
    r->seconds.read = read - start;

    progress_show("opening the device");
    status = step_open(&r->s, &r->b, r->o.backend, &r->o, error);
    if (status == OH_OK) status = run_files_begin(&r->files, &r->o, &r->request, error);
    if (status != OH_OK) return status;
    const double opened = step_clock();
    r->seconds.open = opened - read;
    if (r->trace != NULL) r->s.spans = &r->spans;

    progress_show("running");
    status = step_run(&r->s, &r->request, &r->result, error);
    if (status != OH_OK) return status;
    r->seconds.plan = r->result.plan_seconds;
    r->seconds.run = r->result.run_seconds;

    const double ran = step_clock();
    chrome_trace_phase(r->trace, "read", start, read);
    chrome_trace_phase(r->trace, "open", read, opened);
    chrome_trace_phase(r->trace, "step", opened, ran);
    chrome_trace_spans(r->trace, r->s.backend->name, &r->spans);
    status = run_files_write(&r->files, &r->result, error);
    if (status != OH_OK) return status;
    r->seconds.write = step_clock() - ran;
    r->seconds.total = step_clock() - start;

    return commit_outputs(r, error);
}

int cmd_run(int argc, char **argv) {
    run_state r = {.seconds = {0}};
    int code = EXIT_OK;
    if (!options_begin(&r.o, &run_command, argc, argv, &code)) return code;
    if (run_many_is_meant(&r.o)) return run_many(&r.o, run_command.name);
    oh_error error;
    const oh_status status = run_step(&r, &error);
    run_files_discard(&r.files);
    chrome_trace_discard(r.trace);
    span_log_close(&r.spans);
    step_result_free(&r.result);
    step_close(&r.s);
    batch_close(&r.b);
    if (status == OH_OK) return EXIT_OK;
    progress_show(NULL);
    return command_fail(run_command.name, &error);
}
