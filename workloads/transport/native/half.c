/* The life of a half: asked for, listened to, sent, over. */
#include <stdlib.h>
#include <string.h>
#include "engine.h"

#define LIFE_CHECK (50 * MS)
#define A_MOMENT (MS / 5)
#define LOSSLESS (10 * SECOND)
enum { MOST_SPARE = 64 << 20 };

half *half_at(const engine *e, uint32_t sequence)
{
    half *h = e->ring[sequence % RING];
    return h && h->sequence == sequence ? h : NULL;
}

/* Flows as planned, for this call's memory. */
void make_flows(half *h)
{
    h->longest = 0;
    memcpy(h->in, h->plan_in, h->ins * sizeof *h->in);
    memcpy(h->out, h->plan_out, h->outs * sizeof *h->out);
    for (uint32_t i = 0; i < h->ins; i++) {
        flow *f = &h->in[i];
        f->data = h->base_in + (uintptr_t)f->data;
        f->arrived = h->arrived + (uintptr_t)f->arrived;
        memset(f->arrived, 0, f->packets);
        if (f->bytes > h->longest) h->longest = f->bytes;
    }
    for (uint32_t i = 0; i < h->outs; i++) {
        h->out[i].data = h->base_out + (uintptr_t)h->out[i].data;
        SET(h->out[i].held, h->hold);
    }
    SET(h->over, 0);
    SET(h->sending, 0);
    h->ended = h->listening = h->ended_open = h->came_since = h->turn = 0;
    h->first = h->closed = h->last_ended = 0;
    h->of = NULL;
    h->waiting = NULL;
    h->added = NULL;
    begin_numbers(h);
}

/* Room for payloads that come before their turn. 0: there is no memory. */
static int make_order(engine *e, half *h)
{
    h->waiting = NULL;
    h->added = NULL;
    if (!e->ordered || !must_all(h) || h->mode == PUT || h->ins < 2) return 1; /* of two numbers the order does not matter */
    uint64_t bytes = (uint64_t)h->ins * h->in[0].bytes;
    if (bytes <= e->spare_bytes) {
        h->waiting = e->spare;
        e->spare = NULL;
        e->spare_bytes = 0;
    } else
        h->waiting = malloc(bytes);
    h->added = calloc(h->in[0].packets, sizeof *h->added);
    return h->waiting && h->added;
}

static void drop_order(engine *e, half *h)
{
    uint64_t bytes = h->waiting ? (uint64_t)h->ins * h->in[0].bytes : 0;
    if (bytes > e->spare_bytes && bytes <= MOST_SPARE) {
        free(e->spare);
        e->spare = h->waiting;
        e->spare_bytes = bytes;
    } else
        free(h->waiting);
    free(h->added);
    h->waiting = NULL;
    h->added = NULL;
}

/* When a peer said, at the latest, that it had passed this half. What came of it before was overtaken by nothing since. */
static ns passed_at(const peer *p, uint32_t sequence, ns now)
{
    for (uint32_t i = 0; i < PASSES; i++)
        if (p->passes[i].at && ahead(p->passes[i].below, sequence) > 0 && p->passes[i].at < now) now = p->passes[i].at;
    return now;
}

/* Ears open: packets of it go where they belong; those that came early are taken in. 0 if it must wait for room. */
int open_half(engine *e, half *h)
{
    if (h->sequence - OWN(e->closed_below) >= RING - 1) return 0; /* NO_WORD is not a number */
    h->of = calloc(2 * e->world, sizeof *h->of);
    if (!make_order(e, h) || !h->of) { break_group(e, SOCKET_ERROR, e->rank, e->rank, 12); return 0; }
    for (uint32_t i = 0; i < h->ins; i++) {
        flow *f = h->of[h->in[i].peer] = &h->in[i];
        if (f->segment > e->segment) e->segment = f->segment;
        SET(f->limit, f->packets < 2 ? f->packets : 2); /* it may have been told more, but perhaps did not hear of it */
    }
    for (uint32_t i = 0; i < h->outs; i++) h->of[e->world + h->out[i].peer] = &h->out[i];
    h->in_left = h->ins;
    SET(h->out_left, h->outs);
    SET(h->unsent, h->outs);
    h->listening = 1;
    e->opened = h->sequence + 1;
    e->ring[h->sequence % RING] = h;
    for (uint32_t i = 0; i < h->ins; i++) { /* it may be over there already */
        const peer *p = &e->peers[h->in[i].peer];
        if (!h->reliable && ahead(p->passed, h->sequence) > 0)
            flow_over_there(e, h, &h->in[i], passed_at(p, h->sequence, now_ns()));
    }
    if (e->early_bytes) replay_early(e, h);
    return 1;
}

