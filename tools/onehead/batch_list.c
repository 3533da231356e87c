#include "batch_list.h"

#include "error_line.h"

#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static bool is_pattern(const char *path) {
    struct stat info;
    return strpbrk(path, "*?[") != NULL && stat(path, &info) != 0;
}

bool batch_list_is_meant(char *const *arguments, int count) {
    return count > 1 || (count == 1 && (is_folder(arguments[0]) || is_pattern(arguments[0])));
}

static oh_status add(batch_list *list, const char *path, oh_error *error) {
    if (list->count == list->capacity) {
        const int64_t capacity = list->capacity > 0 ? 2 * list->capacity : 64;
        batch_file *const files = realloc(list->files, (size_t)capacity * sizeof *files);
        if (files == NULL) return error_line(error, OH_OUT_OF_MEMORY, path, "out of memory");
        list->files = files;
        list->capacity = capacity;
    }
    struct stat info;
    if (stat(path, &info) != 0) return error_line(error, OH_BAD_DATA, path, "can't stat: %s", strerror(errno));
    batch_file *const file = &list->files[list->count];
    file->path = strdup(path);
    if (file->path == NULL) return error_line(error, OH_OUT_OF_MEMORY, path, "out of memory");
    file->stamp = file_stamp_of(&info);
    list->count++;
    return OH_OK;
}

/* glob sorts by the locale's rules, which are the C locale's: by bytes. */
static oh_status add_matches(batch_list *list, const char *pattern, const char *argument, oh_error *error) {
    glob_t found;
    const int failed = glob(pattern, GLOB_ERR, NULL, &found);
    if (failed == GLOB_NOMATCH)
        return error_line(error, OH_BAD_DATA, argument, "no file there, expected *.safetensors or names that match");
    if (failed != 0)
        return error_line(error, failed == GLOB_NOSPACE ? OH_OUT_OF_MEMORY : OH_BAD_DATA, argument, "can't list: %s",
                          failed == GLOB_NOSPACE ? "out of memory" : strerror(errno));
    oh_status status = OH_OK;
    for (size_t i = 0; i < found.gl_pathc && status == OH_OK; i++)
        status = add(list, found.gl_pathv[i], error);
    globfree(&found);
    return status;
}

/* The folder's name may hold what a pattern would take for itself. */
static oh_status add_folder(batch_list *list, const char *folder, oh_error *error) {
    static const char suffix[] = "/*.safetensors";
    char *const pattern = malloc(2 * strlen(folder) + sizeof suffix);
    if (pattern == NULL) return error_line(error, OH_OUT_OF_MEMORY, folder, "out of memory");
    char *to = pattern;
    for (const char *at = folder; *at != '\0'; at++) {
        if (strchr("*?[]\\", *at) != NULL) *to++ = '\\';
        *to++ = *at;
    }
    memcpy(to, suffix, sizeof suffix);
    const oh_status status = add_matches(list, pattern, folder, error);
    free(pattern);
    return status;
}

oh_status batch_list_make(batch_list *list, char *const *arguments, int count, oh_error *error) {
    memset(list, 0, sizeof *list);
    oh_status status = OH_OK;
    for (int i = 0; i < count && status == OH_OK; i++) {
        if (is_folder(arguments[i]))
            status = add_folder(list, arguments[i], error);
        else if (is_pattern(arguments[i]))
            status = add_matches(list, arguments[i], arguments[i], error);
        else
            status = add(list, arguments[i], error);
    }
    if (status != OH_OK) batch_list_free(list);
    return status;
}

void batch_list_free(batch_list *list) {
    for (int64_t i = 0; i < list->count; i++)
        free(list->files[i].path);
    free(list->files);
    memset(list, 0, sizeof *list);
}
