#include "shape.h"

#include "batch.h"
#include "error_line.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define GIB (INT64_C(1) << 30)

/* Hidden size and vocabulary of real trainings, with a step of 32,768 rows in chunks of 2,048; then what a CPU does in
 * about a second, and in milliseconds. */
static const shape_preset presets[] = {
    {"qwen3-8b", 32768, 4096, 151936, 2048, 16 * GIB, "Qwen3-8B"},
    {"qwen3.6-27b", 32768, 5120, 248320, 2048, 16 * GIB, "Qwen3.6-27B"},
    {"gpt-oss", 32768, 2880, 201088, 2048, 16 * GIB, "gpt-oss"},
    {"llama", 32768, 4096, 128256, 2048, 16 * GIB, "Llama 3"},
    {"glm", 32768, 6144, 154880, 2048, 16 * GIB, "GLM"},
    {"kimi", 32768, 7168, 163840, 2048, 16 * GIB, "Kimi"},
    {"cpu", 512, 1024, 50257, 256, 0, "for two cores: about a second a step"},
    {"cpu-small", 256, 256, 8192, 128, 0, "some ten milliseconds a step"},
};

enum { PRESETS = sizeof presets / sizeof presets[0] };

const shape_preset *shape_preset_at(int index) {
    return index >= 0 && index < PRESETS ? &presets[index] : NULL;
}

static oh_status find(const char *name, const shape_preset **found, oh_error *error) {
    char known[200] = "";
    for (int i = 0; i < PRESETS; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            *found = &presets[i];
            return OH_OK;
        }
        const size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", used > 0 ? ", " : "", presets[i].name);
    }
    return error_line(error, OH_INVALID_ARGUMENT, "--preset", "'%.60s', expected one of %s", name, known);
}

oh_status shape_complete(options *o, const char *fallback, oh_error *error) {
    const bool missing = o->shape_rows == 0 && o->shape_hidden == 0 && o->shape_vocab == 0;
    if (o->preset == NULL && missing) o->preset = fallback;
    if (o->preset == NULL) return OH_OK;
    const shape_preset *preset = NULL;
    const oh_status status = find(o->preset, &preset, error);
    if (status != OH_OK) return status;
    if (o->shape_rows == 0) o->shape_rows = preset->rows;
    if (o->shape_hidden == 0) o->shape_hidden = preset->hidden;
    if (o->shape_vocab == 0) o->shape_vocab = preset->vocab;
    /* A budget of the caller's own decides the chunk as well. */
    if (o->request.chunk == 0 && o->request.memory == 0 && preset->chunk <= o->shape_rows &&
        preset->chunk % o->request.objective.block_size == 0)
        o->request.chunk = preset->chunk;
    if (o->request.memory == 0) o->request.memory = preset->memory;
    return OH_OK;
}

static oh_status require(const char *name, int64_t value, oh_error *error) {
    if (value != 0) return OH_OK;
    return error_line(error, OH_INVALID_ARGUMENT, name, "not given, expected an integer or a --preset");
}

oh_status shape_request(const options *o, oh_request *request, oh_error *error) {
    oh_status status = require("--rows", o->shape_rows, error);
    if (status == OH_OK) status = require("--hidden", o->shape_hidden, error);
    if (status == OH_OK) status = require("--vocab", o->shape_vocab, error);
    if (status != OH_OK) return status;

    oh_request r = o->request;
    if (o->shape_rows % r.objective.block_size != 0) {
        return error_line(error, OH_INVALID_ARGUMENT, "--rows",
                          "%" PRId64 ", expected a multiple of the block size, %" PRId64, o->shape_rows,
                          r.objective.block_size);
    }
    r.rows = o->shape_rows;
    r.target_rows = o->shape_target_rows < 0 ? o->shape_rows : o->shape_target_rows;
    r.hidden = o->shape_hidden;
    r.vocab = o->shape_vocab;
    r.hidden_dtype = r.weight_dtype = o->shape_dtype;
    r.scale = (float)o->scale;
    r.softcap = (float)o->softcap;
    r.target_scale = (float)(o->target_scale_given ? o->target_scale : o->scale);
    r.target_softcap = (float)(o->target_softcap_given ? o->target_softcap : o->softcap);
    r.produce = options_produce(o, r.target_rows > 0);
    status = options_default_objective(o, r.target_rows > 0, &r.objective, error);
    *request = r;
    return status;
}
