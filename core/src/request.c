#include "request.h"

#include <math.h>
#include <string.h>

#include "status.h"

void oh_request_init(oh_request *request) {
    memset(request, 0, sizeof *request);
    request->hidden_dtype = request->weight_dtype = request->target_weight_dtype = OH_BF16;
    request->grad_dtype = OH_F32;
    request->scale = request->target_scale = 1;
    request->produce = OH_PRODUCE_LOSS | OH_PRODUCE_GRAD | OH_PRODUCE_METRICS | OH_PRODUCE_TOP_K;
    request->tile = OH_TILE_AUTO;
    request->outside = OH_OUTSIDE_DROP;
    oh_objective *o = &request->objective;
    o->lambda[OH_TERM_KL] = 1;
    o->terms = OH_TERM_BIT(OH_TERM_KL);
    o->eta = 3;
    o->decay = OH_DECAY_EXP;
    o->decay_param = 10;
    o->upstream = 1;
    o->block_size = 16;
    o->first_slot = 1;
    o->top_k_count = 3;
    o->top_k[0] = 1;
    o->top_k[1] = 4;
    o->top_k[2] = 8;
}

int oh_norm_is_late(const oh_request *request) {
    const oh_objective *o = &request->objective;
    /* Which rows count is only known once the target's argmax is. */
    const int drops_rows = request->target_vocab && request->outside == OH_OUTSIDE_DROP &&
                           o->labels == OH_LABELS_TARGET && (o->norm == OH_NORM_WEIGHTS || o->norm == OH_NORM_COUNT);
    return request->norm_on_device || drops_rows || oh_objective_norm_is_late(o);
}

int oh_norm_is_selected(const oh_request *r) {
    const int32_t norm = r->objective.norm;
    return r->device_inputs && !oh_norm_is_late(r) && (norm == OH_NORM_WEIGHTS || norm == OH_NORM_COUNT);
}

static oh_status check_size(const char *name, int64_t value, int64_t low, int64_t high, oh_error *error) {
    if (value >= low && value <= high) return OH_OK;
    return oh_fail(error, OH_INVALID_ARGUMENT, "%s %lld: expected %lld to %lld", name, (long long)value, (long long)low,
                   (long long)high);
}

static int is_float_dtype(int32_t dtype) {
    return dtype == OH_F32 || dtype == OH_BF16 || dtype == OH_F16;
}

static oh_status check_dtype(const char *name, int32_t dtype, oh_error *error) {
    if (is_float_dtype(dtype)) return OH_OK;
    return oh_fail(error, OH_INVALID_ARGUMENT, "%s dtype %s: expected f32, bf16 or f16", name, oh_dtype_name(dtype));
}

/* A draft vocabulary that is a part of the target's. */
static oh_status check_subset(const oh_request *r, oh_error *error) {
    if (r->target_vocab == 0) return OH_OK;
    if (r->target_hidden == 0 || r->target_rows == 0)
        return oh_fail(error, OH_INVALID_ARGUMENT,
                       "target_vocab %lld: expected a target with a head of its own (target_hidden, target_rows)",
                       (long long)r->target_vocab);
    if (r->target_vocab < r->vocab || r->vocab_valid != r->vocab)
        return oh_fail(
            error, OH_INVALID_ARGUMENT,
            "target_vocab %lld with %lld of %lld draft columns valid: expected all of them valid and no more "
            "than the target's",
            (long long)r->target_vocab, (long long)r->vocab_valid, (long long)r->vocab);
    if (r->has_target_bias) return oh_fail(error, OH_UNSUPPORTED, "target bias: not with a target_vocab of its own");
    if (r->outside != OH_OUTSIDE_DROP && r->outside != OH_OUTSIDE_KEEP)
        return oh_fail(error, OH_INVALID_ARGUMENT, "outside %d: expected drop or keep", (int)r->outside);
    if (r->outside == OH_OUTSIDE_KEEP && r->objective.terms & OH_TERM_BIT(OH_TERM_CE))
        return oh_fail(error, OH_INVALID_ARGUMENT,
                       "term 'ce' has no label on a row outside the draft's vocabulary: expected outside drop");
    return OH_OK;
}

