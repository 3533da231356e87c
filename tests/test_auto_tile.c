/* What `auto` means on a device with memory of its own, what the plan says of it, and what it costs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fake_device.h"

#define GIB (INT64_C(1) << 30)

static oh_request bf16_request(int64_t rows, int64_t hidden, int64_t vocab, const char *terms) {
    oh_request r;
    oh_request_init(&r);
    r.rows = r.target_rows = rows;
    r.hidden = hidden;
    r.vocab = vocab;
    assert_int_equal(oh_objective_set_terms(&r.objective, terms, NULL), OH_OK);
    return r;
}

static oh_plan_summary described(const oh_request *r) {
    oh_plan *plan = NULL;
    oh_error error = {OH_OK, ""};
    if (oh_plan_describe_for(fake_device_table(), r, &plan, &error) != OH_OK) fail_msg("%s", error.message);
    const oh_plan_summary s = *oh_plan_get_summary(plan);
    oh_plan_destroy(plan);
    return s;
}

static void expect(const oh_request *r, int32_t tile, const char *reason) {
    const oh_plan_summary s = described(r);
    assert_int_equal(s.tile, tile);
    if (!strstr(s.tile_reason, reason)) fail_msg("'%s' has no '%s'", s.tile_reason, reason);
}

static void test_auto_follows_terms_weights_and_dtypes(void **state) {
    (void)state;
    oh_request r = bf16_request(64, 32, 300, "kl=1");
    expect(&r, OH_TILE_DIFF, "target of the same weight");
    assert_int_equal(described(&r).grad_dtype, OH_F16);
    assert_int_equal(described(&r).operand_dtype, OH_F16);
    r = bf16_request(64, 32, 300, "ce=1,cap=0.1");
    expect(&r, OH_TILE_F16, "no term compares");
    r.target_rows = 0;
    r.objective.labels = OH_LABELS_GIVEN;
    expect(&r, OH_TILE_F16, "no term compares");
    r = bf16_request(64, 32, 300, "ce=1,tv=0.1");
    expect(&r, OH_TILE_DIFF, "target of the same weight");
    r.target_hidden = 24;
    expect(&r, OH_TILE_F32, "a weight each");
    r = bf16_request(64, 32, 300, "kl=1");
    r.hidden_dtype = OH_F32;
    expect(&r, OH_TILE_F32, "are f32");
    r.tile = OH_TILE_F16;
    expect(&r, OH_TILE_F16, "as asked");

    oh_plan *plan = NULL;
    r = bf16_request(64, 32, 300, "kl=1");
    assert_int_equal(oh_plan_describe(&r, &plan, NULL), OH_OK);
    assert_int_equal(oh_plan_get_summary(plan)->tile, OH_TILE_F32);
    assert_string_equal(oh_plan_get_summary(plan)->tile_reason, "the default on a CPU");
    oh_plan_destroy(plan);
}

static void test_a_device_that_hides_overflow_gets_f32(void **state) {
    (void)state;
    oh_backend old = *fake_device_table();
    old.size = offsetof(oh_backend, tile_overflow); /* a table of minor version 0: what follows is not to be read */
    old.minor = 0;
    const oh_request r = bf16_request(64, 32, 300, "kl=1");
    oh_plan *plan = NULL;
    assert_int_equal(oh_plan_describe_for(&old, &r, &plan, NULL), OH_OK);
    assert_int_equal(oh_plan_get_summary(plan)->tile, OH_TILE_F32);
    assert_non_null(strstr(oh_plan_get_summary(plan)->tile_reason, "overflow"));
    oh_plan_destroy(plan);
}

