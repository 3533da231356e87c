#include "batch.h"

#include "error_line.h"
#include "narrow_float.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The file of `run` without one, linked in by sample.S. */
extern const unsigned char onehead_sample_begin[];
extern const unsigned char onehead_sample_end[];

static int32_t library_dtype(st_dtype dtype) {
    switch (dtype) {
    case ST_F32:
        return OH_F32;
    case ST_BF16:
        return OH_BF16;
    case ST_F16:
        return OH_F16;
    case ST_I32:
        return OH_I32;
    case ST_I64:
        return OH_I64;
    case ST_U8:
        return OH_U8;
    case ST_BOOL:
        return OH_BOOL;
    default:
        return -1;
    }
}

static bool is_float(int32_t dtype) {
    return dtype == OH_F32 || dtype == OH_BF16 || dtype == OH_F16;
}

static bool is_index(int32_t dtype) {
    return dtype == OH_I32 || dtype == OH_I64;
}

static bool is_mask(int32_t dtype) {
    return dtype == OH_U8 || dtype == OH_BOOL || dtype == OH_F32;
}

static oh_status bad_dtype(const char *file, const st_tensor *tensor, const char *expected, oh_error *error) {
    return error_line(error, OH_BAD_DATA, file, "tensor '%.100s': dtype %.20s, expected %s", tensor->name,
                      tensor->dtype_name, expected);
}

static void *own(batch *b, size_t bytes, oh_error *error) {
    void *const memory = calloc(1, bytes > 0 ? bytes : 1);
    if (memory == NULL) {
        error_line(error, OH_OUT_OF_MEMORY, b->name, "out of memory, %zu bytes", bytes);
        return NULL;
    }
    b->owned[b->owned_count++] = memory;
    return memory;
}

/* The tensor's bytes, aligned to its element. */
static const void *aligned_data(batch *b, const st_tensor *tensor, oh_error *error) {
    if (st_is_aligned(tensor)) return tensor->data;
    void *const copy = own(b, tensor->bytes, error);
    if (copy != NULL) memcpy(copy, tensor->data, tensor->bytes);
    return copy;
}

static oh_status take_matrix(batch *b, const char *file, const st_tensor *tensor, batch_matrix *matrix,
                             oh_error *error) {
    if (tensor->rank != 2) {
        return error_line(error, OH_BAD_DATA, file, "tensor '%.100s' has %zu dimensions, expected 2", tensor->name,
                          tensor->rank);
    }
    const int32_t dtype = library_dtype(tensor->dtype);
    if (!is_float(dtype)) return bad_dtype(file, tensor, "BF16, F16 or F32", error);
    *matrix = (batch_matrix){aligned_data(b, tensor, error), tensor->shape[0], tensor->shape[1], dtype};
    return matrix->data != NULL ? OH_OK : OH_OUT_OF_MEMORY;
}

static oh_status take_optional_matrix(batch *b, const char *name, batch_matrix *matrix, oh_error *error) {
    const st_tensor *const tensor = st_find(b->file, name);
    return tensor != NULL ? take_matrix(b, b->name, tensor, matrix, error) : OH_OK;
}

/* A vector of one entry a row. */
static oh_status take_vector(batch *b, const char *name, bool (*accepts)(int32_t dtype), const char *dtypes,
                             batch_vector *vector, oh_error *error) {
    const st_tensor *const tensor = st_find(b->file, name);
    if (tensor == NULL) return OH_OK;
    const int64_t rows = b->draft_hidden.rows;
    if (tensor->rank != 1) {
        return error_line(error, OH_BAD_DATA, b->name, "tensor '%s' has %zu dimensions, expected 1", name,
                          tensor->rank);
    }
    if (tensor->shape[0] != rows) {
        return error_line(error, OH_BAD_DATA, b->name,
                          "tensor '%s' has %" PRId64 " entries, expected %" PRId64 ", the rows of draft_hidden", name,
                          tensor->shape[0], rows);
    }
    vector->dtype = library_dtype(tensor->dtype);
    if (!accepts(vector->dtype)) return bad_dtype(b->name, tensor, dtypes, error);
    vector->data = aligned_data(b, tensor, error);
    return vector->data != NULL ? OH_OK : OH_OUT_OF_MEMORY;
}

