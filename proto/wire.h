/* Between protobuf-c's structures and ours: what the codec's files share, and nobody else uses.
 *
 *     bytes ──wire_unpack──▶ Espalier__X ──wire_u32, wire_text, ...──▶ struct x      decoding
 *     struct x ──wire_put_text, ...──▶ Espalier__X ──wire_pack──▶ bytes              encoding
 *
 * A reader remembers the first fault and lets the rest pass, so that a decoder reads as the list
 * of its fields and asks once, at its end. After a fault the getters give the least value that is
 * accepted; what indexes by decoded numbers must look at reader->status first.
 *
 * protobuf-c allocates from the arena, never past `used_max`: unpacking some bytes takes a
 * multiple of their number and a constant, whatever they say (codec_arena_budget).
 */
#ifndef ESPALIER_WIRE_H
#define ESPALIER_WIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/bytes.h"
#include "base/status.h"
#include "message.h"
#include "runtime.pb-c.h"

#define WIRE_NO_INDEX UINT32_MAX

struct wire_reader {
    struct arena *arena;
    size_t used_max;    /* arena->used stays below it; bytes */
    struct error *err;  /* may be NULL */
    enum status status; /* the first fault */
    const char *scope;  /* the path of what is being read: "plan.sequence" */
    uint32_t index;     /* of the element in scope, or WIRE_NO_INDEX */
};

/* Start reading `wire` into the arena; scope is the name errors begin with. NULL after a fault. */
const void *wire_unpack(struct wire_reader *reader, const char *scope,
                        const ProtobufCMessageDescriptor *descriptor, struct bytes wire,
                        size_t wire_bytes_max, struct arena *arena, struct error *err);

/* From now on errors name scope[index], or scope alone for WIRE_NO_INDEX. */
void wire_enter(struct wire_reader *reader, const char *scope, uint32_t index);

/* Refuse with "path: ", then what was found and what is accepted; field may be NULL where the
 * scope itself is wrong. The status becomes INVALID_ARGUMENT. */
void wire_refuse(struct wire_reader *reader, const char *field, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* count * size bytes of the arena, not cleared. NULL for no elements and after a fault. */
void *wire_alloc(struct wire_reader *reader, size_t count, size_t size);

/* The value, if it lies in [min, max]; all bounds of this file include both ends. */
uint32_t wire_u32(struct wire_reader *reader, const char *field, uint32_t value, uint32_t min,
                  uint32_t max);
uint64_t wire_u64(struct wire_reader *reader, const char *field, uint64_t value, uint64_t min,
                  uint64_t max);
int wire_enum(struct wire_reader *reader, const char *field, int value, int min, int max);

/* Finite too: pass FLT_MAX for "any". */
float wire_float(struct wire_reader *reader, const char *field, float value, float min, float max);
uint32_t wire_count(struct wire_reader *reader, const char *field, size_t count, uint32_t min,
                    uint32_t max);

/* Columns of one table have one length. */
void wire_same_count(struct wire_reader *reader, const char *field, size_t count,
                     uint32_t expected);

/* All of value[0, count) at most max. field names the array. */
void wire_each_u32(struct wire_reader *reader, const char *field, const uint32_t *value,
                   size_t count, uint32_t max);

/* A sequence's [begin, begin + count) of a table must continue where the last one ended: begin
 * equals *end, which moves on, and stays within total. */
void wire_range(struct wire_reader *reader, const char *begin_field, const char *count_field,
                uint32_t begin, uint32_t count, uint32_t total, uint32_t *end);
void wire_range_end(struct wire_reader *reader, const char *what, uint32_t end, uint32_t total);

/* (0, 1], and 0 where it is not used. */
float wire_top_p(struct wire_reader *reader, float value, bool unused);

/* The two columns of log-probabilities, of one length, as pairs. token_count was judged. */
const struct token_logprob *wire_logprobs(struct wire_reader *reader, const uint32_t *token,
                                          uint32_t token_count, const float *value,
                                          size_t value_count);

/* The two columns of logit biases, both judged to be of count, as pairs; and the rule of one
 * request's: at most LOGIT_BIAS_MAX, and ids ascend. */
const struct logit_bias *wire_biases(struct wire_reader *reader, const char *field,
                                     const uint32_t *token, const float *value, uint32_t count);
void wire_bias_order(struct wire_reader *reader, const char *field, const struct logit_bias *bias,
                     uint32_t count);

/* The penalties of a request, each within its bounds. */
void wire_penalties(struct wire_reader *reader, float repetition, float presence, float frequency);

/* Text as a C string in the arena: UTF-8 of [min, max] bytes, without NUL. */
const char *wire_text(struct wire_reader *reader, const char *field, ProtobufCBinaryData data,
                      uint32_t min, uint32_t max);

/* UTF-8 that may hold U+0000, where it was unpacked. */
struct bytes wire_utf8(struct wire_reader *reader, const char *field, ProtobufCBinaryData data,
                       uint32_t min, uint32_t max);
void wire_no_nul(struct wire_reader *reader, const char *field, struct bytes text);

/* Opaque. */
struct bytes wire_bytes(struct wire_reader *reader, const char *field, ProtobufCBinaryData data,
                        uint32_t min, uint32_t max);

/* Encoding: the same the other way round. Memory is the arena's and CHECKed. */
void *wire_put_alloc(struct arena *arena, size_t count, size_t size);
ProtobufCBinaryData wire_put_text(const char *text);
ProtobufCBinaryData wire_put_bytes(struct bytes bytes);
uint32_t *wire_put_u32(const uint32_t *value); /* a column as it is; only read when packing */
void wire_put_logprobs(struct arena *arena, const struct token_logprob *logprob, uint32_t count,
                       uint32_t **token_out, float **value_out);
void wire_put_biases(struct arena *arena, const struct logit_bias *bias, uint32_t count,
                     uint32_t **token_out, float **value_out);

/* A line for a person, made fit to send whatever it quotes: cut at LINE_BYTES_MAX between
 * characters, and what is not UTF-8 replaced. */
ProtobufCBinaryData wire_put_line(struct arena *arena, const char *text);
struct bytes wire_pack(struct arena *arena, const ProtobufCMessage *message);

#endif
