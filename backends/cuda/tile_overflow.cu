/* tile_overflow.cu - logits that aren't finite in an f16 tile though their products are. A block takes a row, and leaves
 * at once where the first read flagged nothing: that is the cost of a step without overflow. In a flagged row each thread
 * looks at every 256th column and multiplies out what it finds. */
#include <onehead/rowmath.h>

#include "device.h"
#include "elements.cuh"
#include "tiles.cuh"

enum { THREADS = 256 };

static __device__ float source_at(const oh_tile_source &s, int64_t m, int64_t h) {
    const float value = element_read((const unsigned char *)s.rows, m * s.ld + h, s.rows_dtype);
    if (!s.subtract) return value;
    const int64_t from = s.subtract_map ? s.subtract_map[m] : m;
    return value - element_read((const unsigned char *)s.subtract, from * s.subtract_ld + h, s.rows_dtype);
}

static __device__ bool product_is_finite(const oh_tile_source &s, int64_t m, int64_t column) {
    const int64_t w = s.weight_map ? s.weight_map[column] : column;
    float sum = 0;
    for (int64_t h = 0; h < s.hidden; ++h)
        sum += source_at(s, m, h) * element_read((const unsigned char *)s.weight, w * s.weight_ld + h, s.weight_dtype);
    return isfinite(sum);
}

/* By all threads of a block. */
static __device__ bool row_overflows(const oh_tile_view &tile, const oh_tile_source &s, const void *data, int64_t ld,
                                     int64_t row) {
    const int64_t m = s.map ? s.map[row] : row;
    bool bad = false;
    for (int64_t h = threadIdx.x; m >= 0 && h < s.hidden; h += THREADS)
        bad = bad || !isfinite(source_at(s, m, h));
    if (__syncthreads_or(m < 0 || bad)) return false;
    for (int64_t first = 0; first < tile.columns; first += THREADS) {
        const int64_t j = first + threadIdx.x;
        const bool odd = j < tile.columns && !isfinite(element_read((const unsigned char *)data, row * ld + j, OH_F16));
        if (__syncthreads_or(odd && product_is_finite(s, m, tile.first_column + j))) return true;
    }
    return false;
}

__global__ void __launch_bounds__(THREADS) tile_overflow_kernel(const oh_tile_overflow o) {
    const int64_t i = blockIdx.x;
    const unsigned flags = o.stats[i].flags;
    if (flags == 0 || flags & OH_ROW_OVERFLOW) return;
    const int64_t source = o.draft.map ? o.draft.map[i] : i;
    if (source < 0) return;
    bool overflows = row_overflows(o.tile, o.draft, o.tile.draft, o.tile.draft_ld, i);
    if (!overflows && o.tile.target) {
        const int64_t t = o.tile.target_row ? o.tile.target_row[i] : i;
        overflows = row_overflows(o.tile, o.target, o.tile.target, o.tile.target_ld, t);
    }
    if (!overflows || threadIdx.x != 0) return;
    o.stats[i].flags = flags | OH_ROW_Z_BAD | OH_ROW_OVERFLOW;
    /* Whole numbers: the order of additions doesn't show. Row numbers are positive: their bits order as they do. */
    atomicAdd(&o.found[0], 1.0);
    const double row = (double)(source + 1);
    unsigned long long *const lowest = (unsigned long long *)&o.found[1];
    unsigned long long seen = *lowest;
    while (seen == 0 || (unsigned long long)__double_as_longlong(row) < seen) {
        const unsigned long long was = atomicCAS(lowest, seen, (unsigned long long)__double_as_longlong(row));
        if (was == seen) break;
        seen = was;
    }
}

static int is_element(int32_t dtype) {
    return dtype == OH_F32 || dtype == OH_BF16 || dtype == OH_F16;
}

static int source_valid(const oh_tile_source *s) {
    if (!s->rows) return 1;
    if (!is_element(s->rows_dtype) || !is_element(s->weight_dtype)) return 0;
    const uintptr_t element = (uintptr_t)element_bytes(s->rows_dtype),
                    of_weight = (uintptr_t)element_bytes(s->weight_dtype);
    if (s->hidden < 0 || s->ld < s->hidden || s->weight_ld < s->hidden || !s->weight) return 0;
    if ((uintptr_t)s->rows % element || (uintptr_t)s->subtract % element || (uintptr_t)s->weight % of_weight) return 0;
    return !s->subtract || s->subtract_ld >= s->hidden;
}

static int overflow_valid(const oh_tile_overflow *o) {
    const oh_tile_view *tile = &o->tile;
    if (!tile_view_valid(tile) || (tile->format != OH_TILE_F16 && tile->format != OH_TILE_DIFF)) return 0;
    if (!source_valid(&o->draft) || !source_valid(&o->target)) return 0;
    if (tile->rows == 0) return 1;
    return o->stats && o->found && tile->draft && o->draft.rows && (!tile->target || o->target.rows);
}

oh_status cuda_tile_overflow(oh_queue *queue, const oh_tile_overflow *overflow) {
    if (queue_ready(queue) != OH_OK) return queue_ready(queue);
    if (!overflow_valid(overflow)) return queue_refuse(queue, "tile_overflow");
    if (overflow->tile.rows == 0) return OH_OK;
    const device_guard guard(queue->device);
    tile_overflow_kernel<<<(unsigned)overflow->tile.rows, THREADS, 0, queue->stream>>>(*overflow);
    return queue_launched(queue, "tile_overflow");
}

cudaError_t tile_overflow_load(void) {
    return load_kernels(tile_overflow_kernel);
}
