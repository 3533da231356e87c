/* The OpenBLAS plugin's device, memory, copies and row loops: what it refuses and says, and the portable operations'
 * bits where both are made of the same f32 and f64 operations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "openblas_device.h"
#include "portable/dtype.h"
#include "portable/portable.h"
#include "tile_case.h"

#define INF INFINITY

/* -------------------------------------------------------------------------------------- device and memory ---- */

static void test_the_table_is_complete_and_the_kernels_are_named(void **state) {
    openblas b = openblas_open(-1, 3);
    oh_device_info info;
    (void)state;
    assert_int_equal(b.table->size, sizeof(oh_backend));
    assert_int_equal(b.table->caps, OH_CAP_HOST_MEMORY | OH_CAP_DETERMINISTIC);
    assert_string_equal(b.table->name, "openblas");
    assert_int_equal(b.table->device_count(), 1);
    assert_int_equal(b.table->device_info(b.device, &info), OH_OK);
    assert_int_equal(info.threads, 3);
    assert_non_null(strstr(info.kernel, "OpenBLAS"));
    assert_non_null(strstr(info.kernel, "tiles "));
    assert_true(info.memory_total > info.memory_free && info.memory_free > 0);
    openblas_close(&b);
}

static void test_devices_that_cannot_be_are_refused_with_words(void **state) {
    const oh_backend *table = openblas_table();
    oh_device *device = NULL;
    oh_error error;
    oh_device_options options = {.size = sizeof options, .index = 1};
    (void)state;
    assert_int_equal(table->device_open(&options, NULL, &device, &error), OH_NO_BACKEND);
    assert_non_null(strstr(error.message, "device 1"));
    options = (oh_device_options){.size = sizeof options, .threads = -2};
    assert_int_equal(table->device_open(&options, NULL, &device, &error), OH_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "-2"));
    options.threads = 1;
    setenv("ONEHEAD_OPENBLAS_TILES", "sse9", 1);
    assert_int_equal(table->device_open(&options, NULL, &device, &error), OH_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "sse9"));
    assert_non_null(strstr(error.message, "baseline"));
    assert_int_equal(table->device_open(&options, NULL, &device, NULL), OH_INVALID_ARGUMENT);
    unsetenv("ONEHEAD_OPENBLAS_TILES");
    assert_null(device);
}

static void test_the_tiles_asked_for_are_those_that_run(void **state) {
    (void)state;
    for (int tiles = 0; tiles < OPENBLAS_TILES; ++tiles) {
        if (!openblas_cpu_has(tiles)) continue;
        openblas b = openblas_open(tiles, 1);
        oh_device_info info;
        char expected[32];
        b.table->device_info(b.device, &info);
        snprintf(expected, sizeof expected, "tiles %s", openblas_tiles[tiles]);
        assert_non_null(strstr(info.kernel, expected));
        openblas_close(&b);
    }
}

static void test_memory_is_aligned_and_impossible_sizes_are_refused(void **state) {
    static const uint64_t sizes[] = {1, 255, 256, 4095, (uint64_t)3 << 20, (uint64_t)9 << 20};
    openblas b = openblas_open(-1, 1);
    void *address = NULL, *queue_address = NULL;
    oh_error error;
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        char back[1] = {0};
        assert_int_equal(b.table->alloc(b.device, sizes[i], &address), OH_OK);
        assert_int_equal((uintptr_t)address % 256, 0);
        assert_int_equal(b.table->fill(b.queue, address, 0x7b, sizes[i]), OH_OK);
        assert_int_equal(b.table->download(b.queue, back, (char *)address + sizes[i] - 1, 1), OH_OK);
        assert_int_equal(back[0], 0x7b);
        assert_int_equal(b.table->upload(b.queue, address, "x", 1), OH_OK);
        assert_int_equal(*(char *)address, 'x');
        b.table->free(b.device, address);
    }
    b.table->free(b.device, NULL);
    assert_int_equal(b.table->alloc(b.device, 0, &address), OH_INVALID_ARGUMENT);
    assert_int_equal(b.table->alloc(b.device, UINT64_MAX, &address), OH_INVALID_ARGUMENT);
    b.table->last_error(b.device, &error);
    assert_non_null(strstr(error.message, "18446744073709551615"));
    if (strlen(ONEHEAD_SANITIZER) == 0) { /* whose allocators end the process instead */
        assert_int_equal(b.table->alloc(b.device, (uint64_t)1 << 60, &address), OH_OUT_OF_MEMORY);
        b.table->last_error(b.device, &error);
        assert_non_null(strstr(error.message, "1152921504606846976"));
    }
    assert_int_equal(b.table->queue_open(b.device, &address, (oh_queue **)&queue_address), OH_INVALID_ARGUMENT);
    openblas_close(&b);
}

