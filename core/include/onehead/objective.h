/* objective.h - what a step computes for its rows, as plain data: terms, weights, normaliser, labels, metrics; the layout
 * of the sums that a step leaves behind; and what a row_finish is given. rowmath.h has the algebra; these are its
 * words. */
#ifndef ONEHEAD_OBJECTIVE_H
#define ONEHEAD_OBJECTIVE_H

#include <math.h>

#include "backend.h"

/* In front of every function that host and device share. */
#if defined(__CUDACC__) || defined(__HIPCC__)
#define OH_ROW __host__ __device__ static inline
#else
#define OH_ROW static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Terms of the loss; rowmath.h has their formulas. */
typedef enum oh_term {
    OH_TERM_CE = 0,
    OH_TERM_KL = 1,
    OH_TERM_RKL = 2,
    OH_TERM_JSD = 3,
    OH_TERM_TV = 4,
    OH_TERM_NLA = 5,
    OH_TERM_LK_HYBRID = 6,
    OH_TERM_CAP = 7,
    OH_TERM_COUNT
} oh_term;

/* What y, the token that a row is judged by, is: the target's argmax, or the caller's. */
typedef enum oh_labels { OH_LABELS_TARGET = 0, OH_LABELS_GIVEN = 1 } oh_labels;
/* A row's weight by its slot: 1, exp(-k / gamma), gamma^k with k from first_slot on, or D-PACE's. */
typedef enum oh_decay { OH_DECAY_NONE = 0, OH_DECAY_EXP = 1, OH_DECAY_POWER = 2, OH_DECAY_DPACE = 3 } oh_decay;
/* N, which the loss is divided by: sum of weights, sum of masks, 1, or norm_value. */
typedef enum oh_norm { OH_NORM_WEIGHTS = 0, OH_NORM_COUNT = 1, OH_NORM_NONE = 2, OH_NORM_NUMBER = 3 } oh_norm;
/* Whether an unsupervised slot ends a streak. */
typedef enum oh_gap { OH_GAP_STOP = 0, OH_GAP_SKIP = 1 } oh_gap;

/* What becomes of a row whose token is no draft column, where the draft's vocabulary is a part of the target's. */
typedef enum oh_outside {
    OH_OUTSIDE_NEVER = 0, /* the vocabularies are the same */
    OH_OUTSIDE_DROP = 1,  /* unsupervised */
    OH_OUTSIDE_KEEP = 2,  /* supervised without a label: it never hits */
} oh_outside;

/* The most values of K in one objective. */
#define OH_TOP_K_LIST_MAX 16

/* What to compute for a row. Plain data, so that it can be a kernel's parameter. */
typedef struct oh_objective {
    double lambda[OH_TERM_COUNT];
    double label_smoothing, z_loss; /* of ce */
    double eta;                     /* of lk_hybrid */
    double decay_param;             /* gamma of exp and power, a of dpace */
    double norm_value;              /* of OH_NORM_NUMBER */
    double upstream;                /* gradient of the caller's scalar with respect to `loss` */
    int64_t block_size;
    int64_t valid_columns; /* V_valid */
    uint32_t terms;        /* bit (1 << oh_term): terms in use, whatever their lambda */
    int32_t first_slot;
    int32_t labels, decay, norm, gap; /* enums above */
    int32_t top_k_count;
    int32_t top_k[OH_TOP_K_LIST_MAX]; /* ascending, distinct, 1..OH_TOP_K_MAX */
    int32_t reserved;
} oh_objective;

/* A term's bit in oh_objective.terms. */
#define OH_TERM_BIT(term) (1u << (term))

/* Below this alpha nla is constant. */
#define OH_NLA_FLOOR 1e-5

/* Terms whose value or gradient compares two distributions and so need a target. */
#define OH_TERMS_WITH_TARGET                                                                                           \
    (OH_TERM_BIT(OH_TERM_KL) | OH_TERM_BIT(OH_TERM_RKL) | OH_TERM_BIT(OH_TERM_JSD) | OH_TERM_BIT(OH_TERM_TV) |         \
     OH_TERM_BIT(OH_TERM_NLA) | OH_TERM_BIT(OH_TERM_LK_HYBRID))

/* Statistics (OH_WANT_*) that the objective's terms are made of. */
OH_ROW uint32_t oh_objective_want(const oh_objective *o) {
    uint32_t want = 0;
    if (o->terms & OH_TERM_BIT(OH_TERM_CE) && o->label_smoothing != 0) want |= OH_WANT_TOTAL;
    if (o->terms & (OH_TERM_BIT(OH_TERM_KL) | OH_TERM_BIT(OH_TERM_LK_HYBRID))) want |= OH_WANT_KL;
    if (o->terms & OH_TERM_BIT(OH_TERM_RKL)) want |= OH_WANT_RKL;
    if (o->terms & OH_TERM_BIT(OH_TERM_CAP)) want |= OH_WANT_ENTROPY;
    if (o->terms & OH_TERM_BIT(OH_TERM_JSD)) want |= OH_WANT_JSD;
    if (o->terms & (OH_TERM_BIT(OH_TERM_TV) | OH_TERM_BIT(OH_TERM_NLA) | OH_TERM_BIT(OH_TERM_LK_HYBRID)))
        want |= OH_WANT_OVERLAP;
    return want;
}

