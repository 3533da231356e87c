/* Sums of squares and largest magnitudes.
 *
 * Bound. A square of an f32 is rounded at least as well as in f32, u of itself, and so is each addition within a run of
 * up to 256 terms that an f32 may hold; runs are added in f64. All terms are positive: 257 u of the sum. The largest
 * magnitude is one of the elements, exactly. */
#include <string.h>

#include "verdict.h"

static void check_norm(kit *k, int32_t dtype, int64_t rows, int64_t columns, int64_t pad, int64_t shift, bool exact) {
    if (!kit_begin(k, CONFORM_MATRIX_NORM, "matrix_norm/%s/%s/%lldx%lld%s%s", float_name(dtype),
                   exact ? "exact" : "real", (long long)rows, (long long)columns, pad ? "-strided" : "",
                   shift ? "-shifted" : ""))
        return;
    const uint64_t key = kit_stream(k, "data");
    double *values = kit_doubles(k, rows * columns);
    double want[2] = {3.0, 0.125}; /* added to and raised */
    const double before[2] = {want[0], want[1]};
    for (int64_t i = 0; values && i < rows * columns; ++i) {
        values[i] = exact ? (double)draw_integer(key, i, -9, 8) : float_round(1e-3 * draw_normal(key, i) - 2e-3, dtype);
        want[0] += values[i] * values[i];
        want[1] = fmax(want[1], fabs(values[i]));
    }
    const int64_t ld = columns + pad;
    kit_buffer *data = kit_matrix(k, "data", KIT_IN, values, rows, columns, ld, shift, dtype, 1000);
    kit_buffer *sums = kit_bytes(k, "sums", KIT_IN_OUT, before, sizeof before);
    oh_matrix_norm norm = {
        .rows = rows, .columns = columns, .data = kit_at(data), .ld = ld, .dtype = dtype, .sums = kit_at(sums)};
    if (kit_run(k, kit_run_matrix_norm, &norm)) {
        double got[2];
        memcpy(got, kit_result(sums), sizeof got);
        verdict_number(k, "sum of squares", 0, got[0], want[0],
                       exact ? 0 : 257 * FLOAT_U * (want[0] - before[0]) + 1e-15);
        verdict_number(k, "largest magnitude", 0, got[1], want[1], 0);
    }
    kit_end(k);
}

/* A NaN isn't lost in a maximum. */
static void check_not_finite(kit *k, int32_t dtype, double odd, const char *name) {
    if (!kit_begin(k, CONFORM_MATRIX_NORM, "matrix_norm/%s/%s", float_name(dtype), name)) return;
    const int64_t rows = 5, columns = 67;
    const double before[2] = {1, 1};
    double *values = kit_doubles(k, rows * columns);
    if (values) values[3 * columns + 65] = odd;
    kit_buffer *data = kit_matrix(k, "data", KIT_IN, values, rows, columns, columns, 0, dtype, 0);
    kit_buffer *sums = kit_bytes(k, "sums", KIT_IN_OUT, before, sizeof before);
    oh_matrix_norm norm = {
        .rows = rows, .columns = columns, .data = kit_at(data), .ld = columns, .dtype = dtype, .sums = kit_at(sums)};
    if (kit_run(k, kit_run_matrix_norm, &norm)) {
        double got[2];
        memcpy(got, kit_result(sums), sizeof got);
        verdict_number(k, "sum of squares", 0, got[0], odd * odd, 0);
        verdict_number(k, "largest magnitude", 0, got[1], fabs(odd), 0);
    }
    kit_end(k);
}

static void check_refusals(kit *k) {
    if (!kit_begin(k, CONFORM_MATRIX_NORM, "matrix_norm/refused")) return;
    const double before[2] = {0, 0};
    double *values = kit_doubles(k, 12);
    kit_buffer *data = kit_matrix(k, "data", KIT_IN, values, 3, 4, 4, 0, OH_F32, 0);
    kit_buffer *sums = kit_bytes(k, "sums", KIT_IN_OUT, before, sizeof before);
    const oh_matrix_norm good = {.rows = 3, .columns = 4, .data = kit_at(data), .ld = 4, .sums = kit_at(sums)};
    oh_matrix_norm bad;
#define REFUSED(what, edit)                                                                                            \
    do {                                                                                                               \
        bad = good;                                                                                                    \
        edit;                                                                                                          \
        kit_refused(k, kit_run_matrix_norm, &bad, "a norm with " what, OH_INVALID_ARGUMENT);                           \
    } while (0)
    REFUSED("rows = -1", bad.rows = -1);
    REFUSED("columns = -1", bad.columns = -1);
    REFUSED("ld = columns - 1", bad.ld = 3);
    REFUSED("data = NULL", bad.data = NULL);
    REFUSED("sums = NULL", bad.sums = NULL);
    REFUSED("dtype = i64", bad.dtype = OH_I64);
#undef REFUSED
    kit_end(k);
}

/* --------------------------------------------------------------------------------------------------- sample ---- */

typedef struct norm_sample {
    oh_matrix_norm norm;
    kit_buffer *sums;
    double want[2];
} norm_sample;

static void judge_sample(kit *k, const void *state) {
    const norm_sample *s = state;
    double got[2];
    memcpy(got, kit_result(s->sums), sizeof got);
    verdict_number(k, "sum of squares", 0, got[0], s->want[0], 257 * FLOAT_U * s->want[0]);
    verdict_number(k, "largest magnitude", 0, got[1], s->want[1], 0);
}

void sample_matrix_norm(kit *k, const kit_sample_size *size, kit_sample *sample) {
    const int64_t count = size->rows * size->columns;
    const uint64_t key = kit_stream(k, "data");
    norm_sample *s = kit_host(k, 1, sizeof *s);
    double *values = kit_doubles(k, count);
    for (int64_t i = 0; kit_going(k) && i < count; ++i) {
        values[i] = float_round(draw_normal(key, i), OH_F32);
        s->want[0] += values[i] * values[i];
        s->want[1] = fmax(s->want[1], fabs(values[i]));
    }
    if (!kit_going(k)) return;
    const double before[2] = {0, 0};
    kit_buffer *data = kit_matrix(k, "data", KIT_IN, values, size->rows, size->columns, size->columns, 0, OH_F32, 0);
    s->sums = kit_bytes(k, "sums", KIT_IN_OUT, before, sizeof before);
    s->norm = (oh_matrix_norm){.rows = size->rows,
                               .columns = size->columns,
                               .data = kit_at(data),
                               .ld = size->columns,
                               .sums = kit_at(s->sums)};
    *sample = (kit_sample){kit_run_matrix_norm, &s->norm, judge_sample, s, 4 * (double)count, 2 * (double)count};
}

void cases_matrix_norm(kit *k) {
    static const int32_t dtypes[] = {OH_F32, OH_BF16, OH_F16};
    static const int64_t shapes[][4] = {{1, 1, 0, 0},    {2, 7, 0, 1},     {5, 64, 0, 0}, {37, 131, 3, 1},
                                        {3, 5003, 0, 3}, {200, 300, 0, 0}, {0, 5, 0, 0},  {5, 0, 0, 0}};
    for (int d = 0; d < 3; ++d) {
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; ++s)
            for (int exact = 0; exact < 2; ++exact)
                check_norm(k, dtypes[d], shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], exact);
        check_not_finite(k, dtypes[d], (double)NAN, "nan");
        check_not_finite(k, dtypes[d], -(double)INFINITY, "infinite");
    }
    check_refusals(k);
}
