/* Each rule of loader.h, with the bad thing planted and the words of the refusal checked. That a process which gained
 * privileges doesn't read ONEHEAD_BACKEND_PATH is secure_getenv's promise; a test can't become such a process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <elf.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader.h"

enum { SOMEBODY = 65534, SOMEBODY_ELSE = 65533, PATH_SIZE = OH_PLUGIN_PATH_SIZE };

static char root[PATH_SIZE / 4]; /* resolved; made for this run, removed after it */

/* ------------------------------------------------------------------------------------------- planting ---- */

/* "root/relative", one of the last 32 asked for. */
static const char *in_root(const char *relative) {
    static char paths[32][PATH_SIZE];
    static int next;
    char *path = paths[next++ % 32];
    assert_in_range(snprintf(path, PATH_SIZE, "%s/%s", root, relative), 1, PATH_SIZE - 1);
    return path;
}

/* Modes are set, not asked for: the umask has no say. */
static void make_directory(const char *path, mode_t mode) {
    assert_return_code(mkdir(path, 0700), 0);
    assert_return_code(chmod(path, mode), 0);
}

static void write_file(const char *path, const void *bytes, size_t size) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_return_code(fd, 0);
    assert_int_equal(write(fd, bytes, size), size);
    assert_return_code(fchmod(fd, 0644), 0);
    assert_return_code(close(fd), 0);
}

typedef struct image {
    unsigned char *bytes;
    size_t size;
} image;

static image read_module(const char *name) {
    char path[PATH_SIZE];
    struct stat found;
    snprintf(path, sizeof path, "%s/onehead-%s.so", PLANTED_DIR, name);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_return_code(fd, 0);
    assert_return_code(fstat(fd, &found), 0);
    image module = {.size = (size_t)found.st_size};
    module.bytes = malloc(module.size);
    assert_non_null(module.bytes);
    assert_int_equal(read(fd, module.bytes, module.size), module.size);
    assert_return_code(close(fd), 0);
    return module;
}

static void copy_module(const char *name, const char *path) {
    const image module = read_module(name);
    write_file(path, module.bytes, module.size);
    free(module.bytes);
}

/* The module `name`, mode 0644, alone in a new directory of mode 0755. */
static const char *plant(const char *directory, const char *name) {
    char relative[PATH_SIZE];
    make_directory(in_root(directory), 0755);
    snprintf(relative, sizeof relative, "%s/onehead-%s.so", directory, name);
    const char *path = in_root(relative);
    copy_module(name, path);
    return path;
}

static int remove_one(const char *path, const struct stat *found, int type, struct FTW *at) {
    (void)found, (void)type, (void)at;
    return remove(path);
}

