/* The engine's loop and its doors. One step is:
 *   1. take in what the socket has                       receive.c
 *   2. open, begin and end halves                        half.c
 *   3. send what may be sent                             send.c, credit.c
 *   4. repeat markers, ask silent peers                  control.c
 *   5. nothing to do: sleep until a packet, a job or the next appointment
 *
 * Whoever waits for a half drives the engine itself; while nobody waits, a thread of its own does, so that peers are
 * answered whatever Python is busy with. `driven` says that a waiting thread has taken over. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include "engine.h"

#define FAR (3600 * SECOND)
#define HAND_OVER (4 * MS)    /* the engine's own thread takes over when nobody has driven for so long, */
#define SOONER MS             /* or so, where packets get lost: peers may be asking again */
#define REFUSED_PAUSE (MS / 5)
#define QUIET (250 * MS)      /* of lingering: markers are repeated more often than that */
#define LINGER (3 * SECOND)
#define GOODBYE_PAUSE (20 * MS)
#define GOODBYES 10
#define A_LITTLE (MS / 2)
enum { TRICKLE = 24 << 10, BULK = 128 << 10 };
enum { CALLS = 16, FIRST_WINDOW = 64 << 10, FIRST_ROOM = 256 << 10 };

static struct timespec at_clock(ns from_now)
{
    ns at = now_ns() + from_now;
    return (struct timespec){at / SECOND, at % SECOND};
}

/* Where packets of a long half trickle in one by one (a slow link), every one of them would wake this thread: a little
 * patience takes several at once. */
static int trickles(engine *e)
{
    uint64_t got = e->taken_bytes - e->taken_before;
    e->taken_before = e->taken_bytes;
    e->per_nap += ((double)got - e->per_nap) / 8;
    return e->adaptive && e->first && OWN(e->first->sending) && e->first->in_left && e->per_nap < TRICKLE &&
           e->rate * A_LITTLE < TRICKLE && e->first->longest > BULK && e->blocked != 1;
}

void wake_driver(engine *e)
{
    uint64_t one = 1;
    if (SEEN(e->asleep) && write(e->wake, &one, sizeof one) < 0) sooner(e, 0);
}

static void nap(engine *e, ns until)
{
    ns now = now_ns(), left = (e->tick_at < until ? e->tick_at : until) - now;
    int patient = trickles(e);
    if (e->blocked == 2 && left > REFUSED_PAUSE) left = REFUSED_PAUSE;
    ns paced = e->pace > 0 && e->first ? SEEN(e->pace_at) - now : 0;
    if (paced > 0 && paced < left) left = paced;
    if (left <= 0) return;
    if (patient && left > A_LITTLE) left = A_LITTLE;
    struct timespec pause = {left / SECOND, left % SECOND};
    int deaf = patient || OWN(e->failed.code) == SOCKET_ERROR; /* a socket that is gone would be "ready" for ever */
    struct pollfd ready[2] = {{deaf ? -1 : e->fd, POLLIN | (e->blocked == 1 ? POLLOUT : 0), 0}, {e->wake, POLLIN, 0}};
    ADD(e->asleep, 1);
    if (!SEEN(e->look)) {
        pthread_mutex_unlock(&e->lock);
        ppoll(ready, 2, &pause, NULL);
        pthread_mutex_lock(&e->lock);
    }
    TAKE(e->asleep, 1);
    if (ready[0].revents & POLLERR) drain_errors(e); /* a send may have taken the error, and left what is said of it */
    uint64_t count;
    if (ready[1].revents && read(e->wake, &count, sizeof count) < 0) return;
}

