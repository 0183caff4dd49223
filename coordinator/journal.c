#include "journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/log.h"
#include "codec.h"

#define MAGIC             "ESPJRNL1"
#define MAGIC_BYTES       8u
#define EVENT_NUMBERS     4u
#define PATH_BYTES        1024u
#define PAYLOAD_BYTES_MAX ((uint64_t)FRAME_BODY_BYTES_MAX + 65536)

/* Every field of the options that is a value. A new one needs its line here, and the sizes below
 * are what makes somebody look. */
#define OPTION_FIELDS(X)                                                                           \
    X(model_fingerprint)                                                                           \
    X(boot_id)                                                                                     \
    X(pid)                                                                                         \
    X(process_start)                                                                               \
    X(tp)                                                                                          \
    X(context_len)                                                                                 \
    X(page_tok)                                                                                    \
    X(page_count)                                                                                  \
    X(page_cap)                                                                                    \
    X(mem_fraction)                                                                                \
    X(kv_dtype)                                                                                    \
    X(activation_dtype)                                                                            \
    X(prefill_form)                                                                                \
    X(max_running_requests)                                                                        \
    X(max_running_cap)                                                                             \
    X(max_queued_requests)                                                                         \
    X(max_queued_tokens)                                                                           \
    X(queue_timeout_ms)                                                                            \
    X(schedule_policy)                                                                             \
    X(chunked_prefill_size)                                                                        \
    X(max_prefill_tokens)                                                                          \
    X(max_step_rows)                                                                               \
    X(target_step_ms)                                                                              \
    X(disable_prefix_cache)                                                                        \
    X(overlap_steps)                                                                               \
    X(heartbeat_ms)                                                                                \
    X(step_timeout_ms)                                                                             \
    X(load_timeout_ms)                                                                             \
    X(rejoin_timeout_ms)                                                                           \
    X(speculative_algorithm)                                                                       \
    X(speculative_tree_rows)                                                                       \
    X(speculative_history_tok)                                                                     \
    X(speculative_fixed)                                                                           \
    X(speculative_seed_chain)                                                                      \
    X(allow_short_pool)                                                                            \
    X(no_self_test)
_Static_assert(sizeof(struct core_options) == 160,
               "OPTION_FIELDS lists every value of the options");
_Static_assert(sizeof(struct event) == 64, "fill_event and read_event know every field of events");

struct record_head {
    uint32_t bytes, check; /* of the payload */
};

struct options_payload {
    uint64_t kind;
#define X(field) uint64_t field;
    OPTION_FIELDS(X)
#undef X
    uint64_t vocab, stop_token_count;
    uint32_t stop_token[MODEL_STOP_TOKENS_MAX];
    char model_type[32];
    char model_path[PATH_BYTES];
};

struct event_payload {
    uint64_t kind;
    uint64_t type;
    int64_t now_ns;
    uint64_t number[EVENT_NUMBERS];
};

struct effects_payload {
    uint64_t kind;
    uint64_t hash;
};

/* A record of effects waits for the next event, so that both take one write. */
struct effects_record {
    struct record_head head;
    struct effects_payload payload;
};

struct journal {
    int fd; /* -1: given up */
    uint64_t bytes;
    bool has_effects;
    struct effects_record effects;
    struct arena arena; /* of one message */
};

/* CRC-32 (the polynomial of Ethernet, reflected), four bits at a time; goes on from `crc`. */
static uint32_t crc_of(uint32_t crc, const void *data, size_t bytes) {
    static const uint32_t table[16] = {0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac,
                                       0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
                                       0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
                                       0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
    const uint8_t *at = data;
    crc = ~crc;
    for (size_t i = 0; i < bytes; i++) {
        crc = table[(crc ^ at[i]) & 15] ^ crc >> 4;
        crc = table[(crc ^ at[i] >> 4) & 15] ^ crc >> 4;
    }
    return ~crc;
}

/* ---- writing --------------------------------------------------------------------------------- */

enum status journal_create(const char *path, struct journal **journal_out, struct error *err) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) {
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--journal: found %s (%s), accepted: a file that can be written", path,
                         strerror(errno));
    }
    struct journal *journal = calloc(1, sizeof *journal);
    CHECK(journal != NULL);
    journal->fd = fd;
    arena_init(&journal->arena, codec_arena_budget(FRAME_BODY_BYTES_MAX));
    *journal_out = journal;
    return STATUS_OK;
}

