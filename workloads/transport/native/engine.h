/* The transport's engine: what Python and C share, and what the files of the engine share among each other.
 *
 * Python asks for halves (`half`, with a `flow` for every peer and direction) and waits for them; everything else
 * happens here, without the interpreter: see engine.c for the steps, docs/wire-format.md for what is on the wire.
 * structures.py mirrors what Python sees, and compares sizes and offsets when it is loaded.
 *
 * Who may touch what. Three kinds of threads: whoever drives (a waiting caller, or the engine's own thread), any other
 * caller at a door of engine.c, and, where there are cores for it, one that only sends first packets (send.c); without
 * one, whoever drives does its part. "Shown" is written by SHOW or another atomic and read by SEEN: whole, with all that
 * was written before it. Such a field is a `word`, a `tally` or a `moment` (C11 atomics in a struct): taken for a plain
 * number it does not compile.
 *
 *   by                                engine                              peer                            half, flow
 *   --------------------------------  ----------------------------------  ------------------------------  ---------------------------
 *   nobody, once it runs              fd, wake, send_wake, rank, world,   address, in_group               what Python asks for, and
 *                                     others, full_tags, ordered, born,                                   what make_flows and
 *                                     key, pipeline, pace, adaptive,                                      begin_sending write, before
 *                                     timeout, room_bytes, reorder_*,                                     `sending` is shown
 *                                     has_*, peers
 *   `lock`                            everything that is not named        everything that is not named    everything that is not
 *                                                                                                         named, from submit to over
 *   both locks to write, one to read  first, last                                                         next, previous
 *   shown by the sending thread                                           timed_* (its own)               cursor
 *   shown under `lock`, to it         failed.code, closed_below,          window, withheld_until          sending, limit, held,
 *                                     asleep, sends_below                                                 unheard, out_left, done
 *   shown by both                     look, send_error, send_about,       sent, refused_*, narrow,        progress, unsent
 *                                     markers, refused, pace_at,          control_out, asked
 *                                     sender_asleep, no_segments
 *   shown to Python                                                                                       over: from then on all of
 *                                                                                                         it is the caller's again
 *   whoever closes (lb_close)         sender_stops (shown); under `lock`: closing, aborting, closed. Nobody may come in once it is
 *                                     closed, and `inside` says who is; memory goes in lb_free, when nothing in Python refers to it
 *
 * Why that is enough where a processor keeps no order by itself (aarch64; x86 hides most of it). Within a lock, the lock.
 * Without one:
 *   sending                 a release, behind all that begin_sending wrote and all sums: who acquires it may read flow and data
 *   limit, cursor, done,    each speaks for itself: an old value means that less is sent now, or is looked at once more; behind
 *   held, unsent, out_left  `cursor` lies nothing but packets that the kernel has copied
 *   over                    a release, behind results and `ended`; lb_over and lb_wait acquire it, also where they take no lock.
 *                           Whoever reads it plainly (half.py, Kept) reads nothing else, and only lets memory go
 *   withheld_until          shown before closed_below, and read behind it: no word that a half is over without what it lacks
 *   send_about              shown before send_error, and read behind it
 *   asked[]                 number 0, time, number: a reader who finds one number before and behind has its time
 *   asleep and look;        who sleeps counts itself and looks again, who wakes shows and then reads by adding 0. Changes of
 *   sender_asleep and       one word have one order, and each sees what was shown before those ahead of it, as long as all are
 *   limit, held, sending    exchanges or sums (a plain store between them would see nothing): one of the two sees the other
 *   sent, markers, refused, numbers alone: relaxed sums, or the latest of two moments
 *   progress, pace_at
 *   born, forks             change in no process that has other threads
 * Tensors are written before lb_submit takes the lock, and read behind `over`. */
#ifndef LOSSBENCH_ENGINE_H
#define LOSSBENCH_ENGINE_H
#include <math.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stddef.h>
#include <sys/socket.h>

