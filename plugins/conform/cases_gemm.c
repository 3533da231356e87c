/* Products: every operation and every kind that the plugin claims, exact and rounded, and with NaN where it may not
 * spread. */
#include <stdio.h>
#include <string.h>

#include "gemm_bound.h"
#include "verdict.h"

typedef struct kind {
    const char *name;
    uint32_t bit;
    int32_t a, b, result; /* dtypes */
} kind;

static const kind kinds[] = {
    {"f32", OH_GEMM_F32_F32, OH_F32, OH_F32, OH_F32},     {"bf16", OH_GEMM_BF16_F32, OH_BF16, OH_BF16, OH_F32},
    {"f16", OH_GEMM_F16_F32, OH_F16, OH_F16, OH_F32},     {"bf16-bf16", OH_GEMM_BF16_BF16, OH_BF16, OH_BF16, OH_BF16},
    {"f16-f16", OH_GEMM_F16_F16, OH_F16, OH_F16, OH_F16}, {"f32-bf16", OH_GEMM_F32_BF16_F32, OH_F32, OH_BF16, OH_F32}};

enum { KINDS = sizeof kinds / sizeof *kinds };

static const char *const op_names[] = {"nt", "nn", "tn"};

/* pad: how much longer than its row a stride is; shift: elements off alignment. */
typedef struct shape {
    int64_t m, n, k, pad, shift;
} shape;

static const shape shapes[] = {{1, 1, 1, 0, 0},      {2, 3, 1, 0, 0},       {1, 5, 7, 3, 1},      {3, 1, 5, 0, 1},
                               {5, 8, 19, 1, 0},     {16, 16, 16, 0, 0},    {17, 33, 65, 0, 0},   {17, 33, 65, 7, 1},
                               {64, 64, 64, 0, 0},   {31, 129, 257, 5, 3},  {128, 96, 130, 0, 1}, {3, 1031, 17, 0, 0},
                               {70, 7, 1024, 24, 0}, {1, 300, 77, 1000, 1}, {4, 5, 0, 2, 0},      {0, 4, 3, 0, 0},
                               {4, 0, 3, 0, 0}};

/* Small integers, whose sums are exact in any order; normal numbers, whose sums are rounded. */
typedef enum fill { FILL_EXACT, FILL_REAL } fill;

static const char *const fill_names[] = {"exact", "real"};

typedef struct product {
    oh_gemm g;
    double *a, *b, *c; /* [rows, columns] as stored */
    int64_t a_rows, a_columns, b_rows, b_columns;
    kit_buffer *a_buffer, *b_buffer, *c_buffer;
} product;

static double *draw_matrix(kit *k, const char *stream, int64_t count, fill how, int32_t dtype) {
    const uint64_t key = kit_stream(k, stream);
    double *values = kit_doubles(k, count);
    for (int64_t i = 0; values && i < count; ++i)
        values[i] = how == FILL_EXACT ? (double)draw_integer(key, i, -4, 4) : float_round(draw_normal(key, i), dtype);
    return values;
}

static void open_matrices(kit *k, product *p, const kind *of, const shape *s, fill how) {
    oh_gemm *g = &p->g;
    p->a_rows = g->op == OH_GEMM_TN ? s->k : s->m, p->a_columns = g->op == OH_GEMM_TN ? s->m : s->k;
    p->b_rows = g->op == OH_GEMM_NT ? s->n : s->k, p->b_columns = g->op == OH_GEMM_NT ? s->k : s->n;
    p->a = draw_matrix(k, "a", p->a_rows * p->a_columns, how, of->a);
    p->b = draw_matrix(k, "b", p->b_rows * p->b_columns, how, of->b);
    p->c = draw_matrix(k, "c", s->m * s->n, how, of->result);
    g->m = s->m, g->n = s->n, g->k = s->k;
    g->a_dtype = of->a, g->b_dtype = of->b, g->c_dtype = of->result;
    g->lda = p->a_columns + s->pad, g->ldb = p->b_columns + s->pad, g->ldc = s->n + s->pad;
}

