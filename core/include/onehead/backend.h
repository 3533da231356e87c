/* backend.h - the contract between onehead's core and the plugins that compute.
 *
 * A plugin is one shared object that exports one symbol, `oh_backend_v1`:
 *
 *     const oh_backend *oh_backend_v1(void);
 *
 * The table it returns is constant and lives as long as the process. The core plans; a plugin multiplies matrices and
 * reads and writes *tiles* (the logits of some rows over a range of vocabulary columns). A plugin never learns the
 * name of a loss: the algebra between what a tile is read for and what its gradient is made of is in rowmath.h, as
 * inline functions that compile as C and as CUDA device code.
 *
 * The smallest plugin sets the device, queue and memory groups and `gemm`, declares OH_CAP_HOST_MEMORY and leaves
 * everything else NULL: the core then runs its portable C operations on the same memory (after queue_wait).
 *
 * Rules that hold for every function
 *   Addresses    Memory is flat: a device address is a `void *`, and address + offset is an address. The core carves
 *                buffers out of one workspace at 256-byte alignment; callers' tensors may be aligned to their element
 *                only, and rows may be further apart than they are long (`ld`, in elements).
 *   Asynchrony   A compute, upload, fill or download call only enqueues; work of one queue runs in the order of the
 *                calls. Only queue_wait blocks, and upload and download where the host memory is pageable. Structures
 *                passed by pointer are read before the call returns; the arrays they point to are read when it runs.
 *   Errors       A call with impossible arguments returns OH_INVALID_ARGUMENT and enqueues nothing; so does one that
 *                is possible but not claimed, with OH_UNSUPPORTED: a product of dtypes outside of gemm_kinds, a tile
 *                format outside of tile_formats, a native stream where there are none. A fault of the device is sticky:
 *                it is returned at the latest by queue_wait and by every call after it, and last_error has the words.
 *   Threads      One device may be used from one thread at a time; different devices (and two device_open of the same
 *                index) from different threads at once, with no lock between them.
 *   Memory       Whoever allocates frees; nothing allocated on one side of this boundary is freed on the other. No call
 *                between queue_open and queue_close may keep memory of its own that grows with the data.
 *   Determinism  A plugin with OH_CAP_DETERMINISTIC gives the same bits for the same calls on the same device, for any
 *                timing of its threads.
 *   Versions     The major version is in the symbol's name. A minor version only appends fields, at the end of this
 *                table; a reader tests `size` before it reads a later field (OH_BACKEND_HAS). oh_host.minor is the
 *                core's minor version.
 */
#ifndef ONEHEAD_BACKEND_H
#define ONEHEAD_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The ABI's version, apart from the library's. */
#define OH_BACKEND_MAJOR 1
#define OH_BACKEND_MINOR 4

/* ------------------------------------------------------------------------------------------------- dtypes ---- */

/* Element types. Values are part of the ABI. All are little-endian. */
typedef enum oh_dtype {
    OH_F32 = 0,
    OH_BF16 = 1, /* upper half of an f32 */
    OH_F16 = 2,  /* IEEE binary16 */
    OH_F64 = 3,
    OH_I32 = 4,
    OH_I64 = 5,
    OH_U8 = 6,
    OH_BOOL = 7, /* one byte, 0 or not 0 */
    OH_DTYPE_COUNT
} oh_dtype;

/* What a tile holds: raw logits (before the logit transform) in one of three dtypes, or OH_TILE_DIFF: f16 tiles of the
 * target's logits t and of the difference d = (D - G) W^T, where the draft logit is t + d, formed in f32. */
typedef enum oh_tile_format { OH_TILE_F32 = 0, OH_TILE_BF16 = 1, OH_TILE_F16 = 2, OH_TILE_DIFF = 3 } oh_tile_format;

/* Logits and probabilities. The ABI has float; the library's own tests also build the algebra and the portable tile
 * operations with OH_REAL_IS_DOUBLE, so that derivatives can be checked by central differences. OH_F32 and OH_TILE_F32
 * then mean an oh_real in tiles and gradients. */
