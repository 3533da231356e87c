#include "options.h"

#include "command.h"
#include "error_line.h"
#include "numbers.h"
#include "output_paths.h"

#include <float.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { EVERY = OPTIONS_RUN | OPTIONS_PLAN | OPTIONS_CHECK | OPTIONS_BACKENDS | OPTIONS_CONFORM | OPTIONS_BENCH };
enum { ONE_PLAN = OPTIONS_RUN | OPTIONS_PLAN | OPTIONS_CHECK };
enum { STEP = ONE_PLAN | OPTIONS_BENCH };
enum { SHAPE = OPTIONS_PLAN | OPTIONS_BENCH };
enum { ON_DATA = OPTIONS_RUN | OPTIONS_CHECK };
enum { ON_DEVICE = ON_DATA | OPTIONS_BENCH };

typedef enum option_group {
    GROUP_INPUT,
    GROUP_OBJECTIVE,
    GROUP_METRICS,
    GROUP_PLAN,
    GROUP_OUTPUT,
    GROUP_COUNT
} option_group;

static const char *const group_titles[GROUP_COUNT] = {"Input", "Objective", "Metrics", "Plan", "Output"};

typedef enum option_kind {
    KIND_FLAG,      /* bool */
    KIND_TEXT,      /* const char * */
    KIND_INTEGER,   /* int64_t */
    KIND_INTEGER32, /* int32_t */
    KIND_REAL,      /* double */
    KIND_BYTES,     /* int64_t */
    KIND_CHOICE,    /* int32_t */
    KIND_OBJECTIVE, /* a text that the library reads into the request's objective */
} option_kind;

typedef struct option_choice {
    const char *name; /* NULL ends the list */
    int32_t value;
} option_choice;

typedef struct option_row {
    const char *name;
    const char *argument;
    unsigned commands;
    option_group group;
    const char *help; /* meaning, then default */
    option_kind kind;
    bool below;   /* of a number: less than most, not most itself */
    size_t field; /* in options; of KIND_OBJECTIVE: the "given" flag, or 0 */
    size_t given; /* of a number: a bool that says it was given, or 0 */
    double least, most;
    const option_choice *choices;
    oh_status (*objective)(oh_objective *objective, const char *text, oh_error *error);
} option_row;

static const option_choice policies[] = {{"auto", OH_POLICY_AUTO},
                                         {"cached", OH_POLICY_CACHED},
                                         {"recompute", OH_POLICY_RECOMPUTE},
                                         {"naive", OH_POLICY_NAIVE},
                                         {NULL, 0}};
static const option_choice tiles[] = {{"auto", OH_TILE_AUTO}, {"f32", OH_TILE_F32},   {"bf16", OH_TILE_BF16},
                                      {"f16", OH_TILE_F16},   {"diff", OH_TILE_DIFF}, {NULL, 0}};
static const option_choice grad_dtypes[] = {{"f32", OH_F32}, {"bf16", OH_BF16}, {NULL, 0}};
static const option_choice input_dtypes[] = {{"f32", OH_F32}, {"bf16", OH_BF16}, {"f16", OH_F16}, {NULL, 0}};
static const option_choice outsides[] = {{"drop", OH_OUTSIDE_DROP}, {"keep", OH_OUTSIDE_KEEP}, {NULL, 0}};
static const option_choice metrics_levels[] = {
    {"all", METRICS_ALL}, {"one-read", METRICS_ONE_READ}, {"none", METRICS_NONE}, {NULL, 0}};

#define FIELD(member) .field = offsetof(options, member)
#define SIZE_MOST INT32_MAX           /* as the library's */
#define VOCAB_MOST (INT32_MAX - 1024) /* as the library's */
#define SEED_MOST 9007199254740992.0  /* 2^53: exact as a double */

