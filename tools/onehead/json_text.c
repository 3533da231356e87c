#include "json_text.h"

#include "error_line.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Jansson's blocks begin with a link, so that a parse that has to be left can free what it has made. Its parser can't be
 * let see that memory is out: it then drops the byte that found no room, and ends the process over what is left, or
 * takes it for the text. */
typedef union block {
    struct {
        union block *previous, *next; /* of the parse that made it; NULL once it is over */
    } link;
    max_align_t aligned;
} block;

static _Thread_local struct {
    bool active, ran_out;
    block made; /* the list's head */
    jmp_buf leave;
} parse;

static void *allocate(size_t size) {
    block *const b = size <= SIZE_MAX - sizeof *b ? malloc(sizeof *b + size) : NULL;
    if (b == NULL) {
        parse.ran_out = true;
        if (parse.active) longjmp(parse.leave, 1);
        return NULL;
    }
    b->link.previous = b->link.next = NULL;
    if (parse.active) {
        b->link.previous = &parse.made;
        b->link.next = parse.made.link.next;
        b->link.next->link.previous = b;
        parse.made.link.next = b;
    }
    return b + 1;
}

static void release(void *memory) {
    if (memory == NULL) return;
    block *const b = (block *)memory - 1;
    if (b->link.previous != NULL && b->link.next != NULL) {
        b->link.previous->link.next = b->link.next;
        b->link.next->link.previous = b->link.previous;
    }
    free(b);
}

/* Before main: jansson has one allocator for the process, and no thread may be using it while it is set. */
__attribute__((constructor)) static void take_over_allocation(void) {
    json_set_alloc_funcs(allocate, release);
}

/* Of the file, or of the bytes where it is NULL. */
static json_t *read_json(FILE *file, const void *bytes, size_t size, size_t flags, json_error_t *why) {
    parse.ran_out = false;
    parse.made.link.previous = parse.made.link.next = &parse.made;
    parse.active = true;
    json_t *volatile root = NULL; /* it lives across setjmp */
    if (setjmp(parse.leave) == 0)
        root = file != NULL ? json_loadf(file, flags, why) : json_loadb(bytes, size, flags, why);
    parse.active = false;
    for (block *b = parse.made.link.next, *next; b != &parse.made; b = next) {
        next = b->link.next;
        b->link.previous = b->link.next = NULL;
        if (parse.ran_out) free(b);
    }
    if (!parse.ran_out) return root;
    *why = (json_error_t){.line = -1, .column = -1};
    snprintf(why->text, sizeof why->text, "out of memory");
    why->text[sizeof why->text - 1] = (char)json_error_out_of_memory; /* where json_error_code looks for it */
    return NULL;
}

json_t *json_parse(const void *bytes, size_t size, size_t flags, json_error_t *why) {
    return read_json(NULL, bytes, size, flags, why);
}

json_t *json_parse_file(const char *path, size_t flags, json_error_t *why) {
    FILE *const file = fopen(path, "rbe");
    if (file == NULL) {
        *why = (json_error_t){.line = -1, .column = -1};
        snprintf(why->text, sizeof why->text, "can't open: %s", strerror(errno));
        return NULL;
    }
    json_t *const root = read_json(file, NULL, 0, flags, why);
    (void)fclose(file); /* read only: nothing can be lost */
    return root;
}

void json_forget(void) {
    parse.ran_out = false;
}

bool json_ran_out(void) {
    return parse.ran_out;
}

char *json_text(const json_t *root, size_t flags) {
    parse.ran_out = false;
    char *const text = json_dumps(root, flags);
    if (text == NULL) return NULL;
    block *const b = (block *)(void *)text - 1;
    if (parse.ran_out) { /* jansson may have left out what found no room, a key say */
        free(b);
        return NULL;
    }
    return memmove(b, text, strlen(text) + 1); /* to where the block begins: what free takes */
}

json_t *json_number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

oh_status json_print(json_t *root, oh_error *error) {
    char *const text = root == NULL ? NULL : json_text(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    json_decref(root);
    if (text == NULL) return error_line(error, OH_OUT_OF_MEMORY, "JSON", "out of memory");
    errno = 0;
    const int failed = puts(text) < 0;
    const int reason = errno;
    free(text);
    if (!failed) return OH_OK;
    return error_line(error, OH_IO, "standard output", "can't write: %s",
                      reason != 0 ? strerror(reason) : "a write failed");
}
