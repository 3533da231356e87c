#define _GNU_SOURCE /* renameat2 */

#include "atomic_file.h"

#include "error_line.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "a signal handler may only use lock-free atomics");

/* The temporary files that a signal must remove, in fixed storage that a handler may read.
 *
 * FREE -> CLAIMED (its owner writes the path) -> ARMED -> FREE again by its owner, or -> REMOVING -> REMOVED by the
 * handler. The path changes only in CLAIMED and the handler reads it only in REMOVING, so a handler that runs on
 * another thread never sees half a path. */
enum slot_state { SLOT_FREE, SLOT_CLAIMED, SLOT_ARMED, SLOT_REMOVING, SLOT_REMOVED };

typedef struct temporary_slot {
    atomic_int state;
    char path[PATH_MAX]; /* absolute: the process may change its folder */
} temporary_slot;

static temporary_slot slots[ATOMIC_FILE_LIMIT];

typedef enum file_name {
    NAMED_NOT,
    NAMED_NEW,       /* the target wasn't there */
    NAMED_REPLACED,  /* the old target is gone */
    NAMED_EXCHANGED, /* the old target has the temporary file's name */
} file_name;

struct atomic_file {
    char *path;           /* as given */
    char *target;         /* what the rename replaces */
    temporary_slot *slot; /* NULL: written straight */
    int fd;
    file_name named;
    bool failed;
};

static temporary_slot *claim_slot(void) {
    for (int i = 0; i < ATOMIC_FILE_LIMIT; i++) {
        int expected = SLOT_FREE;
        if (atomic_compare_exchange_strong(&slots[i].state, &expected, SLOT_CLAIMED)) return &slots[i];
    }
    return NULL;
}

static void free_slot(temporary_slot *slot) {
    for (;;) {
        int state = atomic_load(&slot->state);
        /* A handler on another thread still reads the path: the slot stays lost, the process is ending. */
        if (state == SLOT_REMOVING) return;
        if (atomic_compare_exchange_strong(&slot->state, &state, SLOT_FREE)) return;
    }
}

void atomic_file_discard_all(void) {
    const int saved = errno;
    for (int i = 0; i < ATOMIC_FILE_LIMIT; i++) {
        int expected = SLOT_ARMED;
        if (!atomic_compare_exchange_strong(&slots[i].state, &expected, SLOT_REMOVING)) continue;
        unlink(slots[i].path);
        atomic_store(&slots[i].state, SLOT_REMOVED);
    }
    errno = saved;
}

/* The absolute path that the rename replaces; NULL with errno set when the folder doesn't exist. */
static char *resolve_target(const char *path) {
    char *const existing = realpath(path, NULL);
    if (existing != NULL) return existing;
    if (errno != ENOENT) return NULL;

    const char *const slash = strrchr(path, '/');
    const char *const base = slash == NULL ? path : slash + 1;
    if (base[0] == '\0') return NULL; /* "folder/" where there is no such folder: errno is ENOENT */

    char *const given = slash == NULL ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
    if (given == NULL) return NULL;
    char *const folder = realpath(given, NULL);
    const int saved = errno;
    free(given);
    errno = saved;
    if (folder == NULL) return NULL;

    const size_t size = strlen(folder) + 1 + strlen(base) + 1;
    char *const target = malloc(size);
    if (target != NULL) snprintf(target, size, "%s/%s", strcmp(folder, "/") == 0 ? "" : folder, base);
    free(folder);
    return target;
}

/* Not mkstemp: its files are 0600, and the umask that would widen them can only be read by changing it for all threads.
 */
static oh_status open_temporary(atomic_file *file, oh_error *error) {
    file->slot = claim_slot();
    if (file->slot == NULL) {
        return error_line(error, OH_IO, file->path, "can't create: %d output files are open, the most at a time",
                          ATOMIC_FILE_LIMIT);
    }
    temporary_slot *const slot = file->slot;
    const int folder_length = (int)(strrchr(file->target, '/') - file->target);
    for (int attempt = 0; attempt < 100; attempt++) {
        uint64_t number;
        if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) continue; /* interrupted */
        const int length = snprintf(slot->path, sizeof slot->path, "%.*s/.onehead-%016" PRIx64 ".tmp", folder_length,
                                    file->target, number);
        if (length >= (int)sizeof slot->path) {
            errno = ENAMETOOLONG;
            break;
        }
        /* Armed before the file exists: unlinking a name that isn't there is harmless, a file that nobody removes
         * isn't. */
        atomic_store(&slot->state, SLOT_ARMED);
        file->fd = open(slot->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (file->fd >= 0) return OH_OK;

        int expected = SLOT_ARMED;
        if (!atomic_compare_exchange_strong(&slot->state, &expected, SLOT_CLAIMED)) {
            errno = EINTR;
            break;
        }
        if (errno != EEXIST && errno != EINTR) break;
    }
    const oh_status status =
        error_line(error, OH_IO, file->path, "can't create a temporary file beside it: %s", strerror(errno));
    free_slot(slot);
    file->slot = NULL;
    return status;
}

static void free_file(atomic_file *file) {
    free(file->path);
    free(file->target);
    free(file);
}

