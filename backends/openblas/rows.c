/* rows.c - the loops of row_finish over rowmath.h, spread over threads: rows, then blocks, then sums. Each of them
 * writes only what is its own, so the bits don't depend on the threads. */
#include "device.h"
#include "onehead/rowmath.h"

#define ITEMS_PER_PART 32

typedef struct loop {
    const oh_row_finish *finish;
    void (*item)(const oh_row_finish *finish, int64_t index);
    int64_t count;
} loop;

static void run_items(void *work, int64_t part) {
    const loop *l = work;
    const int64_t first = part * ITEMS_PER_PART;
    const int64_t end = first + ITEMS_PER_PART < l->count ? first + ITEMS_PER_PART : l->count;
    for (int64_t i = first; i < end; ++i)
        l->item(l->finish, i);
}

static void run_loop(oh_device *device, const oh_row_finish *finish, void (*item)(const oh_row_finish *, int64_t),
                     int64_t count) {
    loop l = {finish, item, count};
    ob_parallel(device, (count + ITEMS_PER_PART - 1) / ITEMS_PER_PART, run_items, &l);
}

static void finish_row(const oh_row_finish *finish, int64_t row) {
    oh_finish_row(finish, row);
}

static void finish_block(const oh_row_finish *finish, int64_t block) {
    oh_finish_block(finish, block);
}

static void finish_sum(const oh_row_finish *finish, int64_t sum) {
    oh_finish_sum(finish, sum);
}

oh_status ob_row_finish(oh_queue *queue, const oh_row_finish *finish) {
    const oh_objective *o = &finish->objective;
    if (o->block_size < 1 || finish->rows < 0 || finish->rows % o->block_size != 0 || finish->compact_rows < 0)
        return ob_fail(queue->device, OH_INVALID_ARGUMENT,
                       "openblas: row_finish of %lld rows in blocks of %lld, expected whole blocks",
                       (long long)finish->rows, (long long)o->block_size);
    run_loop(queue->device, finish, finish_row, finish->compact_rows);
    run_loop(queue->device, finish, finish_block, finish->rows / o->block_size);
    run_loop(queue->device, finish, finish_sum, oh_sum_count(o));
    return OH_OK;
}

oh_status ob_step_finish(oh_queue *queue, const oh_step_finish *finish) {
    (void)queue;
    oh_step_close(finish);
    return OH_OK;
}
