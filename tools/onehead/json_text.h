/* json_text.h - JSON on stdout. */
#ifndef ONEHEAD_TOOL_JSON_TEXT_H
#define ONEHEAD_TOOL_JSON_TEXT_H

#include <onehead/status.h>

#include <jansson.h>

/* A number, or null for NaN and infinities, which JSON can't hold. NULL when out of memory. */
json_t *json_number(double value);

/* Prints `root` with 17 significant digits, enough to read every double back, and drops the reference. NULL means that
 * building it ran out of memory. */
oh_status json_print(json_t *root, oh_error *error);

#endif
