#include "crash.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SIGNALS = 5 };

static const int watched[SIGNALS] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
static struct sigaction saved[SIGNALS];

/* Written while no case runs, read by the handler. */
static char last_words[4096 + 2 * CONFORM_NAME_SIZE + 100];
static volatile sig_atomic_t word_count;

static void say_and_end(int number) {
    (void)number;
    const ssize_t written = write(STDERR_FILENO, last_words, (size_t)word_count);
    (void)written;
    _exit(1);
}

void crash_watch(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    sigemptyset(&action.sa_mask);
    action.sa_handler = say_and_end;
    for (int i = 0; i < SIGNALS; ++i)
        sigaction(watched[i], &action, &saved[i]);
}

void crash_unwatch(void) {
    for (int i = 0; i < SIGNALS; ++i)
        sigaction(watched[i], &saved[i], NULL);
}

void crash_name(const conform_options *options, const char *name) {
    word_count = 0;
    const char *text = name ? name : "(between cases)";
    const int length =
        snprintf(last_words, sizeof last_words,
                 "onehead: conform: %s crashed\n  repeat: onehead conform %s --seed %" PRIu64 " --filter %s\n", text,
                 options->backend, options->seed, text);
    if (length > 0) word_count = length < (int)sizeof last_words ? length : (int)sizeof last_words - 1;
}
