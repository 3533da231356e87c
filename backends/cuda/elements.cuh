/* elements.cuh - f32, bf16 and f16 elements, one at a time and in vectors of 16 bytes. Rounding is to nearest, ties to
 * even, as everywhere. */
#ifndef ONEHEAD_CUDA_ELEMENTS_CUH
#define ONEHEAD_CUDA_ELEMENTS_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <onehead/backend.h>

static __host__ __device__ inline int element_bytes(int32_t dtype) {
    return dtype == OH_F32 ? 4 : 2;
}

static __device__ __forceinline__ float element_read(const void *base, int64_t index, int32_t dtype) {
    if (dtype == OH_F32) return ((const float *)base)[index];
    const unsigned short bits = ((const unsigned short *)base)[index];
    return dtype == OH_BF16 ? __uint_as_float((unsigned)bits << 16) : __half2float(__ushort_as_half(bits));
}

static __device__ __forceinline__ void element_write(void *base, int64_t index, int32_t dtype, float value) {
    if (dtype == OH_F32)
        ((float *)base)[index] = value;
    else if (dtype == OH_BF16)
        ((__nv_bfloat16 *)base)[index] = __float2bfloat16_rn(value);
    else
        ((__half *)base)[index] = __float2half_rn(value);
}

static __device__ __forceinline__ unsigned pack_bf16(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(const unsigned *)&pair;
}

static __device__ __forceinline__ unsigned pack_f16(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *(const unsigned *)&pair;
}

static __device__ __forceinline__ void unpack_bf16(unsigned pair, float *to) {
    to[0] = __uint_as_float(pair << 16);
    to[1] = __uint_as_float(pair & 0xffff0000u);
}

static __device__ __forceinline__ void unpack_f16(unsigned pair, float *to) {
    const float2 values = __half22float2(*(const __half2 *)&pair);
    to[0] = values.x;
    to[1] = values.y;
}

/* Eight elements at an address that is a multiple of 16 bytes. */
static __device__ __forceinline__ void read_eight(const void *base, int64_t index, int32_t dtype, float *to) {
    if (dtype == OH_F32) {
        const uint4 *from = (const uint4 *)((const float *)base + index);
        const uint4 low = from[0], high = from[1];
        to[0] = __uint_as_float(low.x), to[1] = __uint_as_float(low.y);
        to[2] = __uint_as_float(low.z), to[3] = __uint_as_float(low.w);
        to[4] = __uint_as_float(high.x), to[5] = __uint_as_float(high.y);
        to[6] = __uint_as_float(high.z), to[7] = __uint_as_float(high.w);
        return;
    }
    const uint4 raw = *(const uint4 *)((const unsigned short *)base + index);
    if (dtype == OH_BF16) {
        unpack_bf16(raw.x, to), unpack_bf16(raw.y, to + 2), unpack_bf16(raw.z, to + 4), unpack_bf16(raw.w, to + 6);
    } else {
        unpack_f16(raw.x, to), unpack_f16(raw.y, to + 2), unpack_f16(raw.z, to + 4), unpack_f16(raw.w, to + 6);
    }
}

static __device__ __forceinline__ void write_eight(void *base, int64_t index, int32_t dtype, const float *from) {
    if (dtype == OH_F32) {
        float4 *to = (float4 *)((float *)base + index);
        to[0] = make_float4(from[0], from[1], from[2], from[3]);
        to[1] = make_float4(from[4], from[5], from[6], from[7]);
        return;
    }
    uint4 *to = (uint4 *)((unsigned short *)base + index);
    if (dtype == OH_BF16)
        *to = make_uint4(pack_bf16(from[0], from[1]), pack_bf16(from[2], from[3]), pack_bf16(from[4], from[5]),
                         pack_bf16(from[6], from[7]));
    else
        *to = make_uint4(pack_f16(from[0], from[1]), pack_f16(from[2], from[3]), pack_f16(from[4], from[5]),
                         pack_f16(from[6], from[7]));
}

#endif
