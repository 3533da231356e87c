/* stats_grad.h - tile_stats_grad by its parts, on host memory: what a backend that has the pair does, one after the
 * other. */
#ifndef ONEHEAD_TESTS_STATS_GRAD_H
#define ONEHEAD_TESTS_STATS_GRAD_H

#include <onehead/rowmath.h>

/* What may be changed of a row between its statistics and its gradient. */
typedef void stats_grad_edit(void *user, const oh_row_stats *stats, oh_row_coef *coef);

/* Tiles without logit transforms, and losses that need no second read. */
int stats_grad_takes(const oh_tile_stats_grad *pass);

/* Impossible arguments are refused; whether the pass is taken is the caller's to ask. edit may be NULL. */
oh_status stats_grad_by_parts(const oh_tile_stats_grad *pass, stats_grad_edit *edit, void *user);

#endif
