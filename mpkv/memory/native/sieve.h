/* The SIEVE eviction order, private to the engine.
 *
 * Blocks stand in the order of their publication. A hand walks from the oldest to the
 * newest and around again, passes over blocks visited since its last pass (forgetting
 * the visit) and stops at the first that was not. It is kept here; visited bytes are in
 * shared memory, where any process may set them.
 */
#ifndef MPKV_SIEVE_H
#define MPKV_SIEVE_H

#include <stdint.h>

struct sieve_link {
    uint32_t older;
    uint32_t newer;
};

struct sieve {
    struct sieve_link *links; /* one per block; meaningful while it is in the queue */
    uint32_t oldest;
    uint32_t newest;
    uint32_t hand;
    uint32_t length;
};

void sieve_init(struct sieve *sieve, struct sieve_link *links);
void sieve_add(struct sieve *sieve, uint32_t block);
void sieve_remove(struct sieve *sieve, uint32_t block);

/* The block under the hand; the hand moves on to the next newer one. The queue must not
 * be empty. */
uint32_t sieve_step(struct sieve *sieve);

#endif