static void give_up(struct journal *journal, const char *reason) {
    log_warn("journal_stopped", "bytes=%" PRIu64 " reason=\"%s\"", journal->bytes, reason);
    close(journal->fd);
    journal->fd = -1;
}

static void write_all(struct journal *journal, struct iovec *part, int count) {
    size_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += part[i].iov_len;
    if (journal->bytes + bytes > JOURNAL_BYTES_MAX) {
        give_up(journal, "it has reached its greatest size");
        return;
    }
    ssize_t written;
    do
        written = writev(journal->fd, part, count);
    while (written < 0 && errno == EINTR);
    if (written != (ssize_t)bytes) {
        give_up(journal, written < 0 ? strerror(errno) : "the file takes no more");
        return;
    }
    journal->bytes += bytes;
}

/* The magic where the file is empty, the effects that wait, then a record of `fixed`, body, tail.
 */
static void write_record(struct journal *journal, const void *fixed, size_t fixed_bytes,
                         struct bytes body, struct bytes tail) {
    uint32_t check = crc_of(crc_of(crc_of(0, fixed, fixed_bytes), body.data, body.size), tail.data,
                            tail.size);
    struct record_head head = {.bytes = (uint32_t)(fixed_bytes + body.size + tail.size),
                               .check = check};
    static char magic[] = MAGIC;
    struct iovec part[] = {
        {.iov_base = magic, .iov_len = journal->bytes == 0 ? MAGIC_BYTES : 0},
        {.iov_base = &journal->effects,
         .iov_len = journal->has_effects ? sizeof journal->effects : 0},
        {.iov_base = &head, .iov_len = sizeof head},
        {.iov_base = (void *)(uintptr_t)fixed, .iov_len = fixed_bytes},
        {.iov_base = (void *)(uintptr_t)body.data, .iov_len = body.size},
        {.iov_base = (void *)(uintptr_t)tail.data, .iov_len = tail.size},
    };
    journal->has_effects = false;
    write_all(journal, part, sizeof part / sizeof part[0]);
}

void journal_close(struct journal **journal_in) {
    struct journal *journal = *journal_in;
    if (!journal) return;
    struct iovec part = {.iov_base = &journal->effects, .iov_len = sizeof journal->effects};
    if (journal->fd >= 0 && journal->has_effects) write_all(journal, &part, 1);
    if (journal->fd >= 0) close(journal->fd);
    arena_deinit(&journal->arena);
    free(journal);
    *journal_in = NULL;
}

void journal_options(struct journal *journal, const struct core_options *options,
                     const char *model_path) {
    if (journal->fd < 0) return;
    struct options_payload payload;
    memset(&payload, 0, sizeof payload);
    payload.kind = JOURNAL_OPTIONS;
#define X(field) payload.field = (uint64_t)options->field;
    OPTION_FIELDS(X)
#undef X
    payload.vocab = options->spec->vocab;
    payload.stop_token_count = options->spec->stop_token_count;
    memcpy(payload.stop_token, options->spec->stop_token, sizeof payload.stop_token);
    snprintf(payload.model_type, sizeof payload.model_type, "%s", options->spec->model_type);
    snprintf(payload.model_path, sizeof payload.model_path, "%s", model_path);
    write_record(journal, &payload, sizeof payload, (struct bytes){0}, (struct bytes){0});
}

static uint64_t number_of_call(struct pool_id call) {
    return (uint64_t)call.generation << 32 | call.slot;
}

static struct bytes bytes_of_tokens(const uint32_t *token, uint32_t count) {
    return (struct bytes){.data = (const uint8_t *)token, .size = count * sizeof *token};
}

