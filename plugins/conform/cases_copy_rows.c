/* Rows copied: every pair of dtypes, with maps, scales and differences, alone and together.
 *
 * Bound. dst = factor * row_scale * (src - subtract) in f32: one rounding of the difference, one of the product of the
 * two scales, one of the last product, then one to dst's dtype: (3 u + u_dst) |dst|, to first order; 4 u to be above. */
#include <string.h>

#include "verdict.h"

enum { WITH_MAP = 1, WITH_SUBTRACT = 2, WITH_SUBTRACT_MAP = 4, WITH_ROW_SCALE = 8, WITH_FACTOR = 16 };

typedef struct shape {
    int64_t rows, columns, pad, shift;
} shape;

typedef struct copy {
    oh_copy_rows c;
    int64_t src_rows;
    double *src, *subtract, *row_scale;
    int32_t *map, *subtract_map;
    double factor;
    kit_buffer *dst;
} copy;

static double *draw_rows(kit *k, const char *stream, int64_t count, bool exact, int32_t dtype) {
    const uint64_t key = kit_stream(k, stream);
    double *values = kit_doubles(k, count);
    for (int64_t i = 0; values && i < count; ++i)
        values[i] = exact ? (double)draw_integer(key, i, -50, 50) : float_round(3 * draw_normal(key, i), dtype);
    return values;
}

/* Every row but one in six comes from somewhere, and few from one whose scale is 0 (see open_scales). */
static int32_t *draw_map(kit *k, int64_t count, int64_t src_rows) {
    const uint64_t key = kit_stream(k, "map");
    int32_t *map = kit_host(k, count, sizeof *map);
    for (int64_t i = 0; map && i < count; ++i) {
        const int64_t m = draw_integer(key, i, 0, src_rows - 1);
        map[i] = (int32_t)(i % 6 == 4 ? -1 : i % 7 == 2 ? 3 : m % 5 == 3 ? m - 1 : m);
    }
    return map;
}

/* Scales: powers of two in the exact case; 0 in every fifth, whose source row is then NaN. */
static void open_scales(kit *k, copy *p, bool exact) {
    const uint64_t key = kit_stream(k, "scale");
    float *scale = kit_host(k, p->src_rows, sizeof *scale);
    p->row_scale = kit_doubles(k, p->src_rows);
    for (int64_t m = 0; kit_going(k) && m < p->src_rows; ++m) {
        const double drawn = exact ? (m % 2 ? -0.5 : 2) : draw_normal(key, m);
        scale[m] = m % 5 == 3 ? 0 : (float)drawn;
        p->row_scale[m] = (double)scale[m];
        for (int64_t j = 0; scale[m] == 0 && j < p->c.columns; ++j)
            p->src[m * p->c.columns + j] = (double)NAN;
    }
    p->c.row_scale = kit_at(kit_bytes(k, "row_scale", KIT_IN, scale, p->src_rows * (int64_t)sizeof *scale));
}

static void open_copy(kit *k, copy *p, const shape *s, unsigned with, bool exact) {
    oh_copy_rows *c = &p->c;
    c->rows = s->rows, c->columns = s->columns;
    p->src_rows = with & WITH_MAP ? s->rows / 2 + 3 : s->rows;
    c->src_ld = s->columns + s->pad, c->dst_ld = s->columns + 2 * s->pad, c->subtract_ld = s->columns + 3 * s->pad;
    p->src = draw_rows(k, "src", p->src_rows * s->columns, exact, c->src_dtype);
    if (with & WITH_MAP) {
        p->map = draw_map(k, s->rows, p->src_rows);
        c->map = kit_at(kit_bytes(k, "map", KIT_IN, p->map, s->rows * 4));
    }
    if (with & WITH_ROW_SCALE) open_scales(k, p, exact);
    if (with & WITH_FACTOR) {
        const float factor = exact ? 0.25f : 0.37f;
        p->factor = (double)factor;
        c->factor = kit_at(kit_bytes(k, "factor", KIT_IN, &factor, 4));
    }
    if (with & WITH_SUBTRACT) {
        const int64_t rows = with & WITH_SUBTRACT_MAP ? p->src_rows / 2 + 1 : p->src_rows;
        p->subtract = draw_rows(k, "subtract", rows * s->columns, exact, c->subtract_dtype);
        c->subtract = kit_at(kit_matrix(k, "subtract", KIT_IN, p->subtract, rows, s->columns, c->subtract_ld, s->shift,
                                        c->subtract_dtype, 1000));
        if (with & WITH_SUBTRACT_MAP) {
            const uint64_t key = kit_stream(k, "subtract_map");
            p->subtract_map = kit_host(k, p->src_rows, sizeof *p->subtract_map);
            for (int64_t m = 0; p->subtract_map && m < p->src_rows; ++m)
                p->subtract_map[m] = (int32_t)draw_integer(key, m, 0, rows - 1);
            c->subtract_map = kit_at(kit_bytes(k, "subtract_map", KIT_IN, p->subtract_map, p->src_rows * 4));
        }
    }
    c->src =
        kit_at(kit_matrix(k, "src", KIT_IN, p->src, p->src_rows, s->columns, c->src_ld, s->shift, c->src_dtype, 1000));
    p->dst = kit_matrix(k, "dst", KIT_OUT, NULL, s->rows, s->columns, c->dst_ld, s->shift, c->dst_dtype, 0);
    c->dst = kit_at(p->dst);
}

