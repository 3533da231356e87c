#include "plan_savings.h"

#include <string.h>

void plan_savings_count(plan_savings *savings, const oh_plan *plan) {
    int64_t count, merged_count;
    const oh_node *const before = oh_plan_nodes(plan, 0, &count);
    (void)oh_plan_nodes(plan, 1, &merged_count);
    memset(savings, 0, sizeof *savings);
    for (int64_t i = 0; i < count; i++) {
        const oh_node *const node = &before[i];
        plan_saving *const op = &savings->ops[node->op];
        op->asked++;
        savings->flops_before += node->flops;
        savings->bytes_before += node->bytes;
        int64_t first = 0; /* the node that pays for all that are merged with it */
        while (before[first].merged != node->merged)
            first++;
        if (first == i) {
            op->kept++;
            continue;
        }
        op->flops += node->flops;
        op->bytes += node->bytes;
        op->saved_for |= node->consumers;
        savings->flops += node->flops;
        savings->bytes += node->bytes;
    }
}
