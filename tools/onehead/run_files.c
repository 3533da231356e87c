#include "run_files.h"

static oh_status begin_grad(run_files *files, const options *o, const oh_request *request, oh_error *error) {
    const int64_t draft[] = {request->rows, request->hidden};
    const int64_t head[] = {request->vocab, request->hidden};
    /* The wider dtype first keeps both aligned in the file. */
    const int64_t bias[] = {request->vocab};
    st_declaration tensors[3];
    size_t count = 0;
    if (o->head_grad) tensors[count++] = (st_declaration){"lm_head.grad", ST_F32, 2, head};
    if (o->bias_grad) tensors[count++] = (st_declaration){"bias.grad", ST_F32, 1, bias};
    const st_dtype dtype = request->grad_dtype == OH_BF16 ? ST_BF16 : ST_F32;
    tensors[count++] = (st_declaration){"draft_hidden.grad", dtype, 2, draft};
    return st_writer_begin(&files->grad, o->grad_file, tensors, count, NULL, 0, error);
}

static oh_status begin_rows(run_files *files, const options *o, const oh_request *request, oh_error *error) {
    const oh_objective *const objective = &request->objective;
    const int32_t most = objective->top_k_count > 0 ? objective->top_k[objective->top_k_count - 1] : 0;
    const int64_t rows[] = {request->rows};
    const int64_t lists[] = {request->rows, most};
    const st_declaration tensors[] = {
        {"row_loss", ST_F32, 1, rows},      {"weight", ST_F32, 1, rows}, {"label", ST_I32, 1, rows},
        {"argmax", ST_I32, 1, rows},        {"rank", ST_I32, 1, rows},   {"topk_id", ST_I32, 2, lists},
        {"topk_logprob", ST_F32, 2, lists},
    };
    return st_writer_begin(&files->rows, o->rows_file, tensors, sizeof tensors / sizeof tensors[0], NULL, 0, error);
}

oh_status run_files_begin(run_files *files, const options *o, const oh_request *request, oh_error *error) {
    *files = (run_files){NULL, NULL};
    oh_status status = OH_OK;
    if (o->grad_file != NULL) status = begin_grad(files, o, request, error);
    if (status == OH_OK && o->rows_file != NULL) status = begin_rows(files, o, request, error);
    if (status != OH_OK) run_files_discard(files);
    return status;
}

static oh_status write_rows(st_writer *writer, const step_result *r, oh_error *error) {
    const struct {
        const char *name;
        const void *data;
        int64_t columns;
    } tensors[] = {
        {"row_loss", r->row_loss, 1},
        {"weight", r->weight, 1},
        {"label", r->label, 1},
        {"argmax", r->argmax, 1},
        {"rank", r->rank, 1},
        {"topk_id", r->topk_id, r->top_k},
        {"topk_logprob", r->topk_logprob, r->top_k},
    };
    oh_status status = OH_OK;
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0] && status == OH_OK; i++) {
        const size_t bytes = (size_t)r->rows * (size_t)tensors[i].columns * 4;
        status = st_writer_write(writer, tensors[i].name, tensors[i].data, bytes, error);
    }
    return status;
}

oh_status run_files_write(run_files *files, const step_result *r, oh_error *error) {
    oh_status status = OH_OK;
    if (files->grad != NULL) {
        const size_t element = (size_t)oh_dtype_size(r->grad_dtype);
        if (r->head_grad != NULL) {
            const size_t bytes = (size_t)r->vocab * (size_t)r->hidden * sizeof(float);
            status = st_writer_write(files->grad, "lm_head.grad", r->head_grad, bytes, error);
        }
        if (status == OH_OK && r->bias_grad != NULL)
            status = st_writer_write(files->grad, "bias.grad", r->bias_grad, (size_t)r->vocab * sizeof(float), error);
        if (status == OH_OK) {
            const size_t bytes = (size_t)r->rows * (size_t)r->hidden * element;
            status = st_writer_write(files->grad, "draft_hidden.grad", r->draft_grad, bytes, error);
        }
    }
    if (status == OH_OK && files->rows != NULL) status = write_rows(files->rows, r, error);
    return status;
}

static oh_status end(st_writer **writer, atomic_file **file, oh_error *error) {
    *file = NULL;
    if (*writer == NULL) return OH_OK;
    st_writer *const ended = *writer;
    *writer = NULL; /* freed, whatever comes of it */
    return st_writer_end(ended, file, error);
}

oh_status run_files_end(run_files *files, atomic_file *ended[RUN_FILES_MOST], oh_error *error) {
    ended[1] = NULL;
    oh_status status = end(&files->grad, &ended[0], error);
    if (status == OH_OK) status = end(&files->rows, &ended[1], error);
    if (status == OH_OK) return OH_OK;
    atomic_file_discard(ended[0]);
    ended[0] = NULL;
    return status;
}

void run_files_discard(run_files *files) {
    st_writer_discard(files->grad);
    st_writer_discard(files->rows);
    *files = (run_files){NULL, NULL};
}
