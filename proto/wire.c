#include "wire.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/limits.h"
#include "base/utf8.h"
#include "codec.h"

static void *allocate(void *user, size_t bytes);
static void leave(void *user, void *memory);
static void out_of_memory(struct wire_reader *reader);

/* --- reading -------------------------------------------------------------------------------- */

const void *wire_unpack(struct wire_reader *reader, const char *scope,
                        const ProtobufCMessageDescriptor *descriptor, struct bytes wire,
                        size_t wire_bytes_max, struct arena *arena, struct error *err) {
    size_t room = arena->budget - arena->used, budget = codec_arena_budget(wire.size);
    *reader = (struct wire_reader){.arena = arena,
                                   .used_max = arena->used + (room < budget ? room : budget),
                                   .err = err,
                                   .scope = scope,
                                   .index = WIRE_NO_INDEX};
    if (wire.size > wire_bytes_max) {
        wire_refuse(reader, NULL, "%zu bytes, accepted 0..%zu", wire.size, wire_bytes_max);
        return NULL;
    }
    ProtobufCAllocator allocator = {.alloc = allocate, .free = leave, .allocator_data = reader};
    const void *message = protobuf_c_message_unpack(descriptor, &allocator, wire.size, wire.data);
    if (!message && !reader->status)
        wire_refuse(reader, NULL, "%zu bytes that are no %s, accepted protobuf of runtime.proto",
                    wire.size, descriptor->name);
    return reader->status ? NULL : message;
}

void wire_enter(struct wire_reader *reader, const char *scope, uint32_t index) {
    reader->scope = scope;
    reader->index = index;
}

void wire_refuse(struct wire_reader *reader, const char *field, const char *format, ...) {
    if (reader->status) return;
    char path[128], reason[256];
    int length = snprintf(path, sizeof path, "%s", reader->scope);
    if (reader->index != WIRE_NO_INDEX)
        length += snprintf(path + length, sizeof path - (size_t)length, "[%u]", reader->index);
    if (field) snprintf(path + length, sizeof path - (size_t)length, ".%s", field);
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    reader->status = error_set(reader->err, STATUS_INVALID_ARGUMENT, "%s: %s", path, reason);
}

void *wire_alloc(struct wire_reader *reader, size_t count, size_t size) {
    if (reader->status || count == 0) return NULL;
    return allocate(reader, count * size); /* no overflow: count is at most that on the wire */
}

uint32_t wire_u32(struct wire_reader *reader, const char *field, uint32_t value, uint32_t min,
                  uint32_t max) {
    return (uint32_t)wire_u64(reader, field, value, min, max);
}

uint64_t wire_u64(struct wire_reader *reader, const char *field, uint64_t value, uint64_t min,
                  uint64_t max) {
    if (value >= min && value <= max) return value;
    wire_refuse(reader, field, "%llu, accepted %llu..%llu", (unsigned long long)value,
                (unsigned long long)min, (unsigned long long)max);
    return min;
}

int wire_enum(struct wire_reader *reader, const char *field, int value, int min, int max) {
    if (value >= min && value <= max) return value;
    wire_refuse(reader, field, "%d, accepted %d..%d", value, min, max);
    return min;
}

float wire_float(struct wire_reader *reader, const char *field, float value, float min, float max) {
    if (value >= min && value <= max) return value; /* false for a NaN */
    wire_refuse(reader, field, "%g, accepted %g..%g", (double)value, (double)min, (double)max);
    return min;
}

uint32_t wire_count(struct wire_reader *reader, const char *field, size_t count, uint32_t min,
                    uint32_t max) {
    if (count >= min && count <= max) return (uint32_t)count;
    wire_refuse(reader, field, "%zu elements, accepted %u..%u", count, min, max);
    return min;
}

void wire_same_count(struct wire_reader *reader, const char *field, size_t count,
                     uint32_t expected) {
    if (count == expected) return;
    wire_refuse(reader, field, "%zu elements, accepted %u as in the columns beside it", count,
                expected);
}

void wire_each_u32(struct wire_reader *reader, const char *field, const uint32_t *value,
                   size_t count, uint32_t max) {
    for (size_t i = 0; i < count && !reader->status; i++)
        if (value[i] > max)
            wire_refuse(reader, field, "%u at [%zu], accepted 0..%u", value[i], i, max);
}

