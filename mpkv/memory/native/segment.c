#define _GNU_SOURCE
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define SAME_BUILD "start every mpkv process of this engine from the same installation"

void refuse(struct refusal *why, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (vsnprintf(why->sentence, sizeof why->sentence, format, arguments) < 0)
        why->sentence[0] = '\0';
    va_end(arguments);
}

uint64_t segment_digest(const uint64_t *numbers, unsigned count)
{
    uint64_t digest = UINT64_C(0xcbf29ce484222325);
    for (unsigned i = 0; i < count; i++)
        for (unsigned shift = 0; shift < 64; shift += 8)
            digest = (digest ^ ((numbers[i] >> shift) & 0xff)) * UINT64_C(0x100000001b3);
    return digest;
}

static const char *kind_name(uint32_t kind)
{
    switch (kind) {
    case SEGMENT_RING:
        return "ring";
    case SEGMENT_LEDGER:
        return "ledger";
    default:
        return "unknown kind";
    }
}

static enum segment_result map(int fd, uint64_t size, struct segment *out)
{
    /* Populated at once: a first touch would be a page fault inside somebody's step. */
    void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (base == MAP_FAILED)
        return SEGMENT_ERRNO;
    out->base = base;
    return SEGMENT_OK;
}

/* Without the seal its owner could cut the file while we are in it: SIGBUS. */
static enum segment_result check_file(int fd, uint64_t *size, struct refusal *why)
{
    struct stat status;
    if (fstat(fd, &status) != 0)
        return SEGMENT_ERRNO;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 && errno != EINVAL)
        return SEGMENT_ERRNO;
    if (seals < 0 || !(seals & F_SEAL_SHRINK)) {
        refuse(why,
               "Expected a memfd sealed against shrinking, found %s; "
               "pass the descriptor that mpkv made, unchanged.",
               seals < 0 ? "a file that takes no seals" : "one without that seal");
        return SEGMENT_REFUSED;
    }
    *size = (uint64_t)status.st_size;
    if (status.st_size < (off_t)sizeof(struct segment_header)) {
        refuse(why,
               "Expected a segment of at least %zu bytes, found %" PRIu64 "; "
               "pass the descriptor that mpkv made, unchanged.",
               sizeof(struct segment_header), *size);
        return SEGMENT_REFUSED;
    }
    return SEGMENT_OK;
}

static bool header_fits(const struct segment_header *header, uint64_t file_size,
                        enum segment_kind kind, uint64_t layout, struct refusal *why)
{
    if (header->magic != SEGMENT_MAGIC)
        refuse(why,
               "Expected the segment magic %016" PRIx64 ", found %016" PRIx64 "; "
               "the descriptor is not one of mpkv's segments, pass the one that mpkv made.",
               SEGMENT_MAGIC, header->magic);
    else if (header->version != SEGMENT_VERSION)
        refuse(why, "Expected segment version %d, found %" PRIu32 "; " SAME_BUILD ".",
               SEGMENT_VERSION, header->version);
    else if (header->kind != (uint32_t)kind)
        refuse(why,
               "Expected a %s, found a segment of kind %" PRIu32 " (%s); "
               "pass the descriptors in the order that the start message names them.",
               kind_name((uint32_t)kind), header->kind, kind_name(header->kind));
    else if (header->layout != layout)
        refuse(why,
               "Expected layout digest %016" PRIx64 ", found %016" PRIx64 "; " SAME_BUILD ".",
               layout, header->layout);
    else if (header->size != file_size)
        refuse(why,
               "Expected a segment of %" PRIu64 " bytes as its header says, found a file of "
               "%" PRIu64 "; have its owner make it again.",
               header->size, file_size);
    else
        return true;
    return false;
}

enum segment_result segment_format(int fd, enum segment_kind kind, uint64_t layout, uint64_t size,
                                   const uint64_t parameters[SEGMENT_PARAMETERS],
                                   struct segment *out, struct refusal *why)
{
    uint64_t file_size;
    enum segment_result result = check_file(fd, &file_size, why);
    if (result != SEGMENT_OK)
        return result;
    if (file_size != size) {
        refuse(why, "Expected a file of %" PRIu64 " bytes, found %" PRIu64 "; make it that long.",
               size, file_size);
        return SEGMENT_REFUSED;
    }
    result = map(fd, size, out);
    if (result != SEGMENT_OK)
        return result;
    out->header = (struct segment_header){
        .magic = SEGMENT_MAGIC,
        .version = SEGMENT_VERSION,
        .kind = (uint32_t)kind,
        .layout = layout,
        .size = size,
    };
    memcpy(out->header.parameters, parameters, sizeof out->header.parameters);
    memcpy(out->base, &out->header, sizeof out->header);
    return SEGMENT_OK;
}

enum segment_result segment_open(int fd, enum segment_kind kind, uint64_t layout,
                                 struct segment *out, struct refusal *why)
{
    uint64_t file_size;
    enum segment_result result = check_file(fd, &file_size, why);
    if (result != SEGMENT_OK)
        return result;
    result = map(fd, file_size, out);
    if (result != SEGMENT_OK)
        return result;
    out->header.size = file_size; /* what a failing path must unmap, whatever the header says */
    struct segment_header header;
    memcpy(&header, out->base, sizeof header);
    if (!header_fits(&header, file_size, kind, layout, why)) {
        if (segment_close(out) != 0)
            return SEGMENT_ERRNO;
        return SEGMENT_REFUSED;
    }
    out->header = header;
    return SEGMENT_OK;
}

int segment_close(struct segment *segment)
{
    if (segment->base == NULL)
        return 0;
    int failed = munmap(segment->base, segment->header.size);
    segment->base = NULL;
    return failed;
}
