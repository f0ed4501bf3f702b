/* Claims about parts of the engine, with a clock and a host of their own: `parts CLAIM` prints what is wrong, and ends
 * with 1 then. */
#define now_ns wires_own_now_ns
#include "../../workloads/transport/native/wire.c"
#undef now_ns
static ns clock_now = 100 * SECOND;
ns now_ns(void) { return clock_now; }
static ssize_t host_takes(int fd, const struct msghdr *message, int flags);
#define sendmsg host_takes
#include "../../workloads/transport/native/send.c"
#undef sendmsg
#include "../../workloads/transport/native/numbers.c"
#include "../../workloads/transport/native/receive.c"
#include "../../workloads/transport/native/control.c"
#include "../../workloads/transport/native/credit.c"
#include "../../workloads/transport/native/half.c"
#include "../../workloads/transport/native/engine.c"
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

enum { PAYLOAD = 64, SEGMENT = HEADER + PAYLOAD, PACKETS = 40 };

static int wide_refused, data_refused, asked, bad; /* how many batches are too wide; whether the host takes data at all */
static int addressless, uncut; /* the socket's own address is gone; the device can't cut batches */
static void claim(int right, const char *what)
{
    if (!right) { printf("not so: %s\n", what); bad = 1; }
}

static ssize_t host_takes(int fd, const struct msghdr *message, int flags)
{
    (void)fd; (void)flags;
    asked++;
    if (addressless) { errno = EINVAL; return -1; }
    if (uncut && message->msg_controllen) { errno = EIO; return -1; }
    if (message->msg_controllen && wide_refused > 0) { wide_refused--; errno = EINVAL; return -1; }
    if (data_refused && ((const header *)message->msg_iov->iov_base)->kind == DATA) { errno = ENOBUFS; return -1; }
    return 1;
}

static engine *made(double timeout_s)
{
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = 9};
    settings s = {.fd = socket(AF_INET, SOCK_DGRAM, 0), .world = 2, .pipeline = 2, .room_bytes = 1 << 20, .timeout_s = timeout_s};
    engine *e = lb_new(&s);
    lb_peer(e, 1, &place, sizeof place);
    return e;
}

static uint8_t memory[2][PACKETS * PAYLOAD], arrived[2][PACKETS];
static flow rows[2], plan = {.bytes = PACKETS * PAYLOAD, .peer = 1, .segment = SEGMENT, .packets = PACKETS, .weight = 1};

/* One that takes from the peer, or (`sends`) gives to it. */
static half half_of(int number, ns deadline, uint32_t sends)
{
    return (half){.in = &rows[number], .out = &rows[number], .plan_in = &plan, .plan_out = &plan, .base_in = memory[number],
                  .base_out = memory[number], .arrived = arrived[number], .ins = !sends, .outs = sends, .mode = PUT,
                  .close_fraction = 1, .missing = 1, .deadline = deadline};
}

static void step_at(engine *e, ns later)
{
    clock_now += later;
    pthread_mutex_lock(&e->lock);
    step(e);
    pthread_mutex_unlock(&e->lock);
}

static void packet_comes(engine *e, const half *h, uint32_t number)
{
    uint8_t packet[SEGMENT] = {0};
    header head = {.magic = MAGIC, .version = VERSION, .kind = DATA, .source = 1, .sequence = h->sequence, .chunk = number};
    memcpy(packet, &head, HEADER);
    ((header *)packet)->tag = tag_of(e, packet, PREFIX);
    hear_data(e, 1, packet, SEGMENT, SEGMENT, clock_now);
}

static void a_way_that_is_narrow(int times, uint32_t wanted, uint32_t error)
{
    engine *e = made(60);
    half h = half_of(0, 0, 1), *asked_for[] = {&h};
    int blocked = 0;
    data_refused = 1;
    lb_submit(e, asked_for, 1, 0);
    data_refused = 0;
    wide_refused = times;
    claim(send_packets(e, &h.out[0], NULL, 0, PACKETS, &blocked) == wanted, "so many went");
    claim(OWN(e->send_error) == error, "it is said, or not");
}

static void no_address(void)
{
    engine *e = made(60);
    half h = half_of(0, 0, 1), *asked_for[] = {&h};
    int blocked = 0;
    data_refused = 1;
    lb_submit(e, asked_for, 1, 0);
    data_refused = 0;
    SHOW(e->peers[1].narrow, 1);
    addressless = 1;
    claim(send_packets(e, &h.out[0], NULL, 0, PACKETS, &blocked) == 0, "nothing went");
    claim(!OWN(e->send_error), "not called narrow");
    claim(SEEN(e->peers[1].refused_error) == EINVAL && blocked == 3, "the host takes nothing, and says why");
}

