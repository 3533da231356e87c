/* row_finish against the same loops over rowmath.h on the host: it is the algebra's one home, so what is judged is that
 * a plugin calls it for every row and block, in the right order, on the right memory.
 *
 * Bound. The algebra is f64: some hundred operations and logarithms a figure, each within 2 units (2^-52), on numbers of
 * at most M = 64 here, so 2^-40 covers a figure of size 1 to 64 with a factor of 2^5 to spare, whatever the compiler
 * fuses. A sum of n rows: n times that. What is stored as f32 is rounded once more. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "verdict.h"

#define FIGURE_BOUND 0x1p-40

typedef struct finish_spec {
    const char *name;
    int64_t blocks, block_size;
    uint32_t terms, parts;
    int32_t first_slot, labels, decay, gap, dense; /* dense: every row is supervised */
    int32_t outside; /* oh_outside; not NEVER: the draft's vocabulary is a part of the target's */
    double decay_param, smoothing, z_loss;
} finish_spec;

#define EVERY_PART                                                                                                     \
    (OH_FINISH_COUNTS | OH_FINISH_LOSS | OH_FINISH_COEF | OH_FINISH_METRICS | OH_FINISH_TOP_K | OH_FINISH_TOP_K_ROWS)
#define EVERY_TERM ((1u << OH_TERM_COUNT) - 1u)

static const finish_spec specs[] = {
    {"default", 6, 16, OH_TERM_BIT(OH_TERM_KL), EVERY_PART, 1, OH_LABELS_TARGET, OH_DECAY_EXP, OH_GAP_STOP, 0,
     OH_OUTSIDE_NEVER, 10, 0, 0},
    {"every-term", 9, 16, EVERY_TERM, EVERY_PART, 1, OH_LABELS_TARGET, OH_DECAY_EXP, OH_GAP_STOP, 0, OH_OUTSIDE_NEVER,
     10, 0.1, 1e-3},
    {"ce", 5, 7, OH_TERM_BIT(OH_TERM_CE), EVERY_PART, 0, OH_LABELS_GIVEN, OH_DECAY_POWER, OH_GAP_SKIP, 0,
     OH_OUTSIDE_NEVER, 0.9, 0, 0},
    {"dpace", 11, 16, OH_TERM_BIT(OH_TERM_KL) | OH_TERM_BIT(OH_TERM_TV), EVERY_PART, 1, OH_LABELS_TARGET,
     OH_DECAY_DPACE, OH_GAP_STOP, 0, OH_OUTSIDE_NEVER, 0.5, 0, 0},
    {"dense", 70, 4, EVERY_TERM, EVERY_PART, 0, OH_LABELS_TARGET, OH_DECAY_NONE, OH_GAP_SKIP, 1, OH_OUTSIDE_NEVER, 0, 0,
     0},
    {"one-slot", 33, 1, OH_TERM_BIT(OH_TERM_NLA), EVERY_PART, 0, OH_LABELS_TARGET, OH_DECAY_NONE, OH_GAP_STOP, 0,
     OH_OUTSIDE_NEVER, 0, 0, 0},
    {"subset-dropped", 9, 16, EVERY_TERM, EVERY_PART, 1, OH_LABELS_TARGET, OH_DECAY_EXP, OH_GAP_STOP, 0,
     OH_OUTSIDE_DROP, 10, 0, 0},
    {"subset-kept", 9, 16, OH_TERM_BIT(OH_TERM_KL), EVERY_PART, 1, OH_LABELS_TARGET, OH_DECAY_EXP, OH_GAP_SKIP, 0,
     OH_OUTSIDE_KEEP, 10, 0, 0},
    {"subset-dpace", 9, 16, OH_TERM_BIT(OH_TERM_KL), EVERY_PART, 1, OH_LABELS_TARGET, OH_DECAY_DPACE, OH_GAP_STOP, 0,
     OH_OUTSIDE_DROP, 0.5, 0, 0},
    {"loss-only", 4, 16, EVERY_TERM, OH_FINISH_LOSS, 1, OH_LABELS_TARGET, OH_DECAY_EXP, OH_GAP_STOP, 0,
     OH_OUTSIDE_NEVER, 5, 0, 0},
    {"coef-only", 4, 16, EVERY_TERM, OH_FINISH_COEF, 1, OH_LABELS_TARGET, OH_DECAY_EXP, OH_GAP_STOP, 0,
     OH_OUTSIDE_NEVER, 5, 0, 0},
    {"grad-done", 9, 16, OH_TERM_BIT(OH_TERM_KL), EVERY_PART | OH_FINISH_GRAD_DONE, 1, OH_LABELS_TARGET, OH_DECAY_EXP,
     OH_GAP_STOP, 0, OH_OUTSIDE_NEVER, 10, 0, 0},
    {"grad-done-coef-only", 40, 4, OH_TERM_BIT(OH_TERM_CE), OH_FINISH_COEF | OH_FINISH_GRAD_DONE, 0, OH_LABELS_TARGET,
     OH_DECAY_NONE, OH_GAP_STOP, 1, OH_OUTSIDE_NEVER, 0, 0, 0},
    {"counts-only", 4, 16, EVERY_TERM, OH_FINISH_COUNTS, 1, OH_LABELS_TARGET, OH_DECAY_EXP, OH_GAP_STOP, 0,
     OH_OUTSIDE_NEVER, 5, 0, 0},
    {"metrics-only", 4, 16, EVERY_TERM, OH_FINISH_METRICS, 1, OH_LABELS_TARGET, OH_DECAY_EXP, OH_GAP_STOP, 0,
     OH_OUTSIDE_NEVER, 5, 0, 0},
};

