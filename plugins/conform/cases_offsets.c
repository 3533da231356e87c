/* Rows so far apart that offsets need more than 32 bits: what lies in few rows of a huge matrix must come out as it does
 * when the rows lie together. W of a large model alone has 2.5e9 elements.
 *
 * The memory is one allocation of 9 GiB (or 4.5), of which only the few rows are touched: on a host that commits pages
 * as they are touched it costs next to nothing. Row 3 is beyond 2^31 elements and 2^32 bytes. Where there is too little
 * memory for it to be safe even if all were committed, the cases are left out and the report says so. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "normalisers.h"
#include "verdict.h"

#define ROWS INT64_C(4)
#define COLUMNS INT64_C(200)

enum { NOWHERE = -1 };

#define SIZE_LARGE ((uint64_t)9 << 30)
#define SIZE_SMALL ((uint64_t)9 << 29)

typedef struct far_memory {
    unsigned char *at; /* device */
    uint64_t bytes;
} far_memory;

/* A stride that puts the last row at the end of the memory. */
static int64_t far_ld(const far_memory *far, int32_t dtype) {
    return (int64_t)((far->bytes - 65536) / (uint64_t)float_size(dtype)) / (ROWS - 1);
}

static uint64_t available(const kit *k) {
    if (!(k->table->caps & OH_CAP_HOST_MEMORY)) {
        const int64_t unused = k->report->device.memory_free;
        return unused > 0 ? (uint64_t)unused : UINT64_MAX; /* unknown: alloc will tell */
    }
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
}

static bool open_far(kit *k, far_memory *far) {
    const uint64_t room = available(k);
    const uint64_t sizes[] = {SIZE_LARGE, SIZE_SMALL};
    for (int i = 0; i < 2; ++i) {
        void *at = NULL;
        if (room / 4 * 3 < sizes[i] || k->table->alloc(k->seat.device, sizes[i], &at) != OH_OK || !at) continue;
        *far = (far_memory){at, sizes[i]};
        return true;
    }
    kit_skip(k, "%s: no %.1f GiB of memory to spare", k->name, (double)SIZE_SMALL / (1 << 30));
    return false;
}

/* Rows of a matrix in far memory: put there as NaN or values, fetched as doubles. */
static void put_rows(kit *k, const far_memory *far, const double *values, int64_t columns, int32_t dtype) {
    const int64_t size = float_size(dtype), ld = far_ld(far, dtype);
    unsigned char *row = kit_host(k, columns, (size_t)size);
    for (int64_t i = 0; i < ROWS && kit_going(k); ++i) {
        const int64_t at = i * ld * size;
        for (int64_t j = 0; j < columns; ++j)
            float_store(row, j, dtype, values ? values[i * columns + j] : (double)NAN);
        if (k->table->upload(k->seat.queue, far->at + at, row, (uint64_t)(columns * size)) != OH_OK ||
            k->table->queue_wait(k->seat.queue) != OH_OK)
            kit_fail(k, "upload of row %lld, %lld bytes into the memory", (long long)i, (long long)at);
    }
}

static double *get_rows(kit *k, const far_memory *far, int64_t columns, int32_t dtype) {
    const int64_t size = float_size(dtype), ld = far_ld(far, dtype);
    unsigned char *row = kit_host(k, columns, (size_t)size);
    double *values = kit_doubles(k, ROWS * columns);
    for (int64_t i = 0; i < ROWS && kit_going(k); ++i) {
        if (k->table->download(k->seat.queue, row, far->at + i * ld * size, (uint64_t)(columns * size)) != OH_OK ||
            k->table->queue_wait(k->seat.queue) != OH_OK)
            kit_fail(k, "download of row %lld", (long long)i);
        for (int64_t j = 0; j < columns; ++j)
            values[i * columns + j] = float_load(row, j, dtype);
    }
    return values;
}

static double *draw_values(kit *k, const char *stream, int64_t count) {
    const uint64_t key = kit_stream(k, stream);
    double *values = kit_doubles(k, count);
    for (int64_t i = 0; values && i < count; ++i)
        values[i] = (double)draw_integer(key, i, -8, 8);
    return values;
}

