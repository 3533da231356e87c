/* Products of the OpenBLAS plugin against f64 sums, and what its partition promises: the same bits every time, from any
 * thread, after fork, nobody's thread settings touched, and an error where memory is limited.
 *
 * Bound of one element: a sum of k products in f32, in whatever order, is within gamma = k u / (1 - k u) of the exact
 * one relative to sum |a| |b| (u = 2^-24); adding C is one more rounding of C and the sum. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "draws.h"
#include "openblas_device.h"

#define UNIT_ROUNDOFF 0x1p-24

typedef struct matrix {
    float *data;
    int64_t rows, columns, ld;
} matrix;

static float *floats(int64_t count) {
    float *x = malloc((size_t)(count + 1) * sizeof *x);
    if (!x) abort();
    return x;
}

/* Rows `gap` elements further apart than they are long; what lies between is NaN. */
static matrix matrix_open(int64_t rows, int64_t columns, int64_t gap, draws *d) {
    matrix m = {floats(rows * (columns + gap)), rows, columns, columns + gap};
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < m.ld; ++j)
            m.data[i * m.ld + j] = d && j < columns ? (float)draw_normal(d) : NAN;
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
                     .ldc = c->ld};
}

static void multiply(const openblas *b, const oh_gemm *g) {
    assert_int_equal(b->table->gemm(b->queue, g), OH_OK);
    assert_int_equal(b->table->queue_wait(b->queue), OH_OK);
}

static double at(const void *data, int64_t ld, int64_t row, int64_t column) {
    return (double)((const float *)data)[row * ld + column];
}

/* `before`: C as it was, for accumulate; NULL: it started from nothing. Rows i with i % skip = 0 are checked. */
static void check_product(const oh_gemm *g, const float *before, int64_t skip) {
    const double gamma = (double)g->k * UNIT_ROUNDOFF / (1 - (double)g->k * UNIT_ROUNDOFF);
    for (int64_t i = 0; i < g->m; i += skip)
        for (int64_t j = 0; j < g->n; ++j) {
            double sum = 0, magnitude = 0;
            for (int64_t k = 0; k < g->k; ++k) {
                const double a = g->op == OH_GEMM_TN ? at(g->a, g->lda, k, i) : at(g->a, g->lda, i, k);
                const double b = g->op == OH_GEMM_NT ? at(g->b, g->ldb, j, k) : at(g->b, g->ldb, k, j);
                sum += a * b;
                magnitude += fabs(a * b);
            }
            double bound = gamma * magnitude;
            if (before) {
                const double old = (double)before[i * g->ldc + j];
                sum += old;
                /* Each block of k may be added to C by itself. */
                bound += gamma * fabs(old) + UNIT_ROUNDOFF * (magnitude + fabs(old));
            }
            const double got = at(g->c, g->ldc, i, j);
            if (fabs(got - sum) <= bound) continue;
            fail_msg("op %d, %lld x %lld x %lld, [%lld, %lld]: %.9g, expected %.9g within %.3g", g->op, (long long)g->m,
                     (long long)g->n, (long long)g->k, (long long)i, (long long)j, got, sum, bound);
        }
}

static void check_shape(const openblas *b, int32_t op, int64_t m, int64_t n, int64_t k, int64_t gap, draws *d) {
    const matrix a = op == OH_GEMM_TN ? matrix_open(k, m, gap, d) : matrix_open(m, k, gap, d);
    const matrix w = op == OH_GEMM_NT ? matrix_open(n, k, gap + 1, d) : matrix_open(k, n, gap + 1, d);
    const matrix c = matrix_open(m, n, gap, NULL); /* all NaN: must not be read */
    const int64_t skip = m * n * k > 4000000 ? 7 : 1;
    oh_gemm g = product(op, &a, &w, &c, 0);
    multiply(b, &g);
    check_product(&g, NULL, skip);
    float *before = floats(m * c.ld);
    memcpy(before, c.data, (size_t)(m * c.ld) * sizeof *before);
    g.accumulate = 1;
    multiply(b, &g);
    check_product(&g, before, skip);
    for (int64_t i = 0; i < m; ++i)
        for (int64_t j = n; j < c.ld; ++j)
            assert_true(isnan(c.data[i * c.ld + j]));
    free(before);
    free(a.data);
    free(w.data);
    free(c.data);
}

