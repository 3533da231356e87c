/* pack.h - blocks of operands, copied into what oneDNN's kernels are fastest with. */
#ifndef ONEHEAD_ONEDNN_PACK_H
#define ONEHEAD_ONEDNN_PACK_H

#include <stdint.h>

/* B [k,n] in bf16 as AMX kernels read it; oneDNN's name for it with columns = 64 is BA16a64b2a: blocks of 32 elements
 * of k by `columns` of n, those of one n block after the other. In a block 16 pairs of elements of k, each for all of
 * its columns. Sizes are rounded up to whole blocks with zeros. */
typedef struct packing {
    int64_t columns;  /* a multiple of 16 */
    int64_t n_blocks; /* ceil(n / columns) */
    int64_t k_blocks; /* ceil(k / 32) */
} packing;

static inline int64_t packing_bytes(const packing *p) {
    return p->n_blocks * p->k_blocks * 32 * p->columns * 2;
}

/* From b [n,k] (`transposed`) or [k,n], rows `ld` elements apart and aligned to their elements only. `to` is aligned to
 * 64 bytes. Needs AVX-512. */
void pack_b(const packing *p, const uint16_t *b, int transposed, int64_t ld, int64_t n, int64_t k, uint16_t *to);

/* bf16 to f32. Needs AVX-512. */
void widen(const uint16_t *from, float *to, int64_t count);

/* f32 as the sum of three bf16, exactly: its leading, middle and last 8 bits. An infinity or a NaN is all in `high`.
 * Needs AVX-512. */
void split(const float *from, uint16_t *high, uint16_t *middle, uint16_t *low, int64_t count);

#endif
