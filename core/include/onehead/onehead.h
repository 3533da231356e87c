/* onehead.h - the lm_head stage of training a speculative-decoding drafter, planned once and run many times.
 *
 * Hidden states go in; loss, gradient, accuracy, accepted streaks and DDTree top-K come out, and every projection onto
 * the vocabulary is done once. In the order a user needs them:
 *
 *     oh_context_open     a backend and one of its devices
 *     oh_request_init     the defaults; then set the shape, the objective and what is wanted
 *     oh_plan_create      merges equal work, chooses chunk and policy from the memory budget, lays out the workspace
 *     oh_plan_run         enqueues one step on the device; allocates nothing
 *     oh_plan_results     waits and reads losses and metrics
 *
 * Symbols: T rows (draft positions), S target rows, H hidden size, V vocabulary. Tensors are row-major; `ld` is a row
 * stride in elements, 0 meaning "as long as the row". Pointers named `device` are the backend's device addresses,
 * which on a CPU backend are ordinary pointers. Inputs are never written.
 *
 * Threads: a context and its plans are used from one thread at a time; contexts are independent of each other.
 * Fork: on a CPU backend a child may go on with the contexts and plans that it has inherited, and open new ones; it
 * computes on one thread, with the same bits. Not while another thread of the parent is inside a call, as everywhere.
 * CUDA itself works in no child of a process that has used it: there every call fails (OH_DEVICE_ERROR).
 * Errors: every function that can fail returns an oh_status and fills `error` (which may be NULL); on failure outputs
 * of that call are untouched unless it says otherwise. */
#ifndef ONEHEAD_ONEHEAD_H
#define ONEHEAD_ONEHEAD_H

#include "backend.h"
#include "rowmath.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In front of what the library exports. */
#if defined(__GNUC__)
#define OH_API __attribute__((visibility("default")))
#else
#define OH_API
#endif

/* "1.2.3" of the library that is loaded. */
OH_API const char *oh_version(void);

/* "address", "thread", ... or "": plugins must be built with the same. */
OH_API const char *oh_sanitizer(void);

/* Short English name of a status: "bad data". Never NULL. */
OH_API const char *oh_status_name(oh_status status);

/* "f32", "bf16", ... ; size in bytes of one element, 0 for an unknown dtype. */
OH_API const char *oh_dtype_name(int32_t dtype);
OH_API int64_t oh_dtype_size(int32_t dtype);

/* ------------------------------------------------------------------------------------------------ backends ---- */

/* One plugin file that the search would consider, in search order; or, with an empty name, a directory of
 * ONEHEAD_BACKEND_PATH that can't be searched. */
typedef struct oh_backend_candidate {
    char name[64];     /* from the file's name, onehead-<name>.so */
    char path[4096];   /* resolved */
    char verdict[300]; /* "" when it passes every check made before it is opened, else why it isn't taken */
} oh_backend_candidate;

/* Lists candidates without opening any. Writes at most `capacity` entries and returns how many there are. */
OH_API int64_t oh_backend_list(oh_backend_candidate *candidates, int64_t capacity);

/* Loads a backend by name, or by path when `name_or_path` contains a '/', after its checks: a regular file, it and
 * its directory owned by root or the effective user and writable by nobody else, this ABI, this sanitizer. Loaded once a process and never unloaded; safe from several threads. */
OH_API oh_status oh_backend_load(const char *name_or_path, const oh_backend **backend, oh_error *error);

/* ------------------------------------------------------------------------------------------------- context ---- */

/* A backend's open device. */
typedef struct oh_context oh_context;

/* Which backend and device; zeros are the defaults. */
typedef struct oh_context_options {
    const char *backend;     /* name or path; NULL: "openblas" */
    const oh_backend *table; /* a table in hand instead of a file (tests, static builds), or NULL */
    int32_t device;
    int32_t threads; /* of a CPU backend; 0: its default */
    /* Device memory for workspaces and converted weights; NULL: the backend's own alloc and free. Called by
     * oh_plan_create and oh_plan_destroy only, on their thread; at least 256-byte aligned. */
    void *(*alloc)(void *user, uint64_t bytes);
    void (*free)(void *user, void *address);
    void *user;
    void (*log)(void *user, const char *line); /* may be NULL */
} oh_context_options;

