#include "context.h"

#include <stdlib.h>

#include "status.h"

#define DEFAULT_BACKEND "openblas"

oh_status oh_context_fail(oh_context *context, oh_status status, const char *doing, oh_error *error) {
    oh_error cause = {OH_OK, ""};
    context->backend->last_error(context->device, &cause);
    return oh_fail(error, status, "%s: %s: %s", context->backend->name, doing,
                   cause.message[0] ? cause.message : oh_status_name(status));
}

oh_status oh_context_open(const oh_context_options *options, oh_context **context, oh_error *error) {
    if (!options || !context)
        return oh_fail(error, OH_INVALID_ARGUMENT, "oh_context_open: options and context must not be NULL");
    if (!options->alloc != !options->free)
        return oh_fail(error, OH_INVALID_ARGUMENT, "oh_context_open: alloc and free must be given together");
    const oh_backend *backend = options->table;
    if (!backend) {
        const char *name = options->backend ? options->backend : DEFAULT_BACKEND;
        const oh_status status = oh_backend_load(name, &backend, error);
        if (status != OH_OK) return status;
    }
    const int32_t devices = backend->device_count();
    if (options->device < 0 || options->device >= devices)
        return oh_fail(error, OH_NO_BACKEND, "backend %s has %d device%s, device %d does not exist", backend->name,
                       (int)devices, devices == 1 ? "" : "s", (int)options->device);
    oh_context *c = calloc(1, sizeof *c);
    if (!c) return oh_fail(error, OH_OUT_OF_MEMORY, "a context: out of memory");
    c->backend = backend;
    c->host = (oh_host){.size = sizeof c->host, .minor = OH_BACKEND_MINOR, .user = options->user, .log = options->log};
    c->alloc = options->alloc;
    c->free = options->free;
    c->user = options->user;
    const oh_device_options device = {.size = sizeof device, .index = options->device, .threads = options->threads};
    const oh_status status = backend->device_open(&device, &c->host, &c->device, error);
    if (status != OH_OK) {
        free(c);
        return status;
    }
    *context = c;
    return OH_OK;
}

void oh_context_close(oh_context *context) {
    if (!context) return;
    context->backend->device_close(context->device);
    free(context);
}

const oh_backend *oh_context_backend(const oh_context *context) {
    return context->backend;
}

oh_device *oh_context_device(const oh_context *context) {
    return context->device;
}

oh_status oh_context_device_info(oh_context *context, oh_device_info *info, oh_error *error) {
    const oh_status status = context->backend->device_info(context->device, info);
    return status == OH_OK ? OH_OK : oh_context_fail(context, status, "device information", error);
}

oh_status oh_context_alloc(oh_context *context, uint64_t bytes, const char *what, void **address, oh_error *error) {
    *address = NULL;
    if (bytes == 0) return OH_OK;
    if (context->alloc) {
        *address = context->alloc(context->user, bytes);
        if (*address) return OH_OK;
        return oh_fail(error, OH_OUT_OF_MEMORY, "%s: the caller's allocator has no %llu bytes", what,
                       (unsigned long long)bytes);
    }
    const oh_status status = context->backend->alloc(context->device, bytes, address);
    return status == OH_OK ? OH_OK : oh_context_fail(context, status, what, error);
}

void oh_context_free(oh_context *context, void *address) {
    if (!address) return;
    if (context->free)
        context->free(context->user, address);
    else
        context->backend->free(context->device, address);
}
