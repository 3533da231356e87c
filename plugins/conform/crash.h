/* crash.h - the last words of a process whose plugin crashed: which case it was, and the line that repeats it. */
#ifndef ONEHEAD_CONFORM_CRASH_H
#define ONEHEAD_CONFORM_CRASH_H

#include "conform.h"

/* Sets handlers of SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT; crash_unwatch puts the old ones back. */
void crash_watch(void);
void crash_unwatch(void);

/* The case that runs from now on; NULL: none. */
void crash_name(const conform_options *options, const char *name);

#endif
