/* Uninstrumented (tests/CMakeLists.txt): it runs before a sanitizer has set itself up. */
#include "failing_alloc.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define REPLACES __attribute__((visibility("default")))

static atomic_bool armed, lasts;
static _Atomic int64_t failing, asked;

void failing_alloc_arm(int64_t nth, bool lasting) {
    atomic_store(&asked, 0);
    atomic_store(&failing, nth);
    atomic_store(&lasts, lasting);
    atomic_store(&armed, true);
}

int64_t failing_alloc_disarm(void) {
    atomic_store(&armed, false);
    return atomic_load(&asked);
}

static bool is_ours(const void *caller) {
    static void *test;
    Dl_info info;
    if (test == NULL && dladdr((void *)(uintptr_t)&failing_alloc_arm, &info) != 0) test = info.dli_fbase;
    if (dladdr(caller, &info) == 0 || info.dli_fname == NULL) return false;
    const char *const slash = strrchr(info.dli_fname, '/');
    const char *const name = slash != NULL ? slash + 1 : info.dli_fname;
    return info.dli_fbase == test || strncmp(name, "libonehead", 10) == 0 || strncmp(name, "onehead-", 8) == 0 ||
           strncmp(name, "libjansson", 10) == 0;
}

static bool fails(const void *caller) {
    if (!atomic_load_explicit(&armed, memory_order_relaxed) || !is_ours(caller)) return false;
    const int64_t number = atomic_fetch_add(&asked, 1) + 1, nth = atomic_load(&failing);
    return number == nth || (number > nth && atomic_load(&lasts));
}

/* What this stands in front of. ISO C has no conversion from void * to a function. */
static void find(const char *name, void *function) {
    void *const address = dlsym(RTLD_NEXT, name);
    if (address == NULL) abort();
    memcpy(function, &address, sizeof address);
}

#define NEXT(type, name, ...)                                                                                          \
    static type (*next)(__VA_ARGS__);                                                                                  \
    if (next == NULL) find(name, &next)

#define CALLER __builtin_return_address(0)

REPLACES void *malloc(size_t size) {
    NEXT(void *, "malloc", size_t);
    if (!fails(CALLER)) return next(size);
    errno = ENOMEM;
    return NULL;
}

REPLACES void *calloc(size_t count, size_t size) {
    NEXT(void *, "calloc", size_t, size_t);
    if (!fails(CALLER)) return next(count, size);
    errno = ENOMEM;
    return NULL;
}

REPLACES void *realloc(void *block, size_t size) {
    NEXT(void *, "realloc", void *, size_t);
    if (!fails(CALLER)) return next(block, size);
    errno = ENOMEM;
    return NULL;
}

REPLACES void *aligned_alloc(size_t alignment, size_t size) {
    NEXT(void *, "aligned_alloc", size_t, size_t);
    if (!fails(CALLER)) return next(alignment, size);
    errno = ENOMEM;
    return NULL;
}

REPLACES int posix_memalign(void **block, size_t alignment, size_t size) {
    NEXT(int, "posix_memalign", void **, size_t, size_t);
    return fails(CALLER) ? ENOMEM : next(block, alignment, size);
}

/* The C library's own callers of malloc: its calls come from its own code, so they are seen here. */
REPLACES char *strdup(const char *text) {
    NEXT(char *, "strdup", const char *);
    if (!fails(CALLER)) return next(text);
    errno = ENOMEM;
    return NULL;
}

REPLACES char *strndup(const char *text, size_t length) {
    NEXT(char *, "strndup", const char *, size_t);
    if (!fails(CALLER)) return next(text, length);
    errno = ENOMEM;
    return NULL;
}

REPLACES char *realpath(const char *restrict path, char *restrict resolved) {
    NEXT(char *, "realpath", const char *, char *);
    if (resolved != NULL || !fails(CALLER)) return next(path, resolved);
    errno = ENOMEM;
    return NULL;
}

REPLACES void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
    NEXT(void *, "mmap", void *, size_t, int, int, int, off_t);
    if (!fails(CALLER)) return next(at, size, protection, flags, fd, offset);
    errno = ENOMEM;
    return MAP_FAILED;
}

REPLACES int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    NEXT(int, "pthread_create", pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    return fails(CALLER) ? EAGAIN : next(thread, attributes, run, argument);
}
