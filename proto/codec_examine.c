#include "codec_examine.h"

#include "codec.h"

struct bytes codec_encode_examine_request(const struct examine_request *message,
                                          struct arena *arena) {
    Espalier__ExamineRequest out = ESPALIER__EXAMINE_REQUEST__INIT;
    out.n_token = message->token_count;
    out.token = wire_put_u32(message->token);
    out.rows = message->rows;
    return wire_pack(arena, &out.base);
}

enum status codec_decode_examine_request(struct bytes wire, struct arena *arena,
                                         struct examine_request *message_out, struct error *err) {
    struct wire_reader reader;
    const Espalier__ExamineRequest *in = wire_unpack(&reader, "examine",
                                                     &espalier__examine_request__descriptor, wire,
                                                     FRAME_BODY_BYTES_MAX, arena, err);
    if (!in) return reader.status;
    uint32_t count = wire_count(&reader, "token", in->n_token, 0, CONTEXT_TOK_MAX);
    wire_each_u32(&reader, "token", in->token, count, MODEL_VOCAB_MAX - 1);
    *message_out = (struct examine_request){
        .token = count ? in->token : NULL,
        .token_count = count,
        .rows = wire_u32(&reader, "rows", in->rows, 0, TREE_ROWS_MAX),
    };
    return reader.status;
}

struct bytes codec_encode_examine_report(const struct examine_report *message,
                                         struct arena *arena) {
    Espalier__ExamineReport out = codec_examine_put_report(message);
    return wire_pack(arena, &out.base);
}

enum status codec_decode_examine_report(struct bytes wire, struct arena *arena,
                                        struct examine_report *message_out, struct error *err) {
    struct wire_reader reader;
    const Espalier__ExamineReport *in = wire_unpack(&reader, "examine report",
                                                    &espalier__examine_report__descriptor, wire,
                                                    FRAME_BODY_BYTES_MAX, arena, err);
    if (!in) return reader.status;
    *message_out = codec_examine_get_report(&reader, in);
    return reader.status;
}

Espalier__ExamineReport codec_examine_put_report(const struct examine_report *report) {
    Espalier__ExamineReport out = ESPALIER__EXAMINE_REPORT__INIT;
    out.rank = report->rank;
    out.device = wire_put_text(report->device);
    out.page_count = report->page_count;
    out.pages_per_hash = report->pages_per_hash;
    out.n_hash = report->hash_count;
    out.hash = (uint64_t *)(uintptr_t)report->hash; /* only read when packing */
    out.attention_bytes = report->attention_bytes;
    out.attention_ns = report->attention_ns;
    out.read_bytes = report->read_bytes;
    out.read_ns = report->read_ns;
    out.collective_ns = report->collective_ns;
    return out;
}

struct examine_report codec_examine_get_report(struct wire_reader *reader,
                                               const Espalier__ExamineReport *in) {
    if (!in) return (struct examine_report){.device = "", .pages_per_hash = 1};
    uint32_t count = wire_count(reader, "hash", in->n_hash, 0, EXAMINE_HASHES_MAX);
    return (struct examine_report){
        .rank = wire_u32(reader, "rank", in->rank, 0, TP_MAX - 1),
        .device = wire_text(reader, "device", in->device, 0, NAME_BYTES_MAX),
        .page_count = wire_u32(reader, "page_count", in->page_count, 0, EXAMINE_PAGES_MAX),
        .pages_per_hash = wire_u32(reader, "pages_per_hash", in->pages_per_hash, 1,
                                   EXAMINE_PAGES_MAX),
        .hash = count ? in->hash : NULL,
        .hash_count = count,
        .attention_bytes = in->attention_bytes,
        .attention_ns = in->attention_ns,
        .read_bytes = in->read_bytes,
        .read_ns = in->read_ns,
        .collective_ns = in->collective_ns,
    };
}

Espalier__ControlExamine codec_examine_put_order(const struct control_examine *order) {
    Espalier__ControlExamine out = ESPALIER__CONTROL_EXAMINE__INIT;
    out.generation = order->generation;
    out.number = order->number;
    out.n_page = order->page_count;
    out.page = wire_put_u32(order->page);
    out.rows = order->rows;
    return out;
}

struct control_examine codec_examine_get_order(struct wire_reader *reader,
                                               const Espalier__ControlExamine *in) {
    wire_enter(reader, "examine", WIRE_NO_INDEX);
    uint32_t count = wire_count(reader, "page", in->n_page, 0, EXAMINE_PAGES_MAX);
    wire_each_u32(reader, "page", in->page, count, KV_PAGES_MAX - 1);
    return (struct control_examine){
        .generation = wire_u64(reader, "generation", in->generation, 1, UINT64_MAX),
        .number = in->number,
        .page = count ? in->page : NULL,
        .page_count = count,
        .rows = wire_u32(reader, "rows", in->rows, 0, TREE_ROWS_MAX),
    };
}
