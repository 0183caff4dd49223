/* The budget and the envelope; the bodies are in codec_client.c and codec_worker.c. */
#include "codec.h"

#include "base/check.h"
#include "wire.h"

/* Honest messages unpack to at most four times their length: a token id of four bytes stays four,
 * a text is copied once. Small ones have a constant part besides, some hundred bytes a field. */
#define BUDGET_FACTOR 8u
#define BUDGET_BYTES  (64u << 10)

static const struct metadata *get_metadata(struct wire_reader *reader, const Espalier__Header *in,
                                           uint32_t *count_out);
static void judge_key(struct wire_reader *reader, const char *key);

size_t codec_arena_budget(size_t wire_bytes) {
    return BUDGET_FACTOR * wire_bytes + BUDGET_BYTES;
}

struct bytes codec_encode_header(const struct header *message, struct arena *arena) {
    Espalier__Header out = ESPALIER__HEADER__INIT;
    out.version = message->version;
    out.kind = (Espalier__FrameKind)message->kind;
    out.call_id = message->call_id;
    out.method = wire_put_text(message->method);
    out.generation = message->generation;
    out.deadline_ms = message->deadline_ms;
    out.idempotency_key = wire_put_text(message->idempotency_key);
    out.tenant = wire_put_text(message->tenant);
    out.priority = message->priority;
    out.seq = message->seq;
    out.credits = message->credits;
    out.status = (Espalier__Status)message->status;
    out.status_text = wire_put_line(arena, message->status_text);

    uint32_t count = message->metadata_count;
    Espalier__Metadata *entries = wire_put_alloc(arena, count, sizeof *entries);
    out.n_metadata = count;
    out.metadata = wire_put_alloc(arena, count, sizeof *out.metadata);
    for (uint32_t i = 0; i < count; i++) {
        entries[i] = (Espalier__Metadata)ESPALIER__METADATA__INIT;
        entries[i].key = wire_put_text(message->metadata[i].key);
        entries[i].value = wire_put_text(message->metadata[i].value);
        out.metadata[i] = &entries[i];
    }
    struct bytes wire = wire_pack(arena, &out.base);
    CHECK(wire.size <= FRAME_HEADER_BYTES_MAX);
    return wire;
}

enum status codec_decode_header(struct bytes wire, struct arena *arena, struct header *message_out,
                                struct error *err) {
    struct wire_reader reader;
    *message_out = (struct header){0};
    const Espalier__Header *in = wire_unpack(&reader, "header", &espalier__header__descriptor, wire,
                                             FRAME_HEADER_BYTES_MAX, arena, err);
    if (!in) return reader.status;
    int kind = wire_enum(&reader, "kind", (int)in->kind, FRAME_CALL, FRAME_NOTE);
    bool call = kind == FRAME_CALL;
    if (reader.status) kind = 0;
    *message_out = (struct header){
        .version = in->version,
        .kind = (enum frame_kind)kind,
        .call_id = in->call_id,
        .method = wire_text(&reader, "method", in->method, call ? 1 : 0,
                            call ? METHOD_BYTES_MAX : 0),
        .generation = in->generation,
        .deadline_ms = in->deadline_ms,
        .idempotency_key = wire_text(&reader, "idempotency_key", in->idempotency_key, 0,
                                     NAME_BYTES_MAX),
        .tenant = wire_text(&reader, "tenant", in->tenant, 0, NAME_BYTES_MAX),
        .priority = in->priority,
        .seq = in->seq,
        .credits = wire_u32(&reader, "credits", in->credits, 0, CREDITS_MAX),
        .status = (enum status)wire_enum(&reader, "status", (int)in->status, 0, STATUS_COUNT - 1),
        .status_text = wire_text(&reader, "status_text", in->status_text, 0, LINE_BYTES_MAX),
    };
    message_out->metadata = get_metadata(&reader, in, &message_out->metadata_count);
    if (!reader.status && in->version != WIRE_VERSION)
        return error_set(err, STATUS_FAILED_PRECONDITION, "header.version: %u, accepted %u",
                         in->version, WIRE_VERSION);
    return reader.status;
}

static const struct metadata *get_metadata(struct wire_reader *reader, const Espalier__Header *in,
                                           uint32_t *count_out) {
    uint32_t count = wire_count(reader, "metadata", in->n_metadata, 0, METADATA_ENTRIES_MAX);
    struct metadata *metadata = wire_alloc(reader, count, sizeof *metadata);
    for (uint32_t i = 0; i < count && !reader->status; i++) {
        wire_enter(reader, "header.metadata", i);
        const Espalier__Metadata *entry = in->metadata[i];
        metadata[i].key = wire_text(reader, "key", entry->key, 1, METADATA_KEY_BYTES_MAX);
        metadata[i].value = wire_text(reader, "value", entry->value, 0, METADATA_VALUE_BYTES_MAX);
        judge_key(reader, metadata[i].key);
    }
    *count_out = count;
    return metadata;
}

static void judge_key(struct wire_reader *reader, const char *key) {
    size_t good = strspn(key, "abcdefghijklmnopqrstuvwxyz0123456789._-");
    if (key[good]) wire_refuse(reader, "key", "'%s', accepted characters a-z 0-9 . _ -", key);
}
