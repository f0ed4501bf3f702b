/* pump.c under sanitizers: datagrams by the million, valid ones and broken ones, against a model that decides by itself
 * what may count. Built and run by tests/bench/fuzz.py: fuzz_pump COUNT SEED */
#include "../../workloads/transport/native/pump.c"
#include <stdio.h>
#include <stdlib.h>

enum { PEERS = 5, FLOWS = 12, MOST = 64, CANARY = 64, OTHERS_ROOM = 1 << 20 };

static uint64_t state;
static uint32_t dice(uint32_t below)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return below ? (uint32_t)(state >> 11) % below : 0;
}

typedef struct { incoming *flow; uint8_t *room; uint64_t bytes; float *model; uint8_t *came; uint32_t count, doubles; } watched;

static void fail(const char *what) { fprintf(stderr, "fuzz_pump: %s\n", what); abort(); }

static void endpoint(struct sockaddr_storage *to, uint32_t peer, int wrong)
{
    memset(to, 0, sizeof *to);
    uint32_t address = htonl(0x0a4d0001 + peer + (wrong == 1 ? 77 : 0));
    uint16_t port = htons(29400 + (wrong == 2 ? 1 + dice(1000) : 0));
    if (peer % 2) {
        struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)to;
        v6->sin6_family = wrong == 3 ? AF_UNIX : AF_INET6, v6->sin6_port = port;
        memcpy(&v6->sin6_addr, &address, 4);
        v6->sin6_flowinfo = dice(9), v6->sin6_scope_id = dice(9);
    } else {
        struct sockaddr_in *v4 = (struct sockaddr_in *)to;
        v4->sin_family = wrong == 3 ? AF_UNIX : AF_INET, v4->sin_port = port, v4->sin_addr.s_addr = address;
    }
}

/* A flow with room behind and before it that nobody may touch. */
static void begin(watched *w, incoming *flow, uint32_t number)
{
    flow->mode = 1 + dice(3);
    flow->segment = HEADER + 8 * (1 + dice(40));
    flow->total = 1 + dice(MOST);
    flow->peer = dice(PEERS);
    for (int i = 0; i < 3; i++) flow->prefix[i] = ((uint64_t)dice(~0u) << 32 | dice(~0u)) ^ number;
    uint32_t payload = flow->segment - HEADER, wide = flow->mode == ADD_BF16 ? 2 : 1, element = flow->mode == ADD_BF16 ? 2 : 4;
    uint64_t short_of = element * dice(payload / element); /* the last packet may hold less */
    flow->target_bytes = (uint64_t)wide * (flow->total * payload - short_of);
    w->bytes = flow->target_bytes + 2 * CANARY;
    w->room = malloc(w->bytes);
    memset(w->room, 0xA5, w->bytes);
    memset(w->room + CANARY, 0, flow->target_bytes);
    flow->target = w->room + CANARY;
    flow->arrived = calloc(flow->total, 1);
    w->came = calloc(flow->total, 1);
    w->flow = flow, w->count = w->doubles = 0;
    flow->count = flow->highest = flow->duplicates = flow->received = 0;
    flow->used = 1;
}

static void end(watched *w)
{
    incoming *f = w->flow;
    if (f->count != w->count || f->count > f->total) fail("a flow counts what the model does not");
    if (memcmp(f->arrived, w->came, f->total)) fail("packets are marked that did not come");
    for (uint64_t i = 0; i < CANARY; i++)
        if (w->room[i] != 0xA5 || w->room[w->bytes - 1 - i] != 0xA5) fail("memory beside a flow was written");
    f->used = 0;
    free(w->room), free(f->arrived), free(w->came);
}

/* One merged run as the kernel would bring it; the model says what of it counts. */
static void round_of(pump *p, watched *all, uint8_t *data)
{
    watched *w = &all[dice(FLOWS)];
    uint32_t wrong = dice(4) ? 0 : 1 + dice(3), segment = w->flow->segment, bytes = 0;
    uint32_t spoken_by = dice(8) ? w->flow->peer : dice(PEERS);
    if (!dice(6)) segment = 1 + dice(400);
    uint32_t packets = 1 + dice(20);
    struct sockaddr_storage from;
    endpoint(&from, spoken_by, wrong);
    int64_t peer = peer_of(p, &from);
    if (wrong ? peer >= 0 : peer != spoken_by) fail("a sender was taken for somebody else");
    for (uint32_t i = 0; i < packets && bytes + segment <= ROOM; i++) {
        uint8_t *packet = data + bytes;
        for (uint32_t b = 0; b < segment; b += 8) {
            uint32_t word[2] = {dice(~0u), dice(~0u)};
            memcpy(packet + b, word, segment - b < 8 ? segment - b : 8);
        }
        uint32_t number = dice(10) ? dice(w->flow->total) : dice(~0u), kept = segment < PREFIX ? segment : PREFIX;
        int changed = !dice(5);
        memcpy(packet, w->flow->prefix, kept);
        if (changed) packet[dice(kept)] ^= 1 << dice(8);
        if (segment >= HEADER) memcpy(packet + CHUNK_AT, &number, 4);
        bytes += segment;
        if (peer < 0 || changed || segment != w->flow->segment || (uint32_t)peer != w->flow->peer) continue;
        if (number < w->flow->total && !w->came[number]) w->came[number] = 1, w->count++;
    }
    if (!dice(7) && bytes + 1 < ROOM) { /* a shorter one at the end of the run */
        uint32_t tail = dice(segment);
        for (uint32_t b = 0; b < tail; b++) data[bytes++] = (uint8_t)dice(256);
    }
    if (peer >= 0 && bytes) sort_out(p, data, bytes, segment, (uint32_t)peer);
    if (p->others_used + ROOM + SLACK > p->others_bytes) p->others_used = 0;
}

int main(int count, char **words)
{
    long wanted = count > 1 ? atol(words[1]) : 100000, done = 0;
    state = (count > 2 ? strtoull(words[2], 0, 10) : 1) * 0x9E3779B97F4A7C15ull + 1;
    static incoming in[FLOWS];
    static uint8_t endpoints[PEERS * ENDPOINT], data[ROOM];
    for (uint32_t peer = 0; peer < PEERS; peer++) {
        uint32_t address = htonl(0x0a4d0001 + peer);
        uint16_t port = htons(29400);
        memcpy(endpoints + peer * ENDPOINT, &port, 2), memcpy(endpoints + peer * ENDPOINT + 2, &address, 4);
    }
    pump p = {.incomings = FLOWS, .in = in, .others = malloc(OTHERS_ROOM), .others_bytes = OTHERS_ROOM, .peers = PEERS,
              .endpoints = endpoints};
    watched all[FLOWS];
    for (uint32_t i = 0; i < FLOWS; i++) begin(&all[i], &in[i], i);
    while (done < wanted) {
        for (int i = 0; i < 500; i++) round_of(&p, all, data);
        done += 500 * 10;
        uint32_t i = dice(FLOWS);
        end(&all[i]);
        begin(&all[i], &in[i], i);
    }
    for (uint32_t i = 0; i < FLOWS; i++) end(&all[i]);
    free(p.others);
    printf("%ld\n", done);
    return 0;
}
