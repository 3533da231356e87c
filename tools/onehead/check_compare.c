#include "check_compare.h"

#include "error_line.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double ulp_size(double value) {
    const float size = fabsf((float)value);
    if (!isfinite(size)) return (double)NAN;
    return (double)nextafterf(size, INFINITY) - (double)size;
}

/* Room for one more entry; NULL when out of memory. */
static check_entry *new_entry(check_comparison *c, const char *name, oh_error *error) {
    if (c->count == c->capacity) {
        const size_t capacity = c->capacity == 0 ? 64 : 2 * c->capacity;
        check_entry *const moved = realloc(c->entries, capacity * sizeof *moved);
        if (moved == NULL) {
            error_line(error, OH_OUT_OF_MEMORY, "comparison", "out of memory");
            return NULL;
        }
        c->entries = moved;
        c->capacity = capacity;
    }
    check_entry *const entry = &c->entries[c->count++];
    memset(entry, 0, sizeof *entry);
    snprintf(entry->name, sizeof entry->name, "%s", name);
    entry->row = entry->column = -1;
    entry->agrees = true;
    return entry;
}

/* 0 for what is the same, though both be absent (NaN) or the same infinity. */
static double difference(double x, double y) {
    return x == y || (isnan(x) && isnan(y)) ? 0 : x - y;
}

static void judge(check_entry *entry, double expected, double found, double bound) {
    entry->expected = expected;
    entry->found = found;
    entry->absolute = fabs(difference(expected, found));
    const bool same = entry->absolute == 0;
    entry->ulp = same ? 0 : entry->absolute / ulp_size(expected);
    entry->bound = bound;
    entry->agrees = same || entry->absolute <= bound || (isinf(bound) && !isnan(entry->absolute));
}

static void conclude(check_comparison *c) {
    c->agrees = true;
    for (size_t i = 0; i < c->count; i++)
        c->agrees = c->agrees && c->entries[i].agrees;
}

/* ------------------------------------------------------------------------------------------------------- arrays ---- */

/* A gradient's rows in the 2-norm. The entry names the row that is furthest off, as a multiple of its bound, and there
 * the element that is furthest off. */
static oh_status compare_gradient(check_comparison *c, const check_scale *scale, const step_result *expected,
                                  const step_result *found, oh_error *error) {
    check_entry *const entry = new_entry(c, "draft_hidden.grad", error);
    if (entry == NULL) return OH_OUT_OF_MEMORY;
    const float *const a = expected->draft_grad, *const b = found->draft_grad;
    double worst = -1;
    int64_t beyond = 0;
    for (int64_t row = 0; row < expected->rows; row++) {
        double size = 0, off = 0, most = -1;
        int64_t at = 0;
        for (int64_t i = 0; i < expected->hidden; i++) {
            const double x = (double)a[row * expected->hidden + i];
            const double d = difference(x, (double)b[row * expected->hidden + i]);
            size += x * x;
            off += d * d;
            if (fabs(d) > most || isnan(d)) most = fabs(d), at = i;
        }
        const double unit = expected->weight != NULL ? scale->row_unit * (double)expected->weight[row] : 0;
        const double bound = scale->rounding * (2e-5 * sqrt(size) + 0x1p-20 * unit) + scale->grad_rounding * unit;
        /* NaN compares false: a row that is NaN in one of them is beyond every bound. */
        const bool within = off == 0 || sqrt(off) <= bound;
        const bool stepped = !within && beyond < scale->step_rows && sqrt(off) <= unit;
        if (!within) beyond++;
        if (!within && !stepped) entry->agrees = false;
        const double multiple = bound > 0 ? sqrt(off) / bound : off > 0 ? INFINITY : 0;
        if (!(multiple > worst) && !isnan(multiple)) continue;
        worst = multiple;
        const int64_t element = row * expected->hidden + at;
        entry->row = row;
        entry->column = at;
        entry->expected = (double)a[element];
        entry->found = (double)b[element];
        entry->absolute = most;
        entry->ulp = most / ulp_size(entry->expected);
        entry->bound = bound;
    }
    return OH_OK;
}

