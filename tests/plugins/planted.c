/* A plugin with one thing wrong. Each module of this directory compiles this file with the name that its file carries
 * and one definition that plants a fault; with none it is a plugin that the loader takes. Its functions do nothing: the
 * loader calls the entry and no other. */
#include <onehead/backend.h>

#ifndef PLANTED_SYMBOL
#define PLANTED_SYMBOL oh_backend_v1
#endif
#ifndef PLANTED_SIZE
#define PLANTED_SIZE sizeof(planted_table)
#endif
#ifndef PLANTED_MINOR
#define PLANTED_MINOR OH_BACKEND_MINOR
#endif
#ifndef PLANTED_CAPS
#define PLANTED_CAPS OH_CAP_HOST_MEMORY
#endif
#ifndef PLANTED_GEMM_KINDS
#define PLANTED_GEMM_KINDS OH_GEMM_F32_F32
#endif
#ifndef PLANTED_SANITIZER
#define PLANTED_SANITIZER ONEHEAD_SANITIZER
#endif
#ifndef PLANTED_GEMM
#define PLANTED_GEMM gemm
#endif
#ifndef PLANTED_TILE_GRAD
#define PLANTED_TILE_GRAD NULL
#endif

#define EXPORTED __attribute__((visibility("default")))

static int32_t device_count(void) {
    return 0;
}

static oh_status device_open(const oh_device_options *options, const oh_host *host, oh_device **device,
                             oh_error *error) {
    (void)options, (void)host, (void)device, (void)error;
    return OH_UNSUPPORTED;
}

static void device_close(oh_device *device) {
    (void)device;
}

static oh_status device_info(oh_device *device, oh_device_info *info) {
    (void)device, (void)info;
    return OH_UNSUPPORTED;
}

static void last_error(oh_device *device, oh_error *error) {
    (void)device, (void)error;
}

static oh_status queue_open(oh_device *device, void *native, oh_queue **queue) {
    (void)device, (void)native, (void)queue;
    return OH_UNSUPPORTED;
}

static oh_status queue_wait(oh_queue *queue) {
    (void)queue;
    return OH_UNSUPPORTED;
}

static void queue_close(oh_queue *queue) {
    (void)queue;
}

static oh_status alloc(oh_device *device, uint64_t bytes, void **address) {
    (void)device, (void)bytes, (void)address;
    return OH_UNSUPPORTED;
}

static void release(oh_device *device, void *address) {
    (void)device, (void)address;
}

static oh_status upload(oh_queue *queue, void *to, const void *from_host, uint64_t bytes) {
    (void)queue, (void)to, (void)from_host, (void)bytes;
    return OH_UNSUPPORTED;
}

static oh_status download(oh_queue *queue, void *to_host, const void *from, uint64_t bytes) {
    (void)queue, (void)to_host, (void)from, (void)bytes;
    return OH_UNSUPPORTED;
}

static oh_status fill(oh_queue *queue, void *to, int32_t byte, uint64_t bytes) {
    (void)queue, (void)to, (void)byte, (void)bytes;
    return OH_UNSUPPORTED;
}

/* In no library at all. */
oh_status gemm_of_no_library(oh_queue *queue, const oh_gemm *product);

__attribute__((unused)) static oh_status gemm(oh_queue *queue, const oh_gemm *product) {
    (void)queue, (void)product;
    return OH_UNSUPPORTED;
}

#ifdef PLANTED_LATER_MINOR
/* What a plugin built with a later header has: entries that this core never heard of. */
typedef struct later_backend {
    oh_backend known;
    void (*later[8])(void);
} later_backend;
#define TABLE_TYPE later_backend
#define KNOWN .known.
#else
#define TABLE_TYPE oh_backend
#define KNOWN .
#endif

#ifdef PLANTED_AS_DATA
#define planted_table PLANTED_SYMBOL
EXPORTED extern const TABLE_TYPE planted_table;
EXPORTED
#else
__attribute__((unused)) static
#endif
const TABLE_TYPE planted_table = {
    KNOWN size = PLANTED_SIZE,
    KNOWN minor = PLANTED_MINOR,
    KNOWN caps = PLANTED_CAPS,
    KNOWN gemm_kinds = PLANTED_GEMM_KINDS,
    KNOWN name = PLANTED_NAME,
    KNOWN build = "planted",
    KNOWN sanitizer = PLANTED_SANITIZER,
    KNOWN device_count = device_count,
    KNOWN device_open = device_open,
    KNOWN device_close = device_close,
    KNOWN device_info = device_info,
    KNOWN last_error = last_error,
    KNOWN queue_open = queue_open,
    KNOWN queue_wait = queue_wait,
    KNOWN queue_close = queue_close,
    KNOWN alloc = alloc,
    KNOWN free = release,
    KNOWN upload = upload,
    KNOWN download = download,
    KNOWN fill = fill,
    KNOWN gemm = PLANTED_GEMM,
    KNOWN tile_grad = PLANTED_TILE_GRAD,
};

#ifndef PLANTED_AS_DATA
EXPORTED const oh_backend *PLANTED_SYMBOL(void);

const oh_backend *PLANTED_SYMBOL(void) {
#ifdef PLANTED_NULL_TABLE
    return NULL;
#else
    return (const oh_backend *)&planted_table;
#endif
}
#endif
