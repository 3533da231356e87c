/* Whom a file can come from. Whoever can write the file or its directory can run code in this process, so both must
 * belong to root or to the user that the process acts for, and to nobody else. */
#define _GNU_SOURCE /* O_PATH, the thread-safe strerror_r */
#include "loader.h"

#include "status.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static const char *type_name(mode_t mode) {
    switch (mode & S_IFMT) {
    case S_IFREG:
        return "a regular file";
    case S_IFDIR:
        return "a directory";
    case S_IFIFO:
        return "a fifo";
    case S_IFSOCK:
        return "a socket";
    case S_IFCHR:
        return "a character device";
    case S_IFBLK:
        return "a block device";
    case S_IFLNK:
        return "a symbolic link"; /* put there after the path was resolved */
    default:
        return "of an unknown type";
    }
}

/* `subject` is "" for the file itself or "its directory ". */
static oh_status check_access(const struct stat *found, const char *subject, oh_error *error) {
    const uid_t user = geteuid();
    if (found->st_uid != 0 && found->st_uid != user) {
        if (user == 0)
            return oh_fail(error, OH_NO_BACKEND, "%sis owned by uid %u, wanted root (0)", subject, found->st_uid);
        return oh_fail(error, OH_NO_BACKEND, "%sis owned by uid %u, wanted root (0) or the effective user (%u)",
                       subject, found->st_uid, user);
    }
    if (found->st_mode & (S_IWGRP | S_IWOTH)) {
        const int group = (found->st_mode & S_IWGRP) != 0, others = (found->st_mode & S_IWOTH) != 0;
        return oh_fail(error, OH_NO_BACKEND, "%sis writable by %s (mode %04o), wanted only by its owner (chmod go-w)",
                       subject, group && others ? "group and others" : (group ? "group" : "others"),
                       found->st_mode & 07777u);
    }
    return OH_OK;
}

static oh_status check_file(const struct stat *found, oh_error *error) {
    if (!S_ISREG(found->st_mode))
        return oh_fail(error, OH_NO_BACKEND, "is %s, wanted a regular file", type_name(found->st_mode));
    return check_access(found, "", error);
}

static oh_status system_refuses(const char *action, oh_error *error) {
    const int code = errno;
    const int missing = code == ENOENT || code == ENOTDIR || code == EACCES || code == ELOOP || code == ENAMETOOLONG;
    char words[100];
    return oh_fail(error, missing ? OH_NO_BACKEND : OH_IO, "can't %s: %s", action,
                   strerror_r(code, words, sizeof words));
}

static int open_parent(const char *path, const char *base) {
    char parent[OH_PLUGIN_PATH_SIZE];
    const size_t length = (size_t)(base - path);
    if (length >= sizeof parent) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(parent, path, length);
    parent[length] = '\0';
    return open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

oh_status oh_plugin_file_check(const char *path, int *fd, struct stat *found, oh_error *error) {
    struct stat seen;
    int opened = -1;
    const char *base = strrchr(path, '/') + 1;
    const int parent = open_parent(path, base);
    if (parent < 0) return system_refuses("open its directory", error);

    oh_status status = OH_OK;
    if (fstat(parent, &seen) != 0) {
        status = system_refuses("stat its directory", error);
        goto done;
    }
    status = check_access(&seen, "its directory ", error);
    if (status != OH_OK) goto done;

    /* Looked at before it is opened: opening a fifo or a device can block or do things. */
    if (fstatat(parent, base, &seen, AT_SYMLINK_NOFOLLOW) != 0) {
        status = system_refuses("stat it", error);
        goto done;
    }
    status = check_file(&seen, error);
    if (status != OH_OK || fd == NULL) goto done;

    /* Looked at again once open: this is the file whose contents are read. */
    opened = openat(parent, base, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (opened < 0 || fstat(opened, found) != 0) {
        status = system_refuses("open it", error);
        goto done;
    }
    status = check_file(found, error);
    if (status != OH_OK) goto done;
    *fd = opened;
    opened = -1;

done:
    if (opened >= 0) close(opened);
    close(parent);
    return status;
}
