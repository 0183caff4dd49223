/* Every bound of the envelope and of clients' calls, one row each. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "codec_rows.h"

/* --- envelope ------------------------------------------------------------------------------- */

struct header_fixture {
    struct metadata entry[METADATA_ENTRIES_MAX + 1];
    struct header message;
};

static void header_fixture_init(struct header_fixture *f) {
    for (size_t i = 0; i < sizeof f->entry / sizeof *f->entry; i++)
        f->entry[i] = (struct metadata){.key = "k", .value = "v"};
    f->message = (struct header){.version = WIRE_VERSION,
                                 .kind = FRAME_CALL,
                                 .call_id = 1,
                                 .method = METHOD_GENERATE,
                                 .metadata = f->entry,
                                 .metadata_count = 2};
}

static void header_bounds(void **state) {
    (void)state;
    ACCEPTED(header, m->kind = FRAME_CALL);
    REFUSED(header, m->kind = 0, "header.kind: 0, accepted 1..9");
    REFUSED(header, m->kind = (enum frame_kind)10, "header.kind: 10, accepted 1..9");
    REFUSED(header, m->method = "", "header.method: 0 bytes, accepted 1..64");
    ACCEPTED(header, m->method = codec_rows_chars(METHOD_BYTES_MAX));
    REFUSED(header, m->method = codec_rows_chars(65), "header.method: 65 bytes, accepted 1..64");
    REFUSED(header, m->kind = FRAME_DATA, "header.method: 8 bytes, accepted 0..0");
    ACCEPTED(header, m->tenant = codec_rows_chars(NAME_BYTES_MAX));
    REFUSED(header, m->tenant = codec_rows_chars(257), "header.tenant: 257 bytes, accepted 0..256");
    REFUSED(header, m->tenant = "a\xC0\x80", "header.tenant: byte 0xc0 at 1, accepted UTF-8");
    REFUSED(header, m->idempotency_key = codec_rows_chars(257),
            "header.idempotency_key: 257 bytes, accepted 0..256");
    ACCEPTED(header, m->credits = CREDITS_MAX);
    REFUSED(header, m->credits = CREDITS_MAX + 1, "header.credits: 1048577, accepted 0..1048576");
    ACCEPTED(header, m->status = STATUS_UNAUTHENTICATED);
    REFUSED(header, m->status = (enum status)17, "header.status: 17, accepted 0..16");
    REFUSED(header, m->status = (enum status) - 1, "header.status: -1, accepted 0..16");
    ACCEPTED(header, m->metadata_count = METADATA_ENTRIES_MAX);
    REFUSED(header, m->metadata_count = METADATA_ENTRIES_MAX + 1,
            "header.metadata: 33 elements, accepted 0..32");
    REFUSED(header, f.entry[1].key = "", "header.metadata[1].key: 0 bytes, accepted 1..64");
    ACCEPTED(header, f.entry[1].key = "az09._-");
    REFUSED(header, f.entry[1].key = "Trace",
            "header.metadata[1].key: 'Trace', accepted characters a-z 0-9 . _ -");
    REFUSED(header, f.entry[1].key = codec_rows_chars(65),
            "header.metadata[1].key: 65 bytes, accepted 1..64");
    ACCEPTED(header, f.entry[0].value = codec_rows_chars(METADATA_VALUE_BYTES_MAX));
    REFUSED(header, f.entry[0].value = codec_rows_chars(4097),
            "header.metadata[0].value: 4097 bytes, accepted 0..4096");
    REFUSED(header, f.entry[0].value = "\xED\xA0\x80", /* a surrogate */
            "header.metadata[0].value: byte 0xed at 0, accepted UTF-8");
}

static void headers_have_a_size(void **state) {
    (void)state;
    static const uint8_t wire[FRAME_HEADER_BYTES_MAX + 1];
    struct header got;
    struct error err = {0};
    arena_reset(&codec_rows_arena);
    struct bytes bytes = {.data = wire, .size = sizeof wire};
    codec_rows_expect(__LINE__, codec_decode_header(bytes, &codec_rows_arena, &got, &err), err.text,
                      "header: 8193 bytes, accepted 0..8192");
}

