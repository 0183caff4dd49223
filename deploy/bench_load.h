/* A load of like requests on a group, and what its callers saw of it.
 *
 * So many threads, each with a connection of its own, take one request after the other. Prompts
 * are token ids drawn from the seed, so that their lengths are exact; replies go on to max_tokens
 * whatever is drawn. Times are the callers': from sending, over the client library, to reading.
 */
#ifndef ESPALIER_BENCH_LOAD_H
#define ESPALIER_BENCH_LOAD_H

#include "client.h"

#define BENCH_LOAD_CONCURRENCY_MAX 256u
#define BENCH_LOAD_TOKENS_MAX      (1u << 24) /* of all replies, each with a time that is kept */

struct bench_load {
    uint32_t request_count, concurrency;
    uint32_t prompt_tok, shared_prefix_tok; /* the first of every prompt are the same */
    uint32_t max_tokens;
    uint32_t vocab; /* ids are drawn below it */
    float temperature;
    uint64_t seed;
};

struct bench_load_result {
    int64_t duration_ns;
    uint32_t finished, failed; /* requests, and */
    uint32_t cut_off, unsent;  /* those that an interrupt ended, or came before */
    uint32_t failed_by[STATUS_COUNT];
    struct error first_error;
    uint64_t prompt_tokens; /* of requests whose reply has begun */
    uint64_t output_tokens; /* that have come */
    uint64_t cached_tokens; /* of the prompts of finished requests, not computed */
    float *first_ms;        /* [first_count] to the first token of a reply */
    float *gap_ms;          /* [gap_count] from token to token; those that come together share the
                             * time they took */
    uint32_t first_count, gap_count;
};

/* Called a few times a second, from the thread of bench_load_run. */
typedef void bench_load_progress_fn(void *user, uint32_t requests_ended, uint64_t output_tokens,
                                    int64_t elapsed_ns);

/* Run it to its end, or until options->cancel. load->max_tokens * request_count is at most
 * BENCH_LOAD_TOKENS_MAX. Failures are part of the result. */
void bench_load_run(const struct bench_load *load, const struct client_options *options,
                    bench_load_progress_fn *progress, void *user,
                    struct bench_load_result *result_out);
void bench_load_result_deinit(struct bench_load_result *result);

/* The prompt of a request; token_out[load->prompt_tok]. */
void bench_load_prompt(const struct bench_load *load, uint32_t request_idx, uint32_t *token_out);

#endif
