#include "loop.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include <uv.h>

#include "base/check.h"
#include "base/clock.h"
#include "codec.h"
#include "http.h"
#include "jobs.h"
#include "journal.h"
#include "keyring.h"
#include "metrics.h"
#include "observers.h"
#include "probes.h"
#include "process.h"
#include "rpc.h"
#include "service_notify.h"
#include "worker_link.h"
#include "zmq_context.h"

#define TICK_NS               NS_PER_S
#define CLIENT_QUEUE_MESSAGES 64
#define ENCODE_BYTES_MAX      (4u << 20) /* the longest delta: the tokens of a step with logprobs */
#define SIGNALS               4
#define FOLLOW_NS             NS_PER_S /* for workers to end when told to */

struct loop {
    uv_loop_t uv;
    void *zmq;
    const struct coordinator_config *config;
    struct run_dir run_dir;
    struct core *core;
    struct keyring *keyring; /* NULL: no keys */
    struct rpc_server *rpc;
    struct worker_link *link;
    struct http_server *http;
    struct observers *observers;
    struct jobs *jobs;
    struct journal *journal; /* NULL: none is written */
    uv_timer_t tick;
    int64_t tick_at_ns;
    uv_signal_t signal[SIGNALS];
    uv_check_t turn;
    int64_t looked_ns; /* when workers were last heard out: at the end of the turn before */
    struct arena decode_arena, encode_arena;
    struct worker_id unreachable[WORKER_LINK_CONNECTIONS_MAX]; /* found while sending; told after */
    uint32_t unreachable_count;
    bool stepping, draining, stopping, published;
    struct core_capacity announced;
    int exit_code;
};

static const char *const methods[] = {METHOD_GENERATE,     METHOD_WATCH, METHOD_HEALTH_CHECK,
                                      METHOD_HEALTH_WATCH, METHOD_FLUSH, METHOD_RESIZE,
                                      METHOD_EXAMINE,      METHOD_DRAIN, NULL};
static const char *const observing_methods[] = {METHOD_WATCH, METHOD_HEALTH_CHECK,
                                                METHOD_HEALTH_WATCH, METHOD_DRAIN, NULL};
static const struct bytes no_body;

static void step(struct loop *loop, struct event *event);

/* ---- effects ------------------------------------------------------------------------------- */

static void note_unreachable(struct loop *loop, struct worker_id worker) {
    /* Several sends of one list may find the same worker gone. */
    for (uint32_t i = 0; i < loop->unreachable_count; i++)
        if (loop->unreachable[i].value == worker.value) return;
    CHECK(loop->unreachable_count < WORKER_LINK_CONNECTIONS_MAX);
    loop->unreachable[loop->unreachable_count++] = worker;
}

static void stop(struct loop *loop, int exit_code) {
    if (loop->stopping) return;
    loop->stopping = true;
    loop->exit_code = exit_code;
    uv_stop(&loop->uv);
}

static void on_tick(uv_timer_t *timer);

static void tick_at(struct loop *loop, int64_t at_ns) {
    loop->tick_at_ns = at_ns;
    int64_t wait_ns = at_ns - clock_now_ns();
    uint64_t wait_ms = wait_ns <= 0 ? 0 : (uint64_t)((wait_ns + NS_PER_MS - 1) / NS_PER_MS);
    /* libuv counts from the time it read at the start of this turn. */
    uv_update_time(&loop->uv);
    uv_timer_start(&loop->tick, on_tick, wait_ms, 0);
}

static void send_data(struct loop *loop, struct pool_id call, const struct generate_delta *delta) {
    arena_reset(&loop->encode_arena);
    rpc_send(loop->rpc, call, codec_encode_generate_delta(delta, &loop->encode_arena));
}

static void send_resize(struct loop *loop, const struct effect *effect) {
    arena_reset(&loop->encode_arena);
    rpc_send(loop->rpc, effect->resize.call,
             codec_encode_resize_progress(&effect->resize.progress, &loop->encode_arena));
}

