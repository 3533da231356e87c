#define _XOPEN_SOURCE 700

#include "checkpoint.h"

#include "error_line.h"
#include "json_text.h"
#include "mapped_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *const head_names[] = {"lm_head", "lm_head.weight"};
static const char *const tied_names[] = {
    "model.embed_tokens.weight",
    "embed_tokens.weight",
    "transformer.wte.weight",
    "model.language_model.embed_tokens.weight",
};

enum {
    HEAD_NAMES = sizeof head_names / sizeof head_names[0],
    TIED_NAMES = sizeof tied_names / sizeof tied_names[0],
    LISTED = 5,           /* names that an error shows */
    JSON_LIMIT = 1 << 28, /* bytes, far above a line a tensor */
};

/* The tensor names of a file or of an index. The strings belong to it. */
typedef struct name_list {
    const char **names; /* [count] */
    size_t count;
} name_list;

static bool has_name(const name_list *list, const char *name) {
    for (size_t i = 0; i < list->count; i++) {
        if (strcmp(list->names[i], name) == 0) return true;
    }
    return false;
}

static bool looks_like_head(const char *name) {
    return strstr(name, "head") != NULL || strstr(name, "embed") != NULL || strstr(name, "wte") != NULL;
}

/* Appends ", 'NAME'" unless it no longer fits, which a list in an error line can bear. */
static void append_name(char *text, size_t size, const char *name) {
    const size_t used = strlen(text);
    char quoted[72];
    snprintf(quoted, sizeof quoted, "%s'%.60s'", used == 0 ? "" : ", ", name);
    if (used + strlen(quoted) < size) memcpy(text + used, quoted, strlen(quoted) + 1);
}

/* The few names that the user most likely means: those that look like a head or embedding, else the first ones. */
static void list_candidates(const name_list *list, char *text, size_t size) {
    text[0] = '\0';
    int listed = 0;
    for (int likely = 1; likely >= 0; likely--) {
        for (size_t i = 0; i < list->count && listed < LISTED; i++) {
            if (looks_like_head(list->names[i]) != likely) continue;
            append_name(text, size, list->names[i]);
            listed++;
        }
    }
    if (listed == 0) snprintf(text, size, "no tensor at all");
}

/* The only one of `wanted` that the list has: NULL with OH_OK when there is none. */
static oh_status only_one_of(const name_list *list, const char *path, const char *const *wanted, int count,
                             const char **name, oh_error *error) {
    *name = NULL;
    for (int i = 0; i < count; i++) {
        if (!has_name(list, wanted[i])) continue;
        if (*name != NULL) {
            return error_line(error, OH_BAD_DATA, path,
                              "holds both '%s' and '%s': say which one is the lm_head, as FILE:TENSOR", *name,
                              wanted[i]);
        }
        *name = wanted[i];
    }
    return OH_OK;
}

/* "FOLDER/name"; the folder is the first `length` bytes of `folder`. NULL when memory is out. */
static char *join(const char *folder, size_t length, const char *name) {
    const bool slash = length > 0 && folder[length - 1] != '/';
    const size_t name_size = strlen(name) + 1;
    char *const path = malloc(length + 1 + name_size);
    if (path == NULL) return NULL;
    memcpy(path, folder, length);
    if (slash) path[length] = '/';
    memcpy(path + length + slash, name, name_size);
    return path;
}

static oh_status load_json(json_t **root, const char *path, oh_error *error) {
    *root = NULL;
    mapped_file file;
    oh_status status = mapped_file_open(&file, path, error);
    if (status != OH_OK) return status;

    json_error_t parse;
    if (file.size > JSON_LIMIT) {
        status = error_line(error, OH_BAD_DATA, path, "%zu bytes, expected JSON of at most %d", file.size, JSON_LIMIT);
    } else {
        *root = json_parse(file.bytes, file.size, JSON_REJECT_DUPLICATES, &parse);
        if (*root == NULL && json_error_code(&parse) == json_error_out_of_memory) {
            status = error_line(error, OH_OUT_OF_MEMORY, path, "out of memory");
        } else if (*root == NULL) {
            status = error_line(error, OH_BAD_DATA, path, "isn't valid JSON at line %d: %s", parse.line, parse.text);
        }
    }
    mapped_file_close(&file);
    return status;
}

/* Whether something is there, even if it can't be used: opening it then gives the better error. */
static bool exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 || (errno != ENOENT && errno != ENOTDIR && errno != ENAMETOOLONG);
}

/* The folder's part of a path, in bytes. */
static size_t folder_length(const char *path) {
    const char *const slash = strrchr(path, '/');
    return slash == NULL ? 0 : (size_t)(slash + 1 - path);
}

