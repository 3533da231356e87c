/* A first read and the gradient in one: statistics as good as alone, and the gradient as good as alone by coefficients of
 * these. Only where the table has the pair, and of each case only where it is taken: else it must be refused. */
#include <stdio.h>
#include <string.h>

#include "passes.h"
#include "reference.h"
#include "verdict.h"

typedef struct objective_kind {
    const char *name;
    uint32_t terms;
    double smoothing, z_loss;
} objective_kind;

static const objective_kind kinds[] = {
    {"ce", OH_TERM_BIT(OH_TERM_CE), 0, 0},
    {"smooth-ce", OH_TERM_BIT(OH_TERM_CE), 0.1, 1e-3},
    {"cap", OH_TERM_BIT(OH_TERM_CAP), 0, 0},
    {"kl", OH_TERM_BIT(OH_TERM_KL), 0, 0},
    {"ce-kl", OH_TERM_BIT(OH_TERM_CE) | OH_TERM_BIT(OH_TERM_KL), 0, 0},
    {"rkl", OH_TERM_BIT(OH_TERM_RKL), 0, 0},
};

enum { KIND_CE = 0, KIND_KL = 3, KIND_CE_KL = 4, KINDS_ALONE = 3, KINDS = 6 };

/* What is asked of a tile. */
typedef struct pass_spec {
    objective_kind kind;
    int32_t out_dtype, top_k;
    bool given, entropy;      /* labels; OH_WANT_ENTROPY, whatever the objective asks for */
    bool target_is_for_label; /* has_target 0, though a target's tile is there */
} pass_spec;

typedef struct pass_case {
    stats_case stats;
    grad_case grad;
    oh_objective objective;
    oh_tile_stats_grad pass;
} pass_case;

static void set_objective(oh_objective *o, const pass_spec *s, int64_t columns) {
    static const double lambda[OH_TERM_COUNT] = {0.7, 0.4, 0.5, 0.6, 0.8, 0.3, 0.9, 0.2};
    for (int i = 0; i < OH_TERM_COUNT; ++i)
        o->lambda[i] = s->kind.terms >> i & 1u ? lambda[i] : 0;
    o->terms = s->kind.terms, o->label_smoothing = s->kind.smoothing, o->z_loss = s->kind.z_loss;
    o->labels = s->given ? OH_LABELS_GIVEN : OH_LABELS_TARGET;
    o->eta = 3, o->norm_value = 1, o->upstream = 1, o->block_size = 1, o->valid_columns = columns;
}

/* After kit_tile_open(&c->stats.t). */
static void open_pass(kit *k, pass_case *c, const pass_spec *s) {
    const tile_spec *spec = &c->stats.t.spec;
    set_objective(&c->objective, s, spec->columns);
    c->stats.want = oh_objective_want(&c->objective) | (s->entropy ? OH_WANT_ENTROPY : 0);
    c->stats.top_k = s->top_k;
    if (s->given) c->stats.label = stats_case_labels(k, spec);
    stats_case_open(k, &c->stats, 1);
    c->grad.t = c->stats.t;
    c->grad.in_place = true;
    c->grad.coef = kit_host(k, spec->rows, sizeof *c->grad.coef);
    grad_case_open_out(k, &c->grad, s->out_dtype, oh_objective_form(&c->objective));
    c->pass = (oh_tile_stats_grad){.stats = c->stats.panels[0],
                                   .grad = c->grad.g,
                                   .objective = &c->objective,
                                   .has_target = spec->target_rows > 0 && !s->target_is_for_label};
}

/* A row that has flags keeps its logits; another's gradient is that of the statistics that came back. */
static void judge(kit *k, const pass_case *c) {
    stats_case_judge(k, &c->stats);
    for (int64_t row = 0; row < c->stats.t.spec.rows && kit_going(k); ++row) {
        oh_row_stats s;
        memcpy(&s, (const unsigned char *)kit_result(c->stats.stats) + row * (int64_t)sizeof s, sizeof s);
        oh_row_coefficients(&c->objective, &s, c->pass.has_target, &c->grad.coef[row]);
        if (s.flags != 0) c->grad.coef[row].zero = OH_ZERO_DONE;
    }
    if (kit_going(k)) grad_case_judge(k, &c->grad);
}

