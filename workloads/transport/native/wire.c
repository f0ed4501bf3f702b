/* Tags and clocks. SipHash-2-4 (Aumasson, Bernstein 2012): a keyed hash made for short messages. */
#include <string.h>
#include <time.h>
#include "engine.h"

#define ROTATE(x, b) (uint64_t)(((x) << (b)) | ((x) >> (64 - (b))))
#define ROUND                                                                  \
    do {                                                                       \
        v0 += v1; v1 = ROTATE(v1, 13); v1 ^= v0; v0 = ROTATE(v0, 32);          \
        v2 += v3; v3 = ROTATE(v3, 16); v3 ^= v2;                               \
        v0 += v3; v3 = ROTATE(v3, 21); v3 ^= v0;                               \
        v2 += v1; v1 = ROTATE(v1, 17); v1 ^= v2; v2 = ROTATE(v2, 32);          \
    } while (0)

static uint64_t word_at(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

uint64_t siphash(const uint64_t key[2], const void *data, size_t bytes)
{
    uint64_t v0 = key[0] ^ 0x736f6d6570736575ULL, v1 = key[1] ^ 0x646f72616e646f6dULL;
    uint64_t v2 = key[0] ^ 0x6c7967656e657261ULL, v3 = key[1] ^ 0x7465646279746573ULL, last = (uint64_t)bytes << 56;
    const uint8_t *at = data, *end = at + bytes / 8 * 8;
    for (; at != end; at += 8) {
        uint64_t word = word_at(at);
        v3 ^= word; ROUND; ROUND; v0 ^= word;
    }
    for (size_t i = 0; i < bytes % 8; i++) last |= (uint64_t)at[i] << (8 * i);
    v3 ^= last; ROUND; ROUND; v0 ^= last;
    v2 ^= 0xff; ROUND; ROUND; ROUND; ROUND;
    return v0 ^ v1 ^ v2 ^ v3;
}

/* Of a packet's header, with its tag as zero: what is the same in all packets of a flow (data), or all of it (control,
 * and data where whole packets are tagged). */
uint64_t tag_of(const engine *e, const uint8_t *packet, size_t bytes)
{
    const header *h = (const header *)packet;
    uint64_t key[2] = {e->key[0], e->key[1]};
    if ((h->kind == DATA || h->kind == RELIABLE) && !e->full_tags) bytes = PREFIX;
    /* The head of the packet is hashed first, the tag left out; its hash keys the rest, which lies where it is. */
    uint8_t head[PREFIX + 4];
    memcpy(head, packet, bytes < HEADER ? PREFIX : HEADER);
    memset(head + offsetof(header, tag), 0, 8);
    uint64_t tag = siphash(key, head, bytes < HEADER ? PREFIX : HEADER);
    if (bytes <= HEADER) return tag;
    key[0] ^= tag;
    return siphash(key, packet + HEADER, bytes - HEADER);
}

int genuine(const engine *e, const uint8_t *packet, size_t bytes)
{
    return ((const header *)packet)->tag == tag_of(e, packet, bytes);
}

static ns read_clock(clockid_t which)
{
    struct timespec t;
    clock_gettime(which, &t);
    return (ns)t.tv_sec * SECOND + t.tv_nsec;
}

ns now_ns(void) { return read_clock(CLOCK_MONOTONIC); }
ns clock_ns(void) { return read_clock(CLOCK_REALTIME); }