static int remove_tree(const char *path) {
    return nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static int make_root(void **state) {
    (void)state;
    char made[PATH_SIZE / 8];
    const char *place = getenv("TMPDIR");
    snprintf(made, sizeof made, "%s/onehead-loader-XXXXXX", place != NULL ? place : P_tmpdir);
    if (mkdtemp(made) == NULL) return -1;
    char *resolved = realpath(made, NULL);
    if (resolved == NULL) return -1;
    snprintf(root, sizeof root, "%s", resolved);
    free(resolved);
    remove_tree(PLANTED_INSTALLED_DIR); /* of a run that died */
    remove_tree(PLANTED_BUILT_DIR);
    return chmod(root, 0755);
}

static int remove_root(void **state) {
    (void)state;
    return remove_tree(root);
}

static int clear_environment(void **state) {
    (void)state;
    return unsetenv("ONEHEAD_BACKEND_PATH");
}

/* ------------------------------------------------------------------------------------------- asserting ---- */

static void assert_says(const char *message, const char *const *parts) {
    assert_null(strchr(message, '\n'));
    for (; *parts != NULL; ++parts)
        if (strstr(message, *parts) == NULL) fail_msg("'%s' not in '%s'", *parts, message);
}

/* Every part is in the message, and the caller's pointer is untouched. */
#define assert_refused(text, ...) assert_refused_with(text, (const char *const[]){__VA_ARGS__, NULL})
static void assert_refused_with(const char *text, const char *const *parts) {
    static const oh_backend untouched;
    const oh_backend *backend = &untouched;
    oh_error error = {.status = OH_OK};
    const oh_status status = oh_backend_load(text, &backend, &error);
    if (status != OH_NO_BACKEND) fail_msg("%s: status %d, wanted a refusal", text, status);
    assert_int_equal(error.status, OH_NO_BACKEND);
    assert_ptr_equal(backend, &untouched);
    assert_says(error.message, parts);
}

static const oh_backend *load(const char *text) {
    const oh_backend *backend = NULL;
    oh_error error = {.message = ""};
    if (oh_backend_load(text, &backend, &error) != OH_OK) fail_msg("%s", error.message);
    assert_non_null(backend);
    return backend;
}

/* The candidates that `path` as the search path gives, with none in the compiled-in directories. Freed by the caller. */
static oh_backend_candidate *list(const char *path, int64_t wanted) {
    assert_return_code(setenv("ONEHEAD_BACKEND_PATH", path, 1), 0);
    oh_backend_candidate *candidates = calloc((size_t)wanted + 1, sizeof *candidates);
    assert_non_null(candidates);
    assert_int_equal(oh_backend_list(candidates, wanted), wanted);
    return candidates;
}

static void assert_candidate(const oh_backend_candidate *candidate, const char *name, const char *path,
                             const char *verdict) {
    assert_string_equal(candidate->name, name);
    assert_string_equal(candidate->path, path);
    if (verdict[0] == '\0') assert_string_equal(candidate->verdict, "");
    assert_says(candidate->verdict, (const char *const[]){verdict, NULL});
}

/* A bad file is refused by its path and by its name, and the list says the same of it. `directory` is in the root. */
static void assert_refused_and_listed(const char *directory, const char *name, const char *path, const char *words) {
    char listed[PATH_SIZE];
    snprintf(listed, sizeof listed, "%s", in_root(directory));
    assert_refused(path, path, words);
    oh_backend_candidate *candidates = list(listed, 1);
    assert_candidate(candidates, name, path, words);
    free(candidates);
    assert_refused(name, path, words);
}

/* ------------------------------------------------------------------------------------- owners and modes ---- */

static void file_of_another_owner_is_refused(void **state) {
    (void)state;
    if (geteuid() != 0) skip(); /* only root can give a file away */
    const char *path = plant("file-owner", "good");
    assert_return_code(chown(path, SOMEBODY, (gid_t)-1), 0);
    assert_refused_and_listed("file-owner", "good", path, "is owned by uid 65534, wanted root (0)");
}

static void directory_of_another_owner_is_refused(void **state) {
    (void)state;
    if (geteuid() != 0) skip();
    const char *path = plant("directory-owner", "good");
    assert_return_code(chown(in_root("directory-owner"), SOMEBODY, (gid_t)-1), 0);
    assert_refused_and_listed("directory-owner", "good", path, "its directory is owned by uid 65534, wanted root (0)");
}

static void effective_user_may_load_its_own_files_and_roots(void **state) {
    (void)state;
    if (geteuid() != 0) skip();
    const char *mine = plant("mine", "mine"), *roots = plant("roots", "roots"), *other = plant("other", "good");
    assert_return_code(chown(mine, SOMEBODY, (gid_t)-1), 0);
    assert_return_code(chown(in_root("mine"), SOMEBODY, (gid_t)-1), 0);
    assert_return_code(chown(other, SOMEBODY_ELSE, (gid_t)-1), 0);
    assert_return_code(seteuid(SOMEBODY), 0);
    const oh_backend *a = NULL, *b = NULL, *c = NULL;
    oh_error error = {.message = ""};
    const oh_status own = oh_backend_load(mine, &a, &error), from_root = oh_backend_load(roots, &b, &error);
    const oh_status from_other = oh_backend_load(other, &c, &error);
    assert_return_code(seteuid(0), 0);
    assert_int_equal(own, OH_OK);
    assert_int_equal(from_root, OH_OK);
    assert_int_equal(from_other, OH_NO_BACKEND);
    assert_says(error.message,
                (const char *const[]){"owned by uid 65533, wanted root (0) or the effective user (65534)", NULL});
}

static void writable_file_is_refused(void **state) {
    (void)state;
    const char *path = plant("file-mode", "good");
    assert_return_code(chmod(path, 0664), 0);
    assert_refused_and_listed("file-mode", "good", path, "is writable by group (mode 0664), wanted only by its owner");
    assert_return_code(chmod(path, 0646), 0);
    assert_refused_and_listed("file-mode", "good", path, "is writable by others (mode 0646)");
    assert_return_code(chmod(path, 0666), 0);
    assert_refused_and_listed("file-mode", "good", path, "is writable by group and others (mode 0666)");
}

static void writable_directory_is_refused(void **state) {
    (void)state;
    const char *path = plant("directory-mode", "good");
    assert_return_code(chmod(in_root("directory-mode"), 0775), 0);
    assert_refused_and_listed("directory-mode", "good", path, "its directory is writable by group (mode 0775)");
    assert_return_code(chmod(in_root("directory-mode"), 01777), 0);
    assert_refused_and_listed("directory-mode", "good", path,
                              "its directory is writable by group and others (mode 1777)");
}

/* ------------------------------------------------------------------------------------------------- links ---- */

static void links_are_judged_by_where_they_lead(void **state) {
    (void)state;
    const char *file = plant("writable-file", "good");
    assert_return_code(chmod(file, 0664), 0);
    const char *inside = plant("writable-directory", "good");
    assert_return_code(chmod(in_root("writable-directory"), 0777), 0);

    make_directory(in_root("links"), 0755);
    const char *link = in_root("links/onehead-good.so");
    assert_return_code(symlink(file, link), 0);
    assert_refused(link, file, "is writable by group (mode 0664)");
    assert_return_code(unlink(link), 0);
    assert_return_code(symlink(inside, link), 0);
    assert_refused(link, inside, "its directory is writable by group and others (mode 0777)");

    assert_return_code(symlink(in_root("writable-directory"), in_root("linked-directory")), 0);
    assert_refused(in_root("linked-directory/onehead-good.so"), inside, "its directory is writable");
}

static void dangling_and_circular_links_are_refused(void **state) {
    (void)state;
    make_directory(in_root("dangling"), 0755);
    const char *link = in_root("dangling/onehead-good.so");
    assert_return_code(symlink("nothing.so", link), 0);
    assert_refused_and_listed("dangling", "good", link, "resolve");
    assert_return_code(unlink(link), 0);
    assert_return_code(symlink("onehead-good.so", link), 0);
    assert_refused_and_listed("dangling", "good", link, "resolve");
}

static void link_to_a_good_file_is_loaded_under_the_links_name(void **state) {
    (void)state;
    const char *file = plant("versions", "linked");
    assert_return_code(rename(file, in_root("versions/onehead-linked.so.1.0")), 0);
    assert_return_code(symlink("onehead-linked.so.1.0", file), 0);
    oh_backend_candidate *candidates = list(in_root("versions"), 1);
    assert_candidate(candidates, "linked", in_root("versions/onehead-linked.so.1.0"), "");
    free(candidates);
    assert_string_equal(load(file)->name, "linked");
    assert_ptr_equal(load("linked"), load(file));
}

/* --------------------------------------------------------------------------------------------- file types ---- */

static void fifo_is_refused_without_being_opened(void **state) {
    (void)state;
    make_directory(in_root("fifo"), 0755);
    const char *path = in_root("fifo/onehead-good.so");
    assert_return_code(mkfifo(path, 0600), 0);
    alarm(20); /* opening it would wait for a writer for ever */
    assert_refused_and_listed("fifo", "good", path, "is a fifo, wanted a regular file");
    alarm(0);
}

static void directory_and_device_are_refused(void **state) {
    (void)state;
    make_directory(in_root("types"), 0755);
    const char *path = in_root("types/onehead-good.so");
    make_directory(path, 0755);
    assert_refused_and_listed("types", "good", path, "is a directory, wanted a regular file");
    assert_return_code(rmdir(path), 0);
    assert_return_code(symlink("/dev/null", path), 0);
    assert_refused(path, "/dev/null: is a character device, wanted a regular file");
}

static void missing_path_is_refused(void **state) {
    (void)state;
    assert_refused(in_root("nowhere/onehead-good.so"), in_root("nowhere/onehead-good.so"), "No such file or directory");
}

/* ------------------------------------------------------------------------------------------------ contents ---- */

static void file_that_is_not_elf_is_refused(void **state) {
    (void)state;
    make_directory(in_root("contents"), 0755);
    const char *path = in_root("contents/onehead-good.so");
    write_file(path, "", 0);
    assert_refused(path, path, "is not an ELF file (0 bytes), wanted a shared object");
    static const char text[] = "version https://example.org/pointer/v1, not the file itself but where it is kept";
    write_file(path, text, sizeof text);
    assert_refused(path, path, "is not an ELF file (begins with 76 65 72 73), wanted a shared object");
}

static void elf_of_another_kind_is_refused(void **state) {
    (void)state;
    make_directory(in_root("kinds"), 0755);
    const char *path = in_root("kinds/onehead-good.so");
    const image module = read_module("good");
    Elf64_Ehdr header;
    memcpy(&header, module.bytes, sizeof header);
    const Elf64_Ehdr whole = header;

#define assert_header_refused(change, ...)                                                                             \
    do {                                                                                                               \
        header = whole;                                                                                                \
        change;                                                                                                        \
        memcpy(module.bytes, &header, sizeof header);                                                                  \
        write_file(path, module.bytes, module.size);                                                                   \
        assert_refused(path, path, __VA_ARGS__);                                                                       \
    } while (0)
    assert_header_refused(header.e_ident[EI_CLASS] = ELFCLASS32, "is a 32-bit little-endian ELF file, wanted 64-bit");
    assert_header_refused(header.e_ident[EI_DATA] = ELFDATA2MSB, "is a 64-bit big-endian ELF file");
    assert_header_refused(header.e_machine = EM_SPARCV9, "is built for ELF machine 43, wanted this one's");
    assert_header_refused(header.e_type = ET_EXEC, "is an ELF file of type 2, wanted a shared object (3)");
    assert_header_refused(header.e_phnum = 0, "has 0 program headers");
    assert_header_refused(header.e_phentsize = 8, "program headers of 8 bytes, wanted");
    assert_header_refused(header.e_phoff = UINT64_MAX - 8, "is cut short: no program header 0");
    free(module.bytes);
}

static void file_cut_short_is_refused(void **state) {
    (void)state;
    make_directory(in_root("cut"), 0755);
    const char *path = in_root("cut/onehead-good.so");
    const image module = read_module("good");
    uint64_t needed = 0; /* bytes up to the end of the last loaded segment */
    Elf64_Ehdr header;
    memcpy(&header, module.bytes, sizeof header);
    for (unsigned i = 0; i < header.e_phnum; ++i) {
        Elf64_Phdr segment;
        memcpy(&segment, module.bytes + header.e_phoff + i * sizeof segment, sizeof segment);
        if (segment.p_type == PT_LOAD && segment.p_offset + segment.p_filesz > needed)
            needed = segment.p_offset + segment.p_filesz;
    }
    assert_in_range(needed, 300, module.size);
    const size_t sizes[] = {sizeof header, 100, needed / 2, needed - 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        write_file(path, module.bytes, sizes[i]);
        assert_refused(path, path, "is cut short");
    }
    free(module.bytes);
}

static void plugin_with_an_unresolved_symbol_is_refused(void **state) {
    (void)state;
    const char *path = plant("unresolved", "unresolved");
    assert_refused(path, path, "can't be opened: undefined symbol: gemm_of_no_library");
}

static void plugin_that_needs_another_sanitizers_runtime_is_refused_before_it_starts(void **state) {
    (void)state;
    const char *path = plant("other-runtime", "other_runtime");
    assert_refused(path, path, "needs libhwasan.so.0: built with sanitizer \"hwaddress\", wanted the core's own, \"");
}

/* ------------------------------------------------------------------------------------------- entry and table ---- */

static void plugin_without_the_entry_is_refused(void **state) {
    (void)state;
    const char *path = plant("no-symbol", "no_symbol");
    assert_refused(path, path, "exports no oh_backend_v1");
    assert_refused(path, path, "exports no oh_backend_v1"); /* and again, although it is open by now */
}

static void plugin_of_another_major_is_refused_with_both_versions(void **state) {
    (void)state;
    const char *older = plant("older-major", "older_major"), *newer = plant("newer-major", "newer_major");
    assert_refused(older, older, "built for ABI major 0 (exports oh_backend_v0), this onehead speaks 1");
    assert_refused(newer, newer, "built for ABI major 2 (exports oh_backend_v2), this onehead speaks 1");
}

static void table_exported_in_place_of_the_entry_is_refused(void **state) {
    (void)state;
    const char *path = plant("as-data", "as_data");
    assert_refused(path, path, "exports oh_backend_v1 as data, wanted a function");
}

static void null_table_is_refused(void **state) {
    (void)state;
    const char *path = plant("null-table", "null_table");
    assert_refused(path, path, "oh_backend_v1 returned NULL, wanted a table");
}

static void short_table_is_refused(void **state) {
    (void)state;
    const char *path = plant("short-table", "short_table");
    assert_refused(path, path, "table has 232 bytes, wanted at least the 256 of version 1.0");
}

static void later_minor_is_taken(void **state) {
    (void)state;
    const oh_backend *backend = load(plant("later-minor", "later_minor"));
    assert_true(backend->size > sizeof *backend);
    assert_int_equal(backend->minor, 7);
}

static void null_required_entry_is_refused(void **state) {
    (void)state;
    const char *path = plant("no-gemm", "no_gemm");
    assert_refused(path, path, "table's entries are NULL: gemm; every backend must have them");
}

static void accelerator_without_tile_operations_is_refused(void **state) {
    (void)state;
    const char *path = plant("accelerator", "accelerator");
    assert_refused(path, path, "copy_rows, matrix_norm, tile_stats, tile_overlap, tile_grad, row_finish, step_finish",
                   "only a backend with OH_CAP_HOST_MEMORY may leave them out");
}

static void backend_without_f32_products_is_refused(void **state) {
    (void)state;
    const char *path = plant("no-f32", "no_f32");
    assert_refused(path, path, "gemm_kinds is 0x2, wanted OH_GEMM_F32_F32 (0x1)");
}

static void table_called_unlike_the_file_is_refused(void **state) {
    (void)state;
    const char *path = plant("other-name", "other_name");
    assert_refused(path, path, "table's name is 'else', wanted 'other_name' as in the file's name");
}

static void plugin_of_another_sanitizer_is_refused(void **state) {
    (void)state;
    char own[64];
    snprintf(own, sizeof own, "built with sanitizer \"memory\", wanted the core's own, \"%s\"", oh_sanitizer());
    const char *path = plant("other-sanitizer", "other_sanitizer");
    assert_refused(path, path, own);
}

/* --------------------------------------------------------------------------------- every entry of the table ---- */

static void nothing(void) {}

/* A table with every entry set, as an accelerator's. */
static oh_backend whole_table(void) {
    oh_backend table = {0};
    void (*const function)(void) = nothing;
    for (size_t at = offsetof(oh_backend, device_count); at < sizeof table; at += sizeof function)
        memcpy((char *)&table + at, &function, sizeof function);
    table.size = sizeof table;
    table.gemm_kinds = OH_GEMM_F32_F32;
    table.name = "whole";
    table.build = "in the test";
    table.sanitizer = oh_sanitizer();
    return table;
}

static void assert_table_refused(const oh_backend *table, const char *words) {
    oh_error error = {.message = ""};
    assert_int_equal(oh_backend_table_check(table, NULL, &error), OH_NO_BACKEND);
    assert_says(error.message, (const char *const[]){words, NULL});
}

static void each_required_entry_is_missed(void **state) {
    (void)state;
    static const char *const names[] = {
        "device_count",
        "device_open",
        "device_close",
        "device_info",
        "last_error",
        "queue_open",
        "queue_wait",
        "queue_close",
        "alloc",
        "free",
        "upload",
        "download",
        "fill",
        NULL /* host_alloc */,
        NULL,
        "gemm",
        NULL /* gemm_scratch */,
        "copy_rows",
        "matrix_norm",
        "tile_stats",
        "tile_overlap",
        "tile_grad",
        "row_finish",
        "step_finish",
        NULL /* row_labels */,
        NULL /* queue_is_capturing */,
    };
    enum { ENTRIES = sizeof names / sizeof *names, FIRST_THAT_HOSTS_MAY_LACK = 17 };
    assert_int_equal(ENTRIES,
                     (offsetof(oh_backend, event_open) - offsetof(oh_backend, device_count)) / sizeof(void (*)(void)));
    for (size_t i = 0; i < ENTRIES; ++i) {
        oh_backend table = whole_table();
        memset((char *)&table + offsetof(oh_backend, device_count) + i * sizeof(void (*)(void)), 0,
               sizeof(void (*)(void)));
        char words[64];
        snprintf(words, sizeof words, "are NULL: %s; ", names[i] != NULL ? names[i] : "");
        if (names[i] != NULL) assert_table_refused(&table, words);
        table.caps = OH_CAP_HOST_MEMORY;
        if (names[i] != NULL && i < FIRST_THAT_HOSTS_MAY_LACK) assert_table_refused(&table, words);
        if (i >= FIRST_THAT_HOSTS_MAY_LACK) assert_int_equal(oh_backend_table_check(&table, "whole", NULL), OH_OK);
    }
}

static void optional_entries_may_be_null_but_not_half_a_pair(void **state) {
    (void)state;
    oh_backend table = whole_table();
    assert_int_equal(oh_backend_table_check(&table, "whole", NULL), OH_OK);
    table.gemm_scratch = NULL;
    table.host_free = NULL;
    assert_table_refused(&table, "table has host_alloc without host_free, wanted both or neither");
    table.host_alloc = NULL;
    assert_int_equal(oh_backend_table_check(&table, "whole", NULL), OH_OK);
}

static void events_are_all_or_none(void **state) {
    (void)state;
    enum { EVENTS = 4 };
    const size_t first = offsetof(oh_backend, event_open), each = sizeof(void (*)(void));
    for (size_t i = 0; i < EVENTS; ++i) {
        oh_backend table = whole_table();
        memset((char *)&table + first + i * each, 0, each);
        assert_table_refused(&table, "table has 3 of event_open, _close, _record, _seconds, wanted all or none");
    }
    oh_backend table = whole_table();
    memset((char *)&table + first, 0, EVENTS * each);
    assert_int_equal(oh_backend_table_check(&table, "whole", NULL), OH_OK);
    table = whole_table();
    table.size = first; /* of minor version 0: what lies behind isn't the table's */
    assert_int_equal(oh_backend_table_check(&table, "whole", NULL), OH_OK);
}

static void texts_of_the_table_are_checked(void **state) {
    (void)state;
    oh_backend table = whole_table();
    table.name = NULL;
    assert_table_refused(&table, "table's name is '(NULL)', wanted 1 to 63 of a-z, 0-9 and _");
    table.name = "Whole";
    assert_table_refused(&table, "table's name is 'Whole', wanted 1 to 63");
    table = whole_table();
    table.build = NULL;
    assert_table_refused(&table, "table's build is NULL");
    table = whole_table();
    table.sanitizer = NULL;
    assert_table_refused(&table, "built with sanitizer NULL, wanted the core's own");
}

static void every_entry_missing_still_fits_a_message(void **state) {
    (void)state;
    oh_backend table = whole_table();
    memset((char *)&table + offsetof(oh_backend, device_count), 0, sizeof table - offsetof(oh_backend, device_count));
    assert_table_refused(&table, "are NULL: device_count, device_open");
    assert_table_refused(&table, "download, fill, gemm; every backend must have them");
}

/* -------------------------------------------------------------------------------------------------- names ---- */

static void text_that_is_no_name_is_refused(void **state) {
    (void)state;
    static const char *const texts[] = {"",
                                        "Good",
                                        "go-od",
                                        "good.so",
                                        "onehead-good.so",
                                        "..",
                                        "go od",
                                        "g\xc3\xb6od",
                                        "a23456789_123456789_123456789_123456789_123456789_123456789_1234"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; ++i)
        assert_refused(texts[i], "no backend '", "wanted a name of 1 to 63 of a-z, 0-9 and _, or a path with a '/'");
}

static void file_that_is_called_otherwise_is_refused(void **state) {
    (void)state;
    static const char *const files[] = {"libgood.so", "onehead-.so",  "onehead-Good.so", "onehead-good.so.1",
                                        "good.so",    "onehead-good", "onehead-so",      ""};
    make_directory(in_root("called"), 0755);
    for (size_t i = 0; i < sizeof files / sizeof *files; ++i) {
        char relative[64];
        snprintf(relative, sizeof relative, "called/%s", files[i]);
        if (files[i][0] != '\0') copy_module("good", in_root(relative));
        assert_refused(in_root(relative), "the file is called '", "wanted onehead-<name>.so");
    }
    oh_backend_candidate *candidates = list(in_root("called"), 2); /* what isn't onehead-*.so is nobody's plugin */
    assert_candidate(&candidates[0], "onehead-.so", in_root("called/onehead-.so"), "the file is called 'onehead-.so'");
    assert_candidate(&candidates[1], "onehead-Good.so", in_root("called/onehead-Good.so"), "wanted onehead-<name>.so");
    free(candidates);
}

static void null_arguments_are_refused(void **state) {
    (void)state;
    const oh_backend *backend = NULL;
    oh_error error = {.message = ""};
    assert_int_equal(oh_backend_load(NULL, &backend, &error), OH_INVALID_ARGUMENT);
    assert_says(error.message, (const char *const[]){"name_or_path is NULL", NULL});
    assert_int_equal(oh_backend_load("good", NULL, &error), OH_INVALID_ARGUMENT);
    assert_says(error.message, (const char *const[]){"backend is NULL", NULL});
    assert_int_equal(oh_backend_load("Good", &backend, NULL), OH_NO_BACKEND); /* nowhere to say why */
}

static void long_and_hostile_paths_give_one_line_with_the_reason(void **state) {
    (void)state;
    char directory[200], path[PATH_SIZE];
    memset(directory, 'x', sizeof directory);
    memcpy(directory, "new\nline", 8);
    directory[sizeof directory - 1] = '\0';
    make_directory(in_root(directory), 0755);
    snprintf(path, sizeof path, "%s/%s", in_root(directory), directory);
    make_directory(path, 0755);
    snprintf(path, sizeof path, "%s/%s/onehead-good.so", in_root(directory), directory);
    write_file(path, "x", 1);
    assert_refused(path, "...", "xxx/onehead-good.so: is not an ELF file (1 bytes), wanted a shared object");
}

/* -------------------------------------------------------------------------------------------------- search ---- */

static void relative_directories_of_the_variable_are_ignored_and_named(void **state) {
    (void)state;
    plant("relative", "good");
    assert_return_code(chdir(root), 0);
    assert_return_code(setenv("ONEHEAD_BACKEND_PATH", "relative:./relative::.", 1), 0);
    assert_refused("good", "no backend 'good'", "ignored in ONEHEAD_BACKEND_PATH: 'relative' is not absolute",
                   "'./relative' is not absolute", "'' is empty", "'.' is not absolute", "wanted absolute directories",
                   PLANTED_INSTALLED_DIR);
    oh_backend_candidate *candidates = list("relative:", 2);
    assert_candidate(&candidates[0], "", "relative", "is not absolute, wanted an absolute directory");
    assert_candidate(&candidates[1], "", "", "is empty, wanted an absolute directory");
    free(candidates);
}

static void working_directory_is_never_searched(void **state) {
    (void)state;
    plant("working", "good");
    assert_return_code(chdir(in_root("working")), 0);
    assert_refused("good", "no backend 'good': no onehead-good.so in " PLANTED_INSTALLED_DIR ", " PLANTED_BUILT_DIR);
    assert_return_code(setenv("ONEHEAD_BACKEND_PATH", "", 1), 0);
    assert_refused("good", "no onehead-good.so in " PLANTED_INSTALLED_DIR);
    assert_refused("onehead-good.so", "or a path with a '/'");
    assert_int_equal(oh_backend_list(NULL, 0), 0);
    assert_return_code(chdir(root), 0);
}

static void explicit_relative_path_is_made_absolute(void **state) {
    (void)state;
    plant("within", "within");
    assert_return_code(chdir(in_root("within")), 0);
    const oh_backend *backend = load("./onehead-within.so");
    assert_return_code(chdir(root), 0);
    assert_ptr_equal(load("within/onehead-within.so"), backend);
    assert_ptr_equal(load(in_root("within/onehead-within.so")), backend);
    assert_return_code(chmod(in_root("within"), 0777), 0);
    assert_refused("within/../within/onehead-within.so", in_root("within/onehead-within.so"), "its directory");
}

static void search_takes_variable_then_installed_then_build(void **state) {
    (void)state;
    make_directory(PLANTED_INSTALLED_DIR, 0755);
    make_directory(PLANTED_BUILT_DIR, 0755);
    char found[PATH_SIZE];
    copy_module("both", PLANTED_BUILT_DIR "/onehead-both.so");
    assert_int_equal(oh_plugin_find("both", found, NULL), OH_OK);
    assert_string_equal(found, PLANTED_BUILT_DIR "/onehead-both.so");
    copy_module("both", PLANTED_INSTALLED_DIR "/onehead-both.so");
    assert_int_equal(oh_plugin_find("both", found, NULL), OH_OK);
    assert_string_equal(found, PLANTED_INSTALLED_DIR "/onehead-both.so");
    const char *first = plant("first", "both");
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s:%s:%s", in_root("nowhere"), in_root("first"), PLANTED_BUILT_DIR);

    oh_backend_candidate *candidates = list(path, 4); /* the build's once, although it is searched twice */
    assert_candidate(&candidates[0], "", in_root("nowhere"), "can't read the directory: No such file or directory");
    assert_candidate(&candidates[1], "both", first, "");
    assert_candidate(&candidates[2], "both", PLANTED_BUILT_DIR "/onehead-both.so", "'both' means ");
    assert_candidate(&candidates[3], "both", PLANTED_INSTALLED_DIR "/onehead-both.so", first);
    free(candidates);

    const oh_backend *backend = load("both");
    assert_ptr_equal(load(first), backend);
    assert_refused(PLANTED_INSTALLED_DIR "/onehead-both.so", "duplicate name: 'both' is already loaded from ", first);
    assert_return_code(remove_tree(PLANTED_INSTALLED_DIR), 0);
    assert_return_code(remove_tree(PLANTED_BUILT_DIR), 0);
}

static void search_does_not_go_on_behind_a_refused_file(void **state) {
    (void)state;
    const char *bad = plant("bad-first", "unlucky");
    plant("good-second", "unlucky");
    assert_return_code(chmod(bad, 0666), 0);
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s:%s", in_root("bad-first"), in_root("good-second"));
    assert_return_code(setenv("ONEHEAD_BACKEND_PATH", path, 1), 0);
    assert_refused("unlucky", bad, "is writable by group and others");
    assert_string_equal(load(in_root("good-second/onehead-unlucky.so"))->name, "unlucky");
}

static void list_counts_all_and_writes_no_more_than_asked(void **state) {
    (void)state;
    make_directory(in_root("many"), 0755);
    static const char *const files[] = {"many/onehead-c.so", "many/onehead-a.so", "many/onehead-b.so", "many/else.so"};
    for (size_t i = 0; i < sizeof files / sizeof *files; ++i)
        write_file(in_root(files[i]), "x", 1);
    assert_return_code(setenv("ONEHEAD_BACKEND_PATH", in_root("many"), 1), 0);
    oh_backend_candidate candidates[3];
    memset(candidates, 0x5a, sizeof candidates);
    const oh_backend_candidate untouched = candidates[2];
    assert_int_equal(oh_backend_list(candidates, 2), 3);
    assert_candidate(&candidates[0], "a", in_root(files[1]), "");
    assert_candidate(&candidates[1], "b", in_root(files[2]), "");
    assert_memory_equal(&candidates[2], &untouched, sizeof untouched);
    assert_int_equal(oh_backend_list(NULL, 0), 3);
    assert_int_equal(oh_backend_list(NULL, 5), 3);
}

/* ----------------------------------------------------------------------------------------- one file a name ---- */

static void same_file_gives_the_same_table_and_another_of_its_name_is_refused(void **state) {
    (void)state;
    const char *path = plant("twin", "twin"), *other = plant("other-twin", "twin");
    const oh_backend *backend = load(path);
    assert_string_equal(backend->name, "twin");
    assert_ptr_equal(load(path), backend);
    assert_refused(other, other, "duplicate name: 'twin' is already loaded from ", path, "wanted one file a name");
    assert_return_code(setenv("ONEHEAD_BACKEND_PATH", in_root("other-twin"), 1), 0);
    assert_refused("twin", other, "duplicate name");

    make_directory(in_root("same-twin"), 0755);
    assert_return_code(link(path, in_root("same-twin/onehead-twin.so")), 0);
    assert_ptr_equal(load(in_root("same-twin/onehead-twin.so")), backend);
    assert_return_code(link(path, in_root("same-twin/onehead-good.so")), 0);
    assert_refused(in_root("same-twin/onehead-good.so"), "is the file loaded as 'twin' from ", path,
                   "wanted a backend 'good'");
}

static void checks_hold_for_what_is_already_loaded(void **state) {
    (void)state;
    const char *path = in_root("twin/onehead-twin.so");
    const oh_backend *backend = load(path);
    assert_return_code(chmod(path, 0664), 0);
    assert_refused(path, path, "is writable by group");
    assert_return_code(chmod(path, 0644), 0);
    assert_ptr_equal(load(path), backend);
}

static void file_replaced_in_a_running_process_is_not_mistaken_for_the_old_one(void **state) {
    (void)state;
    const char *path = plant("replaced", "replaced"), *next = in_root("replaced/next");
    copy_module("no_symbol", path);
    assert_refused(path, path, "exports no oh_backend_v1");
    copy_module("replaced", next);
    assert_return_code(rename(next, path), 0);
    assert_refused(path, path, "was refused before and replaced since");

    const char *loaded = in_root("twin/onehead-twin.so");
    const oh_backend *backend = load(loaded);
    copy_module("twin", next);
    assert_return_code(rename(next, loaded), 0);
    assert_ptr_equal(load(loaded), backend);
}

/* ------------------------------------------------------------------------------------------------- threads ---- */

enum { THREADS = 8, ROUNDS = 20 };

typedef struct thread_case {
    pthread_barrier_t *start;
    const char *text;
    const oh_backend *backends[ROUNDS];
    oh_error errors[ROUNDS];
} thread_case;

static void *load_in_rounds(void *argument) {
    thread_case *own = argument;
    pthread_barrier_wait(own->start);
    for (int i = 0; i < ROUNDS; ++i)
        oh_backend_load(own->text, &own->backends[i], &own->errors[i]);
    return NULL;
}

static void threads_that_load_at_once_get_one_table_beside_one_that_fails(void **state) {
    (void)state;
    const char *good = plant("threaded", "threaded"), *bad = plant("threaded-bad", "no_symbol");
    assert_return_code(setenv("ONEHEAD_BACKEND_PATH", in_root("threaded"), 1), 0);
    static thread_case cases[THREADS];
    pthread_t threads[THREADS];
    pthread_barrier_t start;
    assert_int_equal(pthread_barrier_init(&start, NULL, THREADS), 0);
    for (int t = 0; t < THREADS; ++t) {
        cases[t].start = &start;
        cases[t].text = t == 0 ? bad : (t % 2 == 0 ? good : "threaded");
        assert_int_equal(pthread_create(&threads[t], NULL, load_in_rounds, &cases[t]), 0);
    }
    for (int t = 0; t < THREADS; ++t)
        assert_int_equal(pthread_join(threads[t], NULL), 0);
    assert_int_equal(pthread_barrier_destroy(&start), 0);

    const oh_backend *backend = load(good);
    for (int i = 0; i < ROUNDS; ++i) {
        assert_null(cases[0].backends[i]);
        assert_says(cases[0].errors[i].message, (const char *const[]){"exports no oh_backend_v1", NULL});
        for (int t = 1; t < THREADS; ++t)
            assert_ptr_equal(cases[t].backends[i], backend);
    }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup(name, clear_environment)
    const struct CMUnitTest tests[] = {
        TEST(file_of_another_owner_is_refused),
        TEST(directory_of_another_owner_is_refused),
        TEST(effective_user_may_load_its_own_files_and_roots),
        TEST(writable_file_is_refused),
        TEST(writable_directory_is_refused),
        TEST(links_are_judged_by_where_they_lead),
        TEST(dangling_and_circular_links_are_refused),
        TEST(link_to_a_good_file_is_loaded_under_the_links_name),
        TEST(fifo_is_refused_without_being_opened),
        TEST(directory_and_device_are_refused),
        TEST(missing_path_is_refused),
        TEST(file_that_is_not_elf_is_refused),
        TEST(elf_of_another_kind_is_refused),
        TEST(file_cut_short_is_refused),
        TEST(plugin_with_an_unresolved_symbol_is_refused),
        TEST(plugin_that_needs_another_sanitizers_runtime_is_refused_before_it_starts),
        TEST(plugin_without_the_entry_is_refused),
        TEST(plugin_of_another_major_is_refused_with_both_versions),
        TEST(table_exported_in_place_of_the_entry_is_refused),
        TEST(null_table_is_refused),
        TEST(short_table_is_refused),
        TEST(later_minor_is_taken),
        TEST(null_required_entry_is_refused),
        TEST(accelerator_without_tile_operations_is_refused),
        TEST(backend_without_f32_products_is_refused),
        TEST(table_called_unlike_the_file_is_refused),
        TEST(plugin_of_another_sanitizer_is_refused),
        TEST(each_required_entry_is_missed),
        TEST(optional_entries_may_be_null_but_not_half_a_pair),
        TEST(events_are_all_or_none),
        TEST(texts_of_the_table_are_checked),
        TEST(every_entry_missing_still_fits_a_message),
        TEST(text_that_is_no_name_is_refused),
        TEST(file_that_is_called_otherwise_is_refused),
        TEST(null_arguments_are_refused),
        TEST(long_and_hostile_paths_give_one_line_with_the_reason),
        TEST(relative_directories_of_the_variable_are_ignored_and_named),
        TEST(working_directory_is_never_searched),
        TEST(explicit_relative_path_is_made_absolute),
        TEST(search_takes_variable_then_installed_then_build),
        TEST(search_does_not_go_on_behind_a_refused_file),
        TEST(list_counts_all_and_writes_no_more_than_asked),
        TEST(same_file_gives_the_same_table_and_another_of_its_name_is_refused),
        TEST(checks_hold_for_what_is_already_loaded),
        TEST(file_replaced_in_a_running_process_is_not_mistaken_for_the_old_one),
        TEST(threads_that_load_at_once_get_one_table_beside_one_that_fails),
    };
    return cmocka_run_group_tests_name("loader", tests, make_root, remove_root);
}
