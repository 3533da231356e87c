/* The first read: every format, whole and in panels, with and without drafter and target, labels given and found. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "passes.h"
#include "reference.h"
#include "verdict.h"

enum { WANT_ALL = OH_WANT_ENTROPY | OH_WANT_KL | OH_WANT_RKL | OH_WANT_TOTAL };

static oh_status run_panels(const kit_seat *seat, const void *arguments) {
    const stats_case *c = arguments;
    oh_status status = OH_OK;
    for (int i = 0; i < c->panel_count && status == OH_OK; ++i)
        status = kit_run_tile_stats(seat, &c->panels[i]);
    return status;
}

/* ------------------------------------------------------------------------------------------------- judging ---- */

/* Whether column v may be called the first: nothing is certainly larger, and no lower column is exactly as large. */
static bool may_be_first(const double *x, const double *error, int64_t columns, int64_t v) {
    for (int64_t u = 0; u < columns; ++u) {
        if (x[u] == x[v] ? u < v : x[u] - x[v] > error[u] + error[v]) return false;
    }
    return true;
}

static int64_t largest(const double *x, int64_t columns) {
    int64_t first = 0;
    for (int64_t v = 1; v < columns; ++v)
        if (x[v] > x[first]) first = v;
    return first;
}

static void check_max(kit *k, const tile *t, int64_t row, const char *what, const double *x, const double *error,
                      double max, int32_t argmax) {
    const int64_t columns = t->spec.columns, first = t->spec.first_column, at = argmax - first;
    char name[40];
    snprintf(name, sizeof name, "%s_argmax", what);
    if (at < 0 || at >= columns || !may_be_first(x, error, columns, at))
        kit_fail(k, "%s[%lld] = %d, expected %lld, the lowest column with the largest logit", name, (long long)row,
                 (int)argmax, (long long)largest(x, columns) + first);
    if (!kit_going(k)) return;
    snprintf(name, sizeof name, "%s_max", what);
    verdict_number(k, name, row, max, x[at], error[at] + float_floor(OH_F32));
}

static void check_label(kit *k, const stats_case *c, int64_t row, const oh_row_stats *s) {
    const int64_t columns = c->t.spec.columns;
    const double *z = c->t.z + row * columns, *error = c->t.z_error + row * columns;
    const int32_t want = c->label ? c->label[row] : s->t_argmax;
    verdict_integer(k, "label", row, s->label, want);
    const int64_t at = want - c->t.spec.first_column;
    const bool seen = !c->t.spec.no_draft && at >= 0 && at < columns;
    verdict_number(k, "z_label", row, (double)s->z_label, seen ? z[at] : -(double)INFINITY, seen ? error[at] : 0);
}

/* Sums, whose offsets were found right. Exponentials of a flat row are exact, and then everything is. */
static void check_sums(kit *k, const stats_case *c, int64_t row, const oh_row_stats *s) {
    const tile_spec *spec = &c->t.spec;
    const row_sums r = reference_sums(&c->t, row, s);
    const double loose = spec->fill == TILE_FLAT && !spec->transform ? 0 : 1;
    if (!spec->no_draft) {
        verdict_number(k, "z_sum", row, s->z_sum, r.z_sum.value, loose * r.z_sum.bound);
        if (c->want & OH_WANT_ENTROPY) verdict_number(k, "z_dot", row, s->z_dot, r.z_dot.value, loose * r.z_dot.bound);
        if (c->want & OH_WANT_TOTAL && isfinite(r.z_total.bound))
            verdict_number(k, "z_total", row, s->z_total, r.z_total.value,
                           (spec->fill == TILE_TIES && !spec->transform && spec->format != OH_TILE_DIFF ? 0 : loose) *
                               r.z_total.bound);
        else if (c->want & OH_WANT_TOTAL && !(s->z_total < (double)-FLT_MAX)) /* a sum of masks, in f32 -inf */
            kit_fail(k, "z_total[%lld] = %.12g, expected %.12g, or -inf", (long long)row, s->z_total, r.z_total.value);
    }
    if (spec->target_rows) verdict_number(k, "t_sum", row, s->t_sum, r.t_sum.value, loose * r.t_sum.bound);
    /* An infinite divergence has no sum. */
    const uint32_t flags = reference_flags(&c->t, row);
    if (c->want & OH_WANT_KL && !(flags & OH_ROW_P0_Q))
        verdict_number(k, "kl_dot", row, s->kl_dot, r.kl_dot.value, loose * r.kl_dot.bound);
    if (c->want & OH_WANT_RKL && !(flags & OH_ROW_Q0_P))
        verdict_number(k, "rkl_dot", row, s->rkl_dot, r.rkl_dot.value, loose * r.rkl_dot.bound);
}

