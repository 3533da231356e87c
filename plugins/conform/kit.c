#include "kit.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crash.h"

enum { GUARD = 1024, POISON = 0xff, ALIGNMENT = 256 };

/* -------------------------------------------------------------------------------------------------- the case ---- */

/* "gemm" and "gemm/nt" begin "gemm/nt/f32"; "gem" doesn't. */
static bool passes(const char *filter, const char *name) {
    const size_t length = filter ? strlen(filter) : 0;
    return length == 0 || (strncmp(filter, name, length) == 0 && (name[length] == '\0' || name[length] == '/'));
}

bool kit_begin(kit *k, conform_op op, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(k->name, sizeof k->name, format, arguments);
    va_end(arguments);
    if (!passes(k->options->filter, k->name)) return false;
    k->op = op;
    k->key = draw_key(k->options->seed, k->name);
    k->failed = k->skipped = false;
    if (k->options->starting) k->options->starting(k->options->user, k->name);
    crash_name(k->options, k->name);
    return true;
}

static void close_buffers(kit *k) {
    for (int i = 0; i < k->buffer_count; ++i) {
        kit_buffer *b = &k->buffers[i];
        k->table->free(k->seat.device, b->allocation);
        free(b->image);
        free(b->now);
        memset(b, 0, sizeof *b);
    }
    k->buffer_count = 0;
}

static void free_host(kit *k) {
    while (k->host) {
        void *next;
        memcpy(&next, k->host, sizeof next);
        free(k->host);
        k->host = next;
    }
}

void kit_end(kit *k) {
    close_buffers(k);
    free_host(k);
    conform_op_report *op = &k->report->ops[k->op];
    if (k->failed)
        op->failed++, op->cases++;
    else if (k->skipped)
        op->skipped++;
    else
        op->cases++;
    crash_name(k->options, NULL);
}

bool kit_going(const kit *k) {
    return !k->failed && !k->skipped;
}

void kit_fail(kit *k, const char *format, ...) {
    if (!kit_going(k)) return;
    k->failed = true;
    conform_report *r = k->report;
    if (r->failure_count == k->failure_capacity) {
        const int64_t capacity = k->failure_capacity ? 2 * k->failure_capacity : 16;
        conform_failure *grown = realloc(r->failures, (size_t)capacity * sizeof *grown);
        if (!grown) return; /* counted all the same */
        r->failures = grown;
        k->failure_capacity = capacity;
    }
    conform_failure *f = &r->failures[r->failure_count++];
    memset(f, 0, sizeof *f);
    f->op = k->op;
    memcpy(f->name, k->name, sizeof f->name);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(f->text, sizeof f->text, format, arguments);
    va_end(arguments);
}

void kit_skip(kit *k, const char *format, ...) {
    if (!kit_going(k)) return;
    k->skipped = true;
    conform_op_report *op = &k->report->ops[k->op];
    if (op->skip_reason[0]) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(op->skip_reason, sizeof op->skip_reason, format, arguments);
    va_end(arguments);
}

uint64_t kit_stream(const kit *k, const char *stream) {
    return draw_key(k->key, stream);
}

void *kit_host(kit *k, int64_t count, size_t size) {
    enum { HEADER = 64 };
    unsigned char *block = kit_going(k) ? calloc(1, HEADER + (size_t)(count > 0 ? count : 1) * size) : NULL;
    if (!block) {
        kit_fail(k, "the kit has no host memory for %lld elements of %zu bytes", (long long)count, size);
        return NULL;
    }
    memcpy(block, &k->host, sizeof k->host);
    k->host = block;
    return block + HEADER;
}

double *kit_doubles(kit *k, int64_t count) {
    return kit_host(k, count, sizeof(double));
}

void kit_fork(const kit *k, kit *other, conform_report *report, const kit_seat *seat) {
    *other =
        (kit){.options = k->options, .report = report, .table = k->table, .seat = *seat, .op = k->op, .key = k->key};
    memcpy(other->name, k->name, sizeof other->name);
    *report = (conform_report){.failures = NULL};
    report->ops[k->op].is_portable = k->report->ops[k->op].is_portable;
}

void kit_join(kit *k, kit *other, const char *who) {
    close_buffers(other);
    free_host(other);
    const conform_report *r = other->report;
    if (r->failure_count > 0)
        kit_fail(k, "%s: %s", who, r->failures[0].text);
    else if (other->failed)
        kit_fail(k, "%s failed, and there is no memory to say how", who);
    free(r->failures);
}

int32_t kit_tile_format(const kit *k) {
    for (int32_t format = OH_TILE_F32; format <= OH_TILE_DIFF; ++format)
        if (k->table->tile_formats >> format & 1u) return format;
    return -1;
}

/* --------------------------------------------------------------------------------------------------- buffers ---- */

const char *kit_words(const kit_seat *seat, char text[200]) {
    oh_error error = {OH_OK, ""};
    seat->table->last_error(seat->device, &error);
    error.message[sizeof error.message - 1] = '\0';
    snprintf(text, 200, "%.199s", error.message[0] ? error.message : "last_error has no words");
    return text;
}

