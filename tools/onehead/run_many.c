#include "run_many.h"

#include "atomic_file.h"
#include "batch_queue.h"
#include "command.h"
#include "error_line.h"
#include "format.h"
#include "progress.h"
#include "run_report.h"
#include "run_sums.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Between two savings of --resume's file: what a crash costs. */
#define SAVE_SECONDS 5.0
#define DEFAULT_PREFETCH 4

typedef struct pass {
    options *o;
    batch_list list;
    ckpt_head head; /* of --lm-head, open for the whole pass */
    batch_queue *queue;
    int depth;
    step s;
    oh_plan *plan;
    oh_request request; /* of the plan */
    int32_t *map;       /* the request's draft_to_target, a copy: a batch takes its own with it */
    double *step_sums;
    run_sums total;
    double began, saved, waited; /* waited: seconds for batches */
    int64_t began_batches, began_rows;
    bool interrupted;
} pass;

static volatile sig_atomic_t stop_number;

/* The first signal lets the batch finish; a second one ends the process as it would have without us. */
static void stop_after_batch(int number) {
    if (stop_number == 0) {
        stop_number = number;
        return;
    }
    atomic_file_discard_all();
    _exit(128 + number);
}

static void catch_signals(void) {
    static const int ending[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_flags = SA_RESTART}, before;
    sigemptyset(&action.sa_mask);
    action.sa_handler = stop_after_batch;
    for (size_t i = 0; i < sizeof ending / sizeof ending[0]; i++) {
        if (sigaction(ending[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN) continue;
        sigaction(ending[i], &action, NULL);
    }
}

bool run_many_is_meant(const options *o) {
    return o->resume_file != NULL || o->prefetch > 0 || batch_list_is_meant(o->inputs, o->input_count);
}

static oh_status check_options(const options *o, oh_error *error) {
    const char *const one_batch = o->grad_file != NULL    ? "--grad"
                                  : o->rows_file != NULL  ? "--rows"
                                  : o->trace_file != NULL ? "--trace"
                                                          : NULL;
    if (one_batch != NULL)
        return error_line(error, OH_INVALID_ARGUMENT, one_batch, "given with many batches, expected one batch for it");
    if (o->input_count > 0) return OH_OK;
    return error_line(error, OH_INVALID_ARGUMENT, o->resume_file != NULL ? "--resume" : "--prefetch",
                      "given without a batch, expected files, a folder or a pattern");
}

/* ---------------------------------------------------------------------------------------------------- one batch ---- */

/* The pass's request for a batch: what can be added up over batches, no gradient. */
static oh_status request_of(pass *p, const batch *b, oh_request *request, oh_error *error) {
    oh_status status = batch_request(b, p->o, request, error);
    if (status != OH_OK) return status;
    request->produce &= ~(OH_PRODUCE_GRAD | OH_PRODUCE_GRAD_NORM);
    const int has_target = request->target_rows > 0 || b->target_hidden.data != NULL;
    if (p->total.has_target < 0) p->total.has_target = has_target;
    if (p->total.has_target == has_target) return OH_OK;
    return error_line(error, OH_BAD_DATA, b->name, "%s tensor 'target_hidden', expected %s, as in the batches before",
                      has_target ? "a" : "no", has_target ? "none" : "one");
}

static size_t map_bytes(const oh_request *request) {
    return request->draft_to_target != NULL ? (size_t)request->vocab * sizeof *request->draft_to_target : 0;
}

static bool has_same_map(const pass *p, const oh_request *request) {
    const size_t bytes = map_bytes(request);
    return bytes == map_bytes(&p->request) && (bytes == 0 || memcmp(request->draft_to_target, p->map, bytes) == 0);
}

static bool plan_serves(const pass *p, const oh_request *request) {
    oh_request same = p->request;
    if (p->plan == NULL || request->rows > same.rows || request->target_rows > same.target_rows) return false;
    if (!has_same_map(p, request)) return false;
    same.rows = request->rows;
    same.target_rows = request->target_rows;
    same.draft_to_target = request->draft_to_target;
    /* Requests that are equal and compare different, by padding or a zero's sign, only cost a new plan. */
    return memcmp(&same, request, sizeof same) == 0; // NOLINT(bugprone-suspicious-memory-comparison)
}

static oh_status keep_request(pass *p, const oh_request *request, oh_error *error) {
    const size_t bytes = map_bytes(request);
    free(p->map);
    p->map = NULL;
    p->request = *request;
    if (bytes == 0) return OH_OK;
    p->request.draft_to_target = p->map = malloc(bytes);
    if (p->map == NULL) return error_line(error, OH_OUT_OF_MEMORY, "draft_to_target", "out of memory");
    memcpy(p->map, request->draft_to_target, bytes);
    return OH_OK;
}

static oh_status plan_for(pass *p, const oh_request *request, oh_error *error) {
    if (plan_serves(p, request)) return OH_OK;
    oh_plan_destroy(p->plan);
    p->plan = NULL;
    const oh_status status = keep_request(p, request, error);
    if (status != OH_OK) return status;
    run_sums *const total = &p->total;
    /* As large as any so far: the chunks of a continued pass are then those of one that wasn't interrupted. */
    if (p->request.rows > total->plan_rows) total->plan_rows = p->request.rows;
    if (p->request.target_rows > total->plan_target_rows) total->plan_target_rows = p->request.target_rows;
    p->request.rows = total->plan_rows;
    if (p->request.target_rows > 0) p->request.target_rows = total->plan_target_rows;
    return oh_plan_create(p->s.context, &p->request, &p->plan, error);
}

static oh_status download_sums(pass *p, oh_error *error) {
    const double *const sums = oh_plan_device_sums(p->plan);
    const size_t bytes = (size_t)p->total.count * sizeof *sums;
    if (p->s.on_host) {
        memcpy(p->step_sums, sums, bytes);
        return OH_OK;
    }
    oh_status status = p->s.backend->download(p->s.queue, p->step_sums, sums, bytes);
    if (status == OH_OK) status = p->s.backend->queue_wait(p->s.queue);
    return status == OH_OK ? OH_OK : error_line(error, status, p->s.backend->name, "can't download the sums");
}

static oh_status use_batch(pass *p, const batch *b, oh_error *error) {
    if (p->s.context == NULL) return step_open(&p->s, b, p->o->backend, p->o, error);
    return step_use(&p->s, b, p->head.tensor != NULL && b->lm_head.data == p->head.tensor->data, error);
}

/* The library knows tensors, not the file that they are from. */
static oh_status name_batch(const batch *b, oh_status status, oh_error *error) {
    const oh_error found = *error;
    return error_line(error, status, b->name, "%s", found.message);
}

static oh_status run_batch(pass *p, const batch *b, oh_error *error) {
    oh_request request;
    oh_status status = request_of(p, b, &request, error);
    if (status == OH_OK) status = use_batch(p, b, error);
    if (status != OH_OK) return status;
    status = plan_for(p, &request, error);
    if (status != OH_OK) return name_batch(b, status, error);
    /* A weight of the batch's own, or a copy of one: the address says nothing about the contents. */
    if (p->head.tensor == NULL || b->lm_head.data != p->head.tensor->data) oh_plan_weight_changed(p->plan);

    const double start = step_clock();
    const oh_outputs out = {0};
    oh_results figures;
    status = oh_plan_run(p->plan, &p->s.inputs, &out, error);
    if (status == OH_OK) status = oh_plan_results(p->plan, &figures, error);
    if (status == OH_OK) status = download_sums(p, error);
    if (status != OH_OK) return name_batch(b, status, error);
    run_sums *const total = &p->total;
    total->seconds += step_clock() - start;
    total->projections_draft += figures.projections_draft;
    total->projections_target += figures.projections_target;
    total->gemms += figures.gemms;
    total->tile_reads += figures.tile_reads;
    run_sums_add(total, p->step_sums, figures.rows);
    return OH_OK;
}

/* ----------------------------------------------------------------------------------------------------- the pass ---- */

/* The end, by the time of the batches so far. */
static format_text format_left(double seconds) {
    format_text result;
    if (seconds < 120)
        snprintf(result.text, sizeof result.text, "%.0f s left", seconds);
    else if (seconds < 7200)
        snprintf(result.text, sizeof result.text, "%.0f min left", seconds / 60);
    else
        snprintf(result.text, sizeof result.text, "%.1f h left", seconds / 3600);
    return result;
}

static format_text format_rate(double per_second) {
    format_text result;
    if (per_second >= 10) return format_count((int64_t)per_second);
    snprintf(result.text, sizeof result.text, "%.2f", per_second);
    return result;
}

/* What the queue says of the pass: what it waits for is what would make it faster. */
static const char *queue_meaning(int ready, int most) {
    if (most == 0) return "";
    if (ready >= most) return ": device-bound";
    return ready == 0 ? ": reader-bound" : "";
}

static void show_status(pass *p) {
    const run_sums *const total = &p->total;
    const double seconds = step_clock() - p->began;
    const int64_t done = total->batches - p->began_batches, left = p->list.count - total->batches;
    const int ready = batch_queue_ready(p->queue);
    const int most = left < p->depth ? (int)left : p->depth;
    char text[200], rates[120] = "";
    if (done > 0 && seconds > 0)
        snprintf(rates, sizeof rates, ", %s/s, %s tokens/s, %s", format_rate((double)done / seconds).text,
                 format_count((int64_t)((double)(total->rows - p->began_rows) / seconds)).text,
                 format_left(seconds / (double)done * (double)left).text);
    snprintf(text, sizeof text, "%s/%s batches%s, queue %d/%d%s", format_count(total->batches).text,
             format_count(p->list.count).text, rates, ready, p->depth, done > 0 ? queue_meaning(ready, most) : "");
    progress_show(text);
}

static oh_status save(pass *p, bool now, oh_error *error) {
    if (p->o->resume_file == NULL) return OH_OK;
    if (!now && step_clock() - p->saved < SAVE_SECONDS) return OH_OK;
    p->saved = step_clock();
    return run_sums_save(&p->total, p->o->resume_file, p->o, &p->list, error);
}

static oh_status next_batch(pass *p, oh_error *error) {
    batch b = {.name = NULL};
    const double start = step_clock();
    oh_status status = batch_queue_take(p->queue, &b, error);
    p->waited += step_clock() - start;
    const int64_t index = p->total.batches;
    if (status == OH_OK) status = run_batch(p, &b, error);
    /* What went into the sums, which may have been written since the list was made. */
    if (status == OH_OK) p->list.files[index].stamp = st_file_stamp(b.file);
    /* The device may still read its tensors where the run failed. */
    if (status != OH_OK && p->plan != NULL) (void)oh_plan_wait(p->plan, NULL);
    batch_close(&b);
    return status;
}

static oh_status run_batches(pass *p, oh_error *error) {
    p->began = p->saved = step_clock();
    p->began_batches = p->total.batches;
    p->began_rows = p->total.rows;
    oh_status status = OH_OK;
    while (p->total.batches < p->list.count && status == OH_OK && stop_number == 0) {
        show_status(p);
        status = next_batch(p, error);
        if (status == OH_OK) status = save(p, false, error);
    }
    progress_show(NULL);
    p->interrupted = stop_number != 0 && p->total.batches < p->list.count;
    if (status == OH_OK) return save(p, true, error);
    oh_error second;
    if (p->total.batches > 0) (void)save(p, true, &second); /* the first failure is the one to tell */
    return status;
}

static oh_status open_head(pass *p, oh_error *error) {
    if (p->o->lm_head == NULL) return OH_OK;
    const oh_status status = ckpt_open(&p->head, p->o->lm_head, error);
    if (status == OH_OK) p->total.head = st_file_stamp(p->head.file);
    if (status == OH_IO) return error->status = OH_BAD_DATA; /* OH_IO is left to what can't be written */
    return status;
}

/* ------------------------------------------------------------------------------------------------------- output ---- */

static json_t *pass_json(const pass *p, const run_report *report, double seconds) {
    json_t *const object = run_report_json(report);
    json_t *const more =
        json_pack("{s:I, s:I, s:I, s:o, s:{s:i, s:o, s:s}}", "batches", (json_int_t)p->total.batches, "batches_resumed",
                  (json_int_t)p->began_batches, "tile_reads", (json_int_t)p->total.tile_reads, "tokens_per_second",
                  json_number((double)(p->total.rows - p->began_rows) / seconds), "queue", "depth", p->depth,
                  "wait_seconds", json_number(p->waited), "limit", p->waited > 0.5 * seconds ? "reader" : "device");
    if (object != NULL && more != NULL && json_object_update(object, more) == 0) {
        json_decref(more);
        return object;
    }
    json_decref(object);
    json_decref(more);
    return NULL;
}

static oh_status print_pass(const pass *p, oh_error *error) {
    const run_sums *const total = &p->total;
    const double seconds = step_clock() - p->began;
    oh_request request = p->o->request;
    oh_status status = options_default_objective(p->o, total->has_target == 1, &request.objective, error);
    if (status != OH_OK) return status;
    request.produce = options_produce(p->o, total->has_target == 1) & ~(OH_PRODUCE_GRAD | OH_PRODUCE_GRAD_NORM);
    step_result result = {.rows = total->rows};
    run_sums_figures(total, &request.objective, request.produce, &result.figures);
    if (p->plan != NULL) result.plan = *oh_plan_get_summary(p->plan);
    const run_report report = {.backend = p->s.backend != NULL ? p->s.backend->name : "none",
                               .embedding = ckpt_embedding(&p->head),
                               .request = &request,
                               .result = &result,
                               .has_target = total->has_target == 1,
                               .seconds = {.read = p->waited, .run = total->seconds, .total = seconds}};
    if (p->o->json) {
        status = json_print(pass_json(p, &report, seconds), error);
        return status == OH_OK ? command_flush(error) : status;
    }
    char name[80];
    snprintf(name, sizeof name, "%s files, %s now", format_count(total->batches).text,
             format_count(total->batches - p->began_batches).text);
    run_report_print(&report, name);
    printf("rate         %s tokens/s; the %s is the limit: %s of the time went into waiting for batches\n",
           format_count((int64_t)((double)(total->rows - p->began_rows) / seconds)).text,
           p->waited > 0.5 * seconds ? "reader" : "device", format_percent(p->waited / seconds).text);
    return command_flush(error);
}

static oh_status run_pass(pass *p, oh_error *error) {
    oh_status status = check_options(p->o, error);
    if (status == OH_OK) status = batch_list_make(&p->list, p->o->inputs, p->o->input_count, error);
    if (status == OH_OK) status = run_sums_init(&p->total, &p->o->request.objective, error);
    if (status == OH_OK) status = open_head(p, error);
    if (status == OH_OK && p->o->resume_file != NULL)
        status = run_sums_load(&p->total, p->o->resume_file, p->o, &p->list, error);
    if (status != OH_OK) return status;
    p->step_sums = calloc((size_t)p->total.count, sizeof *p->step_sums);
    if (p->step_sums == NULL) return error_line(error, OH_OUT_OF_MEMORY, "sums", "out of memory");
    p->depth = p->o->prefetch > 0 ? (int)p->o->prefetch : DEFAULT_PREFETCH;
    status = batch_queue_open(&p->queue, &p->list, p->total.batches, p->depth, p->head.tensor != NULL ? &p->head : NULL,
                              error);
    if (status == OH_OK) status = run_batches(p, error);
    if (status == OH_OK && !p->interrupted) status = print_pass(p, error);
    return status;
}

int run_many(options *o, const char *command) {
    pass p = {.o = o};
    oh_error error;
    if (o->resume_file != NULL) catch_signals();
    const oh_status status = run_pass(&p, &error);
    int code = EXIT_OK;
    if (status != OH_OK) {
        progress_show(NULL);
        code = command_fail(command, &error);
    } else if (p.interrupted) {
        fprintf(stderr, "onehead: %s: stopped after batch %" PRId64 " of %" PRId64 ", saved in %.200s\n", command,
                p.total.batches, p.list.count, o->resume_file);
        code = 128 + (int)stop_number;
    }
    oh_plan_destroy(p.plan);
    free(p.map);
    step_close(&p.s);
    batch_queue_close(p.queue);
    ckpt_close(&p.head);
    batch_list_free(&p.list);
    run_sums_free(&p.total);
    free(p.step_sums);
    return code;
}