/* Two texts with their NULs, one after the other; NULL is the empty one. */
static struct bytes put_names(struct arena *arena, const char *first, const char *second) {
    if (!first) first = "";
    if (!second) second = "";
    size_t first_bytes = strlen(first) + 1, second_bytes = strlen(second) + 1;
    char *text = arena_alloc(arena, first_bytes + second_bytes);
    CHECK(text != NULL);
    memcpy(text, first, first_bytes);
    memcpy(text + first_bytes, second, second_bytes);
    return (struct bytes){.data = (const uint8_t *)text, .size = first_bytes + second_bytes};
}

/* Numbers into the payload, and what is of any length into body and tail. */
static void fill_event(struct journal *journal, const struct event *event,
                       struct event_payload *payload, struct bytes *body, struct bytes *tail) {
    uint64_t *number = payload->number;
    switch (event->type) {
    case EVENT_TICK: break;
    case EVENT_CALL:
        number[0] = number_of_call(event->call.call);
        number[1] = (uint64_t)(int64_t)event->call.priority;
        number[2] = event->call.random;
        *body = codec_encode_generate_request(event->call.request, &journal->arena);
        *tail = put_names(&journal->arena, event->call.tenant, event->call.idempotency_key);
        number[3] = tail->size;
        break;
    case EVENT_CANCEL:
        number[0] = number_of_call(event->cancel.call);
        number[1] = event->cancel.reason;
        break;
    case EVENT_JOB_DONE:
        number[0] = event->job_done.job;
        number[1] = event->job_done.status;
        number[2] = event->job_done.in_reasoning;
        number[3] = event->job_done.token_count;
        *body = bytes_of_tokens(event->job_done.token, event->job_done.token_count);
        *tail = put_names(&journal->arena, event->job_done.text, NULL);
        break;
    case EVENT_WORKER_MESSAGE:
        number[0] = event->worker.worker.value;
        *body = codec_encode_worker_message(event->worker.message, &journal->arena);
        break;
    case EVENT_WORKER_LOST: number[0] = event->worker.worker.value; break;
    case EVENT_DRAIN: number[0] = (uint64_t)event->drain.deadline_ns; break;
    case EVENT_RESIZE:
        number[0] = number_of_call(event->resize.call);
        *body = codec_encode_resize_request(&event->resize.request, &journal->arena);
        break;
    case EVENT_EXAMINE:
        number[0] = number_of_call(event->examine.call);
        number[1] = event->examine.rows;
        number[3] = event->examine.token_count;
        *body = bytes_of_tokens(event->examine.token, event->examine.token_count);
        *tail = put_names(&journal->arena, event->examine.tenant, NULL);
        break;
    case EVENT_FLUSH:
        number[3] = event->flush.token_count;
        *body = bytes_of_tokens(event->flush.token, event->flush.token_count);
        *tail = put_names(&journal->arena, event->flush.tenant, NULL);
        break;
    }
}

void journal_event(struct journal *journal, const struct event *event) {
    if (journal->fd < 0) return;
    arena_reset(&journal->arena);
    struct event_payload payload = {
        .kind = JOURNAL_EVENT, .type = event->type, .now_ns = event->now_ns};
    struct bytes body = {0}, tail = {0};
    fill_event(journal, event, &payload, &body, &tail);
    write_record(journal, &payload, sizeof payload, body, tail);
}

static uint64_t hash_message(uint64_t hash, struct bytes bytes) {
    return hash_bytes(bytes.data, bytes.size, hash);
}

static uint64_t hash_text(uint64_t hash, const char *text) {
    return hash_message(hash, bytes_of_text(text));
}

static uint64_t hash_end(uint64_t hash, const struct effect *effect, struct arena *arena) {
    hash = hash_chain(hash, number_of_call(effect->call_end.call));
    hash = hash_text(hash_chain(hash, effect->call_end.status), effect->call_end.text);
    if (!effect->call_end.summary) return hash;
    return hash_message(hash, codec_encode_generate_summary(effect->call_end.summary, arena));
}

