/* bench_step.cu - whole steps against the products they are made of, and passes against a copy.
 *
 *     onehead-gpu-bench [--rows T --hidden H --vocab V --chunk ROWS --rounds N --out FILE --log]
 *
 * Steps and their products alone (oh_plan_run_products) take turns within one process, so that all meet the same clocks;
 * figures are medians over the rounds. bf16 inputs, random normal. JSON on standard output or in FILE. */
#include "gpu.cuh"

struct bench_options {
    int64_t rows = 32768, hidden = 5120, vocab = 248320, chunk = 2048, rounds = 7;
    const char *out = NULL, *backend = "cuda";
    int log = 0;
};

/* One plan that is timed: whole steps, and its products alone. */
struct bench_case {
    std::string name;
    oh_plan *plan;
    oh_inputs in;
    oh_outputs out;
    std::vector<double> step_ms, products_ms;
    bool times_products;
};

static double time_ms(cudaStream_t stream, cudaEvent_t *events, void (*work)(void *), void *user) {
    float ms = 0;
    GPU_CHECK(cudaEventRecord(events[0], stream));
    work(user);
    GPU_CHECK(cudaEventRecord(events[1], stream));
    GPU_CHECK(cudaEventSynchronize(events[1]));
    GPU_CHECK(cudaEventElapsedTime(&ms, events[0], events[1]));
    return ms;
}

static void run_step(void *user) {
    bench_case *c = (bench_case *)user;
    OH_CHECK(oh_plan_run(c->plan, &c->in, &c->out, &error));
}

static void run_products(void *user) {
    bench_case *c = (bench_case *)user;
    OH_CHECK(oh_plan_run_products(c->plan, &c->in, &c->out, &error));
}

/* ------------------------------------------------------------------------------------------------------- passes ---- */

struct pass {
    std::string name;
    oh_span_kind kind;
    double bytes, ms;
    int64_t calls;
};

struct span_timer {
    cudaStream_t stream;
    std::vector<cudaEvent_t> begins, ends;
    std::vector<oh_span> spans;
};

static void on_span(void *user, const oh_span *span, int begin) {
    span_timer *t = (span_timer *)user;
    cudaEvent_t event;
    GPU_CHECK(cudaEventCreate(&event));
    GPU_CHECK(cudaEventRecord(event, t->stream));
    if (begin) {
        t->begins.push_back(event);
        t->spans.push_back(*span);
    } else {
        t->ends.push_back(event);
    }
}

/* One traced step: time and bytes of each kind of operation. */
static std::vector<pass> trace(bench_case *c, cudaStream_t stream) {
    span_timer timer;
    timer.stream = stream;
    oh_plan_trace(c->plan, on_span, &timer);
    run_step(c);
    oh_plan_trace(c->plan, NULL, NULL);
    GPU_CHECK(cudaStreamSynchronize(stream));
    std::vector<pass> passes;
    for (size_t i = 0; i < timer.spans.size(); ++i) {
        float ms = 0;
        GPU_CHECK(cudaEventElapsedTime(&ms, timer.begins[i], timer.ends[i]));
        GPU_CHECK(cudaEventDestroy(timer.begins[i]));
        GPU_CHECK(cudaEventDestroy(timer.ends[i]));
        const oh_span *s = &timer.spans[i];
        size_t k = 0;
        while (k < passes.size() && passes[k].kind != s->kind)
            ++k;
        if (k == passes.size()) passes.push_back(pass{oh_span_name(s->kind), (oh_span_kind)s->kind, 0, 0, 0});
        passes[k].bytes += s->bytes;
        passes[k].ms += ms;
        passes[k].calls += 1;
    }
    return passes;
}

/* A device-to-device copy to compare with: bytes read and written. */
struct copy_bench {
    char *from, *to;
    int64_t bytes;
    cudaStream_t stream;
};

static void run_copy(void *user) {
    copy_bench *c = (copy_bench *)user;
    GPU_CHECK(cudaMemcpyAsync(c->to, c->from, (size_t)c->bytes, cudaMemcpyDeviceToDevice, c->stream));
}

static copy_bench open_copy(cudaStream_t stream, int64_t bytes) {
    return copy_bench{gpu_alloc<char>(bytes), gpu_alloc<char>(bytes), bytes, stream};
}

static void close_copy(copy_bench *c) {
    GPU_CHECK(cudaFree(c->from));
    GPU_CHECK(cudaFree(c->to));
}

/* A pass by itself on one chunk's tiles. */
struct pass_bench {
    const oh_backend *backend;
    oh_queue *queue;
    oh_tile_stats stats;
    oh_tile_overlap overlap;
    oh_tile_grad grad;
};

static void must(oh_status status, const char *what) {
    if (status == OH_OK) return;
    fprintf(stderr, "%s: %s\n", what, oh_status_name(status));
    exit(5);
}

