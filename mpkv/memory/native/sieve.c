#include "sieve.h"

#include "ledger.h"

void sieve_init(struct sieve *sieve, struct sieve_link *links)
{
    *sieve = (struct sieve){links, NO_BLOCK, NO_BLOCK, NO_BLOCK, 0};
}

void sieve_add(struct sieve *sieve, uint32_t block)
{
    sieve->links[block] = (struct sieve_link){.older = sieve->newest, .newer = NO_BLOCK};
    if (sieve->newest == NO_BLOCK)
        sieve->oldest = block;
    else
        sieve->links[sieve->newest].newer = block;
    sieve->newest = block;
    sieve->length++;
}

void sieve_remove(struct sieve *sieve, uint32_t block)
{
    struct sieve_link link = sieve->links[block];
    if (link.older == NO_BLOCK)
        sieve->oldest = link.newer;
    else
        sieve->links[link.older].newer = link.newer;
    if (link.newer == NO_BLOCK)
        sieve->newest = link.older;
    else
        sieve->links[link.newer].older = link.older;
    if (sieve->hand == block)
        sieve->hand = link.newer;
    sieve->length--;
}

uint32_t sieve_step(struct sieve *sieve)
{
    uint32_t block = sieve->hand == NO_BLOCK ? sieve->oldest : sieve->hand;
    sieve->hand = sieve->links[block].newer;
    return block;
}
