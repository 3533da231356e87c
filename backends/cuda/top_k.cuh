/* top_k.cuh - a row's K largest draft logits, nearly for free after a pass that left each thread its own largest one,
 * the unit of columns that holds it, and the largest of its other units.
 *
 *   1. Threads form groups of neighbours, at least twice as many as K. The K-th largest of the groups' maxima is a
 *      threshold that at least K logits reach (one in each of K groups), and few more do.
 *   2. Only columns of threads whose own maximum reaches the threshold can. Each of these reads its unit again; where
 *      another of its units reaches it too, the whole block reads all of that thread's. What reaches the threshold is
 *      collected, in any order.
 *   3. What was collected, and what earlier panels left, is ranked by value and column: distinct columns have distinct
 *      ranks, so the order of collecting doesn't matter.
 *
 * Ties can put more logits at the threshold than the list holds (a row of equal logits): then the row is read once for
 * each of K winners. */
#ifndef ONEHEAD_CUDA_TOP_K_CUH
#define ONEHEAD_CUDA_TOP_K_CUH

#include "tile_stream.cuh"

enum { TOP_K_CANDIDATES = 512, TOP_K_GROUPS = TILE_THREADS / 2 };

struct top_k_shared {
    int id[TOP_K_CANDIDATES + OH_TOP_K_MAX];
    float logit[TOP_K_CANDIDATES + OH_TOP_K_MAX];
    unsigned group[TOP_K_GROUPS];
    unsigned long long best[TILE_WARPS];
    unsigned short owner[TILE_THREADS]; /* threads all of whose units are read again */
    int owners, candidates;
    unsigned threshold;
};

/* What a thread found in the row's whole vectors, of which it took STREAM_TAKEN neighbours at a time: units. */
struct top_k_lead {
    float max, second; /* second: over its other units, at least */
    int unit;          /* its first vector; -1: none */
};

static __device__ __forceinline__ void top_k_collect(top_k_shared *s, float logit, int id, float threshold) {
    if (!(logit >= threshold)) return;
    const int at = atomicAdd(&s->candidates, 1);
    if (at >= TOP_K_CANDIDATES) return;
    s->id[at] = id;
    s->logit[at] = logit;
}

static __device__ __forceinline__ int top_k_group_width(int top_k) {
    return top_k <= TILE_THREADS / 16 ? 8 : 2;
}

/* The groups' maxima, before a barrier of the block. */
static __device__ __forceinline__ void top_k_groups(top_k_shared *s, const top_k_lead &lead, int top_k) {
    const int width = top_k_group_width(top_k);
    unsigned max = lead.unit < 0 ? 0 : ordered_bits(lead.max);
    for (int offset = 1; offset < width; offset *= 2)
        max = umax(max, __shfl_xor_sync(0xffffffffu, max, offset));
    if (threadIdx.x % width == 0) s->group[threadIdx.x / width] = max;
}

/* The threshold into s->threshold, 0 where there are fewer than K groups with a logit, between that barrier and the
 * next. */
static __device__ __forceinline__ void top_k_threshold(top_k_shared *s, int top_k) {
    const int groups = TILE_THREADS / top_k_group_width(top_k);
    if (threadIdx.x == TILE_THREADS - 1) s->owners = s->candidates = 0;
    if (threadIdx.x >= groups) return;
    const unsigned mine = s->group[threadIdx.x];
    int ahead = 0;
    for (int g = 0; g < groups; ++g)
        ahead += s->group[g] > mine || (s->group[g] == mine && g < (int)threadIdx.x);
    if (ahead == top_k - 1) s->threshold = mine;
}

/* Collects what reaches the threshold in one vector, if it is a whole one. */
template <class ROW>
static __device__ __forceinline__ void top_k_read_vector(top_k_shared *s, const ROW &row, const oh_tile_view &view,
                                                         int vector, float threshold) {
    constexpr int VECTOR = ROW::VECTOR;
    if (vector >= row.end_whole) return;
    const uint4 none = make_uint4(0, 0, 0, 0);
    float z[VECTOR], t[VECTOR];
    row.logits(view, vector, row.load_z(vector), ROW::NEEDS_T ? row.load_t(vector) : none, z, t);
#pragma unroll
    for (int e = 0; e < VECTOR; ++e)
        top_k_collect(s, set_aside_bad(z[e]), (int)view.first_column + row.column_of(vector) + e, threshold);
}

