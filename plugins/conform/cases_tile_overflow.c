/* tile_overflow: which rows a tile of f16 could not hold. Sources are made so that every product is either well within the
 * range of f16, well beyond it, or well beyond that of f32 too, so that no order of additions decides. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kit.h"
#include "tile.h"
#include "verdict.h"

/* What a row's source is, and what was found of the row before. */
enum {
    ROW_PLAIN,
    ROW_OVER,     /* one product is too large */
    ROW_UNDER,    /* too large and negative */
    ROW_BOTH,     /* one of each */
    ROW_NAN,      /* a NaN in the source */
    ROW_INF,      /* an infinity in the source */
    ROW_BEYOND,   /* finite, and a product is infinite in f32 */
    ROW_FLAGGED,  /* plain, but the first read found something, as where a bias is -inf */
    ROW_UNLOOKED, /* as ROW_OVER, but the first read found nothing: may not be looked at */
    ROW_SEEN,     /* as ROW_OVER, and found before */
    ROW_KINDS
};

typedef struct overflow_shape {
    const char *name; /* of what is special */
    int64_t rows, columns, hidden, pad;
    int64_t target_rows;  /* 0: no target; fewer than rows: shared; rows: one each */
    int64_t first_column; /* of the tile within the vocabulary */
    int32_t rows_dtype, weight_dtype;
    bool mapped;       /* rows and columns are anywhere in their matrices, and some rows nowhere */
    bool bad_weight;   /* the weight has a NaN and an infinity */
    bool empty_places; /* a row that is nowhere is judged against a target row that overflowed */
} overflow_shape;

/* Draft or target: rows of a tile, and what they are products of. Doubles are as stored. */
typedef struct side {
    int64_t rows, sources, hidden, first_column, columns, vocabulary, weight_rows;
    int32_t rows_dtype, weight_dtype;
    int32_t *map;                      /* [rows] on the host */
    double *source, *weight, *product; /* [sources, hidden], [weight_rows, hidden], [rows, columns] */
    int32_t *weight_map;               /* [vocabulary] on the host */
    oh_tile_source given;
} side;

typedef struct overflow_case {
    side draft, target;
    int32_t *target_row, *kind; /* [rows] */
    oh_row_stats *before;
    uint32_t *want;
    double found[2];
    kit_buffer *stats, *found_at;
    oh_tile_overflow call;
} overflow_case;

/* --------------------------------------------------------------------------------------------------- sources ---- */

enum { CARRIERS = 4, BEYOND = 3 };
#define LARGE 4096.0
#define WEIGHT 32.0

/* Element `carrier` (modulo hidden) of a source is multiplied by WEIGHT in this column alone. */
static int64_t column_of(int carrier, int64_t columns) {
    const int64_t of[CARRIERS] = {columns - 1, 0, columns / 2, columns / 3};
    return of[carrier];
}

static double weight_element(const side *s, bool bad, uint64_t key, int64_t j, int64_t h) {
    if (bad && h == s->hidden - 1 && j == s->columns / 4) return (double)NAN;
    if (bad && h == s->hidden / 2 && j == s->columns - 1 - s->columns / 4) return (double)INFINITY;
    const int64_t i = (s->first_column + j) * s->hidden + h;
    double value = 0.5 * draw_normal(key, i);
    for (int carrier = 0; carrier < CARRIERS; ++carrier) {
        if (carrier % s->hidden != h) continue;
        if (j == column_of(carrier, s->columns)) return WEIGHT;
        value = h == BEYOND ? 0 : draw_bits(key, (uint64_t)i) % 2 ? 1 : -1;
    }
    return value;
}

static double row_element(const side *s, uint64_t key, int64_t row, int64_t h, int32_t kind) {
    const int64_t first = row % 3 % s->hidden, second = (row + 1) % 3 % s->hidden, odd = row % s->hidden;
    const double plain = 0.5 * draw_normal(key, row * s->hidden + h);
    if (kind == ROW_NAN && h == odd) return (double)NAN;
    if (kind == ROW_INF && h == odd) return row % 2 ? (double)INFINITY : -(double)INFINITY;
    if (kind == ROW_BEYOND) return h == BEYOND % s->hidden ? 0x1p125 : plain;
    if (kind == ROW_UNDER && h == first) return -LARGE;
    if ((kind == ROW_OVER || kind == ROW_BOTH || kind >= ROW_UNLOOKED) && h == first) return LARGE;
    return kind == ROW_BOTH && h == second ? -LARGE : plain;
}