float wire_top_p(struct wire_reader *reader, float value, bool unused) {
    if ((value > 0 && value <= 1) || (unused && value == 0)) return value;
    wire_refuse(reader, "top_p", "%g, accepted above 0 and at most 1", (double)value);
    return 1;
}

const struct token_logprob *wire_logprobs(struct wire_reader *reader, const uint32_t *token,
                                          uint32_t token_count, const float *value,
                                          size_t value_count) {
    wire_same_count(reader, "logprob_value", value_count, token_count);
    wire_each_u32(reader, "logprob_token", token, token_count, MODEL_VOCAB_MAX - 1);
    struct token_logprob *logprob = wire_alloc(reader, token_count, sizeof *logprob);
    for (uint32_t i = 0; i < token_count && !reader->status; i++) {
        if (!isfinite(value[i]))
            wire_refuse(reader, "logprob_value", "%g at [%u], accepted finite numbers",
                        (double)value[i], i);
        logprob[i] = (struct token_logprob){.token = token[i], .logprob = value[i]};
    }
    return logprob;
}

const struct logit_bias *wire_biases(struct wire_reader *reader, const char *field,
                                     const uint32_t *token, const float *value, uint32_t count) {
    wire_each_u32(reader, field, token, reader->status ? 0 : count, MODEL_VOCAB_MAX - 1);
    struct logit_bias *bias = wire_alloc(reader, count, sizeof *bias);
    for (uint32_t i = 0; i < count && !reader->status; i++)
        bias[i] = (struct logit_bias){
            .token = token[i],
            .value = wire_float(reader, field, value[i], -LOGIT_BIAS_VALUE_MAX,
                                LOGIT_BIAS_VALUE_MAX),
        };
    return bias;
}

void wire_bias_order(struct wire_reader *reader, const char *field, const struct logit_bias *bias,
                     uint32_t count) {
    wire_count(reader, field, count, 0, LOGIT_BIAS_MAX);
    for (uint32_t i = 1; i < count && !reader->status; i++)
        if (bias[i].token <= bias[i - 1].token)
            wire_refuse(reader, field, "token %u after token %u, accepted ascending ids",
                        bias[i].token, bias[i - 1].token);
}

void wire_penalties(struct wire_reader *reader, float repetition, float presence, float frequency) {
    wire_float(reader, "repetition_penalty", repetition, 0, REPETITION_PENALTY_MAX);
    wire_float(reader, "presence_penalty", presence, -REPLY_PENALTY_MAX, REPLY_PENALTY_MAX);
    wire_float(reader, "frequency_penalty", frequency, -REPLY_PENALTY_MAX, REPLY_PENALTY_MAX);
}

void wire_range(struct wire_reader *reader, const char *begin_field, const char *count_field,
                uint32_t begin, uint32_t count, uint32_t total, uint32_t *end) {
    if (begin != *end)
        wire_refuse(reader, begin_field, "%u, accepted %u, where the one before ended", begin,
                    *end);
    else if (count > total - begin)
        wire_refuse(reader, count_field, "%u from %u on, accepted 0..%u", count, begin,
                    total - begin);
    else
        *end = begin + count;
}

void wire_range_end(struct wire_reader *reader, const char *what, uint32_t end, uint32_t total) {
    if (end != total)
        wire_refuse(reader, NULL, "sequences cover %u of %u %s, accepted all", end, total, what);
}

const char *wire_text(struct wire_reader *reader, const char *field, ProtobufCBinaryData data,
                      uint32_t min, uint32_t max) {
    struct bytes text = wire_utf8(reader, field, data, min, max);
    wire_no_nul(reader, field, text);
    char *copy = text.size ? wire_alloc(reader, text.size + 1, 1) : NULL;
    if (!copy) return "";
    memcpy(copy, text.data, text.size);
    copy[text.size] = '\0';
    return copy;
}

struct bytes wire_utf8(struct wire_reader *reader, const char *field, ProtobufCBinaryData data,
                       uint32_t min, uint32_t max) {
    struct bytes text = wire_bytes(reader, field, data, min, max);
    size_t bad;
    if (text.size == 0 || utf8_validate((const char *)text.data, text.size, &bad)) return text;
    wire_refuse(reader, field, "byte 0x%02x at %zu, accepted UTF-8", text.data[bad], bad);
    return (struct bytes){0};
}

