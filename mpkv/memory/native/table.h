/* What any process may do with the block table: look, pin, unpin, mark as visited. */
#ifndef MPKV_TABLE_H
#define MPKV_TABLE_H

#include "index.h"

/* The block that is READY under this key, or NO_BLOCK. Nothing keeps it so afterwards. */
uint32_t table_find(const struct ledger *ledger, const struct key *key);

/* Pin the block that is READY under this key for the ledger's owner, and mark it as
 * visited. Returns its slot; NO_SLOT when there is none or its count is at its limit. */
uint64_t table_pin(const struct ledger *ledger, const struct key *key);

/* Give back one pin of the ledger's owner. False: it holds none in that generation. */
bool table_unpin(const struct ledger *ledger, uint64_t slot);

void table_touch(const struct ledger *ledger, const struct key *key);

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