typedef int64_t ns;
enum { MAGIC = 0x424C, VERSION = 2, HEADER = 40, PREFIX = 36 };
enum { DATA = 1, MARKER = 2, ACK = 3, RELIABLE = 4 };
enum { ASKS = 0, TIMES = 1, ENDS = 2 }; /* what a MARKER wants: an answer, or to be timed; an answer, and nothing more will come */
enum { GOING_ON = 0, FINISHED = 1, NOT_YET = 2, REFUSED = 3, GAVE_UP = 4, GOODBYE = 5 }; /* what an ACK says */
enum { NO_WORD = 255 }; /* of `behind`: nothing is said */
enum { RING = 256, TAILS = 16, PAST = 8, PASSES = 16, ROOM = 1 << 16, BATCH = 64, BITMAP = 1024, ASKED = 64 };
enum { ADD_F32 = 1, ADD_BF16 = 2, ADD_F16 = 3, PUT = 4 };            /* what is done with a payload */
enum { BY_COUNT = 0, BY_WORLD = 1 };                                  /* how sums become means */
enum { F32 = 1, BF16 = 2, F16 = 3 };
enum { RUNNING = 0, ALL = 1, MARKERS = 2, FRACTION = 3, DEADLINE = 4, FAILED = 5 };   /* why a half ended */
enum { SILENT = 1, DISAGREE = 2, PEER_GAVE_UP = 3, PEER_LEFT = 4, SOCKET_ERROR = 5, ABORTED = 6, UNSENDABLE = 7 }; /* why it failed */
#define MS 1000000LL
#define SECOND 1000000000LL
/* The thread that only sends (send.c) holds `send_lock`, everybody else `lock`: what both of them touch is written by one
 * of them and shown whole, with all that was written before it. A struct around each, so that no plain access goes unseen. */
typedef struct { _Atomic uint32_t shown; } word;
typedef struct { _Atomic uint64_t shown; } tally;
typedef struct { _Atomic ns shown; } moment;
#define SHOW(place, value) atomic_store_explicit(&(place).shown, (value), memory_order_release)
#define SEEN(place) atomic_load_explicit(&(place).shown, memory_order_acquire)
/* By the one thread that may write it, or while no other can have heard of it. */
#define OWN(place) atomic_load_explicit(&(place).shown, memory_order_relaxed)
#define SET(place, value) atomic_store_explicit(&(place).shown, (value), memory_order_relaxed)
/* By both; what was there before. COUNT: nothing else is shown with it. */
#define ADD(place, more) atomic_fetch_add_explicit(&(place).shown, (more), memory_order_acq_rel)
#define TAKE(place, less) atomic_fetch_sub_explicit(&(place).shown, (less), memory_order_acq_rel)
#define COUNT(place, more) atomic_fetch_add_explicit(&(place).shown, (more), memory_order_relaxed)
#define SWAP(place, value) atomic_exchange_explicit(&(place).shown, (value), memory_order_acq_rel)
#define SWAP_IF(place, was, value) \
    atomic_compare_exchange_strong_explicit(&(place).shown, (was), (value), memory_order_acq_rel, memory_order_acquire)
#define LOSSY_FROM 0.002f /* share of lost packets from which things are said again without waiting long */

typedef struct __attribute__((packed)) {
    uint16_t magic;
    uint8_t version, kind;
    uint16_t source, destination;
    uint64_t tag;
    uint32_t sequence, step;
    uint8_t half, dtype, traffic, behind;
    uint32_t size, block, chunk;
} header;

typedef struct __attribute__((packed)) { /* what follows the header of a marker or an acknowledgement */
    uint32_t number;      /* of all control packets between these two; one that came before is not heard again */
    uint32_t answers;     /* ack: number of the latest marker of this flow */
    uint32_t packets;     /* of the flow in all */
    uint32_t sent;        /* marker: so far; ack: how many have come */
    uint32_t limit;       /* ack: packets that may be sent in all */
    uint32_t passed;      /* every half below this one is over at the sender of this packet */
    uint32_t held_us;     /* ack: from the marker's arrival to this answer */
    uint16_t state, about;/* ack: GOING_ON ...; which rank it speaks of (GAVE_UP) */
    uint64_t time_ns;     /* marker: when it left, by its sender's clock */
    uint64_t bytes;       /* of the flow's payload */
    uint32_t base, extra; /* ack: first packet of the bitmap that may follow (1: missing), the window for halves to come;
                             marker: the latest control packet that its sender heard, kind of its data packets */
    uint32_t whole;       /* of every half from this one to `passed` all was sent; of earlier ones markers say how much */
} control;

