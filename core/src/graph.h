/* graph.h - a request as a graph of nodes: every consumer declares what it needs, equal nodes merge, top-K lists fold.
 *
 * A node reads tiles in a *stage*: a stretch of the chunk's life during which its tiles exist. What separates the
 * policies is only which stage a consumer's nodes belong to:
 *
 *     cached      one stage: the tiles live until the gradient is taken
 *     recompute   forward and backward are two stages (three where the vocabulary is walked in panels and something
 *                 needs a second read, which can then only start once the first has seen every panel)
 *     naive       every consumer has stages of its own
 *
 * Nodes of equal op, stage and inputs are one node after merging, so a projection wanted by five consumers of a stage
 * runs once, and the naive graph merges nothing by itself: no policy is a special case of the code below this file. */
#ifndef ONEHEAD_CORE_GRAPH_H
#define ONEHEAD_CORE_GRAPH_H

#include <onehead/onehead.h>

#define OH_GRAPH_NODES_MAX 512
#define OH_GRAPH_CONSUMERS_MAX (OH_TOP_K_LIST_MAX + 2)

/* What the graph depends on. */
typedef struct oh_graph_spec {
    oh_objective objective;
    uint32_t produce; /* OH_PRODUCE_* */
    int32_t policy;   /* not auto */
    int32_t has_target;
    int32_t subset; /* the draft's vocabulary is a part of the target's, which is read whole for its argmax and alpha */
    int32_t diff;   /* draft tiles hold differences to the target's logits: who reads one reads both */
    int32_t panels; /* no whole tile exists: a second read is a stage of its own */
    int32_t overlap_in_grad; /* the gradient's pass can make the second read that metrics ask for */
} oh_graph_spec;

typedef struct oh_graph {
    oh_node nodes[OH_GRAPH_NODES_MAX];
    int64_t count;
    char consumer[OH_GRAPH_CONSUMERS_MAX][16]; /* "loss", "metrics", "topk:4" */
    int32_t consumer_count;
    int32_t stage_count;
} oh_graph;

/* Every consumer on its own. A graph has room for the largest request, so this can't fail. */
void oh_graph_build(oh_graph *graph, const oh_graph_spec *spec);

/* Merges equal nodes and folds top-K lists of one tile into the longest. before->nodes[].merged gets the index in
 * `after` of the node that stands for each. */
void oh_graph_merge(oh_graph *before, oh_graph *after);

/* Whether the objective's gradient reads the target's logits. */
int oh_graph_grad_needs_target(const oh_objective *objective);

/* FLOPs and bytes of every node for a chunk of `rows` supervised rows. */
typedef struct oh_graph_shape {
    int64_t rows, hidden, target_hidden, vocab, target_vocab;
    int64_t tile_bytes, operand_bytes; /* of one element */
} oh_graph_shape;
void oh_graph_cost(oh_graph *graph, const oh_graph_shape *shape);

#endif
