#include "table.h"

#include <string.h>

bool entry_key_is(const struct ledger *ledger, const struct block_entry *entry,
                  const struct key *key)
{
    uint64_t difference = 0;
    for (uint32_t i = 0; i < ledger->key_words; i++)
        difference |= load_relaxed(&entry->key[i]) ^ key->words[i];
    return difference == 0;
}

static bool ready_under(const struct ledger *ledger, const struct block_entry *entry,
                        const struct key *key)
{
    /* [READY] Acquire: without it the key could be read from before its publication. */
    uint64_t before = load_acquire(&entry->word);
    if (word_state(before) != BLOCK_READY || !entry_key_is(ledger, entry, key))
        return false;
    /* [REUSE] Without the fence the word could be read before the key, and a key that the
     * engine wrote meanwhile would count for the old generation. */
    fence_acquire();
    uint64_t after = load_relaxed(&entry->word);
    return ((before ^ after) & ~WORD_PINS_MASK) == 0;
}

uint32_t table_find(const struct ledger *ledger, const struct key *key)
{
    struct probe probe = probe_start(ledger, key);
    uint32_t block;
    while ((block = probe_next(ledger, &probe)) != NO_BLOCK)
        if (ready_under(ledger, entry_of(ledger, block), key))
            return block;
    return NO_BLOCK;
}

static bool pin_while_ready(const struct ledger *ledger, struct block_entry *entry,
                            uint64_t *word)
{
    *word = load_relaxed(&entry->word);
    /* Each failed swap means that another process got something done, and the engine
     * moves on; a count at its limit must not carry into its neighbour. */
    while (word_state(*word) == BLOCK_READY &&
           word_pins_of(*word, ledger->owner) < WORD_PINS_MAX)
        /* [READY] Acquire: without it the key, and the block's bytes, could be read from
         * before the publication. */
        if (swap_if_acquire(&entry->word, word, *word + (UINT64_C(1) << ledger->owner)))
            return true;
    return false;
}

static void mark_visited(struct block_entry *entry)
{
    /* Read first: a store would take the line away from others each time. */
    if (byte_load_relaxed(&entry->visited) == 0)
        byte_store_relaxed(&entry->visited, 1);
}

uint64_t table_pin(const struct ledger *ledger, const struct key *key)
{
    struct probe probe = probe_start(ledger, key);
    uint32_t block;
    while ((block = probe_next(ledger, &probe)) != NO_BLOCK) {
        struct block_entry *entry = entry_of(ledger, block);
        uint64_t word;
        if (!pin_while_ready(ledger, entry, &word))
            continue;
        uint64_t slot = slot_make(word_generation(word), block);
        /* Stable from here on: the engine writes keys only of blocks that nobody pins. */
        if (entry_key_is(ledger, entry, key)) {
            mark_visited(entry);
            return slot;
        }
        (void)table_unpin(ledger, slot); /* the engine may have freed it: then it drains */
    }
    return NO_SLOT;
}

bool table_pin_slot(const struct ledger *ledger, uint64_t slot)
{
    if (slot_block(slot) >= ledger->blocks)
        return false;
    uint64_t word;
    if (!pin_while_ready(ledger, entry_of(ledger, slot_block(slot)), &word))
        return false;
    if (word_generation(word) == slot_generation(slot))
        return true;
    (void)table_unpin(ledger, slot_make(word_generation(word), slot_block(slot)));
    return false;
}

uint64_t table_ready_slot(const struct ledger *ledger, uint32_t block)
{
    uint64_t word = load_relaxed(&entry_of(ledger, block)->word);
    return word_state(word) == BLOCK_READY ? slot_make(word_generation(word), block) : NO_SLOT;
}

void table_copy_key(const struct ledger *ledger, uint32_t block, unsigned char *out)
{
    uint64_t words[LEDGER_KEY_WORDS_MAX];
    for (uint32_t i = 0; i < ledger->key_words; i++)
        words[i] = load_relaxed(&entry_of(ledger, block)->key[i]);
    memcpy(out, words, ledger->key_size);
}

bool table_unpin(const struct ledger *ledger, uint64_t slot)
{
    if (slot_block(slot) >= ledger->blocks)
        return false;
    struct block_entry *entry = entry_of(ledger, slot_block(slot));
    uint64_t word = load_relaxed(&entry->word);
    while (word_generation(word) == slot_generation(slot) &&
           word_pins_of(word, ledger->owner) > 0)
        /* [UNPIN] Release: without it the engine could give the block away, and have it
         * overwritten, before our last look at its bytes. */
        if (swap_if_release(&entry->word, &word, word - (UINT64_C(1) << ledger->owner)))
            return true;
    return false;
}

uint32_t table_touch(const struct ledger *ledger, const struct key *key)
{
    uint32_t block = table_find(ledger, key);
    if (block != NO_BLOCK)
        mark_visited(entry_of(ledger, block));
    return block;
}

struct table_counts table_count(const struct ledger *ledger)
{
    struct table_counts counts = {0};
    for (uint32_t block = 0; block < ledger->blocks; block++) {
        uint64_t word = load_relaxed(&entry_of(ledger, block)->word);
        if (word_state(word) <= BLOCK_DRAINING)
            counts.states[word_state(word)]++;
        counts.control_pins += word_pins_of(word, OWNER_CONTROL);
        counts.engine_pins += word_pins_of(word, OWNER_ENGINE);
    }
    return counts;
}