static void send_examined(struct loop *loop, const struct effect *effect) {
    arena_reset(&loop->encode_arena);
    rpc_send(loop->rpc, effect->examined.call,
             codec_encode_examine_report(&effect->examined.report, &loop->encode_arena));
}

static void end_call(struct loop *loop, const struct effect *effect) {
    arena_reset(&loop->encode_arena);
    struct bytes body = no_body;
    if (effect->call_end.summary)
        body = codec_encode_generate_summary(effect->call_end.summary, &loop->encode_arena);
    rpc_end(loop->rpc, effect->call_end.call, effect->call_end.status, effect->call_end.text, body);
}

static void perform(struct loop *loop, struct effects effects) {
    const struct control_message *encoded_from = NULL; /* a plan goes to every rank: encode once */
    struct bytes encoded = no_body;
    for (uint32_t i = 0; i < effects.count; i++) {
        const struct effect *effect = &effects.effect[i];
        switch (effect->type) {
        case EFFECT_SEND_WORKER:
            if (encoded_from != effect->send_worker.message) {
                encoded_from = effect->send_worker.message;
                encoded = worker_link_encode(loop->link, encoded_from);
            }
            if (worker_link_send(loop->link, effect->send_worker.worker, encoded) != STATUS_OK)
                note_unreachable(loop, effect->send_worker.worker);
            break;
        case EFFECT_DROP_WORKER: worker_link_drop(loop->link, effect->drop_worker.worker); break;
        case EFFECT_CALL_DATA:
            send_data(loop, effect->call_data.call, &effect->call_data.delta);
            break;
        case EFFECT_CALL_END: end_call(loop, effect); break;
        case EFFECT_JOB_TOKENIZE:
            jobs_tokenize(loop->jobs, effect->job.job, effect->job.kind, effect->job.text);
            break;
        case EFFECT_TIMER:
            if (effect->timer.at_ns < loop->tick_at_ns) tick_at(loop, effect->timer.at_ns);
            break;
        case EFFECT_LOG:
            log_write((enum log_level)effect->log.level, effect->log.event, "%s", effect->log.text);
            break;
        case EFFECT_EXIT: stop(loop, effect->exit.code); break;
        case EFFECT_RESIZE: send_resize(loop, effect); break;
        case EFFECT_EXAMINED: send_examined(loop, effect); break;
        }
    }
}

/* ---- events -------------------------------------------------------------------------------- */

static void step_one(struct loop *loop, struct event *event) {
    CHECK(!loop->stepping);
    loop->stepping = true;
    event->now_ns = clock_now_ns();
    if (loop->journal) journal_event(loop->journal, event);
    struct effects effects = core_step(loop->core, event);
    if (loop->journal) journal_effects(loop->journal, effects);
    perform(loop, effects);
    loop->stepping = false;
}

static void step_unreachable(struct loop *loop) {
    while (loop->unreachable_count > 0) {
        struct worker_id worker = loop->unreachable[--loop->unreachable_count];
        step_one(loop, &(struct event){.type = EVENT_WORKER_LOST, .worker = {.worker = worker}});
    }
}

static void step_jobs(struct loop *loop) {
    struct job_result *result;
    while ((result = jobs_take(loop->jobs)) != NULL) {
        struct event event = {
            .type = EVENT_JOB_DONE,
            .job_done = {.job = result->job,
                         .status = result->status,
                         .text = result->status == STATUS_OK ? "" : result->err.text,
                         .token = result->tokens.ids,
                         .token_count = (uint32_t)result->tokens.count,
                         .in_reasoning = result->in_reasoning}};
        step_one(loop, &event);
        jobs_release(result);
        step_unreachable(loop);
    }
}