/* H = 5120, V = 248320: the f16 copy takes 2,542,796,800 bytes. */
static void test_the_copy_of_the_weight_is_part_of_the_memory(void **state) {
    (void)state;
    const int64_t copy = INT64_C(248320) * 5120 * 2;
    oh_request r = bf16_request(32768, 5120, 248320, "kl=1");
    oh_plan_summary s = described(&r);
    assert_int_equal(s.tile, OH_TILE_DIFF);
    assert_int_equal(s.memory, 2 * GIB + copy);
    assert_int_equal(s.weight_bytes, copy);
    assert_true(s.weight_converted);
    assert_true(s.workspace_bytes + s.weight_bytes <= s.memory);

    assert_int_equal(s.chunk, 2048);
    r.memory = 3 * GIB; /* smaller chunks, rather than no copy */
    s = described(&r);
    assert_int_equal(s.tile, OH_TILE_DIFF);
    assert_int_equal(s.weight_bytes, copy);
    assert_int_equal(s.chunk, 512);
    r.memory = 5 * GIB / 2 + (INT64_C(1) << 26); /* too small ones */
    s = described(&r);
    assert_int_equal(s.tile, OH_TILE_F32);
    r.tile = OH_TILE_DIFF; /* as asked, then */
    s = described(&r);
    assert_int_equal(s.weight_bytes, 0);
    assert_true(s.chunk >= 512);
    r.tile = OH_TILE_AUTO;

    r.memory = 2 * GIB; /* less than the copy alone */
    s = described(&r);
    assert_int_equal(s.tile, OH_TILE_F32);
    assert_non_null(strstr(s.tile_reason, "2542796800 bytes, does not fit in the memory of 2147483648 bytes"));
    assert_int_equal(s.weight_bytes, 0);

    r.weight_dtype = r.hidden_dtype = OH_F16; /* no copy is needed */
    s = described(&r);
    assert_int_equal(s.tile, OH_TILE_DIFF);
    assert_int_equal(s.weight_bytes, 0);
}

static void test_the_default_memory_leaves_half_of_what_is_free(void **state) {
    (void)state;
    const int64_t copy = INT64_C(4099) * 64 * 2 / 256 * 256 + 256;
    oh_request r = bf16_request(64, 64, 4099, "kl=1");
    oh_context *context = fake_device_open();
    for (int enough = 0; enough < 2; ++enough) {
        oh_plan *plan = NULL;
        oh_error error = {OH_OK, ""};
        fake_device_free = 2 * (2 * GIB + copy) - !enough;
        if (oh_plan_create(context, &r, &plan, &error) != OH_OK) fail_msg("%s", error.message);
        assert_int_equal(oh_plan_get_summary(plan)->memory, 2 * GIB + (enough ? copy : 0));
        oh_plan_destroy(plan);
    }
    fake_device_free = 0;
    oh_context_close(context);
}

/* ----------------------------------------------------------------------------------------------------- a weight ---- */

enum { ROWS = 32, HIDDEN = 8, VOCAB = 40 };

static uint16_t bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

typedef struct bf16_step {
    uint16_t draft[ROWS * HIDDEN], target[ROWS * HIDDEN], head[VOCAB * HIDDEN];
    float grad[ROWS * HIDDEN];
} bf16_step;

static void fill(bf16_step *s) {
    draws d = draws_open("test_auto_tile", 1);
    for (int i = 0; i < ROWS * HIDDEN; ++i)
        s->draft[i] = bf16((float)draw_normal(&d)), s->target[i] = bf16((float)draw_normal(&d));
    for (int i = 0; i < VOCAB * HIDDEN; ++i)
        s->head[i] = bf16((float)draw_normal(&d));
}