static const option_row table[] = {
    /* ---- input ---- */
    {"lm-head", "FILE[:TENSOR]", ON_DATA, GROUP_INPUT,
     "The weight [V,H] in a safetensors file, an index file or a Hugging Face checkpoint's folder. Where that has no "
     "lm_head it is the input embedding, which the output names, unless config.json has tie_word_embeddings false. "
     "Default: the batch's `lm_head`.",
     KIND_TEXT, FIELD(lm_head)},
    {"preset", "NAME", SHAPE | OPTIONS_REPORT, GROUP_INPUT,
     "The shape of a known model or machine: qwen3-8b, qwen3.6-27b, gpt-oss, llama, glm, kimi, cpu, cpu-small. What is "
     "given besides goes first. Default: cpu where no shape is given.",
     KIND_TEXT, FIELD(preset)},
    {"rows", "T", SHAPE, GROUP_INPUT, "Draft rows of a step, a multiple of the block size.", KIND_INTEGER,
     FIELD(shape_rows), .least = 1, .most = SIZE_MOST},
    {"hidden", "H", SHAPE, GROUP_INPUT, "Hidden size.", KIND_INTEGER, FIELD(shape_hidden), .least = 1,
     .most = SIZE_MOST},
    {"vocab", "V", SHAPE, GROUP_INPUT, "Rows of lm_head.", KIND_INTEGER, FIELD(shape_vocab), .least = 1,
     .most = VOCAB_MOST},
    {"target-rows", "S", SHAPE, GROUP_INPUT, "Target rows of a step; 0: no target. Default: T.", KIND_INTEGER,
     FIELD(shape_target_rows), .least = 0, .most = SIZE_MOST},
    {"dtype", "bf16|f16|f32", SHAPE, GROUP_INPUT, "Of hidden states and weight. Default: bf16.", KIND_CHOICE,
     FIELD(shape_dtype), .choices = input_dtypes},
    {"backend", "NAME|PATH", ON_DEVICE | OPTIONS_REPORT, GROUP_INPUT,
     "Who computes; with a '/' it is the plugin's file. Default: openblas.", KIND_TEXT, FIELD(backend)},
    {"backend", "NAME|PATH", OPTIONS_PLAN, GROUP_INPUT,
     "By whose claims formats and memory are chosen. Default: any CPU's.", KIND_TEXT, FIELD(plan_backend)},
    {"device", "N", ON_DEVICE | OPTIONS_CONFORM, GROUP_INPUT, "Of the backend's devices, from 0. Default: 0.",
     KIND_INTEGER, FIELD(device), .least = 0, .most = INT32_MAX},
    {"threads", "N", ON_DEVICE | OPTIONS_BACKENDS | OPTIONS_CONFORM, GROUP_INPUT,
     "Of a CPU backend. Default: the backend's own choice (OMP_NUM_THREADS, cores).", KIND_INTEGER, FIELD(threads),
     .least = 1, .most = 4096},
    {"prefetch", "N", OPTIONS_RUN, GROUP_INPUT, "Of many batches, how many are read ahead of the step. Default: 4.",
     KIND_INTEGER, FIELD(prefetch), .least = 1, .most = 1024},
    {"probe", NULL, OPTIONS_BACKENDS, GROUP_INPUT, "Load every backend that passes the checks, and list its devices.",
     KIND_FLAG, FIELD(probe)},
    {"seed", "N", OPTIONS_CONFORM | OPTIONS_BENCH, GROUP_INPUT, "Of the random numbers. Default: 1.", KIND_INTEGER,
     FIELD(seed), .least = 0, .most = SEED_MOST},
    {"filter", "CASE", OPTIONS_CONFORM, GROUP_INPUT,
     "Only the cases whose name begins so, in whole parts: gemm, gemm/nt/bf16. Default: all.", KIND_TEXT,
     FIELD(filter)},
    {"bench", NULL, OPTIONS_CONFORM, GROUP_INPUT, "Time the operations instead of judging them.", KIND_FLAG,
     FIELD(bench)},
    {"golden", "JSON", OPTIONS_CHECK, GROUP_INPUT,
     "Expected figures, {\"FILE\": {\"SET\": {\"args\": OPTIONS, KEY: VALUE...}}}, with FILE the batch's name without "
     "its folder. Default: the built-in ones for the built-in sample, else none.",
     KIND_TEXT, FIELD(golden)},
    {"against", "NAME|PATH", OPTIONS_CHECK, GROUP_INPUT, "A second backend to compare with. Default: none.", KIND_TEXT,
     FIELD(against)},

    /* ---- objective ---- */
    {"terms", "NAME=X,...", STEP, GROUP_OBJECTIVE,
     "Terms of the loss and their factors: ce, kl, rkl, jsd, tv, nla, lk_hybrid, cap. "
     "Default: kl=1; ce=1 without a target.",
     KIND_OBJECTIVE, FIELD(terms_given), .objective = oh_objective_set_terms},
    {"labels", "target|given", STEP, GROUP_OBJECTIVE,
     "What a row is judged by: the target's argmax, or the batch's `label`. Default: target; given without a target.",
     KIND_OBJECTIVE, FIELD(labels_given), .objective = oh_objective_set_labels},
    {"decay", "KIND", STEP, GROUP_OBJECTIVE,
     "Weight by slot: none, exp:GAMMA, power:GAMMA or dpace:A. Default: exp:10.", KIND_OBJECTIVE,
     .objective = oh_objective_set_decay},
    {"norm", "weights|count|none|NUMBER", STEP, GROUP_OBJECTIVE, "What the loss is divided by. Default: weights.",
     KIND_OBJECTIVE, .objective = oh_objective_set_norm},
    {"first-slot", "N", STEP, GROUP_OBJECTIVE, "First supervised slot of a block. Default: 1.", KIND_INTEGER32,
     FIELD(request.objective.first_slot), .least = 0, .most = INT32_MAX},
    {"block-size", "N", STEP, GROUP_OBJECTIVE, "Rows of a block. Default: 16.", KIND_INTEGER,
     FIELD(request.objective.block_size), .least = 1, .most = INT32_MAX},
    {"eta", "X", STEP, GROUP_OBJECTIVE, "Of lk_hybrid: lambda = exp(-eta alpha). Default: 3.", KIND_REAL,
     FIELD(request.objective.eta), .least = 0, .most = DBL_MAX},
    {"label-smoothing", "X", STEP, GROUP_OBJECTIVE, "Of ce, from 0 to less than 1. Default: 0.", KIND_REAL,
     FIELD(request.objective.label_smoothing), .least = 0, .most = 1, .below = true},
    {"z-loss", "X", STEP, GROUP_OBJECTIVE, "Of ce: X lse(z)^2 is added. Default: 0.", KIND_REAL,
     FIELD(request.objective.z_loss), .least = 0, .most = DBL_MAX},
    {"upstream", "X", STEP, GROUP_OBJECTIVE, "Gradient of the caller's scalar by the loss. Default: 1.", KIND_REAL,
     FIELD(request.objective.upstream), .least = -DBL_MAX, .most = DBL_MAX},
    {"scale", "S", STEP, GROUP_OBJECTIVE, "Logits are S raw + bias. Default: 1.", KIND_REAL, FIELD(scale),
     .least = -(double)FLT_MAX, .most = (double)FLT_MAX},
    {"softcap", "C", STEP, GROUP_OBJECTIVE, "Logits become C tanh(x / C), C > 0. Default: no cap.", KIND_REAL,
     FIELD(softcap), .least = (double)FLT_MIN, .most = (double)FLT_MAX},
    {"target-scale", "S", STEP, GROUP_OBJECTIVE, "Of the target's logits. Default: that of --scale.", KIND_REAL,
     FIELD(target_scale), .given = offsetof(options, target_scale_given), .least = -(double)FLT_MAX,
     .most = (double)FLT_MAX},
    {"target-softcap", "C", STEP, GROUP_OBJECTIVE, "Of the target's logits; 0: none. Default: that of --softcap.",
     KIND_REAL, FIELD(target_softcap), .given = offsetof(options, target_softcap_given), .least = 0,
     .most = (double)FLT_MAX},
    {"outside", "drop|keep", ON_DATA, GROUP_OBJECTIVE,
     "Rows whose token is no draft column, where the batch maps the draft's vocabulary into the target's. "
     "Default: drop.",
     KIND_CHOICE, FIELD(request.outside), .choices = outsides},
    {"vocab-valid", "N", STEP, GROUP_OBJECTIVE, "Columns that exist; the rest is padding. Default: all.", KIND_INTEGER,
     FIELD(request.vocab_valid), .least = 1, .most = VOCAB_MOST},

    /* ---- metrics ---- */
    {"topk", "K,...", STEP, GROUP_METRICS, "Sizes of the top-K figures, each from 1 to 64. Default: 1,4,8.",
     KIND_OBJECTIVE, .objective = oh_objective_set_top_k},
    {"gap", "stop|skip", STEP, GROUP_METRICS, "Whether an unsupervised slot ends a streak. Default: stop.",
     KIND_OBJECTIVE, .objective = oh_objective_set_gap},
    {"metrics", "all|one-read|none", STEP, GROUP_METRICS,
     "Figures besides the loss: all; those without a second read of the tiles (no alpha, tau); none. Default: all.",
     KIND_CHOICE, FIELD(metrics), .choices = metrics_levels},

    /* ---- plan ---- */
    {"policy", "auto|cached|recompute|naive", ONE_PLAN, GROUP_PLAN,
     "Keep the logits until the gradient is taken, project again for it, or share nothing. "
     "Default: auto, which is cached where the memory allows, else recompute.",
     KIND_CHOICE, FIELD(request.policy), .choices = policies},
    {"chunk", "ROWS", STEP, GROUP_PLAN, "Rows at a time, whole blocks. Default: what the memory allows.", KIND_INTEGER,
     FIELD(request.chunk), .least = 1, .most = SIZE_MOST},
    {"tile", "auto|f32|bf16|f16|diff", ONE_PLAN, GROUP_PLAN,
     "What logits are held in. Default: auto; its choice and the reason are in the plan.", KIND_CHOICE,
     FIELD(request.tile), .choices = tiles},
    {"rate", "GFLOPS|JSON", OPTIONS_PLAN, GROUP_PLAN,
     "How fast products are, in GFLOP/s or as a JSON file of `bench` says, to predict how long a step takes. "
     "Default: no prediction.",
     KIND_TEXT, FIELD(rate)},
    {"memory", "BYTES", STEP, GROUP_PLAN,
     "For workspace and converted weights; K, M, G are powers of 1,024. Default: 2G, on a device with memory of its "
     "own "
     "and what converted weights take.",
     KIND_BYTES, FIELD(request.memory)},

    {"policy", "LIST", OPTIONS_BENCH, GROUP_PLAN,
     "Policies to measure, in turns: cached, recompute, naive. Default: all three.", KIND_TEXT, FIELD(policies)},
    {"tile", "LIST", OPTIONS_BENCH, GROUP_PLAN,
     "What logits are held in, each with every policy: auto, f32, bf16, f16, diff. Default: auto.", KIND_TEXT,
     FIELD(tiles)},
    {"series", "rows|vocab|chunk|threads", OPTIONS_BENCH, GROUP_PLAN,
     "Measure with an eighth, a quarter, half and all of these. Default: all alone.", KIND_TEXT, FIELD(series)},
    {"repeats", "N", OPTIONS_BENCH, GROUP_PLAN, "Times each step is measured. Default: what --seconds allows.",
     KIND_INTEGER, FIELD(repeats), .least = 1, .most = 1000},
    {"seconds", "X", OPTIONS_BENCH | OPTIONS_REPORT, GROUP_PLAN,
     "Go on measuring for this long, at least 3 times and at most 200. Default: 10.", KIND_REAL, FIELD(seconds),
     .least = 0, .most = 86400},

    /* ---- output ---- */
    {"grad", "OUT", OPTIONS_RUN, GROUP_OUTPUT, "Write `draft_hidden.grad` [T,H] to this safetensors file.", KIND_TEXT,
     FIELD(grad_file)},
    {"grad-head", NULL, STEP, GROUP_OUTPUT,
     "The head is trained too: `lm_head.grad` [V,H], f32, in the file of --grad.", KIND_FLAG, FIELD(head_grad)},
    {"grad-bias", NULL, STEP, GROUP_OUTPUT, "The bias is trained too: `bias.grad` [V], f32, in the file of --grad.",
     KIND_FLAG, FIELD(bias_grad)},
    {"grad-dtype", "f32|bf16", OPTIONS_RUN | OPTIONS_PLAN | OPTIONS_BENCH, GROUP_OUTPUT,
     "Of draft_hidden.grad. Default: f32.", KIND_CHOICE, FIELD(request.grad_dtype), .choices = grad_dtypes},
    {"rows", "OUT", OPTIONS_RUN, GROUP_OUTPUT,
     "Write every row's loss, weight, label, argmax, rank and top-K to this safetensors file.", KIND_TEXT,
     FIELD(rows_file)},
    {"trace", "OUT", OPTIONS_RUN | OPTIONS_BENCH, GROUP_OUTPUT,
     "Write a Chrome trace (for ui.perfetto.dev) of the step's operations, of `bench` the last measured one.",
     KIND_TEXT, FIELD(trace_file)},
    {"out", "FILE", OPTIONS_BENCH, GROUP_OUTPUT, "Write the JSON to this file as well.", KIND_TEXT, FIELD(out_file)},
    {"out", "FILE", OPTIONS_REPORT, GROUP_OUTPUT, "Where to. Default: onehead-report.html.", KIND_TEXT,
     FIELD(out_file)},
    {"resume", "FILE", OPTIONS_RUN, GROUP_OUTPUT,
     "Of many batches: keep the sums in this file, and continue from it where it is there, with the same options. "
     "Batches whose sums are in must come first and be as they were; those after them may be new or changed. An "
     "interrupt (Ctrl-C) then finishes the batch and saves.",
     KIND_TEXT, FIELD(resume_file)},
    {"dot", "FILE", OPTIONS_PLAN, GROUP_OUTPUT,
     "Write the graph before and after merging for Graphviz: dot -Tsvg -O FILE.", KIND_TEXT, FIELD(dot_file)},
    {"json", NULL, EVERY, GROUP_OUTPUT, "JSON on standard output instead of tables.", KIND_FLAG, FIELD(json)},
    {"help", NULL, EVERY | OPTIONS_REPORT, GROUP_OUTPUT, "This text.", KIND_FLAG, FIELD(help)},
};

