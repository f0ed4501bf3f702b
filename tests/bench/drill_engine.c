/* The engine's doors from a program in C, for sanitizers: `drill_engine TIMES SEED`. Two ranks on loopback, each in calls of
 * its own thread; a third reads counters; both close after a moment, with patience or without. What is called is what
 * Python calls; no interpreter, no preloaded library, nothing to be left out of a report. Prints how often. */
#include "../../workloads/transport/native/wire.c"
#include "../../workloads/transport/native/numbers.c"
#include "../../workloads/transport/native/send.c"

#include "../../workloads/transport/native/receive.c"
#include "../../workloads/transport/native/control.c"
#include "../../workloads/transport/native/credit.c"
#include "../../workloads/transport/native/half.c"
#include "../../workloads/transport/native/engine.c"
#include <arpa/inet.h>
#include <stdio.h>

enum { PAYLOAD = 1024, SEGMENT = HEADER + PAYLOAD, PACKETS = 60, BYTES = PAYLOAD * PACKETS, MOST_CALLS = 400, RANKS = 2 };

typedef struct {
    engine *e;
    int fd, calls, ended_well;
    double patience_s;
    ns pause;
    uint8_t from[BYTES], to[BYTES], arrived[PACKETS];
} rank;

static rank ranks[RANKS];
static int closed; /* how many ranks are */

static void fail(const char *why) { fprintf(stderr, "%s\n", why); exit(1); }

static void sleep_for(ns time)
{
    struct timespec pause = {time / SECOND, time % SECOND};
    nanosleep(&pause, NULL);
}

/* Calls until one fails: every other one reliable, as pairs that are waited for or one by one. */
static void *calls_of(void *argument)
{
    rank *r = argument;
    uint32_t other = 1 - (uint32_t)(r - ranks);
    flow plan = {.bytes = BYTES, .peer = other, .segment = SEGMENT, .packets = PACKETS, .weight = 1}, in = {0}, out = {0};
    half h = {.in = &in, .out = &out, .plan_in = &plan, .plan_out = &plan, .base_in = r->to, .base_out = r->from,
              .arrived = r->arrived, .ins = 1, .outs = 1, .mode = PUT, .close_fraction = 1, .missing = 1}, *asked[] = {&h};
    for (r->calls = 0; r->calls < MOST_CALLS; r->calls++) {
        h.reliable = (uint8_t)(r->calls % 2);
        h.step = (uint32_t)r->calls;
        lb_submit(r->e, asked, 1, r->calls % 3 == 0);
        for (int tries = 0; !lb_wait(r->e, &h, .02); tries++)
            if (tries > 3000) fail("a call that never ends");
        if (!lb_over(&h)) fail("it was waited for, and is not over");
        if (h.ended == FAILED) break;
        if (h.ended == ALL && memcmp(r->to, ranks[other].from, BYTES)) fail("what came is not what was sent");
        r->ended_well++;
    }
    return NULL;
}

static void *reads(void *argument)
{
    uint64_t sent[RANKS], received[RANKS];
    counted counts;
    failure failed;
    (void)argument;
    while (__atomic_load_n(&closed, __ATOMIC_ACQUIRE) < RANKS)
        for (int i = 0; i < RANKS; i++) lb_read(ranks[i].e, &counts, &failed, sent, received);
    return NULL;
}

static void *closes(void *argument)
{
    rank *r = argument;
    sleep_for(r->pause);
    if (r->patience_s < 0) lb_break(r->e);
    lb_close(r->e, r->patience_s);
    __atomic_add_fetch(&closed, 1, __ATOMIC_ACQ_REL);
    return NULL;
}

static void meet(int number)
{
    struct sockaddr_in place[RANKS];
    for (int i = 0; i < RANKS; i++) {
        socklen_t bytes = sizeof place[i];
        place[i] = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        ranks[i].fd = socket(AF_INET, SOCK_DGRAM, 0);
        if (bind(ranks[i].fd, (struct sockaddr *)&place[i], bytes) || getsockname(ranks[i].fd, (struct sockaddr *)&place[i], &bytes))
            fail("no socket");
    }
    for (int i = 0; i < RANKS; i++) {
        rank *r = &ranks[i];
        settings s = {.fd = r->fd, .rank = (uint32_t)i, .world = RANKS, .full_tags = (uint32_t)number % 2, .pipeline = 2,
                      .send_thread = (uint32_t)number / 2 % 2, .adaptive = 1, .ordered = 1, .key = {7, 9}, .room_bytes = 1 << 17, .timeout_s = 20,
                      .reorder_s = .0003, .reorder_most_s = .02};
        r->e = lb_new(&s);
        lb_peer(r->e, 1 - (uint32_t)i, &place[1 - i], sizeof place[0]);
        memset(r->from, number + i, BYTES);
        r->calls = r->ended_well = 0;
    }
    for (int i = 0; i < RANKS; i++)
        if (lb_start(ranks[i].e)) fail("no thread");
}

int main(int argc, char **argv)
{
    int times = argc > 1 ? atoi(argv[1]) : 100, good = 0;
    unsigned seed = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
    void *(*what[])(void *) = {calls_of, closes};
    for (int number = 0; number < times; number++) {
        pthread_t threads[2 * RANKS + 1];
        closed = 0;
        meet(number);
        for (int i = 0; i < RANKS; i++) {
            ranks[i].pause = (rand_r(&seed) % 20) * MS;
            ranks[i].patience_s = (double[]){-1, 0, .2, 1}[rand_r(&seed) % 4];
        }
        for (int i = 0; i < 2 * RANKS; i++) pthread_create(&threads[i], NULL, what[i / RANKS], &ranks[i % RANKS]);
        pthread_create(&threads[2 * RANKS], NULL, reads, NULL);
        for (int i = 0; i <= 2 * RANKS; i++) pthread_join(threads[i], NULL);
        for (int i = 0; i < RANKS; i++) {
            lb_free(ranks[i].e);
            close(ranks[i].fd);
            good += ranks[i].ended_well;
        }
    }
    if (!good) fail("no call ended well");
    printf("%d times, %d calls that ended well\n", times, good);
    return 0;
}
