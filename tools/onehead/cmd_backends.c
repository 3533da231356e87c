/* cmd_backends.c - `onehead backends`: which plugins can be found, and what those that are opened say of themselves. */
#include "command.h"
#include "error_line.h"
#include "format.h"
#include "json_text.h"
#include "options.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const options_command backends_command = {
    .bit = OPTIONS_BACKENDS,
    .name = "backends",
    .synopsis = "[NAME|PATH] [OPTION]...",
    .about = "The backends that the search finds, in its order, and why one is refused. Nothing\n"
             "is loaded but the backend that is named, or with --probe every one that passes.",
    .input = "NAME",
};

/* A backend that was opened, one entry a device; or why it couldn't be. */
typedef struct probed_backend {
    char name[64];
    const oh_backend *table; /* NULL: see error */
    int32_t device_count;
    oh_device_info *devices; /* [device_count] */
    oh_error error;
} probed_backend;

typedef struct backend_survey {
    oh_backend_candidate *candidates;
    int64_t candidate_count;
    probed_backend *probed;
    int64_t probed_count;
} backend_survey;

typedef struct flag_name {
    uint32_t bit;
    const char *name;
} flag_name;

static const flag_name cap_names[] = {{OH_CAP_HOST_MEMORY, "host-memory"},
                                      {OH_CAP_DETERMINISTIC, "deterministic"},
                                      {OH_CAP_CAPTURE, "capture"},
                                      {0, NULL}};
static const flag_name gemm_names[] = {{OH_GEMM_F32_F32, "f32->f32"}, {OH_GEMM_BF16_F32, "bf16->f32"},
                                       {OH_GEMM_F16_F32, "f16->f32"}, {OH_GEMM_BF16_BF16, "bf16->bf16"},
                                       {OH_GEMM_F16_F16, "f16->f16"}, {0, NULL}};
static const flag_name tile_names[] = {{1u << OH_TILE_F32, "f32"},
                                       {1u << OH_TILE_BF16, "bf16"},
                                       {1u << OH_TILE_F16, "f16"},
                                       {1u << OH_TILE_DIFF, "diff"},
                                       {0, NULL}};

/* ------------------------------------------------------------------------------------------------------- survey ---- */

static oh_status list_candidates(backend_survey *survey, oh_error *error) {
    const int64_t count = oh_backend_list(NULL, 0);
    if (count == 0) return OH_OK;
    survey->candidates = calloc((size_t)count, sizeof *survey->candidates);
    if (survey->candidates == NULL) return error_line(error, OH_OUT_OF_MEMORY, "candidates", "out of memory");
    const int64_t found = oh_backend_list(survey->candidates, count);
    survey->candidate_count = found < count ? found : count; /* the folder may have changed in between */
    return OH_OK;
}

static oh_status probe_device(const char *backend, int32_t device, int32_t threads, oh_device_info *info,
                              oh_error *error) {
    const oh_context_options wanted = {.backend = backend, .device = device, .threads = threads};
    oh_context *context;
    oh_status status = oh_context_open(&wanted, &context, error);
    if (status != OH_OK) return status;
    status = oh_context_device_info(context, info, error);
    oh_context_close(context);
    return status;
}

static void probe(probed_backend *p, const char *backend, const options *o) {
    snprintf(p->name, sizeof p->name, "%s", backend);
    if (oh_backend_load(backend, &p->table, &p->error) != OH_OK) {
        p->table = NULL;
        return;
    }
    snprintf(p->name, sizeof p->name, "%s", p->table->name);
    const int32_t count = p->table->device_count();
    oh_status status = OH_OK;
    if (count < 1) status = error_line(&p->error, OH_NO_BACKEND, p->name, "no device");
    p->devices = calloc((size_t)(count > 0 ? count : 1), sizeof *p->devices);
    if (p->devices == NULL) status = error_line(&p->error, OH_OUT_OF_MEMORY, p->name, "out of memory");
    for (int32_t i = 0; i < count && status == OH_OK; i++) {
        status = probe_device(backend, i, (int32_t)o->threads, &p->devices[i], &p->error);
        if (status == OH_OK) p->device_count = i + 1;
    }
}

/* The backend that was named, or each candidate that passes; a name that was seen before is shadowed by the first. */
static oh_status probe_wanted(backend_survey *survey, const options *o, oh_error *error) {
    if (o->input == NULL && !o->probe) return OH_OK;
    survey->probed = calloc((size_t)survey->candidate_count + 1, sizeof *survey->probed);
    if (survey->probed == NULL) return error_line(error, OH_OUT_OF_MEMORY, "backends", "out of memory");
    if (o->input != NULL) {
        probe(&survey->probed[survey->probed_count++], o->input, o);
        return OH_OK;
    }
    for (int64_t i = 0; i < survey->candidate_count; i++) {
        const oh_backend_candidate *const candidate = &survey->candidates[i];
        bool shadowed = false;
        for (int64_t k = 0; k < i; k++)
            shadowed = shadowed || strcmp(survey->candidates[k].name, candidate->name) == 0;
        if (candidate->verdict[0] == '\0' && !shadowed)
            probe(&survey->probed[survey->probed_count++], candidate->name, o);
    }
    return OH_OK;
}

