/* Markers and acknowledgements: what is sent, when it is repeated, what is heard; and the ways a group breaks. */
#include <stdlib.h>
#include <string.h>
#include "engine.h"

#define FIRST_PAUSE (MS / 7)  /* between markers, at least */
#define PATIENCE (3 * MS)     /* where nothing is lost, the peer will say by itself that all has come */
#define BUSY_PAUSE (20 * MS)  /* the peer is not in this half yet */
#define ASK_PAUSE (50 * MS)   /* nothing was heard of a flow that is waited for */
#define LONG_PAUSE (50 * MS)
#define LONGEST_PAUSE (500 * MS)
#define GAVE_UP_PAUSE (20 * MS)
#define GAVE_UP_TIMES 25      /* unasked: .5 s */
#define TIMED_EVERY (2 * MS)
#define STALLED_PAUSE (20 * MS) /* room comes by itself, unless what gives it was lost */
enum { QUICK_REPEATS = 10, MANY_REPEATS = 60, TIMED_PACKETS = 16 };

static ns longer(ns pause, uint32_t repeats)
{
    if (repeats < QUICK_REPEATS) return pause;
    ns most = repeats < MANY_REPEATS ? LONG_PAUSE : LONGEST_PAUSE;
    pause += pause / 2;
    return pause < most ? pause : most;
}

static ns first_pause(const peer *p)
{
    ns pause = p->answer * 3 / 2;
    return pause < FIRST_PAUSE ? FIRST_PAUSE : pause > LONG_PAUSE ? LONG_PAUSE : pause;
}

/* A peer that says nothing at all (it is stopped, its link is down) is asked ever more slowly: all of it waits in its socket. */
static ns between(const peer *p, ns pause, uint32_t repeats, ns now)
{
    ns silent = now - (p->heard > p->needed_since ? p->heard : p->needed_since);
    pause = longer(pause ? pause : first_pause(p), repeats);
    if (silent > LONG_PAUSE && silent / 2 > pause) pause = silent / 2 < LONGEST_PAUSE ? silent / 2 : LONGEST_PAUSE;
    return pause;
}

/* --- what is sent ------------------------------------------------------------------------------------------------- */

static uint32_t send_marker(engine *e, const header *like, uint32_t packets, uint32_t sent, uint64_t bytes, uint32_t state)
{
    header h = *like;
    h.kind = MARKER;
    h.chunk = sent;
    peer *p = &e->peers[h.destination];
    control c = {.packets = packets, .sent = sent, .bytes = bytes, .extra = like->kind, .base = state == TIMES ? 0 : p->control_in,
                 .state = (uint16_t)state, .time_ns = (uint64_t)clock_ns()};
    ns at = now_ns();
    int left = send_control(e, p, &h, &c, NULL, 0);
    SHOW(p->asked[c.number % ASKED].number, 0); /* the sending thread's markers too: a number is shown with its time only */
    SHOW(p->asked[c.number % ASKED].at, at);
    SHOW(p->asked[c.number % ASKED].number, c.number);
    COUNT(e->markers, left);
    return c.number;
}

/* A marker into the stream, once in a while: the receiver sees how long packets wait on their way. */
void time_flow(engine *e, flow *f)
{
    peer *p = &e->peers[f->peer];
    ns now = now_ns();
    uint64_t sent = SEEN(p->sent);
    if (!e->adaptive || OWN(f->cursor) >= f->packets || now - p->timed_at < TIMED_EVERY || sent - p->timed_sent < TIMED_PACKETS)
        return;
    p->timed_at = now;
    p->timed_sent = sent;
    send_marker(e, (header *)f->prefix, f->packets, OWN(f->cursor), f->bytes, TIMES);
}

/* Which packets below the highest known are missing, `most` of them, others at every half. Returns the bytes of the
 * bitmap. `sequence` 0: the first of them. */
