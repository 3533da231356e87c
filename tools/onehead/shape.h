/* shape.h - the shape of a step without data: --rows, --hidden and --vocab, or the name of a known one. */
#ifndef ONEHEAD_TOOL_SHAPE_H
#define ONEHEAD_TOOL_SHAPE_H

#include "options.h"

typedef struct shape_preset {
    const char *name;
    int64_t rows, hidden, vocab;
    int64_t chunk, memory; /* 0: the plan's choice, the command's default */
    const char *about;
} shape_preset;

/* NULL after the last. */
const shape_preset *shape_preset_at(int index);

/* Fills in what was not given from --preset or, where a shape is missing altogether, from `fallback` (NULL: none).
 * OH_INVALID_ARGUMENT names an unknown preset and the known ones. */
oh_status shape_complete(options *o, const char *fallback, oh_error *error);

/* The request of a step of the options' shape. OH_INVALID_ARGUMENT when rows, hidden or vocab is missing. */
oh_status shape_request(const options *o, oh_request *request, oh_error *error);

#endif
