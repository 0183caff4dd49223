#include "bench_load.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"

#define PROGRESS_NS (200 * NS_PER_MS)

struct run {
    const struct bench_load *load;
    const struct client_options *options;
    atomic_uint next_idx;
    _Atomic uint64_t output_tokens; /* so far, for the progress */

    pthread_mutex_t lock; /* of all below */
    pthread_cond_t caller_left;
    uint32_t callers;
    struct bench_load_result *result;
};

/* One request under way; its times are the caller's until it ends. */
struct call {
    struct run *run;
    uint32_t *prompt;
    float *gap_ms;
    uint32_t gap_count, token_count;
    float first_ms;
    int64_t sent_ns, last_ns;
};

void bench_load_prompt(const struct bench_load *load, uint32_t request_idx, uint32_t *token_out) {
    uint64_t shared = hash_chain(load->seed, 0), own = hash_chain(load->seed, request_idx + 1ull);
    for (uint32_t i = 0; i < load->prompt_tok; i++)
        token_out[i] = (uint32_t)(hash_chain(i < load->shared_prefix_tok ? shared : own, i) %
                                  load->vocab);
}

/* ---- a call -------------------------------------------------------------------------------- */

static bool on_delta(void *user, const struct generate_delta *delta) {
    struct call *call = user;
    int64_t now_ns = clock_now_ns();
    uint32_t count = delta->token_count;
    if (count == 0) return true;
    atomic_fetch_add(&call->run->output_tokens, count);
    /* Behind the first token there is no gap; nor is a time kept of more than was asked for. */
    uint32_t gaps = call->token_count > 0 ? count : count - 1;
    uint32_t room = call->run->load->max_tokens - call->gap_count;
    double since_ms = (double)(now_ns - call->last_ns) / (double)NS_PER_MS;
    float gap_ms = call->token_count > 0 ? (float)(since_ms / count) : 0;
    if (call->token_count == 0) call->first_ms = (float)since_ms;
    for (uint32_t i = 0; i < gaps && i < room; i++)
        call->gap_ms[call->gap_count++] = gap_ms;
    call->token_count += count;
    call->last_ns = now_ns;
    return true;
}

static bool is_interrupted(const struct client_options *options) {
    return options->cancel && __atomic_load_n(options->cancel, __ATOMIC_SEQ_CST) != 0;
}

/* Its outcome and its times, to those of the others. */
static void hand_in(struct call *call, enum status status, const struct generate_summary *summary,
                    const struct error *err) {
    struct run *run = call->run;
    struct bench_load_result *result = run->result;
    pthread_mutex_lock(&run->lock);
    if (status == STATUS_OK) {
        result->finished++;
        result->cached_tokens += summary->cached_tokens;
    } else if (status == STATUS_CANCELLED && is_interrupted(run->options)) {
        result->cut_off++;
    } else {
        if (result->failed++ == 0) result->first_error = *err;
        result->failed_by[status]++;
    }
    result->output_tokens += call->token_count;
    if (call->token_count > 0) {
        result->prompt_tokens += run->load->prompt_tok;
        result->first_ms[result->first_count++] = call->first_ms;
    }
    for (uint32_t i = 0; i < call->gap_count; i++)
        result->gap_ms[result->gap_count++] = call->gap_ms[i];
    pthread_mutex_unlock(&run->lock);
}

static void run_call(struct call *call, struct client *client, uint32_t idx) {
    const struct bench_load *load = call->run->load;
    bench_load_prompt(load, idx, call->prompt);
    const struct generate_request request = {.prompt_kind = PROMPT_TOKENS,
                                             .prompt_token = call->prompt,
                                             .prompt_token_count = load->prompt_tok,
                                             .max_tokens = load->max_tokens,
                                             .sampling = {.temperature = load->temperature,
                                                          .top_p = 1,
                                                          .has_seed = true,
                                                          .seed = load->seed + idx},
                                             .ignore_eos = true};
    struct generate_summary summary;
    struct error err;
    call->gap_count = call->token_count = 0;
    call->sent_ns = call->last_ns = clock_now_ns();
    enum status status = client_generate(client, &request, on_delta, call, &summary, &err);
    hand_in(call, status, &summary, &err);
}

