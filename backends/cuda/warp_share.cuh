/* warp_share.cuh - a row in the hands of a cluster of blocks: what tile_stats_grad does with it.
 *
 * Each warp of the cluster holds a share of the row's columns in its block's shared memory, brought there by the bulk-copy
 * engine. It finds its share's maximum, then its sums relative to that, and writes both into the shared memory of every
 * block. When all warps' are there it knows the row's sums, writes its share of the gradient over the tile, and has what
 * it is done with filled with the cluster's next row. That is the only place where warps wait for each other. Places of
 * posts are two sets by turns: who posts for the row after the next has seen a post for the next from everyone, who had
 * read those of this row before. */
#ifndef ONEHEAD_CUDA_WARP_SHARE_CUH
#define ONEHEAD_CUDA_WARP_SHARE_CUH

#include <cooperative_groups.h>
#include <cuda/ptx>
#include <type_traits>

#include "tile_grad.cuh"

enum {
    /* Of a block. More, or more stages, spill registers: into a cache that the shared memory leaves little of, so that a few
     * bytes cost a sixth of the pass. The build refuses them. */
    SHARE_WARPS = 8,
    SHARE_THREADS = 32 * SHARE_WARPS,
    SHARE_BLOCKS = 3,        /* of a multiprocessor: while warps of one wait, others work */
    SHARE_STAGES = 2,        /* of a warp's share, each with barriers of its own */
    SHARE_RANKS_MAX = 8,     /* blocks of a cluster: what every device can do */
    SHARE_BYTES = 72 * 1024, /* of a row in a block, at most */
    SHARE_POSTS = SHARE_RANKS_MAX * SHARE_WARPS
};

enum { SHARE_Z, SHARE_Z_DOT, SHARE_TOTAL, SHARE_SUMS };

/* What a kernel is given of an oh_tile_stats_grad. */
struct share_pass {
    oh_tile_view tile;
    oh_row_stats *stats; /* z_argmax: -1 in all of them */
    const int32_t *label;
    oh_objective objective;
    int32_t share; /* vectors of a warp */
};

struct share_shared {
    uint64_t full[SHARE_WARPS][SHARE_STAGES], empty[SHARE_WARPS][SHARE_STAGES];
    /* By row in turns of two. By warp of the cluster: maximum and flags; sums relative to the offset of that maximum. */
    uint64_t posted[2];
    unsigned long long best[2][SHARE_POSTS];
    double sums[2][SHARE_SUMS][SHARE_POSTS];
};

/* Largest and smallest of a thread's pairs of 16-bit logits; a NaN is the largest. */
template <int FORMAT> struct pair_extremes {
    static constexpr bool BF16 = FORMAT == OH_TILE_BF16;
    static constexpr unsigned NEG_INF = BF16 ? 0xff80ff80u : 0xfc00fc00u, INF = NEG_INF ^ 0x80008000u;
    typedef typename std::conditional<BF16, __nv_bfloat162, __half2>::type pair;
    pair max, min;

    __device__ __forceinline__ pair_extremes() : max(of_bits(NEG_INF)), min(of_bits(INF)) {}
    static __device__ __forceinline__ pair of_bits(unsigned bits) { return *(const pair *)&bits; }
    __device__ __forceinline__ void add(unsigned bits) {
        max = __hmax2_nan(max, of_bits(bits)), min = __hmin2(min, of_bits(bits));
    }
    static __device__ __forceinline__ void unpack(const pair &from, float *to) {
        BF16 ? unpack_bf16(*(const unsigned *)&from, to) : unpack_f16(*(const unsigned *)&from, to);
    }
};

static __device__ __forceinline__ unsigned share_flags(float x) {
    return x == -INFINITY ? OH_ROW_Z_NEG_INF : x < INFINITY ? 0 : OH_ROW_Z_BAD;
}

/* A maximum and flags. */
struct share_best {
    float max;
    unsigned flags;
};

/* What a row's gradient is formed by. */
struct share_form {
    float offset, factor, ck, cy;
    int label; /* in the tile */
};

/* A row as its warps know it. */
struct share_row {
    share_best best;
    double sums[SHARE_SUMS]; /* in every lane; of one warp all, of the others the first */
};

