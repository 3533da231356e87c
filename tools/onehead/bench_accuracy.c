#include "bench_accuracy.h"

#include "error_line.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static oh_status download(float *to, const bench_inputs *inputs, int64_t count, oh_error *error) {
    oh_queue *queue;
    oh_status status = inputs->backend->queue_open(inputs->device, NULL, &queue);
    if (status == OH_OK) {
        status = inputs->backend->download(queue, to, inputs->out.draft_grad, (uint64_t)count * sizeof(float));
        if (status == OH_OK) status = inputs->backend->queue_wait(queue);
        inputs->backend->queue_close(queue);
    }
    return status == OH_OK ? OH_OK : error_line(error, status, inputs->backend->name, "can't download the gradient");
}

oh_status bench_answers_take(bench_answers *a, oh_plan *plan, const bench_inputs *inputs, const oh_request *request,
                             oh_error *error) {
    memset(a, 0, sizeof *a);
    oh_results figures;
    oh_status status = oh_plan_run(plan, &inputs->in, &inputs->out, error);
    if (status == OH_OK) status = oh_plan_results(plan, &figures, error);
    if (status != OH_OK) return status;
    a->loss = figures.loss;
    if (!(request->produce & OH_PRODUCE_GRAD) || request->grad_dtype != OH_F32) return OH_OK;
    a->count = request->rows * request->hidden;
    a->grad = malloc((size_t)a->count * sizeof *a->grad);
    if (a->grad == NULL) return error_line(error, OH_OUT_OF_MEMORY, "gradient", "out of memory");
    return download(a->grad, inputs, a->count, error);
}

void bench_answers_free(bench_answers *a) {
    free(a->grad);
    memset(a, 0, sizeof *a);
}

double bench_grad_error(const bench_answers *a, const bench_answers *reference) {
    if (a->grad == NULL || reference->grad == NULL || a->count != reference->count) return NAN;
    double off = 0, whole = 0;
    for (int64_t i = 0; i < a->count; i++) {
        const double difference = (double)a->grad[i] - (double)reference->grad[i];
        off += difference * difference;
        whole += (double)reference->grad[i] * (double)reference->grad[i];
    }
    return whole > 0 ? sqrt(off / whole) : NAN;
}
