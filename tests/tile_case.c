#include "tile_case.h"

#include <string.h>

#include "oracle.h"
#include "portable/dtype.h"

enum { GAP = 3 }; /* elements between rows */

static int32_t dtype_of(int32_t format) {
    if (format == OH_TILE_F32) return OH_F32;
    return format == OH_TILE_BF16 ? OH_BF16 : OH_F16;
}

static void *bytes_of_ff(uint64_t bytes) {
    void *memory = malloc((size_t)bytes + 1);
    if (!memory) abort();
    memset(memory, 0xff, (size_t)bytes);
    return memory;
}

static double *numbers(int64_t count) {
    double *x = calloc((size_t)count + 1, sizeof *x);
    if (!x) abort();
    return x;
}

static void put(const tile_case *c, void *tile, int64_t ld, int64_t row, int64_t column, double raw) {
    const float value = (float)raw;
    oh_store_elements(tile, row * ld + column, 1, dtype_of(c->shape.format), &value);
}

static double get(const tile_case *c, const void *tile, int64_t ld, int64_t row, int64_t column) {
    float value;
    oh_load_elements(tile, row * ld + column, 1, dtype_of(c->shape.format), &value);
    return (double)value;
}

void tile_case_put_draft(tile_case *c, int64_t row, int64_t column, double raw) {
    put(c, c->view.draft, c->view.draft_ld, row, column, raw);
}

void tile_case_put_target(tile_case *c, int64_t target_row, int64_t column, double raw) {
    put(c, c->target + (c->shape.misaligned != 0), c->view.target_ld, target_row, column, raw);
}

static void fill(tile_case *c, draws *d) {
    const tile_shape *s = &c->shape;
    const double spread = s->spread != 0 ? s->spread : 3;
    for (int64_t i = 0; i < s->target_rows; ++i)
        for (int64_t v = 0; v < s->columns; ++v)
            tile_case_put_target(c, i, v, spread * draw_normal(d));
    if (s->no_draft) return;
    for (int64_t i = 0; i < s->rows; ++i)
        for (int64_t v = 0; v < s->columns; ++v) {
            const int64_t from = c->target_row ? c->target_row[i] : i;
            const double t = s->target_rows > 0 ? get(c, c->view.target, c->view.target_ld, from, v) : 0;
            const double noise = (s->nearness != 0 ? s->nearness : spread) * draw_normal(d);
            const int diff = s->format == OH_TILE_DIFF;
            tile_case_put_draft(c, i, v, diff || s->nearness == 0 ? noise : t + noise);
        }
}

static void set_transforms(tile_case *c, draws *d) {
    const tile_shape *s = &c->shape;
    const int64_t vocabulary = s->first_column + s->columns;
    c->view.draft_transform = (oh_transform){NULL, s->transform > 0 ? 0.7f : 1, s->transform > 2 ? 5 : 0};
    c->view.target_transform = (oh_transform){NULL, s->transform > 0 ? 1.3f : 1, s->transform > 2 ? 8 : 0};
    if (s->transform < 2) return;
    unsigned char *bias = c->bias + (s->misaligned != 0);
    for (int64_t v = 0; v < 2 * vocabulary; ++v) {
        const float value = (float)(0.5 * draw_normal(d));
        oh_store_elements(bias, v, 1, OH_F32, &value);
    }
    /* Through void *: the library reads biases at any alignment. */
    c->view.draft_transform.bias = (const void *)bias;
    c->view.target_transform.bias = (const void *)(bias + vocabulary * (int64_t)sizeof(float));
}

static double transformed(const oh_transform *t, int64_t column, double raw, double *slope, double *error) {
    float bias = 0;
    if (t->bias) oh_load_elements(t->bias, column, 1, OH_F32, &bias);
    const double scale = (double)t->scale, softcap = (double)t->softcap;
    const double z = oracle_transform(raw, scale, (double)bias, softcap, slope);
    if (!isfinite(raw) || (t->scale == 1 && softcap == 0 && !t->bias)) return z;
    /* scale * raw, + bias, / softcap, tanhf (two units in the last place), * softcap. */
    const double x = scale * raw + (double)bias;
    const double rounding = ORACLE_U * (fabs(scale * raw) + 2 * fabs(x) + (softcap > 0 ? 6 * fabs(z) : 0));
    if (rounding > *error) *error = rounding;
    return z;
}

