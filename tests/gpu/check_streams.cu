/* check_streams.cu - what a step promises to the stream that it runs on: it only enqueues, allocates nothing, can be
 * captured and replayed with new data, gives the same bits beside another step and on another device.
 *
 *     onehead-gpu-streams [BACKEND]
 *
 * Prints one line a promise; exit status 1 when one is broken. */
#include <chrono>
#include <thread>

#include "gpu.cuh"

enum { ROWS = 256, HIDDEN = 192, VOCAB = 5003, CHUNK = 64 };

static int failures;

static void promise(const char *what, bool kept) {
    printf("%-92s %s\n", what, kept ? "ok" : "BROKEN");
    fflush(stdout);
    failures += !kept;
}

/* Holds its stream until the host lets go. */
__global__ void hold_kernel(volatile int *let_go) {
    while (!*let_go)
        __nanosleep(1000);
}

struct holder {
    int *host, *device;
};

static holder holder_open() {
    holder h;
    GPU_CHECK(cudaHostAlloc((void **)&h.host, sizeof(int), cudaHostAllocMapped));
    GPU_CHECK(cudaHostGetDevicePointer((void **)&h.device, h.host, 0));
    return h;
}

static void hold(const holder &h, cudaStream_t stream) {
    *(volatile int *)h.host = 0;
    hold_kernel<<<1, 1, 0, stream>>>(h.device);
    GPU_CHECK(cudaGetLastError());
}

static std::vector<float> read_grad(const float *grad, int64_t count) {
    std::vector<float> host((size_t)count);
    GPU_CHECK(cudaMemcpy(host.data(), grad, (size_t)count * sizeof(float), cudaMemcpyDeviceToHost));
    return host;
}

static bool same_bits(const std::vector<float> &a, const std::vector<float> &b) {
    return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

static bool is_alive(const std::vector<float> &x) {
    size_t nonzero = 0;
    for (float value : x) {
        if (!std::isfinite(value)) return false;
        nonzero += value != 0;
    }
    return nonzero > x.size() / 2;
}

static oh_plan *plan_open(oh_context *context, const gpu_step *s, int32_t tile) {
    oh_request request = gpu_request(s, tile, CHUNK);
    request.produce |= OH_PRODUCE_OVERLAP | OH_PRODUCE_BIAS_GRAD;
    request.has_bias = 1;
    request.scale = 0.75f; /* so that the bias' gradient is divided by it */
    oh_plan *plan = NULL;
    OH_CHECK(oh_plan_create(context, &request, &plan, &error));
    return plan;
}

/* Of a step's gradients, dD and behind it the bias'. */
static int64_t grad_count(const gpu_step *s) {
    return s->rows * s->hidden + s->vocab;
}

static void run(oh_plan *plan, const gpu_step *s, float *grad, cudaStream_t stream, const float *mask) {
    oh_inputs in = gpu_inputs(s, stream);
    if (mask) in.mask = mask, in.mask_dtype = OH_F32;
    in.bias = s->bias;
    oh_outputs out = gpu_outputs(grad);
    out.bias_grad = grad + s->rows * s->hidden;
    OH_CHECK(oh_plan_run(plan, &in, &out, &error));
}

static double loss_of(oh_plan *plan) {
    oh_results results;
    OH_CHECK(oh_plan_results(plan, &results, &error));
    return results.loss;
}

/* ------------------------------------------------------------------------------------------------------ promises ---- */

static void check_enqueues_only(oh_context *context, const gpu_step *s, int32_t tile, const char *name) {
    const int64_t count = grad_count(s);
    const holder h = holder_open();
    cudaStream_t stream;
    GPU_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    oh_plan *plan = plan_open(context, s, tile);
    /* Different masks, so that selections in flight differ. */
    enum { DEEP = 6 };
    std::vector<std::vector<float>> masks(DEEP, std::vector<float>((size_t)s->rows, 1.0f)), alone;
    for (int i = 0; i < DEEP; ++i)
        for (int64_t r = 0; r < s->rows; ++r)
            masks[(size_t)i][(size_t)r] = (r * 7 + i) % 5 == 0 ? 0.0f : 0.5f + (float)((r + i) % 3);
    for (int i = 0; i < DEEP; ++i) {
        run(plan, s, s->grad, stream, masks[(size_t)i].data());
        GPU_CHECK(cudaStreamSynchronize(stream));
        alone.push_back(read_grad(s->grad, count));
    }
    float *grads = gpu_alloc<float>(DEEP * count);
    size_t before = 0, after = 0, total = 0;
    GPU_CHECK(cudaDeviceSynchronize());
    GPU_CHECK(cudaMemGetInfo(&before, &total));
    hold(h, stream);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < DEEP; ++i)
        run(plan, s, grads + i * count, stream, masks[(size_t)i].data());
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const bool held = cudaStreamQuery(stream) == cudaErrorNotReady;
    *(volatile int *)h.host = 1;
    GPU_CHECK(cudaStreamSynchronize(stream));
    GPU_CHECK(cudaMemGetInfo(&after, &total));
    bool same = true;
    for (int i = 0; i < DEEP; ++i) {
        const std::vector<float> grad = read_grad(grads + i * count, count);
        same = same && same_bits(grad, alone[(size_t)i]) && is_alive(grad);
    }
    char line[160];
    snprintf(line, sizeof line, "%s: %d steps are enqueued (%.1f ms) while the stream is held back", name, (int)DEEP,
             seconds * 1e3);
    promise(line, held && seconds < 2);
    snprintf(line, sizeof line, "%s: they give the bits that each gives alone", name);
    promise(line, same);
    snprintf(line, sizeof line, "%s: they allocate nothing", name);
    promise(line, before == after);
    oh_plan_destroy(plan);
    GPU_CHECK(cudaFree(grads));
    GPU_CHECK(cudaStreamDestroy(stream));
}

