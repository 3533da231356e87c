/* --lm-head finds the one weight that is meant, or says what the choice is. */
#define _XOPEN_SOURCE 700

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint.h"
#include "safetensors_write.h"

static char folder[] = "/tmp/test_checkpoint.XXXXXX";

/* Rotating buffers: a check names a file and a message at once. */
static const char *in_folder(const char *name) {
    static char paths[4][512];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(paths[turn], sizeof paths[turn], "%s/%s", folder, name);
    return paths[turn];
}

/* A file of [2, 3] BF16 tensors; the NULL ends the names. */
static void make_file(const char *path, const char *const *names) {
    static const int64_t shape[] = {2, 3};
    static const uint16_t zeros[6] = {0};
    st_declaration declared[16] = {{0}};
    size_t count = 0;
    for (; names[count] != NULL; count++)
        declared[count] = (st_declaration){names[count], ST_BF16, 2, shape};
    st_writer *writer;
    assert_int_equal(st_writer_begin(&writer, path, declared, count, NULL, 0, NULL), OH_OK);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(st_writer_write(writer, names[i], zeros, sizeof zeros, NULL), OH_OK);
    }
    assert_int_equal(st_writer_finish(writer, NULL), OH_OK);
}

static void put(const char *path, const char *text) {
    FILE *const out = fopen(path, "w");
    assert_non_null(out);
    fputs(text, out);
    assert_int_equal(fclose(out), 0);
}

#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

static void assert_finds(const char *spec, const char *file, const char *tensor, bool tied) {
    ckpt_head head;
    oh_error error;
    if (ckpt_open(&head, spec, &error) != OH_OK) fail_msg("%s", error.message);
    assert_string_equal(st_file_name(head.file), file);
    assert_string_equal(head.tensor->name, tensor);
    assert_int_equal(head.tied, tied);
    ckpt_close(&head);
    assert_null(head.file);
    ckpt_close(&head);
}

static void assert_fails(const char *spec, oh_status status, const char *part) {
    ckpt_head head = {.tied = true};
    oh_error error = {0};
    assert_int_equal(ckpt_open(&head, spec, &error), status);
    assert_int_equal(error.status, status);
    assert_null(head.file);
    assert_null(head.tensor);
    assert_false(head.tied);
    if (strstr(error.message, part) == NULL) fail_msg("'%s' not in '%s'", part, error.message);
}

static void test_each_known_name_is_found(void **state) {
    (void)state;
    static const struct {
        const char *name;
        bool tied;
    } known[] = {
        {"lm_head", false},
        {"lm_head.weight", false},
        {"model.embed_tokens.weight", true},
        {"embed_tokens.weight", true},
        {"transformer.wte.weight", true},
        {"model.language_model.embed_tokens.weight", true},
    };
    const char *const path = in_folder("known.safetensors");
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        make_file(path, NAMES("model.norm.weight", known[i].name, "model.layers.0.mlp.weight"));
        assert_finds(path, path, known[i].name, known[i].tied);
    }
}

static void test_head_wins_over_tied_embedding(void **state) {
    (void)state;
    const char *const path = in_folder("both.safetensors");
    make_file(path, NAMES("model.embed_tokens.weight", "lm_head.weight"));
    assert_finds(path, path, "lm_head.weight", false);
}

static void test_two_of_a_kind_are_ambiguous(void **state) {
    (void)state;
    const char *const path = in_folder("two.safetensors");
    make_file(path, NAMES("lm_head.weight", "lm_head"));
    assert_fails(path, OH_BAD_DATA,
                 "holds both 'lm_head' and 'lm_head.weight': say which one is the lm_head, as FILE:TENSOR");
    assert_finds(in_folder("two.safetensors:lm_head.weight"), path, "lm_head.weight", false);
    make_file(path, NAMES("transformer.wte.weight", "model.embed_tokens.weight"));
    assert_fails(path, OH_BAD_DATA, "holds both 'model.embed_tokens.weight' and 'transformer.wte.weight'");
}

static void test_explicit_name_is_taken(void **state) {
    (void)state;
    const char *const path = in_folder("explicit.safetensors");
    make_file(path, NAMES("lm_head.weight", "other:head", "model.embed_tokens.weight"));
    assert_finds(in_folder("explicit.safetensors:other:head"), path, "other:head", false);
    assert_finds(in_folder("explicit.safetensors:model.embed_tokens.weight"), path, "model.embed_tokens.weight", true);
    assert_fails(in_folder("explicit.safetensors:"), OH_BAD_DATA, "explicit.safetensors: no tensor name behind ':'");
}

