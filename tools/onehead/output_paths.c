#include "output_paths.h"

#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "checkpoint.h"
#include "error_line.h"

typedef struct place {
    struct stat file, folder;
    bool exists, has_folder;
    const char *name; /* within the folder */
} place;

static place place_of(const char *path) {
    place p = {.exists = stat(path, &p.file) == 0};
    const char *const slash = strrchr(path, '/');
    char folder[PATH_MAX] = ".";
    p.name = slash != NULL ? slash + 1 : path;
    if (slash != NULL) {
        const size_t length = slash == path ? 1 : (size_t)(slash - path);
        if (length >= sizeof folder) return p;
        memcpy(folder, path, length);
        folder[length] = '\0';
    }
    p.has_folder = stat(folder, &p.folder) == 0;
    return p;
}

static bool is_same(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Devices and FIFOs are written straight: several outputs may go to one. */
static bool would_replace(const char *output, const char *other) {
    const place a = place_of(output), b = place_of(other);
    if (a.exists && b.exists) return S_ISREG(a.file.st_mode) && is_same(&a.file, &b.file);
    return !a.exists && !b.exists && a.has_folder && b.has_folder && is_same(&a.folder, &b.folder) &&
           strcmp(a.name, b.name) == 0;
}

/* FILE[:TENSOR], an index file or a checkpoint's folder: of the latter two every file that is there counts. A spec that
 * names nothing is for ckpt_open to refuse. */
static bool is_in_checkpoint(const char *output, const char *lm_head) {
    char path[PATH_MAX];
    const size_t length = strlen(lm_head);
    if (length >= sizeof path) return false;
    memcpy(path, lm_head, length + 1);
    char *tensor;
    oh_error unused;
    if (ckpt_split_spec(path, &tensor, &unused) != OH_OK) return false;
    if (would_replace(output, path)) return true;
    const place out = place_of(output), head = place_of(path);
    if (!out.exists || !out.has_folder) return false;
    if (S_ISDIR(head.file.st_mode)) return is_same(&out.folder, &head.file);
    return ckpt_is_index_name(path) && head.has_folder && is_same(&out.folder, &head.folder);
}

oh_status output_paths_check(const options *o, oh_error *error) {
    const struct {
        const char *option, *path;
    } outputs[] = {{"--grad", o->grad_file},
                   {"--rows", o->rows_file},
                   {"--trace", o->trace_file},
                   {"--out", o->out_file},
                   {"--dot", o->dot_file}};
    enum { COUNT = sizeof outputs / sizeof outputs[0] };
    for (int i = 0; i < COUNT; i++) {
        const char *const path = outputs[i].path;
        if (path == NULL) continue;
        for (int k = 0; k < o->input_count; k++)
            if (would_replace(path, o->inputs[k]))
                return error_line(error, OH_INVALID_ARGUMENT, outputs[i].option, "'%.100s' is also an input", path);
        if (o->input_count == 0 && o->input != NULL && would_replace(path, o->input))
            return error_line(error, OH_INVALID_ARGUMENT, outputs[i].option, "'%.100s' is also the input", path);
        if (o->lm_head != NULL && is_in_checkpoint(path, o->lm_head))
            return error_line(error, OH_INVALID_ARGUMENT, outputs[i].option, "'%.100s' is also a file of --lm-head",
                              path);
        for (int k = 0; k < i; k++)
            if (outputs[k].path != NULL && would_replace(path, outputs[k].path))
                return error_line(error, OH_INVALID_ARGUMENT, outputs[i].option, "'%.100s' is also %s's", path,
                                  outputs[k].option);
    }
    return OH_OK;
}
