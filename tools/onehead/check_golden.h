/* check_golden.h - golden values: option sets, each with the figures that a batch must give under it.
 *
 *     {"batch0.safetensors": {"kl_exp10": {"args": "--decay exp:10", "loss": 2.475, ...}, ...}}
 *
 * or, with one set a file, {"batch0.safetensors": {"args": "", "loss": 2.475, ...}}. Keys are those of run's JSON; what
 * has another key or is no number is left alone. */
#ifndef ONEHEAD_TOOL_CHECK_GOLDEN_H
#define ONEHEAD_TOOL_CHECK_GOLDEN_H

#include <onehead/status.h>

#include "json_text.h"

typedef struct golden_values {
    json_t *root;
    const json_t *sets; /* object of sets */
    json_t *single;     /* owns the object made for a file of one set */
} golden_values;

/* Reads `path` (NULL: the built-in sample's values) and finds the entry of the batch's file, without its folder. On
 * failure the record is zeroed. Errors: OH_BAD_DATA, also for a file that can't be read; OH_OUT_OF_MEMORY. */
oh_status golden_open(golden_values *golden, const char *path, const char *batch, oh_error *error);
void golden_close(golden_values *golden); /* a zeroed record is fine */

#endif
