/* far.c - the OpenBLAS backend without its claim that device memory is host memory: a device "far away" on a machine
 * without one. Callers must then upload and download, and the core may not touch an address. It has events, unless the
 * environment's ONEHEAD_FAR_EVENTS is 0: its table is then one of minor version 0. */
#include <onehead/backend.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static oh_backend far_table;

/* ------------------------------------------------------------------------------------------------------ events ---- */

/* OpenBLAS has finished when a call returns: the device's time is the host's, told from another origin. */
struct oh_event {
    double seconds; /* 0: not recorded */
};

static oh_status event_open(oh_device *device, oh_event **event) {
    (void)device;
    *event = calloc(1, sizeof **event);
    return *event == NULL ? OH_OUT_OF_MEMORY : OH_OK;
}

static void event_close(oh_event *event) {
    free(event);
}

static oh_status event_record(oh_queue *queue, oh_event *event) {
    (void)queue;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    event->seconds = 1e6 + (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    return OH_OK;
}

static oh_status event_seconds(oh_event *from, oh_event *to, double *seconds) {
    if (from->seconds == 0 || to->seconds == 0) return OH_INVALID_ARGUMENT;
    *seconds = to->seconds - from->seconds;
    return OH_OK;
}

/* ------------------------------------------------------------------------------------------------------- table ---- */

static void add_events(void) {
    const char *const wanted = getenv("ONEHEAD_FAR_EVENTS");
    if (wanted != NULL && strcmp(wanted, "0") == 0) {
        far_table.size = offsetof(oh_backend, event_open);
        far_table.minor = 0;
        return;
    }
    far_table.event_open = event_open;
    far_table.event_close = event_close;
    far_table.event_record = event_record;
    far_table.event_seconds = event_seconds;
}

static void make_table(void) {
    void *const library = dlopen(FAR_FROM, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) return;
    oh_backend_entry entry;
    void *const symbol = dlsym(library, OH_BACKEND_SYMBOL);
    if (symbol == NULL) return;
    memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast from an object to a function */
    const oh_backend *const near_table = entry();
    memcpy(&far_table, near_table, sizeof far_table < near_table->size ? sizeof far_table : near_table->size);
    far_table.caps &= ~(uint32_t)OH_CAP_HOST_MEMORY;
    far_table.name = "far";
    add_events();
}

__attribute__((visibility("default"))) const oh_backend *oh_backend_v1(void);
const oh_backend *oh_backend_v1(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_table);
    return &far_table;
}
