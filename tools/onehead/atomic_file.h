/* atomic_file.h - an output file that appears whole or not at all.
 *
 * The bytes go to a temporary file in the destination's folder; commit renames it over the destination, discard removes
 * it. A reader sees the old file or the new one, never half of one. The mode is 0666 less the umask, as with open.
 *
 *     atomic_file *file;
 *     if (atomic_file_open(&file, path, &error) != OH_OK) ...
 *     if (atomic_file_write(file, text, length, &error) != OH_OK) { atomic_file_discard(file); ... }
 *     if (atomic_file_commit(file, &error) != OH_OK) ...
 *
 * A destination that exists and is no regular file (/dev/stdout, a FIFO) can't be renamed over: it is written straight.
 * A link is followed, so that it keeps pointing to the file; a dangling link is replaced.
 *
 * Threads: different files are independent. Writes aren't buffered: write large pieces. */
#ifndef ONEHEAD_TOOL_ATOMIC_FILE_H
#define ONEHEAD_TOOL_ATOMIC_FILE_H

#include <onehead/status.h>

#include <stddef.h>

enum { ATOMIC_FILE_LIMIT = 16 }; /* open at the same time */

typedef struct atomic_file atomic_file;

/* Errors of these three: OH_IO with the path and the system's reason; OH_OUT_OF_MEMORY. On failure *file is NULL. */
oh_status atomic_file_open(atomic_file **file, const char *path, oh_error *error);

/* Writes all bytes, whatever the system accepts at a time. After a failure the file can only be discarded: commit
 * refuses it. */
oh_status atomic_file_write(atomic_file *file, const void *bytes, size_t size, oh_error *error);

/* Flushes to disk, closes, renames. Frees the file, also on failure, and then removes what was written. */
oh_status atomic_file_commit(atomic_file *file, oh_error *error);

/* Commits several files that belong together: all appear, or none does and the old ones are there again. NULL entries
 * are skipped. Every file is flushed and closed before the first gets its name; where a name can't be given, those given
 * before are taken back. Frees all of them, also on failure.
 *
 * Two things it can't do: on a file system that doesn't exchange names (NFS, say) a file that replaced another one
 * stays, whole, where a later one fails; and a process that is killed between two renames leaves new files beside old
 * ones, each whole. */
oh_status atomic_file_commit_all(atomic_file *const *files, int count, oh_error *error);

/* Removes the temporary file and frees. NULL is fine. */
void atomic_file_discard(atomic_file *file);

/* The destination as given to open. */
const char *atomic_file_path(const atomic_file *file);

/* Removes every temporary file that is open now; async-signal-safe, for a SIGINT handler that then ends the process.
 * Nothing is freed or closed; a commit after it fails. */
void atomic_file_discard_all(void);

#endif