typedef struct {          /* the packets of one half from or to one peer */
    uint8_t *data;        /* out: payload; in: where it goes (sums, if they are added up) */
    uint8_t *arrived;     /* in: a byte a packet */
    uint64_t bytes;       /* payload of all packets */
    uint32_t peer, block, segment, packets;
    float weight;         /* in: of this peer's values in a sum */
    word held;            /* out: not yet: a copy from elsewhere is under way */
    /* results and state */
    word cursor, limit;   /* out: packets sent, packets that may be sent; in: limit told */
    uint32_t count, highest, duplicates;
    word done;            /* in: complete or ended; out: the peer wants nothing more */
    uint32_t ended;       /* in: the peer has sent all */
    uint32_t known;       /* in: `prefix` is what its packets begin with */
    uint32_t marker;      /* number of the latest one; out: sent, in: heard */
    uint32_t repair_after;/* out: bitmaps that answer older markers are about packets sent again since */
    uint32_t repairs, repaired; /* out: packets to be sent again, and how many of them were */
    uint32_t repeats, given_again;
    word unheard;         /* out: of what was sent lately nothing came: no room comes by itself */
    uint32_t top;         /* in: one past the highest number that came; highest_at: when, by the kernel's clock */
    uint32_t solid;       /* in: below it nothing is missing, or more: where a look for holes begins */
    ns due, pause, asked_at, highest_at, heard_at, nacked_at, given_at;
    ns marker_at, again_at; /* in: when the marker came, by the wall clock; when room was given again */
    uint32_t *repair;     /* out: their numbers */
    uint8_t prefix[HEADER];
} flow;

typedef struct half {     /* asked for again and again: only the fields up to `step` change from call to call */
    flow *in, *out;       /* what is made of the plans, when it is submitted */
    const flow *plan_in, *plan_out; /* `data` and `arrived` count from these: */
    uint8_t *base_in, *base_out, *arrived;
    uint32_t step, ins, outs, size;
    uint8_t half, dtype, traffic, reliable;
    uint32_t mode;
    uint32_t after;       /* it sends only when the one submitted before it is over: the second half of a call */
    uint32_t hold;        /* its flows are sent when they are released, one by one */
    float close_fraction; /* lossy: over when so much has come; reliable: repaired until so much has come */
    ns deadline;          /* without progress of data, theirs or ours, from its beginning here on; 0: none */
    /* what is done when it ends: sums become means, means are rounded; what did not come is scaled */
    float *sums;
    const uint8_t *own_part; /* this rank's contribution, in `kind`: what the sums begin with; NULL: with zero */
    float *room;          /* for sums that can't be made in place */
    uint8_t *rounded;     /* where the means go, in `kind`; NULL: nothing to do */
    uint64_t elements;
    uint32_t width, kind, normaliser, world;
    float times, missing; /* missing: factor for what did not come; 1: left alone */
    /* results */
    word over;            /* 1: ended; nothing of it is touched any more */
    uint32_t sequence, ended, expected, came; /* packets of all flows that come in */
    ns began, first, closed;
    moment progress;
    /* state */
    uint64_t longest;     /* bytes of the longest flow that comes in */
    uint32_t in_left;     /* flows that are neither complete nor given up */
    uint32_t ended_open;  /* among them: the peer has sent all of it */
    word out_left;        /* flows that peers still want something of */
    word unsent;          /* flows that have not all been sent, or more: where there is surely nothing to send */
    word sending;
    uint32_t listening, turn, came_since;
    ns last_ended;
    struct half *next, *previous;
    flow **of;            /* in flows by rank, then out flows by rank */
    uint8_t *waiting;     /* sums that must be the same at every call: payloads whose turn has not come, flow by flow */
    uint16_t *added;      /* of each packet: how many flows were added, in their order */
} half;

