/* How much may be under way to this rank. The receiver decides: it alone knows what all senders together do to its link.
 *
 *   window = (rate x (TARGET + slack + 2 late) + far) x brake
 *
 * rate: the most that came within 5 ms, lately. TARGET: how long packets may wait in a queue. slack: what it takes
 * besides (a busy machine): more as long as nothing waits, less as soon as packets do. late: how long packets lie in the
 * socket before this rank comes to read them (more ranks than cores); they wait nowhere else meanwhile. far: what is on
 * the way, up to rate x loop. loop: the least that a question and its answer took lately, of the farthest peer, beyond
 * 10 ms (below that it says more about queues and busy machines). brake: below 1 while packets wait for much longer. They
 * say so themselves: markers in their stream carry the time when they left, the kernel knows when they came, and only
 * differences to the least seen lately count, so clocks need not agree. Loss says nothing: a link may lose ten percent and
 * have room.
 *
 *   1. packets came                   arrived_bytes
 *   2. a marker came                  marker_delay
 *   3. what was used is given again, told by acknowledgements      share_room, window_for */
#include "engine.h"

#define TARGET (MS)
#define MOST_SLACK (6 * MS)
#define MORE_SLACK (MS / 4)
#define FRESH (20 * MS)       /* a sender's waiting time counts for so long */
#define LATELY (10 * SECOND)
#define SPAN (5 * MS)
#define NEAR (10 * MS)        /* of a loop: queues and busy machines make that much, ways do not */
#define UNUSED (20 * MS)
#define MOST_LATE (15 * MS)
#define NEVER INT64_MAX
#define FAST 0.25             /* bytes a nanosecond: 2 Gbit/s */
#define GIVE_AGAIN MS
enum { LEAST_PACKETS = 2, MOST_AGAIN = 8, SOME_RUNS = 8 };
enum { FAIR_BYTES = 128 << 10, SOME_WAIT = 64 << 10, FIRST_FAR = 64 << 10 };

/* The least (or, of negative numbers, the most) of the last one to two spans of time. */
static void note(recent *r, ns value, ns now, ns span)
{
    if (!r->since || now - r->since > span) {
        r->before = r->since && now - r->since < 2 * span ? r->least : value;
        r->least = value;
        r->since = now;
    }
    if (value < r->least) r->least = value;
}

static ns least(const recent *r) { return r->least < r->before ? r->least : r->before; }

/* Long ways have more jitter: it is not taken for a queue. */
static ns target(const engine *e) { return TARGET + e->loop / 8; }

/* For a way that is long. A busy machine answers late too and looks like one: so this room is given a loop at a time, and
 * only while next to nothing waits all the time; on a way that is truly long nothing does. */
static double room_on_the_way(engine *e, ns now)
{
    double most = e->rate * (double)(e->loop + e->loop / 8);
    if (!e->loop) { /* nothing is known of the way yet */
        e->turned_at = 0;
        return 0;
    }
    if (!e->turned_at) { e->far = FIRST_FAR; e->turned_at = now; e->least_wait = NEVER; }
    if (now - e->turned_at > e->loop && e->least_wait != NEVER) {
        int waits = e->least_wait > 2 * TARGET && e->rate * (double)e->least_wait > SOME_WAIT;
        e->far = waits ? e->far - e->far / 8 : 2 * e->far;
        e->turned_at = now;
        e->least_wait = NEVER;
    }
    if (e->far > most) e->far = most;
    return e->far;
}

static void set_window(engine *e, ns now)
{
    double rate = e->rate = (double)-least(&e->fastest) / 1e6; /* bytes a nanosecond */
    ns late = rate > FAST ? 2 * e->late : 0; /* slower links have queues that are shorter than that */
    double window = (rate * (double)(TARGET + e->slack + late) + room_on_the_way(e, now)) * e->brake;
    double floor = (double)e->others * LEAST_PACKETS * e->segment;
    /* A queue much longer than ours alone could make belongs to others: keep a share of it. */
    if (rate > 0 && (double)e->queue_delay > 4 * window / rate && floor < FAIR_BYTES) floor = FAIR_BYTES;
    if (window < floor) window = floor;
    if (window > 2 * e->window) window = 2 * e->window; /* one step at a time */
    e->window = window < (double)e->room_bytes ? window : (double)e->room_bytes;
}

