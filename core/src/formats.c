#include "formats.h"

#include "status.h"

static const char *const tile_names[] = {"f32", "bf16", "f16", "diff"};

static int multiplies(uint32_t gemm_kinds, int32_t operand, int32_t result) {
    if (operand == OH_F32) return result == OH_F32 && (gemm_kinds & OH_GEMM_F32_F32);
    if (operand == OH_BF16 && result == OH_F32) return (gemm_kinds & OH_GEMM_BF16_F32) != 0;
    if (operand == OH_BF16 && result == OH_BF16) return (gemm_kinds & OH_GEMM_BF16_BF16) != 0;
    if (operand == OH_F16 && result == OH_F32) return (gemm_kinds & OH_GEMM_F16_F32) != 0;
    return operand == OH_F16 && result == OH_F16 && (gemm_kinds & OH_GEMM_F16_F16);
}

/* Operand dtype of hidden states times weight. Tiles of f16 hold what f16 operands give (a gradient tile must multiply
 * with the weight again), so they ask for f16 whatever the inputs are. */
static int32_t operand(const oh_formats *f, uint32_t gemm_kinds, int32_t hidden, int32_t weight) {
    const int32_t natural = f->tile_dtype == OH_F16 ? OH_F16 : hidden == weight ? hidden : OH_F32;
    return multiplies(gemm_kinds, natural, OH_F32) ? natural : OH_F32;
}

/* dz has 24 bits in an f32 tile; rounded to the weight's 8 it would be the largest error of the whole step. A backend
 * that multiplies f32 by bf16 spares that for the price of one slower product, and spares converting W to f32 for it:
 * V H 4 bytes kept, or a pass over W a chunk. Who would rather have the 16-bit product asks for tiles of bf16. */
static int32_t grad_operand(const oh_formats *f, uint32_t gemm_kinds) {
    if (f->tile_dtype == OH_F32 && f->draft_operand == OH_BF16 && gemm_kinds & OH_GEMM_F32_BF16_F32) return OH_F32;
    return f->draft_operand;
}

oh_status oh_formats_choose(oh_formats *formats, const oh_request *request, const oh_machine *machine,
                            oh_error *error) {
    const oh_request *r = request;
    const uint32_t gemm_kinds = machine->gemm_kinds;
    oh_formats f = {.tile = r->tile};
    if (!(machine->tile_formats >> f.tile & 1u))
        return oh_fail(error, OH_UNSUPPORTED, "tile '%s': the backend has no such tiles", tile_names[f.tile]);
    if (f.tile == OH_TILE_DIFF && (r->target_rows == 0 || r->target_hidden != 0))
        return oh_fail(
            error, OH_INVALID_ARGUMENT,
            "tile 'diff' holds the difference to the target's logits: it needs a target and one shared head");
    f.tile_dtype = f.tile == OH_TILE_F32 ? OH_F32 : f.tile == OH_TILE_BF16 ? OH_BF16 : OH_F16;
    f.draft_operand = operand(&f, gemm_kinds, r->hidden_dtype, r->weight_dtype);
    f.target_operand =
        r->target_hidden ? operand(&f, gemm_kinds, r->hidden_dtype, r->target_weight_dtype) : f.draft_operand;
    f.convert_weight = f.draft_operand != r->weight_dtype;
    f.convert_target_weight = r->target_hidden && f.target_operand != r->target_weight_dtype;
    f.gather_target_weight = r->target_vocab != 0;
    f.cast_tile = !multiplies(gemm_kinds, f.draft_operand, f.tile_dtype);
    f.cast_target_tile = !multiplies(gemm_kinds, f.target_operand, f.tile_dtype);
    f.grad_operand = grad_operand(&f, gemm_kinds);
    /* A 16-bit operand fixes the gradient tile; with f32 operands the tile's own dtype shows what it does. */
    f.grad_dtype = f.grad_operand != OH_F32 ? f.grad_operand : f.tile_dtype;
    f.cast_grad = f.grad_dtype != f.grad_operand;
    *formats = f;
    return OH_OK;
}