void tile_case_refresh(tile_case *c) {
    const tile_shape *s = &c->shape;
    double ignored, sum_error = 0;
    c->z_error = c->t_error = 0;
    for (int64_t i = 0; i < s->rows; ++i)
        for (int64_t v = 0; v < s->columns; ++v) {
            const int64_t at = i * s->columns + v, from = c->target_row ? c->target_row[i] : i;
            double t = 0, z = 0;
            if (s->target_rows > 0) {
                t = get(c, c->view.target, c->view.target_ld, from, v);
                c->t[at] = transformed(&c->view.target_transform, s->first_column + v, t, &ignored, &c->t_error);
            }
            if (s->no_draft) continue;
            z = get(c, c->view.draft, c->view.draft_ld, i, v);
            if (s->format == OH_TILE_DIFF) {
                z += t;
                sum_error = isfinite(z) ? fmax(sum_error, ORACLE_U * fabs(z)) : sum_error;
            }
            c->z[at] = transformed(&c->view.draft_transform, s->first_column + v, z, &c->slope[at], &c->z_error);
        }
    c->z_error += (double)c->view.draft_transform.scale * sum_error;
}

static void allocate(tile_case *c) {
    const tile_shape *s = &c->shape;
    const int64_t size = oh_element_size(dtype_of(s->format)), shift = s->misaligned != 0;
    c->view.draft_ld = c->view.target_ld = s->columns + GAP;
    c->draft_bytes = (uint64_t)(s->rows * c->view.draft_ld * size + shift);
    c->target_bytes = (uint64_t)(s->target_rows * c->view.target_ld * size + shift);
    c->draft = bytes_of_ff(c->draft_bytes);
    c->target = bytes_of_ff(c->target_bytes);
    c->bias = bytes_of_ff((uint64_t)(2 * (s->first_column + s->columns)) * sizeof(float) + 1);
    c->z = numbers(s->rows * s->columns);
    c->t = numbers(s->rows * s->columns);
    c->slope = numbers(s->rows * s->columns);
    c->view.draft = s->no_draft ? NULL : c->draft + shift;
    c->view.target = s->target_rows > 0 ? c->target + shift : NULL;
}

void tile_case_open(tile_case *c, const tile_shape *shape, draws *d) {
    memset(c, 0, sizeof *c);
    c->shape = *shape;
    c->view.rows = shape->rows;
    c->view.columns = shape->columns;
    c->view.first_column = shape->first_column;
    c->view.format = shape->format;
    allocate(c);
    if (shape->target_rows > 0 && shape->target_rows < shape->rows) {
        c->target_row = malloc((size_t)shape->rows * sizeof *c->target_row);
        if (!c->target_row) abort();
        for (int64_t i = 0; i < shape->rows; ++i)
            c->target_row[i] = (int32_t)draw_below(d, shape->target_rows);
        c->view.target_row = c->target_row;
    }
    set_transforms(c, d);
    fill(c, d);
    tile_case_refresh(c);
}

void tile_case_close(tile_case *c) {
    free(c->draft);
    free(c->target);
    free(c->bias);
    free(c->target_row);
    free(c->z);
    free(c->t);
    free(c->slope);
}

void tile_case_literal(tile_case *c, int64_t rows, int64_t columns, const float *z, const float *t) {
    const tile_shape shape = {.rows = rows, .target_rows = t ? rows : 0, .columns = columns};
    draws d = {1};
    tile_case_open(c, &shape, &d);
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t v = 0; v < columns; ++v) {
            tile_case_put_draft(c, i, v, (double)z[i * columns + v]);
            if (t) tile_case_put_target(c, i, v, (double)t[i * columns + v]);
        }
    tile_case_refresh(c);
}

oh_tile_view tile_case_panel(const tile_case *c, int64_t first, int64_t count) {
    const int64_t offset = first * oh_element_size(dtype_of(c->shape.format));
    oh_tile_view view = c->view;
    if (view.draft) view.draft = (unsigned char *)view.draft + offset;
    if (view.target) view.target = (const unsigned char *)view.target + offset;
    view.first_column += first;
    view.columns = count;
    return view;
}

static uint64_t fnv(uint64_t hash, const unsigned char *bytes, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

uint64_t tile_case_checksum(const tile_case *c) {
    return fnv(fnv(0xcbf29ce484222325u, c->draft, c->draft_bytes), c->target, c->target_bytes);
}