static void judge(kit *k, const copy *p, bool exact) {
    const oh_copy_rows *c = &p->c;
    double *want = kit_doubles(k, c->rows * c->columns), *bound = kit_doubles(k, c->rows * c->columns);
    if (!kit_going(k)) return;
    for (int64_t i = 0; i < c->rows; ++i) {
        const int64_t m = p->map ? p->map[i] : i;
        if (m < 0 || (p->row_scale && p->row_scale[m] == 0)) continue; /* want is 0 */
        const int64_t s = p->subtract_map ? p->subtract_map[m] : m;
        const double scale = (c->factor ? p->factor : 1) * (p->row_scale ? p->row_scale[m] : 1);
        for (int64_t j = 0; j < c->columns; ++j) {
            const int64_t at = i * c->columns + j;
            const double taken = p->subtract ? p->subtract[s * c->columns + j] : 0;
            const double value = scale * (p->src[m * c->columns + j] - taken);
            want[at] = exact ? float_round(value, c->dst_dtype) : value;
            bound[at] = (4 * FLOAT_U + float_unit(c->dst_dtype)) * fabs(value) + float_floor(c->dst_dtype);
        }
    }
    verdict_judge(k, &(verdict){.what = "dst",
                                .rows = c->rows,
                                .columns = c->columns,
                                .got = kit_values(k, p->dst, c->rows, c->columns, c->dst_ld, c->dst_dtype),
                                .want = want,
                                .bound = exact ? NULL : bound,
                                .row_part = 1,
                                .all_part = 0.8});
}

static void check_copy(kit *k, int32_t from, int32_t to, const shape *s, unsigned with, bool exact) {
    if (!kit_begin(k, CONFORM_COPY_ROWS, "copy_rows/%s-%s/%s/%lldx%lld%s%s%s%s%s%s%s", float_name(from), float_name(to),
                   exact ? "exact" : "real", (long long)s->rows, (long long)s->columns, s->pad ? "-strided" : "",
                   s->shift ? "-shifted" : "", with & WITH_MAP ? "-map" : "", with & WITH_SUBTRACT ? "-subtract" : "",
                   with & WITH_SUBTRACT_MAP ? "-mapped" : "", with & WITH_ROW_SCALE ? "-scale" : "",
                   with & WITH_FACTOR ? "-factor" : ""))
        return;
    copy p = {.c = {.src_dtype = from, .subtract_dtype = from, .dst_dtype = to}};
    open_copy(k, &p, s, with, exact);
    if (kit_run(k, kit_run_copy_rows, &p.c)) judge(k, &p, exact);
    kit_end(k);
}

/* In place, for scaling: dst is src. */
static void check_in_place(kit *k, int32_t dtype) {
    if (!kit_begin(k, CONFORM_COPY_ROWS, "copy_rows/%s/in-place", float_name(dtype))) return;
    const int64_t rows = 11, columns = 83, ld = 90;
    double *values = draw_rows(k, "src", rows * columns, true, dtype), *want = kit_doubles(k, rows * columns);
    const float factor = 0.5f;
    kit_buffer *data = kit_matrix(k, "src and dst", KIT_IN_OUT, values, rows, columns, ld, 1, dtype, 1000);
    oh_copy_rows c = {.rows = rows,
                      .columns = columns,
                      .src = kit_at(data),
                      .src_ld = ld,
                      .factor = kit_at(kit_bytes(k, "factor", KIT_IN, &factor, 4)),
                      .dst = kit_at(data),
                      .dst_ld = ld,
                      .src_dtype = dtype,
                      .dst_dtype = dtype};
    if (kit_run(k, kit_run_copy_rows, &c)) {
        for (int64_t i = 0; i < rows * columns; ++i)
            want[i] = values[i] / 2;
        verdict_judge(k, &(verdict){.what = "dst",
                                    .rows = rows,
                                    .columns = columns,
                                    .want = want,
                                    .got = kit_values(k, data, rows, columns, ld, dtype)});
    }
    kit_end(k);
}