static oh_status take_bias(batch *b, const char *name, const float **bias, oh_error *error) {
    const st_tensor *const tensor = st_find(b->file, name);
    if (tensor == NULL) return OH_OK;
    const int32_t dtype = library_dtype(tensor->dtype);
    if (!is_float(dtype)) return bad_dtype(b->name, tensor, "BF16, F16 or F32", error);
    if (tensor->rank != 1 || tensor->shape[0] != b->lm_head.rows) {
        return error_line(error, OH_BAD_DATA, b->name,
                          "tensor '%s' has %zu dimensions and %" PRId64 " entries, expected 1 and %" PRId64
                          ", the rows of lm_head",
                          name, tensor->rank, tensor->elements, b->lm_head.rows);
    }
    const void *const data = aligned_data(b, tensor, error);
    if (data == NULL) return OH_OUT_OF_MEMORY;
    if (dtype == OH_F32) {
        *bias = data;
        return OH_OK;
    }
    float *const wide = own(b, (size_t)tensor->elements * sizeof *wide, error);
    if (wide == NULL) return OH_OUT_OF_MEMORY;
    const uint16_t *const narrow = data;
    for (int64_t i = 0; i < tensor->elements; i++)
        wide[i] = dtype == OH_BF16 ? bf16_value(narrow[i]) : f16_value(narrow[i]);
    *bias = wide;
    return OH_OK;
}

typedef struct subset_map {
    const st_tensor *tensor; /* NULL: the vocabularies are the same */
    const char *file;
    int offsets; /* distances from the column instead of ids */
} subset_map;

/* The batch's own map goes first, then one beside the weight. */
static oh_status find_subset(const batch *b, subset_map *map, oh_error *error) {
    const st_file *const files[] = {b->file, b->shared_head != NULL ? b->shared_head->file : b->head.file};
    *map = (subset_map){.tensor = NULL};
    for (int i = 0; i < 2 && map->tensor == NULL && files[i] != NULL; i++) {
        const st_tensor *const ids = st_find(files[i], "draft_to_target"), *const offsets = st_find(files[i], "d2t");
        *map = (subset_map){ids != NULL ? ids : offsets, st_file_name(files[i]), ids == NULL};
        if (ids != NULL && offsets != NULL)
            return error_line(error, OH_BAD_DATA, map->file,
                              "holds both 'draft_to_target' and 'd2t', expected one of them: they may differ");
    }
    return OH_OK;
}

/* Ids of the draft's columns. */
static oh_status take_subset(batch *b, oh_error *error) {
    subset_map map;
    const oh_status status = find_subset(b, &map, error);
    const st_tensor *const tensor = map.tensor;
    if (status != OH_OK || tensor == NULL) return status;
    const int32_t dtype = library_dtype(tensor->dtype);
    if (!is_index(dtype)) return bad_dtype(map.file, tensor, "I32 or I64", error);
    if (tensor->rank != 1 || tensor->shape[0] != b->lm_head.rows)
        return error_line(error, OH_BAD_DATA, map.file,
                          "tensor '%s' has %zu dimensions and %" PRId64 " entries, expected 1 and %" PRId64
                          ", the rows of lm_head",
                          tensor->name, tensor->rank, tensor->elements, b->lm_head.rows);
    int32_t *const ids = own(b, (size_t)tensor->elements * sizeof *ids, error);
    if (ids == NULL) return OH_OUT_OF_MEMORY;
    for (int64_t i = 0; i < tensor->elements; i++) {
        int64_t id = 0;
        int32_t narrow = 0;
        if (dtype == OH_I64)
            memcpy(&id, (const char *)tensor->data + i * 8, sizeof id);
        else
            memcpy(&narrow, (const char *)tensor->data + i * 4, sizeof narrow);
        id = dtype == OH_I64 ? id : narrow;
        const int64_t most = INT32_MAX - (map.offsets ? i : 0);
        if (id < 0 || id > most)
            return error_line(error, OH_BAD_DATA, map.file,
                              "tensor '%s' has %" PRId64 " at %" PRId64 ", expected 0 to %" PRId64 ", %s", tensor->name,
                              id, i, most, map.offsets ? "a distance" : "a target id");
        ids[i] = (int32_t)(id + (map.offsets ? i : 0));
    }
    b->draft_to_target = ids;
    return OH_OK;
}

