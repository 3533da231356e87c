/* vector_generic.h - the vector operations of kernels.inc in GCC's and Clang's vector extension: 4 lanes, which
 * become SSE2 on any x86-64 and NEON on aarch64. vector_avx512.h says what the names mean. */
#ifndef ONEHEAD_OPENBLAS_VECTOR_H
#define ONEHEAD_OPENBLAS_VECTOR_H

#include <stdint.h>
#include <string.h>

#include <sleef.h>

#define LANES 4

typedef float vf __attribute__((vector_size(16)));
typedef int32_t vm __attribute__((vector_size(16))); /* all bits of a lane or none */
typedef uint32_t vu __attribute__((vector_size(16)));
typedef uint16_t vh __attribute__((vector_size(8)));

static inline vf vf_set1(float x) {
    return (vf){x, x, x, x};
}
static inline vf vf_zero(void) {
    return (vf){0, 0, 0, 0};
}
static inline vf vf_load(const float *p) {
    vf x;
    memcpy(&x, p, sizeof x);
    return x;
}
static inline void vf_store(float *p, vf x) {
    memcpy(p, &x, sizeof x);
}
static inline vm vm_first(int64_t count) {
    const int32_t n = (int32_t)count;
    return (vm){0, 1, 2, 3} < (vm){n, n, n, n};
}
static inline vf vf_first(const float *p, int64_t count, float fill) {
    vf x = vf_set1(fill);
    for (int64_t i = 0; i < count; ++i)
        x[i] = p[i];
    return x;
}
static inline void vf_store_first(float *p, int64_t count, vf x) {
    for (int64_t i = 0; i < count; ++i)
        p[i] = x[i];
}

static inline vf vf_add(vf a, vf b) {
    return a + b;
}
static inline vf vf_sub(vf a, vf b) {
    return a - b;
}
static inline vf vf_mul(vf a, vf b) {
    return a * b;
}
static inline vf vf_div(vf a, vf b) {
    return a / b;
}
static inline vf vf_fma(vf a, vf b, vf c) {
    return a * b + c;
}
static inline vf vf_fnma(vf a, vf b, vf c) {
    return c - a * b;
}

static inline vm vf_lt(vf a, vf b) {
    return a < b;
}
static inline vm vf_le(vf a, vf b) {
    return a <= b;
}
static inline vm vf_eq(vf a, vf b) {
    return a == b;
}
static inline vm vm_and(vm a, vm b) {
    return a & b;
}
static inline vm vm_or(vm a, vm b) {
    return a | b;
}
static inline vm vm_not(vm a) {
    return ~a;
}
static inline uint32_t vm_bits(vm m) {
    return ((uint32_t)m[0] & 1u) | ((uint32_t)m[1] & 2u) | ((uint32_t)m[2] & 4u) | ((uint32_t)m[3] & 8u);
}
static inline vf vf_keep(vm m, vf a) {
    return (vf)(m & (vm)a);
}
static inline vf vf_select(vm m, vf a, vf b) {
    return (vf)((m & (vm)a) | (~m & (vm)b));
}
static inline vf vf_max(vf a, vf b) {
    return vf_select(a > b, a, b);
}
static inline vf vf_min(vf a, vf b) {
    return vf_select(a < b, a, b);
}
static inline vf vf_abs(vf a) {
    return (vf)((vu)a & 0x7fffffffu);
}
static inline float vf_largest(vf a) {
    const float x = a[0] > a[1] ? a[0] : a[1], y = a[2] > a[3] ? a[2] : a[3];
    return x > y ? x : y;
}

/* SLEEF's own vectors are the compiler's: 4 floats in a register. */
#if defined(__x86_64__)
#define SLEEF4(name) Sleef_##name##f4_u10sse2
#elif defined(__aarch64__)
#define SLEEF4(name) Sleef_##name##f4_u10advsimd
#else
#error "SLEEF has no 4-lane functions that this file knows for this processor"
#endif
static inline vf vf_exp(vf x) {
    return (vf)SLEEF4(exp)(x);
}
static inline vf vf_expm1(vf x) {
    return (vf)SLEEF4(expm1)(x);
}
static inline vf vf_log1p(vf x) {
    return (vf)SLEEF4(log1p)(x);
}
static inline vf vf_tanh(vf x) {
    return (vf)SLEEF4(tanh)(x);
}

static inline void vf_flush(double *sum, vf x) {
    for (int i = 0; i < LANES; ++i)
        sum[i] += (double)x[i];
}

static inline vu vu_select(vm m, vu a, vu b) {
    return ((vu)m & a) | (~(vu)m & b);
}
static inline vu vu_load_halves(const void *p) {
    vh half;
    memcpy(&half, p, sizeof half);
    return __builtin_convertvector(half, vu);
}
static inline void vu_store_halves(void *p, vu x) {
    const vh half = __builtin_convertvector(x, vh);
    memcpy(p, &half, sizeof half);
}

static inline vf vf_load_bf16(const void *p) {
    return (vf)(vu_load_halves(p) << 16);
}
/* The half's exponent and fraction, 13 bits up, are an f32 that is too small by 2^112: also where they are subnormal.
 * Infinity and NaN need the largest exponent. */
static inline vf vf_load_f16(const void *p) {
    const vu half = vu_load_halves(p), magnitude = (half & 0x7fffu) << 13, sign = (half & 0x8000u) << 16;
    const vu scaled = (vu)((vf)magnitude * vf_set1(0x1p112f));
    const vm special = (vm)magnitude >= 0x7c00 << 13;
    return (vf)(vu_select(special, magnitude | 0x7f800000u, scaled) | sign);
}
static inline void vf_store_bf16(void *p, vf x) {
    const vu bits = (vu)x, rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    /* NOLINTNEXTLINE(misc-redundant-expression): not NaN */
    vu_store_halves(p, vu_select(x == x, rounded, bits >> 16 | 0x40u));
}
/* Below 2^-14 the addition of 0.5, whose unit is that of an f16 subnormal, rounds; 65520 is halfway past the largest
 * f16. */
static inline void vf_store_f16(void *p, vf x) {
    const vu bits = (vu)x, sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    const vu normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    const vu subnormal = (vu)((vf)magnitude + vf_set1(0.5f)) - 0x3f000000u;
    vu half = vu_select((vm)magnitude < 0x38800000, subnormal, normal);
    half = vu_select((vm)magnitude >= 0x477ff000, (vu){0x7c00u, 0x7c00u, 0x7c00u, 0x7c00u}, half);
    half = vu_select((vm)magnitude > 0x7f800000, 0x7e00u | (magnitude >> 13 & 0x3ffu), half);
    vu_store_halves(p, half | sign);
}

#endif