struct bandwidth {
    double pass, of_copy;
};

/* What a pass reads and writes a second, and against a copy: in turns, from when the clocks have settled to this work
 * (products before leave the chip throttled by its power; what the pass takes within a step is in the step's figures). */
static bandwidth pass_bandwidth(cudaStream_t stream, cudaEvent_t *events, void (*work)(void *), pass_bench *p,
                                double bytes, copy_bench *copy) {
    enum { SETTLING = 400, ROUNDS = 41 };
    std::vector<double> pass_ms, copy_ms;
    for (int i = 0; i < SETTLING + ROUNDS; ++i) {
        const double pass = time_ms(stream, events, work, p), copied = time_ms(stream, events, run_copy, copy);
        if (i < SETTLING) continue;
        pass_ms.push_back(pass);
        copy_ms.push_back(copied);
    }
    const double rate = bytes / (median(pass_ms) * 1e-3);
    return bandwidth{rate, rate / (2 * (double)copy->bytes / (median(copy_ms) * 1e-3))};
}

static void bench_passes(FILE *out, oh_context *context, const bench_options &o, cudaStream_t stream,
                         cudaEvent_t *events, copy_bench *copy) {
    const int64_t count = o.chunk * o.vocab;
    __nv_bfloat16 *draft = gpu_alloc<__nv_bfloat16>(count), *target = gpu_alloc<__nv_bfloat16>(count);
    oh_row_stats *stats = gpu_alloc<oh_row_stats>(o.chunk);
    oh_row_overlap *overlap = gpu_alloc<oh_row_overlap>(o.chunk);
    int32_t *ids = gpu_alloc<int32_t>(o.chunk * 8);
    float *logits = gpu_alloc<float>(o.chunk * 8);
    gpu_fill(stream, target, count, 11, 3, NULL);
    gpu_fill(stream, draft, count, 12, 1.5f, target);
    std::vector<oh_row_coef> coefs((size_t)o.chunk);
    for (oh_row_coef &c : coefs) {
        memset(&c, 0, sizeof c);
        c.c0 = c.cq = 1;
        c.z_max = c.t_max = 14;
        c.z_inv = c.t_inv = 0.05f;
        c.z_log = c.t_log = 3;
    }
    oh_row_coef *coef = gpu_alloc<oh_row_coef>(o.chunk);
    GPU_CHECK(cudaMemcpy(coef, coefs.data(), coefs.size() * sizeof coefs[0], cudaMemcpyHostToDevice));
    pass_bench p;
    memset(&p, 0, sizeof p);
    p.backend = oh_context_backend(context);
    must(p.backend->queue_open(oh_context_device(context), stream, &p.queue), "queue");
    oh_tile_view view;
    memset(&view, 0, sizeof view);
    view.draft = draft, view.target = target;
    view.draft_ld = view.target_ld = view.columns = o.vocab;
    view.rows = o.chunk;
    view.draft_transform.scale = view.target_transform.scale = 1;
    view.format = OH_TILE_BF16;
    p.stats.tile = p.overlap.tile = p.grad.tile = view;
    p.stats.stats = stats, p.stats.restart = 1, p.stats.want = OH_WANT_KL | OH_WANT_ENTROPY;
    p.overlap.stats = stats, p.overlap.overlap = overlap, p.overlap.restart = 1, p.overlap.want = OH_WANT_OVERLAP;
    p.grad.coef = coef, p.grad.out = draft, p.grad.out_ld = o.vocab, p.grad.out_dtype = OH_BF16,
    p.grad.form = OH_FORM_Q;
    const auto run_stats = [](void *user) {
        pass_bench *b = (pass_bench *)user;
        must(b->backend->tile_stats(b->queue, &b->stats), "tile_stats");
    };
    const auto run_overlap = [](void *user) {
        pass_bench *b = (pass_bench *)user;
        must(b->backend->tile_overlap(b->queue, &b->overlap), "tile_overlap");
    };
    const auto run_grad = [](void *user) {
        pass_bench *b = (pass_bench *)user;
        must(b->backend->tile_grad(b->queue, &b->grad), "tile_grad");
    };
    const double tile = 2 * (double)count;
    const auto of = [&](void (*work)(void *), double bytes) {
        return pass_bandwidth(stream, events, work, &p, bytes, copy);
    };
    struct named {
        const char *name;
        bandwidth rate;
    };
    std::vector<named> rates;
    rates.push_back({"statistics", of(run_stats, 2 * tile)});
    p.stats.top_k = 8, p.stats.topk_id = ids, p.stats.topk_logit = logits;
    rates.push_back({"statistics with top-8", of(run_stats, 2 * tile)});
    p.stats.want = OH_WANT_KL;
    rates.push_back({"statistics with top-8, without the entropy", of(run_stats, 2 * tile)});
    rates.push_back({"second read", of(run_overlap, 2 * tile)});
    rates.push_back({"gradient", of(run_grad, 3 * tile)});
    fprintf(out, " \"passes\": [");
    for (size_t i = 0; i < rates.size(); ++i)
        fprintf(out, "%s{\"name\": \"%s\", \"bytes_per_second\": %.4g, \"of_copy\": %.3f}", i ? ", " : "",
                rates[i].name, rates[i].rate.pass, rates[i].rate.of_copy);
    fprintf(out, "],\n");
    p.backend->queue_close(p.queue);
    GPU_CHECK(cudaFree(draft));
    GPU_CHECK(cudaFree(target));
    GPU_CHECK(cudaFree(stats));
    GPU_CHECK(cudaFree(overlap));
    GPU_CHECK(cudaFree(ids));
    GPU_CHECK(cudaFree(logits));
    GPU_CHECK(cudaFree(coef));
}

