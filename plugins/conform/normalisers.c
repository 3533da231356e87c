#include "normalisers.h"

#include <math.h>
#include <string.h>

#include "reference.h"

static int64_t largest(const double *x, int64_t columns) {
    int64_t first = 0;
    for (int64_t v = 1; v < columns; ++v)
        if (x[v] > x[first]) first = v;
    return first;
}

/* Rounded up or down to an f32, which a transformed maximum needn't be. */
static void set_offsets(const tile *t, int64_t row, oh_row_stats *s) {
    const int64_t columns = t->spec.columns, at = row * columns;
    const int64_t z = largest(t->z + at, columns), y = largest(t->t + at, columns);
    s->z_argmax = (int32_t)(z + t->spec.first_column);
    s->z_max = (float)t->z[at + z];
    if (!t->spec.target_rows) return;
    s->t_argmax = (int32_t)(y + t->spec.first_column);
    s->t_max = (float)t->t[at + y];
}

static void take_label_logits(kit *k, const tile *t, oh_row_stats *stats) {
    const int64_t rows = t->spec.rows;
    int32_t *label = kit_host(k, rows, sizeof *label);
    for (int64_t i = 0; label && i < rows; ++i)
        label[i] = stats[i].label;
    kit_buffer *to = kit_bytes(k, "first read", KIT_OUT, NULL, rows * (int64_t)sizeof *stats);
    const oh_tile_stats first = {.tile = t->view,
                                 .stats = kit_at(to),
                                 .label = kit_at(kit_bytes(k, "label", KIT_IN, label, rows * 4)),
                                 .restart = 1};
    if (!kit_run(k, kit_run_tile_stats, &first)) return;
    for (int64_t i = 0; i < rows; ++i) {
        oh_row_stats own;
        memcpy(&own, (const unsigned char *)kit_result(to) + i * (int64_t)sizeof own, sizeof own);
        const double apart = fabs((double)own.z_label - (double)stats[i].z_label);
        const int64_t at = i * t->spec.columns + (stats[i].label - t->spec.first_column);
        if (apart <= 2 * t->z_error[at]) stats[i].z_label = own.z_label; /* else tile_stats is wrong, and said to be */
    }
    to->role = KIT_IN; /* from now on */
    memcpy(to->image, to->now, to->total);
}

oh_row_stats *normalisers_of(kit *k, const tile *t) {
    const tile_spec *spec = &t->spec;
    const uint64_t key = kit_stream(k, "label");
    oh_row_stats *stats = kit_host(k, spec->rows, sizeof *stats);
    bool rounded = false;
    for (int64_t i = 0; stats && i < spec->rows; ++i) {
        oh_row_stats *s = &stats[i];
        oh_row_stats_empty(s);
        s->flags = reference_flags(t, i);
        const int64_t last = spec->columns - 1;
        const int64_t label = i % 4 == 1 ? last : i % 4 == 2 ? 0 : draw_integer(key, i, 0, last);
        s->label = (int32_t)(spec->first_column + label);
        if (s->flags & (OH_ROW_Z_BAD | OH_ROW_T_BAD)) continue;
        set_offsets(t, i, s);
        s->z_label = (float)t->z[i * spec->columns + label];
        rounded = rounded || t->z_error[i * spec->columns + label] > 0;
        const row_sums sums = reference_sums(t, i, s);
        s->z_sum = sums.z_sum.value, s->t_sum = sums.t_sum.value;
    }
    if (stats && rounded) take_label_logits(k, t, stats);
    return stats;
}

bool normalisers_finite(const tile *t, const oh_row_stats *s) {
    if (s->flags & OH_ROW_Z_BAD || !(s->z_max > -INFINITY)) return false;
    return !t->spec.target_rows || (!(s->flags & OH_ROW_T_BAD) && s->t_max > -INFINITY);
}
