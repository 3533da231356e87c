/* gemm_bound.h - how far a product may be from the exact one.
 *
 * k products and, with `accumulate`, one more term are added in f32: at most k roundings, each of at most a unit times a
 * partial sum, which is at most size = sum |a b| + |c|. A product of two f32 is rounded once more, or fused; one of two
 * 16-bit numbers is exact. So (k + 1) units of size whatever the order of the additions, and one rounding of the result.
 *
 * The unit is 2^-24 for f32 operands. Matrix units that multiply 16-bit operands cut off instead of rounding: 2^-23; so
 * where either operand has 16 bits. (A product of f32 and bf16 may be three of bf16, of the leading, middle and last
 * 8 bits: k roundings in each, but those of the other two weigh 2^-8 and less.)
 *
 * Where the terms have random signs, partial sums are like sqrt(sum (a b)^2) instead, and k roundings of random sign
 * like sqrt(k) of them: gemm_spread. */
#ifndef ONEHEAD_CONFORM_GEMM_BOUND_H
#define ONEHEAD_CONFORM_GEMM_BOUND_H

#include <math.h>

#include "floats.h"

static inline double gemm_unit(int32_t operand_dtype) {
    return operand_dtype == OH_F32 ? FLOAT_U : 2 * FLOAT_U;
}

static inline double gemm_last_rounding(int32_t result_dtype, double value) {
    return result_dtype == OH_F32 ? 0 : float_unit(result_dtype) * fabs(value) + float_floor(result_dtype);
}

static inline double gemm_bound(int64_t k, int32_t operand_dtype, int32_t result_dtype, double value, double size) {
    return (double)(k + 1) * gemm_unit(operand_dtype) * size + gemm_last_rounding(result_dtype, value);
}

static inline double gemm_spread(int64_t k, int32_t operand_dtype, int32_t result_dtype, double value, double squares) {
    return sqrt((double)(k + 1) * squares) * gemm_unit(operand_dtype) + gemm_last_rounding(result_dtype, value);
}

#endif
