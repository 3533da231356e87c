/* plan_rate.h - how fast matrix products are, said by the caller or measured by `bench`. */
#ifndef ONEHEAD_TOOL_PLAN_RATE_H
#define ONEHEAD_TOOL_PLAN_RATE_H

#include <onehead/onehead.h>

typedef struct plan_rate {
    double flops_per_second;           /* of products; 0: not known */
    double ratio[OH_POLICY_NAIVE + 1]; /* of a step to its products, by policy; 1 where not measured */
} plan_rate;

/* Reads "12.5", GFLOP/s, or the name of a JSON file of `bench`, whose fastest products and median ratios count. Errors:
 * OH_INVALID_ARGUMENT (neither a number over 0 nor a file), OH_BAD_DATA (no such figures in it). */
oh_status plan_rate_read(plan_rate *rate, const char *text, oh_error *error);

/* Seconds that a step of `flops` takes by a policy, NaN without a rate. */
double plan_rate_seconds(const plan_rate *rate, int32_t policy, double flops);

#endif
