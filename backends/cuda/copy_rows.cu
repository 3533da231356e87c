/* copy_rows.cu - gather, scatter, convert, scale, subtract and zero rows, in f32 and rounded once. A block takes a row:
 * eight elements a thread where every row involved starts at a multiple of 16 bytes, one otherwise. Bits of rows that
 * are only moved stay as they are, payloads of NaN included.
 *
 * A thread reads several places before it writes the first: its row is a few of them long, and so all of it is under way
 * at once. */
#include "device.h"
#include "elements.cuh"

enum { THREADS = 128, AT_ONCE = 3 };

/* One row's addresses and factors. */
struct row_copy {
    const unsigned char *src, *subtract;
    unsigned char *dst;
    float scale;
    int scaled, zero;
};

static __device__ row_copy row_of(const oh_copy_rows &c, int64_t row) {
    const int64_t m = c.map ? c.map[row] : row;
    row_copy r;
    r.dst = (unsigned char *)c.dst + row * c.dst_ld * element_bytes(c.dst_dtype);
    r.src = r.subtract = NULL;
    r.scale = 1;
    r.scaled = c.factor || c.row_scale;
    r.zero = m < 0 || (c.row_scale && c.row_scale[m] == 0);
    if (r.zero) return r;
    r.src = (const unsigned char *)c.src + m * c.src_ld * element_bytes(c.src_dtype);
    if (r.scaled) r.scale = (c.factor ? *c.factor : 1.0f) * (c.row_scale ? c.row_scale[m] : 1.0f);
    if (!c.subtract) return r;
    const int64_t s = c.subtract_map ? c.subtract_map[m] : m;
    r.subtract = (const unsigned char *)c.subtract + s * c.subtract_ld * element_bytes(c.subtract_dtype);
    return r;
}

static __device__ void zero_row(const oh_copy_rows &c, const row_copy &r, int64_t vectors) {
    const float zeros[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int64_t v = threadIdx.x; v < vectors; v += THREADS)
        write_eight(r.dst, 8 * v, c.dst_dtype, zeros);
    for (int64_t j = 8 * vectors + threadIdx.x; j < c.columns; j += THREADS)
        element_write(r.dst, j, c.dst_dtype, 0);
}

static __device__ void move_row(const oh_copy_rows &c, const row_copy &r, int64_t vectors) {
    const int size = element_bytes(c.dst_dtype);
    const int64_t whole = vectors * size / 2;
    const uint4 *from = (const uint4 *)r.src;
    uint4 *to = (uint4 *)r.dst;
    for (int64_t first = threadIdx.x; first < whole; first += AT_ONCE * THREADS) {
        uint4 bits[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
            if (first + i * THREADS < whole) bits[i] = from[first + i * THREADS];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
            if (first + i * THREADS < whole) to[first + i * THREADS] = bits[i];
    }
    for (int64_t j = 8 * vectors + threadIdx.x; j < c.columns; j += THREADS) {
        if (size == 4)
            ((unsigned *)r.dst)[j] = ((const unsigned *)r.src)[j];
        else
            ((unsigned short *)r.dst)[j] = ((const unsigned short *)r.src)[j];
    }
}

static __device__ void compute_row(const oh_copy_rows &c, const row_copy &r, int64_t vectors) {
    for (int64_t first = threadIdx.x; first < vectors; first += AT_ONCE * THREADS) {
        float value[AT_ONCE][8], other[AT_ONCE][8];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int64_t v = first + i * THREADS;
            if (v >= vectors) continue;
            read_eight(r.src, 8 * v, c.src_dtype, value[i]);
            if (r.subtract) read_eight(r.subtract, 8 * v, c.subtract_dtype, other[i]);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int64_t v = first + i * THREADS;
            if (v >= vectors) continue;
#pragma unroll
            for (int e = 0; e < 8; ++e) {
                if (r.subtract) value[i][e] -= other[i][e];
                if (r.scaled) value[i][e] *= r.scale;
            }
            write_eight(r.dst, 8 * v, c.dst_dtype, value[i]);
        }
    }
    for (int64_t j = 8 * vectors + threadIdx.x; j < c.columns; j += THREADS) {
        float value = element_read(r.src, j, c.src_dtype);
        if (r.subtract) value -= element_read(r.subtract, j, c.subtract_dtype);
        if (r.scaled) value *= r.scale;
        element_write(r.dst, j, c.dst_dtype, value);
    }
}

__global__ void __launch_bounds__(THREADS) copy_rows_kernel(const oh_copy_rows c) {
    const row_copy r = row_of(c, blockIdx.x);
    const uintptr_t bits = (uintptr_t)r.src | (uintptr_t)r.subtract | (uintptr_t)r.dst;
    const int64_t vectors = bits % 16 == 0 ? c.columns / 8 : 0;
    if (r.zero)
        zero_row(c, r, vectors);
    else if (!r.scaled && !r.subtract && c.src_dtype == c.dst_dtype)
        move_row(c, r, vectors);
    else
        compute_row(c, r, vectors);
}

static int matrix_valid(const void *data, int64_t ld, int64_t columns, int32_t dtype) {
    if (dtype != OH_F32 && dtype != OH_BF16 && dtype != OH_F16) return 0;
    return !data || (ld >= columns && (uintptr_t)data % (uintptr_t)element_bytes(dtype) == 0);
}

static int copy_valid(const oh_copy_rows *c) {
    if (c->rows < 0 || c->columns < 0 || c->rows > INT32_MAX) return 0;
    if (!matrix_valid(c->dst, c->dst_ld, c->columns, c->dst_dtype)) return 0;
    if (!matrix_valid(c->src, c->src_ld, c->columns, c->src_dtype)) return 0;
    if (c->subtract && !matrix_valid(c->subtract, c->subtract_ld, c->columns, c->subtract_dtype)) return 0;
    if (c->rows == 0 || c->columns == 0) return 1;
    if (!c->dst || (!c->src && !c->map)) return 0;
    return c->dst != c->src || (!c->map && c->dst_ld == c->src_ld && c->dst_dtype == c->src_dtype);
}

oh_status cuda_copy_rows(oh_queue *queue, const oh_copy_rows *copy) {
    if (queue_ready(queue) != OH_OK) return queue_ready(queue);
    if (!copy_valid(copy)) return queue_refuse(queue, "copy_rows");
    if (copy->rows == 0 || copy->columns == 0) return OH_OK;
    const device_guard guard(queue->device);
    copy_rows_kernel<<<(unsigned)copy->rows, THREADS, 0, queue->stream>>>(*copy);
    return queue_launched(queue, "copy_rows");
}

cudaError_t copy_rows_load(void) {
    return load_kernels(copy_rows_kernel);
}