/* Whether the backend takes the pass; where it doesn't, it must refuse it, and the case is left out. */
static bool takes(kit *k, const pass_case *c) {
    if (!kit_going(k) || kit_takes_tile_stats_grad(&k->seat, &c->pass)) return kit_going(k);
    kit_unsupported(k, kit_run_tile_stats_grad, &c->pass, "a pass that tile_stats_grad_takes says no to");
    kit_skip(k, "%s: tile_stats_grad_takes says no", k->name);
    return false;
}

/* ---------------------------------------------------------------------------------------------------- cases ---- */

static void check_pass(kit *k, const tile_spec *spec, const pass_spec *s) {
    char name[80], top[16] = "";
    tile_spec written = *spec;
    written.for_grad = true;
    kit_tile_name(&written, name);
    if (s->top_k > 0) snprintf(top, sizeof top, "-top%d", (int)s->top_k);
    if (!kit_begin(k, CONFORM_TILE_STATS_GRAD, "tile_stats_grad/%s-%s-%s%s%s%s%s", name, s->kind.name,
                   float_name(s->out_dtype), s->given ? "-given" : "", s->entropy ? "-entropy" : "",
                   s->target_is_for_label ? "-label-only" : "", top))
        return;
    pass_case c = {.pass = {.reserved = 0}};
    if (kit_tile_open(k, &c.stats.t, &written)) open_pass(k, &c, s);
    if (takes(k, &c) && kit_run(k, kit_run_tile_stats_grad, &c.pass)) judge(k, &c);
    kit_end(k);
}

/* Every objective, beside a target's long rows every third, with what else may vary taken in turn. */
static void check_kinds(kit *k, const tile_spec *spec, int turn) {
    const int32_t dtype = kit_tile_dtype(spec->format), narrow[] = {OH_BF16, OH_F16};
    const int count = spec->target_rows ? KINDS : KINDS_ALONE;
    const int step = spec->columns < 4096 || !spec->target_rows ? 1 : 3;
    for (int kind = turn % step; kind < count; kind += step) {
        const int n = turn + kind;
        const pass_spec s = {.kind = kinds[kind],
                             .out_dtype = dtype == OH_F32 || n % 3 ? dtype : narrow[n / 3 % 2],
                             .given = !spec->target_rows || n % 2,
                             .entropy = n / 2 % 2,
                             .target_is_for_label = spec->target_rows && kind < KINDS_ALONE && n % 5 == 2};
        check_pass(k, spec, &s);
    }
}

static void check_format(kit *k, int32_t format) {
    static const int64_t shapes[][4] = {/* rows, columns, pad, shift */
                                        {1, 1, 0, 0},
                                        {5, 1, 7, 0},
                                        {4, 7, 1, 0},
                                        {TILE_EDGE_ROWS, 129, 3, 1},
                                        {TILE_EDGE_ROWS, 129, 7, 0},
                                        {TILE_EDGE_ROWS, 512, 0, 0},
                                        {TILE_EDGE_ROWS, 1031, 6, 3},
                                        {TILE_EDGE_ROWS, 1031, 1, 0},
                                        {TILE_EDGE_ROWS, 4096, 0, 0},
                                        {3, 5003, 5, 0},
                                        {2, 40007, 1, 1},
                                        {3, 40007, 1, 0}};
    enum { SHAPES = sizeof shapes / sizeof *shapes };
    for (int fill = 0; fill < TILE_FILLS; ++fill)
        for (int s = 0; s < SHAPES; ++s) {
            tile_spec spec = kit_tile_shape(shapes[s], s, (tile_fill)fill, format);
            check_kinds(k, &spec, s + fill);
            if (format == OH_TILE_DIFF) continue;
            spec.target_rows = 0;
            check_kinds(k, &spec, s + fill + 1);
        }
    const int32_t dtype = kit_tile_dtype(format);
    const tile_spec shared = {23, 257, 1, 0, 6, 0, TILE_NEAR, format, 0, false, true};
    check_kinds(k, &shared, 0);
    for (int fill = TILE_TIES; fill < TILE_WIDE; ++fill) {
        const tile_spec listed = {TILE_EDGE_ROWS, 1031, 0, 0, 14, 0, (tile_fill)fill, format, 0, false, true};
        check_pass(k, &listed, &(pass_spec){.kind = kinds[KIND_KL], .out_dtype = dtype, .top_k = 8});
    }
    /* Logit transforms are not asked for; who takes them anyway must be right. */
    for (uint32_t transform = 1; transform < 8; ++transform) {
        const tile_spec spec = {14, 301, 5, 1, 14, 64, TILE_FAR, format, transform, false, true};
        check_pass(k, &spec, &(pass_spec){.kind = kinds[KIND_CE_KL], .out_dtype = dtype, .given = transform % 2});
    }
}