/* --- client calls --------------------------------------------------------------------------- */

struct generate_request_fixture {
    const char *stop[STOP_STRINGS_MAX + 1];
    uint32_t id[STOP_TOKENS_MAX + 1];
    struct generate_request message;
};

static void generate_request_fixture_init(struct generate_request_fixture *f) {
    for (size_t i = 0; i < sizeof f->stop / sizeof *f->stop; i++)
        f->stop[i] = "END";
    memset(f->id, 0, sizeof f->id);
    f->message = (struct generate_request){
        .prompt_kind = PROMPT_TEXT,
        .prompt_text = {.data = (const uint8_t *)"hello", .size = 5},
        .prompt_token = f->id,
        .sampling = {.temperature = 1, .top_p = 1},
        .stop = f->stop,
        .stop_count = 1,
        .stop_token = f->id,
        .stop_token_count = 1,
    };
}

static void to_biases(struct generate_request *request, uint32_t count, float value) {
    struct logit_bias *bias = arena_calloc(&codec_rows_arena, count, sizeof *bias);
    for (uint32_t i = 0; i < count; i++)
        bias[i] = (struct logit_bias){.token = i, .value = value};
    request->sampling.logit_bias = bias;
    request->sampling.logit_bias_count = count;
}

static void to_bias_pair(struct generate_request *request, uint32_t first, uint32_t second) {
    to_biases(request, 2, 1);
    struct logit_bias *bias = (struct logit_bias *)request->sampling.logit_bias;
    bias[0].token = first;
    bias[1].token = second;
}

static void to_tokens(struct generate_request *request, const uint32_t *token, uint32_t count) {
    request->prompt_kind = PROMPT_TOKENS;
    request->prompt_text.size = 0;
    request->prompt_token = token;
    request->prompt_token_count = count;
}

static void set_prompt(struct generate_request *request, enum prompt_kind kind, const char *text,
                       size_t bytes) {
    request->prompt_kind = kind;
    request->prompt_text = (struct bytes){.data = (const uint8_t *)text, .size = bytes};
}

