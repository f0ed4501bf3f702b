/* Packets out: batches that the kernel cuts (UDP_SEGMENT), repairs, control packets. */
#include <errno.h>
#include <netinet/udp.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>
#include "engine.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef SOL_UDP
#define SOL_UDP 17
#endif
enum { LARGEST = 65000 };
#define BUCKET (2 * MS) /* of a fixed pace */
#define SHORT_WAIT (MS / 5)
#define LONG_WAIT (100 * MS)
#define MOST_REFUSED (20 * MS) /* until a host that takes nothing for a peer is asked again; at first: */
#define FIRST_REFUSED (MS / 5)
enum { LEFT_BEHIND = 8 }; /* errors in a row that packets to others may have left on the socket */

/* What the packets of a flow begin with: ours, or (incoming) what a peer that makes the same call must send. */
void prepare_header(const engine *e, const half *h, const flow *f, header *to, int incoming)
{
    *to = (header){.magic = MAGIC, .version = VERSION, .kind = must_all(h) ? RELIABLE : DATA, .sequence = h->sequence,
                   .source = (uint16_t)(incoming ? f->peer : e->rank), .destination = (uint16_t)(incoming ? e->rank : f->peer),
                   .step = h->step, .half = h->half, .dtype = h->dtype, .traffic = h->traffic, .size = h->size,
                   .block = f->block};
}

/* Without a lock: whoever takes packets in must not wait for a round of sending to end. Changes of one number have an
 * order: this one comes before the other thread says that it sleeps, and then it sees what there is to send, or after,
 * and then it is woken. (Reading alone could come too early: what is to be sent would not be seen yet.) */
void wake_sender(engine *e)
{
    uint64_t one = 1;
    if (!e->has_sender || !ADD(e->sender_asleep, 0)) return;
    if (write(e->send_wake, &one, sizeof one) < 0) return; /* it is full: there is a wake-up in it */
}

/* What may be under way to this peer of lossy halves below this one that it has not passed. */
static uint64_t under_way(const engine *e, const peer *p, uint32_t rank, uint32_t below)
{
    uint64_t bytes = 0;
    for (uint32_t sequence = p->passed; ahead(below, sequence) > 0; sequence++) {
        const half *h = half_at(e, sequence);
        const flow *f = h && !h->reliable && OWN(h->sending) ? out_of(e, h, rank) : NULL;
        uint32_t may = f ? OWN(f->limit) < f->packets ? OWN(f->limit) : f->packets : 0;
        if (f && may > f->count) bytes += (uint64_t)(may - f->count) * f->segment;
        if (!h && p->went[sequence % RING].sequence == sequence) bytes += p->went[sequence % RING].bytes;
    }
    return bytes;
}

/* Packets of a flow that may be sent before its peer has said anything of it: a window for all halves together that it is
 * behind, however many ended here without it. The one just before is not counted: where all keep step, no word of that
 * has come yet. */
static uint32_t first_room(const engine *e, const half *h, const flow *f)
{
    const peer *p = &e->peers[f->peer];
    uint32_t room = OWN(p->window) / f->segment;
    int32_t behind = ahead(h->sequence, p->passed);
    if (room < 2) room = 2;
    if (h->reliable || behind <= 1) return room;
    if (behind >= RING) return 0; /* what comes so early is not kept */
    uint64_t before = under_way(e, p, f->peer, h->sequence - 1) / f->segment;
    return before < room ? room - (uint32_t)before : 0;
}

/* The peer is through with some of what went before. */
void room_again(engine *e, uint32_t rank)
{
    for (half *h = e->first; h && may_send_now(e, h); h = h->next) {
        flow *f = OWN(h->sending) && !h->reliable ? out_of(e, h, rank) : NULL;
        uint32_t room = f && !OWN(f->done) && OWN(f->limit) < f->packets ? first_room(e, h, f) : 0;
        if (!f || room <= OWN(f->limit)) continue;
        SHOW(f->limit, room);
        f->due = 0;
        sooner(e, 0);
        wake_sender(e);
    }
}

