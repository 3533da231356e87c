#include "atomic_file.h"
#include "error_line.h"
#include "plan_report.h"
#include "run_report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void write_node(FILE *out, int64_t index, const oh_node *node) {
    fprintf(out, "    n%" PRId64 " [label=\"%s", index, oh_op_name(node->op));
    if (node->k > 0) fprintf(out, " %" PRId32, node->k);
    fprintf(out, "\"%s];\n",
            node->op == OH_OP_PROJECT_DRAFT || node->op == OH_OP_PROJECT_TARGET ? ", style=filled" : "");
}

/* A cluster a stage: what shares the life of its tiles. Nodes outside of any (stage -1) come first. */
static void write_graph(FILE *out, const oh_plan *plan) {
    int64_t count;
    const oh_node *const nodes = oh_plan_nodes(plan, 1, &count);
    fprintf(out, "digraph onehead {\n    label=\"%s\";\n    node [shape=box];\n",
            policy_name(oh_plan_get_summary(plan)->policy));
    int32_t last = -1;
    for (int64_t i = 0; i < count; i++) {
        if (nodes[i].stage > last) last = nodes[i].stage;
    }
    for (int32_t stage = -1; stage <= last; stage++) {
        if (stage >= 0)
            fprintf(out, "    subgraph cluster_%" PRId32 " {\n    label=\"stage %" PRId32 "\";\n", stage, stage);
        for (int64_t i = 0; i < count; i++) {
            if (nodes[i].stage == stage) write_node(out, i, &nodes[i]);
        }
        if (stage >= 0) fprintf(out, "    }\n");
    }
    for (int64_t i = 0; i < count; i++) {
        for (int32_t k = 0; k < nodes[i].input_count; k++)
            fprintf(out, "    n%" PRId32 " -> n%" PRId64 ";\n", nodes[i].inputs[k], i);
    }
    fprintf(out, "}\n");
}

oh_status plan_report_dot(const plan_report *report, const char *path, oh_error *error) {
    char *text = NULL;
    size_t size = 0;
    FILE *const out = open_memstream(&text, &size);
    if (out == NULL) return error_line(error, OH_OUT_OF_MEMORY, path, "out of memory");
    write_graph(out, report->plan);
    const int failed = ferror(out);
    atomic_file *file = NULL;
    oh_status status = OH_OK;
    if (fclose(out) != 0 || failed) status = error_line(error, OH_OUT_OF_MEMORY, path, "out of memory");
    if (status == OH_OK) status = atomic_file_open(&file, path, error);
    if (status == OH_OK) {
        status = atomic_file_write(file, text, size, error);
        if (status == OH_OK)
            status = atomic_file_commit(file, error);
        else
            atomic_file_discard(file);
    }
    free(text);
    return status;
}
