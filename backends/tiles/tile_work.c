/* tile_work.c - tile operations: what their arguments must be, and rows as parts. */
#include "tile_work.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

oh_status tile_refuse(oh_error *why, oh_status status, const char *format, ...) {
    if (!why) return status;
    va_list arguments;
    va_start(arguments, format);
    why->status = status;
    vsnprintf(why->message, sizeof why->message, format, arguments);
    va_end(arguments);
    return status;
}

/* -------------------------------------------------------------------------------------------------------- rows ---- */

typedef enum operation { STATS, OVERLAP, GRAD, GRAD_OVERLAP } operation;

static oh_tile_overlap overlap_of(const oh_tile_grad_overlap *both) {
    return (oh_tile_overlap){
        .tile = both->grad.tile, .stats = both->stats, .overlap = both->overlap, .want = both->want, .restart = 1};
}

/* A row is still in a core's cache when it is read again. */
static void grad_overlap_rows(const tile_kernels *kernels, const oh_tile_grad_overlap *both, int64_t first,
                              int64_t end) {
    const oh_tile_overlap overlap = overlap_of(both);
    for (int64_t row = first; row < end; ++row) {
        kernels->overlap(&overlap, row, row + 1);
        kernels->grad(&both->grad, row, row + 1);
    }
}

/* Products of tiny probabilities are subnormal, each a hundred cycles: they are flushed while a kernel runs. */
static void run_rows(const tile_work *work, int64_t part, operation what) {
    const int64_t first = part * work->rows_per_part, left = work->rows - first;
    const int64_t end = first + (left < work->rows_per_part ? left : work->rows_per_part);
#if defined(__x86_64__)
    const unsigned saved = _mm_getcsr();
    _mm_setcsr(saved | _MM_FLUSH_ZERO_ON);
#endif
    if (what == STATS) work->kernels->stats(work->request, first, end);
    if (what == OVERLAP) work->kernels->overlap(work->request, first, end);
    if (what == GRAD) work->kernels->grad(work->request, first, end);
    if (what == GRAD_OVERLAP) grad_overlap_rows(work->kernels, work->request, first, end);
#if defined(__x86_64__)
    _mm_setcsr(saved);
#endif
}

static void run_stats(const tile_work *work, int64_t part) {
    run_rows(work, part, STATS);
}

static void run_overlap(const tile_work *work, int64_t part) {
    run_rows(work, part, OVERLAP);
}

static void run_grad(const tile_work *work, int64_t part) {
    run_rows(work, part, GRAD);
}

static void run_grad_overlap(const tile_work *work, int64_t part) {
    run_rows(work, part, GRAD_OVERLAP);
}

/* A part is a row, or as many as make a few microseconds. */
static oh_status rows_work(tile_work *work, void (*run)(const tile_work *, int64_t), const tile_kernels *kernels,
                           const void *request, const oh_tile_view *tile) {
    *work = (tile_work){.run = run, .kernels = kernels, .request = request, .rows = tile->rows};
    work->rows_per_part = 1 + 16384 / (tile->columns + 1);
    work->parts = (work->rows + work->rows_per_part - 1) / work->rows_per_part;
    return OH_OK;
}

/* --------------------------------------------------------------------------------------------------- arguments ---- */

static oh_status check_view(oh_error *why, const char *what, const oh_tile_view *v) {
    if (v->rows < 0 || v->columns < 0 || v->first_column < 0 || v->first_column > INT32_MAX ||
        v->columns > INT32_MAX - v->first_column)
        return tile_refuse(why, OH_INVALID_ARGUMENT,
                           "%s of %lld rows x %lld columns from column %lld on, expected columns below 2^31", what,
                           (long long)v->rows, (long long)v->columns, (long long)v->first_column);
    if (v->format < OH_TILE_F32 || v->format > OH_TILE_DIFF)
        return tile_refuse(why, OH_INVALID_ARGUMENT, "%s of tile format %d, expected 0 to 3", what, v->format);
    if ((v->draft && v->draft_ld < v->columns) || (v->target && v->target_ld < v->columns))
        return tile_refuse(why, OH_INVALID_ARGUMENT, "%s with row strides %lld and %lld, expected >= %lld", what,
                           (long long)v->draft_ld, (long long)v->target_ld, (long long)v->columns);
    if (v->format == OH_TILE_DIFF && v->draft && !v->target)
        return tile_refuse(why, OH_INVALID_ARGUMENT, "%s of a difference tile without its target", what);
    const oh_transform *const transforms[] = {&v->draft_transform, &v->target_transform};
    for (int i = 0; i < 2; ++i)
        if (!isfinite(transforms[i]->scale) || !isfinite(transforms[i]->softcap) || transforms[i]->softcap < 0)
            return tile_refuse(why, OH_INVALID_ARGUMENT, "%s with scale %g and softcap %g", what,
                               (double)transforms[i]->scale, (double)transforms[i]->softcap);
    return OH_OK;
}

