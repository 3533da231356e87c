#include "format.h"
#include "plan_report.h"
#include "plan_savings.h"
#include "run_report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAMES_SIZE = 200 };

static void list_consumers(const oh_plan *plan, uint32_t bits, char *text) {
    text[0] = '\0';
    for (int32_t c = 0; c < 32; c++) {
        const char *const name = oh_plan_consumer_name(plan, c);
        if (name == NULL) break;
        const size_t used = strlen(text);
        if (bits >> c & 1u) snprintf(text + used, NAMES_SIZE - used, "%s%s", used > 0 ? " " : "", name);
    }
}

static void list_inputs(const oh_node *node, char *text) {
    text[0] = '\0';
    for (int32_t i = 0; i < node->input_count; i++) {
        const size_t used = strlen(text);
        snprintf(text + used, NAMES_SIZE - used, "%s%" PRId32, used > 0 ? " " : "", node->inputs[i]);
    }
}

static void print_nodes(const oh_plan *plan, int merged) {
    int64_t count;
    const oh_node *const nodes = oh_plan_nodes(plan, merged, &count);
    if (merged)
        printf("\nAfter merging: %" PRId64 " nodes a chunk\n", count);
    else
        printf("\nBefore merging, every consumer on its own: %" PRId64
               " nodes a chunk; `as` is the node after merging that stands for it\n",
               count);
    printf("%5s %5s %-16s %4s %6s %13s %12s  %-16s %s\n", "node", merged ? "" : "as", "op", "K", "stage", "work",
           "bytes moved", "inputs", "for");
    for (int64_t i = 0; i < count; i++) {
        const oh_node *const node = &nodes[i];
        char inputs[NAMES_SIZE], consumers[NAMES_SIZE], k[12] = "", as[12] = "";
        list_inputs(node, inputs);
        list_consumers(plan, node->consumers, consumers);
        if (node->k > 0) snprintf(k, sizeof k, "%" PRId32, node->k);
        if (!merged) snprintf(as, sizeof as, "%" PRId32, node->merged);
        printf("%5" PRId64 " %5s %-16s %4s %6" PRId32 " %13s %12s  %-16s %s\n", i, as, oh_op_name(node->op), k,
               node->stage, node->flops > 0 ? format_flops(node->flops).text : "", format_traffic(node->bytes).text,
               inputs, consumers);
    }
}

static void print_policy_rows(const plan_report *report, const plan_policy policies[PLAN_POLICIES]) {
    const plan_policy *const least = &report->policies[PLAN_POLICIES - 1]; /* cached, unlimited */
    const bool predicts = report->rate.flops_per_second > 0;
    printf("%-10s %8s %9s %11s %10s %11s %14s %10s %11s%s\n", "policy", "chunk", "columns", "proj/chunk", "proj/step",
           "GEMMs/step", "work/step", "of cached", "memory", predicts ? "   predicted" : "");
    for (int i = 0; i < PLAN_POLICIES; i++) {
        const plan_policy *const p = &policies[i];
        const oh_plan_summary *const s = &p->summary;
        if (!p->possible) {
            printf("%-10s doesn't fit\n", policy_name(p->policy));
            continue;
        }
        const int64_t projections = s->projections_draft + s->projections_target;
        char of_cached[20] = "";
        if (least->possible && least->summary.flops > 0)
            snprintf(of_cached, sizeof of_cached, "%.2f x", s->flops / least->summary.flops);
        printf("%-10s %8s %9s %11s %10s %11s %14s %10s %11s", policy_name(p->policy), format_count(s->chunk).text,
               format_count(s->panel).text, format_count(s->chunks > 0 ? projections / s->chunks : 0).text,
               format_count(projections).text, format_count(s->gemms).text, format_flops(s->flops).text, of_cached,
               format_bytes(oh_plan_bytes(s)).text);
        if (predicts) printf(" %11s", format_seconds(plan_rate_seconds(&report->rate, p->policy, s->flops)).text);
        printf("\n");
    }
}

static int64_t budget_of(const plan_report *report) {
    return oh_plan_get_summary(report->plan)->memory;
}

static bool all_fit(const plan_report *report) {
    for (int i = 0; i < PLAN_POLICIES; i++) {
        const plan_policy *const a = &report->policies[i], *const b = &report->within[i];
        if (a->possible != b->possible) return false;
        if (a->possible && (a->summary.chunk != b->summary.chunk || a->summary.panel != b->summary.panel ||
                            oh_plan_bytes(&a->summary) != oh_plan_bytes(&b->summary)))
            return false;
    }
    return true;
}

static void print_policies(const plan_report *report) {
    printf("\nWhat each policy costs at a chunk of %s rows, whatever memory it takes:\n",
           format_count(oh_plan_get_summary(report->plan)->chunk).text);
    print_policy_rows(report, report->policies);
    if (all_fit(report)) {
        printf("All of them fit in %s.\n", format_bytes(budget_of(report)).text);
    } else {
        printf("\nAnd within %s, each with the chunk and the columns at a time that fit:\n",
               format_bytes(budget_of(report)).text);
        print_policy_rows(report, report->within);
    }
    if (report->rate.flops_per_second > 0)
        printf("Predicted: work at %s/s, times what a step took beyond its products where that was measured.\n",
               format_flops(report->rate.flops_per_second).text);
    else
        printf("How long that takes here: 'onehead bench --out bench.json', then this with --rate bench.json.\n");
}

