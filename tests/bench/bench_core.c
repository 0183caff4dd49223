/* What the coordinator's core costs a step, without I/O.
 *
 *     bench_core [steps]
 *
 * One rank that answers every plan at once, so the core runs flat out: each step is one event, the
 * result of the last plan, and the next plan among its effects. Thread CPU time of that event, at
 * 1, 64, 256 and 1,024 running requests with 10,000 waiting, and at 64 with 100. `decode`: nobody
 * finishes. `churn`: replies of 32 tokens, so that requests end, prompts are let in, and pages come
 * and go. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/hash.h"
#include "core.h"
#include "text/vocab.h"

#define WAITING     10000u
#define PROMPT_TOK  128u
#define CONTEXT_TOK 4096u
#define PAGE_TOK    64u
#define SLOTS       1024u
#define STEPS       2000u
#define NS_PER_S    INT64_C(1000000000)

static const struct worker_id worker = {1};

struct bench {
    struct core *core;
    int64_t now_ns;
    uint64_t calls, generation, step;
    uint64_t prefix[SLOTS]; /* by sequence slot */
    bool has_result;
    struct step_result result;
    struct result_sequence sequence[SLOTS];
    uint32_t token[SLOTS];
    uint32_t ended, running_count, reply_tok;
};

static struct bench bench;

static int64_t thread_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

/* Bytes are their own tokens. */
static struct vocab *make_vocab(void) {
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char folder[] = "/tmp/espalier-bench-XXXXXX", model[64], config[64];
    CHECK(mkdtemp(folder) != NULL);
    snprintf(model, sizeof model, "%s/model", folder);
    snprintf(config, sizeof config, "%s/config", folder);
    FILE *file = fopen(model, "w");
    CHECK(file != NULL);
    for (unsigned byte = 0; byte < 256; byte++)
        fprintf(file, "%c%c== %u\n", digit[byte >> 2], digit[byte << 4 & 63], byte);
    fclose(file);
    file = fopen(config, "w");
    CHECK(file != NULL);
    fputs("{\"added_tokens_decoder\": {\"256\": {\"content\": \"[EOS]\", \"special\": true}}}",
          file);
    fclose(file);
    struct vocab *vocab;
    struct error err;
    if (vocab_load(model, config, &vocab, &err) != STATUS_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(EXIT_FAILURE);
    }
    unlink(model);
    unlink(config);
    rmdir(folder);
    return vocab;
}

static void run_plan(const struct step_plan *plan) {
    bench.result = (struct step_result){
        .generation = plan->generation,
        .step = plan->step,
        .state_hash = STEP_STATE_HASH_EMPTY,
        .sequence = bench.sequence,
        .token = bench.token,
    };
    for (uint32_t i = 0; i < plan->sequence_count; i++) {
        const struct plan_sequence *sequence = &plan->sequence[i];
        uint64_t *prefix = &bench.prefix[sequence->slot];
        *prefix = sequence->prefix_hash;
        for (uint32_t row = 0; row < sequence->row_count; row++)
            *prefix = hash_chain(*prefix, plan->token[sequence->row_begin + row]);
        bench.result.state_hash = step_state_hash(bench.result.state_hash, sequence->slot,
                                                  sequence->committed + sequence->row_count,
                                                  *prefix);
        if (sequence->want != PLAN_WANT_TOKEN) continue;
        uint32_t at = bench.result.token_count++;
        bench.sequence[bench.result.sequence_count++] = (struct result_sequence){
            .slot = sequence->slot, .token_begin = at, .token_count = 1};
        bench.token[at] = 'a' + (uint32_t)(*prefix % 26);
    }
    bench.has_result = true;
}

static void send(const struct worker_message *message);

static void answer(const struct control_message *message) {
    static uint8_t key[] = {1};
    struct worker_message reply = {.type = WORKER_LOADED};
    switch (message->type) {
    case CONTROL_WELCOME: break;
    case CONTROL_PREPARE_GROUP:
        reply.type = WORKER_GROUP_KEY;
        reply.group_key.generation = message->group.generation;
        reply.group_key.key = (struct bytes){key, sizeof key};
        break;
    case CONTROL_FORM_GROUP:
        reply.type = WORKER_JOINED;
        reply.joined.generation = message->group.generation;
        break;
    case CONTROL_STEP_PLAN: run_plan(&message->step_plan); return;
    default: return;
    }
    send(&reply);
}

/* Returns the CPU time of the event alone. */
static int64_t step(struct event *event) {
    event->now_ns = bench.now_ns += 1000000;
    int64_t begin_ns = thread_ns();
    struct effects effects = core_step(bench.core, event);
    int64_t spent_ns = thread_ns() - begin_ns;
    const struct control_message *message = NULL; /* one at most is owed an answer */
    for (uint32_t i = 0; i < effects.count; i++) {
        bench.ended += effects.effect[i].type == EFFECT_CALL_END;
        if (effects.effect[i].type == EFFECT_SEND_WORKER)
            message = effects.effect[i].send_worker.message;
    }
    if (message) answer(message);
    return spent_ns;
}