/* Loads the backend and opens its device. OH_NO_BACKEND: no such backend or device. `options` is copied; what it points
 * to is not read afterwards but `user`, by the callbacks. */
OH_API oh_status oh_context_open(const oh_context_options *options, oh_context **context, oh_error *error);
/* Plans of the context must be destroyed before. NULL is allowed. */
OH_API void oh_context_close(oh_context *context);
OH_API const oh_backend *oh_context_backend(const oh_context *context);
/* The open device, for the backend's functions that take one: a caller's own buffers and queues on it. Belongs to the
 * context. */
OH_API oh_device *oh_context_device(const oh_context *context);
OH_API oh_status oh_context_device_info(oh_context *context, oh_device_info *info, oh_error *error);

/* ----------------------------------------------------------------------------------------------- objective ---- */

/* The command's texts, parsed into an objective: "kl=1,cap=0.1"; "none", "exp:10", "power:0.9", "dpace:0.5";
 * "weights", "count", "none" or a number; "target" or "given"; "stop" or "skip"; "1,4,8".
 * OH_INVALID_ARGUMENT names the part that has no meaning; the objective is then unchanged. */
OH_API oh_status oh_objective_set_terms(oh_objective *objective, const char *text, oh_error *error);
OH_API oh_status oh_objective_set_decay(oh_objective *objective, const char *text, oh_error *error);
OH_API oh_status oh_objective_set_norm(oh_objective *objective, const char *text, oh_error *error);
OH_API oh_status oh_objective_set_labels(oh_objective *objective, const char *text, oh_error *error);
OH_API oh_status oh_objective_set_gap(oh_objective *objective, const char *text, oh_error *error);
OH_API oh_status oh_objective_set_top_k(oh_objective *objective, const char *text, oh_error *error);
OH_API const char *oh_term_name(int32_t term); /* "ce", "kl", ...; NULL outside [0, OH_TERM_COUNT) */

/* ------------------------------------------------------------------------------------------------- request ---- */

/* What a plan keeps of a chunk's logits between the statistics and the gradient. */
typedef enum oh_policy {
    OH_POLICY_AUTO = 0, /* cached where the budget allows a useful chunk, else recompute */
    OH_POLICY_CACHED = 1,
    OH_POLICY_RECOMPUTE = 2,
    OH_POLICY_NAIVE = 3,
} oh_policy;

/* On a device with memory of its own `diff` for terms that compare with a target of the same weight, `f16` for the others;
 * f32 on a CPU, for f32 tensors, for a target with a weight of its own, where f16 doesn't hold lm_head, where the f16 copy
 * of it doesn't fit in the memory, and after a step of the context that overflowed f16. oh_plan_summary says which and
 * why. */
#define OH_TILE_AUTO (-1)

/* What a step shall produce, any union. */
#define OH_PRODUCE_LOSS (1u << 0)       /* loss, terms, weights, counts */
#define OH_PRODUCE_GRAD (1u << 1)       /* dD; needs LOSS */
#define OH_PRODUCE_HEAD_GRAD (1u << 2)  /* dW; needs LOSS */
#define OH_PRODUCE_METRICS (1u << 3)    /* accuracy, slots, eal, entropy, top-1 probabilities: one read */
#define OH_PRODUCE_OVERLAP (1u << 4)    /* alpha and tau: a second read; needs METRICS and a target */
#define OH_PRODUCE_TOP_K (1u << 5)      /* hits and streaks for each K of the objective */
#define OH_PRODUCE_ROWS (1u << 6)       /* row_loss, weight, label, argmax, rank (a second read); needs LOSS, METRICS */
#define OH_PRODUCE_TOP_K_ROWS (1u << 7) /* topk_id, topk_logprob; needs TOP_K */
#define OH_PRODUCE_BIAS_GRAD (1u << 9)  /* of the draft's bias; needs LOSS and a bias */
#define OH_PRODUCE_GRAD_NORM (1u << 8)  /* grad_norm, grad_abs_max of dD; needs GRAD */

