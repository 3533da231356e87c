/* run_sums.h - a pass over many batches: what has been added up so far, and the file that a later run continues from.
 *
 * The file is JSON; sums are hexadecimal floating-point texts, so that a continued pass adds to exactly the same
 * numbers. It names the settings, and the files that are done: they must be the first of the pass that continues, and as
 * they were, as must be the weight that all share. Files after them may have changed: the sums are of what is read. */
#ifndef ONEHEAD_TOOL_RUN_SUMS_H
#define ONEHEAD_TOOL_RUN_SUMS_H

#include "batch_list.h"
#include "options.h"

typedef struct run_sums {
    int64_t batches, rows; /* done */
    int64_t plan_rows,
        plan_target_rows; /* that the latest plan was made for: chunks, and with them roundings, follow */
    int64_t projections_draft, projections_target, gemms, tile_reads;
    double seconds;  /* of steps */
    int has_target;  /* -1: no batch yet */
    file_stamp head; /* of --lm-head's file; 0 without one */
    double *sums;    /* [count], oh_sum_count(objective) */
    int64_t count;
} run_sums;

oh_status run_sums_init(run_sums *s, const oh_objective *objective, oh_error *error);
void run_sums_free(run_sums *s); /* a zeroed record is fine */

/* Adds a step's sums [count]; row numbers in it count from the step's first row. */
void run_sums_add(run_sums *s, const double *sums, int64_t rows);

/* Figures of everything so far. Slot arrays in `figures` point into `s`. */
void run_sums_figures(const run_sums *s, const oh_objective *objective, uint32_t produce, oh_results *figures);

/* Writes the file, whole or not at all. */
oh_status run_sums_save(const run_sums *s, const char *path, const options *o, const batch_list *list, oh_error *error);

/* Reads the file where there is one; otherwise `s` stays as it is. OH_BAD_DATA: not such a file, or of a pass with
 * other settings, or whose files are others or were changed; says which. */
oh_status run_sums_load(run_sums *s, const char *path, const options *o, const batch_list *list, oh_error *error);

#endif
