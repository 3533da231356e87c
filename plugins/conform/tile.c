#include "tile.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Between rows: large enough to win every comparison that wrongly includes it. */
#define DECOY 3000.0

const char *kit_tile_format_name(int32_t format) {
    static const char *const names[] = {"f32", "bf16", "f16", "diff"};
    return names[format];
}

const char *kit_tile_fill_name(tile_fill fill) {
    static const char *const names[TILE_FILLS] = {"flat", "ties", "near", "far", "wide", "edges"};
    return names[fill];
}

int32_t kit_tile_dtype(int32_t format) {
    if (format == OH_TILE_F32) return OH_F32;
    return format == OH_TILE_BF16 ? OH_BF16 : OH_F16;
}

const int64_t kit_tile_shapes[TILE_SHAPES][4] = {{1, 1, 0, 0},
                                                 {3, 2, 0, 1},
                                                 {4, 7, 2, 0},
                                                 {5, 19, 0, 0},
                                                 {TILE_EDGE_ROWS, 129, 3, 1},
                                                 {TILE_EDGE_ROWS, 512, 0, 0},
                                                 {TILE_EDGE_ROWS, 1031, 7, 3},
                                                 {3, 5003, 0, 1}};

tile_spec kit_tile_shape(const int64_t shape[4], int place, tile_fill fill, int32_t format) {
    return (tile_spec){.rows = shape[0],
                       .columns = shape[1],
                       .pad = shape[2],
                       .shift = shape[3],
                       .target_rows = shape[0],
                       .first_column = place % 3 == 2 ? 1000 : 0,
                       .fill = fill,
                       .format = format};
}

void kit_tile_name(const tile_spec *s, char name[80]) {
    snprintf(name, 80, "%s/%s/%lldx%lld%s%s%s%s%s%s%s", kit_tile_format_name(s->format), kit_tile_fill_name(s->fill),
             (long long)s->rows, (long long)s->columns, s->pad ? "-strided" : "", s->shift ? "-shifted" : "",
             s->target_rows == 0        ? "-alone"
             : s->target_rows < s->rows ? "-shared"
                                        : "",
             s->transform & TILE_SCALE ? "-scale" : "", s->transform & TILE_BIAS ? "-bias" : "",
             s->transform & TILE_SOFTCAP ? "-softcap" : "", s->no_draft ? "-target" : "");
}

/* ------------------------------------------------------------------------------------------------- raw logits ---- */

/* Largest offset that the format holds with small integers on top. */
static double far_offset(int32_t format) {
    if (format == OH_TILE_F32) return 1e6;
    return format == OH_TILE_BF16 ? 256 : 2000;
}

/* What masks are made of: the format's least number. */
static double least(const tile_spec *s, bool is_draft) {
    if (s->format == OH_TILE_DIFF) return is_draft ? 0 : -6e4;
    if (s->format == OH_TILE_F16) return -6e4;
    return s->format == OH_TILE_BF16 ? -0x1.fep127 : (double)-FLT_MAX;
}

static double edge(const tile_spec *s, uint64_t key, int64_t row, int64_t column, bool is_draft) {
    const int64_t last = s->columns - 1;
    const double plain = (double)draw_integer(key, row * s->columns + column, -6, 6) / 2;
    const double inf = (double)INFINITY;
    switch (row % TILE_EDGE_ROWS) {
    case 0:
        return is_draft && column == last / 2 ? (double)NAN : plain;
    case 1:
        return is_draft && column == last ? inf : plain;
    case 2:
        return is_draft ? -inf : plain;
    case 3:
        return column == last / 3 ? 2 : -inf;
    case 4:
        return 1;
    case 5:
        return far_offset(s->format) + 8 * plain;
    case 6:
        return column == last ? 9 : plain;
    case 7:
        return is_draft && column % 3 == 0 ? -inf : plain;
    case 8:
        return !is_draft && column == 0 ? (double)NAN : plain;
    case 9:
        return !is_draft && column % 5 == 1 ? -inf : plain;
    case 10:
        return column == 0 ? 0 : -110;
    case 11:
        return column == last ? 0 : column % 2 ? -110 : -inf;
    case 12:
        return !is_draft ? -inf : plain;
    case 13:
        return column == 0 ? 9 : plain;
    case 14: /* masked in both, from the front, so that maxima rise from there */
        return column <= last / 2 ? least(s, is_draft) : plain;
    case 15: /* masked in one, no logit of the other */
        return column > last / 2 ? plain : is_draft ? least(s, true) : -inf;
    case 16:
        return column > last / 2 ? plain : is_draft ? -inf : least(s, false);
    default: /* finite, and so far below the rest that no exponential of it is one by its own offset in f32 */
        return is_draft && column > last / 2 ? (s->format == OH_TILE_F16 || s->format == OH_TILE_DIFF ? -6e4 : -1e10)
                                             : plain;
    }
}