/* The first `count` numbers of those below `of`, in order or in any. */
static int32_t *draw_map(kit *k, const char *stream, int64_t count, int64_t of, bool in_order) {
    int32_t *map = kit_host(k, of > count ? of : count, sizeof *map);
    const uint64_t key = kit_stream(k, stream);
    for (int64_t i = 0; map && i < of; ++i)
        map[i] = (int32_t)i;
    for (int64_t i = 0; map && !in_order && i < count && i < of; ++i) {
        const int64_t with = draw_integer(key, i, i, of - 1);
        const int32_t other = map[with];
        map[with] = map[i], map[i] = other;
    }
    return map;
}

/* Host arrays of a side; rows of its matrices that nothing maps to are NaN. */
static void draw_side(kit *k, side *s, const overflow_shape *shape, const char *stream) {
    enum { BEHIND = 2, UNUSED = 3 }; /* columns past the tile's, rows that no map has */
    char text[40];
    s->first_column = shape->first_column, s->columns = shape->columns, s->rows_dtype = shape->rows_dtype;
    s->sources = s->rows + (shape->mapped ? UNUSED : 0);
    s->vocabulary = s->first_column + s->columns + BEHIND;
    s->weight_rows = s->vocabulary + (shape->mapped ? UNUSED : 0);
    snprintf(text, sizeof text, "%s map", stream);
    s->map = draw_map(k, text, s->rows, s->sources, !shape->mapped);
    snprintf(text, sizeof text, "%s weight map", stream);
    s->weight_map = draw_map(k, text, s->vocabulary, s->weight_rows, !shape->mapped);
    snprintf(text, sizeof text, "%s weight", stream);
    const uint64_t key = kit_stream(k, text);
    s->source = kit_doubles(k, s->sources * s->hidden);
    s->weight = kit_doubles(k, s->weight_rows * s->hidden);
    s->product = kit_doubles(k, s->rows * s->columns);
    for (int64_t i = 0; kit_going(k) && i < s->sources * s->hidden; ++i)
        s->source[i] = (double)NAN;
    for (int64_t i = 0; kit_going(k) && i < s->weight_rows * s->hidden; ++i)
        s->weight[i] = (double)NAN;
    for (int64_t j = 0; kit_going(k) && j < s->columns + BEHIND; ++j)
        for (int64_t h = 0; h < s->hidden; ++h)
            s->weight[s->weight_map[s->first_column + j] * s->hidden + h] =
                float_round(weight_element(s, shape->bad_weight, key, j, h), s->weight_dtype);
}

/* Products of row `row` of the tile, whose source less what is subtracted is `values`. */
static void multiply(kit *k, side *s, int64_t row, const double *values) {
    for (int64_t j = 0; j < s->columns; ++j) {
        const double *weight = s->weight + s->weight_map[s->first_column + j] * s->hidden;
        double sum = 0;
        for (int64_t h = 0; h < s->hidden; ++h)
            sum += values[h] * weight[h];
        s->product[row * s->columns + j] = sum;
        if ((fabs(sum) > 4e4 && fabs(sum) < 1e5) || (fabs(sum) > 0x1p127 && fabs(sum) < 0x1p129))
            kit_fail(k, "the case is mistrusted: a product of %g is too near what f16 or f32 can hold", sum);
    }
}

/* Sources of the target: every other row is plain. */
static void draw_target(kit *k, side *s, int turn) {
    const uint64_t key = kit_stream(k, "target rows");
    for (int64_t row = 0; kit_going(k) && row < s->rows; ++row) {
        const int32_t kind = row % 2 ? ROW_PLAIN : (int32_t)((row / 2 + turn + 1) % ROW_FLAGGED);
        if (s->map[row] < 0) continue; /* products of 0 */
        double *source = s->source + s->map[row] * s->hidden;
        for (int64_t h = 0; h < s->hidden; ++h)
            source[h] = float_round(row_element(s, key, row, h, kind), s->rows_dtype);
        multiply(k, s, row, source);
    }
}

