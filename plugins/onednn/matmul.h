/* matmul.h - oneDNN's matmul primitives for one thread, compiled once for a shape and kept. */
#ifndef ONEHEAD_ONEDNN_MATMUL_H
#define ONEHEAD_ONEDNN_MATMUL_H

#include "device.h"
#include "pack.h"

/* C[m,n] = A B, or C + A B with `accumulate`: row-major, A read as [k,m] where a_transposed, B as [n,k] where
 * b_transposed; both of `operand`, C f32. Strides of rows in elements. */
typedef struct matmul_shape {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t operand; /* oh_dtype: f32 or bf16 */
    int32_t a_transposed, b_transposed, accumulate;
    int32_t b_packed; /* B is as matmul_packing says, whatever ldb and b_transposed are */
} matmul_shape;

typedef struct matmul_cache matmul_cache;

/* A table of a fixed number of primitives, the least recently used of which makes room. Its functions may be called
 * from several threads at once. */
matmul_cache *matmul_cache_open(dnnl_engine_t engine);
void matmul_cache_close(matmul_cache *cache); /* NULL is allowed */

/* The layout that oneDNN would have B in. 0: not one that pack.h knows, or `status` is not dnnl_success. */
int matmul_packing(matmul_cache *cache, const matmul_shape *shape, packing *packed, dnnl_status_t *status);

/* Multiplies on the calling thread, which OpenMP must be told to use alone. `scratch` of `scratch_bytes` may be too
 * small or NULL: memory is then borrowed for the time of the call. */
dnnl_status_t matmul_run(matmul_cache *cache, dnnl_stream_t stream, const matmul_shape *shape, const void *a,
                         const void *b, void *c, void *scratch, size_t scratch_bytes);

#endif
