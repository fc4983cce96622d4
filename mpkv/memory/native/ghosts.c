#include "ghosts.h"

#define PER_BLOCK 16
#define MOST_PLACES (UINT32_C(1) << 24)
#define LEAST_PLACES (UINT32_C(1) << 16)
/* The places' own bits of the hash need not be kept; in their room stand the uses. */
#define USES_MASK UINT32_C(0xf)

uint32_t ghosts_places(uint32_t blocks)
{
    uint32_t places = LEAST_PLACES;
    while (places < MOST_PLACES && places < (uint64_t)PER_BLOCK * blocks)
        places *= 2;
    return places;
}

void ghosts_init(struct ghosts *ghosts, uint32_t *places, uint32_t blocks)
{
    *ghosts = (struct ghosts){places, ghosts_places(blocks) - 1};
}

void ghosts_add(struct ghosts *ghosts, uint32_t hash, uint32_t uses)
{
    ghosts->places[hash & ghosts->mask] =
        (hash & ~USES_MASK) | (uses < USES_MASK ? uses : USES_MASK);
}

void ghosts_prefetch(const struct ghosts *ghosts, uint32_t hash)
{
    __builtin_prefetch(&ghosts->places[hash & ghosts->mask]);
}

uint32_t ghosts_uses(const struct ghosts *ghosts, uint32_t hash)
{
    uint32_t found = ghosts->places[hash & ghosts->mask];
    return (found ^ hash) & ~USES_MASK ? 0 : found & USES_MASK;
}
