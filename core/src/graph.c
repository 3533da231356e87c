/* graph.c - builds and merges the request's graph; graph.h says what its stages mean. */
#include "graph.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { PHASE_FULL_TARGET, PHASE_FIRST_READ, PHASE_SECOND_READ, PHASE_BACKWARD, PHASE_COUNT };
enum { NO_STAGE = -1, NO_NODE = -1 };

/* A consumer under construction: its nodes by op, so that it asks for each thing once. */
typedef struct oh_consumer {
    oh_graph *graph;
    const oh_graph_spec *spec;
    int32_t index;
    int32_t project[PHASE_COUNT][2]; /* draft, target */
} oh_consumer;

static int32_t stage_of(const oh_graph_spec *spec, int32_t consumer, int phase) {
    if (phase == PHASE_SECOND_READ && !spec->panels) phase = PHASE_FIRST_READ;
    if (spec->policy == OH_POLICY_CACHED) return phase == PHASE_FULL_TARGET ? PHASE_FULL_TARGET : PHASE_FIRST_READ;
    if (spec->policy == OH_POLICY_RECOMPUTE) return phase;
    return PHASE_COUNT * consumer + phase;
}

static int32_t add(oh_consumer *c, int32_t op, int32_t k, int32_t stage, const int32_t *inputs, int32_t input_count) {
    oh_graph *g = c->graph;
    assert(g->count < OH_GRAPH_NODES_MAX);
    oh_node *node = &g->nodes[g->count];
    *node = (oh_node){.op = op, .k = k, .stage = stage, .merged = NO_NODE, .consumers = 1u << c->index};
    for (int32_t i = 0; i < input_count; ++i) {
        if (inputs[i] == NO_NODE) continue;
        assert(node->input_count < OH_NODE_INPUTS_MAX);
        node->inputs[node->input_count++] = inputs[i];
    }
    return (int32_t)g->count++;
}

/* A consumer names every tile it reads; a tile of the same phase is asked for once by one consumer. */
static int32_t project(oh_consumer *c, int target, int phase) {
    int32_t *node = &c->project[phase][target];
    if (*node != NO_NODE) return *node;
    const int32_t stage = stage_of(c->spec, c->index, phase);
    const int32_t rows = add(c, target ? OH_OP_GATHER_TARGET : OH_OP_GATHER_DRAFT, 0, NO_STAGE, NULL, 0);
    const int32_t op = phase == PHASE_FULL_TARGET ? OH_OP_PROJECT_TARGET_FULL
                       : target                   ? OH_OP_PROJECT_TARGET
                                                  : OH_OP_PROJECT_DRAFT;
    return *node = add(c, op, 0, stage, &rows, 1);
}

/* A statistic of the target over its whole vocabulary. Its tile is walked on its own, before the draft's. */
static int32_t read_full_target(oh_consumer *c, int32_t op) {
    const int32_t tile = project(c, 1, PHASE_FULL_TARGET);
    return add(c, op, 0, stage_of(c->spec, c->index, PHASE_FULL_TARGET), &tile, 1);
}

static int32_t read_tile(oh_consumer *c, int32_t op, int32_t k, int draft, int target) {
    int32_t tiles[2] = {NO_NODE, NO_NODE};
    if (draft) tiles[0] = project(c, 0, PHASE_FIRST_READ);
    if (target || (draft && c->spec->diff)) tiles[1] = project(c, 1, PHASE_FIRST_READ);
    return add(c, op, k, stage_of(c->spec, c->index, PHASE_FIRST_READ), tiles, 2);
}

/* A second read starts from the complete sums of the first. */
static int32_t read_again(oh_consumer *c, int32_t op, int target, int32_t lse_draft, int32_t lse_target,
                          int32_t label) {
    const int32_t inputs[5] = {project(c, 0, PHASE_SECOND_READ),
                               target || c->spec->diff ? project(c, 1, PHASE_SECOND_READ) : NO_NODE, lse_draft,
                               lse_target, label};
    return add(c, op, 0, stage_of(c->spec, c->index, PHASE_SECOND_READ), inputs, 5);
}