typedef struct {          /* structures.py says what they mean */
    uint64_t halves, reliable_halves, data_expected, data_arrived, lost, cut, withheld, by_deadline, payload_bytes;
    uint64_t late, duplicates, strangers, mismatched, resent, markers, acks, refused, early, reordered, stalls;
} counted;

typedef struct { ns least, before, since; } recent; /* credit.c */

typedef struct {          /* a lossy flow whose half is over here; live: the peer may still wait for its end, or not know how much it was */
    uint32_t sequence, packets, sent, live, repeats; /* packets 0: nothing more is to be said of it, whatever happens */
    ns due, pause, until;
    uint64_t bytes;
    header head;
} tail;

typedef struct {
    struct sockaddr_storage address;
    socklen_t address_bytes;
    uint32_t in_group, said_goodbye, knows_goodbye;
    tally sent;
    uint64_t received;
    word control_out;
    uint32_t control_in;
    uint64_t control_seen; /* the 64 numbers up to control_in */
    uint32_t passed, whole; /* every half below is over there; of those from `whole` on it had sent all */
    struct { uint32_t below; ns at; } passes[PASSES]; /* when it said so, lately */
    uint32_t passes_next;
    struct { uint32_t sequence; uint64_t bytes; } went[RING]; /* of lossy halves that are over here, as far as it has not acknowledged them */
    word withheld_until;   /* below, something may not have been sent to it; untold: it has not answered a control packet */
    uint32_t withheld_at, withheld_untold; /* behind this one, which were the first to say so */
    uint32_t early_half, early_end; /* the farthest that came early, and one past its packet: what lies below may be a recording */
    ns heard, needed_since, answer; /* when anything came from it; since when it is needed; how long it takes to answer */
    uint32_t cut_next;     /* the half before this one went on without it; 0: none did */
    float loss;            /* of what we sent lately, as it says */
    word window;           /* bytes it lets us have under way when a half begins */
    uint32_t told;         /* what we let it have */
    struct { word number; moment at; } asked[ASKED]; /* when the latest markers left */
    recent loop;           /* from a marker of ours to its answer */
    recent way;            /* of its markers here, by two clocks: least lately */
    ns waited, waited_at;  /* the latest: how much longer than that */
    ns timed_at;           /* when a marker was sent into the stream of our packets */
    uint64_t timed_sent;   /* how many there were then */
    tail tails[TAILS];
    uint32_t tails_live, tail_next;
    moment refused_since, refused_until; /* the host itself takes nothing for it: since when, until when it is not asked; 0: it does */
    word refused_error;
    word narrow;           /* a batch was too wide for the way, and a packet alone was not: twice in a row it has narrowed */
    ns gave_up_told;
    uint32_t gave_up_times, gave_up_too; /* how often it was told; it says so itself: it knows */
} peer;

typedef struct {          /* what came of a half that is over: late packets can be told from double ones */
    uint32_t sequence, used;
    uint64_t *starts;     /* of each rank's bytes in `arrived`; as many entries as ranks, and one more */
    uint32_t *sent;       /* by each rank, as far as is known: what did not come of that is called lost */
    uint8_t *arrived;
} past;

typedef struct early {    /* came before its half was asked for here */
    struct early *next;
    uint32_t rank, bytes, segment;
    ns at;
    uint8_t data[];
} early;

typedef struct {          /* why the group is broken */
    word code;
    uint32_t rank, about, error;
    header mine, theirs;
    uint64_t my_bytes, their_bytes;
} failure;

