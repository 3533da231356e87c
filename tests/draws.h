/* draws.h - numbers for tests from a seed that is printed, so that a failure can be repeated:
 * ONEHEAD_TEST_SEED=<seed> goes before the test's own. */
#ifndef ONEHEAD_TESTS_DRAWS_H
#define ONEHEAD_TESTS_DRAWS_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct draws {
    uint64_t state;
} draws;

static inline draws draws_open(const char *name, uint64_t seed) {
    const char *given = getenv("ONEHEAD_TEST_SEED");
    if (given) seed = strtoull(given, NULL, 0);
    fprintf(stderr, "%s: seed %llu\n", name, (unsigned long long)seed);
    return (draws){seed};
}

/* splitmix64 */
static inline uint64_t draw_bits(draws *d) {
    uint64_t x = d->state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* In [0, count). */
static inline int64_t draw_below(draws *d, int64_t count) {
    return (int64_t)(draw_bits(d) % (uint64_t)count);
}

/* In (0, 1). */
static inline double draw_uniform(draws *d) {
    return ((double)(draw_bits(d) >> 11) + 0.5) * 0x1p-53;
}

static inline double draw_normal(draws *d) {
    const double radius = sqrt(-2 * log(draw_uniform(d)));
    return radius * cos(6.283185307179586 * draw_uniform(d));
}

#endif
