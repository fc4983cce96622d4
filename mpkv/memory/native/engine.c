#include "engine.h"

#include <stdlib.h>

/* While one tier is stored, every block is looked at so many times. */
#define LOOKS_A_BLOCK 4

bool engine_init(struct engine *engine, struct ledger *ledger)
{
    uint32_t blocks = ledger->blocks;
    *engine = (struct engine){
        .ledger = ledger,
        .blocks = calloc(blocks, sizeof *engine->blocks),
        .free = calloc(blocks, sizeof *engine->free),
        .draining = calloc(blocks, sizeof *engine->draining),
        .free_count = blocks,
    };
    if (!retention_init(&engine->retention, blocks) || engine->blocks == NULL ||
        engine->free == NULL || engine->draining == NULL) {
        engine_destroy(engine);
        return false;
    }
    for (uint32_t i = 0; i < blocks; i++)
        engine->free[i] = blocks - 1 - i; /* the first to be taken is block 0 */
    return true;
}

void engine_destroy(struct engine *engine)
{
    retention_destroy(&engine->retention);
    free(engine->blocks);
    free(engine->free);
    free(engine->draining);
    *engine = (struct engine){0};
}

static struct block_entry *entry(const struct engine *engine, uint32_t block)
{
    return entry_of(engine->ledger, block);
}

/* Only for blocks that nobody can pin at the moment: nobody else changes their words
 * (zeroing control pins, in another thread, finds none there). */
static void set_state(struct engine *engine, uint32_t block, enum block_state state)
{
    struct block_private *own = &engine->blocks[block];
    own->state = state;
    store_relaxed(&entry(engine, block)->word, word_make(own->generation, state, 0));
}

static void make_free(struct engine *engine, uint32_t block)
{
    set_state(engine, block, BLOCK_FREE);
    engine->free[engine->free_count++] = block;
}

static uint64_t take(struct engine *engine, uint32_t block, enum block_state state)
{
    uint32_t generation = ++engine->blocks[block].generation;
    set_state(engine, block, state);
    return slot_make(generation, block);
}

static void unindex(struct engine *engine, uint32_t block)
{
    index_remove(engine->ledger, engine->blocks[block].hash, block);
    retention_remove(&engine->retention, block);
}

/* READY to FREE, or to DRAINING while there are pins. */
static void retire(struct engine *engine, uint32_t block)
{
    struct block_private *own = &engine->blocks[block];
    struct block_entry *shared = entry(engine, block);
    uint64_t word = load_relaxed(&shared->word);
    uint64_t pins;
    do
        pins = word & WORD_PINS_MASK;
    while (!swap_if_acquire(&shared->word, &word, /* [UNPIN] as in evict_if_idle */
                            word_make(own->generation, BLOCK_DRAINING, pins)));
    if (pins == 0) {
        make_free(engine, block);
        return;
    }
    own->state = BLOCK_DRAINING;
    engine->draining[engine->draining_count++] = block;
}

static bool evict_if_idle(struct engine *engine, uint32_t block)
{
    uint32_t generation = engine->blocks[block].generation;
    uint64_t idle = word_make(generation, BLOCK_READY, 0);
    /* [UNPIN] Acquire: without it the next user's bytes could land under the eyes of the
     * last one. From here on no one can pin. */
    return swap_if_acquire(&entry(engine, block)->word, &idle,
                           word_make(generation, BLOCK_DRAINING, 0));
}

static void undo_eviction(struct engine *engine, uint32_t block)
{
    /* [READY] Release, as in engine_publish: the swap that took it away began anew. */
    store_release(&entry(engine, block)->word,
                  word_make(engine->blocks[block].generation, BLOCK_READY, 0));
}

/* What deciding about the block after the next one will read. */
static void prefetch_newer(const struct engine *engine, uint32_t block)
{
    const struct order_link *links = engine->retention.order.links;
    uint32_t next = links[block].newer;
    if (next == NO_BLOCK)
        return;
    __builtin_prefetch(entry(engine, next));
    if (links[next].newer != NO_BLOCK)
        __builtin_prefetch(entry(engine, links[next].newer));
}

enum verdict { GOES, WAS_VISITED, STAYS };

static enum verdict judge(struct engine *engine, uint32_t block, uint32_t owner)
{
    struct retention *retention = &engine->retention;
    shared_u8 *visited = &entry(engine, block)->visited;
    if (byte_load_relaxed(visited) != 0) {
        byte_store_relaxed(visited, 0);
        retention_used(retention, block);
        return WAS_VISITED;
    }
    if ((owner == 0 || retention->blocks[block].owner != owner) && evict_if_idle(engine, block))
        return GOES;
    retention_defer(retention, block);
    return STAYS;
}

