/* tile_stream.cuh - rows of a tile on their way through shared memory.
 *
 * A block takes rows blockIdx.x, blockIdx.x + gridDim.x... Their whole vectors are brought by the bulk-copy engine into
 * a ring of stages, ahead of the threads that read them: what is under way takes no registers, and the next row's first
 * stages load while a row is finished.
 *
 * Two barriers a stage: `full` counts its bytes, `empty` the threads that have read it (one arrival a warp is no
 * faster). Thread 0 fills a stage again one stage after it was read, when every thread has as good as left it. */
#ifndef ONEHEAD_CUDA_TILE_STREAM_CUH
#define ONEHEAD_CUDA_TILE_STREAM_CUH

#include <cuda/ptx>

#include "device.h"
#include "tiles.cuh"

enum {
    STREAM_TAKEN = 2,                             /* neighbouring vectors that a thread takes from a stage */
    STREAM_VECTORS = STREAM_TAKEN * TILE_THREADS, /* of a tile in a stage */
    STREAM_TILE_BYTES = STREAM_VECTORS * (int)sizeof(uint4),
    STREAM_RING_BYTES = 64 * 1024, /* at most */
    STREAM_BLOCKS = 4,             /* of a multiprocessor, where its shared memory holds them */
    STREAM_STAGES_MIN = 2,
    STREAM_STAGES_MAX = 6
};

struct stream_shared {
    uint64_t full[STREAM_STAGES_MAX], empty[STREAM_STAGES_MAX];
    /* What to bring next; thread 0's. */
    int64_t row, rows;
    const uint4 *z, *t;
    int left; /* vectors of the row */
};

/* Neighbouring vectors that are looked at together: what is done once for them is done once for as many elements. A tile
 * that isn't read has 0. */
template <int COUNT> struct unit_bits { uint4 z[COUNT], t[COUNT]; };