/* --------------------------------------------------------------------------------------------------- copies ---- */

/* Numbers that round, overflow and vanish in 16 bits, infinities, and NaNs that careless rounding makes numbers of. */
static float draw_value(draws *d) {
    static const uint32_t nan[] = {0x7f800001u, 0x7fffffffu, 0xffffffffu};
    if (draw_below(d, 20) == 0) return oh_f32_from_bits(nan[draw_below(d, 3)]);
    static const float odd[] = {0.0f, -0.0f, INF, -INF, NAN, 65504, 65519, 65520, 3e38f, 1e-8f, 6e-8f, 3e-5f, 1e-40f};
    if (draw_below(d, 8) == 0) return odd[draw_below(d, (int64_t)(sizeof odd / sizeof *odd))];
    return (float)(draw_normal(d) * ldexp(1, (int)draw_below(d, 40) - 24));
}

static void fill_elements(void *to, int64_t count, int32_t dtype, draws *d) {
    for (int64_t i = 0; i < count; ++i) {
        const float value = draw_value(d);
        oh_store_elements(to, i, 1, dtype, &value);
    }
}

static void check_copy(const openblas *b, int32_t src, int32_t dst, int with, draws *d) {
    enum { ROWS = 7, SOURCES = 9, WIDTH = 1200, GAP = 3 };
    static unsigned char from[SOURCES * (WIDTH + GAP) * 4], less[SOURCES * (WIDTH + GAP) * 4];
    static unsigned char got[ROWS * (WIDTH + GAP) * 4], expected[sizeof got];
    static const int64_t widths[] = {0, 1, 3, 17, 64, 1025, WIDTH};
    int32_t map[ROWS], subtract_map[SOURCES];
    float row_scale[SOURCES], factor = 0.37f;
    for (int w = 0; w < 7; ++w) {
        const int32_t less_dtype = (src + w) % 3;
        fill_elements(from, SOURCES * (WIDTH + GAP), src, d);
        fill_elements(less, SOURCES * (WIDTH + GAP), less_dtype, d);
        for (int i = 0; i < SOURCES; ++i)
            subtract_map[i] = (int32_t)draw_below(d, SOURCES), row_scale[i] = i == 4 ? 0 : (float)draw_normal(d);
        for (int i = 0; i < ROWS; ++i)
            map[i] = (int32_t)draw_below(d, SOURCES + 1) - 1;
        memset(got, 0x5a, sizeof got);
        memset(expected, 0x5a, sizeof expected);
        oh_copy_rows c = {.rows = ROWS,
                          .columns = widths[w],
                          .src = from,
                          .src_ld = widths[w] + GAP,
                          .map = with & 1 ? map : NULL,
                          .subtract = with & 2 ? less : NULL,
                          .subtract_ld = widths[w] + GAP,
                          .subtract_map = with & 4 ? subtract_map : NULL,
                          .row_scale = with & 8 ? row_scale : NULL,
                          .factor = with & 16 ? &factor : NULL,
                          .dst = got,
                          .dst_ld = widths[w] + GAP,
                          .src_dtype = src,
                          .subtract_dtype = less_dtype,
                          .dst_dtype = dst};
        assert_int_equal(b->table->copy_rows(b->queue, &c), OH_OK);
        c.dst = expected;
        assert_int_equal(oh_portable_copy_rows(&c), OH_OK);
        for (int64_t i = 0; i < (int64_t)sizeof got / oh_element_size(dst); ++i) {
            float x, y;
            oh_load_elements(got, i, 1, dst, &x);
            oh_load_elements(expected, i, 1, dst, &y);
            /* The sign and payload of a NaN that arithmetic makes are nobody's promise. */
            if (isnan(x) && isnan(y)) continue;
            assert_memory_equal(&x, &y, sizeof x);
        }
    }
}

