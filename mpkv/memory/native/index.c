#include "index.h"

#include <string.h>

/* Multilinear hashing, then one step of mixing. Each half word is multiplied by a secret
 * of its own, so two keys chosen without knowing the secrets collide with a chance of
 * 2^-32, also when they differ in the 4 bytes of their group only; the multiplications
 * do not wait for each other. The last step breaks up runs of keys that count upwards. */
struct key key_load(const struct ledger *ledger, const void *bytes)
{
    struct key key;
    const unsigned char *from = bytes;
    uint32_t whole = ledger->key_size / 8 * 8, done = whole;
    unsigned char *to = (unsigned char *)key.words;
    /* Copies of sizes that the compiler knows are single instructions. */
    for (uint32_t i = 0; i < whole; i += 8)
        memcpy(to + i, from + i, 8);
    if (whole < ledger->key_size)
        memset(to + whole, 0, 8);
    if (ledger->key_size & 4) {
        memcpy(to + done, from + done, 4);
        done += 4;
    }
    for (; done < ledger->key_size; done++)
        to[done] = from[done];
    uint64_t hash = 0;
    for (uint32_t i = 0; i < ledger->key_words; i++)
        hash += ledger->secrets[2 * i] * (uint32_t)key.words[i] +
                ledger->secrets[2 * i + 1] * (key.words[i] >> 32);
    hash = (hash ^ hash >> 32) * UINT64_C(0xbf58476d1ce4e5b9);
    key.hash = (uint32_t)(hash >> 32);
    return key;
}

static uint64_t bucket_make(uint32_t hash, uint32_t block)
{
    return (uint64_t)hash << 32 | (block + 1);
}

static uint32_t bucket_hash(uint64_t bucket)
{
    return (uint32_t)(bucket >> 32);
}

void prefetch_bucket(const struct ledger *ledger, const struct key *key)
{
    __builtin_prefetch(&ledger->buckets[key->hash & ledger->bucket_mask]);
}

void prefetch_entry(const struct ledger *ledger, const struct key *key)
{
    /* Relaxed: a guess that is wrong fetches a line that nobody reads. */
    uint32_t block =
        (uint32_t)load_relaxed(&ledger->buckets[key->hash & ledger->bucket_mask]) - 1;
    if (block < ledger->blocks)
        __builtin_prefetch(entry_of(ledger, block));
}

struct probe probe_start(const struct ledger *ledger, const struct key *key)
{
    return (struct probe){key->hash & ledger->bucket_mask, key->hash, INDEX_PROBES_MAX};
}

/* Relaxed is enough in all of the index: a hint read too early or too late is wrong at
 * worst, and the acquire of the block's word orders what the reader goes by. */
uint32_t probe_next(const struct ledger *ledger, struct probe *probe)
{
    for (; probe->left > 0; probe->left--) {
        uint64_t bucket = load_relaxed(&ledger->buckets[probe->position]);
        if (bucket == 0)
            return NO_BLOCK;
        probe->position = (probe->position + 1) & ledger->bucket_mask;
        uint32_t block = (uint32_t)bucket - 1;
        if (bucket_hash(bucket) == probe->hash && block < ledger->blocks) {
            probe->left--;
            return block;
        }
    }
    return NO_BLOCK;
}

bool index_insert(struct ledger *ledger, uint32_t hash, uint32_t block)
{
    uint64_t position = hash & ledger->bucket_mask;
    for (uint32_t i = 0; i < INDEX_PROBES_MAX; i++) {
        if (load_relaxed(&ledger->buckets[position]) == 0) {
            store_relaxed(&ledger->buckets[position], bucket_make(hash, block));
            return true;
        }
        position = (position + 1) & ledger->bucket_mask;
    }
    return false;
}

/* Close the hole by moving back what probed past it, so that no walk ends early. */
static void shift_back(struct ledger *ledger, uint64_t hole)
{
    uint64_t mask = ledger->bucket_mask;
    uint64_t position = hole;
    for (uint64_t i = 0; i < mask; i++) {
        position = (position + 1) & mask;
        uint64_t bucket = load_relaxed(&ledger->buckets[position]);
        if (bucket == 0)
            break;
        uint64_t home = bucket_hash(bucket) & mask;
        if (((position - home) & mask) < ((position - hole) & mask))
            continue; /* its home lies after the hole: it must stay */
        /* Copied before its old place is reused: readers see it twice rather than never. */
        store_relaxed(&ledger->buckets[hole], bucket);
        hole = position;
    }
    store_relaxed(&ledger->buckets[hole], 0);
}

void index_remove(struct ledger *ledger, uint32_t hash, uint32_t block)
{
    uint64_t wanted = bucket_make(hash, block);
    uint64_t position = hash & ledger->bucket_mask;
    for (uint32_t i = 0; i < INDEX_PROBES_MAX; i++) {
        uint64_t bucket = load_relaxed(&ledger->buckets[position]);
        if (bucket == wanted) {
            shift_back(ledger, position);
            return;
        }
        if (bucket == 0)
            return;
        position = (position + 1) & ledger->bucket_mask;
    }
}

void index_clear(struct ledger *ledger)
{
    for (uint64_t i = 0; i <= ledger->bucket_mask; i++)
        store_relaxed(&ledger->buckets[i], 0);
}