/* What has been passed over in one class while blocks are sought. */
struct passed {
    uint32_t first[ORDER_CLASSES];
    uint32_t spared; /* classes that have nothing else: one bit each */
    uint64_t looks;
};

/* Take up to `count` blocks from the oldest of `class`, as long as they are of one age: what they
 * are worth is the same then. */
static uint32_t evict_of(struct engine *engine, uint32_t class, uint32_t count, uint32_t owner,
                         struct passed *passed, uint64_t *victims)
{
    struct retention *retention = &engine->retention;
    uint32_t block = retention->order.oldest[class];
    uint32_t since = retention->blocks[block].since;
    uint32_t found = 0;
    while (found < count && block != NO_BLOCK && retention->blocks[block].since == since) {
        if (block == passed->first[class]) {
            passed->spared |= 1U << class;
            break;
        }
        prefetch_newer(engine, block);
        passed->looks++;
        switch (judge(engine, block, owner)) {
        case GOES:
            retention_remove(retention, block);
            victims[found++] = block;
            break;
        case STAYS:
            if (passed->first[class] == NO_BLOCK)
                passed->first[class] = block;
            break;
        case WAS_VISITED:
            break;
        }
        block = retention->order.oldest[class];
    }
    return found;
}

static bool evict(struct engine *engine, uint32_t count, uint32_t owner, uint64_t *victims)
{
    struct retention *retention = &engine->retention;
    struct passed passed = {.looks = 0};
    for (uint32_t class = 0; class < ORDER_CLASSES; class++)
        passed.first[class] = NO_BLOCK;
    uint32_t found = 0;
    /* Others may visit as fast as this looks, and must not keep it here. */
    uint64_t most = 3 * (uint64_t)retention->order.length;
    while (found < count && passed.looks < most) {
        uint32_t class = retention_weakest(retention, passed.spared);
        if (class == ORDER_CLASSES)
            break;
        found += evict_of(engine, class, count - found, owner, &passed, victims + found);
    }
    if (found == count)
        return true;
    while (found > 0) {
        uint32_t block = (uint32_t)victims[--found];
        retention_restore(retention, block);
        undo_eviction(engine, block);
    }
    return false;
}

bool engine_allocate(struct engine *engine, uint32_t count, enum block_state state,
                     uint32_t owner, uint64_t *slots, unsigned char *evicted_keys,
                     uint32_t *evicted)
{
    if (count > engine->free_count)
        (void)engine_reclaim(engine);
    uint32_t from_free = count < engine->free_count ? count : engine->free_count;
    uint32_t victims = count - from_free;
    if (victims > engine->retention.order.length ||
        !evict(engine, victims, owner, slots + from_free))
        return false;
    for (uint32_t i = 0; i < victims; i++) {
        uint32_t block = (uint32_t)slots[from_free + i];
        table_copy_key(engine->ledger, block,
                       evicted_keys + (uint64_t)i * engine->ledger->key_size);
        index_remove(engine->ledger, engine->blocks[block].hash, block);
        retention_evicted(&engine->retention, block);
        slots[from_free + i] = take(engine, block, state);
    }
    for (uint32_t i = 0; i < from_free; i++)
        slots[i] = take(engine, engine->free[--engine->free_count], state);
    for (uint32_t i = 0; i < count; i++)
        retention_claim(&engine->retention, slot_block(slots[i]), owner);
    *evicted = victims;
    return true;
}

static bool ready_elsewhere(const struct engine *engine, const struct key *key)
{
    struct probe probe = probe_start(engine->ledger, key);
    uint32_t block;
    while ((block = probe_next(engine->ledger, &probe)) != NO_BLOCK)
        if (engine->blocks[block].state == BLOCK_READY &&
            entry_key_is(engine->ledger, entry(engine, block), key))
            return true;
    return false;
}

static bool in_hand(const struct engine *engine, uint64_t slot)
{
    uint32_t block = slot_block(slot);
    return block < engine->ledger->blocks &&
           engine->blocks[block].generation == slot_generation(slot);
}

static bool being_written(const struct engine *engine, uint64_t slot)
{
    if (!in_hand(engine, slot))
        return false;
    enum block_state state = engine->blocks[slot_block(slot)].state;
    return state == BLOCK_LANDING || state == BLOCK_FILLING;
}