static void test_copies_are_the_portable_bits_in_every_combination(void **state) {
    (void)state;
    for (int tiles = 0; tiles < OPENBLAS_TILES; ++tiles) {
        if (!openblas_cpu_has(tiles)) continue;
        draws d = draws_open(openblas_tiles[tiles], 51);
        openblas b = openblas_open(tiles, 2);
        for (int32_t src = OH_F32; src <= OH_F16; ++src)
            for (int32_t dst = OH_F32; dst <= OH_F16; ++dst)
                for (int with = 0; with < 32; ++with)
                    check_copy(&b, src, dst, with, &d);
        openblas_close(&b);
    }
}

static void test_every_16_bit_pattern_converts_as_the_portable_one(void **state) {
    static uint16_t half[65536], back[65536];
    static float got[65536], expected[65536];
    (void)state;
    for (int i = 0; i < 65536; ++i)
        half[i] = (uint16_t)i;
    for (int tiles = 0; tiles < OPENBLAS_TILES; ++tiles) {
        if (!openblas_cpu_has(tiles)) continue;
        openblas b = openblas_open(tiles, 1);
        for (int32_t dtype = OH_BF16; dtype <= OH_F16; ++dtype) {
            oh_copy_rows c = {.rows = 1, .columns = 65536, .src = half, .src_ld = 65536, .dst = got, .dst_ld = 65536};
            c.src_dtype = dtype;
            assert_int_equal(b.table->copy_rows(b.queue, &c), OH_OK);
            oh_load_elements(half, 0, 65536, dtype, expected);
            for (int i = 0; i < 65536; ++i) /* a signalling NaN may come back quiet */
                assert_true(isnan(expected[i]) ? isnan(got[i]) : memcmp(&got[i], &expected[i], 4) == 0);
            c = (oh_copy_rows){.rows = 1, .columns = 65536, .src = got, .src_ld = 65536, .dst = back, .dst_ld = 65536};
            c.dst_dtype = dtype;
            assert_int_equal(b.table->copy_rows(b.queue, &c), OH_OK);
            for (int i = 0; i < 65536; ++i)
                assert_true(isnan(expected[i]) || back[i] == half[i]);
        }
        openblas_close(&b);
    }
}

static void test_zeros_need_no_source_and_other_rows_do(void **state) {
    openblas b = openblas_open(-1, 2);
    float dst[6] = {1, 1, 1, 1, 1, 1}, src[3] = {1, 2, 3};
    const int32_t none[] = {-1, -1}, one[] = {-1, 0};
    oh_copy_rows c = {.rows = 2, .columns = 3, .map = none, .dst = dst, .dst_ld = 3};
    (void)state;
    assert_int_equal(b.table->copy_rows(b.queue, &c), OH_OK);
    for (int i = 0; i < 6; ++i)
        assert_true(dst[i] == 0);
    c.map = one;
    assert_int_equal(b.table->copy_rows(b.queue, &c), OH_INVALID_ARGUMENT);
    c.src = src;
    c.src_ld = 2;
    assert_int_equal(b.table->copy_rows(b.queue, &c), OH_INVALID_ARGUMENT);
    c.src_ld = 3;
    c.src_dtype = OH_I32;
    assert_int_equal(b.table->copy_rows(b.queue, &c), OH_INVALID_ARGUMENT);
    openblas_close(&b);
}

