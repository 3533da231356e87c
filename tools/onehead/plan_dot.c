#include "error_line.h"
#include "format.h"
#include "plan_report.h"
#include "plan_savings.h"
#include "run_report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define PRODUCT_COLOR "#f4b183"
#define TILE_COLOR "#cfe2f3"

static bool is_product(int32_t op) {
    return op == OH_OP_PROJECT_DRAFT || op == OH_OP_PROJECT_TARGET || op == OH_OP_PROJECT_TARGET_FULL ||
           op == OH_OP_GRAD || op == OH_OP_HEAD_GRAD;
}

/* Draws one list of nodes; `b` or `a` keep the two lists' names apart. */
typedef struct drawing {
    FILE *out;
    const oh_plan *plan;
    const oh_node *nodes, *before, *after;
    int64_t count, before_count;
    char letter;
} drawing;

/* Nodes before merging that a node after it stands for. */
static int64_t stands_for(const drawing *d, int64_t index) {
    int64_t found = 0;
    for (int64_t i = 0; i < d->before_count; i++)
        found += d->before[i].merged == index;
    return found;
}

/* Whether another node before merging is the one that stays: the first of the K that the merged one has. */
static bool is_left_out(const drawing *d, int64_t index) {
    const int32_t merged = d->before[index].merged;
    int64_t stays = 0;
    while (d->before[stays].merged != merged || d->before[stays].k != d->after[merged].k)
        stays++;
    return stays != index;
}

static void draw_node(const drawing *d, int64_t index) {
    const oh_node *const node = &d->nodes[index];
    fprintf(d->out, "      %c%" PRId64 " [label=\"%s", d->letter, index, oh_op_name(node->op));
    if (node->k > 0) fprintf(d->out, " %" PRId32, node->k);
    if (node->flops > 0) fprintf(d->out, "\\n%s", format_flops(node->flops).text);
    const int64_t merged = d->letter == 'a' ? stands_for(d, index) : 1;
    if (merged > 1) {
        const double others = (double)(merged - 1);
        fprintf(d->out, "\\n%" PRId64 " in one, saves %s", merged,
                node->flops > 0 ? format_flops(others * node->flops).text : format_traffic(others * node->bytes).text);
    }
    fprintf(d->out, "\"");
    if (d->letter == 'b' && is_left_out(d, index))
        fprintf(d->out, ", style=dashed, color=gray50, fontcolor=gray50");
    else if (is_product(node->op))
        fprintf(d->out, ", style=filled, fillcolor=\"" PRODUCT_COLOR "\"");
    else if (merged > 1)
        fprintf(d->out, ", style=filled, fillcolor=\"" TILE_COLOR "\"");
    fprintf(d->out, "];\n");
}

static void draw_edges(const drawing *d) {
    for (int64_t i = 0; i < d->count; i++) {
        for (int32_t k = 0; k < d->nodes[i].input_count; k++)
            fprintf(d->out, "    %c%" PRId32 " -> %c%" PRId64 ";\n", d->letter, d->nodes[i].inputs[k], d->letter, i);
    }
}

/* Before merging, a cluster a consumer: every node has one. */
static void draw_consumers(const drawing *d) {
    for (int32_t consumer = 0; oh_plan_consumer_name(d->plan, consumer) != NULL; consumer++) {
        fprintf(d->out, "    subgraph cluster_b%" PRId32 " {\n      label=\"%s\";\n", consumer,
                oh_plan_consumer_name(d->plan, consumer));
        for (int64_t i = 0; i < d->count; i++) {
            if (d->nodes[i].consumers >> consumer & 1u) draw_node(d, i);
        }
        fprintf(d->out, "    }\n");
    }
}

/* After it, a cluster a stage: what shares the life of its tiles. Nodes outside of any have stage -1. */
static void draw_stages(const drawing *d) {
    int32_t last = -1;
    for (int64_t i = 0; i < d->count; i++) {
        if (d->nodes[i].stage > last) last = d->nodes[i].stage;
    }
    for (int32_t stage = -1; stage <= last; stage++) {
        const bool cluster = stage >= 0 && last > 0;
        if (cluster)
            fprintf(d->out, "    subgraph cluster_a%" PRId32 " {\n      label=\"stage %" PRId32 "\";\n", stage, stage);
        for (int64_t i = 0; i < d->count; i++) {
            if (d->nodes[i].stage == stage) draw_node(d, i);
        }
        if (cluster) fprintf(d->out, "    }\n");
    }
}

static double work(const oh_node *nodes, int64_t count) {
    double flops = 0;
    for (int64_t i = 0; i < count; i++)
        flops += nodes[i].flops;
    return flops;
}

static void draw_graphs(FILE *out, const oh_plan *plan) {
    plan_savings savings;
    plan_savings_count(&savings, plan);
    drawing before = {.out = out, .plan = plan, .letter = 'b'};
    before.nodes = before.before = oh_plan_nodes(plan, 0, &before.count);
    before.before_count = before.count;
    drawing after = before;
    after.letter = 'a';
    after.nodes = after.after = before.after = oh_plan_nodes(plan, 1, &after.count);

    fprintf(out,
            "// dot -Tsvg -O THIS_FILE\n"
            "digraph onehead {\n"
            "  label=\"What a chunk runs by the policy %s. Orange: a matrix product. Blue: several in one. Dashed: the "
            "same as another node, which merging leaves out.\";\n"
            "  labelloc=t; rankdir=LR; ranksep=0.35; nodesep=0.12; fontname=Helvetica; fontsize=16;\n"
            "  node [shape=box, fontname=Helvetica, fontsize=11, margin=\"0.08,0.04\", height=0.3];\n"
            "  edge [color=gray40, arrowsize=0.6];\n",
            policy_name(oh_plan_get_summary(plan)->policy));
    fprintf(out,
            "  subgraph cluster_after {\n    label=\"After merging: %" PRId64 " nodes, %s; saves %s\"; style=bold;\n",
            after.count, format_flops(work(after.nodes, after.count)).text, format_flops(savings.flops).text);
    draw_stages(&after);
    draw_edges(&after);
    fprintf(out,
            "  }\n  subgraph cluster_before {\n    label=\"Before merging, every consumer on its own: %" PRId64
            " nodes, %s\"; style=bold;\n",
            before.count, format_flops(work(before.nodes, before.count)).text);
    draw_consumers(&before);
    draw_edges(&before);
    fprintf(out, "  }\n}\n");
}

oh_status plan_report_dot(const plan_report *report, const char *path, atomic_file **file, oh_error *error) {
    *file = NULL;
    char *text = NULL;
    size_t size = 0;
    FILE *const out = open_memstream(&text, &size);
    if (out == NULL) return error_line(error, OH_OUT_OF_MEMORY, path, "out of memory");
    draw_graphs(out, report->plan);
    const int failed = ferror(out);
    oh_status status = OH_OK;
    if (fclose(out) != 0 || failed) status = error_line(error, OH_OUT_OF_MEMORY, path, "out of memory");
    if (status == OH_OK) status = atomic_file_open(file, path, error);
    if (status == OH_OK) status = atomic_file_write(*file, text, size, error);
    free(text);
    if (status == OH_OK) return OH_OK;
    atomic_file_discard(*file);
    *file = NULL;
    return status;
}