/* --------------------------------------------------------------------------------------------------------- main ---- */

static bench_options parse(int argc, char **argv) {
    bench_options o;
    for (int i = 1; i < argc; ++i) {
        const std::string name = argv[i];
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (name == "--log") {
            o.log = 1;
            continue;
        }
        int64_t *number = name == "--rows"     ? &o.rows
                          : name == "--hidden" ? &o.hidden
                          : name == "--vocab"  ? &o.vocab
                          : name == "--chunk"  ? &o.chunk
                          : name == "--rounds" ? &o.rounds
                                               : NULL;
        if (number)
            *number = atoll(value);
        else if (name == "--out")
            o.out = value;
        else if (name == "--backend")
            o.backend = value;
        else {
            fprintf(stderr, "unknown option %s\n", argv[i]);
            exit(2);
        }
        ++i;
    }
    return o;
}

static bench_case open_case(oh_context *context, const char *name, const oh_request *request, const gpu_step *s,
                            cudaStream_t stream, bool times_products) {
    bench_case c;
    c.name = name;
    c.plan = NULL;
    OH_CHECK(oh_plan_create(context, request, &c.plan, &error));
    c.in = gpu_inputs(s, stream);
    if (request->target_rows == 0) c.in.target_hidden = NULL, c.in.target_rows = 0;
    c.out = gpu_outputs(s->grad);
    c.times_products = times_products;
    return c;
}

