/* The gradient: every format into every dtype, apart and in place, for each part of the linear form. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "normalisers.h"
#include "passes.h"
#include "reference.h"
#include "verdict.h"

enum { FORM_ALL = OH_FORM_LOG_P | OH_FORM_LOG_Q | OH_FORM_LOG_M | OH_FORM_LE | OH_FORM_Q };

static float coefficient(uint64_t key, int64_t i, bool used, bool exact) {
    if (!used) return 0;
    return exact ? (float)draw_integer(key, i, 1, 4) / 4 : (float)draw_normal(key, i);
}

/* Random forms; in a flat tile powers of two and probabilities of 2^-5, which every step keeps exact. Without a softmax
 * a row is zero, and so is every seventh. */
static void draw_coef(uint64_t key, const tile *t, const oh_row_stats *s, int64_t row, uint32_t form, bool exact,
                      oh_row_coef *c) {
    const uint32_t of_target = OH_FORM_LOG_Q | OH_FORM_LOG_M | OH_FORM_LE | OH_FORM_Q;
    memset(c, 0, sizeof *c);
    c->label = row % 3 == 2 ? -1 : s->label;
    c->zero = row % 7 == 5 || !normalisers_finite(t, s) ? OH_ZERO_ROW : OH_ZERO_NOT;
    if (!normalisers_finite(t, s)) return;
    const int64_t i = row * 16;
    c->c0 = coefficient(key, i, true, exact), c->cy = coefficient(key, i + 1, true, exact);
    c->ck = coefficient(key, i + 2, true, exact) / 256;
    c->c1 = coefficient(key, i + 3, form & OH_FORM_LOG_P, exact);
    /* A finite row has no log q of -inf that counts. */
    c->c2 = coefficient(key, i + 4, form & OH_FORM_LOG_Q && !(s->flags & OH_ROW_Q0_P), exact);
    c->c3 = coefficient(key, i + 5, form & OH_FORM_LOG_M, exact);
    c->c4 = coefficient(key, i + 6, form & OH_FORM_LE, exact);
    c->cq = coefficient(key, i + 7, form & OH_FORM_Q, exact);
    c->z_max = s->z_max;
    c->z_inv = exact ? 0.03125f : (float)(1 / s->z_sum), c->z_log = exact ? 4 : (float)log(s->z_sum);
    if (!(form & of_target)) return;
    c->t_max = s->t_max;
    c->t_inv = exact ? 0.0625f : (float)(1 / s->t_sum), c->t_log = exact ? 2 : (float)log(s->t_sum);
}

void grad_case_open_out(kit *k, grad_case *c, int32_t out_dtype, uint32_t form) {
    const tile_spec *s = &c->t.spec;
    const int64_t size = float_size(out_dtype), tile_size = float_size(kit_tile_dtype(s->format));
    c->g = (oh_tile_grad){.tile = c->t.view, .out_dtype = out_dtype, .form = form};
    if (c->in_place) {
        c->out = c->t.draft;
        c->g.out_ld = c->t.view.draft_ld * tile_size / size;
        if (c->out) c->out->row_bytes = s->columns * size; /* what may be written of each row */
    } else {
        c->g.out_ld = s->columns + 2 * s->pad + 1;
        c->out = kit_matrix(k, "out", KIT_OUT, NULL, s->rows, s->columns, c->g.out_ld, s->shift, out_dtype, 0);
    }
    c->g.out = kit_at(c->out);
}

void grad_case_open(kit *k, grad_case *c, int32_t out_dtype, uint32_t form) {
    const tile_spec *s = &c->t.spec;
    const uint64_t key = kit_stream(k, "coef");
    oh_row_stats *stats = normalisers_of(k, &c->t);
    c->exact = s->fill == TILE_FLAT && !s->transform && !(form & OH_FORM_LOG_M);
    c->coef = kit_host(k, s->rows, sizeof *c->coef);
    if (!kit_going(k)) return;
    for (int64_t i = 0; i < s->rows; ++i) {
        draw_coef(key, &c->t, &stats[i], i, form, c->exact, &c->coef[i]);
        if (c->with_done && i % 14 == 3) c->coef[i].zero = OH_ZERO_DONE;
    }
    grad_case_open_out(k, c, out_dtype, form);
    c->g.coef = kit_at(kit_bytes(k, "coef", KIT_IN, c->coef, s->rows * (int64_t)sizeof *c->coef));
}