template <int FORMAT, uint32_t WANT> struct warp_share {
    static constexpr int N = tile_format<FORMAT>::VECTOR, OUT = FORMAT == OH_TILE_BF16 ? OH_BF16 : OH_F16;
    static constexpr int SUMS = WANT & OH_WANT_TOTAL ? 3 : WANT ? 2 : 1;

    const share_pass &p;
    share_shared *const shared;
    const cooperative_groups::cluster_group cluster;
    const int lane, warp, rank, ranks; /* warp: of the block */
    uint4 *held;                       /* [count] */
    int first, count;                  /* vectors of the row */
    int tail_column;                   /* a column behind the last whole vector that this thread has; -1: none */
    unsigned phase;

    /* Warp after warp over the row. The last one has what is behind its whole vectors. */
    __device__ __forceinline__ warp_share(const share_pass &pass, share_shared *memory, uint4 *buffer)
        : p(pass), shared(memory), cluster(cooperative_groups::this_cluster()), lane((int)threadIdx.x % 32),
          warp((int)threadIdx.x / 32), rank((int)cluster.block_rank()), ranks((int)cluster.num_blocks()), phase(0) {
        const int whole = (int)p.tile.columns / N, column = whole * N + lane;
        held = buffer + warp * p.share;
        first = min((rank * SHARE_WARPS + warp) * p.share, whole);
        count = min(p.share, whole - first);
        tail_column = rank == ranks - 1 && warp == SHARE_WARPS - 1 && column < (int)p.tile.columns ? column : -1;
    }

    __device__ __forceinline__ unsigned short *row_at(int row) const {
        return (unsigned short *)p.tile.draft + (int64_t)row * p.tile.draft_ld;
    }
    __device__ __forceinline__ int label_of(int row) const { return row < (int)p.tile.rows ? p.label[row] : -1; }
    __device__ __forceinline__ float tail_of(int row) const {
        return tail_column >= 0 ? tile_element<FORMAT>(row_at(row), tail_column) : 0;
    }

    /* Stages are of whole turns of the warp, so that only the last is cut. */
    __device__ __forceinline__ int stage_first(int s) const {
        const int stage = (p.share + SHARE_STAGES * 32 - 1) / (SHARE_STAGES * 32) * 32;
        return min(s * stage, count);
    }

    /* --------------------------------------------------------------------------------------------- the row's bytes ---- */

    static __device__ __forceinline__ void wait(uint64_t *barrier, unsigned phase) {
        while (!cuda::ptx::mbarrier_try_wait_parity(barrier, phase)) {
        }
    }
    /* For what other blocks have written. */
    static __device__ __forceinline__ void wait_posted(uint64_t *barrier, unsigned phase) {
        while (!cuda::ptx::mbarrier_try_wait_parity(cuda::ptx::sem_acquire, cuda::ptx::scope_cluster, barrier, phase)) {
        }
    }
    static __device__ __forceinline__ void expect(uint64_t *barrier, int bytes) {
        (void)cuda::ptx::mbarrier_arrive_expect_tx(cuda::ptx::sem_release, cuda::ptx::scope_cta,
                                                   cuda::ptx::space_shared, barrier, (uint32_t)bytes);
    }

    /* By lane 0. */
    __device__ __forceinline__ void bring(int row, int s) const {
        const int from = stage_first(s), bytes = (stage_first(s + 1) - from) * (int)sizeof(uint4);
        if (bytes == 0 || row >= (int)p.tile.rows) return;
        expect(&shared->full[warp][s], bytes);
        cuda::ptx::cp_async_bulk(cuda::ptx::space_cluster, cuda::ptx::space_global, held + from,
                                 (const uint4 *)row_at(row) + first + from, (uint32_t)bytes, &shared->full[warp][s]);
    }
    __device__ __forceinline__ void wait_full(int s) const {
        if (stage_first(s + 1) > stage_first(s)) wait(&shared->full[warp][s], phase);
    }
    /* By all lanes, once they have read a stage. */
    __device__ __forceinline__ void refill(int next, int s) const {
        (void)cuda::ptx::mbarrier_arrive(&shared->empty[warp][s]);
        if (lane == 0) wait(&shared->empty[warp][s], phase), bring(next, s);
    }

    /* --------------------------------------------------------------------------------------------------- its logits ---- */

    /* The share's maximum and flags, while it arrives; with flags, the flags alone are right. */
    __device__ __forceinline__ share_best look(float tail) const {
        pair_extremes<FORMAT> extremes;
        float max[2], min[2];
#pragma unroll
        for (int s = 0; s < SHARE_STAGES; ++s) {
            wait_full(s);
#pragma unroll 4
            for (int v = stage_first(s) + lane; v < stage_first(s + 1); v += 32) {
                const uint4 bits = held[v];
                extremes.add(bits.x), extremes.add(bits.y), extremes.add(bits.z), extremes.add(bits.w);
            }
        }
        extremes.unpack(extremes.max, max), extremes.unpack(extremes.min, min);
        unsigned flags = (share_flags(min[0]) | share_flags(min[1])) & OH_ROW_Z_NEG_INF;
        flags |= (share_flags(max[0]) | share_flags(max[1])) & OH_ROW_Z_BAD;
        float most = fmaxf(max[0], max[1]);
        if (tail_column >= 0) flags |= share_flags(tail), most = fmaxf(most, tail);
        return of_warp(most, flags);
    }

    static __device__ __forceinline__ share_best of_warp(float max, unsigned flags) {
        return share_best{from_ordered_bits(__reduce_max_sync(0xffffffffu, ordered_bits(max))),
                          __reduce_or_sync(0xffffffffu, flags)};
    }

    /* The maximum of a share with flags: of what is not set aside. */
    __device__ __forceinline__ float look_again(float tail) const {
        float max = tail_column >= 0 ? set_aside_bad(tail) : -INFINITY;
#pragma unroll 1
        for (int v = lane; v < count; v += 32) {
            float z[N];
            unpack_vector<FORMAT>(held[v], z);
#pragma unroll
            for (int e = 0; e < N; ++e)
                max = fmaxf(max, set_aside_bad(z[e]));
        }
        return of_warp(max, 0).max;
    }

    template <bool ALL_FINITE>
    static __device__ __forceinline__ void add(float *sums, float z, float offset, float max) {
        if (!ALL_FINITE) z = set_aside_bad(z);
        if (!ALL_FINITE && z == -INFINITY) return;
        const float e = exp2_fast(exponent(z, offset));
        sums[SHARE_Z] += e;
        if (WANT & OH_WANT_ENTROPY && (ALL_FINITE || e > 0)) sums[SHARE_Z_DOT] = fmaf(e, z - max, sums[SHARE_Z_DOT]);
        if (WANT & OH_WANT_TOTAL) sums[SHARE_TOTAL] += z;
    }

    /* The thread's sums relative to the share's maximum. */
    template <bool ALL_FINITE> __device__ __forceinline__ void add_all(double *total, float max, float tail) const {
        const float offset = exponent_offset(max);
        float sums[SHARE_SUMS] = {0, 0, 0};
#pragma unroll(ALL_FINITE ? 2 : 1)
        for (int v = lane; v < count; v += 32) {
            float z[N], of_vector[SHARE_SUMS] = {-0.0f, -0.0f, -0.0f};
            unpack_vector<FORMAT>(held[v], z);
#pragma unroll
            for (int e = 0; e < N; ++e)
                add<ALL_FINITE>(of_vector, z[e], offset, max);
#pragma unroll
            for (int k = 0; k < SHARE_SUMS; ++k)
                sums[k] += of_vector[k];
        }
        if (tail_column >= 0) add<ALL_FINITE>(sums, tail, offset, max);
#pragma unroll
        for (int k = 0; k < SHARE_SUMS; ++k)
            total[k] = (double)sums[k];
    }

    /* The lowest of the warp's columns with the row's maximum, which it has. */
    __device__ __forceinline__ int column_of(float max, float tail) const {
        int column = tail_column >= 0 && tail == max ? tail_column : INT32_MAX;
#pragma unroll 1
        for (int v = lane; v < count; v += 32) {
            float z[N];
            unpack_vector<FORMAT>(held[v], z);
#pragma unroll
            for (int e = 0; e < N; ++e)
                if (z[e] == max) column = min(column, (first + v) * N + e);
        }
        return __reduce_min_sync(0xffffffffu, column);
    }

    /* ------------------------------------------------------------------------------------------------------- the posts ---- */

    __device__ __forceinline__ int posts() const {
        return ranks * SHARE_WARPS;
    }

    /* By one thread of each block: posts may come in a turn. */
    __device__ __forceinline__ void expect_posts(int set) const {
        if (threadIdx.x == 0) expect(&shared->posted[set], posts() * (int)sizeof(double) * (1 + SUMS));
    }

    /* A value into the warp's place in every block. */
    template <class T> __device__ __forceinline__ void post(int set, T *places, T value, int to) const {
        if (to >= ranks) return;
        cuda::ptx::st_async(cluster.map_shared_rank(places + rank * SHARE_WARPS + warp, to), value,
                            cluster.map_shared_rank(&shared->posted[set], to));
    }

    __device__ __forceinline__ void post_all(int set, const share_best &best, double *sums) const {
        constexpr int COUNT = SUMS == 3 ? 4 : SUMS, LANES = 32 / COUNT;
        static_assert(LANES >= SHARE_RANKS_MAX, "a lane for each block");
        int which;
        __syncwarp(); /* what its lanes read of the row before is read by now */
        post(set, shared->best[set], (unsigned long long)ordered_bits(best.max) << 32 | best.flags, lane);
        const double sum = warp_sums<COUNT>(sums, &which);
        if (which < SUMS) post(set, shared->sums[set][which], sum, lane % LANES);
    }

    /* The row by the posts of all warps, with the same bits in each; sums are relative to the offset of its maximum, as if
     * that were the maximum. */
    __device__ __forceinline__ share_row read_posts(int set, bool all) const {
        constexpr int MINE = SHARE_POSTS / 32;
        share_row row;
        unsigned long long post[MINE];
        float most = -INFINITY;
        row.best.flags = 0;
#pragma unroll
        for (int i = 0; i < MINE; ++i) {
            const int from = lane + 32 * i;
            post[i] = from < posts() ? shared->best[set][from] : 0;
            most = fmaxf(most, post[i] ? from_ordered_bits((unsigned)(post[i] >> 32)) : -INFINITY);
            row.best.flags |= (unsigned)post[i];
        }
        row.best = of_warp(most, row.best.flags);
        const float offset = exponent_offset(row.best.max);
        double sums[SHARE_SUMS] = {0, 0, 0};
#pragma unroll
        for (int i = 0; i < MINE; ++i) {
            const int from = lane + 32 * i;
            const float max = post[i] ? from_ordered_bits((unsigned)(post[i] >> 32)) : -INFINITY;
            if (WANT & OH_WANT_TOTAL && all && from < posts())
                sums[SHARE_TOTAL] += shared->sums[set][SHARE_TOTAL][from];
            if (!(max > -INFINITY)) continue;
            const double factor = (double)exp2f((float)((double)exponent_offset(max) - (double)offset));
            if (factor == 0) continue; /* so far away that its own sums may not be finite */
            const double sum = shared->sums[set][SHARE_Z][from];
            sums[SHARE_Z] = fma(factor, sum, sums[SHARE_Z]);
            if (!(WANT & OH_WANT_ENTROPY) || !all) continue;
            const double dot = fma((double)max - (double)row.best.max, sum, shared->sums[set][SHARE_Z_DOT][from]);
            sums[SHARE_Z_DOT] = fma(factor, dot, sums[SHARE_Z_DOT]);
        }
#pragma unroll
        for (int k = 0; k < SHARE_SUMS; ++k)
            row.sums[k] = k < SUMS && (k == SHARE_Z || all) ? __shfl_sync(0xffffffffu, warp_sum(sums[k]), 0) : 0;
        return row;
    }

    /* ------------------------------------------------------------------------------------------------------ the results ---- */

    /* The row's statistics, but for what the warps that have it write: the label's logit and the argmax. By one warp. */
    __device__ __forceinline__ void leave_stats(int index, const share_row &row, int label) const {
        const double one = (double)exp2_fast(exponent(row.best.max, exponent_offset(row.best.max)));
        const int place = label - (int)p.tile.first_column;
        const bool any = row.best.max > -INFINITY;
        oh_row_stats *s = &p.stats[index];
        if (lane != 0) return;
        s->z_max = row.best.max;
        s->t_max = -INFINITY;
        if (label < 0 || place < 0 || place >= (int)p.tile.columns) s->z_label = -INFINITY;
        s->label = label;
        s->t_argmax = -1;
        if (!any && p.tile.columns > 0) s->z_argmax = (int)p.tile.first_column; /* where all are alike, the first */
        s->flags = row.best.flags;
        s->reserved = 0;
        s->z_sum = any ? row.sums[SHARE_Z] / one : 0;
        s->t_sum = 0;
        s->z_dot = any ? row.sums[SHARE_Z_DOT] / one : 0;
        s->kl_dot = s->rkl_dot = 0;
        s->z_total = row.sums[SHARE_TOTAL];
    }

    __device__ __forceinline__ void leave_own(int index, const share_row &row, const share_best &own, int label,
                                              float tail) const {
        const int column = label - (int)p.tile.first_column, place = column - first * N;
        float *const z_label = &p.stats[index].z_label;
        if (label >= 0 && place >= 0 && place < count * N && lane == 0)
            *z_label = set_aside_bad(tile_element<FORMAT>(held, place));
        if (label >= 0 && tail_column >= 0 && tail_column == column) *z_label = set_aside_bad(tail);
        if (own.max != row.best.max || !(own.max > -INFINITY)) return;
        const int best = (int)p.tile.first_column + column_of(own.max, tail);
        if (lane == 0) atomicMin((unsigned *)&p.stats[index].z_argmax, (unsigned)best);
    }

    /* By the statistics that coefficients of a row without flags hang on. The factor is relative to the offset, as the sum
     * is. */
    __device__ __forceinline__ share_form form_of(const share_row &row, int label) const {
        const int place = label - (int)p.tile.first_column;
        oh_row_stats s = {};
        oh_row_coef c;
        oh_objective o = p.objective;
        o.terms &= OH_TERM_BIT(OH_TERM_CE); /* there are no others: they need not be compiled */
        s.z_max = row.best.max, s.z_sum = row.sums[SHARE_Z];
        s.label = label;
        s.z_label = place >= 0 && place < (int)p.tile.columns ? row.best.max : -INFINITY;
        oh_row_coefficients(&o, &s, 0, &c);
        /* Exponentials of 0, and factors of 0. */
        if (c.zero) return share_form{INFINITY, 0, 0, 0, -1};
        return share_form{exponent_offset(row.best.max), c.z_inv * c.c0, c.ck, c.cy, place};
    }

    static __device__ __forceinline__ float gradient(const share_form &form, float z) {
        return fmaf(exp2_fast(exponent(z, form.offset)), form.factor, -form.ck);
    }

    __device__ __forceinline__ void write(int index, int next, const share_form &form, float tail) const {
        unsigned short *const out = row_at(index);
#pragma unroll
        for (int s = 0; s < SHARE_STAGES; ++s) {
#pragma unroll 2
            for (int v = stage_first(s) + lane; v < stage_first(s + 1); v += 32) {
                const int from = (first + v) * N;
                float z[N], dz[N];
                unpack_vector<FORMAT>(held[v], z);
#pragma unroll
                for (int e = 0; e < N; ++e)
                    dz[e] = gradient(form, z[e]);
                if ((unsigned)(form.label - from) < (unsigned)N)
#pragma unroll
                    for (int e = 0; e < N; ++e)
                        if (from + e == form.label) dz[e] -= form.cy;
                write_vector<N>(out, from, OUT, dz);
            }
            refill(next, s);
        }
        if (tail_column < 0) return;
        const float dz = gradient(form, tail);
        element_write(out, tail_column, OUT, tail_column == form.label ? dz - form.cy : dz);
    }

    __device__ __forceinline__ void do_row(int index, int next, int turn, int label) {
        const float tail = tail_of(index);
        double sums[4] = {0, 0, 0, 0};
        share_best own = look(tail);
        if (own.flags == 0) {
            add_all<true>(sums, own.max, tail);
            /* A logit so far below the maximum that their distance is no number of f32. */
            if (WANT & OH_WANT_ENTROPY && isnan(sums[SHARE_Z_DOT])) add_all<false>(sums, own.max, tail);
        } else {
            own.max = look_again(tail);
            add_all<false>(sums, own.max, tail);
        }
        const int set = turn % 2;
        post_all(set, own, sums);
        wait_posted(&shared->posted[set], (unsigned)turn / 2 % 2);
        expect_posts(set);
        const bool tells = turn % posts() == rank * SHARE_WARPS + warp;
        const share_row row = read_posts(set, tells);
        if (tells) leave_stats(index, row, label);
        leave_own(index, row, own, label, tail);
        if (row.best.flags == 0) {
            write(index, next, form_of(row, label), tail);
        } else {
#pragma unroll
            for (int s = 0; s < SHARE_STAGES; ++s)
                refill(next, s);
        }
        phase ^= 1;
    }

    /* The cluster's rows. */
    __device__ __forceinline__ void do_rows(int first_row, int clusters) {
        int label = label_of(first_row), turn = 0;
        for (int row = first_row; row < (int)p.tile.rows; row += clusters) {
            const int next_label = label_of(row + clusters);
            do_row(row, row + clusters, turn++, label);
            label = next_label;
        }
    }

    /* By all threads of the cluster, before its first row: barriers, and its bytes. */
    __device__ __forceinline__ void open(int first_row) const {
        if (lane == 0) {
            for (int s = 0; s < SHARE_STAGES; ++s) {
                cuda::ptx::mbarrier_init(&shared->full[warp][s], 1);
                cuda::ptx::mbarrier_init(&shared->empty[warp][s], 32);
            }
            if (warp < 2) cuda::ptx::mbarrier_init(&shared->posted[warp], 1);
            cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
            for (int s = 0; s < SHARE_STAGES; ++s)
                bring(first_row, s);
        }
        __syncthreads();
        expect_posts(0), expect_posts(1);
        cluster.sync();
    }
};

#endif
