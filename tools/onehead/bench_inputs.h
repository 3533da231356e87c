/* bench_inputs.h - random normal tensors of a shape on a device. */
#ifndef ONEHEAD_TOOL_BENCH_INPUTS_H
#define ONEHEAD_TOOL_BENCH_INPUTS_H

#include <onehead/onehead.h>

enum { BENCH_TENSORS_MAX = 5 };

/* Inputs and outputs of steps of at most the shape they were opened with: fewer rows or columns of W are a prefix. */
typedef struct bench_inputs {
    oh_inputs in;
    oh_outputs out;
    const oh_backend *backend;
    oh_device *device;
    void *tensors[BENCH_TENSORS_MAX];
    int tensor_count;
    int32_t *label, *target_row; /* host; target_row NULL: identity */
} bench_inputs;

/* Hidden states of unit variance, the drafter's close to the target's (a tenth is noise), and a weight that gives logits a standard deviation of 2, in the request's dtypes and
 * the shape of `request`. Rows are windows, all different, of a long random sequence: real data for the products, at
 * the speed of a copy. The same seed gives the same bits. On failure the record is zeroed. */
oh_status bench_inputs_open(bench_inputs *inputs, oh_context *context, const oh_request *request, uint64_t seed,
                            oh_error *error);
void bench_inputs_close(bench_inputs *inputs); /* a zeroed record is fine */

#endif