/* The first top_k of a row: distinct, in order, and nothing left out that stands before one of them. */
static void check_top_k(kit *k, const stats_case *c, int64_t row, const int32_t *ids, const float *logits) {
    const int64_t columns = c->t.spec.columns, first = c->t.spec.first_column;
    const double *z = c->t.z + row * columns, *error = c->t.z_error + row * columns;
    unsigned char *taken = kit_host(k, columns, 1);
    const int32_t filled = (int64_t)c->top_k < columns ? c->top_k : (int32_t)columns;
    for (int32_t i = 0; i < c->top_k && kit_going(k); ++i) {
        const int64_t at = ids[i] - first, before = i > 0 ? ids[i - 1] - first : -1;
        if (i >= filled) {
            if (ids[i] != -1)
                kit_fail(k, "topk_id[%lld,%d] = %d, expected -1: there are %lld columns", (long long)row, (int)i,
                         (int)ids[i], (long long)columns);
            continue;
        }
        if (at < 0 || at >= columns || taken[at]) {
            kit_fail(k, "topk_id[%lld,%d] = %d, which is %s", (long long)row, (int)i, (int)ids[i],
                     at < 0 || at >= columns ? "no column" : "there twice");
            return;
        }
        taken[at] = 1;
        verdict_number(k, "topk_logit", row, (double)logits[i], z[at], error[at] + float_floor(OH_F32));
        if (i > 0 && (z[at] == z[before] ? at < before : z[at] - z[before] > error[at] + error[before]))
            kit_fail(k, "topk_id[%lld,%d..%d] = %d, %d, expected the other order", (long long)row, (int)(i - 1), (int)i,
                     (int)ids[i - 1], (int)ids[i]);
    }
    for (int64_t u = 0; u < columns && kit_going(k); ++u) {
        const int64_t at = ids[filled - 1] - first;
        if (taken[u]) continue;
        if (z[u] == z[at] ? u < at : z[u] - z[at] > error[u] + error[at])
            kit_fail(k, "topk_id[%lld] ends with %d and leaves out %lld, which stands before it", (long long)row,
                     (int)ids[filled - 1], (long long)u + first);
    }
}

/* A row that isn't finite has no meaning, but what is used as an index must be one. */
static void check_bad_row(kit *k, const stats_case *c, int64_t row, const int32_t *ids) {
    const int64_t first = c->t.spec.first_column, end = first + c->t.spec.columns;
    for (int32_t i = 0; i < c->top_k && kit_going(k); ++i)
        if (ids[i] != -1 && (ids[i] < first || ids[i] >= end))
            kit_fail(k, "topk_id[%lld,%d] = %d in a row that isn't finite, expected -1 or a column", (long long)row,
                     (int)i, (int)ids[i]);
}

