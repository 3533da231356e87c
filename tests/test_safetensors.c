/* The reader accepts exactly the valid files and says what is wrong with the others. */
#define _XOPEN_SOURCE 700

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "safetensors.h"

/* A file image in a block of exactly its size, so that a sanitizer sees a read beyond it. */
typedef struct image {
    char *bytes;
    size_t size;
} image;

static image make_image(const char *header, size_t data_size) {
    const uint64_t length = strlen(header);
    image made = {.size = sizeof length + length + data_size};
    made.bytes = malloc(made.size);
    assert_non_null(made.bytes);
    memcpy(made.bytes, &length, sizeof length);
    memcpy(made.bytes + sizeof length, header, length);
    for (size_t i = 0; i < data_size; i++)
        made.bytes[sizeof length + length + i] = (char)i;
    return made;
}

/* Every part is there, and nothing is half set up. */
static void assert_refused(const void *bytes, size_t size, oh_status status, const char *const *parts) {
    st_file *file = (st_file *)(uintptr_t)1;
    oh_error error = {0};
    assert_int_equal(st_parse(&file, bytes, size, "planted.safetensors", &error), status);
    assert_null(file);
    assert_int_equal(error.status, status);
    assert_null(strchr(error.message, '\n'));
    assert_ptr_equal(strstr(error.message, "planted.safetensors: "), error.message);
    for (; *parts != NULL; parts++) {
        if (strstr(error.message, *parts) == NULL) fail_msg("'%s' not in '%s'", *parts, error.message);
    }
}

typedef struct planted {
    const char *header;
    size_t data_size;
    const char *parts[4]; /* of the message */
} planted;

static void assert_each_refused(const planted *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const image made = make_image(cases[i].header, cases[i].data_size);
        assert_refused(made.bytes, made.size, OH_BAD_DATA, cases[i].parts);
        free(made.bytes);
    }
}

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static void test_valid_file_gives_every_field(void **state) {
    (void)state;
    const image made = make_image("{\"b\":{\"shape\":[2,3],\"dtype\":\"BF16\",\"data_offsets\":[8,20]},"
                                  "\"__metadata__\":{\"format\":\"pt\",\"empty\":\"\"},"
                                  "\"a\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
                                  "\"none\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[8,8]}}   ",
                                  20);
    st_file *file;
    assert_int_equal(st_parse(&file, made.bytes, made.size, "good", NULL), OH_OK);
    assert_string_equal(st_file_name(file), "good");
    assert_int_equal(st_count(file), 3);
    assert_string_equal(st_at(file, 0)->name, "a");
    assert_string_equal(st_at(file, 1)->name, "none");
    assert_string_equal(st_at(file, 2)->name, "b");
    assert_null(st_at(file, 3));

    const st_tensor *const a = st_find(file, "a");
    assert_int_equal(a->dtype, ST_I64);
    assert_int_equal(a->rank, 0);
    assert_int_equal(a->elements, 1);
    assert_int_equal(a->bytes, 8);

    const st_tensor *b;
    assert_int_equal(st_require(file, "b", &b, NULL), OH_OK);
    assert_int_equal(b->dtype, ST_BF16);
    assert_string_equal(b->dtype_name, "BF16");
    assert_int_equal(b->rank, 2);
    assert_int_equal(b->shape[0], 2);
    assert_int_equal(b->shape[1], 3);
    assert_int_equal(b->elements, 6);
    assert_int_equal(b->bytes, 12);
    assert_int_equal(b->offset, 8);
    assert_int_equal(*(const char *)b->data, 8);

    const st_tensor *const none = st_find(file, "none");
    assert_int_equal(none->elements, 0);
    assert_int_equal(none->bytes, 0);
    assert_non_null(none->data);

    assert_string_equal(st_metadata(file, "format"), "pt");
    assert_string_equal(st_metadata(file, "empty"), "");
    assert_null(st_metadata(file, "absent"));
    assert_null(st_find(file, "__metadata__"));
    st_close(file);
    free(made.bytes);
}