static uint32_t bitmap_of(flow *f, uint32_t most, uint32_t sequence, uint8_t *bits, uint32_t *base)
{
    uint32_t last = 0, holes = f->highest - f->count;
    if (!most) return 0;
    while (f->solid < f->highest && f->arrived[f->solid]) f->solid++; /* once for each packet, not for each look */
    uint32_t at = f->solid;
    uint32_t skip = holes > most ? (sequence * 2654435761u >> 8) % (holes - most + 1) : 0;
    for (; at < f->highest && (f->arrived[at] || skip); at++) skip -= !f->arrived[at];
    *base = at;
    if (at >= f->highest) return 0;
    memset(bits, 0, BITMAP);
    for (uint32_t i = at; i < f->highest && i < at + 8 * BITMAP && most; i++)
        if (!f->arrived[i]) {
            most--;
            bits[(i - at) / 8] |= (uint8_t)(1 << ((i - at) % 8));
            last = (i - at) / 8 + 1;
        }
    return last;
}

static void reply(engine *e, uint32_t rank, const header *about, control *c, const uint8_t *bits, uint32_t bytes)
{
    header h = *about;
    h.kind = ACK;
    h.source = (uint16_t)e->rank;
    h.destination = (uint16_t)rank;
    e->counts.acks += (uint64_t)send_control(e, &e->peers[rank], &h, c, bits, bytes);
}

void acknowledge(engine *e, half *h, flow *f, uint32_t state)
{
    uint8_t bits[BITMAP];
    header about;
    prepare_header(e, h, f, &about, 1);
    control c = {.answers = f->marker, .packets = f->packets, .sent = f->count, .state = (uint16_t)state, .bytes = f->bytes};
    give_limit(e, h, f);
    c.limit = OWN(f->limit);
    c.extra = e->peers[f->peer].told = window_for(e);
    ns held = f->marker_at ? clock_ns() - f->marker_at : 0; /* whoever is told `answers` takes it for an answer to that marker */
    c.held_us = held > 0 ? (uint32_t)(held / 1000) : 0;
    uint32_t base = 0, bytes = h->reliable && state == GOING_ON ? bitmap_of(f, to_repair(h, f), h->reliable == IN_ORDER ? 0 : h->sequence, bits, &base) : 0;
    c.base = base;
    reply(e, f->peer, &about, &c, bits, bytes);
}

static void answer(engine *e, uint32_t rank, const header *marker, const control *m, uint32_t state, ns arrived)
{
    ns held = clock_ns() - arrived;
    control c = {.answers = m->number, .packets = m->packets, .sent = state == FINISHED ? m->packets : 0,
                 .state = (uint16_t)state, .extra = e->peers[rank].told, .held_us = held > 0 ? (uint32_t)(held / 1000) : 0};
    reply(e, rank, marker, &c, NULL, 0);
}

void tell(engine *e, uint32_t rank, uint32_t state, uint32_t about, uint32_t reason)
{
    header h = {.magic = MAGIC, .version = VERSION, .sequence = e->next};
    control c = {.state = (uint16_t)state, .about = (uint16_t)about, .base = reason};
    reply(e, rank, &h, &c, NULL, 0);
}

void tell_gave_up(engine *e, uint32_t rank)
{
    ns now = now_ns();
    peer *p = &e->peers[rank];
    if (now - p->gave_up_told < GAVE_UP_PAUSE) return;
    p->gave_up_told = now;
    p->gave_up_times++;
    if (OWN(e->failed.code) == DISAGREE && rank == e->failed.rank) { /* with our own view of the call */
        control c = {.state = REFUSED, .bytes = e->failed.my_bytes};
        reply(e, rank, &e->failed.mine, &c, NULL, 0);
    }
    uint32_t why = OWN(e->failed.code) == PEER_GAVE_UP ? e->failed.error : OWN(e->failed.code); /* the first cause, whoever tells */
    tell(e, rank, GAVE_UP, e->failed.about, why);
}

