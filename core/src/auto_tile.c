/* auto_tile.c - design.md section 7: `diff` for terms with a target and one weight, `f16` for the others, f32 on a CPU,
 * for f32 tensors and wherever f16 can't hold what it is given. */
#include "auto_tile.h"

#include <math.h>
#include <stdio.h>

#define F16_MAX 65504.0
/* Values under 2^-14 are subnormal in f16, off by up to 2^-25. A weight whose largest value is 2^-11 loses 2^-14 of that,
 * less than bf16's own 2^-9; a smaller one is better off in f32. */
#define F16_SMALLEST_MAX 0x1p-11

int oh_f16_holds(double weight_max) {
    return weight_max == 0 || (weight_max >= F16_SMALLEST_MAX && weight_max <= F16_MAX);
}

static int is_16_bit(int32_t dtype) {
    return dtype == OH_BF16 || dtype == OH_F16;
}

static int32_t f32_because(char *reason, const char *why) {
    snprintf(reason, OH_TILE_REASON_SIZE, "%s", why);
    return OH_TILE_F32;
}

int32_t oh_auto_tile(const oh_request *r, const oh_machine *m, char reason[OH_TILE_REASON_SIZE]) {
    const int compares = (r->objective.terms & OH_TERMS_WITH_TARGET) != 0;
    const int32_t wanted = compares ? OH_TILE_DIFF : OH_TILE_F16;
    if (m->caps & OH_CAP_HOST_MEMORY) return f32_because(reason, "the default on a CPU");
    if (!is_16_bit(r->hidden_dtype) || !is_16_bit(r->weight_dtype) ||
        (r->target_hidden && !is_16_bit(r->target_weight_dtype)))
        return f32_because(reason, "hidden states or weight are f32");
    if (compares && r->target_hidden)
        return f32_because(reason, "the terms compare two distributions that have a weight each");
    if (!(m->gemm_kinds & OH_GEMM_F16_F16) || !(m->tile_formats >> wanted & 1u) || !m->finds_overflow)
        return f32_because(reason, "the backend has no 16-bit tiles that say when they overflow");
    if (m->has_overflowed) return f32_because(reason, "an earlier step of this context overflowed f16");
    if (r->weight_dtype != OH_F16 && m->weight_measured && !oh_f16_holds(m->weight_max)) {
        snprintf(reason, OH_TILE_REASON_SIZE, "lm_head's largest absolute value, %g, is not one that f16 holds",
                 m->weight_max);
        return OH_TILE_F32;
    }
    snprintf(reason, OH_TILE_REASON_SIZE,
             compares ? "the terms compare with a target of the same weight: f16 of the target and of the difference"
                      : "no term compares with a target");
    return wanted;
}
