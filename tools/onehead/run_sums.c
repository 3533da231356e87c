#include "run_sums.h"

#include "atomic_file.h"
#include "error_line.h"
#include "json_text.h"
#include "run_report.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

oh_status run_sums_init(run_sums *s, const oh_objective *objective, oh_error *error) {
    memset(s, 0, sizeof *s);
    s->has_target = -1;
    s->count = oh_sum_count(objective);
    s->sums = calloc((size_t)s->count, sizeof *s->sums);
    return s->sums != NULL ? OH_OK : error_line(error, OH_OUT_OF_MEMORY, "sums", "out of memory");
}

void run_sums_free(run_sums *s) {
    free(s->sums);
    memset(s, 0, sizeof *s);
}

void run_sums_add(run_sums *s, const double *sums, int64_t rows) {
    for (int64_t i = 0; i < s->count; i++) {
        double value = sums[i];
        if (i == OH_SUM_FIRST_NONFINITE && value > 0) value += (double)s->rows; /* 0 means none */
        s->sums[i] = oh_sum_merge(i, s->sums[i], value);
    }
    s->rows += rows;
    s->batches++;
}

void run_sums_figures(const run_sums *s, const oh_objective *objective, uint32_t produce, oh_results *figures) {
    const double n = oh_step_norm(objective, s->sums, NULL), numerator = s->sums[OH_SUM_LOSS_NUM];
    const double loss[3] = {n > 0 ? numerator / n : 0, numerator, n};
    oh_results_from_sums(objective, s->sums, loss, s->has_target == 1, produce, figures);
    figures->rows = s->rows;
    figures->projections_draft = s->projections_draft;
    figures->projections_target = s->projections_target;
    figures->gemms = s->gemms;
    figures->tile_reads = s->tile_reads;
}

/* -------------------------------------------------------------------------------------------------------- the file ---- */

static json_t *text_or_null(const char *text) {
    return text != NULL ? json_string(text) : json_null();
}

static json_t *numbers(const double *values, int64_t count) {
    json_t *const array = json_array();
    for (int64_t i = 0; i < count; i++) {
        char text[40];
        snprintf(text, sizeof text, "%a", values[i]);
        if (json_array_append_new(array, json_string(text)) == 0) continue;
        json_decref(array);
        return NULL;
    }
    return array;
}

static json_t *top_k_json(const oh_objective *objective) {
    double list[OH_TOP_K_LIST_MAX];
    for (int32_t i = 0; i < objective->top_k_count; i++)
        list[i] = objective->top_k[i];
    return numbers(list, objective->top_k_count);
}

/* Everything that decides a sum, and whether two sums may be added. */
static json_t *settings_json(const options *o) {
    const oh_request *const r = &o->request;
    const oh_objective *const objective = &r->objective;
    const double reals[] = {objective->label_smoothing,
                            objective->z_loss,
                            objective->eta,
                            objective->decay_param,
                            objective->norm_value,
                            objective->upstream,
                            o->scale,
                            o->softcap,
                            o->target_scale,
                            o->target_softcap,
                            o->target_scale_given,
                            o->target_softcap_given,
                            o->request.outside};
    return json_pack("{s:s, s:o, s:o, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:o, s:o, s:I, s:i, s:i, s:I, s:I, s:o, "
                     "s:I, s:I}",
                     "version", oh_version(), "factors", numbers(objective->lambda, OH_TERM_COUNT), "reals",
                     numbers(reals, sizeof reals / sizeof reals[0]), "terms", (int)objective->terms, "terms_given",
                     (int)o->terms_given, "labels", (int)objective->labels, "labels_given", (int)o->labels_given,
                     "decay", (int)objective->decay, "norm", (int)objective->norm, "gap", (int)objective->gap,
                     "block_size", (json_int_t)objective->block_size, "top_k", top_k_json(objective), "lm_head",
                     text_or_null(o->lm_head), "first_slot", (json_int_t)objective->first_slot, "policy",
                     (int)r->policy, "tile", (int)r->tile, "chunk", (json_int_t)r->chunk, "memory",
                     (json_int_t)r->memory, "backend", text_or_null(o->backend), "metrics", (json_int_t)o->metrics,
                     "vocab_valid", (json_int_t)r->vocab_valid);
}

static json_t *file_json(const batch_file *file) {
    return json_pack("[s, I, I]", file->path, (json_int_t)file->stamp.bytes, (json_int_t)file->stamp.modified_ns);
}

static json_t *files_json(const batch_list *list, int64_t count) {
    json_t *const array = json_array();
    for (int64_t i = 0; i < count; i++) {
        json_t *const entry = file_json(&list->files[i]);
        if (json_array_append_new(array, entry) == 0) continue;
        json_decref(array);
        return NULL;
    }
    return array;
}