void stats_case_judge(kit *k, const stats_case *c) {
    const tile *t = &c->t;
    const int64_t columns = t->spec.columns;
    const uint32_t bad = OH_ROW_Z_BAD | OH_ROW_T_BAD;
    for (int64_t row = 0; row < t->spec.rows && kit_going(k); ++row) {
        oh_row_stats s;
        int32_t ids[OH_TOP_K_MAX];
        float logits[OH_TOP_K_MAX];
        memcpy(&s, (const unsigned char *)kit_result(c->stats) + row * (int64_t)sizeof s, sizeof s);
        if (c->top_k > 0) {
            memcpy(ids, (const int32_t *)kit_result(c->ids) + row * c->top_k, (size_t)c->top_k * 4);
            memcpy(logits, (const float *)kit_result(c->logits) + row * c->top_k, (size_t)c->top_k * 4);
        }
        const uint32_t flags = reference_flags(t, row), seen = flags & bad ? bad : UINT32_MAX;
        if ((s.flags & seen) != (flags & seen))
            kit_fail(k, "flags[%lld] = 0x%x, expected 0x%x", (long long)row, s.flags & seen, flags & seen);
        if (flags & bad) {
            check_bad_row(k, c, row, ids);
            continue;
        }
        if (!t->spec.no_draft)
            check_max(k, t, row, "z", t->z + row * columns, t->z_error + row * columns, (double)s.z_max, s.z_argmax);
        if (t->spec.target_rows)
            check_max(k, t, row, "t", t->t + row * columns, t->t_error + row * columns, (double)s.t_max, s.t_argmax);
        if (c->label || t->spec.target_rows) check_label(k, c, row, &s);
        if (kit_going(k)) check_sums(k, c, row, &s);
        if (c->top_k > 0 && kit_going(k)) check_top_k(k, c, row, ids, logits);
    }
}

/* ---------------------------------------------------------------------------------------------------- cases ---- */

int32_t *stats_case_labels(kit *k, const tile_spec *s) {
    const uint64_t key = kit_stream(k, "label");
    int32_t *label = kit_host(k, s->rows, sizeof *label);
    for (int64_t i = 0; label && i < s->rows; ++i) {
        const int64_t drawn = s->first_column + draw_integer(key, i, 0, s->columns - 1);
        const int64_t last = s->first_column + s->columns - 1;
        label[i] = (int32_t)(i % 5 == 1 ? last : i % 5 == 2 ? s->first_column : i % 5 == 3 ? -1 : drawn);
    }
    return label;
}

/* Fields that the request doesn't name are left undefined. */
static void set_defined(kit *k, const stats_case *c) {
    oh_row_stats *mask = kit_host(k, 1, sizeof *mask);
    if (!mask || !c->stats) return;
    memset(mask, 0xff, sizeof *mask);
    mask->reserved = 0;
    if (c->t.spec.no_draft) mask->z_max = 0, mask->z_label = 0, mask->z_argmax = 0, mask->z_sum = 0;
    if (!c->t.spec.target_rows) mask->t_max = 0, mask->t_argmax = 0, mask->t_sum = 0;
    if (!(c->want & OH_WANT_ENTROPY)) mask->z_dot = 0;
    if (!(c->want & OH_WANT_KL)) mask->kl_dot = 0;
    if (!(c->want & OH_WANT_RKL)) mask->rkl_dot = 0;
    if (!(c->want & OH_WANT_TOTAL)) mask->z_total = 0;
    c->stats->defined = (const unsigned char *)mask;
    c->stats->period = (int64_t)sizeof *mask;
}

void stats_case_open(kit *k, stats_case *c, int panels) {
    const tile_spec *s = &c->t.spec;
    const int32_t top_k = c->top_k;
    c->stats = kit_bytes(k, "stats", KIT_OUT, NULL, s->rows * (int64_t)sizeof(oh_row_stats));
    set_defined(k, c);
    if (top_k > 0) {
        c->ids = kit_bytes(k, "topk_id", KIT_OUT, NULL, s->rows * top_k * 4);
        c->logits = kit_bytes(k, "topk_logit", KIT_OUT, NULL, s->rows * top_k * 4);
    }
    const void *label = c->label ? kit_at(kit_bytes(k, "label", KIT_IN, c->label, s->rows * 4)) : NULL;
    c->panel_count = panels;
    for (int i = 0; i < panels; ++i) {
        const int64_t first = s->columns * i / panels, end = s->columns * (i + 1) / panels;
        c->panels[i] = (oh_tile_stats){.tile = kit_tile_panel(&c->t, first, end - first),
                                       .stats = kit_at(c->stats),
                                       .label = label,
                                       .topk_id = kit_at(c->ids),
                                       .topk_logit = kit_at(c->logits),
                                       .top_k = top_k,
                                       .want = c->want,
                                       .restart = i == 0};
    }
}

