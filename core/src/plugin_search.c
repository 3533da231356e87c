/* Where a plugin is looked for. The directories are few and the files in them fewer, so that every question walks them
 * again and nothing is remembered that could grow stale. */
#define _GNU_SOURCE /* secure_getenv, scandir, dladdr */
#include "loader.h"

#include "status.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The build defines both, as absolute paths. */
#ifndef ONEHEAD_BACKEND_DIR
#define ONEHEAD_BACKEND_DIR ""
#endif
#ifndef ONEHEAD_BUILD_BACKEND_DIR
#define ONEHEAD_BUILD_BACKEND_DIR ""
#endif

#define VARIABLE "ONEHEAD_BACKEND_PATH"
#define PREFIX "onehead-"
#define SUFFIX ".so"

/* ------------------------------------------------------------------------------------------------- names ---- */

int oh_plugin_name_is_valid(const char *name) {
    const size_t length = strnlen(name, OH_PLUGIN_NAME_SIZE);
    if (length == 0 || length == OH_PLUGIN_NAME_SIZE) return 0;
    return strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == length;
}

static int is_plugin_file(const char *base) {
    const size_t length = strlen(base), around = strlen(PREFIX SUFFIX);
    if (length < around || strncmp(base, PREFIX, strlen(PREFIX)) != 0) return 0;
    return strcmp(base + length - strlen(SUFFIX), SUFFIX) == 0;
}

oh_status oh_plugin_name_of(const char *path, char name[OH_PLUGIN_NAME_SIZE], oh_error *error) {
    const char *slash = strrchr(path, '/'), *base = slash == NULL ? path : slash + 1;
    char inner[OH_PLUGIN_NAME_SIZE] = "";
    if (is_plugin_file(base)) {
        const size_t length = strlen(base) - strlen(PREFIX SUFFIX);
        if (length < sizeof inner) snprintf(inner, sizeof inner, "%.*s", (int)length, base + strlen(PREFIX));
    }
    if (!oh_plugin_name_is_valid(inner))
        return oh_fail(error, OH_NO_BACKEND,
                       "the file is called '%.80s', wanted " PREFIX "<name>" SUFFIX
                       " with 1 to %d of a-z, 0-9 and _ for a name",
                       base, OH_PLUGIN_NAME_SIZE - 1);
    memcpy(name, inner, sizeof inner);
    return OH_OK;
}

/* ------------------------------------------------------------------------------------------- directories ---- */

typedef struct directory {
    char path[OH_PLUGIN_PATH_SIZE];
    int from_variable;
    const char *ignored; /* NULL, or why it isn't looked into */
} directory;

typedef struct search {
    const char *rest;  /* of the variable; NULL: at its end */
    int looked_beside; /* the library's own place was seen */
    int compiled;      /* compiled-in directories seen */
    int index;         /* directories seen */
} search;

/* Where this library is installed, whatever prefix it was configured for: onehead/backends beside its file. 0: there is
 * no such directory, or it is one of the compiled-in ones. */
static int beside_library(char path[PATH_MAX]) {
    static const char anchor;
    Dl_info library;
    struct stat found;
    if (dladdr(&anchor, &library) == 0 || library.dli_fname == NULL || realpath(library.dli_fname, path) == NULL)
        return 0;
    char *const slash = strrchr(path, '/');
    if (slash == NULL) return 0;
    const size_t left = PATH_MAX - (size_t)(slash - path);
    const int length = snprintf(slash, left, "/onehead/backends");
    if (length < 0 || (size_t)length >= left || stat(path, &found) != 0 || !S_ISDIR(found.st_mode)) return 0;
    return strcmp(path, ONEHEAD_BACKEND_DIR) != 0 && strcmp(path, ONEHEAD_BUILD_BACKEND_DIR) != 0;
}

/* The variable's text must not be changed by another thread meanwhile, as with every reading of the environment. */
static search search_begin(void) {
    const char *text = secure_getenv(VARIABLE);
    return (search){.rest = text != NULL && text[0] != '\0' ? text : NULL};
}

/* 0: no directory is left. */
static int search_next(search *at, directory *d) {
    static const char *const compiled[] = {ONEHEAD_BACKEND_DIR, ONEHEAD_BUILD_BACKEND_DIR};
    char beside[PATH_MAX];
    const char *text = NULL;
    size_t length = 0;
    d->from_variable = at->rest != NULL;
    if (at->rest != NULL) {
        text = at->rest;
        length = strcspn(text, ":");
        at->rest = text[length] == ':' ? text + length + 1 : NULL;
    } else if (!at->looked_beside && beside_library(beside)) {
        text = beside;
        length = strlen(text);
        at->looked_beside = 1;
    } else {
        at->looked_beside = 1;
        while (at->compiled < 2 && compiled[at->compiled][0] == '\0')
            ++at->compiled;
        if (at->compiled == 2) return 0;
        text = compiled[at->compiled++];
        length = strlen(text);
    }
    ++at->index;
    const int fits = length < sizeof d->path;
    const size_t kept = fits ? length : sizeof d->path - 1;
    memcpy(d->path, text, kept);
    d->path[kept] = '\0';
    d->ignored = NULL;
    if (length == 0) d->ignored = "is empty";
    if (length > 0 && text[0] != '/') d->ignored = "is not absolute";
    if (!fits) d->ignored = "is too long";
    return 1;
}

/* Path of plugin `name` in `d`, links not resolved. 0: no such file, or no path can be that long. Anything else that
 * stands in the way (no permission to look) is for the checks of the file to say. */
