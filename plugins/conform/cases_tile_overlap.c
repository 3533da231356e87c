/* The second read: what p and q have in common, their mixture, and the label's rank. */
#include <stdio.h>
#include <string.h>

#include "normalisers.h"
#include "passes.h"
#include "reference.h"
#include "verdict.h"

enum { WANT_ALL = OH_WANT_OVERLAP | OH_WANT_JSD | OH_WANT_RANK };

typedef struct overlap_case {
    tile t;
    oh_row_stats *stats;
    oh_tile_overlap panels[PANELS_MAX];
    int panel_count;
    uint32_t want;
    kit_buffer *overlap;
} overlap_case;

static oh_status run_panels(const kit_seat *seat, const void *arguments) {
    const overlap_case *c = arguments;
    oh_status status = OH_OK;
    for (int i = 0; i < c->panel_count && status == OH_OK; ++i)
        status = kit_run_tile_overlap(seat, &c->panels[i]);
    return status;
}

static row_overlap expected(const tile *t, const oh_row_stats *stats, int64_t row) {
    return normalisers_finite(t, &stats[row]) ? reference_overlap(t, row, &stats[row]) : (row_overlap){0};
}

void alpha_judge(kit *k, const tile *t, const oh_row_stats *stats, int64_t row, const oh_row_overlap *got) {
    const row_overlap want = expected(t, stats, row);
    verdict_number(k, "alpha", row, got->alpha, want.alpha.value, want.alpha.bound);
}

void rank_judge(kit *k, const tile *t, const oh_row_stats *stats, int64_t row, const oh_row_overlap *got) {
    const row_overlap want = expected(t, stats, row);
    if (got->rank >= want.rank_least && got->rank <= want.rank_most) return;
    kit_fail(k, "rank[%lld] = %lld, expected %lld to %lld", (long long)row, (long long)got->rank,
             (long long)want.rank_least, (long long)want.rank_most);
}

static void judge(kit *k, const overlap_case *c) {
    for (int64_t row = 0; row < c->t.spec.rows && kit_going(k); ++row) {
        oh_row_overlap got;
        memcpy(&got, (const unsigned char *)kit_result(c->overlap) + row * (int64_t)sizeof got, sizeof got);
        const row_overlap want = expected(&c->t, c->stats, row);
        if (c->want & OH_WANT_OVERLAP) {
            verdict_number(k, "alpha", row, got.alpha, want.alpha.value, want.alpha.bound);
            verdict_number(k, "tv", row, got.tv, want.tv.value, want.tv.bound);
            verdict_number(k, "p_le", row, got.p_le, want.p_le.value, want.p_le.bound);
        }
        if (c->want & OH_WANT_JSD) {
            verdict_number(k, "jsd", row, got.jsd, want.jsd.value, want.jsd.bound);
            verdict_number(k, "kl_pm", row, got.kl_pm, want.kl_pm.value, want.kl_pm.bound);
        }
        if (c->want & OH_WANT_RANK) rank_judge(k, &c->t, c->stats, row, &got);
    }
}

static void open_panels(kit *k, overlap_case *c, int panels) {
    const tile_spec *s = &c->t.spec;
    c->stats = normalisers_of(k, &c->t);
    if (!kit_going(k)) return;
    kit_buffer *stats = kit_bytes(k, "stats", KIT_IN, c->stats, s->rows * (int64_t)sizeof *c->stats);
    c->overlap = kit_bytes(k, "overlap", KIT_OUT, NULL, s->rows * (int64_t)sizeof(oh_row_overlap));
    c->panel_count = panels;
    for (int i = 0; i < panels; ++i) {
        const int64_t first = s->columns * i / panels, end = s->columns * (i + 1) / panels;
        c->panels[i] = (oh_tile_overlap){.tile = kit_tile_panel(&c->t, first, end - first),
                                         .stats = kit_at(stats),
                                         .overlap = kit_at(c->overlap),
                                         .want = c->want,
                                         .restart = i == 0};
    }
}

static void check_overlap(kit *k, const tile_spec *spec, int panels, uint32_t want) {
    char name[80];
    kit_tile_name(spec, name);
    if (!kit_begin(k, CONFORM_TILE_OVERLAP, "tile_overlap/%s-panels%d%s%s%s", name, panels,
                   want & OH_WANT_OVERLAP ? "-overlap" : "", want & OH_WANT_JSD ? "-jsd" : "",
                   want & OH_WANT_RANK ? "-rank" : ""))
        return;
    overlap_case c = {.want = want};
    if (kit_tile_open(k, &c.t, spec)) open_panels(k, &c, panels);
    if (kit_run(k, run_panels, &c)) judge(k, &c);
    kit_end(k);
}

