/* A segment: one sealed memfd that starts with a header saying what it is.
 *
 * The header is written once, before the descriptor is handed to anyone, and never
 * changes. A reader copies it and believes none of it before every field is checked
 * against the file and against the reader's own build.
 */
#ifndef MPKV_SEGMENT_H
#define MPKV_SEGMENT_H

#include <stdbool.h>
#include <stdint.h>

#define SEGMENT_MAGIC UINT64_C(0x314c45562d564b4d) /* another byte order reads another number */
#define SEGMENT_VERSION 1
#define SEGMENT_PARAMETERS 4

enum segment_kind { SEGMENT_RING = 1, SEGMENT_LEDGER = 2 };

struct segment_header {
    uint64_t magic;
    uint32_t version;
    uint32_t kind;
    uint64_t layout; /* digest of the type sizes and offsets that both sides compiled in */
    uint64_t size;   /* bytes of the whole segment */
    uint64_t parameters[SEGMENT_PARAMETERS];
};

/* This process's mapping. `header` is its own copy: the shared one is not read again. */
struct segment {
    void *base;
    struct segment_header header;
};

enum segment_result { SEGMENT_OK, SEGMENT_ERRNO, SEGMENT_REFUSED };

/* Why a segment was refused, as one sentence for the operator. */
struct refusal {
    char sentence[320];
};

/* Map a fresh all-zero segment of `size` bytes and write its header. */
enum segment_result segment_format(int fd, enum segment_kind kind, uint64_t layout, uint64_t size,
                                   const uint64_t parameters[SEGMENT_PARAMETERS],
                                   struct segment *out, struct refusal *why);

/* Check everything that does not depend on the kind's parameters, then map. */
enum segment_result segment_open(int fd, enum segment_kind kind, uint64_t layout,
                                 struct segment *out, struct refusal *why);

/* Returns 0, or -1 with errno. Harmless on a segment that is not mapped. */
int segment_close(struct segment *segment);

/* Fold `count` numbers into a digest that differs when any of them does. */
uint64_t segment_digest(const uint64_t *numbers, unsigned count);

__attribute__((format(printf, 2, 3)))
void refuse(struct refusal *why, const char *format, ...);

#endif