static void one_by_one(void)
{
    engine *e = made(60);
    half h = half_of(0, 0, 1), *asked_for[] = {&h};
    claim(!lb_one_by_one(e), "not before it is so");
    uncut = 1;
    lb_submit(e, asked_for, 1, 0);
    claim(OWN(h.out[0].cursor) == PACKETS || OWN(h.over), "they went");
    claim(lb_one_by_one(e), "it can be said");
    SHOW(h.over, 1);
    claim(lb_wait(e, &h, 0) == (OVER | ONE_BY_ONE), "whoever waits is told with the end of the wait");
}

static void lingers(void)
{
    engine *e = made(60);
    e->closing = 1;
    e->peers[1].passed = 0;
    e->next = 5; /* it is needed */
    ns began = now_ns();
    lb_break(e);
    linger(e);
    claim(now_ns() - began < QUIET, "whoever has no patience does not linger");
}

static void for_ever(void)
{
    double inf = INFINITY, times[] = {1e10, 1e300, inf};
    for (int n = 0; n < 3; n++) {
        engine *e = made(times[n]);
        half h = half_of(0, 0, 0), *asked_for[] = {&h};
        claim(e->timeout >= SECOND * SECOND && ns_of(times[n]) > 0, "a time that is longer than any");
        lb_submit(e, asked_for, 1, 0);
        for (int m = 0; m < 100; m++) step_at(e, 100 * MS);
        claim(!OWN(e->failed.code), "nobody is taken for dead");
        claim(lb_wait(e, &h, 0) == 0, "it waits");
    }
}

static ns cpu_of_submits(engine *e, half **all, int from, int count)
{
    struct timespec before, after;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    for (int n = from; n < from + count; n++) lb_submit(e, &all[n], 1, 0);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    return (after.tv_sec - before.tv_sec) * SECOND + after.tv_nsec - before.tv_nsec;
}

static void thousands(void)
{
    enum { MANY = 8000, SOME = 500 };
    static half *all[MANY], halves[MANY];
    static flow own_rows[MANY];
    engine *e = made(60);
    for (int n = 0; n < MANY; n++) {
        halves[n] = half_of(0, 0, 0);
        halves[n].in = &own_rows[n];
        all[n] = &halves[n];
    }
    cpu_of_submits(e, all, 0, SOME);
    ns early = cpu_of_submits(e, all, SOME, SOME);
    cpu_of_submits(e, all, 2 * SOME, MANY - 3 * SOME);
    ns late = cpu_of_submits(e, all, MANY - SOME, SOME);
    claim(late < 8 * early, "the last ones cost no more than the first");
}

static void early_marker(void)
{
    engine *e = made(60);
    uint8_t packet[HEADER + sizeof(control)] = {0};
    ((header *)packet)->kind = MARKER;
    ((header *)packet)->sequence = 7;
    for (int n = 1; n < 4; n++) keep_early(e, 1, packet, sizeof packet, sizeof packet, 1000 * n);
    claim(e->early[7].markers && e->early[7].markers->at == 3000, "it came when the latest did");
}

static void turn(void)
{
    engine *e = made(60);
    half first = half_of(0, 50 * MS, 0), second = half_of(1, 50 * MS, 0), *asked_for[] = {&first, &second};
    lb_submit(e, asked_for, 2, 0);
    for (uint32_t n = 0; n < 30; n++) {
        step_at(e, 10 * MS);
        packet_comes(e, &first, n);
    }
    claim(!OWN(first.over) && !OWN(second.over), "what is before it moves: it waits for its turn");
    step_at(e, 45 * MS);
    claim(!OWN(first.over) && !OWN(second.over), "a deadline is not over");
    step_at(e, 10 * MS);
    claim(first.ended == DEADLINE && second.ended == DEADLINE, "it is over for both");
}

static void copies(void)
{
    engine *e = made(60);
    half h = half_of(0, 50 * MS, 1), *asked_for[] = {&h};
    h.hold = 1;
    lb_submit(e, asked_for, 1, 0);
    step_at(e, 500 * MS);
    claim(!OWN(h.over), "what it waits for is its own");
    data_refused = 1;
    lb_release(e, &h, 0);
    step_at(e, 40 * MS);
    claim(!OWN(h.over), "from then on");
    step_at(e, 20 * MS);
    claim(h.ended == DEADLINE, "it is late");
}

