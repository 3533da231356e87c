#include "format.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

format_text format_count(int64_t value) {
    format_text result;
    char digits[FORMAT_SIZE];
    const uint64_t size = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    const int length = snprintf(digits, sizeof digits, "%" PRIu64, size);
    char *to = result.text;
    if (value < 0) *to++ = '-';
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) *to++ = ',';
        *to++ = digits[i];
    }
    *to = '\0';
    return result;
}

static format_text scaled(double value, double base, const char *const *units, int count) {
    format_text result;
    int unit = 0;
    while (unit < count - 1 && value >= base) {
        value /= base;
        unit++;
    }
    snprintf(result.text, sizeof result.text, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
    return result;
}

format_text format_bytes(int64_t bytes) {
    if (bytes == INT64_MAX) return (format_text){">= 8 EiB"};
    return format_traffic((double)bytes);
}

format_text format_traffic(double bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    return scaled(bytes, 1024, units, 7);
}

format_text format_flops(double flops) {
    static const char *const units[] = {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"};
    return scaled(flops, 1000, units, 7);
}

format_text format_real(double value) {
    format_text result;
    if (isnan(value))
        snprintf(result.text, sizeof result.text, "-");
    else
        snprintf(result.text, sizeof result.text, "%.6g", value);
    return result;
}

format_text format_percent(double ratio) {
    format_text result;
    if (isnan(ratio))
        snprintf(result.text, sizeof result.text, "-");
    else
        snprintf(result.text, sizeof result.text, "%.2f %%", 100 * ratio);
    return result;
}

format_text format_seconds(double seconds) {
    format_text result;
    if (seconds < 1)
        snprintf(result.text, sizeof result.text, "%.1f ms", 1e3 * seconds);
    else
        snprintf(result.text, sizeof result.text, "%.2f s", seconds);
    return result;
}

format_pair format_fraction(int64_t part, int64_t whole) {
    format_pair result;
    snprintf(result.text, sizeof result.text, "%s / %s", format_count(part).text, format_count(whole).text);
    return result;
}