/* Which of oh_inputs' arrays only the device knows, any union. What each kind of selection costs:
 *
 *   static      slots before first_slot are never computed, whatever is said here.
 *   host        (0) rows that aren't supervised cost nothing: they are gathered out before the products; a target row that
 *               several rows of a chunk share is projected once. One upload of 32 bytes a row each step.
 *   device      (any bit) every row from first_slot on is computed, supervised or not: the supervised ones gathered first,
 *               rows of zeros after them. Figures and gradients are those of the host's selection. Target rows are shared
 *               as long as target_row is a host array, else each row has its own. Two small kernels a step. Nothing
 *               is read back, so a captured step takes new masks at each replay. What a host would refuse (a negative mask,
 *               a target row out of range) makes its row unsupervised, and oh_plan_results says OH_BAD_DATA. */
#define OH_DEVICE_MASK (1u << 0)
#define OH_DEVICE_LABEL (1u << 1)
#define OH_DEVICE_TARGET_ROW (1u << 2) /* distinct_target_rows is not used then */

/* Shape, dtypes, objective and wishes of a plan. oh_request_init sets the defaults in brackets. */
typedef struct oh_request {
    int64_t rows;                       /* T, the most a run will have; a multiple of objective.block_size */
    int64_t target_rows;                /* S, the most a run will have; 0: no target [0] */
    int64_t hidden;                     /* H */
    int64_t vocab;                      /* V, rows of lm_head */
    int64_t vocab_valid;                /* columns that exist; 0: all [0] */
    int64_t target_hidden;              /* Ht, with a target lm_head of its own; 0: H and the shared head [0] */
    int64_t target_vocab;               /* Vt, rows of the target's own head, where vocab is a part of it; 0: V [0] */
    const int32_t *draft_to_target;     /* host [V] ascending target ids of the draft's columns; copied [NULL] */
    int32_t outside;                    /* oh_outside: rows whose token is no draft column, with target_vocab [drop] */
    int32_t hidden_dtype;               /* of draft_hidden and target_hidden: f32, bf16, f16 [bf16] */
    int32_t weight_dtype;               /* of lm_head [bf16] */
    int32_t target_weight_dtype;        /* of target_lm_head [bf16] */
    int32_t grad_dtype;                 /* of dD: f32, bf16 or f16 [f32] */
    int32_t has_bias, has_target_bias;  /* bias tensors will be given [0] */
    float scale, softcap;               /* of the draft logits [1, 0 = none] */
    float target_scale, target_softcap; /* [1, 0] */
    oh_objective objective; /* [kl=1, labels target, exp:10, norm weights, block 16, first_slot 1, 1,4,8, stop] */
    uint32_t produce;       /* OH_PRODUCE_* [LOSS|GRAD|METRICS|TOP_K] */
    int32_t policy;         /* [auto] */
    int32_t tile;           /* oh_tile_format or OH_TILE_AUTO [auto] */
    /* lm_head changes between runs [0]. What a tile needs converted is converted again each step, once where the copy
     * fits in the memory: it reads and writes V H elements. */
    int32_t weight_trains;
    int32_t external_workspace; /* runs bring their own workspace [0] */
    int32_t norm_on_device;     /* runs bring N as a device scalar; gradients are divided in a closing pass [0] */
    uint32_t device_inputs;     /* OH_DEVICE_*: arrays that runs give as device addresses [0] */
    int64_t chunk;              /* rows a chunk, a multiple of block_size; 0: from the budget [0] */
    /* Bytes for workspace and converted weights [0]. 0: 2 GiB; on a device with memory of its own also what the
     * converted weights take, if that makes no more than half of the memory that is free when the plan is made. */
    int64_t memory;
    /* A bound on the distinct target rows of a chunk's supervised rows; 0: none known [0]. With device_inputs any row from
     * first_slot on may be supervised, and all of them count. A run with more is refused. */
    int64_t distinct_target_rows;
    /* Device [V,H], or NULL [NULL]: the weight as it is now, so that oh_plan_create can see whether f16 holds it (one
     * read of it, where a tile of f16 or diff is asked for or auto would take one). It is not kept. */
    const void *lm_head;
    int64_t lm_head_ld;
} oh_request;