void flow_complete(half *h, flow *f)
{
    SET(f->done, 1);
    h->in_left--;
    if (f->ended) h->ended_open--;
    if (f->count < f->packets) f->ended = 1; /* the peer has sent all of it: what is missing the network took */
}

void flow_ended(engine *e, half *h, flow *f, ns at)
{
    if (f->ended || OWN(f->done)) return;
    f->ended = 1;
    if (at > h->last_ended) h->last_ended = at;
    if (!h->first) h->first = at;
    h->ended_open++;
    sooner(e, 0);
}

/* Its half is over at the peer, which had sent all of it, or will say how much. */
void flow_over_there(engine *e, half *h, flow *f, ns at)
{
    if (ahead(h->sequence, e->peers[f->peer].whole) >= 0) f->highest = f->packets;
    flow_ended(e, h, f, at);
}

static float share_of(const half *h)
{
    uint64_t all = 0, here = 0;
    for (uint32_t i = 0; i < h->ins; i++) { all += h->in[i].packets; here += h->in[i].count; }
    return all ? (float)here / (float)all : 1.0f;
}

/* How long after the end of its flows a half still waits for packets that were overtaken. Where nothing was lost lately,
 * what is missing is more likely on its way, in the queue of another CPU that is busy: that is waited for as long as may
 * be, once. Where packets get lost, nothing was overtaken if nothing was lately. */
static ns allowance(const engine *e, ns now)
{
    enum { ORDERLY = 256 }; /* packets in a row without any that was overtaken */
    if (!e->lost_at || now - e->lost_at > LOSSLESS) return e->reorder_most;
    return e->reorder > e->reorder_least ? e->reorder : e->since_inversion > ORDERLY ? 0 : e->reorder_least;
}

/* Nothing of a lossy half is to be sent any more: it went, or its receiver wants nothing more. */
static int all_gone(const half *h)
{
    for (uint32_t i = 0; i < h->outs; i++)
        if (!OWN(h->out[i].done) && SEEN(h->out[i].cursor) < h->out[i].packets) return 0;
    return 1;
}

/* The second half of a call whose first one went on without somebody: its deadline is over, and it is not waited for
 * again. What there is room for is sent all the same: `more` says that there is some. */
static int only_for_those_given_up(const engine *e, const half *h, int *more)
{
    int some = 0;
    *more = 0;
    for (uint32_t i = 0; i < h->ins + h->outs; i++) {
        const flow *f = i < h->ins ? &h->in[i] : &h->out[i - h->ins];
        if (OWN(f->done) || (i < h->ins ? f->ended : SEEN(f->cursor) >= f->packets)) continue;
        const flow *in = in_of(e, h, f->peer);
        if (e->peers[f->peer].cut_next != h->sequence || (in && in->count)) return 0;
        if (i >= h->ins && SEEN(f->cursor) < SEEN(f->limit)) *more = 1;
        some = 1;
    }
    return some;
}

/* What it has to send is still to come here, from elsewhere: nobody else is late. */
static int waits_for_its_own(const half *h)
{
    for (uint32_t i = 0; i < h->outs && h->hold; i++)
        if (!OWN(h->out[i].done) && SEEN(h->out[i].held)) return 1;
    return 0;
}

/* From the last that came of it, went or was acknowledged; also if nothing has yet: whoever is not here is late. */
static ns deadline_of(const engine *e, const half *h, ns now)
{
    int more;
    ns at = SEEN(h->progress) + h->deadline;
    if (!h->after || !only_for_those_given_up(e, h, &more)) return at;
    if (!more) return h->ended_open ? h->last_ended + allowance(e, now) : now;
    return at < now + A_MOMENT ? at : now + A_MOMENT;
}

/* Why a half is over now; RUNNING if it is not. `next` is when to look again. */
static uint32_t ending(engine *e, half *h, ns now, ns *next)
{
    if (!OWN(h->sending)) return RUNNING;
    int sent = h->reliable ? !OWN(h->out_left) : all_gone(h);
    if (sent && !h->in_left) return must_all(h) || share_of(h) == 1.0f ? ALL : FRACTION;
    if (h->reliable) return RUNNING;
    if (sent && h->in_left == h->ended_open) {
        ns at = h->last_ended + allowance(e, now);
        if (now >= at) return MARKERS;
        if (at < *next) *next = at;
    }
    if (h->close_fraction < 1 && sent && share_of(h) >= h->close_fraction) return FRACTION;
    if (h->deadline && !waits_for_its_own(h)) {
        ns at = deadline_of(e, h, now);
        if (now >= at) return DEADLINE;
        if (at < *next) *next = at;
    }
    return RUNNING;
}