static oh_consumer begin(oh_graph *graph, const oh_graph_spec *spec, const char *name, int32_t k) {
    oh_consumer c = {.graph = graph, .spec = spec, .index = graph->consumer_count++};
    assert(graph->consumer_count <= OH_GRAPH_CONSUMERS_MAX);
    for (int phase = 0; phase < PHASE_COUNT; ++phase)
        c.project[phase][0] = c.project[phase][1] = NO_NODE;
    if (k)
        snprintf(graph->consumer[c.index], sizeof graph->consumer[c.index], "%s:%d", name, (int)k);
    else
        snprintf(graph->consumer[c.index], sizeof graph->consumer[c.index], "%s", name);
    return c;
}

/* Whether the loss looks at the target at all: by its terms, by whose token a row is judged, or, where metrics read it
 * anyway, to leave out rows whose target is not finite under every policy alike (as with the whole of a target whose
 * vocabulary the draft's is a part of). */
static int loss_needs_target(const oh_graph_spec *spec) {
    if (!spec->has_target) return 0;
    return (spec->objective.terms & OH_TERMS_WITH_TARGET) || spec->objective.labels == OH_LABELS_TARGET ||
           spec->produce & OH_PRODUCE_METRICS;
}

int oh_graph_grad_needs_target(const oh_objective *objective) {
    return (oh_objective_form(objective) & (OH_FORM_Q | OH_FORM_LOG_Q | OH_FORM_LOG_M | OH_FORM_LE)) != 0;
}

/* The node that knows y: the target's argmax, or none where labels are given. */
static int32_t label_node(oh_consumer *c) {
    if (c->spec->objective.labels != OH_LABELS_TARGET) return NO_NODE;
    if (c->spec->subset) return read_full_target(c, OH_OP_ARGMAX_TARGET);
    return read_tile(c, OH_OP_ARGMAX_TARGET, 0, 0, 1);
}

static int32_t build_loss(oh_graph *graph, const oh_graph_spec *spec) {
    oh_consumer c = begin(graph, spec, "loss", 0);
    const oh_objective *o = &spec->objective;
    const uint32_t want = oh_objective_want(o);
    const int target = loss_needs_target(spec);
    int32_t in[OH_NODE_INPUTS_MAX];
    int32_t n = 0;
    const int32_t lse_draft = in[n++] = read_tile(&c, OH_OP_LSE_DRAFT, 0, 1, 0);
    const int32_t lse_target = in[n++] = target ? read_tile(&c, OH_OP_LSE_TARGET, 0, 0, 1) : NO_NODE;
    const int32_t label = in[n++] = label_node(&c);
    if (spec->subset && spec->produce & OH_PRODUCE_METRICS) in[n++] = read_full_target(&c, OH_OP_LSE_TARGET_FULL);
    const int32_t label_inputs[2] = {project(&c, 0, PHASE_FIRST_READ), label};
    in[n++] = add(&c, OH_OP_LABEL_LOGIT, 0, stage_of(spec, c.index, PHASE_FIRST_READ), label_inputs, 2);
    if (want & OH_WANT_KL) in[n++] = read_tile(&c, OH_OP_KL_SUM, 0, 1, 1);
    if (want & OH_WANT_RKL) in[n++] = read_tile(&c, OH_OP_RKL_SUM, 0, 1, 1);
    if (want & OH_WANT_TOTAL) in[n++] = read_tile(&c, OH_OP_LOGIT_SUM, 0, 1, 0);
    if (want & OH_WANT_ENTROPY) {
        in[n++] = read_tile(&c, OH_OP_ENTROPY, 0, 1, 0);
        in[n++] = read_tile(&c, OH_OP_ARGMAX_DRAFT, 0, 1, 0);
    }
    if (want & OH_WANT_OVERLAP) in[n++] = read_again(&c, OH_OP_OVERLAP, 1, lse_draft, lse_target, NO_NODE);
    if (want & OH_WANT_JSD) in[n++] = read_again(&c, OH_OP_JSD_SUM, 1, lse_draft, lse_target, NO_NODE);
    const int second = (want & (OH_WANT_OVERLAP | OH_WANT_JSD)) != 0;
    const int32_t loss =
        add(&c, OH_OP_ROW_LOSS, 0, stage_of(spec, c.index, second ? PHASE_SECOND_READ : PHASE_FIRST_READ), in, n);
    if (!(spec->produce & (OH_PRODUCE_GRAD | OH_PRODUCE_HEAD_GRAD | OH_PRODUCE_BIAS_GRAD))) return label;

    const int32_t stage = stage_of(spec, c.index, PHASE_BACKWARD);
    const int32_t grad_inputs[3] = {
        project(&c, 0, PHASE_BACKWARD),
        oh_graph_grad_needs_target(o) || spec->diff ? project(&c, 1, PHASE_BACKWARD) : NO_NODE, loss};
    const int32_t tile_grad = add(&c, OH_OP_TILE_GRAD, 0, stage, grad_inputs, 3);
    if (spec->produce & OH_PRODUCE_GRAD) {
        const int32_t grad = add(&c, OH_OP_GRAD, 0, stage, &tile_grad, 1);
        add(&c, OH_OP_SCATTER, 0, stage, &grad, 1);
    }
    if (spec->produce & OH_PRODUCE_BIAS_GRAD) add(&c, OH_OP_BIAS_GRAD, 0, stage, &tile_grad, 1);
    if (spec->produce & OH_PRODUCE_HEAD_GRAD) {
        const int32_t rows = add(&c, OH_OP_GATHER_DRAFT, 0, NO_STAGE, NULL, 0);
        const int32_t inputs[2] = {tile_grad, rows};
        add(&c, OH_OP_HEAD_GRAD, 0, stage, inputs, 2);
    }
    return label;
}

