/* floats.h - f32, bf16 and f16 elements as doubles, from the formats' definitions. */
#ifndef ONEHEAD_CONFORM_FLOATS_H
#define ONEHEAD_CONFORM_FLOATS_H

#include <stdint.h>

#include <onehead/backend.h>

/* Unit roundoff of f32. */
#define FLOAT_U 0x1p-24

/* Bytes of an element; 2 for bf16 and f16. */
int64_t float_size(int32_t dtype);
const char *float_name(int32_t dtype);

/* Unit roundoff: half the distance from 1 to the next number. */
double float_unit(int32_t dtype);

/* What rounding may add to that at values next to 0. For f32 and bf16 the smallest normal number, so that hardware which
 * flushes subnormals is right; for f16, whose subnormals are within reach of real gradients, half a subnormal. */
double float_floor(int32_t dtype);

/* The nearest number of the format, ties to even. */
double float_round(double value, int32_t dtype);

double float_load(const void *base, int64_t index, int32_t dtype);
/* Rounds. */
void float_store(void *base, int64_t index, int32_t dtype, double value);

#endif