static uint64_t hash_effect(uint64_t hash, const struct effect *effect, struct arena *arena) {
    hash = hash_chain(hash, effect->type);
    switch (effect->type) {
    case EFFECT_SEND_WORKER:
        hash = hash_chain(hash, effect->send_worker.worker.value);
        return hash_message(hash, codec_encode_control_message(effect->send_worker.message, arena));
    case EFFECT_DROP_WORKER: return hash_chain(hash, effect->drop_worker.worker.value);
    case EFFECT_CALL_DATA:
        hash = hash_chain(hash, number_of_call(effect->call_data.call));
        return hash_message(hash, codec_encode_generate_delta(&effect->call_data.delta, arena));
    case EFFECT_CALL_END: return hash_end(hash, effect, arena);
    case EFFECT_JOB_TOKENIZE:
        hash = hash_chain(hash_chain(hash, effect->job.job), effect->job.kind);
        return hash_message(hash, effect->job.text);
    case EFFECT_TIMER: return hash_chain(hash, (uint64_t)effect->timer.at_ns);
    case EFFECT_LOG:
        return hash_text(
            hash_text(hash_chain(hash, (uint64_t)effect->log.level), effect->log.event),
            effect->log.text);
    case EFFECT_RESIZE:
        hash = hash_chain(hash, number_of_call(effect->resize.call));
        return hash_message(hash, codec_encode_resize_progress(&effect->resize.progress, arena));
    case EFFECT_EXAMINED:
        hash = hash_chain(hash, number_of_call(effect->examined.call));
        return hash_message(hash, codec_encode_examine_report(&effect->examined.report, arena));
    case EFFECT_EXIT:
        return hash_text(hash_chain(hash, (uint64_t)effect->exit.code), effect->exit.text);
    }
    return hash;
}

static uint64_t hash_effects(struct effects effects, struct arena *arena) {
    uint64_t hash = HASH_CHAIN_EMPTY;
    for (uint32_t i = 0; i < effects.count; i++) {
        arena_reset(arena);
        hash = hash_effect(hash, &effects.effect[i], arena);
    }
    return hash;
}

void journal_effects(struct journal *journal, struct effects effects) {
    if (journal->fd < 0) return;
    struct effects_payload payload = {.kind = JOURNAL_EFFECTS,
                                      .hash = hash_effects(effects, &journal->arena)};
    journal->effects.payload = payload;
    journal->effects.head.bytes = sizeof payload;
    journal->effects.head.check = crc_of(0, &payload, sizeof payload);
    journal->has_effects = true;
}

/* ---- reading --------------------------------------------------------------------------------- */

struct journal_reader {
    FILE *file;
    uint8_t *payload; /* [PAYLOAD_BYTES_MAX] */
    uint64_t records;
    struct arena arena;         /* of the event */
    struct arena effects_arena; /* of one message; the effects may point into the event */
    struct model_spec spec;
    struct generate_request request;
    struct worker_message message;
};

enum status journal_reader_open(const char *path, struct journal_reader **reader_out,
                                struct error *err) {
    char magic[MAGIC_BYTES] = {0};
    FILE *file = fopen(path, "rb");
    if (!file) {
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: %s; accepted: a journal", path,
                         strerror(errno));
    }
    if (fread(magic, 1, sizeof magic, file) != sizeof magic ||
        memcmp(magic, MAGIC, MAGIC_BYTES) != 0) {
        fclose(file);
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s does not begin with %s; accepted: a journal of this version", path,
                         MAGIC);
    }
    struct journal_reader *reader = calloc(1, sizeof *reader);
    CHECK(reader != NULL);
    reader->file = file;
    reader->payload = malloc(PAYLOAD_BYTES_MAX);
    CHECK(reader->payload != NULL);
    arena_init(&reader->arena, codec_arena_budget(FRAME_BODY_BYTES_MAX));
    arena_init(&reader->effects_arena, codec_arena_budget(FRAME_BODY_BYTES_MAX));
    *reader_out = reader;
    return STATUS_OK;
}

void journal_reader_close(struct journal_reader **reader) {
    if (!*reader) return;
    fclose((*reader)->file);
    free((*reader)->payload);
    arena_deinit(&(*reader)->arena);
    arena_deinit(&(*reader)->effects_arena);
    free(*reader);
    *reader = NULL;
}