static bool upload(kit *k, const kit_buffer *b) {
    char words[200];
    const oh_status status = k->table->upload(k->seat.queue, b->allocation, b->image, b->total);
    if (status != OH_OK) kit_fail(k, "upload of %s: status %d, %s", b->name, (int)status, kit_words(&k->seat, words));
    return status == OH_OK;
}

static bool download(kit *k, kit_buffer *b) {
    char words[200];
    memset(b->now, 0, b->total);
    oh_status status = k->table->download(k->seat.queue, b->now, b->allocation, b->total);
    if (status == OH_OK) status = k->table->queue_wait(k->seat.queue);
    if (status != OH_OK) kit_fail(k, "download of %s: status %d, %s", b->name, (int)status, kit_words(&k->seat, words));
    return status == OH_OK;
}

kit_buffer *kit_rows(kit *k, const char *name, kit_role role, const void *from, int64_t rows, int64_t row_bytes,
                     int64_t stride, int64_t shift) {
    if (!kit_going(k)) return NULL;
    if (k->buffer_count == KIT_BUFFER_MAX) {
        kit_fail(k, "the case opens more than %d buffers", KIT_BUFFER_MAX);
        return NULL;
    }
    kit_buffer *b = &k->buffers[k->buffer_count++];
    const uint64_t bytes = rows > 0 ? (uint64_t)((rows - 1) * stride + row_bytes) : 0;
    *b = (kit_buffer){.name = name, .role = role, .rows = rows, .row_bytes = row_bytes, .stride = stride};
    b->offset = GUARD + (uint64_t)shift;
    b->total = b->offset + bytes + GUARD;
    b->image = malloc(b->total);
    b->now = malloc(b->total);
    if (!b->image || !b->now) {
        kit_fail(k, "the kit has no host memory for %s", name);
        return NULL;
    }
    memset(b->image, POISON, b->total);
    if (from) memcpy(b->image + b->offset, from, bytes);
    char words[200];
    const oh_status status = k->table->alloc(k->seat.device, b->total, &b->allocation);
    if (status != OH_OK || !b->allocation) {
        kit_fail(k, "alloc of %llu bytes: status %d, %s", (unsigned long long)b->total, (int)status,
                 kit_words(&k->seat, words));
        b->allocation = NULL;
        return NULL;
    }
    b->at = (unsigned char *)b->allocation + b->offset;
    return upload(k, b) ? b : NULL;
}

kit_buffer *kit_bytes(kit *k, const char *name, kit_role role, const void *from, int64_t bytes) {
    return kit_rows(k, name, role, from, 1, bytes, bytes, 0);
}

kit_buffer *kit_matrix(kit *k, const char *name, kit_role role, const double *from, int64_t rows, int64_t columns,
                       int64_t ld, int64_t shift, int32_t dtype, double decoy) {
    const int64_t size = float_size(dtype), elements = rows > 0 ? (rows - 1) * ld + columns : 0;
    unsigned char *stored = from ? kit_host(k, elements, (size_t)size) : NULL;
    if (from && !stored) return NULL;
    if (from)
        for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = 0; j < (i + 1 < rows ? ld : columns); ++j)
                float_store(stored, i * ld + j, dtype, j < columns ? from[i * columns + j] : decoy);
    return kit_rows(k, name, role, stored, rows, columns * size, ld * size, shift * size);
}

void *kit_at(const kit_buffer *buffer) {
    return buffer ? buffer->at : NULL;
}

const void *kit_result(const kit_buffer *buffer) {
    return buffer ? buffer->now + buffer->offset : NULL;
}

double *kit_values(kit *k, const kit_buffer *buffer, int64_t rows, int64_t columns, int64_t ld, int32_t dtype) {
    double *values = kit_doubles(k, rows * columns);
    if (!values || !buffer) return values;
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j)
            values[i * columns + j] = float_load(kit_result(buffer), i * ld + j, dtype);
    return values;
}

/* ---------------------------------------------------------------------------------------------------- running ---- */

/* The first byte of [first, end) that changed, or -1. */
static int64_t changed(const kit_buffer *b, uint64_t first, uint64_t end) {
    if (memcmp(b->image + first, b->now + first, end - first) == 0) return -1;
    while (b->image[first] == b->now[first])
        ++first;
    return (int64_t)first;
}

/* Whether a run left alone what isn't its to write. */
static bool check_untouched(kit *k, const kit_buffer *b) {
    if (b->role == KIT_IN) {
        const int64_t at = changed(b, 0, b->total);
        if (at >= 0) kit_fail(k, "input %s was written at byte %lld", b->name, (long long)(at - (int64_t)b->offset));
        return at < 0;
    }
    uint64_t from = 0;
    for (int64_t row = 0; row <= b->rows; ++row) {
        const uint64_t row_at = b->offset + (uint64_t)(row * b->stride), end = row < b->rows ? row_at : b->total;
        const int64_t at = end > from ? changed(b, from, end) : -1;
        if (at >= 0) {
            const char *where = from == 0       ? "before its first row"
                                : row < b->rows ? "between rows"
                                                : "past its last row";
            kit_fail(k, "%s was written %s, at byte %lld (rows of %lld bytes, %lld apart)", b->name, where,
                     (long long)(at - (int64_t)b->offset), (long long)b->row_bytes, (long long)b->stride);
            return false;
        }
        from = row_at + (uint64_t)b->row_bytes;
    }
    return true;
}