static void judge_exact(kit *k, const char *what, const double *got, const double *want, int64_t columns) {
    verdict_judge(k, &(verdict){.what = what, .rows = ROWS, .columns = columns, .got = got, .want = want});
}

/* ------------------------------------------------------------------------------------------- matrix operations ---- */

/* C = A B^T with small integers; A or C is the far one. */
static void check_gemm(kit *k, bool far_a) {
    if (!kit_begin(k, CONFORM_GEMM, "gemm/offsets/%s", far_a ? "a" : "c")) return;
    const int64_t depth = 24;
    far_memory far = {NULL, 0};
    double *a = draw_values(k, "a", ROWS * depth), *b = draw_values(k, "b", COLUMNS * depth);
    double *want = kit_doubles(k, ROWS * COLUMNS);
    if (open_far(k, &far)) put_rows(k, &far, far_a ? a : NULL, far_a ? depth : COLUMNS, OH_F32);
    kit_buffer *near_a = far_a ? NULL : kit_matrix(k, "A", KIT_IN, a, ROWS, depth, depth, 0, OH_F32, 0);
    kit_buffer *near_b = kit_matrix(k, "B", KIT_IN, b, COLUMNS, depth, depth, 0, OH_F32, 0);
    kit_buffer *near_c = far_a ? kit_matrix(k, "C", KIT_OUT, NULL, ROWS, COLUMNS, COLUMNS, 0, OH_F32, 0) : NULL;
    const int64_t ld = far.at ? far_ld(&far, OH_F32) : 0;
    oh_gemm g = {.op = OH_GEMM_NT,
                 .m = ROWS,
                 .n = COLUMNS,
                 .k = depth,
                 .lda = far_a ? ld : depth,
                 .ldb = depth,
                 .ldc = far_a ? COLUMNS : ld,
                 .a = far_a ? far.at : kit_at(near_a),
                 .b = kit_at(near_b),
                 .c = far_a ? kit_at(near_c) : far.at};
    const int64_t scratch = kit_going(k) && k->table->gemm_scratch ? k->table->gemm_scratch(k->seat.device, &g) : 0;
    if (scratch > 0) g.scratch = kit_at(kit_bytes(k, "scratch", KIT_SCRATCH, NULL, scratch)), g.scratch_bytes = scratch;
    for (int64_t i = 0; i < ROWS * COLUMNS && kit_going(k); ++i)
        for (int64_t l = 0; l < depth; ++l)
            want[i] += a[i / COLUMNS * depth + l] * b[i % COLUMNS * depth + l];
    if (kit_run(k, kit_run_gemm, &g))
        judge_exact(k, "C",
                    far_a ? kit_values(k, near_c, ROWS, COLUMNS, COLUMNS, OH_F32) : get_rows(k, &far, COLUMNS, OH_F32),
                    want, COLUMNS);
    if (far.at) k->table->free(k->seat.device, far.at);
    kit_end(k);
}

static void check_copy(kit *k, bool far_src) {
    if (!kit_begin(k, CONFORM_COPY_ROWS, "copy_rows/offsets/%s", far_src ? "src" : "dst")) return;
    static const int32_t map[ROWS] = {3, 1, 2, 0};
    far_memory far = {NULL, 0};
    double *values = draw_values(k, "src", ROWS * COLUMNS), *want = kit_doubles(k, ROWS * COLUMNS);
    if (open_far(k, &far)) put_rows(k, &far, far_src ? values : NULL, COLUMNS, OH_BF16);
    kit_buffer *near = kit_matrix(k, "near", far_src ? KIT_OUT : KIT_IN, far_src ? NULL : values, ROWS, COLUMNS,
                                  COLUMNS, 0, OH_BF16, 0);
    const int64_t ld = far.at ? far_ld(&far, OH_BF16) : 0;
    const oh_copy_rows c = {.rows = ROWS,
                            .columns = COLUMNS,
                            .map = kit_at(kit_bytes(k, "map", KIT_IN, map, sizeof map)),
                            .src = far_src ? far.at : kit_at(near),
                            .src_ld = far_src ? ld : COLUMNS,
                            .dst = far_src ? kit_at(near) : far.at,
                            .dst_ld = far_src ? COLUMNS : ld,
                            .src_dtype = OH_BF16,
                            .dst_dtype = OH_BF16};
    for (int64_t i = 0; i < ROWS * COLUMNS && kit_going(k); ++i)
        want[i] = values[map[i / COLUMNS] * COLUMNS + i % COLUMNS];
    if (kit_run(k, kit_run_copy_rows, &c))
        judge_exact(k, "dst",
                    far_src ? kit_values(k, near, ROWS, COLUMNS, COLUMNS, OH_BF16)
                            : get_rows(k, &far, COLUMNS, OH_BF16),
                    want, COLUMNS);
    if (far.at) k->table->free(k->seat.device, far.at);
    kit_end(k);
}