static void generate_request_bounds(void **state) {
    (void)state;
    ACCEPTED(generate_request, m->max_tokens = CONTEXT_TOK_MAX);
    REFUSED(generate_request, m->max_tokens = CONTEXT_TOK_MAX + 1,
            "request.max_tokens: 4194305, accepted 0..4194304");
    REFUSED(generate_request, m->prompt_kind = 0, "request.prompt_kind: 0, accepted 1..3");
    REFUSED(generate_request, m->prompt_kind = (enum prompt_kind)4,
            "request.prompt_kind: 4, accepted 1..3");
    REFUSED(generate_request, set_prompt(m, PROMPT_TEXT, "", 0),
            "request.prompt_text: 0 bytes, accepted 1..8388608");
    ACCEPTED(generate_request,
             set_prompt(m, PROMPT_TEXT, codec_rows_chars(PROMPT_BYTES_MAX), PROMPT_BYTES_MAX));
    REFUSED(
        generate_request,
        set_prompt(m, PROMPT_TEXT, codec_rows_chars(PROMPT_BYTES_MAX + 1), PROMPT_BYTES_MAX + 1),
        "request.prompt_text: 8388609 bytes, accepted 1..8388608");
    REFUSED(generate_request, set_prompt(m, PROMPT_TEXT, "ab\xFF", 3),
            "request.prompt_text: byte 0xff at 2, accepted UTF-8");
    REFUSED(generate_request, set_prompt(m, PROMPT_TEXT, "\xE6\xB0", 2), /* cut off */
            "request.prompt_text: byte 0xe6 at 0, accepted UTF-8");
    ACCEPTED(generate_request, set_prompt(m, PROMPT_TEXT, "a\0b", 3));
    REFUSED(generate_request, set_prompt(m, PROMPT_CHAT, "{\0}", 3),
            "request.prompt_text: NUL at byte 1, accepted text without");
    REFUSED(generate_request, m->prompt_token_count = 1,
            "request.prompt_token: 1 elements, accepted 0..0");
    REFUSED(generate_request, m->prompt_kind = PROMPT_TOKENS,
            "request.prompt_token: 0 elements, accepted 1..4194304");
    REFUSED(generate_request, to_tokens(m, codec_rows_zeros(CONTEXT_TOK_MAX), CONTEXT_TOK_MAX),
            "request: 16777246 bytes, accepted 0..16777216");
    REFUSED(generate_request, (to_tokens(m, f.id, 1), m->prompt_text.size = 1),
            "request.prompt_text: 1 bytes, accepted 0..0");
    ACCEPTED(generate_request, (to_tokens(m, f.id, 3), f.id[2] = MODEL_VOCAB_MAX - 1));
    REFUSED(generate_request, (to_tokens(m, f.id, 3), f.id[2] = MODEL_VOCAB_MAX),
            "request.prompt_token: 1048576 at [2], accepted 0..1048575");
    ACCEPTED(generate_request, m->stop_count = STOP_STRINGS_MAX);
    REFUSED(generate_request, m->stop_count = STOP_STRINGS_MAX + 1,
            "request.stop: 17 elements, accepted 0..16");
    REFUSED(generate_request, f.stop[0] = "", "request.stop[0]: 0 bytes, accepted 1..256");
    ACCEPTED(generate_request, f.stop[0] = codec_rows_chars(STOP_STRING_BYTES_MAX));
    REFUSED(generate_request, f.stop[0] = codec_rows_chars(257),
            "request.stop[0]: 257 bytes, accepted 1..256");
    REFUSED(generate_request, f.stop[0] = "x\x80",
            "request.stop[0]: byte 0x80 at 1, accepted UTF-8");
    ACCEPTED(generate_request, m->stop_token_count = STOP_TOKENS_MAX);
    REFUSED(generate_request, m->stop_token_count = STOP_TOKENS_MAX + 1,
            "request.stop_token: 17 elements, accepted 0..16");
    REFUSED(generate_request, f.id[0] = UINT32_MAX,
            "request.stop_token: 4294967295 at [0], accepted 0..1048575");
    REFUSED(generate_request, m->top_logprobs = 1, "request.top_logprobs: 1, accepted 0..0");
    ACCEPTED(generate_request, (m->logprobs = true, m->top_logprobs = TOP_LOGPROBS_MAX));
    REFUSED(generate_request, (m->logprobs = true, m->top_logprobs = TOP_LOGPROBS_MAX + 1),
            "request.top_logprobs: 21, accepted 0..20");
    ACCEPTED(generate_request, m->choice_count = CHOICES_MAX);
    REFUSED(generate_request, m->choice_count = CHOICES_MAX + 1,
            "request.choice_count: 17, accepted 0..16");
}

