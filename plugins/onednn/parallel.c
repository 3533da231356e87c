/* parallel.c - the one place that starts threads.
 *
 * One OpenMP runtime in the process: oneDNN's CPU code is built on libgomp, so the region is started by libgomp's entry
 * point GOMP_parallel, which is what GCC's pragma calls (Clang's would bring a second runtime). LLVM's libomp has the
 * same entry point.
 *
 * oneDNN takes its number of threads from OpenMP's setting for the calling thread when a primitive is made, inside a
 * region too, and then starts a region of as many whenever it runs. Here the setting is 1 for the time of a part and put
 * back afterwards, so that a primitive is the same and adds in the same order whoever makes and runs it.
 *
 * Fork. libgomp's threads don't survive fork, and a child that enters a parallel region waits for them for ever. A
 * child of a process that has run a region here runs the same parts one after the other: same partition, same bits. */
#include <stdatomic.h>
#include <unistd.h>

#include "device.h"

int omp_get_max_threads(void);
void omp_set_num_threads(int threads);
void GOMP_parallel(void (*region)(void *), void *data, unsigned threads, unsigned flags);

typedef struct team {
    void (*run)(void *work, int64_t part, int32_t member);
    void *work;
    int64_t parts;
    _Atomic int64_t next;
    _Atomic int32_t members;
} team;

/* The process that started libgomp's threads here; 0: none yet. */
static _Atomic intptr_t region_process;

static void take_parts(void *data) {
    team *t = data;
    const int32_t member = atomic_fetch_add_explicit(&t->members, 1, memory_order_relaxed);
    const int saved = omp_get_max_threads();
    if (saved != 1) omp_set_num_threads(1);
    for (;;) {
        const int64_t part = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed);
        if (part >= t->parts) break;
        t->run(t->work, part, member);
    }
    if (saved != 1) omp_set_num_threads(saved);
}

static int region_is_safe(void) {
    const intptr_t self = (intptr_t)getpid();
    intptr_t owner = 0;
    return atomic_compare_exchange_strong(&region_process, &owner, self) || owner == self;
}

void on_parallel(const oh_device *device, int64_t parts, void (*run)(void *work, int64_t part, int32_t member),
                 void *work) {
    team t = {.run = run, .work = work, .parts = parts};
    atomic_init(&t.next, 0);
    atomic_init(&t.members, 0);
    const int64_t threads = parts < device->threads ? parts : device->threads;
    if (threads > 1 && region_is_safe())
        GOMP_parallel(take_parts, &t, (unsigned)threads, 0);
    else
        take_parts(&t);
}

int32_t on_default_threads(void) {
    return (int32_t)omp_get_max_threads();
}