static oh_status take_head(batch *b, const char *lm_head, oh_error *error) {
    const char *file = b->name;
    const st_tensor *tensor = NULL;
    if (b->shared_head != NULL) {
        file = st_file_name(b->shared_head->file);
        tensor = b->shared_head->tensor;
    } else if (lm_head != NULL) {
        const oh_status status = ckpt_open(&b->head, lm_head, error);
        if (status != OH_OK) return status;
        file = st_file_name(b->head.file);
        tensor = b->head.tensor;
    } else {
        tensor = st_find(b->file, "lm_head");
        if (tensor == NULL) {
            return error_line(error, OH_BAD_DATA, b->name,
                              "no tensor 'lm_head', expected one here or in the file of --lm-head");
        }
    }
    const oh_status status = take_matrix(b, file, tensor, &b->lm_head, error);
    if (status != OH_OK) return status;
    if (b->lm_head.columns != b->draft_hidden.columns || b->lm_head.rows < 1) {
        return error_line(error, OH_BAD_DATA, file,
                          "tensor '%.100s' is [%" PRId64 ", %" PRId64 "], expected [V, %" PRId64
                          "], as draft_hidden is [%" PRId64 ", %" PRId64 "]",
                          tensor->name, b->lm_head.rows, b->lm_head.columns, b->draft_hidden.columns,
                          b->draft_hidden.rows, b->draft_hidden.columns);
    }
    return OH_OK;
}

static oh_status check_target(const batch *b, oh_error *error) {
    const batch_matrix *const target = &b->target_hidden, *const head = &b->target_lm_head;
    if (target->data == NULL) {
        if (head->data == NULL) return OH_OK;
        return error_line(error, OH_BAD_DATA, b->name, "a tensor 'target_lm_head', but no 'target_hidden' for it");
    }
    if (target->dtype != b->draft_hidden.dtype) {
        return error_line(error, OH_BAD_DATA, b->name, "tensor 'target_hidden': dtype %s, expected draft_hidden's, %s",
                          oh_dtype_name(target->dtype), oh_dtype_name(b->draft_hidden.dtype));
    }
    if (b->target_row.data == NULL && target->rows != b->draft_hidden.rows) {
        return error_line(error, OH_BAD_DATA, b->name,
                          "tensor 'target_hidden' has %" PRId64 " rows, expected %" PRId64
                          ", those of draft_hidden, or a 'target_row'",
                          target->rows, b->draft_hidden.rows);
    }
    if (target->rows == 0 && b->draft_hidden.rows > 0) {
        return error_line(error, OH_BAD_DATA, b->name,
                          "tensor 'target_hidden' is [0, %" PRId64 "], expected at least one row for the %" PRId64
                          " of draft_hidden",
                          target->columns, b->draft_hidden.rows);
    }
    if (head->data == NULL && b->draft_to_target != NULL)
        return error_line(error, OH_BAD_DATA, b->name,
                          "a map of the draft's columns to target ids, but no 'target_lm_head' [Vt, Ht] for it");
    if (head->data == NULL) {
        if (target->columns == b->lm_head.columns) return OH_OK;
        return error_line(error, OH_BAD_DATA, b->name,
                          "tensor 'target_hidden' has %" PRId64 " columns, expected %" PRId64
                          ", those of lm_head, or a 'target_lm_head'",
                          target->columns, b->lm_head.columns);
    }
    if (b->draft_to_target != NULL && head->rows >= b->lm_head.rows && head->columns == target->columns) return OH_OK;
    if (head->rows == b->lm_head.rows && head->columns == target->columns) return OH_OK;
    return error_line(error, OH_BAD_DATA, b->name,
                      "tensor 'target_lm_head' is [%" PRId64 ", %" PRId64 "], expected [%" PRId64 ", %" PRId64
                      "], the rows of lm_head and the columns of target_hidden",
                      head->rows, head->columns, b->lm_head.rows, target->columns);
}

