#include "vector_avx512.h"

#define KERNELS tile_kernels_avx512
#define KERNELS_NAME "avx512"
#include "kernels.inc"
