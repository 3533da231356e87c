#include "check_plan.h"

#include <stddef.h>

oh_request check_variant_request(const oh_request *request, const check_variant *variant) {
    oh_request r = *request;
    r.policy = variant->policy;
    r.chunk = variant->chunk;
    if (variant->memory != 0) r.memory = variant->memory;
    return r;
}

/* Less and less memory for the same chunk until no whole tile fits; 0 when the vocabulary is too small for panels. */
static int64_t memory_for_panels(const oh_request *request, const check_variant *variant) {
    oh_request r = check_variant_request(request, variant);
    r.memory = INT64_MAX;
    oh_plan *plan;
    if (oh_plan_describe(&r, &plan, NULL) != OH_OK) return 0;
    const int64_t whole = oh_plan_get_summary(plan)->panel;
    int64_t memory = oh_plan_get_summary(plan)->workspace_bytes;
    oh_plan_destroy(plan);
    for (int i = 0; i < 4; i++) {
        r.memory = memory = memory / 4 * 3;
        if (memory < 1 || oh_plan_describe(&r, &plan, NULL) != OH_OK) return 0;
        const int64_t panel = oh_plan_get_summary(plan)->panel;
        oh_plan_destroy(plan);
        if (panel < whole) return memory;
    }
    return 0;
}

static void add(const oh_plan_summary *reference, check_variant *variants, int *count, check_variant variant) {
    const bool panels = variant.memory != 0;
    if (!panels && variant.policy == reference->policy && variant.chunk == reference->chunk) return;
    for (int i = 0; i < *count; i++) {
        const check_variant *const v = &variants[i];
        if (v->policy == variant.policy && v->chunk == variant.chunk && v->memory == variant.memory) return;
    }
    variants[(*count)++] = variant;
}

int check_variants(const oh_request *request, const oh_plan_summary *reference, check_variant *variants) {
    const int64_t block = request->objective.block_size, blocks = request->rows / block;
    const int64_t third = (blocks > 3 ? blocks / 3 : 1) * block; /* three chunks and a shorter one */
    const int64_t few = (blocks > 16 ? blocks / 16 : 1) * block;
    const int64_t same = reference->chunk;
    int count = 0;
    add(reference, variants, &count, (check_variant){OH_POLICY_CACHED, same, 0});
    add(reference, variants, &count, (check_variant){OH_POLICY_CACHED, third, 0});
    add(reference, variants, &count, (check_variant){OH_POLICY_CACHED, few, 0});
    add(reference, variants, &count, (check_variant){OH_POLICY_RECOMPUTE, same, 0});
    add(reference, variants, &count, (check_variant){OH_POLICY_RECOMPUTE, third, 0});
    check_variant panels = {OH_POLICY_RECOMPUTE, third, 0};
    panels.memory = memory_for_panels(request, &panels);
    if (panels.memory != 0) add(reference, variants, &count, panels);
    add(reference, variants, &count, (check_variant){OH_POLICY_NAIVE, third, 0});
    return count;
}
