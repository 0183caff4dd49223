#include "control.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log_limit.h"
#include "chan.h"
#include "codec.h"
#include "compute.h"
#include "curve_keys.h"
#include "http.h"
#include "mailbox.h"
#include "probe.h"
#include "process.h"
#include "rank_metrics.h"
#include "service_notify.h"
#include "zmq_context.h"

#define QUEUE_MESSAGES 256
#define LAST_WORD_MS   50
#define WATCHDOG_MS    1000
#define SIGNALS        2

struct control {
    const struct worker_config *config;
    const struct checkpoint *checkpoint;
    const struct checkpoint_drafter *drafter; /* NULL: none */
    uv_loop_t loop;
    void *zmq;
    struct curve_caller keys; /* where config->curve_keys is given */
    bool cut;                 /* what answers at the endpoint ends our handshakes */
    struct chan *chan;
    uint32_t connections; /* made so far: each is a routing id of its own */
    struct http_server *http;
    struct compute *compute; /* NULL until the first WELCOME */
    struct process_watch *coordinator;
    uv_async_t noted; /* the compute thread has a note */
    uv_timer_t heartbeat;
    uv_timer_t patience; /* while seeking: when to give up */
    uv_timer_t watchdog;
    uv_signal_t signal[SIGNALS];
    struct arena header_arena, send_arena;
    struct bytes note_header;
    uv_timer_t last_word;
    const char *suspicion; /* why the coordinator may be gone; NULL: it is not */
    bool told_to_end;      /* by the last coordinator, and lingering */
    bool serving;          /* welcomed by the coordinator we are connected to */
    uint64_t generation;   /* joined; 0: in no group */
    uint64_t ended;        /* the last generation that the coordinator ended */
    struct compute_progress progress;
    int64_t progress_ns; /* when it last changed */
    struct log_limit refused_lines;
    bool stopping;
    int exit_code;
};

static void suspect(struct control *control, const char *how);

/* ---- ending -------------------------------------------------------------------------------- */

static void stop(struct control *control, int exit_code) {
    if (control->stopping) return;
    control->stopping = true;
    control->exit_code = exit_code;
    uv_stop(&control->loop);
}

/* End without waiting for anything, least of all for a step: the kernel frees what we hold. */
static _Noreturn void leave(struct control *control, int exit_code) {
    run_dir_withdraw(&control->config->run_dir, (int)control->config->rank);
    _exit(exit_code);
}

static void on_signal(uv_signal_t *handle, int number) {
    struct control *control = handle->data;
    log_info("signal", "number=%d", number);
    leave(control, EXIT_CODE_OK);
}

/* ---- sending ------------------------------------------------------------------------------- */

static void send_body(struct control *control, struct bytes body, bool droppable) {
    const struct bytes part[FRAME_PARTS] = {control->note_header, body};
    enum status status = chan_send(control->chan, (struct bytes){0}, part);
    if (status != STATUS_OK && !droppable) suspect(control, "a message could not be sent");
}

/* droppable: the next one says it again. */
static void send_message(struct control *control, const struct worker_message *message,
                         bool droppable) {
    arena_reset(&control->send_arena);
    send_body(control, codec_encode_worker_message(message, &control->send_arena), droppable);
}

static void say_hello(struct control *control) {
    const struct checkpoint_drafter *drafter = control->drafter;
    char device[64];
    if (control->config->device)
        snprintf(device, sizeof device, "cuda:%u %s", control->config->gpu,
                 control->config->device->name);
    else
        snprintf(device, sizeof device, "cpu threads=%u", control->config->threads);
    const struct worker_message hello = {
        .type = WORKER_HELLO,
        .hello = {.wire_version = WIRE_VERSION,
                  .rank = control->config->rank,
                  .tp = control->config->tp,
                  .pid = (uint64_t)getpid(),
                  .process_start = process_start_time(getpid()),
                  .model_fingerprint = control->checkpoint->fingerprint,
                  .device = device,
                  .probe = http_server_address(control->http),
                  .draft_fingerprint = drafter ? drafter->fingerprint : 0,
                  .draft_len = drafter ? drafter->spec.block - 1 : 0}};
    send_message(control, &hello, false);
}