static void test_a_weight_that_f16_does_not_hold_is_seen_when_the_plan_is_made(void **state) {
    (void)state;
    static const struct {
        float value;
        int fits;
    } largest[] = {{65504, 1}, {65536, 0}, {-70000, 0}, {INFINITY, 0}, {NAN, 0}};
    bf16_step *s = calloc(1, sizeof *s);
    assert_non_null(s);
    oh_context *context = fake_device_open();
    for (size_t i = 0; i < sizeof largest / sizeof largest[0]; ++i) {
        fill(s);
        /* bf16 rounds 65504 down to 65280 here, which fits all the more. */
        s->head[VOCAB * HIDDEN - 1] = bf16(largest[i].value);
        oh_request r = bf16_request(ROWS, HIDDEN, VOCAB, "kl=1");
        r.lm_head = s->head;
        oh_plan *plan = NULL;
        oh_error error = {OH_OK, ""};
        assert_int_equal(oh_plan_create(context, &r, &plan, &error), OH_OK);
        assert_int_equal(oh_plan_get_summary(plan)->tile, largest[i].fits ? OH_TILE_DIFF : OH_TILE_F32);
        if (!largest[i].fits) assert_non_null(strstr(oh_plan_get_summary(plan)->tile_reason, "lm_head's largest"));
        oh_plan_destroy(plan);
        /* Padding rows are not converted and may hold anything. */
        r.vocab_valid = VOCAB - 1;
        assert_int_equal(oh_plan_create(context, &r, &plan, &error), OH_OK);
        assert_int_equal(oh_plan_get_summary(plan)->tile, OH_TILE_DIFF);
        oh_plan_destroy(plan);
        r.vocab_valid = 0;
        r.tile = OH_TILE_F16;
        const oh_status status = oh_plan_create(context, &r, &plan, &error);
        const int refused = largest[i].value > 65504 || largest[i].value < -65504;
        assert_int_equal(status, refused ? OH_OVERFLOW : OH_OK);
        if (refused)
            assert_non_null(strstr(error.message, "lm_head"));
        else
            oh_plan_destroy(plan);
    }
    fill(s); /* too small for f16's exponents: most of its bits would go */
    for (int i = 0; i < VOCAB * HIDDEN; ++i)
        s->head[i] = bf16(0x1p-20f);
    oh_request r = bf16_request(ROWS, HIDDEN, VOCAB, "kl=1");
    r.lm_head = s->head;
    oh_plan *plan = NULL;
    assert_int_equal(oh_plan_create(context, &r, &plan, NULL), OH_OK);
    assert_int_equal(oh_plan_get_summary(plan)->tile, OH_TILE_F32);
    oh_plan_destroy(plan);
    oh_context_close(context);
    free(s);
}

static int64_t converted_by_run(oh_plan *plan, bf16_step *s) {
    const oh_inputs in = {
        .rows = ROWS, .target_rows = ROWS, .draft_hidden = s->draft, .target_hidden = s->target, .lm_head = s->head};
    const oh_outputs out = {.draft_grad = s->grad};
    oh_error error = {OH_OK, ""};
    oh_results results;
    fake_device_converted = 0;
    if (oh_plan_run(plan, &in, &out, &error) != OH_OK) fail_msg("%s", error.message);
    if (oh_plan_results(plan, &results, &error) != OH_OK) fail_msg("%s", error.message);
    assert_true(results.loss > 0);
    return fake_device_converted;
}

/* Rows of D and G are converted in every step: 2 blocks of 15 rows each. W is V H elements more, once a step or once. */
static void test_a_trained_weight_is_converted_once_a_step(void **state) {
    (void)state;
    const int64_t rows = 2 * 15 * 2 * HIDDEN, weight = VOCAB * HIDDEN;
    bf16_step *s = calloc(1, sizeof *s);
    assert_non_null(s);
    fill(s);
    oh_context *context = fake_device_open();
    for (int trains = 0; trains < 2; ++trains) {
        oh_request r = bf16_request(ROWS, HIDDEN, VOCAB, "kl=1");
        r.weight_trains = trains;
        r.chunk = 16; /* two chunks: once a chunk would show */
        oh_plan *plan = NULL;
        assert_int_equal(oh_plan_create(context, &r, &plan, NULL), OH_OK);
        assert_int_equal(oh_plan_get_summary(plan)->tile, OH_TILE_DIFF);
        assert_int_equal(converted_by_run(plan, s), rows + weight);
        assert_int_equal(converted_by_run(plan, s), rows + (trains ? weight : 0));
        oh_plan_weight_changed(plan);
        assert_int_equal(converted_by_run(plan, s), rows + weight);
        oh_plan_destroy(plan);
    }
    oh_context_close(context);
    free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_auto_follows_terms_weights_and_dtypes),
        cmocka_unit_test(test_a_device_that_hides_overflow_gets_f32),
        cmocka_unit_test(test_the_copy_of_the_weight_is_part_of_the_memory),
        cmocka_unit_test(test_the_default_memory_leaves_half_of_what_is_free),
        cmocka_unit_test(test_a_weight_that_f16_does_not_hold_is_seen_when_the_plan_is_made),
        cmocka_unit_test(test_a_trained_weight_is_converted_once_a_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
