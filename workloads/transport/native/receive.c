/* Packets in: merged runs (UDP_GRO) from the socket to the flow they belong to; what is early is kept, late is counted. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "engine.h"

#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef SOL_UDP
#define SOL_UDP 17
#endif
#define NACK_PAUSE (MS / 2)

static int from_there(const peer *p, const struct sockaddr_storage *from)
{
    if (from->ss_family != p->address.ss_family) return 0;
    if (from->ss_family == AF_INET) {
        const struct sockaddr_in *a = (const struct sockaddr_in *)from, *b = (const struct sockaddr_in *)&p->address;
        return a->sin_port == b->sin_port && a->sin_addr.s_addr == b->sin_addr.s_addr;
    }
    const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)from, *b = (const struct sockaddr_in6 *)&p->address;
    return a->sin6_port == b->sin6_port && !memcmp(&a->sin6_addr, &b->sin6_addr, 16);
}

/* Everything but the tag (where whole packets are tagged it differs from packet to packet) and the packet's number. */
static int same_flow(const engine *e, const uint8_t *a, const uint8_t *b)
{
    if (!e->full_tags) return !memcmp(a, b, PREFIX);
    return !memcmp(a, b, offsetof(header, tag)) && !memcmp(a + 16, b + 16, PREFIX - 16);
}

static uint32_t run_length(const engine *e, const uint8_t *data, uint32_t bytes, uint32_t segment, uint32_t length)
{
    uint32_t end = length;
    if (e->full_tags) return end; /* each speaks for itself */
    while (end < bytes && length == segment) {
        uint32_t next = bytes - end < segment ? bytes - end : segment;
        if (next < HEADER || !same_flow(e, data, data + end)) break;
        end += next;
    }
    return end;
}

/* 1. Is it what this half expects? The first packet of a flow is looked at; the others must begin like it. */
static int expected(engine *e, half *h, flow *f, uint32_t rank, const uint8_t *packet, uint32_t length)
{
    if (f && f->known && same_flow(e, f->prefix, packet)) return 1;
    if (!e->full_tags && !genuine(e, packet, length)) { e->counts.strangers++; return 0; } /* else each was looked at */
    const header *theirs = (const header *)packet;
    header mine;
    if (f) prepare_header(e, h, f, &mine, 1);
    if (!f || mine.kind != theirs->kind || mine.step != theirs->step || mine.half != theirs->half ||
        mine.dtype != theirs->dtype || mine.size != theirs->size || mine.block != theirs->block) {
        disagree(e, h, f, rank, theirs, 0);
        return 0;
    }
    memcpy(f->prefix, packet, HEADER);
    f->known = 1;
    return 1;
}

/* 2. Take a run of packets of one flow in. Whether any of them was new: what came before proves nothing (anybody can
 * repeat it). */
static int take_run(engine *e, half *h, flow *f, const uint8_t *data, uint32_t bytes, uint32_t segment)
{
    uint32_t before = f->count, inverted = 0;
    for (uint32_t at = 0; at < bytes; at += segment) {
        uint32_t length = bytes - at < segment ? bytes - at : segment, number = ((const header *)(data + at))->chunk;
        if (number >= f->packets || length != HEADER + length_of(f, number)) {
            e->counts.strangers++;
            continue;
        }
        if (f->arrived[number]) { f->duplicates++; continue; }
        f->arrived[number] = 1;
        f->count++;
        if (number >= f->highest) f->highest = number + 1;
        if (number >= f->top) {
            f->top = number + 1;
            f->highest_at = e->last_arrival;
        } else
            inverted++;
        take_payload(h, f, number, data + at + HEADER);
    }
    if (inverted && !h->reliable) { /* the network changes the order: ends are waited for a little longer */
        ns behind = (e->last_arrival - f->highest_at) * 3 / 2 + e->reorder_least;
        if (behind > e->reorder) e->reorder = behind < e->reorder_most ? behind : e->reorder_most;
        e->counts.reordered += inverted;
        e->since_inversion = 0;
    } else
        e->since_inversion += f->count - before;
    return f->count > before;
}

