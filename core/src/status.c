#include "status.h"

#include <onehead/onehead.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The build says both. A build by hand has no version of its own and no sanitizer. */
#ifndef ONEHEAD_VERSION
#define ONEHEAD_VERSION "0.0.0"
#endif
#ifndef ONEHEAD_SANITIZER
#define ONEHEAD_SANITIZER ""
#endif

const char *oh_version(void) {
    return ONEHEAD_VERSION;
}

const char *oh_sanitizer(void) {
    return ONEHEAD_SANITIZER;
}

const char *oh_status_name(oh_status status) {
    switch (status) {
    case OH_OK:
        return "ok";
    case OH_INVALID_ARGUMENT:
        return "invalid argument";
    case OH_BAD_DATA:
        return "bad data";
    case OH_NO_BACKEND:
        return "no such backend or device";
    case OH_OUT_OF_MEMORY:
        return "out of memory";
    case OH_IO:
        return "input/output error";
    case OH_DEVICE_ERROR:
        return "device error";
    case OH_UNSUPPORTED:
        return "unsupported";
    case OH_OVERFLOW:
        return "overflow";
    }
    return "unknown status"; /* a later plugin may know codes that this core doesn't */
}

typedef struct dtype_row {
    const char *name;
    int64_t size;
} dtype_row;

static const dtype_row dtypes[OH_DTYPE_COUNT] = {
    [OH_F32] = {"f32", 4}, [OH_BF16] = {"bf16", 2}, [OH_F16] = {"f16", 2}, [OH_F64] = {"f64", 8},
    [OH_I32] = {"i32", 4}, [OH_I64] = {"i64", 8},   [OH_U8] = {"u8", 1},   [OH_BOOL] = {"bool", 1},
};

const char *oh_dtype_name(int32_t dtype) {
    return dtype >= 0 && dtype < OH_DTYPE_COUNT ? dtypes[dtype].name : "unknown dtype";
}

int64_t oh_dtype_size(int32_t dtype) {
    return dtype >= 0 && dtype < OH_DTYPE_COUNT ? dtypes[dtype].size : 0;
}

/* Bytes that the UTF-8 sequence led by `lead` should have; 0: no sequence begins so. */
static size_t sequence_length(unsigned char lead) {
    if (lead < 0x80) return 1;
    if (lead < 0xc2 || lead > 0xf4) return 0;
    return lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
}

/* Whether `text` begins with one printable character of `length` bytes: no control character (C0, DEL, C1), overlong
 * form, surrogate, or code point beyond U+10FFFF. Stops at a NUL. */
static int is_printable(const unsigned char *text, size_t length) {
    if (length == 1) return text[0] >= 0x20 && text[0] != 0x7f;
    for (size_t i = 1; i < length; ++i)
        if ((text[i] & 0xc0) != 0x80) return 0;
    const unsigned char second = text[1];
    switch (text[0]) {
    case 0xc2:
    case 0xe0:
        return second >= 0xa0;
    case 0xed:
        return second <= 0x9f;
    case 0xf0:
        return second >= 0x90;
    case 0xf4:
        return second <= 0x8f;
    default:
        return 1;
    }
}

/* Whether `text` is the beginning of a sequence of `length` bytes that the end of the string cuts short. */
static int is_cut_short(const unsigned char *text, size_t length) {
    size_t have = 1;
    while (have < length && (text[have] & 0xc0) == 0x80)
        ++have;
    return have < length && text[have] == '\0';
}

void oh_make_printable(char *line) {
    unsigned char *at = (unsigned char *)line;
    while (*at != '\0') {
        const size_t length = sequence_length(*at);
        if (length > 0 && is_printable(at, length)) {
            at += length;
        } else if (length > 1 && is_cut_short(at, length)) {
            *at = '\0';
        } else {
            *at++ = '?';
        }
    }
}

#undef oh_fail /* what the analyser sees in its place */
oh_status oh_fail(oh_error *error, oh_status status, const char *format, ...) {
    if (error == NULL) return status;
    char line[sizeof error->message] = "";
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (length < 0) line[0] = '\0'; /* without words the status still stands */
    oh_make_printable(line);
    error->status = status;
    memcpy(error->message, line, sizeof line);
    return status;
}