static void on_note(uv_async_t *async) {
    struct control *control = async->data;
    struct compute_note *note;
    while (!control->stopping && (note = compute_take(control->compute)) != NULL) {
        if (control->serving && note->connection == control->connections) {
            /* It may have ended meanwhile. */
            if (note->type == WORKER_JOINED && note->generation > control->ended)
                control->generation = note->generation;
            if (note->type == WORKER_FAULT) control->generation = 0;
            if (note->type == WORKER_LOADED) service_notify("READY=1");
            send_body(control, note->body, false);
        }
        if (note->exit_code >= 0) stop(control, note->exit_code);
        compute_note_destroy(note);
    }
}

static void notify(void *user) {
    struct control *control = user;
    uv_async_send(&control->noted);
}

/* ---- heartbeats ---------------------------------------------------------------------------- */

static void observe_progress(struct control *control) {
    if (!control->compute) return;
    struct compute_progress now = compute_progress(control->compute);
    const struct compute_progress *before = &control->progress;
    bool moved = now.engine.step != before->engine.step ||
                 now.engine.collective_seq != before->engine.collective_seq ||
                 now.engine.generation != before->engine.generation ||
                 now.computing != before->computing;
    if (moved) control->progress_ns = clock_now_ns();
    control->progress = now;
}

static void on_heartbeat(uv_timer_t *timer) {
    struct control *control = timer->data;
    observe_progress(control);
    const struct compute_progress *progress = &control->progress;
    if (progress->loading)
        send_message(
            control,
            &(struct worker_message){.type = WORKER_LOAD_PROGRESS,
                                     .load_progress = {.bytes = progress->load_bytes,
                                                       .bytes_total = progress->load_bytes_total}},
            true);
    send_message(
        control,
        &(struct worker_message){.type = WORKER_HEARTBEAT,
                                 .heartbeat = {.generation = control->generation,
                                               .step = progress->engine.step,
                                               .collective_seq = progress->engine.collective_seq,
                                               .computing = progress->computing,
                                               .collective_ns = progress->engine.collective_ns,
                                               .self_test = progress->self_test,
                                               .self_test_percent = progress->self_test_percent}},
        true);
}

static struct probe_state probe_state(const struct control *control) {
    return (struct probe_state){.rank = control->config->rank,
                                .connected = control->serving,
                                .in_group = control->generation != 0,
                                .progress = control->progress,
                                .progress_ns = control->progress_ns,
                                .now_ns = clock_now_ns()};
}

static void on_probe(void *user, const char *path, const char *query, struct http_answer *answer) {
    struct control *control = user;
    observe_progress(control);
    const struct probe_state state = probe_state(control);
    if (strcmp(path, "/metrics") != 0) {
        probe_get(&state, path, query, answer);
        return;
    }
    struct compute_numbers numbers = {.weight_loads = 0};
    if (control->compute) numbers = compute_numbers(control->compute);
    rank_metrics_answer(&state, &numbers, answer);
}

/* Also while it seeks a coordinator, and holds weights for it. */
static void on_watchdog(uv_timer_t *timer) {
    struct control *control = timer->data;
    observe_progress(control);
    const struct probe_state state = probe_state(control);
    if (!probe_is_stuck(&state)) service_notify("WATCHDOG=1");
}

/* ---- the coordinator's orders -------------------------------------------------------------- */

static void give(struct control *control, struct compute_order **order) {
    (*order)->connection = control->connections;
    if (compute_give(control->compute, order)) return;
    log_error("too_many_orders", "accepted=%u", MAILBOX_LETTERS_MAX);
    compute_order_destroy(*order);
    *order = NULL;
    stop(control, EXIT_CODE_TEMPORARY);
}

static void give_end(struct control *control, uint64_t generation, const char *text) {
    if (!control->compute) return;
    compute_abort(control->compute, generation);
    struct compute_order *order = compute_order_create(0);
    order->message = (struct control_message){
        .type = CONTROL_END_GENERATION, .end_generation = {.generation = generation, .text = text}};
    give(control, &order);
}

static void on_coordinator_death(void *user) {
    suspect(user, "its process has ended");
}

static void watch_coordinator(struct control *control, const struct control_welcome *welcome) {
    pid_t pid = welcome->coordinator_pid <= INT32_MAX ? (pid_t)welcome->coordinator_pid : 0;
    /* Of another machine or pid namespace: the connection tells. */
    if (pid == 0 || process_start_time(pid) != welcome->coordinator_start) return;
    struct error err;
    if (process_watch_open(&control->loop, pid, welcome->coordinator_start, on_coordinator_death,
                           control, &control->coordinator, &err) != STATUS_OK)
        log_warn("coordinator_not_watched", "reason=\"%s\"", err.text);
}

