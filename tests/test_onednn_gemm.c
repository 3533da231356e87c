/* Products of the oneDNN plugin against f64 sums, in every kind that it claims on this CPU (tests/CMakeLists.txt runs
 * this with instruction sets taken away too), and its promises: the same bits every time, from any thread, after fork.
 *
 * Bound of one element: a sum of k products in f32, in whatever order, is within gamma = k u / (1 - k u) of the exact one
 * relative to sum |a| |b| (u = 2^-24), adding C is one more. Products of bf16 are exact in f32. f32 x bf16 may be three
 * such sums, of parts of A of which the second and third have at most 2^-7 of it: 2 more roundings to add them, and 1 %
 * on gamma. Sums that were ever rounded to bf16 would be off by 2^-9: the bound of k = 300 is 2^-15.8. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <onehead/backend.h>

#include "draws.h"

#define PLUGIN ONEHEAD_BUILD_BACKEND_DIR "/onehead-onednn.so"

typedef struct onednn {
    const oh_backend *table;
    oh_device *device;
    oh_queue *queue;
} onednn;

static onednn onednn_open(int32_t threads) {
    void *module = dlopen(PLUGIN, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!module) fail_msg("%s", dlerror());
    oh_backend_entry entry;
    void *symbol = dlsym(module, OH_BACKEND_SYMBOL);
    memcpy(&entry, &symbol, sizeof entry);
    onednn b = {.table = entry()};
    const oh_device_options options = {.size = sizeof options, .threads = threads};
    oh_error error = {OH_OK, ""};
    if (b.table->device_open(&options, NULL, &b.device, &error) != OH_OK) fail_msg("%s", error.message);
    assert_int_equal(b.table->queue_open(b.device, NULL, &b.queue), OH_OK);
    return b;
}

static void onednn_close(onednn *b) {
    b->table->queue_close(b->queue);
    b->table->device_close(b->device);
}

/* ---------------------------------------------------------------------------------------------------- matrices ---- */

typedef struct kind {
    uint32_t bit;
    int32_t a, b;
} kind;

static const kind kinds[] = {
    {OH_GEMM_F32_F32, OH_F32, OH_F32}, {OH_GEMM_BF16_F32, OH_BF16, OH_BF16}, {OH_GEMM_F32_BF16_F32, OH_F32, OH_BF16}};
enum { KINDS = 3 };

typedef struct matrix {
    void *data;
    int64_t rows, columns, ld;
    int32_t dtype;
} matrix;

static int64_t element_size(int32_t dtype) {
    return dtype == OH_F32 ? 4 : 2;
}

static double get(const matrix *m, int64_t row, int64_t column) {
    const int64_t at = row * m->ld + column;
    float value;
    uint32_t bits;
    if (m->dtype == OH_F32) return (double)((const float *)m->data)[at];
    bits = (uint32_t)((const uint16_t *)m->data)[at] << 16;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* To bf16 by cutting off: any bf16 will do. */
static void set(const matrix *m, int64_t at, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (m->dtype == OH_F32)
        ((float *)m->data)[at] = value;
    else
        ((uint16_t *)m->data)[at] = (uint16_t)(bits >> 16);
}

/* Rows `gap` elements further apart than they are long; what lies between is NaN, all is without d. */
static matrix matrix_open(int64_t rows, int64_t columns, int64_t gap, int32_t dtype, draws *d) {
    matrix m = {NULL, rows, columns, columns + gap, dtype};
    m.data = malloc((size_t)(rows * m.ld * element_size(dtype) + 1));
    assert_non_null(m.data);
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < m.ld; ++j)
            set(&m, i * m.ld + j, d && j < columns ? (float)draw_normal(d) : NAN);
    return m;
}

static oh_gemm product(int32_t op, const matrix *a, const matrix *b, const matrix *c, int accumulate) {
    return (oh_gemm){.op = op,
                     .accumulate = accumulate,
                     .m = c->rows,
                     .n = c->columns,
                     .k = op == OH_GEMM_TN ? a->rows : a->columns,
                     .a = a->data,
                     .b = b->data,
                     .c = c->data,
                     .lda = a->ld,
                     .ldb = b->ld,
                     .ldc = c->ld,
                     .a_dtype = a->dtype,
                     .b_dtype = b->dtype,
                     .c_dtype = c->dtype};
}