static void test_missing_tensor_lists_candidates(void **state) {
    (void)state;
    const char *const path = in_folder("missing.safetensors");
    make_file(path, NAMES("norm", "draft.head", "a", "b", "c", "d", "vision.embed"));
    assert_fails(
        path, OH_BAD_DATA,
        "missing.safetensors: no lm_head among its 7 tensors: say which one, as FILE:TENSOR; it has 'draft.head', "
        "'vision.embed', 'norm', 'a', 'b'");
    assert_fails(in_folder("missing.safetensors:lm_haed"), OH_BAD_DATA,
                 "missing.safetensors: no tensor 'lm_haed' among its 7; it has 'draft.head', 'vision.embed'");
    make_file(path, NAMES(NULL));
    assert_fails(path, OH_BAD_DATA,
                 "no lm_head among its 0 tensors: say which one, as FILE:TENSOR; it has no tensor at all");
}

static void test_colon_in_a_path_that_exists_belongs_to_the_path(void **state) {
    (void)state;
    make_file(in_folder("a.safetensors"), NAMES("lm_head", "b"));
    make_file(in_folder("a.safetensors:b"), NAMES("lm_head.weight", "x"));
    assert_finds(in_folder("a.safetensors:b"), in_folder("a.safetensors:b"), "lm_head.weight", false);
    assert_finds(in_folder("a.safetensors:b:x"), in_folder("a.safetensors:b"), "x", false);
    assert_finds(in_folder("a.safetensors"), in_folder("a.safetensors"), "lm_head", false);
}

static void test_missing_file_is_reported_whole(void **state) {
    (void)state;
    assert_fails(in_folder("absent:x"), OH_IO, "absent:x: no such file or folder");
    assert_fails("", OH_IO, "expected FILE[:TENSOR]");
    assert_fails(":x", OH_IO, ":x: no such file or folder");
    assert_fails("/dev/null", OH_IO, "/dev/null: is a device, expected a regular file");
}

static void test_only_a_float_matrix_is_a_weight(void **state) {
    (void)state;
    static const int64_t cube[] = {2, 1, 3};
    static const int64_t flat[] = {6};
    static const int64_t none[] = {0, 6};
    static const int64_t matrix[] = {2, 3};
    static const struct {
        st_declaration tensor;
        const char *part;
    } cases[] = {
        {{"lm_head", ST_F32, 3, cube}, "tensor 'lm_head' has 3 dimensions, expected 2: [vocabulary, hidden]"},
        {{"lm_head", ST_F16, 1, flat}, "tensor 'lm_head' has 1 dimensions, expected 2"},
        {{"lm_head", ST_F16, 2, none}, "tensor 'lm_head' is empty: [0, 6]"},
        {{"lm_head", ST_I8, 2, matrix}, "tensor 'lm_head': dtype I8, expected BF16, F16 or F32"},
        {{"lm_head", ST_F64, 2, matrix}, "dtype F64, expected BF16, F16 or F32"},
    };
    const char *const path = in_folder("shape.safetensors");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static const char zeros[64] = {0};
        int64_t elements;
        int64_t bytes;
        st_writer *writer;
        assert_true(
            st_shape_size(cases[i].tensor.shape, cases[i].tensor.rank, cases[i].tensor.dtype, &elements, &bytes));
        assert_int_equal(st_writer_begin(&writer, path, &cases[i].tensor, 1, NULL, 0, NULL), OH_OK);
        assert_int_equal(st_writer_write(writer, "lm_head", zeros, (size_t)bytes, NULL), OH_OK);
        assert_int_equal(st_writer_finish(writer, NULL), OH_OK);
        assert_fails(path, OH_BAD_DATA, cases[i].part);
    }
}