#ifdef OH_REAL_IS_DOUBLE
typedef double oh_real;
#else
typedef float oh_real;
#endif

/* --------------------------------------------------------------------------------------- matrix operations ---- */

/* Which operand of a product is transposed. */
typedef enum oh_gemm_op {
    OH_GEMM_NT = 0, /* C[m,n] = A[m,k] B[n,k]^T   logits = hidden W^T */
    OH_GEMM_NN = 1, /* C[m,n] = A[m,k] B[k,n]     dD = dz W */
    OH_GEMM_TN = 2, /* C[m,n] = A[k,m]^T B[k,n]   dW = dz^T D */
} oh_gemm_op;

/* One product, row-major, accumulated in f32 or wider (f32 operands are multiplied as f32: no TF32). lda, ldb, ldc are
 * row strides in elements, at least the row's length. C = A.B, or C + A.B with `accumulate`. Without it C is never
 * read, so it may hold NaN. C overlaps neither A nor B. m, n, k >= 0; k = 0 without `accumulate` writes zeros. */
typedef struct oh_gemm {
    int32_t op; /* oh_gemm_op */
    int32_t accumulate;
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    int32_t a_dtype, b_dtype, c_dtype; /* oh_dtype; the combination is one that `gemm_kinds` claims */
    int32_t reserved;
    void *scratch;         /* or NULL */
    int64_t scratch_bytes; /* the most that gemm_scratch answered for the plan's largest products; see there */
} oh_gemm;

/* Bits of oh_backend.gemm_kinds: operand dtypes (A, B) and result dtype. */
#define OH_GEMM_F32_F32 (1u << 0)   /* f32 x f32 -> f32; every plugin has this one */
#define OH_GEMM_BF16_F32 (1u << 1)  /* bf16 x bf16 -> f32 */
#define OH_GEMM_F16_F32 (1u << 2)   /* f16 x f16 -> f32 */
#define OH_GEMM_BF16_BF16 (1u << 3) /* bf16 x bf16 -> bf16, rounded once from the f32 sum */
#define OH_GEMM_F16_F16 (1u << 4)   /* f16 x f16 -> f16, rounded once from the f32 sum */
/* A f32, B bf16 -> f32, without rounding A: dz W where the gradient tile is f32 and the weight bf16. */
#define OH_GEMM_F32_BF16_F32 (1u << 5)

/* Copies rows between two row-major matrices: gather, scatter, convert, scale, subtract and zero in one operation.
 * For i in [0, rows), with m = map ? map[i] : i:
 *     dst[i,:] = m < 0 ? 0 : factor * row_scale[m] * (src[m,:] - subtract[subtract_map ? subtract_map[m] : m,:])
 * computed in f32 and rounded once to dst's dtype (f32, bf16 or f16; to nearest, ties to even). A row with m < 0 or
 * row_scale[m] = 0 is written as +0 without reading its source, so that a NaN there goes nowhere. A pointer that is NULL leaves its factor or term out. dst may be src itself
 * (same address, ld and dtype) when map is NULL; otherwise they don't overlap. A value that f16 can't hold becomes
 * infinite. */
typedef struct oh_copy_rows {
    int64_t rows, columns;
    const void *src;
    int64_t src_ld;
    const int32_t *map; /* [rows] */
    const void *subtract;
    int64_t subtract_ld;
    const int32_t *subtract_map;
    const float *row_scale; /* by source row */
    const float *factor;    /* [1] */
    void *dst;
    int64_t dst_ld;
    int32_t src_dtype, subtract_dtype, dst_dtype; /* f32, bf16 or f16 */
    int32_t reserved;
} oh_copy_rows;

/* Adds to sums[0] the sum of squares and raises sums[1] to the largest absolute value of a matrix (f32, bf16, f16). A NaN
 * makes both NaN. */
typedef struct oh_matrix_norm {
    int64_t rows, columns;
    const void *data;
    int64_t ld;
    int32_t dtype;
    int32_t reserved;
    double *sums; /* [2] on the device */
} oh_matrix_norm;

/* ----------------------------------------------------------------------------------------- tile operations ---- */