static void sampling_bounds(void **state) {
    (void)state;
    ACCEPTED(generate_request, m->sampling.temperature = 0);
    REFUSED(generate_request, m->sampling.temperature = -0.5f,
            "request.sampling.temperature: -0.5, accepted 0..3.40282e+38");
    REFUSED(generate_request, m->sampling.temperature = NAN,
            "request.sampling.temperature: nan, accepted 0..3.40282e+38");
    REFUSED(generate_request, m->sampling.temperature = INFINITY,
            "request.sampling.temperature: inf, accepted 0..3.40282e+38");
    REFUSED(generate_request, m->sampling.top_p = 0,
            "request.sampling.top_p: 0, accepted above 0 and at most 1");
    REFUSED(generate_request, m->sampling.top_p = 1.5f,
            "request.sampling.top_p: 1.5, accepted above 0 and at most 1");
    REFUSED(generate_request, m->sampling.top_p = NAN,
            "request.sampling.top_p: nan, accepted above 0 and at most 1");
    ACCEPTED(generate_request, m->sampling.min_p = 1);
    REFUSED(generate_request, m->sampling.min_p = 1.5f,
            "request.sampling.min_p: 1.5, accepted 0..1");
    REFUSED(generate_request, m->sampling.min_p = NAN,
            "request.sampling.min_p: nan, accepted 0..1");
    ACCEPTED(generate_request, m->sampling.repetition_penalty = REPETITION_PENALTY_MAX);
    REFUSED(generate_request, m->sampling.repetition_penalty = -1,
            "request.sampling.repetition_penalty: -1, accepted 0..100");
    REFUSED(generate_request, m->sampling.repetition_penalty = NAN,
            "request.sampling.repetition_penalty: nan, accepted 0..100");
    ACCEPTED(generate_request, m->sampling.presence_penalty = -2);
    REFUSED(generate_request, m->sampling.presence_penalty = 2.5f,
            "request.sampling.presence_penalty: 2.5, accepted -2..2");
    REFUSED(generate_request, m->sampling.presence_penalty = INFINITY,
            "request.sampling.presence_penalty: inf, accepted -2..2");
    ACCEPTED(generate_request, m->sampling.frequency_penalty = 2);
    REFUSED(generate_request, m->sampling.frequency_penalty = -2.5f,
            "request.sampling.frequency_penalty: -2.5, accepted -2..2");
    ACCEPTED(generate_request, to_biases(m, LOGIT_BIAS_MAX, -100));
    REFUSED(generate_request, to_biases(m, LOGIT_BIAS_MAX + 1, 1),
            "request.sampling.logit_bias: 1025 elements, accepted 0..1024");
    REFUSED(generate_request, to_biases(m, 3, 100.5f),
            "request.sampling.logit_bias: 100.5, accepted -100..100");
    REFUSED(generate_request, to_biases(m, 3, NAN),
            "request.sampling.logit_bias: nan, accepted -100..100");
    ACCEPTED(generate_request, to_bias_pair(m, 7, MODEL_VOCAB_MAX - 1));
    REFUSED(generate_request, to_bias_pair(m, 7, MODEL_VOCAB_MAX),
            "request.sampling.logit_bias: 1048576 at [1], accepted 0..1048575");
    REFUSED(generate_request, to_bias_pair(m, 7, 7),
            "request.sampling.logit_bias: token 7 after token 7, accepted ascending ids");
    ACCEPTED(generate_request, m->sampling.top_k = MODEL_VOCAB_MAX);
    REFUSED(generate_request, m->sampling.top_k = MODEL_VOCAB_MAX + 1,
            "request.sampling.top_k: 1048577, accepted 0..1048576");
}

struct generate_delta_fixture {
    uint32_t token[4];
    struct token_logprob logprob[8];
    struct generate_delta message;
};

static void generate_delta_fixture_init(struct generate_delta_fixture *f) {
    memset(f, 0, sizeof *f);
    f->message = (struct generate_delta){.text = {.data = (const uint8_t *)"hi", .size = 2},
                                         .token = f->token,
                                         .token_count = 4,
                                         .logprob = f->logprob,
                                         .logprob_count = 8};
}

static void generate_delta_bounds(void **state) {
    (void)state;
    ACCEPTED(generate_delta, m->text = bytes_of_text("水"));
    REFUSED(generate_delta, m->channel = (enum channel)3, "delta.channel: 3, accepted 0..2");
    REFUSED(generate_delta, m->text.data = (const uint8_t *)"a\xF0",
            "delta.text: byte 0xf0 at 1, accepted UTF-8");
    REFUSED(generate_delta, f.token[3] = MODEL_VOCAB_MAX,
            "delta.token: 1048576 at [3], accepted 0..1048575");
    REFUSED(generate_delta,
            (m->token = codec_rows_zeros(8193), m->token_count = 8193, m->logprob_count = 0),
            "delta.token: 8193 elements, accepted 0..8192");
    REFUSED(generate_delta, m->token_count = 0, "delta.logprob_token: 8 elements, accepted 0..0");
    REFUSED(generate_delta, m->logprob_count = 7,
            "delta.logprob_token: 7 elements, accepted a multiple of 4 tokens");
    REFUSED(generate_delta, f.logprob[1].token = MODEL_VOCAB_MAX,
            "delta.logprob_token: 1048576 at [1], accepted 0..1048575");
    REFUSED(generate_delta, f.logprob[2].logprob = -INFINITY,
            "delta.logprob_value: -inf at [2], accepted finite numbers");
    ACCEPTED(generate_delta, (m->choice = CHOICES_MAX - 1, m->finish_reason = FINISH_LENGTH));
    REFUSED(generate_delta, m->choice = CHOICES_MAX, "delta.choice: 16, accepted 0..15");
    REFUSED(generate_delta, m->finish_reason = (enum finish_reason)5,
            "delta.finish_reason: 5, accepted 0..4");
}

