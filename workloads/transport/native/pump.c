/* The inner loops of the transport: sends batches, takes packets in and adds or places them, without Python.
 * Compiled on first use where there is a C compiler (native.py); mailbox.py and endpoint.py do the same without it.
 * Everything it does not understand is handed to Python as it came. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef SOL_UDP
#define SOL_UDP 17
#endif

enum { HEADER = 32, PREFIX = 24, CHUNK_AT = 28, ROOM = 1 << 16, BATCH = 64, SLACK = 32 * 2048, ENDPOINT = 20 };
enum { ADD_F32 = 1, ADD_BF16 = 2, PUT = 3 };
enum { OTHERS = 1, BLOCKED = 2, NO_GSO = 4, FAILED = 8, COMPLETE = 16 };

typedef struct {          /* one peer's packets in one half, coming in */
    uint64_t prefix[3];
    uint8_t *target;      /* where payloads belong, in order of their numbers */
    uint64_t target_bytes;/* the last packet may hold less than a payload */
    uint8_t *arrived;     /* one byte a packet */
    uint32_t total, segment, mode, used, peer;
    uint32_t count, highest, duplicates, received;
} incoming;

typedef struct {          /* one peer's packets in one half, going out */
    uint64_t prefix[3];
    const uint8_t *data;  /* payloads, in order of their numbers */
    uint64_t data_bytes;  /* the last one may be shorter than a payload */
    uint32_t total, segment, batch, block, used;
    volatile uint32_t cursor, limit;
    uint8_t address[28];
    uint32_t address_bytes;
} outgoing;

typedef struct {
    int32_t fd, wake;
    uint32_t incomings, outgoings;
    incoming *in;
    outgoing *out;
    uint8_t *room;        /* ROOM bytes */
    uint8_t *others;      /* records of (bytes, segment, peer) and packets, for Python */
    uint32_t others_bytes, others_used;
    int32_t error;
    uint32_t peers;
    const uint8_t *endpoints; /* ENDPOINT bytes a peer: port and address, as the network has them */
    uint64_t strangers;   /* datagrams from anywhere else */
} pump;

static int same(const uint8_t *packet, const uint64_t *prefix)
{
    uint64_t word[3];
    memcpy(word, packet, PREFIX);
    return word[0] == prefix[0] && word[1] == prefix[1] && word[2] == prefix[2];
}

static void add_f32(float *restrict to, const uint8_t *from, uint32_t bytes)
{
    const float *restrict f = (const float *)from;
    for (uint32_t i = 0; i < bytes / 4; i++) to[i] += f[i];
}

static void add_bf16(float *restrict to, const uint8_t *from, uint32_t bytes)
{
    const uint16_t *restrict f = (const uint16_t *)from;
    for (uint32_t i = 0; i < bytes / 2; i++) {
        uint32_t word = (uint32_t)f[i] << 16;
        float value;
        memcpy(&value, &word, 4);
        to[i] += value;
    }
}

/* One packet of a known flow. Returns 1 if it completed the flow. */
static int take(incoming *flow, const uint8_t *packet)
{
    uint32_t number, payload = flow->segment - HEADER;
    memcpy(&number, packet + CHUNK_AT, 4);
    flow->received++;
    if (number >= flow->total || flow->arrived[number]) {
        flow->duplicates++;
        return 0;
    }
    flow->arrived[number] = 1;
    if (number >= flow->highest) flow->highest = number + 1;
    packet += HEADER;
    uint64_t wide = flow->mode == ADD_BF16 ? 2 : 1, at = wide * number * payload, left = (flow->target_bytes - at) / wide;
    uint8_t *target = flow->target + at;
    if (left < payload) payload = left; /* the last one */
    if (flow->mode == ADD_F32)
        add_f32((float *)target, packet, payload);
    else if (flow->mode == ADD_BF16)
        add_bf16((float *)target, packet, payload);
    else
        memcpy(target, packet, payload);
    return ++flow->count == flow->total;
}

