/* cmd_check.c - `onehead check`: the same step by every policy, in other chunks and panels, on another backend, and
 * against golden values. */
#include "check_golden.h"
#include "check_plan.h"
#include "check_report.h"
#include "command.h"
#include "error_line.h"
#include "format.h"
#include "progress.h"
#include "run_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const options_command check_command = {
    .bit = OPTIONS_CHECK,
    .name = "check",
    .synopsis = "[BATCH] [OPTION]...",
    .about = "Runs one step by every policy, in several chunks and in panels, with --against\n"
             "on another backend, and compares figures, gradients and rows; with golden values\n"
             "also every option set of theirs. Exit status 1 when any two disagree.\n\n"
             "Counts must be equal. Figures a and b agree when |a - b| is at most\n"
             "5e-6 max(|a|, |b|) and 2^-23 of what they are made of: with f32 logits of a few\n"
             "tens, a loss moves by some 84 units of 2^-24. Rows of the gradient agree when\n"
             "their difference is at most 2e-5 of the row and 2^-20 s, in the 2-norm, where\n"
             "s = weight |upstream| / N * factors of the terms * largest row of lm_head is the\n"
             "row's size before its parts cancel. With 16-bit tiles the bounds grow with their\n"
             "rounding, and counts that an argmax decides are not judged. tv, nla and lk_hybrid\n"
             "step where p = q: one row in a thousand, and one more, may be off by up to s.",
    .input = "BATCH",
};

typedef struct check_state {
    options o;
    batch b;
    step s, other; /* other: --against's */
    check_norms norms;
    check_report report;
    golden_values golden;
    char *single_args; /* the options of a golden file's only set, which `o` points into */
} check_state;

/* --------------------------------------------------------------------------------------------------- the report ---- */

/* One more element of a growing array, zeroed; NULL when out of memory. */
static void *append(void **array, size_t *count, size_t size, oh_error *error) {
    char *const moved = realloc(*array, (*count + 1) * size);
    if (moved == NULL) {
        error_line(error, OH_OUT_OF_MEMORY, "comparisons", "out of memory");
        return NULL;
    }
    *array = moved;
    void *const element = moved + *count * size;
    memset(element, 0, size);
    (*count)++;
    return element;
}

static check_comparison *new_comparison(check_comparison **array, size_t *count, const char *subject,
                                        const char *reference, oh_error *error) {
    void *memory = *array;
    check_comparison *const c = append(&memory, count, sizeof *c, error);
    if (c == NULL) return NULL;
    *array = memory;
    snprintf(c->subject, sizeof c->subject, "%s", subject);
    snprintf(c->reference, sizeof c->reference, "%s", reference);
    return c;
}

static oh_status leave_out(check_report *report, const char *subject, const char *reason, oh_error *error) {
    void *memory = report->omissions;
    check_omission *const o = append(&memory, &report->omission_count, sizeof *o, error);
    if (o == NULL) return OH_OUT_OF_MEMORY;
    report->omissions = memory;
    snprintf(o->subject, sizeof o->subject, "%s", subject);
    snprintf(o->reason, sizeof o->reason, "%.*s", (int)sizeof o->reason - 1, reason);
    return OH_OK;
}

static void describe(const oh_request *request, const oh_plan_summary *plan, const char *backend, char *text,
                     size_t size) {
    const int64_t valid = request->vocab_valid > 0 ? request->vocab_valid : request->vocab;
    int used = 0;
    if (backend != NULL) used = snprintf(text, size, "backend %.40s, ", backend);
    used += snprintf(text + used, size - (size_t)used, "%s, chunk %s", policy_name(plan->policy),
                     format_count(plan->chunk).text);
    if (plan->panel < valid && used < (int)size)
        snprintf(text + used, size - (size_t)used, ", panels of %s", format_count(plan->panel).text);
}

/* ------------------------------------------------------------------------------------------------------- the runs ---- */

/* Adds what the bounds and the comparison of rows need. */
static oh_request checked_request(const oh_request *request) {
    oh_request r = *request;
    r.produce |= OH_PRODUCE_METRICS | OH_PRODUCE_TOP_K | OH_PRODUCE_ROWS | OH_PRODUCE_TOP_K_ROWS;
    return r;
}