static void check_left(kit *k, const grad_case *c, int64_t row) {
    const kit_buffer *b = c->out;
    const uint64_t at = b->offset + (uint64_t)(row * b->stride);
    if (memcmp(b->image + at, b->now + at, (size_t)b->row_bytes) != 0)
        kit_fail(k, "dz[%lld] was written, expected a row that is left as it was", (long long)row);
}

/* Whether a row's gradient is 0 by its coefficients, or not judged by them at all. */
static bool is_idle(const oh_row_coef *c) {
    const bool some =
        c->c0 != 0 || c->c1 != 0 || c->c2 != 0 || c->c3 != 0 || c->c4 != 0 || c->cy != 0 || c->cq != 0 || c->ck != 0;
    return c->zero || !some;
}

void grad_case_judge(kit *k, const grad_case *c) {
    const tile_spec *s = &c->t.spec;
    const int64_t columns = s->columns;
    double *want = kit_doubles(k, s->rows * columns), *bound = kit_doubles(k, s->rows * columns);
    double *spread = kit_doubles(k, s->rows * columns);
    double *got = kit_values(k, c->out, s->rows, columns, c->g.out_ld, c->g.out_dtype);
    int64_t idle = 0;
    if (!kit_going(k)) return;
    for (int64_t i = 0; i < s->rows; ++i) {
        const int64_t at = i * columns;
        reference_grad(&c->t, i, &c->coef[i], c->g.form, c->g.out_dtype, want + at, bound + at, spread + at);
        idle += is_idle(&c->coef[i]);
        if (c->coef[i].zero != OH_ZERO_DONE) continue;
        check_left(k, c, i);
        memcpy(got + at, want + at, (size_t)columns * sizeof *got);
    }
    /* A rounding that is anywhere within half a unit has a norm of 0.58 of its bound; with room for what is common to a
     * row, 0.8. Logits must be as good as all different. */
    const double part = s->fill == TILE_NEAR || s->fill == TILE_FAR ? 0.8 : 0;
    for (int64_t i = 0; c->exact && i < s->rows * columns; ++i)
        want[i] = float_round(want[i], c->g.out_dtype);
    verdict_judge(k, &(verdict){.what = "dz",
                                .rows = s->rows,
                                .columns = columns,
                                .got = got,
                                .want = want,
                                .bound = c->exact ? NULL : bound,
                                .spread = spread,
                                .row_part = part,
                                .all_part = part,
                                .may_be_zero = s->fill == TILE_EDGES || s->rows < 4 || 2 * idle > s->rows});
}

static void check_grad(kit *k, const tile_spec *spec, int32_t out_dtype, uint32_t form, bool in_place) {
    char name[80];
    tile_spec s = *spec;
    s.for_grad = in_place;
    kit_tile_name(&s, name);
    if (!kit_begin(k, CONFORM_TILE_GRAD, "tile_grad/%s-%s-form%02x%s", name, float_name(out_dtype), form,
                   in_place ? "-inplace" : ""))
        return;
    grad_case c = {.in_place = in_place, .with_done = true};
    if (kit_tile_open(k, &c.t, &s)) grad_case_open(k, &c, out_dtype, form);
    if (kit_run(k, kit_run_tile_grad, &c.g)) grad_case_judge(k, &c);
    kit_end(k);
}

static void check_format(kit *k, int32_t format) {
    static const int64_t shapes[][4] = {/* rows, columns, pad, shift */
                                        {1, 1, 0, 0},
                                        {3, 2, 0, 1},
                                        {4, 7, 2, 0},
                                        {5, 19, 0, 0},
                                        {TILE_EDGE_ROWS, 129, 3, 1},
                                        {TILE_EDGE_ROWS, 512, 0, 0},
                                        {TILE_EDGE_ROWS, 1031, 6, 3},
                                        {3, 5003, 0, 1}};
    static const uint32_t forms[] = {
        0, OH_FORM_Q, OH_FORM_LE, OH_FORM_LOG_P | OH_FORM_LOG_M, OH_FORM_LOG_P | OH_FORM_LOG_Q, OH_FORM_LE | OH_FORM_Q};
    static const int32_t dtypes[] = {OH_F32, OH_BF16, OH_F16};
    enum { SHAPES = sizeof shapes / sizeof *shapes, FORMS = sizeof forms / sizeof *forms };
    const int64_t tile_size = float_size(kit_tile_dtype(format));
    for (int fill = 0; fill < TILE_FILLS; ++fill)
        for (int s = 0; s < SHAPES; ++s) {
            tile_spec spec = kit_tile_shape(shapes[s], s, (tile_fill)fill, format);
            for (int d = 0; d < 3; ++d) {
                check_grad(k, &spec, dtypes[d], FORM_ALL, false);
                check_grad(k, &spec, dtypes[d], forms[(s + d + fill) % FORMS], false);
                if (float_size(dtypes[d]) <= tile_size)
                    check_grad(k, &spec, dtypes[d], s % 2 ? FORM_ALL : OH_FORM_Q, true);
            }
            if (format == OH_TILE_DIFF || spec.columns < 7) continue;
            spec.target_rows = 0;
            check_grad(k, &spec, OH_F32, s % 2 ? 0 : OH_FORM_LOG_P, false);
        }
    for (int fill = TILE_TIES; fill < TILE_FILLS; ++fill)
        for (uint32_t transform = 1; transform < 8; ++transform) {
            const tile_spec spec = {14, 301, 5, 1, 14, 64, (tile_fill)fill, format, transform, false, false};
            check_grad(k, &spec, dtypes[transform % 3], FORM_ALL, false);
            check_grad(k, &spec, kit_tile_dtype(format), OH_FORM_Q, true);
        }
    const tile_spec shared = {23, 257, 1, 0, 6, 0, TILE_NEAR, format, TILE_SCALE, false, false};
    check_grad(k, &shared, OH_F32, FORM_ALL, false);
}