void loop_took(engine *e, peer *p, ns took)
{
    ns before = e->loop;
    note(&p->loop, took, now_ns(), LATELY);
    e->loop = 0;
    for (uint32_t rank = 0; rank < e->world; rank++) {
        const recent *loop = &e->peers[rank].loop;
        if (loop->since && least(loop) - NEAR > e->loop) e->loop = least(loop) - NEAR;
    }
    if (e->adaptive && e->rate > 0 && e->loop > before + MS) set_window(e, now_ns());
}

void arrived_bytes(engine *e, uint64_t bytes, ns now)
{
    e->taken_bytes += bytes;
    if (!e->adaptive) return;
    if (e->last_arrival - e->arrival_before > SPAN) { /* a pause is not a slow link */
        ns came = e->arrival_before - e->rate_from;
        if (e->loop && e->rate_bytes && came < 4 * SPAN) { /* on a long way a window comes in one go, perhaps a short one */
            note(&e->fastest, -(ns)(e->rate_bytes * 1000000 / (uint64_t)(came > SPAN ? came : SPAN)), now, 5 * SECOND);
            set_window(e, now);
        }
        e->rate_bytes = 0;
        e->rate_from = e->last_arrival;
    }
    e->arrival_before = e->last_arrival;
    ns span = e->last_arrival - e->rate_from;
    e->rate_bytes += bytes;
    if (span < SPAN) return;
    if (span < 4 * SPAN) {
        ns rate = (ns)(e->rate_bytes * 1000000 / (uint64_t)span); /* millionths of bytes a nanosecond: integers compare */
        note(&e->fastest, -rate, now, 5 * SECOND);
        if (e->queue_delay > target(e)) e->slack -= e->slack / 16;
        else if (e->queue_delay < target(e) / 2) e->slack += MORE_SLACK;
        if (e->slack > MOST_SLACK) e->slack = MOST_SLACK;
        set_window(e, now);
    }
    e->rate_bytes = 0;
    e->rate_from = e->last_arrival;
}

/* Packets that came at `arrived` are read now. */
void read_late(engine *e, ns arrived)
{
    ns late = clock_ns() - arrived;
    if (late > MOST_LATE) late = MOST_LATE;
    e->late += late > e->late ? (late - e->late) / 4 : -(e->late / 256);
}

void marker_delay(engine *e, peer *p, uint64_t sent_ns, ns arrived)
{
    ns took = arrived - (ns)sent_ns, now = now_ns(), shortest;
    if (!e->adaptive) return;
    note(&p->way, took, now, LATELY);
    shortest = p->waited = took - least(&p->way);
    p->waited_at = now;
    for (uint32_t rank = 0; rank < e->world; rank++) {
        const peer *other = &e->peers[rank];
        if (other->in_group && now - other->waited_at < FRESH && other->waited < shortest) shortest = other->waited;
    }
    e->queue_delay = shortest; /* in front of this rank: all senders meet it */
    if (shortest < e->least_wait) e->least_wait = shortest;
    if (now - e->braked_at < shortest + MS) return;
    e->braked_at = now;
    if (shortest > 2 * (target(e) + e->slack)) e->brake = e->brake > 0.3 ? e->brake * 0.8 : 0.24;
    else e->brake = e->brake < 0.97 ? e->brake * 1.03 : 1.0;
}

static uint32_t senders(const half *h)
{
    uint32_t open = h->in_left - h->ended_open;
    return open ? open : 1;
}

static uint32_t bounded(double bytes) { return bytes > 1 << 30 ? 1 << 30 : (uint32_t)bytes; }

/* Bytes that each peer may have under way when a half begins: all of them begin at once. */
uint32_t window_for(engine *e) { return bounded(e->window / (e->others ? e->others : 1)); }

/* Packets that a sender should have room for: its share, or a quarter of the window where shares are tiny; then not all
 * of them have room at the same time. */
static uint32_t portion(const engine *e, const half *h, const flow *f)
{
    double share = e->window / senders(h), quarter = e->window / 4;
    uint32_t packets = bounded(share > quarter ? share : quarter) / f->segment;
    return packets < LEAST_PACKETS ? LEAST_PACKETS : packets;
}

static uint32_t left_of(const flow *f) { return OWN(f->limit) > f->highest ? OWN(f->limit) - f->highest : 0; }