/* -1: not said. Of a model of several modalities the text's part decides. */
static int says_tied(const json_t *config) {
    const char *const key = "tie_word_embeddings";
    const json_t *const of_text = json_object_get(json_object_get(config, "text_config"), key);
    const json_t *const word = json_is_boolean(of_text) ? of_text : json_object_get(config, key);
    return json_is_boolean(word) ? json_is_true(word) : -1;
}

/* An embedding mustn't stand in for a head that the model has, and whose file is missing here. A config.json that is no
 * JSON (some write Infinity into it) says nothing. */
static oh_status check_tied(const char *path, const char *embedding, oh_error *error) {
    char *const config_path = join(path, folder_length(path), "config.json");
    if (config_path == NULL) return error_line(error, OH_OUT_OF_MEMORY, path, "out of memory");
    json_t *config = NULL;
    oh_status status = exists(config_path) ? load_json(&config, config_path, error) : OH_OK;
    if (status == OH_BAD_DATA) status = OH_OK;
    if (status == OH_OK && says_tied(config) == 0)
        status = error_line(error, OH_BAD_DATA, path,
                            "no lm_head, and tie_word_embeddings is false in config.json beside it, expected the file "
                            "that has it (or FILE:%s, where the embedding is meant)",
                            embedding);
    json_decref(config);
    free(config_path);
    return status;
}

static oh_status choose(const name_list *list, const char *path, const char *asked, const char **name, bool *tied,
                        oh_error *error) {
    char candidates[240];
    *tied = false;
    if (asked != NULL) {
        if (has_name(list, asked)) {
            *name = asked;
            for (int i = 0; i < TIED_NAMES; i++)
                *tied = *tied || strcmp(asked, tied_names[i]) == 0;
            return OH_OK;
        }
        list_candidates(list, candidates, sizeof candidates);
        return error_line(error, OH_BAD_DATA, path, "no tensor '%.80s' among its %zu; it has %s", asked, list->count,
                          candidates);
    }
    oh_status status = only_one_of(list, path, head_names, HEAD_NAMES, name, error);
    if (status != OH_OK || *name != NULL) return status;

    status = only_one_of(list, path, tied_names, TIED_NAMES, name, error);
    *tied = status == OH_OK && *name != NULL;
    if (*tied) return check_tied(path, *name, error);
    if (status != OH_OK) return status;

    list_candidates(list, candidates, sizeof candidates);
    return error_line(error, OH_BAD_DATA, path,
                      "no lm_head among its %zu tensors: say which one, as FILE:TENSOR; it has %s", list->count,
                      candidates);
}

static oh_status check_weight(const ckpt_head *head, oh_error *error) {
    const st_tensor *const tensor = head->tensor;
    const char *const path = st_file_name(head->file);
    if (tensor->rank != 2) {
        return error_line(error, OH_BAD_DATA, path,
                          "tensor '%.100s' has %zu dimensions, expected 2: [vocabulary, hidden]", tensor->name,
                          tensor->rank);
    }
    if (tensor->elements == 0) {
        return error_line(error, OH_BAD_DATA, path,
                          "tensor '%.100s' is empty: [%" PRId64 ", %" PRId64 "], expected [vocabulary, hidden]",
                          tensor->name, tensor->shape[0], tensor->shape[1]);
    }
    if (tensor->dtype != ST_F32 && tensor->dtype != ST_F16 && tensor->dtype != ST_BF16) {
        return error_line(error, OH_BAD_DATA, path, "tensor '%.100s': dtype %s, expected BF16, F16 or F32",
                          tensor->name, tensor->dtype_name);
    }
    return OH_OK;
}

static oh_status open_weight(ckpt_head *head, const char *path, const char *name, oh_error *error) {
    oh_status status = st_open(&head->file, path, error);
    if (status != OH_OK) return status;
    head->tensor = st_find(head->file, name);
    if (head->tensor != NULL) return check_weight(head, error);
    return error_line(error, OH_BAD_DATA, path, "no tensor '%.100s', though the index places it here", name);
}

static oh_status open_single(ckpt_head *head, const char *path, const char *asked, oh_error *error) {
    oh_status status = st_open(&head->file, path, error);
    if (status != OH_OK) return status;

    name_list list = {calloc(st_count(head->file) + 1, sizeof *list.names), st_count(head->file)};
    if (list.names == NULL) return error_line(error, OH_OUT_OF_MEMORY, path, "out of memory");
    for (size_t i = 0; i < list.count; i++)
        list.names[i] = st_at(head->file, i)->name;

    const char *name;
    status = choose(&list, path, asked, &name, &head->tied, error);
    if (status == OH_OK) {
        head->tensor = st_find(head->file, name);
        status = check_weight(head, error);
    }
    free(list.names);
    return status;
}

static oh_status load_index(json_t **index, const char *path, oh_error *error) {
    const oh_status status = load_json(index, path, error);
    if (status != OH_OK) return status;

    const json_t *const map = json_object_get(*index, "weight_map");
    if (json_is_object(map)) return OH_OK;
    json_decref(*index);
    *index = NULL;
    return error_line(error, OH_BAD_DATA, path, "no weight_map object, expected {\"weight_map\": {TENSOR: SHARD}}");
}

