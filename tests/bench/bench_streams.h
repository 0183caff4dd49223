/* Calls of a bench as clients see them: each has a thread and a connection of its own, and notes
 * when its tokens came. What cannot fail in a bench ends the process with a message. */
#ifndef ESPALIER_BENCH_STREAMS_H
#define ESPALIER_BENCH_STREAMS_H

#include <pthread.h>
#include <stdatomic.h>

#include "message.h"

#define BENCH_STREAMS_PROMPT_MAX 3584u
#define BENCH_STREAMS_TOKENS_MAX 4096u

struct bench_stream {
    uint32_t prompt[BENCH_STREAMS_PROMPT_MAX], prompt_tok;
    const char *chat; /* JSON, borrowed, instead of the prompt; or NULL. A chat ends by itself */
    const char *endpoint;
    uint32_t max_tokens;
    pthread_t thread;
    atomic_bool is_enough;
    atomic_uint token_count;
    int64_t sent_ns, token_ns[BENCH_STREAMS_TOKENS_MAX];
    uint32_t delta_count;
    enum status status;
    struct error err;
    struct generate_summary summary;
};

/* The prompt is this part of the reference text (tests/e2e/calls.h). */
void bench_streams_take_prompt(struct bench_stream *stream, uint32_t text_begin,
                               uint32_t tok_count);

/* Send it. endpoint is borrowed until the join. */
void bench_streams_start(struct bench_stream *stream, const char *endpoint, uint32_t max_tokens);

/* Wait until so many tokens have come. */
void bench_streams_wait(const struct bench_stream *stream, uint32_t token_count);

/* Give up after the next token. */
void bench_streams_give_up(struct bench_stream *stream);

void bench_streams_join(struct bench_stream *stream);

/* Nothing runs and nothing is cached any more. */
void bench_streams_settle(const char *endpoint);

#endif