/* Collects every logit of the row that reaches the threshold. */
template <class ROW>
static __device__ void top_k_read_again(top_k_shared *s, const ROW &row, const oh_tile_view &view,
                                        const top_k_lead &lead) {
    const float threshold = s->threshold ? from_ordered_bits(s->threshold) : -INFINITY;
    const int first_id = (int)view.first_column;
    if (lead.unit >= 0 && lead.max >= threshold) {
        if (lead.second >= threshold)
            s->owner[atomicAdd(&s->owners, 1)] = (unsigned short)threadIdx.x;
        else
            for (int i = 0; i < STREAM_TAKEN; ++i)
                top_k_read_vector(s, row, view, lead.unit + i, threshold);
    }
    for (int edge = threadIdx.x; edge < row.edges(); edge += TILE_THREADS) {
        const int from = row.column_of(row.edge_vector(edge));
        for (int column = max(from, 0); column < min(from + ROW::VECTOR, row.columns); ++column)
            top_k_collect(s, set_aside_bad(row.z(view, column)), first_id + column, threshold);
    }
    __syncthreads();
    const int whole = row.end_whole - row.first_whole, steps = (whole + STREAM_VECTORS - 1) / STREAM_VECTORS;
    const int owners = s->owners, each = steps * STREAM_TAKEN;
    if (owners == 0) return;
    for (int item = threadIdx.x; item < owners * each; item += TILE_THREADS) {
        const int step = item % each / STREAM_TAKEN, place = s->owner[item / each] * STREAM_TAKEN + item % STREAM_TAKEN;
        top_k_read_vector(s, row, view, row.first_whole + step * STREAM_VECTORS + place, threshold);
    }
    __syncthreads();
}

/* The K largest of the panel into the list, one read of the row each. */
template <class ROW>
static __device__ void top_k_one_by_one(top_k_shared *s, const ROW &row, const oh_tile_view &view, int top_k) {
    unsigned long long last = ~0ull; /* above every key */
    const int count = min(top_k, row.columns);
    for (int k = 0; k < count; ++k) {
        unsigned long long best = 0;
        for (int column = threadIdx.x; column < row.columns; column += TILE_THREADS) {
            const unsigned long long key = best_key(set_aside_bad(row.z(view, column)), column);
            if (key < last && key > best) best = key;
        }
        best = warp_best(best);
        if (threadIdx.x % 32 == 0) s->best[threadIdx.x / 32] = best;
        __syncthreads();
        last = 0;
        for (int w = 0; w < TILE_WARPS; ++w)
            last = s->best[w] > last ? s->best[w] : last;
        if (threadIdx.x == 0) {
            s->id[k] = (int)view.first_column + key_place(last);
            s->logit[k] = set_aside_bad(row.z(view, key_place(last)));
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) s->candidates = count;
    __syncthreads();
}

/* Merges the row's panel into ids and logits [top_k], after top_k_threshold and a barrier. The block's next one must come
 * before the next top_k_threshold. */
template <class ROW>
static __device__ void top_k_row(top_k_shared *s, const ROW &row, const oh_tile_view &view, const top_k_lead &lead,
                                 int *ids, float *logits, int top_k, bool restart) {
    top_k_read_again(s, row, view, lead);
    if (s->candidates > TOP_K_CANDIDATES) {
        __syncthreads(); /* everyone has seen the count before it is set again */
        top_k_one_by_one(s, row, view, top_k);
    }
    int count = s->candidates;
    if (!restart) {
        /* Earlier panels' entries, of which missing ones come last. */
        int kept = 0;
        while (kept < top_k && ids[kept] >= 0)
            ++kept;
        for (int k = threadIdx.x; k < kept; k += TILE_THREADS) {
            s->id[count + k] = ids[k];
            s->logit[count + k] = logits[k];
        }
        count += kept;
        __syncthreads();
    }
    for (int i = threadIdx.x; i < count; i += TILE_THREADS) {
        const float logit = s->logit[i];
        const int id = s->id[i];
        int ahead = 0;
        for (int j = 0; j < count; ++j)
            ahead += s->logit[j] > logit || (s->logit[j] == logit && s->id[j] < id);
        if (ahead >= top_k) continue;
        ids[ahead] = id;
        logits[ahead] = logit;
    }
    for (int k = count + threadIdx.x; k < top_k; k += TILE_THREADS) {
        ids[k] = -1;
        logits[k] = -INFINITY;
    }
}

#endif