/* Sources of the draft, near what is subtracted of them where that is finite. */
static void draw_draft(kit *k, overflow_case *c, const int32_t *subtract_map) {
    side *s = &c->draft;
    const uint64_t key = kit_stream(k, "draft rows");
    double *values = kit_doubles(k, s->hidden);
    for (int64_t row = 0; kit_going(k) && row < s->rows; ++row) {
        if (s->map[row] < 0) continue;
        const int64_t m = s->map[row];
        for (int64_t h = 0; h < s->hidden; ++h) {
            const double other = subtract_map ? c->target.source[subtract_map[m] * s->hidden + h] : 0;
            const double own = row_element(s, key, row, h, c->kind[row]) + (isfinite(other) ? other : 0);
            s->source[m * s->hidden + h] = float_round(own, s->rows_dtype);
            values[h] = float_round(s->source[m * s->hidden + h] - other, OH_F32);
        }
        multiply(k, s, row, values);
    }
}

/* -------------------------------------------------------------------------------------------------- expected ---- */

/* As the tile has it. */
static double logit_of(const side *s, int64_t row, int64_t column) {
    return float_round(s->product[row * s->columns + column], OH_F16);
}

static bool has_overflow(const side *s, int64_t row) {
    for (int64_t j = 0; j < s->columns; ++j)
        if (!isfinite(logit_of(s, row, j)) && fabs(s->product[row * s->columns + j]) < 0x1p128) return true;
    return false;
}

static bool is_bad(double logit) {
    return !(logit < (double)INFINITY);
}

/* Flags that the first read leaves. */
static uint32_t flags_of(const overflow_case *c, int64_t row, const overflow_shape *shape, int32_t format) {
    uint32_t flags = 0;
    for (int64_t j = 0; j < shape->columns; ++j) {
        const double t = shape->target_rows ? logit_of(&c->target, c->target_row[row], j) : 0;
        const double z = logit_of(&c->draft, row, j) + (format == OH_TILE_DIFF ? t : 0);
        flags |= (is_bad(z) ? OH_ROW_Z_BAD : 0) | (is_bad(t) ? OH_ROW_T_BAD : 0);
        if (z == -(double)INFINITY) flags |= OH_ROW_Z_NEG_INF | (isfinite(t) && shape->target_rows ? OH_ROW_P0_Q : 0);
        if (t == -(double)INFINITY && isfinite(z)) flags |= OH_ROW_Q0_P;
    }
    return flags;
}

static void set_expected(kit *k, overflow_case *c, const overflow_shape *shape, int32_t format) {
    const uint64_t key = kit_stream(k, "statistics");
    for (int64_t row = 0; kit_going(k) && row < shape->rows; ++row) {
        unsigned char *bytes = (unsigned char *)&c->before[row];
        for (size_t b = 0; b < sizeof c->before[row]; ++b)
            bytes[b] = (unsigned char)draw_bits(key, (uint64_t)row * sizeof c->before[row] + b);
        uint32_t flags = flags_of(c, row, shape, format);
        if (flags != 0 && row % 2) flags |= OH_ROW_Q0_P; /* of another panel */
        if (c->kind[row] == ROW_FLAGGED) flags |= OH_ROW_P0_Q;
        if (c->kind[row] == ROW_UNLOOKED) flags = 0;
        if (c->kind[row] == ROW_SEEN) flags = OH_ROW_OVERFLOW | OH_ROW_Z_NEG_INF;
        c->before[row].flags = c->want[row] = flags;
        if (flags == 0 || flags & OH_ROW_OVERFLOW || c->draft.map[row] < 0) continue;
        if (!has_overflow(&c->draft, row) && !(shape->target_rows && has_overflow(&c->target, c->target_row[row])))
            continue;
        const double number = (double)c->draft.map[row] + 1;
        c->want[row] |= OH_ROW_Z_BAD | OH_ROW_OVERFLOW;
        c->found[0] += 1;
        if (c->found[1] == 0 || number < c->found[1]) c->found[1] = number;
    }
}

/* ------------------------------------------------------------------------------------------------------ a case ---- */