#define EVERY_WANT                                                                                                     \
    (OH_WANT_ENTROPY | OH_WANT_KL | OH_WANT_RKL | OH_WANT_TOTAL | OH_WANT_OVERLAP | OH_WANT_JSD | OH_WANT_RANK)

enum { TOP_K = 8, VOCAB = 1000 };

/* The arrays of one row_finish on the host; `want` is what the host's own loops make of the same arguments. */
typedef struct finish_case {
    oh_row_finish device, want;
    int64_t rows, compact_rows, sum_count;
    kit_buffer *sums, *coef, *row_scale, *label, *row_loss, *weight, *row_label, *argmax, *rank, *topk_id,
        *topk_logprob;
} finish_case;

static void set_objective(oh_objective *o, const finish_spec *s) {
    for (int i = 0; i < OH_TERM_COUNT; ++i)
        o->lambda[i] = s->terms >> i & 1u ? 0.3 + 0.2 * i : 0;
    o->label_smoothing = s->smoothing, o->z_loss = s->z_loss, o->eta = 3, o->decay_param = s->decay_param;
    o->norm_value = 1, o->upstream = 1, o->block_size = s->block_size, o->valid_columns = VOCAB;
    o->terms = s->terms, o->first_slot = s->first_slot, o->labels = s->labels, o->decay = s->decay, o->gap = s->gap;
    o->top_k_count = 3;
    o->top_k[0] = 1, o->top_k[1] = 4, o->top_k[2] = 8;
}