/* The tile's columns as a part of the target's vocabulary: q by statistics of the whole, one a target row. */
static void check_full(kit *k, int32_t format, int64_t target_rows) {
    const tile_spec spec = {.rows = 11, .columns = 301, .target_rows = target_rows, .fill = TILE_FAR, .format = format};
    char name[80];
    kit_tile_name(&spec, name);
    if (!kit_begin(k, CONFORM_TILE_OVERLAP, "tile_overlap/%s-full", name)) return;
    overlap_case c = {.want = OH_WANT_OVERLAP};
    if (kit_tile_open(k, &c.t, &spec)) open_panels(k, &c, 2);
    const uint64_t key = kit_stream(k, "full");
    oh_row_stats *full = kit_host(k, target_rows, sizeof *full);
    for (int64_t i = 0; full && i < target_rows; ++i) {
        oh_row_stats_empty(&full[i]);
        full[i].t_max = (float)(12 + 3 * draw_uniform(key, 2 * i)),
        full[i].t_sum = 1 + 5 * draw_uniform(key, 2 * i + 1);
    }
    kit_buffer *buffer = kit_bytes(k, "full", KIT_IN, full, target_rows * (int64_t)sizeof *full);
    for (int i = 0; i < c.panel_count; ++i)
        c.panels[i].full = kit_at(buffer);
    if (kit_run(k, run_panels, &c)) {
        for (int64_t row = 0; full && row < spec.rows; ++row) {
            const oh_row_stats *of_row = &full[c.t.target_row[row]];
            c.stats[row].t_max = of_row->t_max, c.stats[row].t_sum = of_row->t_sum;
        }
        judge(k, &c);
    }
    kit_end(k);
}

static void check_format(kit *k, int32_t format) {
    for (int fill = 0; fill < TILE_FILLS; ++fill)
        for (int s = 0; s < TILE_SHAPES; ++s) {
            tile_spec spec = kit_tile_shape(kit_tile_shapes[s], s, (tile_fill)fill, format);
            check_overlap(k, &spec, 1, WANT_ALL);
            if (spec.columns < 7) continue;
            check_overlap(k, &spec, 3, WANT_ALL);
            check_overlap(k, &spec, 1, s % 2 ? OH_WANT_OVERLAP : OH_WANT_JSD);
            if (format == OH_TILE_DIFF) continue;
            spec.target_rows = 0;
            check_overlap(k, &spec, 2, OH_WANT_RANK);
        }
    for (int fill = TILE_TIES; fill < TILE_FILLS; ++fill)
        for (uint32_t transform = 1; transform < 8; ++transform) {
            const tile_spec spec = {14, 301, 5, 1, 14, 64, (tile_fill)fill, format, transform, false, false};
            check_overlap(k, &spec, 2, WANT_ALL);
        }
    const tile_spec shared = {23, 257, 1, 0, 6, 0, TILE_NEAR, format, TILE_SCALE, false, false};
    check_overlap(k, &shared, 1, WANT_ALL);
    check_full(k, format, 11);
    check_full(k, format, 4);
}

static void check_refusals(kit *k, int32_t format) {
    if (!kit_begin(k, CONFORM_TILE_OVERLAP, "tile_overlap/refused")) return;
    const tile_spec spec = {4, 33, 3, 0, 4, 0, TILE_FAR, format, 0, false, false};
    overlap_case c = {.want = WANT_ALL};
    if (kit_tile_open(k, &c.t, &spec)) open_panels(k, &c, 1);
    const oh_tile_overlap good = c.panels[0];
    oh_tile_overlap bad;
#define REFUSED(what, edit)                                                                                            \
    do {                                                                                                               \
        bad = good;                                                                                                    \
        edit;                                                                                                          \
        kit_refused(k, kit_run_tile_overlap, &bad, "a second read with " what, OH_INVALID_ARGUMENT);                   \
    } while (0)
    REFUSED("rows = -1", bad.tile.rows = -1);
    REFUSED("columns = -1", bad.tile.columns = -1);
    REFUSED("draft_ld = columns - 1", bad.tile.draft_ld = spec.columns - 1);
    REFUSED("target_ld = columns - 1", bad.tile.target_ld = spec.columns - 1);
    REFUSED("format = 9", bad.tile.format = 9);
    REFUSED("stats = NULL", bad.stats = NULL);
    REFUSED("overlap = NULL", bad.overlap = NULL);
    REFUSED("draft = NULL", bad.tile.draft = NULL);
    REFUSED("OH_WANT_OVERLAP without a target", bad.tile.target = NULL);
#undef REFUSED
    kit_end(k);
}

/* --------------------------------------------------------------------------------------------------- sample ---- */

static void judge_sample(kit *k, const void *state) {
    judge(k, state);
}

void sample_tile_overlap(kit *k, const kit_sample_size *size, kit_sample *sample) {
    const tile_spec spec = {.rows = size->rows,
                            .columns = size->columns,
                            .target_rows = size->rows,
                            .fill = TILE_NEAR,
                            .format = kit_tile_format(k)};
    overlap_case *c = kit_host(k, 1, sizeof *c);
    if (!c) return;
    c->want = WANT_ALL;
    if (kit_tile_open(k, &c->t, &spec)) open_panels(k, c, 1);
    const double count = (double)spec.rows * (double)spec.columns,
                 size_of = (double)float_size(kit_tile_dtype(spec.format));
    *sample = (kit_sample){run_panels, c, judge_sample, c, 2 * size_of * count, 20 * count};
}

void cases_tile_overlap(kit *k) {
    int32_t last = -1;
    for (int32_t format = OH_TILE_F32; format <= OH_TILE_DIFF; ++format) {
        if (!(k->table->tile_formats >> format & 1u)) continue;
        check_format(k, format);
        last = format;
    }
    if (last >= 0) check_refusals(k, k->table->tile_formats & 1u ? OH_TILE_F32 : last);
}