enum { TABLE_COUNT = sizeof table / sizeof table[0], FIRST_VALUE = 256 };

void options_init(options *o) {
    memset(o, 0, sizeof *o);
    oh_request_init(&o->request);
    o->shape_target_rows = -1;
    o->shape_dtype = OH_BF16;
    o->scale = 1;
    o->seed = 1;
    o->seconds = 10;
}

/* --------------------------------------------------------------------------------------------------- one value ---- */

static void describe_range(const option_row *row, char *text, size_t size) {
    if (row->kind != KIND_REAL)
        snprintf(text, size, "an integer from %.0f to %.0f", row->least, row->most);
    else if (row->least == (double)FLT_MIN)
        snprintf(text, size, "a number over 0, at most %g", row->most);
    else
        snprintf(text, size, "a number from %g to %s%g", row->least, row->below ? "less than " : "", row->most);
}

static oh_status bad_value(const option_row *row, const char *text, const char *expected, oh_error *error) {
    char subject[40];
    snprintf(subject, sizeof subject, "--%s", row->name);
    return error_line(error, OH_INVALID_ARGUMENT, subject, "'%.100s', expected %s", text, expected);
}

static oh_status set_choice(const option_row *row, int32_t *field, const char *text, oh_error *error) {
    char expected[100] = "one of";
    for (const option_choice *choice = row->choices; choice->name != NULL; choice++) {
        if (strcmp(choice->name, text) == 0) {
            *field = choice->value;
            return OH_OK;
        }
        const size_t used = strlen(expected);
        snprintf(expected + used, sizeof expected - used, "%s %s", used > 6 ? "," : "", choice->name);
    }
    return bad_value(row, text, expected, error);
}

