/* cmd_plan.c - `onehead plan`: what a step would run, from its shape alone. */
#include "batch.h"
#include "command.h"
#include "error_line.h"
#include "plan_report.h"

#include <inttypes.h>
#include <string.h>

static const options_command plan_command = {
    .bit = OPTIONS_PLAN,
    .name = "plan",
    .synopsis = "--rows T --hidden H --vocab V [OPTION]...",
    .about = "What a step of this shape would run, all its rows being supervised: nodes before\n"
             "and after merging, projections, work, memory. Needs no device and no data.",
};

static oh_status require(const char *name, int64_t value, oh_error *error) {
    if (value != 0) return OH_OK;
    return error_line(error, OH_INVALID_ARGUMENT, name, "not given, expected an integer, at least 1");
}

static oh_status make_request(const options *o, oh_request *request, oh_error *error) {
    oh_status status = require("--rows", o->shape_rows, error);
    if (status == OH_OK) status = require("--hidden", o->shape_hidden, error);
    if (status == OH_OK) status = require("--vocab", o->shape_vocab, error);
    if (status != OH_OK) return status;

    oh_request r = o->request;
    if (o->shape_rows % r.objective.block_size != 0) {
        return error_line(error, OH_INVALID_ARGUMENT, "--rows",
                          "%" PRId64 ", expected a multiple of the block size, %" PRId64, o->shape_rows,
                          r.objective.block_size);
    }
    r.rows = o->shape_rows;
    r.target_rows = o->shape_target_rows < 0 ? o->shape_rows : o->shape_target_rows;
    r.hidden = o->shape_hidden;
    r.vocab = o->shape_vocab;
    r.hidden_dtype = r.weight_dtype = o->shape_dtype;
    r.scale = r.target_scale = (float)o->scale;
    r.softcap = r.target_softcap = (float)o->softcap;
    r.produce = options_produce(o, r.target_rows > 0);
    status = options_default_objective(o, r.target_rows > 0, &r.objective, error);
    *request = r;
    return status;
}

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

static oh_status describe(const options *o, oh_error *error) {
    oh_request request;
    oh_plan *plan = NULL;
    oh_status status = make_request(o, &request, error);
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