/* Steps 1 to 4. Returns whether anything moved. */
static int step(engine *e)
{
    int moved = receive_some(e, CALLS), sends = !e->has_sender;
    ns now = now_ns();
    uint32_t error = SEEN(e->send_error);
    if (error) break_group(e, error == EBADF || error == ENOTSOCK ? SOCKET_ERROR : UNSENDABLE, e->rank, SEEN(e->send_about), error);
    if (SWAP(e->look, 0)) e->tick_at = 0;
    if (now >= e->tick_at) { /* an appointment, or something that may end a half */
        e->tick_at = now + FAR;
        check_halves(e, now);
        if (e->first) moved += send_round(e, sends, 1) > 0;
        tick_markers(e, now);
    } else if (e->first)
        moved += send_round(e, sends, 1) > 0;
    return moved || now_ns() >= e->tick_at;
}

/* --- the engine's own thread ----------------------------------------------------------------------------------------- */

static int needed(const engine *e) /* by a peer that has not passed what we took part in, or does not know how much of it was sent */
{
    for (uint32_t rank = 0; rank < e->world; rank++) {
        const peer *p = &e->peers[rank];
        if (p->in_group && !p->said_goodbye && (p->tails_live || ahead(p->passed, e->next) < 0)) return 1;
    }
    return 0;
}

/* To those who do not know it yet; 0: all do. */
static int say_goodbye(engine *e)
{
    int some = 0;
    for (uint32_t rank = 0; rank < e->world; rank++) {
        const peer *p = &e->peers[rank];
        if (!p->in_group || p->knows_goodbye) continue;
        tell(e, rank, GOODBYE, e->rank, 0);
        some |= !p->said_goodbye; /* who left may be gone */
    }
    return some;
}

/* The last acknowledgement may get lost: a peer that repeats its marker must still find somebody; so may a goodbye, and
 * whoever did not hear it would wait for us for `timeout_s`. */
static void linger(engine *e)
{
    ns now = now_ns(), until = now + LINGER, quiet_since = now, told = now;
    int times = 1, again = say_goodbye(e);
    hurry_tails(e, now);
    for (; !e->aborting && now < until && (again || (needed(e) && now - quiet_since < QUIET)); now = now_ns()) {
        if (again && now - told >= GOODBYE_PAUSE) {
            again = say_goodbye(e) && ++times < GOODBYES;
            told = now;
        }
        if (step(e)) quiet_since = now;
        else nap(e, again ? told + GOODBYE_PAUSE : quiet_since + QUIET);
    }
}

/* Whoever did not hear why we end would take us for the dead one. */
static void linger_failed(engine *e)
{
    ns until = now_ns() + QUIET * 2;
    while (OWN(e->failed.code) != SOCKET_ERROR && tell_again(e) && now_ns() < until)
        if (!step(e)) nap(e, until);
}

static ns hand_over(const engine *e)
{
    for (uint32_t rank = 0; rank < e->world; rank++)
        if (e->peers[rank].loss > LOSSY_FROM) return SOONER;
    return HAND_OVER;
}