void begin_sending(engine *e, half *h)
{
    uint32_t behind = h->sequence - OWN(e->closed_below), left = h->outs;
    for (uint32_t i = 0; i < h->outs; i++) {
        flow *f = &h->out[i];
        header head;
        prepare_header(e, h, f, &head, 0);
        peer *p = &e->peers[f->peer]; /* there is no room to say that less was sent: until it knows, no word */
        head.behind = (uint8_t)(p->withheld_untold ? NO_WORD : behind);
        head.tag = tag_of(e, (uint8_t *)&head, PREFIX);
        memcpy(f->prefix, &head, HEADER);
        SET(f->limit, first_room(e, h, f));
        SET(f->unheard, !OWN(f->limit)); /* nobody there knows that there is something to send: it asks at once */
        if (!must_all(h) && ahead(p->passed, h->sequence) > 0) { /* it is through, and takes nothing more of it */
            SET(f->done, 1);
            left--;
        }
        ns since = SEEN(p->refused_since), idle = since ? now_ns() - SEEN(p->refused_until) - counts_at_most(e) : 0;
        if (idle > 0) SHOW(p->refused_since, since + idle); /* it was not asked all the time */
    }
    SET(h->out_left, left);
    SET(h->unsent, left);
    h->began = now_ns();
    SET(h->progress, h->began);
    if (!may_send_now(e, h)) SHOW(e->sends_below, h->sequence + 1);
    SHOW(h->sending, 1); /* not before what it begins with */
    wake_sender(e);
}

/* What the network says of a packet (a peer that is gone, no way, a narrow one) is said when the next one is to leave,
 * whoever that is for: it did not leave, and nothing is wrong with it. */
static int may_be_of_another(int error)
{
    return error == ECONNREFUSED || error == EHOSTUNREACH || error == ENETUNREACH || error == EHOSTDOWN || error == ENONET ||
           error == ENOPROTOOPT || error == EOPNOTSUPP || error == EPROTO || error == EMSGSIZE;
}

/* 0: it has left; else why the host did not take it. Not `refused` are packets that wait for room in the socket's
 * own buffer (EAGAIN), and batches for a device that can't cut them (EIO: one by one they are taken). */
static int transmit(engine *e, peer *p, struct iovec *io, uint32_t packets, uint32_t segment)
{
    union { char room[CMSG_SPACE(sizeof(uint16_t))]; struct cmsghdr align; } space;
    struct msghdr message = {.msg_name = &p->address, .msg_namelen = p->address_bytes, .msg_iov = io, .msg_iovlen = 1};
    if (segment) {
        message.msg_control = space.room;
        message.msg_controllen = sizeof space.room;
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_UDP;
        c->cmsg_type = UDP_SEGMENT;
        c->cmsg_len = CMSG_LEN(sizeof(uint16_t));
        uint16_t size = (uint16_t)segment;
        memcpy(CMSG_DATA(c), &size, sizeof size);
    }
    for (int tries = 0;;) {
        if (sendmsg(e->fd, &message, MSG_DONTWAIT) >= 0) return 0;
        int error = errno;
        if (error == EINTR) continue;
        if (error != EAGAIN && error != EIO) COUNT(e->refused, packets);
        if (!may_be_of_another(error) || tries++ == LEFT_BEHIND) return error;
    }
}

/* Packets in one piece: what the kernel copies in one go costs less than 90 pieces, and is still in the cache. */
static uint32_t frame(const engine *e, const flow *f, const uint32_t *numbers, uint32_t first, uint32_t *count, uint8_t *room)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < *count; i++) {
        uint32_t number = numbers ? numbers[i] : first + i, length = length_of(f, number);
        header *h = (header *)(room + used);
        memcpy(h, f->prefix, HEADER);
        h->chunk = number;
        memcpy(room + used + HEADER, f->data + (uint64_t)number * payload_of(f), length);
        if (e->full_tags) h->tag = tag_of(e, room + used, HEADER + length);
        used += HEADER + length;
        if (length < payload_of(f)) *count = i + 1; /* a shorter one ends a batch */
    }
    return used;
}

/* Something for whoever drives: the end of a flow has left, its marker may be due and its half over. (As in wake_sender:
 * either they see `look` before they sleep, or they are woken.) */
static void look_again(engine *e)
{
    uint64_t one = 1;
    if (!e->has_sender) sooner(e, 0);
    else {
        SHOW(e->look, 1);
        if (ADD(e->asleep, 0) && write(e->wake, &one, sizeof one) < 0) return;
    }
}

static void unsendable(engine *e, const flow *f, int error) /* the group breaks, by whoever drives */
{
    SHOW(e->send_about, f->peer);
    SHOW(e->send_error, (uint32_t)error);
    look_again(e);
}

