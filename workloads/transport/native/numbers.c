/* Payloads into sums or places; sums into means; means into half precision. Loops that the compiler turns into vectors. */
#include <math.h>
#include <string.h>
#include "engine.h"

static inline float from_bf16(uint16_t bits)
{
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}

static inline uint16_t to_bf16(float value) /* to the nearest, ties to even, as torch does */
{
    uint32_t word;
    memcpy(&word, &value, 4);
    if (value != value) return 0x7FC0;
    return (uint16_t)((word + 0x7FFF + ((word >> 16) & 1)) >> 16);
}

static inline float from_f16(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, rest = bits & 0x7FFF, word;
    float value;
    if (rest >= 0x7C00)
        word = sign | 0x7F800000 | (rest & 0x3FF) << 13;
    else if (rest >= 0x0400)
        word = sign | ((rest << 13) + 0x38000000);
    else {
        value = (float)rest * 0x1p-24f;
        memcpy(&word, &value, 4);
        word |= sign;
    }
    memcpy(&value, &word, 4);
    return value;
}

static inline uint16_t to_f16(float value)
{
    uint32_t word, sign;
    memcpy(&word, &value, 4);
    sign = word >> 16 & 0x8000;
    word &= 0x7FFFFFFF;
    if (word > 0x7F800000) return (uint16_t)(sign | 0x7E00);
    if (word >= 0x477FF000) return (uint16_t)(sign | 0x7C00); /* too large is infinite */
    if (word < 0x38800000) {                                  /* small: let the adder do the rounding */
        float small;
        memcpy(&small, &word, 4);
        small += 0.5f;
        memcpy(&word, &small, 4);
        return (uint16_t)(sign | (word - 0x3F000000));
    }
    word += 0xFFF + (word >> 13 & 1);
    return (uint16_t)(sign | ((word - 0x38000000) >> 13));
}

static void add_f32(float *restrict to, const float *restrict from, uint32_t count, float weight)
{
    if (weight == 1.0f)
        for (uint32_t i = 0; i < count; i++) to[i] += from[i];
    else
        for (uint32_t i = 0; i < count; i++) to[i] += weight * from[i];
}

static void add_bf16(float *restrict to, const uint16_t *restrict from, uint32_t count, float weight)
{
    for (uint32_t i = 0; i < count; i++) to[i] += weight * from_bf16(from[i]);
}

static void add_f16(float *restrict to, const uint16_t *restrict from, uint32_t count, float weight)
{
    for (uint32_t i = 0; i < count; i++) to[i] += weight * from_f16(from[i]);
}

static void put_payload(const half *h, const flow *f, uint32_t number, const uint8_t *payload)
{
    uint64_t at = (uint64_t)number * payload_of(f);
    uint32_t bytes = length_of(f, number);
    switch (h->mode) {
    case ADD_F32: add_f32((float *)(f->data + at), (const float *)payload, bytes / 4, f->weight); break;
    case ADD_BF16: add_bf16((float *)(f->data + 2 * at), (const uint16_t *)payload, bytes / 2, f->weight); break;
    case ADD_F16: add_f16((float *)(f->data + 2 * at), (const uint16_t *)payload, bytes / 2, f->weight); break;
    default: memcpy(f->data + at, payload, bytes);
    }
}

/* Floats are added in the order of `in`, where all of them come: the same bits at every call. Lossy sums are of what
 * came, in the order in which it came. */
void take_payload(const half *h, flow *f, uint32_t number, const uint8_t *payload)
{
    if (!h->waiting) { put_payload(h, f, number, payload); return; }
    uint32_t turn = h->added[number];
    uint64_t at = (uint64_t)number * payload_of(f);
    if (f != &h->in[turn]) {
        memcpy(h->waiting + (uint64_t)(f - h->in) * f->bytes + at, payload, length_of(f, number));
        return;
    }
    put_payload(h, f, number, payload);
    while (++turn < h->ins && h->in[turn].arrived[number])
        put_payload(h, &h->in[turn], number, h->waiting + (uint64_t)turn * f->bytes + at);
    h->added[number] = (uint16_t)turn;
}

static void round_some(uint8_t *to, float *from, uint64_t first, uint64_t count, float factor, uint32_t kind)
{
    from += first;
    if (kind == F32) {
        float *out = (float *)to + first; /* may be where the sums are */
        if (factor == 1.0f && out == from) return;
        for (uint64_t i = 0; i < count; i++) out[i] = factor * from[i];
    } else {
        uint16_t *restrict out = (uint16_t *)to + first;
        if (kind == BF16)
            for (uint64_t i = 0; i < count; i++) out[i] = to_bf16(factor * from[i]);
        else
            for (uint64_t i = 0; i < count; i++) out[i] = to_f16(factor * from[i]);
    }
}

static int all_here(const half *h)
{
    for (uint32_t i = 0; i < h->ins; i++)
        if (h->in[i].count < h->in[i].packets) return 0;
    return 1;
}

/* Every packet of the block by the number of ranks that contributed to it (or by all ranks, as asked). */
static void to_means(half *h)
{
    uint32_t own = h->own_part != NULL, everybody = h->ins + own;
    if (h->normaliser == BY_WORLD || all_here(h)) {
        uint32_t by = h->normaliser == BY_WORLD ? h->world : everybody;
        round_some(h->rounded, h->sums, 0, h->elements, by ? h->times / (float)by : 0.0f, h->kind);
        return;
    }
    uint32_t packet = 0;
    for (uint64_t at = 0; at < h->elements; at += h->width, packet++) {
        uint32_t count = own;
        for (uint32_t i = 0; i < h->ins; i++) count += h->in[i].arrived[packet];
        uint64_t left = h->elements - at;
        round_some(h->rounded, h->sums, at, left < h->width ? left : h->width, h->times / (float)(count ? count : 1), h->kind);
    }
}

void begin_numbers(half *h)
{
    const uint16_t *halves = (const uint16_t *)h->own_part;
    if (!h->rounded || (uint8_t *)h->sums == h->own_part) return;
    if (!h->own_part)
        memset(h->sums, 0, h->elements * sizeof *h->sums);
    else if (h->kind == F32)
        memcpy(h->sums, h->own_part, h->elements * sizeof *h->sums);
    else if (h->kind == BF16)
        for (uint64_t i = 0; i < h->elements; i++) h->sums[i] = from_bf16(halves[i]);
    else
        for (uint64_t i = 0; i < h->elements; i++) h->sums[i] = from_f16(halves[i]);
}

static void scale(uint8_t *data, uint32_t bytes, float factor, uint32_t kind)
{
    if (factor == 0.0f) {
        memset(data, 0, bytes); /* whatever was there, infinities too */
    } else if (kind == F32) {
        float *values = (float *)data;
        for (uint32_t i = 0; i < bytes / 4; i++) values[i] *= factor;
    } else {
        uint16_t *values = (uint16_t *)data;
        for (uint32_t i = 0; i < bytes / 2; i++)
            values[i] = kind == BF16 ? to_bf16(factor * from_bf16(values[i])) : to_f16(factor * from_f16(values[i]));
    }
}

void finish_numbers(half *h)
{
    if (h->rounded) to_means(h);
    if (h->missing == 1.0f) return;
    for (uint32_t i = 0; i < h->ins; i++) {
        flow *f = &h->in[i];
        for (uint32_t number = 0; f->count < f->packets && number < f->packets; number++)
            if (!f->arrived[number])
                scale(f->data + (uint64_t)number * payload_of(f), length_of(f, number), h->missing, h->kind);
    }
}