static void open_side(kit *k, side *s, const overflow_shape *shape, const char *const names[4]) {
    const double nan = (double)NAN;
    const int64_t ld = s->hidden + shape->pad, weight_ld = ld + shape->pad, odd = shape->pad ? 1 : 0;
    if (!kit_going(k)) return;
    s->given = (oh_tile_source){.ld = ld,
                                .weight_ld = weight_ld,
                                .hidden = s->hidden,
                                .rows_dtype = s->rows_dtype,
                                .weight_dtype = s->weight_dtype};
    s->given.rows =
        kit_at(kit_matrix(k, names[0], KIT_IN, s->source, s->sources, s->hidden, ld, odd, s->rows_dtype, nan));
    s->given.weight = kit_at(
        kit_matrix(k, names[1], KIT_IN, s->weight, s->weight_rows, s->hidden, weight_ld, odd, s->weight_dtype, nan));
    if (!shape->mapped) return;
    s->given.map = kit_at(kit_bytes(k, names[2], KIT_IN, s->map, s->rows * 4));
    s->given.weight_map = kit_at(kit_bytes(k, names[3], KIT_IN, s->weight_map, s->vocabulary * 4));
}

/* Elements between rows are infinite: a read past a row's end finds an overflow. */
static void *open_tile(kit *k, const side *s, const char *name, int64_t ld, int64_t shift) {
    if (!kit_going(k)) return NULL;
    return kit_at(kit_matrix(k, name, KIT_IN, s->product, s->rows, s->columns, ld, shift, OH_F16, (double)INFINITY));
}

/* Rows that take no part; their target's is none either where it is theirs alone, as in a chunk with places to spare. */
static void empty_places(overflow_case *c, const overflow_shape *shape) {
    for (int64_t row = 4; shape->mapped && row < shape->rows; row += 7) {
        c->draft.map[row] = -1, c->kind[row] = ROW_FLAGGED;
        if (shape->target_rows == shape->rows)
            c->target.map[row] = -1;
        else if (shape->target_rows)
            c->target_row[row] = shape->empty_places ? 0 : 1;
    }
}

static void open_case(kit *k, overflow_case *c, const overflow_shape *shape, int32_t format, int turn) {
    static const char *const of_draft[] = {"draft rows", "draft weight", "draft map", "draft weight map"};
    static const char *const of_target[] = {"target rows", "target weight", "target map", "target weight map"};
    static const double earlier[] = {0, 1e6, 1};
    const bool is_diff = format == OH_TILE_DIFF, shared = shape->target_rows < shape->rows;
    c->draft = (side){.rows = shape->rows, .hidden = shape->hidden, .weight_dtype = shape->weight_dtype};
    c->target = (side){.rows = shape->target_rows,
                       .hidden = shape->hidden + (is_diff ? 0 : 5),
                       .weight_dtype = is_diff ? shape->weight_dtype : shape->rows_dtype};
    draw_side(k, &c->draft, shape, "draft");
    draw_side(k, &c->target, shape, "target");
    c->target_row = kit_host(k, shape->rows, 4);
    c->kind = kit_host(k, shape->rows, 4);
    c->want = kit_host(k, shape->rows, 4);
    c->before = kit_host(k, shape->rows, sizeof *c->before);
    int32_t *subtract_map = kit_host(k, c->draft.sources, 4);
    if (!kit_going(k)) return;
    const uint64_t key = kit_stream(k, "target of");
    for (int64_t row = 0; row < shape->rows; ++row) {
        c->kind[row] = (int32_t)((row + turn) % ROW_KINDS);
        c->target_row[row] =
            (int32_t)(shared && shape->target_rows ? draw_integer(key, row, 0, shape->target_rows - 1) : row);
    }
    empty_places(c, shape);
    for (int64_t row = 0; row < shape->rows && is_diff; ++row)
        if (c->draft.map[row] >= 0) subtract_map[c->draft.map[row]] = c->target.map[c->target_row[row]];
    draw_target(k, &c->target, shape->empty_places ? 0 : turn);
    draw_draft(k, c, is_diff ? subtract_map : NULL);
    c->found[0] = 3, c->found[1] = earlier[turn % 3];
    c->found_at = kit_bytes(k, "found", KIT_IN_OUT, c->found, (int64_t)sizeof c->found);
    set_expected(k, c, shape, format);

    oh_tile_overflow *o = &c->call;
    const int64_t ld = shape->columns + shape->pad;
    o->tile = (oh_tile_view){.rows = shape->rows,
                             .columns = shape->columns,
                             .first_column = shape->first_column,
                             .draft_ld = ld,
                             .target_ld = ld + shape->pad,
                             .draft_transform = {.scale = 1},
                             .target_transform = {.scale = 1},
                             .format = format};
    o->tile.draft = open_tile(k, &c->draft, "draft tile", o->tile.draft_ld, shape->pad ? 1 : 0);
    open_side(k, &c->draft, shape, of_draft);
    if (shape->target_rows) {
        o->tile.target = open_tile(k, &c->target, "target tile", o->tile.target_ld, 0);
        open_side(k, &c->target, shape, of_target);
    }
    if (shape->target_rows && shared)
        o->tile.target_row = kit_at(kit_bytes(k, "target_row", KIT_IN, c->target_row, shape->rows * 4));
    o->draft = c->draft.given, o->target = c->target.given;
    if (is_diff) {
        o->draft.subtract = c->target.given.rows, o->draft.subtract_ld = c->target.given.ld;
        if (shape->mapped || shared)
            o->draft.subtract_map = kit_at(kit_bytes(k, "subtract_map", KIT_IN, subtract_map, c->draft.sources * 4));
    }
    c->stats = kit_bytes(k, "stats", KIT_IN_OUT, c->before, shape->rows * (int64_t)sizeof *c->before);
    o->found = kit_at(c->found_at), o->stats = kit_at(c->stats);
}

