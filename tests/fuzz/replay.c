/* Runs a libFuzzer target once on every file of the given folders, so that what the fuzzer found stays a test of every
 * compiler and sanitizer. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* 1: ran; 0: not a regular file; -1: failed, and said why. */
static int replay_file(const char *path) {
    struct stat status;
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode)) return 0;
    FILE *const file = fopen(path, "rb");
    if (file == NULL) {
        fprintf(stderr, "replay: %s: %s\n", path, strerror(errno));
        return -1;
    }
    int result = -1;
    const size_t size = (size_t)status.st_size;
    uint8_t *const bytes = malloc(size > 0 ? size : 1);
    if (bytes != NULL && fread(bytes, 1, size, file) == size) {
        fprintf(stderr, "%s\n", path); /* the last line before a crash names the input */
        (void)LLVMFuzzerTestOneInput(bytes, size);
        result = 1;
    } else {
        fprintf(stderr, "replay: %s: could not read %zu bytes\n", path, size);
    }
    free(bytes);
    (void)fclose(file);
    return result;
}

/* How many files of the folder ran, or -1. */
static long replay_folder(const char *folder) {
    DIR *const entries = opendir(folder);
    if (entries == NULL) {
        fprintf(stderr, "replay: %s: %s\n", folder, strerror(errno));
        return -1;
    }
    long count = 0;
    for (const struct dirent *entry; count >= 0 && (entry = readdir(entries)) != NULL;) {
        char path[PATH_MAX];
        if (snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) >= (int)sizeof path) continue;
        const int ran = replay_file(path);
        count = ran < 0 ? -1 : count + ran;
    }
    (void)closedir(entries);
    return count;
}

int main(int argc, char **argv) {
    long total = 0;
    for (int i = 1; i < argc; ++i) {
        const long count = replay_folder(argv[i]);
        if (count < 0) return 1;
        total += count;
    }
    printf("%ld inputs replayed\n", total);
    return total > 0 ? 0 : 1;
}
