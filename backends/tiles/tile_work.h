/* tile_work.h - copies and tile operations of CPU backends: a request's arguments are checked and it is cut into parts,
 * which the backend runs on its own threads.
 *
 * A function that makes work returns OH_OK, or a refusal with words in `why` that don't name the backend. Parts may run
 * in any order, on any thread, each once; results don't depend on either. The request's arrays stay the caller's and are
 * read while parts run; of the request itself the work keeps the address. No allocation, no globals. */
#ifndef ONEHEAD_TILES_TILE_WORK_H
#define ONEHEAD_TILES_TILE_WORK_H

#include "tile_kernels.h"

typedef struct tile_work {
    int64_t parts; /* 0: nothing to do */
    void (*run)(const struct tile_work *work, int64_t part);
    const tile_kernels *kernels;
    const void *request;
    int64_t rows, rows_per_part;
    int64_t columns_per_part, parts_across; /* of copies */
} tile_work;

oh_status tile_stats_work(const tile_kernels *kernels, const oh_tile_stats *stats, tile_work *work, oh_error *why);
oh_status tile_overlap_work(const tile_kernels *kernels, const oh_tile_overlap *overlap, tile_work *work,
                            oh_error *why);
oh_status tile_grad_work(const tile_kernels *kernels, const oh_tile_grad *grad, tile_work *work, oh_error *why);
oh_status tile_grad_overlap_work(const tile_kernels *kernels, const oh_tile_grad_overlap *both, tile_work *work,
                                 oh_error *why);
oh_status tile_copy_work(const tile_kernels *kernels, const oh_copy_rows *copy, tile_work *work, oh_error *why);

/* A matrix's norm: always as many bands, whose sums are added in order, so that bits don't depend on threads. */
#define TILE_NORM_BANDS 64

typedef struct tile_norm {
    const oh_matrix_norm *norm;
    const tile_kernels *kernels;
    double sums[TILE_NORM_BANDS][2];
} tile_norm;

oh_status tile_norm_work(const tile_kernels *kernels, const oh_matrix_norm *norm, tile_norm *work, oh_error *why);
void tile_norm_band(tile_norm *work, int64_t band); /* bands at once: each writes its own sums */
void tile_norm_add(const tile_norm *work);          /* to the request's sums, when all bands are done */

/* Writes a refusal's words, unless nobody wants them (NULL), and returns its status. */
__attribute__((format(printf, 3, 4))) oh_status tile_refuse(oh_error *why, oh_status status, const char *format, ...);

#endif
