#include "vector_avx2.h"

#define KERNELS ob_kernels_avx2
#define KERNELS_NAME "avx2"
#include "tiles_kernels.inc"