/* Of the drafter's tile alone, or beside a target's. */
static void check_large(kit *k, int32_t format, int64_t rows, int64_t columns, int64_t pad) {
    tile_spec spec = {rows, columns, pad, 0, rows, 0, TILE_FAR, format, 0, false, true};
    const int32_t dtype = kit_tile_dtype(format);
    check_pass(k, &spec, &(pass_spec){.kind = kinds[KIND_KL], .out_dtype = dtype});
    spec.target_rows = 0;
    if (format != OH_TILE_DIFF)
        check_pass(k, &spec, &(pass_spec){.kind = kinds[KIND_CE], .out_dtype = dtype, .given = true});
}

/* More rows than a device works on at once; rows of which each takes many of its processors; and both. */
static void check_many(kit *k, int32_t format) {
    check_large(k, format, 700, 65, 7);
    check_large(k, format, 2, 152071, 1);
    if (!(k->table->caps & OH_CAP_HOST_MEMORY)) check_large(k, format, 210, 40007, 1);
}

/* A loss that compares p with q by its columns has no gradient before a second read. */
static void check_second_read(kit *k, int32_t format, int term) {
    if (!kit_begin(k, CONFORM_TILE_STATS_GRAD, "tile_stats_grad/%s/second-read-%d", kit_tile_format_name(format), term))
        return;
    const tile_spec spec = {4, 33, 3, 0, 4, 0, TILE_FAR, format, 0, false, true};
    const pass_spec s = {.kind = {"", OH_TERM_BIT(term), 0, 0}, .out_dtype = kit_tile_dtype(format)};
    pass_case c = {.pass = {.reserved = 0}};
    if (kit_tile_open(k, &c.stats.t, &spec)) open_pass(k, &c, &s);
    c.pass.stats.want &=
        OH_WANT_ENTROPY | OH_WANT_KL | OH_WANT_RKL | OH_WANT_TOTAL; /* the others are a second read's */
    if (kit_going(k) && kit_takes_tile_stats_grad(&k->seat, &c.pass))
        kit_fail(k, "tile_stats_grad_takes says yes to a loss that needs a second read");
    kit_unsupported(k, kit_run_tile_stats_grad, &c.pass, "a loss that needs a second read");
    kit_end(k);
}

