/* overlap_sums.cuh - what p and q have in common, and how many logits stand ahead of the label's: a vector's part, for the
 * second read and for the gradient's pass where it makes one. */
#ifndef ONEHEAD_CUDA_OVERLAP_SUMS_CUH
#define ONEHEAD_CUDA_OVERLAP_SUMS_CUH

#include "softmax.cuh"

/* A vector's share. */
struct vector_overlap {
    float alpha, tv, p_le, of_p, of_q;
};

static __device__ __forceinline__ void add_shared(vector_overlap *v, float p, float q) {
    const float least = fminf(p, q);
    v->alpha += least;
    v->tv += q - least;
    if (p <= q) v->p_le += p;
}

/* Logits that stand before the label's: larger, or as large in a lower column. */
template <int N> static __device__ __forceinline__ int count_ahead(const float *z, int from, float z_label, int label) {
    int ahead = 0;
    if (from + N <= label) {
#pragma unroll
        for (int e = 0; e < N; ++e)
            ahead += z[e] >= z_label;
        return ahead;
    }
#pragma unroll
    for (int e = 0; e < N; ++e)
        ahead += z[e] > z_label;
    if (from < label)
#pragma unroll
        for (int e = 0; e < N; ++e)
            ahead += z[e] == z_label && from + e < label;
    return ahead;
}

#endif
