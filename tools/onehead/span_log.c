#include "span_log.h"

#include "error_line.h"
#include "step.h"

#include <stdlib.h>
#include <string.h>

const char *span_clock_name(span_clock clock) {
    static const char *const names[] = {"host", "events", "waits"};
    return names[clock];
}

static oh_status failure(const span_log *log, oh_status status, const char *doing, oh_error *error) {
    oh_error said = {OH_OK, ""};
    if (status == OH_OUT_OF_MEMORY) return error_line(error, status, "trace", "out of memory");
    log->backend->last_error(log->device, &said);
    return error_line(error, status, log->backend->name, "%s: %.300s", doing,
                      said.message[0] != '\0' ? said.message : oh_status_name(status));
}

oh_status span_log_open(span_log *log, const oh_backend *backend, oh_device *device, oh_error *error) {
    span_log_close(log);
    log->backend = backend;
    log->device = device;
    log->clock = backend->caps & OH_CAP_HOST_MEMORY         ? SPAN_CLOCK_HOST
                 : OH_BACKEND_HAS(log->backend, event_open) ? SPAN_CLOCK_EVENTS
                                                            : SPAN_CLOCK_WAITS;
    if (log->clock != SPAN_CLOCK_EVENTS) return OH_OK;
    oh_status status = backend->queue_open(device, NULL, &log->queue);
    if (status == OH_OK) status = backend->event_open(device, &log->origin);
    if (status == OH_OK) return OH_OK;
    status = failure(log, status, "opening an event", error);
    span_log_close(log);
    return status;
}

/* ---------------------------------------------------------------------------------------------------- observing ---- */

static bool grow(span_log *log) {
    if (log->count < log->capacity) return true;
    const int64_t capacity = log->capacity > 0 ? 2 * log->capacity : 256;
    span_record *const records = realloc(log->records, (size_t)capacity * sizeof *records);
    if (records == NULL) return false;
    log->records = records;
    log->capacity = capacity;
    return true;
}

/* Events for each record that there is room for. */
static oh_status grow_events(span_log *log) {
    if (log->capacity > log->event_capacity) {
        span_events *const events = realloc(log->events, (size_t)log->capacity * sizeof *events);
        if (events == NULL) return OH_OUT_OF_MEMORY;
        log->events = events;
        log->event_capacity = log->capacity;
    }
    while (log->event_count <= log->count) {
        span_events *const next = &log->events[log->event_count++];
        *next = (span_events){NULL, NULL};
        oh_status status = log->backend->event_open(log->device, &next->begin);
        if (status == OH_OK) status = log->backend->event_open(log->device, &next->end);
        if (status != OH_OK) return status;
    }
    return OH_OK;
}

/* The moment that ties the device's clock to the host's: the log's own queue has nothing else to do. */
static oh_status set_origin(span_log *log) {
    oh_status status = log->backend->event_record(log->queue, log->origin);
    if (status == OH_OK) status = log->backend->queue_wait(log->queue);
    log->origin_clock = step_clock();
    return status;
}

static oh_status observe_begin(span_log *log, const oh_span *span) {
    if (!grow(log)) return OH_OUT_OF_MEMORY;
    oh_status status = OH_OK;
    if (log->clock == SPAN_CLOCK_EVENTS) {
        if (log->count == 0) status = set_origin(log);
        if (status == OH_OK) status = grow_events(log);
        if (status == OH_OK) status = log->backend->event_record(span->queue, log->events[log->count].begin);
    }
    log->records[log->count] = (span_record){.span = *span, .called = step_clock()};
    return status;
}

static oh_status observe_end(span_log *log, const oh_span *span) {
    span_record *const record = &log->records[log->count];
    oh_status status = OH_OK;
    record->enqueued = record->end = step_clock();
    record->begin = record->called;
    if (log->clock == SPAN_CLOCK_EVENTS) status = log->backend->event_record(span->queue, log->events[log->count].end);
    if (log->clock == SPAN_CLOCK_WAITS) {
        status = log->backend->queue_wait(span->queue);
        record->end = step_clock();
    }
    log->count++;
    return status;
}

void span_log_observe(void *user, const oh_span *span, int begin) {
    span_log *const log = user;
    if (log->status != OH_OK) return;
    log->status = begin ? observe_begin(log, span) : observe_end(log, span);
}

/* ------------------------------------------------------------------------------------------------------ reading ---- */

static oh_status moment(const span_log *log, oh_event *event, double *clock) {
    double seconds;
    const oh_status status = log->backend->event_seconds(log->origin, event, &seconds);
    if (status == OH_OK) *clock = log->origin_clock + seconds;
    return status;
}

oh_status span_log_read(span_log *log, oh_error *error) {
    oh_status status = log->status;
    if (log->clock == SPAN_CLOCK_EVENTS) {
        for (int64_t i = 0; i < log->count && status == OH_OK; i++) {
            status = moment(log, log->events[i].begin, &log->records[i].begin);
            if (status == OH_OK) status = moment(log, log->events[i].end, &log->records[i].end);
        }
    }
    return status == OH_OK ? OH_OK : failure(log, status, "timing an operation", error);
}

void span_log_clear(span_log *log) {
    log->count = 0;
    log->status = OH_OK;
}

void span_log_stop(span_log *log) {
    if (log->clock == SPAN_CLOCK_EVENTS) {
        for (int64_t i = 0; i < log->event_count; i++) {
            log->backend->event_close(log->events[i].begin);
            log->backend->event_close(log->events[i].end);
        }
        log->backend->event_close(log->origin);
        if (log->queue != NULL) log->backend->queue_close(log->queue);
    }
    free(log->events);
    log->events = NULL;
    log->event_count = log->event_capacity = 0;
    log->origin = NULL;
    log->queue = NULL;
    log->device = NULL;
}

void span_log_close(span_log *log) {
    span_log_stop(log);
    free(log->records);
    memset(log, 0, sizeof *log);
}
