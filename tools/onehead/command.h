/* command.h - the subcommands, and how each of them ends.
 *
 * Results go to stdout, everything else to stderr as one line, "onehead: run: what is wrong". */
#ifndef ONEHEAD_TOOL_COMMAND_H
#define ONEHEAD_TOOL_COMMAND_H

#include <onehead/status.h>

enum exit_code {
    EXIT_OK = 0,
    EXIT_DISAGREES = 1,  /* a check failed */
    EXIT_USAGE = 2,      /* the command line has no meaning */
    EXIT_BAD_INPUT = 3,  /* a file's content */
    EXIT_NO_BACKEND = 4, /* no such backend or device */
    EXIT_RESOURCE = 5,   /* output, memory, device */
};

/* Runs with argv[0] the subcommand's name and returns the exit code. main flushes stdout afterwards. */
typedef int command_function(int argc, char **argv);

command_function cmd_backends, cmd_bench, cmd_check, cmd_conform, cmd_plan, cmd_report, cmd_run;

/* The exit code that a status stands for. */
int command_exit_code(oh_status status);

/* Prints the error's line, returns its exit code. */
int command_fail(const char *command, const oh_error *error);

/* Pushes what was printed out to stdout. Errors: OH_IO with the system's reason. */
oh_status command_flush(oh_error *error);

#endif