/* The head's gradient as a whole, in the Frobenius norm: a row of it has parts of every step row. */
static oh_status compare_head(check_comparison *c, const check_scale *scale, const step_result *expected,
                              const step_result *found, oh_error *error) {
    check_entry *const entry = new_entry(c, "lm_head.grad", error);
    if (entry == NULL) return OH_OUT_OF_MEMORY;
    double size = 0, off = 0, most = -1;
    int64_t at = 0;
    for (int64_t i = 0; i < expected->vocab * expected->hidden; i++) {
        const double x = (double)expected->head_grad[i], d = difference(x, (double)found->head_grad[i]);
        size += x * x;
        off += d * d;
        if (fabs(d) > most || isnan(d)) most = fabs(d), at = i;
    }
    entry->row = at / expected->hidden;
    entry->column = at % expected->hidden;
    entry->expected = (double)expected->head_grad[at];
    entry->found = (double)found->head_grad[at];
    entry->absolute = most;
    entry->ulp = most > 0 ? most / ulp_size(entry->expected) : 0;
    entry->bound = scale->rounding * (2e-5 * sqrt(size) + 0x1p-20 * scale->head_unit) +
                   2 * scale->grad_rounding * scale->head_unit;
    entry->agrees = off == 0 || sqrt(off) <= entry->bound;
    return OH_OK;
}

/* f32 values of all rows, each within `relative` of itself and `absolute` more. */
static oh_status compare_values(check_comparison *c, const char *name, const float *expected, const float *found,
                                int64_t rows, int64_t columns, double relative, double absolute, oh_error *error) {
    check_entry *const entry = new_entry(c, name, error);
    if (entry == NULL) return OH_OUT_OF_MEMORY;
    double worst = -1;
    for (int64_t i = 0; i < rows * columns; i++) {
        check_entry one = *entry;
        const double size = fabs((double)expected[i]);
        judge(&one, (double)expected[i], (double)found[i], isfinite(size) ? relative * size + absolute : 0);
        const bool agrees = entry->agrees && one.agrees;
        double multiple = one.absolute == 0 ? 0 : one.absolute / one.bound;
        if (isnan(multiple)) multiple = INFINITY;
        if (multiple > worst) {
            worst = multiple;
            one.row = i / columns;
            one.column = i % columns;
            *entry = one;
        }
        entry->agrees = agrees;
    }
    return OH_OK;
}

/* Integers of all rows; the entry shows the first that differs. */
static oh_status compare_integers(check_comparison *c, const char *name, const int32_t *expected, const int32_t *found,
                                  int64_t rows, bool exact, oh_error *error) {
    check_entry *const entry = new_entry(c, name, error);
    if (entry == NULL) return OH_OUT_OF_MEMORY;
    for (int64_t row = 0; row < rows; row++) {
        if (expected[row] == found[row]) continue;
        judge(entry, (double)expected[row], (double)found[row], exact ? 0 : INFINITY);
        entry->row = row;
        break;
    }
    return OH_OK;
}

static oh_status compare_rows(check_comparison *c, const check_scale *scale, const step_result *expected,
                              const step_result *found, oh_error *error) {
    const int64_t rows = expected->rows;
    const double u = scale->rounding;
    oh_status status = compare_values(c, "row_loss", expected->row_loss, found->row_loss, rows, 1, u * 5e-6,
                                      u * 0x1p-20 * scale->factors, error);
    if (status == OH_OK)
        status = compare_values(c, "weight", expected->weight, found->weight, rows, 1, u * 5e-6, 0, error);
    if (status == OH_OK)
        status = compare_integers(c, "label", expected->label, found->label, rows, scale->exact, error);
    if (status == OH_OK)
        status = compare_integers(c, "argmax", expected->argmax, found->argmax, rows, scale->exact, error);
    /* The lists are sorted: where two logits are equal to within rounding their ids may change places, and the
     * log-probabilities by position agree all the same. */
    if (status == OH_OK && expected->topk_logprob != NULL)
        status = compare_values(c, "topk_logprob", expected->topk_logprob, found->topk_logprob, rows, expected->top_k,
                                u * 5e-6, u * 0x1p-20, error);
    return status;
}

