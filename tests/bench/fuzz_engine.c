/* The engine's parser with sanitizers, against a model: `fuzz_engine COUNT SEED`. Packets of an open half, nearly all of
 * them right or nearly right, from the right and from wrong addresses. Whatever the model takes, the engine must have
 * taken, once; nothing else. Prints how many packets were tried. */
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

enum { WORLD = 4, TOTAL = 500, PAYLOAD = 64, SEGMENT = HEADER + PAYLOAD };

static uint64_t state;
static uint64_t roll(void) /* splitmix64 */
{
    uint64_t z = (state += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

static struct sockaddr_storage address_of(uint32_t rank)
{
    struct sockaddr_storage out = {0};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&out;
    v4->sin_family = AF_INET;
    v4->sin_port = htons((uint16_t)(9 + rank));
    v4->sin_addr.s_addr = htonl(0x7F000001);
    return out;
}

static void fail(const char *why) { fprintf(stderr, "%s\n", why); exit(1); }

static void one_half(engine *e, int whole, uint64_t *tried)
{
    static uint8_t target[WORLD * TOTAL * PAYLOAD], arrived[WORLD * TOTAL], model[WORLD][TOTAL];
    static uint8_t run[64 * SEGMENT];
    flow in[WORLD - 1] = {0}, plan[WORLD - 1] = {0};
    memset(model, 0, sizeof model);
    for (uint32_t i = 0; i < WORLD - 1; i++)
        plan[i] = (flow){.data = (uint8_t *)(uintptr_t)(i * TOTAL * PAYLOAD), .arrived = (uint8_t *)(uintptr_t)(i * TOTAL),
                         .bytes = TOTAL * PAYLOAD, .peer = i + 1, .block = 7, .segment = SEGMENT, .packets = TOTAL, .weight = 1};
    half h = {.in = in, .out = in, .plan_in = plan, .plan_out = plan, .base_in = target, .arrived = arrived, .ins = WORLD - 1,
              .step = 3, .size = 99, .half = 0, .dtype = 1, .mode = PUT, .close_fraction = 1, .missing = 1};
    half *asked[] = {&h};
    lb_submit(e, asked, 1, 0);
    for (int n = 0; n < 300 && !OWN(h.over) && !OWN(e->failed.code); n++) {
        uint32_t count = 1 + roll() % 60, peer = 1 + roll() % (WORLD - 1), size = roll() % 10 ? SEGMENT : 1 + roll() % SEGMENT;
        uint32_t said = roll() % 10 ? peer : roll() % 65536;
        struct sockaddr_storage from = address_of(roll() % 10 ? peer : roll() % 9);
        int right_place = ((struct sockaddr_in *)&from)->sin_port == htons((uint16_t)(9 + peer));
        for (uint32_t i = 0; i < count; i++) {
            uint8_t *packet = run + i * size, full[SEGMENT];
            header head = {.magic = MAGIC, .version = VERSION, .kind = DATA, .source = (uint16_t)said, .sequence = h.sequence,
                           .step = 3, .dtype = 1, .size = 99, .block = 7,
                           .chunk = (uint32_t)(roll() % 20 ? roll() % TOTAL : roll())};
            for (uint32_t b = 0; b < PAYLOAD; b++) full[HEADER + b] = (uint8_t)(head.chunk + b);
            memcpy(full, &head, HEADER);
            ((header *)full)->tag = tag_of(e, full, whole ? SEGMENT : PREFIX);
            int changed = roll() % 4 == 0;
            if (changed) full[roll() % (whole ? SEGMENT : PREFIX)] ^= (uint8_t)(1 << roll() % 8);
            memcpy(packet, full, size);
            if (!changed && right_place && said == peer && size == SEGMENT && head.chunk < TOTAL) model[peer][head.chunk] = 1;
        }
        sort_out(e, run, count * size, size, &from, now_ns(), clock_ns());
        *tried += count;
    }
    for (uint32_t i = 0; i < WORLD - 1 && !OWN(e->failed.code); i++)
        for (uint32_t k = 0; k < TOTAL; k++) {
            if (arrived[i * TOTAL + k] != model[i + 1][k]) fail("what counted is not what should have");
            if (model[i + 1][k] && target[i * TOTAL * PAYLOAD + k * PAYLOAD] != (uint8_t)k) fail("a payload in the wrong place");
        }
    pthread_mutex_lock(&e->lock);
    break_group(e, ABORTED, 0, 0, 0);
    fail_all(e);
    pthread_mutex_unlock(&e->lock);
}

int main(int argc, char **argv)
{
    uint64_t wanted = argc > 1 ? strtoull(argv[1], NULL, 10) : 100000, tried = 0;
    state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    while (tried < wanted) {
        int whole = (int)(roll() % 2);
        settings s = {.fd = fd, .rank = 0, .world = WORLD, .full_tags = (uint32_t)whole, .pipeline = 2, .key = {roll(), roll()},
                      .room_bytes = 1 << 20, .timeout_s = 60, .reorder_s = 1, .reorder_most_s = 1, .adaptive = 1, .ordered = 1};
        engine *e = lb_new(&s);
        for (uint32_t rank = 1; rank < WORLD; rank++) {
            struct sockaddr_storage place = address_of(rank);
            lb_peer(e, rank, &place, sizeof(struct sockaddr_in));
        }
        e->next = e->opened = (uint32_t)roll();
        SET(e->closed_below, e->next);
        for (uint32_t rank = 1; rank < WORLD; rank++) e->peers[rank].passed = e->next;
        one_half(e, whole, &tried);
        lb_free(e);
    }
    printf("%llu\n", (unsigned long long)tried);
    return 0;
}