static oh_status open_into(atomic_file *file, oh_error *error) {
    file->target = resolve_target(file->path);
    const int reason = errno;
    struct stat info;
    const bool exists =
        stat(file->path, &info) == 0; /* of the path as given: a pipe behind /dev/stdout has no real one */
    if (exists && S_ISDIR(info.st_mode)) {
        return error_line(error, OH_IO, file->path, "is a directory, expected a file to write");
    }
    if (exists && !S_ISREG(info.st_mode)) {
        file->fd = open(file->path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
        if (file->fd >= 0) return OH_OK;
        return error_line(error, OH_IO, file->path, "can't open: %s", strerror(errno));
    }
    if (file->target == NULL) {
        return error_line(error, reason == ENOMEM ? OH_OUT_OF_MEMORY : OH_IO, file->path, "can't create: %s",
                          strerror(reason));
    }
    return open_temporary(file, error);
}

oh_status atomic_file_open(atomic_file **file, const char *path, oh_error *error) {
    *file = NULL;
    atomic_file *const made = calloc(1, sizeof *made);
    if (made != NULL) made->path = strdup(path);
    if (made == NULL || made->path == NULL) {
        free(made);
        return error_line(error, OH_OUT_OF_MEMORY, path, "out of memory");
    }
    made->fd = -1;
    const oh_status status = open_into(made, error);
    if (status != OH_OK) {
        free_file(made);
        return status;
    }
    *file = made;
    return OH_OK;
}

oh_status atomic_file_write(atomic_file *file, const void *bytes, size_t size, oh_error *error) {
    const char *at = bytes;
    while (size > 0) {
        /* Linux takes at most 2 GiB a call; other systems refuse more than INT_MAX. */
        const size_t piece = size < (size_t)1 << 30 ? size : (size_t)1 << 30;
        const ssize_t written = write(file->fd, at, piece);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) {
            file->failed = true;
            return error_line(error, OH_IO, file->path, "can't write: %s", strerror(written < 0 ? errno : EIO));
        }
        at += written;
        size -= (size_t)written;
    }
    return OH_OK;
}

/* Everything that can fail before the file gets its name. */
static oh_status flush(atomic_file *file, oh_error *error) {
    oh_status status = OH_OK;
    if (file->failed) {
        status = error_line(error, OH_IO, file->path, "not written: an earlier write failed");
    } else if (file->slot != NULL && fsync(file->fd) != 0) {
        status = error_line(error, OH_IO, file->path, "can't flush to disk: %s", strerror(errno));
    }
    /* A network file system may report a failed write only now. EINTR: the descriptor is gone all the same. */
    const int closed = close(file->fd);
    file->fd = -1;
    if (status == OH_OK && closed != 0 && errno != EINTR) {
        status = error_line(error, OH_IO, file->path, "can't close: %s", strerror(errno));
    }
    return status;
}

/* The state before give_name, as far as the old file is still there. */
static void take_back(atomic_file *file) {
    const char *const temporary = file->slot != NULL ? file->slot->path : NULL;
    if (file->named == NAMED_EXCHANGED && renameat2(AT_FDCWD, temporary, AT_FDCWD, file->target, RENAME_EXCHANGE) == 0)
        file->named = NAMED_NOT;
    if (file->named == NAMED_NEW && rename(file->target, temporary) == 0) file->named = NAMED_NOT;
}

static bool is_folder(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* With `kept` the old file gets the temporary file's name, from where take_back fetches it. 0, or -1 with errno. */
static int give_name(atomic_file *file, bool kept) {
    const char *const temporary = file->slot->path;
    if (kept && renameat2(AT_FDCWD, temporary, AT_FDCWD, file->target, RENAME_EXCHANGE) == 0) {
        file->named = NAMED_EXCHANGED;
        if (!is_folder(temporary)) return 0; /* which rename would have refused to replace */
        take_back(file);
        errno = EISDIR;
        return -1;
    }
    if (kept && renameat2(AT_FDCWD, temporary, AT_FDCWD, file->target, RENAME_NOREPLACE) == 0) {
        file->named = NAMED_NEW;
        return 0;
    }
    if (rename(temporary, file->target) != 0) return -1;
    file->named = NAMED_REPLACED;
    return 0;
}

static oh_status give_names(atomic_file *const *files, int count, oh_error *error) {
    int renames = 0;
    for (int i = 0; i < count; i++)
        renames += files[i] != NULL && files[i]->slot != NULL;
    for (int i = 0; i < count; i++) {
        if (files[i] == NULL || files[i]->slot == NULL || give_name(files[i], renames > 1) == 0) continue;
        const oh_status status =
            error_line(error, OH_IO, files[i]->path, "can't rename the temporary file over it: %s", strerror(errno));
        for (int k = 0; k < i; k++)
            if (files[k] != NULL) take_back(files[k]);
        return status;
    }
    return OH_OK;
}

oh_status atomic_file_commit_all(atomic_file *const *files, int count, oh_error *error) {
    oh_status status = OH_OK;
    for (int i = 0; i < count && status == OH_OK; i++)
        if (files[i] != NULL) status = flush(files[i], error);
    if (status == OH_OK) status = give_names(files, count, error);
    for (int i = 0; i < count; i++)
        atomic_file_discard(files[i]);
    return status;
}

oh_status atomic_file_commit(atomic_file *file, oh_error *error) {
    return atomic_file_commit_all(&file, 1, error);
}

void atomic_file_discard(atomic_file *file) {
    if (file == NULL) return;
    if (file->fd >= 0) close(file->fd);
    if (file->slot != NULL) {
        /* The temporary file, or the old one that it has changed names with. */
        if (file->named == NAMED_NOT || file->named == NAMED_EXCHANGED) unlink(file->slot->path);
        free_slot(file->slot);
    }
    free_file(file);
}

const char *atomic_file_path(const atomic_file *file) {
    return file->path;
}
