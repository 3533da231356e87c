/* run_files.h - the files that `run` writes: --grad and --rows.
 *
 * Begun before the step, so that a name that can't be written is told at once; both appear together at the end. */
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

/* Gives the files their names. On failure discard is still to be called. */
oh_status run_files_finish(run_files *files, oh_error *error);

/* Removes what isn't finished; a zeroed record is fine. */
void run_files_discard(run_files *files);

#endif