/* With the scratch that the plugin asks for, full of NaN. */
static void multiply(const onednn *b, oh_gemm *g) {
    g->scratch_bytes = b->table->gemm_scratch(b->device, g);
    g->scratch = malloc((size_t)g->scratch_bytes + 1);
    assert_non_null(g->scratch);
    memset(g->scratch, 0xff, (size_t)g->scratch_bytes);
    const oh_status status = b->table->gemm(b->queue, g);
    oh_error error = {OH_OK, ""};
    b->table->last_error(b->device, &error);
    if (status != OH_OK) fail_msg("%s", error.message);
    free(g->scratch);
    g->scratch = NULL;
    g->scratch_bytes = 0;
}

/* ---------------------------------------------------------------------------------------------------- accuracy ---- */

/* `before`: C as it was, for accumulate, or NULL. Every `skip`th element is checked, in rows and columns. */
static void check_product(const oh_gemm *g, const matrix *a, const matrix *b, const matrix *c, const float *before,
                          int64_t skip) {
    const double ku = ((double)g->k + 3) * 0x1p-24, gamma = 1.01 * ku / (1 - ku);
    for (int64_t i = 0; i < g->m; i += skip)
        for (int64_t j = i % skip; j < g->n; j += skip) {
            double sum = before ? (double)before[i * g->ldc + j] : 0, size = fabs(sum);
            for (int64_t k = 0; k < g->k; ++k) {
                const double x = g->op == OH_GEMM_TN ? get(a, k, i) : get(a, i, k);
                const double y = g->op == OH_GEMM_NT ? get(b, j, k) : get(b, k, j);
                sum += x * y;
                size += fabs(x * y);
            }
            const double got = get(c, i, j);
            if (fabs(got - sum) <= gamma * size) continue;
            fail_msg("op %d, dtypes %d x %d, %lld x %lld x %lld, [%lld, %lld]: %.9g, expected %.9g within %.3g", g->op,
                     g->a_dtype, g->b_dtype, (long long)g->m, (long long)g->n, (long long)g->k, (long long)i,
                     (long long)j, got, sum, gamma * size);
        }
}

static void check_shape(const onednn *b, const kind *of, int32_t op, const int64_t *shape, int64_t gap, draws *d) {
    const int64_t m = shape[0], n = shape[1], k = shape[2];
    const matrix a = op == OH_GEMM_TN ? matrix_open(k, m, gap, of->a, d) : matrix_open(m, k, gap, of->a, d);
    const matrix w = op == OH_GEMM_NT ? matrix_open(n, k, gap, of->b, d) : matrix_open(k, n, gap, of->b, d);
    const matrix c = matrix_open(m, n, gap, OH_F32, NULL); /* all NaN: must not be read */
    const int64_t skip = m * n * k > 4000000 ? 23 : 1;
    oh_gemm g = product(op, &a, &w, &c, 0);
    multiply(b, &g);
    check_product(&g, &a, &w, &c, NULL, skip);
    float *before = malloc((size_t)(m * c.ld) * sizeof *before);
    assert_non_null(before);
    memcpy(before, c.data, (size_t)(m * c.ld) * sizeof *before);
    g.accumulate = 1;
    multiply(b, &g);
    check_product(&g, &a, &w, &c, before, skip);
    for (int64_t i = 0; i < m; ++i)
        for (int64_t j = n; j < c.ld; ++j)
            assert_true(isnan(get(&c, i, j)));
    free(before);
    free(a.data);
    free(w.data);
    free(c.data);
}