/* The line operators look for, with the words they know. */
static void print_capacity(const struct loop *loop, const struct core_capacity *capacity) {
    const struct coordinator_config *config = loop->config;
    if (config->log_level > LOG_LEVEL_INFO) return;
    uint32_t max_prefill = config->max_prefill_tokens ? config->max_prefill_tokens
                                                      : capacity->pool_tok;
    log_plain("",
              "max_total_num_tokens=%u, chunked_prefill_size=%u, max_prefill_tokens=%u, "
              "max_running_requests=%u, context_len=%u, available_gpu_mem=%.2f GB",
              capacity->pool_tok, config->chunked_prefill_size, max_prefill,
              capacity->max_running_requests, config->context_length,
              (double)core_free_bytes(loop->core) / (double)(UINT64_C(1) << 30));
}

static void notice_health(struct loop *loop) {
    struct core_capacity now = core_capacity(loop->core), *before = &loop->announced;
    if (now.generation > 0 &&
        (now.generation != before->generation || now.pool_tok != before->pool_tok ||
         now.max_running_requests != before->max_running_requests)) {
        *before = now;
        print_capacity(loop, &now);
    }
    observers_health_changed(loop->observers);
}

static void step(struct loop *loop, struct event *event) {
    step_one(loop, event);
    step_unreachable(loop);
    step_jobs(loop);
    notice_health(loop);
}

static void on_tick(uv_timer_t *timer) {
    struct loop *loop = timer->data;
    tick_at(loop, clock_now_ns() + TICK_NS);
    step(loop, &(struct event){.type = EVENT_TICK});
    /* A rank that stands still keeps the word back, until it moves or is dropped. */
    if (!core_in_trouble(loop->core, loop->looked_ns)) service_notify("WATCHDOG=1");
}

static void on_job_finished(void *user) {
    struct loop *loop = user;
    step_jobs(loop);
}

static void on_worker_message(void *user, struct worker_id worker,
                              const struct worker_message *message) {
    step(user, &(struct event){.type = EVENT_WORKER_MESSAGE,
                               .worker = {.worker = worker, .message = message}});
}

static void on_worker_lost(void *user, struct worker_id worker) {
    step(user, &(struct event){.type = EVENT_WORKER_LOST, .worker = {.worker = worker}});
}

/* ---- calls --------------------------------------------------------------------------------- */

static void drain(struct loop *loop, uint32_t timeout_ms) {
    if (loop->draining) return;
    loop->draining = true;
    service_notify("STOPPING=1");
    rpc_server_drain(loop->rpc);
    step(loop, &(struct event){.type = EVENT_DRAIN,
                               .drain = {.deadline_ns = clock_now_ns() + timeout_ms * NS_PER_MS}});
}

static void on_generate(struct loop *loop, struct pool_id call, const struct header *header,
                        struct bytes body) {
    arena_reset(&loop->decode_arena);
    struct generate_request request;
    struct error err;
    enum status status = codec_decode_generate_request(body, &loop->decode_arena, &request, &err);
    if (status != STATUS_OK) {
        rpc_end(loop->rpc, call, status, err.text, no_body);
        return;
    }
    struct event event = {.type = EVENT_CALL,
                          .call = {.call = call,
                                   .request = &request,
                                   .priority = header->priority,
                                   .tenant = header->tenant,
                                   .idempotency_key = header->idempotency_key}};
    CHECK(getrandom(&event.call.random, sizeof event.call.random, 0) ==
          (ssize_t)sizeof event.call.random);
    step(loop, &event);
}

static void on_flush(struct loop *loop, struct pool_id call, const struct header *header,
                     struct bytes body) {
    arena_reset(&loop->decode_arena);
    struct flush_request request;
    struct error err;
    enum status status = codec_decode_flush_request(body, &loop->decode_arena, &request, &err);
    if (status == STATUS_OK) {
        step(loop, &(struct event){.type = EVENT_FLUSH,
                                   .flush = {.tenant = header->tenant,
                                             .token = request.token,
                                             .token_count = request.token_count}});
    }
    rpc_end(loop->rpc, call, status, status == STATUS_OK ? "" : err.text, no_body);
}