static int find_in(const directory *d, const char *name, char path[OH_PLUGIN_PATH_SIZE]) {
    struct stat found;
    const int length = snprintf(path, OH_PLUGIN_PATH_SIZE, "%s/" PREFIX "%s" SUFFIX, d->path, name);
    if (length < 0 || length >= OH_PLUGIN_PATH_SIZE) return 0;
    return lstat(path, &found) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

/* Adds formatted words to a list in `text`, as far as they fit. */
static void append(char *text, size_t size, const char *before, const char *words, const char *after) {
    const size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s%.120s%s", used > 0 ? ", " : "", before, words, after);
}

oh_status oh_plugin_find(const char *name, char path[OH_PLUGIN_PATH_SIZE], oh_error *error) {
    char looked[300] = "", ignored[160] = "";
    search at = search_begin();
    directory d;
    while (search_next(&at, &d)) {
        if (d.ignored != NULL) {
            append(ignored, sizeof ignored, "'", d.path, "' ");
            strncat(ignored, d.ignored, sizeof ignored - strlen(ignored) - 1);
            continue;
        }
        if (find_in(&d, name, path)) return OH_OK;
        append(looked, sizeof looked, "", d.path, "");
    }
    return oh_fail(error, OH_NO_BACKEND, "no backend '%s': no " PREFIX "%s" SUFFIX " in %s%s%s%s", name, name,
                   looked[0] != '\0' ? looked : "any directory, none is set (" VARIABLE ")",
                   ignored[0] != '\0' ? "; ignored in " VARIABLE ": " : "", ignored,
                   ignored[0] != '\0' ? ", wanted absolute directories" : "");
}

/* ------------------------------------------------------------------------------------------------- listing ---- */

typedef struct listing {
    oh_backend_candidate *candidates;
    int64_t capacity, count;
} listing;

static void copy_text(char *to, size_t size, const char *from) {
    const size_t length = strnlen(from, size - 1);
    memcpy(to, from, length);
    to[length] = '\0';
}

static void add(listing *list, const char *name, const char *path, const char *verdict) {
    if (list->count < list->capacity) {
        oh_backend_candidate *candidate = &list->candidates[list->count];
        copy_text(candidate->path, sizeof candidate->path, path); /* byte for byte: it can be loaded */
        copy_text(candidate->name, sizeof candidate->name, name);
        copy_text(candidate->verdict, sizeof candidate->verdict, verdict);
        oh_make_printable(candidate->name);
        oh_make_printable(candidate->verdict);
    }
    ++list->count;
}

/* Whether a directory before the one that `until` returned last is the same as `d`. */
static int is_repeated(const search *until, const directory *d) {
    struct stat own, other;
    if (stat(d->path, &own) != 0) return 0;
    search at = search_begin();
    directory earlier;
    while (search_next(&at, &earlier) && at.index < until->index) {
        if (earlier.ignored != NULL || stat(earlier.path, &other) != 0) continue;
        if (own.st_dev == other.st_dev && own.st_ino == other.st_ino) return 1;
    }
    return 0;
}

static void judge(const directory *d, const char *base, listing *list) {
    char path[OH_PLUGIN_PATH_SIZE], resolved[OH_PLUGIN_PATH_SIZE], first[OH_PLUGIN_PATH_SIZE],
        name[OH_PLUGIN_NAME_SIZE];
    oh_error error = {.message = ""};
    const int length = snprintf(path, sizeof path, "%s/%s", d->path, base);
    if (length < 0 || length >= OH_PLUGIN_PATH_SIZE) return; /* no call could open it */
    if (oh_plugin_name_of(base, name, &error) != OH_OK) {
        add(list, base, path, error.message);
        return;
    }
    if (realpath(path, resolved) == NULL) {
        char words[100];
        oh_fail(&error, OH_NO_BACKEND, "can't resolve it: %s", strerror_r(errno, words, sizeof words));
        add(list, name, path, error.message);
        return;
    }
    if (oh_plugin_file_check(resolved, NULL, NULL, &error) == OH_OK && oh_plugin_find(name, first, &error) == OH_OK &&
        strcmp(first, path) != 0)
        oh_fail(&error, OH_NO_BACKEND, "not looked at: '%s' means %.200s, found first", name, first);
    add(list, name, resolved, error.message);
}

static int select_plugin(const struct dirent *file) {
    return is_plugin_file(file->d_name);
}

static int compare_names(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void list_directory(const directory *d, listing *list) {
    struct dirent **files = NULL;
    const int count = scandir(d->path, &files, select_plugin, compare_names);
    if (count < 0) {
        /* A standard place that isn't there is no news; one that somebody asked for is. */
        if (!d->from_variable && errno == ENOENT) return;
        char words[100], verdict[160];
        snprintf(verdict, sizeof verdict, "can't read the directory: %s", strerror_r(errno, words, sizeof words));
        add(list, "", d->path, verdict);
        return;
    }
    for (int i = 0; i < count; ++i) {
        judge(d, files[i]->d_name, list);
        free(files[i]);
    }
    free(files);
}

int64_t oh_backend_list(oh_backend_candidate *candidates, int64_t capacity) {
    listing list = {.candidates = candidates, .capacity = candidates != NULL ? capacity : 0};
    search at = search_begin();
    directory d;
    while (search_next(&at, &d)) {
        if (d.ignored != NULL) {
            char verdict[100];
            snprintf(verdict, sizeof verdict, "ignored: this entry of " VARIABLE " %s, wanted an absolute directory",
                     d.ignored);
            add(&list, "", d.path, verdict);
        } else if (!is_repeated(&at, &d)) {
            list_directory(&d, &list);
        }
    }
    return list.count;
}