/* After a and b have their final values: the buffers, and the scratch that the plugin asks for. */
static void open_buffers(kit *k, product *p, const shape *s) {
    oh_gemm *g = &p->g;
    p->a_buffer = kit_matrix(k, "A", KIT_IN, p->a, p->a_rows, p->a_columns, g->lda, s->shift, g->a_dtype, 100);
    p->b_buffer = kit_matrix(k, "B", KIT_IN, p->b, p->b_rows, p->b_columns, g->ldb, s->shift, g->b_dtype, 100);
    p->c_buffer = kit_matrix(k, "C", g->accumulate ? KIT_IN_OUT : KIT_OUT, g->accumulate ? p->c : NULL, s->m, s->n,
                             g->ldc, s->shift, g->c_dtype, 100);
    g->a = kit_at(p->a_buffer), g->b = kit_at(p->b_buffer), g->c = kit_at(p->c_buffer);
    if (!kit_going(k) || !k->table->gemm_scratch) return;
    const int64_t scratch = k->table->gemm_scratch(k->seat.device, g);
    if (scratch < 0) {
        kit_fail(k, "gemm_scratch = %lld, expected bytes", (long long)scratch);
    } else if (scratch > 0) {
        g->scratch = kit_at(kit_bytes(k, "scratch", KIT_SCRATCH, NULL, scratch));
        g->scratch_bytes = scratch;
    }
}

static void judge(kit *k, const product *p, const kind *of, fill how) {
    const oh_gemm *g = &p->g;
    double *want = kit_doubles(k, g->m * g->n), *bound = kit_doubles(k, g->m * g->n);
    double *spread = kit_doubles(k, g->m * g->n);
    if (!kit_going(k)) return;
    for (int64_t i = 0; i < g->m; ++i)
        for (int64_t j = 0; j < g->n; ++j) {
            const int64_t at = i * g->n + j;
            double sum = g->accumulate ? p->c[at] : 0, size = fabs(sum), squares = sum * sum;
            for (int64_t l = 0; l < g->k; ++l) {
                const double a = g->op == OH_GEMM_TN ? p->a[l * g->m + i] : p->a[i * g->k + l];
                const double b = g->op == OH_GEMM_NT ? p->b[j * g->k + l] : p->b[l * g->n + j];
                sum += a * b;
                size += fabs(a * b);
                squares += a * b * a * b;
            }
            want[at] = how == FILL_EXACT ? float_round(sum, of->result) : sum;
            bound[at] = gemm_bound(g->k, of->b, of->result, sum, size);
            spread[at] = gemm_spread(g->k, of->b, of->result, sum, squares);
        }
    verdict_judge(k, &(verdict){.what = "C",
                                .rows = g->m,
                                .columns = g->n,
                                .got = kit_values(k, p->c_buffer, g->m, g->n, g->ldc, of->result),
                                .want = want,
                                .bound = how == FILL_EXACT ? NULL : bound,
                                .spread = spread,
                                .row_part = 4,
                                .all_part = 3,
                                .may_be_zero = g->k == 0});
}

static void check_product(kit *k, const kind *of, int32_t op, const shape *s, fill how, int accumulate) {
    if (!kit_begin(k, CONFORM_GEMM, "gemm/%s/%s/%s%s/%lldx%lldx%lld%s%s", op_names[op], of->name, fill_names[how],
                   accumulate ? "-add" : "", (long long)s->m, (long long)s->n, (long long)s->k,
                   s->pad ? "-strided" : "", s->shift ? "-shifted" : ""))
        return;
    product p = {.g = {.op = op, .accumulate = accumulate}};
    open_matrices(k, &p, of, s, how);
    open_buffers(k, &p, s);
    if (kit_run(k, kit_run_gemm, &p.g)) judge(k, &p, of, how);
    kit_end(k);
}

/* A row of A that is NaN, and an infinity in another, reach their own rows of C only. */
static void check_not_finite(kit *k, const kind *of) {
    if (!kit_begin(k, CONFORM_GEMM, "gemm/nt/%s/nan-row", of->name)) return;
    static const shape s = {9, 70, 33, 2, 0};
    product p = {.g = {.op = OH_GEMM_NT}};
    open_matrices(k, &p, of, &s, FILL_EXACT);
    for (int64_t l = 0; l < s.k && kit_going(k); ++l)
        p.a[4 * s.k + l] = (double)NAN;
    for (int64_t j = 0; j < s.n && kit_going(k); ++j)
        p.b[j * s.k + 5] = (double)(1 + j % 3);
    if (kit_going(k)) p.a[7 * s.k + 5] = (double)INFINITY;
    open_buffers(k, &p, &s);
    if (kit_run(k, kit_run_gemm, &p.g)) judge(k, &p, of, FILL_EXACT);
    kit_end(k);
}