static void test_folder_prefers_its_index(void **state) {
    (void)state;
    const char *const checkpoint = in_folder("checkpoint");
    assert_int_equal(mkdir(checkpoint, 0700), 0);
    assert_fails(checkpoint, OH_IO, "a folder with neither model.safetensors.index.json nor model.safetensors");

    make_file(in_folder("checkpoint/model.safetensors"), NAMES("lm_head.weight"));
    assert_finds(checkpoint, in_folder("checkpoint/model.safetensors"), "lm_head.weight", false);
    assert_finds(in_folder("checkpoint/"), in_folder("checkpoint/model.safetensors"), "lm_head.weight", false);
    assert_finds(in_folder("checkpoint:lm_head.weight"), in_folder("checkpoint/model.safetensors"), "lm_head.weight",
                 false);

    make_file(in_folder("checkpoint/model-2-of-2.safetensors"), NAMES("lm_head.weight", "mtp.head"));
    put(in_folder("checkpoint/model.safetensors.index.json"),
        "{\"metadata\":{\"total_size\":24},\"weight_map\":{\"model.embed_tokens.weight\":\"model-1-of-2.safetensors\","
        "\"lm_head.weight\":\"model-2-of-2.safetensors\",\"mtp.head\":\"model-2-of-2.safetensors\"}}");
    const char *const shard = in_folder("checkpoint/model-2-of-2.safetensors");
    assert_finds(checkpoint, shard, "lm_head.weight", false);
    assert_finds(in_folder("checkpoint/model.safetensors.index.json"), shard, "lm_head.weight", false);
    assert_finds(in_folder("checkpoint/model.safetensors.index.json:mtp.head"), shard, "mtp.head", false);

    /* A shard that isn't there, or that doesn't hold what the index says. */
    assert_fails(in_folder("checkpoint:model.embed_tokens.weight"), OH_IO,
                 "checkpoint/model-1-of-2.safetensors: can't open");
    make_file(in_folder("checkpoint/model-1-of-2.safetensors"), NAMES("x"));
    assert_fails(in_folder("checkpoint:model.embed_tokens.weight"), OH_BAD_DATA,
                 "model-1-of-2.safetensors: no tensor 'model.embed_tokens.weight', though the index places it here");
    assert_fails(in_folder("checkpoint:x"), OH_BAD_DATA, "index.json: no tensor 'x' among its 3; it has");
}

static void test_index_beside_the_working_folder(void **state) {
    (void)state;
    char before[4096];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(folder), 0);
    make_file("here.safetensors", NAMES("lm_head"));
    put("here.index.json", "{\"weight_map\":{\"lm_head\":\"here.safetensors\"}}");
    assert_finds("here.index.json", "here.safetensors", "lm_head", false);
    assert_int_equal(chdir(before), 0);
}

static void test_linked_shards_and_index_are_followed(void **state) {
    (void)state;
    assert_int_equal(mkdir(in_folder("blobs"), 0700), 0);
    assert_int_equal(mkdir(in_folder("snapshot"), 0700), 0);
    make_file(in_folder("blobs/1234"), NAMES("lm_head.weight"));
    put(in_folder("blobs/5678"), "{\"weight_map\":{\"lm_head.weight\":\"model-1-of-1.safetensors\"}}");
    assert_int_equal(symlink("../blobs/1234", in_folder("snapshot/model-1-of-1.safetensors")), 0);
    assert_int_equal(symlink("../blobs/5678", in_folder("snapshot/model.safetensors.index.json")), 0);
    assert_finds(in_folder("snapshot"), in_folder("snapshot/model-1-of-1.safetensors"), "lm_head.weight", false);
}

static void test_bad_index_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *text;
        const char *part;
    } cases[] = {
        {"", "bad.index.json: isn't valid JSON at line 1"},
        {"{\"weight_map\":{}", "isn't valid JSON"},
        {"[]", "no weight_map object, expected {\"weight_map\": {TENSOR: SHARD}}"},
        {"3", "isn't valid JSON"},
        {"{}", "no weight_map object"},
        {"{\"weight_map\":[]}", "no weight_map object"},
        {"{\"weight_map\":{}}", "no lm_head among its 0 tensors"},
        {"{\"weight_map\":{\"lm_head\":3}}", "tensor 'lm_head': its shard isn't a string"},
        {"{\"weight_map\":{\"lm_head\":\"a\",\"lm_head\":\"b\"}}", "duplicate object key"},
        {"{\"weight_map\":{\"lm_head\":\"\"}}",
         "tensor 'lm_head': shard '', expected the name of a file beside the index"},
        {"{\"weight_map\":{\"lm_head\":\"..\"}}", "shard '..', expected the name of a file"},
        {"{\"weight_map\":{\"lm_head\":\".\"}}", "shard '.', expected the name of a file"},
        {"{\"weight_map\":{\"lm_head\":\"../secret.safetensors\"}}",
         "shard '../secret.safetensors', expected the name"},
        {"{\"weight_map\":{\"lm_head\":\"/etc/passwd\"}}", "shard '/etc/passwd', expected the name of a file"},
        {"{\"weight_map\":{\"lm_head\":\"sub/model.safetensors\"}}", "shard 'sub/model.safetensors', expected"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put(in_folder("bad.index.json"), cases[i].text);
        assert_fails(in_folder("bad.index.json"), OH_BAD_DATA, cases[i].part);
    }
}