/* ---- callers ------------------------------------------------------------------------------- */

static void *call_in_turn(void *user) {
    struct run *run = user;
    const struct bench_load *load = run->load;
    struct call call = {.run = run,
                        .prompt = malloc(load->prompt_tok * sizeof *call.prompt),
                        .gap_ms = malloc(load->max_tokens * sizeof *call.gap_ms)};
    CHECK(call.prompt && call.gap_ms);
    struct client *client;
    struct error err;
    uint32_t idx;
    enum status status = client_open(run->options, &client, &err);
    while (!is_interrupted(run->options) &&
           (idx = atomic_fetch_add(&run->next_idx, 1)) < load->request_count) {
        if (status == STATUS_OK)
            run_call(&call, client, idx);
        else
            hand_in(&call, status, NULL, &err);
    }
    client_close(&client);
    free(call.prompt);
    free(call.gap_ms);
    pthread_mutex_lock(&run->lock);
    run->callers--;
    pthread_cond_signal(&run->caller_left);
    pthread_mutex_unlock(&run->lock);
    return NULL;
}

static void watch(struct run *run, int64_t begin_ns, bench_load_progress_fn *progress, void *user) {
    pthread_mutex_lock(&run->lock);
    while (run->callers > 0) {
        int64_t wake_ns = clock_now_ns() + PROGRESS_NS;
        const struct timespec wake = {.tv_sec = wake_ns / NS_PER_S, .tv_nsec = wake_ns % NS_PER_S};
        pthread_cond_timedwait(&run->caller_left, &run->lock, &wake);
        uint32_t ended = run->result->finished + run->result->failed;
        pthread_mutex_unlock(&run->lock);
        progress(user, ended, atomic_load(&run->output_tokens), clock_now_ns() - begin_ns);
        pthread_mutex_lock(&run->lock);
    }
    pthread_mutex_unlock(&run->lock);
}

static void init_sync(struct run *run) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&run->caller_left, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&run->lock, NULL);
}

void bench_load_run(const struct bench_load *load, const struct client_options *options,
                    bench_load_progress_fn *progress, void *user,
                    struct bench_load_result *result_out) {
    uint64_t token_count = (uint64_t)load->request_count * load->max_tokens;
    CHECK(load->concurrency <= BENCH_LOAD_CONCURRENCY_MAX && token_count <= BENCH_LOAD_TOKENS_MAX);
    uint32_t thread_count = load->concurrency < load->request_count ? load->concurrency
                                                                    : load->request_count;
    pthread_t thread[BENCH_LOAD_CONCURRENCY_MAX];
    struct run run = {
        .load = load, .options = options, .callers = thread_count, .result = result_out};
    *result_out = (struct bench_load_result){
        .first_ms = malloc(load->request_count * sizeof *result_out->first_ms),
        .gap_ms = malloc(token_count * sizeof *result_out->gap_ms)};
    CHECK(result_out->first_ms && result_out->gap_ms);
    init_sync(&run);
    int64_t begin_ns = clock_now_ns();
    for (uint32_t i = 0; i < thread_count; i++)
        CHECK(pthread_create(&thread[i], NULL, call_in_turn, &run) == 0);
    watch(&run, begin_ns, progress, user);
    result_out->duration_ns = clock_now_ns() - begin_ns;
    for (uint32_t i = 0; i < thread_count; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    result_out->unsent = load->request_count - result_out->finished - result_out->failed -
                         result_out->cut_off;
    pthread_cond_destroy(&run.caller_left);
    pthread_mutex_destroy(&run.lock);
}

void bench_load_result_deinit(struct bench_load_result *result) {
    free(result->first_ms);
    free(result->gap_ms);
}
