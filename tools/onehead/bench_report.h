/* bench_report.h - measurements, for programs and for people. */
#ifndef ONEHEAD_TOOL_BENCH_REPORT_H
#define ONEHEAD_TOOL_BENCH_REPORT_H

#include "bench.h"
#include "json_text.h"
#include "machine.h"

typedef struct bench_report {
    const bench_setup *setup;
    const bench_output *output;
    const machine_facts *machine;
    const char *backend, *executable;
    double copy_rate;    /* bytes a second, read plus written; 0: not measured */
    double load_after;   /* load average of the last minute when the measurement was over */
    int64_t peak_memory; /* of the process */
} bench_report;

/* Google Benchmark's shape: `context` and `benchmarks`. NULL when out of memory. */
json_t *bench_report_json(const bench_report *report);

void bench_report_print(const bench_report *report);

/* The name of a result's measurement: "cached/f32/rows:512/hidden:1024/vocab:50257/chunk:256". */
typedef struct bench_name {
    char text[160];
} bench_name;
bench_name bench_result_name(const bench_result *result);

/* Whether operations of a kind are matrix products. */
bool bench_is_product(int kind);

#endif