typedef struct engine {
    int fd, wake;
    uint32_t rank, world, others, full_tags, pipeline; /* world: numbers of ranks; others: who is here beside us */
    uint32_t ordered;     /* reliable sums are the same at every call */
    uint32_t born;        /* how many forks away from the first process: see engine.c */
    uint64_t key[2];
    double pace;          /* bytes a nanosecond; 0: none */
    uint32_t adaptive;
    uint32_t segment;     /* the largest packets so far */
    ns loop, arrival_before; /* credit.c */
    uint64_t room_bytes;  /* what may be under way to this rank, all senders together */
    ns timeout, reorder_least, reorder_most;
    counted counts;
    failure failed;
    peer *peers;
    pthread_mutex_t lock, send_lock;
    pthread_cond_t changed;
    pthread_t thread, sender;
    int send_wake;
    word look, sender_stops, sender_asleep; /* look: whoever drives has something to see to */
    word send_error, send_about; /* what the host said for good, of a packet to whom */
    tally markers, refused; /* counted by both threads */
    uint32_t has_thread, has_sender, closing, aborting, driven, waiting;
    word asleep;
    uint32_t inside, closed; /* threads within a door; no more may come in */
    ns left_at;
    half *ring[RING];
    half *first, *last;   /* submitted and not over, in order */
    struct { early *first, *last, *markers; } early[RING]; /* data in its order; of markers the latest of each peer */
    uint64_t early_bytes;
    past past[PAST];
    uint32_t past_next;
    uint8_t *spare;       /* room for `waiting` that the next half may use: fresh pages cost more than what is put there */
    uint64_t spare_bytes;
    uint32_t next, opened; /* next to be submitted, next to be listened to */
    half *unopened;       /* first that is not listened to */
    word closed_below;    /* first that is not over */
    word sends_below;     /* none from here on is sent yet */
    uint32_t blocked;
    word no_segments;
    ns tick_at, reorder;
    moment pace_at;
    ns checked_at;        /* when halves were looked at last, while there were any */
    ns lost_at;           /* when something was lost last, as far as is known */
    uint64_t since_inversion;
    /* what arrives, as the credits see it (credit.c) */
    double window, rate, brake, per_nap, far;
    uint64_t taken_bytes, taken_before;
    uint64_t rate_bytes;
    recent fastest;       /* rate, below zero */
    ns rate_from, queue_delay, slack, late, last_arrival, braked_at, turned_at, least_wait;
    uint32_t tails_live;
} engine;

/* wire.c */
uint64_t siphash(const uint64_t key[2], const void *data, size_t bytes);
uint64_t tag_of(const engine *e, const uint8_t *packet, size_t bytes);
int genuine(const engine *e, const uint8_t *packet, size_t bytes);
ns now_ns(void);
ns clock_ns(void);

/* numbers.c */
void take_payload(const half *h, flow *f, uint32_t number, const uint8_t *payload);
void begin_numbers(half *h);
void finish_numbers(half *h);

/* send.c */
int send_round(engine *e, int first, int again);
void *sender_thread(void *argument);
void wake_sender(engine *e);
int send_control(engine *e, peer *p, header *h, control *c, const uint8_t *bitmap, uint32_t bitmap_bytes);
void begin_sending(engine *e, half *h);
void room_again(engine *e, uint32_t rank);
void prepare_header(const engine *e, const half *h, const flow *f, header *to, int incoming);

/* receive.c */
int receive_some(engine *e, int calls);
void drain_errors(engine *e);
void keep_early(engine *e, uint32_t rank, const uint8_t *data, uint32_t bytes, uint32_t segment, ns now);
void replay_early(engine *e, half *h);
void remember(engine *e, const half *h);
void settle(engine *e, uint32_t rank, uint32_t from, uint32_t below, const control *said);

