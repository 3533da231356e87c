/* formats.h - which dtypes a plan's products, tiles and gradient tiles have on a backend. */
#ifndef ONEHEAD_CORE_FORMATS_H
#define ONEHEAD_CORE_FORMATS_H

#include "auto_tile.h"

typedef struct oh_formats {
    int32_t tile;                                  /* oh_tile_format, never auto */
    int32_t tile_dtype;                            /* of a tile's elements */
    int32_t draft_operand, target_operand;         /* dtype of gathered hidden states and weight in products */
    int32_t grad_operand;                          /* of dz in products: with W (draft_operand), D (scaled, the same) */
    int32_t grad_dtype;                            /* of the gradient tile, which overwrites the draft tile */
    int32_t convert_weight, convert_target_weight; /* the weight's own dtype is not its operand dtype */
    int32_t gather_target_weight; /* the target's head is multiplied a second time, by the draft's columns alone */
    int32_t cast_tile;            /* products come out in f32 and are rounded into the tile */
    int32_t cast_target_tile;
    int32_t cast_grad; /* the gradient tile is widened to f32 for its products */
} oh_formats;

/* `request` is normalised (defaults filled in) and its tile is not auto.
 * Prefers the hidden states' own 16-bit dtype where the backend multiplies it with f32 accumulation, else f32:
 * bf16 and f16 values are exact in f32, so that costs time and no accuracy. */
oh_status oh_formats_choose(oh_formats *formats, const oh_request *request, const oh_machine *machine, oh_error *error);

#endif
