/* matmul.c - making a primitive takes a millisecond or more (oneDNN writes machine code for the shape), so those in use
 * are kept. A step asks for few shapes, but rows without supervision are gathered out and their number changes from
 * chunk to chunk: the table has a fixed size. (oneDNN has a cache of its own for the whole process, whose size belongs
 * to its users; it is left alone.) */
#include "matmul.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define ENTRIES 64

typedef struct entry {
    matmul_shape shape;
    dnnl_primitive_t primitive; /* NULL: free */
    const_dnnl_primitive_desc_t description;
    uint64_t used; /* the cache's clock when it was last asked for */
    int32_t users; /* threads that are running it: it may not go */
} entry;

struct matmul_cache {
    pthread_mutex_t lock;
    dnnl_engine_t engine;
    uint64_t clock;
    entry entries[ENTRIES];
};

matmul_cache *matmul_cache_open(dnnl_engine_t engine) {
    matmul_cache *cache = calloc(1, sizeof *cache);
    if (!cache) return NULL;
    if (pthread_mutex_init(&cache->lock, NULL) != 0) {
        free(cache);
        return NULL;
    }
    cache->engine = engine;
    return cache;
}

void matmul_cache_close(matmul_cache *cache) {
    if (!cache) return;
    for (int i = 0; i < ENTRIES; ++i)
        if (cache->entries[i].primitive) dnnl_primitive_destroy(cache->entries[i].primitive);
    pthread_mutex_destroy(&cache->lock);
    free(cache);
}

/* ----------------------------------------------------------------------------------------------------- making ---- */

static dnnl_status_t describe_matrix(dnnl_memory_desc_t *matrix, int64_t rows, int64_t columns, int32_t dtype,
                                     int transposed, int64_t ld) {
    const dnnl_dims_t sizes = {rows, columns};
    const dnnl_dims_t strides = {transposed ? 1 : ld, transposed ? ld : 1};
    return dnnl_memory_desc_init_by_strides(matrix, 2, sizes, dtype == OH_BF16 ? dnnl_bf16 : dnnl_f32, strides);
}

/* Packed: in whatever layout the kernel that is chosen reads. */
static dnnl_status_t describe_b(dnnl_memory_desc_t *b, const matmul_shape *s) {
    if (!s->b_packed) return describe_matrix(b, s->k, s->n, s->operand, s->b_transposed, s->ldb);
    const dnnl_dims_t sizes = {s->k, s->n};
    return dnnl_memory_desc_init_by_tag(b, 2, sizes, s->operand == OH_BF16 ? dnnl_bf16 : dnnl_f32, dnnl_format_tag_any);
}

/* Scratch memory is the caller's, so that threads may run one primitive at once; C is added by a post-operation. */
static dnnl_status_t set_attributes(dnnl_primitive_attr_t attributes, int accumulate) {
    dnnl_status_t status = dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
    if (status != dnnl_success || !accumulate) return status;
    dnnl_post_ops_t after;
    status = dnnl_post_ops_create(&after);
    if (status != dnnl_success) return status;
    status = dnnl_post_ops_append_sum(after, 1.0f);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(attributes, after);
    dnnl_post_ops_destroy(after);
    return status;
}

static dnnl_status_t make_primitive(dnnl_engine_t engine, const matmul_shape *s, dnnl_primitive_t *primitive) {
    dnnl_memory_desc_t a, b, c;
    dnnl_matmul_desc_t operation;
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t description = NULL;
    dnnl_status_t status = describe_matrix(&a, s->m, s->k, s->operand, s->a_transposed, s->lda);
    if (status == dnnl_success) status = describe_b(&b, s);
    if (status == dnnl_success) status = describe_matrix(&c, s->m, s->n, OH_F32, 0, s->ldc);
    if (status == dnnl_success) status = dnnl_matmul_desc_init(&operation, &a, &b, NULL, &c);
    if (status == dnnl_success) status = dnnl_primitive_attr_create(&attributes);
    if (status == dnnl_success) status = set_attributes(attributes, s->accumulate);
    if (status == dnnl_success) status = dnnl_primitive_desc_create(&description, &operation, attributes, engine, NULL);
    if (status == dnnl_success) status = dnnl_primitive_create(primitive, description);
    if (description) dnnl_primitive_desc_destroy(description);
    if (attributes) dnnl_primitive_attr_destroy(attributes);
    return status;
}

/* ---------------------------------------------------------------------------------------------------- keeping ---- */

static int same_shape(const matmul_shape *a, const matmul_shape *b) {
    return a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda && a->ldb == b->ldb && a->ldc == b->ldc &&
           a->operand == b->operand && a->a_transposed == b->a_transposed && a->b_transposed == b->b_transposed &&
           a->accumulate == b->accumulate && a->b_packed == b->b_packed;
}

/* The shape's entry, or the one to make it in: a free one, else the oldest that nobody runs, else NULL. */
static entry *find(matmul_cache *cache, const matmul_shape *shape) {
    entry *room = NULL;
    for (entry *e = cache->entries; e < cache->entries + ENTRIES; ++e) {
        if (e->primitive && same_shape(&e->shape, shape)) return e;
        if (e->users == 0 && (!room || e->used < room->used)) room = e;
    }
    return room;
}

