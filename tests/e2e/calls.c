#include "calls.h"

#include <json-c/json.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "client.h"
#include "processes.h"

uint32_t calls_text[CALLS_HELD_OUT_TOK + CALLS_PREFIX_TOK + CALLS_TAIL_TOK];

void calls_load_text(void) {
    struct json_object *root = json_object_from_file(ESPALIER_SOURCE_DIR
                                                     "/tests/golden/data/heldout_tokens.json");
    assert_true(root != NULL && json_object_array_length(root) >= CALLS_HELD_OUT_TOK);
    for (uint32_t i = 0; i < CALLS_HELD_OUT_TOK; i++)
        calls_text[i] = (uint32_t)json_object_get_int(json_object_array_get_idx(root, i));
    json_object_put(root);
    const uint32_t again = CALLS_HELD_OUT_TOK, tail = again + CALLS_PREFIX_TOK;
    memcpy(calls_text + again, calls_text, CALLS_PREFIX_TOK * sizeof *calls_text);
    memcpy(calls_text + tail, calls_text + 5000, CALLS_TAIL_TOK * sizeof *calls_text);
    assert_true(calls_text[CALLS_PREFIX_TOK] != calls_text[5000]);
}

/* ---- calls --------------------------------------------------------------------------------- */

/* Threads that take one call after the other, each over a connection of its own. */
struct crew {
    const char *endpoint;
    struct call *call;
    uint32_t call_count;
    atomic_uint next;
};

struct call calls_make(uint32_t text_begin, uint32_t prompt_tok, uint32_t max_tokens) {
    assert_true(text_begin + prompt_tok <= sizeof calls_text / sizeof *calls_text &&
                max_tokens <= CALLS_TOKENS_MAX);
    return (struct call){.text_begin = text_begin,
                         .prompt_tok = prompt_tok,
                         .max_tokens = max_tokens,
                         .sampling = {.top_p = 1.0f},
                         .logprobs = true,
                         .cancel_after = CALLS_NEVER};
}

/* Two ids to come up, and one not to. */
static const struct logit_bias bias[] = {{11, 4}, {300, -100}, {1000, 6.5f}};

void calls_vary_sampling(struct call *call, uint32_t idx) {
    call->logprobs = idx % 4 < 3;
    if (idx % 2 == 1)
        call->sampling = (struct sampling){.temperature = 0.7f + 0.1f * (float)(idx % 5),
                                           .top_p = idx % 3 == 0 ? 0.9f : 1.0f,
                                           .top_k = idx % 4 == 1 ? 40 : 0,
                                           .min_p = idx % 8 == 7 ? 0.02f : 0.0f,
                                           .has_seed = true,
                                           .seed = 1000 + idx};
    if (idx % 3 == 2) {
        call->sampling.repetition_penalty = idx % 2 == 0 ? 1.2f : 0;
        call->sampling.presence_penalty = 0.6f;
        call->sampling.frequency_penalty = idx % 4 == 0 ? 0.9f : -0.1f;
    }
    if (idx % 5 == 4) {
        call->sampling.logit_bias = bias;
        call->sampling.logit_bias_count = sizeof bias / sizeof *bias;
    }
}

static void take_token(struct call_reply *reply, const struct generate_delta *delta, uint32_t idx) {
    if (reply->token_count < CALLS_TOKENS_MAX) {
        reply->token[reply->token_count] = delta->token[idx];
        if (idx < delta->logprob_count)
            reply->logprob[reply->token_count] = delta->logprob[idx].logprob;
    }
    reply->token_count++;
}

static bool take_delta(void *user, const struct generate_delta *delta) {
    struct call *call = user;
    if (delta->choice >= CALLS_CHOICES_MAX) return false;
    for (uint32_t i = 0; i < delta->token_count; i++)
        take_token(&call->reply[delta->choice], delta, i);
    return call->reply[0].token_count < call->cancel_after;
}

static void run_call(const char *endpoint, struct call *call) {
    const struct client_options options = {.endpoint = endpoint, .deadline_ms = call->deadline_ms};
    const struct generate_request request = {.prompt_kind = PROMPT_TOKENS,
                                             .prompt_token = calls_text + call->text_begin,
                                             .prompt_token_count = call->prompt_tok,
                                             .max_tokens = call->max_tokens,
                                             .sampling = call->sampling,
                                             .ignore_eos = true,
                                             .logprobs = call->logprobs,
                                             .choice_count = call->choice_count};
    struct client *client;
    memset(call->reply, 0, sizeof call->reply);
    processes_sleep_ms(call->delay_ms);
    call->status = client_open(&options, &client, &call->err);
    if (call->status == STATUS_OK)
        call->status = client_generate(client, &request, take_delta, call, &call->summary,
                                       &call->err);
    client_close(&client);
}

/* No assertion in here: cmocka's jump must not leave another thread. */
static void *work(void *user) {
    struct crew *crew = user;
    uint32_t idx;
    while ((idx = atomic_fetch_add(&crew->next, 1)) < crew->call_count)
        run_call(crew->endpoint, &crew->call[idx]);
    return NULL;
}

void calls_run(const char *endpoint, struct call *call, uint32_t call_count,
               uint32_t thread_count) {
    struct crew crew = {.endpoint = endpoint, .call = call, .call_count = call_count};
    pthread_t thread[CALLS_THREADS_MAX];
    assert_true(thread_count <= CALLS_THREADS_MAX);
    for (uint32_t i = 0; i < thread_count; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, work, &crew), 0);
    for (uint32_t i = 0; i < thread_count; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
}

