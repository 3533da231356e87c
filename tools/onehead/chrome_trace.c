#include "chrome_trace.h"

#include "error_line.h"
#include "json_text.h"

#include <stdlib.h>
#include <string.h>

enum { HOST_PROCESS = 1, DEVICE_PROCESS = 2, MAIN_THREAD = 1 };

struct chrome_trace {
    atomic_file *file;
    json_t *events; /* NULL: out of memory */
    json_t *clocks; /* by device lane */
    int lanes;      /* device lanes so far */
    int64_t tile_reads;
};

static void fail(chrome_trace *trace) {
    json_decref(trace->events);
    trace->events = NULL;
}

static void add(chrome_trace *trace, json_t *event) {
    if (trace->events == NULL)
        json_decref(event);
    else if (json_array_append_new(trace->events, event) != 0) /* refuses NULL */
        fail(trace);
}

static void name_lane(chrome_trace *trace, const char *what, int process, int thread, const char *name) {
    add(trace, json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "name", what, "ph", "M", "pid", process, "tid", thread,
                         "args", "name", name));
}

oh_status chrome_trace_open(chrome_trace **trace, const char *path, oh_error *error) {
    *trace = NULL;
    chrome_trace *const t = calloc(1, sizeof *t);
    if (t == NULL) return error_line(error, OH_OUT_OF_MEMORY, path, "out of memory");
    const oh_status status = atomic_file_open(&t->file, path, error);
    if (status != OH_OK) {
        free(t);
        return status;
    }
    t->events = json_array();
    t->clocks = json_object();
    name_lane(t, "process_name", HOST_PROCESS, MAIN_THREAD, "host");
    name_lane(t, "thread_name", HOST_PROCESS, MAIN_THREAD, "onehead");
    name_lane(t, "process_name", DEVICE_PROCESS, 0, "device");
    *trace = t;
    return OH_OK;
}

static double microseconds(double seconds) {
    return 1e6 * seconds;
}

static json_t *complete_event(const char *name, const char *category, int process, int thread, double begin, double end,
                              json_t *arguments) {
    return json_pack("{s:s, s:s, s:s, s:i, s:i, s:f, s:f, s:o}", "name", name, "cat", category, "ph", "X", "pid",
                     process, "tid", thread, "ts", microseconds(begin), "dur", microseconds(end - begin), "args",
                     arguments);
}

void chrome_trace_phase(chrome_trace *trace, const char *name, double begin, double end) {
    if (trace == NULL) return;
    add(trace, complete_event(name, "phase", HOST_PROCESS, MAIN_THREAD, begin, end, json_object()));
}

static json_t *span_arguments(const oh_span *span) {
    return json_pack("{s:I, s:i, s:I, s:I, s:I, s:I, s:f, s:f}", "chunk", (json_int_t)span->chunk, "stage",
                     (int)span->stage, "rows", (json_int_t)span->rows, "columns", (json_int_t)span->columns, "depth",
                     (json_int_t)span->depth, "first_column", (json_int_t)span->first_column, "bytes", span->bytes,
                     "flops", span->flops);
}

void chrome_trace_spans(chrome_trace *trace, const char *lane, const span_log *log) {
    if (trace == NULL) return;
    const int thread = ++trace->lanes;
    name_lane(trace, "thread_name", DEVICE_PROCESS, thread, lane);
    if (json_object_set_new(trace->clocks, lane, json_string(span_clock_name(log->clock))) != 0) fail(trace);
    for (int64_t i = 0; i < log->count; i++) {
        const span_record *const r = &log->records[i];
        const char *const name = oh_span_name(r->span.kind);
        if (log->clock != SPAN_CLOCK_HOST)
            add(trace, complete_event(name, "enqueue", HOST_PROCESS, MAIN_THREAD, r->called, r->enqueued,
                                      span_arguments(&r->span)));
        add(trace,
            complete_event(name, "operation", DEVICE_PROCESS, thread, r->begin, r->end, span_arguments(&r->span)));
        if (r->span.tile_reads == 0) continue;
        trace->tile_reads += r->span.tile_reads;
        add(trace, json_pack("{s:s, s:s, s:i, s:f, s:{s:I}}", "name", "tile reads", "ph", "C", "pid", DEVICE_PROCESS,
                             "ts", microseconds(r->begin), "args", "reads", (json_int_t)trace->tile_reads));
    }
}

oh_status chrome_trace_end(chrome_trace *trace, atomic_file **file, oh_error *error) {
    *file = NULL;
    if (trace == NULL) return OH_OK;
    const char *const path = atomic_file_path(trace->file);
    json_t *const root = trace->events == NULL
                             ? NULL
                             : json_pack("{s:s, s:{s:s, s:I, s:O}, s:O}", "displayTimeUnit", "ms", "otherData",
                                         "version", oh_version(), "tile_reads", (json_int_t)trace->tile_reads,
                                         "device_clock", trace->clocks, "traceEvents", trace->events);
    char *const text = root == NULL ? NULL : json_text(root, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(root);
    oh_status status = OH_OK;
    if (text == NULL)
        status = error_line(error, OH_OUT_OF_MEMORY, path, "out of memory");
    else
        status = atomic_file_write(trace->file, text, strlen(text), error);
    if (status == OH_OK) {
        *file = trace->file;
        trace->file = NULL;
    }
    free(text);
    chrome_trace_discard(trace);
    return status;
}

void chrome_trace_discard(chrome_trace *trace) {
    if (trace == NULL) return;
    if (trace->file != NULL) atomic_file_discard(trace->file);
    json_decref(trace->events);
    json_decref(trace->clocks);
    free(trace);
}
