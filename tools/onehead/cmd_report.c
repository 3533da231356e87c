/* cmd_report.c - `onehead report`: measurements as one HTML file. The drawing is report.py's, beside the command's
 * other data; this finds and starts it. */
#include "command.h"
#include "error_line.h"
#include "options.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PYTHON "/usr/bin/python3"
#define DRAWN "onehead-report.html"
#define MEASURED "onehead-bench.json" /* where to, when no file is given */

static const options_command report_command = {
    .bit = OPTIONS_REPORT,
    .name = "report",
    .synopsis = "[BENCH.json...] [OPTION]...",
    .about = "Measurements of 'onehead bench --out FILE' as one HTML file that a browser shows\n"
             "without a network: time of a step by policy with its matrix products as the\n"
             "floor, time by operation, memory by chunk size, accuracy by tile format. Several\n"
             "files are set side by side: before and after, one machine and another.\n"
             "Without a file it measures first, into " MEASURED ", as\n"
             "'onehead bench --out " MEASURED "' would.\n\n"
             "Needs " PYTHON " with matplotlib (Debian: python3-matplotlib).",
    .input = "BENCH.json",
    .many_inputs = true,
};

/* The script's path, from the folder that holds the command: the same in the build tree and installed. */
static oh_status find_script(char *path, size_t size, oh_error *error) {
    char command[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", command, sizeof command - 1);
    if (length < 0) return error_line(error, OH_IO, "/proc/self/exe", "can't read: %s", strerror(errno));
    command[length] = '\0';
    char *const slash = strrchr(command, '/');
    if (slash == NULL) return error_line(error, OH_IO, command, "expected an absolute path");
    slash[1] = '\0';
    const int needed = snprintf(path, size, "%s" ONEHEAD_BIN_TO_DATA "/report.py", command);
    if (needed < 0 || (size_t)needed >= size) return error_line(error, OH_IO, command, "too long a path");
    if (access(path, R_OK) == 0) return OH_OK;
    return error_line(error, OH_IO, path, "can't read: %s", strerror(errno));
}

/* Runs `bench` with what it was given of bench's options. */
static int measure(const options *o, oh_error *error) {
    char *arguments[12] = {"bench", "--out", MEASURED};
    char seconds[32];
    int count = 3;
    snprintf(seconds, sizeof seconds, "%.17g", o->seconds);
    const char *const more[][2] = {{"--seconds", seconds}, {"--preset", o->preset}, {"--backend", o->backend}};
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
        if (more[i][1] == NULL) continue;
        arguments[count++] = (char *)(uintptr_t)more[i][0];
        arguments[count++] = (char *)(uintptr_t)more[i][1];
    }
    const int code = cmd_bench(count, arguments);
    if (code != EXIT_OK) return code;
    return command_flush(error) == OH_OK ? EXIT_OK : command_fail(report_command.name, error);
}

/* Becomes the script, which then gets the signals itself; returns only where it can't. */
static oh_status draw(const char *script, const options *o, oh_error *error) {
    const char **const arguments = calloc((size_t)o->input_count + 8, sizeof *arguments);
    if (arguments == NULL) return error_line(error, OH_OUT_OF_MEMORY, "arguments", "out of memory");
    int count = 0;
    arguments[count++] = PYTHON;
    arguments[count++] = "-I"; /* neither the working directory nor the user's PYTHON variables decide what runs */
    arguments[count++] = "-B";
    arguments[count++] = script;
    if (o->out_file == NULL) arguments[count++] = "--print-name";
    arguments[count++] = o->out_file != NULL ? o->out_file : DRAWN;
    for (int i = 0; i < o->input_count; i++)
        arguments[count++] = o->inputs[i];
    if (o->input_count == 0) arguments[count++] = MEASURED;
    execv(PYTHON, (char *const *)(uintptr_t)arguments);
    const char *const reason = strerror(errno);
    free(arguments);
    return error_line(error, OH_IO, PYTHON, "can't start: %s, expected Debian's python3 with python3-matplotlib",
                      reason);
}

int cmd_report(int argc, char **argv) {
    options o;
    oh_error error;
    int code = EXIT_OK;
    char script[PATH_MAX];
    if (!options_begin(&o, &report_command, argc, argv, &code)) return code;
    if (find_script(script, sizeof script, &error) != OH_OK) return command_fail(report_command.name, &error);
    if (o.input_count == 0) code = measure(&o, &error);
    if (code != EXIT_OK) return code;
    (void)draw(script, &o, &error);
    return command_fail(report_command.name, &error);
}