/* 3. What follows from it. */
static void after_run(engine *e, half *h, flow *f, uint32_t bytes, ns now)
{
    f->heard_at = now;
    SHOW(h->progress, now);
    if (!h->first) {
        h->first = now;
        sooner(e, 0);
    }
    arrived_bytes(e, bytes, now);
    if (OWN(f->done)) return;
    if (enough(h, f)) {
        flow_complete(h, f);
        sooner(e, 0);
        if (h->reliable) acknowledge(e, h, f, FINISHED);
        return;
    }
    if (!h->reliable && f->highest == f->packets) flow_ended(e, h, f, now); /* its last packet is its end marker */
    int holes = h->reliable && to_repair(h, f) && now - f->nacked_at > NACK_PAUSE;
    if (holes) {
        f->nacked_at = now;
        acknowledge(e, h, f, GOING_ON);
    }
    share_room(e, h, f, now);
}

static void drop_early(engine *e, early *one)
{
    e->early_bytes -= one->bytes;
    free(one);
}

/* Nearer halves go first: whoever runs wild far ahead must not take the room of what is needed next. 1 if some was made. */
static int forget_beyond(engine *e, uint32_t sequence)
{
    for (int32_t far = RING - 1; far > ahead(sequence, OWN(e->closed_below)); far--) {
        uint32_t slot = (OWN(e->closed_below) + (uint32_t)far) % RING;
        early **place = e->early[slot].first ? &e->early[slot].first : &e->early[slot].markers, *one = *place;
        if (!one) continue;
        *place = one->next;
        if (e->early[slot].last == one) e->early[slot].last = NULL;
        e->counts.early += (one->bytes + one->segment - 1) / one->segment;
        drop_early(e, one);
        return 1;
    }
    return 0;
}

void keep_early(engine *e, uint32_t rank, const uint8_t *data, uint32_t bytes, uint32_t segment, ns now)
{
    const header *h = (const header *)data;
    uint32_t slot = h->sequence % RING;
    uint64_t room = (e->pipeline + 1) * e->room_bytes;
    int keep = ahead(h->sequence, OWN(e->closed_below)) < RING && bytes <= room;
    for (early *one = e->early[slot].markers; h->kind == MARKER && keep && one; one = one->next)
        if (one->rank == rank) { /* the latest says all */
            memcpy(one->data, data, bytes);
            one->at = now; /* how long it was held is asked of the latest */
            return;
        }
    while (keep && e->early_bytes + bytes > room) keep = forget_beyond(e, h->sequence);
    if (!keep) {
        e->counts.early += (bytes + segment - 1) / segment;
        return;
    }
    early *one = malloc(sizeof *one + bytes);
    if (!one) return;
    *one = (early){.rank = rank, .bytes = bytes, .segment = segment, .at = now};
    memcpy(one->data, data, bytes);
    e->early_bytes += bytes;
    if (h->kind == MARKER) {
        one->next = e->early[slot].markers;
        e->early[slot].markers = one;
        return;
    }
    if (e->early[slot].last) e->early[slot].last->next = one;
    else e->early[slot].first = one;
    e->early[slot].last = one;
}

/* Bits of halves that ended with something missing; where all came, whatever comes again is double. */
void remember(engine *e, const half *h)
{
    past *p = &e->past[e->past_next++ % PAST];
    uint64_t all = 0;
    free(p->starts);
    free(p->sent);
    free(p->arrived);
    for (uint32_t i = 0; i < h->ins; i++) all += h->in[i].packets;
    *p = (past){.sequence = h->sequence, .starts = calloc(e->world + 1, sizeof *p->starts),
                .sent = calloc(e->world, sizeof *p->sent), .arrived = malloc(all + 1)};
    if (!p->starts || !p->sent || !p->arrived) return;
    p->used = 1;
    all = 0;
    for (uint32_t rank = 0; rank < e->world; rank++) {
        const flow *f = h->of[rank];
        p->starts[rank] = all;
        if (f) {
            memcpy(p->arrived + all, f->arrived, f->packets);
            p->sent[rank] = known_sent(h, f);
            all += f->packets;
        }
    }
    p->starts[e->world] = all;
}

/* The books of halves that are over here, from one to below another: their peer had sent all of them, or so much. What
 * was called cut of that, and is not here, was lost. */