/* Sets every field to its default; rows, hidden and vocab have none. */
OH_API void oh_request_init(oh_request *request);

/* --------------------------------------------------------------------------------------------------- graph ---- */

/* What a plan runs, as data: nodes of the request's graph, before merging (every consumer on its own) and after. */
typedef enum oh_op {
    OH_OP_GATHER_DRAFT,
    OH_OP_GATHER_TARGET,
    OH_OP_PROJECT_DRAFT,
    OH_OP_PROJECT_TARGET,
    OH_OP_LSE_DRAFT,
    OH_OP_LSE_TARGET,
    OH_OP_ARGMAX_DRAFT,
    OH_OP_ARGMAX_TARGET,
    OH_OP_LABEL_LOGIT,
    OH_OP_ENTROPY,
    OH_OP_KL_SUM,
    OH_OP_RKL_SUM,
    OH_OP_LOGIT_SUM,
    OH_OP_TOP_K,
    OH_OP_OVERLAP,
    OH_OP_JSD_SUM,
    OH_OP_RANK,
    OH_OP_ROW_LOSS,
    OH_OP_METRICS,
    OH_OP_TOP_K_METRICS,
    OH_OP_TILE_GRAD,
    OH_OP_GRAD,
    OH_OP_HEAD_GRAD,
    OH_OP_SCATTER,
    OH_OP_PROJECT_TARGET_FULL, /* onto all of the target's vocabulary, where the draft's is a part of it */
    OH_OP_LSE_TARGET_FULL,
    OH_OP_OVERLAP_FULL,
    OH_OP_BIAS_GRAD,
    OH_OP_COUNT
} oh_op;

/* The most inputs of a node. */
#define OH_NODE_INPUTS_MAX 12

/* One operation of the graph, of one chunk. */
typedef struct oh_node {
    int32_t op;     /* oh_op */
    int32_t k;      /* of OH_OP_TOP_K and its metrics, else 0 */
    int32_t stage;  /* lifetime of the tiles it reads: nodes of one stage share one pass over the vocabulary */
    int32_t merged; /* before merging: index of the node that stands for it afterwards */
    int32_t input_count;
    int32_t inputs[OH_NODE_INPUTS_MAX]; /* indices of earlier nodes of the same list */
    uint32_t consumers;                 /* bit c: wanted by consumer c of oh_plan_consumer_name */
    uint32_t reserved;
    double flops, bytes; /* per full chunk, all rows supervised */
} oh_node;

/* "project_draft", "lse_target", ...; "unknown" outside of oh_op. */
OH_API const char *oh_op_name(int32_t op);

/* ---------------------------------------------------------------------------------------------------- plan ---- */

/* A request made ready to run. */
typedef struct oh_plan oh_plan;

/* What a plan chose, and what a full step of it costs. */
typedef struct oh_plan_summary {
    int32_t policy; /* what auto chose */
    int32_t tile;
    int64_t chunk;            /* rows */
    int64_t chunks;           /* of a full step */
    int64_t panel;            /* columns a pass takes at once: V_valid, or fewer where no whole tile fits */
    int64_t weight_panel;     /* rows of W converted at once; V_valid: converted once per plan or not at all */
    int32_t weight_converted; /* 1: a converted copy of W is kept for the plan's life */
    int32_t stages;
    int64_t projections_draft, projections_target, gemms; /* a full step, all rows supervised */
    double flops;                                         /* of those GEMMs */
    int64_t workspace_bytes; /* scratch: contents don't matter between runs, may be shared by plans that run in turn */
    int64_t weight_bytes;    /* converted weights, kept between runs */
    int64_t workspace_cached, workspace_recompute; /* what each policy would need at this chunk */
    int64_t memory;                                /* the budget: the request's or the default */
    int32_t operand_dtype;                         /* of hidden states and weight in the draft's products */
    int32_t grad_dtype;                            /* of the gradient tile */
    char tile_reason[160];                         /* why this tile: "as asked", "no term compares with a target" */
} oh_plan_summary;

