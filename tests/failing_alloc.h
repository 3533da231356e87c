/* failing_alloc.h - makes the nth allocation of our own code fail.
 *
 * Linked into a test, it stands in front of the C library's allocator (and of a sanitizer's) for the whole process, and
 * of mmap and pthread_create, which fail for the same reasons. Only calls out of our own objects count and fail: the
 * test itself with what is linked into it, libonehead, the plugins, and jansson, whose callers we are. OpenBLAS and the
 * OpenMP runtime end the process where they have no memory, which no caller can change. */
#ifndef ONEHEAD_TESTS_FAILING_ALLOC_H
#define ONEHEAD_TESTS_FAILING_ALLOC_H

#include <stdbool.h>
#include <stdint.h>

/* From here on the nth allocation fails, on whatever thread; every later one too, if `lasting`. */
void failing_alloc_arm(int64_t nth, bool lasting);

/* Ends that. How many allocations were asked for since then: fewer than nth, and none failed. */
int64_t failing_alloc_disarm(void);

#endif