/* ------------------------------------------------------------------------------------------------------ figures ---- */

oh_status compare_results(check_comparison *c, const oh_request *request, const check_scale *scale,
                          const step_result *expected, const step_result *found, oh_error *error) {
    figure_list want = {NULL, 0}, got = {NULL, 0};
    oh_status status = figures_collect(&want, request, expected, scale, error);
    if (status == OH_OK) status = figures_collect(&got, request, found, scale, error);
    for (size_t i = 0; i < want.count && status == OH_OK; i++) {
        check_entry *const entry = new_entry(c, want.figures[i].name, error);
        if (entry == NULL)
            status = OH_OUT_OF_MEMORY;
        else
            judge(entry, want.figures[i].value, got.figures[i].value,
                  figure_bound(&want.figures[i], got.figures[i].value, scale));
    }
    free(want.figures);
    free(got.figures);
    if (status == OH_OK && expected->row_loss != NULL) status = compare_rows(c, scale, expected, found, error);
    if (status == OH_OK && expected->draft_grad != NULL) status = compare_gradient(c, scale, expected, found, error);
    if (status == OH_OK && expected->head_grad != NULL) status = compare_head(c, scale, expected, found, error);
    conclude(c);
    return status;
}

/* "topk.4.hits" in nested objects and arrays; NULL when there is none. */
static const json_t *look_up(const json_t *object, const char *name) {
    char key[40];
    while (object != NULL) {
        const size_t length = strcspn(name, ".");
        snprintf(key, sizeof key, "%.*s", (int)length, name);
        if (json_is_array(object))
            object = json_array_get(object, (size_t)strtoul(key, NULL, 10));
        else
            object = json_object_get(object, key);
        if (name[length] == '\0') break;
        name += length + 1;
    }
    return object;
}

oh_status compare_golden(check_comparison *c, const oh_request *request, const check_scale *scale, const json_t *golden,
                         const step_result *found, oh_error *error) {
    figure_list got = {NULL, 0};
    oh_status status = figures_collect(&got, request, found, scale, error);
    for (size_t i = 0; i < got.count && status == OH_OK; i++) {
        const figure *const f = &got.figures[i];
        const json_t *const value = look_up(golden, f->name);
        if (!json_is_number(value)) continue;
        check_entry *const entry = new_entry(c, f->name, error);
        if (entry == NULL)
            status = OH_OUT_OF_MEMORY;
        else
            judge(entry, json_number_value(value), f->value, figure_bound(f, json_number_value(value), scale));
    }
    free(got.figures);
    if (status == OH_OK && c->count == 0)
        status = error_line(error, OH_BAD_DATA, c->reference, "no figure that we know, expected keys of run's JSON");
    conclude(c);
    return status;
}

static double severity(const check_entry *entry) {
    if (entry->absolute == 0 || isinf(entry->bound)) return 0;
    const double part = entry->absolute / entry->bound;
    if (entry->agrees) return part;
    return part > 1 ? part : INFINITY; /* NaN, and rows whose norm is over the bound though no element is */
}

const check_entry *comparison_worst(const check_comparison *c) {
    const check_entry *worst = NULL;
    for (size_t i = 0; i < c->count; i++) {
        if (severity(&c->entries[i]) > (worst != NULL ? severity(worst) : 0)) worst = &c->entries[i];
    }
    return worst;
}

double comparison_severity(const check_comparison *c) {
    const check_entry *const worst = comparison_worst(c);
    return worst != NULL ? severity(worst) : 0;
}

void comparison_free(check_comparison *c) {
    free(c->entries);
    memset(c, 0, sizeof *c);
}