/* Packets that Python shall look at; 0 if there is no room for them. */
static int hand_over(pump *p, const uint8_t *packets, uint32_t bytes, uint32_t segment, uint32_t peer)
{
    uint32_t head[4] = {bytes, segment, peer, 0}, padded = (bytes + 7) & ~7u;
    if (p->others_used + sizeof head + padded > p->others_bytes) return 0;
    memcpy(p->others + p->others_used, head, sizeof head);
    memcpy(p->others + p->others_used + sizeof head, packets, bytes);
    p->others_used += sizeof head + padded;
    return 1;
}

/* Which peer has this address and port; -1 if none has. */
static int64_t peer_of(const pump *p, const struct sockaddr_storage *from)
{
    uint8_t key[ENDPOINT] = {0};
    if (from->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)from;
        memcpy(key, &v4->sin_port, 2);
        memcpy(key + 2, &v4->sin_addr, 4);
    } else if (from->ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)from;
        memcpy(key, &v6->sin6_port, 2);
        memcpy(key + 2, &v6->sin6_addr, 16);
    } else {
        return -1;
    }
    for (uint32_t i = 0; i < p->peers; i++)
        if (!memcmp(key, p->endpoints + i * ENDPOINT, ENDPOINT)) return i;
    return -1;
}

static incoming *find(pump *p, const uint8_t *packet, uint32_t segment, uint32_t peer)
{
    for (uint32_t i = 0; i < p->incomings; i++)
        if (p->in[i].used && p->in[i].peer == peer && p->in[i].segment == segment && same(packet, p->in[i].prefix))
            return &p->in[i];
    return 0;
}

/* A merged run of packets of one sender: runs of one flow are taken together. */
static int sort_out(pump *p, const uint8_t *data, uint32_t bytes, uint32_t segment, uint32_t peer)
{
    int flags = 0;
    uint32_t at = 0;
    while (at < bytes) {
        uint32_t length = bytes - at < segment ? bytes - at : segment, end = at + length;
        incoming *flow = length > HEADER ? find(p, data + at, length, peer) : 0;
        if (flow) {
            do {
                if (take(flow, data + at)) flags |= COMPLETE;
                at += length;
            } while (at + length <= bytes && same(data + at, flow->prefix));
            continue;
        }
        while (end + segment <= bytes && length == segment && length >= PREFIX && !memcmp(data + end, data + at, PREFIX))
            end += segment;
        hand_over(p, data + at, end - at, length, peer); /* no room left: lost, like anything that does not fit */
        flags |= OTHERS;
        at = end;
    }
    return flags;
}

/* Up to `calls` system calls' worth of packets. Returns how many came; flags say what Python must look at. */
int pump_receive(pump *p, int calls, int *flags)
{
    char control[64];
    int done = 0;
    while (done < calls && p->others_used + ROOM + SLACK <= p->others_bytes) {
        struct iovec io = {p->room, ROOM};
        struct sockaddr_storage from = {0};
        struct msghdr message = {.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &io, .msg_iovlen = 1,
                                 .msg_control = control, .msg_controllen = sizeof control};
        ssize_t got = recvmsg(p->fd, &message, MSG_DONTWAIT);
        if (got < 0) {
            if (errno == EINTR || errno == ECONNREFUSED) continue;
            if (errno != EAGAIN) { p->error = errno; *flags |= FAILED; }
            break;
        }
        int32_t segment = 0;
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
            if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO) memcpy(&segment, CMSG_DATA(c), sizeof segment);
        done++;
        int64_t peer = peer_of(p, &from);
        if (segment <= 0) segment = got;
        if (peer < 0)
            p->strangers += got > 0 ? (got + segment - 1) / segment : 1;
        else if (got > 0)
            *flags |= sort_out(p, p->room, got, segment, peer);
    }
    return done;
}

