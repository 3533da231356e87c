/* objective.h - what a step computes for its rows, as plain data: terms, weights, normaliser, labels, metrics; and the
 * layout of the sums that a step leaves behind. rowmath.h has the algebra; these are its words. */
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

OH_STATIC_ASSERT(sizeof(oh_objective) == 224, "oh_objective");

#ifdef __cplusplus
}
#endif
#endif