static void check_norm(const openblas *b, int32_t dtype, int64_t rows, int64_t columns, draws *d) {
    static unsigned char data[130 * 700 * 4];
    double got[2] = {3, 0.5}, expected[2] = {3, 0.5};
    for (int64_t i = 0; i < rows * (columns + 3); ++i) {
        const float value = (float)draw_normal(d);
        oh_store_elements(data, i, 1, dtype, &value);
    }
    oh_matrix_norm n = {.rows = rows, .columns = columns, .data = data, .ld = columns + 3, .dtype = dtype, .sums = got};
    assert_int_equal(b->table->matrix_norm(b->queue, &n), OH_OK);
    n.sums = expected;
    assert_int_equal(oh_portable_matrix_norm(&n), OH_OK);
    /* Both are f64 sums of exact squares, in another order. */
    assert_true(fabs(got[0] - expected[0]) <= (double)(rows * columns) * 0x1p-53 * expected[0]);
    assert_true(got[1] == expected[1]);
    const float nan = NAN;
    oh_store_elements(data, (rows - 1) * (columns + 3) + columns - 1, 1, dtype, &nan);
    n.sums = got;
    assert_int_equal(b->table->matrix_norm(b->queue, &n), OH_OK);
    assert_true(isnan(got[0]) && isnan(got[1]));
}

static void test_norms_are_the_portable_ones(void **state) {
    static const int64_t shapes[][2] = {{1, 1}, {1, 700 - 3}, {3, 17}, {64, 33}, {65, 16}, {130, 650}};
    (void)state;
    for (int tiles = 0; tiles < OPENBLAS_TILES; ++tiles) {
        if (!openblas_cpu_has(tiles)) continue;
        draws d = draws_open("norm", 52);
        openblas b = openblas_open(tiles, 3);
        for (int32_t dtype = OH_F32; dtype <= OH_F16; ++dtype)
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes; ++s)
                check_norm(&b, dtype, shapes[s][0], shapes[s][1], &d);
        openblas_close(&b);
    }
}

/* ------------------------------------------------------------------------------------ rows and their threads ---- */

enum { T = 96, V = 700, TOP_K = 8, SUMS = 256 };

/* All that one chunk's tile and row operations leave behind. */
typedef struct chunk {
    oh_row_stats stats[T];
    oh_row_overlap overlap[T];
    int32_t id[T * TOP_K];
    float logit[T * TOP_K];
    oh_row_result results[T];
    double partial[T / 16 * SUMS], sums[SUMS];
    oh_row_coef coef[T];
    float row_scale[T], grad[T * V];
} chunk;

static oh_objective all_terms(void) {
    oh_objective o = {.eta = 3,
                      .block_size = 16,
                      .valid_columns = V,
                      .terms = 0xffu,
                      .first_slot = 1,
                      .decay = OH_DECAY_DPACE,
                      .decay_param = 0.5,
                      .top_k_count = 2,
                      .top_k = {1, 8}};
    for (int i = 0; i < OH_TERM_COUNT; ++i)
        o.lambda[i] = 1;
    return o;
}

static oh_row_finish finish_of(chunk *k, const int32_t *compact, const float *mask) {
    const oh_objective o = all_terms();
    return (oh_row_finish){.objective = o,
                           .rows = T,
                           .compact_rows = T,
                           .compact = compact,
                           .mask = mask,
                           .stats = k->stats,
                           .overlap = k->overlap,
                           .topk_id = k->id,
                           .topk_logit = k->logit,
                           .scale = 1,
                           .parts =
                               OH_FINISH_COUNTS | OH_FINISH_LOSS | OH_FINISH_COEF | OH_FINISH_METRICS | OH_FINISH_TOP_K,
                           .want = oh_objective_want(&o) | OH_WANT_RANK,
                           .top_k_mask = 3,
                           .top_k = TOP_K,
                           .has_target = 1,
                           .results = k->results,
                           .partial = k->partial,
                           .sums = k->sums,
                           .coef = k->coef,
                           .row_scale = k->row_scale};
}

