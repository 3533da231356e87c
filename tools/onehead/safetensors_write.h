/* safetensors_write.h - writes safetensors files, in pieces, atomically.
 *
 * The tensors are declared first, then their bytes follow in the declared order, each in as many pieces as the caller
 * likes. The file appears under its name when st_writer_finish succeeds (see atomic_file.h).
 *
 *     const int64_t shape[] = {rows, hidden};
 *     const st_declaration tensors[] = {{"draft_hidden.grad", ST_F32, 2, shape}};
 *     st_writer *writer;
 *     if (st_writer_begin(&writer, path, tensors, 1, NULL, 0, &error) != OH_OK) ...
 *     if (st_writer_write(writer, "draft_hidden.grad", rows, bytes, &error) != OH_OK) { st_writer_discard(writer); ...
 * } if (st_writer_finish(writer, &error) != OH_OK) ...
 *
 * The same declarations, metadata and bytes give the same file. The data section begins at a multiple of 8; declare
 * wide dtypes before narrow ones to keep every tensor aligned. */
#ifndef ONEHEAD_TOOL_SAFETENSORS_WRITE_H
#define ONEHEAD_TOOL_SAFETENSORS_WRITE_H

#include "atomic_file.h"
#include "safetensors.h"

typedef struct st_declaration {
    const char *name; /* UTF-8, unique, not "__metadata__" */
    st_dtype dtype;   /* not ST_OPAQUE */
    size_t rank;
    const int64_t *shape; /* [rank], each >= 0 */
} st_declaration;

typedef struct st_text {
    const char *key; /* UTF-8, unique */
    const char *value;
} st_text;

typedef struct st_writer st_writer;

/* Opens the temporary file and writes the header. Nothing passed in is kept. On failure *writer is NULL. Errors:
 * OH_INVALID_ARGUMENT (a declaration or metadata entry that the format can't hold), OH_IO, OH_OUT_OF_MEMORY. */
oh_status st_writer_begin(st_writer **writer, const char *path, const st_declaration *tensors, size_t count,
                          const st_text *metadata, size_t metadata_count, oh_error *error);

/* Appends `bytes` bytes to the tensor. OH_INVALID_ARGUMENT when it isn't the first incomplete one, or when they are
 * more than it still needs; nothing is written then. After OH_IO only finish (which refuses) or discard are left. */
oh_status st_writer_write(st_writer *writer, const char *name, const void *data, size_t bytes, oh_error *error);

/* Flushes, renames over the destination. Frees the writer, also on failure, and then leaves no file behind.
 * OH_INVALID_ARGUMENT when a tensor is incomplete. */
oh_status st_writer_finish(st_writer *writer, oh_error *error);

/* The same without giving the file its name: that is left to the caller, who may commit it together with others
 * (atomic_file_commit_all). On failure *file is NULL. */
oh_status st_writer_end(st_writer *writer, atomic_file **file, oh_error *error);

/* Removes what was written and frees. NULL is fine. */
void st_writer_discard(st_writer *writer);

#endif
