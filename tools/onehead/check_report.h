/* check_report.h - what a check compared and found, for programs and for people. */
#ifndef ONEHEAD_TOOL_CHECK_REPORT_H
#define ONEHEAD_TOOL_CHECK_REPORT_H

#include "check_compare.h"

/* A run that could not be made, which is no disagreement. */
typedef struct check_omission {
    char subject[120];
    char reason[300];
} check_omission;

typedef struct check_report {
    const char *batch, *backend;
    const char *embedding;   /* that serves as the head; NULL: a head does */
    check_comparison *steps; /* of one request, all against its first run */
    size_t step_count;
    check_comparison *golden; /* against golden values */
    size_t golden_count;
    check_omission *omissions;
    size_t omission_count;
    char reference[120]; /* the first run */
} check_report;

bool check_report_agrees(const check_report *report);

json_t *check_report_json(const check_report *report); /* NULL when out of memory */

void check_report_print(const check_report *report);

void check_report_free(check_report *report);

#endif
