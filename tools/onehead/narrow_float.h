/* narrow_float.h - values of bf16 and f16 numbers. */
#ifndef ONEHEAD_TOOL_NARROW_FLOAT_H
#define ONEHEAD_TOOL_NARROW_FLOAT_H

#include <stdint.h>
#include <string.h>

static inline float bf16_value(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static inline float f16_value(uint16_t bits) {
    const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    const uint32_t exponent = bits >> 10 & 0x1fu;
    const uint32_t fraction = bits & 0x3ffu;
    float value;
    if (exponent == 0) { /* zero or subnormal */
        value = (float)fraction * 0x1p-24f;
        return sign != 0 ? -value : value;
    }
    const uint32_t wide = sign | (exponent == 31 ? 255u : exponent + 112u) << 23 | fraction << 13;
    memcpy(&value, &wide, sizeof value);
    return value;
}

#endif
