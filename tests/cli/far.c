/* far.c - the OpenBLAS backend without its claim that device memory is host memory: a device "far away" on a machine
 * without one. Callers must then upload and download, and the core may not touch an address. */
#include <onehead/backend.h>

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

static oh_backend far_table;

static void make_table(void) {
    void *const library = dlopen(FAR_FROM, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) return;
    oh_backend_entry entry;
    void *const symbol = dlsym(library, OH_BACKEND_SYMBOL);
    if (symbol == NULL) return;
    memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast from an object to a function */
    const oh_backend *const near_table = entry();
    memcpy(&far_table, near_table, sizeof far_table < near_table->size ? sizeof far_table : near_table->size);
    far_table.caps &= ~(uint32_t)OH_CAP_HOST_MEMORY;
    far_table.name = "far";
}

__attribute__((visibility("default"))) const oh_backend *oh_backend_v1(void);
const oh_backend *oh_backend_v1(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_table);
    return &far_table;
}
