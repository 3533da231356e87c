#include "select.h"

#include <math.h>
#include <string.h>

#include "layout.h"
#include "status.h"

#define ELEMENT 4

int64_t oh_selection_bytes(int64_t rows) {
    return oh_size_mul(oh_size_mul(rows, OH_SELECT_COUNT), ELEMENT);
}

int64_t oh_selection_offset(const oh_selection *selection, oh_selection_array array, int64_t index) {
    return ((int64_t)array * selection->row_capacity + index) * ELEMENT;
}

/* Host arrays may come straight out of a file, at any address. */
static int64_t integer_at(const void *array, int32_t dtype, int64_t index) {
    if (dtype == OH_I64) {
        int64_t value;
        memcpy(&value, (const char *)array + index * 8, sizeof value);
        return value;
    }
    int32_t value;
    memcpy(&value, (const char *)array + index * 4, sizeof value);
    return value;
}

static float mask_at(const oh_inputs *in, int64_t row) {
    if (!in->mask) return 1;
    if (in->mask_dtype == OH_F32) {
        float value;
        memcpy(&value, (const char *)in->mask + row * 4, sizeof value);
        return value;
    }
    const unsigned char value = ((const unsigned char *)in->mask)[row];
    return in->mask_dtype == OH_BOOL ? (float)(value != 0) : (float)value;
}

static oh_status check_integers(const char *name, const void *array, int32_t dtype, oh_error *error) {
    if (!array || dtype == OH_I32 || dtype == OH_I64) return OH_OK;
    return oh_fail(error, OH_BAD_DATA, "%s dtype %s: expected i32 or i64", name, oh_dtype_name(dtype));
}

static oh_status check_arrays(const oh_request *r, const oh_inputs *in, oh_error *error) {
    oh_status status = check_integers("target_row", in->target_row, in->target_row_dtype, error);
    if (status == OH_OK) status = check_integers("label", in->label, in->label_dtype, error);
    if (status != OH_OK) return status;
    if (in->mask && in->mask_dtype != OH_U8 && in->mask_dtype != OH_BOOL && in->mask_dtype != OH_F32)
        return oh_fail(error, OH_BAD_DATA, "loss_mask dtype %s: expected u8, bool or f32",
                       oh_dtype_name(in->mask_dtype));
    if (r->objective.labels == OH_LABELS_GIVEN && !in->label && in->rows > 0)
        return oh_fail(error, OH_BAD_DATA, "label: missing, and labels 'given' need it");
    if (r->target_rows > 0 && !in->target_row && in->target_rows != in->rows)
        return oh_fail(error, OH_BAD_DATA,
                       "target_row: missing with %lld draft and %lld target rows; expected as many of each, or the map",
                       (long long)in->rows, (long long)in->target_rows);
    return OH_OK;
}

/* y as a draft column, -1 where it is none. A given label is a target id. */
static int64_t draft_column(const oh_request *r, int64_t label) {
    if (label < 0 || label >= (r->target_vocab ? r->target_vocab : r->vocab)) return -1;
    return r->target_vocab ? oh_position_of(r->draft_to_target, r->vocab, (int32_t)label) : label;
}

/* Whether a row with this given label is supervised; `column` gets its draft column. */
static int has_label(const oh_request *r, int64_t label, int32_t *column) {
    *column = (int32_t)draft_column(r, label);
    return *column >= 0 || (r->target_vocab && r->outside == OH_OUTSIDE_KEEP && label >= 0 && label < r->target_vocab);
}

/* The tile row of target row `source` in the current chunk: the one it already has, or the next. */
static int32_t target_index(oh_selection *s, oh_chunk *chunk, int32_t chunk_index, int32_t *sources, int64_t source) {
    if (s->stamp[source] != chunk_index) {
        s->stamp[source] = chunk_index;
        s->stamp_index[source] = (int32_t)chunk->target_rows;
        if (chunk->target_rows == 0) chunk->first_source = source;
        if (source != chunk->first_source + chunk->target_rows) chunk->target_in_place = 0;
        sources[chunk->first_target + chunk->target_rows++] = (int32_t)source;
    }
    return s->stamp_index[source];
}