/* Numbers where a conversion goes wrong: ties, the ends of the range, subnormals, infinities, NaN; and every 16-bit
 * number there is. Pure conversions are exact or correctly rounded, bit for bit. */
static double hard_number(uint64_t key, int64_t i, int32_t from, int32_t to) {
    static const double hard[] = {0.0,
                                  65504,
                                  65519.99609375,
                                  65520,
                                  65536,
                                  -65520,
                                  0x1p-24,
                                  0x1p-25,
                                  0x1.8p-25,
                                  0x1.8p-24,
                                  0x1p-14,
                                  0x1.ffcp-15,
                                  0x1.ffep-15,
                                  1 + 0x1p-11,
                                  1 + 0x1.8p-10,
                                  1 + 0x1p-8,
                                  1 + 0x1.8p-7,
                                  0x1.fep127,
                                  0x1.ffp127,
                                  0x1.fefffep127,
                                  (double)INFINITY,
                                  -(double)INFINITY,
                                  (double)NAN};
    enum { HARD = sizeof hard / sizeof *hard };
    if (from != OH_F32) {
        const uint16_t bits = (uint16_t)i;
        return float_load(&bits, 0, from);
    }
    if (i < HARD) return hard[i];
    /* Random bits of fraction, exponents round the ends of dst's range. */
    const int exponent = (int)draw_integer(key, 2 * i, to == OH_F16 ? -27 : -100, to == OH_F16 ? 17 : 100);
    return float_round(ldexp(1 + draw_uniform(key, 2 * i + 1), exponent) * (i % 2 ? -1 : 1), OH_F32);
}

static void check_conversion(kit *k, int32_t from, int32_t to) {
    if (!kit_begin(k, CONFORM_COPY_ROWS, "copy_rows/%s-%s/convert", float_name(from), float_name(to))) return;
    const int64_t side = 256;
    const uint64_t key = kit_stream(k, "src");
    double *values = kit_doubles(k, side * side), *want = kit_doubles(k, side * side),
           *bound = kit_doubles(k, side * side);
    for (int64_t i = 0; kit_going(k) && i < side * side; ++i) {
        values[i] = hard_number(key, i, from, to);
        want[i] = float_round(values[i], to);
        /* Hardware that flushes f32's and bf16's subnormals is right too. */
        bound[i] = to != OH_F16 && fabs(want[i]) <= 0x1p-126 ? 0x1p-126 : 0;
    }
    kit_buffer *src = kit_matrix(k, "src", KIT_IN, values, side, side, side, 0, from, 0);
    kit_buffer *dst = kit_matrix(k, "dst", KIT_OUT, NULL, side, side, side, 0, to, 0);
    oh_copy_rows c = {.rows = side,
                      .columns = side,
                      .src = kit_at(src),
                      .src_ld = side,
                      .dst = kit_at(dst),
                      .dst_ld = side,
                      .src_dtype = from,
                      .dst_dtype = to};
    if (kit_run(k, kit_run_copy_rows, &c))
        verdict_judge(k, &(verdict){.what = "dst",
                                    .rows = side,
                                    .columns = side,
                                    .want = want,
                                    .bound = bound,
                                    .row_part = 1,
                                    .all_part = 1,
                                    .got = kit_values(k, dst, side, side, side, to)});
    kit_end(k);
}