/* Coefficients (OH_FORM_*) that the objective's gradient can use. */
OH_ROW uint32_t oh_objective_form(const oh_objective *o) {
    uint32_t form = 0;
    if (o->terms & (OH_TERM_BIT(OH_TERM_KL) | OH_TERM_BIT(OH_TERM_LK_HYBRID))) form |= OH_FORM_Q;
    if (o->terms & OH_TERM_BIT(OH_TERM_RKL)) form |= OH_FORM_LOG_P | OH_FORM_LOG_Q;
    if (o->terms & OH_TERM_BIT(OH_TERM_CAP)) form |= OH_FORM_LOG_P;
    if (o->terms & OH_TERM_BIT(OH_TERM_JSD)) form |= OH_FORM_LOG_P | OH_FORM_LOG_M;
    if (o->terms & (OH_TERM_BIT(OH_TERM_TV) | OH_TERM_BIT(OH_TERM_NLA) | OH_TERM_BIT(OH_TERM_LK_HYBRID)))
        form |= OH_FORM_LE;
    return form;
}

/* Whether N is known only after the last row: D-PACE's weights come out of the probabilities. */
OH_ROW int oh_objective_norm_is_late(const oh_objective *o) {
    return o->norm == OH_NORM_WEIGHTS && o->decay == OH_DECAY_DPACE;
}

/* Decay of a slot for the decays that depend on nothing else (dpace: 1; its scan is oh_block_dpace's). */
OH_ROW double oh_slot_decay(const oh_objective *o, int64_t slot) {
    const double k = (double)(slot - o->first_slot);
    if (o->decay == OH_DECAY_EXP) return exp(-k / o->decay_param);
    if (o->decay == OH_DECAY_POWER) return pow(o->decay_param, k);
    return 1.0;
}

/* ------------------------------------------------------------------------------------------------------- sums ---- */

/* Sums over rows and blocks, f64, so that chunks, steps and ranks can be added. Fixed entries first, then hits[K],
 * streak[K] by position in top_k, then slot_hits[B], slot_count[B]. */
enum {
    OH_SUM_LOSS_NUM = 0,    /* sum w l */
    OH_SUM_WEIGHT,          /* sum w over supervised rows */
    OH_SUM_MASK,            /* sum mask over supervised rows */
    OH_SUM_SUPERVISED,      /* rows */
    OH_SUM_NONFINITE,       /* rows */
    OH_SUM_FIRST_NONFINITE, /* lowest such row + 1, 0 for none: merges by the smaller that isn't 0 */
    OH_SUM_BLOCKS,          /* blocks with a supervised slot */
    OH_SUM_ALPHA,
    OH_SUM_TAU,
    OH_SUM_ENTROPY,
    OH_SUM_DRAFT_TOP1,
    OH_SUM_TARGET_TOP1,
    OH_SUM_TERM, /* OH_TERM_COUNT entries: sum w l_i */
    OH_SUM_FIXED = OH_SUM_TERM + OH_TERM_COUNT
};

/* Where the sums of variable number begin, and how many sums there are. */
OH_ROW int64_t oh_sum_hits(const oh_objective *o) {
    (void)o;
    return OH_SUM_FIXED;
}
OH_ROW int64_t oh_sum_streak(const oh_objective *o) {
    return OH_SUM_FIXED + o->top_k_count;
}
OH_ROW int64_t oh_sum_slot_hits(const oh_objective *o) {
    return OH_SUM_FIXED + 2 * (int64_t)o->top_k_count;
}
OH_ROW int64_t oh_sum_slot_count(const oh_objective *o) {
    return oh_sum_slot_hits(o) + o->block_size;
}
OH_ROW int64_t oh_sum_count(const oh_objective *o) {
    return oh_sum_slot_count(o) + o->block_size;
}

/* Adds two values of sum `index`: of chunks, steps or ranks. */
OH_ROW double oh_sum_merge(int64_t index, double a, double b) {
    if (index != OH_SUM_FIRST_NONFINITE) return a + b;
    if (a == 0) return b;
    return b == 0 || a < b ? a : b;
}

/* ------------------------------------------------------------------------------------------------- results ---- */

/* One supervised row after its statistics are complete. Lives in the workspace between oh_finish_row and
 * oh_finish_block. */
