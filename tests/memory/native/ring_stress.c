/* One producer and one consumer thread; the consumer sleeps whenever the ring is empty.
 * usage: ring_stress SECONDS */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ring.h"
#include "stress.h"

#define CAPACITY 4096
#define RECORD_MAX 600
#define WAKE_DEADLINE_MS 20000

static struct ring ring;
static int wake_fd;
static double end_at;
static uint64_t pushed_total, popped_total, sleeps;

/* A record is its sequence number again and again; its length follows from it. */
static uint64_t record_make(uint64_t sequence, uint64_t *record)
{
    uint64_t state = sequence * 2 + 1;
    uint64_t words = 1 + next_random(&state) % (RECORD_MAX / 8);
    for (uint64_t i = 0; i < words; i++)
        record[i] = sequence;
    return 8 * words - sequence % 8; /* not only whole words */
}

static void *produce(void *unused)
{
    (void)unused;
    struct ring_producer producer;
    CHECK(ring_claim_producer(&ring, 1, wake_fd, &producer) == RING_CLAIM_OK);
    uint64_t record[RECORD_MAX / 8];
    uint64_t state = 88172645463325252u;
    while (seconds() < end_at) {
        uint64_t length = record_make(pushed_total + 1, record);
        switch (ring_push(&producer, record, length)) {
        case RING_PUSHED:
            pushed_total++;
            break;
        case RING_FULL:
            usleep(50);
            break;
        default:
            CHECK(!"the eventfd can be written");
        }
        if (next_random(&state) % 64 == 0)
            usleep(20); /* now and then let the consumer drain the ring and sleep */
    }
    uint64_t last = 0;
    enum ring_push pushed;
    while ((pushed = ring_push(&producer, &last, sizeof last)) == RING_FULL)
        usleep(50);
    CHECK(pushed == RING_PUSHED);
    return NULL;
}

static void sleep_until_woken(struct ring_consumer *consumer)
{
    if (!ring_prepare_sleep(consumer))
        return;
    struct pollfd wake = {.fd = wake_fd, .events = POLLIN};
    int ready;
    while ((ready = poll(&wake, 1, WAKE_DEADLINE_MS)) < 0)
        CHECK(errno == EINTR);
    CHECK(ready == 1); /* otherwise a wake-up was lost */
    ring_finish_sleep(consumer);
    uint64_t drained;
    CHECK(read(wake_fd, &drained, sizeof drained) == sizeof drained);
    sleeps++;
}

static bool check_record(const uint64_t *record, uint64_t length)
{
    uint64_t expected[RECORD_MAX / 8];
    if (length == 8 && record[0] == 0)
        return false; /* the last one */
    CHECK(length == record_make(++popped_total, expected));
    CHECK(memcmp(record, expected, length) == 0);
    return true;
}

static void *consume(void *unused)
{
    (void)unused;
    struct ring_consumer consumer;
    CHECK(ring_claim_consumer(&ring, 2, wake_fd, &consumer) == RING_CLAIM_OK);
    uint64_t record[RECORD_MAX / 8];
    uint64_t length;
    for (;;) {
        switch (ring_look(&consumer, &length)) {
        case RING_EMPTY:
            sleep_until_woken(&consumer);
            break;
        case RING_RECORD:
            CHECK(length <= sizeof record);
            ring_take(&consumer, record, length);
            if (!check_record(record, length))
                return NULL;
            break;
        default:
            CHECK(!"the ring is sound");
        }
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    end_at = seconds() + atof(argv[1]);
    wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    CHECK(wake_fd >= 0);
    void *memory = zeroed_pages(ring_bytes(CAPACITY));
    ring_use(&ring, memory, CAPACITY);
    pthread_t producer, consumer;
    CHECK(pthread_create(&producer, NULL, produce, NULL) == 0);
    CHECK(pthread_create(&consumer, NULL, consume, NULL) == 0);
    CHECK(pthread_join(producer, NULL) == 0);
    CHECK(pthread_join(consumer, NULL) == 0);
    CHECK(pushed_total == popped_total && pushed_total > 1000 && sleeps > 10);
    printf("%llu records, %llu sleeps\n", (unsigned long long)popped_total,
           (unsigned long long)sleeps);
    free(memory);
    return 0;
}
