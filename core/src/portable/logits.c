#include "logits.h"

#include <math.h>

#include "dtype.h"

int64_t oh_logits_element_size(int32_t dtype) {
    return dtype == OH_F32 ? (int64_t)sizeof(oh_real) : oh_element_size(dtype);
}

/* Both tiles of OH_TILE_DIFF are f16. */
int32_t oh_logits_dtype(int32_t format) {
    if (format == OH_TILE_F32) return OH_F32;
    return format == OH_TILE_BF16 ? OH_BF16 : OH_F16;
}

static int transform_valid(const oh_transform *transform) {
    return isfinite(transform->scale) && isfinite(transform->softcap) && transform->softcap >= 0;
}

int oh_logits_valid(const oh_tile_view *view) {
    if (view->rows < 0 || view->columns < 0 || view->first_column < 0) return 0;
    /* Columns are token ids, which are int32. */
    if (view->first_column > INT32_MAX || view->columns > INT32_MAX - view->first_column) return 0;
    if (view->format < OH_TILE_F32 || view->format > OH_TILE_DIFF) return 0;
    if (view->draft && view->draft_ld < view->columns) return 0;
    if (view->target && view->target_ld < view->columns) return 0;
    if (view->format == OH_TILE_DIFF && view->draft && !view->target) return 0;
    return transform_valid(&view->draft_transform) && transform_valid(&view->target_transform);
}

static void load_reals(const void *tile, int64_t first, int64_t count, int32_t dtype, oh_real *to) {
#ifdef OH_REAL_IS_DOUBLE
    if (dtype == OH_F32) {
        memcpy(to, (const unsigned char *)tile + first * (int64_t)sizeof(double), (size_t)count * sizeof(double));
        return;
    }
    float narrow[OH_LOGITS_BLOCK];
    oh_load_elements(tile, first, count, dtype, narrow);
    for (int64_t j = 0; j < count; ++j)
        to[j] = narrow[j];
#else
    oh_load_elements(tile, first, count, dtype, to);
#endif
}

void oh_logits_store(void *to, int64_t first, int64_t count, int32_t dtype, const oh_real *from) {
#ifdef OH_REAL_IS_DOUBLE
    if (dtype == OH_F32) {
        memcpy((unsigned char *)to + first * (int64_t)sizeof(double), from, (size_t)count * sizeof(double));
        return;
    }
    float narrow[OH_LOGITS_BLOCK];
    for (int64_t j = 0; j < count; ++j)
        narrow[j] = (float)from[j];
    oh_store_elements(to, first, count, dtype, narrow);
#else
    oh_store_elements(to, first, count, dtype, from);
#endif
}

static void transform_logits(const oh_transform *transform, int64_t column, int64_t count, oh_real *logits) {
    const oh_real scale = transform->scale, softcap = transform->softcap;
    if (scale == 1 && softcap == 0 && !transform->bias) return;
    float bias[OH_LOGITS_BLOCK] = {0};
    if (transform->bias) oh_load_elements(transform->bias, column, count, OH_F32, bias);
    for (int64_t j = 0; j < count; ++j)
        logits[j] = oh_logit(logits[j], scale, bias[j], softcap);
}

void oh_logits_read(const oh_tile_view *view, int64_t row, int64_t first, int64_t count, oh_real *z, oh_real *t) {
    const int32_t dtype = oh_logits_dtype(view->format);
    const int64_t column = view->first_column + first;
    if (view->target) {
        const int64_t target_row = view->target_row ? view->target_row[row] : row;
        load_reals(view->target, target_row * view->target_ld + first, count, dtype, t);
    }
    if (view->draft) {
        load_reals(view->draft, row * view->draft_ld + first, count, dtype, z);
        if (view->format == OH_TILE_DIFF)
            for (int64_t j = 0; j < count; ++j)
                z[j] += t[j];
        transform_logits(&view->draft_transform, column, count, z);
    }
    if (view->target) transform_logits(&view->target_transform, column, count, t);
}