static void publish(struct control *control, const char *boot_id) {
    struct ready_file ready = {.pid = (uint64_t)getpid(),
                               .process_start = process_start_time(getpid())};
    snprintf(ready.probe, sizeof ready.probe, "%s", http_server_address(control->http));
    snprintf(ready.boot, sizeof ready.boot, "%s", boot_id);
    struct error err;
    if (run_dir_publish(&control->config->run_dir, (int)control->config->rank, &ready, &err) !=
        STATUS_OK)
        log_warn("not_published", "reason=\"%s\"", err.text);
}

static void keep_log(const struct worker_config *config) {
    char path[LOG_PATH_BYTES_MAX];
    if (!run_dir_log_path(&config->run_dir, config->log_dir, (int)config->rank, path,
                          sizeof path) ||
        !log_keep(path))
        log_warn("log_not_kept", "path=\"%s\" reason=\"%s\"", path, strerror(errno));
}

static void on_welcome(struct control *control, struct compute_order **order) {
    const struct control_welcome *welcome = &(*order)->message.welcome;
    char boot_id[BOOT_ID_LEN + 1];
    snprintf(boot_id, sizeof boot_id, "%016" PRIx64, welcome->boot_id);
    control->serving = true;
    control->ended = 0; /* it counts from one */
    control->told_to_end = false;
    uv_timer_stop(&control->patience);
    watch_coordinator(control, welcome);
    publish(control, boot_id);
    log_set_boot(boot_id);
    keep_log(control->config); /* anew: who ended the boot before may have removed the file */
    if (!control->compute)
        control->compute = compute_create(
            &(struct compute_options){.checkpoint = control->checkpoint,
                                      .drafter = control->drafter,
                                      .draft_window = control->config->draft_window,
                                      .rank = control->config->rank,
                                      .tp = control->config->tp,
                                      .threads = control->config->threads,
                                      .numa = &control->config->numa,
                                      .device_bytes = control->config->device_bytes,
                                      .device = control->config->device,
                                      .quiet = control->config->log_level > LOG_LEVEL_INFO,
                                      .notify = notify,
                                      .user = control});
    log_info("welcomed", "coordinator_pid=%" PRIu64 " coordinator_boot=%s",
             welcome->coordinator_pid, boot_id);
    numa_log(&control->config->numa, control->config->threads);
    uv_timer_start(&control->heartbeat, on_heartbeat, 0, welcome->heartbeat_ms);
    give(control, order);
}

static void on_refuse(struct control *control, const struct control_refuse *refuse) {
    fprintf(stderr, "espalier-worker: refused by the coordinator: %s\n", refuse->text);
    stop(control, EXIT_CODE_CONFIG);
}

/* A coordinator that ends in order may be about to be upgraded: who lingers waits for the next. */
static void on_shutdown(struct control *control) {
    if (control->config->linger_ms == 0) {
        stop(control, EXIT_CODE_OK);
        return;
    }
    control->told_to_end = true;
    suspect(control, "it has ended in order");
}

static void on_order(struct control *control, struct compute_order **order) {
    const struct control_message *message = &(*order)->message;
    switch (message->type) {
    case CONTROL_WELCOME: on_welcome(control, order); return;
    case CONTROL_REFUSE: on_refuse(control, &message->refuse); return;
    case CONTROL_SHUTDOWN:
        log_info("shutdown", "by=coordinator");
        on_shutdown(control);
        return;
    case CONTROL_END_GENERATION:
        control->generation = 0;
        control->ended = message->end_generation.generation;
        if (control->compute) compute_abort(control->compute, control->ended);
        break;
    case CONTROL_PREPARE_GROUP:
    case CONTROL_FORM_GROUP:
    case CONTROL_STEP_PLAN:
    case CONTROL_RESIZE:
    case CONTROL_SIZE:
    case CONTROL_EXAMINE: break;
    }
    if (control->compute) give(control, order);
}

static enum status decode(const struct bytes part[FRAME_PARTS], struct compute_order *order,
                          struct error *err) {
    struct header header;
    enum status status = codec_decode_header(part[0], &order->arena, &header, err);
    if (status != STATUS_OK) return status;
    if (header.kind != FRAME_NOTE)
        return error_set(err, STATUS_INVALID_ARGUMENT, "header.kind: found %d, accepted: NOTE",
                         (int)header.kind);
    return codec_decode_control_message(part[1], &order->arena, &order->message, err);
}

