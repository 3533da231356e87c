#include "span_log.h"

#include "step.h"

#include <stdlib.h>
#include <string.h>

static bool grow(span_log *log) {
    if (log->count < log->capacity) return true;
    const int64_t capacity = log->capacity > 0 ? 2 * log->capacity : 256;
    span_record *const records = realloc(log->records, (size_t)capacity * sizeof *records);
    if (records == NULL) return false;
    log->records = records;
    log->capacity = capacity;
    return true;
}

void span_log_observe(void *user, const oh_span *span, int begin) {
    span_log *const log = user;
    if (log->out_of_memory) return;
    if (begin) {
        if (!grow(log)) {
            log->out_of_memory = true;
            return;
        }
        log->records[log->count] = (span_record){.span = *span, .begin = step_clock()};
        return;
    }
    span_record *const record = &log->records[log->count++];
    record->enqueued = record->end = step_clock();
    if (log->backend->caps & OH_CAP_HOST_MEMORY) return;
    /* Its failure is sticky: the run's next operation reports it. */
    (void)log->backend->queue_wait(span->queue);
    record->end = step_clock();
}

void span_log_clear(span_log *log) {
    log->count = 0;
    log->out_of_memory = false;
}

void span_log_close(span_log *log) {
    free(log->records);
    memset(log, 0, sizeof *log);
}
