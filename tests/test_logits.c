/* Cached and recomputed logits are the same logits, on any backend (ONEHEAD_TEST_BACKEND): the same bits where products
 * have the same shape, and within the rounding of a sum of H products where chunks or panels make other shapes of them.
 *
 * Two f32 sums of the same H products, in whatever order, each differ from the exact sum by at most
 * gamma_H sum |d_h w_h| with gamma_H = H U / (1 - H U), U = 2^-24 (Higham, Accuracy and Stability, 3.1). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "step_case.h"

#define U 0x1p-24

enum { BLOCKS = 4, BLOCK = 5, H = 24, V = 333, T = BLOCKS * BLOCK, STAGES_MAX = 8 };

/* Every tile that a plan projects, by stage; rows are the step's supervised rows in order. */
typedef struct seen_tiles {
    float draft[STAGES_MAX][T][V], target[STAGES_MAX][T][V];
    int64_t rows[STAGES_MAX];
    int stages;
    oh_context *context;
    int64_t first[T]; /* of each chunk: compact rows before it */
} seen_tiles;

/* Tiles may be on a device: rows come back through the backend. */
static void fetch(const seen_tiles *seen, void *to, const void *from, size_t bytes) {
    const oh_backend *backend = oh_context_backend(seen->context);
    oh_queue *queue = NULL;
    if (backend->caps & OH_CAP_HOST_MEMORY) {
        memcpy(to, from, bytes);
        return;
    }
    assert_int_equal(backend->queue_open(oh_context_device(seen->context), NULL, &queue), OH_OK);
    assert_int_equal(backend->download(queue, to, from, bytes), OH_OK);
    assert_int_equal(backend->queue_wait(queue), OH_OK);
    backend->queue_close(queue);
}

static void see(void *user, int64_t chunk, int32_t stage, const oh_tile_view *view) {
    seen_tiles *seen = user;
    int32_t target_row[T];
    assert_true(stage < STAGES_MAX && view->format == OH_TILE_F32);
    if (stage >= seen->stages) seen->stages = stage + 1;
    for (int64_t i = 0; i < view->rows; ++i)
        target_row[i] = (int32_t)i;
    if (view->target_row) fetch(seen, target_row, view->target_row, (size_t)view->rows * sizeof(int32_t));
    const size_t bytes = (size_t)view->columns * sizeof(float);
    for (int64_t i = 0; i < view->rows; ++i) {
        const int64_t row = seen->first[chunk] + i;
        const float *draft = view->draft, *target = view->target;
        fetch(seen, &seen->draft[stage][row][view->first_column], draft + i * view->draft_ld, bytes);
        fetch(seen, &seen->target[stage][row][view->first_column], target + target_row[i] * view->target_ld, bytes);
    }
    if (view->first_column == 0) seen->rows[stage] += view->rows;
}

static int is_supervised(const step_case *c, int64_t row) {
    return c->mask[row] > 0 && row % BLOCK >= c->request.objective.first_slot;
}

static seen_tiles *collect(oh_context *context, step_case *c, int32_t policy, int64_t chunk, int64_t memory) {
    seen_tiles *seen = calloc(1, sizeof *seen);
    assert_non_null(seen);
    seen->context = context;
    c->request.policy = policy;
    c->request.chunk = chunk;
    c->request.memory = memory;
    int64_t supervised = 0;
    for (int64_t row = 0; row < T; ++row) {
        if (row % chunk == 0) seen->first[row / chunk] = supervised;
        supervised += is_supervised(c, row);
    }
    step_output out;
    step_run_observed(context, c, see, seen, &out);
    step_output_close(&out);
    for (int stage = 0; stage < seen->stages; ++stage)
        assert_int_equal(seen->rows[stage], supervised);
    return seen;
}

static void assert_same_bits(const seen_tiles *a, int a_stage, const seen_tiles *b, int b_stage) {
    assert_memory_equal(a->draft[a_stage], b->draft[b_stage], (size_t)b->rows[b_stage] * V * sizeof(float));
    assert_memory_equal(a->target[a_stage], b->target[b_stage], (size_t)b->rows[b_stage] * V * sizeof(float));
}

static void assert_row_close(const float *a, const float *b, const float *hidden, const float *head) {
    const double gamma = H * U / (1 - H * U);
    for (int64_t v = 0; v < V; ++v) {
        double size = 0;
        for (int64_t h = 0; h < H; ++h)
            size += fabs((double)hidden[h] * (double)head[v * H + h]);
        const double difference = fabs((double)a[v] - (double)b[v]);
        if (!(difference <= 2 * gamma * size))
            fail_msg("%.9g and %.9g, %g apart", (double)a[v], (double)b[v], difference);
    }
}

static void assert_close(const step_case *c, const seen_tiles *a, const seen_tiles *b) {
    for (int stage = 0; stage < a->stages; ++stage) {
        int64_t row = 0;
        for (int64_t i = 0; i < T; ++i) {
            if (!is_supervised(c, i)) continue;
            assert_row_close(a->draft[stage][row], b->draft[0][row], c->draft + i * H, c->head);
            assert_row_close(a->target[stage][row], b->target[0][row], c->target + c->target_row[i] * H, c->head);
            ++row;
        }
    }
}

static void test_cached_and_recomputed_logits_are_the_same(void **state) {
    (void)state;
    draws d = draws_open("test_logits", 3);
    step_case c;
    step_case_open(&c, &d, BLOCKS, BLOCK, H, V);
    c.request.produce &= ~(uint32_t)OH_PRODUCE_TOP_K_ROWS;
    c.request.objective.top_k_count = 0; /* every stage then has both tiles */
    oh_context *context = step_context_open();
    const int64_t unlimited = INT64_C(1) << 40;
    seen_tiles *cached = collect(context, &c, OH_POLICY_CACHED, T, unlimited);
    assert_int_equal(cached->stages, 1);
    assert_true(cached->draft[0][0][0] != 0 && cached->draft[0][0][0] != cached->target[0][0][0]);

    seen_tiles *again = collect(context, &c, OH_POLICY_RECOMPUTE, T, unlimited);
    seen_tiles *naive = collect(context, &c, OH_POLICY_NAIVE, T, unlimited);
    assert_int_equal(again->stages, 2);
    assert_int_equal(naive->stages, 3);
    for (int stage = 0; stage < again->stages; ++stage)
        assert_same_bits(again, stage, cached, 0);
    for (int stage = 0; stage < naive->stages; ++stage)
        assert_same_bits(naive, stage, cached, 0);

    seen_tiles *chunks = collect(context, &c, OH_POLICY_CACHED, BLOCK, unlimited);
    assert_close(&c, chunks, cached);
    free(chunks);
    if (!oh_context_backend(context)->gemm_scratch) { /* such a backend's scratch alone is more than panels leave */
        seen_tiles *panels = collect(context, &c, OH_POLICY_RECOMPUTE, T, 36 << 10);
        assert_int_equal(panels->stages, 3); /* first read, second read, backward */
        assert_close(&c, panels, cached);
        free(panels);
    }
    free(cached);
    free(again);
    free(naive);
    oh_context_close(context);
    step_case_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cached_and_recomputed_logits_are_the_same)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
