/* A budget is kept, and spent: chunk, panel and policy follow from it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "layout.h"

#define MIB (INT64_C(1) << 20)

static oh_request qwen(int64_t rows, int64_t memory) {
    oh_request r;
    oh_request_init(&r);
    r.rows = r.target_rows = rows;
    r.hidden = 5120;
    r.vocab = 248320;
    r.memory = memory;
    return r;
}

static oh_plan *describe(const oh_request *request) {
    oh_plan *plan = NULL;
    oh_error error = {OH_OK, ""};
    if (oh_plan_describe(request, &plan, &error) != OH_OK) fail_msg("%s", error.message);
    return plan;
}

static void test_every_budget_is_kept(void **state) {
    (void)state;
    for (int64_t rows = 16; rows <= 32768; rows *= 8)
        for (int64_t memory = 24 * MIB; memory <= 65536 * MIB; memory *= 2) {
            const oh_request r = qwen(rows, memory);
            oh_plan *plan = NULL;
            oh_error error = {OH_OK, ""};
            const oh_status status = oh_plan_describe(&r, &plan, &error);
            if (status == OH_OUT_OF_MEMORY) continue;
            assert_int_equal(status, OH_OK);
            const oh_plan_summary *s = oh_plan_get_summary(plan);
            assert_true(s->workspace_bytes + s->weight_bytes <= memory);
            assert_int_equal(s->chunk % 16, 0);
            assert_true(s->panel >= 1 && s->panel <= r.vocab);
            oh_plan_destroy(plan);
        }
}

static void test_policy_follows_the_budget(void **state) {
    (void)state;
    /* 64 rows of logits are 64 MB a tile: under that there are panels, above it whole tiles. */
    oh_request r = qwen(64, 48 * MIB);
    oh_plan *plan = describe(&r);
    assert_int_equal(oh_plan_get_summary(plan)->policy, OH_POLICY_RECOMPUTE);
    assert_true(oh_plan_get_summary(plan)->panel < r.vocab);
    assert_int_equal(oh_plan_get_summary(plan)->chunk, 64);
    oh_plan_destroy(plan);

    r = qwen(64, 1024 * MIB);
    plan = describe(&r);
    assert_int_equal(oh_plan_get_summary(plan)->policy, OH_POLICY_CACHED);
    assert_int_equal(oh_plan_get_summary(plan)->panel, r.vocab);
    assert_false(oh_plan_get_summary(plan)->weight_converted); /* 5 GB in f32 */
    assert_true(oh_plan_get_summary(plan)->weight_panel < r.vocab);
    oh_plan_destroy(plan);

    r = qwen(64, 8192 * MIB);
    plan = describe(&r);
    assert_true(oh_plan_get_summary(plan)->weight_converted);
    assert_int_equal(oh_plan_get_summary(plan)->weight_bytes, r.vocab * r.hidden * 4);
    oh_plan_destroy(plan);
}

static void test_a_trained_weight_is_never_kept_converted(void **state) {
    (void)state;
    oh_request r = qwen(64, 8192 * MIB);
    r.weight_trains = 1;
    oh_plan *plan = describe(&r);
    assert_false(oh_plan_get_summary(plan)->weight_converted);
    oh_plan_destroy(plan);
}

static void test_a_chunk_that_was_asked_for_is_kept(void **state) {
    (void)state;
    oh_request r = qwen(4096, 512 * MIB);
    r.chunk = 1024;
    oh_plan *plan = describe(&r);
    assert_int_equal(oh_plan_get_summary(plan)->chunk, 1024);
    assert_int_equal(oh_plan_get_summary(plan)->chunks, 4);
    oh_plan_destroy(plan);
}

