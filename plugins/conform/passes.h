/* passes.h - what the cases of the second read and of the gradient share with those of both in one. */
#ifndef ONEHEAD_CONFORM_PASSES_H
#define ONEHEAD_CONFORM_PASSES_H

#include "kit.h"
#include "tile.h"

/* One gradient: the tile that it is taken of, coefficients, and where it goes. */
typedef struct grad_case {
    tile t;
    oh_tile_grad g;
    oh_row_coef *coef;
    kit_buffer *out;
    bool in_place;
} grad_case;

/* Whether every step of the gradient is exact, and so the only answer. */
bool grad_case_is_exact(const tile_spec *spec, uint32_t form);

/* After kit_tile_open(&c->t): coefficients and the destination. */
void grad_case_open(kit *k, grad_case *c, int32_t out_dtype, uint32_t form);
void grad_case_judge(kit *k, const grad_case *c);

/* Fields of one row of a second read by these statistics. */
void alpha_judge(kit *k, const tile *t, const oh_row_stats *stats, int64_t row, const oh_row_overlap *got);
void rank_judge(kit *k, const tile *t, const oh_row_stats *stats, int64_t row, const oh_row_overlap *got);

#endif
