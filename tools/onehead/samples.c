#include "samples.h"

#include <math.h>
#include <stdlib.h>

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const double *sorted, int64_t count, double q) {
    const double at = q * (double)(count - 1);
    const int64_t below = (int64_t)at;
    if (below + 1 >= count) return sorted[count - 1];
    return sorted[below] + (at - (double)below) * (sorted[below + 1] - sorted[below]);
}

samples_summary samples_summarise(double *values, int64_t count) {
    if (count == 0) return (samples_summary){NAN, NAN, NAN, NAN};
    qsort(values, (size_t)count, sizeof *values, compare);
    return (samples_summary){quantile(values, count, 0.5), quantile(values, count, 0.25), quantile(values, count, 0.75),
                             values[0]};
}