/* control.c */
void hear_control(engine *e, uint32_t rank, const uint8_t *packet, uint32_t bytes, ns arrived);
void hear_marker(engine *e, uint32_t rank, const header *h, const control *c, ns arrived, int again);
void tell_gave_up(engine *e, uint32_t rank);
void hear_failed(engine *e, uint32_t rank, const uint8_t *packet, uint32_t bytes);
ns tell_again(engine *e);
void acknowledge(engine *e, half *h, flow *f, uint32_t state);
void note_passed(engine *e, uint32_t rank, uint32_t passed);
void tick_markers(engine *e, ns now);
void time_flow(engine *e, flow *f);
void tell(engine *e, uint32_t rank, uint32_t state, uint32_t about, uint32_t reason);
void keep_tail(engine *e, const half *h, const flow *f, ns now);
void hurry_tails(engine *e, ns now);
void revive_tails(engine *e, peer *p, uint32_t below, ns now);
void break_group(engine *e, uint32_t code, uint32_t rank, uint32_t about, uint32_t error);
void disagree(engine *e, half *h, flow *f, uint32_t rank, const header *theirs, uint64_t their_bytes);

/* credit.c */
void arrived_bytes(engine *e, uint64_t bytes, ns now);
void read_late(engine *e, ns arrived);
void marker_delay(engine *e, peer *p, uint64_t sent_ns, ns arrived);
void loop_took(engine *e, peer *p, ns took);
void share_room(engine *e, half *h, flow *after, ns now);
ns give_again(engine *e, half *h, flow *f, ns now);
uint32_t window_for(engine *e);
void give_limit(engine *e, half *h, flow *f);

/* engine.c */
void wake_driver(engine *e);

/* half.c */
void make_flows(half *h);
int open_half(engine *e, half *h);
void fail_all(engine *e);
void flow_complete(half *h, flow *f);
void flow_ended(engine *e, half *h, flow *f, ns at);
void flow_over_there(engine *e, half *h, flow *f, ns at);
void check_halves(engine *e, ns now);
half *half_at(const engine *e, uint32_t sequence);
ns counts_at_most(const engine *e);
static inline flow *in_of(const engine *e, const half *h, uint32_t rank) { (void)e; return h->of[rank]; }
static inline flow *out_of(const engine *e, const half *h, uint32_t rank) { return h->of[e->world + rank]; }
static inline uint32_t payload_of(const flow *f) { return f->segment - HEADER; }
static inline uint32_t length_of(const flow *f, uint32_t number)
{
    uint64_t at = (uint64_t)number * payload_of(f), left = f->bytes - at;
    return left < payload_of(f) ? (uint32_t)left : payload_of(f);
}
enum { IN_ORDER = 2 }; /* of `reliable`: repaired in part, the first packets first */

/* Everything must arrive; else it is lossy, or repaired in part. */
static inline int must_all(const half *h) { return h->reliable && h->close_fraction >= 1; }
static inline uint32_t wanted(const half *h, const flow *f) /* packets that must arrive */
{
    if (must_all(h)) return f->packets;
    uint32_t least = (uint32_t)ceilf(h->close_fraction * (float)f->packets);
    return least < f->packets ? least : f->packets;
}
static inline int enough(const half *h, const flow *f) /* nothing of it is asked for again */
{
    return f->count == f->packets || (h->reliable && f->highest == f->packets && f->count >= wanted(h, f));
}
static inline uint32_t known_sent(const half *h, const flow *f) /* what did not come of it was lost: nothing else can */
{
    if (f->count == f->packets) return f->packets;
    return f->ended || h->ended == DEADLINE ? f->highest : 0; /* a deadline is silence: what was sent would be here */
}
static inline uint32_t to_repair(const half *h, const flow *f) /* of those that are missing now */
{
    uint32_t holes = f->highest - f->count, may = f->packets - wanted(h, f);
    return f->highest > f->count && holes > may ? holes - may : 0;
}
static inline int32_t ahead(uint32_t a, uint32_t b) { return (int32_t)(a - b); } /* how many halves a lies ahead of b */
/* Of halves that wait behind those that are sent there may be thousands. */
static inline int may_send_now(const engine *e, const half *h) { return ahead(h->sequence, SEEN(e->sends_below)) < 0; }
static inline ns ns_of(double seconds) /* "for ever" is 30 years: times are added */
{
    return seconds < 1e9 ? (ns)(seconds * 1e9) : SECOND * SECOND;
}
static inline void sooner(engine *e, ns at) { if (at < e->tick_at) e->tick_at = at; }
#endif
