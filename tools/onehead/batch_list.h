/* batch_list.h - the batch files that the arguments of `run` name. */
#ifndef ONEHEAD_TOOL_BATCH_LIST_H
#define ONEHEAD_TOOL_BATCH_LIST_H

#include "mapped_file.h"

#include <stdbool.h>

typedef struct batch_file {
    char *path;
    file_stamp stamp;
} batch_file;

typedef struct batch_list {
    batch_file *files;
    int64_t count, capacity;
} batch_list;

/* Whether arguments mean a pass over files rather than one batch: several, a folder, or a pattern that is no file. */
bool batch_list_is_meant(char *const *arguments, int count);

/* In the order of the arguments: a folder's *.safetensors and what a pattern matches, by name; any other name as it is.
 * OH_BAD_DATA names what isn't there or holds no batch. On failure the list is zeroed. */
oh_status batch_list_make(batch_list *list, char *const *arguments, int count, oh_error *error);
void batch_list_free(batch_list *list); /* a zeroed record is fine */

#endif