/* Hits and streaks at K, and what a DDTree builder takes: the list, with the sum that makes log-probabilities of it. */
static void add_top_k_metrics(oh_consumer *c, int32_t k, int32_t label) {
    /* The argmax is a list of one, unless the list itself is what the caller takes away. */
    const oh_objective *o = &c->spec->objective;
    const int listed = k > 1 || (c->spec->produce & OH_PRODUCE_TOP_K_ROWS && o->top_k[o->top_k_count - 1] == 1);
    const int32_t list = read_tile(c, listed ? OH_OP_TOP_K : OH_OP_ARGMAX_DRAFT, listed ? k : 0, 1, 0);
    const int32_t in[3] = {list, read_tile(c, OH_OP_LSE_DRAFT, 0, 1, 0), label};
    add(c, OH_OP_TOP_K_METRICS, k, stage_of(c->spec, c->index, PHASE_FIRST_READ), in, 3);
}

static int32_t build_metrics(oh_graph *graph, const oh_graph_spec *spec) {
    oh_consumer c = begin(graph, spec, "metrics", 0);
    const int rank = (spec->produce & OH_PRODUCE_ROWS) != 0, overlap = (spec->produce & OH_PRODUCE_OVERLAP) != 0;
    int32_t in[OH_NODE_INPUTS_MAX];
    int32_t n = 0;
    const int32_t lse_draft = in[n++] = read_tile(&c, OH_OP_LSE_DRAFT, 0, 1, 0);
    const int32_t lse_target = in[n++] = spec->has_target ? read_tile(&c, OH_OP_LSE_TARGET, 0, 0, 1) : NO_NODE;
    const int32_t label = in[n++] = label_node(&c);
    in[n++] = read_tile(&c, OH_OP_ARGMAX_DRAFT, 0, 1, 0);
    in[n++] = read_tile(&c, OH_OP_ENTROPY, 0, 1, 0);
    const int32_t lse_full = spec->subset ? in[n++] = read_full_target(&c, OH_OP_LSE_TARGET_FULL) : NO_NODE;
    if (overlap && spec->subset)
        in[n++] = read_again(&c, OH_OP_OVERLAP_FULL, 1, lse_draft, lse_full, NO_NODE);
    else if (overlap)
        in[n++] = read_again(&c, OH_OP_OVERLAP, 1, lse_draft, lse_target, NO_NODE);
    if (rank) in[n++] = read_again(&c, OH_OP_RANK, 0, lse_draft, NO_NODE, label);
    const int phase = rank || overlap ? PHASE_SECOND_READ : PHASE_FIRST_READ;
    add(&c, OH_OP_METRICS, 0, stage_of(spec, c.index, phase), in, n);
    /* K = 1 is the accuracy that metrics read anyway. */
    if (spec->produce & OH_PRODUCE_TOP_K && spec->objective.top_k_count > 0 && spec->objective.top_k[0] == 1)
        add_top_k_metrics(&c, 1, label);
    return label;
}