static int to_tell(const engine *e, uint32_t rank) /* whoever is gone can't be told */
{
    const peer *p = &e->peers[rank];
    uint32_t why = OWN(e->failed.code) == PEER_GAVE_UP ? e->failed.error : OWN(e->failed.code);
    if ((why == SILENT || why == PEER_LEFT) && rank == e->failed.about && p->gave_up_times) return 0;
    return p->in_group && !p->said_goodbye && !p->gave_up_too && p->gave_up_times < GAVE_UP_TIMES;
}

/* When the next is due; 0: whoever can know does. A notice may get lost as all packets may, and whoever does not hear it
 * takes us for the one who is gone. */
ns tell_again(engine *e)
{
    ns due = 0;
    for (uint32_t rank = 0; rank < e->world; rank++) {
        const peer *p = &e->peers[rank];
        if (to_tell(e, rank)) tell_gave_up(e, rank);
        if (to_tell(e, rank) && (!due || p->gave_up_told + GAVE_UP_PAUSE < due)) due = p->gave_up_told + GAVE_UP_PAUSE;
    }
    if (due) sooner(e, due);
    return due;
}

/* What comes after the end: who knows is answered as long as others are told (it may not know that we know). */
void hear_failed(engine *e, uint32_t rank, const uint8_t *packet, uint32_t bytes)
{
    const header *h = (const header *)packet;
    const control *c = (const control *)(packet + HEADER);
    peer *p = &e->peers[rank];
    int knows = h->kind == ACK && bytes >= HEADER + sizeof *c && (c->state == GAVE_UP || c->state == REFUSED);
    if (knows) p->gave_up_too = 1;
    if (!knows || p->gave_up_times < GAVE_UP_TIMES) tell_gave_up(e, rank);
}

/* --- breaking ------------------------------------------------------------------------------------------------------ */

/* The halves end in `fail_all`, when nobody holds them. */
void break_group(engine *e, uint32_t code, uint32_t rank, uint32_t about, uint32_t error)
{
    if (OWN(e->failed.code)) return;
    e->failed.rank = rank;
    e->failed.about = about;
    e->failed.error = error;
    SHOW(e->failed.code, code);
    sooner(e, 0);
}

void disagree(engine *e, half *h, flow *f, uint32_t rank, const header *theirs, uint64_t their_bytes)
{
    if (OWN(e->failed.code)) return;
    flow none = {.peer = rank};
    prepare_header(e, h, f ? f : &none, &e->failed.mine, 1);
    e->failed.theirs = *theirs;
    e->failed.my_bytes = f ? f->bytes : 0;
    e->failed.their_bytes = their_bytes;
    e->counts.mismatched++;
    break_group(e, DISAGREE, rank, rank, 0);
}

/* --- what is heard ------------------------------------------------------------------------------------------------- */

static void set_live(engine *e, peer *p, tail *t, uint32_t live)
{
    p->tails_live += live - t->live;
    e->tails_live += live - t->live;
    t->live = live;
}

/* Whether its receiver must be told, whatever it does meanwhile: that its half is over here will not say how much it was. */
static int must_hear(const peer *p, const tail *t)
{
    return t->sent < t->packets || ahead(t->sequence, OWN(p->withheld_until)) < 0;
}

/* That all of it was sent is of no use to it now; that less was it must hear. */
static void drop_tails(engine *e, peer *p, uint32_t below)
{
    for (uint32_t i = 0; p->tails_live && i < TAILS; i++)
        if (p->tails[i].live && !must_hear(p, &p->tails[i]) && ahead(p->tails[i].sequence, below) < 0) set_live(e, p, &p->tails[i], 0);
}

static void flow_finished(half *h, flow *f) /* the peer wants nothing more of it */
{
    if (OWN(f->done)) return;
    SHOW(f->done, 1);
    SHOW(h->out_left, OWN(h->out_left) - 1);
}