static void test_every_dtype_has_its_size(void **state) {
    (void)state;
    static const struct {
        st_dtype dtype;
        const char *name;
        size_t size;
    } all[] = {
        {ST_BOOL, "BOOL", 1}, {ST_U8, "U8", 1},     {ST_I8, "I8", 1},   {ST_I16, "I16", 2}, {ST_U16, "U16", 2},
        {ST_F16, "F16", 2},   {ST_BF16, "BF16", 2}, {ST_I32, "I32", 4}, {ST_U32, "U32", 4}, {ST_F32, "F32", 4},
        {ST_I64, "I64", 8},   {ST_U64, "U64", 8},   {ST_F64, "F64", 8},
    };
    for (size_t i = 0; i < COUNT(all); i++) {
        char header[128];
        snprintf(header, sizeof header, "{\"x\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[0,%zu]}}",
                 all[i].name, 3 * all[i].size);
        const image made = make_image(header, 3 * all[i].size);
        st_file *file;
        assert_int_equal(st_parse(&file, made.bytes, made.size, "x", NULL), OH_OK);
        assert_int_equal(st_at(file, 0)->dtype, all[i].dtype);
        assert_int_equal(st_dtype_size(all[i].dtype), all[i].size);
        assert_string_equal(st_dtype_name(all[i].dtype), all[i].name);
        st_close(file);
        free(made.bytes);
    }
}

static void test_no_tensors_is_a_valid_file(void **state) {
    (void)state;
    const image made = make_image("{}", 0);
    st_file *file;
    assert_int_equal(st_parse(&file, made.bytes, made.size, "x", NULL), OH_OK);
    assert_int_equal(st_count(file), 0);
    assert_null(st_metadata(file, "format"));
    st_close(file);
    free(made.bytes);
}

static void test_unknown_dtype_opens_but_is_not_read(void **state) {
    (void)state;
    const image made = make_image("{\"x\":{\"dtype\":\"F8_E4M3\",\"shape\":[2],\"data_offsets\":[0,2]},"
                                  "\"y\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}",
                                  3);
    st_file *file;
    assert_int_equal(st_parse(&file, made.bytes, made.size, "quantised", NULL), OH_OK);
    assert_int_equal(st_find(file, "x")->dtype, ST_OPAQUE);
    assert_int_equal(st_find(file, "x")->elements, 2);

    const st_tensor *tensor = st_find(file, "y");
    oh_error error;
    assert_int_equal(st_require(file, "x", &tensor, &error), OH_BAD_DATA);
    assert_null(tensor);
    assert_string_equal(error.message,
                        "quantised: tensor 'x': dtype F8_E4M3, expected BOOL, U8 to U64, I8 to I64, BF16, "
                        "F16, F32 or F64");
    assert_int_equal(st_require(file, "z", &tensor, &error), OH_BAD_DATA);
    assert_string_equal(error.message, "quantised: no tensor 'z' among its 2");
    st_close(file);
    free(made.bytes);
}

static void test_alignment_is_told(void **state) {
    (void)state;
    const image made = make_image("{\"b\":{\"dtype\":\"BOOL\",\"shape\":[1],\"data_offsets\":[0,1]},"
                                  "\"f\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[1,5]}}",
                                  5);
    st_file *file;
    assert_int_equal(st_parse(&file, made.bytes, made.size, "x", NULL), OH_OK);
    const st_tensor *const f = st_find(file, "f");
    assert_int_equal(st_is_aligned(f), (uintptr_t)f->data % 4 == 0);
    assert_true(st_is_aligned(st_find(file, "b")));
    st_tensor moved = *f;
    moved.data = made.bytes + 4;
    assert_true(st_is_aligned(&moved));
    moved.data = made.bytes + 6;
    assert_false(st_is_aligned(&moved));
    st_close(file);
    free(made.bytes);
}

