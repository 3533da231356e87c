/* passes.h - what the cases of a first read, a second read and a gradient share with those of two of them in one. */
#ifndef ONEHEAD_CONFORM_PASSES_H
#define ONEHEAD_CONFORM_PASSES_H

#include "kit.h"
#include "tile.h"

enum { PANELS_MAX = 8 };

/* One first read, of a tile whole or in panels. */
typedef struct stats_case {
    tile t;
    oh_tile_stats panels[PANELS_MAX];
    int panel_count;
    int32_t top_k;
    uint32_t want;
    int32_t *label; /* host; NULL: the target's argmax */
    kit_buffer *stats, *ids, *logits;
} stats_case;

/* Labels anywhere in the tile, at both its ends, and none: [rows] on the host. */
int32_t *stats_case_labels(kit *k, const tile_spec *spec);

/* After kit_tile_open(&c->t): what the panels' calls are given. */
void stats_case_open(kit *k, stats_case *c, int panels);
void stats_case_judge(kit *k, const stats_case *c);

/* One gradient: the tile that it is taken of, coefficients, and where it goes. */
typedef struct grad_case {
    tile t;
    oh_tile_grad g;
    oh_row_coef *coef;
    kit_buffer *out;
    bool in_place;
    bool with_done; /* draw rows of OH_ZERO_DONE */
    bool exact;     /* every step of the gradient is exact, and so the only answer */
} grad_case;

/* After kit_tile_open(&c->t): coefficients and the destination. */
void grad_case_open(kit *k, grad_case *c, int32_t out_dtype, uint32_t form);

/* The destination alone, which says how much of each row may be written. */
void grad_case_open_out(kit *k, grad_case *c, int32_t out_dtype, uint32_t form);

/* By c->coef. Rows of OH_ZERO_DONE must be what they were, byte for byte. */
void grad_case_judge(kit *k, const grad_case *c);

/* Fields of one row of a second read by these statistics. */
void alpha_judge(kit *k, const tile *t, const oh_row_stats *stats, int64_t row, const oh_row_overlap *got);
void rank_judge(kit *k, const tile *t, const oh_row_stats *stats, int64_t row, const oh_row_overlap *got);

#endif