/* ---- groups -------------------------------------------------------------------------------- */

const char *calls_kv_dtype = "f32";

void calls_start_group(struct group *group, const char *const *flags) {
    processes_make_dir(group->dir);
    snprintf(group->log, sizeof group->log, "%s.log", group->dir);
    snprintf(group->endpoint, sizeof group->endpoint, "ipc://%s/client.sock", group->dir);
    const char *serve[24] = {"serve", "--run-dir",        group->dir,    "--tp",
                             "2",     "--kv-cache-dtype", calls_kv_dtype};
    for (int i = 0; flags[i] != NULL; i++)
        serve[7 + i] = flags[i];
    group->pid = processes_start(group->log, "espalier", serve);
    processes_wait_for(group->log, "espalier: ready");
}

void calls_stop_group(struct group *group) {
    kill(group->pid, SIGTERM);
    assert_int_equal(processes_wait(group->pid), 0);
    assert_int_equal(processes_dir_entries(group->dir), 0);
    processes_remove_dir(group->dir);
    remove(group->log);
}

static bool take_snapshot(void *user, const struct snapshot *snapshot) {
    struct snapshot *out = user;
    *out = *snapshot;
    out->rank = NULL; /* these are borrowed */
    out->reason = out->model = NULL;
    return true;
}

void calls_look(const char *endpoint, struct snapshot *snapshot_out) {
    struct client *client;
    struct error err;
    assert_int_equal(client_open(&(struct client_options){.endpoint = endpoint}, &client, &err),
                     STATUS_OK);
    if (client_watch(client, &(struct watch_request){0}, take_snapshot, snapshot_out, &err) !=
        STATUS_OK)
        fail_msg("watch: %s", err.text);
    client_close(&client);
}

void calls_flush(const char *endpoint) {
    struct client *client;
    struct error err;
    assert_int_equal(client_open(&(struct client_options){.endpoint = endpoint}, &client, &err),
                     STATUS_OK);
    if (client_flush(client, &(struct flush_request){0}, &err) != STATUS_OK)
        fail_msg("flush: %s", err.text);
    client_close(&client);
}

static uint32_t pages_used(const struct snapshot *snapshot) {
    return snapshot->pages_total - snapshot->pages_free - snapshot->pages_cached;
}

void calls_wait_until_quiet(const char *endpoint, struct snapshot *snapshot_out) {
    long begin_ms = processes_now_ms();
    do {
        calls_look(endpoint, snapshot_out);
        if (snapshot_out->requests_running + snapshot_out->requests_waiting +
                pages_used(snapshot_out) ==
            0)
            return;
        processes_sleep_ms(5);
    } while (processes_now_ms() - begin_ms < PROCESSES_PATIENCE_MS);
    fail_msg("%u running, %u waiting, %u pages used of %u and nobody calls",
             snapshot_out->requests_running, snapshot_out->requests_waiting,
             pages_used(snapshot_out), snapshot_out->pages_total);
}

/* ---- expectations -------------------------------------------------------------------------- */

void calls_expect_whole(const struct call *call, uint32_t idx) {
    uint32_t choices = call->choice_count > 1 ? call->choice_count : 1;
    if (call->status != STATUS_OK)
        fail_msg("call %u: status %d, %s", idx, (int)call->status, call->err.text);
    assert_int_equal(call->summary.finish_reason, FINISH_LENGTH);
    assert_int_equal(call->summary.prompt_tokens, call->prompt_tok);
    assert_int_equal(call->summary.completion_tokens, choices * call->max_tokens);
    for (uint32_t i = 0; i < choices; i++)
        assert_int_equal(call->reply[i].token_count, call->max_tokens);
}

void calls_expect_same(const struct call_reply *reply, const struct call_reply *whole,
                       uint32_t idx) {
    uint32_t end = reply->token_count < whole->token_count ? reply->token_count
                                                           : whole->token_count;
    for (uint32_t i = 0; i < end; i++)
        if (reply->token[i] != whole->token[i] ||
            memcmp(&reply->logprob[i], &whole->logprob[i], sizeof *reply->logprob) != 0)
            fail_msg("call %u, token %u of %u: found %u (%a), alone %u (%a)", idx, i,
                     reply->token_count, reply->token[i], (double)reply->logprob[i],
                     whole->token[i], (double)whole->logprob[i]);
}

void calls_expect_begins(const struct call *call, const struct call *whole, uint32_t idx) {
    for (uint32_t i = 0; i < CALLS_CHOICES_MAX; i++)
        calls_expect_same(&call->reply[i], &whole->reply[i], idx);
}

void calls_run_alone(const struct call *call, struct call *alone_out, uint32_t call_count) {
    static const char *const flags[] = {"--disable-radix-cache",
                                        "--max-running-requests",
                                        "4",
                                        "--speculative-algorithm",
                                        "none",
                                        NULL};
    struct group group;
    calls_start_group(&group, flags);
    for (uint32_t i = 0; i < call_count; i++) {
        alone_out[i] = call[i];
        alone_out[i].delay_ms = 0;
    }
    calls_run(group.endpoint, alone_out, call_count, 1);
    for (uint32_t i = 0; i < call_count; i++) {
        calls_expect_whole(&alone_out[i], i);
        assert_int_equal(alone_out[i].summary.cached_tokens, 0);
    }
    calls_stop_group(&group);
}
