/* samples.h - repeated measurements: median and spread, which one slow repetition doesn't move. */
#ifndef ONEHEAD_TOOL_SAMPLES_H
#define ONEHEAD_TOOL_SAMPLES_H

#include <stdint.h>

typedef struct samples_summary {
    double median, low, high; /* low and high: quartiles, interpolated; NaN without samples */
    double least;
} samples_summary;

/* Sorts `values` in place. */
samples_summary samples_summarise(double *values, int64_t count);

#endif