static void on_resize(struct loop *loop, struct pool_id call, struct bytes body) {
    arena_reset(&loop->decode_arena);
    struct event event = {.type = EVENT_RESIZE, .resize = {.call = call}};
    struct error err;
    enum status status = codec_decode_resize_request(body, &loop->decode_arena,
                                                     &event.resize.request, &err);
    if (status == STATUS_OK)
        step(loop, &event);
    else
        rpc_end(loop->rpc, call, status, err.text, no_body);
}

static void on_examine(struct loop *loop, struct pool_id call, const struct header *header,
                       struct bytes body) {
    arena_reset(&loop->decode_arena);
    struct examine_request request;
    struct error err;
    enum status status = codec_decode_examine_request(body, &loop->decode_arena, &request, &err);
    if (status != STATUS_OK) {
        rpc_end(loop->rpc, call, status, err.text, no_body);
        return;
    }
    step(loop, &(struct event){.type = EVENT_EXAMINE,
                               .examine = {.call = call,
                                           .tenant = header->tenant,
                                           .token = request.token,
                                           .token_count = request.token_count,
                                           .rows = request.rows}});
}

static void on_call(void *user, struct pool_id call, const struct header *header,
                    struct bytes body) {
    struct loop *loop = user;
    struct drain_request request;
    if (strcmp(header->method, METHOD_GENERATE) == 0)
        on_generate(loop, call, header, body);
    else if (strcmp(header->method, METHOD_FLUSH) == 0)
        on_flush(loop, call, header, body);
    else if (strcmp(header->method, METHOD_RESIZE) == 0)
        on_resize(loop, call, body);
    else if (strcmp(header->method, METHOD_EXAMINE) == 0)
        on_examine(loop, call, header, body);
    else if (observers_call(loop->observers, call, header->method, body, &request))
        drain(loop, request.timeout_ms);
}

static void on_cancel(void *user, struct pool_id call, enum status reason) {
    struct loop *loop = user;
    if (observers_cancel(loop->observers, call, reason)) return;
    step(loop, &(struct event){.type = EVENT_CANCEL, .cancel = {.call = call, .reason = reason}});
}

/* ---- HTTP ---------------------------------------------------------------------------------- */

/* A process that was kept from running finds probes and heartbeats waiting together: silence is
 * measured at a time when nothing of workers was left unread. */
static void on_turn(uv_check_t *check) {
    struct loop *loop = check->data;
    loop->looked_ns = clock_now_ns();
}

static void on_get(void *user, const char *path, const char *query, struct http_answer *answer) {
    struct loop *loop = user;
    if (strcmp(path, "/metrics") == 0)
        metrics_answer(loop->core, loop->config->metrics_compat, loop->looked_ns, answer);
    else
        probes_answer(loop->core, loop->looked_ns, path, query, answer);
}

/* ---- signals ------------------------------------------------------------------------------- */

static void dump(struct loop *loop) {
    struct snapshot now = core_snapshot(loop->core, clock_now_ns());
    log_info("dump",
             "generation=%" PRIu64 " ready=%d draining=%d running=%u waiting=%u calls=%u "
             "pages_free=%u pages_cached=%u pages_total=%u retractions=%" PRIu64 " steps=%" PRIu64
             " reason=\"%s\"",
             now.generation, now.ready, now.draining, now.requests_running, now.requests_waiting,
             rpc_server_open_calls(loop->rpc), now.pages_free, now.pages_cached, now.pages_total,
             now.retractions, now.steps, now.reason);
    for (uint32_t i = 0; i < now.rank_count; i++) {
        const struct rank_status *rank = &now.rank[i];
        log_info("dump_rank",
                 "of=%u state=%d pid=%" PRIu64 " step=%" PRIu64 " heartbeat_age_ms=%" PRIu64
                 " probe=%s",
                 rank->rank, (int)rank->state, rank->pid, rank->step,
                 rank->heartbeat_age_ns / (uint64_t)NS_PER_MS, rank->probe);
    }
}