/* A shard lies beside its index: a name that leads out of the folder is an attack or a mistake. Links are followed, for
 * download caches keep a checkpoint as links to files elsewhere. */
static bool is_plain_file_name(const char *name) {
    return name[0] != '\0' && strchr(name, '/') == NULL && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static oh_status open_shard(ckpt_head *head, const char *index_path, const char *name, const json_t *shard,
                            oh_error *error) {
    const char *const shard_name = json_string_value(shard);
    if (shard_name == NULL) {
        return error_line(error, OH_BAD_DATA, index_path, "tensor '%.100s': its shard isn't a string", name);
    }
    if (!is_plain_file_name(shard_name)) {
        return error_line(error, OH_BAD_DATA, index_path,
                          "tensor '%.100s': shard '%.100s', expected the name of a file beside the index", name,
                          shard_name);
    }
    char *const path = join(index_path, folder_length(index_path), shard_name);
    if (path == NULL) return error_line(error, OH_OUT_OF_MEMORY, index_path, "out of memory");

    const oh_status status = open_weight(head, path, name, error);
    free(path);
    return status;
}

static oh_status open_index(ckpt_head *head, const char *path, const char *asked, oh_error *error) {
    json_t *index;
    oh_status status = load_index(&index, path, error);
    if (status != OH_OK) return status;

    json_t *const map = json_object_get(index, "weight_map");
    name_list list = {calloc(json_object_size(map) + 1, sizeof *list.names), 0};
    if (list.names == NULL) {
        status = error_line(error, OH_OUT_OF_MEMORY, path, "out of memory");
        goto done;
    }
    const char *key;
    json_t *shard;
    json_object_foreach(map, key, shard) list.names[list.count++] = key;

    const char *name;
    status = choose(&list, path, asked, &name, &head->tied, error);
    if (status == OH_OK) status = open_shard(head, path, name, json_object_get(map, name), error);

done:
    free(list.names);
    json_decref(index);
    return status;
}

bool ckpt_is_index_name(const char *path) {
    static const char ending[] = ".json";
    const size_t length = strlen(path);
    return length >= sizeof ending - 1 && strcmp(path + length - (sizeof ending - 1), ending) == 0;
}

static bool is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static oh_status open_folder(ckpt_head *head, const char *folder, const char *asked, oh_error *error) {
    char *const index = join(folder, strlen(folder), "model.safetensors.index.json");
    char *const single = join(folder, strlen(folder), "model.safetensors");
    oh_status status;
    if (index == NULL || single == NULL) {
        status = error_line(error, OH_OUT_OF_MEMORY, folder, "out of memory");
    } else if (exists(index)) {
        status = open_index(head, index, asked, error);
    } else if (exists(single)) {
        status = open_single(head, single, asked, error);
    } else {
        status = error_line(error, OH_IO, folder,
                            "a folder with neither model.safetensors.index.json nor model.safetensors");
    }
    free(index);
    free(single);
    return status;
}

oh_status ckpt_split_spec(char *path, char **asked, oh_error *error) {
    *asked = NULL;
    if (path[0] == '\0') return error_line(error, OH_IO, "lm_head", "no file given, expected FILE[:TENSOR]");
    if (exists(path)) return OH_OK;
    for (char *colon = strrchr(path, ':'); colon != NULL && colon > path;) {
        *colon = '\0';
        if (exists(path)) {
            *asked = colon + 1;
            if (**asked != '\0') return OH_OK;
            return error_line(error, OH_BAD_DATA, path, "no tensor name behind ':', expected FILE or FILE:TENSOR");
        }
        char *const before = strrchr(path, ':');
        *colon = ':';
        colon = before;
    }
    return error_line(error, OH_IO, path, "no such file or folder");
}

oh_status ckpt_open(ckpt_head *head, const char *spec, oh_error *error) {
    *head = (ckpt_head){0};
    char *const path = strdup(spec);
    if (path == NULL) return error_line(error, OH_OUT_OF_MEMORY, spec, "out of memory");

    char *asked;
    oh_status status = ckpt_split_spec(path, &asked, error);
    if (status == OH_OK) {
        status = is_folder(path)            ? open_folder(head, path, asked, error)
                 : ckpt_is_index_name(path) ? open_index(head, path, asked, error)
                                            : open_single(head, path, asked, error);
    }
    if (status != OH_OK) ckpt_close(head);
    free(path);
    return status;
}

const char *ckpt_embedding(const ckpt_head *head) {
    return head->tied ? head->tensor->name : NULL;
}

void ckpt_close(ckpt_head *head) {
    st_close(head->file);
    *head = (ckpt_head){0};
}
