/* The row operations: loops over rowmath.h, which has the algebra. */
#include "portable.h"

static int objective_valid(const oh_objective *o) {
    if (o->block_size <= 0 || o->first_slot < 0 || o->first_slot > o->block_size) return 0;
    if (o->terms >> OH_TERM_COUNT != 0 || o->top_k_count < 0 || o->top_k_count > OH_TOP_K_LIST_MAX) return 0;
    for (int32_t k = 0; k < o->top_k_count; ++k)
        if (o->top_k[k] < 1 || o->top_k[k] > OH_TOP_K_MAX) return 0;
    return 1;
}

/* K = 1 is read off the argmax; a larger one off the list of ids. */
static int top_k_valid(const oh_row_finish *f) {
    const oh_objective *o = &f->objective;
    if (f->top_k < 0 || f->top_k > OH_TOP_K_MAX || (uint64_t)f->top_k_mask >> o->top_k_count != 0) return 0;
    for (int32_t k = 0; k < o->top_k_count; ++k)
        if (f->top_k_mask >> k & 1u && o->top_k[k] > 1 && (o->top_k[k] > f->top_k || !f->topk_id)) return 0;
    if (!(f->parts & OH_FINISH_TOP_K_ROWS) || f->top_k == 0) return 1;
    return f->topk_id && (f->topk_logit || !f->topk_logprob_out);
}

/* What the objective's terms read must be there. */
static int terms_valid(const oh_row_finish *f) {
    const uint32_t with_overlap = OH_WANT_JSD | OH_WANT_OVERLAP;
    if (!(f->parts & (OH_FINISH_LOSS | OH_FINISH_COEF))) return 1;
    if (f->objective.terms & OH_TERMS_WITH_TARGET && !f->has_target) return 0;
    return f->overlap || !(oh_objective_want(&f->objective) & with_overlap);
}

static int finish_valid(const oh_row_finish *f) {
    if (!objective_valid(&f->objective) || f->parts & ~OH_FINISH_PARTS || f->rows < 0 ||
        f->rows % f->objective.block_size != 0)
        return 0;
    if (f->compact_rows < 0 || f->compact_rows > f->rows) return 0;
    if (f->rows == 0) return 1;
    if (!f->compact || !f->partial || !f->sums) return 0;
    if (f->parts & (OH_FINISH_COUNTS | OH_FINISH_LOSS | OH_FINISH_COEF) && !f->mask) return 0;
    if (f->compact_rows == 0) return 1;
    if (!f->stats || !f->results || (f->parts & OH_FINISH_COEF && (!f->coef || !f->row_scale))) return 0;
    return top_k_valid(f) && terms_valid(f);
}

oh_status oh_portable_row_finish(const oh_row_finish *finish) {
    if (!finish || !finish_valid(finish)) return OH_INVALID_ARGUMENT;
    if (finish->rows == 0) return OH_OK;
    const int64_t blocks = finish->rows / finish->objective.block_size, sums = oh_sum_count(&finish->objective);
    for (int64_t i = 0; i < finish->compact_rows; ++i)
        oh_finish_row(finish, i);
    for (int64_t b = 0; b < blocks; ++b)
        oh_finish_block(finish, b);
    for (int64_t k = 0; k < sums; ++k)
        oh_finish_sum(finish, k);
    return OH_OK;
}

oh_status oh_portable_step_finish(const oh_step_finish *finish) {
    if (!finish || !objective_valid(&finish->objective) || !finish->sums || !finish->loss || !finish->factor)
        return OH_INVALID_ARGUMENT;
    oh_step_close(finish);
    return OH_OK;
}

oh_status oh_portable_row_labels(const oh_row_labels *labels) {
    if (!labels || labels->rows < 0 || labels->id_count < 0) return OH_INVALID_ARGUMENT;
    if (labels->rows > 0 && (!labels->full || !labels->label || (labels->id_count > 0 && !labels->ids)))
        return OH_INVALID_ARGUMENT;
    for (int64_t i = 0; i < labels->rows; ++i)
        oh_label_row(labels, i);
    return OH_OK;
}