static void reread(struct loop *loop) {
    if (loop->keyring)
        keyring_reread(loop->keyring);
    else
        log_info("nothing_to_read", "reason=\"no --curve-keys\"");
}

static void on_signal(uv_signal_t *handle, int number) {
    struct loop *loop = handle->data;
    if (loop->stopping) return;
    if (number == SIGQUIT)
        dump(loop);
    else if (number == SIGHUP)
        reread(loop);
    else if (!loop->draining)
        drain(loop, loop->config->drain_timeout_ms);
    else
        stop(loop, EXIT_CODE_OK);
}

/* ---- life ---------------------------------------------------------------------------------- */

static enum status create_core(struct loop *loop, const struct loop_options *options,
                               struct error *err) {
    const struct coordinator_config *config = options->config;
    const struct core_options core = {
        .spec = options->spec,
        .vocab = tokenizer_vocab(options->tokenizer),
        .model_fingerprint = options->model_fingerprint,
        .boot_id = strtoull(options->boot_id, NULL, 16),
        .pid = (uint64_t)getpid(),
        .process_start = process_start_time(getpid()),
        .tp = config->tp,
        .context_len = config->context_length,
        .page_tok = config->page_tok,
        .page_count = coordinator_config_page_count(config),
        .page_cap = coordinator_config_page_cap(config),
        .mem_fraction = coordinator_config_mem_fraction(config),
        .allow_short_pool = config->allow_short_pool,
        .no_self_test = config->no_self_test,
        .kv_dtype = config->kv_dtype,
        .activation_dtype = config->activation_dtype,
        .prefill_form = config->prefill_form,
        .max_running_requests = config->max_running_requests,
        .max_running_cap = config->max_running_cap,
        .max_queued_requests = config->max_queued_requests,
        .max_queued_tokens = config->max_queued_tokens,
        .queue_timeout_ms = config->queue_timeout_ms,
        .schedule_policy = config->schedule_policy,
        .chunked_prefill_size = config->chunked_prefill_size,
        .max_prefill_tokens = config->max_prefill_tokens,
        .max_step_rows = config->max_step_rows,
        .target_step_ms = config->target_step_ms,
        .speculative_algorithm = config->speculative_algorithm,
        .speculative_tree_rows = config->speculative_tree_rows,
        .speculative_history_tok = config->speculative_history_tok,
        .speculative_fixed = config->speculative_fixed,
        .speculative_seed_chain = config->speculative_seed_chain,
        .disable_prefix_cache = config->disable_radix_cache,
        .overlap_steps = !config->disable_overlap,
        .heartbeat_ms = config->heartbeat_ms,
        .step_timeout_ms = config->step_timeout_ms,
        .load_timeout_ms = config->load_timeout_ms,
        .rejoin_timeout_ms = config->rejoin_timeout_ms,
    };
    enum status status = core_create(&core, &loop->core, err);
    if (status != STATUS_OK || !config->journal) return status;
    status = journal_create(config->journal, &loop->journal, err);
    if (status == STATUS_OK) journal_options(loop->journal, &core, config->model_path);
    return status;
}

static enum status open_keyring(struct loop *loop, struct error *err) {
    const char *dir = loop->config->curve_keys;
    if (!dir) return STATUS_OK;
    enum status status = keyring_open(&loop->uv, loop->zmq, dir, &loop->keyring, err);
    return status == STATUS_OK ? status : error_wrap(err, status, "--curve-keys");
}

