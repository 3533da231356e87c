/* Loads plugins. Nothing is ever unloaded: OpenMP and thread-local destructors of a plugin's libraries run after
 * dlclose would have taken their code away. */
#define _GNU_SOURCE /* dladdr1 */
#include "loader.h"

#include "status.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

OH_STATIC_ASSERT(OH_PLUGIN_PATH_SIZE >= PATH_MAX, "realpath writes up to PATH_MAX bytes");

/* One file that this process has opened, accepted or not. */
typedef struct plugin {
    struct plugin *next;
    const oh_backend *table; /* NULL: refused after it was opened */
    dev_t device;
    ino_t inode;
    char name[OH_PLUGIN_NAME_SIZE];
    char path[]; /* resolved */
} plugin;

/* The library's only mutable global state. The lock is held while a plugin is opened, so that two threads asking for
 * the same file get one table. */
static pthread_mutex_t plugins_lock = PTHREAD_MUTEX_INITIALIZER;
static plugin *plugins;

static plugin *find_by_path(const char *path) {
    for (plugin *p = plugins; p != NULL; p = p->next)
        if (strcmp(p->path, path) == 0) return p;
    return NULL;
}

/* The accepted plugin of that file, under this path or another. A path that was loaded and has since been given a new
 * file still means what was loaded: the process can't have both. */
static const plugin *find_accepted(const char *path, const struct stat *file) {
    for (const plugin *p = plugins; p != NULL; p = p->next) {
        if (p->table == NULL) continue;
        if (strcmp(p->path, path) == 0 || (p->device == file->st_dev && p->inode == file->st_ino)) return p;
    }
    return NULL;
}

static const plugin *find_accepted_by_name(const char *name) {
    for (const plugin *p = plugins; p != NULL; p = p->next)
        if (p->table != NULL && strcmp(p->name, name) == 0) return p;
    return NULL;
}

static plugin *remember(const char *name, const char *path, const struct stat *file) {
    plugin *made = calloc(1, sizeof *made + strlen(path) + 1);
    if (made == NULL) return NULL;
    made->device = file->st_dev;
    made->inode = file->st_ino;
    snprintf(made->name, sizeof made->name, "%s", name);
    memcpy(made->path, path, strlen(path) + 1);
    made->next = plugins;
    plugins = made;
    return made;
}

/* The path as messages show it: its end, where it is long. */
static const char *shown(const char *path) {
    enum { LIMIT = 200 };
    const size_t length = strlen(path);
    return length <= LIMIT ? path : path + (length - LIMIT);
}

/* Puts the file's path before what a check said. */
static oh_status refused(oh_error *error, oh_status status, const char *path) {
    return oh_fail(error, status, "%s%s: %s", shown(path) == path ? "" : "...", shown(path), error->message);
}

/* A plugin of another ABI has the entry of that major version. */
static oh_status entry_missing(void *library, oh_error *error) {
    enum { HIGHEST = 64 };
    for (int major = 0; major <= HIGHEST; ++major) {
        char symbol[32];
        snprintf(symbol, sizeof symbol, "oh_backend_v%d", major);
        if (dlsym(library, symbol) != NULL)
            return oh_fail(error, OH_NO_BACKEND,
                           "built for ABI major %d (exports %s), this onehead speaks %d (wanted %s)", major, symbol,
                           OH_BACKEND_MAJOR, OH_BACKEND_SYMBOL);
    }
    return oh_fail(error, OH_NO_BACKEND, "exports no %s, wanted that function", OH_BACKEND_SYMBOL);
}

/* A table exported under the entry's name is an easy mistake, and calling it would end the process. */
static int is_function(void *address) {
    Dl_info info;
    void *found = NULL;
    if (dladdr1(address, &info, &found, RTLD_DL_SYMENT) == 0 || found == NULL) return 1;
    const ElfW(Sym) *symbol = found;
    const int type = ELF64_ST_TYPE(symbol->st_info);
    return type != STT_OBJECT && type != STT_TLS && type != STT_COMMON;
}

static oh_status read_table(void *library, const char *name, const oh_backend **table, oh_error *error) {
    void *address = dlsym(library, OH_BACKEND_SYMBOL);
    if (address == NULL) return entry_missing(library, error);
    if (!is_function(address))
        return oh_fail(error, OH_NO_BACKEND, "exports %s as data, wanted a function that returns the table",
                       OH_BACKEND_SYMBOL);
    oh_backend_entry entry;
    memcpy(&entry, &address, sizeof entry); /* ISO C has no conversion from void * to a function */
    const oh_backend *returned = entry();
    if (returned == NULL) return oh_fail(error, OH_NO_BACKEND, "%s returned NULL, wanted a table", OH_BACKEND_SYMBOL);
    const oh_status status = oh_backend_table_check(returned, name, error);
    if (status == OH_OK) *table = returned;
    return status;
}

