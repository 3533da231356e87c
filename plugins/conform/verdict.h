/* verdict.h - got, expected and how far apart they may be. */
#ifndef ONEHEAD_CONFORM_VERDICT_H
#define ONEHEAD_CONFORM_VERDICT_H

#include "kit.h"

/* A matrix of results. An element must be within its bound; NaN and infinities must be what was expected.
 *
 * A bound is a worst case, the sum of the largest roundings, and roundings aren't all largest and of one sign at once.
 * So the Euclidean norm of a row's errors, and that of all errors, must stay within row_part and all_part of the norm of
 * `spread`, what an element's error is like where roundings are independent (NULL: its bound; NaN: not known, left out).
 * That finds a row, or a whole result, that is a little wrong everywhere in a way that no element's worst case shows. A
 * part of 0 asks for nothing: where equal elements have equal errors, say. */
typedef struct verdict {
    const char *what;
    int64_t rows, columns;
    const double *got, *want, *bound; /* bound NULL: all 0, bit for bit but for the sign of 0 */
    const double *spread;
    double row_part, all_part;
    int may_be_zero; /* a result of mostly zeros is no evidence and fails the case, unless it is meant to be so */
} verdict;

void verdict_judge(kit *k, const verdict *v);

/* One number. */
void verdict_number(kit *k, const char *what, int64_t row, double got, double want, double bound);
void verdict_integer(kit *k, const char *what, int64_t row, int64_t got, int64_t want);

#endif