static void test_an_embedding_is_no_head_where_the_config_says_so(void **state) {
    (void)state;
    static const struct {
        const char *config;
        bool tied;
    } cases[] = {
        {"{\"tie_word_embeddings\":false}", false},
        {"{\"tie_word_embeddings\":true}", true},
        {"{\"tie_word_embeddings\":null,\"hidden_size\":3}", true},
        {"{\"tie_word_embeddings\":true,\"text_config\":{\"tie_word_embeddings\":false}}", false},
        {"{\"tie_word_embeddings\":false,\"text_config\":{\"tie_word_embeddings\":true}}", true},
        {"{\"tie_word_embeddings\":false,\"text_config\":{\"hidden_size\":3}}", false},
        {"[false]", true},
        {"{\"tie_word_embeddings\":false,\"time_step_limit\":[0.0,Infinity]}", true},
    };
    const char *const single = in_folder("config/model.safetensors"), *const index = in_folder("config/two.index.json");
    char *const specs[] = {strdup(in_folder("config")), strdup(single), strdup(index)};
    assert_int_equal(mkdir(in_folder("config"), 0700), 0);
    make_file(single, NAMES("model.embed_tokens.weight", "model.norm.weight"));
    put(index, "{\"weight_map\":{\"model.embed_tokens.weight\":\"model.safetensors\"}}");
    for (int i = 0; i < 3; i++) {
        assert_finds(specs[i], in_folder("config/model.safetensors"), "model.embed_tokens.weight", true);
        for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
            put(in_folder("config/config.json"), cases[k].config);
            if (cases[k].tied)
                assert_finds(specs[i], in_folder("config/model.safetensors"), "model.embed_tokens.weight", true);
            else
                assert_fails(specs[i], OH_BAD_DATA,
                             "no lm_head, and tie_word_embeddings is false in config.json beside it, expected the file "
                             "that has it (or FILE:model.embed_tokens.weight, where the embedding is meant)");
        }
        put(in_folder("config/config.json"), cases[0].config);
        char asked[600];
        snprintf(asked, sizeof asked, "%s:model.embed_tokens.weight", specs[i]);
        assert_finds(asked, in_folder("config/model.safetensors"), "model.embed_tokens.weight", true);
        make_file(in_folder("config/head.safetensors"), NAMES("lm_head.weight", "model.embed_tokens.weight"));
        assert_finds(in_folder("config/head.safetensors"), in_folder("config/head.safetensors"), "lm_head.weight",
                     false);
        assert_int_equal(remove(in_folder("config/config.json")), 0);
        free(specs[i]);
    }
}

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *at) {
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

static int remove_folder(void **state) {
    (void)state;
    return nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_known_name_is_found),
        cmocka_unit_test(test_head_wins_over_tied_embedding),
        cmocka_unit_test(test_two_of_a_kind_are_ambiguous),
        cmocka_unit_test(test_explicit_name_is_taken),
        cmocka_unit_test(test_missing_tensor_lists_candidates),
        cmocka_unit_test(test_colon_in_a_path_that_exists_belongs_to_the_path),
        cmocka_unit_test(test_missing_file_is_reported_whole),
        cmocka_unit_test(test_only_a_float_matrix_is_a_weight),
        cmocka_unit_test(test_folder_prefers_its_index),
        cmocka_unit_test(test_index_beside_the_working_folder),
        cmocka_unit_test(test_linked_shards_and_index_are_followed),
        cmocka_unit_test(test_bad_index_is_refused),
        cmocka_unit_test(test_an_embedding_is_no_head_where_the_config_says_so),
    };
    return cmocka_run_group_tests_name("checkpoint", tests, make_folder, remove_folder);
}