/* For now; for how long is watched in half.c. */
static void not_taken(peer *p, int error)
{
    ns now = now_ns(), since = SEEN(p->refused_since), pause;
    if (!since) SHOW(p->refused_since, since = now);
    pause = (now - since) / 4;
    SHOW(p->refused_error, (uint32_t)error);
    SHOW(p->refused_until, now + (pause < FIRST_REFUSED ? FIRST_REFUSED : pause < MOST_REFUSED ? pause : MOST_REFUSED));
}

/* `count` packets of a flow: numbers[0..count), or from `first` on. Returns how many went: 0 if nothing may go now. */
static uint32_t send_packets(engine *e, flow *f, const uint32_t *numbers, uint32_t first, uint32_t count, int *blocked)
{
    static __thread uint8_t room[LARGEST + ROOM] __attribute__((aligned(64)));
    peer *p = &e->peers[f->peer];
    uint32_t bytes = frame(e, f, numbers, first, &count, room), went = 0;
    int alone = 0;
    while (went < count) {
        uint32_t step = alone || SEEN(e->no_segments) ? 1 : count - went, at = went * f->segment, rest = bytes - at;
        struct iovec io = {room + at, step == 1 && rest > f->segment ? f->segment : rest};
        int error = transmit(e, p, &io, step, step > 1 ? f->segment : 0);
        if (error == EIO && step > 1) { SHOW(e->no_segments, 1); continue; } /* this device can't have its packets cut */
        if (error == EINVAL && step > 1) { /* what older kernels say of a batch that is too wide */
            alone = 1;
            continue;
        }
        if (!error) {
            went += step;
            if (step > 1 && SEEN(p->narrow)) SHOW(p->narrow, 0);
            if (alone && SEEN(p->narrow)) { /* alone they pass (in pieces), as a batch not; and not for a moment only */
                unsendable(e, f, EMSGSIZE);
                break;
            }
            if (alone) SHOW(p->narrow, 1);
            alone = 0;
            continue;
        }
        if (error == EAGAIN) { *blocked = 1; break; }
        *blocked = error == ENOBUFS || error == ENOMEM ? 2 : 3; /* a full queue of the host; or it is about this peer alone */
        if (error == EBADF || error == ENOTSOCK || error == EMSGSIZE) unsendable(e, f, error);
        else not_taken(p, error);
        break; /* whatever the host did not take was not sent, and nothing is lost */
    }
    if (went && SEEN(p->refused_since)) SHOW(p->refused_since, 0);
    COUNT(p->sent, went);
    return went;
}

static uint32_t batch_of(const flow *f)
{
    uint32_t most = LARGEST / f->segment;
    return most < 1 ? 1 : most > BATCH ? BATCH : most;
}

static int paced(engine *e, uint64_t bytes)
{
    if (e->pace <= 0) return 1;
    ns now = now_ns(), at = SEEN(e->pace_at), next;
    do {
        if (now < at) return 0;
        next = (at < now - BUCKET ? now - BUCKET : at) + ns_of((double)bytes / e->pace / 1e9);
    } while (!SWAP_IF(e->pace_at, &at, next));
    return 1;
}

static int send_repairs(engine *e, flow *f, int *blocked)
{
    uint32_t left = f->repairs - f->repaired, most = batch_of(f), allowed = left < most ? left : most;
    if (!allowed || !paced(e, (uint64_t)allowed * f->segment)) return 0;
    uint32_t went = send_packets(e, f, f->repair + f->repaired, 0, allowed, blocked);
    f->repaired += went;
    e->counts.resent += went;
    if (f->repaired == f->repairs) f->due = 0; /* ask at once whether they came */
    return went > 0;
}

static int send_first(engine *e, half *h, flow *f, int *blocked)
{
    uint32_t limit = SEEN(f->limit), end = limit < f->packets ? limit : f->packets, most = batch_of(f);
    if (SEEN(f->held) || OWN(f->cursor) >= end) return 0;
    uint32_t count = end - OWN(f->cursor) < most ? end - OWN(f->cursor) : most;
    if (count > 8 && (uint64_t)count * f->segment * 4 > SEEN(e->peers[f->peer].window))
        count = count / 4 > 8 ? count / 4 : 8; /* a quarter of what may be under way: no bursts into a small queue */
    if (!paced(e, (uint64_t)count * f->segment)) {
        if (h->deadline) SHOW(h->progress, SEEN(e->pace_at)); /* it waits for nobody but its own pace */
        return 0;
    }
    uint32_t went = send_packets(e, f, NULL, OWN(f->cursor), count, blocked);
    SHOW(f->cursor, OWN(f->cursor) + went);
    if (went && h->deadline) SHOW(h->progress, now_ns());
    if (went) time_flow(e, f);
    if (went && OWN(f->cursor) >= f->packets && !h->reliable) TAKE(h->unsent, 1);
    return went > 0;
}