/* A part of the workspace. */
typedef struct oh_plan_buffer {
    char name[40];
    int64_t bytes, offset; /* offset -1: of its own, outside of the workspace */
} oh_plan_buffer;

/* Makes a plan and allocates its memory (unless external_workspace). The context must outlive it. The request is
 * copied. OH_OUT_OF_MEMORY names the smallest budget that would do. OH_OVERFLOW: tiles of f16 or diff are asked for and
 * request->lm_head has values that f16 doesn't hold. */
OH_API oh_status oh_plan_create(oh_context *context, const oh_request *request, oh_plan **plan, oh_error *error);
/* The same without a device and without memory: counts, sizes and nodes only; it can't run. For a backend that
 * multiplies in f32 only and has every tile, as on a CPU. */
OH_API oh_status oh_plan_describe(const oh_request *request, oh_plan **plan, oh_error *error);
/* The same by what a backend's table claims (oh_backend_load); no device is needed. What only a device knows is left
 * out: scratch of its products, free memory. */
OH_API oh_status oh_plan_describe_for(const oh_backend *backend, const oh_request *request, oh_plan **plan,
                                      oh_error *error);
OH_API void oh_plan_destroy(oh_plan *plan); /* waits for its work; NULL is allowed */

/* Valid as long as the plan. */
OH_API const oh_plan_summary *oh_plan_get_summary(const oh_plan *plan);
/* workspace_bytes and weight_bytes together; like each of them INT64_MAX where 63 bits can't count them. */
OH_API int64_t oh_plan_bytes(const oh_plan_summary *summary);
/* Nodes before merging (merged = 0) or after (1); valid as long as the plan. */
OH_API const oh_node *oh_plan_nodes(const oh_plan *plan, int merged, int64_t *count);
OH_API const oh_plan_buffer *oh_plan_buffers(const oh_plan *plan, int64_t *count);
OH_API const char *oh_plan_consumer_name(const oh_plan *plan, int32_t consumer); /* "loss", "topk:4"; NULL: no such */

/* The frozen weight's contents changed: convert again on the next run. */
OH_API void oh_plan_weight_changed(oh_plan *plan);

/* ----------------------------------------------------------------------------------------------------- run ---- */

/* Tensors of one step. target_row, label and mask are host arrays, at any alignment and read before oh_plan_run returns,
 * unless request.device_inputs names them: then they are device arrays, aligned to their elements and read, like the
 * device tensors, by the enqueued work. */
typedef struct oh_inputs {
    int64_t rows;             /* T; 0 is a step with nothing in it */
    int64_t target_rows;      /* S */
    const void *draft_hidden; /* device [T,H] */
    int64_t draft_ld;
    const void *target_hidden; /* device [S,H or Ht], NULL without a target */
    int64_t target_ld;
    const void *lm_head; /* device [V,H] */
    int64_t lm_head_ld;
    const void *target_lm_head; /* device [V or Vt,Ht], or NULL: lm_head */
    int64_t target_lm_head_ld;
    const float *bias;        /* device [V] */
    const float *target_bias; /* device [V]; NULL with has_target_bias = 0 */
    const void *target_row;   /* [T] i32 or i64, or NULL: identity, S = T */
    const void *label;        /* [T] i32 or i64, or NULL (with labels target) */
    const void *mask;         /* [T] u8, bool or f32, or NULL: all 1 */
    int32_t target_row_dtype, label_dtype, mask_dtype;
    int32_t reserved;
    const double *norm; /* device [1]: N, or NULL: the objective's rule */
    void *workspace;    /* device, at a multiple of 256, with external_workspace */
    uint64_t workspace_bytes;
    void *stream; /* the platform's stream to enqueue on, NULL: one of the plan's own */
} oh_inputs;

