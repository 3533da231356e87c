#include "progress.h"

#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* What fits in one line: one that wraps couldn't be taken back. */
static int width(void) {
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 2) return 79;
    return size.ws_col - 1;
}

void progress_show(const char *text) {
    if (!isatty(STDERR_FILENO)) return;
    fprintf(stderr, "\r\033[K%.*s", width(), text != NULL ? text : "");
    fflush(stderr);
}
