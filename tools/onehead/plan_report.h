/* plan_report.h - a plan, for programs, for people and for Graphviz. */
#ifndef ONEHEAD_TOOL_PLAN_REPORT_H
#define ONEHEAD_TOOL_PLAN_REPORT_H

#include "atomic_file.h"
#include "json_text.h"
#include "options.h"
#include "plan_rate.h"

enum { PLAN_POLICIES = 3 };

typedef struct plan_policy {
    int32_t policy;
    bool possible; /* else there is no summary */
    oh_plan_summary summary;
} plan_policy;

typedef struct plan_report {
    const oh_request *request;
    const oh_backend *backend; /* whose claims the plan is made by; NULL: as on a CPU */
    const oh_plan *plan;
    plan_policy policies[PLAN_POLICIES]; /* naive, recompute, cached at the plan's chunk, whatever memory they take */
    plan_policy within[PLAN_POLICIES];   /* the same within the memory, each with the chunk that it allows */
    plan_rate rate;
    bool chunk_of_preset;
    /* The next larger chunk and the memory it would take; 0 where the whole step is one chunk. */
    int64_t larger_chunk, larger_bytes;
} plan_report;

/* NULL when out of memory. */
json_t *plan_report_json(const plan_report *report);

void plan_report_print(const plan_report *report);

/* Writes the graph before and after merging as a Graphviz file, which is then the caller's to commit. On failure *file
 * is NULL. */
oh_status plan_report_dot(const plan_report *report, const char *path, atomic_file **file, oh_error *error);

#endif