/* z = softcap * tanh(x / softcap), x = scale * raw + bias_v; softcap 0 leaves the tanh out, bias NULL is 0. A bias of
 * -inf makes the logit -inf whatever raw is. */
typedef struct oh_transform {
    const float *bias; /* [vocabulary] on the device, indexed by absolute column, or NULL */
    float scale, softcap;
} oh_transform;

/* One or two tiles over the same panel of columns. `draft` [rows, columns] belongs to drafter rows; row i of it is
 * judged against row target_row[i] (NULL: i) of `target`, which several draft rows may share. Either may be NULL.
 * Column j of the tile is vocabulary column first_column + j. */
typedef struct oh_tile_view {
    void *draft;
    const void *target;
    int64_t draft_ld, target_ld;
    const int32_t *target_row; /* [rows] on the device */
    int64_t rows, columns, first_column;
    oh_transform draft_transform, target_transform;
    int32_t format; /* oh_tile_format, of both tiles */
    int32_t reserved;
} oh_tile_view;

/* What a row's first read collects. z and t are transformed logits; sums are over the columns seen so far. A field
 * that the request's `want` does not name is left undefined. Empty state (before any column): maxima -inf, sums 0,
 * indices -1, flags 0. Two states over disjoint columns merge by oh_row_stats_merge (rowmath.h).
 * References: (z_max, t_max) are both the offsets and the running maxima; a logit of -inf adds nothing to any sum. An
 * infinite divergence is told by its flag, not by its sum: kl_dot where OH_ROW_P0_Q is set, and rkl_dot where
 * OH_ROW_Q0_P is, may hold anything; nobody reads them there, and a row whose objective has that term is left out as not
 * finite. */
typedef struct oh_row_stats {
    oh_real z_max, t_max;
    oh_real z_label;  /* z at `label`; -inf until its column was seen */
    int32_t label;    /* y: the request's label, or the running argmax of t */
    int32_t z_argmax; /* lowest column with z = z_max */
    int32_t t_argmax;
    uint32_t flags; /* OH_ROW_* */
    uint32_t reserved;
    double z_sum;   /* sum exp(z - z_max) */
    double t_sum;   /* sum exp(t - t_max) */
    double z_dot;   /* sum exp(z - z_max) (z - z_max)                             OH_WANT_ENTROPY */
    double kl_dot;  /* sum exp(t - t_max) ((t - t_max) - (z - z_max))             OH_WANT_KL */
    double rkl_dot; /* sum exp(z - z_max) ((z - z_max) - (t - t_max))             OH_WANT_RKL */
    double z_total; /* sum z                                                      OH_WANT_TOTAL */
} oh_row_stats;

#define OH_ROW_Z_BAD (1u << 0)     /* a draft logit is NaN or +inf */
#define OH_ROW_T_BAD (1u << 1)     /* a target logit is NaN or +inf */
#define OH_ROW_P0_Q (1u << 2)      /* somewhere z = -inf while t is finite: kl is infinite */
#define OH_ROW_Q0_P (1u << 3)      /* somewhere t = -inf while z is finite: rkl is infinite */
#define OH_ROW_Z_NEG_INF (1u << 4) /* a valid draft logit is -inf: label smoothing's loss is infinite */
#define OH_ROW_OVERFLOW (1u << 5)  /* set by tile_overflow only */

/* Bits of oh_tile_stats.want: sums that cost more than they are worth to a step that doesn't use them. */
#define OH_WANT_ENTROPY (1u << 0)
#define OH_WANT_KL (1u << 1)
#define OH_WANT_RKL (1u << 2)
#define OH_WANT_TOTAL (1u << 3)

/* First read: statistics of every row, merged into what earlier panels left there unless `restart`, which starts from
 * the empty state without reading. Maxima, sums, argmaxes, flags and z_label are collected for the tiles that are
 * there; `want` adds to them.
 * label: [rows] vocabulary column of y (-1: none), or NULL: y is the running argmax of t.
 * top_k > 0: topk_id and topk_logit [rows, top_k] hold the largest draft logits, descending, ties by lowest column;
 * missing ones (fewer columns than top_k so far) have id -1. Logits of -inf are candidates like any other. A row with
 * OH_ROW_Z_BAD has defined but meaningless entries. */
