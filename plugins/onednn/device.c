/* device.c - the one device of this backend: the host's CPUs, as oneDNN sees them. */
#include "device.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "matmul.h"

#define THREADS_DEFAULT_MAX 128
#define THREADS_MAX 512

static void write_error(oh_error *error, oh_status status, const char *format, va_list arguments) {
    error->status = status;
    const int used = snprintf(error->message, sizeof error->message, "onednn: ");
    vsnprintf(error->message + used, sizeof error->message - (size_t)used, format, arguments);
}

oh_status on_fail(oh_device *device, oh_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    write_error(&device->error, status, format, arguments);
    va_end(arguments);
    return status;
}

__attribute__((format(printf, 3, 4))) static oh_status refuse(oh_error *error, oh_status status, const char *format,
                                                              ...) {
    if (!error) return status;
    va_list arguments;
    va_start(arguments, format);
    write_error(error, status, format, arguments);
    va_end(arguments);
    return status;
}

/* ----------------------------------------------------------------------------------------------------- the CPU ---- */

static pthread_once_t cpu_once = PTHREAD_ONCE_INIT;
static on_bf16 cpu_bf16;
static const char *cpu_isa = "portable";

/* VDPBF16PS does twice the multiply-adds of an f32 FMA. AMD's cores start as many of either a cycle: twice the rate
 * (measured on Zen 4). Intel's start a quarter as many, half the rate (measured on Sapphire Rapids, AMX withheld): there
 * f32 goes first. By the maker and not by a clock, so that a machine always computes the same bits. */
static int vectors_multiply_bf16_faster(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_is("amd");
#else
    return 0;
#endif
}

/* What oneDNN may use here: the CPU's own, less what the system (AMX needs its permission) or ONEDNN_MAX_CPU_ISA
 * withholds. Values are bit sets, each containing those before it. */
static void read_cpu(void) {
    static const struct {
        const char *name;
        dnnl_cpu_isa_t isa;
        on_bf16 bf16;
    } known[] = {{"AMX", dnnl_cpu_isa_avx512_core_amx, ON_BF16_MATRIX},
                 {"AVX-512 BF16", dnnl_cpu_isa_avx512_core_bf16, ON_BF16_VECTOR},
                 {"AVX-512", dnnl_cpu_isa_avx512_core, ON_BF16_NONE},
                 {"AVX2", dnnl_cpu_isa_avx2, ON_BF16_NONE},
                 {"SSE4.1", dnnl_cpu_isa_sse41, ON_BF16_NONE}};
    const unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();
    for (size_t i = 0; i < sizeof known / sizeof *known; ++i) {
        if ((isa & (unsigned)known[i].isa) != (unsigned)known[i].isa) continue;
        cpu_isa = known[i].name;
        cpu_bf16 = known[i].bf16;
        if (cpu_bf16 == ON_BF16_VECTOR && !vectors_multiply_bf16_faster()) cpu_bf16 = ON_BF16_NONE;
        return;
    }
}

on_bf16 on_cpu_bf16(void) {
    pthread_once(&cpu_once, read_cpu);
    return cpu_bf16;
}

/* --------------------------------------------------------------------------------------------------- the device ---- */

int32_t on_device_count(void) {
    return 1;
}

static oh_status open_onednn(oh_device *d, oh_error *error) {
    dnnl_status_t status = dnnl_engine_create(&d->engine, dnnl_cpu, 0);
    if (status != dnnl_success)
        return refuse(error, OH_NO_BACKEND, "oneDNN makes no CPU engine (dnnl_status_t %d)", (int)status);
    d->streams = calloc((size_t)d->threads, sizeof(dnnl_stream_t));
    d->matmuls = matmul_cache_open(d->engine);
    if (!d->streams || !d->matmuls) return refuse(error, OH_OUT_OF_MEMORY, "no memory for a device");
    for (int32_t i = 0; i < d->threads; ++i) {
        status = dnnl_stream_create(&d->streams[i], d->engine, dnnl_stream_default_flags);
        if (status != dnnl_success)
            return refuse(error, OH_OUT_OF_MEMORY, "oneDNN makes no stream (dnnl_status_t %d)", (int)status);
    }
    return OH_OK;
}

oh_status on_device_open(const oh_device_options *options, const oh_host *host, oh_device **device, oh_error *error) {
    if (!options || !device) return refuse(error, OH_INVALID_ARGUMENT, "options and device must be given");
    if (options->index != 0)
        return refuse(error, OH_NO_BACKEND, "device %d does not exist, the only one is 0", options->index);
    if (options->threads < 0 || options->threads > THREADS_MAX)
        return refuse(error, OH_INVALID_ARGUMENT, "threads = %d, expected 0 (the default) to %d", options->threads,
                      THREADS_MAX);
    const dnnl_version_t *version = dnnl_version();
    if (version->major != DNNL_VERSION_MAJOR || version->cpu_runtime != DNNL_RUNTIME_OMP)
        return refuse(error, OH_NO_BACKEND,
                      "the oneDNN in this process is %d.%d with CPU runtime %u, expected %d with OpenMP (%u)",
                      version->major, version->minor, version->cpu_runtime, DNNL_VERSION_MAJOR, DNNL_RUNTIME_OMP);

    oh_device *d = calloc(1, sizeof *d);
    if (!d) return refuse(error, OH_OUT_OF_MEMORY, "no memory for a device of %zu bytes", sizeof *d);
    d->host = host;
    d->threads = options->threads ? options->threads : on_default_threads();
    if (!options->threads && d->threads > THREADS_DEFAULT_MAX) d->threads = THREADS_DEFAULT_MAX;
    d->bf16 = on_cpu_bf16();
    d->kernels = on_kernels();
    snprintf(d->kernel_line, sizeof d->kernel_line, "oneDNN %d.%d.%d %s; tiles %s", version->major, version->minor,
             version->patch, cpu_isa, on_kernels_name(d->kernels));
    const oh_status status = open_onednn(d, error);
    if (status != OH_OK) {
        on_device_close(d);
        return status;
    }
    *device = d;
    return OH_OK;
}

void on_device_close(oh_device *device) {
    if (!device) return;
    matmul_cache_close(device->matmuls);
    for (int32_t i = 0; device->streams && i < device->threads; ++i)
        if (device->streams[i]) dnnl_stream_destroy(device->streams[i]);
    if (device->engine) dnnl_engine_destroy(device->engine);
    free(device->streams);
    free(device);
}

oh_status on_device_info(oh_device *device, oh_device_info *info) {
    memset(info, 0, sizeof *info);
    snprintf(info->name, sizeof info->name, "CPU, %d thread%s", device->threads, device->threads == 1 ? "" : "s");
    snprintf(info->kernel, sizeof info->kernel, "%s", device->kernel_line);
    const long page = sysconf(_SC_PAGESIZE), pages = sysconf(_SC_PHYS_PAGES), available = sysconf(_SC_AVPHYS_PAGES);
    if (page > 0 && pages > 0) info->memory_total = (int64_t)page * pages;
    if (page > 0 && available > 0) info->memory_free = (int64_t)page * available;
    info->threads = device->threads;
    return OH_OK;
}

void on_last_error(oh_device *device, oh_error *error) {
    *error = device->error;
}