bool kit_prepare(kit *k) {
    for (int i = 0; i < k->buffer_count && kit_going(k); ++i)
        if (k->buffers[i].role != KIT_IN) upload(k, &k->buffers[i]);
    return kit_going(k);
}

bool kit_collect(kit *k) {
    for (int i = 0; i < k->buffer_count && kit_going(k); ++i)
        if (download(k, &k->buffers[i])) check_untouched(k, &k->buffers[i]);
    return kit_going(k);
}

static bool run_once(kit *k, kit_call *call, const void *arguments) {
    char words[200];
    if (!kit_prepare(k)) return false;
    oh_status status = call(&k->seat, arguments);
    if (status != OH_OK) {
        kit_fail(k, "status %d, %s", (int)status, kit_words(&k->seat, words));
        return false;
    }
    status = k->table->queue_wait(k->seat.queue);
    if (status != OH_OK) {
        kit_fail(k, "queue_wait: status %d, %s", (int)status, kit_words(&k->seat, words));
        return false;
    }
    return kit_collect(k);
}

/* The first defined byte, from the buffer's address on, that isn't what it was `before`; -1: none. */
static int64_t differing(const kit_buffer *b, const unsigned char *before) {
    if (memcmp(before, b->now, b->total) == 0) return -1;
    for (uint64_t i = 0; i < b->total; ++i) {
        const int64_t at = (int64_t)i - (int64_t)b->offset;
        const bool counts = !b->defined || at < 0 || b->defined[at % b->period];
        if (before[i] != b->now[i] && counts) return at;
    }
    return -1;
}

/* Runs again; what came out must be what came out before. */
static bool run_again(kit *k, kit_call *call, const void *arguments) {
    unsigned char *before[KIT_BUFFER_MAX] = {NULL};
    for (int i = 0; i < k->buffer_count; ++i) {
        if (k->buffers[i].role == KIT_IN || k->buffers[i].role == KIT_SCRATCH) continue;
        before[i] = kit_host(k, (int64_t)k->buffers[i].total, 1);
        if (!before[i]) return false;
        memcpy(before[i], k->buffers[i].now, k->buffers[i].total);
    }
    if (!run_once(k, call, arguments)) return false;
    for (int i = 0; i < k->buffer_count; ++i) {
        const kit_buffer *b = &k->buffers[i];
        const int64_t at = before[i] ? differing(b, before[i]) : -1;
        if (at < 0) continue;
        kit_fail(k, "%s differs between two runs, from byte %lld on, though the plugin claims OH_CAP_DETERMINISTIC",
                 b->name, (long long)at);
        return false;
    }
    return true;
}

bool kit_run(kit *k, kit_call *call, const void *arguments) {
    if (!kit_going(k) || !run_once(k, call, arguments)) return false;
    return !(k->table->caps & OH_CAP_DETERMINISTIC) || run_again(k, call, arguments);
}

static void check_refusal(kit *k, kit_call *call, const void *arguments, const char *what, oh_status one,
                          oh_status other) {
    if (!kit_going(k)) return;
    const oh_status status = call(&k->seat, arguments);
    const oh_status waited = k->table->queue_wait(k->seat.queue);
    if (status != one && status != other) {
        kit_fail(k, "%s: status %d, expected a refusal with %s", what, (int)status,
                 one == OH_UNSUPPORTED ? "OH_UNSUPPORTED" : "OH_INVALID_ARGUMENT");
        return;
    }
    if (waited != OH_OK) kit_fail(k, "%s: was refused, and then queue_wait gave status %d", what, (int)waited);
    oh_error error = {OH_OK, ""};
    k->table->last_error(k->seat.device, &error);
    if (!k->report->ops[k->op].is_portable && (error.status != status || !error.message[0]))
        kit_fail(k, "%s: refused with status %d, but last_error has status %d and the words \"%.100s\"", what,
                 (int)status, (int)error.status, error.message);
    for (int i = 0; i < k->buffer_count && kit_going(k); ++i) {
        kit_buffer *b = &k->buffers[i];
        if (download(k, b) && changed(b, 0, b->total) >= 0)
            kit_fail(k, "%s: was refused, yet %s was written", what, b->name);
    }
}

void kit_refused(kit *k, kit_call *call, const void *arguments, const char *what, oh_status other) {
    check_refusal(k, call, arguments, what, OH_INVALID_ARGUMENT, other);
}

void kit_unsupported(kit *k, kit_call *call, const void *arguments, const char *what) {
    check_refusal(k, call, arguments, what, OH_UNSUPPORTED, OH_UNSUPPORTED);
}