static void check_kind(kit *k, const kind *of) {
    for (int32_t op = OH_GEMM_NT; op <= OH_GEMM_TN; ++op)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; ++s)
            for (int accumulate = 0; accumulate < 2; ++accumulate) {
                check_product(k, of, op, &shapes[s], FILL_EXACT, accumulate);
                check_product(k, of, op, &shapes[s], FILL_REAL, accumulate);
            }
    check_not_finite(k, of);
}

/* ------------------------------------------------------------------------------------------------- refusals ---- */

static void check_refusals(kit *k) {
    if (!kit_begin(k, CONFORM_GEMM, "gemm/refused")) return;
    static const shape s = {6, 7, 5, 3, 0};
    product p = {.g = {.op = OH_GEMM_NT}};
    open_matrices(k, &p, &kinds[0], &s, FILL_EXACT);
    open_buffers(k, &p, &s);
    const oh_gemm good = p.g;
    oh_gemm bad;
#define REFUSED(what, edit)                                                                                            \
    do {                                                                                                               \
        bad = good;                                                                                                    \
        edit;                                                                                                          \
        kit_refused(k, kit_run_gemm, &bad, "a product with " what, OH_INVALID_ARGUMENT);                               \
    } while (0)
    REFUSED("op = 3", bad.op = 3);
    REFUSED("op = -1", bad.op = -1);
    REFUSED("m = -1", bad.m = -1);
    REFUSED("n = -1", bad.n = -1);
    REFUSED("k = -1", bad.k = -1);
    REFUSED("lda = k - 1", bad.lda = s.k - 1);
    REFUSED("ldb = k - 1", bad.ldb = s.k - 1);
    REFUSED("ldc = n - 1", bad.ldc = s.n - 1);
    REFUSED("A = NULL", bad.a = NULL);
    REFUSED("B = NULL", bad.b = NULL);
    REFUSED("C = NULL", bad.c = NULL);
#undef REFUSED
    kit_end(k);
}

/* A combination of dtypes that gemm_kinds doesn't claim. */
static void check_unclaimed(kit *k) {
    if (!kit_begin(k, CONFORM_GEMM, "gemm/refused-dtypes")) return;
    static const shape s = {4, 4, 4, 0, 0};
    product p = {.g = {.op = OH_GEMM_NT}};
    open_matrices(k, &p, &kinds[0], &s, FILL_EXACT);
    open_buffers(k, &p, &s);
    for (int i = 0; i < KINDS; ++i) {
        if (k->table->gemm_kinds & kinds[i].bit) continue;
        oh_gemm g = p.g;
        g.a_dtype = kinds[i].a, g.b_dtype = kinds[i].b, g.c_dtype = kinds[i].result;
        kit_refused(k, kit_run_gemm, &g, "a product of dtypes that gemm_kinds doesn't claim", OH_UNSUPPORTED);
    }
    oh_gemm g = p.g;
    g.b_dtype = OH_F16;
    kit_refused(k, kit_run_gemm, &g, "a product of f32 and f16", OH_UNSUPPORTED);
    g = p.g;
    g.c_dtype = OH_I32;
    kit_refused(k, kit_run_gemm, &g, "a product into i32", OH_UNSUPPORTED);
    kit_end(k);
}

/* --------------------------------------------------------------------------------------------------- sample ---- */

static void judge_sample(kit *k, const void *state) {
    judge(k, state, &kinds[0], FILL_REAL);
}

void sample_gemm(kit *k, const kit_sample_size *size, kit_sample *sample) {
    const shape s = {size->rows, size->columns, size->depth, 0, 0};
    product *p = kit_host(k, 1, sizeof *p);
    if (!p) return;
    open_matrices(k, p, &kinds[0], &s, FILL_REAL);
    if (kit_going(k)) open_buffers(k, p, &s);
    const double m = (double)s.m, n = (double)s.n, depth = (double)s.k;
    *sample =
        (kit_sample){kit_run_gemm, &p->g, judge_sample, p, 4 * (m * n + m * depth + n * depth), 2 * m * n * depth};
}

void cases_gemm(kit *k) {
    for (int i = 0; i < KINDS; ++i)
        if (k->table->gemm_kinds & kinds[i].bit) check_kind(k, &kinds[i]);
    check_refusals(k);
    check_unclaimed(k);
}
