/* step.h - steps of one batch on one device: tensors go there, plans run, figures and outputs come back. */
#ifndef ONEHEAD_TOOL_STEP_H
#define ONEHEAD_TOOL_STEP_H

#include "batch.h"
#include "span_log.h"

enum { STEP_TENSORS_MAX = 6 };

/* A batch on a device. On a host-memory backend the tensors stay where they are, in their mapped file. */
typedef struct step {
    oh_context *context;
    const oh_backend *backend;
    bool on_host;
    oh_queue *queue; /* for uploads and downloads; NULL on the host */
    oh_inputs inputs;
    void *uploaded[STEP_TENSORS_MAX]; /* uploaded[0] is lm_head */
    int uploaded_count;
    span_log *spans; /* NULL, or where step_run puts its operations */
} step;

/* What one run left behind, on the host; arrays are owned, NULL where nothing was asked for. */
typedef struct step_result {
    oh_results figures; /* its slot arrays point to `slots` */
    oh_plan_summary plan;
    int64_t rows, hidden, vocab, top_k; /* sizes of the arrays */
    int32_t grad_dtype;
    double *slots;                  /* [2 block_size]: hits, then counts */
    void *draft_grad;               /* [rows, hidden] grad_dtype */
    float *head_grad;               /* [vocab, hidden] */
    float *bias_grad;               /* [vocab] */
    float *row_loss, *weight;       /* [rows] */
    int32_t *label, *argmax, *rank; /* [rows] */
    int32_t *topk_id;               /* [rows, top_k] */
    float *topk_logprob;            /* [rows, top_k] */
    double plan_seconds, run_seconds;
} step_result;

/* Opens `backend` (a name or path; NULL: the default) and brings the batch to its device. The batch must outlive the
 * step. On failure the record is zeroed. */
oh_status step_open(step *s, const batch *b, const char *backend, const options *o, oh_error *error);
/* Puts another batch in the place of the one before, whose steps must be over. With `same_weight` lm_head holds what it
 * held and isn't brought there again. On failure the step can only be closed. */
oh_status step_use(step *s, const batch *b, bool same_weight, oh_error *error);
void step_close(step *s); /* a zeroed record is fine */

/* Plans, runs once and waits. On failure the record is zeroed. */
oh_status step_run(step *s, const oh_request *request, step_result *result, oh_error *error);
void step_result_free(step_result *result); /* a zeroed record is fine */

/* Seconds of a monotonic clock. */
double step_clock(void);

#endif