static void check_stats(kit *k, const tile_spec *spec, int panels, int32_t top_k, bool given, uint32_t want) {
    char name[80];
    kit_tile_name(spec, name);
    if (!kit_begin(k, CONFORM_TILE_STATS, "tile_stats/%s-panels%d-top%d%s%s", name, panels, (int)top_k,
                   given ? "-given" : "", want ? "" : "-plain"))
        return;
    stats_case c = {.top_k = top_k, .want = want};
    if (given) c.label = stats_case_labels(k, spec);
    if (kit_tile_open(k, &c.t, spec)) stats_case_open(k, &c, panels);
    if (kit_run(k, run_panels, &c)) stats_case_judge(k, &c);
    kit_end(k);
}

static void check_format(kit *k, int32_t format) {
    for (int fill = 0; fill < TILE_FILLS; ++fill)
        for (int s = 0; s < TILE_SHAPES; ++s) {
            tile_spec spec = kit_tile_shape(kit_tile_shapes[s], s, (tile_fill)fill, format);
            check_stats(k, &spec, 1, s % 2 ? 8 : 0, false, WANT_ALL);
            check_stats(k, &spec, 1, 1, true, 0);
            if (spec.columns < 7) continue;
            check_stats(k, &spec, 3, 64, false, WANT_ALL);
            check_stats(k, &spec, 7, 4, true, WANT_ALL);
            if (format == OH_TILE_DIFF) continue;
            spec.target_rows = 0;
            check_stats(k, &spec, 2, 4, true, OH_WANT_ENTROPY | OH_WANT_TOTAL);
        }
    for (int fill = TILE_TIES; fill < TILE_FILLS; ++fill)
        for (uint32_t transform = 1; transform < 8; ++transform) {
            tile_spec spec = {14, 301, 5, 1, 14, 64, (tile_fill)fill, format, transform, false, false};
            check_stats(k, &spec, 1, 8, false, WANT_ALL);
            check_stats(k, &spec, 3, 8, true, WANT_ALL);
        }
    tile_spec shared = {23, 257, 1, 0, 6, 0, TILE_NEAR, format, TILE_SCALE, false, false};
    check_stats(k, &shared, 1, 4, false, WANT_ALL);
    check_stats(k, &shared, 2, 4, false, OH_WANT_KL);
    tile_spec target_only = {9, 515, 1, 1, 9, 0, TILE_TIES, format, 0, true, false};
    check_stats(k, &target_only, 1, 0, false, 0);
    check_stats(k, &target_only, 3, 0, false, 0);
}

/* Few rows and long ones, which a device may share out among what it has: whole, in panels, and of one tile. */
static void check_long_rows(kit *k, int32_t format) {
    for (int fill = 0; fill < TILE_FILLS; ++fill) {
        tile_spec spec = {3, 40007, 1, 1, 3, 0, (tile_fill)fill, format, 0, false, false};
        check_stats(k, &spec, 1, fill == TILE_FAR ? 8 : 64, false, WANT_ALL);
        if (fill == TILE_NEAR) check_stats(k, &spec, 2, 8, true, WANT_ALL);
    }
    tile_spec shared = {9, 20480, 0, 0, 2, 0, TILE_FAR, format, TILE_SCALE, false, false};
    check_stats(k, &shared, 1, 16, false, WANT_ALL);
    tile_spec target_only = {2, 30011, 0, 0, 2, 0, TILE_FAR, format, 0, true, false};
    check_stats(k, &target_only, 1, 0, false, 0);
}

/* ----------------------------------------------------------------------------------------- calls in sequence ---- */