static int may_need(const flow *f) { return !OWN(f->done) && !f->ended && f->count && OWN(f->limit) < f->packets; }

static void raise_limit(flow *f, uint32_t packets, ns now)
{
    uint32_t limit = f->highest + packets;
    if (limit > f->packets) limit = f->packets;
    if (limit > OWN(f->limit)) SET(f->limit, limit); /* what was given is not taken back */
    f->given_at = now;
    f->given_again = 0;
}

/* What is not given to anybody. Whoever does not use what it has for a while (it is not here yet, or never heard of it)
 * does not keep it from others. */
static double room_left(const engine *e, const half *h, ns now, uint32_t *outstanding)
{
    double room = e->window;
    for (uint32_t i = 0; i < h->ins; i++) {
        const flow *f = &h->in[i];
        ns since = f->heard_at > f->given_at ? f->heard_at : f->given_at;
        if (OWN(f->done) || f->ended || now - since >= UNUSED + 4 * e->late + 2 * e->loop) continue;
        room -= (double)left_of(f) * f->segment;
        *outstanding += left_of(f);
    }
    return room;
}

/* Somebody asked: whoever has nothing left gets its portion, even if nothing of it ever came (a block may be lost whole),
 * and a little even if there is no room. */
void give_limit(engine *e, half *h, flow *f)
{
    if (OWN(f->done) || left_of(f) >= LEAST_PACKETS) return;
    ns now = now_ns();
    uint32_t packets = portion(e, h, f), outstanding = 0;
    double room = e->adaptive ? room_left(e, h, now, &outstanding) / f->segment : packets;
    if (room < packets) packets = room > LEAST_PACKETS ? (uint32_t)room : LEAST_PACKETS;
    raise_limit(f, packets, now);
}

/* What came made room: it is given to those who need it, in turns. */
void share_room(engine *e, half *h, flow *after, ns now)
{
    uint32_t wanted = portion(e, h, after), needy = 0, outstanding = 0;
    h->came_since += 1;
    if (left_of(after) > wanted - 3 * wanted / 8 && h->came_since < SOME_RUNS) return;
    h->came_since = 0;
    double room = room_left(e, h, now, &outstanding);
    for (uint32_t i = 0; i < h->ins; i++) needy += may_need(&h->in[i]);
    for (uint32_t n = 0; n < h->ins && needy; n++) {
        flow *f = &h->in[h->turn++ % h->ins];
        uint32_t left = left_of(f), more = portion(e, h, f);
        if (!may_need(f) || left > more - 3 * more / 8) continue;
        if ((double)(more - left) * f->segment > room) more = left + (uint32_t)(room > 0 ? room / f->segment : 0);
        if (!outstanding && more < left + LEAST_PACKETS) more = left + LEAST_PACKETS; /* nobody may wait for nobody */
        if (more < left + LEAST_PACKETS || (more < left + portion(e, h, f) / 8 && f->highest + more < f->packets))
            break; /* crumbs cost as much as portions: the next ones wait for their turn */
        room -= (double)(more - left) * f->segment;
        outstanding += more - left;
        raise_limit(f, more, now);
        acknowledge(e, h, f, GOING_ON);
        sooner(e, now + GIVE_AGAIN);
    }
}

/* There is room, and nothing comes: what gave it may be lost, where things get lost, even if some came since (the rest of
 * what was given before). Returns when to look again; 0: not at all. */
ns give_again(engine *e, half *h, flow *f, ns now)
{
    const peer *p = &e->peers[f->peer];
    ns since = f->heard_at > f->given_at ? f->heard_at : f->given_at;
    if (f->heard_at > f->again_at) f->given_again = 0;
    if (f->again_at > since) since = f->again_at;
    ns pause = p->loss > LOSSY_FROM ? GIVE_AGAIN + 2 * p->answer : UNUSED + 4 * p->answer;
    if (OWN(f->done) || f->ended || !f->count || OWN(f->limit) <= f->highest) return 0;
    if (now - since < pause) return since + pause;
    if (f->given_again > MOST_AGAIN) return 0; /* then the sender asks */
    f->given_again++;
    f->again_at = now; /* not `given_at`: a sender that has stopped must not keep its room from others */
    acknowledge(e, h, f, GOING_ON);
    return now + pause;
}