typedef struct oh_tile_stats {
    oh_tile_view tile;
    oh_row_stats *stats; /* [rows] */
    const int32_t *label;
    int32_t *topk_id;
    oh_real *topk_logit;
    int32_t top_k;
    uint32_t want;
    int32_t restart;
    int32_t reserved;
} oh_tile_stats;

/* The longest list that a first read collects. */
#define OH_TOP_K_MAX 64

/* What a row's second read collects, with p and q from the complete first read. Panels add. */
typedef struct oh_row_overlap {
    double alpha; /* sum min(p, q)                                                 OH_WANT_OVERLAP */
    double tv;    /* sum max(q - p, 0): 1 - alpha without its cancellation         OH_WANT_OVERLAP */
    double p_le;  /* sum p over p <= q                                             OH_WANT_OVERLAP */
    double jsd;   /* sum (p (log p - log m) + q (log q - log m)) / 2, m = (p+q)/2  OH_WANT_JSD */
    double kl_pm; /* sum p (log p - log m)                                         OH_WANT_JSD */
    int64_t rank; /* #{z > z_label} + #{v < y: z = z_label}                        OH_WANT_RANK */
} oh_row_overlap;

/* Bits of oh_tile_overlap.want. */
#define OH_WANT_OVERLAP (1u << 8)
#define OH_WANT_JSD (1u << 9)
#define OH_WANT_RANK (1u << 10)

/* Second read, of the same device and tile that gave `stats`. Rows whose first read is not finite are left out (their
 * entries become 0); a row without a label has rank 0. Panels may come in any order.
 * full: [target tile rows] statistics of the target over a vocabulary of which this tile's columns are a part: q is then
 * exp(t - full.t_max) / full.t_sum; NULL: q from the row's own t_max and t_sum. Only for OH_WANT_OVERLAP. */
typedef struct oh_tile_overlap {
    oh_tile_view tile;
    const oh_row_stats *stats; /* [rows], complete */
    oh_row_overlap *overlap;   /* [rows] */
    const oh_row_stats *full;
    uint32_t want;
    int32_t restart;
} oh_tile_overlap;

/* The linear form of every gradient:
 *   dz_v = p_v (c0 + c1 log p_v + c2 log q_v + c3 log m_v + c4 [p_v <= q_v]) - cy [v = y] - cq q_v - ck
 * with p_v = exp(z_v - z_max) z_inv, log p_v = (z_v - z_max) - z_log, and q likewise. */
typedef struct oh_row_coef {
    oh_real c0, c1, c2, c3, c4, cy, cq, ck;
    oh_real z_max, z_inv, z_log; /* z_inv = 1 / sum, z_log = log sum */
    oh_real t_max, t_inv, t_log;
    int32_t label;
    int32_t zero; /* OH_ZERO_*: whether the row's gradient is to be formed */
} oh_row_coef;

/* Values of oh_row_coef.zero. Any other is OH_ZERO_ROW. */
#define OH_ZERO_NOT 0  /* by the coefficients */
#define OH_ZERO_ROW 1  /* exactly 0 whatever the tile holds */
#define OH_ZERO_DONE 2 /* there already, from tile_stats_grad: tile_grad neither reads nor writes the row */

/* Union over rows of the coefficients that can differ from 0, so that a kernel can leave work out. */
#define OH_FORM_LOG_P (1u << 0) /* c1 */
#define OH_FORM_LOG_Q (1u << 1) /* c2 */
#define OH_FORM_LOG_M (1u << 2) /* c3 */
#define OH_FORM_LE (1u << 3)    /* c4 */
#define OH_FORM_Q (1u << 4)     /* cq */

/* Gradient with respect to the *raw* draft logits (the transform's derivative applied last), formed in f32 and rounded
 * once to out's dtype. 0 where z is -inf. `out` may be the draft tile: same address and the same bytes between rows;
 * element j of a row is written after element j was read. */
