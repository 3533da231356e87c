/* main.c - the command `onehead`: picks the subcommand, and makes sure that what it printed has arrived. */
#include "atomic_file.h"
#include "command.h"

#include <onehead/onehead.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct command {
    const char *name;
    const char *summary;
    command_function *run;
} command;

static const command commands[] = {
    {"run", "one step on a batch: loss, gradient, accuracy, streaks, top-K", cmd_run},
    {"plan", "what a step of a given shape would run, without a device", cmd_plan},
    {"check", "policies and backends against each other and against golden values", cmd_check},
    {"bench", "how long a step takes here, and how far it is from its products", cmd_bench},
    {"report", "measurements of `bench` as one HTML file", cmd_report},
    {"backends", "backends that can be found, and their devices", cmd_backends},
    {"conform", "whether a backend keeps the contract, entry by entry", cmd_conform},
};

enum { COMMAND_COUNT = sizeof commands / sizeof commands[0] };

static void print_help(void) {
    printf("Usage: onehead COMMAND [OPTION]...\n\n"
           "The lm_head stage of training a speculative-decoding drafter: loss, gradient and\n"
           "metrics out of hidden states, with one projection onto the vocabulary a tensor\n"
           "and chunk.\n\nCommands:\n");
    for (int i = 0; i < COMMAND_COUNT; i++)
        printf("  %-10s %s\n", commands[i].name, commands[i].summary);
    printf("\n  onehead COMMAND --help   a command's options\n"
           "  onehead --version        the version\n\n"
           "To begin with:\n"
           "  onehead run                     a step on the built-in sample\n"
           "  onehead plan --preset qwen3-8b  what training that model's drafter would run\n"
           "  onehead report                  how fast that is here, and what limits it\n\n"
           "Exit status: 0, 1 (a check failed), 2 (usage), 3 (bad input), 4 (no such backend\n"
           "or device), 5 (output or resource failure).\n");
}

static int run_command(int argc, char **argv) {
    const char *const name = argc > 1 ? argv[1] : NULL;
    if (name == NULL) {
        fprintf(stderr, "onehead: no command, expected run, plan, check or another of 'onehead --help'\n");
        return EXIT_USAGE;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        print_help();
        return EXIT_OK;
    }
    if (strcmp(name, "--version") == 0) {
        printf("onehead %s\n", oh_version());
        return EXIT_OK;
    }
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(name, commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    }
    fprintf(stderr, "onehead: no command '%.60s', expected one of 'onehead --help'\n", name);
    return EXIT_USAGE;
}

static void end_on_signal(int number) {
    atomic_file_discard_all();
    _exit(128 + number);
}

static void prepare_signals(void) {
    static const int ending[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action;
    struct sigaction before;
    memset(&action, 0, sizeof action);
    sigemptyset(&action.sa_mask);
    action.sa_handler = end_on_signal;
    for (size_t i = 0; i < sizeof ending / sizeof ending[0]; i++) {
        /* Ignored by whoever started us (nohup, a shell's background job): it stays so. */
        if (sigaction(ending[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN) continue;
        sigaction(ending[i], &action, NULL);
    }
    /* A closed pipe and a file-size limit are then errors of write, which are reported and leave nothing behind. */
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL);
    sigaction(SIGXFSZ, &action, NULL);
}

/* A standard stream that the caller closed would give its number to the next file that is opened, and our text would
 * land in it. Standing in for stdout, a descriptor that can't be written: the loss of the results is noticed. */
static void hold_standard_streams(void) {
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) == -1) (void)!open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY);
    }
}

int main(int argc, char **argv) {
    /* Roomy, so that the results are written as a whole, at the flush that can say why it failed. */
    static char buffer[1 << 17];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    hold_standard_streams();
    prepare_signals();
    const int code = run_command(argc, argv);
    oh_error error;
    if (command_flush(&error) == OH_OK) return code;
    if (code != EXIT_OK && code != EXIT_DISAGREES) return code; /* its own error was printed already */
    fprintf(stderr, "onehead: %s\n", error.message);
    return EXIT_RESOURCE;
}
