#include "ops.h"

#include "portable/portable.h"

static oh_status said(oh_context *c, oh_status status, const char *op, oh_error *error) {
    return status == OH_OK ? OH_OK : oh_context_fail(c, status, op, error);
}

oh_status oh_op_upload(oh_context *c, oh_queue *queue, void *to, const void *from, uint64_t bytes, oh_error *error) {
    if (bytes == 0) return OH_OK;
    return said(c, c->backend->upload(queue, to, from, bytes), "upload", error);
}

oh_status oh_op_download(oh_context *c, oh_queue *queue, void *to, const void *from, uint64_t bytes, oh_error *error) {
    if (bytes == 0) return OH_OK;
    return said(c, c->backend->download(queue, to, from, bytes), "download", error);
}

oh_status oh_op_fill(oh_context *c, oh_queue *queue, void *to, int32_t byte, uint64_t bytes, oh_error *error) {
    if (bytes == 0) return OH_OK;
    return said(c, c->backend->fill(queue, to, byte, bytes), "fill", error);
}

oh_status oh_op_wait(oh_context *c, oh_queue *queue, oh_error *error) {
    return said(c, c->backend->queue_wait(queue), "wait", error);
}

int oh_op_is_capturing(const oh_context *c, oh_queue *queue) {
    return OH_BACKEND_HAS(c->backend, queue_is_capturing) && c->backend->queue_is_capturing(queue);
}

oh_status oh_op_gemm(oh_context *c, oh_queue *queue, const oh_gemm *product, oh_error *error) {
    return said(c, c->backend->gemm(queue, product), "gemm", error);
}

/* A table's entry, or the portable operation on host memory once what was enqueued before it has run. Whoever plans with
 * an entry of a later minor version has seen to it that one of the two is there. */
#define OP(name)                                                                                                       \
    oh_status oh_op_##name(oh_context *c, oh_queue *queue, const oh_##name *arguments, oh_error *error) {              \
        if (OH_BACKEND_HAS(c->backend, name)) return said(c, c->backend->name(queue, arguments), #name, error);        \
        const oh_status waited = oh_op_wait(c, queue, error);                                                          \
        if (waited != OH_OK) return waited;                                                                            \
        return said(c, oh_portable_##name(arguments), "portable " #name, error);                                       \
    }

OP(copy_rows)
OP(matrix_norm)
OP(tile_stats)
OP(tile_overlap)
OP(tile_grad)
OP(row_finish)
OP(step_finish)
OP(row_labels)
OP(tile_overflow)
OP(row_select)
OP(tile_grad_overlap)

int oh_op_takes_tile_stats_grad(const oh_context *c, const oh_tile_stats_grad *pass) {
    return OH_BACKEND_HAS(c->backend, tile_stats_grad) && OH_BACKEND_HAS(c->backend, tile_stats_grad_takes) &&
           c->backend->tile_stats_grad_takes(c->device, pass);
}

oh_status oh_op_tile_stats_grad(oh_context *c, oh_queue *queue, const oh_tile_stats_grad *pass, oh_error *error) {
    return said(c, c->backend->tile_stats_grad(queue, pass), "tile_stats_grad", error);
}
