/* A ring of byte records with one producer and one consumer, each in its own process.
 *
 * Positions count bytes since the ring was made and only grow; a position modulo the
 * capacity is a place in `records`. A record is an 8-byte length, then its bytes, padded
 * to 8. It becomes visible when `tail` moves past it and not before, so a producer that
 * dies while copying leaves nothing behind.
 */
#ifndef MPKV_RING_H
#define MPKV_RING_H

#include <stdalign.h>

#include "atomics.h"
#include "segment.h"

#define RING_CAPACITY_MIN UINT64_C(4096)
#define RING_CAPACITY_MAX (UINT64_C(1) << 30)
#define RING_RECORD_HEADER 8

struct ring_shared {
    struct segment_header header;
    alignas(MPKV_LINE) shared_u64 producer_pid; /* 0: unclaimed; a claim is for life */
    shared_u64 consumer_pid;
    alignas(MPKV_LINE) shared_u64 tail; /* written by the producer */
    alignas(MPKV_LINE) shared_u64 head; /* written by the consumer */
    /* Apart from `head`: the producer reads it at every push and it hardly ever changes. */
    alignas(MPKV_LINE) shared_u64 sleeping; /* 1: the consumer is in poll() or about to be */
    alignas(MPKV_LINE) unsigned char records[];
};

struct ring {
    struct segment segment;
    struct ring_shared *shared;
    uint64_t capacity;
};

/* Each side keeps its own position and a copy of the other's in private memory: the
 * copy spares cache misses, and neither can be changed by the other process. */
struct ring_producer {
    struct ring *ring;
    uint64_t tail;
    uint64_t known_head;
    int wake_fd;
};

struct ring_consumer {
    struct ring *ring;
    uint64_t head;
    uint64_t known_tail;
    int wake_fd;
};

enum ring_claim { RING_CLAIM_OK, RING_CLAIM_TAKEN, RING_CLAIM_CORRUPT };
enum ring_push { RING_PUSHED, RING_FULL, RING_WAKE_FAILED };
enum ring_look { RING_RECORD, RING_EMPTY, RING_CORRUPT };

bool ring_capacity_valid(uint64_t capacity);
uint64_t ring_bytes(uint64_t capacity);
uint64_t ring_max_record(const struct ring *ring);

enum segment_result ring_format(struct ring *ring, int fd, uint64_t capacity, struct refusal *why);
enum segment_result ring_open(struct ring *ring, int fd, struct refusal *why);

/* The capacity of `shared` must have been checked. For segment_open and for C tests. */
void ring_use(struct ring *ring, struct ring_shared *shared, uint64_t capacity);

enum ring_claim ring_claim_producer(struct ring *ring, uint64_t pid, int wake_fd,
                                    struct ring_producer *out);
enum ring_claim ring_claim_consumer(struct ring *ring, uint64_t pid, int wake_fd,
                                    struct ring_consumer *out);

/* `length` must be at most ring_max_record. RING_WAKE_FAILED (errno is set): the record
 * is in, but the consumer could not be signalled. */
enum ring_push ring_push(struct ring_producer *producer, const void *record, uint64_t length);

/* Find the next record's length; ring_take then copies that record out and frees it. */
enum ring_look ring_look(struct ring_consumer *consumer, uint64_t *length);
void ring_take(struct ring_consumer *consumer, void *out, uint64_t length);

/* True: the ring is empty and the next push will signal. False: look again first. */
bool ring_prepare_sleep(struct ring_consumer *consumer);
void ring_finish_sleep(struct ring_consumer *consumer);

#endif