static void send(const struct worker_message *message) {
    struct event event = {.type = EVENT_WORKER_MESSAGE};
    event.worker.worker = worker;
    event.worker.message = message;
    step(&event);
}

static void call(void) {
    uint32_t token[PROMPT_TOK];
    uint64_t random = ++bench.calls;
    for (uint32_t i = 0; i < PROMPT_TOK; i++) {
        random = hash_mix(random + i);
        token[i] = (uint32_t)(random % 256);
    }
    struct generate_request request = {
        .prompt_kind = PROMPT_TOKENS,
        .prompt_token = token,
        .prompt_token_count = PROMPT_TOK,
        .max_tokens = bench.reply_tok,
        .sampling = {.top_p = 1},
        .ignore_eos = true,
    };
    struct event event = {.type = EVENT_CALL};
    event.call.call = (struct pool_id){(uint32_t)bench.calls, 1};
    event.call.request = &request;
    step(&event);
}

static int64_t step_result(void) {
    CHECK(bench.has_result);
    bench.has_result = false;
    struct worker_message message = {.type = WORKER_STEP_RESULT, .step_result = bench.result};
    struct event event = {.type = EVENT_WORKER_MESSAGE};
    event.worker.worker = worker;
    event.worker.message = &message;
    return step(&event);
}

static void start(const struct core_options *options, uint32_t reply_tok) {
    memset(&bench, 0, sizeof bench);
    bench.now_ns = NS_PER_S;
    bench.reply_tok = reply_tok;
    struct error err;
    if (core_create(options, &bench.core, &err) != STATUS_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(EXIT_FAILURE);
    }
    send(&(struct worker_message){
        .type = WORKER_HELLO,
        .hello = {.wire_version = WIRE_VERSION, .tp = 1, .pid = 1, .device = "none", .probe = ""}});
    /* First who runs, all past their prompts, then who waits. */
    for (uint32_t i = 0; i < options->max_running_requests; i++)
        call();
    uint32_t chunks = options->max_running_requests * PROMPT_TOK / options->chunked_prefill_size;
    for (uint32_t i = 0; i < chunks + 8; i++)
        step_result();
    while (core_snapshot(bench.core, bench.now_ns).requests_waiting <
           options->max_queued_requests - 1)
        call();
}

static int by_size(const void *a, const void *b) {
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

static void measure(const struct core_options *options, const char *name, uint32_t reply_tok,
                    uint32_t steps) {
    int64_t *spent = calloc(steps, sizeof *spent), total = 0;
    CHECK(spent != NULL);
    start(options, reply_tok);
    uint32_t ended = bench.ended;
    for (uint32_t i = 0; i < steps; i++) {
        spent[i] = step_result();
        total += spent[i];
        while (bench.ended > ended) { /* somebody else comes to wait */
            call();
            ended++;
        }
    }
    struct snapshot now = core_snapshot(bench.core, bench.now_ns);
    qsort(spent, steps, sizeof *spent, by_size);
    printf("%-6s running=%-4u waiting=%-5u mean_us=%-8.2f median_us=%-8.2f p99_us=%-8.2f "
           "max_us=%.1f\n",
           name, now.requests_running, now.requests_waiting, (double)total / steps / 1e3,
           (double)spent[steps / 2] / 1e3, (double)spent[steps * 99 / 100] / 1e3,
           (double)spent[steps - 1] / 1e3);
    core_destroy(&bench.core);
    free(spent);
}

int main(int argc, char **argv) {
    uint32_t steps = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : STEPS;
    if (steps == 0) {
        fprintf(stderr, "steps: found 0 or no number, accepted: 1 or more\n");
        return EXIT_FAILURE;
    }
    struct vocab *vocab = make_vocab();
    struct model_spec spec = {
        .model_type = "none", .vocab = 257, .stop_token = {256}, .stop_token_count = 1};
    static const struct {
        uint32_t running, waiting;
    } load[] = {{1, WAITING}, {64, 100}, {64, WAITING}, {256, WAITING}, {1024, WAITING}};
    for (size_t i = 0; i < sizeof load / sizeof load[0]; i++) {
        struct core_options options = {
            .spec = &spec,
            .vocab = vocab,
            .tp = 1,
            .context_len = CONTEXT_TOK,
            .page_tok = PAGE_TOK,
            .page_count = load[i].running * (CONTEXT_TOK / PAGE_TOK),
            .max_running_requests = load[i].running,
            .max_queued_requests = load[i].waiting + 1,
            .max_queued_tokens = (load[i].waiting + 1) * 512,
            .chunked_prefill_size = 512,
            .heartbeat_ms = 1000000,
            .step_timeout_ms = 1000000000,
            .load_timeout_ms = 1000000000,
            .rejoin_timeout_ms = 1000000000,
        };
        measure(&options, "decode", CONTEXT_TOK - PROMPT_TOK, steps);
        measure(&options, "churn", 32, steps);
    }
    vocab_destroy(vocab);
    return EXIT_SUCCESS;
}
