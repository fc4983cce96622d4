#include "retention.h"

#include <stdlib.h>

/* What follows used blocks is a short tail up to so many. */
#define FEW 5
/* Lookup, load and store of one request name a block several times. */
#define SAME_USE_SHARE 64
#define SAME_USE_LEAST 16
#define BATCH_ENDS 1024
#define GHOSTS_AHEAD 8

bool retention_init(struct retention *retention, uint32_t blocks)
{
    struct order_link *links = calloc(blocks, sizeof *links);
    struct life *lives = calloc(REUSE_LIVES, sizeof *lives);
    uint32_t *places = calloc(REUSE_PLACES, sizeof *places);
    uint32_t *ghosts = calloc(ghosts_places(blocks), sizeof *ghosts);
    uint32_t same_use = blocks / SAME_USE_SHARE;
    *retention = (struct retention){
        .blocks = calloc(blocks, sizeof *retention->blocks),
        .ends = calloc(BATCH_ENDS, sizeof *retention->ends),
        .gone = calloc(blocks, sizeof *retention->gone),
        .gone_size = blocks,
        .same_use = same_use > SAME_USE_LEAST ? same_use : SAME_USE_LEAST,
    };
    order_init(&retention->order, links);
    ghosts_init(&retention->ghosts, ghosts, blocks);
    retention->reuse.lives = lives;
    retention->reuse.places = places;
    if (links != NULL && lives != NULL && places != NULL && ghosts != NULL &&
        retention->blocks != NULL && retention->ends != NULL && retention->gone != NULL) {
        reuse_init(&retention->reuse, lives, places, blocks);
        return true;
    }
    retention_destroy(retention);
    return false;
}

void retention_destroy(struct retention *retention)
{
    free(retention->order.links);
    free(retention->reuse.lives);
    free(retention->reuse.places);
    free(retention->ghosts.places);
    free(retention->blocks);
    free(retention->ends);
    free(retention->gone);
    *retention = (struct retention){0};
}

void retention_claim(struct retention *retention, uint32_t block, uint32_t owner)
{
    retention->blocks[block].owner = owner;
}

void retention_name(struct retention *retention, uint32_t block, uint32_t hash)
{
    retention->blocks[block].hash = hash;
}

/* --- blocks that come ------------------------------------------------------------------- */

/* The newest block of each class after which the next one of a batch comes to stand. */
struct places {
    uint32_t before[ORDER_CLASSES];
};

static void enlist(struct retention *retention, uint32_t block, uint32_t class,
                   struct places *places)
{
    struct retained *own = &retention->blocks[block];
    own->class = (uint8_t)class;
    own->listed = true;
    if (places->before[class] == NO_BLOCK)
        order_add_newest(&retention->order, class, block);
    else
        order_add_older(&retention->order, class, block, places->before[class]);
    places->before[class] = block;
}

static bool is_in(const struct retention *retention, uint32_t block, uint32_t owner,
                  uint32_t class)
{
    const struct retained *own = &retention->blocks[block];
    return own->listed && own->owner == owner && own->class == class;
}

static bool is_first_use(uint32_t class)
{
    return class == CLASS_FRESH || class == CLASS_SHORT_TAIL || class == CLASS_LONG_TAIL;
}

/* An owner's batches are one prompt: the next one goes where the last one ended, and where
 * that ended is no end any more. Return the class of its blocks. */
static uint32_t follow_up(struct retention *retention, uint32_t owner, uint32_t count,
                          struct places *places)
{
    const struct batch_end *end = &retention->ends[owner % BATCH_ENDS];
    uint32_t class = CLASS_FRESH;
    if (retention->used_since_add > 1)
        class = count <= FEW ? CLASS_SHORT_TAIL : CLASS_LONG_TAIL;
    if (owner == 0 || end->owner != owner)
        return class;
    uint32_t body_class = retention->blocks[end->body].class;
    if (is_first_use(body_class) && is_in(retention, end->body, owner, body_class)) {
        class = body_class;
        places->before[class] = end->body;
    }
    if (end->last != end->body && is_in(retention, end->last, owner, CLASS_LAST)) {
        order_remove(&retention->order, CLASS_LAST, end->last);
        enlist(retention, end->last, class, places);
    }
    return class;
}

static uint32_t class_of_uses(uint32_t uses)
{
    /* The first was the store. */
    return uses - 1 < CLASS_USED_OFTEN ? uses - 1 : CLASS_USED_OFTEN;
}

/* Not at the eviction, which somebody waits for. */
static void remember_the_gone(struct retention *retention)
{
    for (uint32_t i = 0; i < retention->gone_count; i++)
        ghosts_add(&retention->ghosts, retention->gone[i].hash, retention->gone[i].uses);
    retention->gone_count = 0;
}

/* A block was used at least as often as those that follow it: what is forgotten of one is known
 * of another. Without this a forgotten block is a hole in a prompt soon. */