void settle(engine *e, uint32_t rank, uint32_t from, uint32_t below, const control *said)
{
    for (uint32_t i = 0; i < PAST; i++) {
        past *p = &e->past[i];
        if (!p->used || ahead(p->sequence, from) < 0 || ahead(p->sequence, below) >= 0) continue;
        uint64_t first = p->starts[rank], packets = p->starts[rank + 1] - first, sent = said ? said->sent : packets;
        if (said && (said->packets != packets || sent > packets)) continue;
        for (; p->sent[rank] < sent; p->sent[rank]++) {
            uint32_t lost = !p->arrived[first + p->sent[rank]];
            e->counts.lost += lost;
            e->counts.cut -= lost;
        }
    }
}

/* Of a half that is over: if its end overtook it, the ends to come are waited for longer. What was called lost was not. */
static void hear_late(engine *e, uint32_t rank, const uint8_t *data, uint32_t bytes, uint32_t segment)
{
    uint32_t late = 0, number, double_ = 0;
    const past *p = NULL;
    if (((const header *)data)->kind == RELIABLE) { /* all of it had come, or it would not be over */
        e->counts.duplicates += (bytes + segment - 1) / segment;
        return;
    }
    for (uint32_t i = 0; i < PAST; i++)
        if (e->past[i].used && e->past[i].sequence == ((const header *)data)->sequence) p = &e->past[i];
    for (uint32_t at = 0; at < bytes; at += segment) {
        number = ((const header *)(data + at))->chunk;
        uint8_t *here = p && number < p->starts[rank + 1] - p->starts[rank] ? &p->arrived[p->starts[rank] + number] : NULL;
        if (here && *here) { double_++; continue; }
        late++;
        if (!here) continue;
        *here = 1;
        if (number < p->sent[rank]) { e->counts.lost--; e->counts.cut++; }
    }
    e->counts.late += late;
    e->counts.duplicates += double_;
    if (!late || !p) return;
    ns longer = e->reorder > e->reorder_least ? 2 * e->reorder : 2 * e->reorder_least;
    e->reorder = longer < e->reorder_most ? longer : e->reorder_most;
    e->since_inversion = 0;
}

/* Whether what came early ends beyond all that came early before: what does not may be a recording. */
static int farther(peer *p, uint32_t sequence, uint32_t last)
{
    int32_t on = ahead(sequence, p->early_half);
    uint32_t end = last < UINT32_MAX ? last + 1 : last;
    if (p->early_end && (on < 0 || (on == 0 && end <= p->early_end))) return 0;
    p->early_half = sequence;
    p->early_end = end;
    return 1;
}

/* A run of data packets of one sender and flow. */
static void hear_data(engine *e, uint32_t rank, const uint8_t *data, uint32_t bytes, uint32_t segment, ns now)
{
    const header *head = (const header *)data;
    peer *p = &e->peers[rank];
    uint32_t packets = (bytes + segment - 1) / segment;
    half *h = half_at(e, head->sequence);
    int listens = h && h->listening; /* then the first packet of a flow is looked at, and what begins like it */
    if ((e->full_tags || !listens) && !genuine(e, data, bytes < segment ? bytes : segment)) {
        e->counts.strangers += packets;
        return;
    }
    flow *f = listens ? in_of(e, h, rank) : NULL;
    if (listens && !expected(e, h, f, rank, data, bytes < segment ? bytes : segment)) return;
    p->received += packets;
    uint32_t passed = head->behind == NO_WORD ? p->passed : head->sequence - head->behind;
    if (ahead(passed, p->passed) > 0) note_passed(e, rank, passed);
    if (listens) {
        if (take_run(e, h, f, data, bytes, segment)) {
            p->heard = now;
            after_run(e, h, f, bytes, now);
        }
    } else if (ahead(head->sequence, e->opened) >= 0) {
        const header *last = (const header *)(data + (bytes - 1) / segment * segment);
        if (farther(p, head->sequence, last->chunk)) p->heard = now;
        keep_early(e, rank, data, bytes, segment, now);
    } else
        hear_late(e, rank, data, bytes, segment); /* of what is over: it may be a recording */
}

