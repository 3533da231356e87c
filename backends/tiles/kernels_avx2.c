#include "vector_avx2.h"

#define KERNELS tile_kernels_avx2
#define KERNELS_NAME "avx2"
#include "kernels.inc"