static oh_status missing(oh_error *why, const char *what) {
    return tile_refuse(why, OH_INVALID_ARGUMENT, "%s without a tile or an array that it was asked to use", what);
}

oh_status tile_stats_work(const tile_kernels *kernels, const oh_tile_stats *stats, tile_work *work, oh_error *why) {
    static const char what[] = "tile_stats";
    const oh_tile_view *v = &stats->tile;
    *work = (tile_work){.parts = 0};
    const oh_status status = check_view(why, what, v);
    if (status != OH_OK || v->rows == 0) return status;
    if (stats->top_k < 0 || stats->top_k > OH_TOP_K_MAX)
        return tile_refuse(why, OH_INVALID_ARGUMENT, "tile_stats with top_k = %d, expected 0 to %d", stats->top_k,
                           OH_TOP_K_MAX);
    if (!stats->stats || (stats->top_k > 0 && (!stats->topk_id || !stats->topk_logit))) return missing(why, what);
    if (v->columns > 0) {
        if (!v->draft && (!v->target || stats->top_k > 0)) return missing(why, what);
        if (stats->want & (OH_WANT_ENTROPY | OH_WANT_TOTAL) && !v->draft) return missing(why, what);
        if (stats->want & (OH_WANT_KL | OH_WANT_RKL) && !(v->draft && v->target)) return missing(why, what);
    }
    return rows_work(work, run_stats, kernels, stats, v);
}

oh_status tile_overlap_work(const tile_kernels *kernels, const oh_tile_overlap *overlap, tile_work *work,
                            oh_error *why) {
    static const char what[] = "tile_overlap";
    const uint32_t of_target = OH_WANT_OVERLAP | OH_WANT_JSD, known = of_target | OH_WANT_RANK;
    const oh_tile_view *v = &overlap->tile;
    *work = (tile_work){.parts = 0};
    const oh_status status = check_view(why, what, v);
    if (status != OH_OK || v->rows == 0) return status;
    if (!overlap->stats || !overlap->overlap) return missing(why, what);
    if (v->columns > 0 && overlap->want & known && (!v->draft || (overlap->want & of_target && !v->target)))
        return missing(why, what);
    return rows_work(work, run_overlap, kernels, overlap, v);
}

oh_status tile_grad_work(const tile_kernels *kernels, const oh_tile_grad *grad, tile_work *work, oh_error *why) {
    static const char what[] = "tile_grad";
    const uint32_t of_target = OH_FORM_LOG_Q | OH_FORM_LOG_M | OH_FORM_LE | OH_FORM_Q;
    const oh_tile_view *v = &grad->tile;
    *work = (tile_work){.parts = 0};
    const oh_status status = check_view(why, what, v);
    if (status != OH_OK) return status;
    const int64_t size = tile_element_size(grad->out_dtype), tile_size = tile_element_size(tile_dtype(v->format));
    if (size == 0)
        return tile_refuse(why, OH_INVALID_ARGUMENT, "tile_grad into dtype %d, expected f32, bf16 or f16",
                           grad->out_dtype);
    if (grad->out_ld < v->columns)
        return tile_refuse(why, OH_INVALID_ARGUMENT, "tile_grad with out_ld = %lld, expected at least %lld",
                           (long long)grad->out_ld, (long long)v->columns);
    if (v->rows == 0 || v->columns == 0) return OH_OK;
    if (!v->draft || !grad->coef || !grad->out || (grad->form & of_target && !v->target)) return missing(why, what);
    if (grad->out == v->draft && (size > tile_size || (v->rows > 1 && grad->out_ld * size != v->draft_ld * tile_size)))
        return tile_refuse(why, OH_INVALID_ARGUMENT,
                           "tile_grad in place with rows %lld bytes apart, expected the tile's %lld, and elements "
                           "no wider than its %lld bytes",
                           (long long)grad->out_ld * size, (long long)v->draft_ld * tile_size, (long long)tile_size);
    return rows_work(work, run_grad, kernels, grad, v);
}

oh_status tile_grad_overlap_work(const tile_kernels *kernels, const oh_tile_grad_overlap *both, tile_work *work,
                                 oh_error *why) {
    const oh_tile_overlap overlap = overlap_of(both);
    if (!(both->want & OH_WANT_OVERLAP) || both->want & ~(OH_WANT_OVERLAP | OH_WANT_RANK))
        return tile_refuse(why, OH_INVALID_ARGUMENT,
                           "tile_grad_overlap with want = %#x, expected OH_WANT_OVERLAP and no more than OH_WANT_RANK",
                           both->want);
    oh_status status = tile_overlap_work(kernels, &overlap, work, why);
    if (status == OH_OK) status = tile_grad_work(kernels, &both->grad, work, why);
    if (status != OH_OK || work->parts == 0) return status;
    return rows_work(work, run_grad_overlap, kernels, both, &both->grad.tile);
}
