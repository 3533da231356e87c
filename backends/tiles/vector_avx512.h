/* vector_avx512.h - the vector operations of kernels.inc in AVX-512 F, BW, DQ and VL: 16 lanes.
 *
 * The same names in every vector_*.h:
 *   vf, vm       floats; one truth value a lane
 *   vf_max/min   the second operand where either is NaN
 *   vf_fma       a * b + c, fused where the instruction set has it
 *   vf_first     `count` < LANES elements, `fill` in the other lanes; reads no further
 *   vf_flush     adds the lanes to LANES doubles */
#ifndef ONEHEAD_OPENBLAS_VECTOR_H
#define ONEHEAD_OPENBLAS_VECTOR_H

#include <immintrin.h>
#include <stdint.h>

#include <sleef.h>

#define LANES 16

typedef __m512 vf;
typedef __mmask16 vm;

static inline vf vf_set1(float x) {
    return _mm512_set1_ps(x);
}
static inline vf vf_zero(void) {
    return _mm512_setzero_ps();
}
static inline vf vf_load(const float *p) {
    return _mm512_loadu_ps(p);
}
static inline void vf_store(float *p, vf x) {
    _mm512_storeu_ps(p, x);
}
static inline vm vm_first(int64_t count) {
    return (vm)((1u << count) - 1u);
}
static inline vf vf_first(const float *p, int64_t count, float fill) {
    return _mm512_mask_loadu_ps(_mm512_set1_ps(fill), vm_first(count), p);
}
static inline void vf_store_first(float *p, int64_t count, vf x) {
    _mm512_mask_storeu_ps(p, vm_first(count), x);
}

static inline vf vf_add(vf a, vf b) {
    return _mm512_add_ps(a, b);
}
static inline vf vf_sub(vf a, vf b) {
    return _mm512_sub_ps(a, b);
}
static inline vf vf_mul(vf a, vf b) {
    return _mm512_mul_ps(a, b);
}
static inline vf vf_div(vf a, vf b) {
    return _mm512_div_ps(a, b);
}
static inline vf vf_fma(vf a, vf b, vf c) {
    return _mm512_fmadd_ps(a, b, c);
}
static inline vf vf_fnma(vf a, vf b, vf c) {
    return _mm512_fnmadd_ps(a, b, c);
}
static inline vf vf_max(vf a, vf b) {
    return _mm512_max_ps(a, b);
}
static inline vf vf_min(vf a, vf b) {
    return _mm512_min_ps(a, b);
}
static inline vf vf_abs(vf a) {
    return _mm512_abs_ps(a);
}
static inline float vf_largest(vf a) {
    return _mm512_reduce_max_ps(a);
}

static inline vm vf_lt(vf a, vf b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
static inline vm vf_le(vf a, vf b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ);
}
static inline vm vf_eq(vf a, vf b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}
static inline vm vm_and(vm a, vm b) {
    return (vm)(a & b);
}
static inline vm vm_or(vm a, vm b) {
    return (vm)(a | b);
}
static inline vm vm_not(vm a) {
    return (vm)~a;
}
/* One bit a lane. */
static inline uint32_t vm_bits(vm m) {
    return m;
}
static inline vf vf_keep(vm m, vf a) { /* a where m, else 0 */
    return _mm512_maskz_mov_ps(m, a);
}
static inline vf vf_select(vm m, vf a, vf b) {
    return _mm512_mask_mov_ps(b, m, a);
}

static inline vf vf_exp(vf x) {
    return Sleef_expf16_u10avx512f(x);
}
static inline vf vf_expm1(vf x) {
    return Sleef_expm1f16_u10avx512f(x);
}
static inline vf vf_log1p(vf x) {
    return Sleef_log1pf16_u10avx512f(x);
}
static inline vf vf_tanh(vf x) {
    return Sleef_tanhf16_u10avx512f(x);
}

static inline void vf_flush(double *sum, vf x) {
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x)),
                  high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
    _mm512_storeu_pd(sum, _mm512_add_pd(_mm512_loadu_pd(sum), low));
    _mm512_storeu_pd(sum + 8, _mm512_add_pd(_mm512_loadu_pd(sum + 8), high));
}

static inline vf vf_load_bf16(const void *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}
static inline vf vf_load_f16(const void *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}
static inline void vf_store_bf16(void *p, vf x) {
    const __m512i bits = _mm512_castps_si512(x), top = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
    const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
    const __m512i quiet = _mm512_or_si512(top, _mm512_set1_epi32(0x40));
    const vm nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    _mm256_storeu_si256(p, _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, quiet)));
}
static inline void vf_store_f16(void *p, vf x) {
    _mm256_storeu_si256(p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#endif