/* Why the chunk is what it is: who asked for it, and what the next larger one would take. */
static void print_chunk(const plan_report *report, int64_t budget) {
    const oh_plan_summary *const s = oh_plan_get_summary(report->plan);
    const bool asked = report->request->chunk != 0;
    printf("chunk       %s rows, %s a step: ", format_count(s->chunk).text, format_count(s->chunks).text);
    if (asked) printf("as %s; ", report->chunk_of_preset ? "the preset has it" : "asked");
    if (s->chunks <= 1)
        printf("the whole step fits in %s\n", format_bytes(budget).text);
    else if (report->larger_chunk == 0)
        printf("the most that fits in %s\n", format_bytes(budget).text);
    else if (report->larger_bytes > budget)
        printf("%s would take %s, the memory is %s\n", format_count(report->larger_chunk).text,
               format_bytes(report->larger_bytes).text, format_bytes(budget).text);
    else
        printf("%s would fit in %s too (%s)%s\n", format_count(report->larger_chunk).text, format_bytes(budget).text,
               format_bytes(report->larger_bytes).text,
               asked ? "" : ", but products gain nothing from more rows at once");
}

static void print_choice(const plan_report *report) {
    const oh_request *const r = report->request;
    const oh_plan_summary *const s = oh_plan_get_summary(report->plan);
    const int64_t valid = r->vocab_valid > 0 ? r->vocab_valid : r->vocab;
    const int64_t budget = s->memory;
    printf("step        T = %s, S = %s, H = %s, V = %s", format_count(r->rows).text, format_count(r->target_rows).text,
           format_count(r->hidden).text, format_count(r->vocab).text);
    if (valid < r->vocab) printf(" (%s valid)", format_count(valid).text);
    printf("; %s hidden states and weight\n", oh_dtype_name(r->hidden_dtype));
    printf("backend     %s\n", report->backend != NULL
                                   ? report->backend->name
                                   : "one that multiplies f32 only, as openblas; --backend names another");

    printf("policy      %s: ", policy_name(s->policy));
    if (r->policy != OH_POLICY_AUTO)
        printf("as asked\n");
    else if (s->policy == OH_POLICY_CACHED)
        printf("the logits of a chunk fit in %s\n", format_bytes(budget).text);
    else
        printf("keeping the logits of a chunk takes %s, the memory is %s\n", format_bytes(s->workspace_cached).text,
               format_bytes(budget).text);

    print_chunk(report, budget);
    printf("tile        %s: %s\n", tile_name(s->tile), s->tile_reason);
    if (s->panel < valid) {
        printf("panel       %s of %s columns at a time: no whole tile fits\n", format_count(s->panel).text,
               format_count(valid).text);
    }
    printf("projections %s draft, %s target; %s GEMMs of %s\n", format_count(s->projections_draft).text,
           format_count(s->projections_target).text, format_count(s->gemms).text, format_flops(s->flops).text);
}

/* Merging, op by op. What is read off a tile in one pass saves the pass only when all of it goes. */
static void print_savings(const oh_plan *plan) {
    plan_savings savings;
    plan_savings_count(&savings, plan);
    printf("\nWhat merging saves a chunk: %s of %s\n", format_flops(savings.flops).text,
           format_flops(savings.flops_before).text);
    printf("%-16s %6s %6s %13s %12s  %s\n", "op", "asked", "kept", "work", "bytes moved", "saved for");
    for (int32_t op = 0; op < OH_OP_COUNT; op++) {
        const plan_saving *const s = &savings.ops[op];
        if (s->asked == s->kept) continue;
        char consumers[NAMES_SIZE];
        list_consumers(plan, s->saved_for, consumers);
        printf("%-16s %6" PRId32 " %6" PRId32 " %13s %12s  %s\n", oh_op_name(op), s->asked, s->kept,
               s->flops > 0 ? format_flops(s->flops).text : "", format_traffic(s->bytes).text, consumers);
    }
}

static void print_buffers(const plan_report *report) {
    const oh_plan_summary *const s = oh_plan_get_summary(report->plan);
    int64_t count;
    const oh_plan_buffer *const buffers = oh_plan_buffers(report->plan, &count);
    printf("\nWorkspace: %s (%s bytes); converted weights: %s\n", format_bytes(s->workspace_bytes).text,
           format_count(s->workspace_bytes).text, format_bytes(s->weight_bytes).text);
    for (int64_t i = 0; i < count; i++)
        printf("  %-24s %18s\n", buffers[i].name, format_bytes(buffers[i].bytes).text);
}

void plan_report_print(const plan_report *report) {
    print_choice(report);
    print_policies(report);
    print_savings(report->plan);
    print_nodes(report->plan, 0);
    print_nodes(report->plan, 1);
    print_buffers(report);
}