/* Statistics as a softmax could have left them; here and there a row that isn't finite. */
static void draw_row(uint64_t key, int64_t i, oh_row_stats *s, oh_row_overlap *v, int32_t *ids, float *logits) {
    const uint64_t own = draw_mix(key + (uint64_t)i);
    oh_row_stats_empty(s);
    s->z_max = (float)(10 * draw_uniform(own, 0)), s->t_max = (float)(10 * draw_uniform(own, 1));
    s->z_sum = 1 + 20 * draw_uniform(own, 2), s->t_sum = 1 + 20 * draw_uniform(own, 3);
    s->z_dot = -3 * draw_uniform(own, 4) * s->z_sum, s->kl_dot = 4 * draw_normal(own, 5) * s->t_sum;
    s->rkl_dot = 4 * draw_normal(own, 6) * s->z_sum, s->z_total = VOCAB * draw_normal(own, 7);
    s->z_argmax = (int32_t)draw_integer(own, 8, 0, 19), s->t_argmax = (int32_t)draw_integer(own, 9, 0, 19);
    s->label = draw_bits(own, 10) % 2 ? s->z_argmax : (int32_t)draw_integer(own, 11, 0, 19);
    s->z_label = s->label == s->z_argmax ? s->z_max : s->z_max - (float)(8 * draw_uniform(own, 12));
    static const uint32_t flags[] = {OH_ROW_Z_BAD, OH_ROW_T_BAD, OH_ROW_P0_Q, OH_ROW_Q0_P, OH_ROW_Z_NEG_INF};
    if (draw_bits(own, 13) % 11 == 0) s->flags = flags[draw_bits(own, 14) % 5];
    v->alpha = draw_uniform(own, 15), v->tv = 1 - v->alpha, v->p_le = v->alpha * draw_uniform(own, 16);
    v->jsd = 0.6 * draw_uniform(own, 17), v->kl_pm = 0.6 * draw_uniform(own, 18);
    v->rank = s->label == s->z_argmax ? 0 : draw_integer(own, 19, 1, 19);
    for (int32_t k = 0; k < TOP_K; ++k) {
        ids[k] = (s->z_argmax + 3 * k) % 20;
        logits[k] = s->z_max - 0.5f * (float)k;
    }
}

/* One output: on the device all NaN, on the host zeros of the same size. */
static kit_buffer *output(kit *k, const char *name, int64_t bytes, void **device, void **host) {
    kit_buffer *b = kit_bytes(k, name, KIT_OUT, NULL, bytes > 0 ? bytes : 1);
    *device = kit_at(b);
    *host = kit_host(k, bytes, 1);
    return b;
}

