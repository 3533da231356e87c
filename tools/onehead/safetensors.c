#define _XOPEN_SOURCE 700

#include "safetensors.h"

#include "error_line.h"
#include "json_text.h"
#include "mapped_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors data is little-endian and is read in place");

#define METADATA "__metadata__"
#define LENGTH_BYTES sizeof(uint64_t)

struct st_file {
    char *name;
    mapped_file map;  /* empty when the bytes are the caller's */
    json_t *header;   /* kept: names, dtype names and metadata point into it */
    const char *data; /* the data section */
    size_t data_size;
    st_tensor *tensors; /* [count], by (offset, bytes, name) */
    size_t count;
    int64_t *shapes; /* every tensor's shape, one after the other */
};

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {
    [ST_OPAQUE] = {"?", 0}, [ST_BOOL] = {"BOOL", 1}, [ST_U8] = {"U8", 1},   [ST_I8] = {"I8", 1},
    [ST_I16] = {"I16", 2},  [ST_U16] = {"U16", 2},   [ST_F16] = {"F16", 2}, [ST_BF16] = {"BF16", 2},
    [ST_I32] = {"I32", 4},  [ST_U32] = {"U32", 4},   [ST_F32] = {"F32", 4}, [ST_I64] = {"I64", 8},
    [ST_U64] = {"U64", 8},  [ST_F64] = {"F64", 8},
};

enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

size_t st_dtype_size(st_dtype dtype) {
    return dtypes[dtype].size;
}

const char *st_dtype_name(st_dtype dtype) {
    return dtypes[dtype].name;
}

bool st_shape_size(const int64_t *shape, size_t rank, st_dtype dtype, int64_t *elements, int64_t *bytes) {
    const int64_t element_size = dtype == ST_OPAQUE ? 1 : (int64_t)st_dtype_size(dtype);
    int64_t product = 1; /* of the dimensions other than 0 */
    bool empty = false;
    for (size_t i = 0; i < rank; i++) {
        if (shape[i] < 0) return false;
        if (shape[i] == 0) {
            empty = true;
            continue;
        }
        if (product > INT64_MAX / element_size / shape[i]) return false;
        product *= shape[i];
    }
    *elements = empty ? 0 : product;
    *bytes = *elements * element_size;
    return true;
}

/* Upper case, digits and '_', starting with a letter: what a dtype looks like, so that "f32" or "" isn't opaque. */
static bool is_dtype_name(const char *name) {
    if (name[0] < 'A' || name[0] > 'Z') return false;
    const size_t length = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    return name[length] == '\0' && length <= 24;
}

static st_dtype dtype_of(const char *name) {
    for (int i = ST_BOOL; i < DTYPES; i++) {
        if (strcmp(dtypes[i].name, name) == 0) return (st_dtype)i;
    }
    return ST_OPAQUE;
}

static oh_status read_header(st_file *file, const unsigned char *bytes, size_t size, oh_error *error) {
    if (size < LENGTH_BYTES) {
        return error_line(error, OH_BAD_DATA, file->name, "%zu bytes, expected at least 8 (a header length)", size);
    }
    uint64_t length;
    memcpy(&length, bytes, LENGTH_BYTES);
    if (length == 0) return error_line(error, OH_BAD_DATA, file->name, "header length 0, expected a JSON object");
    if (length > ST_HEADER_LIMIT) {
        return error_line(error, OH_BAD_DATA, file->name, "header length %" PRIu64 ", expected at most %d", length,
                          ST_HEADER_LIMIT);
    }
    if (length > size - LENGTH_BYTES) {
        return error_line(error, OH_BAD_DATA, file->name,
                          "header length %" PRIu64 ", but only %zu bytes follow (truncated file?)", length,
                          size - LENGTH_BYTES);
    }
    const char *const text = (const char *)bytes + LENGTH_BYTES;
    if (text[0] != '{') {
        return error_line(error, OH_BAD_DATA, file->name, "header begins with byte 0x%02x, expected '{'",
                          (unsigned)bytes[LENGTH_BYTES]);
    }
    json_error_t parse;
    file->header = json_parse(text, (size_t)length, JSON_REJECT_DUPLICATES, &parse);
    if (file->header == NULL) {
        if (json_error_code(&parse) == json_error_out_of_memory) {
            return error_line(error, OH_OUT_OF_MEMORY, file->name, "out of memory for a header of %" PRIu64 " bytes",
                              length);
        }
        return error_line(error, OH_BAD_DATA, file->name, "header isn't valid JSON at byte %d: %s", parse.position,
                          parse.text);
    }
    file->data = text + length;
    file->data_size = size - LENGTH_BYTES - (size_t)length;
    return OH_OK;
}