static void survey_free(backend_survey *survey) {
    for (int64_t i = 0; i < survey->probed_count; i++)
        free(survey->probed[i].devices);
    free(survey->probed);
    free(survey->candidates);
}

/* --------------------------------------------------------------------------------------------------------- JSON ---- */

static json_t *flags_json(const flag_name *names, uint32_t bits) {
    json_t *const array = json_array();
    for (; names->name != NULL; names++) {
        if (!(bits & names->bit) || json_array_append_new(array, json_string(names->name)) == 0) continue;
        json_decref(array);
        return NULL;
    }
    return array;
}

static json_t *devices_json(const probed_backend *p) {
    json_t *const array = json_array();
    for (int32_t i = 0; i < p->device_count; i++) {
        const oh_device_info *const d = &p->devices[i];
        json_t *const entry = json_pack("{s:i, s:s, s:s, s:I, s:I, s:i}", "device", (int)i, "name", d->name, "kernel",
                                        d->kernel, "memory_total", (json_int_t)d->memory_total, "memory_free",
                                        (json_int_t)d->memory_free, "threads", (int)d->threads);
        if (json_array_append_new(array, entry) == 0) continue;
        json_decref(array);
        return NULL;
    }
    return array;
}

static json_t *probed_json(const probed_backend *p) {
    if (p->table == NULL) return json_pack("{s:s, s:s}", "name", p->name, "error", p->error.message);
    const oh_backend *const t = p->table;
    return json_pack("{s:s, s:s, s:i, s:o, s:o, s:o, s:o, s:s}", "name", t->name, "build", t->build, "minor",
                     (int)t->minor, "capabilities", flags_json(cap_names, t->caps), "gemms",
                     flags_json(gemm_names, t->gemm_kinds), "tiles", flags_json(tile_names, t->tile_formats), "devices",
                     devices_json(p), "error", p->error.message);
}

static json_t *survey_json(const backend_survey *survey) {
    json_t *const candidates = json_array();
    json_t *const probed = json_array();
    int failed = 0;
    for (int64_t i = 0; i < survey->candidate_count; i++) {
        const oh_backend_candidate *const c = &survey->candidates[i];
        failed |= json_array_append_new(
            candidates, json_pack("{s:s, s:s, s:s}", "name", c->name, "path", c->path, "verdict", c->verdict));
    }
    for (int64_t i = 0; i < survey->probed_count; i++)
        failed |= json_array_append_new(probed, probed_json(&survey->probed[i]));
    json_t *const root = json_pack("{s:o, s:o}", "candidates", candidates, "backends", probed);
    if (!failed) return root;
    json_decref(root);
    return NULL;
}

/* -------------------------------------------------------------------------------------------------------- tables ---- */

static void print_flags(const char *title, const flag_name *names, uint32_t bits) {
    printf("  %-12s", title);
    for (; names->name != NULL; names++) {
        if (bits & names->bit) printf(" %s", names->name);
    }
    printf("\n");
}

static void print_probed(const probed_backend *p) {
    printf("\n%s\n", p->name);
    if (p->error.message[0] != '\0') printf("  error        %s\n", p->error.message);
    if (p->table == NULL) return;
    printf("  build        %s\n", p->table->build);
    print_flags("can", cap_names, p->table->caps);
    print_flags("GEMMs", gemm_names, p->table->gemm_kinds);
    print_flags("tiles", tile_names, p->table->tile_formats);
    for (int32_t i = 0; i < p->device_count; i++) {
        const oh_device_info *const d = &p->devices[i];
        printf("  device %-5" PRId32 " %s\n", i, d->name);
        printf("  %-12s %s\n", "", d->kernel);
        if (d->memory_total > 0) {
            printf("  %-12s %s memory, %s free\n", "", format_bytes(d->memory_total).text,
                   format_bytes(d->memory_free).text);
        }
    }
}

static void print_survey(const backend_survey *survey) {
    if (survey->candidate_count == 0) printf("no backend found\n");
    for (int64_t i = 0; i < survey->candidate_count; i++) {
        const oh_backend_candidate *const c = &survey->candidates[i];
        printf("%-14s %s\n", c->name, c->path);
        if (c->verdict[0] != '\0') printf("%-14s refused: %s\n", "", c->verdict);
    }
    for (int64_t i = 0; i < survey->probed_count; i++)
        print_probed(&survey->probed[i]);
}

static oh_status report(const options *o, oh_error *error) {
    backend_survey survey = {.candidates = NULL};
    oh_status status = list_candidates(&survey, error);
    if (status == OH_OK) status = probe_wanted(&survey, o, error);
    /* A backend that was asked for by name and isn't there is an error, not a finding. */
    if (status == OH_OK && o->input != NULL && survey.probed[0].error.status != OH_OK) {
        *error = survey.probed[0].error;
        status = error->status;
    }
    if (status == OH_OK && o->json)
        status = json_print(survey_json(&survey), error);
    else if (status == OH_OK)
        print_survey(&survey);
    survey_free(&survey);
    return status;
}

int cmd_backends(int argc, char **argv) {
    options o;
    int code = EXIT_OK;
    if (!options_begin(&o, &backends_command, argc, argv, &code)) return code;
    oh_error error;
    return report(&o, &error) == OH_OK ? EXIT_OK : command_fail(backends_command.name, &error);
}
