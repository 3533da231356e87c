/* row_select: which rows a mask on the device supervises, against the rules of rowmath.h in plain order. */
#include <string.h>

#include "portable/portable.h"
#include "verdict.h"

typedef struct select_shape {
    int64_t rows, chunk, block;
    int32_t first_slot, mask_dtype;
    bool given, mapped, shared;
} select_shape;

enum { TARGETS = 50, LABELS = 90 };

/* Every byte of an output, as the reference has it. */
static void judge_bytes(kit *k, const char *what, const kit_buffer *buffer, const void *want, int64_t bytes) {
    const unsigned char *got = kit_result(buffer), *expected = want;
    for (int64_t i = 0; i < bytes && kit_going(k); ++i)
        verdict_integer(k, what, i / 4, got[i], expected[i]);
}

static void check_select(kit *k, const char *name, const select_shape *s) {
    if (!kit_begin(k, CONFORM_ROW_SELECT, "row_select/%s", name)) return;
    const uint64_t key = kit_stream(k, "mask");
    const int64_t rows = s->rows, chunks = (rows + s->chunk - 1) / s->chunk;
    const int64_t places = s->chunk / s->block * (s->block - s->first_slot), all = chunks * places;
    float *wide = kit_host(k, rows, 4);
    uint8_t *narrow = kit_host(k, rows, 1);
    int32_t *label = kit_host(k, rows, 4), *tile = kit_host(k, rows, 4);
    int64_t *target = kit_host(k, rows, 8);
    for (int64_t i = 0; kit_going(k) && i < rows; ++i) {
        static const float drawn[] = {0, 1, 0.5f, 3, -1, NAN, INFINITY, 1, 1, 1, 0};
        wide[i] = drawn[draw_integer(key, i, 0, 10)];
        narrow[i] = (uint8_t)draw_integer(key, i, 0, 2);
        label[i] = (int32_t)draw_integer(~key, i, -5, LABELS + 5);
        target[i] = draw_integer(~key, rows + i, i % 13 == 0 ? -1 : 0, TARGETS - (i % 17 != 0));
        tile[i] = (int32_t)draw_integer(key, rows + i, 0, 9);
    }
    const void *mask = s->mask_dtype == OH_F32 ? (const void *)wide : (const void *)narrow;
    oh_row_select want = {.objective = {.block_size = s->block,
                                        .first_slot = s->first_slot,
                                        .labels = s->given ? OH_LABELS_GIVEN : OH_LABELS_TARGET,
                                        .decay = OH_DECAY_EXP,
                                        .decay_param = 10,
                                        .norm = OH_NORM_WEIGHTS},
                          .rows = rows,
                          .chunk = s->chunk,
                          .places = places,
                          .target_rows = s->mapped ? TARGETS : rows,
                          .label_end = LABELS,
                          .mask = mask,
                          .mask_dtype = s->mask_dtype,
                          .label = s->given ? label : NULL,
                          .label_dtype = OH_I32,
                          .target_row = s->mapped ? target : NULL,
                          .target_row_dtype = OH_I64,
                          .target_tile = s->shared ? tile : NULL};
    oh_row_select got = want;
    want.mask_out = kit_host(k, rows, 4);
    want.compact = kit_host(k, rows, 4);
    want.target_row_out = kit_host(k, rows, 4);
    want.draft_row = kit_host(k, all, 4);
    want.label_out = kit_host(k, all, 4);
    want.target_index = kit_host(k, all, 4);
    want.target_source = kit_host(k, all, 4);
    want.sums = kit_doubles(k, OH_SELECTED_COUNT);
    want.factor = kit_host(k, 1, 4);
    if (!kit_going(k) || oh_portable_row_select(&want) != OH_OK) kit_fail(k, "the reference refuses this case");
    got.mask = kit_at(kit_bytes(k, "mask", KIT_IN, mask, rows * (s->mask_dtype == OH_F32 ? 4 : 1)));
    if (s->given) got.label = kit_at(kit_bytes(k, "label", KIT_IN, label, rows * 4));
    if (s->mapped) got.target_row = kit_at(kit_bytes(k, "target_row", KIT_IN, target, rows * 8));
    if (s->shared) got.target_tile = kit_at(kit_bytes(k, "target_tile", KIT_IN, tile, rows * 4));
    kit_buffer *mask_out = kit_bytes(k, "mask_out", KIT_OUT, NULL, rows * 4);
    kit_buffer *compact = kit_bytes(k, "compact", KIT_OUT, NULL, rows * 4);
    kit_buffer *row_out = kit_bytes(k, "target_row_out", KIT_OUT, NULL, rows * 4);
    /* The last chunk may be shorter: places beyond its own are not written. */
    const int64_t written = (chunks - 1) * places + oh_select_places(&want, (chunks - 1) * s->chunk);
    kit_buffer *draft_row = kit_bytes(k, "draft_row", KIT_OUT, NULL, written * 4);
    kit_buffer *label_out = kit_bytes(k, "label_out", KIT_OUT, NULL, written * 4);
    kit_buffer *by_target = kit_bytes(k, s->shared ? "target_index" : "target_source", KIT_OUT, NULL, written * 4);
    kit_buffer *sums = kit_bytes(k, "sums", KIT_OUT, NULL, (int64_t)OH_SELECTED_COUNT * 8);
    kit_buffer *factor = kit_bytes(k, "factor", KIT_OUT, NULL, 4);
    got.mask_out = kit_at(mask_out), got.compact = kit_at(compact), got.target_row_out = kit_at(row_out);
    got.draft_row = kit_at(draft_row), got.label_out = kit_at(label_out);
    got.target_index = s->shared ? kit_at(by_target) : NULL;
    got.target_source = s->shared ? NULL : kit_at(by_target);
    got.sums = kit_at(sums), got.factor = kit_at(factor);
    if (kit_run(k, kit_run_row_select, &got)) {
        judge_bytes(k, "mask_out", mask_out, want.mask_out, rows * 4);
        judge_bytes(k, "compact", compact, want.compact, rows * 4);
        judge_bytes(k, "target_row_out", row_out, want.target_row_out, rows * 4);
        judge_bytes(k, "draft_row", draft_row, want.draft_row, written * 4);
        judge_bytes(k, "label_out", label_out, want.label_out, written * 4);
        judge_bytes(k, "targets", by_target, s->shared ? want.target_index : want.target_source, written * 4);
        double sum[OH_SELECTED_COUNT];
        memcpy(sum, kit_result(sums), sizeof sum);
        /* f64 sums of at most 2^20 terms in any order. */
        for (int i = 0; i < OH_SELECTED_COUNT && kit_going(k); ++i)
            if (!(fabs(sum[i] - want.sums[i]) <= 0x1p-32 * fabs(want.sums[i])))
                kit_fail(k, "sums[%d] = %.17g, expected %.17g", i, sum[i], want.sums[i]);
        float f;
        memcpy(&f, kit_result(factor), sizeof f);
        if (kit_going(k) && !(fabsf(f - *want.factor) <= 0x1p-22f * fabsf(*want.factor)))
            kit_fail(k, "factor = %g, expected %g", (double)f, (double)*want.factor);
    }
    kit_end(k);
}

void cases_row_select(kit *k) {
    /* An accelerator without it takes no masks that only the device has. */
    if (!OH_BACKEND_HAS(k->table, row_select) && !(k->table->caps & OH_CAP_HOST_MEMORY)) return;
    static const struct {
        const char *name;
        select_shape shape;
    } cases[] = {
        {"one-block", {4, 4, 4, 1, OH_F32, false, false, false}},
        {"f32-given-mapped", {3000, 2400, 5, 1, OH_F32, true, true, false}},
        {"u8-shared", {14002, 2804, 2, 0, OH_U8, false, true, true}},
        {"bool-identity", {4096, 1024, 16, 1, OH_BOOL, true, false, false}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i)
        check_select(k, cases[i].name, &cases[i].shape);
}
