/* Keys that all hash to one place: probes stay bounded and publishing is refused, not
 * wrong. Such keys exist only for one who knows the seed, as this program does. */
#include "engine.h"
#include "stress.h"

#define BLOCKS 512
#define KEY_SIZE 12
#define CROWD (INDEX_PROBES_MAX + 20)

static struct key colliding_key(const struct ledger *ledger, uint64_t *counter)
{
    for (;;) {
        unsigned char bytes[KEY_SIZE] = {0};
        ++*counter;
        for (int i = 0; i < 8; i++)
            bytes[i] = (unsigned char)(*counter >> 8 * i);
        struct key key = key_load(ledger, bytes);
        if ((key.hash & ledger->bucket_mask) == 7)
            return key;
    }
}

int main(void)
{
    const struct ledger_shape shape = {BLOCKS, KEY_SIZE, 99, 0};
    void *memory = zeroed_pages(ledger_bytes(&shape));
    struct ledger ledger = {0};
    struct engine engine;
    ledger_use(&ledger, memory, &shape, OWNER_ENGINE);
    CHECK(engine_init(&engine, &ledger));

    static uint64_t slots[CROWD];
    static struct key keys[CROWD];
    uint32_t evicted;
    uint64_t counter = 0;
    CHECK(engine_allocate(&engine, CROWD, BLOCK_LANDING, 0, slots, NULL, &evicted));
    for (int i = 0; i < CROWD; i++) {
        keys[i] = colliding_key(&ledger, &counter);
        CHECK(engine_publish(&engine, slots[i], &keys[i], false) ==
              (i < INDEX_PROBES_MAX ? PUBLISH_DONE : PUBLISH_CROWDED));
    }
    for (int i = 0; i < CROWD; i++)
        CHECK(table_find(&ledger, &keys[i]) ==
              (i < INDEX_PROBES_MAX ? slot_block(slots[i]) : NO_BLOCK));
    CHECK(table_count(&ledger).states[BLOCK_FREE] == BLOCKS - INDEX_PROBES_MAX);

    uint32_t blocks[INDEX_PROBES_MAX];
    for (int i = 0; i < INDEX_PROBES_MAX; i++)
        blocks[i] = slot_block(slots[i]);
    engine_retain(&engine, blocks, INDEX_PROBES_MAX, false);

    /* One leaves: the others are still found, and there is room for another. */
    CHECK(engine_free(&engine, slots[0]));
    for (int i = 1; i < INDEX_PROBES_MAX; i++)
        CHECK(table_find(&ledger, &keys[i]) == slot_block(slots[i]));
    CHECK(engine_allocate(&engine, 1, BLOCK_LANDING, 0, slots, NULL, &evicted));
    CHECK(engine_publish(&engine, slots[0], &keys[CROWD - 1], false) == PUBLISH_DONE);

    engine_destroy(&engine);
    free(memory);
    printf("ok\n");
    return 0;
}