static void test_every_operation_and_ragged_shape_is_within_the_rounding_of_its_sum(void **state) {
    static const int64_t shapes[][3] = {{1, 1, 1},     {1, 7, 3},       {5, 1, 9},      {3, 5, 1},
                                        {17, 19, 23},  {64, 64, 64},    {33, 257, 65},  {257, 33, 40},
                                        {100, 129, 7}, {16, 1000, 300}, {128, 40, 3000}};
    draws d = draws_open("gemm", 11);
    (void)state;
    for (int32_t threads = 1; threads <= 5; threads += 2) {
        openblas b = openblas_open(-1, threads);
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; ++s)
            for (int32_t op = OH_GEMM_NT; op <= OH_GEMM_TN; ++op)
                check_shape(&b, op, shapes[s][0], shapes[s][1], shapes[s][2], s % 2 ? 3 : 0, &d);
        openblas_close(&b);
    }
}

static void test_sizes_of_zero(void **state) {
    openblas b = openblas_open(-1, 2);
    float c[6] = {NAN, NAN, NAN, NAN, NAN, 5};
    (void)state;
    oh_gemm g = {.op = OH_GEMM_NT, .m = 2, .n = 2, .k = 0, .c = c, .lda = 0, .ldb = 0, .ldc = 3};
    multiply(&b, &g);
    assert_true(c[0] == 0 && c[1] == 0 && isnan(c[2]) && c[3] == 0 && c[4] == 0 && c[5] == 5);
    c[0] = 7;
    g.accumulate = 1;
    multiply(&b, &g);
    assert_true(c[0] == 7);
    g = (oh_gemm){.op = OH_GEMM_NN, .m = 0, .n = 2, .k = 4, .lda = 4, .ldb = 2, .ldc = 2};
    multiply(&b, &g);
    openblas_close(&b);
}

/* Rows of C so far apart that the second part of the grid begins 2^31 elements on. Only touched pages become memory. */
static void test_case_5_offsets_beyond_32_bits(void **state) {
    enum { M = 18, N = 5, K = 2000 };
    const int64_t ld = (int64_t)1 << 27;
    openblas b = openblas_open(-1, 2);
    void *address;
    draws d = draws_open("offsets", 12);
    (void)state;
    if (b.table->alloc(b.device, (uint64_t)((M - 1) * ld + N) * sizeof(float), &address) == OH_OUT_OF_MEMORY) skip();
    const matrix a = matrix_open(M, K, 0, &d), w = matrix_open(N, K, 0, &d);
    oh_gemm g = {.op = OH_GEMM_NT, .m = M, .n = N, .k = K, .a = a.data, .b = w.data, .c = address};
    g.lda = g.ldb = K;
    g.ldc = ld;
    multiply(&b, &g);
    check_product(&g, NULL, 1);
    b.table->free(b.device, address);
    free(a.data);
    free(w.data);
    openblas_close(&b);
}

static void test_impossible_products_are_refused_with_words(void **state) {
    openblas b = openblas_open(-1, 2);
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
    REFUSE(g.op = 3, OH_INVALID_ARGUMENT, "op 3");
    REFUSE(g.m = -1, OH_INVALID_ARGUMENT, "-1");
    REFUSE(g.lda = 1, OH_INVALID_ARGUMENT, "lda");
    REFUSE(g.ldc = 1, OH_INVALID_ARGUMENT, "ldc");
    REFUSE(g.a = NULL, OH_INVALID_ARGUMENT, "NULL");
    REFUSE(g.a_dtype = OH_BF16, OH_UNSUPPORTED, "dtypes");
    REFUSE(g.ldb = (int64_t)INT32_MAX + 1, OH_UNSUPPORTED, "32-bit");
#undef REFUSE
    openblas_close(&b);
}

/* -------------------------------------------------------------------------------------- bits and threads ---- */