/* What a message calls a JSON value of the wrong type. */
static const char *type_name(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        break;
    }
    return "null";
}

static oh_status check_metadata(const st_file *file, oh_error *error) {
    json_t *const metadata = json_object_get(file->header, METADATA);
    if (metadata == NULL) return OH_OK;
    if (!json_is_object(metadata)) {
        return error_line(error, OH_BAD_DATA, file->name, METADATA " is %s, expected an object of strings",
                          type_name(metadata));
    }
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value)) {
            return error_line(error, OH_BAD_DATA, file->name, METADATA " entry '%.100s' is %s, expected a string", key,
                              type_name(value));
        }
    }
    return OH_OK;
}

/* The tensor's own object: exactly dtype, shape and data_offsets. */
static oh_status check_keys(const st_file *file, const char *name, json_t *entry, oh_error *error) {
    static const char *const keys[] = {"dtype", "shape", "data_offsets"};
    static const json_type types[] = {JSON_STRING, JSON_ARRAY, JSON_ARRAY};

    if (!json_is_object(entry)) {
        return error_line(error, OH_BAD_DATA, file->name,
                          "tensor '%.100s' is %s, expected an object with dtype, shape and data_offsets", name,
                          type_name(entry));
    }
    for (int i = 0; i < 3; i++) {
        const json_t *const value = json_object_get(entry, keys[i]);
        if (value == NULL) {
            return error_line(error, OH_BAD_DATA, file->name, "tensor '%.100s': no %s", name, keys[i]);
        }
        if (json_typeof(value) != types[i]) {
            return error_line(error, OH_BAD_DATA, file->name, "tensor '%.100s': %s is %s, expected %s", name, keys[i],
                              type_name(value), i == 0 ? "a string" : "an array of integers");
        }
    }
    if (json_object_size(entry) == 3) return OH_OK;

    const char *key;
    json_t *value;
    json_object_foreach(entry, key, value) {
        if (strcmp(key, keys[0]) != 0 && strcmp(key, keys[1]) != 0 && strcmp(key, keys[2]) != 0) break;
    }
    return error_line(error, OH_BAD_DATA, file->name,
                      "tensor '%.100s': unexpected key '%.100s', expected only dtype, shape and data_offsets", name,
                      key);
}

static oh_status read_dtype(const st_file *file, st_tensor *tensor, const json_t *value, oh_error *error) {
    tensor->dtype_name = json_string_value(value);
    tensor->dtype = dtype_of(tensor->dtype_name);
    if (tensor->dtype != ST_OPAQUE || is_dtype_name(tensor->dtype_name)) return OH_OK;
    return error_line(error, OH_BAD_DATA, file->name, "tensor '%.100s': dtype '%.40s', expected a name such as BF16",
                      tensor->name, tensor->dtype_name);
}

/* Reads the shape to `shape`, which has room for it, and gives the bytes it stands for. */
static oh_status read_shape(const st_file *file, st_tensor *tensor, int64_t *shape, const json_t *value, int64_t *bytes,
                            oh_error *error) {
    tensor->rank = json_array_size(value);
    tensor->shape = shape;
    for (size_t i = 0; i < tensor->rank; i++) {
        const json_t *const dimension = json_array_get(value, i);
        if (!json_is_integer(dimension)) {
            return error_line(error, OH_BAD_DATA, file->name,
                              "tensor '%.100s': shape[%zu] is %s, expected a non-negative integer", tensor->name, i,
                              type_name(dimension));
        }
        shape[i] = json_integer_value(dimension);
        if (shape[i] < 0) {
            return error_line(error, OH_BAD_DATA, file->name,
                              "tensor '%.100s': shape[%zu] is %" PRId64 ", expected a non-negative integer",
                              tensor->name, i, shape[i]);
        }
    }
    if (st_shape_size(shape, tensor->rank, tensor->dtype, &tensor->elements, bytes)) return OH_OK;
    return error_line(error, OH_BAD_DATA, file->name,
                      "tensor '%.100s': the product of its shape and dtype %s overflows 64 bits", tensor->name,
                      tensor->dtype_name);
}

