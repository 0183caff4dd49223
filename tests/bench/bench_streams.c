#include "bench_streams.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "calls.h"
#include "client.h"
#include "processes.h"

#define SETTLE_MS 150

static bool on_delta(void *user, const struct generate_delta *delta) {
    struct bench_stream *stream = user;
    uint32_t count = atomic_load(&stream->token_count);
    for (uint32_t i = 0; i < delta->token_count && count < BENCH_STREAMS_TOKENS_MAX; i++)
        stream->token_ns[count++] = clock_now_ns();
    stream->delta_count++;
    atomic_store(&stream->token_count, count);
    return !atomic_load(&stream->is_enough);
}

static void *run(void *user) {
    struct bench_stream *stream = user;
    const struct client_options options = {.endpoint = stream->endpoint};
    struct generate_request request = {.prompt_kind = PROMPT_TOKENS,
                                       .prompt_token = stream->prompt,
                                       .prompt_token_count = stream->prompt_tok,
                                       .max_tokens = stream->max_tokens,
                                       .sampling = {.top_p = 1},
                                       .ignore_eos = true};
    struct client *client;
    if (stream->chat) {
        request.prompt_kind = PROMPT_CHAT;
        request.ignore_eos = false;
        request.prompt_text.data = (const uint8_t *)stream->chat;
        request.prompt_text.size = strlen(stream->chat);
        request.prompt_token_count = 0;
    }
    stream->sent_ns = clock_now_ns();
    stream->status = client_open(&options, &client, &stream->err);
    if (stream->status == STATUS_OK)
        stream->status = client_generate(client, &request, on_delta, stream, &stream->summary,
                                         &stream->err);
    client_close(&client);
    return NULL;
}

void bench_streams_take_prompt(struct bench_stream *stream, uint32_t text_begin,
                               uint32_t tok_count) {
    CHECK(text_begin + tok_count <= CALLS_HELD_OUT_TOK && tok_count <= BENCH_STREAMS_PROMPT_MAX);
    memcpy(stream->prompt, calls_text + text_begin, tok_count * sizeof *stream->prompt);
    stream->prompt_tok = tok_count;
    stream->chat = NULL;
}

void bench_streams_start(struct bench_stream *stream, const char *endpoint, uint32_t max_tokens) {
    stream->endpoint = endpoint;
    stream->max_tokens = max_tokens;
    stream->delta_count = 0;
    atomic_store(&stream->is_enough, false);
    atomic_store(&stream->token_count, 0);
    CHECK(pthread_create(&stream->thread, NULL, run, stream) == 0);
}

void bench_streams_wait(const struct bench_stream *stream, uint32_t token_count) {
    while (atomic_load(&stream->token_count) < token_count)
        processes_sleep_ms(1);
}

void bench_streams_give_up(struct bench_stream *stream) {
    atomic_store(&stream->is_enough, true);
}

void bench_streams_join(struct bench_stream *stream) {
    CHECK(pthread_join(stream->thread, NULL) == 0);
    if (stream->status == STATUS_OK || atomic_load(&stream->is_enough)) return;
    fprintf(stderr, "bench: a call failed: %s\n", stream->err.text);
    exit(EXIT_CODE_FAILED);
}

void bench_streams_settle(const char *endpoint) {
    struct snapshot snapshot;
    calls_wait_until_quiet(endpoint, &snapshot);
    calls_flush(endpoint);
    processes_sleep_ms(SETTLE_MS);
}
