/* draws.h - counter-based random numbers: draw i of a key is a function of both and of nothing drawn before. */
#ifndef ONEHEAD_CONFORM_DRAWS_H
#define ONEHEAD_CONFORM_DRAWS_H

#include <math.h>
#include <stdint.h>

/* The finaliser of splitmix64: every bit of the result depends on every bit of x. */
static inline uint64_t draw_mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* The key of `text` under a seed (FNV-1a). */
static inline uint64_t draw_key(uint64_t seed, const char *text) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text; ++text)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return draw_mix(hash ^ draw_mix(seed + 0x9e3779b97f4a7c15u));
}

static inline uint64_t draw_bits(uint64_t key, uint64_t index) {
    return draw_mix(draw_mix(key + index * 0x9e3779b97f4a7c15u) ^ key);
}

/* In (0, 1). */
static inline double draw_uniform(uint64_t key, int64_t index) {
    return ((double)(draw_bits(key, (uint64_t)index) >> 11) + 0.5) * 0x1p-53;
}

/* In [least, most]. */
static inline int64_t draw_integer(uint64_t key, int64_t index, int64_t least, int64_t most) {
    return least + (int64_t)(draw_bits(key, (uint64_t)index) % (uint64_t)(most - least + 1));
}

static inline double draw_normal(uint64_t key, int64_t index) {
    const double radius = sqrt(-2 * log(draw_uniform(key, index)));
    return radius * cos(6.283185307179586 * draw_uniform(~key, index));
}

#endif
