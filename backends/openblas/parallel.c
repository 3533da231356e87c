/* parallel.c - the one place that starts threads.
 *
 * One OpenMP runtime in the process. OpenBLAS's OpenMP build brings libgomp; a second runtime beside it would double
 * the threads and hide each one's regions from the other, so that OpenBLAS would no longer see that it is called from
 * inside a region. GCC's pragma compiles to libgomp. Clang's compiles to libomp (and its -fopenmp=libgomp ignores the
 * pragma), so under Clang the region is started by libgomp's entry point GOMP_parallel, the one that GCC's pragma
 * calls and that libgomp has kept since GCC 4.9; such a build needs no -fopenmp, only -lgomp.
 *
 * Single-threaded BLAS. The number of threads inside OpenBLAS is global to the process: it is never set here. Inside
 * an active parallel region the OpenMP build runs a call on the calling thread alone; outside of one it asks OpenMP
 * for the calling thread's own setting, so that is 1 for the time of the call.
 *
 * Fork. libgomp's threads don't survive fork, and a child that enters a parallel region waits for them for ever. A
 * child of a process that has run a region here runs the same parts serially: same partition, same bits. (A child
 * whose parent used libgomp elsewhere before this library was ever used can't be told apart from a fresh process.) */
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

#include "device.h"

#if defined(__clang__)
int omp_get_max_threads(void);
int omp_in_parallel(void);
void omp_set_num_threads(int threads);
void GOMP_parallel(void (*region)(void *), void *data, unsigned threads, unsigned flags);
#else
#include <omp.h>
#endif

typedef struct team {
    void (*run)(void *work, int64_t part);
    void *work;
    int64_t parts;
    _Atomic int64_t next;
} team;

/* The process that started libgomp's threads here; 0: none yet. */
static _Atomic intptr_t region_process;

static void take_parts(void *data) {
    team *t = data;
    const int saved = omp_in_parallel() ? 1 : omp_get_max_threads();
    if (saved != 1) omp_set_num_threads(1);
    for (;;) {
        const int64_t part = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed);
        if (part >= t->parts) break;
        t->run(t->work, part);
    }
    if (saved != 1) omp_set_num_threads(saved);
}

static void start_region(team *t, int threads) {
#if defined(__clang__)
    GOMP_parallel(take_parts, t, (unsigned)threads, 0);
#else
#pragma omp parallel num_threads(threads)
    take_parts(t);
#endif
}

static int region_is_safe(void) {
    const intptr_t self = (intptr_t)getpid();
    intptr_t owner = 0;
    return atomic_compare_exchange_strong(&region_process, &owner, self) || owner == self;
}

void ob_parallel(oh_device *device, int64_t parts, void (*run)(void *work, int64_t part), void *work) {
    team t = {.run = run, .work = work, .parts = parts};
    atomic_init(&t.next, 0);
    const int64_t threads = parts < device->threads ? parts : device->threads;
    if (threads > 1 && region_is_safe())
        start_region(&t, (int)threads);
    else
        take_parts(&t);
}

int32_t ob_default_threads(void) {
    return (int32_t)omp_get_max_threads();
}
