/* dtype.h - f32, bf16 and f16 elements to and from float, in plain C on any alignment.
 *
 * Rounding is to nearest, ties to even; NaN stays NaN with its sign. bf16 overflows to infinity as f32 arithmetic
 * would; f16 from 65520 on. f16 subnormals are exact in both directions, also where the FPU flushes f32 subnormals. */
#ifndef ONEHEAD_PORTABLE_DTYPE_H
#define ONEHEAD_PORTABLE_DTYPE_H

#include <stdint.h>
#include <string.h>

#include <onehead/backend.h>

static inline uint32_t oh_f32_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float oh_f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float oh_f32_from_bf16(uint16_t half) {
    return oh_f32_from_bits((uint32_t)half << 16);
}

static inline uint16_t oh_bf16_from_f32(float value) {
    const uint32_t bits = oh_f32_bits(value);
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    const uint32_t quiet_nan = bits >> 16 | 0x40u; /* the payload's upper bits may be 0: set the quiet bit */
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
}

static inline float oh_f32_from_f16(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = half >> 10 & 31u, fraction = half & 0x3ffu;
    const uint32_t subnormal = oh_f32_bits((float)(int32_t)fraction * 0x1p-24f);
    const uint32_t normal = (exponent + (127u - 15u)) << 23 | fraction << 13;
    const uint32_t special = 0x7f800000u | fraction << 13;
    const uint32_t magnitude = exponent == 0 ? subnormal : exponent == 31 ? special : normal;
    return oh_f32_from_bits(sign | magnitude);
}

static inline uint16_t oh_f16_from_f32(float value) {
    const uint32_t bits = oh_f32_bits(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    uint32_t half;
    if (magnitude > 0x7f800000u)
        half = 0x7e00u | (magnitude >> 13 & 0x3ffu); /* NaN */
    else if (magnitude >= 0x477ff000u)
        half = 0x7c00u; /* 65520, halfway past the largest f16, rounds to infinity */
    else if (magnitude >= 0x38800000u)
        half = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    else /* below 2^-14: the unit of 0.5f is 2^-24, that of an f16 subnormal, so the addition rounds */
        half = oh_f32_bits(oh_f32_from_bits(magnitude) + 0.5f) - 0x3f000000u;
    return (uint16_t)(sign | half);
}

/* Bytes of an element of a matrix or tile; 0: not one of the three dtypes. */
static inline int64_t oh_element_size(int32_t dtype) {
    if (dtype == OH_F32) return 4;
    return dtype == OH_BF16 || dtype == OH_F16 ? 2 : 0;
}

/* Elements [first, first + count) of `base`, of one of the three dtypes, to `to` and from `from`. */
static inline void oh_load_elements(const void *base, int64_t first, int64_t count, int32_t dtype, float *to) {
    const unsigned char *from = (const unsigned char *)base + first * oh_element_size(dtype);
    uint16_t half;
    if (dtype == OH_F32) {
        memcpy(to, from, (size_t)count * sizeof(float));
    } else if (dtype == OH_BF16) {
        for (int64_t j = 0; j < count; ++j) {
            memcpy(&half, from + 2 * j, sizeof half);
            to[j] = oh_f32_from_bf16(half);
        }
    } else {
        for (int64_t j = 0; j < count; ++j) {
            memcpy(&half, from + 2 * j, sizeof half);
            to[j] = oh_f32_from_f16(half);
        }
    }
}

static inline void oh_store_elements(void *base, int64_t first, int64_t count, int32_t dtype, const float *from) {
    unsigned char *to = (unsigned char *)base + first * oh_element_size(dtype);
    uint16_t half;
    if (dtype == OH_F32) {
        memcpy(to, from, (size_t)count * sizeof(float));
    } else if (dtype == OH_BF16) {
        for (int64_t j = 0; j < count; ++j) {
            half = oh_bf16_from_f32(from[j]);
            memcpy(to + 2 * j, &half, sizeof half);
        }
    } else {
        for (int64_t j = 0; j < count; ++j) {
            half = oh_f16_from_f32(from[j]);
            memcpy(to + 2 * j, &half, sizeof half);
        }
    }
}

#endif