static oh_status take_tensors(batch *b, const char *lm_head, oh_error *error) {
    const st_tensor *hidden;
    oh_status status = st_require(b->file, "draft_hidden", &hidden, error);
    if (status == OH_OK) status = take_matrix(b, b->name, hidden, &b->draft_hidden, error);
    if (status == OH_OK && b->draft_hidden.columns < 1) {
        status = error_line(error, OH_BAD_DATA, b->name, "tensor 'draft_hidden' has no columns, expected [T, H]");
    }
    if (status == OH_OK) status = take_head(b, lm_head, error);
    if (status == OH_OK) status = take_optional_matrix(b, "target_hidden", &b->target_hidden, error);
    if (status == OH_OK) status = take_optional_matrix(b, "target_lm_head", &b->target_lm_head, error);
    if (status == OH_OK) status = take_vector(b, "target_row", is_index, "I32 or I64", &b->target_row, error);
    if (status == OH_OK) status = take_vector(b, "label", is_index, "I32 or I64", &b->label, error);
    if (status == OH_OK) status = take_vector(b, "loss_mask", is_mask, "U8, BOOL or F32", &b->loss_mask, error);
    if (status == OH_OK) status = take_bias(b, "bias", &b->bias, error);
    if (status == OH_OK) status = take_bias(b, "target_bias", &b->target_bias, error);
    if (status == OH_OK) status = take_subset(b, error);
    return status == OH_OK ? check_target(b, error) : status;
}

static oh_status open_batch(batch *b, const char *path, const char *lm_head, const ckpt_head *shared, oh_error *error) {
    memset(b, 0, sizeof *b);
    b->shared_head = shared;
    b->name = path != NULL ? path : "the built-in sample";
    oh_status status;
    if (path != NULL) {
        status = st_open(&b->file, path, error);
    } else {
        const size_t size = (size_t)((uintptr_t)onehead_sample_end - (uintptr_t)onehead_sample_begin);
        status = st_parse(&b->file, onehead_sample_begin, size, b->name, error);
    }
    if (status == OH_OK) status = take_tensors(b, lm_head, error);
    if (status == OH_OK) return OH_OK;
    batch_close(b);
    /* A file that can't be read is bad input: OH_IO is left to what can't be written. */
    if (status == OH_IO) status = error->status = OH_BAD_DATA;
    return status;
}

oh_status batch_open(batch *b, const char *path, const char *lm_head, oh_error *error) {
    return open_batch(b, path, lm_head, NULL, error);
}

oh_status batch_open_with_head(batch *b, const char *path, const ckpt_head *head, oh_error *error) {
    return open_batch(b, path, NULL, head, error);
}

void batch_close(batch *b) {
    for (int i = 0; i < b->owned_count; i++)
        free(b->owned[i]);
    ckpt_close(&b->head);
    st_close(b->file);
    memset(b, 0, sizeof *b);
}

/* ------------------------------------------------------------------------------------------------- the request ---- */