static double raw_logit(const tile_spec *s, uint64_t key, int64_t row, int64_t column, bool is_draft) {
    const int64_t i = row * s->columns + column;
    switch (s->fill) {
    case TILE_FLAT:
        return draw_bits(key, (uint64_t)i) % 7 == 0 && column > 0 ? -(double)INFINITY : 0;
    case TILE_TIES:
        return (double)draw_integer(key, i, -2, 3);
    case TILE_WIDE:
        return 40 * draw_normal(key, i);
    case TILE_EDGES:
        return edge(s, key, row, column, is_draft);
    default:
        return 3 * draw_normal(key, i);
    }
}

/* Raw logits as stored. The drafter's of OH_TILE_DIFF are differences. */
static void draw_raw(kit *k, const tile_spec *s, const int32_t *target_row, double *draft, double *target) {
    const uint64_t draft_key = kit_stream(k, "draft"), target_key = kit_stream(k, "target");
    const int32_t dtype = kit_tile_dtype(s->format);
    for (int64_t i = 0; i < s->target_rows; ++i)
        for (int64_t j = 0; j < s->columns; ++j)
            target[i * s->columns + j] = float_round(raw_logit(s, target_key, i, j, false), dtype);
    for (int64_t i = 0; draft && i < s->rows; ++i)
        for (int64_t j = 0; j < s->columns; ++j) {
            const double own = raw_logit(s, draft_key, i, j, true);
            const double of_target = s->target_rows ? target[target_row[i] * s->columns + j] : 0;
            const double near = 0.05 * draw_normal(draft_key, i * s->columns + j);
            double stored = own;
            if (s->fill == TILE_NEAR && s->target_rows)
                stored = s->format == OH_TILE_DIFF ? near : of_target + near;
            else if (s->format == OH_TILE_DIFF && isfinite(own) && isfinite(of_target) && s->fill != TILE_FAR)
                stored = own - of_target;
            draft[i * s->columns + j] = float_round(stored, dtype);
        }
}

/* ------------------------------------------------------------------------------------------------ transforms ---- */

static double transform(const oh_transform *f, double bias, double raw, double raw_error, double *error) {
    *error = 0;
    if (raw == -(double)INFINITY || bias == -(double)INFINITY) return -(double)INFINITY;
    if (!isfinite(raw)) return raw;
    const double scale = (double)f->scale, cap = (double)f->softcap, x = scale * raw + bias;
    *error = fabs(scale) * raw_error;
    if (scale != 1 || bias != 0) *error += FLOAT_U * (fabs(scale * raw) + fabs(x));
    if (!(cap > 0)) return x;
    const double z = cap * tanh(x / cap);
    *error += (2 + 6 + 2) * FLOAT_U * fabs(z);
    return z;
}

/* dz/draw = scale (1 - (z/cap)^2), and its error: 1 - y^2 to two roundings, y off by z's error. */
static double slope(const oh_transform *f, double z, double z_error, double *error) {
    const double scale = (double)f->scale, cap = (double)f->softcap;
    *error = 0;
    if (!(cap > 0)) return scale;
    const double y = z / cap;
    *error = fabs(scale) * (4 * FLOAT_U + 2 * fabs(y) * z_error / cap);
    return scale * (1 - y * y);
}

static oh_transform draw_transform(kit *k, const tile_spec *s, const char *stream, double sign, double *bias) {
    oh_transform f = {.scale = 1};
    if (s->transform & TILE_SCALE) f.scale = sign > 0 ? 0.75f : 1.25f;
    if (s->transform & TILE_SOFTCAP) f.softcap = sign > 0 ? 5.0f : 7.5f;
    if (!(s->transform & TILE_BIAS)) return f;
    const uint64_t key = kit_stream(k, stream);
    const int64_t count = s->first_column + s->columns;
    float *stored = kit_host(k, count, sizeof *stored);
    if (!stored) return f;
    const uint64_t mask =
        kit_stream(k, "mask"); /* of both tiles: masked on one side only, a column makes kl infinite */
    /* Columns before the tile have biases that would win. One column in nine is masked; the first stays. */
    for (int64_t v = 0; v < count; ++v) {
        const int64_t j = v - s->first_column;
        const double drawn = j < 0 ? DECOY : (double)(float)draw_normal(key, j);
        stored[v] = j > 0 && draw_bits(mask, (uint64_t)j) % 9 == 0 ? -INFINITY : (float)drawn;
        if (j >= 0) bias[j] = (double)stored[v];
    }
    f.bias = kit_at(kit_bytes(k, stream, KIT_IN, stored, count * (int64_t)sizeof *stored));
    return f;
}

