/* tiles.c - the tile operations: arguments checked, rows spread over threads, kernels of the CPU's instruction set. */
#include <math.h>
#include <string.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "device.h"
#include "tiles.h"

/* ----------------------------------------------------------------------------------------------- dispatch ---- */

int ob_kernels_supported(ob_isa isa) {
    if (isa == OB_ISA_BASELINE) return 1;
#if defined(__x86_64__)
    __builtin_cpu_init();
    /* Every CPU with AVX2 and FMA has F16C. */
    if (isa == OB_ISA_AVX2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (isa == OB_ISA_AVX512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
    return 0;
}

static const ob_kernels *const all_kernels[OB_ISA_COUNT] = {
    &ob_kernels_baseline,
#if defined(__x86_64__)
    &ob_kernels_avx2,
    &ob_kernels_avx512,
#endif
};

const ob_kernels *ob_kernels_choose(const char *name) {
    const int any = !name || !*name;
    for (int isa = OB_ISA_COUNT - 1; isa >= 0; --isa)
        if (ob_kernels_supported((ob_isa)isa) && (any || strcmp(name, all_kernels[isa]->name) == 0))
            return all_kernels[isa];
    return NULL;
}

const char *ob_kernels_names(void) {
    if (ob_kernels_supported(OB_ISA_AVX512)) return "baseline, avx2, avx512";
    return ob_kernels_supported(OB_ISA_AVX2) ? "baseline, avx2" : "baseline";
}

/* ------------------------------------------------------------------------------------------ rows to threads ---- */

typedef struct row_job {
    const ob_kernels *kernels;
    const oh_tile_stats *stats; /* one of the three */
    const oh_tile_overlap *overlap;
    const oh_tile_grad *grad;
    int64_t rows, rows_per_part;
} row_job;

/* Products of tiny probabilities are subnormal, each a hundred cycles: they are flushed while a kernel runs. */
static void run_rows(void *work, int64_t part) {
    const row_job *job = work;
    const int64_t first = part * job->rows_per_part, left = job->rows - first;
    const int64_t end = first + (left < job->rows_per_part ? left : job->rows_per_part);
#if defined(__x86_64__)
    const unsigned saved = _mm_getcsr();
    _mm_setcsr(saved | _MM_FLUSH_ZERO_ON);
#endif
    if (job->stats) job->kernels->stats(job->stats, first, end);
    if (job->overlap) job->kernels->overlap(job->overlap, first, end);
    if (job->grad) job->kernels->grad(job->grad, first, end);
#if defined(__x86_64__)
    _mm_setcsr(saved);
#endif
}

/* A part is a row, or as many as make a few microseconds. */
static oh_status run_job(oh_queue *queue, row_job job, const oh_tile_view *tile) {
    if (tile->rows == 0) return OH_OK;
    job.kernels = queue->device->kernels;
    job.rows = tile->rows;
    job.rows_per_part = 1 + 16384 / (tile->columns + 1);
    ob_parallel(queue->device, (job.rows + job.rows_per_part - 1) / job.rows_per_part, run_rows, &job);
    return OH_OK;
}

/* ------------------------------------------------------------------------------------------------ arguments ---- */

static oh_status check_view(oh_device *device, const char *what, const oh_tile_view *v) {
    if (v->rows < 0 || v->columns < 0 || v->first_column < 0 || v->first_column > INT32_MAX ||
        v->columns > INT32_MAX - v->first_column)
        return ob_fail(device, OH_INVALID_ARGUMENT,
                       "openblas: %s of %lld rows x %lld columns from column %lld on, expected columns below 2^31",
                       what, (long long)v->rows, (long long)v->columns, (long long)v->first_column);
    if (v->format < OH_TILE_F32 || v->format > OH_TILE_DIFF)
        return ob_fail(device, OH_INVALID_ARGUMENT, "openblas: %s of tile format %d, expected 0 to 3", what, v->format);
    if ((v->draft && v->draft_ld < v->columns) || (v->target && v->target_ld < v->columns))
        return ob_fail(device, OH_INVALID_ARGUMENT, "openblas: %s with row strides %lld and %lld, expected >= %lld",
                       what, (long long)v->draft_ld, (long long)v->target_ld, (long long)v->columns);
    if (v->format == OH_TILE_DIFF && v->draft && !v->target)
        return ob_fail(device, OH_INVALID_ARGUMENT, "openblas: %s of a difference tile without its target", what);
    const oh_transform *const transforms[] = {&v->draft_transform, &v->target_transform};
    for (int i = 0; i < 2; ++i)
        if (!isfinite(transforms[i]->scale) || !isfinite(transforms[i]->softcap) || transforms[i]->softcap < 0)
            return ob_fail(device, OH_INVALID_ARGUMENT, "openblas: %s with scale %g and softcap %g", what,
                           (double)transforms[i]->scale, (double)transforms[i]->softcap);
    return OH_OK;
}

static oh_status missing(oh_device *device, const char *what) {
    return ob_fail(device, OH_INVALID_ARGUMENT, "openblas: %s without a tile or an array that it was asked to use",
                   what);
}

oh_status ob_tile_stats(oh_queue *queue, const oh_tile_stats *stats) {
    static const char what[] = "tile_stats";
    oh_device *device = queue->device;
    const oh_tile_view *v = &stats->tile;
    const oh_status status = check_view(device, what, v);
    if (status != OH_OK || v->rows == 0) return status;
    if (stats->top_k < 0 || stats->top_k > OH_TOP_K_MAX)
        return ob_fail(device, OH_INVALID_ARGUMENT, "openblas: tile_stats with top_k = %d, expected 0 to %d",
                       stats->top_k, OH_TOP_K_MAX);
    if (!stats->stats || (stats->top_k > 0 && (!stats->topk_id || !stats->topk_logit))) return missing(device, what);
    if (v->columns > 0) {
        if (!v->draft && (!v->target || stats->top_k > 0)) return missing(device, what);
        if (stats->want & (OH_WANT_ENTROPY | OH_WANT_TOTAL) && !v->draft) return missing(device, what);
        if (stats->want & (OH_WANT_KL | OH_WANT_RKL) && !(v->draft && v->target)) return missing(device, what);
    }
    return run_job(queue, (row_job){.stats = stats}, v);
}

oh_status ob_tile_overlap(oh_queue *queue, const oh_tile_overlap *overlap) {
    static const char what[] = "tile_overlap";
    const uint32_t of_target = OH_WANT_OVERLAP | OH_WANT_JSD, known = of_target | OH_WANT_RANK;
    oh_device *device = queue->device;
    const oh_tile_view *v = &overlap->tile;
    const oh_status status = check_view(device, what, v);
    if (status != OH_OK || v->rows == 0) return status;
    if (!overlap->stats || !overlap->overlap) return missing(device, what);
    if (v->columns > 0 && overlap->want & known && (!v->draft || (overlap->want & of_target && !v->target)))
        return missing(device, what);
    return run_job(queue, (row_job){.overlap = overlap}, v);
}

oh_status ob_tile_grad(oh_queue *queue, const oh_tile_grad *grad) {
    static const char what[] = "tile_grad";
    const uint32_t of_target = OH_FORM_LOG_Q | OH_FORM_LOG_M | OH_FORM_LE | OH_FORM_Q;
    oh_device *device = queue->device;
    const oh_tile_view *v = &grad->tile;
    const oh_status status = check_view(device, what, v);
    if (status != OH_OK) return status;
    const int64_t size = ob_element_size(grad->out_dtype), tile_size = ob_element_size(ob_tile_dtype(v->format));
    if (size == 0)
        return ob_fail(device, OH_INVALID_ARGUMENT, "openblas: tile_grad into dtype %d, expected f32, bf16 or f16",
                       grad->out_dtype);
    if (grad->out_ld < v->columns)
        return ob_fail(device, OH_INVALID_ARGUMENT, "openblas: tile_grad with out_ld = %lld, expected at least %lld",
                       (long long)grad->out_ld, (long long)v->columns);
    if (v->rows == 0 || v->columns == 0) return OH_OK;
    if (!v->draft || !grad->coef || !grad->out || (grad->form & of_target && !v->target)) return missing(device, what);
    if (grad->out == v->draft && (size > tile_size || (v->rows > 1 && grad->out_ld * size != v->draft_ld * tile_size)))
        return ob_fail(
            device, OH_INVALID_ARGUMENT,
            "openblas: tile_grad in place with rows %lld bytes apart, expected the tile's %lld, and elements "
            "no wider than its %lld bytes",
            (long long)grad->out_ld * size, (long long)v->draft_ld * tile_size, (long long)tile_size);
    return run_job(queue, (row_job){.grad = grad}, v);
}
