#include "reuse.h"

#include <string.h>

/* Buckets: one below the first age, then four for each octave. */
#define FIRST_AGE 64
#define FIRST_OCTAVE 6
#define PER_OCTAVE 4
/* In lives: what is believed beforehand weighs as much as so many that were seen. */
#define PRIOR_WEIGHT 12.0
/* Uses that a tier as large as this expects of a block while one tier of others is stored. */
#define PRIOR_USES 0.30
/* Lives are followed for so many tiers of stored blocks. */
#define HORIZON 16
#define REFRESHES 16 /* while one tier is stored */
#define REFRESH_LEAST 256
#define SAMPLE_SHIFT 12
#define PLACE_SHIFT 14 /* leaves the bits of REUSE_PLACES */

_Static_assert(UINT32_C(1) << (32 - PLACE_SHIFT) == REUSE_PLACES, "a place for each hash");

static uint32_t bucket_of(uint32_t age)
{
    if (age < FIRST_AGE)
        return 0;
    uint32_t octave = 31 - (uint32_t)__builtin_clz(age);
    uint32_t bucket =
        (octave - FIRST_OCTAVE) * PER_OCTAVE + (age >> (octave - 2) & (PER_OCTAVE - 1)) + 1;
    return bucket < REUSE_BUCKETS ? bucket : REUSE_BUCKETS - 1;
}

static uint32_t age_at(uint32_t bucket)
{
    if (bucket == 0)
        return 0;
    uint32_t octave = FIRST_OCTAVE + (bucket - 1) / PER_OCTAVE;
    return (PER_OCTAVE + (bucket - 1) % PER_OCTAVE) << (octave - 2);
}

static struct life *life_of(const struct reuse *reuse, uint32_t number)
{
    return &reuse->lives[number & (REUSE_LIVES - 1)];
}

/* --- worth ------------------------------------------------------------------------------ */

/* Uses and stay, from the birth of a life to the beginning of each bucket. */
struct course {
    double uses[REUSE_BUCKETS];
    double stay[REUSE_BUCKETS];
    uint32_t length;
};

static void follow(const struct reuse *reuse, uint32_t class, struct course *course)
{
    double left = 1.0, beyond = 0.0;
    for (uint32_t b = 0; b < REUSE_BUCKETS; b++)
        beyond += reuse->open[class][b] + reuse->ended[class][b];
    course->uses[0] = course->stay[0] = 0.0;
    course->length = 1;
    for (uint32_t b = 0; b + 1 < REUSE_BUCKETS && age_at(b) <= HORIZON * (double)reuse->blocks;
         b++) {
        double width = (double)age_at(b + 1) - age_at(b);
        double ended = reuse->ended[class][b], open = reuse->open[class][b];
        beyond -= ended + open;
        double expected = PRIOR_USES * width /
                          (age_at(b) + width / 2 + 0.5 * reuse->blocks);
        if (expected > 0.9)
            expected = 0.9;
        /* Those that are in the bucket just now count as half of one that went through. */
        double used = (ended + PRIOR_WEIGHT * expected) /
                      (beyond + ended + 0.5 * open + PRIOR_WEIGHT);
        course->uses[b + 1] = course->uses[b] + left * used;
        course->stay[b + 1] = course->stay[b] + left * (1 - used / 2) * width;
        left *= 1 - used;
        course->length = b + 2;
    }
}

static double slope(const struct course *course, uint32_t from, uint32_t to)
{
    return (course->uses[to] - course->uses[from]) / (course->stay[to] - course->stay[from]);
}

/* The steepest slope from each point to a later one leads to the upper hull of those. */
static void weigh(struct reuse *reuse, uint32_t class)
{
    struct course course;
    uint32_t hull[REUSE_BUCKETS], top = 0;
    follow(reuse, class, &course);
    hull[0] = course.length - 1;
    for (uint32_t b = course.length; b < REUSE_BUCKETS; b++)
        reuse->worth[class][b] = 0.0F;
    reuse->worth[class][course.length - 1] = 0.0F;
    for (uint32_t b = course.length - 1; b-- > 0;) {
        while (top > 0 && slope(&course, b, hull[top]) <= slope(&course, hull[top], hull[top - 1]))
            top--;
        reuse->worth[class][b] = (float)slope(&course, b, hull[top]);
        hull[++top] = b;
    }
}