static void account(engine *e, half *h, ns now)
{
    h->expected = h->came = 0;
    for (uint32_t i = 0; i < h->ins; i++) {
        flow *f = &h->in[i];
        uint32_t gone = f->packets - f->count, sent = known_sent(h, f), lost = sent > f->count ? sent - f->count : 0;
        h->expected += f->packets;
        h->came += f->count;
        e->counts.lost += lost;
        e->counts.cut += gone - lost;
        if (lost) e->lost_at = now;
        if (h->ended == DEADLINE && !OWN(f->done) && !f->ended) e->peers[f->peer].cut_next = h->sequence + 1;
        e->counts.duplicates += f->duplicates;
        if (!must_all(h)) {
            peer *p = &e->peers[f->peer];
            p->loss += 0.1f * ((float)gone / (float)f->packets - p->loss);
            e->counts.payload_bytes += (uint64_t)f->count * payload_of(f);
            if (f->arrived[f->packets - 1]) e->counts.payload_bytes -= payload_of(f) - length_of(f, f->packets - 1);
        }
    }
    for (uint32_t i = 0; i < h->outs; i++) {
        flow *f = &h->out[i];
        if (!must_all(h)) e->counts.withheld += f->packets - OWN(f->cursor);
        uint64_t rest = (uint64_t)(OWN(f->cursor) - f->count) * f->segment;
        peer *p = &e->peers[f->peer];
        p->went[h->sequence % RING].sequence = h->sequence;
        p->went[h->sequence % RING].bytes = h->reliable || OWN(f->done) || f->count > OWN(f->cursor) ? 0 : rest;
        if (!h->reliable) keep_tail(e, h, f, now);
        if (!must_all(h) && OWN(f->cursor) < f->packets) revive_tails(e, &e->peers[f->peer], h->sequence, now);
    }
    e->counts.halves++;
    if (must_all(h)) { /* all of it arrived in the end */
        e->counts.reliable_halves++;
        return;
    }
    e->counts.data_expected += h->expected;
    e->counts.data_arrived += h->came;
    e->counts.by_deadline += h->ended == DEADLINE;
}

/* From here on nothing of it is sent; what was not is said with the first word that it is over. */
static void take_out(engine *e, half *h)
{
    pthread_mutex_lock(&e->send_lock);
    if (h->previous) h->previous->next = h->next;
    else e->first = h->next;
    if (h->next) h->next->previous = h->previous;
    else e->last = h->previous;
    if (e->unopened == h) e->unopened = h->next;
    if (half_at(e, h->sequence) == h) e->ring[h->sequence % RING] = NULL;
    for (uint32_t i = 0; i < h->outs && OWN(h->sending) && !must_all(h); i++) {
        peer *p = &e->peers[h->out[i].peer];
        if (OWN(h->out[i].cursor) >= h->out[i].packets || ahead(h->sequence + 1, OWN(p->withheld_until)) <= 0) continue;
        SHOW(p->withheld_until, h->sequence + 1);
        p->withheld_at = SEEN(p->control_out);
        p->withheld_untold = 1;
    }
    SHOW(e->closed_below, e->first ? e->first->sequence : e->next);
    h->next = h->previous = NULL;
    pthread_mutex_unlock(&e->send_lock);
}

static void let_go(engine *e, half *h)
{
    drop_order(e, h);
    for (uint32_t i = 0; i < h->outs; i++) { free(h->out[i].repair); h->out[i].repair = NULL; }
    free(h->of);
    h->of = NULL;
    SHOW(h->over, 1); /* from here on it is Python's again */
}

static void close_half(engine *e, half *h, uint32_t why, ns now)
{
    h->ended = why;
    h->closed = now;
    take_out(e, h); /* before the counting: what goes while it is counted would be called withheld */
    account(e, h, now);
    if (!must_all(h)) remember(e, h);
    e->reorder -= e->reorder / 16; /* until it is seen again */
    finish_numbers(h);
    let_go(e, h);
    if (e->waiting) pthread_cond_broadcast(&e->changed);
}