typedef struct oh_tile_grad {
    oh_tile_view tile;
    const oh_row_coef *coef; /* [rows] */
    void *out;
    int64_t out_ld;
    int32_t out_dtype; /* f32, bf16 or f16 */
    uint32_t form;     /* OH_FORM_* */
} oh_tile_grad;

/* The gradient, and what metrics ask of a second read, in one read of the tile: alpha and rank as tile_overlap would find
 * them; the overlap's other fields, which are parts of losses, may be anything. Of whole rows. Where the coefficients have
 * maxima, they are those of the statistics. A row whose coefficients are zero may have any overlap. */
typedef struct oh_tile_grad_overlap {
    oh_tile_grad grad; /* of a tile with drafter and target */
    const oh_row_stats *stats;
    oh_row_overlap *overlap;
    uint32_t want; /* OH_WANT_OVERLAP: alpha; and OH_WANT_RANK or not */
    int32_t reserved;
} oh_tile_grad_overlap;

struct oh_objective; /* objective.h */

/* A first read and the gradient in one, while a row is at hand: statistics as tile_stats leaves them, coefficients as
 * oh_row_coefficients (rowmath.h) forms them of these, and by them the gradient as tile_grad does. Of whole rows, without
 * logit transforms, and with terms that need no second read.
 * A row whose flags are not 0 gets its statistics and nothing else, so that what comes between the two (tile_overflow) can
 * look at its logits: row_finish is then told OH_FINISH_GRAD_DONE, and tile_grad forms the gradient of these rows. */
typedef struct oh_tile_stats_grad {
    oh_tile_stats stats; /* with restart */
    oh_tile_grad grad;   /* of stats.tile, into its draft tile: out_dtype is as wide as the tile's; coef isn't read */
    const struct oh_objective *objective; /* read before the call returns */
    int32_t has_target;                   /* oh_row_finish's */
    int32_t reserved;
} oh_tile_stats_grad;

/* What the rows of a tile were made of, as the caller gave it: the raw logit of tile row i and column v is, with
 * m = map[i], the product of rows[m,:] - subtract[subtract_map[m],:] and weight[weight_map ? weight_map[v] : v,:]. */
typedef struct oh_tile_source {
    const void *rows;     /* NULL: there is no such tile */
    const int32_t *map;   /* negative: a row of zeros */
    const void *subtract; /* of rows_dtype, or NULL */
    const int32_t *subtract_map;
    const void *weight;
    const int32_t *weight_map;
    int64_t ld, subtract_ld, weight_ld, hidden;
    int32_t rows_dtype, weight_dtype;
} oh_tile_source;

/* Finds what a tile of f16 or diff could not hold, after the tile's first read. Looks at a row only where stats[i].flags
 * isn't 0, so that it costs next to nothing otherwise, and draft.map[i] not negative: such a row is nobody's. Where an element of its draft tile row, or of the target tile
 * row that it is judged against, isn't finite while its source's product in f32 is, the row overflowed: its flags get
 * OH_ROW_Z_BAD and OH_ROW_OVERFLOW, which leaves it out of everything as a row that is not finite, found[0] grows by 1 and
 * found[1] becomes the lowest such draft.map[i] + 1 (0 means none). A row that already has OH_ROW_OVERFLOW is left as it
 * is. What is not finite in the source itself is no overflow.
 * Of a target over a vocabulary of which the draft's is a part, the tile and its rows come as `draft`: stats are the target
 * rows', and the map holds rows of G. */
typedef struct oh_tile_overflow {
    oh_tile_view tile; /* format f16 or diff, with a draft tile */
    oh_row_stats *stats;
    oh_tile_source draft, target; /* diff: of the draft tile, subtract is G */
    double *found;                /* [2] */
} oh_tile_overflow;

/* ------------------------------------------------------------------------------------------ row operations ---- */

/* Where the draft's vocabulary is a part of the target's: y of each row as a draft column. label[i] is the position of
 * full[target_row ? target_row[i] : i].t_argmax among the ascending `ids`, or -1 where it isn't one of them. */
