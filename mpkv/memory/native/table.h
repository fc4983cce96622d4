/* What any process may do with the block table: look, pin, unpin, mark as visited. */
#ifndef MPKV_TABLE_H
#define MPKV_TABLE_H

#include "index.h"

/* The block that is READY under this key, or NO_BLOCK. Nothing keeps it so afterwards. */
uint32_t table_find(const struct ledger *ledger, const struct key *key);

/* Pin the block that is READY under this key for the ledger's owner, and mark it as
 * visited. Returns its slot; NO_SLOT when there is none or its count is at its limit. */
uint64_t table_pin(const struct ledger *ledger, const struct key *key);

/* Pin the block of this slot for the ledger's owner, without a mark of its visit. False:
 * it is not READY in that generation, or its count is at its limit. */
bool table_pin_slot(const struct ledger *ledger, uint64_t slot);

/* Give back one pin of the ledger's owner. False: it holds none in that generation. */
bool table_unpin(const struct ledger *ledger, uint64_t slot);

/* The slot of this block if it is READY, NO_SLOT if not. Nothing keeps it so afterwards. */
uint64_t table_ready_slot(const struct ledger *ledger, uint32_t block);

/* The key of a block that the caller has pinned, `key_size` bytes. */
void table_copy_key(const struct ledger *ledger, uint32_t block, unsigned char *out);

uint32_t table_touch(const struct ledger *ledger, const struct key *key);

/* True if the entry holds this key at the moment. */
bool entry_key_is(const struct ledger *ledger, const struct block_entry *entry,
                  const struct key *key);

struct table_counts {
    uint64_t states[BLOCK_DRAINING + 1];
    uint64_t control_pins;
    uint64_t engine_pins;
};

/* Not a snapshot: each word is read at its own moment. */
struct table_counts table_count(const struct ledger *ledger);

#endif
