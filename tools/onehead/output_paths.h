/* output_paths.h - outputs that would write over an input, or over each other. */
#ifndef ONEHEAD_TOOL_OUTPUT_PATHS_H
#define ONEHEAD_TOOL_OUTPUT_PATHS_H

#include "options.h"

/* Refuses an output of the command (--grad, --rows, --trace, --out, --dot) that is one of its inputs, a file of the
 * checkpoint that --lm-head names, or another of its outputs, through whatever links and folders. OH_INVALID_ARGUMENT
 * names both. Files that appear or move afterwards are the caller's own. */
oh_status output_paths_check(const options *o, oh_error *error);

#endif
