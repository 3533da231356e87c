#include "layout.h"

#include <string.h>

#include "plan.h"
#include "request.h"
#include "ring.h"
#include "select.h"
#include "status.h"

#define DEFAULT_CHUNK 2048
/* Fewer rows than this leave a product bound by reading W, and every chunk reads it again: from there on fewer, larger
 * chunks that project twice are the faster way to spend the same memory. */
#define USEFUL_CHUNK 64
/* A device would convert W for every chunk again, which costs more than chunks of down to so many rows do: on an H200 at
 * H = 5,120, V = 248,320 those take 1.05 (kl) and 1.09 times (ce) as long as ones of 2,048, f32 tiles, which need no copy,
 * 1.08 and 1.12 times. */
#define COPY_CHUNK 512
#define USEFUL_PANEL 1024
#define SMALLEST_PANEL 64
/* Converting W in pieces of this size keeps a piece in a cache near the cores that convert and multiply it. */
#define WEIGHT_PANEL_BYTES (INT64_C(32) << 20)
#define CAST_PANEL_COLUMNS 8192

int64_t oh_size_mul(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

int64_t oh_size_add(int64_t a, int64_t b) {
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

static int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static int64_t max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t round_up(int64_t value, int64_t step) {
    const int64_t padded = oh_size_add(value, step - 1);
    return padded == INT64_MAX ? INT64_MAX : padded / step * step;
}

const char *oh_buffer_name(int32_t buffer) {
    static const char *const names[OH_BUFFER_COUNT] = {
        [OH_BUFFER_SELECTION] = "row selection",
        [OH_BUFFER_SUMS] = "sums",
        [OH_BUFFER_GRAD_STEP] = "gradient of the step",
        [OH_BUFFER_STATS] = "row statistics",
        [OH_BUFFER_OVERLAP] = "row overlaps",
        [OH_BUFFER_FULL_STATS] = "full target statistics",
        [OH_BUFFER_FULL_OVERLAP] = "full target overlaps",
        [OH_BUFFER_SUBSET] = "draft to target ids",
        [OH_BUFFER_TOP_K_ID] = "top-K ids",
        [OH_BUFFER_TOP_K_LOGIT] = "top-K logits",
        [OH_BUFFER_RESULTS] = "row results",
        [OH_BUFFER_PARTIAL] = "block sums",
        [OH_BUFFER_COEF] = "coefficients",
        [OH_BUFFER_ROW_SCALE] = "row scales",
        [OH_BUFFER_ROW_LABEL] = "row labels",
        [OH_BUFFER_DRAFT_ROWS] = "draft rows",
        [OH_BUFFER_TARGET_ROWS] = "target rows",
        [OH_BUFFER_BIAS_SCALE] = "row scales of the bias",
        [OH_BUFFER_SCALED_ROWS] = "scaled draft rows",
        [OH_BUFFER_GRAD_ROWS] = "gradient rows",
        [OH_BUFFER_DRAFT_TILE] = "draft tile",
        [OH_BUFFER_TARGET_TILE] = "target tile",
        [OH_BUFFER_WEIGHT_PANEL] = "weight panel",
        [OH_BUFFER_CAST] = "f32 columns",
        [OH_BUFFER_GEMM_SCRATCH] = "gemm scratch",
    };
    return buffer >= 0 && buffer < OH_BUFFER_COUNT ? names[buffer] : "unknown";
}

static int64_t rows_by(int64_t rows, int64_t columns, int64_t element) {
    return oh_size_mul(oh_size_mul(rows, columns), element);
}

static int64_t largest_top_k(const oh_request *r) {
    if (!(r->produce & OH_PRODUCE_TOP_K) || r->objective.top_k_count == 0) return 0;
    return r->objective.top_k[r->objective.top_k_count - 1];
}

/* Bytes of `rows` rows of a weight that has to be copied (converted, gathered) before it is multiplied; 0: it has not. */
static int64_t copied_bytes(const oh_request *r, const oh_formats *f, int kind, int64_t rows) {
    const int64_t draft = rows_by(rows, r->hidden, oh_dtype_size(f->draft_operand));
    const int64_t target = rows_by(rows, r->target_hidden, oh_dtype_size(f->target_operand));
    if (kind == OH_WEIGHT_DRAFT) return f->convert_weight ? draft : 0;
    if (kind == OH_WEIGHT_TARGET) return f->convert_target_weight || f->gather_target_weight ? target : 0;
    return r->target_vocab && f->convert_target_weight ? target : 0;
}

static int64_t weight_rows(const oh_request *r, int kind) {
    return kind == OH_WEIGHT_FULL ? r->target_vocab : r->vocab_valid;
}

int64_t oh_layout_copies(const oh_request *r, const oh_formats *f) {
    int64_t bytes = 0;
    for (int kind = 0; kind < OH_WEIGHT_COUNT; ++kind)
        bytes = oh_size_add(bytes, round_up(copied_bytes(r, f, kind, weight_rows(r, kind)), OH_ALIGNMENT));
    return bytes;
}

static void place_weights(oh_layout *layout, const oh_request *r, const oh_formats *f) {
    for (int kind = 0; kind < OH_WEIGHT_COUNT; ++kind) {
        if (!layout->choice.resident) {
            const int64_t panel = copied_bytes(r, f, kind, layout->choice.weight_panel);
            layout->bytes[OH_BUFFER_WEIGHT_PANEL] = max64(layout->bytes[OH_BUFFER_WEIGHT_PANEL], panel);
            continue;
        }
        layout->resident[kind] = copied_bytes(r, f, kind, weight_rows(r, kind));
        layout->resident_offset[kind] = layout->weight_bytes;
        layout->weight_bytes = oh_size_add(layout->weight_bytes, round_up(layout->resident[kind], OH_ALIGNMENT));
    }
}

void oh_layout_compute(oh_layout *layout, const oh_layout_input *input, const oh_layout_choice *choice) {
    const oh_request *r = input->request;
    const oh_formats *f = &input->formats;
    const int64_t blocks = choice->chunk / r->objective.block_size;
    const int64_t operand = oh_dtype_size(f->draft_operand), target_operand = oh_dtype_size(f->target_operand);
    const int64_t tile = oh_dtype_size(f->tile_dtype), grad_operand = oh_dtype_size(f->grad_operand);
    const int64_t target_hidden = r->target_hidden ? r->target_hidden : r->hidden;
    const int has_grad = (r->produce & OH_PRODUCE_GRAD) != 0, head = (r->produce & OH_PRODUCE_HEAD_GRAD) != 0;
    memset(layout, 0, sizeof *layout);
    layout->choice = *choice;
    layout->tile_rows = blocks * (r->objective.block_size - r->objective.first_slot);
    /* Target rows that only the device knows aren't shared. */
    const int unshared = r->target_rows > 0 && r->device_inputs & OH_DEVICE_TARGET_ROW;
    layout->target_tile_rows = unshared ? layout->tile_rows : min64(layout->tile_rows, r->target_rows);
    if (r->distinct_target_rows) layout->target_tile_rows = min64(layout->target_tile_rows, r->distinct_target_rows);
    layout->tile_ld = round_up(choice->panel, 64 / tile);

    const int64_t rows = layout->tile_rows, sums = oh_sum_count(&r->objective);
    int64_t *bytes = layout->bytes;
    bytes[OH_BUFFER_SELECTION] = oh_size_add(oh_selection_bytes(r->rows), OH_RING_TICKET_BYTES);
    bytes[OH_BUFFER_SUMS] = oh_size_mul(sums + OH_SUMS_EXTRA, 8);
    if (has_grad && oh_norm_is_late(r) && r->grad_dtype != OH_F32)
        bytes[OH_BUFFER_GRAD_STEP] = rows_by(r->rows, r->hidden, 4);
    bytes[OH_BUFFER_STATS] = rows_by(rows, 1, sizeof(oh_row_stats));
    bytes[OH_BUFFER_OVERLAP] = rows_by(rows, 1, sizeof(oh_row_overlap));
    if (r->target_vocab) {
        bytes[OH_BUFFER_FULL_STATS] = rows_by(layout->target_tile_rows, 1, sizeof(oh_row_stats));
        bytes[OH_BUFFER_FULL_OVERLAP] = rows_by(rows, 1, sizeof(oh_row_overlap));
        bytes[OH_BUFFER_SUBSET] = rows_by(r->vocab, 1, 4);
    }
    bytes[OH_BUFFER_TOP_K_ID] = bytes[OH_BUFFER_TOP_K_LOGIT] = rows_by(rows, largest_top_k(r), 4);
    bytes[OH_BUFFER_RESULTS] = rows_by(rows, 1, sizeof(oh_row_result));
    bytes[OH_BUFFER_PARTIAL] = rows_by(blocks, sums, 8);
    bytes[OH_BUFFER_COEF] = rows_by(rows, 1, sizeof(oh_row_coef));
    bytes[OH_BUFFER_ROW_SCALE] = bytes[OH_BUFFER_ROW_LABEL] = rows_by(rows, 1, 4);
    bytes[OH_BUFFER_DRAFT_ROWS] = rows_by(rows, r->hidden, operand);
    bytes[OH_BUFFER_TARGET_ROWS] = rows_by(layout->target_tile_rows, target_hidden, target_operand);
    if (r->produce & OH_PRODUCE_BIAS_GRAD) bytes[OH_BUFFER_BIAS_SCALE] = rows_by(rows, 2, grad_operand);
    if (head) bytes[OH_BUFFER_SCALED_ROWS] = rows_by(rows, r->hidden, grad_operand);
    if (has_grad) bytes[OH_BUFFER_GRAD_ROWS] = rows_by(rows, r->hidden, 4);
    bytes[OH_BUFFER_DRAFT_TILE] = rows_by(rows, layout->tile_ld, tile);
    bytes[OH_BUFFER_TARGET_TILE] = rows_by(layout->target_tile_rows, layout->tile_ld, tile);
    place_weights(layout, r, f);
    if (f->cast_tile || f->cast_target_tile || f->cast_grad)
        bytes[OH_BUFFER_CAST] = rows_by(rows, choice->weight_panel, 4);
    if (input->scratch) bytes[OH_BUFFER_GEMM_SCRATCH] = input->scratch(input->scratch_user, f, layout);

    int64_t at = 0;
    for (int i = 0; i < OH_BUFFER_COUNT; ++i) {
        layout->offset[i] = at;
        at = oh_size_add(at, round_up(bytes[i], OH_ALIGNMENT));
    }
    layout->workspace_bytes = at;
}

/* ------------------------------------------------------------------------------------------ what a budget allows */

static int64_t total(const oh_layout *layout) {
    return oh_size_add(layout->workspace_bytes, layout->weight_bytes);
}

static int copies_weights(const oh_formats *f) {
    return f->convert_weight || f->convert_target_weight || f->gather_target_weight;
}

/* Columns of W that one product takes: all of the panel unless something has to be converted piece by piece. */
static int64_t weight_panel(const oh_layout_input *input, int64_t panel, int32_t resident, int64_t budget) {
    const oh_request *r = input->request;
    const oh_formats *f = &input->formats;
    int64_t columns = panel;
    if (f->cast_tile || f->cast_target_tile || f->cast_grad) columns = min64(columns, CAST_PANEL_COLUMNS);
    if (!resident && copies_weights(f)) {
        const int64_t row = max64(r->hidden, r->target_hidden) * 4;
        columns = min64(columns, max64(64, min64(WEIGHT_PANEL_BYTES, budget / 8) / row / 64 * 64));
    }
    return max64(columns, min64(panel, 1));
}

/* The next smaller chunk of whole blocks worth trying, 0 after one block. */
static int64_t smaller_chunk(int64_t chunk, int64_t block) {
    if (chunk <= block) return 0;
    return max64(block, chunk / 2 / block * block);
}

static int fits(oh_layout *layout, const oh_layout_input *input, const oh_layout_choice *choice, int64_t budget) {
    oh_layout_compute(layout, input, choice);
    return total(layout) <= budget;
}

/* Whether a whole tile of `chunk` rows fits, beside whole copies of the weights or not; the layout that does it. */
static int fits_chunk(oh_layout *layout, const oh_layout_input *input, int32_t policy, int64_t chunk, int32_t resident,
                      int64_t budget) {
    const int64_t panel = input->request->vocab_valid;
    const oh_layout_choice choice = {policy, chunk, panel, weight_panel(input, panel, resident, budget), resident};
    return fits(layout, input, &choice, budget);
}

/* With converted weights kept where they fit. */
static int fits_whole(oh_layout *layout, const oh_layout_input *input, int32_t policy, int64_t chunk, int64_t budget) {
    const int trains = input->request->weight_trains && !input->prefers_copies;
    if (copies_weights(&input->formats) && !trains && fits_chunk(layout, input, policy, chunk, 1, budget)) return 1;
    return fits_chunk(layout, input, policy, chunk, 0, budget);
}

/* The largest chunk beside whole copies, where those are worth smaller ones. */
static int fits_copies(oh_layout *layout, const oh_layout_input *input, int32_t policy, int64_t largest,
                       int64_t budget) {
    const oh_request *r = input->request;
    if (!input->prefers_copies || !copies_weights(&input->formats) || policy == OH_POLICY_RECOMPUTE) return 0;
    for (int64_t chunk = largest; chunk >= min64(largest, COPY_CHUNK) && chunk > 0;
         chunk = r->chunk ? 0 : smaller_chunk(chunk, r->objective.block_size))
        if (fits_chunk(layout, input, policy, chunk, 1, budget)) return 1;
    return 0;
}

/* Whether panels of so many columns fit, and the layout. Converted pieces of W are panels then. */
static int fits_panel(oh_layout *layout, const oh_layout_input *input, int64_t chunk, int64_t panel, int64_t budget) {
    const oh_layout_choice choice = {OH_POLICY_RECOMPUTE, chunk, panel, panel, 0};
    return fits(layout, input, &choice, budget);
}

/* The widest panel that fits `chunk` rows, 0 where none is worth a product. A narrower one may need more, if a backend wants
 * more scratch for smaller products: then it is one that fits, not the widest. */
static int64_t widest_panel(oh_layout *layout, const oh_layout_input *input, int64_t chunk, int64_t budget) {
    const int64_t vocab = input->request->vocab_valid, smallest = min64(SMALLEST_PANEL, vocab);
    int64_t low = 0, high = vocab;
    while (low < high) {
        const int64_t middle = low + (high - low + 1) / 2;
        if (fits_panel(layout, input, chunk, middle, budget))
            low = middle;
        else
            high = middle - 1;
    }
    if (low < vocab) low = low / SMALLEST_PANEL * SMALLEST_PANEL;
    for (int64_t panel = max64(low, smallest); panel > 0; panel -= SMALLEST_PANEL)
        if (fits_panel(layout, input, chunk, panel, budget)) return panel;
    return 0;
}

/* The layout that makes do with least, narrow pieces of W and all, or words on what it would take. */
static oh_status choose_least(oh_layout *layout, const oh_layout_input *input, int32_t policy, int64_t chunk,
                              int64_t budget, oh_error *error) {
    const int64_t panel = policy == OH_POLICY_RECOMPUTE ? min64(SMALLEST_PANEL, input->request->vocab_valid)
                                                        : input->request->vocab_valid;
    const oh_layout_choice choice = {policy, chunk, panel, min64(SMALLEST_PANEL, panel), 0};
    if (fits(layout, input, &choice, budget)) return OH_OK;
    static const char *const names[] = {"auto", "cached", "recompute", "naive"};
    return oh_fail(error, OH_OUT_OF_MEMORY,
                   "memory: a budget of %lld bytes is too small for policy %s with chunks of %lld rows, which needs at "
                   "least %lld bytes%s",
                   (long long)budget, names[policy], (long long)chunk, (long long)total(layout),
                   policy == OH_POLICY_RECOMPUTE ? "" : " (recompute needs less)");
}

oh_status oh_layout_choose(oh_layout *layout, const oh_layout_input *input, oh_error *error) {
    const oh_request *r = input->request;
    const int64_t block = r->objective.block_size, budget = r->memory;
    const int64_t whole = max64(r->rows, block);
    const int64_t largest = r->chunk ? r->chunk : min64(whole, max64(block, DEFAULT_CHUNK / block * block));
    const int64_t useful = r->chunk ? r->chunk : min64(whole, round_up(USEFUL_CHUNK, block));
    const int32_t policy = r->policy == OH_POLICY_AUTO ? OH_POLICY_CACHED : r->policy;

    if (fits_copies(layout, input, policy, largest, budget)) return OH_OK;
    for (int64_t chunk = largest; chunk > 0; chunk = r->chunk ? 0 : smaller_chunk(chunk, block)) {
        if (r->policy == OH_POLICY_AUTO && chunk < useful) break;
        if (fits_whole(layout, input, policy, chunk, budget)) return OH_OK;
        if (policy == OH_POLICY_RECOMPUTE) break; /* it has panels: no need for small chunks */
    }
    if (r->policy == OH_POLICY_CACHED || r->policy == OH_POLICY_NAIVE)
        return choose_least(layout, input, policy, r->chunk ? r->chunk : block, budget, error);

    int64_t fallback = 0;
    for (int64_t chunk = largest; chunk > 0; chunk = r->chunk ? 0 : smaller_chunk(chunk, block)) {
        const int64_t panel = widest_panel(layout, input, chunk, budget);
        if (panel >= min64(USEFUL_PANEL, r->vocab_valid)) return OH_OK;
        if (panel > 0) fallback = chunk;
    }
    if (fallback && widest_panel(layout, input, fallback, budget) > 0) return OH_OK;
    return choose_least(layout, input, OH_POLICY_RECOMPUTE, r->chunk ? r->chunk : block, budget, error);
}