/* The last four have parts down and across, several blocks of k, and a last one of each that is smaller. */
static const int64_t shapes[][3] = {{1, 1, 1},      {1, 7, 3},       {17, 19, 23},   {64, 64, 64},    {33, 257, 65},
                                    {16, 500, 300}, {130, 40, 1100}, {40, 300, 513}, {530, 1100, 70}, {300, 530, 600}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void test_every_kind_is_within_the_rounding_of_an_f32_sum(void **state) {
    draws d = draws_open("onednn", 61);
    (void)state;
    for (int32_t threads = 1; threads <= 3; threads += 2) {
        onednn b = onednn_open(threads);
        for (int i = 0; i < KINDS; ++i) {
            if (!(b.table->gemm_kinds & kinds[i].bit)) continue;
            for (int s = 0; s < SHAPES; ++s)
                for (int32_t op = OH_GEMM_NT; op <= OH_GEMM_TN; ++op)
                    check_shape(&b, &kinds[i], op, shapes[s], s % 2 ? 3 : 0, &d);
        }
        onednn_close(&b);
    }
}

/* In one row: 1, then 512 of 2^-9. A sum that is ever held in bf16 stays 1, or near it. */
static void test_case_14_small_terms_add_up(void **state) {
    enum { K = 513, N = 70 };
    onednn b = onednn_open(2);
    (void)state;
    for (int i = 0; i < KINDS; ++i) {
        if (!(b.table->gemm_kinds & kinds[i].bit)) continue;
        const matrix a = matrix_open(40, K, 0, kinds[i].a, NULL), w = matrix_open(N, K, 0, kinds[i].b, NULL);
        const matrix c = matrix_open(40, N, 0, OH_F32, NULL);
        for (int64_t at = 0; at < 40 * K; ++at)
            set(&a, at, at % K == 0 ? 1 : 0x1p-9f);
        for (int64_t at = 0; at < N * K; ++at)
            set(&w, at, 1);
        oh_gemm g = product(OH_GEMM_NT, &a, &w, &c, 0);
        multiply(&b, &g);
        for (int64_t at = 0; at < 40 * N; ++at)
            assert_true(get(&c, at / N, at % N) == 2);
        free(a.data);
        free(w.data);
        free(c.data);
    }
    onednn_close(&b);
}

/* One product a sum: what comes out is A itself, to the last of its bits, for any exponent whose parts are normal. */
static void test_no_bit_of_an_f32_operand_is_lost(void **state) {
    enum { M = 2000 };
    draws d = draws_open("bits", 62);
    onednn b = onednn_open(2);
    (void)state;
    if (!(b.table->gemm_kinds & OH_GEMM_F32_BF16_F32)) {
        onednn_close(&b);
        skip();
    }
    const matrix a = matrix_open(M, 1, 0, OH_F32, &d), w = matrix_open(1, 80, 0, OH_BF16, NULL);
    const matrix c = matrix_open(M, 80, 0, OH_F32, NULL);
    for (int64_t i = 0; i < M; ++i)
        set(&a, i, ldexpf((float)get(&a, i, 0), (int)draw_below(&d, 200) - 100));
    set(&a, 0, 0x1.fffffep127f);
    set(&a, 1, -0x1.fffffep127f);
    for (int64_t j = 0; j < 80; ++j)
        set(&w, j, j % 2 ? -1 : 1);
    oh_gemm g = product(OH_GEMM_NN, &a, &w, &c, 0);
    multiply(&b, &g);
    for (int64_t i = 0; i < M; ++i)
        for (int64_t j = 0; j < 80; ++j)
            assert_true(get(&c, i, j) == (j % 2 ? -1 : 1) * get(&a, i, 0));
    free(a.data);
    free(w.data);
    free(c.data);
    onednn_close(&b);
}

/* A NaN, an infinity: in their own rows, as f32 products would have them, whatever A is cut into. */
static void test_what_is_not_finite_stays_in_its_row(void **state) {
    static const uint32_t low_nan = 0x7f800001; /* all of its mantissa in the last bits */
    draws d = draws_open("nan", 63);
    onednn b = onednn_open(2);
    (void)state;
    for (int i = 0; i < KINDS; ++i) {
        if (!(b.table->gemm_kinds & kinds[i].bit)) continue;
        const matrix a = matrix_open(64, 70, 0, kinds[i].a, &d), w = matrix_open(70, 100, 0, kinds[i].b, &d);
        const matrix c = matrix_open(64, 100, 0, OH_F32, NULL);
        if (kinds[i].a == OH_F32)
            memcpy((float *)a.data + 5 * 70 + 3, &low_nan, sizeof low_nan);
        else
            set(&a, 5 * 70 + 3, NAN);
        set(&a, 9 * 70 + 4, INFINITY);
        oh_gemm g = product(OH_GEMM_NN, &a, &w, &c, 0);
        multiply(&b, &g);
        for (int64_t row = 0; row < 64; ++row)
            for (int64_t j = 0; j < 100; ++j) {
                const double got = get(&c, row, j);
                assert_true(row == 5   ? isnan(got)
                            : row == 9 ? isinf(got) && (got > 0) == (get(&w, 4, j) > 0)
                                       : isfinite(got));
            }
        free(a.data);
        free(w.data);
        free(c.data);
    }
    onednn_close(&b);
}

/* ------------------------------------------------------------------------------------- shapes and memory ---- */

/* More shapes than primitives are kept, then the first again; none of them with the scratch it might have had. */
static void test_more_shapes_than_are_kept_and_no_scratch(void **state) {
    draws d = draws_open("shapes", 64);
    onednn b = onednn_open(2);
    const matrix a = matrix_open(150, 200, 0, OH_F32, &d), w = matrix_open(300, 200, 0, OH_F32, &d);
    (void)state;
    for (int64_t turn = 0; turn < 160; ++turn) {
        const int64_t rows = 1 + turn % 150;
        const matrix c = matrix_open(rows, 300, 0, OH_F32, NULL);
        const oh_gemm g = product(OH_GEMM_NT, &(matrix){a.data, rows, 200, 200, OH_F32}, &w, &c, 0);
        assert_int_equal(b.table->gemm(b.queue, &g), OH_OK);
        check_product(&g, &a, &w, &c, NULL, 11);
        free(c.data);
    }
    free(a.data);
    free(w.data);
    onednn_close(&b);
}

static void test_case_5_offsets_beyond_32_bits(void **state) {
    const int64_t ld = (int64_t)1 << 30;
    draws d = draws_open("offsets", 65);
    onednn b = onednn_open(2);
    void *address;
    (void)state;
    /* Three rows 4 GiB apart; only the pages that are touched become memory. */
    if (b.table->alloc(b.device, (uint64_t)(2 * ld + 5) * sizeof(float), &address) == OH_OUT_OF_MEMORY) {
        onednn_close(&b);
        skip();
    }
    const matrix a = matrix_open(3, 2, 0, OH_F32, &d), w = matrix_open(5, 2, 0, OH_F32, &d);
    const matrix c = {address, 3, 5, ld, OH_F32};
    oh_gemm g = product(OH_GEMM_NT, &a, &w, &c, 0);
    multiply(&b, &g);
    check_product(&g, &a, &w, &c, NULL, 1);
    b.table->free(b.device, address);
    free(a.data);
    free(w.data);
    onednn_close(&b);
}

static void test_impossible_products_are_refused_with_words(void **state) {
    onednn b = onednn_open(2);
    float x[16] = {0};
    oh_error error;
    const oh_gemm good = {
        .op = OH_GEMM_NT, .m = 2, .n = 2, .k = 2, .a = x, .b = x + 4, .c = x + 8, .lda = 2, .ldb = 2, .ldc = 2};
    (void)state;
#define REFUSE(change, code, words)                                                                                    \
    do {                                                                                                               \
        oh_gemm g = good;                                                                                              \
        change;                                                                                                        \
        assert_int_equal(b.table->gemm(b.queue, &g), code);                                                            \
        b.table->last_error(b.device, &error);                                                                         \
        assert_int_equal(error.status, code);                                                                          \
        assert_non_null(strstr(error.message, words));                                                                 \
    } while (0)
    REFUSE(g.op = 3, OH_INVALID_ARGUMENT, "onednn: gemm op 3");
    REFUSE(g.m = -1, OH_INVALID_ARGUMENT, "-1");
    REFUSE(g.lda = 1, OH_INVALID_ARGUMENT, "lda");
    REFUSE(g.a = NULL, OH_INVALID_ARGUMENT, "NULL");
    REFUSE(g.a_dtype = OH_BF16, OH_UNSUPPORTED, "dtypes");
    REFUSE(g.c_dtype = OH_BF16, OH_UNSUPPORTED, "dtypes");
#undef REFUSE
    onednn_close(&b);
}

/* ------------------------------------------------------------------------------------------ bits and threads ---- */

enum { ROWS = 300, HIDDEN = 600, VOCAB = 700, STEP_FLOATS = ROWS * VOCAB + ROWS * HIDDEN };

/* Logits and dD, of the widest kinds that the plugin has: several parts, and blocks of k. */
typedef struct step {
    matrix hidden, weight;
    float *out;
} step;

static step step_open(const onednn *b, uint64_t seed) {
    draws d = {seed};
    const int32_t dtype = b->table->gemm_kinds & OH_GEMM_F32_BF16_F32 ? OH_BF16 : OH_F32;
    step s = {matrix_open(ROWS, HIDDEN, 0, dtype, &d), matrix_open(VOCAB, HIDDEN, 0, dtype, &d), NULL};
    s.out = malloc(STEP_FLOATS * sizeof *s.out);
    assert_non_null(s.out);
    return s;
}

static void step_close(step *s) {
    free(s->hidden.data);
    free(s->weight.data);
    free(s->out);
}

static oh_status step_run(const onednn *b, step *s) {
    const matrix logits = {s->out, ROWS, VOCAB, VOCAB, OH_F32};
    const matrix grad = {s->out + ROWS * VOCAB, ROWS, HIDDEN, HIDDEN, OH_F32};
    memset(s->out, 0xff, STEP_FLOATS * sizeof *s->out);
    const oh_gemm forward = product(OH_GEMM_NT, &s->hidden, &s->weight, &logits, 0);
    const oh_gemm backward = product(OH_GEMM_NN, &logits, &s->weight, &grad, 0);
    const oh_status status = b->table->gemm(b->queue, &forward);
    return status == OH_OK ? b->table->gemm(b->queue, &backward) : status;
}

static void test_twenty_runs_give_the_same_bits(void **state) {
    (void)state;
    for (int32_t threads = 1; threads <= 4; ++threads) {
        onednn b = onednn_open(threads);
        step first = step_open(&b, 5), again = step_open(&b, 5);
        assert_int_equal(step_run(&b, &first), OH_OK);
        for (int run = 0; run < 20; ++run) {
            assert_int_equal(step_run(&b, &again), OH_OK);
            assert_memory_equal(again.out, first.out, STEP_FLOATS * sizeof(float));
        }
        step_close(&first);
        step_close(&again);
        onednn_close(&b);
    }
}

typedef struct worker {
    onednn b;
    step s;
    const float *expected;
    int different;
} worker;

static void *work(void *data) {
    worker *w = data;
    for (int round = 0; round < 20; ++round)
        w->different +=
            step_run(&w->b, &w->s) != OH_OK || memcmp(w->s.out, w->expected, STEP_FLOATS * sizeof(float)) != 0;
    return NULL;
}

static void test_case_27_two_devices_in_two_threads_give_the_bits_of_one_alone(void **state) {
    worker workers[2];
    step alone[2];
    pthread_t threads[2];
    (void)state;
    for (int i = 0; i < 2; ++i) {
        workers[i] = (worker){.b = onednn_open(2 + i)};
        workers[i].s = step_open(&workers[i].b, 20 + (uint64_t)i);
        alone[i] = step_open(&workers[i].b, 20 + (uint64_t)i);
        assert_int_equal(step_run(&workers[i].b, &alone[i]), OH_OK);
        workers[i].expected = alone[i].out;
    }
    for (int i = 0; i < 2; ++i)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    for (int i = 0; i < 2; ++i) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(workers[i].different, 0);
        step_close(&workers[i].s);
        step_close(&alone[i]);
        onednn_close(&workers[i].b);
    }
}