static oh_status bad_mask(int64_t row, float mask, oh_error *error) {
    return oh_fail(error, OH_BAD_DATA, "loss_mask[%lld] = %g: expected a finite number that is not negative",
                   (long long)row, (double)mask);
}

static oh_status check_distinct(const oh_request *r, const oh_chunk *chunk, oh_error *error) {
    if (!r->distinct_target_rows || chunk->target_rows <= r->distinct_target_rows) return OH_OK;
    return oh_fail(error, OH_BAD_DATA,
                   "target_row: %lld distinct rows in the chunk at row %lld%s, the plan was promised at most %lld",
                   (long long)chunk->target_rows, (long long)chunk->first_row,
                   r->device_inputs ? ", any of whose rows may be supervised" : "", (long long)r->distinct_target_rows);
}

static int32_t *array_of(const oh_selection *s, oh_selection_array array) {
    return (int32_t *)s->block + (int64_t)array * s->row_capacity;
}

/* ----------------------------------------------------------------------------------- where the device selects ---- */

/* Numbers the target rows of all rows that may be supervised. A row out of range is the device's to refuse, if it is
 * supervised: -1. */
static void number_targets(oh_selection *s, const oh_request *r, oh_chunk *chunk, const oh_inputs *in) {
    const oh_objective *o = &r->objective;
    int32_t *sources = array_of(s, OH_SELECT_TARGET_SOURCE);
    chunk->target_is_identity = 0;
    chunk->target_rows = 0;
    for (int64_t row = chunk->first_row; row < chunk->first_row + chunk->rows; ++row) {
        const int64_t source = integer_at(in->target_row, in->target_row_dtype, row);
        const int exists = source >= 0 && source < in->target_rows;
        int32_t tile_row = 0;
        if (exists && row % o->block_size >= o->first_slot)
            tile_row = target_index(s, chunk, (int32_t)(chunk - s->chunks), sources, source);
        array_of(s, OH_SELECT_TARGET_ROW)[row] = exists ? (int32_t)source : -1;
        array_of(s, OH_SELECT_TARGET_TILE)[row] = tile_row;
    }
    if (chunk->target_rows == 0)
        sources[chunk->first_target + chunk->target_rows++] = -1; /* rows need one to point to */
}

static oh_status copy_host_arrays(oh_selection *s, const oh_request *r, const oh_inputs *in, oh_error *error) {
    float *mask = (float *)s->block + OH_SELECT_MASK * s->row_capacity;
    const int64_t label_end = r->target_vocab ? r->target_vocab : r->vocab;
    for (int64_t row = 0; row < in->rows && in->mask && !(r->device_inputs & OH_DEVICE_MASK); ++row) {
        mask[row] = mask_at(in, row);
        if (!(mask[row] >= 0) || isinf(mask[row])) return bad_mask(row, mask[row], error);
        s->uploads = 1;
    }
    for (int64_t row = 0; row < in->rows && in->label && !(r->device_inputs & OH_DEVICE_LABEL); ++row) {
        const int64_t label = integer_at(in->label, in->label_dtype, row);
        array_of(s, OH_SELECT_COMPACT)[row] = label >= 0 && label < label_end ? (int32_t)label : -1;
        s->uploads = 1;
    }
    return OH_OK;
}

static oh_status fill_places(oh_selection *s, const oh_request *r, int64_t chunk_rows, const oh_inputs *in,
                             oh_error *error) {
    const int64_t slots = r->objective.block_size - r->objective.first_slot;
    const int64_t places = chunk_rows / r->objective.block_size * slots;
    int64_t target = 0;
    s->supervised = 0;
    s->weight_sum = s->mask_sum = 0;
    const int has_target = r->target_rows > 0;
    s->shares_targets = has_target && in->target_row && !(r->device_inputs & OH_DEVICE_TARGET_ROW);
    s->uploads = s->shares_targets && in->rows > 0;
    for (int64_t first = 0; first < in->rows; first += chunk_rows) {
        const int64_t rows = in->rows - first < chunk_rows ? in->rows - first : chunk_rows;
        oh_chunk *chunk = &s->chunks[s->chunk_count];
        *chunk = (oh_chunk){.first_row = first,
                            .rows = rows,
                            .first_compact = s->chunk_count * places,
                            .compact_rows = rows / r->objective.block_size * slots,
                            .first_target = s->shares_targets ? target : s->chunk_count * places,
                            .target_is_identity = 1};
        if (has_target) chunk->target_rows = chunk->compact_rows;
        if (s->shares_targets) number_targets(s, r, chunk, in);
        target += chunk->target_rows;
        s->supervised += chunk->compact_rows;
        s->chunk_count += 1;
        const oh_status status = check_distinct(r, chunk, error);
        if (status != OH_OK) return status;
    }
    return copy_host_arrays(s, r, in, error);
}