static void run_chunk(const openblas *b, const tile_case *c, chunk *k) {
    int32_t compact[T];
    float mask[T];
    for (int32_t i = 0; i < T; ++i)
        compact[i] = i, mask[i] = 1;
    memset(k, 0, sizeof *k);
    const oh_row_finish f = finish_of(k, compact, mask);
    const oh_tile_stats s = {.tile = c->view,
                             .stats = k->stats,
                             .topk_id = k->id,
                             .topk_logit = k->logit,
                             .top_k = TOP_K,
                             .want = f.want & 0xffu,
                             .restart = 1};
    const oh_tile_overlap o = {
        .tile = c->view, .stats = k->stats, .overlap = k->overlap, .want = f.want & ~0xffu, .restart = 1};
    const oh_tile_grad g = {
        .tile = c->view, .coef = k->coef, .out = k->grad, .out_ld = V, .form = oh_objective_form(&f.objective)};
    assert_true(oh_sum_count(&f.objective) <= SUMS);
    assert_int_equal(b->table->tile_stats(b->queue, &s), OH_OK);
    assert_int_equal(b->table->tile_overlap(b->queue, &o), OH_OK);
    assert_int_equal(b->table->row_finish(b->queue, &f), OH_OK);
    assert_int_equal(b->table->tile_grad(b->queue, &g), OH_OK);
}

static void test_the_bits_do_not_depend_on_the_number_of_threads(void **state) {
    static chunk one, many;
    draws d = draws_open("threads", 53);
    const tile_shape shape = {.rows = T, .target_rows = T, .columns = V};
    tile_case c;
    (void)state;
    tile_case_open(&c, &shape, &d);
    openblas alone = openblas_open(-1, 1);
    run_chunk(&alone, &c, &one);
    for (int32_t threads = 2; threads <= 7; ++threads) {
        openblas b = openblas_open(-1, threads);
        run_chunk(&b, &c, &many);
        assert_memory_equal(&one, &many, sizeof one);
        openblas_close(&b);
    }
    openblas_close(&alone);
    tile_case_close(&c);
}

static void test_row_loops_are_the_portable_bits(void **state) {
    static chunk got, expected;
    draws d = draws_open("rows", 54);
    const tile_shape shape = {.rows = T, .target_rows = T, .columns = V};
    int32_t compact[T];
    float mask[T];
    double loss[2][3];
    float factor[2];
    tile_case c;
    (void)state;
    tile_case_open(&c, &shape, &d);
    openblas b = openblas_open(-1, 3);
    run_chunk(&b, &c, &got);
    for (int32_t i = 0; i < T; ++i)
        compact[i] = i, mask[i] = 1;
    expected = got;
    memset(expected.sums, 0, sizeof expected.sums);
    const oh_row_finish f = finish_of(&expected, compact, mask);
    assert_int_equal(oh_portable_row_finish(&f), OH_OK);
    assert_memory_equal(got.sums, expected.sums, sizeof got.sums);
    assert_memory_equal(got.coef, expected.coef, sizeof got.coef);
    assert_memory_equal(got.row_scale, expected.row_scale, sizeof got.row_scale);
    for (int i = 0; i < 2; ++i) {
        const oh_step_finish s = {.objective = f.objective, .sums = got.sums, .loss = loss[i], .factor = &factor[i]};
        assert_int_equal(i ? oh_portable_step_finish(&s) : b.table->step_finish(b.queue, &s), OH_OK);
    }
    assert_memory_equal(loss[0], loss[1], sizeof loss[0]);
    assert_true(factor[0] == factor[1] && loss[0][0] > 0);
    openblas_close(&b);
    tile_case_close(&c);
}

static void test_labels_are_positions_among_the_ids(void **state) {
    enum { ROWS = 70, IDS = 40 };
    openblas b = openblas_open(-1, 3);
    oh_row_stats full[3];
    int32_t ids[IDS], target_row[ROWS], label[ROWS];
    (void)state;
    for (int i = 0; i < 3; ++i) {
        oh_row_stats_empty(&full[i]);
        full[i].t_argmax = 30 * i; /* 0 and 60 are multiples of 4, 30 isn't */
    }
    for (int i = 0; i < IDS; ++i)
        ids[i] = 4 * i;
    for (int i = 0; i < ROWS; ++i)
        target_row[i] = i % 3;
    oh_row_labels l = {
        .rows = ROWS, .id_count = IDS, .full = full, .target_row = target_row, .ids = ids, .label = label};
    assert_int_equal(b.table->row_labels(b.queue, &l), OH_OK);
    for (int i = 0; i < ROWS; ++i)
        assert_int_equal(label[i], i % 3 == 0 ? 0 : i % 3 == 1 ? -1 : 15);
    l.full = NULL;
    assert_int_equal(b.table->row_labels(b.queue, &l), OH_INVALID_ARGUMENT);
    openblas_close(&b);
}

