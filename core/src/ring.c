#include "ring.h"

#include <stdlib.h>
#include <string.h>

#include "ops.h"
#include "status.h"

static uint64_t *done_word(const oh_ring *ring, int32_t block) {
    return (uint64_t *)(void *)(ring->memory + OH_RING_BLOCKS * ring->block_bytes) + block;
}

oh_status oh_ring_open(oh_ring *ring, oh_context *context, int64_t payload_bytes, oh_error *error) {
    const oh_backend *backend = context->backend;
    memset(ring, 0, sizeof *ring);
    ring->context = context;
    ring->payload_bytes = payload_bytes;
    ring->block_bytes = (payload_bytes + OH_RING_TICKET_BYTES + 255) / 256 * 256;
    ring->pinned = backend->host_alloc != NULL;
    if (!ring->pinned) {
        ring->memory = calloc(1, (size_t)ring->block_bytes);
        return ring->memory ? OH_OK : oh_fail(error, OH_OUT_OF_MEMORY, "row selection: out of memory");
    }
    const size_t bytes = (size_t)(OH_RING_BLOCKS * ring->block_bytes) + OH_RING_BLOCKS * sizeof(uint64_t);
    void *memory;
    const oh_status status = backend->host_alloc(context->device, bytes, &memory);
    if (status != OH_OK) return oh_context_fail(context, status, "pinned memory for row selection", error);
    ring->memory = memory;
    memset(memory, 0, bytes);
    return OH_OK;
}

void oh_ring_close(oh_ring *ring) {
    if (ring->pinned && ring->memory)
        ring->context->backend->host_free(ring->context->device, ring->memory);
    else
        free(ring->memory);
    ring->memory = NULL;
}

/* The device writes the word: the compiler must read it, and before what the host writes next. */
static int is_free(const oh_ring *ring, int32_t block) {
    if (ring->captured[block]) return 0;
    return ring->ticket[block] == 0 || __atomic_load_n(done_word(ring, block), __ATOMIC_ACQUIRE) == ring->ticket[block];
}

static int32_t find_free(const oh_ring *ring) {
    for (int32_t i = 1; i <= OH_RING_BLOCKS; ++i) {
        const int32_t block = (ring->at + i) % OH_RING_BLOCKS;
        if (is_free(ring, block)) return block;
    }
    return -1;
}

oh_status oh_ring_take(oh_ring *ring, oh_queue *queue, void **block, oh_error *error) {
    int32_t found = ring->pinned ? find_free(ring) : 0;
    if (found < 0 && queue) {
        const oh_status status = oh_op_wait(ring->context, queue, error);
        if (status != OH_OK) return status;
        found = find_free(ring);
    }
    if (found < 0)
        return oh_fail(error, OH_OUT_OF_MEMORY,
                       "row selection: captured steps hold all %d blocks of this plan; make a plan for each",
                       OH_RING_BLOCKS);
    ring->at = found;
    *block = ring->memory + found * ring->block_bytes;
    return OH_OK;
}

oh_status oh_ring_upload(oh_ring *ring, oh_queue *queue, void *to, oh_error *error) {
    char *block = ring->memory + ring->at * ring->block_bytes;
    const uint64_t ticket = ++ring->last_ticket, bytes = (uint64_t)ring->payload_bytes + OH_RING_TICKET_BYTES;
    memcpy(block + ring->payload_bytes, &ticket, sizeof ticket);
    if (ring->pinned && oh_op_is_capturing(ring->context, queue))
        ring->captured[ring->at] = 1;
    else
        ring->ticket[ring->at] = ring->pinned ? ticket : 0;
    const oh_status status = oh_op_upload(ring->context, queue, to, block, bytes, error);
    if (status != OH_OK || !ring->ticket[ring->at]) return status;
    return oh_op_download(ring->context, queue, done_word(ring, ring->at), (char *)to + ring->payload_bytes,
                          OH_RING_TICKET_BYTES, error);
}
