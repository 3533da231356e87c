#include "check_report.h"

#include "format.h"
#include "json_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t count_disagreeing(const check_comparison *comparisons, size_t count) {
    size_t result = 0;
    for (size_t i = 0; i < count; i++)
        result += !comparisons[i].agrees;
    return result;
}

static size_t disagreements(const check_report *report) {
    return count_disagreeing(report->steps, report->step_count) +
           count_disagreeing(report->golden, report->golden_count);
}

bool check_report_agrees(const check_report *report) {
    return disagreements(report) == 0;
}

void check_report_free(check_report *report) {
    for (size_t i = 0; i < report->step_count; i++)
        comparison_free(&report->steps[i]);
    for (size_t i = 0; i < report->golden_count; i++)
        comparison_free(&report->golden[i]);
    free(report->steps);
    free(report->golden);
    free(report->omissions);
    memset(report, 0, sizeof *report);
}

/* --------------------------------------------------------------------------------------------------------- JSON ---- */

static json_t *entry_json(const check_entry *e) {
    json_t *const entry =
        json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:b}", "name", e->name, "expected", json_number(e->expected), "found",
                  json_number(e->found), "absolute", json_number(e->absolute), "ulp", json_number(e->ulp), "bound",
                  json_number(e->bound), "agrees", (int)e->agrees);
    int failed = entry == NULL;
    if (e->row >= 0) failed |= json_object_set_new(entry, "row", json_integer(e->row));
    if (e->column >= 0) failed |= json_object_set_new(entry, "column", json_integer(e->column));
    if (!failed) return entry;
    json_decref(entry);
    return NULL;
}

static json_t *comparisons_json(const check_comparison *comparisons, size_t count) {
    json_t *const array = json_array();
    for (size_t i = 0; i < count; i++) {
        const check_comparison *const c = &comparisons[i];
        json_t *const entries = json_array();
        int failed = 0;
        for (size_t k = 0; k < c->count; k++)
            failed |= json_array_append_new(entries, entry_json(&c->entries[k]));
        json_t *const object = json_pack("{s:s, s:s, s:b, s:o}", "run", c->subject, "against", c->reference, "agrees",
                                         (int)c->agrees, "figures", entries);
        failed |= json_array_append_new(array, object);
        if (!failed) continue;
        json_decref(array);
        return NULL;
    }
    return array;
}

json_t *check_report_json(const check_report *report) {
    json_t *const omitted = json_array();
    int failed = 0;
    for (size_t i = 0; i < report->omission_count; i++) {
        const check_omission *const o = &report->omissions[i];
        failed |= json_array_append_new(omitted, json_pack("{s:s, s:s}", "run", o->subject, "reason", o->reason));
    }
    json_t *const root =
        json_pack("{s:s, s:s, s:s, s:b, s:o, s:o, s:o}", "batch", report->batch, "backend", report->backend,
                  "reference", report->reference, "agrees", (int)check_report_agrees(report), "runs",
                  comparisons_json(report->steps, report->step_count), "golden",
                  comparisons_json(report->golden, report->golden_count), "left_out", omitted);
    if (report->embedding != NULL)
        failed |= json_object_set_new(root, "lm_head_embedding", json_string(report->embedding));
    if (!failed) return root;
    json_decref(root);
    return NULL;
}

/* -------------------------------------------------------------------------------------------------------- tables ---- */

/* One line for comparisons that belong together: their verdict and their worst figure. */
static void print_comparisons(const check_comparison *c, size_t count, const char *title) {
    const size_t off = count_disagreeing(c, count);
    const check_comparison *in = c;
    for (size_t i = 1; i < count; i++) {
        if (comparison_severity(&c[i]) > comparison_severity(in)) in = &c[i];
    }
    printf("%-40s %-8s ", title, off == 0 ? "agrees" : "DIFFERS");
    const check_entry *const worst = comparison_worst(in);
    if (worst == NULL) {
        printf("%zu figures equal\n", c->count);
        return;
    }
    printf("%s: %.1e (%.3g ulp)", worst->name, worst->absolute, worst->ulp);
    if (worst->row >= 0) printf(" at row %" PRId64, worst->row);
    if (worst->column >= 0) printf(", column %" PRId64, worst->column);
    if (isinf(worst->bound))
        printf(", not judged");
    else
        printf(", %.1e allowed", worst->bound);
    if (count > 1) printf("; %s", in->subject);
    printf("\n");
}

static void print_golden(const check_report *report) {
    printf("\nAgainst golden values, the worst of each option set's runs:\n");
    for (size_t first = 0, next; first < report->golden_count; first = next) {
        const check_comparison *const c = &report->golden[first];
        for (next = first + 1; next < report->golden_count; next++) {
            if (strcmp(report->golden[next].reference, c->reference) != 0) break;
        }
        print_comparisons(c, next - first, c->reference);
    }
}

/* Whether the entry is one of the counts that are summed up in one line while they agree. */
static bool is_count(const check_entry *entry) {
    return entry->bound == 0 && entry->row < 0;
}

/* Every figure with its largest difference over all runs. The runs have the same figures in the same order. */
static void print_figures(const check_report *report) {
    const check_comparison *const first = &report->steps[0];
    size_t counts = 0;
    printf("\n%-20s %13s %11s %9s %11s  %s\n", "figure", "value", "difference", "ulp", "allowed", "in");
    for (size_t i = 0; i < first->count; i++) {
        const check_comparison *in = first;
        for (size_t k = 1; k < report->step_count; k++) {
            const check_entry *const a = &in->entries[i], *const b = &report->steps[k].entries[i];
            if (!(b->absolute <= a->absolute)) in = &report->steps[k];
        }
        const check_entry *const entry = &in->entries[i];
        if (is_count(entry) && entry->agrees) {
            counts++;
            continue;
        }
        printf("%-20s %13s %11.2e %9.3g %11.2e  ", entry->name, format_real(entry->expected).text, entry->absolute,
               entry->ulp, entry->bound);
        if (entry->absolute != 0) printf("%s", in->subject);
        if (entry->absolute != 0 && entry->row >= 0) printf(", row %" PRId64, entry->row);
        if (entry->absolute != 0 && entry->column >= 0) printf(", column %" PRId64, entry->column);
        printf("%s\n", entry->agrees ? "" : "  DIFFERS");
    }
    printf("and %zu counts, equal in all runs\n", counts);
}

void check_report_print(const check_report *report) {
    printf("batch      %s\n", report->batch);
    if (report->embedding != NULL) printf("lm_head    the input embedding, %s\n", report->embedding);
    printf("backend    %s\nreference  %s\n\n", report->backend, report->reference);
    for (size_t i = 0; i < report->step_count; i++)
        print_comparisons(&report->steps[i], 1, report->steps[i].subject);
    for (size_t i = 0; i < report->omission_count; i++)
        printf("%-40s left out: %s\n", report->omissions[i].subject, report->omissions[i].reason);
    if (report->step_count > 0) print_figures(report);
    if (report->golden_count > 0) print_golden(report);
    const size_t off = disagreements(report), all = report->step_count + report->golden_count;
    if (off == 0)
        printf("\nall %zu comparisons agree\n", all);
    else
        printf("\n%zu of %zu comparisons DIFFER\n", off, all);
}
