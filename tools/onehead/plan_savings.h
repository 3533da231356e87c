/* plan_savings.h - what merging equal nodes of a plan's graph saves, op by op. */
#ifndef ONEHEAD_TOOL_PLAN_SAVINGS_H
#define ONEHEAD_TOOL_PLAN_SAVINGS_H

#include <onehead/onehead.h>

/* Of one op, per full chunk. */
typedef struct plan_saving {
    int32_t asked, kept; /* nodes before and after merging */
    double flops, bytes; /* of those that merging left out */
    uint32_t saved_for;  /* consumers that got it without paying, bit c as in oh_node */
} plan_saving;

typedef struct plan_savings {
    plan_saving ops[OH_OP_COUNT];
    double flops_before, flops, bytes_before, bytes; /* of the whole graph before, and saved */
} plan_savings;

void plan_savings_count(plan_savings *savings, const oh_plan *plan);

#endif
