/* tile.h - tiles of logits on the device, and what they stand for: the transformed logits in f64, each with how far f32
 * arithmetic may be from it.
 *
 * Errors of a logit. A raw one is exact. In OH_TILE_DIFF t + d is rounded once. x = scale * raw + bias is rounded once
 * (fused) or twice; tanh is within 3 units in the last place, its argument and the last product are rounded once each,
 * and neither enlarges the error of x, tanh's slope being at most 1. */
#ifndef ONEHEAD_CONFORM_TILE_H
#define ONEHEAD_CONFORM_TILE_H

#include "kit.h"

/* What a tile's rows hold. */
typedef enum tile_fill {
    TILE_FLAT, /* logits are 0 or, here and there, -inf: exponentials are exact */
    TILE_TIES, /* few small integers: ties everywhere */
    TILE_NEAR, /* normal, drafter and target nearly equal */
    TILE_FAR,  /* normal, drafter and target unrelated */
    TILE_WIDE, /* spread so wide that probabilities underflow */
    TILE_EDGES, /* row by row: one finite logit, none, NaN, +inf, -inf on one side, an offset of 1e6, a maximum at the end,
                   masks of the least number */
    TILE_FILLS
} tile_fill;

enum {
    TILE_EDGE_ROWS = 18, /* kinds of rows of TILE_EDGES */
    TILE_SHAPES = 8
};

enum { TILE_SCALE = 1, TILE_BIAS = 2, TILE_SOFTCAP = 4 };

typedef struct tile_spec {
    int64_t rows, columns, pad, shift;
    int64_t target_rows; /* 0: no target; fewer than rows: shared through target_row; rows: identity, target_row NULL */
    int64_t first_column; /* of the tile within the vocabulary */
    tile_fill fill;
    int32_t format;
    uint32_t transform; /* TILE_*: of the drafter; the target's differs */
    bool no_draft;
    bool for_grad; /* the draft buffer is KIT_IN_OUT: a gradient may overwrite it */
} tile_spec;

typedef struct tile {
    tile_spec spec;
    oh_tile_view view;
    kit_buffer *draft, *target;
    int32_t *target_row;         /* [rows] on the host, the identity where the view has NULL */
    double *z, *t;               /* [rows, columns] transformed; t of row i is its target row's */
    double *z_error, *t_error;   /* [rows, columns] */
    double *slope, *slope_error; /* [rows, columns] dz/draw */
} tile;

const char *kit_tile_format_name(int32_t format);
const char *kit_tile_fill_name(tile_fill fill);
int32_t kit_tile_dtype(int32_t format);

/* {rows, columns, pad, shift} for a pass that only reads its tile. */
extern const int64_t kit_tile_shapes[TILE_SHAPES][4];

/* A tile of {rows, columns, pad, shift} with a target row for each row; every third shape of a list begins at a column of
 * its own. */
tile_spec kit_tile_shape(const int64_t shape[4], int place, tile_fill fill, int32_t format);

/* False when the case has gone wrong. */
bool kit_tile_open(kit *k, tile *t, const tile_spec *spec);

/* The view of `count` of its columns from `first` on. */
oh_tile_view kit_tile_panel(const tile *t, int64_t first, int64_t count);

/* A name for the case of a spec: "bf16/near/5x300-strided-shared-bias". */
void kit_tile_name(const tile_spec *spec, char name[80]);

#endif