void wire_no_nul(struct wire_reader *reader, const char *field, struct bytes text) {
    const uint8_t *nul = text.size ? memchr(text.data, 0, text.size) : NULL;
    if (nul) wire_refuse(reader, field, "NUL at byte %td, accepted text without", nul - text.data);
}

struct bytes wire_bytes(struct wire_reader *reader, const char *field, ProtobufCBinaryData data,
                        uint32_t min, uint32_t max) {
    if (data.len >= min && data.len <= max)
        return (struct bytes){.data = data.len ? data.data : NULL, .size = data.len};
    wire_refuse(reader, field, "%zu bytes, accepted %u..%u", data.len, min, max);
    return (struct bytes){0};
}

/* --- writing -------------------------------------------------------------------------------- */

void *wire_put_alloc(struct arena *arena, size_t count, size_t size) {
    void *memory = arena_calloc(arena, count, size);
    CHECK(memory != NULL);
    return memory;
}

ProtobufCBinaryData wire_put_text(const char *text) {
    return wire_put_bytes(text ? bytes_of_text(text) : (struct bytes){0});
}

ProtobufCBinaryData wire_put_bytes(struct bytes bytes) {
    return (ProtobufCBinaryData){.len = bytes.size, .data = (uint8_t *)(uintptr_t)bytes.data};
}

uint32_t *wire_put_u32(const uint32_t *value) {
    return (uint32_t *)(uintptr_t)value;
}

void wire_put_logprobs(struct arena *arena, const struct token_logprob *logprob, uint32_t count,
                       uint32_t **token_out, float **value_out) {
    *token_out = wire_put_alloc(arena, count, sizeof **token_out);
    *value_out = wire_put_alloc(arena, count, sizeof **value_out);
    for (uint32_t i = 0; i < count; i++) {
        (*token_out)[i] = logprob[i].token;
        (*value_out)[i] = logprob[i].logprob;
    }
}

void wire_put_biases(struct arena *arena, const struct logit_bias *bias, uint32_t count,
                     uint32_t **token_out, float **value_out) {
    *token_out = wire_put_alloc(arena, count, sizeof **token_out);
    *value_out = wire_put_alloc(arena, count, sizeof **value_out);
    for (uint32_t i = 0; i < count; i++) {
        (*token_out)[i] = bias[i].token;
        (*value_out)[i] = bias[i].value;
    }
}

ProtobufCBinaryData wire_put_line(struct arena *arena, const char *text) {
    if (!text) return (ProtobufCBinaryData){0};
    size_t bytes = strlen(text), bad;
    if (bytes <= LINE_BYTES_MAX && utf8_validate(text, bytes, &bad)) return wire_put_text(text);

    char *line = wire_put_alloc(arena, LINE_BYTES_MAX, 1);
    size_t at = 0, used = 0;
    while (at < bytes) {
        size_t length;
        bool good = utf8_scan(text + at, bytes - at, &length) == UTF8_CHARACTER;
        size_t put = good ? length : UTF8_REPLACEMENT_BYTES;
        if (used + put > LINE_BYTES_MAX) break;
        memcpy(line + used, good ? text + at : UTF8_REPLACEMENT, put);
        at += length;
        used += put;
    }
    return wire_put_bytes((struct bytes){.data = (const uint8_t *)line, .size = used});
}

struct bytes wire_pack(struct arena *arena, const ProtobufCMessage *message) {
    size_t bytes = protobuf_c_message_get_packed_size(message);
    uint8_t *data = wire_put_alloc(arena, bytes, 1);
    CHECK(protobuf_c_message_pack(message, data) == bytes);
    return (struct bytes){.data = data, .size = bytes};
}

/* --- memory --------------------------------------------------------------------------------- */

static void *allocate(void *user, size_t bytes) {
    struct wire_reader *reader = user;
    struct arena *arena = reader->arena;
    size_t begin = (arena->used + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    if (begin > reader->used_max || bytes > reader->used_max - begin) {
        out_of_memory(reader);
        return NULL;
    }
    return arena_alloc(arena, bytes);
}

/* The arena is reset as a whole. */
static void leave(void *user, void *memory) {
    (void)user;
    (void)memory;
}

static void out_of_memory(struct wire_reader *reader) {
    if (reader->status) return;
    reader->status = error_set(reader->err, STATUS_RESOURCE_EXHAUSTED,
                               "%s: more memory than an honest message of its length takes",
                               reader->scope);
}
