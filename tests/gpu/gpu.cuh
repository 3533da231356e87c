/* gpu.cuh - what the programs that need a GPU share: checked calls, random tensors on the device, and a step over them.
 * They print and exit: they are tests, not the library. */
#ifndef ONEHEAD_TESTS_GPU_CUH
#define ONEHEAD_TESTS_GPU_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <onehead/onehead.h>

#define GPU_CHECK(call)                                                                                                \
    do {                                                                                                               \
        const cudaError_t error_ = (call);                                                                             \
        if (error_ != cudaSuccess) {                                                                                   \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_));                 \
            exit(5);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define OH_CHECK(call)                                                                                                 \
    do {                                                                                                               \
        oh_error error = {OH_OK, ""};                                                                                  \
        const oh_status status_ = (call);                                                                              \
        if (status_ != OH_OK) {                                                                                        \
            fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, oh_status_name(status_), error.message); \
            exit(5);                                                                                                   \
        }                                                                                                              \
    } while (0)

static __device__ inline uint64_t gpu_mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static __device__ inline float gpu_normal(uint64_t seed, uint64_t index) {
    const uint64_t bits = gpu_mix(gpu_mix(index * 0x9e3779b97f4a7c15u + seed) ^ seed);
    const float u = ((float)(uint32_t)bits + 0.5f) * 0x1p-32f, v = ((float)(uint32_t)(bits >> 32) + 0.5f) * 0x1p-32f;
    return sqrtf(-2 * logf(u)) * cosf(6.2831853f * v);
}

/* scale * normal + base, element by element; base may be NULL. */
static __global__ void gpu_fill_kernel(__nv_bfloat16 *to, int64_t count, uint64_t seed, float scale,
                                       const __nv_bfloat16 *base) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x)
        to[i] = __float2bfloat16_rn(scale * gpu_normal(seed, (uint64_t)i) + (base ? __bfloat162float(base[i]) : 0.0f));
}

static inline void gpu_fill(cudaStream_t stream, __nv_bfloat16 *to, int64_t count, uint64_t seed, float scale,
                            const __nv_bfloat16 *base) {
    gpu_fill_kernel<<<2048, 256, 0, stream>>>(to, count, seed, scale, base);
    GPU_CHECK(cudaGetLastError());
}

template <class T> static T *gpu_alloc(int64_t count) {
    void *address = NULL;
    GPU_CHECK(cudaMalloc(&address, (size_t)count * sizeof(T)));
    GPU_CHECK(cudaMemset(address, 0xff, (size_t)count * sizeof(T)));
    GPU_CHECK(cudaDeviceSynchronize()); /* streams that don't block on the default one follow */
    return (T *)address;
}

/* Tensors of a step: bf16, normal; logits of unit variance, the drafter's `noise` away from the target's. */
struct gpu_step {
    int64_t rows, target_rows, hidden, vocab;
    __nv_bfloat16 *draft, *target, *head;
    float *grad; /* [rows, hidden], then [vocab] of the bias */
    float *bias; /* [vocab], 0 */
};

static inline gpu_step gpu_step_open(int64_t rows, int64_t target_rows, int64_t hidden, int64_t vocab, float noise) {
    gpu_step s = {rows, target_rows, hidden, vocab, NULL, NULL, NULL, NULL, NULL};
    s.draft = gpu_alloc<__nv_bfloat16>(rows * hidden);
    s.target = gpu_alloc<__nv_bfloat16>(std::max<int64_t>(target_rows, 1) * hidden);
    s.head = gpu_alloc<__nv_bfloat16>(vocab * hidden);
    s.grad = gpu_alloc<float>(rows * hidden + vocab);
    s.bias = gpu_alloc<float>(vocab);
    GPU_CHECK(cudaMemset(s.bias, 0, (size_t)vocab * sizeof(float)));
    gpu_fill(0, s.head, vocab * hidden, 1, 3 / sqrtf((float)hidden), NULL);
    if (target_rows > 0) gpu_fill(0, s.target, target_rows * hidden, 2, 1, NULL);
    gpu_fill(0, s.draft, rows * hidden, 3, noise, target_rows == rows ? s.target : NULL);
    GPU_CHECK(cudaDeviceSynchronize());
    return s;
}

static inline void gpu_step_close(gpu_step *s) {
    GPU_CHECK(cudaFree(s->draft));
    GPU_CHECK(cudaFree(s->target));
    GPU_CHECK(cudaFree(s->head));
    GPU_CHECK(cudaFree(s->grad));
    GPU_CHECK(cudaFree(s->bias));
}

static inline oh_request gpu_request(const gpu_step *s, int32_t tile, int64_t chunk) {
    oh_request r;
    oh_request_init(&r);
    r.rows = s->rows;
    r.target_rows = s->target_rows;
    r.hidden = s->hidden;
    r.vocab = s->vocab;
    r.tile = tile;
    r.chunk = chunk;
    r.memory = INT64_C(32) << 30;
    r.policy = OH_POLICY_CACHED;
    return r;
}

static inline oh_inputs gpu_inputs(const gpu_step *s, void *stream) {
    oh_inputs in;
    memset(&in, 0, sizeof in);
    in.rows = s->rows;
    in.target_rows = s->target_rows;
    in.draft_hidden = s->draft;
    in.target_hidden = s->target_rows ? s->target : NULL;
    in.lm_head = s->head;
    in.stream = stream;
    return in;
}

static inline oh_outputs gpu_outputs(float *grad) {
    oh_outputs out;
    memset(&out, 0, sizeof out);
    out.draft_grad = grad;
    return out;
}

static inline void gpu_log(void *user, const char *line) {
    (void)user;
    fprintf(stderr, "%s\n", line);
}

static inline oh_context *gpu_context(const char *backend, int device, int log) {
    oh_context_options options;
    memset(&options, 0, sizeof options);
    options.backend = backend;
    options.device = device;
    if (log) options.log = gpu_log;
    oh_context *context = NULL;
    OH_CHECK(oh_context_open(&options, &context, &error));
    return context;
}

static inline double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t n = values.size();
    return n == 0 ? NAN : n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

#endif
