/* logits.h - how the tile operations read a tile: block by block, converted and transformed, in oh_real.
 *
 * The one place where a tile's bytes become z and t, so that every read of a tile sees the same bits: rank compares
 * with a logit that an earlier read found, and tile_grad decides p <= q as tile_overlap did. */
#ifndef ONEHEAD_PORTABLE_LOGITS_H
#define ONEHEAD_PORTABLE_LOGITS_H

#include <onehead/backend.h>
#include <onehead/rowmath.h>

#ifdef OH_REAL_IS_DOUBLE
#define oh_logits_valid oh_f64_logits_valid
#define oh_logits_read oh_f64_logits_read
#define oh_logits_dtype oh_f64_logits_dtype
#define oh_logits_element_size oh_f64_logits_element_size
#define oh_logits_store oh_f64_logits_store
#define OH_REAL_EXP exp
#define OH_REAL_EXPM1 expm1
#define OH_REAL_LOG1P log1p
#else
#define OH_REAL_EXP expf
#define OH_REAL_EXPM1 expm1f
#define OH_REAL_LOG1P log1pf
#endif

/* Columns a block: the arrays of one stay in the first cache, on the stack. */
#define OH_LOGITS_BLOCK 512

/* Whether a view can be read: sizes, strides, format and transforms. Every tile may be NULL here. */
int oh_logits_valid(const oh_tile_view *view);

/* z and t of `count` <= OH_LOGITS_BLOCK columns of row `row` from the tile's column `first` on. A tile that is NULL
 * leaves its array untouched. */
void oh_logits_read(const oh_tile_view *view, int64_t row, int64_t first, int64_t count, oh_real *z, oh_real *t);

/* The dtype of a format's tiles, and the bytes of an element in a tile or gradient; 0: not a dtype of theirs. */
int32_t oh_logits_dtype(int32_t format);
int64_t oh_logits_element_size(int32_t dtype);

/* Rounds `count` values once into elements [first, first + count) of `to`. */
void oh_logits_store(void *to, int64_t first, int64_t count, int32_t dtype, const oh_real *from);

#endif
