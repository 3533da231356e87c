#include "vector_avx512.h"

#define KERNELS ob_kernels_avx512
#define KERNELS_NAME "avx512"
#include "tiles_kernels.inc"