template <class ROW> struct tile_stream {
    static constexpr int TILES = (ROW::HAS_Z ? 1 : 0) + (ROW::READS_T ? 1 : 0);

    static constexpr uint32_t STAGE_BYTES = (uint32_t)TILES * (uint32_t)STREAM_TILE_BYTES;

    stream_shared *shared;
    uint4 *ring;              /* [stages][tiles][STREAM_VECTORS] */
    int stages, slot, filled; /* the stage that is read, and the one that thread 0 fills next */
    unsigned phase, fill_phase;
    uint32_t own; /* where the thread's vector 0 of the stage lies, as an address of shared memory */

    /* By all threads. Brings the first stages. */
    __device__ __forceinline__ void open(stream_shared *memory, uint4 *buffer, int count, const oh_tile_view &view) {
        shared = memory, ring = buffer, stages = count;
        slot = filled = 0;
        phase = fill_phase = 0;
        own = (uint32_t)__cvta_generic_to_shared(buffer + (int)threadIdx.x * STREAM_TAKEN + in_unit(0));
        if (threadIdx.x == 0) {
            for (int i = 0; i < count; ++i) {
                cuda::ptx::mbarrier_init(&memory->full[i], 1);
                cuda::ptx::mbarrier_init(&memory->empty[i], TILE_THREADS);
            }
            cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
            memory->row = (int64_t)blockIdx.x - gridDim.x;
            memory->rows = view.rows;
            memory->left = 0;
            for (int i = 0; i < count; ++i)
                bring(view, i);
        }
        __syncthreads();
    }

    /* Waits for the stage to be read. */
    __device__ __forceinline__ void wait() const {
        while (!cuda::ptx::mbarrier_try_wait_parity(&shared->full[slot], phase)) {
        }
    }

    /* The thread's vectors of a stage, its unit, are numbered in an order in which the lanes of a warp meet in no bank:
     * vector 0 is the second one in half of them. */
    static __device__ __forceinline__ int in_unit(int i) { return i ^ ((int)threadIdx.x >> 2 & 1); }

    __device__ __forceinline__ unit_bits<STREAM_TAKEN> unit() const {
        unit_bits<STREAM_TAKEN> bits;
#pragma unroll
        for (int i = 0; i < STREAM_TAKEN; ++i)
            bits.z[i] = z(i), bits.t[i] = t(i);
        return bits;
    }

    /* The unit's first vector alone. */
    __device__ __forceinline__ unit_bits<1> first() const {
        const int i = in_unit(0);
        return unit_bits<1>{{z(i)}, {t(i)}};
    }

    /* By every thread, once it has read the stage. */
    __device__ __forceinline__ void release(const oh_tile_view &view) {
        (void)cuda::ptx::mbarrier_arrive(&shared->empty[slot]);
        /* The stage before this one: not at the very first, which has none. */
        const int previous = slot == 0 ? stages - 1 : slot - 1;
        if (threadIdx.x == 0 && filled == previous) refill(view);
        own += STAGE_BYTES;
        if (++slot == stages) slot = 0, phase ^= 1, own -= (uint32_t)stages * STAGE_BYTES;
    }

  private:
    __device__ __forceinline__ uint4 z(int i) const {
        if constexpr (ROW::HAS_Z)
            return shared_vector<0>(i);
        else
            return make_uint4(0, 0, 0, 0);
    }
    __device__ __forceinline__ uint4 t(int i) const {
        if constexpr (ROW::READS_T)
            return shared_vector<(TILES - 1) * STREAM_TILE_BYTES>(i);
        else
            return make_uint4(0, 0, 0, 0);
    }

    /* By a 32-bit address, which the compiler would otherwise form anew from a generic one, stage by stage. */
    template <int OFFSET> __device__ __forceinline__ uint4 shared_vector(int i) const {
        static_assert(STREAM_TAKEN == 2, "a unit's other vector is 16 bytes away");
        uint4 v;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4 + %5];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(own ^ (uint32_t)(i * (int)sizeof(uint4))), "n"(OFFSET));
        return v;
    }

    __device__ __forceinline__ void refill(const oh_tile_view &view) {
        while (!cuda::ptx::mbarrier_try_wait_parity(&shared->empty[filled], fill_phase)) {
        }
        bring(view, filled);
        if (++filled == stages) filled = 0, fill_phase ^= 1;
    }

    /* The next stage of the block's rows into a slot; nothing once all are under way. */
    __device__ __forceinline__ void bring(const oh_tile_view &view, int into) {
        if (shared->left == 0) next_row(view);
        const int count = min(shared->left, (int)STREAM_VECTORS);
        if (count == 0) return;
        const uint32_t bytes = (uint32_t)count * (uint32_t)sizeof(uint4);
        uint4 *to = ring + into * TILES * STREAM_VECTORS;
        uint64_t *full = &shared->full[into];
        (void)cuda::ptx::mbarrier_arrive_expect_tx(cuda::ptx::sem_release, cuda::ptx::scope_cta,
                                                   cuda::ptx::space_shared, full, bytes * TILES);
        if (ROW::HAS_Z) {
            cuda::ptx::cp_async_bulk(cuda::ptx::space_cluster, cuda::ptx::space_global, to, shared->z, bytes, full);
            shared->z += count;
        }
        if (ROW::READS_T) {
            cuda::ptx::cp_async_bulk(cuda::ptx::space_cluster, cuda::ptx::space_global,
                                     to + (TILES - 1) * STREAM_VECTORS, shared->t, bytes, full);
            shared->t += count;
        }
        shared->left -= count;
    }

    /* Rows that have no whole vectors have no stages either. */
    __device__ __forceinline__ void next_row(const oh_tile_view &view) {
        while (shared->left == 0 && (shared->row += gridDim.x) < shared->rows) {
            const ROW row(view, shared->row);
            const int first = row.column_of(row.first_whole);
            shared->left = row.end_whole - row.first_whole;
            if (ROW::HAS_Z) shared->z = (const uint4 *)(row.z_raw + first);
            if (ROW::READS_T) shared->t = (const uint4 *)(row.t_raw + first);
        }
    }
};

/* How a stream's kernel is launched. */
struct stream_launch {
    unsigned blocks;
    int stages;
    size_t bytes; /* of the ring */
};

/* For `rows` rows of `tiles` tiles, beside `other` bytes of shared memory a block. */
static inline stream_launch stream_launch_for(const oh_device *device, int tiles, int64_t rows, size_t other) {
    const size_t stage = (size_t)tiles * STREAM_TILE_BYTES, taken = other + 1024; /* of which the system's */
    const size_t share = device->shared_bytes / STREAM_BLOCKS, left = share > taken ? share - taken : 0;
    size_t stages = (left < STREAM_RING_BYTES ? left : STREAM_RING_BYTES) / stage;
    if (stages < STREAM_STAGES_MIN) stages = STREAM_STAGES_MIN;
    if (stages > STREAM_STAGES_MAX) stages = STREAM_STAGES_MAX;
    size_t blocks = device->shared_bytes / (stages * stage + taken);
    blocks = (blocks < 1 ? 1 : blocks < STREAM_BLOCKS ? blocks : STREAM_BLOCKS) * (size_t)device->multiprocessors;
    if (blocks > (size_t)rows) blocks = (size_t)rows;
    return stream_launch{(unsigned)blocks, (int)stages, stages * stage};
}

/* Loads a stream's kernel, and lets it have `bytes` of shared memory beside its own. */
static inline cudaError_t stream_load(const void *kernel, int bytes) {
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

#endif
