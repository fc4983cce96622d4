/* What the past says of how soon blocks of a class are used again.
 *
 * A *life* lasts from one use of a block to the next, whether the block stays in the tier
 * meanwhile or not. Of a sample of lives, chosen by the hash of the key, it is known at what
 * age they ended, or what age they have reached; the last REUSE_LIVES of them count. Ages are
 * numbers of blocks stored in the tier since, in buckets of a quarter of an octave.
 *
 * From there comes the *worth* of a block of some class and age: of all ages up to which it
 * could be kept, the best of expected uses over expected stay, per block stored. This is the
 * Gittins index (J. C. Gittins, 1979) of a job that may be dropped at any time.
 */
#ifndef MPKV_REUSE_H
#define MPKV_REUSE_H

#include <stdbool.h>
#include <stdint.h>

#define REUSE_CLASSES 10
#define REUSE_BY_USES 7 /* the first of them differ by how often their blocks were used */
#define REUSE_BUCKETS 96
#define REUSE_LIVES 32768 /* a power of two */
/* By hash: enough places that few lives are lost to others. */
#define REUSE_PLACES (8 * REUSE_LIVES)
#define NO_LIFE 0

struct life {
    uint32_t hash;
    uint32_t born;
    uint8_t class;
    uint8_t bucket; /* it ended in, or has reached */
    bool ended;
};

struct reuse {
    struct life *lives; /* a ring, by number */
    uint32_t *places;   /* the number of the last life of a key, by its hash */
    uint32_t next;      /* number of the next life; numbers begin at 1 */
    uint32_t now;       /* blocks ever stored; wraps */
    uint32_t blocks;
    uint32_t every;     /* one key in so many is in the sample; a power of two */
    uint32_t refresh_at;
    /* The next life to reach each bucket: lives are in the order of their birth. */
    uint32_t arriving[REUSE_BUCKETS];
    uint32_t open[REUSE_CLASSES][REUSE_BUCKETS];
    uint32_t ended[REUSE_CLASSES][REUSE_BUCKETS];
    float worth[REUSE_CLASSES][REUSE_BUCKETS];
};

/* `lives` has room for REUSE_LIVES, `places` for REUSE_PLACES zeros. */
void reuse_init(struct reuse *reuse, struct life *lives, uint32_t *places, uint32_t blocks);

/* Something with this key's hash is used, or stored: its last life ends, if one is known, and
 * another begins in `class`. */
void reuse_note(struct reuse *reuse, uint32_t hash, uint32_t class);

/* So many more blocks have been stored. */
void reuse_advance(struct reuse *reuse, uint32_t stored);

/* Of a block of `class` that was last used at `since`. */
float reuse_worth(const struct reuse *reuse, uint32_t class, uint32_t since);

#endif