void fail_all(engine *e)
{
    while (e->first) {
        half *h = e->first;
        h->ended = FAILED;
        take_out(e, h);
        let_go(e, h);
    }
    if (OWN(e->failed.code)) tell_again(e);
    if (e->waiting) pthread_cond_broadcast(&e->changed);
    wake_driver(e); /* whoever drives may wait for one of them, and another thread came by here */
}

/* Of a time in which nobody looked, so much counts as the silence of a peer or the refusal of a host. */
ns counts_at_most(const engine *e) { return e->timeout / 4 < SECOND ? e->timeout / 4 : SECOND; }

/* This rank slept (it was stopped, perhaps with all the others; or it had no core): what did not come meanwhile is not
 * the others' silence. */
static void forgive_own_sleep(engine *e, ns now)
{
    ns slept = e->checked_at ? now - e->checked_at : 0, more = slept - counts_at_most(e);
    if (more <= 0) return;
    for (uint32_t rank = 0; rank < e->world; rank++) {
        peer *p = &e->peers[rank];
        p->needed_since += more;
        ns since = SEEN(p->refused_since);
        if (since) SHOW(p->refused_since, since + more);
    }
    for (half *h = e->first; h && may_send_now(e, h); h = h->next)
        if (OWN(h->sending)) SHOW(h->progress, SEEN(h->progress) + slept);
}

/* A peer that halves need, one after the other, and that says nothing for `timeout`, is gone; so is one that took its
 * leave. */
static void check_alive(engine *e, const half *h, const flow *f, ns now)
{
    peer *p = &e->peers[f->peer];
    if (OWN(f->done)) return;
    if (p->said_goodbye && ahead(p->passed, h->sequence) <= 0) break_group(e, PEER_LEFT, f->peer, f->peer, 0);
    if (p->heard >= p->needed_since) p->needed_since = p->heard > h->began ? p->heard : h->began;
    if (now - p->needed_since >= e->timeout) break_group(e, SILENT, e->rank, f->peer, 0);
    else sooner(e, p->needed_since + e->timeout);
}

/* It is there, there is something for it, and this host takes nothing. */
static void check_refused(engine *e, const flow *f, ns now)
{
    peer *p = &e->peers[f->peer];
    ns since = SEEN(p->refused_since);
    if (!OWN(f->done) && since && p->heard > since && now - since >= e->timeout)
        break_group(e, UNSENDABLE, e->rank, f->peer, SEEN(p->refused_error));
}

static int may_send(const engine *e, const half *h, uint32_t sending)
{
    if (!h->listening || OWN(h->sending) || sending >= e->pipeline) return 0;
    return !h->after || !h->previous || h->previous->sequence + 1 != h->sequence;
}

void check_halves(engine *e, ns now)
{
    ns next = now + LIFE_CHECK;
    uint32_t sending = 0;
    int again = 1;
    forgive_own_sleep(e, now);
    while (again) {
        again = 0;
        sending = 0;
        ns moved = 0;
        while (e->unopened && open_half(e, e->unopened)) e->unopened = e->unopened->next;
        for (half *h = e->first, *after; h && h->listening; h = after) {
            after = h->next;
            if (sending >= e->pipeline && !may_send_now(e, h)) break;
            if (may_send(e, h, sending)) begin_sending(e, h);
            if (h->deadline && OWN(h->sending) && !h->first && SEEN(h->progress) < moved) SHOW(h->progress, moved);
            if (h->first && SEEN(h->progress) > moved) moved = SEEN(h->progress); /* those behind it wait for their turn */
            uint32_t why = ending(e, h, now, &next);
            if (why) { close_half(e, h, why, now); again = 1; } /* what waited for it may go on */
            else sending += OWN(h->sending);
        }
    }
    for (half *h = e->first; h && may_send_now(e, h) && !OWN(e->failed.code); h = h->next) {
        if (!OWN(h->sending)) continue;
        for (uint32_t i = 0; i < h->ins; i++) /* of one that has sent all nothing is waited for, whatever was lost */
            if (h->reliable || !h->in[i].ended) check_alive(e, h, &h->in[i], now);
        for (uint32_t i = 0; i < h->outs; i++) /* nor of one that has got all; but it must give room for the rest */
            if (h->reliable || SEEN(h->out[i].cursor) < h->out[i].packets) {
                check_alive(e, h, &h->out[i], now);
                check_refused(e, &h->out[i], now);
            }
    }
    sooner(e, next);
    if (OWN(e->failed.code)) fail_all(e);
    e->checked_at = e->first ? now : 0;
}