/* Headers from here, payloads straight from the caller's memory; the last packet of a block is filled up with zeros. */
static int send_batch(pump *p, outgoing *flow, uint32_t count)
{
    static const uint8_t zeros[ROOM];
    uint8_t headers[BATCH][HEADER];
    struct iovec io[2 * BATCH + 1];
    uint32_t payload = flow->segment - HEADER, parts = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t number = flow->cursor + i;
        uint64_t at = (uint64_t)number * payload, left = flow->data_bytes - at;
        memcpy(headers[i], flow->prefix, PREFIX);
        memcpy(headers[i] + PREFIX, &flow->block, 4);
        memcpy(headers[i] + CHUNK_AT, &number, 4);
        io[parts++] = (struct iovec){headers[i], HEADER};
        io[parts++] = (struct iovec){(void *)(flow->data + at), left < payload ? left : payload};
        if (left < payload) io[parts++] = (struct iovec){(void *)zeros, payload - left};
    }
    union { char room[CMSG_SPACE(sizeof(uint16_t))]; struct cmsghdr align; } control;
    struct msghdr message = {.msg_name = flow->address, .msg_namelen = flow->address_bytes, .msg_iov = io, .msg_iovlen = parts};
    if (count > 1) {
        message.msg_control = control.room;
        message.msg_controllen = sizeof control.room;
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_UDP;
        c->cmsg_type = UDP_SEGMENT;
        c->cmsg_len = CMSG_LEN(sizeof(uint16_t));
        uint16_t segment = flow->segment;
        memcpy(CMSG_DATA(c), &segment, sizeof segment);
    }
    return sendmsg(p->fd, &message, MSG_DONTWAIT) < 0 ? errno : 0;
}

/* Up to `rounds` batches to every peer in turn. Returns the batches that went. */
int pump_send(pump *p, int rounds, int *flags)
{
    int went = 0;
    for (int round = 0; round < rounds; round++) {
        int before = went;
        for (uint32_t i = 0; i < p->outgoings; i++) {
            outgoing *flow = &p->out[i];
            uint32_t end = flow->limit < flow->total ? flow->limit : flow->total;
            if (!flow->used || flow->cursor >= end) continue;
            uint32_t count = end - flow->cursor < flow->batch ? end - flow->cursor : flow->batch;
            int error = send_batch(p, flow, count);
            if (error == EAGAIN || error == ENOBUFS) { *flags |= BLOCKED; return went; }
            if (error == EIO && count > 1) { *flags |= NO_GSO; return went; }
            if (error == EBADF) { p->error = error; *flags |= FAILED; return went; }
            flow->cursor += count; /* whatever else the host says (no route, link down, too long): lost, as in a network */
            went++;
        }
        if (went == before) break;
    }
    return went;
}

static int64_t microseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int all_sent(const pump *p)
{
    for (uint32_t i = 0; i < p->outgoings; i++)
        if (p->out[i].used && p->out[i].cursor < p->out[i].total) return 0;
    return 1;
}

/* Sends and receives until Python must look at something, or the time is over: `budget_us` while packets flow, `wait_us`
 * of sleep while none do. */
void pump_run(pump *p, int sends, int wait_us, int budget_us, int *flags)
{
    int64_t until = microseconds() + budget_us, idle_until = microseconds() + wait_us;
    int unfinished = sends && !all_sent(p);
    for (;;) {
        int done = (unfinished ? pump_send(p, 1, flags) : 0) + pump_receive(p, 16, flags);
        if (*flags & (OTHERS | NO_GSO | FAILED | COMPLETE)) return;
        if (unfinished && all_sent(p)) return;
        if (done) {
            if (microseconds() >= until) return;
            continue;
        }
        int64_t left = idle_until - microseconds();
        if (left <= 0) return;
        struct pollfd ready[2] = {{p->fd, POLLIN | (*flags & BLOCKED ? POLLOUT : 0), 0}, {p->wake, POLLIN, 0}};
        struct timespec pause = {left / 1000000, left % 1000000 * 1000L};
        *flags &= ~BLOCKED;
        if (ppoll(ready, 2, &pause, 0) <= 0 || ready[1].revents) return;
    }
}