static enum status damaged(const struct journal_reader *reader, const char *what,
                           struct error *err) {
    return error_set(err, STATUS_DATA_LOSS, "record %" PRIu64 " of the journal: %s",
                     reader->records, what);
}

static enum status read_options(struct journal_reader *reader, size_t bytes,
                                struct journal_record *record, struct error *err) {
    struct options_payload *payload = (struct options_payload *)(void *)reader->payload;
    if (bytes != sizeof *payload || payload->stop_token_count > MODEL_STOP_TOKENS_MAX ||
        payload->model_type[sizeof payload->model_type - 1] != '\0' ||
        payload->model_path[sizeof payload->model_path - 1] != '\0')
        return damaged(reader, "options of another version", err);
    reader->spec = (struct model_spec){.vocab = (uint32_t)payload->vocab,
                                       .stop_token_count = (uint32_t)payload->stop_token_count};
    memcpy(reader->spec.stop_token, payload->stop_token, sizeof payload->stop_token);
    memcpy(reader->spec.model_type, payload->model_type, sizeof payload->model_type);
#define X(field) record->options.field = (__typeof__(record->options.field))payload->field;
    OPTION_FIELDS(X)
#undef X
    record->options.spec = &reader->spec;
    record->model_path = payload->model_path;
    return STATUS_OK;
}

static struct pool_id call_of_number(uint64_t number) {
    return (struct pool_id){.slot = (uint32_t)number, .generation = (uint32_t)(number >> 32)};
}

/* Tokens, then two texts: what put_names wrote. */
struct read_tail {
    const uint32_t *token;
    const char *first, *second;
};

static enum status read_tail(struct journal_reader *reader, struct bytes body, uint64_t text_begin,
                             struct read_tail *tail_out, struct error *err) {
    size_t bytes = text_begin < body.size ? body.size - text_begin : 0;
    const char *text = (const char *)body.data + text_begin;
    const char *end = bytes > 0 ? memchr(text, '\0', bytes) : NULL;
    if (!end || end + 1 >= text + bytes || text[bytes - 1] != '\0')
        return damaged(reader, "an event's texts", err);
    *tail_out = (struct read_tail){
        .token = (const uint32_t *)(const void *)body.data, .first = text, .second = end + 1};
    return STATUS_OK;
}

static enum status read_call(struct journal_reader *reader, const uint64_t *number,
                             struct bytes body, struct event *event, struct error *err) {
    struct read_tail tail;
    if (number[3] > body.size) return damaged(reader, "a call's names", err);
    enum status status = read_tail(reader, body, body.size - number[3], &tail, err);
    if (status != STATUS_OK) return status;
    event->call.call = call_of_number(number[0]);
    event->call.priority = (int32_t)(int64_t)number[1];
    event->call.random = number[2];
    event->call.tenant = tail.first;
    event->call.idempotency_key = tail.second;
    event->call.request = &reader->request;
    body.size -= number[3];
    return codec_decode_generate_request(body, &reader->arena, &reader->request, err);
}

static enum status read_tokens(struct journal_reader *reader, uint64_t token_count,
                               struct bytes body, struct read_tail *tail_out, struct error *err) {
    if (token_count > body.size / sizeof(uint32_t)) return damaged(reader, "its tokens", err);
    return read_tail(reader, body, token_count * sizeof(uint32_t), tail_out, err);
}

static enum status read_job(struct journal_reader *reader, const uint64_t *number,
                            struct bytes body, struct event *event, struct error *err) {
    struct read_tail tail;
    enum status status = read_tokens(reader, number[3], body, &tail, err);
    if (status != STATUS_OK) return status;
    event->job_done.job = number[0];
    event->job_done.status = (enum status)number[1];
    event->job_done.in_reasoning = number[2] != 0;
    event->job_done.token_count = (uint32_t)number[3];
    event->job_done.token = tail.token;
    event->job_done.text = tail.first;
    return STATUS_OK;
}

static enum status read_flush(struct journal_reader *reader, const uint64_t *number,
                              struct bytes body, struct event *event, struct error *err) {
    struct read_tail tail;
    enum status status = read_tokens(reader, number[3], body, &tail, err);
    if (status != STATUS_OK) return status;
    event->flush.tenant = tail.first;
    event->flush.token = tail.token;
    event->flush.token_count = (uint32_t)number[3];
    return STATUS_OK;
}