enum { ROWS = 64, HIDDEN = 96, VOCAB = 1500 };

/* The three products of a step, one after the other, into `out`. */
typedef struct step {
    matrix hidden, weight;
    float *out; /* logits, dD, dW */
} step;

enum { STEP_FLOATS = ROWS * VOCAB + ROWS * HIDDEN + VOCAB * HIDDEN };

static step step_open(uint64_t seed) {
    draws d = {seed};
    return (step){matrix_open(ROWS, HIDDEN, 0, &d), matrix_open(VOCAB, HIDDEN, 0, &d), floats(STEP_FLOATS)};
}

static void step_close(step *s) {
    free(s->hidden.data);
    free(s->weight.data);
    free(s->out);
}

static void step_run(const openblas *b, step *s) {
    const matrix logits = {s->out, ROWS, VOCAB, VOCAB};
    const matrix grad = {s->out + ROWS * VOCAB, ROWS, HIDDEN, HIDDEN};
    const matrix head = {grad.data + ROWS * HIDDEN, VOCAB, HIDDEN, HIDDEN};
    memset(s->out, 0xff, STEP_FLOATS * sizeof(float));
    const oh_gemm forward = product(OH_GEMM_NT, &s->hidden, &s->weight, &logits, 0);
    const oh_gemm backward = product(OH_GEMM_NN, &logits, &s->weight, &grad, 0);
    const oh_gemm outer = product(OH_GEMM_TN, &logits, &s->hidden, &head, 0);
    multiply(b, &forward);
    multiply(b, &backward);
    multiply(b, &outer);
}

static void test_twenty_runs_give_the_same_bits(void **state) {
    (void)state;
    for (int32_t threads = 1; threads <= 4; ++threads) {
        openblas b = openblas_open(-1, threads);
        step first = step_open(5), again = step_open(5);
        step_run(&b, &first);
        for (int run = 0; run < 20; ++run) {
            step_run(&b, &again);
            assert_memory_equal(again.out, first.out, STEP_FLOATS * sizeof(float));
        }
        step_close(&first);
        step_close(&again);
        openblas_close(&b);
    }
}

typedef struct worker {
    openblas b;
    step s;
    const float *expected;
    int different;
} worker;

static void *work(void *data) {
    worker *w = data;
    for (int round = 0; round < 50; ++round) {
        step_run(&w->b, &w->s);
        w->different += memcmp(w->s.out, w->expected, STEP_FLOATS * sizeof(float)) != 0;
    }
    return NULL;
}

static void test_case_27_two_devices_in_two_threads_give_the_bits_of_one_alone(void **state) {
    worker workers[2];
    step alone[2];
    pthread_t threads[2];
    (void)state;
    for (int i = 0; i < 2; ++i) {
        workers[i] = (worker){.b = openblas_open(-1, 2 + i), .s = step_open(20 + (uint64_t)i)};
        alone[i] = step_open(20 + (uint64_t)i);
        step_run(&workers[i].b, &alone[i]);
        workers[i].expected = alone[i].out;
    }
    for (int i = 0; i < 2; ++i)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    for (int i = 0; i < 2; ++i) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(workers[i].different, 0);
        step_close(&workers[i].s);
        step_close(&alone[i]);
        openblas_close(&workers[i].b);
    }
}

static void *symbol(const char *name) {
    void *found = dlsym(dlopen(ONEHEAD_BUILD_BACKEND_DIR "/onehead-openblas.so", RTLD_NOW | RTLD_NOLOAD), name);
    assert_non_null(found);
    return found;
}

static int threads_of_process(void) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (struct dirent *entry; (entry = readdir(tasks));)
        count += entry->d_name[0] != '.';
    closedir(tasks);
    return count;
}

/* Neither OpenMP's setting of the caller nor OpenBLAS's of the process; and no more threads than the device was given,
 * although OpenBLAS has more at hand. */
