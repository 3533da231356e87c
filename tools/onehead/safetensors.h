/* safetensors.h - reads safetensors files: named tensors behind a JSON header.
 *
 * A file is u64 header length (little-endian), the header, the data:
 *
 *     {"__metadata__": {"key": "text"}, "NAME": {"dtype": "BF16", "shape": [V, H], "data_offsets": [begin, end]}, ...}
 *
 * st_open and st_parse check everything before they return: afterwards every tensor lies inside the file, its shape,
 * dtype and byte count agree, and the tensors tile the data section without overlap, hole or trailing bytes.
 *
 *     st_file *file;
 *     if (st_open(&file, "batch.safetensors", &error) != OH_OK) ...
 *     const st_tensor *hidden;
 *     if (st_require(file, "draft_hidden", &hidden, &error) != OH_OK) ...
 *     ... hidden->data, hidden->shape[0] ...
 *     st_close(file);
 *
 * Alignment: the format promises none. An odd header length or a narrow tensor in front leaves `data` at any address:
 * ask st_is_aligned before reading it as an array, or copy it with memcpy.
 *
 * Threads: an open file is constant; any number of threads may read it. st_close comes after the last of them.
 *
 * Limits: a file truncated by another process while it is open kills the reader with SIGBUS (see mapped_file.h).
 * Headers are limited to 100 MB, JSON nesting to jansson's limit (2,048). Little-endian machines only. */
#ifndef ONEHEAD_TOOL_SAFETENSORS_H
#define ONEHEAD_TOOL_SAFETENSORS_H

#include "mapped_file.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ST_HEADER_LIMIT 100000000 /* bytes, the reference implementation's */

/* ST_OPAQUE is any other well-formed dtype name (F8_E4M3, say): a checkpoint may hold such tensors next to the ones we
 * want, so the file opens. Their byte count can't be checked against their shape, and st_require refuses them. */
typedef enum st_dtype {
    ST_OPAQUE = 0,
    ST_BOOL,
    ST_U8,
    ST_I8,
    ST_I16,
    ST_U16,
    ST_F16,
    ST_BF16,
    ST_I32,
    ST_U32,
    ST_F32,
    ST_I64,
    ST_U64,
    ST_F64,
} st_dtype;

/* Bytes an element; 0 for ST_OPAQUE. */
size_t st_dtype_size(st_dtype dtype);

/* The format's name, "BF16" say; "?" for ST_OPAQUE. */
const char *st_dtype_name(st_dtype dtype);

/* Elements and bytes of a shape (rank 0: one element). False when a dimension is negative or when the product of the
 * dimensions other than 0, in bytes, exceeds INT64_MAX: so no partial product of an accepted shape can overflow. */
bool st_shape_size(const int64_t *shape, size_t rank, st_dtype dtype, int64_t *elements, int64_t *bytes);

/* A view; it and everything it points to belong to the file. */
typedef struct st_tensor {
    const char *name; /* UTF-8; escape before showing: it may hold control characters */
    st_dtype dtype;
    const char *dtype_name; /* as the file spells it */
    size_t rank;
    const int64_t *shape; /* [rank], each >= 0 */
    int64_t elements;     /* product of the shape */
    const void *data;     /* may be misaligned; not NULL, even when `bytes` is 0 */
    size_t bytes;
    size_t offset; /* of `data` from the start of the data section */
} st_tensor;

typedef struct st_file st_file;

/* Maps and checks a file. On failure *file is NULL. Errors: OH_IO (can't open, not a regular file), OH_BAD_DATA (not a
 * valid safetensors file), OH_OUT_OF_MEMORY. */
oh_status st_open(st_file **file, const char *path, oh_error *error);

/* The same on bytes in memory, which must outlive the file; `name` stands for the path in messages. */
oh_status st_parse(st_file **file, const void *bytes, size_t size, const char *name, oh_error *error);

/* NULL is fine. */
void st_close(st_file *file);

/* Tensors in the order of their data; NULL when index >= count. */
size_t st_count(const st_file *file);
const st_tensor *st_at(const st_file *file, size_t index);

/* NULL when there is none of that name. */
const st_tensor *st_find(const st_file *file, const char *name);

/* st_find that explains: OH_BAD_DATA when the tensor is missing or its dtype is none that we know. */
oh_status st_require(const st_file *file, const char *name, const st_tensor **tensor, oh_error *error);

/* The text of a `__metadata__` entry, NULL when there is none. */
const char *st_metadata(const st_file *file, const char *key);

/* The path or name that the file was opened by. */
const char *st_file_name(const st_file *file);

/* Of what st_open mapped; zeros for bytes in memory. */
file_stamp st_file_stamp(const st_file *file);

/* Whether `data` may be read as an array of the tensor's dtype. */
bool st_is_aligned(const st_tensor *tensor);

#endif
