#include "floats.h"

#include <math.h>
#include <string.h>

typedef struct format {
    int bits, precision, least_exponent, most_exponent; /* exponents of the smallest and largest normal number */
} format;

static format format_of(int32_t dtype) {
    if (dtype == OH_F32) return (format){32, 24, -126, 127};
    return dtype == OH_BF16 ? (format){16, 8, -126, 127} : (format){16, 11, -14, 15};
}

int64_t float_size(int32_t dtype) {
    return format_of(dtype).bits / 8;
}

const char *float_name(int32_t dtype) {
    if (dtype == OH_F32) return "f32";
    return dtype == OH_BF16 ? "bf16" : "f16";
}

double float_unit(int32_t dtype) {
    return ldexp(1, -format_of(dtype).precision);
}

double float_floor(int32_t dtype) {
    return dtype == OH_F16 ? 0x1p-25 : 0x1p-126;
}

double float_round(double value, int32_t dtype) {
    if (value == 0 || !isfinite(value)) return value;
    const format f = format_of(dtype);
    int exponent;
    frexp(value, &exponent); /* |value| in [2^(exponent-1), 2^exponent) */
    const int least = exponent - 1 > f.least_exponent ? exponent - 1 : f.least_exponent;
    const double unit = ldexp(1, least - f.precision + 1);
    const double rounded = nearbyint(value / unit) * unit;
    return fabs(rounded) >= ldexp(1, f.most_exponent + 1) ? copysign(INFINITY, value) : rounded;
}

double float_load(const void *base, int64_t index, int32_t dtype) {
    const unsigned char *at = (const unsigned char *)base + index * float_size(dtype);
    if (dtype == OH_F32) {
        float value;
        memcpy(&value, at, sizeof value);
        return (double)value;
    }
    const format f = format_of(dtype);
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    const int fraction_bits = f.precision - 1, fraction = bits & ((1 << fraction_bits) - 1);
    const int biased = (bits & 0x7fff) >> fraction_bits, special = f.most_exponent - f.least_exponent + 2;
    const double sign = bits & 0x8000 ? -1 : 1;
    if (biased == special) return fraction ? (double)NAN : sign * INFINITY;
    const int whole = biased > 0 ? fraction | 1 << fraction_bits : fraction;
    return sign * ldexp(whole, (biased > 0 ? biased - 1 : 0) + f.least_exponent - fraction_bits);
}

static uint16_t half_bits(double value, int32_t dtype) {
    const format f = format_of(dtype);
    const int fraction_bits = f.precision - 1, special = f.most_exponent - f.least_exponent + 2;
    const int sign = signbit(value) ? 0x8000 : 0;
    if (isnan(value)) return (uint16_t)(sign | special << fraction_bits | 1 << (fraction_bits - 1));
    const double size = fabs(float_round(value, dtype));
    if (size == INFINITY) return (uint16_t)(sign | special << fraction_bits);
    const double subnormal = size / ldexp(1, f.least_exponent - fraction_bits); /* in units of the smallest */
    if (subnormal < ldexp(1, fraction_bits)) return (uint16_t)(sign | (int)subnormal);
    int exponent;
    const double mantissa = frexp(size, &exponent);
    const int fraction = (int)ldexp(mantissa, f.precision) - (1 << fraction_bits);
    return (uint16_t)(sign | (exponent - f.least_exponent) << fraction_bits | fraction);
}

void float_store(void *base, int64_t index, int32_t dtype, double value) {
    unsigned char *at = (unsigned char *)base + index * float_size(dtype);
    if (dtype == OH_F32) {
        const float narrow = (float)value;
        memcpy(at, &narrow, sizeof narrow);
        return;
    }
    const uint16_t bits = half_bits(value, dtype);
    memcpy(at, &bits, sizeof bits);
}