static void build_top_k(oh_graph *graph, const oh_graph_spec *spec, int32_t k, int32_t label) {
    oh_consumer c = begin(graph, spec, "topk", k);
    add_top_k_metrics(&c, k, label == NO_NODE ? label_node(&c) : label);
}

/* Stages that have nodes, numbered from 0 in order. */
static void number_stages(oh_graph *graph) {
    int32_t number[PHASE_COUNT * OH_GRAPH_CONSUMERS_MAX] = {0};
    for (int64_t i = 0; i < graph->count; ++i)
        if (graph->nodes[i].stage != NO_STAGE) number[graph->nodes[i].stage] = 1;
    for (int32_t stage = 0; stage < PHASE_COUNT * OH_GRAPH_CONSUMERS_MAX; ++stage)
        if (number[stage]) number[stage] = graph->stage_count++;
    for (int64_t i = 0; i < graph->count; ++i)
        if (graph->nodes[i].stage != NO_STAGE) graph->nodes[i].stage = number[graph->nodes[i].stage];
}

void oh_graph_build(oh_graph *graph, const oh_graph_spec *spec) {
    memset(graph, 0, sizeof *graph);
    int32_t label = NO_NODE;
    if (spec->produce & OH_PRODUCE_LOSS) label = build_loss(graph, spec);
    if (spec->produce & OH_PRODUCE_METRICS) label = build_metrics(graph, spec);
    if (spec->produce & OH_PRODUCE_TOP_K)
        for (int32_t k = 0; k < spec->objective.top_k_count; ++k)
            if (spec->objective.top_k[k] != 1 || !(spec->produce & OH_PRODUCE_METRICS))
                build_top_k(graph, spec, spec->objective.top_k[k], label);
    number_stages(graph);
}

static int same_node(const oh_node *a, const oh_node *b) {
    return a->op == b->op && a->k == b->k && a->stage == b->stage && a->input_count == b->input_count &&
           memcmp(a->inputs, b->inputs, (size_t)a->input_count * sizeof a->inputs[0]) == 0;
}

/* The longest list that anybody reads off the same tile: top-4 is the head of top-8. */
static int32_t longest_top_k(const oh_graph *graph, const oh_node *node) {
    int32_t k = node->k;
    for (int64_t i = 0; i < graph->count; ++i) {
        const oh_node *other = &graph->nodes[i];
        if (other->op == OH_OP_TOP_K && other->stage == node->stage && other->k > k) k = other->k;
    }
    return k;
}

void oh_graph_merge(oh_graph *before, oh_graph *after) {
    memset(after, 0, sizeof *after);
    memcpy(after->consumer, before->consumer, sizeof after->consumer);
    after->consumer_count = before->consumer_count;
    after->stage_count = before->stage_count;
    for (int64_t i = 0; i < before->count; ++i) {
        oh_node node = before->nodes[i];
        if (node.op == OH_OP_TOP_K) node.k = longest_top_k(before, &node);
        for (int32_t j = 0; j < node.input_count; ++j)
            node.inputs[j] = before->nodes[node.inputs[j]].merged;
        int64_t at = 0;
        while (at < after->count && !same_node(&after->nodes[at], &node))
            ++at;
        if (at == after->count)
            after->nodes[after->count++] = node;
        else
            after->nodes[at].consumers |= node.consumers;
        before->nodes[i].merged = (int32_t)at;
    }
    for (int64_t i = 0; i < after->count; ++i)
        after->nodes[i].merged = (int32_t)i;
}

