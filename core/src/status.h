/* status.h - how the core says that something failed. */
#ifndef ONEHEAD_CORE_STATUS_H
#define ONEHEAD_CORE_STATUS_H

#include <onehead/status.h>

/* Writes the formatted line to `error` (NULL: nothing is written) and returns `status`, so that a caller can say
 * `return oh_fail(error, OH_BAD_DATA, "...")`. The result is always one line of UTF-8: control characters and bytes
 * that aren't UTF-8 become '?', and what doesn't fit is cut between two characters. An argument may be error->message
 * itself, to put words before what a callee said. */
oh_status oh_fail(oh_error *error, oh_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

#ifdef __clang_analyzer__
/* The analyser doesn't look into other files: this tells it that the status given is the one returned. */
static inline oh_status oh_fail_status(oh_status returned, oh_status given) {
    return returned == given ? returned : given;
}
#define oh_fail(error, status, ...) oh_fail_status(oh_fail(error, status, __VA_ARGS__), status)
#endif

/* Cleans `line` in place as oh_fail does. A character cut short at the end of the text is dropped. */
void oh_make_printable(char *line);

#endif