static void *own_thread(void *argument)
{
    engine *e = argument;
    pthread_mutex_lock(&e->lock);
    while (!e->closing || (e->first && !e->aborting)) {
        if (e->driven || now_ns() - e->left_at < hand_over(e)) {
            struct timespec until = at_clock(hand_over(e));
            pthread_cond_timedwait(&e->changed, &e->lock, &until);
        } else if (!step(e) && !e->driven)
            nap(e, now_ns() + FAR);
    }
    if (e->first) break_group(e, ABORTED, e->rank, e->rank, 0); /* they are given up */
    fail_all(e);
    if (OWN(e->failed.code)) linger_failed(e);
    else linger(e);
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

/* --- doors ------------------------------------------------------------------------------------------------------------ */

/* A fork has a copy of everything, also of locks that nobody will open, but no thread of the engine's; the sockets are
 * the parent's. Whoever forks without Python's knowledge (a library in C) is noticed here, without asking the kernel.
 * (Not: a process made by a bare clone.) */
static _Atomic uint32_t forks;
static pthread_once_t watching = PTHREAD_ONCE_INIT;
static void forked(void) { atomic_fetch_add_explicit(&forks, 1, memory_order_relaxed); }
static void watch_forks(void) { pthread_atfork(NULL, NULL, forked); }
static int is_copy(const engine *e) { return e->born != atomic_load_explicit(&forks, memory_order_relaxed); }

/* Any thread may come at any moment, also while another one closes: whoever is inside is counted, and `lb_close` waits
 * until all have left. 0: it is closed, and only what lies in memory may be read. The lock is held afterwards, but in a
 * copy: nothing there is anybody's. */
static int enter(engine *e)
{
    if (is_copy(e)) return 0;
    pthread_mutex_lock(&e->lock);
    if (e->closed) return 0;
    e->inside++;
    return 1;
}

static void leave(engine *e, int inside)
{
    if (is_copy(e)) return;
    if (inside && --e->inside <= 1 && e->closing) pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

static void refuse(half *h)
{
    h->ended = FAILED;
    SHOW(h->over, 1);
}

typedef struct { /* what Python says when it makes one */
    int32_t fd;
    uint32_t rank, world, full_tags, pipeline, send_thread, adaptive, ordered;
    uint64_t key[2], room_bytes;
    double pace_bytes_s, timeout_s, reorder_s, reorder_most_s;
} settings;

engine *lb_new(const settings *s)
{
    engine *e = calloc(1, sizeof *e);
    pthread_condattr_t attributes;
    if (!e) return NULL;
    pthread_once(&watching, watch_forks);
    e->born = atomic_load_explicit(&forks, memory_order_relaxed);
    e->peers = calloc(s->world, sizeof *e->peers);
    e->fd = s->fd;
    e->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    e->rank = s->rank;
    e->world = s->world;
    e->full_tags = s->full_tags;
    e->pipeline = s->pipeline;
    memcpy(e->key, s->key, sizeof e->key);
    e->pace = s->pace_bytes_s / 1e9;
    e->room_bytes = s->room_bytes;
    e->adaptive = s->adaptive;
    e->ordered = s->ordered;
    e->brake = 1;
    e->slack = MS;
    e->window = (double)s->room_bytes;
    if (e->adaptive && e->window > FIRST_ROOM) e->window = FIRST_ROOM;
    e->timeout = ns_of(s->timeout_s);
    e->reorder_least = ns_of(s->reorder_s);
    e->reorder_most = ns_of(s->reorder_most_s);
    pthread_mutex_init(&e->lock, NULL);
    pthread_mutex_init(&e->send_lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&e->changed, &attributes);
    e->has_sender = s->send_thread;
    e->send_wake = e->has_sender ? eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC) : -1;
    return e;
}

void lb_peer(engine *e, uint32_t rank, const void *address, uint32_t bytes)
{
    peer *p = &e->peers[rank];
    memcpy(&p->address, address, bytes);
    p->address_bytes = bytes;
    double share = e->window / (e->world > 1 ? e->world - 1 : 1);
    p->told = share > FIRST_WINDOW ? FIRST_WINDOW : (uint32_t)share;
    SET(p->window, p->told);
    p->heard = now_ns();
    if (!p->in_group) e->others++;
    p->in_group = 1;
}

static void wake_all(engine *e) /* whoever drives, waits, or watches */
{
    uint64_t one = 1;
    if (write(e->wake, &one, sizeof one) < 0) sooner(e, 0);
    pthread_cond_broadcast(&e->changed);
}

static void stop_sender(engine *e)
{
    uint64_t one = 1;
    if (!e->has_sender) return;
    SHOW(e->sender_stops, 1);
    while (write(e->send_wake, &one, sizeof one) < 0 && errno == EINTR) {} /* full: there is a wake-up in it */
    pthread_join(e->sender, NULL);
}

int lb_start(engine *e)
{
    int error = e->has_sender ? pthread_create(&e->sender, NULL, sender_thread, e) : 0;
    if (error) e->has_sender = 0;
    else error = pthread_create(&e->thread, NULL, own_thread, e);
    e->has_thread = !error;
    if (error) stop_sender(e);
    return error;
}

/* In order; `wake`: nobody is going to wait for them right away. */
void lb_submit(engine *e, half **halves, uint32_t count, int wake)
{
    for (uint32_t i = 0; i < count; i++) make_flows(halves[i]); /* before the lock: large tensors take their time */
    int inside = enter(e);
    for (uint32_t i = 0; i < count; i++) {
        half *h = halves[i];
        if (is_copy(e) || OWN(e->failed.code) || e->closing) { refuse(h); continue; }
        pthread_mutex_lock(&e->send_lock);
        h->sequence = e->next++;
        h->previous = e->last;
        h->next = NULL;
        if (e->last) e->last->next = h;
        else e->first = h;
        e->last = h;
        if (!e->unopened) e->unopened = h;
        pthread_mutex_unlock(&e->send_lock);
    }
    if (inside) {
        SHOW(e->closed_below, e->first ? e->first->sequence : e->next);
        sooner(e, 0);
        if (!e->driven) step(e); /* the first packets leave before anybody is woken */
        if (wake && e->first) wake_driver(e);
    }
    leave(e, inside);
}

/* Both halves of an all-reduce in place: `data` are all blocks, this rank's begins at `mine_at`. */
void lb_submit_pair(engine *e, half *first, half *second, uint8_t *data, uint64_t mine_at, uint8_t *arrived, uint32_t step_number)
{
    uint8_t *mine = data + mine_at;
    half *both[] = {first, second};
    first->sums = first->room ? first->room : (float *)mine;
    first->own_part = first->rounded = second->base_out = mine;
    first->base_in = (uint8_t *)first->sums;
    first->base_out = second->base_in = data;
    first->arrived = second->arrived = arrived;
    for (uint32_t i = 0; i < first->ins; i++) second->arrived += first->plan_in[i].packets;
    first->step = second->step = step_number;
    lb_submit(e, both, 2, 1);
}

/* Whether it is; then all that was written of it is there. */
int lb_over(const half *h) { return (int)SEEN(h->over); }

/* How it is with a half: 0: not over; OVER; OVER | ONE_BY_ONE: and this host's device can't cut batches, so that every
 * packet is a system call. */
enum { OVER = 1, ONE_BY_ONE = 2 };
static int how(const engine *e, uint32_t over) { return over ? OVER | (SEEN(e->no_segments) ? ONE_BY_ONE : 0) : 0; }

/* Until this half is over; 0 if `timeout_s` came first. */
int lb_wait(engine *e, half *h, double timeout_s)
{
    if (SEEN(h->over)) return how(e, 1);
    if (is_copy(e)) refuse(h); /* of a call that the parent began */
    ns until = now_ns() + ns_of(timeout_s);
    int inside = enter(e);
    while (inside && !OWN(h->over) && now_ns() < until) {
        if (!e->driven) {
            e->driven = 1;
            while (!OWN(h->over) && now_ns() < until)
                if (!step(e) && !OWN(h->over)) nap(e, until);
            e->driven = 0;
            e->left_at = now_ns();
            if (e->waiting) pthread_cond_broadcast(&e->changed);
        } else {
            struct timespec limit = at_clock(until - now_ns());
            e->waiting++;
            pthread_cond_timedwait(&e->changed, &e->lock, &limit);
            e->waiting--;
        }
    }
    int out = how(e, OWN(h->over));
    leave(e, inside);
    return out;
}

/* A flow's data has come (from a GPU): it may be sent. */
void lb_release(engine *e, half *h, uint32_t index)
{
    int inside = enter(e);
    if (inside && !OWN(h->over)) {
        SHOW(h->out[index].held, 0);
        SHOW(h->progress, now_ns()); /* what it waited for was its own */
        wake_sender(e);
        sooner(e, 0);
        wake_driver(e);
    }
    leave(e, inside);
}

void lb_read(engine *e, counted *counts, failure *failed, uint64_t *sent, uint64_t *received)
{
    int inside = enter(e);
    *counts = e->counts;
    counts->markers = SEEN(e->markers);
    counts->refused = SEEN(e->refused);
    *failed = e->failed;
    for (uint32_t rank = 0; rank < e->world; rank++) {
        sent[rank] = SEEN(e->peers[rank].sent);
        received[rank] = e->peers[rank].received;
    }
    leave(e, inside);
}

/* This host's device can't cut batches: every packet is a system call. */
int lb_one_by_one(const engine *e) { return (int)SEEN(e->no_segments); }

/* A job failed between its halves: the ranks no longer agree which comes next, and the others are told. */
void lb_break(engine *e)
{
    int inside = enter(e);
    if (inside) {
        break_group(e, ABORTED, e->rank, e->rank, 0);
        fail_all(e);
        if (e->closing) { /* whoever closes has no patience any more, or nothing to be patient for */
            e->aborting = 1;
            wake_all(e);
        }
    }
    leave(e, inside);
}

/* `patience_s`: for what was submitted; then it is given up. Ends the threads, waits for whoever is inside, and lets go
 * of everything but memory: that goes when nobody can come any more (lb_free). Once, by one thread. */
void lb_close(engine *e, double patience_s)
{
    if (!enter(e)) { leave(e, 0); return; }
    e->closing = 1;
    ns until = now_ns() + ns_of(patience_s);
    wake_all(e);
    while (e->first && now_ns() < until) {
        struct timespec limit = at_clock(until - now_ns());
        e->waiting++;
        pthread_cond_timedwait(&e->changed, &e->lock, &limit);
        e->waiting--;
    }
    if (patience_s <= 0 || e->first) e->aborting = 1;
    wake_all(e);
    pthread_mutex_unlock(&e->lock);
    if (e->has_thread) pthread_join(e->thread, NULL);
    stop_sender(e);
    pthread_mutex_lock(&e->lock);
    e->closed = 1;
    while (e->inside > 1) { /* their halves are over; two may sleep on one descriptor, and one of them eat the wake-up */
        struct timespec limit = at_clock(MS);
        wake_all(e);
        pthread_cond_timedwait(&e->changed, &e->lock, &limit);
    }
    close(e->wake);
    if (e->send_wake >= 0) close(e->send_wake);
    leave(e, 1);
}

/* Nobody is inside, and nobody can come: Python calls it when nothing refers to the engine any more. One that nobody
 * has closed (its group failed half made, an interruption) has threads that use what goes here. */
void lb_free(engine *e)
{
    if (e->has_thread && !e->closed) lb_close(e, 0);
    for (uint32_t i = 0; i < 2 * RING; i++)
        for (early *one = i < RING ? e->early[i].first : e->early[i - RING].markers, *next; one; one = next) {
            next = one->next;
            free(one);
        }
    for (uint32_t i = 0; i < PAST; i++) {
        free(e->past[i].starts);
        free(e->past[i].sent);
        free(e->past[i].arrived);
    }
    if (!e->closed) { /* it was never started */
        close(e->wake);
        if (e->send_wake >= 0) close(e->send_wake);
    }
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    pthread_mutex_destroy(&e->send_lock);
    free(e->spare);
    free(e->peers);
    free(e);
}

/* Sizes and offsets, for the mirror in Python. */
uint32_t lb_layout(uint32_t *out, uint32_t most)
{
    uint32_t all[] = {sizeof(half), offsetof(half, over), sizeof(flow), offsetof(flow, prefix), sizeof(settings),
                      sizeof(counted), sizeof(failure), sizeof(header), sizeof(control)};
    uint32_t count = sizeof all / sizeof *all;
    for (uint32_t i = 0; i < count && i < most; i++) out[i] = all[i];
    return count;
}
