/* bench_accuracy.h - how far a tile format's gradient is from that of f32 tiles. */
#ifndef ONEHEAD_TOOL_BENCH_ACCURACY_H
#define ONEHEAD_TOOL_BENCH_ACCURACY_H

#include "bench_inputs.h"

/* A step's answers on the host. */
typedef struct bench_answers {
    float *grad; /* [count], or NULL: the step has none, or not in f32 */
    int64_t count;
    double loss;
} bench_answers;

/* Runs the plan once and takes its answers. */
oh_status bench_answers_take(bench_answers *answers, oh_plan *plan, const bench_inputs *inputs,
                             const oh_request *request, oh_error *error);
void bench_answers_free(bench_answers *answers); /* a zeroed record is fine */

/* ||a - reference|| / ||reference||, NaN where either has no gradient. */
double bench_grad_error(const bench_answers *a, const bench_answers *reference);

#endif