oh_status run_sums_save(const run_sums *s, const char *path, const options *o, const batch_list *list,
                        oh_error *error) {
    json_t *const root = json_pack(
        "{s:o, s:o, s:[I, I], s:{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i}, s:f, s:o}", "settings", settings_json(o),
        "files", files_json(list, s->batches), "head", (json_int_t)s->head.bytes, (json_int_t)s->head.modified_ns,
        "done", "batches", (json_int_t)s->batches, "rows", (json_int_t)s->rows, "plan_rows", (json_int_t)s->plan_rows,
        "plan_target_rows", (json_int_t)s->plan_target_rows, "projections_draft", (json_int_t)s->projections_draft,
        "projections_target", (json_int_t)s->projections_target, "gemms", (json_int_t)s->gemms, "tile_reads",
        (json_int_t)s->tile_reads, "has_target", s->has_target, "seconds", s->seconds, "sums",
        numbers(s->sums, s->count));
    char *const text = root == NULL ? NULL : json_text(root, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    json_decref(root);
    if (text == NULL) return error_line(error, OH_OUT_OF_MEMORY, path, "out of memory, or a name that isn't UTF-8");
    atomic_file *file = NULL;
    oh_status status = atomic_file_open(&file, path, error);
    if (status == OH_OK) {
        status = atomic_file_write(file, text, strlen(text), error);
        if (status == OH_OK)
            status = atomic_file_commit(file, error);
        else
            atomic_file_discard(file);
    }
    free(text);
    return status;
}

static oh_status check_settings(const json_t *root, const char *path, const options *o, oh_error *error) {
    json_t *const settings = settings_json(o);
    oh_status status = OH_OK;
    if (settings == NULL)
        status = error_line(error, OH_OUT_OF_MEMORY, path, "out of memory, or a name that isn't UTF-8");
    else if (!json_equal(json_object_get(root, "settings"), settings))
        status = error_line(error, OH_BAD_DATA, path, "of a pass with other options, expected the same ones");
    json_decref(settings);
    return status;
}

/* File `index` of the pass must be the one whose sums are in. */
static oh_status check_file(const json_t *done, int64_t index, const char *path, const batch_list *list,
                            oh_error *error) {
    const char *const name = json_string_value(json_array_get(done, 0));
    if (name == NULL || index >= list->count || strcmp(name, list->files[index].path) != 0)
        return error_line(error, OH_BAD_DATA, path,
                          "of a pass whose batch %" PRId64 " was '%.100s', expected the same files in the same order",
                          index + 1, name != NULL ? name : "?");
    json_t *const entry = file_json(&list->files[index]);
    const bool same = entry != NULL && json_equal(done, entry);
    const bool ran_out = entry == NULL;
    json_decref(entry);
    if (ran_out) return error_line(error, OH_OUT_OF_MEMORY, path, "out of memory");
    if (same) return OH_OK;
    return error_line(error, OH_BAD_DATA, name, "changed since its sums went into %.100s, expected it as it was", path);
}

static oh_status check_head(const json_t *root, const run_sums *s, const char *path, const options *o,
                            oh_error *error) {
    const json_t *const head = json_object_get(root, "head");
    if (json_integer_value(json_array_get(head, 0)) == s->head.bytes &&
        json_integer_value(json_array_get(head, 1)) == s->head.modified_ns)
        return OH_OK;
    return error_line(error, OH_BAD_DATA, o->lm_head ? o->lm_head : "lm_head",
                      "changed since its sums went into %.100s, expected it as it was", path);
}

/* Those that are done; what comes after them is yet to be read. */
static oh_status check_files(const json_t *root, int64_t count, const char *path, const batch_list *list,
                             oh_error *error) {
    oh_status status = OH_OK;
    for (int64_t i = 0; i < count && status == OH_OK; i++)
        status = check_file(json_array_get(json_object_get(root, "files"), (size_t)i), i, path, list, error);
    return status;
}

static bool read_done(const json_t *root, run_sums *s) {
    json_int_t batches, rows, plan_rows, plan_target_rows, draft, target, gemms, reads;
    if (json_unpack((json_t *)(uintptr_t)root, "{s:{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i}, s:F}", "done",
                    "batches", &batches, "rows", &rows, "plan_rows", &plan_rows, "plan_target_rows", &plan_target_rows,
                    "projections_draft", &draft, "projections_target", &target, "gemms", &gemms, "tile_reads", &reads,
                    "has_target", &s->has_target, "seconds", &s->seconds) != 0)
        return false;
    if (batches < 0 || rows < 0 || plan_rows < 0 || plan_target_rows < 0) return false;
    s->batches = batches;
    s->rows = rows;
    s->plan_rows = plan_rows;
    s->plan_target_rows = plan_target_rows;
    s->projections_draft = draft;
    s->projections_target = target;
    s->gemms = gemms;
    s->tile_reads = reads;
    const json_t *const sums = json_object_get(root, "sums");
    if ((int64_t)json_array_size(sums) != s->count) return false;
    for (int64_t i = 0; i < s->count; i++) {
        const char *const text = json_string_value(json_array_get(sums, (size_t)i));
        char *end;
        if (text == NULL) return false;
        s->sums[i] = strtod(text, &end);
        if (end == text || *end != '\0') return false;
    }
    return true;
}

oh_status run_sums_load(run_sums *s, const char *path, const options *o, const batch_list *list, oh_error *error) {
    if (access(path, F_OK) != 0 && errno == ENOENT) return OH_OK;
    json_error_t why;
    json_t *const root = json_parse_file(path, 0, &why);
    if (root == NULL && json_error_code(&why) == json_error_out_of_memory)
        return error_line(error, OH_OUT_OF_MEMORY, path, "out of memory");
    if (root == NULL) return error_line(error, OH_BAD_DATA, path, "can't read it as JSON: %.100s", why.text);
    oh_status status = OH_OK;
    if (json_object_get(root, "settings") == NULL || json_object_get(root, "files") == NULL)
        status = error_line(error, OH_BAD_DATA, path, "expected a file that 'onehead run --resume' wrote");
    if (status == OH_OK) status = check_settings(root, path, o, error);
    json_forget();
    if (status == OH_OK && !read_done(root, s))
        status = json_ran_out() ? error_line(error, OH_OUT_OF_MEMORY, path, "out of memory")
                                : error_line(error, OH_BAD_DATA, path,
                                             "its sums are damaged, expected those of %" PRId64 " figures", s->count);
    if (status == OH_OK) status = check_head(root, s, path, o, error);
    if (status == OH_OK) status = check_files(root, s->batches, path, list, error);
    json_decref(root);
    return status;
}