/* Where a step writes, all on the device, all T rows; NULL for what was not asked for. */
typedef struct oh_outputs {
    void *draft_grad; /* [T,H] grad_dtype; rows that aren't supervised become 0 */
    int64_t draft_grad_ld;
    float *lm_head_grad; /* [V,H], overwritten */
    int64_t lm_head_grad_ld;
    float *bias_grad;               /* [V], overwritten */
    float *row_loss, *weight;       /* [T] */
    int32_t *label, *argmax, *rank; /* [T] */
    int32_t *topk_id;               /* [T,K], K the largest of the objective's list */
    float *topk_logprob;            /* [T,K] */
} oh_outputs;

/* Enqueues one step. Returns once the host arrays were read; on a CPU backend the work is then done. Bad data (a label
 * dtype, a negative mask, a target_row out of range on a supervised row) is refused before anything is enqueued; where
 * only the device sees it, oh_plan_results tells. */
OH_API oh_status oh_plan_run(oh_plan *plan, const oh_inputs *inputs, const oh_outputs *outputs, oh_error *error);

/* ------------------------------------------------------------------------------------------------- results ---- */

/* Of one K of the objective's list. */
typedef struct oh_top_k_result {
    int32_t k, reserved;
    int64_t hits, streak_sum;
    double rate;   /* hits / (supervised - nonfinite_rows) */
    double streak; /* streak_sum / blocks */
} oh_top_k_result;

/* Figures of the last run, as design.md names them. Ratios over nothing are 0; figures that were not asked for, or that
 * need a target where there is none, are NaN. */
typedef struct oh_results {
    int64_t rows, supervised, blocks, nonfinite_rows;
    int64_t first_nonfinite_row; /* -1: none */
    double weight_sum, loss, loss_num, loss_den;
    double terms[OH_TERM_COUNT]; /* NaN: not in use */
    double grad_norm, grad_abs_max;
    oh_top_k_result top_k[OH_TOP_K_LIST_MAX];
    int32_t top_k_count, reserved;
    const double *slot_hits, *slot_count; /* [block_size], valid until the plan's next run */
    int64_t block_size;
    double eal, alpha, tau, draft_entropy, draft_top1, target_top1;
    int64_t projections_draft, projections_target, gemms; /* as run */
    int64_t tile_reads; /* passes over a tile for statistics and gradient, summed over chunks and panels */
} oh_results;

/* Waits for the last run and reads its figures.
 *
 * OH_BAD_DATA: a mask or target row that only the device has is out of range (device_inputs); `results` are the figures of
 * the step without its row.
 *
 * OH_OVERFLOW: a logit of the step left the range of an f16 tile (or the f16 gradient tile did, which shows where the plan
 * produces GRAD_NORM). The step is invalid. Its rows that overflowed were treated as rows that are not finite, so that its
 * gradient is that of the other rows and `results` are their figures; whoever trains should leave the step out. From then
 * on OH_TILE_AUTO means f32 in new plans of this context. This plan keeps its tile, and says the same of every step that
 * overflows again. */
OH_API oh_status oh_plan_results(oh_plan *plan, oh_results *results, oh_error *error);

/* Where the last run's sums and loss live on the device: [oh_sum_count(objective)] and [3] f64. For callers that add
 * steps and ranks without waiting. A plan puts them at the same place of each workspace. */
OH_API const double *oh_plan_device_sums(const oh_plan *plan);
OH_API const double *oh_plan_device_loss(const oh_plan *plan);
/* [1] f64: rows whose f16 tiles overflowed in the last run, 0 for a valid step. With target_vocab the target's rows that are
 * projected onto all of it count, too.
 *
 * The three lie one behind another, sums, loss, overflow: oh_sum_count(objective) + 4 elements that one copy brings. */
OH_API const double *oh_plan_device_overflow(const oh_plan *plan);

/* Figures from sums that were added elsewhere (over steps or ranks). */
OH_API void oh_results_from_sums(const oh_objective *objective, const double *sums, const double *loss, int has_target,
                                 uint32_t produce, oh_results *results);

