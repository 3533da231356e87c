#include "verdict.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void note_worst(kit *k, double ratio) {
    conform_op_report *op = &k->report->ops[k->op];
    if (!(ratio > op->worst)) return;
    op->worst = ratio;
    memcpy(op->worst_case, k->name, sizeof op->worst_case);
}

/* Error as a part of the bound: 0 where there is none, infinite where nothing is allowed. */
static double part_of(double error, double bound) {
    if (error == 0) return 0;
    return bound > 0 ? error / bound : (double)INFINITY;
}

static double distance(double got, double want) {
    if (isnan(want)) return isnan(got) ? 0 : (double)INFINITY;
    if (got == want) return 0;
    return isfinite(got) && isfinite(want) ? fabs(got - want) : (double)INFINITY;
}

/* Errors and what they are expected to be like, as sums of squares; and of fourth powers, for how many elements carry
 * the expectation. */
typedef struct norms {
    double error, spread, fourth;
} norms;

static void add_norms(norms *to, const norms *from) {
    to->error += from->error;
    to->spread += from->spread;
    to->fourth += from->fourth;
}

/* A norm that hangs on fewer than 64 elements is no statistic. */
static void judge_norm(kit *k, const verdict *v, const norms *n, double part, int64_t row) {
    if (!kit_going(k) || part <= 0 || n->spread * n->spread < 64 * n->fourth) return;
    const double error = sqrt(n->error), allowed = part * sqrt(n->spread);
    if (error <= allowed) return;
    char where[40] = "all rows";
    if (row >= 0) snprintf(where, sizeof where, "row %lld", (long long)row);
    kit_fail(k, "%s: errors of %s have norm %.3g, expected at most %.3g, though each element is within its bound",
             v->what, where, error, allowed);
}

static bool judge_element(kit *k, const verdict *v, int64_t i, int64_t j, norms *n) {
    const int64_t at = i * v->columns + j;
    const double bound = v->bound ? v->bound[at] : 0, error = distance(v->got[at], v->want[at]);
    const double part = part_of(error, bound);
    note_worst(k, part);
    if (!(part <= 1)) {
        kit_fail(k, "%s[%lld,%lld] of [%lld,%lld] = %.9g, expected %.9g within %.3g", v->what, (long long)i,
                 (long long)j, (long long)v->rows, (long long)v->columns, v->got[at], v->want[at], bound);
        return false;
    }
    const double spread = v->spread ? v->spread[at] : bound;
    if (isnan(spread)) return true;
    add_norms(n, &(norms){error * error, spread * spread, spread * spread * spread * spread});
    return true;
}

void verdict_judge(kit *k, const verdict *v) {
    if (!kit_going(k) || !v->got || !v->want) return;
    norms all = {0, 0, 0};
    int64_t idle = 0;
    for (int64_t i = 0; i < v->rows && kit_going(k); ++i) {
        norms row = {0, 0, 0};
        for (int64_t j = 0; j < v->columns; ++j) {
            if (!judge_element(k, v, i, j, &row)) return;
            idle += v->want[i * v->columns + j] == 0 || isnan(v->want[i * v->columns + j]);
        }
        judge_norm(k, v, &row, v->row_part, i);
        add_norms(&all, &row);
    }
    judge_norm(k, v, &all, v->all_part, -1);
    const int64_t count = v->rows * v->columns;
    if (!v->may_be_zero && count >= 64 && 2 * idle > count)
        kit_fail(k, "%s is mistrusted: %lld of %lld expected values are 0 or NaN and show nothing", v->what,
                 (long long)idle, (long long)count);
}

void verdict_number(kit *k, const char *what, int64_t row, double got, double want, double bound) {
    if (!kit_going(k)) return;
    const double part = part_of(distance(got, want), bound);
    note_worst(k, part);
    if (!(part <= 1))
        kit_fail(k, "%s[%lld] = %.12g, expected %.12g within %.3g", what, (long long)row, got, want, bound);
}

void verdict_integer(kit *k, const char *what, int64_t row, int64_t got, int64_t want) {
    if (got != want)
        kit_fail(k, "%s[%lld] = %lld, expected %lld", what, (long long)row, (long long)got, (long long)want);
}
