/* tile_case.h - tiles for tests: stored in a format, at any alignment, with rows further apart than they are long, and
 * the f64 logits that they stand for. Bytes that belong to no column are 0xff, a NaN in every format. */
#ifndef ONEHEAD_TESTS_TILE_CASE_H
#define ONEHEAD_TESTS_TILE_CASE_H

#include <onehead/rowmath.h>

#include "draws.h"

typedef struct tile_shape {
    int64_t rows, target_rows; /* target_rows 0: no target; fewer than rows: shared through target_row */
    int64_t columns, first_column;
    int32_t format;
    int32_t misaligned; /* tiles and biases start one byte past an aligned address */
    int32_t no_draft;
    int32_t transform; /* 0: none; 1: scale; 2: scale, bias; 3: scale, bias, softcap (another for the target) */
    double spread;     /* standard deviation of the logits; 0: 3 */
    double nearness;   /* draft = target + nearness * noise; 0: unrelated */
} tile_shape;

typedef struct tile_case {
    oh_tile_view view;
    tile_shape shape;
    unsigned char *draft, *target, *bias; /* allocations */
    uint64_t draft_bytes, target_bytes;
    int32_t *target_row;
    double *z, *t;           /* [rows, columns] transformed, t of row i being that of its target row; -inf kept */
    double *slope;           /* [rows, columns] dz/draw */
    double z_error, t_error; /* how far f32 logits may be from them */
} tile_case;

void tile_case_open(tile_case *c, const tile_shape *shape, draws *d);
void tile_case_close(tile_case *c);

/* Store a raw logit (for OH_TILE_DIFF: the difference); then tile_case_refresh once. */
void tile_case_put_draft(tile_case *c, int64_t row, int64_t column, double raw);
void tile_case_put_target(tile_case *c, int64_t target_row, int64_t column, double raw);
void tile_case_refresh(tile_case *c);

/* A case of one row, or of several, from literal f32 logits; t may be NULL. */
void tile_case_literal(tile_case *c, int64_t rows, int64_t columns, const float *z, const float *t);

/* The view of columns [first, first + count) only. */
oh_tile_view tile_case_panel(const tile_case *c, int64_t first, int64_t count);

/* Bytes of the tiles, to see that nothing wrote there. */
uint64_t tile_case_checksum(const tile_case *c);

#endif
