/* An engine thread that allocates, publishes, evicts and frees, and reader threads that
 * pin as the control plane or look without pinning. The bytes of the blocks are plain
 * memory, so ThreadSanitizer proves that whoever reads a pinned block is ordered after
 * its publication and before its reuse. usage: table_stress SECONDS */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "engine.h"
#include "stress.h"

#define BLOCKS 16
#define KEYS 40
#define KEY_SIZE 36
#define BLOCK_WORDS 16
#define READERS 2

static struct ledger engine_side;
static uint64_t tier[BLOCKS][BLOCK_WORDS];
static double end_at;
static uint64_t published, pinned, missed, found;

static void key_bytes(uint64_t number, unsigned char bytes[KEY_SIZE])
{
    for (int i = 0; i < KEY_SIZE; i++)
        bytes[i] = (unsigned char)(number * 31 + (uint64_t)i * 7);
}

static struct key key_of(const struct ledger *ledger, uint64_t number)
{
    unsigned char bytes[KEY_SIZE];
    key_bytes(number, bytes);
    return key_load(ledger, bytes);
}

static void fill(uint64_t slot, uint64_t number)
{
    for (int i = 0; i < BLOCK_WORDS; i++)
        tier[slot_block(slot)][i] = number;
}

static void check_evicted(const unsigned char *evicted)
{
    unsigned char expected[KEY_SIZE];
    for (uint64_t number = 0; number < KEYS; number++) {
        key_bytes(number, expected);
        if (memcmp(expected, evicted, KEY_SIZE) == 0)
            return;
    }
    CHECK(!"an evicted key is one that was published");
}

static void engine_step(struct engine *engine, uint64_t *random)
{
    uint64_t slots[3];
    unsigned char evicted[3 * KEY_SIZE];
    uint32_t evictions = 0;
    uint32_t count = 1 + (uint32_t)(next_random(random) % 3);
    if (!engine_allocate(engine, count, BLOCK_FILLING, 1 + (uint32_t)(next_random(random) % 8),
                         slots, evicted, &evictions)) {
        usleep(10); /* everything is pinned */
        return;
    }
    for (uint32_t i = 0; i < evictions; i++)
        check_evicted(evicted + i * KEY_SIZE);
    uint32_t blocks[3], ready = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t number = next_random(random) % KEYS;
        struct key key = key_of(&engine_side, number);
        fill(slots[i], number);
        enum publish_result result = engine_publish(engine, slots[i], &key, false);
        CHECK(result == PUBLISH_DONE || result == PUBLISH_DUPLICATE);
        published += result == PUBLISH_DONE;
        if (result == PUBLISH_DONE)
            blocks[ready++] = slot_block(slots[i]);
    }
    engine_retain(engine, blocks, ready, next_random(random) % 2);
    engine_note_visits(engine, blocks, ready);
    if (next_random(random) % 4 == 0)
        (void)engine_free(engine, slots[0]);
    if (next_random(random) % 512 == 0)
        (void)engine_drop_ready(engine);
}

static void *run_engine(void *unused)
{
    (void)unused;
    struct engine engine;
    CHECK(engine_init(&engine, &engine_side));
    uint64_t random = 0x9e3779b97f4a7c15u;
    while (seconds() < end_at)
        engine_step(&engine, &random);
    engine_destroy(&engine);
    return NULL;
}

struct reader {
    pthread_t thread;
    struct ledger ledger;
    uint64_t random, pinned, missed, found;
};

static void reader_step(struct reader *reader)
{
    uint64_t number = next_random(&reader->random) % KEYS;
    struct key key = key_of(&reader->ledger, number);
    if (next_random(&reader->random) % 4 == 0) {
        reader->found += table_find(&reader->ledger, &key) != NO_BLOCK;
        return;
    }
    uint64_t slot = table_pin(&reader->ledger, &key);
    if (slot == NO_SLOT) {
        reader->missed++;
        return;
    }
    reader->pinned++;
    for (int i = 0; i < BLOCK_WORDS; i++)
        CHECK(tier[slot_block(slot)][i] == number);
    CHECK(table_unpin(&reader->ledger, slot));
}

static void *run_reader(void *argument)
{
    struct reader *reader = argument;
    while (seconds() < end_at)
        reader_step(reader);
    return NULL;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    end_at = seconds() + atof(argv[1]);
    const struct ledger_shape shape = {BLOCKS, KEY_SIZE, 12345, 0};
    void *memory = zeroed_pages(ledger_bytes(&shape));
    ledger_use(&engine_side, memory, &shape, OWNER_ENGINE);
    static struct reader readers[READERS];
    pthread_t engine;
    CHECK(pthread_create(&engine, NULL, run_engine, NULL) == 0);
    for (uint64_t i = 0; i < READERS; i++) {
        readers[i].random = 1000 + i;
        ledger_use(&readers[i].ledger, memory, &shape, OWNER_CONTROL);
        CHECK(pthread_create(&readers[i].thread, NULL, run_reader, &readers[i]) == 0);
    }
    CHECK(pthread_join(engine, NULL) == 0);
    for (int i = 0; i < READERS; i++) {
        CHECK(pthread_join(readers[i].thread, NULL) == 0);
        pinned += readers[i].pinned;
        missed += readers[i].missed;
        found += readers[i].found;
    }
    CHECK(published > 1000 && pinned > 1000 && missed > 0 && found > 0);
    CHECK(table_count(&engine_side).control_pins == 0);
    printf("%llu published, %llu pinned, %llu missed, %llu found\n",
           (unsigned long long)published, (unsigned long long)pinned,
           (unsigned long long)missed, (unsigned long long)found);
    free(memory);
    return 0;
}
