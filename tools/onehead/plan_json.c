#include "plan_report.h"
#include "plan_savings.h"
#include "run_report.h"

static json_t *consumers_json(const oh_plan *plan, uint32_t bits) {
    json_t *const array = json_array();
    for (int32_t c = 0; c < 32; c++) {
        const char *const name = oh_plan_consumer_name(plan, c);
        if (name == NULL) break;
        if (!(bits >> c & 1u)) continue;
        if (json_array_append_new(array, json_string(name)) == 0) continue;
        json_decref(array);
        return NULL;
    }
    return array;
}

static json_t *inputs_json(const oh_node *node) {
    json_t *const array = json_array();
    for (int32_t i = 0; i < node->input_count; i++) {
        if (json_array_append_new(array, json_integer(node->inputs[i])) == 0) continue;
        json_decref(array);
        return NULL;
    }
    return array;
}

static json_t *nodes_json(const oh_plan *plan, int merged) {
    int64_t count;
    const oh_node *const nodes = oh_plan_nodes(plan, merged, &count);
    json_t *const array = json_array();
    for (int64_t i = 0; i < count; i++) {
        const oh_node *const node = &nodes[i];
        json_t *const entry =
            json_pack("{s:s, s:i, s:i, s:o, s:o, s:o, s:o}", "op", oh_op_name(node->op), "k", (int)node->k, "stage",
                      (int)node->stage, "inputs", inputs_json(node), "consumers", consumers_json(plan, node->consumers),
                      "flops", json_number(node->flops), "bytes", json_number(node->bytes));
        if (!merged && entry != NULL && json_object_set_new(entry, "merged", json_integer(node->merged)) != 0) {
            json_decref(entry);
            json_decref(array);
            return NULL;
        }
        if (json_array_append_new(array, entry) == 0) continue;
        json_decref(array);
        return NULL;
    }
    return array;
}

static json_t *buffers_json(const oh_plan *plan) {
    int64_t count;
    const oh_plan_buffer *const buffers = oh_plan_buffers(plan, &count);
    json_t *const array = json_array();
    for (int64_t i = 0; i < count; i++) {
        json_t *const entry = json_pack("{s:s, s:I, s:I}", "name", buffers[i].name, "bytes",
                                        (json_int_t)buffers[i].bytes, "offset", (json_int_t)buffers[i].offset);
        if (json_array_append_new(array, entry) == 0) continue;
        json_decref(array);
        return NULL;
    }
    return array;
}

static json_t *savings_json(const oh_plan *plan) {
    plan_savings savings;
    plan_savings_count(&savings, plan);
    json_t *const ops = json_object();
    for (int32_t op = 0; op < OH_OP_COUNT; op++) {
        const plan_saving *const s = &savings.ops[op];
        if (s->asked == s->kept) continue;
        json_t *const entry = json_pack("{s:i, s:i, s:o, s:o, s:o}", "asked", (int)s->asked, "kept", (int)s->kept,
                                        "flops", json_number(s->flops), "bytes", json_number(s->bytes), "saved_for",
                                        consumers_json(plan, s->saved_for));
        if (json_object_set_new(ops, oh_op_name(op), entry) == 0) continue;
        json_decref(ops);
        return NULL;
    }
    return json_pack("{s:o, s:o, s:o}", "flops_before", json_number(savings.flops_before), "flops",
                     json_number(savings.flops), "ops", ops);
}

static json_t *policy_json(const plan_report *report, const plan_policy *p) {
    const oh_plan_summary *const s = &p->summary;
    if (!p->possible) return json_null();
    return json_pack("{s:I, s:I, s:I, s:I, s:o, s:I, s:I, s:o}", "chunk", (json_int_t)s->chunk, "panel",
                     (json_int_t)s->panel, "projections",
                     (json_int_t)s->projections_draft + (json_int_t)s->projections_target, "gemms",
                     (json_int_t)s->gemms, "flops", json_number(s->flops), "workspace_bytes",
                     (json_int_t)s->workspace_bytes, "weight_bytes", (json_int_t)s->weight_bytes, "predicted_seconds",
                     json_number(plan_rate_seconds(&report->rate, p->policy, s->flops)));
}

static json_t *policies_json(const plan_report *report, const plan_policy policies[PLAN_POLICIES]) {
    json_t *const object = json_object();
    for (int i = 0; i < PLAN_POLICIES; i++) {
        const plan_policy *const p = &policies[i];
        json_t *const entry = policy_json(report, p);
        if (json_object_set_new(object, policy_name(p->policy), entry) == 0) continue;
        json_decref(object);
        return NULL;
    }
    return object;
}

json_t *plan_report_json(const plan_report *report) {
    const oh_plan_summary *const s = oh_plan_get_summary(report->plan);
    const oh_request *const r = report->request;
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:i, s:{s:I, s:I}, s:I, s:o, s:I, s:I, "
        "s:o, s:o, s:o, s:o, "
        "s:o, s:o, s:I, s:I}",
        "rows", (json_int_t)r->rows, "target_rows", (json_int_t)r->target_rows, "hidden", (json_int_t)r->hidden,
        "vocab", (json_int_t)r->vocab, "policy", policy_name(s->policy), "tile", tile_name(s->tile), "tile_reason",
        s->tile_reason, "operand_dtype", oh_dtype_name(s->operand_dtype), "grad_dtype", oh_dtype_name(s->grad_dtype),
        "memory", (json_int_t)s->memory, "chunk", (json_int_t)s->chunk, "chunks", (json_int_t)s->chunks, "panel",
        (json_int_t)s->panel, "weight_panel", (json_int_t)s->weight_panel, "stages", (int)s->stages, "projections",
        "draft", (json_int_t)s->projections_draft, "target", (json_int_t)s->projections_target, "gemms",
        (json_int_t)s->gemms, "flops", json_number(s->flops), "workspace_bytes", (json_int_t)s->workspace_bytes,
        "weight_bytes", (json_int_t)s->weight_bytes, "policies", policies_json(report, report->policies),
        "within_memory", policies_json(report, report->within), "nodes_before", nodes_json(report->plan, 0), "nodes",
        nodes_json(report->plan, 1), "buffers", buffers_json(report->plan), "savings", savings_json(report->plan),
        "larger_chunk", (json_int_t)report->larger_chunk, "larger_chunk_bytes", (json_int_t)report->larger_bytes);
}