/* After some of it went: a marker may be due. */
static int to_see_to(flow *f, int again)
{
    uint32_t cursor = SEEN(f->cursor);
    if (cursor >= f->packets) return !again || f->repaired >= f->repairs;
    return SEEN(f->unheard) && cursor >= SEEN(f->limit);
}

/* One batch to every peer that may have one, the next rank first (`out` is in that order): incast is spread. What was
 * never sent, what must be sent again, or both: with a second thread one does the first, the other the second. */
int send_round(engine *e, int first, int again)
{
    int went = 0, blocked = 0, refused = 0;
    for (half *h = e->first; h && may_send_now(e, h) && !SEEN(e->failed.code); h = h->next) {
        if (!SEEN(h->sending) || !(h->reliable ? SEEN(h->out_left) : SEEN(h->unsent))) continue;
        for (uint32_t i = 0; i < h->outs && !blocked; i++) {
            flow *f = &h->out[i];
            const peer *p = &e->peers[f->peer];
            int some = 0;
            if (SEEN(f->done)) continue;
            if (SEEN(p->refused_since) && now_ns() < SEEN(p->refused_until)) {
                if (again) sooner(e, SEEN(p->refused_until));
                refused = 1;
                continue;
            }
            if (again) some += send_repairs(e, f, &blocked);
            if (first) some += send_first(e, h, f, &blocked);
            if (some && to_see_to(f, again)) look_again(e);
            went += some;
            if (blocked == 3) { /* the others are not held up */
                if (again) sooner(e, SEEN(p->refused_until));
                refused = 1;
                blocked = 0;
            }
        }
    }
    if (again) e->blocked = blocked;
    return (blocked || refused) && !went ? -1 : went;
}

/* A second thread that only sends, where there are cores for it: the first one is free to take in and to add. */
void *sender_thread(void *argument)
{
    engine *e = argument;
    pthread_mutex_lock(&e->send_lock);
    while (!SEEN(e->sender_stops)) {
        int went = send_round(e, 1, 0);
        if (!went) { /* look once more when everybody knows that it sleeps: no wake-up gets lost */
            SWAP(e->sender_asleep, 1);
            went = send_round(e, 1, 0);
        }
        pthread_mutex_unlock(&e->send_lock); /* let the other thread change the list of halves */
        if (went <= 0) {
            uint64_t count;
            ns pause = went < 0 || e->pace > 0 ? SHORT_WAIT : LONG_WAIT;
            struct timespec limit = {pause / SECOND, pause % SECOND};
            struct pollfd ready = {e->send_wake, POLLIN, 0};
            if (ppoll(&ready, 1, &limit, NULL) > 0 && read(e->send_wake, &count, sizeof count) < 0) went = 0;
        }
        SWAP(e->sender_asleep, 0); /* no plain store: whoever found it 0 until now, what he had shown is seen behind this */
        pthread_mutex_lock(&e->send_lock);
    }
    pthread_mutex_unlock(&e->send_lock);
    return NULL;
}

/* Whether it left; what did not is repeated anyway. */
int send_control(engine *e, peer *p, header *h, control *c, const uint8_t *bitmap, uint32_t bitmap_bytes)
{
    uint8_t packet[HEADER + sizeof(control) + BITMAP];
    uint32_t bytes = HEADER + sizeof *c + bitmap_bytes;
    c->number = COUNT(p->control_out, 1) + 1;
    c->passed = SEEN(e->closed_below);
    c->whole = SEEN(p->withheld_until); /* not older than the former */
    memcpy(packet, h, HEADER);
    memcpy(packet + HEADER, c, sizeof *c);
    if (bitmap_bytes) memcpy(packet + HEADER + sizeof *c, bitmap, bitmap_bytes);
    ((header *)packet)->tag = tag_of(e, packet, bytes);
    struct iovec io = {packet, bytes};
    int left = !transmit(e, p, &io, 1, 0);
    if (left) COUNT(p->sent, 1);
    return left;
}