static void check_refusals(kit *k, int32_t format) {
    if (!kit_begin(k, CONFORM_TILE_STATS_GRAD, "tile_stats_grad/%s/refused", kit_tile_format_name(format))) return;
    const int64_t target_rows = format == OH_TILE_DIFF ? 4 : 0;
    const tile_spec spec = {4, 33, 7, 0, target_rows, 0, TILE_FAR, format, 0, false, true};
    const pass_spec s = {.kind = kinds[KIND_CE], .out_dtype = kit_tile_dtype(format), .given = true};
    pass_case c = {.pass = {.reserved = 0}};
    if (kit_tile_open(k, &c.stats.t, &spec)) open_pass(k, &c, &s);
    kit_buffer *elsewhere =
        kit_matrix(k, "elsewhere", KIT_OUT, NULL, spec.rows, spec.columns, spec.columns + spec.pad, 0, s.out_dtype, 0);
    const oh_tile_stats_grad good = c.pass;
    oh_tile_stats_grad bad;
#define REFUSED(what, edit)                                                                                            \
    do {                                                                                                               \
        bad = good;                                                                                                    \
        edit;                                                                                                          \
        if (takes(k, &c))                                                                                              \
            kit_refused(k, kit_run_tile_stats_grad, &bad, "a first read with gradient, with " what,                    \
                        OH_INVALID_ARGUMENT);                                                                          \
    } while (0)
    REFUSED("rows = -1", bad.stats.tile.rows = bad.grad.tile.rows = -1);
    REFUSED("columns = -1", bad.stats.tile.columns = bad.grad.tile.columns = -1);
    REFUSED("stats = NULL", bad.stats.stats = NULL);
    REFUSED("objective = NULL", bad.objective = NULL);
    REFUSED("out other than the draft tile", bad.grad.out = kit_at(elsewhere));
    REFUSED("restart = 0", bad.stats.restart = 0);
#undef REFUSED
    kit_end(k);
}

/* --------------------------------------------------------------------------------------------------- sample ---- */

static void judge_sample(kit *k, const void *state) {
    judge(k, state);
}

/* Rows as far apart as a device's vectors like them. */
static void open_sample(kit *k, pass_case *c, const kit_sample_size *size, int32_t format, bool with_target) {
    const tile_spec spec = {.rows = size->rows,
                            .columns = size->columns,
                            .pad = (8 - size->columns % 8) % 8,
                            .target_rows = with_target ? size->rows : 0,
                            .fill = TILE_NEAR,
                            .format = format,
                            .for_grad = true};
    const pass_spec s = {
        .kind = kinds[with_target ? KIND_KL : KIND_CE], .out_dtype = kit_tile_dtype(format), .given = !with_target};
    *c = (pass_case){.pass = {.reserved = 0}};
    if (kit_tile_open(k, &c->stats.t, &spec)) open_pass(k, c, &s);
}

/* Beside a target where that is taken, else of 16-bit logits alone. */
void sample_tile_stats_grad(kit *k, const kit_sample_size *size, kit_sample *sample) {
    const int32_t format = kit_tile_format(k);
    pass_case *c = kit_host(k, 1, sizeof *c);
    if (!c) return;
    open_sample(k, c, size, format, true);
    const bool with_target = kit_going(k) && kit_takes_tile_stats_grad(&k->seat, &c->pass);
    if (!with_target)
        open_sample(k, c, size, k->table->tile_formats >> OH_TILE_BF16 & 1u ? OH_TILE_BF16 : format, false);
    if (!takes(k, c)) return;
    const tile_spec *spec = &c->stats.t.spec;
    const double count = (double)spec->rows * (double)spec->columns,
                 size_of = (double)float_size(kit_tile_dtype(spec->format));
    *sample = (kit_sample){
        kit_run_tile_stats_grad, &c->pass, judge_sample, c, (with_target ? 3 : 2) * size_of * count, 17 * count};
}

void cases_tile_stats_grad(kit *k) {
    const bool has_pass = OH_BACKEND_HAS(k->table, tile_stats_grad);
    const bool has_takes = OH_BACKEND_HAS(k->table, tile_stats_grad_takes);
    if (has_pass != has_takes && kit_begin(k, CONFORM_TILE_STATS_GRAD, "tile_stats_grad/both-or-neither")) {
        kit_fail(k, "%s is NULL, and the other isn't", has_pass ? "tile_stats_grad_takes" : "tile_stats_grad");
        kit_end(k);
    }
    if (!has_pass || !has_takes) return;
    for (int32_t format = OH_TILE_F32; format <= OH_TILE_DIFF; ++format) {
        if (!(k->table->tile_formats >> format & 1u)) continue;
        check_format(k, format);
        check_many(k, format);
        check_second_read(k, format, OH_TERM_JSD);
        check_second_read(k, format, OH_TERM_TV);
        check_refusals(k, format);
    }
}
