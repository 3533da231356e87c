#include "vector_generic.h"

#define KERNELS ob_kernels_baseline
#define KERNELS_NAME "baseline"
#include "tiles_kernels.inc"
