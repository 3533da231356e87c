/* What a backend's table must hold before anything calls it. */
#include "loader.h"

#include "status.h"

#include <stdio.h>
#include <string.h>

/* The table of minor version 0: its last entry and everything before it. Later minors only append. */
enum { MINOR_0_SIZE = offsetof(oh_backend, queue_is_capturing) + sizeof(void (*)(void)) };
OH_STATIC_ASSERT(MINOR_0_SIZE == 256, "minor version 0 is fixed");

typedef struct entry {
    const char *name;
    size_t offset;
} entry;

#define ENTRY(field)                                                                                                   \
    { #field, offsetof(oh_backend, field) }

static const entry required[] = {
    ENTRY(device_count), ENTRY(device_open), ENTRY(device_close), ENTRY(device_info), ENTRY(last_error),
    ENTRY(queue_open),   ENTRY(queue_wait),  ENTRY(queue_close),  ENTRY(alloc),       ENTRY(free),
    ENTRY(upload),       ENTRY(download),    ENTRY(fill),         ENTRY(gemm),
};

/* The portable operations stand in for these where the device's memory is the host's. */
static const entry required_of_accelerators[] = {
    ENTRY(copy_rows), ENTRY(matrix_norm), ENTRY(tile_stats),  ENTRY(tile_overlap),
    ENTRY(tile_grad), ENTRY(row_finish),  ENTRY(step_finish),
};

static int is_null(const oh_backend *table, const entry *which) {
    void (*function)(void);
    memcpy(&function, (const char *)table + which->offset, sizeof function);
    return function == NULL;
}

/* Names of the entries that are NULL, "" when none is. */
static void list_null(const oh_backend *table, const entry *entries, size_t count, char *names, size_t size) {
    size_t used = 0;
    names[0] = '\0';
    for (size_t i = 0; i < count; ++i) {
        if (!is_null(table, &entries[i]) || used >= size) continue;
        const int length = snprintf(names + used, size - used, "%s%s", used > 0 ? ", " : "", entries[i].name);
        if (length > 0) used += (size_t)length;
    }
}

static oh_status check_words(const oh_backend *table, const char *name, oh_error *error) {
    if (table->name == NULL || !oh_plugin_name_is_valid(table->name))
        return oh_fail(error, OH_NO_BACKEND, "table's name is '%.64s', wanted 1 to %d of a-z, 0-9 and _",
                       table->name == NULL ? "(NULL)" : table->name, OH_PLUGIN_NAME_SIZE - 1);
    if (name != NULL && strcmp(table->name, name) != 0)
        return oh_fail(error, OH_NO_BACKEND, "table's name is '%s', wanted '%s' as in the file's name onehead-%s.so",
                       table->name, name, name);
    if (table->build == NULL)
        return oh_fail(error, OH_NO_BACKEND, "table's build is NULL, wanted a text: version, compiler, flags");
    if (table->sanitizer == NULL || strcmp(table->sanitizer, oh_sanitizer()) != 0)
        return oh_fail(error, OH_NO_BACKEND, "built with sanitizer %s%.40s%s, wanted the core's own, \"%s\"",
                       table->sanitizer == NULL ? "" : "\"", table->sanitizer == NULL ? "NULL" : table->sanitizer,
                       table->sanitizer == NULL ? "" : "\"", oh_sanitizer());
    return OH_OK;
}

static oh_status check_entries(const oh_backend *table, oh_error *error) {
    char names[300];
    list_null(table, required, sizeof required / sizeof *required, names, sizeof names);
    if (names[0] != '\0')
        return oh_fail(error, OH_NO_BACKEND, "table's entries are NULL: %s; every backend must have them", names);
    if (!(table->caps & OH_CAP_HOST_MEMORY)) {
        list_null(table, required_of_accelerators, sizeof required_of_accelerators / sizeof *required_of_accelerators,
                  names, sizeof names);
        if (names[0] != '\0')
            return oh_fail(error, OH_NO_BACKEND,
                           "table's entries are NULL: %s; only a backend with OH_CAP_HOST_MEMORY may leave them out",
                           names);
    }
    if ((table->host_alloc == NULL) != (table->host_free == NULL))
        return oh_fail(error, OH_NO_BACKEND, "table has %s without %s, wanted both or neither",
                       table->host_alloc != NULL ? "host_alloc" : "host_free",
                       table->host_alloc != NULL ? "host_free" : "host_alloc");
    const int events = OH_BACKEND_HAS(table, event_open) + OH_BACKEND_HAS(table, event_close) +
                       OH_BACKEND_HAS(table, event_record) + OH_BACKEND_HAS(table, event_seconds);
    if (events != 0 && events != 4)
        return oh_fail(error, OH_NO_BACKEND,
                       "table has %d of event_open, _close, _record, _seconds, wanted all or none", events);
    if (!(table->gemm_kinds & OH_GEMM_F32_F32))
        return oh_fail(error, OH_NO_BACKEND, "table's gemm_kinds is 0x%x, wanted OH_GEMM_F32_F32 (0x%x) among them",
                       table->gemm_kinds, OH_GEMM_F32_F32);
    return OH_OK;
}

oh_status oh_backend_table_check(const oh_backend *table, const char *name, oh_error *error) {
    if (table->size < MINOR_0_SIZE)
        return oh_fail(error, OH_NO_BACKEND, "table has %llu bytes, wanted at least the %d of version %d.0",
                       (unsigned long long)table->size, MINOR_0_SIZE, OH_BACKEND_MAJOR);
    const oh_status status = check_words(table, name, error);
    return status != OH_OK ? status : check_entries(table, error);
}