/* Every half below `passed` is over at this peer: it has sent all of its own, and wants nothing more of ours. */
void note_passed(engine *e, uint32_t rank, uint32_t passed)
{
    peer *p = &e->peers[rank];
    if (ahead(passed, p->passed) <= 0) return;
    p->passed = passed;
    ns now = now_ns();
    p->passes[p->passes_next % PASSES].below = passed;
    p->passes[p->passes_next++ % PASSES].at = now;
    for (half *h = e->first; h && ahead(h->sequence, passed) < 0; h = h->next) {
        if (!h->listening) continue;
        flow *in = in_of(e, h, rank), *out = out_of(e, h, rank);
        if (in && !OWN(in->done)) {
            if (h->reliable) break_group(e, PEER_GAVE_UP, rank, rank, 0); /* nobody leaves what others still need */
            else flow_over_there(e, h, in, now);
        }
        if (out && OWN(h->sending)) flow_finished(h, out);
    }
    settle(e, rank, p->whole, passed, NULL);
    drop_tails(e, p, passed);
    room_again(e, rank);
    sooner(e, 0);
}

static int disagrees(const engine *e, const half *h, const flow *f, const header *theirs, const control *c)
{
    header mine;
    if (!f) return 1;
    prepare_header(e, h, f, &mine, 1);
    return mine.kind != c->extra || mine.step != theirs->step || mine.half != theirs->half || mine.dtype != theirs->dtype ||
           mine.size != theirs->size || mine.block != theirs->block || f->packets != c->packets || f->bytes != c->bytes;
}

/* Of a flow that is repaired in part: so many rounds that brought nothing are enough. Some losses are for ever (a block,
 * by its number). A round is an answer of ours that was heard: of a rank that slept, many markers wait that knew of none. */
static int in_vain(engine *e, const half *h, flow *f, const control *c)
{
    enum { ROUNDS = 32 };
    if (must_all(h) || f->highest < f->packets || c->state == TIMES) return 0;
    /* These three are for flows that go out; here: came at the last look, looks, the answer to that. */
    if (f->repaired != f->count) f->repairs = 0;
    f->repaired = f->count;
    if (f->repairs && ahead(c->base, f->repair_after) < 0) return 0;
    f->repair_after = SEEN(e->peers[f->peer].control_out) + 1;
    return ++f->repairs > ROUNDS;
}

/* A marker with no packets asks for ours. `again`: it was kept until its half was asked for here. */
void hear_marker(engine *e, uint32_t rank, const header *h, const control *c, ns arrived, int again)
{
    half *one = half_at(e, h->sequence);
    ns now = now_ns();
    if (!one && ahead(h->sequence, e->opened) < 0) {
        if (c->packets) settle(e, rank, h->sequence, h->sequence + 1, c);
        answer(e, rank, h, c, FINISHED, arrived);
    } else if (!one || !one->listening) {
        if (c->packets) keep_early(e, rank, (const uint8_t *)h, HEADER + sizeof *c, HEADER + sizeof *c, arrived);
        answer(e, rank, h, c, NOT_YET, arrived);
    } else if (!c->packets) {
        flow *out = out_of(e, one, rank);
        if (out && OWN(one->sending) && !OWN(out->done))
            send_marker(e, (header *)out->prefix, out->packets, SEEN(out->cursor), out->bytes, ASKS);
        else
            answer(e, rank, h, c, NOT_YET, arrived);
    } else {
        flow *f = in_of(e, one, rank);
        if (disagrees(e, one, f, h, c)) { disagree(e, one, f, rank, h, c->bytes); return; }
        f->marker = c->number;
        f->marker_at = arrived;
        f->heard_at = now;
        if (!again) marker_delay(e, &e->peers[rank], c->time_ns, arrived);
        if (c->sent <= f->packets && c->sent > f->highest) {
            f->highest = c->sent;
            SHOW(one->progress, now);
        }
        int sent_all = c->sent >= f->packets || c->state == ENDS; /* all that it will send */
        if (sent_all && !one->reliable) flow_ended(e, one, f, now);
        if (one->reliable && !OWN(f->done) && (enough(one, f) || in_vain(e, one, f, c))) {
            flow_complete(one, f);
            sooner(e, 0);
        }
        if (c->state == TIMES) return; /* it only wanted to be timed */
        int over = one->reliable ? (int)OWN(f->done) : sent_all;
        acknowledge(e, one, f, over ? FINISHED : GOING_ON);
    }
}

