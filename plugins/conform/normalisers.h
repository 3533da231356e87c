/* normalisers.h - statistics that a complete first read would have left, for the operations that come after it. */
#ifndef ONEHEAD_CONFORM_NORMALISERS_H
#define ONEHEAD_CONFORM_NORMALISERS_H

#include <onehead/rowmath.h>

#include "tile.h"

/* [rows] on the host, of the tile's own logits; labels anywhere in the tile. A label's logit under a transform is what
 * the backend's own first read makes of it, because a rank compares bits. */
oh_row_stats *normalisers_of(kit *k, const tile *t);

/* Whether a row has a softmax: no NaN or +inf, and something finite. */
bool normalisers_finite(const tile *t, const oh_row_stats *s);

#endif
