/* pack.c - oneDNN packs B for its matrix units itself, but 2.6 has its fast kernels only for operands whose rows lie
 * next to each other, and takes B[n,k] column by column. W is read from memory once a product, so that walk is what a
 * projection waits for. Here 16 rows are read along, 64 bytes of each at a time, which the processor sees coming. */
#include "pack.h"

#include <string.h>

#if defined(__x86_64__)

#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define PAIRS 16 /* of bf16 in 64 bytes; columns of a store */
#define K_BLOCK 32

static inline float f32_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of_f32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Cutting bits off leaves a rest that f32 holds exactly, and 8 + 8 + 8 bits are all that there are. The set bit keeps a
 * NaN one without its last bits. */
AVX512 void split(const float *restrict from, uint16_t *restrict high, uint16_t *restrict middle,
                  uint16_t *restrict low, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t bits = bits_of_f32(from[i]), magnitude = bits & 0x7fffffffu;
        const int finite = magnitude < 0x7f800000u;
        const uint32_t top = (bits & 0xffff0000u) | (magnitude > 0x7f800000u ? 0x00400000u : 0u);
        const float rest = finite ? from[i] - f32_of_bits(top) : 0.0f;
        const uint32_t next = bits_of_f32(rest) & 0xffff0000u;
        high[i] = (uint16_t)(top >> 16);
        middle[i] = (uint16_t)(next >> 16);
        low[i] = (uint16_t)(bits_of_f32(rest - f32_of_bits(next)) >> 16);
    }
}

AVX512 void widen(const uint16_t *from, float *to, int64_t count) {
    for (int64_t i = 0; i < count; i += PAIRS) {
        const int64_t left = count - i;
        const __mmask16 mask = (__mmask16)(left >= PAIRS ? 0xffffu : (1u << left) - 1u);
        const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from + i));
        _mm512_mask_storeu_epi32(to + i, mask, _mm512_slli_epi32(wide, 16));
    }
}

/* 16 x 16 of 32 bits, transposed in 4 rounds that each exchange halves, quarters, ... of what they combine. */
AVX512 static void transpose(__m512i r[PAIRS]) {
    __m512i t[PAIRS];
    for (int i = 0; i < PAIRS; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < PAIRS; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < PAIRS; i += 8)
        for (int j = 0; j < 4; ++j) {
            t[i + j] = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0x88);
            t[i + j + 4] = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0xdd);
        }
    for (int j = 0; j < 8; ++j) {
        r[j] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0x88);
        r[j + 8] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0xdd);
    }
}

/* 16 columns, of which `n` exist, of one block of k, of which `k` elements do. */
AVX512 static void pack_transposed(const uint16_t *b, int64_t ld, int64_t n, int64_t k, uint16_t *to, int64_t columns) {
    const __mmask32 mask = k >= K_BLOCK ? 0xffffffffu : (1u << k) - 1u;
    __m512i r[PAIRS];
    for (int i = 0; i < PAIRS; ++i)
        r[i] = i < n ? _mm512_maskz_loadu_epi16(mask, b + i * ld) : _mm512_setzero_si512();
    transpose(r);
    for (int i = 0; i < PAIRS; ++i)
        _mm512_store_si512(to + i * columns * 2, r[i]);
}

/* B[n,k]: 16 rows are read along at once. */
AVX512 static void pack_rows(const packing *p, const uint16_t *b, int64_t ld, int64_t n, int64_t k, uint16_t *to) {
    for (int64_t column = 0; column < p->n_blocks * p->columns; column += PAIRS)
        for (int64_t block = 0; block < p->k_blocks; ++block) {
            const int64_t left = n - column, first = block * K_BLOCK;
            uint16_t *at = to + (column / p->columns * p->k_blocks + block) * K_BLOCK * p->columns;
            at += column % p->columns * 2;
            /* Columns beyond n are zeros and read nothing. */
            pack_transposed(left > 0 ? b + column * ld + first : b, ld, left, k - first, at, p->columns);
        }
}

/* B[k,n]: two rows are read along at once. */
AVX512 static void pack_row_pairs(const packing *p, const uint16_t *b, int64_t ld, int64_t n, int64_t k, uint16_t *to) {
    for (int64_t row = 0; row < p->k_blocks * K_BLOCK; row += 2)
        for (int64_t column = 0; column < p->n_blocks * p->columns; column += PAIRS) {
            const int64_t left = n - column;
            const unsigned mask = left >= PAIRS ? 0xffffu : left <= 0 ? 0u : (1u << left) - 1u;
            const __mmask16 even = (__mmask16)(row < k ? mask : 0u), odd = (__mmask16)(row + 1 < k ? mask : 0u);
            const uint16_t *from = b + (even ? row * ld + column : 0), *next = odd ? from + ld : from;
            const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(even, from));
            const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(odd, next));
            uint16_t *at = to + (column / p->columns * p->k_blocks + row / K_BLOCK) * K_BLOCK * p->columns;
            at += row % K_BLOCK * p->columns + column % p->columns * 2;
            _mm512_store_si512(at, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
        }
}

void pack_b(const packing *p, const uint16_t *b, int transposed, int64_t ld, int64_t n, int64_t k, uint16_t *to) {
    if (transposed)
        pack_rows(p, b, ld, n, k, to);
    else
        pack_row_pairs(p, b, ld, n, k, to);
}

#else

/* No AVX-512, no bf16: never called. */
void widen(const uint16_t *from, float *to, int64_t count) {
    (void)from, (void)to, (void)count;
}

void pack_b(const packing *p, const uint16_t *b, int transposed, int64_t ld, int64_t n, int64_t k, uint16_t *to) {
    (void)p, (void)b, (void)transposed, (void)ld, (void)n, (void)k, (void)to;
}

void split(const float *from, uint16_t *high, uint16_t *middle, uint16_t *low, int64_t count) {
    (void)from, (void)high, (void)middle, (void)low, (void)count;
}

#endif
