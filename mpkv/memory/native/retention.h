/* Which READY block a tier can best do without; private to the engine.
 *
 * Blocks stand in classes by how often they were used and how they came, and in each class in
 * the order of their last use, a prompt's first blocks after its last ones. Evicted is the
 * oldest of the class for which that one is worth least (see reuse.h); a block that is a copy
 * of a peer's goes before all others until it has been used twice: once is what it came for.
 *
 * Shared memory says only that a block was visited; what that means is decided and kept here.
 */
#ifndef MPKV_RETENTION_H
#define MPKV_RETENTION_H

#include "ghosts.h"
#include "order.h"
#include "reuse.h"

enum retention_class {
    CLASS_FRESH = 0,      /* of a prompt that begins with nothing used before */
    CLASS_USED = 1,       /* once; the next ones twice, and more often */
    CLASS_USED_OFTEN = 6,
    CLASS_SHORT_TAIL = 7, /* follows what was used, with few others */
    CLASS_LONG_TAIL = 8,
    CLASS_LAST = 9,       /* where a prompt ended when it was stored */
    CLASS_COPY = 10,      /* has no worth */
};

struct retained {
    uint32_t hash;  /* of its key */
    uint32_t since; /* time of the last use */
    uint32_t owner; /* whose stores must not evict it; 0: nobody's */
    uint8_t class;
    uint8_t uses; /* the store counts as one; saturates */
    bool listed;
};

/* Where an owner's last batch ended: its last block, and the one before that. */
struct batch_end {
    uint32_t owner;
    uint32_t body;
    uint32_t last;
};

/* An eviction that the ghosts have not been told of. */
struct gone {
    uint32_t hash;
    uint32_t uses;
};

struct retention {
    struct order order;
    struct reuse reuse;
    struct ghosts ghosts;
    struct retained *blocks;
    struct batch_end *ends;
    struct gone *gone;
    uint32_t gone_count;
    uint32_t gone_size;
    uint32_t used_since_add;
    uint32_t same_use; /* uses within so many stored blocks are one */
};

/* False: out of memory. */
bool retention_init(struct retention *retention, uint32_t blocks);
void retention_destroy(struct retention *retention);

/* What is going to be stored in `block` belongs to `owner`; later: it has a key of `hash`. */
void retention_claim(struct retention *retention, uint32_t block, uint32_t owner);
void retention_name(struct retention *retention, uint32_t block, uint32_t hash);

/* `count` named blocks have become READY, in the order of their prompt. */
void retention_add(struct retention *retention, const uint32_t *blocks, uint32_t count,
                   bool copies);

void retention_used(struct retention *retention, uint32_t block);

/* The engine is about to use the block: what it adds next may follow it in a prompt. */
void retention_continue(struct retention *retention, uint32_t block);

/* The class whose oldest block is worth least, but for those whose bit is set in `spared`;
 * ORDER_CLASSES if there is no block in any other. */
uint32_t retention_weakest(const struct retention *retention, uint32_t spared);

/* Blocks that must stay for now come to stand last in their class; no use of theirs. */
void retention_defer(struct retention *retention, uint32_t block);

/* The block is no longer READY. */
void retention_remove(struct retention *retention, uint32_t block);

/* Take back a removal: the block is the oldest of its class once more. */
void retention_restore(struct retention *retention, uint32_t block);

/* A removed block was evicted; if it comes back, that is a use. */
void retention_evicted(struct retention *retention, uint32_t block);

#endif