static void overtaken(void)
{
    engine *e = made(60);
    half h = half_of(0, 0, 0), *asked_for[] = {&h};
    e->reorder_least = 300000;
    e->reorder_most = 20 * MS;
    e->since_inversion = 10000; /* the order was always kept */
    lb_submit(e, asked_for, 1, 0);
    for (uint32_t n = 20; n < PACKETS; n++) packet_comes(e, &h, n);
    step_at(e, 6 * MS);
    for (uint32_t n = 0; n < 20; n++) packet_comes(e, &h, n);
    step_at(e, 0);
    claim(h.ended == ALL, "a batch that was overtaken is there");
    e->reorder = 0;
    e->since_inversion = 10000;
    for (int times = 0; times < 2; times++) {
        h = half_of(0, 0, 0);
        lb_submit(e, asked_for, 1, 0);
        packet_comes(e, &h, PACKETS - 1);
        step_at(e, MS);
        claim(h.ended == (times ? MARKERS : RUNNING), "it waits once, and where packets get lost no more");
        if (!times) step_at(e, 20 * MS);
        claim(h.ended == MARKERS, "it is over");
    }
}

static void own_sleep(void)
{
    engine *e = made(2);
    half h = half_of(0, 0, 0), *asked_for[] = {&h};
    lb_submit(e, asked_for, 1, 0);
    step_at(e, 60 * MS);
    step_at(e, 60 * SECOND);
    claim(!OWN(e->failed.code), "nobody was silent while this rank slept");
    for (int n = 0; n < 20; n++) step_at(e, 50 * MS);
    claim(!OWN(e->failed.code), "there is still time");
    for (int n = 0; n < 20; n++) step_at(e, 50 * MS);
    claim(OWN(e->failed.code) == SILENT, "now it is silent");
}

static void refused_again(void)
{
    engine *e = made(2);
    half h;
    half *asked_for[] = {&h};
    data_refused = 1;
    ns since = clock_now;
    for (int calls = 0; calls < 40 && !OWN(e->failed.code); calls++) {
        h = half_of(0, 100 * MS, 1);
        lb_submit(e, asked_for, 1, 0);
        for (int n = 0; n < 60 && !OWN(h.over); n++) {
            e->peers[1].heard = clock_now;
            step_at(e, 2 * MS);
        }
        claim(OWN(h.over), "each ends");
        clock_now += 100 * MS; /* it computes */
    }
    claim(OWN(e->failed.code) == UNSENDABLE, "in the end it is said");
    claim(clock_now - since > 2 * SECOND && clock_now - since < 5 * SECOND, "in time");
    e = made(2);
    for (int calls = 0; calls < 3; calls++) { /* a moment each, and long pauses */
        h = half_of(0, 100 * MS, 1);
        lb_submit(e, asked_for, 1, 0);
        e->peers[1].heard = clock_now;
        while (!OWN(h.over)) step_at(e, 20 * MS);
        clock_now += 10 * SECOND;
    }
    claim(!OWN(e->failed.code), "what it was not asked it did not refuse");
}

/* Its lock is held by another thread of the parent, which the child has not got. */
static void a_fork(void)
{
    engine *e = made(2);
    half begun = half_of(0, 0, 1), later = half_of(1, 0, 1);
    half *asked_for[] = {&begun, &later};
    counted counts;
    failure failed;
    uint64_t sent[2], received[2];
    int status, before;
    lb_submit(e, asked_for, 1, 0);
    before = asked;
    pthread_mutex_lock(&e->lock);
    pid_t child = fork();
    if (!child) {
        alarm(20);
        claim(lb_wait(e, &begun, 3600) == OVER && begun.ended == FAILED, "a call that the parent began has failed there");
        lb_submit(e, &asked_for[1], 1, 0);
        claim(lb_over(&later) && later.ended == FAILED, "one that begins there, too");
        lb_read(e, &counts, &failed, sent, received);
        lb_break(e);
        lb_close(e, 10);
        claim(asked == before, "nothing is sent by its parent's socket");
        exit(bad);
    }
    pthread_mutex_unlock(&e->lock);
    claim(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status), "the child comes through");
    claim(!OWN(begun.over), "and the parent goes on");
}

int main(int count, char **words)
{
    const char *what = count > 1 ? words[1] : "";
    if (!strcmp(what, "narrow for a moment")) a_way_that_is_narrow(1, PACKETS, 0);
    else if (!strcmp(what, "narrow")) a_way_that_is_narrow(100, 2, EMSGSIZE);
    else if (!strcmp(what, "no address")) no_address();
    else if (!strcmp(what, "one by one")) one_by_one();
    else if (!strcmp(what, "lingers")) lingers();
    else if (!strcmp(what, "for ever")) for_ever();
    else if (!strcmp(what, "thousands")) thousands();
    else if (!strcmp(what, "early marker")) early_marker();
    else if (!strcmp(what, "turn")) turn();
    else if (!strcmp(what, "copies")) copies();
    else if (!strcmp(what, "own sleep")) own_sleep();
    else if (!strcmp(what, "overtaken")) overtaken();
    else if (!strcmp(what, "refused again")) refused_again();
    else if (!strcmp(what, "fork")) a_fork();
    else claim(0, "there is such a claim");
    return bad;
}