/* Nor do the bits depend on them: oneDNN would partition a product by them. */
static void test_openmp_settings_stay_the_callers_and_change_nothing(void **state) {
    static const int settings[] = {1, 7};
    step serial;
    int (*max_threads)(void);
    void (*set_threads)(int);
    step steps[2];
    (void)state;
    void *module = dlopen(PLUGIN, RTLD_NOW | RTLD_NOLOAD);
    assert_non_null(module);
    void *address = dlsym(module, "omp_get_max_threads");
    memcpy(&max_threads, &address, sizeof address);
    address = dlsym(module, "omp_set_num_threads");
    memcpy(&set_threads, &address, sizeof address);
    for (int i = 0; i < 2; ++i) {
        set_threads(settings[i]);
        onednn one = onednn_open(1), two = onednn_open(2);
        steps[i] = step_open(&two, 6);
        serial = step_open(&one, 6);
        assert_int_equal(step_run(&two, &steps[i]), OH_OK);
        assert_int_equal(step_run(&one, &serial), OH_OK);
        assert_int_equal(max_threads(), settings[i]);
        step_close(&serial);
        onednn_close(&one);
        onednn_close(&two);
    }
    assert_memory_equal(steps[0].out, steps[1].out, STEP_FLOATS * sizeof(float));
    step_close(&steps[0]);
    step_close(&steps[1]);
}