static void recall_uses(struct retention *retention, const uint32_t *blocks, uint32_t count)
{
    uint32_t uses = 0;
    for (uint32_t i = count; i-- > 0;) {
        if (i >= GHOSTS_AHEAD)
            ghosts_prefetch(&retention->ghosts, retention->blocks[blocks[i - GHOSTS_AHEAD]].hash);
        struct retained *own = &retention->blocks[blocks[i]];
        uint32_t known = ghosts_uses(&retention->ghosts, own->hash);
        uses = known > uses ? known : uses;
        own->uses = (uint8_t)(uses + 1);
    }
}

static void add(struct retention *retention, uint32_t block, uint32_t class,
                struct places *places)
{
    struct retained *own = &retention->blocks[block];
    if (class == CLASS_COPY)
        own->uses = 0;
    else if (own->uses > 1)
        class = class_of_uses(own->uses);
    enlist(retention, block, class, places);
    own->since = retention->reuse.now;
    if (class != CLASS_COPY)
        reuse_note(&retention->reuse, own->hash, class);
}

void retention_add(struct retention *retention, const uint32_t *blocks, uint32_t count,
                   bool copies)
{
    if (count == 0)
        return;
    struct places places;
    for (uint32_t class = 0; class < ORDER_CLASSES; class++)
        places.before[class] = NO_BLOCK;
    uint32_t owner = retention->blocks[blocks[0]].owner;
    uint32_t class = copies ? CLASS_COPY : follow_up(retention, owner, count, &places);
    reuse_advance(&retention->reuse, count);
    remember_the_gone(retention);
    recall_uses(retention, blocks, count);
    for (uint32_t i = 0; i < count; i++) {
        bool last = i + 1 == count && !copies;
        add(retention, blocks[i], last ? CLASS_LAST : class, &places);
    }
    if (owner != 0)
        retention->ends[owner % BATCH_ENDS] =
            (struct batch_end){owner, blocks[count > 1 ? count - 2 : 0], blocks[count - 1]};
    retention->used_since_add = 0;
}

/* --- blocks that are used --------------------------------------------------------------- */

static void move_to(struct retention *retention, uint32_t block, uint32_t class)
{
    struct retained *own = &retention->blocks[block];
    order_remove(&retention->order, own->class, block);
    own->class = (uint8_t)class;
    order_add_newest(&retention->order, class, block);
}

void retention_continue(struct retention *retention, uint32_t block)
{
    retention->used_since_add += retention->blocks[block].since != retention->reuse.now;
}

void retention_used(struct retention *retention, uint32_t block)
{
    struct retained *own = &retention->blocks[block];
    bool same_use = retention->reuse.now - own->since < retention->same_use;
    own->since = retention->reuse.now;
    if (own->uses == 0) { /* a copy, by the request that had it pulled */
        own->uses = 1;
        move_to(retention, block, CLASS_COPY);
        return;
    }
    if (same_use) {
        move_to(retention, block, own->class);
        return;
    }
    own->uses += own->uses < UINT8_MAX;
    move_to(retention, block, class_of_uses(own->uses));
    reuse_note(&retention->reuse, own->hash, own->class);
}

void retention_defer(struct retention *retention, uint32_t block)
{
    move_to(retention, block, retention->blocks[block].class);
}

/* --- blocks that go --------------------------------------------------------------------- */

/* What is worth the same and as old goes in this order: what follows before what it follows. */
static const uint8_t by_rank[REUSE_CLASSES] = {
    CLASS_LAST, CLASS_LONG_TAIL, CLASS_SHORT_TAIL, CLASS_FRESH, 1, 2, 3, 4, 5, CLASS_USED_OFTEN,
};

uint32_t retention_weakest(const struct retention *retention, uint32_t spared)
{
    const struct order *order = &retention->order;
    uint32_t weakest = ORDER_CLASSES, longest = 0;
    float least = 0.0F;
    if (order->oldest[CLASS_COPY] != NO_BLOCK && !(spared >> CLASS_COPY & 1))
        return CLASS_COPY;
    for (uint32_t rank = 0; rank < REUSE_CLASSES; rank++) {
        uint32_t class = by_rank[rank], block = order->oldest[class];
        if (block == NO_BLOCK || spared >> class & 1)
            continue;
        uint32_t since = retention->blocks[block].since, age = retention->reuse.now - since;
        float worth = reuse_worth(&retention->reuse, class, since);
        if (weakest == ORDER_CLASSES || worth < least || (worth == least && age > longest)) {
            weakest = class;
            least = worth;
            longest = age;
        }
    }
    return weakest;
}

void retention_remove(struct retention *retention, uint32_t block)
{
    order_remove(&retention->order, retention->blocks[block].class, block);
    retention->blocks[block].listed = false;
}

void retention_restore(struct retention *retention, uint32_t block)
{
    order_add_oldest(&retention->order, retention->blocks[block].class, block);
    retention->blocks[block].listed = true;
}

void retention_evicted(struct retention *retention, uint32_t block)
{
    const struct retained *own = &retention->blocks[block];
    if (own->class != CLASS_COPY && retention->gone_count < retention->gone_size)
        retention->gone[retention->gone_count++] = (struct gone){own->hash, own->uses};
}
