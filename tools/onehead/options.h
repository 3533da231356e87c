/* options.h - every option of the subcommands: one table says its name, meaning, default, range and place. */
#ifndef ONEHEAD_TOOL_OPTIONS_H
#define ONEHEAD_TOOL_OPTIONS_H

#include <onehead/onehead.h>

#include <stdbool.h>

typedef enum metrics_level {
    METRICS_ALL,      /* what one and two reads of the tiles give */
    METRICS_ONE_READ, /* no alpha and tau */
    METRICS_NONE,
} metrics_level;

typedef struct options {
    /* Input. */
    const char *input;   /* BATCH, or the backend that `backends` or `conform` is asked for; NULL: none given */
    char *const *inputs; /* all of them, where the command takes many; `input` is the first */
    int input_count;
    const char *lm_head;
    int64_t shape_rows, shape_target_rows, shape_hidden, shape_vocab; /* of `plan`; 0: not given, -1 for target rows */
    int32_t shape_dtype;
    const char *preset;       /* a shape's name, NULL: none given */
    const char *rate;         /* of `plan`: GFLOP/s or a file; NULL: none given */
    const char *plan_backend; /* of `plan`: NULL: none given */

    /* The step: objective, policy, chunk, memory, tile, gradient dtype, valid columns. Shape and input dtypes are the
     * batch's, and are filled in by batch_request. */
    oh_request request;
    double scale, softcap, target_scale, target_softcap;
    bool target_scale_given, target_softcap_given; /* else the draft's */
    bool terms_given, labels_given;                /* else their defaults depend on whether there is a target */
    int32_t metrics;                               /* metrics_level */
    bool head_grad, bias_grad;

    /* Where. */
    const char *backend;
    int64_t device, threads;

    /* Output. */
    const char *grad_file, *rows_file, *dot_file;
    const char *trace_file;
    const char *resume_file; /* of `run` over many batches */
    int64_t prefetch;        /* batches; 0: not given */
    bool json;

    /* Bench. */
    const char *policies, *tiles, *series, *out_file; /* NULL: not given */
    int64_t repeats;                                  /* 0: as many as `seconds` allows */
    double seconds;

    /* Check, backends and conform. */
    const char *golden, *against, *filter;
    int64_t seed;
    bool probe, bench;
    bool help;
} options;

/* Subcommands, as bits. */
enum {
    OPTIONS_RUN = 1,
    OPTIONS_PLAN = 2,
    OPTIONS_CHECK = 4,
    OPTIONS_BACKENDS = 8,
    OPTIONS_CONFORM = 16,
    OPTIONS_BENCH = 32,
    OPTIONS_REPORT = 64
};

/* What a subcommand takes and says of itself. */
typedef struct options_command {
    unsigned bit;
    const char *name;
    const char *synopsis; /* after "onehead NAME" */
    const char *about;    /* paragraphs between synopsis and options */
    const char *input;    /* what a positional argument is; NULL: none is taken */
    bool many_inputs;     /* any number of them */
} options_command;

/* Sets the defaults. */
void options_init(options *o);

/* Reads argv[1..argc) into `o`, which keeps what isn't mentioned; strings are those of argv. Stops at --help.
 * OH_INVALID_ARGUMENT names the option, its value and what was expected. */
oh_status options_read(options *o, const options_command *command, int argc, char **argv, oh_error *error);

/* Reads the command line; prints help or the error. True when the command shall go on, else *code is its exit code. */
bool options_begin(options *o, const options_command *command, int argc, char **argv, int *code);

void options_print_help(const options_command *command);

#endif