/* Called for every tile that a plan projects, after waiting for it: tests and `check` compare cached and recomputed
 * logits with it. `chunk` counts from 0; `stage` is that of the plan's nodes. The tile holds raw logits. Slows the plan
 * down to one tile at a time; NULL ends it. */
typedef void (*oh_tile_observer)(void *user, int64_t chunk, int32_t stage, const oh_tile_view *tile);
OH_API void oh_plan_observe(oh_plan *plan, oh_tile_observer observer, void *user);

/* One operation of a run: what the graph's nodes of a chunk become once passes are fused. */
typedef enum oh_span_kind {
    OH_SPAN_SELECTION,      /* row selection to the device */
    OH_SPAN_CONVERT_WEIGHT, /* rows of W into the operand dtype */
    OH_SPAN_GATHER_DRAFT,
    OH_SPAN_GATHER_TARGET,
    OH_SPAN_PROJECT_DRAFT,
    OH_SPAN_ROUND_TILE, /* f32 products into a 16-bit tile */
    OH_SPAN_PROJECT_TARGET,
    OH_SPAN_STATISTICS,  /* first read */
    OH_SPAN_SECOND_READ, /* overlaps and ranks */
    OH_SPAN_ROW_FINISH,
    OH_SPAN_TILE_GRAD,
    OH_SPAN_WIDEN_GRAD, /* 16-bit gradient tile into f32 operands */
    OH_SPAN_GRAD,       /* dD = dz W */
    OH_SPAN_SCALE_ROWS,
    OH_SPAN_HEAD_GRAD, /* dW = dz^T D */
    OH_SPAN_SCATTER,
    OH_SPAN_STEP_FINISH,
    OH_SPAN_DIVIDE, /* by an N that is known only now */
    OH_SPAN_NORM,
    OH_SPAN_CLEAR,
    OH_SPAN_STATS_GRAD, /* first read and gradient in one */
    OH_SPAN_COUNT
} oh_span_kind;

/* Where, how much and what an operation of a run is. */
typedef struct oh_span {
    int32_t kind;    /* oh_span_kind */
    int32_t stage;   /* of the plan's nodes, -1: outside of any */
    int64_t chunk;   /* from 0, -1: the step's own */
    int64_t rows;    /* supervised rows; of a product or a copy, its rows m */
    int64_t columns; /* of the tile or matrix; of a product n */
    int64_t depth;   /* of a product k, else 0 */
    int64_t first_column;
    double flops;       /* of products only */
    double bytes;       /* each operand read once and the result written once: the least that must move */
    int32_t tile_reads; /* 1: a pass over the tiles, as oh_results.tile_reads counts */
    int32_t reserved;
    oh_queue *queue; /* that the operation is enqueued on */
} oh_span;

OH_API const char *oh_span_name(int32_t kind); /* "project_draft", "statistics", ... */

/* Called with begin = 1 before and 0 after the call that enqueues an operation, on the thread of oh_plan_run: on a
 * backend that computes before its calls return, the two are the operation's time. On others each call may record an
 * event on span->queue (backend.h), which costs no waiting, or the second one may wait for the queue, at the price of
 * overlap. NULL ends it. Without an observer an operation costs one test of a pointer. */
typedef void (*oh_span_observer)(void *user, const oh_span *span, int begin);
OH_API void oh_plan_trace(oh_plan *plan, oh_span_observer observer, void *user);

/* Enqueues the matrix products of a step and nothing else: same shapes, operands, panels and order, in the same
 * buffers, as oh_plan_run with the same arguments. It is the floor that a step is measured against. The plan must have
 * run a step before, on the same workspace, so that the operands hold numbers. Results and outputs are meaningless
 * afterwards; lm_head_grad is written. */
OH_API oh_status oh_plan_run_products(oh_plan *plan, const oh_inputs *inputs, const oh_outputs *outputs,
                                      oh_error *error);

/* Waits for everything the plan has enqueued. */
OH_API oh_status oh_plan_wait(oh_plan *plan, oh_error *error);

#ifdef __cplusplus
}
#endif
#endif
