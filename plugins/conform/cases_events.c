/* Events: moments of a queue by the device's clock. */
#include <math.h>
#include <time.h>

#include "kit.h"

enum { EVENTS = 3, FILLS = 32, FILL_BYTES = 4 << 20 };

/* A device's clock may run that much faster than the host's, and an event may be that much late. */
#define CLOCK_DRIFT 1e-3
#define EVENT_DELAY 2e-3
#define CLOCK_STEP 1e-6 /* what two roundings of a time may differ by */

typedef struct events {
    oh_event *at[EVENTS];
} events;

static double host_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool begin(kit *k, events *e, const char *name) {
    *e = (events){{NULL}};
    if (!OH_BACKEND_HAS(k->table, event_open)) return false;
    if (!kit_begin(k, CONFORM_EVENT, "event/%s", name)) return false;
    for (int i = 0; i < EVENTS; ++i)
        if (kit_going(k) && (k->table->event_open(k->seat.device, &e->at[i]) != OH_OK || !e->at[i]))
            kit_fail(k, "event_open number %d", i);
    return true;
}

static void end(kit *k, events *e) {
    for (int i = 0; i < EVENTS; ++i)
        k->table->event_close(e->at[i]);
    kit_end(k);
}

static void record(kit *k, oh_queue *queue, oh_event *event) {
    if (kit_going(k) && k->table->event_record(queue, event) != OH_OK) kit_fail(k, "event_record");
}

static void work(kit *k, oh_queue *queue, const kit_buffer *to) {
    for (int i = 0; i < FILLS && kit_going(k); ++i)
        if (k->table->fill(queue, to->at, i, FILL_BYTES) != OH_OK) kit_fail(k, "fill number %d", i);
}

static void wait(kit *k, oh_queue *queue) {
    if (kit_going(k) && k->table->queue_wait(queue) != OH_OK) kit_fail(k, "queue_wait");
}

static double between(kit *k, oh_event *from, oh_event *to) {
    double seconds = 0;
    if (kit_going(k) && k->table->event_seconds(from, to, &seconds) != OH_OK) kit_fail(k, "event_seconds");
    return seconds;
}

/* Work between two events takes time, and no more than the host saw go by. */
static void check_work(kit *k) {
    events e;
    if (!begin(k, &e, "work")) return;
    kit_buffer *to = kit_bytes(k, "memory", KIT_OUT, NULL, FILL_BYTES);
    wait(k, k->seat.queue);
    const double start = host_seconds();
    record(k, k->seat.queue, e.at[0]);
    if (to) work(k, k->seat.queue, to);
    record(k, k->seat.queue, e.at[1]);
    wait(k, k->seat.queue);
    const double most = (host_seconds() - start) * (1 + CLOCK_DRIFT) + EVENT_DELAY;
    const double got = between(k, e.at[0], e.at[1]), back = between(k, e.at[1], e.at[0]);
    if (kit_going(k) && !(got > 0 && got <= most))
        kit_fail(k, "event_seconds around %d fills = %g, expected over 0 and at most %g", FILLS, got, most);
    if (kit_going(k) && !(fabs(back + got) <= CLOCK_STEP))
        kit_fail(k, "event_seconds back = %g, expected the negative of %g", back, got);
    end(k, &e);
}

/* On two queues, where the second one's event was recorded after the first queue had been waited for. */
static void check_order(kit *k) {
    events e;
    if (!begin(k, &e, "order")) return;
    kit_buffer *to = kit_bytes(k, "memory", KIT_OUT, NULL, FILL_BYTES);
    oh_queue *queue = NULL;
    if (kit_going(k) && (k->table->queue_open(k->seat.device, NULL, &queue) != OH_OK || !queue))
        kit_fail(k, "queue_open of a second queue");
    record(k, k->seat.queue, e.at[0]);
    if (to) work(k, k->seat.queue, to);
    record(k, k->seat.queue, e.at[1]);
    wait(k, k->seat.queue);
    record(k, queue, e.at[2]);
    wait(k, queue);
    const double first = between(k, e.at[0], e.at[1]), second = between(k, e.at[1], e.at[2]);
    if (kit_going(k) && !(first > 0 && second >= 0))
        kit_fail(k, "event_seconds = %g and then %g, expected moments in the order of their queues", first, second);
    record(k, queue, e.at[0]);
    wait(k, queue);
    const double again = between(k, e.at[2], e.at[0]);
    if (kit_going(k) && !(again >= 0))
        kit_fail(k, "event_seconds to an event recorded again = %g, expected its new moment", again);
    if (queue) k->table->queue_close(queue);
    end(k, &e);
}

static void check_unrecorded(kit *k) {
    events e;
    if (!begin(k, &e, "unrecorded")) return;
    record(k, k->seat.queue, e.at[0]);
    wait(k, k->seat.queue);
    double seconds = 0;
    for (int i = 0; i < 2 && kit_going(k); ++i) {
        const oh_status status = k->table->event_seconds(e.at[i], e.at[1 - i], &seconds);
        if (status != OH_INVALID_ARGUMENT)
            kit_fail(k, "event_seconds with an event that was never recorded: status %d, expected %d", (int)status,
                     OH_INVALID_ARGUMENT);
    }
    /* The refusal is no fault. */
    record(k, k->seat.queue, e.at[1]);
    wait(k, k->seat.queue);
    end(k, &e);
}

void cases_events(kit *k) {
    check_work(k);
    check_order(k);
    check_unrecorded(k);
}