static enum status open_servers(struct loop *loop, struct error *err) {
    struct chan_options clients = {.role = CHAN_SERVER,
                                   .endpoint = loop->config->client_endpoint,
                                   .frame_bytes_max = FRAME_BODY_BYTES_MAX,
                                   .queue_messages = CLIENT_QUEUE_MESSAGES};
    keyring_guard(loop->keyring, KEYRING_CLIENTS, &clients);
    const struct rpc_handlers calls = {.on_call = on_call,
                                       .on_cancel = on_cancel,
                                       .user = loop,
                                       .methods = methods,
                                       .observing = observing_methods};
    enum status status = rpc_server_open(&loop->uv, loop->zmq, &clients, &calls, &loop->rpc, err);
    if (status != STATUS_OK) return error_wrap(err, status, "--client-endpoint");
    const struct worker_link_handlers workers = {
        .on_message = on_worker_message, .on_lost = on_worker_lost, .user = loop};
    struct chan_options door = {.endpoint = loop->config->worker_endpoint};
    keyring_guard(loop->keyring, KEYRING_WORKERS, &door);
    status = worker_link_open(&loop->uv, loop->zmq, &door, &workers, &loop->link, err);
    if (status != STATUS_OK) return error_wrap(err, status, "--worker-endpoint");
    status = http_server_open(&loop->uv, loop->config->probe_address, on_get, loop, &loop->http,
                              err);
    if (status != STATUS_OK) return error_wrap(err, status, "--probe-address");
    loop->observers = observers_create(&loop->uv, loop->rpc, loop->core);
    return STATUS_OK;
}

static void start_signals(struct loop *loop) {
    static const int number[SIGNALS] = {SIGTERM, SIGINT, SIGQUIT, SIGHUP};
    for (int i = 0; i < SIGNALS; i++) {
        uv_signal_init(&loop->uv, &loop->signal[i]);
        loop->signal[i].data = loop;
        uv_signal_start(&loop->signal[i], on_signal, number[i]);
    }
}

/* Tell those who wait for us: a file for anyone, the inherited descriptor for who started us. */
static enum status publish(struct loop *loop, const char *boot_id, struct error *err) {
    struct ready_file ready = {.pid = (uint64_t)getpid(),
                               .process_start = process_start_time(getpid())};
    snprintf(ready.endpoint, sizeof ready.endpoint, "%s", rpc_server_endpoint(loop->rpc));
    snprintf(ready.workers, sizeof ready.workers, "%s", worker_link_endpoint(loop->link));
    snprintf(ready.probe, sizeof ready.probe, "%s", http_server_address(loop->http));
    snprintf(ready.boot, sizeof ready.boot, "%s", boot_id);
    enum status status = run_dir_publish(&loop->run_dir, RUN_DIR_COORDINATOR, &ready, err);
    if (status != STATUS_OK) return status;
    loop->published = true;
    service_notify("READY=1");
    log_info("listening", "clients=%s workers=%s probe=%s run_dir=%s", ready.endpoint,
             ready.workers, ready.probe, loop->run_dir.path);
    if (loop->config->prefill_form == PREFILL_EXPANDED)
        log_warn("not_exact",
                 "reason=\"--prefill-form expanded: the logits of a token, and so what is "
                 "drawn, may depend on how its prompt was cut and cached\"");
    if (loop->config->ready_fd >= 0) {
        static const char line[] = "listening\n";
        if (write(loop->config->ready_fd, line, sizeof line - 1) < 0)
            log_warn("ready_fd", "reason=\"%s\"", strerror(errno));
        close(loop->config->ready_fd);
    }
    return STATUS_OK;
}

static void keep_log(const struct loop *loop) {
    char path[LOG_PATH_BYTES_MAX];
    if (!run_dir_log_path(&loop->run_dir, loop->config->log_dir, RUN_DIR_COORDINATOR, path,
                          sizeof path) ||
        !log_keep(path))
        log_warn("log_not_kept", "path=\"%s\" reason=\"%s\"", path, strerror(errno));
}

