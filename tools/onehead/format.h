/* format.h - numbers as people read them. */
#ifndef ONEHEAD_TOOL_FORMAT_H
#define ONEHEAD_TOOL_FORMAT_H

#include <stdint.h>

enum { FORMAT_SIZE = 32 };

/* A short text by value, so that several fit into one printf: format_count(n).text. */
typedef struct format_text {
    char text[FORMAT_SIZE];
} format_text;

typedef struct format_pair {
    char text[2 * FORMAT_SIZE + 4];
} format_pair;

format_text format_count(int64_t value);                  /* 1,536 */
format_text format_bytes(int64_t bytes);                  /* 1.25 GiB; INT64_MAX, a size's upper end: ">= 8 EiB" */
format_text format_traffic(double bytes);                 /* 1.25 GiB, of bytes moved */
format_text format_flops(double flops);                   /* 5.21 TFLOP */
format_text format_real(double value);                    /* six digits; "-" for NaN */
format_text format_percent(double ratio);                 /* 13.55 %; "-" for NaN */
format_text format_seconds(double seconds);               /* 12.3 ms */
format_pair format_fraction(int64_t part, int64_t whole); /* 129 / 952 */

#endif
