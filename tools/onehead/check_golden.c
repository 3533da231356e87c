#include "check_golden.h"

#include "error_line.h"

#include <stdint.h>
#include <string.h>

/* golden/sample.json, linked in by sample_answers.S. */
extern const char onehead_sample_answers_begin[];
extern const char onehead_sample_answers_end[];

static const char *base_name(const char *path) {
    const char *const slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static oh_status load(golden_values *golden, const char *path, oh_error *error) {
    json_error_t said;
    if (path != NULL) {
        golden->root = json_parse_file(path, JSON_REJECT_DUPLICATES, &said);
    } else {
        const size_t size = (size_t)((uintptr_t)onehead_sample_answers_end - (uintptr_t)onehead_sample_answers_begin);
        golden->root = json_parse(onehead_sample_answers_begin, size, JSON_REJECT_DUPLICATES, &said);
    }
    if (golden->root != NULL) return OH_OK;
    const char *const name = path != NULL ? path : "the built-in values";
    if (json_error_code(&said) == json_error_out_of_memory)
        return error_line(error, OH_OUT_OF_MEMORY, name, "out of memory");
    if (said.line < 0) return error_line(error, OH_BAD_DATA, name, "%s", said.text);
    return error_line(error, OH_BAD_DATA, name, "line %d: %s", said.line, said.text);
}

static oh_status find_sets(golden_values *golden, const char *path, const char *batch, oh_error *error) {
    const char *const name = path != NULL ? path : "the built-in values";
    const char *const file = base_name(batch);
    json_t *const entry = json_object_get(golden->root, file);
    if (!json_is_object(entry))
        return error_line(error, OH_BAD_DATA, name, "no object '%.100s', expected one for the batch", file);
    golden->sets = entry;
    if (!json_is_string(json_object_get(entry, "args"))) return OH_OK;
    golden->single = json_pack("{s:O}", file, entry);
    golden->sets = golden->single;
    return golden->single != NULL ? OH_OK : error_line(error, OH_OUT_OF_MEMORY, name, "out of memory");
}

oh_status golden_open(golden_values *golden, const char *path, const char *batch, oh_error *error) {
    memset(golden, 0, sizeof *golden);
    oh_status status = load(golden, path, error);
    if (status == OH_OK) status = find_sets(golden, path, batch, error);
    if (status != OH_OK) golden_close(golden);
    return status;
}

void golden_close(golden_values *golden) {
    json_decref(golden->single);
    json_decref(golden->root);
    memset(golden, 0, sizeof *golden);
}
