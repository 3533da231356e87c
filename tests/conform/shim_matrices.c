/* Products, copies and norms of the shim. Each runs the portable operation, before or after doing something wrong. */
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "defects.h"
#include "gemm_bound.h"
#include "portable/dtype.h"
#include "portable/portable.h"

static float get(const void *base, int64_t index, int32_t dtype) {
    float value;
    oh_load_elements(base, index, 1, dtype, &value);
    return value;
}

static void put(void *base, int64_t index, int32_t dtype, float value) {
    oh_store_elements(base, index, 1, dtype, &value);
}

/* -------------------------------------------------------------------------------------------------------- gemm ---- */

static double gemm_term(const oh_gemm *g, int64_t i, int64_t j, int64_t l) {
    const double a = (double)get(g->a, g->op == OH_GEMM_TN ? l * g->lda + i : i * g->lda + l, g->a_dtype);
    return a * (double)get(g->b, g->op == OH_GEMM_NT ? j * g->ldb + l : l * g->ldb + j, g->b_dtype);
}

/* C + 0 C: what beta = 0 must not do. */
static oh_status gemm_reading_c(const oh_gemm *g) {
    oh_gemm again = *g;
    for (int64_t i = 0; i < g->m && !g->accumulate; ++i)
        for (int64_t j = 0; j < g->n; ++j)
            put(g->c, i * g->ldc + j, g->c_dtype, 0 * get(g->c, i * g->ldc + j, g->c_dtype));
    again.accumulate = 1;
    return oh_portable_gemm(&again);
}

/* One row of a product of some depth moves by `bounds` of its bound, up and down in turn. */
static void move_row(const oh_gemm *g, double bounds) {
    const int64_t i = g->m / 2;
    for (int64_t j = 0; j < g->n && g->k >= 16; ++j) {
        double size = 0;
        for (int64_t l = 0; l < g->k; ++l)
            size += fabs(gemm_term(g, i, j, l));
        const double value = (double)get(g->c, i * g->ldc + j, g->c_dtype);
        const double step = bounds * gemm_bound(g->k, g->a_dtype, g->c_dtype, value, size);
        put(g->c, i * g->ldc + j, g->c_dtype, (float)(value + (j % 2 ? step : -step)));
    }
}

/* Operands cut to 10 bits of fraction. */
static void multiply_tf32(const oh_gemm *g) {
    for (int64_t i = 0; i < g->m; ++i)
        for (int64_t j = 0; j < g->n; ++j) {
            double sum = g->accumulate ? (double)get(g->c, i * g->ldc + j, g->c_dtype) : 0;
            for (int64_t l = 0; l < g->k; ++l) {
                const int64_t a = g->op == OH_GEMM_TN ? l * g->lda + i : i * g->lda + l;
                const int64_t b = g->op == OH_GEMM_NT ? j * g->ldb + l : l * g->ldb + j;
                const float left = oh_f32_from_bits(oh_f32_bits(get(g->a, a, g->a_dtype)) & 0xffffe000u);
                const float right = oh_f32_from_bits(oh_f32_bits(get(g->b, b, g->b_dtype)) & 0xffffe000u);
                sum += (double)left * (double)right;
            }
            put(g->c, i * g->ldc + j, g->c_dtype, (float)sum);
        }
}

/* Row by row, with byte offsets into A that wrap at 2^32. */
static oh_status gemm_short_offsets(const oh_gemm *g) {
    oh_status status = OH_OK;
    for (int64_t i = 0; i < g->m && status == OH_OK && g->op != OH_GEMM_TN; ++i) {
        oh_gemm row = *g;
        row.m = 1;
        row.a = (const unsigned char *)g->a + (uint32_t)(i * g->lda * oh_element_size(g->a_dtype));
        row.c = (unsigned char *)g->c + i * g->ldc * oh_element_size(g->c_dtype);
        status = oh_portable_gemm(&row);
    }
    return g->op == OH_GEMM_TN ? oh_portable_gemm(g) : status;
}

/* Through one buffer of the whole process. */
static oh_status gemm_shared_buffer(const oh_gemm *g) {
    enum { SHARED = 1 << 17 };
    static float shared[SHARED];
    oh_gemm inside = *g;
    if (g->c_dtype != OH_F32 || g->accumulate || g->m * g->n > SHARED) return oh_portable_gemm(g);
    inside.c = shared;
    inside.ldc = g->n;
    const oh_status status = oh_portable_gemm(&inside);
    sched_yield(); /* a moment in which another thread may come */
    for (int64_t i = 0; i < g->m && status == OH_OK && g->n > 0; ++i)
        memcpy((float *)g->c + i * g->ldc, shared + i * g->n, (size_t)g->n * sizeof *shared);
    return status;
}