static void check_norm(kit *k) {
    if (!kit_begin(k, CONFORM_MATRIX_NORM, "matrix_norm/offsets")) return;
    far_memory far = {NULL, 0};
    const double before[2] = {0, 0};
    double *values = draw_values(k, "data", ROWS * COLUMNS), want = 0;
    if (open_far(k, &far)) put_rows(k, &far, values, COLUMNS, OH_F32);
    for (int64_t i = 0; i < ROWS * COLUMNS && kit_going(k); ++i)
        want += values[i] * values[i];
    kit_buffer *sums = kit_bytes(k, "sums", KIT_IN_OUT, before, sizeof before);
    const oh_matrix_norm norm = {.rows = ROWS,
                                 .columns = COLUMNS,
                                 .data = far.at,
                                 .ld = far.at ? far_ld(&far, OH_F32) : 0,
                                 .sums = kit_at(sums)};
    if (kit_run(k, kit_run_matrix_norm, &norm)) {
        double got;
        memcpy(&got, kit_result(sums), sizeof got);
        verdict_number(k, "sum of squares", 0, got, want, 0);
    }
    if (far.at) k->table->free(k->seat.device, far.at);
    kit_end(k);
}

/* --------------------------------------------------------------------------------------------- tile operations ---- */

/* A tile of integers in far memory, one row of it raised at one column each. */
typedef struct far_tile {
    far_memory far;
    oh_tile_view view;
    double *values;
} far_tile;

static int32_t tile_format(const kit *k) {
    return k->table->tile_formats >> OH_TILE_BF16 & 1u ? OH_TILE_BF16 : kit_tile_format(k);
}

static void open_tile(kit *k, far_tile *t) {
    const int32_t format = tile_format(k), dtype = kit_tile_dtype(format);
    t->values = draw_values(k, "draft", ROWS * COLUMNS);
    if (format < 0 || format == OH_TILE_DIFF) kit_skip(k, "%s: no format of one tile is claimed", k->name);
    if (!kit_going(k) || !open_far(k, &t->far)) return;
    for (int64_t i = 0; i < ROWS; ++i)
        t->values[i * COLUMNS + 17 * i + 40] = 20 + (double)i;
    put_rows(k, &t->far, t->values, COLUMNS, dtype);
    t->view = (oh_tile_view){.draft = t->far.at,
                             .draft_ld = far_ld(&t->far, dtype),
                             .rows = ROWS,
                             .columns = COLUMNS,
                             .draft_transform = {NULL, 1, 0},
                             .target_transform = {NULL, 1, 0},
                             .format = format};
}

static void check_stats(kit *k) {
    if (!kit_begin(k, CONFORM_TILE_STATS, "tile_stats/offsets")) return;
    static const int32_t label[ROWS] = {NOWHERE, NOWHERE, NOWHERE, NOWHERE};
    far_tile t = {.values = NULL};
    open_tile(k, &t);
    kit_buffer *stats = kit_bytes(k, "stats", KIT_OUT, NULL, ROWS * (int64_t)sizeof(oh_row_stats));
    const oh_tile_stats s = {.tile = t.view,
                             .stats = kit_at(stats),
                             .restart = 1,
                             .label = kit_at(kit_bytes(k, "label", KIT_IN, label, sizeof label))};
    if (kit_run(k, kit_run_tile_stats, &s))
        for (int64_t i = 0; i < ROWS; ++i) {
            oh_row_stats got;
            memcpy(&got, (const unsigned char *)kit_result(stats) + i * (int64_t)sizeof got, sizeof got);
            verdict_integer(k, "z_argmax", i, got.z_argmax, 17 * i + 40);
            verdict_number(k, "z_max", i, (double)got.z_max, 20 + (double)i, 0);
        }
    if (t.far.at) k->table->free(k->seat.device, t.far.at);
    kit_end(k);
}