struct generate_summary_fixture {
    struct generate_summary message;
};

static void generate_summary_fixture_init(struct generate_summary_fixture *f) {
    f->message = (struct generate_summary){
        .finish_reason = FINISH_STOP, .prompt_tokens = 10, .completion_tokens = 5};
}

struct snapshot_fixture {
    struct rank_status rank[TP_MAX + 1];
    struct snapshot message;
};

static void snapshot_fixture_init(struct snapshot_fixture *f) {
    memset(f, 0, sizeof *f);
    for (uint32_t i = 0; i <= TP_MAX; i++)
        f->rank[i].rank = i;
    f->message = (struct snapshot){.rank = f->rank, .rank_count = 2, .pages_total = 9};
}

struct watch_request_fixture {
    struct watch_request message;
};

static void watch_request_fixture_init(struct watch_request_fixture *f) {
    f->message.interval_ms = 100;
}

struct flush_request_fixture {
    uint32_t token[3];
    struct flush_request message;
};

static void flush_request_fixture_init(struct flush_request_fixture *f) {
    memset(f, 0, sizeof *f);
    f->message = (struct flush_request){.token = f->token, .token_count = 3};
}

struct resize_request_fixture {
    struct resize_request message;
};

static void resize_request_fixture_init(struct resize_request_fixture *f) {
    f->message = (struct resize_request){.max_running_requests = 1};
}

struct examine_request_fixture {
    uint32_t token[3];
    struct examine_request message;
};

static void examine_request_fixture_init(struct examine_request_fixture *f) {
    memset(f, 0, sizeof *f);
    f->message = (struct examine_request){.token = f->token, .token_count = 3};
}

struct examine_report_fixture {
    uint64_t hash[2];
    struct examine_report message;
};

static void examine_report_fixture_init(struct examine_report_fixture *f) {
    memset(f, 0, sizeof *f);
    f->message = (struct examine_report){
        .device = "cpu", .pages_per_hash = 1, .hash = f->hash, .hash_count = 2};
}

struct resize_progress_fixture {
    struct resize_progress message;
};

static void resize_progress_fixture_init(struct resize_progress_fixture *f) {
    f->message = (struct resize_progress){.phase = RESIZE_CHANGING, .page_tok = 64};
}

struct drain_request_fixture {
    struct drain_request message;
};

static void drain_request_fixture_init(struct drain_request_fixture *f) {
    f->message.timeout_ms = 100;
}

struct health_request_fixture {
    struct health_request message;
};

static void health_request_fixture_init(struct health_request_fixture *f) {
    f->message.service = "engine";
}

struct health_reply_fixture {
    struct health_reply message;
};

static void health_reply_fixture_init(struct health_reply_fixture *f) {
    f->message = (struct health_reply){.health = HEALTH_SERVING, .reason = ""};
}

