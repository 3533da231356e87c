/* Memory: allocation, and bytes that arrive where they were sent and nowhere else. */
#include <string.h>

#include "kit.h"

static void check_alignment(kit *k) {
    if (!kit_begin(k, CONFORM_MEMORY, "memory/alignment")) return;
    static const uint64_t sizes[] = {1, 7, 255, 256, 257, 4096, 65537, 5 << 20};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    void *address[SIZES] = {NULL};
    for (int i = 0; i < SIZES; ++i) {
        const oh_status status = k->table->alloc(k->seat.device, sizes[i], &address[i]);
        if (status != OH_OK || !address[i])
            kit_fail(k, "alloc of %llu bytes: status %d, address %p", (unsigned long long)sizes[i], (int)status,
                     address[i]);
        else if ((uintptr_t)address[i] % 256 != 0)
            kit_fail(k, "alloc of %llu bytes gave %p, expected a multiple of 256", (unsigned long long)sizes[i],
                     address[i]);
    }
    for (int i = 0; i < SIZES; ++i)
        k->table->free(k->seat.device, address[i]);
    k->table->free(k->seat.device, NULL);
    kit_end(k);
}

static void check_impossible(kit *k) {
    if (!kit_begin(k, CONFORM_MEMORY, "memory/impossible-size")) return;
    /* A sanitizer's allocator ends the process where others return NULL. */
    if (k->table->sanitizer[0])
        kit_skip(k, "memory/impossible-size: the %s sanitizer's allocator", k->table->sanitizer);
    static const uint64_t sizes[] = {0, UINT64_MAX, UINT64_MAX - 100, (uint64_t)1 << 62};
    for (int i = 0; i < 4 && kit_going(k); ++i) {
        void *address = NULL;
        const oh_status status = k->table->alloc(k->seat.device, sizes[i], &address);
        oh_error error = {OH_OK, ""};
        k->table->last_error(k->seat.device, &error);
        if (status == OH_OK)
            kit_fail(k, "alloc of %llu bytes was accepted", (unsigned long long)sizes[i]);
        else if (error.status != status || !error.message[0])
            kit_fail(k,
                     "alloc of %llu bytes failed with status %d, but last_error has status %d and the words \"%.100s\"",
                     (unsigned long long)sizes[i], (int)status, (int)error.status, error.message);
    }
    kit_end(k);
}

static oh_status move_bytes(const kit_seat *seat, const void *arguments) {
    const kit_buffer *const *b = arguments; /* host bytes in b[0]'s image; two device buffers */
    const oh_backend *t = seat->table;
    const uint64_t bytes = (uint64_t)b[1]->row_bytes;
    oh_status status = t->upload(seat->queue, b[1]->at, b[0]->image + b[0]->offset, bytes);
    /* A fill between them: calls of one queue run in order. */
    if (status == OH_OK) status = t->fill(seat->queue, b[2]->at, 0x55, (uint64_t)b[2]->row_bytes);
    if (status == OH_OK && bytes > 2)
        status = t->fill(seat->queue, (unsigned char *)b[1]->at + bytes / 2, 0xff, bytes - bytes / 2 - 1);
    return status;
}

/* Sizes and addresses that are multiples of nothing. */
static void check_moves(kit *k, int64_t bytes, int64_t shift) {
    if (!kit_begin(k, CONFORM_MEMORY, "memory/moves/%lldB-%lld", (long long)bytes, (long long)shift)) return;
    const uint64_t key = kit_stream(k, "bytes");
    unsigned char *from = kit_host(k, bytes, 1);
    for (int64_t i = 0; from && i < bytes; ++i)
        from[i] = (unsigned char)draw_bits(key, (uint64_t)i);
    const kit_buffer *b[3];
    b[0] = kit_bytes(k, "source", KIT_IN, from, bytes);
    b[1] = kit_rows(k, "uploaded", KIT_OUT, NULL, 1, bytes, bytes, shift);
    b[2] = kit_rows(k, "filled", KIT_OUT, NULL, 1, bytes, bytes, shift);
    if (kit_run(k, move_bytes, b)) {
        const unsigned char *uploaded = kit_result(b[1]), *filled = kit_result(b[2]);
        for (int64_t i = 0; from && i < bytes && kit_going(k); ++i) {
            const unsigned char want = bytes > 2 && i >= bytes / 2 && i < bytes - 1 ? 0xff : from[i];
            if (uploaded[i] != want) kit_fail(k, "uploaded[%lld] = %d, expected %d", (long long)i, uploaded[i], want);
            if (filled[i] != 0x55) kit_fail(k, "filled[%lld] = %d, expected 85", (long long)i, filled[i]);
        }
    }
    kit_end(k);
}

static void check_pinned(kit *k) {
    if (!kit_begin(k, CONFORM_MEMORY, "memory/pinned")) return;
    if (!k->table->host_alloc) kit_skip(k, "memory/pinned: host_alloc is NULL");
    enum { BYTES = 100003 };
    kit_buffer *to = kit_bytes(k, "memory", KIT_OUT, NULL, BYTES);
    void *pinned = NULL;
    if (kit_going(k) && (k->table->host_alloc(k->seat.device, BYTES, &pinned) != OH_OK || !pinned))
        kit_fail(k, "host_alloc of %d bytes", BYTES);
    if (pinned && kit_going(k)) {
        memset(pinned, 0x3c, BYTES);
        if (k->table->upload(k->seat.queue, to->at, pinned, BYTES) != OH_OK) kit_fail(k, "upload from pinned memory");
        if (k->table->queue_wait(k->seat.queue) != OH_OK) kit_fail(k, "queue_wait");
        memset(pinned, 0, BYTES);
        if (k->table->download(k->seat.queue, pinned, to->at, BYTES) != OH_OK) kit_fail(k, "download to pinned memory");
        if (k->table->queue_wait(k->seat.queue) != OH_OK) kit_fail(k, "queue_wait");
        for (int64_t i = 0; i < BYTES && kit_going(k); ++i)
            if (((unsigned char *)pinned)[i] != 0x3c) kit_fail(k, "byte %lld didn't come back", (long long)i);
    }
    if (pinned) k->table->host_free(k->seat.device, pinned);
    kit_end(k);
}

void cases_memory(kit *k) {
    static const int64_t sizes[] = {1, 3, 64, 1000, 65537, 1048579};
    check_alignment(k);
    check_impossible(k);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        check_moves(k, sizes[i], 0);
        check_moves(k, sizes[i], 1);
    }
    check_pinned(k);
}