static void check_refusals(kit *k, int32_t format) {
    if (!kit_begin(k, CONFORM_TILE_GRAD, "tile_grad/refused")) return;
    const tile_spec spec = {4, 33, 3, 0, 4, 0, TILE_FAR, format, 0, false, true};
    grad_case c = {.in_place = false};
    if (kit_tile_open(k, &c.t, &spec)) grad_case_open(k, &c, OH_F32, FORM_ALL);
    const oh_tile_grad good = c.g;
    oh_tile_grad bad;
#define REFUSED(what, edit)                                                                                            \
    do {                                                                                                               \
        bad = good;                                                                                                    \
        edit;                                                                                                          \
        kit_refused(k, kit_run_tile_grad, &bad, "a gradient with " what, OH_INVALID_ARGUMENT);                         \
    } while (0)
    REFUSED("rows = -1", bad.tile.rows = -1);
    REFUSED("columns = -1", bad.tile.columns = -1);
    REFUSED("draft_ld = columns - 1", bad.tile.draft_ld = spec.columns - 1);
    REFUSED("target_ld = columns - 1", bad.tile.target_ld = spec.columns - 1);
    REFUSED("out_ld = columns - 1", bad.out_ld = spec.columns - 1);
    REFUSED("format = 9", bad.tile.format = 9);
    REFUSED("out_dtype = i32", bad.out_dtype = OH_I32);
    REFUSED("draft = NULL", bad.tile.draft = NULL);
    REFUSED("coef = NULL", bad.coef = NULL);
    REFUSED("out = NULL", bad.out = NULL);
    REFUSED("OH_FORM_Q without a target", bad.tile.target = NULL);
    REFUSED("rows that move in place", bad.out = bad.tile.draft; bad.out_ld = bad.tile.draft_ld + 1);
    if (float_size(kit_tile_dtype(format)) == 2)
        REFUSED("elements that grow in place", bad.out = bad.tile.draft; bad.out_ld = bad.tile.draft_ld / 2);
#undef REFUSED
    kit_end(k);
}

/* --------------------------------------------------------------------------------------------------- sample ---- */

static void judge_sample(kit *k, const void *state) {
    grad_case_judge(k, state);
}

void sample_tile_grad(kit *k, const kit_sample_size *size, kit_sample *sample) {
    const tile_spec spec = {.rows = size->rows,
                            .columns = size->columns,
                            .target_rows = size->rows,
                            .fill = TILE_NEAR,
                            .format = kit_tile_format(k)};
    grad_case *c = kit_host(k, 1, sizeof *c);
    if (!c) return;
    if (kit_tile_open(k, &c->t, &spec)) grad_case_open(k, c, kit_tile_dtype(spec.format), OH_FORM_Q);
    const double count = (double)spec.rows * (double)spec.columns,
                 size_of = (double)float_size(kit_tile_dtype(spec.format));
    *sample = (kit_sample){kit_run_tile_grad, &c->g, judge_sample, c, 3 * size_of * count, 8 * count};
}

void cases_tile_grad(kit *k) {
    int32_t last = -1;
    for (int32_t format = OH_TILE_F32; format <= OH_TILE_DIFF; ++format) {
        if (!(k->table->tile_formats >> format & 1u)) continue;
        check_format(k, format);
        last = format;
    }
    if (last >= 0) check_refusals(k, last);
}
