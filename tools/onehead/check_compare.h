/* check_compare.h - two results of one request, or a result and golden values, entry by entry. */
#ifndef ONEHEAD_TOOL_CHECK_COMPARE_H
#define ONEHEAD_TOOL_CHECK_COMPARE_H

#include "check_figures.h"

#include <jansson.h>

/* One figure, or of an array its entry with the largest difference. */
typedef struct check_entry {
    char name[40];
    double expected, found;
    double absolute, ulp; /* the difference; ulp: in units of f32's last place at `expected` */
    double bound;         /* infinite: not judged */
    int64_t row, column;  /* of arrays, else -1 */
    bool agrees;
} check_entry;

typedef struct check_comparison {
    char subject[120];   /* what was run: "policy recompute, chunk 512" */
    char reference[120]; /* what it is compared with: another run, or a set of golden values */
    check_entry *entries;
    size_t count, capacity;
    bool agrees; /* all of them */
} check_comparison;

/* Figures, and what both have of: gradient rows, row losses, labels, argmaxes, top-K lists, the head's gradient. */
oh_status compare_results(check_comparison *comparison, const oh_request *request, const check_scale *scale,
                          const step_result *expected, const step_result *found, oh_error *error);

/* The figures that `golden` has, an object with keys as in run's JSON. */
oh_status compare_golden(check_comparison *comparison, const oh_request *request, const check_scale *scale,
                         const json_t *golden, const step_result *found, oh_error *error);

/* The entry that comes closest to its bound, or exceeds it most; NULL when there is none with a difference. */
const check_entry *comparison_worst(const check_comparison *comparison);

/* How close that entry comes, as a part of its bound; over 1 where they disagree. */
double comparison_severity(const check_comparison *comparison);

void comparison_free(check_comparison *comparison);

#endif