/* The same call on the same addresses with other logits in them: nothing may be left of the first. */
static void check_stale(kit *k, int32_t format) {
    if (!kit_begin(k, CONFORM_TILE_STATS, "tile_stats/%s/again", kit_tile_format_name(format))) return;
    const tile_spec spec = {8, 131, 0, 0, 8, 0, TILE_FAR, format, 0, false, false};
    stats_case c = {.top_k = 4, .want = WANT_ALL};
    tile other;
    if (kit_tile_open(k, &c.t, &spec)) stats_case_open(k, &c, 1);
    if (kit_run(k, run_panels, &c)) stats_case_judge(k, &c);
    k->key = draw_key(k->key, "other"); /* other logits of the same shape */
    if (kit_tile_open(k, &other, &spec)) {
        kit_buffer *const to[] = {c.t.draft, c.t.target}, *const from[] = {other.draft, other.target};
        for (int i = 0; i < 2; ++i) {
            memcpy(to[i]->image, from[i]->image, to[i]->total);
            if (k->table->upload(k->seat.queue, to[i]->allocation, to[i]->image, to[i]->total) != OH_OK)
                kit_fail(k, "upload of other logits");
        }
        const oh_tile_view view = c.t.view;
        c.t = other;
        c.t.view = view;
        if (kit_run(k, run_panels, &c)) stats_case_judge(k, &c);
    }
    kit_end(k);
}

static void check_refusals(kit *k, int32_t format) {
    if (!kit_begin(k, CONFORM_TILE_STATS, "tile_stats/refused")) return;
    const tile_spec spec = {4, 33, 3, 0, 4, 0, TILE_FAR, format, 0, false, false};
    stats_case c = {.top_k = 4, .want = WANT_ALL};
    if (kit_tile_open(k, &c.t, &spec)) stats_case_open(k, &c, 1);
    const oh_tile_stats good = c.panels[0];
    oh_tile_stats bad;
#define REFUSED(what, edit)                                                                                            \
    do {                                                                                                               \
        bad = good;                                                                                                    \
        edit;                                                                                                          \
        kit_refused(k, kit_run_tile_stats, &bad, "a first read with " what, OH_INVALID_ARGUMENT);                      \
    } while (0)
    REFUSED("rows = -1", bad.tile.rows = -1);
    REFUSED("columns = -1", bad.tile.columns = -1);
    REFUSED("first_column = -1", bad.tile.first_column = -1);
    REFUSED("draft_ld = columns - 1", bad.tile.draft_ld = spec.columns - 1);
    REFUSED("target_ld = columns - 1", bad.tile.target_ld = spec.columns - 1);
    REFUSED("format = 9", bad.tile.format = 9);
    REFUSED("format = -1", bad.tile.format = -1);
    REFUSED("stats = NULL", bad.stats = NULL);
    REFUSED("top_k = -1", bad.top_k = -1);
    REFUSED("top_k = 65", bad.top_k = OH_TOP_K_MAX + 1);
    REFUSED("top_k without topk_id", bad.topk_id = NULL);
    REFUSED("top_k without topk_logit", bad.topk_logit = NULL);
    REFUSED("neither drafter nor target", bad.tile.draft = NULL; bad.tile.target = NULL);
    REFUSED("OH_WANT_KL without a target", bad.tile.target = NULL);
#undef REFUSED
    kit_end(k);
}

/* --------------------------------------------------------------------------------------------------- sample ---- */

static void judge_sample(kit *k, const void *state) {
    stats_case_judge(k, state);
}

void sample_tile_stats(kit *k, const kit_sample_size *size, kit_sample *sample) {
    const tile_spec spec = {.rows = size->rows,
                            .columns = size->columns,
                            .target_rows = size->rows,
                            .fill = TILE_NEAR,
                            .format = kit_tile_format(k)};
    stats_case *c = kit_host(k, 1, sizeof *c);
    if (!c) return;
    c->want = OH_WANT_KL, c->top_k = 8;
    if (kit_tile_open(k, &c->t, &spec)) stats_case_open(k, c, 1);
    const double count = (double)spec.rows * (double)spec.columns,
                 size_of = (double)float_size(kit_tile_dtype(spec.format));
    *sample = (kit_sample){run_panels, c, judge_sample, c, 2 * size_of * count, 9 * count};
}

void cases_tile_stats(kit *k) {
    int32_t last = -1;
    for (int32_t format = OH_TILE_F32; format <= OH_TILE_DIFF; ++format) {
        if (!(k->table->tile_formats >> format & 1u)) continue;
        check_format(k, format);
        check_long_rows(k, format);
        check_stale(k, format);
        last = format;
    }
    if (last >= 0) check_refusals(k, k->table->tile_formats & 1u ? OH_TILE_F32 : last);
}
