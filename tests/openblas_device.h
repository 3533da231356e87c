/* openblas_device.h - devices of the OpenBLAS plugin for its tests: loaded as the core would, one for each set of tile
 * kernels that this CPU has. */
#ifndef ONEHEAD_TESTS_OPENBLAS_DEVICE_H
#define ONEHEAD_TESTS_OPENBLAS_DEVICE_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <onehead/backend.h>

typedef struct openblas {
    const oh_backend *table;
    oh_device *device;
    oh_queue *queue;
} openblas;

static const char *const openblas_tiles[] = {"baseline", "avx2", "avx512"};
enum { OPENBLAS_TILES = 3 };

static inline const oh_backend *openblas_table(void) {
    void *module = dlopen(ONEHEAD_BUILD_BACKEND_DIR "/onehead-openblas.so", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!module) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
    oh_backend_entry entry;
    void *symbol = dlsym(module, OH_BACKEND_SYMBOL);
    memcpy(&entry, &symbol, sizeof entry);
    return entry();
}

static inline int openblas_cpu_has(int tiles) {
    if (tiles == 0) return 1;
#if defined(__x86_64__)
    if (tiles == 1) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
    return 0;
#endif
}

/* tiles: an index of openblas_tiles, or -1: the plugin's own choice. */
static inline openblas openblas_open(int tiles, int32_t threads) {
    openblas b = {.table = openblas_table()};
    const oh_device_options options = {.size = sizeof options, .threads = threads};
    oh_error error = {OH_OK, ""};
    if (tiles >= 0) setenv("ONEHEAD_OPENBLAS_TILES", openblas_tiles[tiles], 1);
    const oh_status status = b.table->device_open(&options, NULL, &b.device, &error);
    unsetenv("ONEHEAD_OPENBLAS_TILES");
    if (status != OH_OK || b.table->queue_open(b.device, NULL, &b.queue) != OH_OK) {
        fprintf(stderr, "openblas: %s\n", error.message);
        abort();
    }
    return b;
}

static inline void openblas_close(openblas *b) {
    b->table->queue_close(b->queue);
    b->table->device_close(b->device);
}

#endif
