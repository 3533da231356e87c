/* json_text.h - JSON read, and JSON on stdout. */
#ifndef ONEHEAD_TOOL_JSON_TEXT_H
#define ONEHEAD_TOOL_JSON_TEXT_H

#include <onehead/status.h>

#include <jansson.h>
#include <stdbool.h>

/* json_loadb and json_load_file, which can't be called themselves: where memory runs out jansson's parser may end the
 * process, call a good token a wrong one, or go on with half of it. Here the result is then NULL, with
 * json_error_out_of_memory as json_error_code(why). */
json_t *json_parse(const void *bytes, size_t size, size_t flags, json_error_t *why);
json_t *json_parse_file(const char *path, size_t flags, json_error_t *why);

/* json_dumps, whose text free takes. */
char *json_text(const json_t *root, size_t flags);

/* For failures of jansson's that may have either cause, of text that isn't UTF-8 or of memory: whether an allocation of
 * jansson's has failed on this thread since json_forget. */
void json_forget(void);
bool json_ran_out(void);

/* A number, or null for NaN and infinities, which JSON can't hold. NULL when out of memory. */
json_t *json_number(double value);

/* Prints `root` with 17 significant digits, enough to read every double back, and drops the reference. NULL means that
 * building it ran out of memory. */
oh_status json_print(json_t *root, oh_error *error);

#endif
