/* How often keys were used before their block was evicted, private to the engine. */
#ifndef MPKV_GHOSTS_H
#define MPKV_GHOSTS_H

#include <stdint.h>

/* A place for some bits of the hash, which the last one has; the others tell keys apart well
 * enough for what is only an estimate. */
struct ghosts {
    uint32_t *places;
    uint32_t mask;
};

uint32_t ghosts_places(uint32_t blocks);
void ghosts_init(struct ghosts *ghosts, uint32_t *places, uint32_t blocks);

/* `uses` from 1; many count as the most that is kept. */
void ghosts_add(struct ghosts *ghosts, uint32_t hash, uint32_t uses);

void ghosts_prefetch(const struct ghosts *ghosts, uint32_t hash);

/* 0 for a hash that is not known. */
uint32_t ghosts_uses(const struct ghosts *ghosts, uint32_t hash);

#endif
