/* loader.h - how a plugin's file is found, trusted, opened and accepted. Internal to the core.
 *
 * The rules, in the order they apply, and where they are kept:
 *   plugin_search.c  A text with a '/' is a path. Anything else is a name, [a-z0-9_]+ of at most 63 bytes, and means
 *                    the first onehead-<name>.so in: the absolute directories of ONEHEAD_BACKEND_PATH (which a process
 *                    that gained privileges doesn't read), the installed directory, the build tree's. Never the working
 *                    directory. A file that is found first and refused is refused: the search doesn't go on behind it.
 *   plugin_file.c    On the path with every link resolved: a regular file, owned by root or the effective user, in a
 *                    directory owned so, neither of them writable by group or others.
 *   plugin_elf.c     A complete 64-bit shared object for this machine, that doesn't bring another sanitizer's runtime.
 *   loader.c         Opened once, bound at once, never unloaded; exports oh_backend_v1; no second file of a name.
 *   backend_table.c  The table it returns is whole, is called like the file, and was built with the core's sanitizer.
 * Every refusal is one line: which file, what was found, what was wanted. Refusals have the status OH_NO_BACKEND. */
#ifndef ONEHEAD_CORE_LOADER_H
#define ONEHEAD_CORE_LOADER_H

#include <onehead/onehead.h>

#include <sys/stat.h>

enum {
    OH_PLUGIN_NAME_SIZE = sizeof(((oh_backend_candidate *)0)->name),
    OH_PLUGIN_PATH_SIZE = sizeof(((oh_backend_candidate *)0)->path), /* PATH_MAX, as realpath needs */
};

/* Whether `name` is one that a plugin may have. Reads at most OH_PLUGIN_NAME_SIZE bytes. */
int oh_plugin_name_is_valid(const char *name);

/* The <name> in the last part of `path`, onehead-<name>.so. */
oh_status oh_plugin_name_of(const char *path, char name[OH_PLUGIN_NAME_SIZE], oh_error *error);

/* The file that `name` means, links not resolved. */
oh_status oh_plugin_find(const char *name, char path[OH_PLUGIN_PATH_SIZE], oh_error *error);

/* The rules of plugin_file.c for a resolved, absolute path. With `fd` the file is then opened for reading, and `found`
 * describes what was opened; without it nothing is opened. Messages don't repeat the path. */
oh_status oh_plugin_file_check(const char *path, int *fd, struct stat *found, oh_error *error);

/* The rules of plugin_elf.c for an open file of `size` bytes. */
oh_status oh_plugin_elf_check(int fd, int64_t size, oh_error *error);

/* The rules of backend_table.c; `name`, what the table should be called, or NULL: any valid name. For tables in hand
 * as much as for those from a file. */
oh_status oh_backend_table_check(const oh_backend *table, const char *name, oh_error *error);

#endif