typedef struct oh_row_labels {
    int64_t rows, id_count;
    const oh_row_stats *full;  /* [target tile rows] */
    const int32_t *target_row; /* [rows] or NULL */
    const int32_t *ids;        /* [id_count] */
    int32_t *label;            /* [rows] */
} oh_row_labels;

/* The objective and the request of one row_finish; opaque to plugins: rowmath.h defines and reads it. */
struct oh_row_finish;
struct oh_step_finish;
struct oh_row_select;

/* --------------------------------------------------------------------------------------------- the table ---- */

typedef struct oh_device oh_device; /* defined by the plugin */
typedef struct oh_queue oh_queue;   /* defined by the plugin */
typedef struct oh_event oh_event;   /* defined by the plugin */

/* Services of the core, valid while the device is open. */
typedef struct oh_host {
    uint64_t size;
    uint32_t minor, reserved;
    void *user;
    void (*log)(void *user, const char *line); /* may be NULL */
} oh_host;

/* Which device to open, and how. */
typedef struct oh_device_options {
    uint64_t size;
    int32_t index;
    int32_t threads; /* host threads to use; 0: the plugin's default (OMP_NUM_THREADS, cores) */
} oh_device_options;

/* An open device, for people; memory_free is that of the moment. */
typedef struct oh_device_info {
    char name[128];   /* "NVIDIA H200", "x86-64, 2 threads" */
    char kernel[256]; /* libraries and kernels that compute here: "OpenBLAS 0.3.21; core Haswell; tiles avx2 (SLEEF)" */
    int64_t memory_total, memory_free; /* bytes; 0: not known */
    int32_t threads;
    int32_t reserved;
} oh_device_info;

/* Bits of oh_backend.caps: what a plugin promises. */
#define OH_CAP_HOST_MEMORY (1u << 0)   /* device addresses are host addresses: portable operations fill NULL entries */
#define OH_CAP_DETERMINISTIC (1u << 1) /* the same calls give the same bits */
#define OH_CAP_CAPTURE (1u << 2)       /* a step can be captured into the platform's graphs and replayed */

