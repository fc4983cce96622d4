#include "index.h"

#include <string.h>

/* Steps of a 64-bit mixer (shift, multiply by an odd constant): a permutation in which
 * each input bit reaches about half of the output. Keys are mostly hashes already, but
 * keys of different groups differ in their last 4 bytes only, and a seed that nobody
 * outside knows keeps chosen keys from piling up. */
static uint64_t mix(uint64_t value)
{
    value ^= value >> 30;
    value *= UINT64_C(0xbf58476d1ce4e5b9);
    value ^= value >> 27;
    value *= UINT64_C(0x94d049bb133111eb);
    return value ^ value >> 31;
}

struct key key_load(const struct ledger *ledger, const void *bytes)
{
    struct key key = {0};
    memcpy(key.words, bytes, ledger->key_size);
    uint64_t hash = ledger->seed;
    for (uint32_t i = 0; i < ledger->key_words; i++)
        hash = mix(hash ^ key.words[i]);
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