static void test_header_length_is_checked(void **state) {
    (void)state;
    static const struct {
        size_t size;
        uint64_t length;
        const char *part;
    } cases[] = {
        {0, 0, "0 bytes, expected at least 8"},
        {7, 0, "7 bytes, expected at least 8"},
        {8, 0, "header length 0, expected a JSON object"},
        {8, 1, "header length 1, but only 0 bytes follow"},
        {10, 3, "header length 3, but only 2 bytes follow (truncated file?)"},
        {10, 100000001, "header length 100000001, expected at most 100000000"},
        {10, 100000000, "header length 100000000, but only 2 bytes follow"},
        {10, UINT64_MAX, "header length 18446744073709551615, expected at most 100000000"},
        {10, UINT64_MAX - 7, "header length 18446744073709551608, expected at most 100000000"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char buffer[10] = "........{}";
        memcpy(buffer, &cases[i].length, 8);
        char *const exact = malloc(cases[i].size + 1);
        memcpy(exact, buffer, cases[i].size);
        assert_refused(exact, cases[i].size, OH_BAD_DATA, (const char *const[]){cases[i].part, NULL});
        free(exact);
    }
}

static void test_header_must_be_one_json_object(void **state) {
    (void)state;
    static const planted cases[] = {
        {" {}", 0, {"header begins with byte 0x20, expected '{'"}},
        {"[]", 0, {"header begins with byte 0x5b, expected '{'"}},
        {"{", 0, {"header isn't valid JSON"}},
        {"{}{}", 0, {"header isn't valid JSON", "end of file expected"}},
        {"{\"a\":1,}", 0, {"header isn't valid JSON"}},
        {"{\"\xff\":1}", 0, {"header isn't valid JSON", "unable to decode byte 0xff"}},
        {"{\"a\\u0000b\":1}", 0, {"header isn't valid JSON"}},
        {"{\"a\":{},\"a\":{}}", 0, {"header isn't valid JSON", "duplicate object key"}},
        {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 0, {"header isn't valid JSON", "duplicate object key"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[99999999999999999999],\"data_offsets\":[0,0]}}", 0, {"too big integer"}},
    };
    assert_each_refused(cases, COUNT(cases));
}

static void test_deep_nesting_is_refused(void **state) {
    (void)state;
    enum { DEPTH = 1000000 };
    char *const header = malloc(DEPTH + 6);
    memcpy(header, "{\"a\":", 5);
    memset(header + 5, '[', DEPTH);
    header[5 + DEPTH] = '\0';
    const image made = make_image(header, 0);
    assert_refused(made.bytes, made.size, OH_BAD_DATA, (const char *const[]){"maximum parsing depth reached", NULL});
    free(made.bytes);
    free(header);
}

static void test_metadata_holds_strings_only(void **state) {
    (void)state;
    static const planted cases[] = {
        {"{\"__metadata__\":[]}", 0, {"__metadata__ is an array, expected an object of strings"}},
        {"{\"__metadata__\":null}", 0, {"__metadata__ is null"}},
        {"{\"__metadata__\":{\"step\":3}}", 0, {"__metadata__ entry 'step' is an integer, expected a string"}},
        {"{\"__metadata__\":{\"a\":\"x\",\"deep\":{}}}", 0, {"entry 'deep' is an object, expected a string"}},
    };
    assert_each_refused(cases, COUNT(cases));
}

static void test_tensor_has_exactly_three_keys(void **state) {
    (void)state;
    static const planted cases[] = {
        {"{\"a\":3}", 0, {"tensor 'a' is an integer, expected an object with dtype, shape and data_offsets"}},
        {"{\"a\":{}}", 0, {"tensor 'a': no dtype"}},
        {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,0]}}", 0, {"tensor 'a': no shape"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0]}}", 0, {"tensor 'a': no data_offsets"}},
        {"{\"a\":{\"dtype\":8,\"shape\":[0],\"data_offsets\":[0,0]}}",
         0,
         {"tensor 'a': dtype is an integer, expected a string"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":0,\"data_offsets\":[0,0]}}",
         0,
         {"shape is an integer, expected an array of integers"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":true}}",
         0,
         {"data_offsets is a boolean, expected an array"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"strides\":[1]}}",
         0,
         {"tensor 'a': unexpected key 'strides', expected only dtype, shape and data_offsets"}},
    };
    assert_each_refused(cases, COUNT(cases));
}

static void test_malformed_dtype_is_refused(void **state) {
    (void)state;
    static const planted cases[] = {
        {"{\"a\":{\"dtype\":\"\",\"shape\":[0],\"data_offsets\":[0,0]}}",
         0,
         {"tensor 'a': dtype '', expected a name such as BF16"}},
        {"{\"a\":{\"dtype\":\"f32\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, {"dtype 'f32'"}},
        {"{\"a\":{\"dtype\":\"?\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, {"dtype '?'"}},
        {"{\"a\":{\"dtype\":\"F32 \",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, {"dtype 'F32 '"}},
        {"{\"a\":{\"dtype\":\"FFFFFFFFFFFFFFFFFFFFFFFFFFFFF\",\"shape\":[0],\"data_offsets\":[0,0]}}",
         0,
         {"dtype 'FFFFF"}},
    };
    assert_each_refused(cases, COUNT(cases));
}

static void test_shape_is_checked(void **state) {
    (void)state;
    static const planted cases[] = {
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4,-1],\"data_offsets\":[0,4]}}",
         4,
         {"tensor 'a': shape[1] is -1, expected a non-negative integer"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4.0],\"data_offsets\":[0,4]}}",
         4,
         {"shape[0] is a real number, expected a non-negative integer"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[\"4\"],\"data_offsets\":[0,4]}}", 4, {"shape[0] is a string"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[true],\"data_offsets\":[0,1]}}", 1, {"shape[0] is a boolean"}},
        /* 2^32 * 2^32 = 2^64 wraps to 0, which an empty span would match. */
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}",
         0,
         {"tensor 'a': the product of its shape and dtype U8 overflows 64 bits"}},
        {"{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}",
         0,
         {"overflows 64 bits"}},
        /* The 0 doesn't hide it: a caller may multiply some of the dimensions. */
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0,4294967296,4294967296],\"data_offsets\":[0,0]}}",
         0,
         {"overflows 64 bits"}},
        {"{\"a\":{\"dtype\":\"F8_E5M2\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}",
         0,
         {"overflows 64 bits"}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,12]}}",
         12,
         {"tensor 'a': data_offsets span 12 bytes, expected 16 (4 elements of F32)"}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,0]}}",
         0,
         {"data_offsets span 0 bytes, expected 4 (1 elements of F32)"}},
    };
    assert_each_refused(cases, COUNT(cases));
}