/* What a plugin is: claims, then functions. Constant, and alive as long as the process. */
typedef struct oh_backend {
    uint64_t size; /* sizeof(oh_backend) of the header this plugin was built with */
    uint32_t minor;
    uint32_t caps;         /* OH_CAP_* */
    uint32_t gemm_kinds;   /* OH_GEMM_*_* */
    uint32_t tile_formats; /* bit (1 << oh_tile_format) for each format its tile operations take */
    const char *name;      /* [a-z0-9_]+, the one in the file's name: onehead-<name>.so */
    const char *build;     /* version, compiler, flags: for people; not NULL */
    const char *sanitizer; /* "", "address", "thread", ...: must equal the core's own; not NULL */

    /* Devices. Required. */
    int32_t (*device_count)(void);
    oh_status (*device_open)(const oh_device_options *options, const oh_host *host, oh_device **device,
                             oh_error *error);
    void (*device_close)(oh_device *device);
    oh_status (*device_info)(oh_device *device, oh_device_info *info);
    void (*last_error)(oh_device *device, oh_error *error); /* copies out the latest failure's status and words */

    /* Queues. Required. `native` is the platform's stream (cudaStream_t), NULL for one of the plugin's own. Closing
     * waits. A queue on a caller's stream never destroys that stream. */
    oh_status (*queue_open)(oh_device *device, void *native, oh_queue **queue);
    oh_status (*queue_wait)(oh_queue *queue);
    void (*queue_close)(oh_queue *queue);

    /* Memory. Required. alloc: at least 256-byte aligned, contents undefined; bytes > 0. free(NULL) does nothing. */
    oh_status (*alloc)(oh_device *device, uint64_t bytes, void **address);
    void (*free)(oh_device *device, void *address);
    oh_status (*upload)(oh_queue *queue, void *to, const void *from_host, uint64_t bytes);
    oh_status (*download)(oh_queue *queue, void *to_host, const void *from, uint64_t bytes);
    oh_status (*fill)(oh_queue *queue, void *to, int32_t byte, uint64_t bytes);

    /* Pinned host memory, so that upload and download need not block: both or neither. NULL: pageable memory is used. */
    oh_status (*host_alloc)(oh_device *device, uint64_t bytes, void **address);
    void (*host_free)(oh_device *device, void *address);

    /* Matrices. gemm is required; gemm_scratch NULL: none is needed.
     * gemm_scratch: bytes that a product would like to have; addresses in it are not read. It is asked when a plan is made,
     * of the largest product of each kind that the plan runs. All of the plan's products then get the largest answer:
     * smaller ones, with fewer rows or columns or at a caller's longer strides, maybe less than their own answer would be.
     * So gemm looks at scratch_bytes, and does with what there is. */
    oh_status (*gemm)(oh_queue *queue, const oh_gemm *product);
    int64_t (*gemm_scratch)(oh_device *device, const oh_gemm *product);
    oh_status (*copy_rows)(oh_queue *queue, const oh_copy_rows *copy);
    oh_status (*matrix_norm)(oh_queue *queue, const oh_matrix_norm *norm);

    /* Tiles. */
    oh_status (*tile_stats)(oh_queue *queue, const oh_tile_stats *stats);
    oh_status (*tile_overlap)(oh_queue *queue, const oh_tile_overlap *overlap);
    oh_status (*tile_grad)(oh_queue *queue, const oh_tile_grad *grad);

    /* Rows: loops over the functions of rowmath.h; see there for what one call does. */
    oh_status (*row_finish)(oh_queue *queue, const struct oh_row_finish *finish);
    oh_status (*step_finish)(oh_queue *queue, const struct oh_step_finish *finish);
    oh_status (*row_labels)(oh_queue *queue, const oh_row_labels *labels); /* NULL: no vocabulary subsets */

    /* Whether the queue's stream is being captured into a graph, which will read uploads' host memory at each replay.
     * NULL: never. */
    int32_t (*queue_is_capturing)(oh_queue *queue);

    /* ---- since minor version 1 ---- */

    /* Events: moments in a queue's order that the device takes the time of, so that a trace shows when operations ran
     * without waiting for each. All four or none; NULL: a trace waits.
     * event_record enqueues the moment at which all of the queue's earlier work has run; recording an event again
     * replaces its moment. event_seconds: time from one to the other, which may be on different queues of one device;
     * negative where `to` came first. OH_INVALID_ARGUMENT for an event that was not recorded or whose moment is still
     * ahead: it doesn't wait. event_close(NULL) does nothing; closing an event that is enqueued is allowed. */
    oh_status (*event_open)(oh_device *device, oh_event **event);
    void (*event_close)(oh_event *event);
    oh_status (*event_record)(oh_queue *queue, oh_event *event);
    oh_status (*event_seconds)(oh_event *from, oh_event *to, double *seconds);

    /* ---- since minor version 2 ---- */

    /* Without them a backend that is not OH_CAP_HOST_MEMORY says nothing of f16 tiles that overflow (and `auto` takes
     * none), and masks, labels and target rows must be given on the host. */
    oh_status (*tile_overflow)(oh_queue *queue, const oh_tile_overflow *overflow);
    oh_status (*row_select)(oh_queue *queue, const struct oh_row_select *select); /* rowselect.h */

    /* ---- since minor version 3 ---- */

    /* With it, metrics that compare p with q cost no read of their own where the gradient's pass can find them. NULL: it
     * is tile_overlap, then tile_grad. */
    oh_status (*tile_grad_overlap)(oh_queue *queue, const oh_tile_grad_overlap *both);

    /* ---- since minor version 4 ---- */

    /* With them, a tile that is read once before its gradient is taken is read no second time. Both or neither; NULL: it
     * is tile_stats, row_finish, then tile_grad. tile_stats_grad_takes: whether tile_stats_grad does this call as well as
     * those would; the core asks before each, and tile_stats_grad refuses the others with OH_UNSUPPORTED. */
    int32_t (*tile_stats_grad_takes)(oh_device *device, const oh_tile_stats_grad *pass);
    oh_status (*tile_stats_grad)(oh_queue *queue, const oh_tile_stats_grad *pass);
} oh_backend;

