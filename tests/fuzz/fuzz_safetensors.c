/* libFuzzer target: any bytes either are refused with a printable line or give tensors that can be read to their ends.
 *
 * cmake --preset fuzz && cmake --build --preset fuzz
 * build/fuzz/bin/fuzz_safetensors -dict=tests/fuzz/safetensors.dict -max_total_time=120 FOLDER tests/fuzz/corpus/safetensors
 */
#include "safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

extern volatile unsigned sink; /* keeps the compiler from dropping the reads */
volatile unsigned sink;

static void require(bool promise) {
    if (!promise) abort();
}

/* The bytes under the tensors, summed so that a sanitizer sees every read. */
static unsigned read_tensors(const st_file *file) {
    unsigned sum = 0;
    size_t end = 0;
    for (size_t i = 0; i < st_count(file); i++) {
        const st_tensor *const tensor = st_at(file, i);
        int64_t elements;
        int64_t expected;
        require(st_find(file, tensor->name) != NULL);
        require(st_shape_size(tensor->shape, tensor->rank, tensor->dtype, &elements, &expected));
        require(elements == tensor->elements);
        require(tensor->dtype == ST_OPAQUE || (uint64_t)expected == tensor->bytes);
        require(tensor->offset == end);
        end += tensor->bytes;

        const st_tensor *required;
        const oh_status status = st_require(file, tensor->name, &required, NULL);
        require((status == OH_OK) == (tensor->dtype != ST_OPAQUE));
        for (size_t at = 0; at < tensor->bytes; at++)
            sum += ((const uint8_t *)tensor->data)[at];
        sum += st_is_aligned(tensor) + (unsigned)strlen(tensor->dtype_name);
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    st_file *file;
    oh_error error = {OH_OK, ""};
    const oh_status status = st_parse(&file, bytes, size, "fuzz", &error);
    if (status != OH_OK) {
        require(file == NULL && error.status == status);
        require(strncmp(error.message, "fuzz: ", 6) == 0);
        for (const char *at = error.message; *at != '\0'; at++)
            require((unsigned char)*at >= 0x20 && *at != 0x7f);
        return 0;
    }
    const char *const format = st_metadata(file, "format");
    sink = read_tensors(file) + (format == NULL ? 0 : (unsigned)strlen(format));
    st_close(file);
    return 0;
}
