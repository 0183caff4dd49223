/* Many calls to a real group of two ranks, and what must come of them.
 *
 * The prompts are parts of the reference text. "Alone" is a group of its own without a prefix
 * cache and without guesses, that takes one call after the other. What finds a fault fails the
 * test.
 */
#ifndef ESPALIER_CALLS_H
#define ESPALIER_CALLS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <cmocka.h>

#include "message.h"

#define CALLS_TOKENS_MAX   128u /* of a reply that is kept */
#define CALLS_CHOICES_MAX  4u
#define CALLS_THREADS_MAX  64u
#define CALLS_NEVER        UINT32_MAX
#define CALLS_HELD_OUT_TOK 16000u /* of the reference text, which has a few more */
#define CALLS_PREFIX_TOK   2000u
#define CALLS_TAIL_TOK     40u

/* The reference text; then its first CALLS_PREFIX_TOK tokens again, going on in another way. */
extern uint32_t calls_text[CALLS_HELD_OUT_TOK + CALLS_PREFIX_TOK + CALLS_TAIL_TOK];
void calls_load_text(void);

struct call_reply {
    uint32_t token[CALLS_TOKENS_MAX], token_count;
    float logprob[CALLS_TOKENS_MAX]; /* zeros where not asked for */
};

struct call {
    uint32_t text_begin, prompt_tok; /* the prompt: a part of the text */
    uint32_t max_tokens;
    uint32_t choice_count; /* 0: one */
    struct sampling sampling;
    bool logprobs;
    int delay_ms;          /* before it is sent */
    uint32_t deadline_ms;  /* 0: none */
    uint32_t cancel_after; /* tokens of choice 0, or CALLS_NEVER */

    enum status status;
    struct error err;
    struct generate_summary summary;
    struct call_reply reply[CALLS_CHOICES_MAX];
};

struct call calls_make(uint32_t text_begin, uint32_t prompt_tok, uint32_t max_tokens);

/* Every second one draws, with a seed; every fourth asks for no log-probabilities; every third has
 * penalties, every fifth a bias. */
void calls_vary_sampling(struct call *call, uint32_t idx);

/* By so many threads, each over a connection of its own. */
void calls_run(const char *endpoint, struct call *call, uint32_t call_count, uint32_t thread_count);

/* The same calls alone. */
void calls_run_alone(const struct call *call, struct call *alone_out, uint32_t call_count);

struct group {
    pid_t pid;
    char dir[64], log[96], endpoint[96];
};

/* Of groups that are started; "f32" unless a test sets it. */
extern const char *calls_kv_dtype;

/* More flags for `espalier serve --tp 2`, ended by NULL. */
void calls_start_group(struct group *group, const char *const *flags);

/* Ends in order: the coordinator checks its pool, and nothing is left. */
void calls_stop_group(struct group *group);

/* Without what a snapshot points to. */
void calls_look(const char *endpoint, struct snapshot *snapshot_out);
void calls_flush(const char *endpoint);

/* Pages of a call that has ended stay until the steps in flight that name them are done. */
void calls_wait_until_quiet(const char *endpoint, struct snapshot *snapshot_out);

/* It ended at its limit, all of it. */
void calls_expect_whole(const struct call *call, uint32_t idx);

/* What came of both, all of it or less, is the same, to the last bit of the log-probabilities. */
void calls_expect_same(const struct call_reply *reply, const struct call_reply *whole,
                       uint32_t idx);
void calls_expect_begins(const struct call *call, const struct call *whole, uint32_t idx);

#endif