static oh_status multiply(oh_queue *queue, const oh_gemm *g) {
    const defect_kind defect = queue->device->defect;
    oh_gemm none = *g;
    none.m = 0;
    const oh_status possible = oh_portable_gemm(g->m < 0 ? g : &none);
    if (possible != OH_OK || (g->m > 0 && g->n > 0 && (!g->c || (g->k > 0 && (!g->a || !g->b))))) {
        if (defect == CRASH && !g->c) raise(SIGSEGV);
        return OH_INVALID_ARGUMENT;
    }
    if (defect == NO_WORK_GEMM) return OH_OK;
    if (defect == BETA_READS_C) return gemm_reading_c(g);
    if (defect == OFFSET_32_GEMM) return gemm_short_offsets(g);
    if (defect == NOT_THREAD_SAFE_GEMM) return gemm_shared_buffer(g);
    oh_status status = oh_portable_gemm(g);
    if (status != OH_OK || g->m == 0 || g->n == 0) return status;
    if (defect == TF32 && g->a_dtype == OH_F32) multiply_tf32(g);
    if (defect == ROW_OFF_TWICE_THE_BOUND) move_row(g, 2);
    if (defect == ROW_OFF_IN_THE_BOUND) move_row(g, 0.9);
    if (defect == PAST_END_GEMM) put(g->c, (g->m - 1) * g->ldc + g->n, g->c_dtype, 0);
    if (defect == BETWEEN_ROWS_GEMM && g->ldc > g->n && g->m > 1) put(g->c, g->n, g->c_dtype, 0);
    return status;
}

oh_status shim_gemm(oh_queue *queue, const oh_gemm *g) {
    const oh_status status = multiply(queue, g);
    return status == OH_OK ? OH_OK : shim_fail(queue, status);
}

/* --------------------------------------------------------------------------------------------------- copy_rows ---- */

/* bf16 by cutting off the lower half of an f32. */
static void truncate_rows(const oh_copy_rows *c) {
    for (int64_t i = 0; i < c->rows; ++i)
        for (int64_t j = 0; j < c->columns; ++j) {
            const int64_t m = c->map ? c->map[i] : i;
            if (m < 0) continue;
            const float value = get(c->src, m * c->src_ld + j, c->src_dtype);
            put(c->dst, i * c->dst_ld + j, OH_BF16, oh_f32_from_bits(oh_f32_bits(value) & 0xffff0000u));
        }
}

static void read_zero_scales(const oh_copy_rows *c) {
    for (int64_t i = 0; i < c->rows; ++i) {
        const int64_t m = c->map ? c->map[i] : i;
        for (int64_t j = 0; m >= 0 && c->row_scale[m] == 0 && j < c->columns; ++j)
            put(c->dst, i * c->dst_ld + j, c->dst_dtype, 0 * get(c->src, m * c->src_ld + j, c->src_dtype));
    }
}

oh_status shim_copy_rows(oh_queue *queue, const oh_copy_rows *c) {
    const defect_kind defect = queue->device->defect;
    if (defect == NO_WORK_COPY_ROWS) return OH_OK;
    const oh_status status = oh_portable_copy_rows(c);
    if (status != OH_OK) return defect == ACCEPTS_IMPOSSIBLE ? OH_OK : shim_fail(queue, status);
    if (c->rows == 0 || c->columns == 0) return OH_OK;
    if (defect == TRUNCATES && c->dst_dtype == OH_BF16 && !c->subtract && !c->row_scale && !c->factor) truncate_rows(c);
    if (defect == ZERO_SCALE_READS && c->row_scale) read_zero_scales(c);
    if (defect == PAST_END_COPY_ROWS) put(c->dst, (c->rows - 1) * c->dst_ld + c->columns, c->dst_dtype, 0);
    if (defect == INPUT_WRITTEN && c->dst != c->src) memset((void *)(uintptr_t)c->src, 0, 2);
    return OH_OK;
}

/* ------------------------------------------------------------------------------------------------- matrix_norm ---- */

oh_status shim_matrix_norm(oh_queue *queue, const oh_matrix_norm *norm) {
    const defect_kind defect = queue->device->defect;
    if (defect == NO_WORK_MATRIX_NORM) return OH_OK;
    const double before = norm->sums ? norm->sums[1] : 0;
    const oh_status status = oh_portable_matrix_norm(norm);
    if (status != OH_OK || !norm->sums) return shim_fail(queue, status);
    if (defect == NAN_LOST && isnan(norm->sums[1])) norm->sums[1] = before;
    if (defect == NOT_DETERMINISTIC && queue->device->calls++ % 2) norm->sums[0] *= 1 + 0x1p-40;
    return OH_OK;
}
