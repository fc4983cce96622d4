#include "ring.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

static uint64_t ring_layout(void)
{
    const uint64_t numbers[] = {
        sizeof(struct ring_shared),
        offsetof(struct ring_shared, producer_pid),
        offsetof(struct ring_shared, consumer_pid),
        offsetof(struct ring_shared, tail),
        offsetof(struct ring_shared, head),
        offsetof(struct ring_shared, sleeping),
        offsetof(struct ring_shared, records),
        RING_RECORD_HEADER,
    };
    return segment_digest(numbers, sizeof numbers / sizeof *numbers);
}

bool ring_capacity_valid(uint64_t capacity)
{
    return capacity >= RING_CAPACITY_MIN && capacity <= RING_CAPACITY_MAX &&
           (capacity & (capacity - 1)) == 0;
}

uint64_t ring_bytes(uint64_t capacity)
{
    return offsetof(struct ring_shared, records) + capacity;
}

uint64_t ring_max_record(const struct ring *ring)
{
    return ring->capacity - RING_RECORD_HEADER;
}

void ring_use(struct ring *ring, struct ring_shared *shared, uint64_t capacity)
{
    ring->shared = shared;
    ring->capacity = capacity;
}

enum segment_result ring_format(struct ring *ring, int fd, uint64_t capacity, struct refusal *why)
{
    const uint64_t parameters[SEGMENT_PARAMETERS] = {capacity};
    enum segment_result result = segment_format(fd, SEGMENT_RING, ring_layout(),
                                                ring_bytes(capacity), parameters,
                                                &ring->segment, why);
    if (result == SEGMENT_OK)
        ring_use(ring, ring->segment.base, capacity);
    return result;
}

enum segment_result ring_open(struct ring *ring, int fd, struct refusal *why)
{
    enum segment_result result =
        segment_open(fd, SEGMENT_RING, ring_layout(), &ring->segment, why);
    if (result != SEGMENT_OK)
        return result;
    uint64_t capacity = ring->segment.header.parameters[0];
    uint64_t size = ring->segment.header.size;
    if (ring_capacity_valid(capacity) && ring_bytes(capacity) == size) {
        ring_use(ring, ring->segment.base, capacity);
        return SEGMENT_OK;
    }
    refuse(why,
           "Expected a ring whose capacity is a power of two and fills its %" PRIu64
           " bytes, found capacity %" PRIu64 "; have its owner make it again.",
           size, capacity);
    return segment_close(&ring->segment) == 0 ? SEGMENT_REFUSED : SEGMENT_ERRNO;
}

static uint64_t padded(uint64_t length)
{
    return (length + 7) & ~UINT64_C(7);
}

static bool positions_possible(const struct ring *ring, uint64_t tail, uint64_t head)
{
    return tail - head <= ring->capacity && (tail & 7) == 0 && (head & 7) == 0;
}

static bool claim(shared_u64 *claimed_by, uint64_t pid)
{
    uint64_t nobody = 0;
    return swap_if_acquire(claimed_by, &nobody, pid);
}

enum ring_claim ring_claim_producer(struct ring *ring, uint64_t pid, int wake_fd,
                                    struct ring_producer *out)
{
    if (!claim(&ring->shared->producer_pid, pid))
        return RING_CLAIM_TAKEN;
    *out = (struct ring_producer){
        .ring = ring,
        .tail = load_relaxed(&ring->shared->tail),
        .known_head = load_acquire(&ring->shared->head), /* [SPACE] */
        .wake_fd = wake_fd,
    };
    return positions_possible(ring, out->tail, out->known_head) ? RING_CLAIM_OK
                                                                : RING_CLAIM_CORRUPT;
}

enum ring_claim ring_claim_consumer(struct ring *ring, uint64_t pid, int wake_fd,
                                    struct ring_consumer *out)
{
    if (!claim(&ring->shared->consumer_pid, pid))
        return RING_CLAIM_TAKEN;
    *out = (struct ring_consumer){
        .ring = ring,
        .head = load_relaxed(&ring->shared->head),
        .known_tail = load_acquire(&ring->shared->tail), /* [RECORD] */
        .wake_fd = wake_fd,
    };
    return positions_possible(ring, out->known_tail, out->head) ? RING_CLAIM_OK
                                                                : RING_CLAIM_CORRUPT;
}

/* A record may run over the end of `records` and go on at its start. */
static void copy_in(struct ring *ring, uint64_t position, const void *from, uint64_t length)
{
    uint64_t place = position & (ring->capacity - 1);
    uint64_t first = ring->capacity - place;
    if (first > length)
        first = length;
    memcpy(ring->shared->records + place, from, first);
    memcpy(ring->shared->records, (const unsigned char *)from + first, length - first);
}