/* Statistics that make every row's softmax known: z_max, and a sum of 1. */
static void check_overlap(kit *k) {
    if (!kit_begin(k, CONFORM_TILE_OVERLAP, "tile_overlap/offsets")) return;
    far_tile t = {.values = NULL};
    open_tile(k, &t);
    oh_row_stats *given = kit_host(k, ROWS, sizeof *given);
    for (int64_t i = 0; i < ROWS && kit_going(k); ++i) {
        oh_row_stats_empty(&given[i]);
        given[i].z_max = 20 + (float)i, given[i].z_sum = 1, given[i].z_label = 0.5f, given[i].label = 0;
    }
    kit_buffer *overlap = kit_bytes(k, "overlap", KIT_OUT, NULL, ROWS * (int64_t)sizeof(oh_row_overlap));
    const oh_tile_overlap o = {.tile = t.view,
                               .overlap = kit_at(overlap),
                               .want = OH_WANT_RANK,
                               .restart = 1,
                               .stats = kit_at(kit_bytes(k, "stats", KIT_IN, given, ROWS * (int64_t)sizeof *given))};
    if (kit_run(k, kit_run_tile_overlap, &o))
        for (int64_t i = 0; i < ROWS; ++i) {
            oh_row_overlap got;
            int64_t rank = 0;
            memcpy(&got, (const unsigned char *)kit_result(overlap) + i * (int64_t)sizeof got, sizeof got);
            for (int64_t j = 0; j < COLUMNS; ++j)
                rank += t.values[i * COLUMNS + j] > 0.5;
            verdict_integer(k, "rank", i, got.rank, rank);
        }
    if (t.far.at) k->table->free(k->seat.device, t.far.at);
    kit_end(k);
}

/* In place, dz = p - [v = y] with p = exp(z - z_max) / 1. */
static void check_grad(kit *k) {
    if (!kit_begin(k, CONFORM_TILE_GRAD, "tile_grad/offsets")) return;
    far_tile t = {.values = NULL};
    open_tile(k, &t);
    oh_row_coef *coef = kit_host(k, ROWS, sizeof *coef);
    for (int64_t i = 0; i < ROWS && kit_going(k); ++i)
        coef[i] = (oh_row_coef){.c0 = 1, .ck = 0.25f, .z_max = 20 + (float)i, .z_inv = 1, .label = NOWHERE};
    const int32_t dtype = kit_tile_dtype(tile_format(k));
    const oh_tile_grad g = {.tile = t.view,
                            .out = t.far.at,
                            .out_ld = t.view.draft_ld,
                            .out_dtype = dtype,
                            .coef = kit_at(kit_bytes(k, "coef", KIT_IN, coef, ROWS * (int64_t)sizeof *coef))};
    double *want = kit_doubles(k, ROWS * COLUMNS), *bound = kit_doubles(k, ROWS * COLUMNS);
    for (int64_t i = 0; i < ROWS * COLUMNS && kit_going(k); ++i) {
        want[i] = exp(t.values[i] - (20 + floor((double)i / (double)COLUMNS))) - 0.25;
        bound[i] = 0x1p-16 + float_unit(dtype) * fabs(want[i]);
    }
    /* Once only: the far memory isn't put back between runs. */
    if (kit_going(k) && (kit_run_tile_grad(&k->seat, &g) != OH_OK || k->table->queue_wait(k->seat.queue) != OH_OK))
        kit_fail(k, "the call failed");
    if (kit_going(k))
        verdict_judge(k, &(verdict){.what = "dz",
                                    .rows = ROWS,
                                    .columns = COLUMNS,
                                    .want = want,
                                    .bound = bound,
                                    .row_part = 1,
                                    .all_part = 1,
                                    .got = get_rows(k, &t.far, COLUMNS, dtype)});
    if (t.far.at) k->table->free(k->seat.device, t.far.at);
    kit_end(k);
}

void cases_offsets(kit *k) {
    check_gemm(k, true);
    check_gemm(k, false);
    check_copy(k, true);
    check_copy(k, false);
    check_norm(k);
    check_stats(k);
    check_overlap(k);
    check_grad(k);
}