static void test_a_budget_too_small_says_what_would_do(void **state) {
    (void)state;
    oh_request r = qwen(64, 1 * MIB);
    oh_plan *plan = NULL;
    oh_error error = {OH_OK, ""};
    assert_int_equal(oh_plan_describe(&r, &plan, &error), OH_OUT_OF_MEMORY);
    const char *at = strstr(error.message, "needs at least ");
    assert_non_null(at);
    r.memory = strtoll(at + strlen("needs at least "), NULL, 10);
    assert_true(r.memory > MIB);
    plan = describe(&r); /* and it does */
    oh_plan_destroy(plan);

    r = qwen(64, 48 * MIB);
    r.policy = OH_POLICY_CACHED;
    r.chunk = 64;
    assert_int_equal(oh_plan_describe(&r, &plan, &error), OH_OUT_OF_MEMORY);
    assert_non_null(strstr(error.message, "policy cached with chunks of 64 rows"));
}

static void test_what_would_do_does_for_every_policy_and_tile(void **state) {
    (void)state;
    for (int32_t policy = OH_POLICY_CACHED; policy <= OH_POLICY_NAIVE; ++policy)
        for (int32_t tile = OH_TILE_F32; tile <= OH_TILE_DIFF; ++tile)
            for (int64_t chunk = 0; chunk <= 64; chunk += 32) {
                oh_request r = qwen(64, 1);
                oh_plan *plan = NULL;
                oh_error error = {OH_OK, ""};
                r.policy = policy;
                r.tile = tile;
                r.chunk = chunk;
                assert_int_equal(oh_plan_describe(&r, &plan, &error), OH_OUT_OF_MEMORY);
                r.memory = strtoll(strstr(error.message, "needs at least ") + strlen("needs at least "), NULL, 10);
                plan = describe(&r);
                assert_true(oh_plan_bytes(oh_plan_get_summary(plan)) <= r.memory);
                oh_plan_destroy(plan);
            }
}

static void test_buffers_add_up_and_do_not_overlap(void **state) {
    (void)state;
    oh_request r = qwen(512, 0);
    r.produce = 0x1ff;
    oh_plan *plan = describe(&r);
    int64_t count, at = 0;
    const oh_plan_buffer *buffers = oh_plan_buffers(plan, &count);
    assert_true(count > 10);
    for (int64_t i = 0; i < count; ++i) {
        if (buffers[i].offset < 0) continue; /* converted weights live elsewhere */
        assert_true(buffers[i].offset >= at);
        assert_int_equal(buffers[i].offset % 256, 0);
        at = buffers[i].offset + buffers[i].bytes;
    }
    assert_true(at <= oh_plan_get_summary(plan)->workspace_bytes);
    oh_plan_destroy(plan);
}

static void test_sizes_saturate_instead_of_wrapping(void **state) {
    (void)state;
    assert_true(oh_size_mul(INT64_MAX / 2, 3) == INT64_MAX);
    assert_true(oh_size_add(INT64_MAX - 1, 2) == INT64_MAX);
    assert_true(oh_size_mul(3, 5) == 15);
    const oh_plan_summary full = {.workspace_bytes = INT64_MAX, .weight_bytes = 256},
                          two = {.workspace_bytes = 2, .weight_bytes = 3};
    assert_true(oh_plan_bytes(&full) == INT64_MAX && oh_plan_bytes(&two) == 5);
    oh_request r = qwen(INT32_MAX / 16 * 16, INT64_MAX);
    r.hidden = INT32_MAX;
    r.vocab = INT32_MAX - 2048;
    r.chunk = r.rows;
    oh_plan *plan = NULL;
    oh_error error = {OH_OK, ""};
    const oh_status status = oh_plan_describe(&r, &plan, &error); /* 2^64 bytes of tile */
    if (status == OH_OK) assert_true(oh_plan_get_summary(plan)->workspace_bytes > 0);
    oh_plan_destroy(plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_budget_is_kept),
        cmocka_unit_test(test_policy_follows_the_budget),
        cmocka_unit_test(test_a_trained_weight_is_never_kept_converted),
        cmocka_unit_test(test_a_chunk_that_was_asked_for_is_kept),
        cmocka_unit_test(test_a_budget_too_small_says_what_would_do),
        cmocka_unit_test(test_what_would_do_does_for_every_policy_and_tile),
        cmocka_unit_test(test_buffers_add_up_and_do_not_overlap),
        cmocka_unit_test(test_sizes_saturate_instead_of_wrapping),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