static void plan_repairs(engine *e, flow *f, const control *c, const uint8_t *bits, uint32_t bytes)
{
    if (f->repaired < f->repairs || ahead(c->answers, f->repair_after) < 0) return;
    free(f->repair);
    f->repair = malloc(8 * bytes * sizeof *f->repair);
    f->repairs = f->repaired = 0;
    if (!f->repair) return;
    uint32_t sent = SEEN(f->cursor);
    for (uint32_t i = 0; i < 8 * bytes; i++)
        if (bits[i / 8] >> (i % 8) & 1 && c->base + i < sent) f->repair[f->repairs++] = c->base + i;
    f->repair_after = SEEN(e->peers[f->peer].control_out) + 1; /* whatever is asked from now on is asked behind them */
}

/* Of any of the latest markers: on a long way several are asked before the first is answered. */
static void hear_answer_time(engine *e, peer *p, const control *c, ns now)
{
    uint32_t place = c->answers % ASKED, before = SEEN(p->asked[place].number);
    ns at = SEEN(p->asked[place].at), took = now - at - (ns)c->held_us * 1000;
    if (!c->answers || before != c->answers || SEEN(p->asked[place].number) != before) return;
    if (took < 0) took = 0;
    loop_took(e, p, took);
    p->answer = p->answer ? p->answer + (took - p->answer) / 4 : took;
}

static void hear_ack(engine *e, uint32_t rank, const header *h, const control *c, const uint8_t *bits, uint32_t bytes)
{
    peer *p = &e->peers[rank];
    ns now = now_ns();
    half *one = half_at(e, h->sequence);
    flow *f = one && OWN(one->sending) ? out_of(e, one, rank) : NULL;
    if (c->extra) SHOW(p->window, c->extra);
    if (c->answers && ahead(c->answers, p->withheld_at) > 0) p->withheld_untold = 0;
    if (f && !OWN(f->done)) {
        if (c->state == NOT_YET) {
            f->pause = f->pause < BUSY_PAUSE ? BUSY_PAUSE : f->pause + f->pause / 4 < 10 * BUSY_PAUSE ? f->pause + f->pause / 4 : f->pause;
            f->due = now + f->pause;
            return; /* it is there, but no data moved: a deadline goes on */
        }
        hear_answer_time(e, p, c, now);
        SHOW(f->unheard, c->sent <= f->count && c->state == GOING_ON);
        if (c->sent > f->count) { f->count = c->sent; f->repeats = 0; f->pause = 0; SHOW(one->progress, now); }
        if (ahead(c->limit, OWN(f->limit)) > 0) {
            SHOW(f->limit, c->limit);
            f->due = 0;
            wake_sender(e);
        }
        if (c->state == FINISHED) {
            if (!must_all(one) && f->packets) p->loss += 0.1f * (1.0f - (float)c->sent / (float)f->packets - p->loss);
            flow_finished(one, f);
        } else if (one->reliable && bytes)
            plan_repairs(e, f, c, bits, bytes);
        sooner(e, 0);
        return;
    }
    if (c->state == FINISHED && p->went[h->sequence % RING].sequence == h->sequence) {
        p->went[h->sequence % RING].bytes = 0;
        room_again(e, rank);
    }
    for (uint32_t i = 0; p->tails_live && i < TAILS; i++) {
        tail *t = &p->tails[i];
        if (!t->live || t->sequence != h->sequence) continue;
        if (c->state == FINISHED) {
            set_live(e, p, t, 0);
            t->packets = 0;
        } else if (c->state == NOT_YET) t->due = now + BUSY_PAUSE;
    }
}