static void judge(kit *k, const overflow_case *c) {
    for (int64_t row = 0; row < c->draft.rows && kit_going(k); ++row) {
        const unsigned char *bytes = (const unsigned char *)kit_result(c->stats) + row * (int64_t)sizeof(oh_row_stats);
        oh_row_stats got, want = c->before[row];
        unsigned char want_bytes[sizeof want];
        memcpy(&got, bytes, sizeof got);
        verdict_integer(k, "flags", row, got.flags, c->want[row]);
        want.flags = got.flags;
        memcpy(want_bytes, &want, sizeof want);
        if (memcmp(bytes, want_bytes, sizeof want) != 0)
            kit_fail(k, "statistics of row %lld were written, beside their flags", (long long)row);
    }
    double found[2];
    memcpy(found, kit_result(c->found_at), sizeof found);
    for (int i = 0; i < 2 && kit_going(k); ++i)
        verdict_number(k, "found", i, found[i], c->found[i], 0);
}

static void check_overflow(kit *k, const overflow_shape *shape, int32_t format, int turn) {
    if (!kit_begin(k, CONFORM_TILE_OVERFLOW, "tile_overflow/%s/%s-%s/%lldx%lldx%lld%s%s%s%s-%d",
                   kit_tile_format_name(format), float_name(shape->rows_dtype), float_name(shape->weight_dtype),
                   (long long)shape->rows, (long long)shape->columns, (long long)shape->hidden,
                   shape->pad ? "-strided" : "", shape->mapped ? "-mapped" : "",
                   shape->target_rows == 0            ? "-alone"
                   : shape->target_rows < shape->rows ? "-shared"
                                                      : "",
                   shape->name, turn))
        return;
    overflow_case c = {.call = {.found = NULL}};
    open_case(k, &c, shape, format, turn);
    if (kit_run(k, kit_run_tile_overflow, &c.call)) judge(k, &c);
    kit_end(k);
}

