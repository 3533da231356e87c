/* schedule.h - a merged graph as the passes that run: one entry a stage. */
#ifndef ONEHEAD_CORE_SCHEDULE_H
#define ONEHEAD_CORE_SCHEDULE_H

#include "graph.h"

/* All of one stage's nodes, fused: its tiles are projected, read at most twice and turned into the gradient. */
typedef struct oh_stage {
    int32_t stage; /* of the graph's nodes */
    int32_t project_draft, project_target;
    int32_t project_full; /* the target over its whole vocabulary: statistics only, nothing else is in such a stage */
    int32_t full_label;   /* y follows from that */
    int32_t first_read, second_read;
    uint32_t want;          /* OH_WANT_* of the first read */
    uint32_t overlap_want;  /* OH_WANT_* of the second read */
    int32_t top_k;          /* length of the lists of the first read; 0: none */
    int32_t label_is_known; /* y comes from an earlier stage of the chunk, not from this stage's target tile */
    uint32_t parts;         /* OH_FINISH_* that complete here; 0: no row_finish */
    uint32_t finish_want;   /* statistics that row_finish may use */
    int32_t finish_has_target;
    int32_t finish_has_full; /* an earlier stage read the whole target: all that finish rows leave out the same ones */
    int32_t full_overlap;    /* the second read also compares with the target's full distribution */
    uint32_t top_k_mask;
    int32_t tile_grad, grad, head_grad, bias_grad;
    int32_t overlap_in_grad; /* the gradient's pass makes the second read, and METRICS complete after it */
} oh_stage;

#define OH_STAGES_MAX (3 * OH_GRAPH_CONSUMERS_MAX)

typedef struct oh_schedule {
    oh_stage stages[OH_STAGES_MAX];
    int32_t count;
    int32_t projections_draft, projections_target, gemms; /* a chunk */
} oh_schedule;

/* Fuses a merged graph's nodes stage by stage, in order. Stages without nodes are dropped. */
void oh_schedule_build(oh_schedule *schedule, const oh_graph *merged, const oh_graph_spec *spec);

#endif