static void receive(void *user, struct bytes peer, const struct bytes part[FRAME_PARTS]) {
    (void)peer;
    struct control *control = user;
    if (control->stopping) return;
    struct compute_order *order = compute_order_create(part[0].size + part[1].size);
    struct error err;
    enum status status = decode(part, order, &err);
    if (status == STATUS_OK) {
        on_order(control, &order);
    } else if (status == STATUS_FAILED_PRECONDITION) {
        fprintf(stderr, "espalier-worker: the coordinator is of another version: %s\n", err.text);
        stop(control, EXIT_CODE_CONFIG);
    } else {
        log_limited(&control->refused_lines, clock_now_ns(), LOG_LEVEL_WARN, "frame_refused",
                    "reason=\"%s\"", err.text);
    }
    if (order) compute_order_destroy(order);
}

/* ---- finding the coordinator --------------------------------------------------------------- */

static void on_link(void *user, enum chan_link link) {
    struct control *control = user;
    const struct worker_config *config = control->config;
    switch (link) {
    case CHAN_LINK_UP:
        control->cut = false;
        if (!control->suspicion) say_hello(control);
        break;
    case CHAN_LINK_DOWN: suspect(control, "the connection broke"); break;
    case CHAN_LINK_CUT: control->cut = true; break;
    case CHAN_LINK_REFUSED:
        fprintf(stderr,
                "espalier-worker: --curve-keys: found the key %s, accepted at %s: a key of "
                "its " CURVE_WORKERS_ALLOWED "\n",
                control->keys.own.public_key, config->endpoint);
        stop(control, EXIT_CODE_PERMISSION);
        break;
    case CHAN_LINK_FOREIGN:
        fprintf(stderr, "espalier-worker: --curve-keys: found %s, accepted at %s: %s\n",
                config->curve_keys ? config->curve_keys : "none", config->endpoint,
                config->curve_keys ? "clear text, which it speaks" : "keys, for it speaks CURVE");
        stop(control, EXIT_CODE_CONFIG);
        break;
    }
}

static void out_of_patience(uv_timer_t *timer) {
    struct control *control = timer->data;
    if (control->told_to_end) leave(control, EXIT_CODE_OK);
    const char *why = !control->cut ? ""
                      : control->config->curve_keys
                          ? " to the key in " CURVE_COORDINATOR_PUBLIC
                            ": handshakes are ended there"
                          : ": handshakes are ended there, as by one that speaks CURVE; accepted: "
                            "its --curve-keys";
    fprintf(stderr, "espalier-worker: no coordinator answers at %s%s\n", control->config->endpoint,
            why);
    leave(control, EXIT_CODE_TEMPORARY);
}

static enum status seek(struct control *control, uint32_t patience_ms, struct error *err) {
    char routing_id[CHAN_PEER_BYTES_MAX];
    snprintf(routing_id, sizeof routing_id, "rank-%u-%d-%u", control->config->rank, (int)getpid(),
             ++control->connections);
    struct chan_options options = {.role = CHAN_CLIENT,
                                   .endpoint = control->config->endpoint,
                                   .frame_bytes_max = WORKER_BODY_BYTES_MAX,
                                   .queue_messages = QUEUE_MESSAGES,
                                   .routing_id = bytes_of_text(routing_id),
                                   .on_link = on_link};
    if (control->config->curve_keys) {
        options.server_public_key = control->keys.server_public_key;
        options.public_key = control->keys.own.public_key;
        options.secret_key = control->keys.own.secret_key;
    }
    uv_timer_start(&control->patience, out_of_patience, patience_ms, 0);
    return chan_open(&control->loop, control->zmq, &options, receive, control, &control->chan, err);
}

static void coordinator_lost(uv_timer_t *timer) {
    struct control *control = timer->data;
    const char *how = control->suspicion;
    control->suspicion = NULL;
    if (control->stopping) return;
    const struct worker_config *config = control->config;
    log_warn("coordinator_lost", "how=\"%s\" linger_ms=%u", how, config->linger_ms);
    if (config->linger_ms == 0) leave(control, EXIT_CODE_GROUP_LOST);
    uv_timer_stop(&control->heartbeat);
    process_watch_close(&control->coordinator);
    if (control->serving) give_end(control, control->generation, "the coordinator is gone");
    control->serving = false;
    control->generation = 0;
    chan_close(&control->chan, NULL, NULL);
    struct error err;
    if (seek(control, config->linger_ms, &err) != STATUS_OK) {
        log_error("cannot_seek", "reason=\"%s\"", err.text);
        leave(control, EXIT_CODE_GROUP_LOST);
    }
}