static void test_case_28_a_child_after_fork_finishes_with_the_same_bits(void **state) {
    onednn b = onednn_open(3);
    step parent = step_open(&b, 7), child = step_open(&b, 7);
    (void)state;
    assert_int_equal(step_run(&b, &parent), OH_OK);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(10);
        const int same =
            step_run(&b, &child) == OH_OK && memcmp(child.out, parent.out, STEP_FLOATS * sizeof(float)) == 0;
        _exit(same ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    step_close(&parent);
    step_close(&child);
    onednn_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind_is_within_the_rounding_of_an_f32_sum),
        cmocka_unit_test(test_case_14_small_terms_add_up),
        cmocka_unit_test(test_no_bit_of_an_f32_operand_is_lost),
        cmocka_unit_test(test_what_is_not_finite_stays_in_its_row),
        cmocka_unit_test(test_more_shapes_than_are_kept_and_no_scratch),
        cmocka_unit_test(test_case_5_offsets_beyond_32_bits),
        cmocka_unit_test(test_impossible_products_are_refused_with_words),
        cmocka_unit_test(test_twenty_runs_give_the_same_bits),
        cmocka_unit_test(test_case_27_two_devices_in_two_threads_give_the_bits_of_one_alone),
        cmocka_unit_test(test_openmp_settings_stay_the_callers_and_change_nothing),
        cmocka_unit_test(test_case_28_a_child_after_fork_finishes_with_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
