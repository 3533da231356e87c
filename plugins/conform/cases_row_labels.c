/* row_labels: the target's argmax of each row as a draft column, or -1. */
#include <string.h>

#include "verdict.h"

static void check_labels(kit *k, int64_t rows, int64_t ids, bool mapped) {
    if (!kit_begin(k, CONFORM_ROW_LABELS, "row_labels/%lld-of-%lld%s", (long long)rows, (long long)ids,
                   mapped ? "-mapped" : ""))
        return;
    const uint64_t key = kit_stream(k, "argmax");
    const int64_t targets = mapped ? rows / 2 + 1 : rows;
    int32_t *id = kit_host(k, ids, sizeof *id), *target_row = kit_host(k, rows, sizeof *target_row);
    oh_row_stats *full = kit_host(k, targets, sizeof *full);
    for (int64_t i = 0; kit_going(k) && i < ids; ++i)
        id[i] = (int32_t)(3 * i + draw_integer(key, i, 0, 2)); /* ascending, with gaps */
    for (int64_t i = 0; kit_going(k) && i < targets; ++i) {
        oh_row_stats_empty(&full[i]);
        /* Both ends among them, what lies beyond both, and rows without an argmax. */
        const int64_t drawn = draw_integer(~key, i, 0, 3 * ids);
        full[i].t_argmax = i % 7 == 0 && ids > 0 ? id[0] : i % 7 == 1 && ids > 0 ? id[ids - 1] : (int32_t)drawn;
        if (i % 7 == 2) full[i].t_argmax = -1;
        if (i % 7 == 3) full[i].t_argmax = INT32_MAX;
    }
    for (int64_t i = 0; kit_going(k) && i < rows; ++i)
        target_row[i] = (int32_t)(mapped ? draw_integer(key, 1000 + i, 0, targets - 1) : i);
    kit_buffer *label = kit_bytes(k, "label", KIT_OUT, NULL, rows * 4);
    const oh_row_labels l = {.rows = rows,
                             .id_count = ids,
                             .full = kit_at(kit_bytes(k, "full", KIT_IN, full, targets * (int64_t)sizeof *full)),
                             .target_row =
                                 mapped ? kit_at(kit_bytes(k, "target_row", KIT_IN, target_row, rows * 4)) : NULL,
                             .ids = ids > 0 ? kit_at(kit_bytes(k, "ids", KIT_IN, id, ids * 4)) : NULL,
                             .label = kit_at(label)};
    if (kit_run(k, kit_run_row_labels, &l))
        for (int64_t i = 0; i < rows && kit_going(k); ++i) {
            int32_t got, want = -1;
            memcpy(&got, (const unsigned char *)kit_result(label) + 4 * i, sizeof got);
            for (int64_t j = 0; j < ids; ++j)
                if (id[j] == full[target_row[i]].t_argmax) want = (int32_t)j;
            verdict_integer(k, "label", i, got, want);
        }
    kit_end(k);
}

static void check_refusals(kit *k) {
    if (!kit_begin(k, CONFORM_ROW_LABELS, "row_labels/refused")) return;
    static const int32_t ids[] = {1, 4, 9};
    oh_row_stats full[2];
    oh_row_stats_empty(&full[0]), oh_row_stats_empty(&full[1]);
    const oh_row_labels good = {.rows = 2,
                                .id_count = 3,
                                .full = kit_at(kit_bytes(k, "full", KIT_IN, full, sizeof full)),
                                .ids = kit_at(kit_bytes(k, "ids", KIT_IN, ids, sizeof ids)),
                                .label = kit_at(kit_bytes(k, "label", KIT_OUT, NULL, 8))};
    oh_row_labels bad;
#define REFUSED(what, edit)                                                                                            \
    do {                                                                                                               \
        bad = good;                                                                                                    \
        edit;                                                                                                          \
        kit_refused(k, kit_run_row_labels, &bad, "a row_labels with " what, OH_INVALID_ARGUMENT);                      \
    } while (0)
    REFUSED("rows = -1", bad.rows = -1);
    REFUSED("id_count = -1", bad.id_count = -1);
    REFUSED("full = NULL", bad.full = NULL);
    REFUSED("ids = NULL", bad.ids = NULL);
    REFUSED("label = NULL", bad.label = NULL);
#undef REFUSED
    kit_end(k);
}

void cases_row_labels(kit *k) {
    /* An accelerator without it serves no vocabulary subsets. */
    if (!k->table->row_labels && !(k->table->caps & OH_CAP_HOST_MEMORY)) return;
    check_labels(k, 1, 1, false);
    check_labels(k, 37, 200, false);
    check_labels(k, 70, 31, true);
    check_labels(k, 5, 0, false);
    check_refusals(k);
}
