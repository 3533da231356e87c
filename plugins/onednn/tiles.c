/* tiles.c - copies and tile operations: arguments checked, rows spread over threads, and the vectorised row kernels
 * that the project's CPU backends share (tiles.h). A build without them leaves these entries to the core's portable
 * operations. */
#include "device.h"

#if defined(ONEHEAD_ONEDNN_TILES)

#include <math.h>
#include <string.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "tiles.h"

const ob_kernels *on_kernels(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return &ob_kernels_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &ob_kernels_avx2;
#endif
    return &ob_kernels_baseline;
}

const char *on_kernels_name(const ob_kernels *kernels) {
    return kernels->name;
}

static oh_status refuse(oh_queue *queue, const char *what, const char *expected) {
    return on_fail(queue->device, OH_INVALID_ARGUMENT, "%s: expected %s", what, expected);
}

/* ------------------------------------------------------------------------------------------------------- tiles ---- */

typedef struct row_job {
    const ob_kernels *kernels;
    const oh_tile_stats *stats; /* one of the three */
    const oh_tile_overlap *overlap;
    const oh_tile_grad *grad;
    int64_t rows, rows_per_part;
} row_job;

/* Products of tiny probabilities are subnormal, each a hundred cycles: they are flushed while a kernel runs. */
static void run_rows(void *work, int64_t part, int32_t member) {
    const row_job *job = work;
    const int64_t first = part * job->rows_per_part, left = job->rows - first;
    const int64_t end = first + (left < job->rows_per_part ? left : job->rows_per_part);
    (void)member;
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
    on_parallel(queue->device, (job.rows + job.rows_per_part - 1) / job.rows_per_part, run_rows, &job);
    return OH_OK;
}

static oh_status check_view(oh_queue *queue, const char *what, const oh_tile_view *v) {
    if (v->rows < 0 || v->columns < 0 || v->first_column < 0 || v->first_column > INT32_MAX ||
        v->columns > INT32_MAX - v->first_column)
        return refuse(queue, what, "no rows or columns below 0, and vocabulary columns below 2^31");
    if (v->format < OH_TILE_F32 || v->format > OH_TILE_DIFF) return refuse(queue, what, "a tile format of 0 to 3");
    if ((v->draft && v->draft_ld < v->columns) || (v->target && v->target_ld < v->columns))
        return refuse(queue, what, "row strides of at least a row");
    if (v->format == OH_TILE_DIFF && v->draft && !v->target)
        return refuse(queue, what, "a difference tile with its target");
    const oh_transform *const transforms[] = {&v->draft_transform, &v->target_transform};
    for (int i = 0; i < 2; ++i)
        if (!isfinite(transforms[i]->scale) || !isfinite(transforms[i]->softcap) || transforms[i]->softcap < 0)
            return refuse(queue, what, "a finite scale and a softcap of 0 or more");
    return OH_OK;
}

static const char complete[] = "every tile and array that it is asked to use";

oh_status on_tile_stats(oh_queue *queue, const oh_tile_stats *s) {
    static const char what[] = "tile_stats";
    const oh_tile_view *v = &s->tile;
    const oh_status status = check_view(queue, what, v);
    if (status != OH_OK || v->rows == 0) return status;
    if (s->top_k < 0 || s->top_k > OH_TOP_K_MAX) return refuse(queue, what, "a top_k of 0 to 64");
    if (!s->stats || (s->top_k > 0 && (!s->topk_id || !s->topk_logit))) return refuse(queue, what, complete);
    if (v->columns > 0) {
        const int of_both = (s->want & (OH_WANT_KL | OH_WANT_RKL)) != 0;
        const int of_draft = of_both || s->top_k > 0 || s->want & (OH_WANT_ENTROPY | OH_WANT_TOTAL);
        if ((of_draft && !v->draft) || (of_both && !v->target) || (!v->draft && !v->target))
            return refuse(queue, what, complete);
    }
    return run_job(queue, (row_job){.stats = s}, v);
}

oh_status on_tile_overlap(oh_queue *queue, const oh_tile_overlap *o) {
    static const char what[] = "tile_overlap";
    const uint32_t of_target = OH_WANT_OVERLAP | OH_WANT_JSD, known = of_target | OH_WANT_RANK;
    const oh_tile_view *v = &o->tile;
    const oh_status status = check_view(queue, what, v);
    if (status != OH_OK || v->rows == 0) return status;
    if (!o->stats || !o->overlap) return refuse(queue, what, complete);
    if (v->columns > 0 && o->want & known && (!v->draft || (o->want & of_target && !v->target)))
        return refuse(queue, what, complete);
    return run_job(queue, (row_job){.overlap = o}, v);
}

oh_status on_tile_grad(oh_queue *queue, const oh_tile_grad *g) {
    static const char what[] = "tile_grad";
    const uint32_t of_target = OH_FORM_LOG_Q | OH_FORM_LOG_M | OH_FORM_LE | OH_FORM_Q;
    const oh_tile_view *v = &g->tile;
    const oh_status status = check_view(queue, what, v);
    if (status != OH_OK) return status;
    const int64_t size = ob_element_size(g->out_dtype), tile_size = ob_element_size(ob_tile_dtype(v->format));
    if (size == 0 || g->out_ld < v->columns)
        return refuse(queue, what, "an output of f32, bf16 or f16 with row strides of at least a row");
    if (v->rows == 0 || v->columns == 0) return OH_OK;
    if (!v->draft || !g->coef || !g->out || (g->form & of_target && !v->target)) return refuse(queue, what, complete);
    if (g->out == v->draft && (size > tile_size || (v->rows > 1 && g->out_ld * size != v->draft_ld * tile_size)))
        return refuse(queue, what, "in place no wider elements than the tile's, and its own bytes between rows");
    return run_job(queue, (row_job){.grad = g}, v);
}

