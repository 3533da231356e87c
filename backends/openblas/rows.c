/* rows.c - the loops of row_finish and row_labels over rowmath.h, spread over threads. Each iteration writes
 * only what is its own, so the bits don't depend on the threads. */
#include "device.h"
#include "onehead/rowmath.h"

#define ITEMS_PER_PART 32

typedef struct loop {
    const void *request; /* oh_row_finish or oh_row_labels */
    void (*item)(const void *request, int64_t index);
    int64_t count;
} loop;

static void run_items(void *work, int64_t part) {
    const loop *l = work;
    const int64_t first = part * ITEMS_PER_PART;
    const int64_t end = first + ITEMS_PER_PART < l->count ? first + ITEMS_PER_PART : l->count;
    for (int64_t i = first; i < end; ++i)
        l->item(l->request, i);
}

static void run_loop(oh_device *device, const void *request, void (*item)(const void *, int64_t), int64_t count) {
    loop l = {request, item, count};
    ob_parallel(device, (count + ITEMS_PER_PART - 1) / ITEMS_PER_PART, run_items, &l);
}

static void finish_row(const void *finish, int64_t row) {
    oh_finish_row(finish, row);
}

static void finish_block(const void *finish, int64_t block) {
    oh_finish_block(finish, block);
}

static void finish_sum(const void *finish, int64_t sum) {
    oh_finish_sum(finish, sum);
}

static void label_row(const void *labels, int64_t row) {
    oh_label_row(labels, row);
}

oh_status ob_row_finish(oh_queue *queue, const oh_row_finish *finish) {
    const oh_objective *o = &finish->objective;
    if (o->block_size < 1 || finish->rows < 0 || finish->rows % o->block_size != 0 || finish->compact_rows < 0 ||
        finish->compact_rows > finish->rows)
        return ob_fail(queue->device, OH_INVALID_ARGUMENT,
                       "openblas: row_finish of %lld rows, %lld of them supervised, in blocks of %lld, expected whole "
                       "blocks and no more supervised rows than rows",
                       (long long)finish->rows, (long long)finish->compact_rows, (long long)o->block_size);
    if (!oh_finish_valid(finish))
        return ob_fail(queue->device, OH_INVALID_ARGUMENT,
                       "openblas: row_finish with an objective that isn't one, or without an array of its parts %#x",
                       finish->parts);
    if (finish->rows == 0) return OH_OK;
    run_loop(queue->device, finish, finish_row, finish->compact_rows);
    run_loop(queue->device, finish, finish_block, finish->rows / o->block_size);
    run_loop(queue->device, finish, finish_sum, oh_sum_count(o));
    return OH_OK;
}

oh_status ob_step_finish(oh_queue *queue, const oh_step_finish *finish) {
    if (!finish->sums || !finish->loss || !finish->factor)
        return ob_fail(queue->device, OH_INVALID_ARGUMENT, "openblas: step_finish without sums, loss or factor");
    oh_step_close(finish);
    return OH_OK;
}

oh_status ob_row_labels(oh_queue *queue, const oh_row_labels *labels) {
    if (!oh_labels_valid(labels))
        return ob_fail(queue->device, OH_INVALID_ARGUMENT,
                       "openblas: row_labels of %lld rows among %lld ids, expected statistics, ids and labels",
                       (long long)labels->rows, (long long)labels->id_count);
    run_loop(queue->device, labels, label_row, labels->rows);
    return OH_OK;
}