static void check_refusals(kit *k, int32_t format) {
    if (!kit_begin(k, CONFORM_TILE_OVERFLOW, "tile_overflow/%s/refused", kit_tile_format_name(format))) return;
    const overflow_shape shape = {"", 4, 33, 5, 3, 4, 0, OH_F32, OH_BF16, false, false, false};
    overflow_case c = {.call = {.found = NULL}};
    open_case(k, &c, &shape, format, ROW_OVER);
    const oh_tile_overflow good = c.call;
    oh_tile_overflow bad;
#define REFUSED(what, edit)                                                                                            \
    do {                                                                                                               \
        bad = good;                                                                                                    \
        edit;                                                                                                          \
        kit_refused(k, kit_run_tile_overflow, &bad, "a search for overflow, with " what, OH_INVALID_ARGUMENT);         \
    } while (0)
    REFUSED("an f32 tile", bad.tile.format = OH_TILE_F32);
    REFUSED("a bf16 tile", bad.tile.format = OH_TILE_BF16);
    REFUSED("rows = -1", bad.tile.rows = -1);
    REFUSED("columns = -1", bad.tile.columns = -1);
    REFUSED("draft_ld = columns - 1", bad.tile.draft_ld = shape.columns - 1);
    REFUSED("target_ld = columns - 1", bad.tile.target_ld = shape.columns - 1);
    REFUSED("no draft tile", bad.tile.draft = NULL);
    REFUSED("stats = NULL", bad.stats = NULL);
    REFUSED("found = NULL", bad.found = NULL);
    REFUSED("no draft source", bad.draft.rows = NULL);
    REFUSED("no target source", bad.target.rows = NULL);
    REFUSED("no draft weight", bad.draft.weight = NULL);
    REFUSED("no target weight", bad.target.weight = NULL);
    REFUSED("hidden = -1", bad.draft.hidden = -1);
    REFUSED("ld = hidden - 1", bad.draft.ld = bad.draft.hidden - 1);
    REFUSED("the target's weight_ld = hidden - 1", bad.target.weight_ld = bad.target.hidden - 1);
    if (format == OH_TILE_DIFF) REFUSED("subtract_ld = hidden - 1", bad.draft.subtract_ld = bad.draft.hidden - 1);
    REFUSED("rows of i32", bad.draft.rows_dtype = OH_I32);
    REFUSED("a weight of f64", bad.target.weight_dtype = OH_F64);
#undef REFUSED
    kit_end(k);
}

static void check_format(kit *k, int32_t format) {
    static const overflow_shape shapes[] = {
        {"", 0, 9, 4, 0, 2, 0, OH_F32, OH_F32, false, false, false},
        {"", 5, 0, 4, 0, 5, 0, OH_F32, OH_F32, false, false, false},
        {"", 1, 1, 1, 0, 1, 0, OH_F32, OH_F32, false, false, false},
        {"", 23, 2, 1, 1, 23, 3, OH_BF16, OH_F32, true, false, false},
        {"", 23, 7, 2, 0, 6, 0, OH_F32, OH_BF16, false, false, false},
        {"", 23, 129, 17, 3, 23, 1000, OH_F16, OH_BF16, true, false, false},
        {"", 23, 256, 64, 0, 7, 64, OH_BF16, OH_BF16, true, false, false},
        {"", 23, 257, 300, 5, 23, 0, OH_F32, OH_F16, false, false, false},
        {"-bad-weight", 23, 300, 33, 1, 9, 0, OH_F32, OH_F32, true, true, false},
        {"", 700, 65, 8, 1, 90, 11, OH_BF16, OH_F16, true, false, false},
        {"", 13, 5003, 300, 1, 13, 64, OH_BF16, OH_BF16, true, false, false},
    };
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; ++s) {
        /* A row alone is of every kind in turn. */
        const int turns = shapes[s].rows == 1 ? ROW_KINDS : 3;
        for (int turn = 0; turn < turns; ++turn)
            if (shapes[s].columns < 4096 || turn == 0) check_overflow(k, &shapes[s], format, turn);
        overflow_shape alone = shapes[s];
        alone.target_rows = 0;
        if (format == OH_TILE_F16) check_overflow(k, &alone, format, (int)s);
    }
    const overflow_shape places = {"-empty-places", 40, 33, 6, 0, 12, 0, OH_F32, OH_F32, true, false, true};
    for (int turn = 0; turn < 3; ++turn)
        check_overflow(k, &places, format, turn);
    check_refusals(k, format);
}

void cases_tile_overflow(kit *k) {
    /* A device of its own memory does without: the core then takes no f16 tiles of its own accord. */
    if (!OH_BACKEND_HAS(k->table, tile_overflow) && !(k->table->caps & OH_CAP_HOST_MEMORY)) return;
    for (int32_t format = OH_TILE_F16; format <= OH_TILE_DIFF; ++format)
        if (k->table->tile_formats >> format & 1u) check_format(k, format);
}