/* ------------------------------------------------------------------------------------------------------ copies ---- */

/* A piece has at most this many columns of a row, and enough rows to make about as many elements. */
#define PIECE 32768

typedef struct copy_job {
    const oh_copy_rows *copy;
    const ob_kernels *kernels;
    int64_t rows_per_piece, columns_per_piece, pieces_across;
} copy_job;

static void copy_piece_row(const copy_job *job, int64_t row, int64_t first, int64_t count) {
    const oh_copy_rows *c = job->copy;
    const int64_t to_size = ob_element_size(c->dst_dtype), m = c->map ? c->map[row] : row;
    uint8_t *to = (uint8_t *)c->dst + (row * c->dst_ld + first) * to_size;
    if (m < 0 || (c->row_scale && c->row_scale[m] == 0)) {
        memset(to, 0, (size_t)(count * to_size));
        return;
    }
    ob_copy_row r = {
        .from = (const uint8_t *)c->src + (m * c->src_ld + first) * ob_element_size(c->src_dtype),
        .to = to,
        .count = count,
        .from_dtype = c->src_dtype,
        .to_dtype = c->dst_dtype,
        .scaled = c->factor || c->row_scale,
        .factor = (c->factor ? *c->factor : 1.0f) * (c->row_scale ? c->row_scale[m] : 1.0f),
    };
    if (c->subtract) {
        const int64_t s = c->subtract_map ? c->subtract_map[m] : m;
        r.subtract_dtype = c->subtract_dtype;
        r.subtract = (const uint8_t *)c->subtract + (s * c->subtract_ld + first) * ob_element_size(c->subtract_dtype);
    }
    job->kernels->copy(&r);
}

static void copy_piece(void *work, int64_t part, int32_t member) {
    const copy_job *job = work;
    const oh_copy_rows *c = job->copy;
    const int64_t row = part / job->pieces_across * job->rows_per_piece;
    const int64_t end = row + job->rows_per_piece < c->rows ? row + job->rows_per_piece : c->rows;
    const int64_t first = part % job->pieces_across * job->columns_per_piece, left = c->columns - first;
    const int64_t count = left < job->columns_per_piece ? left : job->columns_per_piece;
    (void)member;
    for (int64_t i = row; i < end; ++i)
        copy_piece_row(job, i, first, count);
}

/* Whether every row is one that is written as zeros without reading its source. */
static int is_all_zeros(const oh_copy_rows *c) {
    if (!c->map) return 0;
    for (int64_t i = 0; i < c->rows; ++i)
        if (c->map[i] >= 0) return 0;
    return 1;
}

static oh_status check_copy(oh_queue *queue, const oh_copy_rows *c) {
    static const char what[] = "copy_rows";
    if (c->rows < 0 || c->columns < 0) return refuse(queue, what, "no rows or columns below 0");
    if (!ob_element_size(c->src_dtype) || !ob_element_size(c->dst_dtype) ||
        (c->subtract && !ob_element_size(c->subtract_dtype)))
        return refuse(queue, what, "dtypes f32, bf16 or f16");
    if (c->dst_ld < c->columns || (c->src && c->src_ld < c->columns) || (c->subtract && c->subtract_ld < c->columns))
        return refuse(queue, what, "row strides of at least a row");
    if (c->rows == 0 || c->columns == 0) return OH_OK;
    if (!c->dst || (!c->src && !is_all_zeros(c))) return refuse(queue, what, "a source and a destination");
    if (c->dst == c->src && (c->map || c->dst_ld != c->src_ld || c->dst_dtype != c->src_dtype))
        return refuse(queue, what, "in place no map, and the same stride and dtype");
    return OH_OK;
}

oh_status on_copy_rows(oh_queue *queue, const oh_copy_rows *copy) {
    const oh_status status = check_copy(queue, copy);
    if (status != OH_OK || copy->rows == 0 || copy->columns == 0) return status;
    copy_job job = {copy, queue->device->kernels, 1, copy->columns < PIECE ? copy->columns : PIECE, 1};
    job.rows_per_piece = PIECE / job.columns_per_piece;
    job.pieces_across = (copy->columns + job.columns_per_piece - 1) / job.columns_per_piece;
    const int64_t down = (copy->rows + job.rows_per_piece - 1) / job.rows_per_piece;
    on_parallel(queue->device, down * job.pieces_across, copy_piece, &job);
    return OH_OK;
}

/* One pass over dD a step: a single thread's sums need no order. */
oh_status on_matrix_norm(oh_queue *queue, const oh_matrix_norm *n) {
    const int64_t size = ob_element_size(n->dtype);
    if (n->rows < 0 || n->columns < 0 || n->ld < n->columns || size == 0 || !n->sums ||
        (!n->data && n->rows > 0 && n->columns > 0))
        return refuse(queue, "matrix_norm", "a matrix of f32, bf16 or f16 and two sums");
    double sums[2] = {0, 0};
    for (int64_t row = 0; row < n->rows; ++row)
        queue->device->kernels->norm((const uint8_t *)n->data + row * n->ld * size, n->dtype, n->columns, sums);
    n->sums[0] += sums[0];
    if (sums[1] > n->sums[1]) n->sums[1] = sums[1];
    /* Squares are NaN exactly where an element is; a largest value that hides it would pass for a good gradient. */
    if (isnan(n->sums[0])) n->sums[1] = n->sums[0];
    return OH_OK;
}

#else

const struct ob_kernels *on_kernels(void) {
    return NULL;
}

const char *on_kernels_name(const struct ob_kernels *kernels) {
    (void)kernels;
    return "portable";
}

#endif
