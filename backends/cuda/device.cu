/* device.cu - GPUs and their errors. */
#include "device.h"
#include "gemm_tune.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

/* ------------------------------------------------------------------------------------------------------ errors ---- */

oh_status device_fail(oh_device *device, oh_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(device->last.message, sizeof device->last.message, format, arguments);
    va_end(arguments);
    device->last.status = status;
    return status;
}

/* Refused calls leave the device as it was; after anything else its memory can't be trusted. */
static int leaves_device_intact(cudaError_t error) {
    switch (error) {
    case cudaErrorMemoryAllocation:
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureImplicit:
        return 1;
    default:
        return 0;
    }
}

oh_status device_check(oh_device *device, cudaError_t error, const char *doing) {
    if (error == cudaSuccess) return OH_OK;
    (void)cudaGetLastError();
    const oh_status status = error == cudaErrorMemoryAllocation ? OH_OUT_OF_MEMORY : OH_DEVICE_ERROR;
    if (!leaves_device_intact(error)) device->fault = OH_DEVICE_ERROR;
    return device_fail(device, status, "cuda: device %d: %s: %s (%s)", device->index, doing, cudaGetErrorString(error),
                       cudaGetErrorName(error));
}

oh_status device_check_cublas(oh_device *device, cublasStatus_t error, const char *doing) {
    if (error == CUBLAS_STATUS_SUCCESS) return OH_OK;
    const oh_status status = error == CUBLAS_STATUS_ALLOC_FAILED ? OH_OUT_OF_MEMORY : OH_DEVICE_ERROR;
    if (error == CUBLAS_STATUS_EXECUTION_FAILED || error == CUBLAS_STATUS_INTERNAL_ERROR)
        device->fault = OH_DEVICE_ERROR;
    return device_fail(device, status, "cuda: device %d: cuBLASLt: %s: %s", device->index, doing,
                       cublasLtGetStatusName(error));
}

void cuda_last_error(oh_device *device, oh_error *error) {
    *error = device->last;
}

/* ----------------------------------------------------------------------------------------------------- devices ---- */

/* No driver, or one that is older than the runtime, is a machine without devices. */
int32_t cuda_device_count(void) {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    (void)cudaGetLastError();
    return 0;
}

static cudaError_t load_all_kernels(void) {
    cudaError_t (*const load[])(void) = {copy_rows_load,  matrix_norm_load,    tile_stats_load, tile_overlap_load,
                                         tile_grad_load,  row_finish_load,     gemm_plain_load, tile_overflow_load,
                                         row_select_load, tile_stats_grad_load};
    for (size_t i = 0; i < sizeof load / sizeof load[0]; ++i) {
        const cudaError_t error = load[i]();
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

static oh_status open_device(oh_device *device) {
    const device_guard guard(device);
    cudaDeviceProp properties;
    oh_status status = device_check(device, cudaGetDeviceProperties(&properties, device->index), "properties");
    if (status != OH_OK) return status;
    if (properties.major < 9)
        return device_fail(device, OH_UNSUPPORTED,
                           "cuda: device %d, %s, has compute capability %d.%d: expected 9.0 (Hopper) or later",
                           device->index, properties.name, properties.major, properties.minor);
    device->multiprocessors = properties.multiProcessorCount;
    device->shared_bytes = properties.sharedMemPerMultiprocessor;
    status = device_check(device, cudaFree(NULL), "opening the primary context");
    if (status == OH_OK) status = device_check(device, load_all_kernels(), "loading kernels");
    if (status == OH_OK) status = device_check_cublas(device, cublasLtCreate(&device->cublas), "opening");
    if (status == OH_OK) gemm_tune_load(device);
    return status;
}

oh_status cuda_device_open(const oh_device_options *options, const oh_host *host, oh_device **device, oh_error *error) {
    const int32_t count = cuda_device_count();
    if (options->index < 0 || options->index >= count) {
        error->status = OH_NO_BACKEND;
        snprintf(error->message, sizeof error->message, "cuda: device %d: expected one of %d", (int)options->index,
                 (int)count);
        return OH_NO_BACKEND;
    }
    oh_device *opened = (oh_device *)calloc(1, sizeof *opened);
    if (!opened) {
        error->status = OH_OUT_OF_MEMORY;
        snprintf(error->message, sizeof error->message, "cuda: no memory for a device's record");
        return OH_OUT_OF_MEMORY;
    }
    opened->index = options->index;
    if (host) opened->host = *host;
    const oh_status status = open_device(opened);
    if (status != OH_OK) {
        *error = opened->last;
        cuda_device_close(opened);
        return status;
    }
    *device = opened;
    return OH_OK;
}

void cuda_device_close(oh_device *device) {
    if (!device) return;
    if (device->cublas) {
        const device_guard guard(device);
        cublasLtDestroy(device->cublas);
    }
    free(device);
}

oh_status cuda_device_info(oh_device *device, oh_device_info *info) {
    const device_guard guard(device);
    memset(info, 0, sizeof *info);
    cudaDeviceProp properties;
    oh_status status = device_check(device, cudaGetDeviceProperties(&properties, device->index), "properties");
    if (status != OH_OK) return status;
    size_t available = 0, total = 0;
    status = device_check(device, cudaMemGetInfo(&available, &total), "memory information");
    if (status != OH_OK) return status;
    int runtime = 0, driver = 0, clock = 0, memory_clock = 0; /* kHz */
    status = device_check(device, cudaRuntimeGetVersion(&runtime), "runtime version");
    if (status == OH_OK) status = device_check(device, cudaDriverGetVersion(&driver), "driver version");
    if (status == OH_OK)
        status = device_check(device, cudaDeviceGetAttribute(&clock, cudaDevAttrClockRate, device->index), "clock");
    if (status == OH_OK)
        status = device_check(device, cudaDeviceGetAttribute(&memory_clock, cudaDevAttrMemoryClockRate, device->index),
                              "memory clock");
    if (status != OH_OK) return status;
    const size_t cublas = cublasLtGetVersion();
    snprintf(info->name, sizeof info->name, "%.127s", properties.name);
    snprintf(
        info->kernel, sizeof info->kernel,
        "cuBLASLt %zu.%zu.%zu; CUDA runtime %d.%d, driver %d.%d; compute capability %d.%d, %d multiprocessors of up to "
        "%d MHz, memory of %d MHz",
        cublas / 10000, cublas / 100 % 100, cublas % 100, runtime / 1000, runtime % 1000 / 10, driver / 1000,
        driver % 1000 / 10, properties.major, properties.minor, properties.multiProcessorCount, clock / 1000,
        memory_clock / 1000);
    info->memory_total = (int64_t)total;
    info->memory_free = (int64_t)available;
    return OH_OK;
}