static oh_status set_number(const option_row *row, void *field, bool *given, const char *text, oh_error *error) {
    int64_t integer = 0;
    bool good = false;
    switch (row->kind) {
    case KIND_REAL:
        good = number_real(text, row->least, row->below ? nextafter(row->most, row->least) : row->most, field);
        break;
    case KIND_INTEGER:
        good = number_integer(text, (int64_t)row->least, (int64_t)row->most, field);
        break;
    default:
        good = number_integer(text, (int64_t)row->least, (int64_t)row->most, &integer);
        if (good) *(int32_t *)field = (int32_t)integer;
        break;
    }
    if (good && row->given != 0) *given = true;
    if (good) return OH_OK;
    char expected[100];
    describe_range(row, expected, sizeof expected);
    return bad_value(row, text, expected, error);
}

static oh_status set_objective(options *o, const option_row *row, const char *text, oh_error *error) {
    oh_error said;
    const oh_status status = row->objective(&o->request.objective, text, &said);
    if (status != OH_OK) {
        char subject[40];
        snprintf(subject, sizeof subject, "--%s", row->name);
        return error_line(error, OH_INVALID_ARGUMENT, subject, "%s", said.message);
    }
    if (row->field != 0) *(bool *)((char *)o + row->field) = true;
    return OH_OK;
}

