/* check_plan.h - the runs that must agree: the same step under other policies, chunks and panels. */
#ifndef ONEHEAD_TOOL_CHECK_PLAN_H
#define ONEHEAD_TOOL_CHECK_PLAN_H

#include "options.h"

enum { CHECK_VARIANTS_MAX = 8 };

typedef struct check_variant {
    int32_t policy;
    int64_t chunk, memory; /* 0: the library's choice */
} check_variant;

/* Variants of a request whose own run had the given plan; those that would repeat it or each other are left out. */
int check_variants(const oh_request *request, const oh_plan_summary *reference, check_variant *variants);

/* The request as a variant runs it. */
oh_request check_variant_request(const oh_request *request, const check_variant *variant);

#endif
