/* tile_kernels.h - the row kernels behind the tile operations of CPU backends, compiled once for each instruction set.
 *
 * kernels.inc is their one source, in terms of a small set of vector operations (vector_avx512.h, vector_avx2.h,
 * vector_generic.h); kernels_avx512.c, kernels_avx2.c and kernels_baseline.c compile it. Arguments were checked before
 * (tile_work.h). A row's result depends on nothing but the row. */
#ifndef ONEHEAD_TILES_TILE_KERNELS_H
#define ONEHEAD_TILES_TILE_KERNELS_H

#include "onehead/backend.h"
#include "onehead/rowmath.h"

/* Elements of `count` >= 0 in one row: to = factor * (from - subtract), or without the factor where scaled is 0. */
typedef struct tile_copy_row {
    const void *from, *subtract; /* subtract may be NULL */
    void *to;
    int64_t count;
    int32_t from_dtype, subtract_dtype, to_dtype;
    int32_t scaled;
    float factor;
} tile_copy_row;

typedef struct tile_kernels {
    const char *name;
    /* Rows [first, end) of a tile operation. */
    void (*stats)(const oh_tile_stats *stats, int64_t first, int64_t end);
    void (*overlap)(const oh_tile_overlap *overlap, int64_t first, int64_t end);
    void (*grad)(const oh_tile_grad *grad, int64_t first, int64_t end);
    void (*copy)(const tile_copy_row *row);
    /* Adds a row's squares to sums[0] and raises sums[1] to its largest magnitude, NaN where an element is. */
    void (*norm)(const void *row, int32_t dtype, int64_t count, double *sums);
} tile_kernels;

extern const tile_kernels tile_kernels_baseline; /* 4 lanes: SSE2, or whatever the compiler makes of them */
extern const tile_kernels tile_kernels_avx2;     /* 8 lanes: AVX2, FMA, F16C */
extern const tile_kernels tile_kernels_avx512;   /* 16 lanes: AVX-512 F, BW, DQ, VL */

/* The kernels called `name`, or the widest that this CPU has for NULL and ""; NULL: unknown here. */
const tile_kernels *tile_kernels_choose(const char *name);
/* "baseline, avx2": those that this CPU has. */
const char *tile_kernels_names(void);

/* Bytes of an element; 0: not a dtype of tiles and hidden states. */
static inline int64_t tile_element_size(int32_t dtype) {
    if (dtype == OH_F32) return 4;
    return dtype == OH_BF16 || dtype == OH_F16 ? 2 : 0;
}

static inline int32_t tile_dtype(int32_t format) {
    if (format == OH_TILE_F32) return OH_F32;
    return format == OH_TILE_BF16 ? OH_BF16 : OH_F16;
}

#endif