static void test_thread_settings_stay_the_callers(void **state) {
    int (*max_threads)(void), (*blas_threads)(void);
    void (*set_threads)(int);
    openblas one = openblas_open(-1, 1), two = openblas_open(-1, 2);
    step s = step_open(6);
    (void)state;
    void *address = symbol("omp_get_max_threads");
    memcpy(&max_threads, &address, sizeof address);
    address = symbol("omp_set_num_threads");
    memcpy(&set_threads, &address, sizeof address);
    address = symbol("openblas_get_num_threads");
    memcpy(&blas_threads, &address, sizeof address);
    set_threads(7);
    const int of_blas = blas_threads();
    const int before = threads_of_process();
    step_run(&one, &s);
    /* Fewer: one that an earlier test has joined may only now leave the list. */
    assert_true(threads_of_process() <= before);
    step_run(&two, &s);
    assert_true(threads_of_process() <= before + 1);
    assert_int_equal(max_threads(), 7);
    assert_int_equal(blas_threads(), of_blas);
    step_close(&s);
    openblas_close(&one);
    openblas_close(&two);
}

static void test_case_28_a_child_after_fork_finishes_with_the_same_bits(void **state) {
    openblas b = openblas_open(-1, 3);
    step parent = step_open(8);
    (void)state;
    step_run(&b, &parent);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        step again = step_open(8);
        openblas fresh = openblas_open(-1, 3);
        alarm(30); /* a hang ends as a signal */
        step_run(&b, &again);
        int different = memcmp(again.out, parent.out, STEP_FLOATS * sizeof(float)) != 0;
        step_run(&fresh, &again);
        different |= memcmp(again.out, parent.out, STEP_FLOATS * sizeof(float)) != 0;
        _exit(different);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    step_run(&b, &parent); /* and the parent works on */
    step_close(&parent);
    openblas_close(&b);
}

/* In the child: more threads than ever before multiply under a limit of the address space, and without it. */
static int refuses_where_there_is_no_room(void) {
    draws d = draws_open("no room", 21);
    const matrix x = matrix_open(512, 64, 0, &d), y = matrix_open(512, 512, 0, NULL);
    const oh_gemm g = product(OH_GEMM_NT, &x, &x, &y, 0);
    openblas b = openblas_open(-1, 24);
    long pages = 0;
    FILE *const size = fopen("/proc/self/statm", "r");
    if (size == NULL || fscanf(size, "%ld", &pages) != 1 || fclose(size) != 0) return 2;
    struct rlimit before, limit;
    getrlimit(RLIMIT_AS, &before);
    limit = before;
    limit.rlim_cur = (rlim_t)(pages * sysconf(_SC_PAGESIZE)) + ((rlim_t)32 << 20);
    setrlimit(RLIMIT_AS, &limit);
    alarm(20); /* OpenBLAS would ask for ever */
    const oh_status refused = b.table->gemm(b.queue, &g);
    oh_error error = {OH_OK, ""};
    b.table->last_error(b.device, &error);
    setrlimit(RLIMIT_AS, &before);
    if (refused != OH_OUT_OF_MEMORY || error.status != refused || !strstr(error.message, "ulimit -v")) return 3;
    if (b.table->gemm(b.queue, &g) != OH_OK) return 4;
    openblas_close(&b);
    return 0;
}

static void test_a_limit_of_the_address_space_is_an_error_and_not_for_ever(void **state) {
    (void)state;
    if (openblas_table()->sanitizer[0] != '\0') skip(); /* they have taken more than any limit */
    const pid_t child = fork();
    if (child == 0) _exit(refuses_where_there_is_no_room());
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_limit_of_the_address_space_is_an_error_and_not_for_ever),
        cmocka_unit_test(test_every_operation_and_ragged_shape_is_within_the_rounding_of_its_sum),
        cmocka_unit_test(test_sizes_of_zero),
        cmocka_unit_test(test_case_5_offsets_beyond_32_bits),
        cmocka_unit_test(test_impossible_products_are_refused_with_words),
        cmocka_unit_test(test_twenty_runs_give_the_same_bits),
        cmocka_unit_test(test_case_27_two_devices_in_two_threads_give_the_bits_of_one_alone),
        cmocka_unit_test(test_thread_settings_stay_the_callers),
        cmocka_unit_test(test_case_28_a_child_after_fork_finishes_with_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