/* Runs `request` on `where` and compares it with the reference. What can't be run here is left out. */
static oh_status compare_run(check_state *c, step *where, const char *backend, const oh_request *request,
                             const step_result *reference, oh_error *error) {
    char subject[120];
    step_result result;
    oh_status status = step_run(where, request, &result, error);
    if (status == OH_OUT_OF_MEMORY || status == OH_UNSUPPORTED) {
        const oh_plan_summary wanted = {.policy = request->policy, .chunk = request->chunk, .panel = INT64_MAX};
        describe(request, &wanted, backend, subject, sizeof subject);
        return leave_out(&c->report, subject, error->message, error);
    }
    if (status != OH_OK) return status;
    describe(request, &result.plan, backend, subject, sizeof subject);
    check_comparison *const comparison =
        new_comparison(&c->report.steps, &c->report.step_count, subject, c->report.reference, error);
    if (comparison == NULL) {
        status = OH_OUT_OF_MEMORY;
    } else {
        const check_scale scale = check_scale_of(request, reference, &result, &c->norms);
        status = compare_results(comparison, request, &scale, reference, &result, error);
    }
    step_result_free(&result);
    return status;
}

static oh_status compare_policies(check_state *c, oh_error *error) {
    oh_request request;
    oh_status status = batch_request(&c->b, &c->o, &request, error);
    if (status != OH_OK) return status;
    request = checked_request(&request);
    step_result reference;
    status = step_run(&c->s, &request, &reference, error);
    if (status != OH_OK) return status;
    describe(&request, &reference.plan, NULL, c->report.reference, sizeof c->report.reference);

    check_variant variants[CHECK_VARIANTS_MAX];
    const int count = check_variants(&request, &reference.plan, variants);
    for (int i = 0; i < count && status == OH_OK; i++) {
        const oh_request r = check_variant_request(&request, &variants[i]);
        status = compare_run(c, &c->s, NULL, &r, &reference, error);
    }
    if (status == OH_OK && c->o.against != NULL) {
        status = compare_run(c, &c->other, c->other.backend->name, &request, &reference, error);
    }
    step_result_free(&reference);
    return status;
}

/* ------------------------------------------------------------------------------------------------- golden values ---- */

enum { ARGUMENTS_MAX = 64 };

/* The options of a set on top of the command line's. `text` is cut into the words that the options point to. */
static oh_status read_set(options *o, const char *set, char *text, oh_error *error) {
    char *words[ARGUMENTS_MAX + 1];
    char name[] = "check";
    int count = 0;
    words[count++] = name;
    char *rest = text;
    for (char *word = strtok_r(text, " ", &rest); word != NULL && count < ARGUMENTS_MAX;
         word = strtok_r(NULL, " ", &rest))
        words[count++] = word;
    words[count] = NULL;
    oh_error said;
    const char *const batch_name = o->input;
    o->input = NULL;
    if (options_read(o, &check_command, count, words, &said) != OH_OK || o->input != NULL)
        return error_line(error, OH_BAD_DATA, set, "args: %s", o->input != NULL ? "a file name" : said.message);
    o->input = batch_name;
    return OH_OK;
}

/* Cached, and in turn one of the other policies: all of them are compared with each other above. */
static oh_status compare_set(check_state *c, const char *set, const json_t *golden, const options *o, size_t turn,
                             oh_error *error) {
    const int32_t policies[] = {OH_POLICY_CACHED, turn % 2 == 0 ? OH_POLICY_RECOMPUTE : OH_POLICY_NAIVE};
    oh_request request;
    oh_status status = batch_request(&c->b, o, &request, error);
    if (status != OH_OK) return status;
    request = checked_request(&request);
    for (size_t i = 0; i < sizeof policies / sizeof policies[0] && status == OH_OK; i++) {
        step_result result;
        char subject[120];
        request.policy = policies[i];
        status = step_run(&c->s, &request, &result, error);
        if (status != OH_OK) return status;
        describe(&request, &result.plan, NULL, subject, sizeof subject);
        check_comparison *const comparison =
            new_comparison(&c->report.golden, &c->report.golden_count, subject, set, error);
        const check_scale scale = check_scale_of(&request, &result, NULL, &c->norms);
        if (comparison == NULL)
            status = OH_OUT_OF_MEMORY;
        else
            status = compare_golden(comparison, &request, &scale, golden, &result, error);
        step_result_free(&result);
    }
    return status;
}

