#include "error_line.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { SUBJECT_LIMIT = 200 };

/* Length of the printable UTF-8 sequence at `text`, 0 when it is none: a control character (C0, DEL, C1), an overlong
 * form, a surrogate, beyond U+10FFFF, or cut short by a precision or by the end of the buffer. */
static size_t printable_length(const unsigned char *text) {
    const unsigned char lead = text[0];
    if (lead < 0x80) return lead >= 0x20 && lead != 0x7f;

    const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4) return 0;
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) return 0; /* stops at the NUL as well */
    }
    const unsigned char second = text[1];
    if (lead == 0xc2 && second < 0xa0) return 0;
    if (lead == 0xe0 && second < 0xa0) return 0;
    if (lead == 0xed && second > 0x9f) return 0;
    if (lead == 0xf0 && second < 0x90) return 0;
    if (lead == 0xf4 && second > 0x8f) return 0;
    return length;
}

static void make_printable(char *message) {
    for (unsigned char *at = (unsigned char *)message; *at != '\0';) {
        const size_t length = printable_length(at);
        if (length == 0) *at = '?';
        at += length == 0 ? 1 : length;
    }
}

#undef error_line /* what the analyser sees in its place */
oh_status error_line(oh_error *error, oh_status status, const char *subject, const char *format, ...) {
    if (error == NULL) return status;
    error->status = status;

    const size_t length = strlen(subject);
    const int cut = length > SUBJECT_LIMIT;
    snprintf(error->message, sizeof error->message, "%s%s: ", cut ? "..." : "",
             cut ? subject + length - SUBJECT_LIMIT : subject);

    const size_t used = strlen(error->message);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message + used, sizeof error->message - used, format, arguments);
    va_end(arguments);
    make_printable(error->message);
    return status;
}