/* A map of -1 alone needs no source. */
static void check_zero(kit *k) {
    if (!kit_begin(k, CONFORM_COPY_ROWS, "copy_rows/zero")) return;
    const int64_t rows = 4, columns = 37;
    static const int32_t map[4] = {-1, -1, -1, -1};
    kit_buffer *dst = kit_matrix(k, "dst", KIT_OUT, NULL, rows, columns, columns + 2, 1, OH_F32, 0);
    double *want = kit_doubles(k, rows * columns);
    oh_copy_rows c = {.rows = rows,
                      .columns = columns,
                      .map = kit_at(kit_bytes(k, "map", KIT_IN, map, sizeof map)),
                      .src = kit_at(dst),
                      .src_ld = columns + 2,
                      .dst = kit_at(dst),
                      .dst_ld = columns + 2};
    kit_buffer *src = kit_matrix(k, "src", KIT_IN, want, 1, columns, columns, 0, OH_F32, 0);
    c.src = kit_at(src);
    if (kit_run(k, kit_run_copy_rows, &c))
        verdict_judge(k, &(verdict){.what = "dst",
                                    .rows = rows,
                                    .columns = columns,
                                    .want = want,
                                    .may_be_zero = 1,
                                    .got = kit_values(k, dst, rows, columns, columns + 2, OH_F32)});
    kit_end(k);
}

static void check_refusals(kit *k) {
    if (!kit_begin(k, CONFORM_COPY_ROWS, "copy_rows/refused")) return;
    static const shape s = {6, 9, 3, 0};
    copy p = {.c = {0}};
    open_copy(k, &p, &s, WITH_SUBTRACT, true);
    const oh_copy_rows good = p.c;
    oh_copy_rows bad;
#define REFUSED(what, edit)                                                                                            \
    do {                                                                                                               \
        bad = good;                                                                                                    \
        edit;                                                                                                          \
        kit_refused(k, kit_run_copy_rows, &bad, "a copy with " what, OH_INVALID_ARGUMENT);                             \
    } while (0)
    REFUSED("rows = -1", bad.rows = -1);
    REFUSED("columns = -1", bad.columns = -1);
    REFUSED("src_ld = columns - 1", bad.src_ld = s.columns - 1);
    REFUSED("dst_ld = columns - 1", bad.dst_ld = s.columns - 1);
    REFUSED("subtract_ld = columns - 1", bad.subtract_ld = s.columns - 1);
    REFUSED("src = NULL", bad.src = NULL);
    REFUSED("dst = NULL", bad.dst = NULL);
    REFUSED("src_dtype = i32", bad.src_dtype = OH_I32);
    REFUSED("dst_dtype = f64", bad.dst_dtype = OH_F64);
    REFUSED("dst_dtype = -1", bad.dst_dtype = -1);
    REFUSED("subtract_dtype = u8", bad.subtract_dtype = OH_U8);
#undef REFUSED
    kit_end(k);
}

/* --------------------------------------------------------------------------------------------------- sample ---- */

static void judge_sample(kit *k, const void *state) {
    judge(k, state, false);
}

void sample_copy_rows(kit *k, const kit_sample_size *size, kit_sample *sample) {
    const shape s = {size->rows, size->columns, 0, 0};
    copy *p = kit_host(k, 1, sizeof *p);
    if (!p) return;
    p->c.dst_dtype = OH_BF16;
    open_copy(k, p, &s, WITH_FACTOR, false);
    const double count = (double)s.rows * (double)s.columns;
    *sample = (kit_sample){kit_run_copy_rows, &p->c, judge_sample, p, 6 * count, count};
}

void cases_copy_rows(kit *k) {
    static const int32_t dtypes[] = {OH_F32, OH_BF16, OH_F16};
    static const shape shapes[] = {{1, 1, 0, 0}, {3, 17, 0, 1}, {29, 64, 0, 0}, {13, 259, 5, 1}, {5, 2051, 1, 3}};
    static const unsigned uses[] = {0,
                                    WITH_MAP,
                                    WITH_FACTOR,
                                    WITH_ROW_SCALE,
                                    WITH_SUBTRACT,
                                    WITH_MAP | WITH_ROW_SCALE,
                                    WITH_MAP | WITH_SUBTRACT | WITH_SUBTRACT_MAP,
                                    WITH_MAP | WITH_SUBTRACT | WITH_SUBTRACT_MAP | WITH_ROW_SCALE | WITH_FACTOR};
    for (int from = 0; from < 3; ++from)
        for (int to = 0; to < 3; ++to) {
            check_conversion(k, dtypes[from], dtypes[to]);
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes; ++s)
                for (size_t u = 0; u < sizeof uses / sizeof *uses; ++u) {
                    check_copy(k, dtypes[from], dtypes[to], &shapes[s], uses[u], true);
                    check_copy(k, dtypes[from], dtypes[to], &shapes[s], uses[u], false);
                }
        }
    for (int i = 0; i < 3; ++i)
        check_in_place(k, dtypes[i]);
    check_zero(k);
    check_refusals(k);
}
