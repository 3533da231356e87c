/* How calls get along: two queues of one device with work interleaved, and two devices used from two threads at once. */
#include <pthread.h>
#include <string.h>

#include "kit.h"

enum { ROUNDS = 10 };

static const kit_sample_size SIZE = {48, 1201, 96};

const kit_sample_kind kit_samples[KIT_SAMPLES] = {
    {CONFORM_GEMM, "gemm", sample_gemm},
    {CONFORM_COPY_ROWS, "copy_rows", sample_copy_rows},
    {CONFORM_MATRIX_NORM, "matrix_norm", sample_matrix_norm},
    {CONFORM_TILE_STATS, "tile_stats", sample_tile_stats},
    {CONFORM_TILE_OVERLAP, "tile_overlap", sample_tile_overlap},
    {CONFORM_TILE_GRAD, "tile_grad", sample_tile_grad},
    {CONFORM_TILE_STATS_GRAD, "tile_stats_grad", sample_tile_stats_grad},
    {CONFORM_ROW_FINISH, "row_finish", sample_row_finish},
};

bool kit_has_sample(const kit *k, conform_op op) {
    if (op == CONFORM_TILE_STATS || op == CONFORM_TILE_OVERLAP || op == CONFORM_TILE_GRAD)
        return kit_tile_format(k) >= 0;
    return op != CONFORM_TILE_STATS_GRAD || (kit_tile_format(k) >= 0 && OH_BACKEND_HAS(k->table, tile_stats_grad) &&
                                             OH_BACKEND_HAS(k->table, tile_stats_grad_takes));
}

/* ------------------------------------------------------------------------------------------------ two queues ---- */

/* Enqueues both samples in turn, then waits for both. */
static void interleave(kit *k, kit both[2], const kit_sample samples[2]) {
    for (int i = 0; i < 2; ++i)
        if (!samples[i].call || !kit_prepare(&both[i])) return;
    for (int i = 0; i < 2; ++i)
        if (samples[i].call(&both[i].seat, samples[i].arguments) != OH_OK) kit_fail(k, "queue %d: a call failed", i);
    for (int i = 1; i >= 0; --i)
        if (k->table->queue_wait(both[i].seat.queue) != OH_OK) kit_fail(k, "queue %d: queue_wait failed", i);
    for (int i = 0; i < 2; ++i)
        if (kit_going(k) && kit_collect(&both[i])) samples[i].judge(&both[i], samples[i].state);
}

static void check_two_queues(kit *k, const kit_sample_kind *kind) {
    if (!kit_begin(k, kind->op, "%s/two-queues", kind->name)) return;
    kit both[2];
    conform_report reports[2];
    kit_sample samples[2] = {{.call = NULL}, {.call = NULL}};
    kit_seat seats[2] = {k->seat, k->seat};
    oh_queue *queue = NULL;
    if (k->table->queue_open(k->seat.device, NULL, &queue) != OH_OK || !queue)
        kit_fail(k, "queue_open of a second queue");
    seats[1].queue = queue;
    for (int i = 0; i < 2; ++i) {
        kit_fork(k, &both[i], &reports[i], &seats[i]);
        both[i].key = draw_key(k->key, i ? "second" : "first");
        if (kit_going(k)) kind->open(&both[i], &SIZE, &samples[i]);
    }
    for (int round = 0; round < ROUNDS && kit_going(k) && kit_going(&both[0]) && kit_going(&both[1]); ++round)
        interleave(k, both, samples);
    kit_join(k, &both[0], "first queue");
    kit_join(k, &both[1], "second queue");
    if (queue) k->table->queue_close(queue);
    kit_end(k);
}

/* ----------------------------------------------------------------------------------------------- two devices ---- */

typedef struct worker {
    pthread_t thread;
    pthread_barrier_t *barrier;
    const kit_sample_kind *kind;
    kit kit;
    conform_report report;
} worker;

static bool open_seat(kit *k) {
    const oh_device_options options = {
        .size = sizeof options, .index = k->options->device, .threads = k->options->threads};
    static const oh_host host = {.size = sizeof host, .minor = OH_BACKEND_MINOR};
    oh_error error = {OH_OK, ""};
    if (k->table->device_open(&options, &host, &k->seat.device, &error) != OH_OK) {
        k->seat.device = NULL;
        kit_fail(k, "device_open: %.200s", error.message);
    } else if (k->table->queue_open(k->seat.device, NULL, &k->seat.queue) != OH_OK) {
        k->seat.queue = NULL;
        kit_fail(k, "queue_open failed");
    }
    return kit_going(k);
}

/* Every round starts together, so that calls are inside the plugin at the same time; a worker that has failed goes on to
 * the barrier, for the other one waits there. */
static void *work(void *argument) {
    worker *w = argument;
    kit *k = &w->kit;
    kit_sample sample = {.call = NULL};
    if (open_seat(k)) w->kind->open(k, &SIZE, &sample);
    for (int round = 0; round < ROUNDS; ++round) {
        const bool ready = kit_prepare(k);
        pthread_barrier_wait(w->barrier);
        if (!ready || !sample.call) continue;
        if (sample.call(&k->seat, sample.arguments) != OH_OK || k->table->queue_wait(k->seat.queue) != OH_OK)
            kit_fail(k, "a call failed in round %d", round);
        if (kit_collect(k)) sample.judge(k, sample.state);
    }
    return NULL;
}

static void close_worker(kit *k, worker *w, const char *who) {
    const kit_seat seat = w->kit.seat;
    if (seat.device)
        kit_join(k, &w->kit, who);
    else
        kit_fail(k, "%s: no device", who);
    if (seat.queue) k->table->queue_close(seat.queue);
    if (seat.device) k->table->device_close(seat.device);
}

static void check_two_devices(kit *k, const kit_sample_kind *kind) {
    if (!kit_begin(k, kind->op, "%s/two-devices", kind->name)) return;
    static const kit_seat nowhere = {NULL, NULL, NULL};
    pthread_barrier_t barrier;
    worker workers[2];
    pthread_barrier_init(&barrier, NULL, 2);
    for (int i = 0; i < 2; ++i) {
        workers[i].barrier = &barrier;
        workers[i].kind = kind;
        kit_fork(k, &workers[i].kit, &workers[i].report, &nowhere);
        workers[i].kit.seat.table = k->table;
        workers[i].kit.key = draw_key(k->key, i ? "second" : "first");
    }
    /* One thread is this one: where no other can be started, there is nothing to test. */
    if (pthread_create(&workers[1].thread, NULL, work, &workers[1]) != 0) {
        kit_skip(k, "%s/two-devices: no thread could be started", kind->name);
    } else {
        work(&workers[0]);
        pthread_join(workers[1].thread, NULL);
        close_worker(k, &workers[0], "first device");
        close_worker(k, &workers[1], "second device");
    }
    pthread_barrier_destroy(&barrier);
    kit_end(k);
}

void cases_concurrent(kit *k) {
    for (int i = 0; i < KIT_SAMPLES; ++i) {
        if (!kit_has_sample(k, kit_samples[i].op)) continue;
        check_two_queues(k, &kit_samples[i]);
        check_two_devices(k, &kit_samples[i]);
    }
}