static void copy_out(const struct ring *ring, uint64_t position, void *to, uint64_t length)
{
    uint64_t place = position & (ring->capacity - 1);
    uint64_t first = ring->capacity - place;
    if (first > length)
        first = length;
    memcpy(to, ring->shared->records + place, first);
    memcpy((unsigned char *)to + first, ring->shared->records, length - first);
}

/* Lengths sit at multiples of 8 in a power of two: never split. Fetched exactly once,
 * or a hostile producer could change it between the check and the copy. */
static shared_u64 *length_at(const struct ring *ring, uint64_t position)
{
    return (shared_u64 *)(ring->shared->records + (position & (ring->capacity - 1)));
}

static bool has_space(struct ring_producer *producer, uint64_t needed)
{
    uint64_t capacity = producer->ring->capacity;
    if (capacity - (producer->tail - producer->known_head) >= needed)
        return true;
    /* [SPACE] Acquire: without it our copy could overtake the consumer's, which would
     * then take bytes of the new record for the old one. */
    uint64_t head = load_acquire(&producer->ring->shared->head);
    /* A consumer with an impossible position is one that never reads: stay full. */
    if (!positions_possible(producer->ring, producer->tail, head))
        return false;
    producer->known_head = head;
    return capacity - (producer->tail - head) >= needed;
}

static enum ring_push wake(struct ring_producer *producer)
{
    /* [SLEEP] Store-load order needs this fence even on x86: without it we may read the
     * flag before our tail is visible, the consumer may look at the tail before its flag
     * is, and it sleeps on a record. */
    fence_seq_cst();
    shared_u64 *sleeping = &producer->ring->shared->sleeping;
    if (load_relaxed(sleeping) == 0 || producer->wake_fd < 0)
        return RING_PUSHED;
    /* Whoever takes the flag down signals, so one sleep costs one signal. */
    if (exchange_relaxed(sleeping, 0) == 0)
        return RING_PUSHED;
    const uint64_t one = 1;
    if (write(producer->wake_fd, &one, sizeof one) == sizeof one || errno == EAGAIN)
        return RING_PUSHED; /* EAGAIN: the counter is full, so its reader is awake anyway */
    return RING_WAKE_FAILED;
}

enum ring_push ring_push(struct ring_producer *producer, const void *record, uint64_t length)
{
    struct ring *ring = producer->ring;
    uint64_t needed = RING_RECORD_HEADER + padded(length);
    if (!has_space(producer, needed))
        return RING_FULL;
    store_relaxed(length_at(ring, producer->tail), length);
    copy_in(ring, producer->tail + RING_RECORD_HEADER, record, length);
    producer->tail += needed;
    /* [RECORD] Release: without it the consumer could see the tail before the bytes. */
    store_release(&ring->shared->tail, producer->tail);
    return wake(producer);
}

enum ring_look ring_look(struct ring_consumer *consumer, uint64_t *length)
{
    struct ring *ring = consumer->ring;
    if (consumer->known_tail == consumer->head) {
        /* [RECORD] Acquire: without it we could copy bytes from before the push. */
        uint64_t tail = load_acquire(&ring->shared->tail);
        if (!positions_possible(ring, tail, consumer->head))
            return RING_CORRUPT;
        consumer->known_tail = tail;
        if (tail == consumer->head)
            return RING_EMPTY;
    }
    uint64_t available = consumer->known_tail - consumer->head - RING_RECORD_HEADER;
    *length = load_relaxed(length_at(ring, consumer->head));
    /* Compared before padding, which could wrap around to a small number. */
    if (*length > available || padded(*length) > available)
        return RING_CORRUPT;
    return RING_RECORD;
}

void ring_take(struct ring_consumer *consumer, void *out, uint64_t length)
{
    copy_out(consumer->ring, consumer->head + RING_RECORD_HEADER, out, length);
    consumer->head += RING_RECORD_HEADER + padded(length);
    /* [SPACE] Release: without it the producer could overwrite what we still copy. */
    store_release(&consumer->ring->shared->head, consumer->head);
}

bool ring_prepare_sleep(struct ring_consumer *consumer)
{
    struct ring_shared *shared = consumer->ring->shared;
    if (consumer->known_tail != consumer->head)
        return false;
    store_relaxed(&shared->sleeping, 1);
    /* [SLEEP] The other half of the fence in wake(). */
    fence_seq_cst();
    if (load_relaxed(&shared->tail) == consumer->head)
        return true;
    ring_finish_sleep(consumer);
    return false;
}

void ring_finish_sleep(struct ring_consumer *consumer)
{
    store_relaxed(&consumer->ring->shared->sleeping, 0);
}
