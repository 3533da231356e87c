/* error_line.h - fills an oh_error with one printable line about a file. */
#ifndef ONEHEAD_TOOL_ERROR_LINE_H
#define ONEHEAD_TOOL_ERROR_LINE_H

#include <onehead/status.h>

/* Writes "SUBJECT: formatted text" to `error` (NULL: nothing is written) and returns `status`, so that a caller can say
 * `return error_line(error, OH_BAD_DATA, path, "...")`. Names that come out of a hostile file may be megabytes long or
 * hold control characters: a long subject keeps only its end, control characters and bytes that aren't UTF-8 become
 * '?'. Callers bound other strings with a precision, `%.100s` say, so that the expected value still fits. */
oh_status error_line(oh_error *error, oh_status status, const char *subject, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#ifdef __clang_analyzer__
/* The analyser doesn't look into other files: this tells it that the status given is the one returned. */
static inline oh_status error_line_status(oh_status returned, oh_status given) {
    return returned == given ? returned : given;
}
#define error_line(error, status, subject, ...)                                                                        \
    error_line_status(error_line(error, status, subject, __VA_ARGS__), status)
#endif

#endif
