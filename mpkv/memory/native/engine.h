/* What only the engine may do with a ledger: allocate, publish, free, evict.
 *
 * States and generations in shared memory are for the readers. The engine goes by its
 * own copy here and takes nothing but pin counts and visited bytes from there, so a
 * process that scribbles over the ledger cannot corrupt the engine's lists.
 */
#ifndef MPKV_ENGINE_H
#define MPKV_ENGINE_H

#include "retention.h"
#include "table.h"

struct block_private {
    uint32_t generation;
    uint32_t hash; /* of the key it is indexed under, while READY */
    enum block_state state;
};

struct engine {
    struct ledger *ledger;
    struct block_private *blocks;
    struct retention retention; /* of the READY blocks */
    uint32_t *free;     /* a stack */
    uint32_t *draining;
    uint32_t free_count;
    uint32_t draining_count;
    uint32_t looked_at; /* the next block to look for a visit at */
    uint64_t published; /* how often a block became READY */
};

enum publish_result {
    PUBLISH_DONE = 0,      /* READY under its key now */
    PUBLISH_STALE = 1,     /* the slot's generation is over: nothing was done */
    PUBLISH_DUPLICATE = 2, /* the key is READY elsewhere: the slot was freed */
    PUBLISH_CROWDED = 3,   /* the index has no room near the key: the slot was freed */
};

/* False: out of memory. Every block of the ledger must be FREE. */
bool engine_init(struct engine *engine, struct ledger *ledger);
void engine_destroy(struct engine *engine);

/* Take `count` blocks, all or none, into LANDING or FILLING under new generations: free
 * ones, then drained ones, then those that are worth least, but none of `owner`'s (0: of
 * nobody's). `slots` has room for `count`, `evicted_keys` for `count` keys; `evicted` is how
 * many keys there are. */
bool engine_allocate(struct engine *engine, uint32_t count, enum block_state state,
                     uint32_t owner, uint64_t *slots, unsigned char *evicted_keys,
                     uint32_t *evicted);

/* What was done must be handed to `engine_retain` before the next allocation. */
enum publish_result engine_publish(struct engine *engine, uint64_t slot, const struct key *key,
                                   bool pin);

/* Take `count` published blocks, in the order of their prompt, among those to evict. `copies`:
 * they are copies of a peer's blocks. */
void engine_retain(struct engine *engine, const uint32_t *blocks, uint32_t count, bool copies);

/* Count visits of the engine itself; `blocks` in the order of the visits, which may have been
 * evicted meanwhile. */
void engine_note_visits(struct engine *engine, const uint32_t *blocks, size_t count);

/* False: the slot's generation is over, or the block is free or draining already. */
bool engine_free(struct engine *engine, uint64_t slot);

/* Each returns how many blocks it was about. */
uint32_t engine_drop_ready(struct engine *engine);
uint32_t engine_reclaim(struct engine *engine);

/* The number of pins taken back. Only when no process can pin as the control plane. Any
 * thread of the engine may call it: it touches no list, and single words atomically. */
uint64_t engine_zero_control_pins(struct engine *engine);

#endif
