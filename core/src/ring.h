/* ring.h - host memory for what a step uploads, several steps deep.
 *
 * An upload from pinned memory only enqueues, so the memory belongs to the device until the copy has run. Each block
 * therefore carries a ticket: the queue copies it to the device with the rest and then back into the block's own word
 * of pinned memory, where the host sees that the block is free again. A run waits only when it is OH_RING_BLOCKS steps
 * ahead of the device.
 *
 * A step that is captured reads its block at every replay: that block stays the graph's until the plan is destroyed.
 *
 * Backends without pinned memory have one block: their uploads have read it when they return. */
#ifndef ONEHEAD_CORE_RING_H
#define ONEHEAD_CORE_RING_H

#include "context.h"

#define OH_RING_BLOCKS 8
#define OH_RING_TICKET_BYTES 8 /* what a block needs beyond its payload, on the device too */

typedef struct oh_ring {
    oh_context *context;
    char *memory;
    int64_t payload_bytes, block_bytes; /* block_bytes apart; the words follow the last block */
    int32_t pinned, at;                 /* the block that oh_ring_take gave last */
    uint64_t last_ticket;
    uint64_t ticket[OH_RING_BLOCKS]; /* under way from this block; 0: none */
    int32_t captured[OH_RING_BLOCKS];
} oh_ring;

oh_status oh_ring_open(oh_ring *ring, oh_context *context, int64_t payload_bytes, oh_error *error);
void oh_ring_close(oh_ring *ring);

/* A block that nobody reads any more, `queue` (or NULL) being where the last ones were enqueued: waits for it where all
 * are under way. */
oh_status oh_ring_take(oh_ring *ring, oh_queue *queue, void **block, oh_error *error);

/* Enqueues the upload of the block that was taken last: payload_bytes + OH_RING_TICKET_BYTES into `to`. */
oh_status oh_ring_upload(oh_ring *ring, oh_queue *queue, void *to, oh_error *error);

#endif
