#include "json_text.h"

#include "error_line.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

json_t *json_number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

oh_status json_print(json_t *root, oh_error *error) {
    if (root == NULL) return error_line(error, OH_OUT_OF_MEMORY, "JSON", "out of memory");
    errno = 0;
    const int failed = json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    json_decref(root);
    if (failed) {
        const char *const reason = errno != 0 ? strerror(errno) : "a write failed";
        return error_line(error, OH_IO, "standard output", "can't write: %s", reason);
    }
    putchar('\n');
    return OH_OK;
}
