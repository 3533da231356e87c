/* numbers.h - numbers from a command line: the whole text or nothing. */
#ifndef ONEHEAD_TOOL_NUMBERS_H
#define ONEHEAD_TOOL_NUMBERS_H

#include <stdbool.h>
#include <stdint.h>

/* Decimal integer in [least, most]. */
bool number_integer(const char *text, int64_t least, int64_t most, int64_t *value);

/* Decimal number in [least, most], "0.1" or "1e-4"; no NaN, infinity or hexadecimal. A text that rounds to 0 or over
 * the largest double is refused. */
bool number_real(const char *text, double least, double most, double *value);

/* Bytes, at least 1: an integer with or without one of the suffixes K, M, G, powers of 1,024. */
bool number_bytes(const char *text, int64_t *bytes);

#endif