enum publish_result engine_publish(struct engine *engine, uint64_t slot, const struct key *key,
                                   bool pin)
{
    if (!being_written(engine, slot))
        return PUBLISH_STALE;
    uint32_t block = slot_block(slot);
    if (ready_elsewhere(engine, key)) {
        make_free(engine, block);
        return PUBLISH_DUPLICATE;
    }
    if (!index_insert(engine->ledger, key->hash, block)) {
        make_free(engine, block);
        return PUBLISH_CROWDED;
    }
    struct block_private *own = &engine->blocks[block];
    struct block_entry *shared = entry(engine, block);
    /* [REUSE] Without the fence a reader could see the new key and still the word of the
     * block's previous life, and believe that the two belong together. */
    fence_release();
    for (uint32_t i = 0; i < engine->ledger->key_words; i++)
        store_relaxed(&shared->key[i], key->words[i]);
    byte_store_relaxed(&shared->visited, 0);
    own->hash = key->hash;
    own->state = BLOCK_READY;
    retention_name(&engine->retention, block, key->hash);
    /* [READY] Release: without it a reader could see READY before the key and the bytes. */
    store_release(&shared->word,
                  word_make(own->generation, BLOCK_READY, (uint64_t)pin << OWNER_ENGINE));
    /* [PUBLISHED] Release: who sees the new count must find the block READY. */
    store_release(&engine->ledger->shared->published, ++engine->published);
    return PUBLISH_DONE;
}

static bool take_visit(struct engine *engine, uint32_t block)
{
    shared_u8 *visited = &entry(engine, block)->visited;
    if (engine->blocks[block].state != BLOCK_READY || byte_load_relaxed(visited) == 0)
        return false;
    byte_store_relaxed(visited, 0);
    return true;
}

/* Peers' visits would else be found only where a block is about to go, long after. */
static void look_for_visits(struct engine *engine, uint32_t looks)
{
    for (; looks > 0; looks--) {
        uint32_t block = engine->looked_at;
        engine->looked_at = block + 1 < engine->ledger->blocks ? block + 1 : 0;
        if (take_visit(engine, block))
            retention_used(&engine->retention, block);
    }
}

void engine_retain(struct engine *engine, const uint32_t *blocks, uint32_t count, bool copies)
{
    retention_add(&engine->retention, blocks, count, copies);
    look_for_visits(engine, count * LOOKS_A_BLOCK);
}

void engine_note_visits(struct engine *engine, const uint32_t *blocks, size_t count)
{
    /* Backwards, so that a prompt's first blocks are used last. */
    for (size_t i = count; i-- > 0;) {
        if (!take_visit(engine, blocks[i]))
            continue;
        retention_continue(&engine->retention, blocks[i]);
        retention_used(&engine->retention, blocks[i]);
    }
}

bool engine_free(struct engine *engine, uint64_t slot)
{
    if (!in_hand(engine, slot))
        return false;
    uint32_t block = slot_block(slot);
    switch (engine->blocks[block].state) {
    case BLOCK_LANDING:
    case BLOCK_FILLING:
        make_free(engine, block);
        return true;
    case BLOCK_READY:
        unindex(engine, block);
        retire(engine, block);
        return true;
    default:
        return false;
    }
}

uint32_t engine_drop_ready(struct engine *engine)
{
    uint32_t dropped = 0;
    index_clear(engine->ledger);
    for (uint32_t class = 0; class < ORDER_CLASSES; class++) {
        uint32_t *oldest = &engine->retention.order.oldest[class];
        for (; *oldest != NO_BLOCK; dropped++) {
            uint32_t block = *oldest;
            retention_remove(&engine->retention, block);
            retire(engine, block);
        }
    }
    return dropped;
}

uint32_t engine_reclaim(struct engine *engine)
{
    uint32_t kept = 0;
    uint32_t before = engine->draining_count;
    for (uint32_t i = 0; i < before; i++) {
        uint32_t block = engine->draining[i];
        /* [UNPIN] Acquire, as in evict_if_idle. */
        if ((load_acquire(&entry(engine, block)->word) & WORD_PINS_MASK) == 0)
            make_free(engine, block);
        else
            engine->draining[kept++] = block;
    }
    engine->draining_count = kept;
    return before - kept;
}

uint64_t engine_zero_control_pins(struct engine *engine)
{
    uint64_t zeroed = 0;
    for (uint32_t block = 0; block < engine->ledger->blocks; block++) {
        /* Relaxed: the process whose pins these were is dead, it reads nothing more. */
        uint64_t word = and_relaxed(&entry(engine, block)->word,
                                    ~(WORD_PINS_MAX << OWNER_CONTROL));
        zeroed += word_pins_of(word, OWNER_CONTROL);
    }
    return zeroed;
}