/* --------------------------------------------------------------------------------------------------- costs ---- */

static void node_cost(oh_node *node, const oh_graph_shape *s) {
    const double rows = (double)s->rows, vocab = (double)s->vocab, hidden = (double)s->hidden;
    const double target_hidden = (double)s->target_hidden, operand = (double)s->operand_bytes;
    const double tile = rows * vocab * (double)s->tile_bytes;
    switch (node->op) {
    case OH_OP_GATHER_DRAFT:
        node->bytes = 2 * rows * hidden * operand;
        break;
    case OH_OP_GATHER_TARGET:
        node->bytes = 2 * rows * target_hidden * operand;
        break;
    case OH_OP_PROJECT_DRAFT:
    case OH_OP_GRAD:
        node->flops = 2 * rows * vocab * hidden;
        node->bytes = tile + (rows + vocab) * hidden * operand;
        break;
    case OH_OP_PROJECT_TARGET:
        node->flops = 2 * rows * vocab * target_hidden;
        node->bytes = tile + (rows + vocab) * target_hidden * operand;
        break;
    case OH_OP_PROJECT_TARGET_FULL: {
        const double full = (double)s->target_vocab;
        node->flops = 2 * rows * full * target_hidden;
        node->bytes = rows * full * (double)s->tile_bytes + (rows + full) * target_hidden * operand;
        break;
    }
    case OH_OP_HEAD_GRAD:
        node->flops = 2 * rows * vocab * hidden;
        node->bytes = tile + rows * hidden * operand + 8 * vocab * hidden;
        break;
    case OH_OP_BIAS_GRAD:
        node->bytes = tile;
        break;
    case OH_OP_SCATTER:
        node->bytes = 8 * rows * hidden;
        break;
    case OH_OP_TILE_GRAD: /* reads what it is given, writes the draft tile */
        node->bytes = (double)node->input_count * tile;
        break;
    case OH_OP_ROW_LOSS:
    case OH_OP_METRICS:
    case OH_OP_TOP_K_METRICS:
        node->bytes = rows * (double)sizeof(oh_row_result);
        break;
    default: /* statistics: the tiles among the inputs */
        break;
    }
}

/* Bytes of the tile that a projection leaves, 0 for any other node. */
static double tile_of(const oh_node *node, const oh_graph_shape *s) {
    const double column = (double)s->rows * (double)s->tile_bytes;
    if (node->op == OH_OP_PROJECT_TARGET_FULL) return column * (double)s->target_vocab;
    return node->op == OH_OP_PROJECT_DRAFT || node->op == OH_OP_PROJECT_TARGET ? column * (double)s->vocab : 0;
}

void oh_graph_cost(oh_graph *graph, const oh_graph_shape *shape) {
    for (int64_t i = 0; i < graph->count; ++i) {
        oh_node *node = &graph->nodes[i];
        node->flops = node->bytes = 0;
        node_cost(node, shape);
        if (node->bytes != 0 || node->op == OH_OP_ROW_LOSS) continue;
        for (int32_t j = 0; j < node->input_count; ++j)
            node->bytes += tile_of(&graph->nodes[node->inputs[j]], shape);
    }
}

const char *oh_op_name(int32_t op) {
    static const char *const names[OH_OP_COUNT] = {
        "gather_draft",    "gather_target", "project_draft", "project_target", "lse_draft",
        "lse_target",      "argmax_draft",  "argmax_target", "label_logit",    "entropy",
        "kl_sum",          "rkl_sum",       "logit_sum",     "topk",           "overlap",
        "jsd_sum",         "rank",          "row_loss",      "metrics",        "topk_metrics",
        "tile_grad",       "grad",          "head_grad",     "scatter",        "project_target_full",
        "lse_target_full", "overlap_full",  "bias_grad",
    };
    return op >= 0 && op < OH_OP_COUNT ? names[op] : "unknown";
}