/* The coordinator is gone, it seems. Its last word, a SHUTDOWN, may still lie between ZeroMQ's
 * thread and us, and makes the difference between an end in order and a lost group. */
static void suspect(struct control *control, const char *how) {
    if (control->suspicion) return;
    control->suspicion = how;
    uv_update_time(&control->loop); /* this turn may have begun long ago on a busy machine */
    uv_timer_start(&control->last_word, coordinator_lost, LAST_WORD_MS, 0);
}

/* ---- life ---------------------------------------------------------------------------------- */

static void start_handles(struct control *control) {
    static const int number[SIGNALS] = {SIGTERM, SIGINT};
    uv_async_init(&control->loop, &control->noted, on_note);
    uv_timer_init(&control->loop, &control->heartbeat);
    uv_timer_init(&control->loop, &control->patience);
    uv_timer_init(&control->loop, &control->last_word);
    uv_timer_init(&control->loop, &control->watchdog);
    control->noted.data = control;
    control->heartbeat.data = control;
    control->patience.data = control;
    control->last_word.data = control;
    control->watchdog.data = control;
    uv_timer_start(&control->watchdog, on_watchdog, WATCHDOG_MS, WATCHDOG_MS);
    for (int i = 0; i < SIGNALS; i++) {
        uv_signal_init(&control->loop, &control->signal[i]);
        control->signal[i].data = control;
        uv_signal_start(&control->signal[i], on_signal, number[i]);
    }
}

static void close_handles(struct control *control) {
    process_end_in_peace();
    uv_close((uv_handle_t *)&control->noted, NULL);
    uv_close((uv_handle_t *)&control->heartbeat, NULL);
    uv_close((uv_handle_t *)&control->patience, NULL);
    uv_close((uv_handle_t *)&control->last_word, NULL);
    uv_close((uv_handle_t *)&control->watchdog, NULL);
    for (int i = 0; i < SIGNALS; i++)
        uv_close((uv_handle_t *)&control->signal[i], NULL);
    process_watch_close(&control->coordinator);
    if (control->chan) chan_close(&control->chan, NULL, NULL);
    if (control->http) http_server_close(&control->http);
    uv_run(&control->loop, UV_RUN_DEFAULT);
}

static enum status open_all(struct control *control, struct error *err) {
    enum status status = run_dir_create(&control->config->run_dir, err);
    if (status != STATUS_OK) return status;
    status = http_server_open(&control->loop, control->config->probe_address, on_probe, control,
                              &control->http, err);
    if (status != STATUS_OK) return error_wrap(err, status, "--probe-address");
    const char *keys = control->config->curve_keys;
    if (keys) status = curve_keys_read_caller(keys, CURVE_WORKER_SECRET, &control->keys, err);
    if (status != STATUS_OK) return error_wrap(err, status, "--curve-keys");
    status = seek(control, control->config->connect_timeout_ms, err);
    return status == STATUS_OK ? status : error_wrap(err, status, "--worker-endpoint");
}

enum status control_run(const struct worker_config *config, const struct checkpoint *checkpoint,
                        const struct checkpoint_drafter *drafter, int *exit_code_out,
                        struct error *err) {
    struct control *control = calloc(1, sizeof *control);
    CHECK(control);
    control->config = config;
    control->checkpoint = checkpoint;
    control->progress_ns = clock_now_ns();
    control->drafter = drafter;
    CHECK(uv_loop_init(&control->loop) == 0);
    control->zmq = zmq_context_create();
    arena_init(&control->header_arena, FRAME_HEADER_BYTES_MAX);
    arena_init(&control->send_arena, codec_arena_budget(FRAME_HEADER_BYTES_MAX));
    control->note_header = codec_encode_header(
        &(struct header){.version = WIRE_VERSION, .kind = FRAME_NOTE}, &control->header_arena);
    start_handles(control);

    enum status status = open_all(control, err);
    while (status == STATUS_OK && !control->stopping)
        uv_run(&control->loop, UV_RUN_DEFAULT);
    *exit_code_out = control->exit_code;
    run_dir_withdraw(&config->run_dir, (int)config->rank);
    if (control->compute) compute_destroy(&control->compute);
    close_handles(control);
    CHECK(uv_loop_close(&control->loop) == 0);
    zmq_context_destroy(&control->zmq);
    arena_deinit(&control->header_arena);
    arena_deinit(&control->send_arena);
    free(control);
    return status;
}
