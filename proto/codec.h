/* Structures of message.h to bytes and back.
 *
 * Encoding writes protobuf (runtime.proto) into an arena. Decoding unpacks into an arena, whose
 * budget bounds what hostile bytes can make us allocate, and then validates every field: enum
 * ranges, counts against limits.h, sizes that must agree, finite floats, UTF-8, NUL-free text.
 * A message that decodes may be believed; what needs state to judge (is this slot live?) is not
 * judged here. No recursion: runtime.proto has no message that can hold itself.
 *
 * Decoders return INVALID_ARGUMENT and name the field, what was found and what is accepted;
 * RESOURCE_EXHAUSTED where the arena's budget ran out. Pure; any thread.
 */
#ifndef ESPALIER_CODEC_H
#define ESPALIER_CODEC_H

#include "base/arena.h"
#include "message.h"

/* An arena budget that every honest message of wire_bytes fits, decoded or encoded, and a bomb
 * does not: no decoder takes more, however much the arena has. */
size_t codec_arena_budget(size_t wire_bytes);

/* For each message M of the list: codec_encode_M (out is borrowed from the arena; CHECKs that the
 * arena held it) and codec_decode_M (*message_out is borrowed from the arena; after an error it
 * and what was allocated are of no use). Texts that are a reason for a person are cut and made
 * UTF-8 on encoding; nothing else is judged there.
 *
 * A refused header still says its kind and call_id, for the refusal to find its call; both are 0
 * where they could not be read. One of another version than ours is FAILED_PRECONDITION. */
#define CODEC_TABLE(X)                                                                             \
    X(header, struct header)                                                                       \
    X(generate_request, struct generate_request)                                                   \
    X(generate_delta, struct generate_delta)                                                       \
    X(generate_summary, struct generate_summary)                                                   \
    X(watch_request, struct watch_request)                                                         \
    X(snapshot, struct snapshot)                                                                   \
    X(health_request, struct health_request)                                                       \
    X(health_reply, struct health_reply)                                                           \
    X(flush_request, struct flush_request)                                                         \
    X(resize_request, struct resize_request)                                                       \
    X(resize_progress, struct resize_progress)                                                     \
    X(examine_request, struct examine_request)                                                     \
    X(examine_report, struct examine_report)                                                       \
    X(drain_request, struct drain_request)                                                         \
    X(worker_message, struct worker_message)                                                       \
    X(control_message, struct control_message)

#define X(name, type)                                                                              \
    struct bytes codec_encode_##name(const type *message, struct arena *arena);                    \
    enum status codec_decode_##name(struct bytes wire, struct arena *arena, type *message_out,     \
                                    struct error *err) MUST_USE;
CODEC_TABLE(X)
#undef X

#endif
