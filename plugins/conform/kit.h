/* kit.h - what cases are written with: the device under test, buffers that notice what shouldn't happen to them, and
 * one way to run an operation.
 *
 * A case:
 *     if (!kit_begin(k, CONFORM_GEMM, "gemm/nt/f32/%s", shape)) return;
 *     open buffers, kit_run, compare (verdict.h)
 *     kit_end(k);
 * The first thing that goes wrong is what the report says; everything after it in the case does nothing. */
#ifndef ONEHEAD_CONFORM_KIT_H
#define ONEHEAD_CONFORM_KIT_H

#include <stdbool.h>
#include <stdint.h>

#include "conform.h"
#include "draws.h"
#include "floats.h"
#include "operations.h"

typedef enum kit_role {
    KIT_IN,      /* may not change */
    KIT_OUT,     /* NaN before each run: an operation that reads it is found out */
    KIT_IN_OUT,  /* holds its image before each run */
    KIT_SCRATCH, /* NaN before each run; what it holds afterwards is no result */
} kit_role;

/* Device memory with guards. Rows of row_bytes lie `stride` apart; all other bytes, those between rows and those around
 * the buffer, must stay what they were. */
typedef struct kit_buffer {
    const char *name;
    kit_role role;
    void *at; /* device address of the first row */
    int64_t rows, row_bytes, stride;
    void *allocation; /* device */
    uint64_t total, offset;
    unsigned char *image, *now;   /* host, `total` bytes: before a run, and as read after it */
    const unsigned char *defined; /* [period] 0 for bytes of an element that a result leaves undefined; NULL: none */
    int64_t period;
} kit_buffer;

enum { KIT_BUFFER_MAX = 40 };

typedef struct kit {
    const conform_options *options;
    conform_report *report;
    const oh_backend *table;
    kit_seat seat;
    int64_t failure_capacity;

    /* The case. */
    conform_op op;
    char name[CONFORM_NAME_SIZE];
    uint64_t key;
    bool failed, skipped;
    kit_buffer buffers[KIT_BUFFER_MAX];
    int buffer_count;
    void *host; /* its host memory, a list through the first word of each block */
} kit;

/* -------------------------------------------------------------------------------------------------- the case ---- */

/* Starts a case unless the filter leaves it out. */
__attribute__((format(printf, 3, 4))) bool kit_begin(kit *k, conform_op op, const char *format, ...);
void kit_end(kit *k);

/* Whether nothing went wrong yet. */
bool kit_going(const kit *k);

__attribute__((format(printf, 2, 3))) void kit_fail(kit *k, const char *format, ...);
/* Leaves the case out; the report has the reason. */
__attribute__((format(printf, 2, 3))) void kit_skip(kit *k, const char *format, ...);

/* A key of its own for one of the case's streams of random numbers. */
uint64_t kit_stream(const kit *k, const char *stream);

/* Zeroed host memory of the case; never NULL while kit_going. */
void *kit_host(kit *k, int64_t count, size_t size);
double *kit_doubles(kit *k, int64_t count);

/* --------------------------------------------------------------------------------------------------- buffers ---- */

/* Opens a buffer whose first row is `shift` bytes off a 256-byte boundary. `from`, laid out with the stride, may be NULL
 * (all NaN) for KIT_OUT. NULL when the case has gone wrong. */
kit_buffer *kit_rows(kit *k, const char *name, kit_role role, const void *from, int64_t rows, int64_t row_bytes,
                     int64_t stride, int64_t shift);
kit_buffer *kit_bytes(kit *k, const char *name, kit_role role, const void *from, int64_t bytes);

/* A matrix of one of the three dtypes from [rows, columns] doubles (rounded), or all NaN; `ld` its stride in elements,
 * `shift` in elements. Elements between rows are `decoy`: a plugin that reads them gets another answer. */
kit_buffer *kit_matrix(kit *k, const char *name, kit_role role, const double *from, int64_t rows, int64_t columns,
                       int64_t ld, int64_t shift, int32_t dtype, double decoy);

