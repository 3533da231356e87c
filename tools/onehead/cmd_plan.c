/* cmd_plan.c - `onehead plan`: what a step would run, from its shape alone. */
#include "command.h"
#include "plan_report.h"
#include "shape.h"

static const options_command plan_command = {
    .bit = OPTIONS_PLAN,
    .name = "plan",
    .synopsis = "[--preset NAME | --rows T --hidden H --vocab V] [OPTION]...",
    .about = "What a step of this shape would run, all its rows being supervised: nodes before\n"
             "and after merging, projections, work, memory. Needs no device and no data:\n"
             "formats and memory follow from what the backend says of itself, scratch of its\n"
             "products apart.\n"
             "Without a shape it's the preset `cpu`, which `bench` measures.",
};

/* By the claims of the backend that was named, else as on a CPU. */
static oh_status describe_request(const plan_report *report, const oh_request *request, oh_plan **plan,
                                  oh_error *error) {
    if (report->backend == NULL) return oh_plan_describe(request, plan, error);
    return oh_plan_describe_for(report->backend, request, plan, error);
}

static void describe_policy(const plan_report *report, oh_request r, int32_t policy, plan_policy *p) {
    oh_plan *plan;
    r.policy = p->policy = policy;
    p->possible = describe_request(report, &r, &plan, NULL) == OH_OK;
    if (!p->possible) return;
    p->summary = *oh_plan_get_summary(plan);
    oh_plan_destroy(plan);
}

/* The policies side by side, twice: at the plan's own chunk and without a limit, which shows what sharing alone is worth;
 * and as they would run within the memory. */
static void compare_policies(plan_report *report) {
    static const int32_t policies[PLAN_POLICIES] = {OH_POLICY_NAIVE, OH_POLICY_RECOMPUTE, OH_POLICY_CACHED};
    oh_request r = *report->request;
    r.chunk = oh_plan_get_summary(report->plan)->chunk;
    r.memory = INT64_MAX;
    r.tile = oh_plan_get_summary(report->plan)->tile;
    for (int i = 0; i < PLAN_POLICIES; i++) {
        describe_policy(report, r, policies[i], &report->policies[i]);
        describe_policy(report, *report->request, policies[i], &report->within[i]);
    }
}

/* What the next larger chunk would take, to say why it isn't the plan's. */
static void look_at_larger_chunk(plan_report *report) {
    const oh_plan_summary *const chosen = oh_plan_get_summary(report->plan);
    oh_request r = *report->request;
    if (chosen->chunks <= 1) return;
    r.policy = chosen->policy;
    r.chunk = 2 * chosen->chunk;
    r.tile = chosen->tile;
    /* Where the plan walks the vocabulary in panels, so would the larger chunk. */
    const int64_t valid = r.vocab_valid > 0 ? r.vocab_valid : r.vocab;
    if (chosen->panel == valid) r.memory = INT64_MAX;
    /* The least it needs: converted weights are kept only where the plan keeps them. */
    if (!chosen->weight_converted) r.weight_trains = 1;
    oh_plan *plan;
    if (describe_request(report, &r, &plan, NULL) != OH_OK) return;
    report->larger_chunk = r.chunk;
    report->larger_bytes = oh_plan_bytes(oh_plan_get_summary(plan));
    oh_plan_destroy(plan);
}

/* The graph's file appears when the plan is printed, or not at all. */
static oh_status print(const plan_report *report, const options *o, oh_error *error) {
    atomic_file *dot = NULL;
    oh_status status = OH_OK;
    if (o->dot_file != NULL) status = plan_report_dot(report, o->dot_file, &dot, error);
    if (status == OH_OK && o->json)
        status = json_print(plan_report_json(report), error);
    else if (status == OH_OK)
        plan_report_print(report);
    if (status == OH_OK) status = command_flush(error);
    if (status == OH_OK && dot != NULL) return atomic_file_commit(dot, error);
    atomic_file_discard(dot);
    return status;
}

static oh_status describe(options *o, oh_error *error) {
    oh_request request;
    plan_report report = {.request = &request};
    plan_rate rate;
    const bool chunk_given = o->request.chunk != 0;
    oh_status status = shape_complete(o, "cpu", error);
    if (status == OH_OK && o->plan_backend != NULL) status = oh_backend_load(o->plan_backend, &report.backend, error);
    if (status == OH_OK) status = plan_rate_read(&rate, o->rate, error);
    if (status == OH_OK) status = shape_request(o, &request, error);
    oh_plan *plan = NULL;
    if (status == OH_OK) status = describe_request(&report, &request, &plan, error);
    if (status != OH_OK) return status;

    report.plan = plan;
    report.rate = rate;
    report.chunk_of_preset = !chunk_given && request.chunk != 0;
    compare_policies(&report);
    look_at_larger_chunk(&report);
    status = print(&report, o, error);
    oh_plan_destroy(plan);
    return status;
}

int cmd_plan(int argc, char **argv) {
    options o;
    int code = EXIT_OK;
    if (!options_begin(&o, &plan_command, argc, argv, &code)) return code;
    oh_error error;
    return describe(&o, &error) == OH_OK ? EXIT_OK : command_fail(plan_command.name, &error);
}
