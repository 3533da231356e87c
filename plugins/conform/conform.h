/* conform.h - the conformance kit: calls every entry of a backend's table with known answers and judges what comes back.
 *
 * The answers are the kit's own: formed in f64 from the definitions in backend.h, sharing no code with the operations
 * that it judges. So an entry that a plugin leaves NULL is judged too, as the core's portable operation.
 *
 * A case has a name, "gemm/nt/f32/17x33x65", and its data depend on the seed, that name and the element's index alone:
 * which other cases run changes nothing. Everything goes through the table's own alloc, upload, download and fill, so
 * the kit works on any device. */
#ifndef ONEHEAD_CONFORM_H
#define ONEHEAD_CONFORM_H

#include <onehead/backend.h>

enum { CONFORM_NAME_SIZE = 128, CONFORM_TEXT_SIZE = 400 };

typedef enum conform_op {
    CONFORM_DEVICE,
    CONFORM_QUEUE,
    CONFORM_EVENT,
    CONFORM_MEMORY,
    CONFORM_GEMM,
    CONFORM_COPY_ROWS,
    CONFORM_MATRIX_NORM,
    CONFORM_TILE_STATS,
    CONFORM_TILE_OVERLAP,
    CONFORM_TILE_GRAD,
    CONFORM_TILE_GRAD_OVERLAP,
    CONFORM_TILE_STATS_GRAD,
    CONFORM_TILE_OVERFLOW,
    CONFORM_ROW_FINISH,
    CONFORM_STEP_FINISH,
    CONFORM_ROW_LABELS,
    CONFORM_ROW_SELECT,
    CONFORM_OP_COUNT
} conform_op;

typedef struct conform_options {
    const char *backend; /* name or path */
    const char *filter;  /* "gemm" or "gemm/nt": only cases whose name begins so, whole parts; NULL: all */
    uint64_t seed;
    int32_t device, threads;
    int32_t bench; /* time the operations instead of judging them */
    void *user;
    void (*starting)(void *user, const char *name); /* before each case, from the caller's thread; may be NULL */
} conform_options;

typedef struct conform_op_report {
    const char *name;
    int32_t is_portable; /* the table has NULL: the core's operation was judged */
    int64_t cases, failed, skipped;
    double worst; /* largest error as a part of its bound; above 1 is a failure */
    char worst_case[CONFORM_NAME_SIZE];
    char skip_reason[CONFORM_TEXT_SIZE]; /* of the first case that was left out */
} conform_op_report;

typedef struct conform_failure {
    conform_op op;
    char name[CONFORM_NAME_SIZE];
    char text[CONFORM_TEXT_SIZE]; /* the first wrong thing: what, where, got, expected, bound */
} conform_failure;

typedef struct conform_timing {
    conform_op op;
    char name[CONFORM_NAME_SIZE];
    double seconds;      /* best of several */
    double bytes, flops; /* that one call must move and do */
} conform_timing;

typedef struct conform_report {
    char backend[64], build[200];
    oh_device_info device;
    conform_op_report ops[CONFORM_OP_COUNT];
    int64_t failure_count, timing_count;
    conform_failure *failures;
    conform_timing *timings;
} conform_report;

/* Loads the backend, runs the cases and fills *report, which conform_free gives back. OH_OK means that the kit ran, not
 * that the backend is right: failure_count says that. A backend that can't be loaded or opened is an error. A case that
 * crashes ends the process with exit code 1 and a line on stderr that names it (not under a sanitizer, whose own report
 * is better); for that, handlers of fatal signals are set while cases run. One run at a time in a process. */
oh_status conform_run(const conform_options *options, conform_report **report, oh_error *error);
void conform_free(conform_report *report);

#endif