static dnnl_status_t fill(matmul_cache *cache, entry *e, const matmul_shape *shape) {
    if (e->primitive) dnnl_primitive_destroy(e->primitive);
    memset(e, 0, sizeof *e);
    dnnl_status_t status = make_primitive(cache->engine, shape, &e->primitive);
    if (status != dnnl_success) {
        e->primitive = NULL;
        return status;
    }
    status = dnnl_primitive_get_primitive_desc(e->primitive, &e->description);
    if (status != dnnl_success) {
        dnnl_primitive_destroy(e->primitive);
        e->primitive = NULL;
        return status;
    }
    e->shape = *shape;
    return dnnl_success;
}

/* With more threads than entries all may be running: `own` is then made for this call alone. */
static dnnl_status_t take(matmul_cache *cache, const matmul_shape *shape, entry *own, entry **taken) {
    pthread_mutex_lock(&cache->lock);
    entry *e = find(cache, shape);
    if (!e) e = own;
    dnnl_status_t status = dnnl_success;
    if (!e->primitive || !same_shape(&e->shape, shape)) status = fill(cache, e, shape);
    if (status == dnnl_success) {
        e->used = ++cache->clock;
        ++e->users;
    }
    pthread_mutex_unlock(&cache->lock);
    *taken = e;
    return status;
}

static void give_back(matmul_cache *cache, entry *e, const entry *own) {
    if (e == own) {
        dnnl_primitive_destroy(e->primitive);
        return;
    }
    pthread_mutex_lock(&cache->lock);
    --e->users;
    pthread_mutex_unlock(&cache->lock);
}

/* ---------------------------------------------------------------------------------------------------- packing ---- */

static int is_known_layout(const dnnl_memory_desc_t *b, packing *packed) {
    const dnnl_blocking_desc_t *blocks = &b->format_desc.blocking;
    if (b->format_kind != dnnl_blocked || b->ndims != 2 || b->offset0 != 0 || b->extra.flags != 0) return 0;
    if (blocks->inner_nblks != 3 || blocks->inner_idxs[0] != 0 || blocks->inner_idxs[1] != 1 ||
        blocks->inner_idxs[2] != 0 || blocks->inner_blks[0] != 16 || blocks->inner_blks[2] != 2)
        return 0;
    const int64_t columns = blocks->inner_blks[1], block = 32 * columns;
    if (columns % 16 != 0 || b->padded_dims[0] % 32 != 0 || b->padded_dims[1] % columns != 0) return 0;
    *packed = (packing){columns, b->padded_dims[1] / columns, b->padded_dims[0] / 32};
    return blocks->strides[0] == block && blocks->strides[1] == packed->k_blocks * block;
}

int matmul_packing(matmul_cache *cache, const matmul_shape *shape, packing *packed, dnnl_status_t *status) {
    entry own = {.users = 0}, *e = NULL;
    *status = take(cache, shape, &own, &e);
    if (*status != dnnl_success) return 0;
    const int known = is_known_layout(dnnl_primitive_desc_query_md(e->description, dnnl_query_weights_md, 0), packed);
    give_back(cache, e, &own);
    return known;
}

/* ---------------------------------------------------------------------------------------------------- running ---- */

enum { A, B, C, SCRATCH, ARGUMENTS };

static dnnl_status_t execute(dnnl_engine_t engine, dnnl_stream_t stream, const entry *e, void *const pointers[]) {
    static const int names[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD};
    static const dnnl_query_t queries[] = {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md,
                                           dnnl_query_scratchpad_md};
    dnnl_exec_arg_t arguments[ARGUMENTS];
    dnnl_status_t status = dnnl_success;
    int made = 0;
    for (; made < ARGUMENTS; ++made) {
        const dnnl_memory_desc_t *description = dnnl_primitive_desc_query_md(e->description, queries[made], 0);
        status = dnnl_memory_create(&arguments[made].memory, description, engine, pointers[made]);
        if (status != dnnl_success) break;
        arguments[made].arg = names[made];
    }
    if (status == dnnl_success) status = dnnl_primitive_execute(e->primitive, stream, ARGUMENTS, arguments);
    if (status == dnnl_success) status = dnnl_stream_wait(stream);
    while (made > 0)
        dnnl_memory_destroy(arguments[--made].memory);
    return status;
}

dnnl_status_t matmul_run(matmul_cache *cache, dnnl_stream_t stream, const matmul_shape *shape, const void *a,
                         const void *b, void *c, void *scratch, size_t scratch_bytes) {
    entry own = {.users = 0}, *e = NULL;
    dnnl_status_t status = take(cache, shape, &own, &e);
    if (status != dnnl_success) return status;
    const size_t bytes =
        dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(e->description, dnnl_query_scratchpad_md, 0));
    void *borrowed = NULL;
    if (bytes > scratch_bytes) scratch = borrowed = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (bytes > 0 && !scratch) {
        status = dnnl_out_of_memory;
    } else {
        /* oneDNN has no const pointers; it only reads A and B. */
        void *const pointers[ARGUMENTS] = {(void *)(uintptr_t)a, (void *)(uintptr_t)b, c, scratch};
        status = execute(cache->engine, stream, e, pointers);
    }
    free(borrowed);
    give_back(cache, e, &own);
    return status;
}