enum status loop_open(const struct loop_options *options, struct loop **loop_out,
                      struct error *err) {
    struct loop *loop = calloc(1, sizeof *loop);
    CHECK(loop);
    loop->config = options->config;
    loop->run_dir = options->config->run_dir;
    CHECK(uv_loop_init(&loop->uv) == 0);
    loop->zmq = zmq_context_create();
    arena_init(&loop->decode_arena, codec_arena_budget(FRAME_BODY_BYTES_MAX));
    arena_init(&loop->encode_arena, ENCODE_BYTES_MAX);
    uv_timer_init(&loop->uv, &loop->tick);
    uv_check_init(&loop->uv, &loop->turn);
    loop->tick.data = loop;
    loop->turn.data = loop;
    *loop_out = loop;

    enum status status = run_dir_create(&loop->run_dir, err);
    if (status == STATUS_OK) status = run_dir_lock(&loop->run_dir, err);
    if (status == STATUS_OK) status = create_core(loop, options, err);
    if (status == STATUS_OK) status = open_keyring(loop, err);
    if (status == STATUS_OK) status = open_servers(loop, err);
    if (status == STATUS_OK) {
        loop->jobs = jobs_create(&loop->uv, options->tokenizer, options->config->context_length,
                                 on_job_finished, loop);
        start_signals(loop);
        loop->looked_ns = clock_now_ns();
        uv_check_start(&loop->turn, on_turn);
        tick_at(loop, clock_now_ns() + TICK_NS);
        keep_log(loop);
        status = publish(loop, options->boot_id, err);
    }
    if (status != STATUS_OK) loop_close(loop_out);
    return status;
}

int loop_run(struct loop *loop) {
    while (!loop->stopping)
        uv_run(&loop->uv, UV_RUN_DEFAULT);
    return loop->exit_code;
}

static void close_signals(struct loop *loop) {
    process_end_in_peace();
    for (int i = 0; i < SIGNALS; i++)
        if (loop->signal[i].data) uv_close((uv_handle_t *)&loop->signal[i], NULL);
}

static void on_followed(uv_timer_t *timer) {
    (void)timer; /* the loop turns, and its owner looks at the clock */
}

/* Workers end while they can still hear us: a connection that breaks first looks like a crash to
 * them. One that is stopped, or stuck, is left to its parent. */
static void end_workers(struct loop *loop) {
    worker_link_shutdown_all(loop->link);
    int64_t deadline_ns = clock_now_ns() + FOLLOW_NS;
    uv_timer_start(&loop->tick, on_followed, FOLLOW_NS / NS_PER_MS, 0);
    while (worker_link_remaining(loop->link) > 0 && clock_now_ns() < deadline_ns)
        uv_run(&loop->uv, UV_RUN_ONCE);
}

void loop_close(struct loop **loop_in) {
    struct loop *loop = *loop_in;
    *loop_in = NULL;
    if (loop->published) run_dir_withdraw(&loop->run_dir, RUN_DIR_COORDINATOR);
    loop->stopping = true; /* also where it never ran */
    uv_timer_stop(&loop->tick);
    /* Last words: they still go out while the sockets close. */
    if (loop->observers) observers_drained(loop->observers);
    observers_destroy(&loop->observers);
    if (loop->rpc) rpc_server_close(&loop->rpc, NULL, NULL);
    if (loop->http) http_server_close(&loop->http);
    if (loop->jobs) jobs_destroy(&loop->jobs);
    if (loop->link) {
        end_workers(loop);
        worker_link_close(&loop->link, NULL, NULL);
    }
    if (loop->keyring) keyring_close(&loop->keyring);
    close_signals(loop);
    uv_close((uv_handle_t *)&loop->tick, NULL);
    uv_close((uv_handle_t *)&loop->turn, NULL);
    uv_run(&loop->uv, UV_RUN_DEFAULT);
    CHECK(uv_loop_close(&loop->uv) == 0);
    zmq_context_destroy(&loop->zmq);
    if (loop->core) core_destroy(&loop->core);
    journal_close(&loop->journal);
    arena_deinit(&loop->decode_arena);
    arena_deinit(&loop->encode_arena);
    run_dir_unlock(&loop->run_dir);
    free(loop);
}