/* --------------------------------------------------------------------------------------------------- a tile ---- */

static void set_expected(tile *t, const double *draft, const double *target, const int32_t *target_row,
                         const double *draft_bias, const double *target_bias) {
    const tile_spec *s = &t->spec;
    for (int64_t i = 0; i < s->rows; ++i)
        for (int64_t j = 0; j < s->columns; ++j) {
            const int64_t at = i * s->columns + j;
            const double of_target = s->target_rows ? target[target_row[i] * s->columns + j] : 0;
            if (s->target_rows)
                t->t[at] = transform(&t->view.target_transform, target_bias[j], of_target, 0, &t->t_error[at]);
            if (!draft) continue;
            const bool diff = s->format == OH_TILE_DIFF;
            const double raw = diff ? of_target + draft[at] : draft[at];
            const double raw_error = diff && isfinite(raw) ? FLOAT_U * fabs(raw) : 0;
            t->z[at] = transform(&t->view.draft_transform, draft_bias[j], raw, raw_error, &t->z_error[at]);
            t->slope[at] = slope(&t->view.draft_transform, t->z[at], t->z_error[at], &t->slope_error[at]);
        }
}

bool kit_tile_open(kit *k, tile *t, const tile_spec *s) {
    *t = (tile){.spec = *s};
    const int64_t count = s->rows * s->columns, ld = s->columns + s->pad;
    double *draft = s->no_draft ? NULL : kit_doubles(k, count), *target = kit_doubles(k, s->target_rows * s->columns);
    double *draft_bias = kit_doubles(k, s->columns), *target_bias = kit_doubles(k, s->columns);
    int32_t *target_row = kit_host(k, s->rows, sizeof *target_row);
    t->z = kit_doubles(k, count), t->t = kit_doubles(k, count);
    t->z_error = kit_doubles(k, count), t->t_error = kit_doubles(k, count);
    t->slope = kit_doubles(k, count), t->slope_error = kit_doubles(k, count);
    if (!kit_going(k)) return false;
    const uint64_t key = kit_stream(k, "target_row");
    for (int64_t i = 0; i < s->rows; ++i)
        target_row[i] = s->target_rows < s->rows && s->target_rows
                            ? (int32_t)draw_integer(key, i, 0, s->target_rows - 1)
                            : (int32_t)i;
    t->target_row = target_row;
    draw_raw(k, s, target_row, draft, target);

    oh_tile_view *v = &t->view;
    v->rows = s->rows, v->columns = s->columns, v->first_column = s->first_column, v->format = s->format;
    v->draft_ld = ld, v->target_ld = ld + s->pad;
    v->draft_transform = draw_transform(k, s, "draft bias", 1, draft_bias);
    v->target_transform = draw_transform(k, s, "target bias", -1, target_bias);
    const int32_t dtype = kit_tile_dtype(s->format);
    if (draft)
        t->draft = kit_matrix(k, "draft tile", s->for_grad ? KIT_IN_OUT : KIT_IN, draft, s->rows, s->columns,
                              v->draft_ld, s->shift, dtype, DECOY);
    if (s->target_rows) {
        t->target = kit_matrix(k, "target tile", KIT_IN, target, s->target_rows, s->columns, v->target_ld, s->shift,
                               dtype, DECOY);
        if (s->target_rows < s->rows)
            v->target_row = kit_at(kit_bytes(k, "target_row", KIT_IN, target_row, s->rows * 4));
    }
    v->draft = kit_at(t->draft), v->target = kit_at(t->target);
    if (kit_going(k)) set_expected(t, draft, target, target_row, draft_bias, target_bias);
    return kit_going(k);
}

oh_tile_view kit_tile_panel(const tile *t, int64_t first, int64_t count) {
    oh_tile_view v = t->view;
    const int64_t size = float_size(kit_tile_dtype(v.format));
    if (v.draft) v.draft = (unsigned char *)v.draft + first * size;
    if (v.target) v.target = (const unsigned char *)v.target + first * size;
    v.columns = count;
    v.first_column += first;
    return v;
}