static oh_status set_value(options *o, const option_row *row, const char *text, oh_error *error) {
    void *const field = (char *)o + row->field;
    switch (row->kind) {
    case KIND_FLAG:
        *(bool *)field = true;
        return OH_OK;
    case KIND_TEXT:
        if (text[0] == '\0') return bad_value(row, text, "a name", error);
        *(const char **)field = text;
        return OH_OK;
    case KIND_BYTES:
        if (number_bytes(text, field)) return OH_OK;
        return bad_value(row, text, "1 to 9223372036854775807 bytes, an integer with or without K, M or G", error);
    case KIND_CHOICE:
        return set_choice(row, field, text, error);
    case KIND_OBJECTIVE:
        return set_objective(o, row, text, error);
    case KIND_INTEGER:
    case KIND_INTEGER32:
    case KIND_REAL:
        break;
    }
    return set_number(row, field, (bool *)((char *)o + row->given), text, error);
}

/* ------------------------------------------------------------------------------------------- the command line ---- */

/* Why getopt_long refused argv[optind - 1]. `known` is the option's row where it has one. */
static oh_status refuse(const option_row *known, int kind, const char *given, const options_command *command,
                        oh_error *error) {
    char subject[80];
    const int length = (int)strcspn(given, "=");
    snprintf(subject, sizeof subject, "%.*s", length < 60 ? length : 60, given);
    if (kind == ':') return error_line(error, OH_INVALID_ARGUMENT, subject, "no value, expected %s", known->argument);
    if (known != NULL)
        return error_line(error, OH_INVALID_ARGUMENT, subject, "'%.60s', expected no value", given + length + 1);
    return error_line(error, OH_INVALID_ARGUMENT, subject, "no such option, expected one of 'onehead %s --help'",
                      command->name);
}