static int heard_before(peer *p, uint32_t number)
{
    int32_t forward = ahead(number, p->control_in);
    if (forward > 0) {
        p->control_seen = forward < 64 ? p->control_seen << forward | 1 : 1;
        p->control_in = number;
        return 0;
    }
    if (forward <= -64 || p->control_seen >> -forward & 1) return 1;
    p->control_seen |= 1ULL << -forward;
    return 0;
}

void hear_control(engine *e, uint32_t rank, const uint8_t *packet, uint32_t bytes, ns arrived)
{
    peer *p = &e->peers[rank];
    const header *h = (const header *)packet;
    const control *c = (const control *)(packet + HEADER);
    uint32_t least = HEADER + sizeof *c;
    if (bytes < least || bytes > least + BITMAP) { e->counts.strangers++; return; }
    p->received++;
    if (heard_before(p, c->number)) { e->counts.duplicates++; return; }
    p->heard = now_ns();
    if (ahead(c->whole, p->whole) > 0) p->whole = c->whole;
    if (h->kind == ACK && c->state == GAVE_UP) {
        p->gave_up_too = 1;
        break_group(e, PEER_GAVE_UP, rank, c->about, c->base);
        tell_gave_up(e, rank); /* at once: it may wait for that before it ends */
    } else if (h->kind == ACK && c->state == REFUSED) {
        if (!OWN(e->failed.code)) {
            half *one = half_at(e, h->sequence);
            flow *f = one && OWN(one->sending) ? out_of(e, one, rank) : NULL;
            if (f) prepare_header(e, one, f, &e->failed.mine, 0);
            e->failed.theirs = *h;
            e->failed.my_bytes = f ? f->bytes : 0;
            e->failed.their_bytes = c->bytes;
            break_group(e, DISAGREE, rank, rank, 0);
        }
    } else if (h->kind == ACK && c->state == GOODBYE) {
        tell(e, rank, FINISHED, rank, GOODBYE); /* where we are: it need not wait if we need nothing, nor say it again */
        p->said_goodbye = 1;
        note_passed(e, rank, c->passed);
        sooner(e, 0);
    } else {
        note_passed(e, rank, c->passed);
        if (h->kind == ACK && c->state == FINISHED && c->base == GOODBYE && !c->packets) p->knows_goodbye = 1;
        if (OWN(e->failed.code)) return;
        if (h->kind == MARKER) hear_marker(e, rank, h, c, arrived, 0);
        else hear_ack(e, rank, h, c, packet + least, bytes - least);
    }
}

/* --- time passes ---------------------------------------------------------------------------------------------------- */

static void send_tail(engine *e, const tail *t)
{
    send_marker(e, &t->head, t->packets, t->sent, t->bytes, t->sent < t->packets ? ENDS : ASKS);
}

/* Of every flow, live or not: see revive_tails. In the place of one that is not live, if there is any. */
void keep_tail(engine *e, const half *h, const flow *f, ns now)
{
    peer *p = &e->peers[f->peer];
    for (uint32_t i = 0; p->tails_live && i < TAILS && p->tails[p->tail_next % TAILS].live; i++) p->tail_next++;
    tail *t = &p->tails[p->tail_next++ % TAILS];
    set_live(e, p, t, 0);
    *t = (tail){.sequence = h->sequence, .packets = f->packets, .sent = OWN(f->cursor), .repeats = f->repeats, .bytes = f->bytes,
                .pause = f->pause, .due = f->due ? f->due : now + PATIENCE + first_pause(p), .until = now + e->timeout};
    memcpy(&t->head, f->prefix, HEADER);
    int waits = !OWN(f->done) && ahead(p->passed, h->sequence) <= 0;
    if (!waits && !must_hear(p, t)) return;
    set_live(e, p, t, 1);
    if (t->sent < t->packets) { /* before any packet of a later half, which would say that all of this one was sent */
        send_tail(e, t);
        t->due = now + first_pause(p);
    }
    sooner(e, t->due);
}

/* Less was sent of a half, and from now on that those before it are over will not say that all of them was sent. Whether
 * the peer has heard so before nobody knows: it is told of each that it may remember. */
