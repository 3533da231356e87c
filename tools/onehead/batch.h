/* batch.h - a BATCH file and the head's weight as the tensors of a step.
 *
 *     draft_hidden    f32, bf16, f16 [T,H]
 *     target_hidden   as draft_hidden [S,H], or [S,Ht] with a target_lm_head      optional
 *     target_row      i32, i64 [T]                                                optional; identity, S = T
 *     label           i32, i64 [T]                                                optional
 *     loss_mask       u8, bool, f32 [T]                                           optional; all 1
 *     lm_head         f32, bf16, f16 [V,H]                                        or --lm-head, which goes first
 *     target_lm_head  f32, bf16, f16 [V,Ht]                                       optional
 *     bias            f32, bf16, f16 [V]                                          optional; of both models
 *     target_bias     f32, bf16, f16 [V]                                          optional; the target's, if not `bias`
 *     draft_to_target i32, i64 [V]: ascending target ids of the draft's columns   optional; target_lm_head is [Vt,Ht]
 *     d2t             i32, i64 [V]: the same as offsets, id = column + d2t        instead of draft_to_target
 *
 * The last two are also looked for beside lm_head where the batch has neither; both in one file are refused.
 * Other tensors are left alone. */
#ifndef ONEHEAD_TOOL_BATCH_H
#define ONEHEAD_TOOL_BATCH_H

#include "checkpoint.h"
#include "options.h"

/* A matrix on the host. data is aligned to its element; NULL: the batch has none. */
typedef struct batch_matrix {
    const void *data;
    int64_t rows, columns;
    int32_t dtype; /* oh_dtype */
} batch_matrix;

typedef struct batch_vector {
    const void *data; /* [count]; NULL: the batch has none */
    int32_t dtype;
} batch_vector;

enum { BATCH_OWNED_MAX = 13 };

typedef struct batch {
    batch_matrix draft_hidden, target_hidden, lm_head, target_lm_head;
    batch_vector target_row, label, loss_mask; /* [T] */
    const float *bias, *target_bias;           /* [V] */
    const int32_t *draft_to_target;            /* [V] target ids; NULL: the vocabularies are the same */
    const char *name;                          /* for messages: the file's path */

    st_file *file;
    ckpt_head head;
    const ckpt_head *shared_head; /* somebody else's, NULL: none */
    void *owned[BATCH_OWNED_MAX]; /* copies of tensors that lie misaligned in their file */
    int owned_count;
} batch;

/* Opens the file (NULL: the built-in sample) and, unless NULL, the weight that --lm-head names, and checks ranks,
 * dtypes and sizes. On failure the record is zeroed. Errors: OH_BAD_DATA, also for a file that can't be read, naming
 * file, tensor, value and expectation; OH_OUT_OF_MEMORY. */
oh_status batch_open(batch *b, const char *path, const char *lm_head, oh_error *error);

/* The same with a weight that is open already and outlives the batch; NULL: the batch's own. */
oh_status batch_open_with_head(batch *b, const char *path, const ckpt_head *head, oh_error *error);

/* A zeroed record is fine. */
void batch_close(batch *b);

/* The request of a step on this batch: the options', with shape and dtypes, what shall be produced, and the defaults
 * that depend on whether there is a target. OH_BAD_DATA when the batch lacks what the options need. */
oh_status batch_request(const batch *b, const options *o, oh_request *request, oh_error *error);

/* The bits of OH_PRODUCE_* that the options ask for. */
uint32_t options_produce(const options *o, bool has_target);

/* The objective's defaults where there is no target, unless given. */
oh_status options_default_objective(const options *o, bool has_target, oh_objective *objective, oh_error *error);

#endif