static void small_message_bounds(void **state) {
    (void)state;
    REFUSED(generate_summary, m->finish_reason = (enum finish_reason)5,
            "summary.finish_reason: 5, accepted 0..4");
    REFUSED(generate_summary, m->prompt_tokens = CONTEXT_TOK_MAX + 1,
            "summary.prompt_tokens: 4194305, accepted 0..4194304");
    REFUSED(generate_summary, m->completion_tokens = CONTEXT_TOK_MAX * CHOICES_MAX + 1,
            "summary.completion_tokens: 67108865, accepted 0..67108864");
    ACCEPTED(generate_summary, m->cached_tokens = 10);
    REFUSED(generate_summary, m->freed_tokens = CONTEXT_TOK_MAX * CHOICES_MAX + 1,
            "summary.freed_tokens: 67108865, accepted 0..67108864");
    REFUSED(generate_summary, m->cached_tokens = 11, "summary.cached_tokens: 11, accepted 0..10");
    ACCEPTED(generate_summary, (m->choice_count = CHOICES_MAX, m->choice[15].cached_tokens = 10));
    REFUSED(generate_summary,
            (m->choice_count = 2, m->choice[1].finish_reason = (enum finish_reason)5),
            "summary.choice[1].finish_reason: 5, accepted 0..4");
    REFUSED(generate_summary, (m->choice_count = 2, m->choice[1].cached_tokens = 11),
            "summary.choice[1].cached_tokens: 11, accepted 0..10");
    REFUSED(generate_summary,
            (m->choice_count = 2, m->choice[0].completion_tokens = CONTEXT_TOK_MAX + 1),
            "summary.choice[0].completion_tokens: 4194305, accepted 0..4194304");
    REFUSED(generate_summary,
            (m->choice_count = 1, m->choice[0].freed_tokens = CONTEXT_TOK_MAX + 1),
            "summary.choice[0].freed_tokens: 4194305, accepted 0..4194304");
    REFUSED(snapshot, m->model = codec_rows_chars(257),
            "snapshot.model: 257 bytes, accepted 0..256");
    REFUSED(snapshot, m->tp = TP_MAX + 1, "snapshot.tp: 9, accepted 0..8");
    REFUSED(snapshot, m->context_len = CONTEXT_TOK_MAX + 1,
            "snapshot.context_len: 4194305, accepted 0..4194304");
    REFUSED(snapshot, m->page_tok = KV_PAGE_TOK_MAX + 1, "snapshot.page_tok: 129, accepted 0..128");
    REFUSED(snapshot, m->pages_total = KV_PAGES_MAX + 1,
            "snapshot.pages_total: 67108865, accepted 0..67108864");
    REFUSED(snapshot, m->pages_free = 10, "snapshot.pages_free: 10, accepted 0..9");
    ACCEPTED(snapshot, (m->pages_free = 4, m->pages_cached = 5));
    REFUSED(snapshot, (m->pages_free = 4, m->pages_cached = 6),
            "snapshot.pages_cached: 6, accepted 0..5");
    ACCEPTED(snapshot, m->rank_count = TP_MAX);
    REFUSED(snapshot, m->rank_count = TP_MAX + 1, "snapshot.rank: 9 elements, accepted 0..8");
    REFUSED(snapshot, f.rank[1].rank = TP_MAX, "snapshot.rank[1].rank: 8, accepted 0..7");
    REFUSED(snapshot, f.rank[1].rank = 0,
            "snapshot.rank[1].rank: 0 for the second time, accepted once");
    REFUSED(snapshot, f.rank[1].state = (enum rank_state)5,
            "snapshot.rank[1].state: 5, accepted 0..4");
    REFUSED(snapshot, f.rank[0].probe = codec_rows_chars(257),
            "snapshot.rank[0].probe: 257 bytes, accepted 0..256");
    ACCEPTED(watch_request, m->interval_ms = INTERVAL_MS_MAX);
    REFUSED(watch_request, m->interval_ms = INTERVAL_MS_MAX + 1,
            "watch.interval_ms: 86400001, accepted 0..86400000");
    ACCEPTED(flush_request, m->token_count = 0);
    ACCEPTED(flush_request, f.token[2] = MODEL_VOCAB_MAX - 1);
    REFUSED(flush_request, f.token[2] = MODEL_VOCAB_MAX,
            "flush.token: 1048576 at [2], accepted 0..1048575");
    ACCEPTED(resize_request, m->mem_fraction = FRACTION_ONE);
    REFUSED(resize_request, m->mem_fraction = FRACTION_ONE + 1,
            "resize.mem_fraction: 1000001, accepted 0..1000000");
    ACCEPTED(resize_progress, m->phase = RESIZE_SIZING);
    REFUSED(resize_progress, m->phase = (enum resize_phase)5,
            "resize progress.phase: 5, accepted 0..4");
    ACCEPTED(examine_request, m->rows = TREE_ROWS_MAX);
    REFUSED(examine_request, m->rows = TREE_ROWS_MAX + 1, "examine.rows: 65, accepted 0..64");
    REFUSED(examine_request, f.token[2] = MODEL_VOCAB_MAX,
            "examine.token: 1048576 at [2], accepted 0..1048575");
    REFUSED(examine_report, m->pages_per_hash = 0,
            "examine report.pages_per_hash: 0, accepted 1..262144");
    REFUSED(examine_report, m->page_count = EXAMINE_PAGES_MAX + 1,
            "examine report.page_count: 262145, accepted 0..262144");
    REFUSED(resize_progress, m->pages_now = KV_PAGES_MAX + 1,
            "resize progress.pages_now: 67108865, accepted 0..67108864");
    REFUSED(drain_request, m->timeout_ms = INTERVAL_MS_MAX + 1,
            "drain.timeout_ms: 86400001, accepted 0..86400000");
    REFUSED(health_request, m->service = codec_rows_chars(257),
            "health.service: 257 bytes, accepted 0..256");
    REFUSED(health_reply, m->health = (enum health)4, "health.health: 4, accepted 0..3");
}

