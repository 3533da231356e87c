/* batch_queue.h - batches that are opened and read ahead of the step, by threads of their own, in order.
 *
 * Reader threads open, check and touch the files so that the step finds them in memory; they stay at most `depth`
 * batches ahead, so a pass over any number of files holds that many. */
#ifndef ONEHEAD_TOOL_BATCH_QUEUE_H
#define ONEHEAD_TOOL_BATCH_QUEUE_H

#include "batch.h"
#include "batch_list.h"

typedef struct batch_queue batch_queue;

/* Starts reading at file `first` of the list, which must outlive the queue, as must `head` (NULL: batches hold their
 * own lm_head). Errors: OH_OUT_OF_MEMORY. */
oh_status batch_queue_open(batch_queue **queue, const batch_list *list, int64_t first, int depth, const ckpt_head *head,
                           oh_error *error);

/* Waits for the next batch, which is then the caller's to close. Its own error when it can't be opened. */
oh_status batch_queue_take(batch_queue *queue, batch *b, oh_error *error);

/* Batches that are ready now, at most `depth`. */
int batch_queue_ready(batch_queue *queue);

/* Ends the threads and closes what wasn't taken. NULL is fine. */
void batch_queue_close(batch_queue *queue);

#endif
