#define _XOPEN_SOURCE 700

#include "safetensors_write.h"

#include "error_line.h"
#include "json_text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "safetensors data is little-endian and is written as it lies");

typedef struct pending_tensor {
    char *name;
    size_t bytes;
    size_t written;
} pending_tensor;

struct st_writer {
    atomic_file *file;
    pending_tensor *tensors; /* [count] */
    size_t count;
    size_t current; /* every tensor before it is complete */
};

static void free_writer(st_writer *writer) {
    for (size_t i = 0; i < writer->count; i++)
        free(writer->tensors[i].name);
    free(writer->tensors);
    free(writer);
}

static json_t *integers(const int64_t *values, size_t count) {
    json_t *const array = json_array();
    for (size_t i = 0; array != NULL && i < count; i++) {
        if (json_array_append_new(array, json_integer(values[i])) == 0) continue;
        json_decref(array);
        return NULL;
    }
    return array;
}

static oh_status add_metadata(json_t *header, const char *path, const st_text *metadata, size_t count,
                              oh_error *error) {
    if (count == 0) return OH_OK;
    json_t *const object = json_object();
    if (object == NULL || json_object_set_new(header, "__metadata__", object) != 0) {
        return error_line(error, OH_OUT_OF_MEMORY, path, "out of memory for the header");
    }
    for (size_t i = 0; i < count; i++) {
        if (json_object_get(object, metadata[i].key) != NULL) {
            return error_line(error, OH_INVALID_ARGUMENT, path, "metadata '%.100s' is given twice", metadata[i].key);
        }
        json_forget();
        if (json_object_set_new(object, metadata[i].key, json_string(metadata[i].value)) == 0) continue;
        if (json_ran_out()) return error_line(error, OH_OUT_OF_MEMORY, path, "out of memory for the header");
        return error_line(error, OH_INVALID_ARGUMENT, path, "metadata '%.100s': key or text isn't UTF-8",
                          metadata[i].key);
    }
    return OH_OK;
}

/* Adds the tensor's object to the header; its data begins at *offset, which moves to its end. */
static oh_status add_tensor(json_t *header, const char *path, const st_declaration *tensor, int64_t *offset,
                            oh_error *error) {
    if (tensor->dtype == ST_OPAQUE) {
        return error_line(error, OH_INVALID_ARGUMENT, path, "tensor '%.100s': no dtype", tensor->name);
    }
    if (strcmp(tensor->name, "__metadata__") == 0) {
        return error_line(error, OH_INVALID_ARGUMENT, path, "a tensor can't be named __metadata__");
    }
    if (json_object_get(header, tensor->name) != NULL) {
        return error_line(error, OH_INVALID_ARGUMENT, path, "tensor '%.100s' is declared twice", tensor->name);
    }
    int64_t elements;
    int64_t bytes;
    if (!st_shape_size(tensor->shape, tensor->rank, tensor->dtype, &elements, &bytes) || bytes > INT64_MAX - *offset) {
        return error_line(error, OH_INVALID_ARGUMENT, path,
                          "tensor '%.100s': a negative dimension, or more bytes than 64 bits can count", tensor->name);
    }
    const int64_t offsets[] = {*offset, *offset + bytes};
    *offset += bytes;

    json_t *const object = json_object();
    if (object == NULL || json_object_set_new(object, "dtype", json_string(st_dtype_name(tensor->dtype))) != 0 ||
        json_object_set_new(object, "shape", integers(tensor->shape, tensor->rank)) != 0 ||
        json_object_set_new(object, "data_offsets", integers(offsets, 2)) != 0) {
        json_decref(object);
        return error_line(error, OH_OUT_OF_MEMORY, path, "out of memory for the header");
    }
    json_forget();
    if (json_object_set_new(header, tensor->name, object) == 0) return OH_OK;
    if (json_ran_out()) return error_line(error, OH_OUT_OF_MEMORY, path, "out of memory for the header");
    return error_line(error, OH_INVALID_ARGUMENT, path, "tensor '%.100s': its name isn't UTF-8", tensor->name);
}

static oh_status write_header(st_writer *writer, const json_t *header, const char *path, oh_error *error) {
    char *const text = json_text(header, JSON_COMPACT);
    if (text == NULL) return error_line(error, OH_OUT_OF_MEMORY, path, "out of memory for the header");

    const size_t length = strlen(text);
    const size_t padding = (8 - length % 8) % 8; /* spaces: the data section then begins at a multiple of 8 */
    const uint64_t padded = length + padding;
    oh_status status;
    if (padded > ST_HEADER_LIMIT) {
        status = error_line(error, OH_INVALID_ARGUMENT, path, "a header of %" PRIu64 " bytes, expected at most %d",
                            padded, ST_HEADER_LIMIT);
    } else {
        status = atomic_file_write(writer->file, &padded, sizeof padded, error);
        if (status == OH_OK) status = atomic_file_write(writer->file, text, length, error);
        if (status == OH_OK) status = atomic_file_write(writer->file, "        ", padding, error);
    }
    free(text);
    return status;
}

