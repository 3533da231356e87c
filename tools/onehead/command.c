#include "command.h"

#include "error_line.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const int exit_codes[] = {
    [OH_OK] = EXIT_OK,
    [OH_INVALID_ARGUMENT] = EXIT_USAGE,
    [OH_BAD_DATA] = EXIT_BAD_INPUT,
    [OH_NO_BACKEND] = EXIT_NO_BACKEND,
    [OH_OUT_OF_MEMORY] = EXIT_RESOURCE,
    [OH_IO] = EXIT_RESOURCE,
    [OH_DEVICE_ERROR] = EXIT_RESOURCE,
    [OH_UNSUPPORTED] = EXIT_USAGE,
    [OH_OVERFLOW] = EXIT_RESOURCE,
};

int command_exit_code(oh_status status) {
    const size_t count = sizeof exit_codes / sizeof exit_codes[0];
    return (size_t)status < count ? exit_codes[status] : EXIT_RESOURCE;
}

int command_fail(const char *command, const oh_error *error) {
    fprintf(stderr, "onehead: %s: %s\n", command, error->message);
    return command_exit_code(error->status);
}

oh_status command_flush(oh_error *error) {
    errno = 0;
    const int flushed = fflush(stdout);
    if (flushed == 0 && !ferror(stdout)) return OH_OK;
    const char *const reason = flushed != 0 && errno != 0 ? strerror(errno) : "an earlier write failed";
    return error_line(error, OH_IO, "standard output", "can't write: %s", reason);
}