static void test_impossible_tiles_are_refused_with_words(void **state) {
    openblas b = openblas_open(-1, 1);
    oh_row_stats stats[2];
    static oh_row_coef coef[2];
    float out[8];
    oh_error error;
    tile_case c;
    (void)state;
    tile_case_literal(&c, 2, 3, (const float[]){1, 2, 3, 4, 5, 6}, (const float[]){1, 2, 3, 4, 5, 6});
    const oh_tile_stats s = {.tile = c.view, .stats = stats, .want = OH_WANT_KL, .restart = 1};
    const oh_tile_grad g = {.tile = c.view, .coef = coef, .out = out, .out_ld = 3, .form = OH_FORM_Q};
#define REFUSE(type, good, call, change, words)                                                                        \
    do {                                                                                                               \
        type r = good;                                                                                                 \
        change;                                                                                                        \
        assert_int_equal(b.table->call(b.queue, &r), OH_INVALID_ARGUMENT);                                             \
        b.table->last_error(b.device, &error);                                                                         \
        assert_non_null(strstr(error.message, words));                                                                 \
    } while (0)
    REFUSE(oh_tile_stats, s, tile_stats, r.tile.rows = -1, "-1 rows");
    REFUSE(oh_tile_stats, s, tile_stats, r.tile.first_column = INT32_MAX, "2^31");
    REFUSE(oh_tile_stats, s, tile_stats, r.tile.format = 9, "format 9");
    REFUSE(oh_tile_stats, s, tile_stats, r.tile.draft_ld = 2, "strides 2");
    REFUSE(oh_tile_stats, s, tile_stats, r.tile.target = NULL, "without a tile");
    REFUSE(oh_tile_stats, s, tile_stats, r.tile.draft_transform.softcap = -1, "softcap -1");
    REFUSE(oh_tile_stats, s, tile_stats, r.top_k = 65, "65");
    REFUSE(oh_tile_stats, s, tile_stats, r.top_k = 2, "an array");
    REFUSE(oh_tile_stats, s, tile_stats, (r.tile.target = NULL, r.tile.format = OH_TILE_DIFF), "without its target");
    REFUSE(oh_tile_grad, g, tile_grad, r.out_ld = 2, "out_ld = 2");
    REFUSE(oh_tile_grad, g, tile_grad, r.out_dtype = OH_F64, "dtype 3");
    REFUSE(oh_tile_grad, g, tile_grad, r.tile.target = NULL, "without a tile");
    REFUSE(oh_tile_grad, g, tile_grad, r.out = r.tile.draft, "in place");
#undef REFUSE
    openblas_close(&b);
    tile_case_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_table_is_complete_and_the_kernels_are_named),
        cmocka_unit_test(test_devices_that_cannot_be_are_refused_with_words),
        cmocka_unit_test(test_the_tiles_asked_for_are_those_that_run),
        cmocka_unit_test(test_memory_is_aligned_and_impossible_sizes_are_refused),
        cmocka_unit_test(test_copies_are_the_portable_bits_in_every_combination),
        cmocka_unit_test(test_every_16_bit_pattern_converts_as_the_portable_one),
        cmocka_unit_test(test_zeros_need_no_source_and_other_rows_do),
        cmocka_unit_test(test_norms_are_the_portable_ones),
        cmocka_unit_test(test_the_bits_do_not_depend_on_the_number_of_threads),
        cmocka_unit_test(test_row_loops_are_the_portable_bits),
        cmocka_unit_test(test_labels_are_positions_among_the_ids),
        cmocka_unit_test(test_impossible_tiles_are_refused_with_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