static oh_status read_offsets(const st_file *file, st_tensor *tensor, const json_t *value, oh_error *error) {
    const json_t *const first = json_array_get(value, 0);
    const json_t *const second = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(first) || !json_is_integer(second)) {
        return error_line(error, OH_BAD_DATA, file->name,
                          "tensor '%.100s': data_offsets must be two integers, [begin, end]", tensor->name);
    }
    const int64_t begin = json_integer_value(first);
    const int64_t end = json_integer_value(second);
    if (begin < 0 || end < begin) {
        return error_line(error, OH_BAD_DATA, file->name,
                          "tensor '%.100s': data_offsets [%" PRId64 ", %" PRId64 "], expected 0 <= begin <= end",
                          tensor->name, begin, end);
    }
    if ((uint64_t)end > file->data_size) {
        return error_line(error, OH_BAD_DATA, file->name,
                          "tensor '%.100s': data_offsets [%" PRId64 ", %" PRId64
                          "] end beyond the %zu bytes of data (truncated file?)",
                          tensor->name, begin, end, file->data_size);
    }
    tensor->offset = (size_t)begin;
    tensor->bytes = (size_t)(end - begin);
    tensor->data = file->data + begin;
    return OH_OK;
}

static oh_status read_tensor(const st_file *file, st_tensor *tensor, int64_t *shape, const char *name, json_t *entry,
                             oh_error *error) {
    oh_status status = check_keys(file, name, entry, error);
    if (status != OH_OK) return status;

    int64_t bytes = 0; /* GCC doesn't see that read_shape sets it */
    tensor->name = name;
    status = read_dtype(file, tensor, json_object_get(entry, "dtype"), error);
    if (status != OH_OK) return status;
    status = read_shape(file, tensor, shape, json_object_get(entry, "shape"), &bytes, error);
    if (status != OH_OK) return status;
    status = read_offsets(file, tensor, json_object_get(entry, "data_offsets"), error);
    if (status != OH_OK) return status;

    if (tensor->dtype == ST_OPAQUE || (uint64_t)bytes == tensor->bytes) return OH_OK;
    return error_line(error, OH_BAD_DATA, file->name,
                      "tensor '%.100s': data_offsets span %zu bytes, expected %" PRId64 " (%" PRId64 " elements of %s)",
                      tensor->name, tensor->bytes, bytes, tensor->elements, tensor->dtype_name);
}

static oh_status read_tensors(st_file *file, oh_error *error) {
    const char *name;
    json_t *entry;
    size_t dimensions = 0;
    json_object_foreach(file->header, name, entry) {
        if (strcmp(name, METADATA) == 0) continue;
        file->count++;
        dimensions += json_array_size(json_object_get(entry, "shape")); /* 0 where it is no array */
    }
    /* One more than needed: calloc(0) may return NULL. */
    file->tensors = calloc(file->count + 1, sizeof *file->tensors);
    file->shapes = calloc(dimensions + 1, sizeof *file->shapes);
    if (file->tensors == NULL || file->shapes == NULL) {
        return error_line(error, OH_OUT_OF_MEMORY, file->name, "out of memory for %zu tensors", file->count);
    }
    st_tensor *tensor = file->tensors;
    int64_t *shape = file->shapes;
    json_object_foreach(file->header, name, entry) {
        if (strcmp(name, METADATA) == 0) continue;
        const oh_status status = read_tensor(file, tensor, shape, name, entry, error);
        if (status != OH_OK) return status;
        shape += tensor->rank;
        tensor++;
    }
    return OH_OK;
}

