/* check_rows.cu - rows and values that only a device can get wrong: masks that it alone has, logits over f16's range, tiles
 * of more than 2^32 elements, tensors at odd addresses, and the memory that a step takes.
 *
 *     onehead-gpu-rows [BACKEND] [small]
 *
 * `small` leaves out what needs tens of GiB. Prints one line a promise; exit status 1 when one is broken.
 *
 * Gradients are compared relative to their norm. With 16-bit operands each is off by at most u sum |dz| |W|, u = 2^-8 for a
 * gradient tile of bf16 and 2^-11 for one of f16, and random signs leave a small part of it: two of them, computed in
 * another order, stay within 2 u of each other. A wrong row, offset or weight is off by the order of 1. */
#include <cstdarg>

#include "gpu.cuh"

static int failures;

static void promise(bool kept, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void promise(bool kept, const char *format, ...) {
    char line[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    printf("%-100s %s\n", line, kept ? "ok" : "BROKEN");
    fflush(stdout);
    failures += !kept;
}

static std::vector<float> read_floats(const float *from, int64_t count) {
    std::vector<float> host((size_t)count);
    GPU_CHECK(cudaMemcpy(host.data(), from, (size_t)count * sizeof(float), cudaMemcpyDeviceToHost));
    return host;
}

/* ||a - b|| / ||b||; infinite where an element is NaN, or nothing is there to compare with. */
static double distance(const std::vector<float> &a, const std::vector<float> &b) {
    double off = 0, size = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        off += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    return size > 0 && std::isfinite(off) ? sqrt(off / size) : INFINITY;
}

template <class T> static T *to_device(const std::vector<T> &host) {
    T *device = gpu_alloc<T>((int64_t)host.size());
    GPU_CHECK(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    return device;
}

static double roundoff(oh_plan *plan) {
    return oh_plan_get_summary(plan)->grad_dtype == OH_F16 ? 0x1p-11 : 0x1p-8;
}

/* ----------------------------------------------------------------------------------------------- device masks ---- */

enum { ROWS = 512, HIDDEN = 192, VOCAB = 5003, CHUNK = 192, BLOCK = 16 };

struct row_arrays {
    std::vector<float> mask;
    std::vector<int64_t> label;
    std::vector<int32_t> target_row;
};

static row_arrays arrays_of(int round) {
    row_arrays a;
    for (int64_t r = 0; r < ROWS; ++r) {
        a.mask.push_back((r * 7 + round) % 5 == 0 ? 0.0f : 0.5f + (float)((r + round) % 3));
        a.label.push_back((r + round) % 11 == 0 ? -100 : (r * 131 + round) % VOCAB);
        a.target_row.push_back((int32_t)(a.mask.back() > 0 ? r / 2 : ROWS - 1));
    }
    return a;
}

static bool unsupervised_is_zero(const std::vector<float> &grad, const row_arrays &a, bool given) {
    for (int64_t r = 0; r < ROWS; ++r) {
        if (a.mask[(size_t)r] > 0 && r % BLOCK != 0 && (!given || a.label[(size_t)r] >= 0)) continue;
        for (int64_t h = 0; h < HIDDEN; ++h)
            if (grad[(size_t)(r * HIDDEN + h)] != 0) return false;
    }
    return true;
}

static void check_masks(oh_context *context, int32_t tile, const char *name, bool given) {
    gpu_step s = gpu_step_open(ROWS, ROWS, HIDDEN, VOCAB, 0.5f);
    /* Rows that nothing supervised uses hold what must go nowhere. */
    const row_arrays a = arrays_of(1);
    for (int64_t r = 0; r < ROWS; ++r)
        if (a.mask[(size_t)r] == 0) GPU_CHECK(cudaMemset(s.draft + r * HIDDEN, 0xff, HIDDEN * sizeof *s.draft));
    GPU_CHECK(cudaMemset(s.target + (ROWS - 1) * HIDDEN, 0xff, HIDDEN * sizeof *s.target));
    GPU_CHECK(cudaDeviceSynchronize());
    float *const mask = to_device(a.mask), *const head_grad = gpu_alloc<float>((int64_t)VOCAB * HIDDEN);
    int64_t *const label = to_device(a.label);
    int32_t *const target_row = to_device(a.target_row);
    oh_request request = gpu_request(&s, tile, CHUNK);
    request.produce |= OH_PRODUCE_OVERLAP | OH_PRODUCE_HEAD_GRAD;
    request.objective.labels = given ? OH_LABELS_GIVEN : OH_LABELS_TARGET;
    std::vector<float> grads[2], heads[2];
    oh_results results[2];
    double u = 0;
    bool zero = true;
    for (int device = 0; device < 2; ++device) {
        if (device) request.device_inputs = OH_DEVICE_MASK | OH_DEVICE_LABEL | OH_DEVICE_TARGET_ROW;
        oh_plan *plan = NULL;
        OH_CHECK(oh_plan_create(context, &request, &plan, &error));
        oh_inputs in = gpu_inputs(&s, NULL);
        in.mask = device ? mask : a.mask.data(), in.mask_dtype = OH_F32;
        in.label = device ? label : a.label.data(), in.label_dtype = OH_I64;
        in.target_row = device ? target_row : a.target_row.data(), in.target_row_dtype = OH_I32;
        oh_outputs out = gpu_outputs(s.grad);
        out.lm_head_grad = head_grad;
        OH_CHECK(oh_plan_run(plan, &in, &out, &error));
        OH_CHECK(oh_plan_results(plan, &results[device], &error));
        grads[device] = read_floats(s.grad, ROWS * HIDDEN);
        heads[device] = read_floats(head_grad, (int64_t)VOCAB * HIDDEN);
        zero = zero && unsupervised_is_zero(grads[device], a, given);
        u = roundoff(plan);
        oh_plan_destroy(plan);
    }
    const double apart = distance(grads[1], grads[0]), head_apart = distance(heads[1], heads[0]);
    promise(results[1].supervised == results[0].supervised && results[1].nonfinite_rows == 0 &&
                fabs(results[1].loss - results[0].loss) <= 2 * u * results[0].loss &&
                results[1].weight_sum == results[0].weight_sum,
            "%s: device masks give the host's counts and loss", name);
    promise(apart <= 2 * u && head_apart <= 4 * u, "%s: and its gradients (dD %.1e, dW %.1e apart)", name, apart,
            head_apart);
    promise(zero, "%s: NaN in unsupervised rows goes nowhere, their gradient is exactly 0", name);
    GPU_CHECK(cudaFree(mask));
    GPU_CHECK(cudaFree(label));
    GPU_CHECK(cudaFree(target_row));
    GPU_CHECK(cudaFree(head_grad));
    gpu_step_close(&s);
}

/* A captured step takes the masks that lie there at replay. */
static void check_replay(oh_context *context) {
    gpu_step s = gpu_step_open(ROWS, ROWS, HIDDEN, VOCAB, 0.5f);
    float *const mask = to_device(arrays_of(0).mask);
    oh_request request = gpu_request(&s, OH_TILE_BF16, CHUNK);
    request.device_inputs = OH_DEVICE_MASK;
    oh_plan *captured = NULL, *eager = NULL;
    OH_CHECK(oh_plan_create(context, &request, &captured, &error));
    OH_CHECK(oh_plan_create(context, &request, &eager, &error));
    cudaStream_t stream;
    GPU_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    oh_inputs in = gpu_inputs(&s, stream);
    in.mask = mask, in.mask_dtype = OH_F32;
    const oh_outputs out = gpu_outputs(s.grad);
    OH_CHECK(oh_plan_run(captured, &in, &out, &error));
    GPU_CHECK(cudaStreamSynchronize(stream));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    GPU_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OH_CHECK(oh_plan_run(captured, &in, &out, &error));
    GPU_CHECK(cudaStreamEndCapture(stream, &graph));
    GPU_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    bool same = true;
    for (int round = 1; round < 4; ++round) {
        const row_arrays a = arrays_of(round);
        GPU_CHECK(cudaMemcpy(mask, a.mask.data(), a.mask.size() * sizeof(float), cudaMemcpyHostToDevice));
        GPU_CHECK(cudaGraphLaunch(exec, stream));
        GPU_CHECK(cudaStreamSynchronize(stream));
        const std::vector<float> replayed = read_floats(s.grad, ROWS * HIDDEN);
        OH_CHECK(oh_plan_run(eager, &in, &out, &error));
        GPU_CHECK(cudaStreamSynchronize(stream));
        same = same && replayed == read_floats(s.grad, ROWS * HIDDEN) && unsupervised_is_zero(replayed, a, false);
    }
    promise(same, "a captured step replayed with other device masks gives an eager step's bits");
    GPU_CHECK(cudaGraphExecDestroy(exec));
    GPU_CHECK(cudaGraphDestroy(graph));
    oh_plan_destroy(captured);
    oh_plan_destroy(eager);
    GPU_CHECK(cudaStreamDestroy(stream));
    GPU_CHECK(cudaFree(mask));
    gpu_step_close(&s);
}

/* --------------------------------------------------------------------------------------------------- overflow ---- */

static oh_status run_auto(oh_context *context, const gpu_step *s, oh_plan_summary *summary, oh_error *said) {
    oh_request request = gpu_request(s, OH_TILE_AUTO, CHUNK);
    request.lm_head = s->head;
    oh_plan *plan = NULL;
    oh_results results;
    OH_CHECK(oh_plan_create(context, &request, &plan, &error));
    const oh_inputs in = gpu_inputs(s, NULL);
    const oh_outputs out = gpu_outputs(s->grad);
    OH_CHECK(oh_plan_run(plan, &in, &out, &error));
    const oh_status status = oh_plan_results(plan, &results, said);
    *summary = *oh_plan_get_summary(plan);
    oh_plan_destroy(plan);
    return status;
}

static void check_overflow(const char *backend) {
    enum { BAD = 77 };
    gpu_step s = gpu_step_open(ROWS, ROWS, HIDDEN, VOCAB, 0.5f);
    oh_context *context = gpu_context(backend, 0, 0);
    oh_plan_summary summary;
    oh_error said = {OH_OK, ""};
    const oh_status fine = run_auto(context, &s, &summary, &said);
    promise(fine == OH_OK && summary.tile == OH_TILE_DIFF, "auto is diff: %s", summary.tile_reason);
    gpu_fill(0, s.draft + BAD * HIDDEN, HIDDEN, 5, 1e5f, NULL);
    GPU_CHECK(cudaDeviceSynchronize());
    const oh_status over = run_auto(context, &s, &summary, &said);
    promise(over == OH_OVERFLOW && strstr(said.message, "row 77") != NULL, "an overflow is said: %.90s", said.message);
    const std::vector<float> grad = read_floats(s.grad, ROWS * HIDDEN);
    bool finite = true;
    for (float value : grad)
        finite = finite && std::isfinite(value);
    promise(finite && grad[BAD * HIDDEN] == 0, "its row has gradient 0, and no row is infinite");
    const oh_status wide = run_auto(context, &s, &summary, &said);
    promise(wide == OH_OK && summary.tile == OH_TILE_F32, "the context's next plan is f32: %s", summary.tile_reason);
    oh_context_close(context);
    context = gpu_context(backend, 0, 0);
    GPU_CHECK(cudaMemset(s.draft + BAD * HIDDEN, 0xff, HIDDEN * sizeof *s.draft));
    GPU_CHECK(cudaDeviceSynchronize());
    promise(run_auto(context, &s, &summary, &said) == OH_OK && summary.tile == OH_TILE_DIFF, "a NaN is no overflow");
    oh_context_close(context);
    gpu_step_close(&s);
}

/* ----------------------------------------------------------------------------------------- sizes and addresses ---- */

static std::vector<float> gradient(oh_context *context, const oh_request *request, const oh_inputs *in, float *grad,
                                   int64_t count, double *u) {
    oh_plan *plan = NULL;
    oh_results results;
    OH_CHECK(oh_plan_create(context, request, &plan, &error));
    const oh_outputs out = gpu_outputs(grad);
    OH_CHECK(oh_plan_run(plan, in, &out, &error));
    OH_CHECK(oh_plan_results(plan, &results, &error));
    *u = roundoff(plan);
    oh_plan_destroy(plan);
    return read_floats(grad, count);
}

/* 17,310 rows of 248,320 logits are 4,298,419,200 elements, over 2^32: the last block as it comes out alone. */
static void check_huge_tile(oh_context *context, int32_t tile, const char *name) {
    const int64_t rows = 1154 * BLOCK, hidden = 64, vocab = 248320, last = (rows - BLOCK) * hidden;
    gpu_step s = gpu_step_open(rows, rows, hidden, vocab, 0.5f);
    oh_request request = gpu_request(&s, tile, rows);
    request.memory = INT64_C(100) << 30;
    request.objective.norm = OH_NORM_NONE;
    double u = 0;
    oh_inputs in = gpu_inputs(&s, NULL);
    const std::vector<float> all = gradient(context, &request, &in, s.grad, rows * hidden, &u);
    request.rows = request.target_rows = request.chunk = in.rows = in.target_rows = BLOCK;
    in.draft_hidden = s.draft + last;
    in.target_hidden = s.target + last;
    const std::vector<float> alone = gradient(context, &request, &in, s.grad, BLOCK * hidden, &u);
    const double apart = distance(std::vector<float>(all.begin() + last, all.end()), alone);
    promise(apart <= 2 * u, "%s: the last of 17,310 x 248,320 logits' rows as alone (%.1e apart)", name, apart);
    gpu_step_close(&s);
}

__global__ void copy_kernel(__nv_bfloat16 *to, int64_t to_ld, const __nv_bfloat16 *from, int64_t rows,
                            int64_t columns) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * columns;
         i += (int64_t)gridDim.x * blockDim.x)
        to[i / columns * to_ld + i % columns] = from[i];
}

/* The same matrix two bytes past an aligned address, with rows one element further apart. */
static __nv_bfloat16 *shifted(const __nv_bfloat16 *from, int64_t rows, int64_t columns) {
    __nv_bfloat16 *const to = gpu_alloc<__nv_bfloat16>(rows * (columns + 1) + 1);
    copy_kernel<<<1024, 256>>>(to + 1, columns + 1, from, rows, columns);
    GPU_CHECK(cudaGetLastError());
    GPU_CHECK(cudaDeviceSynchronize());
    return to;
}

static void check_unaligned(oh_context *context, int32_t tile, const char *name) {
    const int64_t rows = 128, hidden = 321, vocab = 50257;
    gpu_step s = gpu_step_open(rows, rows, hidden, vocab, 0.5f);
    oh_request request = gpu_request(&s, tile, 64);
    double u = 0;
    oh_inputs in = gpu_inputs(&s, NULL);
    const std::vector<float> aligned = gradient(context, &request, &in, s.grad, rows * hidden, &u);
    __nv_bfloat16 *const draft = shifted(s.draft, rows, hidden), *const target = shifted(s.target, rows, hidden);
    __nv_bfloat16 *const head = shifted(s.head, vocab, hidden);
    in.draft_hidden = draft + 1, in.target_hidden = target + 1, in.lm_head = head + 1;
    in.draft_ld = in.target_ld = in.lm_head_ld = hidden + 1;
    const std::vector<float> odd = gradient(context, &request, &in, s.grad, rows * hidden, &u);
    promise(distance(odd, aligned) <= 2 * u, "%s: V = 50,257 and H = 321 two bytes off alignment (%.1e apart)", name,
            distance(odd, aligned));
    GPU_CHECK(cudaFree(draft));
    GPU_CHECK(cudaFree(target));
    GPU_CHECK(cudaFree(head));
    gpu_step_close(&s);
}

/* What a plan of more than 2 GiB and its step take, within one part in a hundred of what was said. A step before it has
 * loaded the kernels. */
static void check_memory(oh_context *context) {
    gpu_step s = gpu_step_open(8192, 8192, 1024, 131072, 0.5f);
    oh_request request = gpu_request(&s, OH_TILE_DIFF, 2048);
    const oh_inputs in = gpu_inputs(&s, NULL);
    const oh_outputs out = gpu_outputs(s.grad);
    for (int round = 0; round < 2; ++round) {
        size_t before = 0, after = 0, total = 0;
        oh_plan *plan = NULL;
        GPU_CHECK(cudaDeviceSynchronize());
        GPU_CHECK(cudaMemGetInfo(&before, &total));
        OH_CHECK(oh_plan_create(context, &request, &plan, &error));
        OH_CHECK(oh_plan_run(plan, &in, &out, &error));
        OH_CHECK(oh_plan_wait(plan, &error));
        GPU_CHECK(cudaMemGetInfo(&after, &total));
        const oh_plan_summary *summary = oh_plan_get_summary(plan);
        const double said = (double)(summary->workspace_bytes + summary->weight_bytes);
        const double took = (double)before - (double)after;
        if (round == 1)
            promise(fabs(took - said) <= 0.01 * said, "a step takes what its plan says: %.0f bytes, %.0f said", took,
                    said);
        oh_plan_destroy(plan);
    }
    gpu_step_close(&s);
}

int main(int argc, char **argv) {
    const char *backend = argc > 1 ? argv[1] : "cuda";
    const bool small = argc > 2 && strcmp(argv[2], "small") == 0;
    static const struct {
        int32_t tile;
        const char *name;
    } tiles[] = {{OH_TILE_F32, "f32"}, {OH_TILE_BF16, "bf16"}, {OH_TILE_F16, "f16"}, {OH_TILE_DIFF, "diff"}};
    oh_context *context = gpu_context(backend, 0, 0);
    for (const auto &t : tiles) {
        check_masks(context, t.tile, t.name, false);
        check_masks(context, t.tile, t.name, true);
        if (!small) check_unaligned(context, t.tile, t.name);
    }
    check_replay(context);
    if (!small) {
        check_memory(context);
        check_huge_tile(context, OH_TILE_BF16, "bf16");
        check_huge_tile(context, OH_TILE_F32, "f32");
    }
    oh_context_close(context);
    check_overflow(backend);
    return failures > 0;
}
