/* device.c - the one device of this backend: the host's CPUs, as OpenBLAS and the tile kernels see them. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cblas.h>

#include "device.h"
#include "tile_work.h"

/* Overrides the tile kernels chosen by CPU: baseline, avx2 or avx512. Read when a device is opened. */
#define TILES_VARIABLE "ONEHEAD_OPENBLAS_TILES"

/* openblas_get_config writes into a buffer of its own, so it's asked once, under a lock. */
static pthread_once_t blas_once = PTHREAD_ONCE_INIT;
static char blas_config[160];
static char blas_core[32];
static int blas_parallel;

static void read_blas(void) {
    snprintf(blas_config, sizeof blas_config, "%s", openblas_get_config());
    snprintf(blas_core, sizeof blas_core, "%s", openblas_get_corename());
    blas_parallel = openblas_get_parallel();
}

oh_status ob_fail(oh_device *device, oh_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    device->error.status = status;
    vsnprintf(device->error.message, sizeof device->error.message, format, arguments);
    va_end(arguments);
    return status;
}

int32_t ob_device_count(void) {
    return 1;
}

/* An OpenBLAS older than the CPU falls back to kernels of the SSE days, an order of magnitude slower: worth a line. */
static void warn_about_old_kernel(const oh_device *device) {
    static const char *const old[] = {"Prescott", "Core2", "Penryn",  "Dunnington",
                                      "Nehalem",  "Atom",  "Opteron", "Barcelona"};
    if (!device->host || !device->host->log || !tile_kernels_choose("avx2")) return;
    for (size_t i = 0; i < sizeof old / sizeof *old; ++i) {
        if (strcmp(blas_core, old[i]) != 0) continue;
        char line[300];
        snprintf(line, sizeof line,
                 "OpenBLAS does not know this CPU and multiplies with its %s kernel (SSE) although the CPU has AVX2; "
                 "a newer OpenBLAS would be several times faster",
                 blas_core);
        device->host->log(device->host->user, line);
    }
}

oh_status ob_device_open(const oh_device_options *options, const oh_host *host, oh_device **device, oh_error *error) {
    if (!options || !device)
        return tile_refuse(error, OH_INVALID_ARGUMENT, "openblas: options and device must be given");
    if (options->index != 0)
        return tile_refuse(error, OH_NO_BACKEND, "openblas: device %d does not exist, the only one is 0",
                           options->index);
    if (options->threads < 0 || options->threads > OB_THREADS_MAX)
        return tile_refuse(error, OH_INVALID_ARGUMENT, "openblas: threads = %d, expected 0 (the default) to %d",
                           options->threads, OB_THREADS_MAX);
    pthread_once(&blas_once, read_blas);
    if (blas_parallel != 2)
        return tile_refuse(
            error, OH_NO_BACKEND,
            "openblas: the libopenblas in this process is the %s build (\"%s\"), expected the OpenMP build; "
            "install libopenblas0-openmp and make it the one that is loaded",
            blas_parallel == 0 ? "single-threaded" : "pthreads", blas_config);
    const char *tiles = getenv(TILES_VARIABLE);
    const tile_kernels *kernels = tile_kernels_choose(tiles);
    if (!kernels)
        return tile_refuse(error, OH_INVALID_ARGUMENT,
                           "openblas: " TILES_VARIABLE " = \"%.40s\", expected one that this CPU has of: %s", tiles,
                           tile_kernels_names());

    oh_device *d = calloc(1, sizeof *d);
    if (!d) return tile_refuse(error, OH_OUT_OF_MEMORY, "openblas: no memory for a device of %zu bytes", sizeof *d);
    d->host = host;
    d->threads = options->threads;
    if (d->threads == 0) {
        d->threads = ob_default_threads();
        if (d->threads > OB_THREADS_DEFAULT_MAX) d->threads = OB_THREADS_DEFAULT_MAX;
    }
    d->kernels = kernels;
    snprintf(d->kernel_line, sizeof d->kernel_line, "%s; core %s; tiles %s (SLEEF)", blas_config, blas_core,
             kernels->name);
    warn_about_old_kernel(d);
    *device = d;
    return OH_OK;
}

void ob_device_close(oh_device *device) {
    if (device) ob_buffers_return(device);
    free(device);
}

oh_status ob_device_info(oh_device *device, oh_device_info *info) {
    memset(info, 0, sizeof *info);
#if defined(__x86_64__)
    const char *machine = "x86-64";
#elif defined(__aarch64__)
    const char *machine = "aarch64";
#else
    const char *machine = "CPU";
#endif
    snprintf(info->name, sizeof info->name, "%s, %d thread%s", machine, device->threads,
             device->threads == 1 ? "" : "s");
    snprintf(info->kernel, sizeof info->kernel, "%s", device->kernel_line);
    const long page = sysconf(_SC_PAGESIZE), pages = sysconf(_SC_PHYS_PAGES), available = sysconf(_SC_AVPHYS_PAGES);
    if (page > 0 && pages > 0) info->memory_total = (int64_t)page * pages;
    if (page > 0 && available > 0) info->memory_free = (int64_t)page * available;
    info->threads = device->threads;
    return OH_OK;
}

void ob_last_error(oh_device *device, oh_error *error) {
    *error = device->error;
}
