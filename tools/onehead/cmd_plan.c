/* cmd_plan.c - `onehead plan`: what a step would run, from its shape alone. */
#include "command.h"
#include "plan_report.h"
#include "shape.h"

static const options_command plan_command = {
    .bit = OPTIONS_PLAN,
    .name = "plan",
    .synopsis = "--preset NAME | --rows T --hidden H --vocab V [OPTION]...",
    .about = "What a step of this shape would run, all its rows being supervised: nodes before\n"
             "and after merging, projections, work, memory. Needs no device and no data.",
};

/* The policies side by side: at the plan's own chunk and without a limit, which would make one of them walk the
 * vocabulary in panels and hide what sharing alone is worth. */
static void compare_policies(plan_report *report) {
    static const int32_t policies[PLAN_POLICIES] = {OH_POLICY_NAIVE, OH_POLICY_RECOMPUTE, OH_POLICY_CACHED};
    oh_request r = *report->request;
    r.chunk = oh_plan_get_summary(report->plan)->chunk;
    r.memory = INT64_MAX;
    for (int i = 0; i < PLAN_POLICIES; i++) {
        plan_policy *const p = &report->policies[i];
        oh_plan *plan;
        r.policy = p->policy = policies[i];
        p->possible = oh_plan_describe(&r, &plan, NULL) == OH_OK;
        if (!p->possible) continue;
        p->summary = *oh_plan_get_summary(plan);
        oh_plan_destroy(plan);
    }
}

static oh_status describe(options *o, oh_error *error) {
    oh_request request;
    oh_plan *plan = NULL;
    oh_status status = shape_complete(o, NULL, error);
    if (status == OH_OK) status = shape_request(o, &request, error);
    if (status == OH_OK) status = oh_plan_describe(&request, &plan, error);
    if (status != OH_OK) return status;

    plan_report report = {.request = &request, .plan = plan};
    compare_policies(&report);
    if (o->dot_file != NULL) status = plan_report_dot(&report, o->dot_file, error);
    if (status == OH_OK && o->json)
        status = json_print(plan_report_json(&report), error);
    else if (status == OH_OK)
        plan_report_print(&report);
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
