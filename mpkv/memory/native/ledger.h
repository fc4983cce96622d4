/* The ledger: what an engine and its helpers know together about the blocks of the tier.
 *
 * One segment: header, epoch and content, one page of counters per process role, one entry
 * per block, and the buckets of the key index. The engine alone writes states,
 * generations, keys and the index; pins and visited bytes have more writers.
 */
#ifndef MPKV_LEDGER_H
#define MPKV_LEDGER_H

#include <stdalign.h>
#include <stddef.h>

#include "atomics.h"
#include "segment.h"

#define LEDGER_BLOCKS_MAX (UINT32_C(1) << 28)
#define LEDGER_KEY_SIZE_MIN 5 /* at least one byte of hash before the 4-byte group index */
#define LEDGER_KEY_SIZE_MAX 64
#define LEDGER_KEY_WORDS_MAX (LEDGER_KEY_SIZE_MAX / 8)
#define LEDGER_ROLES 4
#define LEDGER_COUNTERS 512 /* per role: one page */
#define LEDGER_CONTENT_WORDS 2

#define NO_BLOCK UINT32_C(0xffffffff)
#define NO_SLOT UINT64_C(0xffffffffffffffff)

enum block_state {
    BLOCK_FREE = 0,
    BLOCK_LANDING = 1,
    BLOCK_FILLING = 2,
    BLOCK_READY = 3,
    BLOCK_DRAINING = 4,
};

/* The word of a block: generation(32) | state(8) | control pins(12) | engine pins(12). */
#define WORD_GENERATION_SHIFT 32
#define WORD_STATE_SHIFT 24
#define WORD_PINS_MASK UINT64_C(0xffffff)
#define WORD_PINS_MAX UINT64_C(0xfff)

/* An owner is the shift of its pin count in the word. */
enum pin_owner { OWNER_ENGINE = 0, OWNER_CONTROL = 12 };

/* Key bytes are kept in whole words, the rest of the last one zero, so that a reader can
 * race with the engine over them without a data race. */
struct block_entry {
    shared_u64 word;
    shared_u8 visited;
    alignas(8) shared_u64 key[];
};

struct ledger_shared {
    struct segment_header header;
    alignas(MPKV_LINE) shared_u64 epoch;
    /* The digest of the weights that the blocks of this epoch are of, good only while
     * `content_version` is odd: even says that it is not known. Never waited for. */
    shared_u64 content_version;
    shared_u64 content[LEDGER_CONTENT_WORDS];
    alignas(MPKV_LINE) shared_u64 published;
    alignas(4096) shared_u64 counters[LEDGER_ROLES][LEDGER_COUNTERS];
    alignas(4096) unsigned char entries[];
};

/* One process's view. Everything but the pointers' targets is private to it, so no one
 * can change sizes after they were checked. */
struct ledger {
    struct segment segment;
    struct ledger_shared *shared;
    unsigned char *entries;
    shared_u64 *buckets;
    uint64_t bucket_mask;
    uint64_t secrets[2 * LEDGER_KEY_WORDS_MAX]; /* of the index's hash, from the seed */
    uint32_t blocks;
    uint32_t key_size;
    uint32_t key_words;
    uint32_t entry_bytes;
    enum pin_owner owner;
};

struct ledger_shape {
    uint64_t blocks;
    uint64_t key_size;
    uint64_t seed;     /* random: nobody outside can choose keys that collide in the index */
    uint64_t counters; /* digest of the counters' names, so that equal positions mean them */
};

bool ledger_shape_valid(const struct ledger_shape *shape);
uint64_t ledger_bytes(const struct ledger_shape *shape);

/* The caller becomes the engine: the one writer. */
enum segment_result ledger_format(struct ledger *ledger, int fd, const struct ledger_shape *shape,
                                  struct refusal *why);

/* The caller becomes a reader that pins as the control plane. */
enum segment_result ledger_open(struct ledger *ledger, int fd, uint64_t counters,
                                struct refusal *why);

/* `base` must hold ledger_bytes(shape) bytes of a valid shape. For the two above and C tests. */
void ledger_use(struct ledger *ledger, void *base, const struct ledger_shape *shape,
                enum pin_owner owner);

/* The engine alone; NULL: not known. Killed in the middle, it leaves "not known". */
void ledger_write_content(struct ledger *ledger, const uint64_t *content);

/* False, and `content` means nothing, if it is not known or changes at this moment. */
bool ledger_read_content(const struct ledger *ledger, uint64_t *content);

static inline struct block_entry *entry_of(const struct ledger *ledger, uint32_t block)
{
    return (struct block_entry *)(ledger->entries + (uint64_t)block * ledger->entry_bytes);
}

static inline uint64_t word_make(uint32_t generation, enum block_state state, uint64_t pins)
{
    return (uint64_t)generation << WORD_GENERATION_SHIFT | (uint64_t)state << WORD_STATE_SHIFT |
           pins;
}

static inline uint32_t word_generation(uint64_t word)
{
    return (uint32_t)(word >> WORD_GENERATION_SHIFT);
}

static inline enum block_state word_state(uint64_t word)
{
    return (enum block_state)(word >> WORD_STATE_SHIFT & 0xff);
}

static inline uint64_t word_pins_of(uint64_t word, enum pin_owner owner)
{
    return word >> owner & WORD_PINS_MAX;
}

static inline uint64_t slot_make(uint32_t generation, uint32_t block)
{
    return (uint64_t)generation << 32 | block;
}

static inline uint32_t slot_block(uint64_t slot)
{
    return (uint32_t)slot;
}

static inline uint32_t slot_generation(uint64_t slot)
{
    return (uint32_t)(slot >> 32);
}

#endif
