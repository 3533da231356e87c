#define _XOPEN_SOURCE 700

#include "mapped_file.h"

#include "error_line.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *kind_of(mode_t mode) {
    if (S_ISDIR(mode)) return "a directory";
    if (S_ISFIFO(mode)) return "a FIFO";
    if (S_ISSOCK(mode)) return "a socket";
    return "a device";
}

file_stamp file_stamp_of(const struct stat *info) {
    return (file_stamp){info->st_size, (int64_t)info->st_mtim.tv_sec * 1000000000 + info->st_mtim.tv_nsec};
}

oh_status mapped_file_open(mapped_file *file, const char *path, oh_error *error) {
    *file = (mapped_file){0};

    /* O_NONBLOCK: opening a FIFO that nobody writes would wait for ever, before fstat can refuse it. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return error_line(error, OH_IO, path, "can't open: %s", strerror(errno));

    oh_status status = OH_OK;
    struct stat info;
    if (fstat(fd, &info) != 0) {
        status = error_line(error, OH_IO, path, "can't stat: %s", strerror(errno));
        goto done;
    }
    if (!S_ISREG(info.st_mode)) {
        status = error_line(error, OH_IO, path, "is %s, expected a regular file", kind_of(info.st_mode));
        goto done;
    }
    if ((uintmax_t)info.st_size > SIZE_MAX) {
        status =
            error_line(error, OH_IO, path, "%jd bytes don't fit this machine's address space", (intmax_t)info.st_size);
        goto done;
    }
    file->stamp = file_stamp_of(&info);
    if (info.st_size == 0) { /* mmap refuses length 0 */
        file->bytes = "";
        goto done;
    }
    void *const bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED) {
        status = error_line(error, errno == ENOMEM ? OH_OUT_OF_MEMORY : OH_IO, path, "can't map %jd bytes: %s",
                            (intmax_t)info.st_size, strerror(errno));
        goto done;
    }
    file->bytes = bytes;
    file->size = (size_t)info.st_size;

done:
    close(fd); /* read-only: nothing can be lost, and the mapping outlives the descriptor */
    return status;
}

void mapped_file_close(mapped_file *file) {
    if (file->size > 0) munmap((void *)(uintptr_t)file->bytes, file->size);
    *file = (mapped_file){0};
}