/* ------------------------------------------------------------------------------------- where the host selects ---- */

oh_status oh_selection_fill(oh_selection *s, const oh_request *r, int64_t chunk_rows, const oh_inputs *in,
                            oh_error *error) {
    const oh_objective *o = &r->objective;
    const oh_status checked = check_arrays(r, in, error);
    if (checked != OH_OK) return checked;
    float *mask = (float *)s->block + OH_SELECT_MASK * s->row_capacity;
    int32_t *array[OH_SELECT_COUNT];
    for (int i = 0; i < OH_SELECT_COUNT; ++i)
        array[i] = array_of(s, (oh_selection_array)i);
    for (int64_t i = 0; i < s->target_capacity; ++i)
        s->stamp[i] = -1;
    s->chunk_count = 0;
    if (r->device_inputs) return fill_places(s, r, chunk_rows, in, error);

    const int has_target = r->target_rows > 0;
    int64_t compact = 0, target = 0;
    s->weight_sum = s->mask_sum = 0;
    s->uploads = 1;
    for (int64_t first = 0; first < in->rows; first += chunk_rows) {
        const int32_t index = (int32_t)s->chunk_count;
        oh_chunk *chunk = &s->chunks[s->chunk_count++];
        *chunk = (oh_chunk){.first_row = first,
                            .rows = in->rows - first < chunk_rows ? in->rows - first : chunk_rows,
                            .first_compact = compact,
                            .first_target = target,
                            .target_is_identity = 1,
                            .target_in_place = 1};
        for (int64_t row = first; row < first + chunk->rows; ++row) {
            const int64_t slot = row % o->block_size;
            const float m = mask_at(in, row);
            if (!(m >= 0) || isinf(m)) return bad_mask(row, m, error);
            mask[row] = m;
            array[OH_SELECT_COMPACT][row] = -1;
            array[OH_SELECT_TARGET_ROW][row] = 0;
            if (!(m > 0) || slot < o->first_slot) continue;
            int32_t label = -1;
            if (o->labels == OH_LABELS_GIVEN && !has_label(r, integer_at(in->label, in->label_dtype, row), &label))
                continue;

            const int32_t i = (int32_t)chunk->compact_rows++;
            array[OH_SELECT_COMPACT][row] = i;
            array[OH_SELECT_DRAFT_ROW][compact + i] = (int32_t)row;
            array[OH_SELECT_LABEL][compact + i] = label;
            s->mask_sum += (double)m;
            s->weight_sum += (double)m * oh_slot_decay(o, slot);
            if (!has_target) continue;
            const int64_t source = in->target_row ? integer_at(in->target_row, in->target_row_dtype, row) : row;
            if (source < 0 || source >= in->target_rows)
                return oh_fail(error, OH_BAD_DATA, "target_row[%lld] = %lld: expected 0 to %lld on a supervised row",
                               (long long)row, (long long)source, (long long)(in->target_rows - 1));
            const int32_t tile_row = target_index(s, chunk, index, array[OH_SELECT_TARGET_SOURCE], source);
            array[OH_SELECT_TARGET_INDEX][compact + i] = tile_row;
            array[OH_SELECT_TARGET_ROW][row] = (int32_t)source;
            if (tile_row != i) chunk->target_is_identity = 0;
        }
        chunk->draft_in_place = chunk->compact_rows == chunk->rows;
        compact += chunk->compact_rows;
        target += chunk->target_rows;
        const oh_status status = check_distinct(r, chunk, error);
        if (status != OH_OK) return status;
    }
    s->supervised = compact;
    return OH_OK;
}
