/* run_many.h - `onehead run` over many batch files: figures of all of them together, without gradients. */
#ifndef ONEHEAD_TOOL_RUN_MANY_H
#define ONEHEAD_TOOL_RUN_MANY_H

#include "options.h"

/* Whether the options ask for it. */
bool run_many_is_meant(const options *o);

/* Runs the pass, prints its figures and returns the exit code. */
int run_many(options *o, const char *command);

#endif
