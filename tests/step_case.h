/* step_case.h - a random step: its tensors, a plan over them on the template backend, and what came out. */
#ifndef ONEHEAD_TESTS_STEP_CASE_H
#define ONEHEAD_TESTS_STEP_CASE_H

#include <onehead/onehead.h>

#include "draws.h"

/* Inputs in f32; every array is the case's own. */
typedef struct step_case {
    oh_request request; /* rows, shape and dtypes filled in; a test changes the rest */
    int64_t rows, target_rows;
    float *draft, *target, *head, *bias, *mask;
    int32_t *target_row, *label;
} step_case;

/* Everything a step can write, for all T rows. */
typedef struct step_output {
    float *grad, *head_grad, *row_loss, *weight, *topk_logprob;
    int32_t *label, *argmax, *rank, *topk_id;
    int64_t rows, hidden, vocab, top_k;
    oh_plan_summary plan;
    oh_results results;
    double *sums; /* oh_sum_count */
    int64_t sum_count;
} step_output;

/* Logits of about unit spread, masks 0, 0.5 or 1, a few labels out of range, target rows shared in random order. */
void step_case_open(step_case *c, draws *d, int64_t blocks, int64_t block_size, int64_t hidden, int64_t vocab);
void step_case_close(step_case *c);

/* Pointers of `c` as inputs. Pass rows < c->rows to run a part. */
oh_inputs step_case_inputs(const step_case *c);

/* The template backend, linked into the test; with ONEHEAD_TEST_BACKEND a plugin by name or path, so that the same suites
 * run on any backend. Tensors are uploaded where device memory is not host memory. */
oh_context *step_context_open(void);
/* The table of the template. */
const oh_backend *step_context_table(void);

/* Plans and runs c->request; fails the test on any error. Outputs are poisoned first. */
void step_run(oh_context *context, const step_case *c, step_output *out);
/* The same, with an observer of its tiles. */
void step_run_observed(oh_context *context, const step_case *c, oh_tile_observer observer, void *user,
                       step_output *out);
void step_output_close(step_output *out);

/* Fills a matrix with multiples of 1/4 from -1 to 1, so that logits of up to 2^16 products are exact in f32 in any order
 * of summation, and ties are plenty. */
void step_case_make_exact(step_case *c, draws *d);

/* Makes a plan of `request`, runs it once and reads its results, whose arrays are gone with the plan; through copies on
 * the device where that has its own memory. */
oh_status step_run_plan(oh_context *context, const step_case *c, const oh_request *request, const oh_inputs *inputs,
                        const oh_outputs *outputs, oh_results *results, oh_error *error);

/* Outputs that `out` needs, allocated and poisoned for a plan of `c`. */
void step_output_open(step_output *out, const step_case *c);
oh_outputs step_outputs(const step_output *out, const oh_request *request);

/* ||a - b|| / ||b|| over `count` floats; 0 where both are 0. */
double step_distance(const float *a, const float *b, int64_t count);

/* Fails unless counts are equal and figures within `bound` relative, dD within `grad_bound` of its norm. */
void step_assert_same(const step_output *a, const step_output *b, double bound, double grad_bound);

#endif