/* Empty tensors sort before the one that begins at the same byte. */
static int by_offset(const void *left, const void *right) {
    const st_tensor *const a = left;
    const st_tensor *const b = right;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* The tensors must tile the data section: a byte that two own, or none, means that the header and the data disagree. */
static oh_status check_layout(st_file *file, oh_error *error) {
    qsort(file->tensors, file->count, sizeof *file->tensors, by_offset);

    size_t end = 0;
    for (size_t i = 0; i < file->count; i++) {
        const st_tensor *const tensor = &file->tensors[i];
        if (tensor->offset < end) {
            return error_line(
                error, OH_BAD_DATA, file->name,
                "tensor '%.100s' begins at byte %zu of the data, inside tensor '%.100s', which ends at %zu",
                tensor->name, tensor->offset, tensor[-1].name, end);
        }
        if (tensor->offset > end) {
            return error_line(error, OH_BAD_DATA, file->name,
                              "tensor '%.100s' begins at byte %zu of the data, expected %zu: a hole of %zu bytes",
                              tensor->name, tensor->offset, end, tensor->offset - end);
        }
        end += tensor->bytes;
    }
    if (end == file->data_size) return OH_OK;
    return error_line(error, OH_BAD_DATA, file->name,
                      "%zu trailing bytes: the data has %zu bytes, expected %zu (where the last tensor ends)",
                      file->data_size - end, file->data_size, end);
}

oh_status st_parse(st_file **file, const void *bytes, size_t size, const char *name, oh_error *error) {
    *file = NULL;
    st_file *const made = calloc(1, sizeof *made);
    if (made != NULL) made->name = strdup(name);
    if (made == NULL || made->name == NULL) {
        free(made);
        return error_line(error, OH_OUT_OF_MEMORY, name, "out of memory");
    }
    oh_status status = read_header(made, bytes, size, error);
    if (status == OH_OK) status = check_metadata(made, error);
    if (status == OH_OK) status = read_tensors(made, error);
    if (status == OH_OK) status = check_layout(made, error);
    if (status != OH_OK) {
        st_close(made);
        return status;
    }
    *file = made;
    return OH_OK;
}

oh_status st_open(st_file **file, const char *path, oh_error *error) {
    *file = NULL;
    mapped_file map;
    oh_status status = mapped_file_open(&map, path, error);
    if (status != OH_OK) return status;

    status = st_parse(file, map.bytes, map.size, path, error);
    if (status != OH_OK) {
        mapped_file_close(&map);
        return status;
    }
    (*file)->map = map;
    return OH_OK;
}

void st_close(st_file *file) {
    if (file == NULL) return;
    json_decref(file->header);
    mapped_file_close(&file->map);
    free(file->tensors);
    free(file->shapes);
    free(file->name);
    free(file);
}

size_t st_count(const st_file *file) {
    return file->count;
}

const st_tensor *st_at(const st_file *file, size_t index) {
    return index < file->count ? &file->tensors[index] : NULL;
}

const st_tensor *st_find(const st_file *file, const char *name) {
    for (size_t i = 0; i < file->count; i++) {
        if (strcmp(file->tensors[i].name, name) == 0) return &file->tensors[i];
    }
    return NULL;
}

oh_status st_require(const st_file *file, const char *name, const st_tensor **tensor, oh_error *error) {
    *tensor = NULL;
    const st_tensor *const found = st_find(file, name);
    if (found == NULL) {
        return error_line(error, OH_BAD_DATA, file->name, "no tensor '%.100s' among its %zu", name, file->count);
    }
    if (found->dtype == ST_OPAQUE) {
        return error_line(error, OH_BAD_DATA, file->name,
                          "tensor '%.100s': dtype %s, expected BOOL, U8 to U64, I8 to I64, BF16, F16, F32 or F64", name,
                          found->dtype_name);
    }
    *tensor = found;
    return OH_OK;
}

const char *st_metadata(const st_file *file, const char *key) {
    return json_string_value(json_object_get(json_object_get(file->header, METADATA), key));
}

const char *st_file_name(const st_file *file) {
    return file->name;
}

file_stamp st_file_stamp(const st_file *file) {
    return file->map.stamp;
}

bool st_is_aligned(const st_tensor *tensor) {
    const size_t size = st_dtype_size(tensor->dtype);
    return size <= 1 || (uintptr_t)tensor->data % size == 0;
}