#define OUTPUT(buffer, field, bytes)                                                                                   \
    do {                                                                                                               \
        void *device, *host;                                                                                           \
        c->buffer = output(k, #field, bytes, &device, &host);                                                          \
        c->device.field = device;                                                                                      \
        c->want.field = host;                                                                                          \
    } while (0)

static void open_outputs(kit *k, finish_case *c) {
    const uint32_t parts = c->device.parts;
    const int64_t rows = c->rows, compact = c->compact_rows;
    void *results, *partial;
    c->device.results =
        kit_at(kit_bytes(k, "results", KIT_SCRATCH, NULL, (compact + 1) * (int64_t)sizeof(oh_row_result)));
    c->device.partial =
        kit_at(kit_bytes(k, "partial", KIT_SCRATCH, NULL, rows * c->sum_count * (int64_t)sizeof(double)));
    results = kit_host(k, compact, sizeof(oh_row_result)), partial = kit_host(k, rows * c->sum_count, sizeof(double));
    c->want.results = results, c->want.partial = partial;
    if (parts & OH_FINISH_COEF) {
        OUTPUT(coef, coef, compact * (int64_t)sizeof(oh_row_coef));
        OUTPUT(row_scale, row_scale, compact * 4);
    }
    OUTPUT(label, label_out, compact * 4);
    if (parts & OH_FINISH_LOSS) {
        OUTPUT(row_loss, row_loss_out, rows * 4);
        OUTPUT(weight, weight_out, rows * 4);
    }
    if (parts & OH_FINISH_METRICS) {
        OUTPUT(row_label, row_label_out, rows * 4);
        OUTPUT(argmax, argmax_out, rows * 4);
        OUTPUT(rank, rank_out, rows * 4);
    }
    if (parts & OH_FINISH_TOP_K_ROWS) {
        OUTPUT(topk_id, topk_id_out, rows * TOP_K * 4);
        OUTPUT(topk_logprob, topk_logprob_out, rows * TOP_K * 4);
    }
}

/* One input: the same bytes on the device and on the host. */
#define INPUT(field, from, bytes)                                                                                      \
    do {                                                                                                               \
        c->device.field = kit_at(kit_bytes(k, #field, KIT_IN, from, bytes));                                           \
        c->want.field = from;                                                                                          \
    } while (0)

/* What a vocabulary subset adds: statistics over the whole of the target's, two draft rows a target row, one in nine of
 * them broken; overlaps with that; and rows whose token is no draft column. */
static void open_subset(kit *k, finish_case *c, oh_row_stats *stats) {
    const uint64_t key = kit_stream(k, "subset");
    const int64_t rows = c->compact_rows, targets = rows / 2 + 1;
    oh_row_stats *full = kit_host(k, targets, sizeof *full);
    oh_row_overlap *overlap = kit_host(k, rows + 1, sizeof *overlap);
    int32_t *target_row = kit_host(k, rows + 1, sizeof *target_row);
    if (!kit_going(k)) return;
    for (int64_t i = 0; i < targets; ++i) {
        oh_row_stats_empty(&full[i]);
        full[i].t_max = (float)(10 * draw_uniform(key, 4 * i)), full[i].t_sum = 1 + 20 * draw_uniform(key, 4 * i + 1);
        full[i].flags = i % 9 == 8 ? OH_ROW_T_BAD : 0;
    }
    for (int64_t i = 0; i < rows; ++i) {
        target_row[i] = (int32_t)(i / 2);
        overlap[i].alpha = draw_uniform(key, 4 * i + 2);
        if (draw_bits(key, (uint64_t)(4 * i + 3)) % 4 == 0)
            stats[i].label = OH_LABEL_NONE, stats[i].z_label = -INFINITY;
    }
    INPUT(full, full, targets * (int64_t)sizeof *full);
    INPUT(full_overlap, overlap, (rows + 1) * (int64_t)sizeof *overlap);
    INPUT(target_row, target_row, (rows + 1) * 4);
}

static void open_finish(kit *k, finish_case *c, const finish_spec *s) {
    const uint64_t key = kit_stream(k, "rows");
    oh_row_finish *f = &c->device;
    c->rows = f->rows = s->blocks * s->block_size;
    set_objective(&f->objective, s);
    c->sum_count = oh_sum_count(&f->objective);
    int32_t *compact = kit_host(k, c->rows, 4), *ids = kit_host(k, (c->rows + 1) * TOP_K, 4);
    float *mask = kit_host(k, c->rows, 4), *logits = kit_host(k, (c->rows + 1) * TOP_K, 4);
    oh_row_stats *stats = kit_host(k, c->rows + 1, sizeof *stats);
    oh_row_overlap *overlap = kit_host(k, c->rows + 1, sizeof *overlap);
    double *before = kit_doubles(k, c->sum_count);
    if (!kit_going(k)) return;
    for (int64_t r = 0; r < c->rows; ++r) {
        const bool supervised = s->dense || (r % s->block_size >= s->first_slot && draw_bits(key, (uint64_t)r) % 5);
        compact[r] = supervised ? (int32_t)c->compact_rows : -1;
        mask[r] = supervised ? (float)(0.5 + draw_uniform(key, r)) : 0;
        if (!supervised) continue;
        const int64_t i = c->compact_rows++;
        draw_row(key, r, &stats[i], &overlap[i], ids + i * TOP_K, logits + i * TOP_K);
    }
    f->compact_rows = c->compact_rows, f->first_row = 320, f->scale = 0.7, f->parts = s->parts;
    f->want = EVERY_WANT;
    f->top_k_mask = 7, f->top_k = TOP_K, f->has_target = 1, f->outside = s->outside;
    c->want = *f;
    INPUT(compact, compact, c->rows * 4);
    INPUT(mask, mask, c->rows * 4);
    INPUT(overlap, overlap, (c->compact_rows + 1) * (int64_t)sizeof *overlap);
    INPUT(topk_id, ids, (c->compact_rows + 1) * TOP_K * 4);
    INPUT(topk_logit, logits, (c->compact_rows + 1) * TOP_K * 4);
    if (s->outside != OH_OUTSIDE_NEVER) open_subset(k, c, stats);
    INPUT(stats, stats, (c->compact_rows + 1) * (int64_t)sizeof *stats);
    open_outputs(k, c);
    for (int64_t i = 0; i < c->sum_count; ++i)
        before[i] = i == OH_SUM_FIRST_NONFINITE ? 0 : (double)(i % 4);
    c->sums = kit_bytes(k, "sums", KIT_IN_OUT, before, c->sum_count * (int64_t)sizeof(double));
    c->device.sums = kit_at(c->sums);
    c->want.sums = before;
}

static void finish_on_host(const oh_row_finish *f) {
    for (int64_t i = 0; i < f->compact_rows; ++i)
        oh_finish_row(f, i);
    for (int64_t b = 0; b < f->rows / f->objective.block_size; ++b)
        oh_finish_block(f, b);
    for (int64_t i = 0; i < oh_sum_count(&f->objective); ++i)
        oh_finish_sum(f, i);
}

/* ------------------------------------------------------------------------------------------------- judging ---- */

static void judge_floats(kit *k, const char *what, const kit_buffer *got, const void *want, int64_t count) {
    for (int64_t i = 0; got && i < count && kit_going(k); ++i) {
        const double expected = float_load(want, i, OH_F32);
        verdict_number(k, what, i, float_load(kit_result(got), i, OH_F32), expected,
                       isfinite(expected) ? 2 * FLOAT_U * fabs(expected) + FIGURE_BOUND : 0);
    }
}

static void judge_integers(kit *k, const char *what, const kit_buffer *got, const int32_t *want, int64_t count) {
    for (int64_t i = 0; got && i < count && kit_going(k); ++i) {
        int32_t value;
        memcpy(&value, (const unsigned char *)kit_result(got) + 4 * i, sizeof value);
        verdict_integer(k, what, i, value, want[i]);
    }
}

/* What is to become of a row's gradient: that of a finite row without flags is there already after tile_stats_grad. */
static int32_t expected_zero(const finish_case *c, int64_t i) {
    if (!c->want.results[i].finite) return OH_ZERO_ROW;
    return c->want.parts & OH_FINISH_GRAD_DONE && c->want.stats[i].flags == 0 ? OH_ZERO_DONE : OH_ZERO_NOT;
}

static void judge_coef(kit *k, const finish_case *c) {
    enum { FLOATS = offsetof(oh_row_coef, label) / sizeof(float) };
    for (int64_t i = 0; c->coef && i < c->compact_rows && kit_going(k); ++i) {
        oh_row_coef got;
        const oh_row_coef *want = &c->want.coef[i];
        memcpy(&got, (const unsigned char *)kit_result(c->coef) + i * (int64_t)sizeof got, sizeof got);
        verdict_integer(k, "coef.label", i, got.label, want->label);
        const bool is_known = got.zero == OH_ZERO_NOT || got.zero == OH_ZERO_DONE;
        verdict_integer(k, "coef.zero", i, is_known ? got.zero : OH_ZERO_ROW, expected_zero(c, i));
        for (int n = 0; n < FLOATS; ++n) {
            const double expected = float_load(want, n, OH_F32);
            char what[40];
            snprintf(what, sizeof what, "coef, float %d", n);
            verdict_number(k, what, i, float_load(&got, n, OH_F32), expected,
                           2 * FLOAT_U * fabs(expected) + FIGURE_BOUND);
        }
    }
}

static void judge(kit *k, const finish_case *c) {
    const oh_row_finish *w = &c->want;
    for (int64_t i = 0; i < c->sum_count && kit_going(k); ++i) {
        double got;
        memcpy(&got, (const unsigned char *)kit_result(c->sums) + i * (int64_t)sizeof got, sizeof got);
        verdict_number(k, "sums", i, got, w->sums[i], (double)c->rows * FIGURE_BOUND * (1 + fabs(w->sums[i])));
    }
    judge_coef(k, c);
    judge_floats(k, "row_scale", c->row_scale, w->row_scale, c->compact_rows);
    judge_integers(k, "label_out", c->label, w->label_out, c->compact_rows);
    judge_floats(k, "row_loss_out", c->row_loss, w->row_loss_out, c->rows);
    judge_floats(k, "weight_out", c->weight, w->weight_out, c->rows);
    judge_integers(k, "row_label_out", c->row_label, w->row_label_out, c->rows);
    judge_integers(k, "argmax_out", c->argmax, w->argmax_out, c->rows);
    judge_integers(k, "rank_out", c->rank, w->rank_out, c->rows);
    judge_integers(k, "topk_id_out", c->topk_id, w->topk_id_out, c->rows * TOP_K);
    judge_floats(k, "topk_logprob_out", c->topk_logprob, w->topk_logprob_out, c->rows * TOP_K);
}

static void check_finish(kit *k, const finish_spec *s) {
    if (!kit_begin(k, CONFORM_ROW_FINISH, "row_finish/%s", s->name)) return;
    finish_case c = {.rows = 0};
    open_finish(k, &c, s);
    if (kit_run(k, kit_run_row_finish, &c.device)) {
        finish_on_host(&c.want);
        judge(k, &c);
    }
    kit_end(k);
}

/* No supervised row at all: counts stay, outputs are filled. */
static void check_empty(kit *k) {
    if (!kit_begin(k, CONFORM_ROW_FINISH, "row_finish/none-supervised")) return;
    finish_spec s = specs[0];
    s.first_slot = 16;
    finish_case c = {.rows = 0};
    open_finish(k, &c, &s);
    if (kit_run(k, kit_run_row_finish, &c.device)) {
        finish_on_host(&c.want);
        judge(k, &c);
    }
    kit_end(k);
}

static void check_refusals(kit *k) {
    if (!kit_begin(k, CONFORM_ROW_FINISH, "row_finish/refused")) return;
    finish_case c = {.rows = 0};
    open_finish(k, &c, &specs[0]);
    const oh_row_finish good = c.device;
    oh_row_finish bad;
#define REFUSED(what, edit)                                                                                            \
    do {                                                                                                               \
        bad = good;                                                                                                    \
        edit;                                                                                                          \
        kit_refused(k, kit_run_row_finish, &bad, "a row_finish with " what, OH_INVALID_ARGUMENT);                      \
    } while (0)
    REFUSED("block_size = 0", bad.objective.block_size = 0);
    REFUSED("rows that fill no blocks", bad.rows = good.rows - 1);
    REFUSED("rows = -16", bad.rows = -16);
    REFUSED("compact_rows = -1", bad.compact_rows = -1);
    REFUSED("compact_rows over rows", bad.compact_rows = good.rows + 1);
    REFUSED("compact = NULL", bad.compact = NULL);
    REFUSED("stats = NULL", bad.stats = NULL);
    REFUSED("sums = NULL", bad.sums = NULL);
    REFUSED("partial = NULL", bad.partial = NULL);
    REFUSED("results = NULL", bad.results = NULL);
    REFUSED("OH_FINISH_COEF without coef", bad.coef = NULL);
    REFUSED("OH_FINISH_GRAD_DONE without OH_FINISH_COEF",
            bad.parts = (good.parts & ~OH_FINISH_COEF) | OH_FINISH_GRAD_DONE);
#undef REFUSED
    kit_end(k);
}

/* --------------------------------------------------------------------------------------------------- sample ---- */

static void judge_sample(kit *k, const void *state) {
    const finish_case *c = state;
    double before[256];
    memcpy(before, c->want.sums, (size_t)c->sum_count * sizeof *before);
    finish_on_host(&c->want);
    judge(k, c);
    memcpy(c->want.sums, before, (size_t)c->sum_count * sizeof *before); /* for the next judgement */
}

void sample_row_finish(kit *k, const kit_sample_size *size, kit_sample *sample) {
    finish_spec s = specs[0];
    s.blocks = (size->rows + s.block_size - 1) / s.block_size;
    finish_case *c = kit_host(k, 1, sizeof *c);
    if (!c) return;
    open_finish(k, c, &s);
    const double rows = (double)c->rows;
    *sample =
        (kit_sample){kit_run_row_finish, &c->device, judge_sample, c, rows * (double)sizeof(oh_row_stats), 200 * rows};
}

void cases_row_finish(kit *k) {
    for (size_t i = 0; i < sizeof specs / sizeof *specs; ++i)
        check_finish(k, &specs[i]);
    check_empty(k);
    check_refusals(k);
}