static oh_status compare_golden_sets(check_state *c, oh_error *error) {
    const char *set;
    json_t *golden;
    size_t turn = 0;
    json_object_foreach((json_t *)(uintptr_t)c->golden.sets, set, golden) {
        const char *const arguments = json_string_value(json_object_get(golden, "args"));
        if (arguments == NULL) return error_line(error, OH_BAD_DATA, set, "no text 'args', expected the set's options");
        char *const text = strdup(arguments);
        if (text == NULL) return error_line(error, OH_OUT_OF_MEMORY, set, "out of memory");
        options o = c->o;
        progress_show(set);
        oh_status status = read_set(&o, set, text, error);
        if (status == OH_OK) status = compare_set(c, set, golden, &o, turn++, error);
        free(text);
        if (status != OH_OK) return status;
    }
    return OH_OK;
}

/* Where the values are for one set of options only, that is the step that the policies are compared on. */
static oh_status take_single_set(check_state *c, oh_error *error) {
    if (c->golden.single == NULL) return OH_OK;
    const char *const set = json_object_iter_key(json_object_iter(c->golden.single));
    const json_t *const golden = json_object_get(c->golden.single, set);
    c->single_args = strdup(json_string_value(json_object_get(golden, "args")));
    if (c->single_args == NULL) return error_line(error, OH_OUT_OF_MEMORY, set, "out of memory");
    return read_set(&c->o, set, c->single_args, error);
}

/* ----------------------------------------------------------------------------------------------------- the command ---- */

static oh_status run_check(check_state *c, oh_error *error) {
    const options *const o = &c->o;
    oh_status status = batch_open(&c->b, o->input, o->lm_head, error);
    if (status != OH_OK) return status;
    const bool is_sample = o->input == NULL && o->lm_head == NULL;
    const bool has_golden = o->golden != NULL || is_sample;
    if (has_golden) {
        status = golden_open(&c->golden, o->golden, o->input != NULL ? o->input : "sample.safetensors", error);
        if (status == OH_OK) status = take_single_set(c, error);
        if (status != OH_OK) return status;
    }
    status = step_open(&c->s, &c->b, o->backend, o, error);
    if (status == OH_OK && o->against != NULL) status = step_open(&c->other, &c->b, o->against, o, error);
    if (status != OH_OK) return status;
    c->norms = (check_norms){largest_row_norm(&c->b.lm_head), largest_row_norm(&c->b.draft_hidden)};
    c->report.batch = c->b.name;
    c->report.backend = c->s.backend->name;
    c->report.embedding = ckpt_embedding(&c->b.head);

    progress_show("comparing policies");
    status = compare_policies(c, error);
    if (status == OH_OK && has_golden) status = compare_golden_sets(c, error);
    progress_show(NULL);
    if (status != OH_OK) return status;
    if (o->json) return json_print(check_report_json(&c->report), error);
    check_report_print(&c->report);
    return OH_OK;
}

int cmd_check(int argc, char **argv) {
    check_state c = {.golden = {NULL, NULL, NULL}};
    int code = EXIT_OK;
    if (!options_begin(&c.o, &check_command, argc, argv, &code)) return code;
    oh_error error;
    const oh_status status = run_check(&c, &error);
    code = check_report_agrees(&c.report) ? EXIT_OK : EXIT_DISAGREES;
    check_report_free(&c.report);
    golden_close(&c.golden);
    free(c.single_args);
    step_close(&c.other);
    step_close(&c.s);
    batch_close(&c.b);
    if (status == OH_OK) return code;
    progress_show(NULL);
    return command_fail(check_command.name, &error);
}