static oh_status check_shape(const oh_request *r, oh_error *error) {
    const struct {
        const char *name;
        int64_t value, low, high;
    } sizes[] = {
        /* Rows and columns are numbered in i32 where a device stores them. */
        {"rows", r->rows, 0, INT32_MAX},
        {"target_rows", r->target_rows, 0, INT32_MAX},
        {"hidden", r->hidden, 1, INT32_MAX},
        {"vocab", r->vocab, 1, INT32_MAX - 1024},
        {"vocab_valid", r->vocab_valid, 1, r->vocab},
        {"target_hidden", r->target_hidden, 0, INT32_MAX},
        {"target_vocab", r->target_vocab, 0, INT32_MAX - 1024},
        {"block_size", r->objective.block_size, 1, INT32_MAX},
        {"first_slot", r->objective.first_slot, 0, r->objective.block_size - 1},
        {"chunk", r->chunk, 0, INT32_MAX},
        {"memory", r->memory, 0, INT64_MAX},
        {"distinct_target_rows", r->distinct_target_rows, 0, INT32_MAX},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
        const oh_status status = check_size(sizes[i].name, sizes[i].value, sizes[i].low, sizes[i].high, error);
        if (status != OH_OK) return status;
    }
    if (r->rows % r->objective.block_size != 0)
        return oh_fail(error, OH_BAD_DATA, "rows %lld: expected whole blocks, a multiple of block_size %lld",
                       (long long)r->rows, (long long)r->objective.block_size);
    if (r->chunk % r->objective.block_size != 0)
        return oh_fail(error, OH_INVALID_ARGUMENT, "chunk %lld: expected whole blocks, a multiple of block_size %lld",
                       (long long)r->chunk, (long long)r->objective.block_size);
    oh_status status = check_subset(r, error);
    if (status != OH_OK) return status;
    status = check_dtype("hidden", r->hidden_dtype, error);
    if (status == OH_OK) status = check_dtype("lm_head", r->weight_dtype, error);
    if (status == OH_OK) status = check_dtype("target lm_head", r->target_weight_dtype, error);
    if (status == OH_OK) status = check_dtype("gradient", r->grad_dtype, error);
    return status;
}

static oh_status check_number(const char *name, double value, int ok, const char *expected, oh_error *error) {
    if (ok && isfinite(value)) return OH_OK;
    return oh_fail(error, OH_INVALID_ARGUMENT, "%s %g: expected %s", name, value, expected);
}

static oh_status check_transform(const oh_request *r, oh_error *error) {
    const char *any = "a finite number", *cap = "0 (none) or a finite positive number";
    oh_status status = check_number("scale", (double)r->scale, 1, any, error);
    if (status == OH_OK) status = check_number("softcap", (double)r->softcap, r->softcap >= 0, cap, error);
    if (status == OH_OK) status = check_number("target_scale", (double)r->target_scale, 1, any, error);
    if (status == OH_OK)
        status = check_number("target_softcap", (double)r->target_softcap, r->target_softcap >= 0, cap, error);
    return status;
}

static oh_status check_top_k(const oh_objective *o, oh_error *error) {
    if (o->top_k_count < 0 || o->top_k_count > OH_TOP_K_LIST_MAX)
        return oh_fail(error, OH_INVALID_ARGUMENT, "top-K: %d values, expected at most %d", (int)o->top_k_count,
                       OH_TOP_K_LIST_MAX);
    for (int32_t i = 0; i < o->top_k_count; ++i) {
        const oh_status status = check_size("top-K", o->top_k[i], 1, OH_TOP_K_MAX, error);
        if (status != OH_OK) return status;
        if (i > 0 && o->top_k[i] <= o->top_k[i - 1])
            return oh_fail(error, OH_INVALID_ARGUMENT, "top-K: %d after %d, expected ascending distinct values",
                           (int)o->top_k[i], (int)o->top_k[i - 1]);
    }
    return OH_OK;
}

static const char *first_term_with_target(const oh_objective *o) {
    for (int32_t term = 0; term < OH_TERM_COUNT; ++term)
        if (o->terms & OH_TERMS_WITH_TARGET & OH_TERM_BIT(term)) return oh_term_name(term);
    return NULL;
}

static oh_status check_device_inputs(const oh_request *r, oh_error *error) {
    if (!(r->device_inputs & ~(OH_DEVICE_MASK | OH_DEVICE_LABEL | OH_DEVICE_TARGET_ROW))) return OH_OK;
    return oh_fail(error, OH_INVALID_ARGUMENT, "device_inputs 0x%x: expected a union of OH_DEVICE_*", r->device_inputs);
}