/* Whether a table reaches as far as an entry, and has it. */
#define OH_BACKEND_HAS(table, entry)                                                                                   \
    ((table)->size >= offsetof(oh_backend, entry) + sizeof(table)->entry && (table)->entry != NULL)

/* The one function that a plugin exports, and the name that it exports it by. */
typedef const oh_backend *(*oh_backend_entry)(void);
#define OH_BACKEND_SYMBOL "oh_backend_v1"

/* As C and C++ each have it. */
#ifdef __cplusplus
#define OH_STATIC_ASSERT static_assert
#else
#define OH_STATIC_ASSERT _Static_assert
#endif

/* The layout is the ABI (64-bit, little-endian): an edit that moves a field fails to compile. */
OH_STATIC_ASSERT(sizeof(void *) == 8, "onehead's ABI is defined for 64-bit platforms");
#ifndef OH_REAL_IS_DOUBLE
OH_STATIC_ASSERT(sizeof(oh_row_stats) == 80, "oh_row_stats");
OH_STATIC_ASSERT(offsetof(oh_row_stats, z_sum) == 32, "oh_row_stats.z_sum");
OH_STATIC_ASSERT(sizeof(oh_row_coef) == 64, "oh_row_coef");
#endif
OH_STATIC_ASSERT(sizeof(oh_row_overlap) == 48, "oh_row_overlap");
OH_STATIC_ASSERT(sizeof(oh_gemm) == 112, "oh_gemm");
OH_STATIC_ASSERT(sizeof(oh_copy_rows) == 112, "oh_copy_rows");
OH_STATIC_ASSERT(sizeof(oh_matrix_norm) == 48, "oh_matrix_norm");
OH_STATIC_ASSERT(sizeof(oh_tile_view) == 104, "oh_tile_view");
OH_STATIC_ASSERT(sizeof(oh_tile_stats) == 152, "oh_tile_stats");
OH_STATIC_ASSERT(sizeof(oh_tile_overlap) == 136, "oh_tile_overlap");
OH_STATIC_ASSERT(sizeof(oh_tile_grad) == 136, "oh_tile_grad");
OH_STATIC_ASSERT(sizeof(oh_tile_grad_overlap) == 160, "oh_tile_grad_overlap");
OH_STATIC_ASSERT(sizeof(oh_tile_stats_grad) == 304, "oh_tile_stats_grad");
OH_STATIC_ASSERT(sizeof(oh_tile_source) == 88, "oh_tile_source");
OH_STATIC_ASSERT(sizeof(oh_tile_overflow) == 296, "oh_tile_overflow");
OH_STATIC_ASSERT(offsetof(oh_backend, name) == 24, "oh_backend.name");
OH_STATIC_ASSERT(offsetof(oh_backend, device_count) == 48, "oh_backend.device_count");
OH_STATIC_ASSERT(offsetof(oh_backend, gemm) == 168, "oh_backend.gemm");
OH_STATIC_ASSERT(offsetof(oh_backend, step_finish) == 232, "oh_backend.step_finish");
OH_STATIC_ASSERT(offsetof(oh_backend, row_labels) == 240, "oh_backend.row_labels");
OH_STATIC_ASSERT(offsetof(oh_backend, event_open) == 256, "oh_backend.event_open");
OH_STATIC_ASSERT(offsetof(oh_backend, tile_overflow) == 288, "oh_backend.tile_overflow");
OH_STATIC_ASSERT(offsetof(oh_backend, tile_grad_overlap) == 304, "oh_backend.tile_grad_overlap");
OH_STATIC_ASSERT(offsetof(oh_backend, tile_stats_grad_takes) == 312, "oh_backend.tile_stats_grad_takes");
OH_STATIC_ASSERT(sizeof(oh_backend) == 328, "oh_backend");

#ifdef __cplusplus
}
#endif
#endif
