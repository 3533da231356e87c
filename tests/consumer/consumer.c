/* Uses an installed onehead through its public header only: consumer VERSION, with ONEHEAD_BACKEND_PATH naming the
 * installed plugins. Prints what it found wrong and exits 1. */
#include <onehead/onehead.h>

#include <stdio.h>
#include <string.h>

static int check_version(const char *expected) {
    if (!strcmp(oh_version(), expected)) return 0;
    fprintf(stderr, "oh_version() is \"%s\", expected \"%s\"\n", oh_version(), expected);
    return 1;
}

static int check_backends(void) {
    static oh_backend_candidate candidates[16];
    const int64_t count = oh_backend_list(candidates, 16);
    for (int64_t i = 0; i < count && i < 16; ++i) {
        if (strcmp(candidates[i].name, "openblas") != 0) continue;
        if (candidates[i].verdict[0] == '\0') return 0;
        fprintf(stderr, "%s is refused: %s\n", candidates[i].path, candidates[i].verdict);
        return 1;
    }
    fprintf(stderr, "oh_backend_list() has no openblas among its %lld candidates\n", (long long)count);
    return 1;
}

/* One chunk: the drafter's and the target's projection and the gradient's product. */
static int check_plan(void) {
    oh_request request;
    oh_plan *plan = NULL;
    oh_error error = {0};
    oh_request_init(&request);
    request.rows = request.target_rows = request.chunk = 64;
    request.hidden = 32;
    request.vocab = 1000;
    request.policy = OH_POLICY_CACHED;
    if (oh_plan_describe(&request, &plan, &error) != OH_OK) {
        fprintf(stderr, "oh_plan_describe: %s: %s\n", oh_status_name(error.status), error.message);
        return 1;
    }
    const oh_plan_summary *summary = oh_plan_get_summary(plan);
    const int64_t draft = summary->projections_draft, target = summary->projections_target, gemms = summary->gemms;
    oh_plan_destroy(plan);
    if (draft == 1 && target == 1 && gemms == 3) return 0;
    fprintf(stderr, "projections %lld + %lld, gemms %lld; expected 1 + 1 and 3\n", (long long)draft, (long long)target,
            (long long)gemms);
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: consumer VERSION\n");
        return 2;
    }
    return check_version(argv[1]) | check_backends() | check_plan();
}
