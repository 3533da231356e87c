/* context.h - an open device of a backend. */
#ifndef ONEHEAD_CORE_CONTEXT_H
#define ONEHEAD_CORE_CONTEXT_H

#include <onehead/onehead.h>

struct oh_context {
    const oh_backend *backend;
    oh_device *device;
    oh_host host;
    void *(*alloc)(void *user, uint64_t bytes);
    void (*free)(void *user, void *address);
    void *user;
    int32_t f16_overflowed; /* a step did: auto means f32 from the next plan on */
};

/* Device memory by the caller's allocator or the backend's. bytes = 0 gives NULL. */
oh_status oh_context_alloc(oh_context *context, uint64_t bytes, const char *what, void **address, oh_error *error);
void oh_context_free(oh_context *context, void *address);

/* Fills `error` with what the device last said; returns `status`. */
oh_status oh_context_fail(oh_context *context, oh_status status, const char *doing, oh_error *error);

#endif
