/* What the stress programs share: a failure ends the program, a deadline ends the run. */
#ifndef STRESS_H
#define STRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#ifdef NDEBUG
#error "build with -UNDEBUG: the checks must not vanish"
#endif

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);        \
            abort();                                                                       \
        }                                                                                  \
    } while (0)

static inline double seconds(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* xorshift64; never 0. */
static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static inline void *zeroed_pages(uint64_t size)
{
    uint64_t rounded = (size + 4095) & ~UINT64_C(4095);
    unsigned char *memory = aligned_alloc(4096, rounded);
    CHECK(memory != NULL);
    for (uint64_t i = 0; i < rounded; i++)
        memory[i] = 0;
    return memory;
}

#endif
