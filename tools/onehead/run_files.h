/* run_files.h - the files that `run` writes: --grad and --rows.
 *
 * Begun before the step, so that a name that can't be written is told at once; committed with everything else that the
 * command writes, so that all of it appears or nothing does. */
#ifndef ONEHEAD_TOOL_RUN_FILES_H
#define ONEHEAD_TOOL_RUN_FILES_H

#include "safetensors_write.h"
#include "step.h"

typedef struct run_files {
    st_writer *grad, *rows; /* NULL: not asked for */
} run_files;

/* Creates the temporary files. On failure nothing is left behind. */
oh_status run_files_begin(run_files *files, const options *o, const oh_request *request, oh_error *error);

/* Writes the tensors. */
oh_status run_files_write(run_files *files, const step_result *result, oh_error *error);

enum { RUN_FILES_MOST = 2 };

/* Gives the files, which are then the caller's to commit, and NULL for those not asked for. On failure discard is still
 * to be called, and both are NULL. */
oh_status run_files_end(run_files *files, atomic_file *ended[RUN_FILES_MOST], oh_error *error);

/* Removes what isn't finished; a zeroed record is fine. */
void run_files_discard(run_files *files);

#endif