static oh_status check_objective(const oh_request *r, oh_error *error) {
    const oh_objective *o = &r->objective;
    oh_status status = check_top_k(o, error);
    if (status != OH_OK) return status;
    if (o->terms >> OH_TERM_COUNT) return oh_fail(error, OH_INVALID_ARGUMENT, "terms 0x%x: unknown term", o->terms);
    if (r->produce & OH_PRODUCE_LOSS && o->terms == 0)
        return oh_fail(error, OH_INVALID_ARGUMENT, "terms: a loss needs at least one");
    for (int32_t term = 0; term < OH_TERM_COUNT; ++term) {
        status = check_number(oh_term_name(term), o->lambda[term], 1, "a finite weight", error);
        if (status != OH_OK) return status;
    }
    const int dpace = o->decay == OH_DECAY_DPACE, decays = o->decay == OH_DECAY_EXP || o->decay == OH_DECAY_POWER;
    const struct {
        const char *name;
        double value;
        int ok;
        const char *expected;
    } numbers[] = {
        {"label_smoothing", o->label_smoothing, o->label_smoothing >= 0 && o->label_smoothing < 1, "0 <= e < 1"},
        {"z_loss", o->z_loss, o->z_loss >= 0, "a finite number that is not negative"},
        {"eta", o->eta, 1, "a finite number"},
        {"upstream", o->upstream, 1, "a finite number"},
        {"decay gamma", o->decay_param, !decays || o->decay_param > 0, "a finite positive number"},
        {"dpace a", o->decay_param, !dpace || (o->decay_param >= 0 && o->decay_param <= 1), "0 <= a <= 1"},
        {"norm", o->norm_value, o->norm_value >= 0, "a finite number that is not negative"},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; ++i) {
        status = check_number(numbers[i].name, numbers[i].value, numbers[i].ok, numbers[i].expected, error);
        if (status != OH_OK) return status;
    }
    if (o->labels < 0 || o->labels > OH_LABELS_GIVEN || o->decay < 0 || o->decay > OH_DECAY_DPACE || o->norm < 0 ||
        o->norm > OH_NORM_NUMBER || o->gap < 0 || o->gap > OH_GAP_SKIP || r->policy < 0 ||
        r->policy > OH_POLICY_NAIVE || r->tile < OH_TILE_AUTO || r->tile > OH_TILE_DIFF)
        return oh_fail(error, OH_INVALID_ARGUMENT,
                       "labels %d, decay %d, norm %d, gap %d, policy %d, tile %d: one is not a value of its enum",
                       (int)o->labels, (int)o->decay, (int)o->norm, (int)o->gap, (int)r->policy, (int)r->tile);
    if (r->produce & OH_PRODUCE_BIAS_GRAD && (!r->has_bias || r->scale == 0))
        return oh_fail(error, OH_INVALID_ARGUMENT, "bias gradient: expected a bias and a scale that is not 0");
    if (r->target_rows > 0 || r->rows == 0) return OH_OK;
    if (r->produce & OH_PRODUCE_LOSS && first_term_with_target(o))
        return oh_fail(error, OH_INVALID_ARGUMENT, "term '%s' compares with a target, and there is none",
                       first_term_with_target(o));
    if (o->labels == OH_LABELS_TARGET)
        return oh_fail(error, OH_INVALID_ARGUMENT, "labels 'target' need a target, and there is none");
    return OH_OK;
}

/* A wish brings what it is made of. */
static uint32_t implied(uint32_t produce, int has_target) {
    if (produce & OH_PRODUCE_GRAD_NORM) produce |= OH_PRODUCE_GRAD;
    if (produce & OH_PRODUCE_ROWS) produce |= OH_PRODUCE_LOSS | OH_PRODUCE_METRICS;
    if (produce & (OH_PRODUCE_GRAD | OH_PRODUCE_HEAD_GRAD | OH_PRODUCE_BIAS_GRAD)) produce |= OH_PRODUCE_LOSS;
    if (!has_target) produce &= ~OH_PRODUCE_OVERLAP;
    if (produce & OH_PRODUCE_OVERLAP) produce |= OH_PRODUCE_METRICS;
    if (produce & OH_PRODUCE_TOP_K_ROWS) produce |= OH_PRODUCE_TOP_K;
    return produce;
}

oh_status oh_request_normalise(const oh_request *request, oh_request *normalised, oh_error *error) {
    oh_request r = *request;
    if (r.vocab_valid == 0) r.vocab_valid = r.vocab;
    r.produce = implied(r.produce, r.target_rows > 0);
    r.objective.valid_columns = r.vocab_valid;
    if (r.device_inputs & OH_DEVICE_TARGET_ROW) r.distinct_target_rows = 0;
    oh_status status = check_shape(&r, error);
    if (status == OH_OK) status = check_device_inputs(&r, error);
    if (status == OH_OK) status = check_transform(&r, error);
    if (status == OH_OK) status = check_objective(&r, error);
    if (status == OH_OK) *normalised = r;
    return status;
}
