/* run_report.h - the results of `run`, for programs and for people. */
#ifndef ONEHEAD_TOOL_RUN_REPORT_H
#define ONEHEAD_TOOL_RUN_REPORT_H

#include "json_text.h"
#include "step.h"

typedef struct run_seconds {
    double read, open, plan, run, write, total;
} run_seconds;

typedef struct run_report {
    const char *backend;
    const char *embedding; /* that serves as the head; NULL: a head does */
    const oh_request *request;
    const step_result *result;
    bool has_target;
    run_seconds seconds;
} run_report;

const char *policy_name(int32_t policy); /* oh_policy */
const char *tile_name(int32_t tile);     /* oh_tile_format */

/* The object whose keys README.md lists; NULL when out of memory. */
json_t *run_report_json(const run_report *report);

void run_report_print(const run_report *report, const char *name);

#endif
