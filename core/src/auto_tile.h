/* auto_tile.h - which tile format `auto` means, and why. */
#ifndef ONEHEAD_CORE_AUTO_TILE_H
#define ONEHEAD_CORE_AUTO_TILE_H

#include <onehead/onehead.h>

/* What a plan knows of the backend and device that it is made for. */
typedef struct oh_machine {
    uint32_t caps, gemm_kinds, tile_formats; /* the table's claims */
    int32_t finds_overflow;                  /* it has tile_overflow, or the portable one stands in */
    int64_t memory_free;                     /* bytes of the device; 0: not known */
    int32_t has_overflowed;                  /* an f16 step of this context did */
    int32_t weight_measured;
    double weight_max; /* largest absolute value of lm_head, where it was measured; NaN where it isn't finite */
} oh_machine;

enum { OH_TILE_REASON_SIZE = 160 };

/* The format that `auto` stands for, as far as the request and the machine decide it, and the reason in English.
 * `request` is normalised. */
int32_t oh_auto_tile(const oh_request *request, const oh_machine *machine, char reason[OH_TILE_REASON_SIZE]);

/* Whether f16 holds a 16-bit weight whose largest absolute value this is. */
int oh_f16_holds(double weight_max);

#endif