static oh_status keep_declarations(st_writer *writer, const char *path, const st_declaration *tensors, size_t count,
                                   oh_error *error) {
    writer->tensors = calloc(count + 1, sizeof *writer->tensors);
    if (writer->tensors == NULL) return error_line(error, OH_OUT_OF_MEMORY, path, "out of memory");
    writer->count = count;
    for (size_t i = 0; i < count; i++) {
        int64_t elements;
        int64_t bytes = 0;
        st_shape_size(tensors[i].shape, tensors[i].rank, tensors[i].dtype, &elements,
                      &bytes); /* add_tensor checked it */
        writer->tensors[i].bytes = (size_t)bytes;
        writer->tensors[i].name = strdup(tensors[i].name);
        if (writer->tensors[i].name == NULL) return error_line(error, OH_OUT_OF_MEMORY, path, "out of memory");
    }
    return OH_OK;
}

oh_status st_writer_begin(st_writer **writer, const char *path, const st_declaration *tensors, size_t count,
                          const st_text *metadata, size_t metadata_count, oh_error *error) {
    *writer = NULL;
    oh_status status = OH_OK;
    int64_t offset = 0;
    st_writer *const made = calloc(1, sizeof *made);
    json_t *const header = json_object();
    if (made == NULL || header == NULL) {
        status = error_line(error, OH_OUT_OF_MEMORY, path, "out of memory");
        goto done;
    }
    status = add_metadata(header, path, metadata, metadata_count, error);
    for (size_t i = 0; i < count && status == OH_OK; i++) {
        status = add_tensor(header, path, &tensors[i], &offset, error);
    }
    if (status == OH_OK) status = keep_declarations(made, path, tensors, count, error);
    if (status == OH_OK) status = atomic_file_open(&made->file, path, error);
    if (status == OH_OK) status = write_header(made, header, path, error);
    if (status == OH_OK) *writer = made;

done:
    json_decref(header);
    if (status != OH_OK) st_writer_discard(made);
    return status;
}

/* Empty tensors are complete without a write. */
static const pending_tensor *skip_complete(st_writer *writer) {
    while (writer->current < writer->count) {
        const pending_tensor *const tensor = &writer->tensors[writer->current];
        if (tensor->written < tensor->bytes) return tensor;
        writer->current++;
    }
    return NULL;
}

oh_status st_writer_write(st_writer *writer, const char *name, const void *data, size_t bytes, oh_error *error) {
    if (bytes == 0) return OH_OK;
    const char *const path = atomic_file_path(writer->file);
    const pending_tensor *const tensor = skip_complete(writer);
    if (tensor == NULL) {
        return error_line(error, OH_INVALID_ARGUMENT, path,
                          "%zu bytes for tensor '%.100s', but every tensor is complete", bytes, name);
    }
    if (strcmp(tensor->name, name) != 0) {
        return error_line(error, OH_INVALID_ARGUMENT, path,
                          "%zu bytes for tensor '%.100s', but tensor '%.100s' comes next and has %zu of %zu bytes",
                          bytes, name, tensor->name, tensor->written, tensor->bytes);
    }
    if (bytes > tensor->bytes - tensor->written) {
        return error_line(error, OH_INVALID_ARGUMENT, path, "%zu bytes for tensor '%.100s', expected at most %zu",
                          bytes, name, tensor->bytes - tensor->written);
    }
    const oh_status status = atomic_file_write(writer->file, data, bytes, error);
    if (status == OH_OK) writer->tensors[writer->current].written += bytes;
    return status;
}

oh_status st_writer_end(st_writer *writer, atomic_file **file, oh_error *error) {
    const pending_tensor *const tensor = skip_complete(writer);
    oh_status status = OH_OK;
    *file = writer->file;
    if (tensor != NULL) {
        status = error_line(error, OH_INVALID_ARGUMENT, atomic_file_path(writer->file),
                            "tensor '%.100s' has %zu of %zu bytes", tensor->name, tensor->written, tensor->bytes);
        atomic_file_discard(writer->file);
        *file = NULL;
    }
    free_writer(writer);
    return status;
}

oh_status st_writer_finish(st_writer *writer, oh_error *error) {
    atomic_file *file;
    const oh_status status = st_writer_end(writer, &file, error);
    return status == OH_OK ? atomic_file_commit(file, error) : status;
}

void st_writer_discard(st_writer *writer) {
    if (writer == NULL) return;
    atomic_file_discard(writer->file);
    free_writer(writer);
}
