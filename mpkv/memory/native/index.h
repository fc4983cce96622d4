/* The key index: open addressing with linear probing, one writer, many readers.
 *
 * It only hints. A bucket holds `hash << 32 | block + 1`, or 0 when empty, and a reader
 * asks the block's own entry whether the key is really there. A reader that races with
 * the engine may miss a key that is present; that costs a miss and nothing else.
 */
#ifndef MPKV_INDEX_H
#define MPKV_INDEX_H

#include "ledger.h"

/* No reader or insertion looks further than this, whatever keys it is given. At a load
 * of one half a run this long does not happen by chance (below 1e-18 per key). */
#define INDEX_PROBES_MAX 256

struct key {
    uint64_t words[LEDGER_KEY_WORDS_MAX];
    uint32_t hash;
};

/* A walk over the blocks hinted for one hash. */
struct probe {
    uint64_t position;
    uint32_t hash;
    uint32_t left;
};

struct key key_load(const struct ledger *ledger, const void *bytes);

/* Have the cache fetch what a walk for the key will read first: its bucket, and then,
 * once that has come, the entry it hints at. */
void prefetch_bucket(const struct ledger *ledger, const struct key *key);
void prefetch_entry(const struct ledger *ledger, const struct key *key);

struct probe probe_start(const struct ledger *ledger, const struct key *key);

/* The next hinted block, or NO_BLOCK at the end. */
uint32_t probe_next(const struct ledger *ledger, struct probe *probe);

/* Engine only. False: no bucket within INDEX_PROBES_MAX of the hash's own. */
bool index_insert(struct ledger *ledger, uint32_t hash, uint32_t block);

/* Engine only. Removing what is not there does nothing. */
void index_remove(struct ledger *ledger, uint32_t hash, uint32_t block);

/* Engine only. */
void index_clear(struct ledger *ledger);

#endif