static void test_offsets_are_checked(void **state) {
    (void)state;
    static const planted cases[] = {
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0]}}",
         4,
         {"tensor 'a': data_offsets must be two integers, [begin, end]"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[]}}", 4, {"data_offsets must be two integers"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4,4]}}", 4, {"data_offsets must be two integers"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4.0]}}", 4, {"data_offsets must be two integers"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[null,4]}}",
         4,
         {"data_offsets must be two integers"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[-4,0]}}",
         4,
         {"data_offsets [-4, 0], expected 0 <= begin <= end"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,0]}}",
         4,
         {"data_offsets [4, 0], expected 0 <= begin <= end"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
         3,
         {"data_offsets [0, 4] end beyond the 3 bytes of data (truncated file?)"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[9223372036854775803,9223372036854775807]}}",
         4,
         {"end beyond the 4 bytes of data"}},
    };
    assert_each_refused(cases, COUNT(cases));
}

static void test_tensors_tile_the_data(void **state) {
    (void)state;
    static const planted cases[] = {
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_"
         "offsets\":[3,7]}}",
         7,
         {"tensor 'b' begins at byte 3 of the data, inside tensor 'a', which ends at 4"}},
        {"{\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_"
         "offsets\":[0,4]}}",
         4,
         {"tensor 'b' begins at byte 0 of the data, inside tensor 'a', which ends at 4"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"e\":{\"dtype\":\"U8\",\"shape\":[0],\"data_"
         "offsets\":[2,2]}}",
         4,
         {"tensor 'e' begins at byte 2 of the data, inside tensor 'a'"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_"
         "offsets\":[6,7]}}",
         7,
         {"tensor 'b' begins at byte 6 of the data, expected 4: a hole of 2 bytes"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[1,5]}}",
         5,
         {"tensor 'a' begins at byte 1 of the data, expected 0: a hole of 1 bytes"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
         6,
         {"2 trailing bytes: the data has 6 bytes, expected 4 (where the last tensor ends)"}},
        {"{}", 1, {"1 trailing bytes"}},
    };
    assert_each_refused(cases, COUNT(cases));
}

static void test_hostile_names_stay_on_one_printable_line(void **state) {
    (void)state;
    char *const header = malloc(3000);
    strcpy(header, "{\"\\u001b[2J\\n\\u0085");
    for (int i = 0; i < 600; i++)
        strcat(header, "\xe2\x82\xac"); /* a precision may cut the euro sign in two */
    strcat(header, "\":{}}");
    const image made = make_image(header, 0);
    st_file *file;
    oh_error error;
    assert_int_equal(st_parse(&file, made.bytes, made.size, "x", &error), OH_BAD_DATA);
    assert_ptr_equal(strstr(error.message, "x: tensor '?[2J?"), error.message);
    assert_non_null(strstr(error.message, ": no dtype"));
    for (const char *at = error.message; *at != '\0'; at++)
        assert_false((unsigned char)*at < 0x20 || *at == 0x7f);

    /* A long path keeps its end, and leaves room for the reason. */
    char path[2000];
    memset(path, 'p', sizeof path);
    strcpy(path + sizeof path - sizeof "END", "END");
    assert_int_equal(st_parse(&file, made.bytes, made.size, path, &error), OH_BAD_DATA);
    assert_ptr_equal(strstr(error.message, "...ppp"), error.message);
    assert_non_null(strstr(error.message, "END: tensor"));
    assert_non_null(strstr(error.message, "no dtype"));
    free(made.bytes);
    free(header);
}

/* --- files --- */

static char folder[] = "/tmp/test_safetensors.XXXXXX";

static const char *in_folder(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_file(const char *path, const image *made) {
    FILE *const out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(made->bytes, 1, made->size, out), made->size);
    assert_int_equal(fclose(out), 0);
}

static void assert_open_fails(const char *path, oh_status status, const char *part) {
    st_file *file = (st_file *)(uintptr_t)1;
    oh_error error;
    assert_int_equal(st_open(&file, path, &error), status);
    assert_null(file);
    assert_ptr_equal(strstr(error.message, path), error.message);
    if (strstr(error.message, part) == NULL) fail_msg("'%s' not in '%s'", part, error.message);
}

static int count_descriptors(void) {
    int open_now = 0;
    for (int fd = 0; fd < 256; fd++)
        open_now += fcntl(fd, F_GETFD) >= 0;
    return open_now;
}

/* Whether the process still maps it; false where the system doesn't say. */
static bool is_mapped(const char *path) {
    char line[1024];
    bool found = false;
    FILE *const maps = fopen("/proc/self/maps", "r");
    if (maps == NULL) return false;
    while (fgets(line, sizeof line, maps) != NULL)
        found = found || strstr(line, path) != NULL;
    fclose(maps);
    return found;
}

static void test_open_maps_the_file(void **state) {
    (void)state;
    const image made = make_image("{\"a\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]}}", 5);
    const char *const path = in_folder("good.safetensors");
    write_file(path, &made);
    const int before = count_descriptors();
    st_file *file;
    assert_int_equal(st_open(&file, path, NULL), OH_OK);
    assert_int_equal(count_descriptors(), before);
    assert_memory_equal(st_find(file, "a")->data, "\0\1\2\3\4", 5);
    st_close(file);
    assert_false(is_mapped(path));
    free(made.bytes);
}

static void test_every_truncation_is_refused(void **state) {
    (void)state;
    const image made = make_image("{\"a\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]}}", 5);
    for (size_t size = 0; size < made.size; size++) {
        char *const exact = malloc(size + 1);
        memcpy(exact, made.bytes, size);
        st_file *file;
        assert_int_equal(st_parse(&file, exact, size, "x", NULL), OH_BAD_DATA);
        free(exact);
    }
    const char *const path = in_folder("short.safetensors");
    write_file(path, &(image){made.bytes, made.size - 1});
    assert_open_fails(path, OH_BAD_DATA, "truncated file?");
    assert_false(is_mapped(path));
    free(made.bytes);
}

static void test_what_is_no_regular_file_is_refused(void **state) {
    (void)state;
    const int before = count_descriptors();
    assert_open_fails(in_folder("absent"), OH_IO, "can't open: No such file or directory");
    assert_open_fails(folder, OH_IO, "is a directory, expected a regular file");
    assert_open_fails("/dev/null", OH_IO, "is a device, expected a regular file");
    assert_int_equal(mkfifo(in_folder("fifo"), 0600), 0);
    assert_open_fails(in_folder("fifo"), OH_IO, "is a FIFO, expected a regular file"); /* and doesn't hang */
    write_file(in_folder("empty"), &(image){"", 0});
    assert_open_fails(in_folder("empty"), OH_BAD_DATA, "0 bytes, expected at least 8");
    assert_int_equal(count_descriptors(), before);
}

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state) {
    (void)state;
    static const char *const names[] = {"good.safetensors", "short.safetensors", "fifo", "empty"};
    for (size_t i = 0; i < COUNT(names); i++)
        unlink(in_folder(names[i]));
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_valid_file_gives_every_field),
        cmocka_unit_test(test_every_dtype_has_its_size),
        cmocka_unit_test(test_no_tensors_is_a_valid_file),
        cmocka_unit_test(test_unknown_dtype_opens_but_is_not_read),
        cmocka_unit_test(test_alignment_is_told),
        cmocka_unit_test(test_header_length_is_checked),
        cmocka_unit_test(test_header_must_be_one_json_object),
        cmocka_unit_test(test_deep_nesting_is_refused),
        cmocka_unit_test(test_metadata_holds_strings_only),
        cmocka_unit_test(test_tensor_has_exactly_three_keys),
        cmocka_unit_test(test_malformed_dtype_is_refused),
        cmocka_unit_test(test_shape_is_checked),
        cmocka_unit_test(test_offsets_are_checked),
        cmocka_unit_test(test_tensors_tile_the_data),
        cmocka_unit_test(test_hostile_names_stay_on_one_printable_line),
        cmocka_unit_test(test_open_maps_the_file),
        cmocka_unit_test(test_every_truncation_is_refused),
        cmocka_unit_test(test_what_is_no_regular_file_is_refused),
    };
    return cmocka_run_group_tests_name("safetensors", tests, make_folder, remove_folder);
}
