/* span_log.h - the operations of plans that run, with times, as oh_plan_trace shows them.
 *
 *     span_log log = {.records = NULL};
 *     if (span_log_open(&log, backend, device, &error) != OH_OK) ...
 *     oh_plan_trace(plan, span_log_observe, &log);
 *     oh_plan_run(...); oh_plan_wait(...);
 *     oh_plan_trace(plan, NULL, NULL);
 *     if (span_log_read(&log, &error) != OH_OK) ...
 *     span_log_stop(&log);                    before the device is closed; the records stay
 *     span_log_close(&log);
 */
#ifndef ONEHEAD_TOOL_SPAN_LOG_H
#define ONEHEAD_TOOL_SPAN_LOG_H

#include <onehead/onehead.h>

#include <stdbool.h>

/* Where the times of a device's operations come from. */
typedef enum span_clock {
    SPAN_CLOCK_HOST,   /* the backend computes before its calls return: the call's time is the operation's */
    SPAN_CLOCK_EVENTS, /* the device's own events: nothing waits, a step runs as it does without a log */
    SPAN_CLOCK_WAITS,  /* no events: the log waits for each operation, and nothing overlaps */
} span_clock;

/* Seconds of step_clock, device times moved onto it. */
typedef struct span_record {
    oh_span span;
    double called, enqueued; /* the call, on the host */
    double begin, end;       /* the operation, on the device */
} span_record;

/* Events around one operation. */
typedef struct span_events {
    oh_event *begin, *end;
} span_events;

typedef struct span_log {
    const oh_backend *backend;
    oh_device *device;
    span_clock clock;
    span_record *records;
    int64_t count, capacity;
    oh_status status; /* of the first thing that went wrong while observing */
    /* With events: two a record, and the one that device times are told from. */
    span_events *events;
    oh_event *origin;
    int64_t event_count, event_capacity;
    oh_queue *queue; /* the log's own, for the origin */
    double origin_clock;
} span_log;

oh_status span_log_open(span_log *log, const oh_backend *backend, oh_device *device, oh_error *error);

/* An oh_span_observer whose user is a span_log. */
void span_log_observe(void *user, const oh_span *span, int begin);

/* Reads device times, once the plan was waited for, and says what went wrong since the log was cleared. */
oh_status span_log_read(span_log *log, oh_error *error);

/* Forgets the records, keeps their memory. */
void span_log_clear(span_log *log);

/* Gives back what belongs to the device; the log observes nothing more. */
void span_log_stop(span_log *log);
void span_log_close(span_log *log); /* a zeroed record is fine */

/* "host", "events" or "waits". */
const char *span_clock_name(span_clock clock);

#endif
