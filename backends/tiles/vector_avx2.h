/* vector_avx2.h - the vector operations of kernels.inc in AVX2, FMA and F16C: 8 lanes. vector_avx512.h says what
 * the names mean. */
#ifndef ONEHEAD_OPENBLAS_VECTOR_H
#define ONEHEAD_OPENBLAS_VECTOR_H

#include <immintrin.h>
#include <stdint.h>

#include <sleef.h>

#define LANES 8

typedef __m256 vf;
typedef __m256 vm; /* all bits of a lane or none */

static inline vf vf_set1(float x) {
    return _mm256_set1_ps(x);
}
static inline vf vf_zero(void) {
    return _mm256_setzero_ps();
}
static inline vf vf_load(const float *p) {
    return _mm256_loadu_ps(p);
}
static inline void vf_store(float *p, vf x) {
    _mm256_storeu_ps(p, x);
}
static inline vm vm_first(int64_t count) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), lane));
}
static inline vf vf_first(const float *p, int64_t count, float fill) {
    const vm mask = vm_first(count);
    return _mm256_blendv_ps(_mm256_set1_ps(fill), _mm256_maskload_ps(p, _mm256_castps_si256(mask)), mask);
}
static inline void vf_store_first(float *p, int64_t count, vf x) {
    _mm256_maskstore_ps(p, _mm256_castps_si256(vm_first(count)), x);
}

static inline vf vf_add(vf a, vf b) {
    return _mm256_add_ps(a, b);
}
static inline vf vf_sub(vf a, vf b) {
    return _mm256_sub_ps(a, b);
}
static inline vf vf_mul(vf a, vf b) {
    return _mm256_mul_ps(a, b);
}
static inline vf vf_div(vf a, vf b) {
    return _mm256_div_ps(a, b);
}
static inline vf vf_fma(vf a, vf b, vf c) {
    return _mm256_fmadd_ps(a, b, c);
}
static inline vf vf_fnma(vf a, vf b, vf c) {
    return _mm256_fnmadd_ps(a, b, c);
}
static inline vf vf_max(vf a, vf b) {
    return _mm256_max_ps(a, b);
}
static inline vf vf_min(vf a, vf b) {
    return _mm256_min_ps(a, b);
}
static inline vf vf_abs(vf a) {
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
static inline float vf_largest(vf a) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

static inline vm vf_lt(vf a, vf b) {
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}
static inline vm vf_le(vf a, vf b) {
    return _mm256_cmp_ps(a, b, _CMP_LE_OQ);
}
static inline vm vf_eq(vf a, vf b) {
    return _mm256_cmp_ps(a, b, _CMP_EQ_OQ);
}
static inline vm vm_and(vm a, vm b) {
    return _mm256_and_ps(a, b);
}
static inline vm vm_or(vm a, vm b) {
    return _mm256_or_ps(a, b);
}
static inline vm vm_not(vm a) {
    return _mm256_xor_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(-1)));
}
static inline uint32_t vm_bits(vm m) {
    return (uint32_t)_mm256_movemask_ps(m);
}
static inline vf vf_keep(vm m, vf a) {
    return _mm256_and_ps(m, a);
}
static inline vf vf_select(vm m, vf a, vf b) {
    return _mm256_blendv_ps(b, a, m);
}

static inline vf vf_exp(vf x) {
    return Sleef_expf8_u10avx2(x);
}
static inline vf vf_expm1(vf x) {
    return Sleef_expm1f8_u10avx2(x);
}
static inline vf vf_log1p(vf x) {
    return Sleef_log1pf8_u10avx2(x);
}
static inline vf vf_tanh(vf x) {
    return Sleef_tanhf8_u10avx2(x);
}

static inline void vf_flush(double *sum, vf x) {
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x)), high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
    _mm256_storeu_pd(sum, _mm256_add_pd(_mm256_loadu_pd(sum), low));
    _mm256_storeu_pd(sum + 4, _mm256_add_pd(_mm256_loadu_pd(sum + 4), high));
}

static inline vf vf_load_bf16(const void *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
static inline vf vf_load_f16(const void *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}
static inline void vf_store_bf16(void *p, vf x) {
    const __m256i bits = _mm256_castps_si256(x), top = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
    const __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i halves = _mm256_blendv_epi8(rounded, quiet, nan);
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
    _mm_storeu_si128(p, packed);
}
static inline void vf_store_f16(void *p, vf x) {
    _mm_storeu_si128(p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#endif
