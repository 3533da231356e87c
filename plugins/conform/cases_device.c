/* Devices and queues: what can be asked without computing. */
#include <string.h>

#include "kit.h"

/* Text that ends within its array and says something. */
static void check_text(kit *k, const char *what, const char *text, size_t size) {
    if (!memchr(text, '\0', size))
        kit_fail(k, "%s has no terminating NUL", what);
    else if (!text[0])
        kit_fail(k, "%s is empty", what);
}

static void check_info(kit *k) {
    if (!kit_begin(k, CONFORM_DEVICE, "device/info")) return;
    oh_device_info info;
    memset(&info, 0xff, sizeof info);
    const oh_status status = k->table->device_info(k->seat.device, &info);
    if (status != OH_OK) kit_fail(k, "device_info: status %d", (int)status);
    check_text(k, "device_info's name", info.name, sizeof info.name);
    check_text(k, "device_info's kernel", info.kernel, sizeof info.kernel);
    if (info.memory_total < 0 || info.memory_free < 0 || info.threads < 0)
        kit_fail(k, "device_info: memory_total, memory_free, threads = %lld, %lld, %d, expected none below 0",
                 (long long)info.memory_total, (long long)info.memory_free, (int)info.threads);
    kit_end(k);
}

static void check_open_refused(kit *k, int32_t index) {
    const oh_device_options options = {.size = sizeof options, .index = index};
    const oh_host host = {.size = sizeof host, .minor = OH_BACKEND_MINOR};
    oh_device *device = NULL;
    oh_error error = {OH_OK, ""};
    const oh_status status = k->table->device_open(&options, &host, &device, &error);
    if (status == OH_OK) {
        k->table->device_close(device);
        kit_fail(k, "device_open of index %d was accepted, there are %d devices", (int)index,
                 (int)k->table->device_count());
    } else if (error.status != status || !error.message[0]) {
        kit_fail(k,
                 "device_open of index %d failed with status %d, but the error has status %d and the words \"%.100s\"",
                 (int)index, (int)status, (int)error.status, error.message);
    }
}

static void check_no_such_device(kit *k) {
    if (!kit_begin(k, CONFORM_DEVICE, "device/no-such")) return;
    check_open_refused(k, k->table->device_count());
    check_open_refused(k, -1);
    kit_end(k);
}

/* Opened and closed often: the second device of an index is as good as the first, and errors are each device's own. */
static void check_reopen(kit *k) {
    if (!kit_begin(k, CONFORM_DEVICE, "device/reopen")) return;
    const oh_device_options options = {
        .size = sizeof options, .index = k->options->device, .threads = k->options->threads};
    const oh_host host = {.size = sizeof host, .minor = OH_BACKEND_MINOR};
    for (int i = 0; i < 20 && kit_going(k); ++i) {
        oh_device *device = NULL;
        oh_queue *queue = NULL;
        oh_error error = {OH_OK, ""};
        if (k->table->device_open(&options, &host, &device, &error) != OH_OK || !device) {
            kit_fail(k, "opening the device a %dth time: %.200s", i + 2, error.message);
            break;
        }
        if (k->table->queue_open(device, NULL, &queue) != OH_OK || !queue) kit_fail(k, "queue_open on a fresh device");
        if (queue && k->table->queue_wait(queue) != OH_OK) kit_fail(k, "queue_wait on a fresh queue");
        if (queue) k->table->queue_close(queue);
        k->table->device_close(device);
    }
    kit_end(k);
}

/* Closing waits: what was enqueued has happened. */
static void check_close_waits(kit *k) {
    if (!kit_begin(k, CONFORM_QUEUE, "queue/close-waits")) return;
    enum { BYTES = 1 << 20 };
    kit_buffer *to = kit_bytes(k, "memory", KIT_OUT, NULL, BYTES);
    oh_queue *queue = NULL;
    if (kit_going(k) && (k->table->queue_open(k->seat.device, NULL, &queue) != OH_OK || !queue))
        kit_fail(k, "queue_open of a second queue");
    if (kit_going(k)) {
        for (int i = 0; i < 20; ++i)
            if (k->table->fill(queue, to->at, i, BYTES) != OH_OK) kit_fail(k, "fill number %d", i);
        k->table->queue_close(queue);
        const oh_status status = k->table->download(k->seat.queue, to->now, to->at, BYTES);
        if (status != OH_OK || k->table->queue_wait(k->seat.queue) != OH_OK) kit_fail(k, "download after queue_close");
        for (int64_t i = 0; i < BYTES && kit_going(k); ++i)
            if (to->now[i] != 19)
                kit_fail(k, "byte %lld = %d after queue_close, expected 19", (long long)i, to->now[i]);
    }
    kit_end(k);
}

static void check_waits(kit *k) {
    if (!kit_begin(k, CONFORM_QUEUE, "queue/wait")) return;
    for (int i = 0; i < 3; ++i)
        if (k->table->queue_wait(k->seat.queue) != OH_OK)
            kit_fail(k, "queue_wait number %d with nothing to wait for", i);
    kit_end(k);
}

void cases_device(kit *k) {
    check_info(k);
    check_no_such_device(k);
    check_reopen(k);
    check_waits(k);
    check_close_waits(k);
}