static void sort_out(engine *e, const uint8_t *data, uint32_t bytes, uint32_t segment, const struct sockaddr_storage *from,
                     ns now, ns arrived)
{
    for (uint32_t at = 0, end; at < bytes; at = end) {
        uint32_t length = bytes - at < segment ? bytes - at : segment;
        const header *h = (const header *)(data + at);
        end = at + length;
        if (length < HEADER || h->magic != MAGIC || h->version != VERSION || h->destination != e->rank ||
            h->source >= e->world || !e->peers[h->source].in_group || !from_there(&e->peers[h->source], from)) {
            e->counts.strangers++;
        } else if (OWN(e->failed.code)) {
            if (genuine(e, data + at, length)) hear_failed(e, h->source, data + at, length);
        } else if (h->kind == DATA || h->kind == RELIABLE) {
            end = at + run_length(e, data + at, bytes - at, segment, length);
            hear_data(e, h->source, data + at, end - at, segment, now);
        } else if ((h->kind == MARKER || h->kind == ACK) && genuine(e, data + at, length)) {
            hear_control(e, h->source, data + at, length, arrived);
        } else
            e->counts.strangers++;
    }
}

void drain_errors(engine *e) /* what the host says of packets that went: full queues, peers that are not there */
{
    char space[512], byte;
    struct iovec io = {&byte, 1};
    for (int i = 0; i < 64; i++) {
        struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
        if (recvmsg(e->fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return;
    }
}

/* Up to `calls` system calls' worth. Returns how many brought something. */
int receive_some(engine *e, int calls)
{
    static __thread uint8_t room[ROOM] __attribute__((aligned(64)));
    int done = 0;
    while (done < calls) {
        union { char room[256]; struct cmsghdr align; } space;
        struct iovec io = {room, ROOM};
        struct sockaddr_storage from;
        struct msghdr message = {.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &io, .msg_iovlen = 1,
                                 .msg_control = space.room, .msg_controllen = sizeof space.room};
        ssize_t got = recvmsg(e->fd, &message, MSG_DONTWAIT);
        if (got < 0) {
            if (errno == EAGAIN) break;
            if (errno == EBADF || errno == ENOTSOCK) { break_group(e, SOCKET_ERROR, e->rank, e->rank, (uint32_t)errno); break; }
            drain_errors(e); /* of an earlier send, or a signal: there may be more behind it */
            done++;
            continue;
        }
        ns now = now_ns(), arrived = 0;
        int32_t segment = 0;
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
            if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO) memcpy(&segment, CMSG_DATA(c), sizeof segment);
            if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPNS) {
                struct timespec t;
                memcpy(&t, CMSG_DATA(c), sizeof t);
                arrived = (ns)t.tv_sec * SECOND + t.tv_nsec;
            }
        }
        if (arrived) read_late(e, arrived);
        else arrived = clock_ns();
        e->last_arrival = arrived;
        done++;
        if (got == 0) e->counts.strangers++;
        else sort_out(e, room, (uint32_t)got, segment > 0 ? (uint32_t)segment : (uint32_t)got, &from, now, arrived);
    }
    return done;
}

static void take_early(engine *e, half *h, const early *one)
{
    const header *head = (const header *)one->data;
    uint32_t length = one->bytes < one->segment ? one->bytes : one->segment;
    if (OWN(e->failed.code) || head->sequence != h->sequence) return;
    if (head->kind == MARKER) {
        hear_marker(e, one->rank, head, (const control *)(one->data + HEADER), one->at, 1);
        return;
    }
    flow *f = in_of(e, h, one->rank);
    if (!expected(e, h, f, one->rank, one->data, length)) return;
    if (take_run(e, h, f, one->data, one->bytes, one->segment)) after_run(e, h, f, one->bytes, now_ns());
}

/* A half has a place in the ring of its own from the first packet that comes early until it is over. */
void replay_early(engine *e, half *h)
{
    uint32_t slot = h->sequence % RING;
    early *lists[] = {e->early[slot].first, e->early[slot].markers}; /* what was sent, before what is said of it */
    e->early[slot].first = e->early[slot].last = e->early[slot].markers = NULL;
    for (uint32_t i = 0; i < 2; i++)
        for (early *one = lists[i], *next; one; one = next) {
            next = one->next;
            take_early(e, h, one);
            drop_early(e, one);
        }
}
