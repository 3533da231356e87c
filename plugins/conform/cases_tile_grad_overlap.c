/* The gradient, and what metrics ask of a second read, in one: each as good as alone. */
#include <stdio.h>
#include <string.h>

#include "normalisers.h"
#include "passes.h"
#include "verdict.h"

typedef struct both_case {
    grad_case grad;
    oh_row_stats *stats;
    kit_buffer *overlap;
    oh_tile_grad_overlap both;
} both_case;

static void open_both(kit *k, both_case *c, int32_t out_dtype, uint32_t form, uint32_t want) {
    grad_case_open(k, &c->grad, out_dtype, form);
    const int64_t rows = c->grad.t.spec.rows;
    c->stats = normalisers_of(k, &c->grad.t);
    if (!kit_going(k)) return;
    kit_buffer *stats = kit_bytes(k, "stats", KIT_IN, c->stats, rows * (int64_t)sizeof *c->stats);
    c->overlap = kit_bytes(k, "overlap", KIT_OUT, NULL, rows * (int64_t)sizeof(oh_row_overlap));
    c->both =
        (oh_tile_grad_overlap){.grad = c->grad.g, .stats = kit_at(stats), .overlap = kit_at(c->overlap), .want = want};
}

static void judge(kit *k, const both_case *c) {
    grad_case_judge(k, &c->grad);
    for (int64_t row = 0; row < c->grad.t.spec.rows && kit_going(k); ++row) {
        oh_row_overlap got;
        memcpy(&got, (const unsigned char *)kit_result(c->overlap) + row * (int64_t)sizeof got, sizeof got);
        if (c->grad.coef[row].zero) continue;
        alpha_judge(k, &c->grad.t, c->stats, row, &got);
        if (c->both.want & OH_WANT_RANK) rank_judge(k, &c->grad.t, c->stats, row, &got);
    }
}

static void check_both(kit *k, const tile_spec *spec, int32_t out_dtype, uint32_t form, uint32_t want, bool in_place) {
    char name[80];
    tile_spec s = *spec;
    s.for_grad = in_place;
    kit_tile_name(&s, name);
    if (!kit_begin(k, CONFORM_TILE_GRAD_OVERLAP, "tile_grad_overlap/%s-%s-form%02x%s%s", name, float_name(out_dtype),
                   form, want & OH_WANT_RANK ? "-rank" : "", in_place ? "-inplace" : ""))
        return;
    both_case c = {.grad.in_place = in_place};
    if (kit_tile_open(k, &c.grad.t, &s)) open_both(k, &c, out_dtype, form, want);
    if (kit_run(k, kit_run_tile_grad_overlap, &c.both)) judge(k, &c);
    kit_end(k);
}

static void check_format(kit *k, int32_t format) {
    static const int64_t shapes[][4] = {/* rows, columns, pad, shift */
                                        {1, 1, 0, 0},
                                        {3, 2, 0, 1},
                                        {4, 7, 2, 0},
                                        {TILE_EDGE_ROWS, 129, 3, 1},
                                        {TILE_EDGE_ROWS, 512, 0, 0},
                                        {TILE_EDGE_ROWS, 1031, 6, 3},
                                        {3, 5003, 0, 1},
                                        {2, 40007, 1, 1}};
    static const uint32_t forms[] = {0, OH_FORM_Q, OH_FORM_LOG_P | OH_FORM_LOG_Q, OH_FORM_LE | OH_FORM_Q};
    static const int32_t dtypes[] = {OH_F32, OH_BF16, OH_F16};
    enum { SHAPES = sizeof shapes / sizeof *shapes, FORMS = sizeof forms / sizeof *forms };
    const int64_t tile_size = float_size(kit_tile_dtype(format));
    for (int fill = 0; fill < TILE_FILLS; ++fill)
        for (int s = 0; s < SHAPES; ++s) {
            const tile_spec spec = kit_tile_shape(shapes[s], s, (tile_fill)fill, format);
            for (int d = 0; d < 3; ++d) {
                const uint32_t want = OH_WANT_OVERLAP | (d == s % 3 ? OH_WANT_RANK : 0);
                check_both(k, &spec, dtypes[d], forms[(s + d + fill) % FORMS], want, false);
                if (float_size(dtypes[d]) <= tile_size) check_both(k, &spec, dtypes[d], OH_FORM_Q, want, true);
            }
        }
    for (int fill = TILE_TIES; fill < TILE_FILLS; ++fill)
        for (uint32_t transform = 1; transform < 8; ++transform) {
            const tile_spec spec = {14, 301, 5, 1, 14, 64, (tile_fill)fill, format, transform, false, false};
            check_both(k, &spec, kit_tile_dtype(format), OH_FORM_Q, OH_WANT_OVERLAP | OH_WANT_RANK, true);
        }
    const tile_spec shared = {23, 257, 1, 0, 6, 0, TILE_NEAR, format, TILE_SCALE, false, false};
    check_both(k, &shared, OH_F32, OH_FORM_Q, OH_WANT_OVERLAP, false);
}

static void check_refusals(kit *k, int32_t format) {
    if (!kit_begin(k, CONFORM_TILE_GRAD_OVERLAP, "tile_grad_overlap/refused")) return;
    const tile_spec spec = {4, 33, 3, 0, 4, 0, TILE_FAR, format, 0, false, true};
    both_case c = {.grad.in_place = false};
    if (kit_tile_open(k, &c.grad.t, &spec)) open_both(k, &c, OH_F32, OH_FORM_Q, OH_WANT_OVERLAP);
    const oh_tile_grad_overlap good = c.both;
    oh_tile_grad_overlap bad;
#define REFUSED(what, edit)                                                                                            \
    do {                                                                                                               \
        bad = good;                                                                                                    \
        edit;                                                                                                          \
        kit_refused(k, kit_run_tile_grad_overlap, &bad, "a gradient with overlap, with " what, OH_INVALID_ARGUMENT);   \
    } while (0)
    REFUSED("rows = -1", bad.grad.tile.rows = -1);
    REFUSED("out_ld = columns - 1", bad.grad.out_ld = spec.columns - 1);
    REFUSED("coef = NULL", bad.grad.coef = NULL);
    REFUSED("stats = NULL", bad.stats = NULL);
    REFUSED("overlap = NULL", bad.overlap = NULL);
    REFUSED("target = NULL", bad.grad.tile.target = NULL; bad.grad.form = 0);
    REFUSED("OH_WANT_JSD", bad.want |= OH_WANT_JSD);
    REFUSED("OH_WANT_RANK alone", bad.want = OH_WANT_RANK);
#undef REFUSED
    kit_end(k);
}

void cases_tile_grad_overlap(kit *k) {
    int32_t last = -1;
    /* A device of its own memory does without. */
    if (!OH_BACKEND_HAS(k->table, tile_grad_overlap) && !(k->table->caps & OH_CAP_HOST_MEMORY)) return;
    for (int32_t format = OH_TILE_F32; format <= OH_TILE_DIFF; ++format) {
        if (!(k->table->tile_formats >> format & 1u)) continue;
        check_format(k, format);
        last = format;
    }
    if (last >= 0) check_refusals(k, k->table->tile_formats & 1u ? OH_TILE_F32 : last);
}
