/* tile_kernels.c - which kernels this CPU runs. */
#include "tile_kernels.h"

#include <string.h>

typedef enum isa { BASELINE, AVX2, AVX512, ISAS } isa;

static const tile_kernels *const all_kernels[ISAS] = {
    &tile_kernels_baseline,
#if defined(__x86_64__)
    &tile_kernels_avx2,
    &tile_kernels_avx512,
#endif
};

static int supported(isa wanted) {
    if (wanted == BASELINE) return 1;
#if defined(__x86_64__)
    __builtin_cpu_init();
    /* Every CPU with AVX2 and FMA has F16C. */
    if (wanted == AVX2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (wanted == AVX512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
    return 0;
}

const tile_kernels *tile_kernels_choose(const char *name) {
    const int any = !name || !*name;
    for (int i = ISAS - 1; i >= 0; --i)
        if (supported((isa)i) && (any || strcmp(name, all_kernels[i]->name) == 0)) return all_kernels[i];
    return NULL;
}

const char *tile_kernels_names(void) {
    if (supported(AVX512)) return "baseline, avx2, avx512";
    return supported(AVX2) ? "baseline, avx2" : "baseline";
}
