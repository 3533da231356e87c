/* tile_overlap.cu - the second read of a tile: how much p and q have in common, their mixture, and the label's rank.
 *
 * Terms are formed in f32. Sums of terms of one sign are kept in f32 by thread and merged in f64; those of the mixture,
 * whose terms of both signs nearly cancel where p is near q, are kept in f64 from the vector on. */
#include <onehead/rowmath.h>

#include "device.h"
#include "overlap_sums.cuh"

struct thread_overlap {
    float alpha, tv, p_le;
    double of_p, of_q; /* sum p (log p - log m), sum q (log q - log m) */
    int rank;
};

enum { SUM_ALPHA, SUM_TV, SUM_P_LE, SUM_OF_P, SUM_OF_Q, SUM_COUNT };

/* With r = log q - log p and g = log m less the larger logarithm: the larger's log less log m is -g, the smaller's
 * -|r| - g. Where one of the two is 0, m is half of the other. */
static __device__ __forceinline__ void add_mixture(vector_overlap *v, const row_softmax &s, float z, float t, float p,
                                                   float q) {
    if (z > -INFINITY && t > -INFINITY) {
        const float r = softmax_log_ratio(s, z, t), g = softmax_mixture(r);
        v->of_p -= p * (r > 0 ? r + g : g);
        v->of_q -= q * (r > 0 ? g : g - r);
    } else {
        v->of_p += p * (float)LN_2;
        v->of_q += q * (float)LN_2;
    }
}

template <bool COMPARES, bool MIXES>
static __device__ __forceinline__ void add_element(vector_overlap *v, const row_softmax &s, float z, float t) {
    if (!COMPARES) return;
    const float p = softmax_p(s, z), q = softmax_q(s, t);
    add_shared(v, p, q);
    if (MIXES) add_mixture(v, s, z, t, p, q);
}

template <bool MIXES> static __device__ __forceinline__ void add_vector(thread_overlap *own, const vector_overlap &v) {
    own->alpha += v.alpha;
    own->tv += v.tv;
    own->p_le += v.p_le;
    if (!MIXES) return;
    own->of_p += (double)v.of_p;
    own->of_q += (double)v.of_q;
}

static __device__ bool is_finite(const oh_row_stats *s, bool has_target) {
    if (s->flags & OH_ROW_Z_BAD || !(s->z_max > -INFINITY)) return false;
    return !has_target || (!(s->flags & OH_ROW_T_BAD) && s->t_max > -INFINITY);
}

/* COMPARES: p with q, needs a target. MIXES: their mixture too. */
template <int FORMAT, bool TRANSFORM, bool COMPARES, bool MIXES>
__global__ void __launch_bounds__(TILE_THREADS, 4) tile_overlap_kernel(const oh_tile_overlap o) {
    typedef tile_row<FORMAT, COMPARES ? TILES_BOTH : TILES_DRAFT, TRANSFORM> row_type;
    constexpr int N = row_type::VECTOR, TAKEN = MIXES ? 1 : 2;
    __shared__ double sums[SUM_COUNT][TILE_WARPS];
    __shared__ int ranks[TILE_WARPS];
    const int64_t index = blockIdx.x;
    const oh_row_stats of_row = oh_overlap_stats(&o, index), *stats = &of_row;
    const bool has_target = o.tile.target != NULL;
    if (!is_finite(stats, has_target)) {
        if (threadIdx.x == 0) o.overlap[index] = oh_row_overlap{0, 0, 0, 0, 0, 0};
        return;
    }
    const row_type row(o.tile, index);
    const row_softmax s = softmax_from_stats(stats, has_target);
    const float z_label = stats->z_label;
    const bool wants_rank = (o.want & OH_WANT_RANK) != 0;
    const int label = stats->label, label_here = label - (int)o.tile.first_column;
    const uint4 none = make_uint4(0, 0, 0, 0);
    thread_overlap own = {0, 0, 0, 0, 0, 0};

    /* Vectors of each tile are under way while others are compared; by turns, so that none is moved. */
    const int whole = row.end_whole - row.first_whole, begin = row.column_of(row.first_whole);
    const uint4 *const z_at = (const uint4 *)(row.z_raw + begin);
    const uint4 *const t_at = row_type::READS_T ? (const uint4 *)(row.t_raw + begin) : NULL;
    struct taken_bits {
        uint4 z[TAKEN], t[TAKEN];
    } even, odd;
    const auto load = [&](taken_bits *to, int first) {
#pragma unroll
        for (int i = 0; i < TAKEN; ++i) {
            const int place = first + i * TILE_THREADS;
            if (place >= whole) return;
            to->z[i] = __ldcs(z_at + place);
            if (row_type::READS_T) to->t[i] = __ldcs(t_at + place);
        }
    };
    const auto add = [&](const taken_bits &of, int first) {
#pragma unroll
        for (int i = 0; i < TAKEN; ++i) {
            const int place = first + i * TILE_THREADS, vector = row.first_whole + place;
            if (place >= whole) return;
            float z[N], t[N];
            vector_overlap v = {0, 0, 0, 0, 0};
            row.logits(o.tile, vector, of.z[i], row_type::READS_T ? of.t[i] : none, z, t);
#pragma unroll
            for (int e = 0; e < N; ++e)
                add_element<COMPARES, MIXES>(&v, s, z[e], COMPARES ? t[e] : 0.0f);
            if (wants_rank) own.rank += count_ahead<N>(z, row.column_of(vector), z_label, label_here);
            add_vector<MIXES>(&own, v);
        }
    };
    load(&even, (int)threadIdx.x);
#pragma unroll 1
    for (int place = (int)threadIdx.x; place < whole; place += 2 * TAKEN * TILE_THREADS) {
        load(&odd, place + TAKEN * TILE_THREADS);
        add(even, place);
        load(&even, place + 2 * TAKEN * TILE_THREADS);
        add(odd, place + TAKEN * TILE_THREADS);
    }
    for (int edge = threadIdx.x; edge < row.edges(); edge += TILE_THREADS) {
        const int from = row.column_of(row.edge_vector(edge));
        vector_overlap v = {0, 0, 0, 0, 0};
#pragma unroll 1
        for (int column = max(from, 0); column < min(from + N, row.columns); ++column) {
            const float z = row.z(o.tile, column);
            add_element<COMPARES, MIXES>(&v, s, z, COMPARES ? row.t(o.tile, column) : 0.0f);
            if (wants_rank) own.rank += count_ahead<1>(&z, column, z_label, label_here);
        }
        add_vector<MIXES>(&own, v);
    }

    const double of_thread[SUM_COUNT] = {(double)own.alpha, (double)own.tv, (double)own.p_le, own.of_p, own.of_q};
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < SUM_COUNT; ++k) {
        const double sum = warp_sum(of_thread[k]);
        if (lane == 0) sums[k][warp] = sum;
    }
    const int rank = __reduce_add_sync(0xffffffffu, own.rank);
    if (lane == 0) ranks[warp] = rank;
    __syncthreads();
    if (threadIdx.x != 0) return;
    double total[SUM_COUNT];
    oh_row_overlap v = {0, 0, 0, 0, 0, 0};
    if (!o.restart) v = o.overlap[index];
    for (int k = 0; k < SUM_COUNT; ++k) {
        total[k] = 0;
        for (int w = 0; w < TILE_WARPS; ++w)
            total[k] += sums[k][w];
    }
    v.alpha += total[SUM_ALPHA];
    v.tv += total[SUM_TV];
    v.p_le += total[SUM_P_LE];
    v.jsd += 0.5 * (total[SUM_OF_P] + total[SUM_OF_Q]);
    v.kl_pm += total[SUM_OF_P];
    /* Without a label there is nothing to rank: z_label is -inf then and everything would stand ahead. */
    for (int w = 0; w < TILE_WARPS && label >= 0; ++w)
        v.rank += ranks[w];
    o.overlap[index] = v;
}

