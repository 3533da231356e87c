/* span_log.h - the operations of plans that run, with times, as oh_plan_trace shows them. */
#ifndef ONEHEAD_TOOL_SPAN_LOG_H
#define ONEHEAD_TOOL_SPAN_LOG_H

#include <onehead/onehead.h>

#include <stdbool.h>

/* Seconds of step_clock. On a backend that computes before its calls return, enqueued = end. On others the log waits
 * for each operation, so that end - begin is its own time and nothing overlaps. */
typedef struct span_record {
    oh_span span;
    double begin, enqueued, end;
} span_record;

typedef struct span_log {
    const oh_backend *backend;
    span_record *records;
    int64_t count, capacity;
    bool out_of_memory; /* later spans are missing */
} span_log;

/* An oh_span_observer whose user is a span_log. */
void span_log_observe(void *user, const oh_span *span, int begin);

/* Forgets the records, keeps their memory. */
void span_log_clear(span_log *log);
void span_log_close(span_log *log); /* a zeroed record is fine */

#endif