/* --- what our structures cannot say, but bytes can ------------------------------------------- */

static void texts_hold_no_nul(void **state) {
    (void)state;
    const ProtobufCBinaryData text = {.len = 3, .data = (uint8_t *)"a\0b"};
    struct error err = {0};
    arena_reset(&codec_rows_arena);

    Espalier__Header header = ESPALIER__HEADER__INIT;
    struct header got_header;
    header.version = WIRE_VERSION;
    header.kind = ESPALIER__FRAME_KIND__FRAME_CALL;
    header.method = text;
    codec_rows_expect(
        __LINE__,
        codec_decode_header(codec_rows_pack(&header.base), &codec_rows_arena, &got_header, &err),
        err.text, "header.method: NUL at byte 1, accepted text without");

    Espalier__HealthRequest health = ESPALIER__HEALTH_REQUEST__INIT;
    struct health_request got_health;
    health.service = text;
    codec_rows_expect(__LINE__,
                      codec_decode_health_request(codec_rows_pack(&health.base), &codec_rows_arena,
                                                  &got_health, &err),
                      err.text, "health.service: NUL at byte 1, accepted text without");

    Espalier__Sampling sampling = ESPALIER__SAMPLING__INIT;
    Espalier__GenerateRequest request = ESPALIER__GENERATE_REQUEST__INIT;
    struct generate_request got_request;
    ProtobufCBinaryData stop[] = {text};
    sampling.top_p = 1;
    request.prompt_kind = ESPALIER__PROMPT_KIND__PROMPT_TEXT;
    request.prompt_text = text;
    request.sampling = &sampling;
    request.n_stop = 1;
    request.stop = stop;
    codec_rows_expect(__LINE__,
                      codec_decode_generate_request(codec_rows_pack(&request.base),
                                                    &codec_rows_arena, &got_request, &err),
                      err.text, "request.stop[0]: NUL at byte 1, accepted text without");
    request.n_stop = 0;
    request.sampling = NULL;
    codec_rows_expect(__LINE__,
                      codec_decode_generate_request(codec_rows_pack(&request.base),
                                                    &codec_rows_arena, &got_request, &err),
                      err.text, "request.sampling: absent, accepted one");
}

static void reasons_have_a_length(void **state) {
    (void)state;
    struct error err = {0};
    struct health_reply got;
    arena_reset(&codec_rows_arena);
    Espalier__HealthReply reply = ESPALIER__HEALTH_REPLY__INIT;
    reply.reason = (ProtobufCBinaryData){.len = 512,
                                         .data = (uint8_t *)(uintptr_t)codec_rows_chars(512)};
    codec_rows_expect(
        __LINE__,
        codec_decode_health_reply(codec_rows_pack(&reply.base), &codec_rows_arena, &got, &err),
        err.text, "health.reason: 512 bytes, accepted 0..511");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_bounds),           cmocka_unit_test(headers_have_a_size),
        cmocka_unit_test(generate_request_bounds), cmocka_unit_test(sampling_bounds),
        cmocka_unit_test(generate_delta_bounds),   cmocka_unit_test(small_message_bounds),
        cmocka_unit_test(texts_hold_no_nul),       cmocka_unit_test(reasons_have_a_length),
    };
    return cmocka_run_group_tests(tests, codec_rows_setup, codec_rows_teardown);
}