/* Device address; NULL of NULL. */
void *kit_at(const kit_buffer *buffer);

/* Host copy of what the last run left, from the first row on. */
const void *kit_result(const kit_buffer *buffer);

/* The result of a matrix as [rows, columns] doubles. */
double *kit_values(kit *k, const kit_buffer *buffer, int64_t rows, int64_t columns, int64_t ld, int32_t dtype);

/* ---------------------------------------------------------------------------------------------------- running ---- */

typedef oh_status kit_call(const kit_seat *seat, const void *arguments);

/* The parts of a run: fresh outputs on the device; and, after the wait, all buffers read and guards and inputs checked. */
bool kit_prepare(kit *k);
bool kit_collect(kit *k);

/* Runs call(seat, arguments) on fresh outputs, waits and reads them. Checks statuses, guards, that inputs didn't change
 * and, for a plugin that claims determinism, that a second run gives the same bits. */
bool kit_run(kit *k, kit_call *call, const void *arguments);

/* Runs a call that must be refused: OH_INVALID_ARGUMENT (or `other`), words in last_error where the entry is the
 * plugin's own, and nothing written. `what` says what is wrong with the arguments. */
void kit_refused(kit *k, kit_call *call, const void *arguments, const char *what, oh_status other);

/* The same of a call that is possible but not claimed: OH_UNSUPPORTED and nothing else. */
void kit_unsupported(kit *k, kit_call *call, const void *arguments, const char *what);

/* The latest error's words of a seat, for messages. */
const char *kit_words(const kit_seat *seat, char text[200]);

/* A kit of the same case for another device or queue, with a report of its own; and its end, which tells `k` of the
 * first failure. */
void kit_fork(const kit *k, kit *other, conform_report *report, const kit_seat *seat);
void kit_join(kit *k, kit *other, const char *who);

/* --------------------------------------------------------------------------------------------------- samples ---- */

/* One call of middling size, for the cases that are about how calls get along and for the benchmark. */
typedef struct kit_sample {
    kit_call *call;
    const void *arguments;
    void (*judge)(kit *k, const void *state); /* after kit_collect */
    const void *state;
    double bytes, flops; /* that a call must move and do */
} kit_sample;

typedef struct kit_sample_size {
    int64_t rows, columns, depth;
} kit_sample_size;

/* Open the sample's buffers; kit_going says whether it worked. */
typedef void kit_sample_open(kit *k, const kit_sample_size *size, kit_sample *sample);
kit_sample_open sample_gemm, sample_copy_rows, sample_matrix_norm, sample_tile_stats, sample_tile_overlap,
    sample_tile_grad, sample_tile_stats_grad, sample_row_finish;

typedef struct kit_sample_kind {
    conform_op op;
    const char *name;
    kit_sample_open *open;
} kit_sample_kind;

enum { KIT_SAMPLES = 8 };
extern const kit_sample_kind kit_samples[KIT_SAMPLES];

/* Whether the table has what a sample of an operation on tiles needs: a tile format, and the operation. */
bool kit_has_sample(const kit *k, conform_op op);

/* The first tile format that the plugin claims, f32 before others; -1: none. */
int32_t kit_tile_format(const kit *k);

/* --------------------------------------------------------------------------------------------------- the cases ---- */

void cases_device(kit *k);
void cases_events(kit *k);
void cases_memory(kit *k);
void cases_gemm(kit *k);
void cases_copy_rows(kit *k);
void cases_matrix_norm(kit *k);
void cases_tile_stats(kit *k);
void cases_tile_overlap(kit *k);
void cases_tile_grad(kit *k);
void cases_tile_grad_overlap(kit *k);
void cases_tile_stats_grad(kit *k);
void cases_tile_overflow(kit *k);
void cases_row_finish(kit *k);
void cases_step_finish(kit *k);
void cases_row_labels(kit *k);
void cases_row_select(kit *k);
void cases_offsets(kit *k);    /* rows far apart: 64-bit offsets */
void cases_concurrent(kit *k); /* two queues; two devices from two threads */
void bench_operations(kit *k);

#endif