int main(int argc, char **argv) {
    const bench_options o = parse(argc, argv);
    gpu_step s = gpu_step_open(o.rows, o.rows, o.hidden, o.vocab, 0.5f);
    gpu_step shared = s; /* a quarter of the rows, 512 anchors of 16 over half as many target rows */
    shared.rows = o.rows / 4;
    shared.target_rows = o.rows / 8;
    oh_context *context = gpu_context(o.backend, 0, o.log);
    oh_device_info info;
    OH_CHECK(oh_context_device_info(context, &info, &error));
    cudaStream_t stream;
    cudaEvent_t events[2];
    GPU_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (cudaEvent_t &e : events)
        GPU_CHECK(cudaEventCreate(&e));

    std::vector<int32_t> labels((size_t)o.rows), target_row((size_t)shared.rows);
    for (int64_t r = 0; r < o.rows; ++r)
        labels[(size_t)r] = (int32_t)((r * 7919) % o.vocab);
    for (int64_t r = 0; r < shared.rows; ++r)
        target_row[(size_t)r] = (int32_t)((r / 16 * 8 + r % 16) % shared.target_rows);

    std::vector<bench_case> cases;
    oh_request r = gpu_request(&s, OH_TILE_BF16, o.chunk);
    r.objective.first_slot = 0;
    cases.push_back(open_case(context, "bf16 tile, all rows", &r, &s, stream, true));
    r.produce |= OH_PRODUCE_OVERLAP;
    cases.push_back(open_case(context, "bf16 tile, all rows, alpha and tau", &r, &s, stream, false));
    r = gpu_request(&s, OH_TILE_BF16, o.chunk);
    cases.push_back(open_case(context, "bf16 tile, anchors compacted", &r, &s, stream, false));
    r = gpu_request(&s, OH_TILE_F32, o.chunk);
    r.objective.first_slot = 0;
    cases.push_back(open_case(context, "f32 tile, all rows", &r, &s, stream, false));
    r = gpu_request(&s, OH_TILE_F16, o.chunk);
    r.objective.first_slot = 0;
    cases.push_back(open_case(context, "f16 tile, all rows", &r, &s, stream, false));
    r.tile = OH_TILE_DIFF;
    cases.push_back(open_case(context, "diff tile, all rows", &r, &s, stream, false));
    r = gpu_request(&s, OH_TILE_BF16, o.chunk);
    r.objective.first_slot = 0;
    r.target_rows = 0;
    r.objective.labels = OH_LABELS_GIVEN;
    OH_CHECK(oh_objective_set_terms(&r.objective, "ce=1", &error));
    cases.push_back(open_case(context, "ce, bf16 tile, all rows, no target", &r, &s, stream, true));
    cases.back().in.label = labels.data();
    cases.back().in.label_dtype = OH_I32;
    r.objective.top_k_count = 0;
    cases.push_back(open_case(context, "ce, bf16 tile, all rows, no target, no lists", &r, &s, stream, false));
    cases.back().in.label = labels.data();
    cases.back().in.label_dtype = OH_I32;
    r = gpu_request(&shared, OH_TILE_BF16, o.chunk);
    r.objective.first_slot = 0;
    cases.push_back(
        open_case(context, "bf16 tile, a quarter of the rows, target rows shared", &r, &shared, stream, true));
    cases.back().in.target_row = target_row.data();
    cases.back().in.target_row_dtype = OH_I32;

    for (bench_case &c : cases)
        run_step(&c); /* loads kernels, converts weights, chooses algorithms */
    GPU_CHECK(cudaStreamSynchronize(stream));
    copy_bench copying = open_copy(stream, INT64_C(1) << 30);
    std::vector<double> copy_ms;
    for (int64_t round = 0; round < o.rounds; ++round) {
        copy_ms.push_back(time_ms(stream, events, run_copy, &copying));
        for (bench_case &c : cases) {
            if (c.times_products) c.products_ms.push_back(time_ms(stream, events, run_products, &c));
            c.step_ms.push_back(time_ms(stream, events, run_step, &c));
        }
    }
    const double copy = o.rounds > 0 ? 2 * (double)copying.bytes / (median(copy_ms) * 1e-3) : 0;
    const double reference = o.rounds > 0 ? median(cases[0].products_ms) : 0;

    FILE *out = o.out ? fopen(o.out, "w") : stdout;
    if (!out) return 5;
    std::vector<bench_case> none, &shown = o.rounds > 0 ? cases : none; /* no rounds: a run that only tunes */
    fprintf(
        out,
        "{\n \"context\": {\"device\": \"%s\", \"kernel\": \"%s\", \"rows\": %lld, \"hidden\": %lld, \"vocab\": %lld, "
        "\"chunk\": %lld, \"rounds\": %lld, \"inputs\": \"bf16, random normal\", \"copy_bytes_per_second\": %.4g},\n "
        "\"products_ms\": %.3f,\n",
        info.name, info.kernel, (long long)o.rows, (long long)o.hidden, (long long)o.vocab, (long long)o.chunk,
        (long long)o.rounds, copy, reference);
    if (o.rounds > 0) bench_passes(out, context, o, stream, events, &copying);
    fprintf(out, " \"benchmarks\": [");
    for (size_t i = 0; i < shown.size(); ++i) {
        bench_case &c = shown[i];
        const double step = median(c.step_ms), own = c.times_products ? median(c.products_ms) : NAN;
        const oh_plan_summary *summary = oh_plan_get_summary(c.plan);
        oh_results results;
        run_step(&c);
        OH_CHECK(oh_plan_results(c.plan, &results, &error));
        fprintf(out, "%s\n  {\"name\": \"%s\", \"step_ms\": %.3f, \"min_ms\": %.3f, \"max_ms\": %.3f, ", i ? "," : "",
                c.name.c_str(), step, *std::min_element(c.step_ms.begin(), c.step_ms.end()),
                *std::max_element(c.step_ms.begin(), c.step_ms.end()));
        if (c.times_products)
            fprintf(out, "\"own_products_ms\": %.3f, \"ratio_to_own_products\": %.4f, ", own, step / own);
        fprintf(out,
                "\"ratio_to_bf16_products\": %.4f, \"workspace_bytes\": %lld, \"weight_bytes\": %lld, \"loss\": %.6f,",
                step / reference, (long long)summary->workspace_bytes, (long long)summary->weight_bytes, results.loss);
        fprintf(out, "\n   \"operations\": [");
        const std::vector<pass> passes = trace(&c, stream);
        for (size_t k = 0; k < passes.size(); ++k)
            fprintf(
                out,
                "%s{\"name\": \"%s\", \"calls\": %lld, \"ms\": %.3f, \"bytes_per_second\": %.4g, \"of_copy\": %.3f}",
                k ? ",\n     " : "", passes[k].name.c_str(), (long long)passes[k].calls, passes[k].ms,
                passes[k].bytes / (passes[k].ms * 1e-3), passes[k].bytes / (passes[k].ms * 1e-3) / copy);
        fprintf(out, "]}");
    }
    fprintf(out, "\n ]\n}\n");
    close_copy(&copying);
    if (o.out) fclose(out);
    for (bench_case &c : cases)
        oh_plan_destroy(c.plan);
    oh_context_close(context);
    return 0;
}
