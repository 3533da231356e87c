/* The kit's whole run: load, open, every group of cases, report. */
#include "conform.h"

#include <onehead/onehead.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crash.h"
#include "kit.h"

static const char *const op_names[CONFORM_OP_COUNT] = {"device",
                                                       "queue",
                                                       "event",
                                                       "memory",
                                                       "gemm",
                                                       "copy_rows",
                                                       "matrix_norm",
                                                       "tile_stats",
                                                       "tile_overlap",
                                                       "tile_grad",
                                                       "tile_grad_overlap",
                                                       "tile_stats_grad",
                                                       "tile_overflow",
                                                       "row_finish",
                                                       "step_finish",
                                                       "row_labels",
                                                       "row_select"};

static void name_operations(conform_report *r, const oh_backend *t) {
    for (int i = 0; i < CONFORM_OP_COUNT; ++i)
        r->ops[i].name = op_names[i];
    r->ops[CONFORM_COPY_ROWS].is_portable = !t->copy_rows;
    r->ops[CONFORM_MATRIX_NORM].is_portable = !t->matrix_norm;
    r->ops[CONFORM_TILE_STATS].is_portable = !t->tile_stats;
    r->ops[CONFORM_TILE_OVERLAP].is_portable = !t->tile_overlap;
    r->ops[CONFORM_TILE_GRAD].is_portable = !t->tile_grad;
    r->ops[CONFORM_TILE_GRAD_OVERLAP].is_portable = !OH_BACKEND_HAS(t, tile_grad_overlap);
    r->ops[CONFORM_TILE_STATS_GRAD].is_portable = !OH_BACKEND_HAS(t, tile_stats_grad);
    r->ops[CONFORM_TILE_OVERFLOW].is_portable = !OH_BACKEND_HAS(t, tile_overflow);
    r->ops[CONFORM_ROW_FINISH].is_portable = !t->row_finish;
    r->ops[CONFORM_STEP_FINISH].is_portable = !t->step_finish;
    r->ops[CONFORM_ROW_LABELS].is_portable = !t->row_labels;
    r->ops[CONFORM_ROW_SELECT].is_portable = !OH_BACKEND_HAS(t, row_select);
}

static void run_cases(kit *k) {
    if (k->options->bench) {
        bench_operations(k);
        return;
    }
    cases_device(k);
    cases_events(k);
    cases_memory(k);
    cases_gemm(k);
    cases_copy_rows(k);
    cases_matrix_norm(k);
    cases_tile_stats(k);
    cases_tile_overlap(k);
    cases_tile_grad(k);
    cases_tile_grad_overlap(k);
    cases_tile_stats_grad(k);
    cases_tile_overflow(k);
    cases_row_finish(k);
    cases_step_finish(k);
    cases_row_labels(k);
    cases_row_select(k);
    cases_offsets(k);
    cases_concurrent(k);
}

static oh_status fail(oh_error *error, oh_status status, const char *what, const char *words) {
    if (!error) return status;
    error->status = status;
    snprintf(error->message, sizeof error->message, "%s: %.400s", what, words);
    return status;
}

static oh_status open_seat(kit *k, const oh_host *host, oh_error *error) {
    const conform_options *o = k->options;
    const oh_device_options options = {.size = sizeof options, .index = o->device, .threads = o->threads};
    char words[200];
    const int32_t count = k->table->device_count();
    if (o->device < 0 || o->device >= count) {
        snprintf(words, sizeof words, "device %d doesn't exist, there are %d", (int)o->device, (int)count);
        return fail(error, OH_NO_BACKEND, k->table->name, words);
    }
    oh_error own = {OH_OK, ""};
    oh_status status = k->table->device_open(&options, host, &k->seat.device, &own);
    if (status != OH_OK) return fail(error, OH_NO_BACKEND, "device_open", own.message);
    status = k->table->queue_open(k->seat.device, NULL, &k->seat.queue);
    if (status != OH_OK)
        fail(error, OH_NO_BACKEND, "queue_open", kit_words(&k->seat, words));
    else
        k->table->device_info(k->seat.device, &k->report->device);
    if (status != OH_OK) k->table->device_close(k->seat.device);
    return status == OH_OK ? OH_OK : OH_NO_BACKEND;
}

oh_status conform_run(const conform_options *options, conform_report **report, oh_error *error) {
    kit k = {.options = options};
    oh_status status = oh_backend_load(options->backend, &k.table, error);
    if (status != OH_OK) return status;
    k.report = calloc(1, sizeof *k.report);
    if (!k.report) return fail(error, OH_OUT_OF_MEMORY, "conform", "no memory for the report");
    name_operations(k.report, k.table);
    snprintf(k.report->backend, sizeof k.report->backend, "%s", k.table->name);
    snprintf(k.report->build, sizeof k.report->build, "%s", k.table->build);
    k.seat.table = k.table;

    const oh_host host = {.size = sizeof host, .minor = OH_BACKEND_MINOR};
    const bool watch = !k.table->sanitizer[0];
    if (watch) crash_watch();
    crash_name(options, NULL);
    status = open_seat(&k, &host, error);
    if (status == OH_OK) {
        run_cases(&k);
        k.table->queue_close(k.seat.queue);
        k.table->device_close(k.seat.device);
        *report = k.report;
    } else {
        conform_free(k.report);
    }
    if (watch) crash_unwatch();
    return status;
}

void conform_free(conform_report *report) {
    if (!report) return;
    free(report->failures);
    free(report->timings);
    free(report);
}