/* What holds between options, once all are read. */
static oh_status check_together(const options *o, const options_command *command, oh_error *error) {
    const oh_objective *const objective = &o->request.objective;
    if (!(command->bit & STEP)) return OH_OK;
    if (command->bit & OPTIONS_RUN && o->grad_file == NULL && (o->head_grad || o->bias_grad)) {
        return error_line(error, OH_INVALID_ARGUMENT, o->head_grad ? "--grad-head" : "--grad-bias",
                          "given without --grad, expected --grad OUT, the file for it");
    }
    if (objective->first_slot >= objective->block_size) {
        return error_line(error, OH_INVALID_ARGUMENT, "--first-slot",
                          "%" PRId32 ", expected 0 to %" PRId64 ", a slot of a block of %" PRId64,
                          objective->first_slot, objective->block_size - 1, objective->block_size);
    }
    if (o->request.chunk % objective->block_size != 0) {
        return error_line(error, OH_INVALID_ARGUMENT, "--chunk",
                          "%" PRId64 ", expected a multiple of the block size, %" PRId64, o->request.chunk,
                          objective->block_size);
    }
    return OH_OK;
}

oh_status options_read(options *o, const options_command *command, int argc, char **argv, oh_error *error) {
    struct option known[TABLE_COUNT + 1];
    int count = 0;
    for (int i = 0; i < TABLE_COUNT; i++) {
        if (!(table[i].commands & command->bit)) continue;
        known[count++] = (struct option){table[i].name, table[i].kind == KIND_FLAG ? no_argument : required_argument,
                                         NULL, FIRST_VALUE + i};
    }
    known[count] = (struct option){0};

    optind = 0; /* glibc: start afresh */
    opterr = 0;
    for (;;) {
        const int found = getopt_long(argc, argv, ":h", known, NULL);
        if (found == -1) break;
        if (found == '?' || found == ':') {
            const option_row *const row = optopt >= FIRST_VALUE ? &table[optopt - FIRST_VALUE] : NULL;
            const char letter[] = {'-', (char)optopt, '\0'};
            const bool is_letter = optopt > 0 && row == NULL;
            return refuse(row, found, is_letter ? letter : argv[optind - 1], command, error);
        }
        if (found == 'h' || table[found - FIRST_VALUE].field == offsetof(options, help)) {
            o->help = true;
            return OH_OK;
        }
        const oh_status status = set_value(o, &table[found - FIRST_VALUE], optarg, error);
        if (status != OH_OK) return status;
    }
    if (optind < argc && command->input != NULL) {
        o->inputs = argv + optind;
        o->input_count = command->many_inputs ? argc - optind : 1;
        o->input = argv[optind];
        optind += o->input_count;
    }
    if (optind < argc) {
        return error_line(error, OH_INVALID_ARGUMENT, argv[optind], "one argument too many, expected %s%s",
                          command->input != NULL ? "at most one " : "options only",
                          command->input != NULL ? command->input : "");
    }
    return check_together(o, command, error);
}

