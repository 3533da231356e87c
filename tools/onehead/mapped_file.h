/* mapped_file.h - a whole regular file, mapped read-only. */
#ifndef ONEHEAD_TOOL_MAPPED_FILE_H
#define ONEHEAD_TOOL_MAPPED_FILE_H

#include <onehead/status.h>

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

/* Whether a file is still the same, as the system says. */
typedef struct file_stamp {
    int64_t bytes, modified_ns;
} file_stamp;

file_stamp file_stamp_of(const struct stat *info);

typedef struct mapped_file {
    const void *bytes; /* never NULL after a successful open */
    size_t size;
    file_stamp stamp; /* of what is mapped */
} mapped_file;

/* Maps `path`, following links. Anything but a regular file is refused without blocking on it (a FIFO, a device, a
 * directory). Errors: OH_IO, with the path and the system's reason.
 *
 * Limit: a file that another process truncates while it is mapped kills the reader with SIGBUS on the next access. */
oh_status mapped_file_open(mapped_file *file, const char *path, oh_error *error);

/* Unmaps and clears the record; a zeroed record is fine. */
void mapped_file_close(mapped_file *file);

#endif
