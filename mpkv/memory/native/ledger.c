#include "ledger.h"

#include <inttypes.h>

static uint64_t ledger_layout(void)
{
    const uint64_t numbers[] = {
        sizeof(struct ledger_shared),
        offsetof(struct ledger_shared, epoch),
        offsetof(struct ledger_shared, content_version),
        offsetof(struct ledger_shared, content),
        LEDGER_CONTENT_WORDS,
        offsetof(struct ledger_shared, published),
        offsetof(struct ledger_shared, counters),
        offsetof(struct ledger_shared, entries),
        LEDGER_ROLES,
        LEDGER_COUNTERS,
        sizeof(struct block_entry),
        offsetof(struct block_entry, visited),
        offsetof(struct block_entry, key),
        WORD_GENERATION_SHIFT,
        WORD_STATE_SHIFT,
        OWNER_ENGINE,
        OWNER_CONTROL,
        BLOCK_LANDING,
        BLOCK_FILLING,
        BLOCK_READY,
        BLOCK_DRAINING,
    };
    return segment_digest(numbers, sizeof numbers / sizeof *numbers);
}

static uint64_t key_words(uint64_t key_size)
{
    return (key_size + 7) / 8;
}

/* Whole cache lines, so that pinning one block never disturbs its neighbour. */
static uint64_t entry_bytes(uint64_t key_size)
{
    return (sizeof(struct block_entry) + 8 * key_words(key_size) + 63) & ~UINT64_C(63);
}

/* A power of two, at least twice the blocks: the index is at most half full. */
static uint64_t bucket_count(uint64_t blocks)
{
    uint64_t count = 8;
    while (count < 2 * blocks)
        count *= 2;
    return count;
}

/* A permutation of 64 bits in which each input bit reaches about half of the output. */
static uint64_t mix(uint64_t value)
{
    value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
    return value ^ value >> 31;
}

bool ledger_shape_valid(const struct ledger_shape *shape)
{
    return shape->blocks >= 1 && shape->blocks <= LEDGER_BLOCKS_MAX &&
           shape->key_size >= LEDGER_KEY_SIZE_MIN && shape->key_size <= LEDGER_KEY_SIZE_MAX;
}

uint64_t ledger_bytes(const struct ledger_shape *shape)
{
    return sizeof(struct ledger_shared) + shape->blocks * entry_bytes(shape->key_size) +
           8 * bucket_count(shape->blocks);
}

void ledger_use(struct ledger *ledger, void *base, const struct ledger_shape *shape,
                enum pin_owner owner)
{
    ledger->shared = base;
    ledger->blocks = (uint32_t)shape->blocks;
    ledger->key_size = (uint32_t)shape->key_size;
    ledger->key_words = (uint32_t)key_words(shape->key_size);
    ledger->entry_bytes = (uint32_t)entry_bytes(shape->key_size);
    ledger->entries = ledger->shared->entries;
    ledger->buckets = (shared_u64 *)(ledger->entries + shape->blocks * ledger->entry_bytes);
    ledger->bucket_mask = bucket_count(shape->blocks) - 1;
    ledger->owner = owner;
    for (uint32_t i = 0; i < 2 * LEDGER_KEY_WORDS_MAX; i++)
        ledger->secrets[i] = mix(shape->seed + i * UINT64_C(0x9e3779b97f4a7c15));
}

enum segment_result ledger_format(struct ledger *ledger, int fd, const struct ledger_shape *shape,
                                  struct refusal *why)
{
    const uint64_t parameters[SEGMENT_PARAMETERS] = {shape->blocks, shape->key_size, shape->seed,
                                                     shape->counters};
    enum segment_result result =
        segment_format(fd, SEGMENT_LEDGER, ledger_layout(), ledger_bytes(shape), parameters,
                       &ledger->segment, why);
    if (result == SEGMENT_OK)
        ledger_use(ledger, ledger->segment.base, shape, OWNER_ENGINE);
    return result;
}

static bool shape_fits(const struct ledger_shape *shape, uint64_t size, uint64_t counters,
                       struct refusal *why)
{
    if (!ledger_shape_valid(shape) || ledger_bytes(shape) != size)
        refuse(why,
               "Expected a ledger whose blocks and key size fill its %" PRIu64
               " bytes, found %" PRIu64 " blocks with keys of %" PRIu64
               " bytes; have its owner make it again.",
               size, shape->blocks, shape->key_size);
    else if (shape->counters != counters)
        refuse(why,
               "Expected counter names of digest %016" PRIx64 ", found %016" PRIx64
               "; start every mpkv process of this engine from the same installation.",
               counters, shape->counters);
    else
        return true;
    return false;
}

enum segment_result ledger_open(struct ledger *ledger, int fd, uint64_t counters,
                                struct refusal *why)
{
    enum segment_result result =
        segment_open(fd, SEGMENT_LEDGER, ledger_layout(), &ledger->segment, why);
    if (result != SEGMENT_OK)
        return result;
    const uint64_t *parameters = ledger->segment.header.parameters;
    const struct ledger_shape shape = {parameters[0], parameters[1], parameters[2], parameters[3]};
    if (shape_fits(&shape, ledger->segment.header.size, counters, why)) {
        ledger_use(ledger, ledger->segment.base, &shape, OWNER_CONTROL);
        return SEGMENT_OK;
    }
    return segment_close(&ledger->segment) == 0 ? SEGMENT_REFUSED : SEGMENT_ERRNO;
}

void ledger_write_content(struct ledger *ledger, const uint64_t *content)
{
    struct ledger_shared *shared = ledger->shared;
    /* Only the engine writes it, so what it reads here is what it wrote last. */
    uint64_t unknown = (load_relaxed(&shared->content_version) + 1) & ~UINT64_C(1);
    /* Also ordered before the next epoch by [EPOCH]: nobody who sees that finds this content. */
    store_relaxed(&shared->content_version, unknown);
    if (content == NULL)
        return;
    /* [CONTENT] Else a reader could take a new word for one of the version before. */
    fence_release();
    for (uint32_t i = 0; i < LEDGER_CONTENT_WORDS; i++)
        store_relaxed(&shared->content[i], content[i]);
    store_release(&shared->content_version, unknown + 1); /* [CONTENT] */
}

bool ledger_read_content(const struct ledger *ledger, uint64_t *content)
{
    const struct ledger_shared *shared = ledger->shared;
    uint64_t version = load_acquire(&shared->content_version); /* [CONTENT] */
    for (uint32_t i = 0; i < LEDGER_CONTENT_WORDS; i++)
        content[i] = load_relaxed(&shared->content[i]);
    fence_acquire(); /* [CONTENT] */
    /* One that changes meanwhile is not known: nobody here waits for a writer. */
    return (version & 1) != 0 && load_relaxed(&shared->content_version) == version;
}