uint32_t options_produce(const options *o, bool has_target) {
    uint32_t produce = OH_PRODUCE_LOSS | OH_PRODUCE_GRAD | OH_PRODUCE_GRAD_NORM;
    if (o->head_grad) produce |= OH_PRODUCE_HEAD_GRAD;
    if (o->bias_grad) produce |= OH_PRODUCE_BIAS_GRAD;
    if (o->metrics != METRICS_NONE) produce |= OH_PRODUCE_METRICS | OH_PRODUCE_TOP_K;
    if (o->metrics == METRICS_ALL && has_target) produce |= OH_PRODUCE_OVERLAP;
    if (o->rows_file != NULL)
        produce |= OH_PRODUCE_METRICS | OH_PRODUCE_TOP_K | OH_PRODUCE_ROWS | OH_PRODUCE_TOP_K_ROWS;
    return produce;
}

oh_status options_default_objective(const options *o, bool has_target, oh_objective *objective, oh_error *error) {
    if (has_target) return OH_OK;
    oh_status status = OH_OK;
    if (!o->terms_given) status = oh_objective_set_terms(objective, "ce=1", error);
    if (status == OH_OK && !o->labels_given) status = oh_objective_set_labels(objective, "given", error);
    return status;
}

static oh_status check_needs(const batch *b, const oh_objective *objective, oh_error *error) {
    const bool has_target = b->target_hidden.data != NULL;
    const uint32_t in_need = objective->terms & OH_TERMS_WITH_TARGET;
    for (int32_t term = 0; !has_target && term < OH_TERM_COUNT; term++) {
        if (!(in_need & OH_TERM_BIT(term))) continue;
        return error_line(error, OH_BAD_DATA, b->name, "no tensor 'target_hidden', expected one for the term %s",
                          oh_term_name(term));
    }
    if (!has_target && objective->labels == OH_LABELS_TARGET)
        return error_line(error, OH_BAD_DATA, b->name, "no tensor 'target_hidden', expected one for --labels target");
    if (b->label.data == NULL && objective->labels == OH_LABELS_GIVEN)
        return error_line(error, OH_BAD_DATA, b->name, "no tensor 'label', expected one for --labels given%s",
                          has_target ? "" : ", the default without target_hidden");
    return OH_OK;
}

oh_status batch_request(const batch *b, const options *o, oh_request *request, oh_error *error) {
    const bool has_target = b->target_hidden.data != NULL;
    oh_request r = o->request;
    oh_status status = options_default_objective(o, has_target, &r.objective, error);
    if (status == OH_OK) status = check_needs(b, &r.objective, error);
    if (status != OH_OK) return status;
    if (b->draft_hidden.rows % r.objective.block_size != 0) {
        return error_line(error, OH_BAD_DATA, b->name,
                          "tensor 'draft_hidden' has %" PRId64 " rows, expected a multiple of the block size, %" PRId64,
                          b->draft_hidden.rows, r.objective.block_size);
    }
    r.rows = b->draft_hidden.rows;
    r.target_rows = b->target_hidden.rows;
    r.hidden = b->draft_hidden.columns;
    r.vocab = b->lm_head.rows;
    r.hidden_dtype = b->draft_hidden.dtype;
    r.weight_dtype = b->lm_head.dtype;
    if (b->target_lm_head.data != NULL) {
        r.target_hidden = b->target_lm_head.columns;
        r.target_weight_dtype = b->target_lm_head.dtype;
    }
    if (b->draft_to_target != NULL) {
        r.target_vocab = b->target_lm_head.rows;
        r.draft_to_target = b->draft_to_target;
    }
    if (o->bias_grad && b->bias == NULL)
        return error_line(error, OH_BAD_DATA, b->name, "no tensor 'bias', expected one for --grad-bias");
    r.has_bias = b->bias != NULL;
    /* One bias serves both models, but not a target of another vocabulary. */
    r.has_target_bias = has_target && (b->target_bias != NULL || (b->bias != NULL && b->draft_to_target == NULL));
    r.scale = (float)o->scale;
    r.target_scale = (float)(o->target_scale_given ? o->target_scale : o->scale);
    r.softcap = (float)o->softcap;
    r.target_softcap = (float)(o->target_softcap_given ? o->target_softcap : o->softcap);
    r.produce = options_produce(o, has_target);
    *request = r;
    return OH_OK;
}
