#include "plan_rate.h"

#include "error_line.h"
#include "json_text.h"
#include "numbers.h"
#include "run_report.h"
#include "samples.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RATE_LEAST 1e-6 /* GFLOP/s */
#define RATE_MOST 1e12

static double number_at(const json_t *object, const char *key) {
    const json_t *const value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* Median ratio of a policy's measurements, 1 without any. */
static oh_status policy_ratio(const json_t *benchmarks, int32_t policy, double *ratio, oh_error *error) {
    double *const values = calloc(json_array_size(benchmarks) + 1, sizeof *values);
    if (values == NULL) return error_line(error, OH_OUT_OF_MEMORY, "--rate", "out of memory");
    int64_t count = 0;
    size_t index;
    json_t *entry;
    json_array_foreach((json_t *)(uintptr_t)benchmarks, index, entry) {
        const char *const name = json_string_value(json_object_get(entry, "policy"));
        const double value = number_at(entry, "ratio_to_gemms");
        if (name != NULL && strcmp(name, policy_name(policy)) == 0 && value > 0) values[count++] = value;
    }
    *ratio = count > 0 ? samples_summarise(values, count).median : 1;
    free(values);
    return OH_OK;
}

static oh_status read_file(plan_rate *rate, const char *path, oh_error *error) {
    json_error_t why;
    json_t *const root = json_parse_file(path, 0, &why);
    if (root == NULL && json_error_code(&why) == json_error_out_of_memory)
        return error_line(error, OH_OUT_OF_MEMORY, path, "out of memory");
    if (root == NULL) {
        return error_line(
            error, OH_INVALID_ARGUMENT, "--rate",
            "'%.100s', expected GFLOP/s, a number from %g to %g, or a JSON file of 'onehead bench': %.100s", path,
            RATE_LEAST, RATE_MOST, why.text);
    }
    const json_t *const benchmarks = json_object_get(root, "benchmarks");
    size_t index;
    json_t *entry;
    json_array_foreach((json_t *)(uintptr_t)benchmarks, index, entry) {
        const double value = number_at(entry, "flops_per_second");
        if (value > rate->flops_per_second) rate->flops_per_second = value;
    }
    oh_status status = OH_OK;
    if (!(rate->flops_per_second > 0))
        status = error_line(error, OH_BAD_DATA, path,
                            "no 'flops_per_second' in 'benchmarks', expected a JSON file of "
                            "'onehead bench'");
    for (int32_t policy = OH_POLICY_CACHED; policy <= OH_POLICY_NAIVE && status == OH_OK; policy++)
        status = policy_ratio(benchmarks, policy, &rate->ratio[policy], error);
    json_decref(root);
    return status;
}

oh_status plan_rate_read(plan_rate *rate, const char *text, oh_error *error) {
    memset(rate, 0, sizeof *rate);
    for (int32_t policy = 0; policy <= OH_POLICY_NAIVE; policy++)
        rate->ratio[policy] = 1;
    if (text == NULL) return OH_OK;
    double giga;
    if (!number_real(text, RATE_LEAST, RATE_MOST, &giga)) return read_file(rate, text, error);
    rate->flops_per_second = 1e9 * giga;
    return OH_OK;
}

double plan_rate_seconds(const plan_rate *rate, int32_t policy, double flops) {
    return rate->flops_per_second > 0 ? flops / rate->flops_per_second * rate->ratio[policy] : NAN;
}