void revive_tails(engine *e, peer *p, uint32_t below, ns now)
{
    for (uint32_t i = 0; i < TAILS; i++) {
        tail *t = &p->tails[i];
        int32_t before = ahead(below, t->sequence);
        if (!t->packets || t->live || before <= 0 || before > PAST) continue;
        set_live(e, p, t, 1);
        t->repeats = 0;
        t->pause = 0;
        t->due = now;
        t->until = now + e->timeout;
    }
    sooner(e, now);
}

/* There is little time left to say it. */
void hurry_tails(engine *e, ns now)
{
    for (uint32_t rank = 0; rank < e->world && e->tails_live; rank++)
        for (uint32_t i = 0; i < TAILS; i++)
            if (e->peers[rank].tails[i].live) {
                e->peers[rank].tails[i].due = now;
                e->peers[rank].tails[i].pause = e->peers[rank].tails[i].repeats = 0;
            }
    sooner(e, now);
}

static void tick_out(engine *e, half *h, flow *f, ns now)
{
    peer *p = &e->peers[f->peer];
    uint32_t went = SEEN(f->cursor);
    int sent = went >= f->packets && f->repaired >= f->repairs, stalled = went < f->packets && went >= OWN(f->limit);
    if (OWN(f->done) || OWN(f->held) || !(sent || stalled)) return;
    if (!f->due) { /* its end has just come, or room was asked for */
        int at_once = p->loss > LOSSY_FROM || f->repairs;
        f->pause = first_pause(p);
        f->due = at_once ? now : now + PATIENCE + p->answer;
        if (stalled) { f->due = OWN(f->unheard) ? now : now + STALLED_PAUSE + 4 * p->answer; e->counts.stalls++; }
    }
    if (f->due <= now) {
        f->marker = send_marker(e, (header *)f->prefix, f->packets, went, f->bytes, ASKS);
        f->asked_at = now;
        f->pause = between(p, f->pause, ++f->repeats, now);
        f->due = now + f->pause;
    }
    sooner(e, f->due);
    (void)h;
}

static void tick_in(engine *e, half *h, flow *f, ns now)
{
    if (OWN(f->done) || f->ended) return;
    ns again = give_again(e, h, f, now);
    if (again) sooner(e, again);
    if (!f->pause) f->pause = ASK_PAUSE;
    ns since = f->heard_at > h->began ? f->heard_at : h->began;
    if (f->asked_at > since) since = f->asked_at;
    if (now - since >= f->pause) {
        header like;
        prepare_header(e, h, f, &like, 1);
        like.source = (uint16_t)e->rank;
        like.destination = (uint16_t)f->peer;
        send_marker(e, &like, 0, 0, 0, ASKS);
        f->asked_at = since = now;
        f->pause = f->pause * 3 / 2 < LONGEST_PAUSE ? f->pause * 3 / 2 : LONGEST_PAUSE;
    }
    sooner(e, since + f->pause);
}

static void tick_tails(engine *e, ns now)
{
    for (uint32_t rank = 0; rank < e->world && e->tails_live; rank++) {
        peer *p = &e->peers[rank];
        for (uint32_t i = 0; p->tails_live && i < TAILS; i++) {
            tail *t = &p->tails[i];
            if (!t->live) continue;
            if (t->until < now) { set_live(e, p, t, 0); continue; }
            if (t->due <= now) {
                send_tail(e, t);
                t->pause = between(p, t->pause, ++t->repeats, now);
                t->due = now + t->pause;
            }
            sooner(e, t->due);
        }
    }
}

void tick_markers(engine *e, ns now)
{
    for (half *h = e->first; h && may_send_now(e, h); h = h->next) {
        if (!OWN(h->sending)) continue;
        for (uint32_t i = 0; i < h->outs; i++) tick_out(e, h, &h->out[i], now);
        for (uint32_t i = 0; i < h->ins; i++) tick_in(e, h, &h->in[i], now);
    }
    tick_tails(e, now);
}
