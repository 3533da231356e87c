/* libFuzzer target: any command line either is refused with one printable line or gives options in their ranges; and a
 * step of any shape that they name is planned or refused.
 *
 * An input is a text: the subcommand's name on the first line, then an argument a line.
 *
 * cmake --preset fuzz && cmake --build --preset fuzz
 * build/fuzz/bin/fuzz_options -dict=tests/fuzz/options.dict -max_total_time=120 FOLDER tests/fuzz/corpus/options */
#include "batch.h"
#include "shape.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

enum { ARGUMENTS_MOST = 64 };

static const options_command subcommands[] = {
    {.bit = OPTIONS_RUN, .name = "run", .input = "BATCH", .many_inputs = true},
    {.bit = OPTIONS_PLAN, .name = "plan"},
    {.bit = OPTIONS_CHECK, .name = "check", .input = "BATCH"},
    {.bit = OPTIONS_BACKENDS, .name = "backends", .input = "NAME"},
    {.bit = OPTIONS_CONFORM, .name = "conform", .input = "NAME"},
    {.bit = OPTIONS_BENCH, .name = "bench"},
    {.bit = OPTIONS_REPORT, .name = "report", .input = "JSON", .many_inputs = true},
};

static void require(bool promise) {
    if (!promise) abort();
}

static void require_line(oh_status status, const oh_error *error) {
    require(status != OH_OK && error->status == status && error->message[0] != '\0');
    for (const char *at = error->message; *at != '\0'; at++)
        require((unsigned char)*at >= 0x20 && *at != 0x7f);
}

/* Of a text option: NULL or one of the arguments, or the rest of one behind its '='. */
static void require_argument(const char *text, const char *first, const char *last) {
    require(text == NULL || (text >= first && text <= last && text[0] != '\0'));
}

static void check_objective(const oh_objective *objective) {
    require(objective->block_size >= 1 && objective->first_slot >= 0);
    require(objective->label_smoothing >= 0 && objective->label_smoothing <= 1);
    require(isfinite(objective->z_loss) && isfinite(objective->eta) && isfinite(objective->upstream));
    require(objective->norm_value >= 0 && isfinite(objective->norm_value) && isfinite(objective->decay_param));
    require(objective->top_k_count >= 0 && objective->top_k_count <= OH_TOP_K_LIST_MAX);
    for (int32_t i = 0; i < objective->top_k_count; i++) {
        require(objective->top_k[i] >= 1 && objective->top_k[i] <= OH_TOP_K_MAX);
        require(i == 0 || objective->top_k[i] > objective->top_k[i - 1]);
    }
    require((objective->terms & ~(OH_TERM_BIT(OH_TERM_COUNT) - 1)) == 0);
    for (int32_t i = 0; i < OH_TERM_COUNT; i++)
        require(isfinite(objective->lambda[i]));
}

static void check_options(const options *o, const options_command *command, const char *first, const char *last) {
    const char *const texts[] = {o->lm_head,  o->preset,     o->rate,        o->backend,  o->grad_file, o->rows_file,
                                 o->dot_file, o->trace_file, o->resume_file, o->policies, o->tiles,     o->series,
                                 o->out_file, o->golden,     o->against,     o->filter};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        require_argument(texts[i], first, last);
    require(o->input_count >= 0 && (o->input_count == 0) == (o->input == NULL));
    require(command->input != NULL || o->input_count == 0);
    require(command->many_inputs || o->input_count <= 1);
    for (int i = 0; i < o->input_count; i++)
        require(o->inputs[i] >= first && o->inputs[i] <= last);
    check_objective(&o->request.objective);
    require(o->request.chunk >= 0 && o->request.memory >= 0 && o->request.vocab_valid >= 0);
    require(o->shape_rows >= 0 && o->shape_hidden >= 0 && o->shape_vocab >= 0 && o->shape_target_rows >= -1);
    require(o->device >= 0 && o->threads >= 0 && o->prefetch >= 0 && o->seed >= 0 && o->repeats >= 0);
    require(isfinite(o->seconds) && isfinite(o->scale) && isfinite(o->softcap) && o->softcap >= 0);
    if (!(command->bit & (OPTIONS_RUN | OPTIONS_PLAN | OPTIONS_CHECK | OPTIONS_BENCH))) return;
    require(o->request.objective.first_slot < o->request.objective.block_size);
    require(o->request.chunk % o->request.objective.block_size == 0);
}

static void plan(options *o) {
    oh_error error = {OH_OK, ""};
    oh_request request;
    oh_status status = shape_complete(o, "cpu", &error);
    if (status == OH_OK) status = shape_request(o, &request, &error);
    oh_plan *made = NULL;
    if (status == OH_OK) status = oh_plan_describe(&request, &made, &error);
    if (status != OH_OK) {
        require_line(status, &error);
        return;
    }
    const oh_plan_summary *const s = oh_plan_get_summary(made);
    require(s->chunk >= 1 && s->chunk % request.objective.block_size == 0 && s->panel >= 1 &&
            s->panel <= request.vocab);
    require(s->chunks >= 1 && s->workspace_bytes > 0 && s->weight_bytes >= 0 && isfinite(s->flops) && s->flops >= 0);
    require(request.memory == 0 || s->workspace_bytes <= request.memory - s->weight_bytes);
    oh_plan_destroy(made);
}

static void read_line(const options_command *command, int argc, char **argv, const char *first, const char *last) {
    options o;
    oh_error error = {OH_OK, ""};
    options_init(&o);
    const oh_status status = options_read(&o, command, argc, argv, &error);
    if (status != OH_OK) {
        require(status == OH_INVALID_ARGUMENT);
        require_line(status, &error);
        return;
    }
    if (o.help) return;
    check_options(&o, command, first, last);
    if (command->bit & (OPTIONS_PLAN | OPTIONS_BENCH)) plan(&o);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    char *const text = malloc(size + 1); /* of its exact length, so that a read past an argument is seen */
    if (text == NULL) return 0;
    memcpy(text, bytes, size);
    text[size] = '\0';
    char *argv[ARGUMENTS_MOST + 1];
    int argc = 0;
    for (char *at = text; at != NULL && argc < ARGUMENTS_MOST; argc++) {
        argv[argc] = at;
        at = strchr(at, '\n');
        if (at != NULL) *at++ = '\0';
    }
    argv[argc] = NULL;
    for (size_t i = 0; i < sizeof subcommands / sizeof subcommands[0]; i++) {
        if (strcmp(argv[0], subcommands[i].name) == 0) read_line(&subcommands[i], argc, argv, text, text + size);
    }
    free(text);
    return 0;
}
