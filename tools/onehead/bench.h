/* bench.h - steps and their bare products, measured together. */
#ifndef ONEHEAD_TOOL_BENCH_H
#define ONEHEAD_TOOL_BENCH_H

#include "options.h"
#include "samples.h"
#include "span_log.h"

enum { BENCH_POLICIES = 3, BENCH_TILES = 5, BENCH_CASES_MAX = BENCH_POLICIES * BENCH_TILES, BENCH_REPEATS_MAX = 1000 };

/* All of a step's operations of one kind. */
typedef struct bench_pass {
    int64_t calls;
    double flops, bytes;
    samples_summary ms;
} bench_pass;

typedef struct bench_result {
    const char *series; /* what varies from one result to the next: "rows"; "" outside of a series */
    int32_t policy, tile;
    int64_t rows, hidden, vocab, chunk, threads;
    char error[500]; /* why there are no figures, "" when there are */
    oh_plan_summary plan;
    int64_t projections_draft, projections_target, gemms, tile_reads; /* as run */
    int64_t repeats;
    samples_summary step_ms, gemms_ms, ratio;             /* ratio: of each step to the products right after it */
    samples_summary step_cpu_ms, gemms_cpu_ms, cpu_ratio; /* of the process; cpu_ratio: as ratio, of these */
    samples_summary traced_ms;                            /* the step with an observer, the source of `passes` */
    double flops;                                         /* of the products, as run */
    double grad_error; /* of dD to that of f32 tiles, as a ratio of 2-norms; NaN: nothing to compare with */
    span_clock pass_clock;
    bench_pass passes[OH_SPAN_COUNT];
} bench_result;

typedef struct bench_setup {
    const options *options;
    oh_request request; /* of the largest step; policy and tile are set by case */
    int32_t policies[BENCH_POLICIES], tiles[BENCH_TILES];
    int policy_count, tile_count;
    int64_t threads; /* 0: the backend's default */
} bench_setup;

typedef struct bench_output {
    bench_result *results;
    int64_t count, capacity;
    oh_device_info device; /* of the latest context */
    const oh_backend *table;
    double copy_rate;               /* of a device with memory of its own, bytes a second; 0: not measured */
    int64_t device_bytes;           /* taken of a device's own memory, inputs included; 0: it has none, or not known */
    char note[300];                 /* what the backend had to say, "" for nothing */
    span_log logs[BENCH_CASES_MAX]; /* last traced step of each case of the latest group, and the case's name */
    char log_names[BENCH_CASES_MAX][40];
    int log_count;
} bench_output;

/* Measures every policy and tile format of the setup, interleaved round by round: a step, its products, a step with an
 * observer. Cases whose plan can't be made become results with an error. */
oh_status bench_group(bench_output *output, const bench_setup *setup, const char *series, oh_error *error);

/* --series NAME: groups with half, a quarter and an eighth of rows, vocab, chunk or threads before the full one. Without
 * a series it's the full one alone. */
oh_status bench_series(bench_output *output, const bench_setup *setup, const char *series, oh_error *error);

void bench_output_close(bench_output *output); /* a zeroed record is fine */

#endif
