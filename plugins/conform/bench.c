/* Times of the operations, with the bytes that a call must move and the operations that it must do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kit.h"

enum { REPEATS_MAX = 50 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void note(kit *k, const kit_sample *sample, double seconds) {
    conform_report *r = k->report;
    conform_timing *grown = realloc(r->timings, (size_t)(r->timing_count + 1) * sizeof *grown);
    if (!grown) return;
    r->timings = grown;
    conform_timing *t = &r->timings[r->timing_count++];
    *t = (conform_timing){.op = k->op, .seconds = seconds, .bytes = sample->bytes, .flops = sample->flops};
    memcpy(t->name, k->name, sizeof t->name);
}

/* The best of the calls that fit into half a second, each waited for. */
static void time_sample(kit *k, const kit_sample_kind *kind, const kit_sample_size *size) {
    if (!kit_begin(k, kind->op, "%s/bench/%lldx%lldx%lld", kind->name, (long long)size->rows, (long long)size->columns,
                   (long long)size->depth))
        return;
    kit_sample sample = {.call = NULL};
    kind->open(k, size, &sample);
    double best = 0;
    const double start = now();
    for (int i = 0; i < REPEATS_MAX && kit_prepare(k) && (i < 3 || now() - start < 0.5); ++i) {
        k->table->queue_wait(k->seat.queue);
        const double from = now();
        if (sample.call(&k->seat, sample.arguments) != OH_OK || k->table->queue_wait(k->seat.queue) != OH_OK)
            kit_fail(k, "a call failed");
        const double seconds = now() - from;
        if (i == 1 || (i > 1 && seconds < best)) best = seconds; /* the first one warms up */
    }
    if (kit_going(k)) note(k, &sample, best);
    kit_end(k);
}

void bench_operations(kit *k) {
    static const kit_sample_size sizes[] = {{64, 4096, 256}, {256, 16384, 512}};
    for (int s = 0; s < 2; ++s)
        for (int i = 0; i < KIT_SAMPLES; ++i)
            if (kit_has_sample(k, kit_samples[i].op)) time_sample(k, &kit_samples[i], &sizes[s]);
}