static void check_graph(oh_context *context, gpu_step *s, int32_t tile, const char *name) {
    const int64_t count = grad_count(s);
    cudaStream_t stream;
    GPU_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    oh_plan *captured = plan_open(context, s, tile), *eager = plan_open(context, s, tile);
    std::vector<float> mask((size_t)s->rows, 1.0f);
    for (int64_t r = 0; r < s->rows; r += 3)
        mask[(size_t)r] = 0;
    float *grad = gpu_alloc<float>(count);
    run(captured, s, grad, stream, mask.data()); /* loads kernels and converts weights */
    GPU_CHECK(cudaStreamSynchronize(stream));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    GPU_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    run(captured, s, grad, stream, mask.data());
    GPU_CHECK(cudaStreamEndCapture(stream, &graph));
    GPU_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    bool same = true, losses = true;
    for (int round = 0; round < 3; ++round) {
        gpu_fill(stream, s->draft, s->rows * s->hidden, (uint64_t)(100 + round), 1, NULL);
        /* Eager steps of the same plan in between must not disturb what the graph reads. */
        std::vector<float> other((size_t)s->rows, 1.0f);
        for (int i = 0; i < 10; ++i)
            run(captured, s, s->grad, stream, other.data());
        GPU_CHECK(cudaMemsetAsync(grad, 0xff, (size_t)count * sizeof(float), stream));
        GPU_CHECK(cudaGraphLaunch(exec, stream));
        GPU_CHECK(cudaStreamSynchronize(stream));
        const double loss = loss_of(captured);
        run(eager, s, s->grad, stream, mask.data());
        losses = losses && loss == loss_of(eager);
        const std::vector<float> a = read_grad(grad, count), b = read_grad(s->grad, count);
        same = same && same_bits(a, b) && std::isfinite(a[(size_t)s->hidden * 2]);
    }
    char line[160];
    snprintf(line, sizeof line, "%s: a captured step replayed on new data gives an eager step's gradient", name);
    promise(line, same);
    snprintf(line, sizeof line, "%s: and its loss", name);
    promise(line, losses);
    GPU_CHECK(cudaGraphExecDestroy(exec));
    GPU_CHECK(cudaGraphDestroy(graph));
    oh_plan_destroy(captured);
    oh_plan_destroy(eager);
    GPU_CHECK(cudaFree(grad));
    GPU_CHECK(cudaStreamDestroy(stream));
}

static void check_two_streams(oh_context *context, const gpu_step *s) {
    const int64_t count = grad_count(s);
    cudaStream_t streams[2];
    oh_plan *plans[2];
    float *grads[2];
    for (int i = 0; i < 2; ++i) {
        GPU_CHECK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
        plans[i] = plan_open(context, s, OH_TILE_BF16);
        grads[i] = gpu_alloc<float>(count);
    }
    run(plans[0], s, s->grad, streams[0], NULL);
    GPU_CHECK(cudaDeviceSynchronize());
    const std::vector<float> alone = read_grad(s->grad, count);
    bool same = is_alive(alone);
    for (int round = 0; round < 20; ++round) {
        for (int i = 0; i < 2; ++i)
            run(plans[i], s, grads[i], streams[i], NULL);
        GPU_CHECK(cudaDeviceSynchronize());
        for (int i = 0; i < 2; ++i)
            same = same && same_bits(read_grad(grads[i], count), alone);
    }
    promise("two plans on two streams at once, 20 rounds: the bits of one alone", same);
    for (int i = 0; i < 2; ++i) {
        oh_plan_destroy(plans[i]);
        GPU_CHECK(cudaStreamDestroy(streams[i]));
        GPU_CHECK(cudaFree(grads[i]));
    }
}