/* ----------------------------------------------------------------------------------------------------- dispatch ---- */

typedef void (*overlap_kernel)(const oh_tile_overlap);

enum { RANKS, COMPARES, MIXES, KINDS };

#define KERNELS(format, transform)                                                                                     \
    {                                                                                                                  \
        tile_overlap_kernel<format, transform, false, false>, tile_overlap_kernel<format, transform, true, false>,     \
            tile_overlap_kernel<format, transform, true, true>                                                         \
    }
#define FORMAT_KERNELS(format)                                                                                         \
    { KERNELS(format, false), KERNELS(format, true) }

static const overlap_kernel kernels[4][2][KINDS] = {FORMAT_KERNELS(OH_TILE_F32), FORMAT_KERNELS(OH_TILE_BF16),
                                                    FORMAT_KERNELS(OH_TILE_F16), FORMAT_KERNELS(OH_TILE_DIFF)};

static int overlap_valid(const oh_tile_overlap *o) {
    const uint32_t known = OH_WANT_OVERLAP | OH_WANT_JSD | OH_WANT_RANK;
    if (!tile_view_valid(&o->tile)) return 0;
    if (o->tile.rows == 0) return 1;
    if (!o->stats || !o->overlap) return 0;
    if (o->tile.columns == 0 || !(o->want & known)) return 1;
    return o->tile.draft && (o->tile.target || !(o->want & (OH_WANT_OVERLAP | OH_WANT_JSD)));
}

oh_status cuda_tile_overlap(oh_queue *queue, const oh_tile_overlap *overlap) {
    if (queue_ready(queue) != OH_OK) return queue_ready(queue);
    if (!overlap_valid(overlap)) return queue_refuse(queue, "tile_overlap");
    if (overlap->tile.rows == 0) return OH_OK;
    oh_tile_overlap arguments = *overlap;
    /* Nothing to read, but rows start again. */
    if (!(overlap->want & (OH_WANT_OVERLAP | OH_WANT_JSD | OH_WANT_RANK))) arguments.tile.columns = 0;
    const int kind = overlap->want & OH_WANT_JSD ? MIXES : overlap->want & OH_WANT_OVERLAP ? COMPARES : RANKS;
    const device_guard guard(queue->device);
    kernels[overlap->tile.format][tile_view_transforms(&overlap->tile)]
           [kind]<<<(unsigned)overlap->tile.rows, TILE_THREADS, 0, queue->stream>>>(arguments);
    return queue_launched(queue, "tile_overlap");
}

cudaError_t tile_overlap_load(void) {
    return load_kernels(kernels);
}