typedef struct oh_row_result {
    double term[OH_TERM_COUNT]; /* l_i, 0 for terms not in use */
    double loss;                /* sum lambda_i l_i */
    double label_p;             /* p_y */
    double alpha, entropy, draft_top1, target_top1;
    double weight;   /* w_r, written by oh_finish_block */
    uint32_t hits;   /* bit k: the row hits at top_k[k]; bit 31: at 1 */
    int32_t finite;  /* 0: reported, left out of sums, gradient 0 */
    int32_t outside; /* 1: unsupervised after all, its token is no draft column (OH_OUTSIDE_DROP) */
    int32_t label, argmax;
    int32_t rank; /* exact with OH_WANT_RANK, else -1; -1 without a label */
} oh_row_result;

/* The bit of oh_row_result.hits for K = 1. */
#define OH_HIT_TOP1 (1u << 31)

/* Where y would stand: no draft column, and a row that an earlier read of the chunk found not finite. */
#define OH_LABEL_NONE (-1)
#define OH_LABEL_BROKEN (-2)

/* Which sums and outputs one row_finish adds; each part exactly once a chunk, however many reads a policy makes. */
#define OH_FINISH_COUNTS (1u << 0)     /* rows, masks, blocks and rows that are not finite */
#define OH_FINISH_LOSS (1u << 1)       /* loss, weights, terms; row_loss_out and weight_out */
#define OH_FINISH_COEF (1u << 2)       /* coef and row_scale */
#define OH_FINISH_METRICS (1u << 3)    /* slots, entropy, top-1, alpha, tau; row_label_out, argmax_out, rank_out */
#define OH_FINISH_TOP_K (1u << 4)      /* hits and streaks of the K in top_k_mask */
#define OH_FINISH_TOP_K_ROWS (1u << 5) /* topk_id_out, topk_logprob_out */
#define OH_FINISH_PARTS 0x3fu
/* With OH_FINISH_COEF, after tile_stats_grad: finite rows whose flags are 0 have their gradient, and coef says so. */
#define OH_FINISH_GRAD_DONE (1u << 6)

/* One chunk's rows. Arrays are on the device. A chunk's rows are whole blocks; the supervised ones are numbered
 * 0..compact_rows-1 in row order ("compact rows"), as the tiles are. */
typedef struct oh_row_finish {
    oh_objective objective;
    int64_t rows; /* of the chunk, a multiple of block_size */
    int64_t compact_rows;
    int64_t first_row;             /* of the chunk within the step: for reports */
    const int32_t *compact;        /* [rows] compact row, or -1: unsupervised */
    const float *mask;             /* [rows] */
    const oh_row_stats *stats;     /* [compact_rows] */
    const oh_row_overlap *overlap; /* [compact_rows] or NULL */
    /* Where the draft's vocabulary is a part of the target's, else NULL: statistics over all of the target's [target tile
     * rows], overlaps with that distribution (alpha) and the rows' target tile rows (NULL: identity). */
    const oh_row_stats *full;
    const oh_row_overlap *full_overlap;
    const int32_t *target_row;
    const int32_t *topk_id; /* [compact_rows, top_k] or NULL */
    const oh_real *topk_logit;
    double scale;        /* of row_scale: upstream / N, or upstream where N is late */
    uint32_t parts;      /* OH_FINISH_* */
    uint32_t want;       /* OH_WANT_* that stats and overlap hold */
    uint32_t top_k_mask; /* bit k: top_k[k] */
    int32_t top_k;       /* of topk_id */
    int32_t has_target;  /* the statistics hold a target's */
    int32_t outside;     /* oh_outside; OH_OUTSIDE_NEVER without `full` */

    oh_row_result *results; /* [compact_rows] scratch */
    double *partial;        /* [rows / block_size, oh_sum_count] scratch */
    double *sums;           /* [oh_sum_count], added to */
    oh_row_coef *coef;      /* [compact_rows] */
    float *row_scale;       /* [compact_rows] w_r * scale: multiplies the rows of dD, and of D for dW */
    int32_t *label_out;     /* [compact_rows] y, or OH_LABEL_*; may be NULL */

    /* Per-row outputs, [rows], each may be NULL; 0 or -1 on unsupervised rows. */
    float *row_loss_out, *weight_out;
    int32_t *row_label_out, *argmax_out, *rank_out;
    int32_t *topk_id_out; /* [rows, top_k] */
    float *topk_logprob_out;
} oh_row_finish;

/* Closes a step: N, the loss, and the factor that late gradients still lack. */
typedef struct oh_step_finish {
    oh_objective objective;
    const double *norm; /* caller's N on the device, or NULL: the objective's rule */
    const double *sums; /* [oh_sum_count] */
    double *loss;       /* [3]: loss, numerator, denominator */
    float *factor;      /* [1]: 1 / N, or 0 where N = 0 */
} oh_step_finish;

OH_STATIC_ASSERT(sizeof(oh_objective) == 224, "oh_objective");
OH_STATIC_ASSERT(sizeof(oh_row_result) == 144, "oh_row_result");

#ifdef __cplusplus
}
#endif
#endif