/* One context a thread, on as many devices as there are. */
static void check_threads(const char *backend) {
    int devices = 0;
    GPU_CHECK(cudaGetDeviceCount(&devices));
    std::vector<float> first[2];
    double losses[2] = {0, 1};
    bool steady[2] = {true, true};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i)
        threads.emplace_back([&, i] {
            const int device = i % std::max(devices, 1);
            /* The thread's own current device stays 0: the backend has to guard it. */
            GPU_CHECK(cudaSetDevice(device));
            gpu_step s = gpu_step_open(ROWS, ROWS, HIDDEN, VOCAB, 0.5f);
            GPU_CHECK(cudaSetDevice(0));
            oh_context *context = gpu_context(backend, device, 0);
            oh_plan *plan = plan_open(context, &s, OH_TILE_BF16);
            for (int round = 0; round < 50; ++round) {
                run(plan, &s, s.grad, NULL, NULL);
                losses[i] = loss_of(plan);
                int current = -1;
                GPU_CHECK(cudaGetDevice(&current));
                if (current != 0) steady[i] = false;
                const std::vector<float> grad = read_grad(s.grad, grad_count(&s));
                if (round == 0) first[i] = grad;
                if (!same_bits(grad, first[i])) steady[i] = false;
            }
            oh_plan_destroy(plan);
            oh_context_close(context);
            gpu_step_close(&s);
        });
    for (std::thread &t : threads)
        t.join();
    char line[160];
    snprintf(line, sizeof line,
             "two contexts on %d device%s from two threads, 50 rounds: the same bits, devices restored",
             std::min(devices, 2), devices > 1 ? "s" : "");
    promise(line,
            steady[0] && steady[1] && same_bits(first[0], first[1]) && losses[0] == losses[1] && is_alive(first[0]));
}

static void check_memory(oh_context *context, const gpu_step *s) {
    size_t before = 0, after = 0, total = 0;
    oh_request request = gpu_request(s, OH_TILE_F32, CHUNK);
    GPU_CHECK(cudaDeviceSynchronize());
    GPU_CHECK(cudaMemGetInfo(&before, &total));
    oh_plan *plan = NULL;
    OH_CHECK(oh_plan_create(context, &request, &plan, &error));
    GPU_CHECK(cudaMemGetInfo(&after, &total));
    const oh_plan_summary *summary = oh_plan_get_summary(plan);
    const double said = (double)(summary->workspace_bytes + summary->weight_bytes), took = (double)(before - after);
    char line[160];
    snprintf(line, sizeof line, "a plan takes what it says: %.0f bytes said, %.0f taken (allocated in pieces of 2 MiB)",
             said, took);
    promise(line, took >= said - 1 && took <= said + 2 * (2 << 20));
    oh_plan_destroy(plan);

    request.memory = INT64_MAX / 4;
    request.rows = request.target_rows = INT64_C(1) << 24;
    request.chunk = INT64_C(1) << 24;
    oh_error error = {OH_OK, ""};
    plan = NULL;
    const oh_status status = oh_plan_create(context, &request, &plan, &error);
    promise("a plan larger than the device is out of memory, said before any work",
            status == OH_OUT_OF_MEMORY && !plan);
    printf("    %s\n", error.message);
}

int main(int argc, char **argv) {
    const char *backend = argc > 1 ? argv[1] : "cuda";
    gpu_step s = gpu_step_open(ROWS, ROWS, HIDDEN, VOCAB, 0.5f);
    oh_context *context = gpu_context(backend, 0, 0);
    check_enqueues_only(context, &s, OH_TILE_BF16, "bf16");
    check_enqueues_only(context, &s, OH_TILE_F32, "f32");
    check_enqueues_only(context, &s, OH_TILE_DIFF, "diff");
    check_graph(context, &s, OH_TILE_BF16, "bf16");
    check_graph(context, &s, OH_TILE_DIFF, "diff");
    check_two_streams(context, &s);
    check_memory(context, &s);
    oh_context_close(context);
    gpu_step_close(&s);
    check_threads(backend);
    return failures > 0;
}