bool options_begin(options *o, const options_command *command, int argc, char **argv, int *code) {
    oh_error error;
    options_init(o);
    oh_status status = options_read(o, command, argc, argv, &error);
    if (status == OH_OK && !o->help) status = output_paths_check(o, &error);
    if (status != OH_OK) {
        *code = command_fail(command->name, &error);
        return false;
    }
    if (!o->help) return true;
    options_print_help(command);
    *code = EXIT_OK;
    return false;
}

/* ----------------------------------------------------------------------------------------------------- the help ---- */

enum { HELP_COLUMN = 26, HELP_WIDTH = 80 };

/* Prints words from HELP_COLUMN on, `used` columns of the first line being taken. */
static void print_wrapped(const char *text, int used) {
    int column = used;
    if (used >= HELP_COLUMN - 1) {
        putchar('\n');
        column = 0;
    }
    column += printf("%*s", HELP_COLUMN - column, "");
    for (const char *word = text; *word != '\0';) {
        const int length = (int)strcspn(word, " ");
        const int needed = (word != text) + length;
        if (column + needed > HELP_WIDTH)
            column = printf("\n%*s", HELP_COLUMN, "") - 1;
        else if (word != text)
            column += printf(" ");
        column += printf("%.*s", length, word);
        word += length + (word[length] == ' ');
    }
    putchar('\n');
}

void options_print_help(const options_command *command) {
    printf("Usage: onehead %s %s\n\n%s\n", command->name, command->synopsis, command->about);
    for (int group = 0; group < GROUP_COUNT; group++) {
        bool titled = false;
        for (int i = 0; i < TABLE_COUNT; i++) {
            const option_row *const row = &table[i];
            if (row->group != (option_group)group || !(row->commands & command->bit)) continue;
            if (!titled) printf("\n%s:\n", group_titles[group]);
            titled = true;
            const char *const space = row->argument != NULL ? " " : "";
            const int used = printf("  --%s%s%s", row->name, space, row->argument != NULL ? row->argument : "");
            print_wrapped(row->help, used);
        }
    }
}
