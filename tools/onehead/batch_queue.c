#include "batch_queue.h"

#include "error_line.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { READERS = 2 };

typedef struct slot {
    batch b;
    oh_status status;
    oh_error error;
    bool ready;
} slot;

/* File i of the list lies in slot i % depth. */
struct batch_queue {
    const batch_list *list;
    const ckpt_head *head;
    int depth;
    pthread_t readers[READERS];
    int reader_count;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t taken, begun; /* files */
    bool ending;
    slot slots[];
};

static void touch(const void *data, int64_t bytes) {
    const long page = sysconf(_SC_PAGESIZE);
    if (data == NULL || bytes <= 0 || page <= 0) return;
    const uintptr_t begin = (uintptr_t)data / (uintptr_t)page * (uintptr_t)page;
    const size_t length = (uintptr_t)data + (size_t)bytes - begin;
    (void)madvise((void *)begin, length, MADV_WILLNEED); /* advice only */
    const volatile char *const at = data;
    for (int64_t i = 0; i < bytes; i += page)
        (void)at[i];
}

static void touch_matrix(const batch_matrix *m) {
    touch(m->data, m->rows * m->columns * oh_dtype_size(m->dtype));
}

static void read_batch(const batch_queue *queue, int64_t index, slot *s) {
    s->status = batch_open_with_head(&s->b, queue->list->files[index].path, queue->head, &s->error);
    if (s->status != OH_OK) return;
    touch_matrix(&s->b.draft_hidden);
    touch_matrix(&s->b.target_hidden);
    if (queue->head == NULL) touch_matrix(&s->b.lm_head);
}

static void *read_ahead(void *argument) {
    batch_queue *const queue = argument;
    pthread_mutex_lock(&queue->lock);
    for (;;) {
        while (!queue->ending && queue->begun < queue->list->count && queue->begun >= queue->taken + queue->depth)
            pthread_cond_wait(&queue->changed, &queue->lock);
        if (queue->ending || queue->begun >= queue->list->count) break;
        const int64_t index = queue->begun++;
        slot *const s = &queue->slots[index % queue->depth];
        pthread_mutex_unlock(&queue->lock);
        read_batch(queue, index, s);
        pthread_mutex_lock(&queue->lock);
        s->ready = true;
        pthread_cond_broadcast(&queue->changed);
    }
    pthread_mutex_unlock(&queue->lock);
    return NULL;
}

oh_status batch_queue_open(batch_queue **queue, const batch_list *list, int64_t first, int depth, const ckpt_head *head,
                           oh_error *error) {
    *queue = NULL;
    batch_queue *const q = calloc(1, sizeof *q + (size_t)depth * sizeof q->slots[0]);
    if (q == NULL) return error_line(error, OH_OUT_OF_MEMORY, "prefetch queue", "out of memory");
    q->list = list;
    q->head = head;
    q->depth = depth;
    q->taken = q->begun = first;
    pthread_mutex_init(&q->lock, NULL); /* neither of the two can fail with default attributes on Linux */
    pthread_cond_init(&q->changed, NULL);
    while (q->reader_count < READERS && pthread_create(&q->readers[q->reader_count], NULL, read_ahead, q) == 0)
        q->reader_count++;
    if (q->reader_count > 0) {
        *queue = q;
        return OH_OK;
    }
    batch_queue_close(q);
    return error_line(error, OH_OUT_OF_MEMORY, "prefetch queue", "can't start a thread");
}

oh_status batch_queue_take(batch_queue *queue, batch *b, oh_error *error) {
    pthread_mutex_lock(&queue->lock);
    slot *const s = &queue->slots[queue->taken % queue->depth];
    while (!s->ready)
        pthread_cond_wait(&queue->changed, &queue->lock);
    const oh_status status = s->status;
    *b = s->b;
    if (status != OH_OK) *error = s->error;
    s->ready = false;
    s->b = (batch){.name = NULL};
    queue->taken++;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
    return status;
}

int batch_queue_ready(batch_queue *queue) {
    int ready = 0;
    pthread_mutex_lock(&queue->lock);
    for (int i = 0; i < queue->depth; i++)
        ready += queue->slots[i].ready;
    pthread_mutex_unlock(&queue->lock);
    return ready;
}

void batch_queue_close(batch_queue *queue) {
    if (queue == NULL) return;
    pthread_mutex_lock(&queue->lock);
    queue->ending = true;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
    for (int i = 0; i < queue->reader_count; i++)
        pthread_join(queue->readers[i], NULL);
    for (int i = 0; i < queue->depth; i++)
        batch_close(&queue->slots[i].b);
    pthread_cond_destroy(&queue->changed);
    pthread_mutex_destroy(&queue->lock);
    free(queue);
}