/* Opened by its path, not as /proc/self/fd/N of the file that was checked: the dynamic linker knows objects by the name
 * they were opened with, so a later plugin with the same descriptor number would get the earlier one's handle, and
 * $ORIGIN, debuggers and sanitizers would be shown a path that means nothing. Between check and use, only the owners
 * that the checks allow can put another file there. */
static oh_status open_library(const char *path, const struct stat *file, void **library, oh_error *error) {
    *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (*library == NULL) {
        const char *words = dlerror();
        const size_t length = strlen(path);
        if (words != NULL && strncmp(words, path, length) == 0 && strncmp(words + length, ": ", 2) == 0)
            words += length + 2; /* the path is said once */
        return oh_fail(error, OH_NO_BACKEND, "can't be opened: %s", words != NULL ? words : "dlopen gave no reason");
    }
    struct stat now;
    if (stat(path, &now) != 0 || now.st_dev != file->st_dev || now.st_ino != file->st_ino)
        return oh_fail(error, OH_NO_BACKEND, "was replaced while it was opened");
    return OH_OK;
}

/* Under the lock, with a file that passed the checks. */
static oh_status load_checked(const char *name, const char *path, const struct stat *file, const oh_backend **backend,
                              oh_error *error) {
    const plugin *accepted = find_accepted(path, file);
    if (accepted != NULL && strcmp(accepted->name, name) == 0) {
        *backend = accepted->table;
        return OH_OK;
    }
    if (accepted != NULL)
        return oh_fail(error, OH_NO_BACKEND, "is the file loaded as '%s' from %s, wanted a backend '%s'",
                       accepted->name, shown(accepted->path), name);
    accepted = find_accepted_by_name(name);
    if (accepted != NULL)
        return oh_fail(error, OH_NO_BACKEND, "duplicate name: '%s' is already loaded from %s, wanted one file a name",
                       name, shown(accepted->path));

    plugin *own = find_by_path(path);
    if (own != NULL && (own->device != file->st_dev || own->inode != file->st_ino))
        return oh_fail(error, OH_NO_BACKEND,
                       "was refused before and replaced since; this process still holds the old file, start a new one");
    if (own == NULL) own = remember(name, path, file);
    if (own == NULL) return oh_fail(error, OH_OUT_OF_MEMORY, "no memory to remember it");

    void *library = NULL;
    oh_status status = open_library(path, file, &library, error);
    if (status == OH_OK) status = read_table(library, name, &own->table, error);
    if (status == OH_OK) *backend = own->table;
    return status;
}

static oh_status load_file(const char *given, const oh_backend **backend, oh_error *error) {
    char name[OH_PLUGIN_NAME_SIZE], path[OH_PLUGIN_PATH_SIZE];
    if (oh_plugin_name_of(given, name, error) != OH_OK) return refused(error, OH_NO_BACKEND, given);
    if (realpath(given, path) == NULL) {
        char words[100];
        return oh_fail(error, OH_NO_BACKEND, "%s%s: can't resolve the path: %s", shown(given) == given ? "" : "...",
                       shown(given), strerror_r(errno, words, sizeof words));
    }
    int fd = -1;
    struct stat file;
    oh_status status = oh_plugin_file_check(path, &fd, &file, error);
    if (status != OH_OK) return refused(error, status, path);
    status = oh_plugin_elf_check(fd, file.st_size, error);
    if (status == OH_OK) {
        pthread_mutex_lock(&plugins_lock);
        status = load_checked(name, path, &file, backend, error);
        pthread_mutex_unlock(&plugins_lock);
    }
    close(fd); /* held until now, so that no other file could get its inode number */
    return status == OH_OK ? OH_OK : refused(error, status, path);
}

oh_status oh_backend_load(const char *name_or_path, const oh_backend **backend, oh_error *error) {
    oh_error unseen;
    if (error == NULL) error = &unseen;
    if (name_or_path == NULL || backend == NULL)
        return oh_fail(error, OH_INVALID_ARGUMENT, "oh_backend_load: %s is NULL",
                       name_or_path == NULL ? "name_or_path" : "backend");
    if (strchr(name_or_path, '/') != NULL) return load_file(name_or_path, backend, error);

    char path[OH_PLUGIN_PATH_SIZE];
    if (!oh_plugin_name_is_valid(name_or_path))
        return oh_fail(error, OH_NO_BACKEND,
                       "no backend '%.100s': wanted a name of 1 to %d of a-z, 0-9 and _, or a path with a '/'",
                       name_or_path, OH_PLUGIN_NAME_SIZE - 1);
    const oh_status status = oh_plugin_find(name_or_path, path, error);
    return status != OH_OK ? status : load_file(path, backend, error);
}
