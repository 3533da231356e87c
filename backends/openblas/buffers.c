/* buffers.c - whether there is room for OpenBLAS's buffers, before it takes them.
 *
 * OpenBLAS maps a buffer for every thread that is inside a call and keeps it for the next one. Where the system refuses
 * (a limit of the address space, `ulimit -v`), it asks again for ever, and no status comes back. So the first product
 * with so many threads maps as much by itself and gives it back: what fails here would never have returned there.
 *
 * Devices multiply at once, each on its own threads, and OpenBLAS's buffers are the process's: what is counted is how
 * many threads may be inside, and for how many there has been room. */
#include <pthread.h>
#include <sys/mman.h>

#include "device.h"

/* 128 MiB are what Debian's OpenBLAS takes; the rest is the thread's own stack, which is mapped by the first parallel
 * product too. */
#define THREAD_BYTES ((size_t)137 << 20)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int32_t threads_of_devices, threads_with_room;

/* Maps one by one, as OpenBLAS does: a single mapping of all may be refused for its size alone. */
static int is_room_for(int32_t threads) {
    void *maps[OB_THREADS_MAX];
    int32_t count = 0;
    while (count < threads && count < OB_THREADS_MAX) {
        maps[count] = mmap(NULL, THREAD_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (maps[count] == MAP_FAILED) break;
        ++count;
    }
    for (int32_t i = 0; i < count; ++i)
        munmap(maps[i], THREAD_BYTES);
    return count == threads;
}

oh_status ob_buffers_take(oh_device *device, int32_t threads) {
    if (threads <= device->buffers) return OH_OK;
    pthread_mutex_lock(&lock);
    const int32_t wanted = threads_of_devices + threads - device->buffers, more = wanted - threads_with_room;
    const int fits = more <= 0 || is_room_for(more);
    if (fits) {
        threads_of_devices = wanted;
        if (more > 0) threads_with_room = wanted;
        device->buffers = threads;
    }
    pthread_mutex_unlock(&lock);
    if (fits) return OH_OK;
    return ob_fail(device, OH_OUT_OF_MEMORY,
                   "openblas: no address space for the buffers of %d more threads, expected %zu MiB for each: a larger "
                   "limit (ulimit -v) or fewer threads",
                   more, THREAD_BYTES >> 20);
}

void ob_buffers_return(oh_device *device) {
    pthread_mutex_lock(&lock);
    threads_of_devices -= device->buffers;
    pthread_mutex_unlock(&lock);
    device->buffers = 0;
}