static void refresh(struct reuse *reuse)
{
    uint32_t wait = reuse->blocks / REFRESHES;
    reuse->refresh_at = reuse->now + (wait > REFRESH_LEAST ? wait : REFRESH_LEAST);
    for (uint32_t class = 0; class < REUSE_CLASSES; class++)
        weigh(reuse, class);
    /* A prompt's first blocks are used at least as often as those after them. Were they ever
     * worth less, by chance, they would go first, and make the others useless. */
    for (uint32_t class = 1; class < REUSE_BY_USES; class++)
        for (uint32_t b = 0; b < REUSE_BUCKETS; b++)
            if (reuse->worth[class][b] < reuse->worth[class - 1][b])
                reuse->worth[class][b] = reuse->worth[class - 1][b];
}

float reuse_worth(const struct reuse *reuse, uint32_t class, uint32_t since)
{
    return reuse->worth[class][bucket_of(reuse->now - since)];
}

/* --- lives ------------------------------------------------------------------------------ */

static void forget_all(struct reuse *reuse)
{
    memset(reuse->open, 0, sizeof reuse->open);
    memset(reuse->ended, 0, sizeof reuse->ended);
    memset(reuse->places, 0, REUSE_PLACES * sizeof *reuse->places);
    reuse->next = NO_LIFE + 1;
    for (uint32_t b = 0; b < REUSE_BUCKETS; b++)
        reuse->arriving[b] = reuse->next;
}

void reuse_init(struct reuse *reuse, struct life *lives, uint32_t *places, uint32_t blocks)
{
    *reuse = (struct reuse){.lives = lives, .places = places, .blocks = blocks, .every = 1};
    while ((uint64_t)reuse->every * REUSE_LIVES < (uint64_t)HORIZON * blocks)
        reuse->every *= 2;
    forget_all(reuse);
    refresh(reuse);
}

static void forget_oldest(struct reuse *reuse)
{
    uint32_t number = reuse->next - REUSE_LIVES;
    struct life *life = life_of(reuse, number);
    (life->ended ? reuse->ended : reuse->open)[life->class][life->bucket]--;
    for (uint32_t b = REUSE_BUCKETS - 1; b > 0 && reuse->arriving[b] == number; b--)
        reuse->arriving[b]++;
}

static void end(struct reuse *reuse, struct life *life)
{
    reuse->open[life->class][life->bucket]--;
    life->ended = true;
    life->bucket = (uint8_t)bucket_of(reuse->now - life->born);
    reuse->ended[life->class][life->bucket]++;
}

void reuse_note(struct reuse *reuse, uint32_t hash, uint32_t class)
{
    /* The low bits say where in the index the key is. */
    if ((hash >> SAMPLE_SHIFT & (reuse->every - 1)) != 0)
        return;
    if (reuse->next == NO_LIFE) /* the numbers are used up */
        forget_all(reuse);
    uint32_t *place = &reuse->places[hash * UINT32_C(0x9e3779b1) >> PLACE_SHIFT];
    struct life *last = life_of(reuse, *place);
    bool known = *place != NO_LIFE && reuse->next - *place <= REUSE_LIVES;
    if (known && last->hash == hash && !last->ended)
        end(reuse, last);
    if (reuse->next > REUSE_LIVES)
        forget_oldest(reuse);
    *life_of(reuse, reuse->next) =
        (struct life){.hash = hash, .born = reuse->now, .class = (uint8_t)class};
    reuse->open[class][0]++;
    *place = reuse->next++;
}

/* Each life passes each bucket once, so this is a bounded share of the work of its birth. */
static void arrive(struct reuse *reuse, uint32_t bucket)
{
    uint32_t age = age_at(bucket);
    uint32_t *number = &reuse->arriving[bucket];
    for (; *number != reuse->next; ++*number) {
        struct life *life = life_of(reuse, *number);
        if (reuse->now - life->born < age)
            return;
        if (life->ended)
            continue;
        reuse->open[life->class][life->bucket]--;
        life->bucket = (uint8_t)bucket;
        reuse->open[life->class][bucket]++;
    }
}

void reuse_advance(struct reuse *reuse, uint32_t stored)
{
    reuse->now += stored;
    /* Upwards: a life reaches one bucket after the other. */
    for (uint32_t b = 1; b < REUSE_BUCKETS; b++)
        arrive(reuse, b);
    if ((int32_t)(reuse->now - reuse->refresh_at) >= 0)
        refresh(reuse);
}
