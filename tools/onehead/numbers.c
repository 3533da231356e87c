#include "numbers.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool number_integer(const char *text, int64_t least, int64_t most, int64_t *value) {
    if (text[0] == '\0' || isspace((unsigned char)text[0])) return false;
    char *end;
    errno = 0;
    const long long parsed = strtoll(text, &end, 10);
    if (*end != '\0' || errno != 0 || parsed < least || parsed > most) return false;
    *value = parsed;
    return true;
}

bool number_real(const char *text, double least, double most, double *value) {
    if (text[0] == '\0' || strspn(text, "0123456789+-.eE") != strlen(text)) return false;
    char *end;
    errno = 0;
    const double parsed = strtod(text, &end);
    if (*end != '\0' || errno != 0 || !(parsed >= least && parsed <= most)) return false;
    *value = parsed;
    return true;
}

bool number_bytes(const char *text, int64_t *bytes) {
    const size_t length = strlen(text);
    char digits[24];
    if (length == 0 || length >= sizeof digits || !isdigit((unsigned char)text[0])) return false;
    memcpy(digits, text, length + 1);

    int shift = 0;
    switch (digits[length - 1]) {
    case 'K':
        shift = 10;
        break;
    case 'M':
        shift = 20;
        break;
    case 'G':
        shift = 30;
        break;
    default:
        break;
    }
    if (shift != 0) digits[length - 1] = '\0';
    int64_t value;
    if (!number_integer(digits, 1, INT64_MAX >> shift, &value)) return false;
    *bytes = value << shift;
    return true;
}
