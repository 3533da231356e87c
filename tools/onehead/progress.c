#include "progress.h"

#include <stdio.h>
#include <unistd.h>

void progress_show(const char *text) {
    if (!isatty(STDERR_FILENO)) return;
    fprintf(stderr, "\r\033[K%s", text != NULL ? text : "");
    fflush(stderr);
}
