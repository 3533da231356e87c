#include "vector_generic.h"

#define KERNELS tile_kernels_baseline
#define KERNELS_NAME "baseline"
#include "kernels.inc"