static enum status read_examine(struct journal_reader *reader, const uint64_t *number,
                                struct bytes body, struct event *event, struct error *err) {
    struct read_tail tail;
    enum status status = read_tokens(reader, number[3], body, &tail, err);
    if (status != STATUS_OK) return status;
    event->examine.call = call_of_number(number[0]);
    event->examine.rows = (uint32_t)number[1];
    event->examine.tenant = tail.first;
    event->examine.token = tail.token;
    event->examine.token_count = (uint32_t)number[3];
    return STATUS_OK;
}

static enum status read_event(struct journal_reader *reader, size_t bytes, struct event *event,
                              struct error *err) {
    struct event_payload payload;
    if (bytes < sizeof payload) return damaged(reader, "an event cut off", err);
    memcpy(&payload, reader->payload, sizeof payload);
    const uint64_t *number = payload.number;
    struct bytes body = {.data = reader->payload + sizeof payload, .size = bytes - sizeof payload};
    *event = (struct event){.type = (enum event_type)payload.type, .now_ns = payload.now_ns};
    switch (event->type) {
    case EVENT_TICK: return STATUS_OK;
    case EVENT_CALL: return read_call(reader, number, body, event, err);
    case EVENT_CANCEL:
        event->cancel.call = call_of_number(number[0]);
        event->cancel.reason = (enum status)number[1];
        return STATUS_OK;
    case EVENT_JOB_DONE: return read_job(reader, number, body, event, err);
    case EVENT_WORKER_MESSAGE:
        event->worker.worker.value = (uint32_t)number[0];
        event->worker.message = &reader->message;
        return codec_decode_worker_message(body, &reader->arena, &reader->message, err);
    case EVENT_WORKER_LOST: event->worker.worker.value = (uint32_t)number[0]; return STATUS_OK;
    case EVENT_DRAIN: event->drain.deadline_ns = (int64_t)number[0]; return STATUS_OK;
    case EVENT_FLUSH: return read_flush(reader, number, body, event, err);
    case EVENT_EXAMINE: return read_examine(reader, number, body, event, err);
    case EVENT_RESIZE:
        event->resize.call = call_of_number(number[0]);
        return codec_decode_resize_request(body, &reader->arena, &event->resize.request, err);
    }
    return damaged(reader, "an event of no known type", err);
}

static enum status read_payload(struct journal_reader *reader, size_t bytes,
                                struct journal_record *record, struct error *err) {
    uint64_t kind;
    memcpy(&kind, reader->payload, sizeof kind);
    record->kind = (enum journal_kind)kind;
    if (kind == JOURNAL_OPTIONS) return read_options(reader, bytes, record, err);
    if (kind == JOURNAL_EVENT) return read_event(reader, bytes, &record->event, err);
    struct effects_payload payload;
    if (kind != JOURNAL_EFFECTS || bytes != sizeof payload)
        return damaged(reader, "of no known kind", err);
    memcpy(&payload, reader->payload, sizeof payload);
    record->effects_hash = payload.hash;
    return STATUS_OK;
}

enum status journal_reader_next(struct journal_reader *reader, struct journal_record *record_out,
                                struct error *err) {
    struct record_head head;
    *record_out = (struct journal_record){.kind = JOURNAL_END};
    if (fread(&head, sizeof head, 1, reader->file) != 1) return STATUS_OK;
    reader->records++;
    if (head.bytes < sizeof(uint64_t) || head.bytes > PAYLOAD_BYTES_MAX)
        return damaged(reader, "a length that no record has", err);
    if (fread(reader->payload, 1, head.bytes, reader->file) != head.bytes) return STATUS_OK;
    if (crc_of(0, reader->payload, head.bytes) != head.check)
        return damaged(reader, "its check does not fit", err);
    arena_reset(&reader->arena);
    return read_payload(reader, head.bytes, record_out, err);
}

uint64_t journal_reader_hash(struct journal_reader *reader, struct effects effects) {
    return hash_effects(effects, &reader->effects_arena);
}
