#include "sim_cluster.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "codec.h"
#include "journal.h"
#include "sim_coverage.h"
#include "sim_scenario.h"

#define WIRE_BYTES      (1u << 20)
#define TICK_NS         (1000 * SIM_MS)
#define CALM_NS_MAX     (600 * 1000 * SIM_MS) /* after the last fault, everything ends within it */
#define CALM_EVENTS_MAX 200000u
#define START_NS        (1000 * SIM_MS)

static struct sim_cluster cluster_now;
struct sim_cluster_totals sim_cluster_totals;

static bool is_idle(const struct sim_cluster *cluster);
static void create(struct sim_cluster *cluster, const struct sim_run *run);
static void destroy(struct sim_cluster *cluster);
static void dispatch(struct sim_cluster *cluster, struct sim_item *item);
static bool is_held(struct sim_cluster *cluster, const struct sim_item *item,
                    int64_t *until_ns_out);
static void tick_after(struct sim_cluster *cluster, int64_t delay_ns);
static void perform(struct sim_cluster *cluster, struct effects effects);
static void expect_idle(struct sim_cluster *cluster);
static void mix(struct sim_cluster *cluster, const void *data, size_t bytes);

const struct sim_cluster *sim_cluster_now(void) {
    return cluster_now.core ? &cluster_now : NULL;
}

uint64_t sim_cluster_run(const struct sim_run *run) {
    struct sim_cluster *cluster = &cluster_now;
    create(cluster, run);
    int64_t calm_since_ns = 0;
    uint64_t calm_since_events = 0;
    struct sim_item item;
    while (!cluster->exited && sim_agenda_take(&cluster->agenda, &item)) {
        int64_t until_ns;
        cluster->now_ns = item.at_ns;
        if (is_held(cluster, &item, &until_ns)) {
            struct bytes bytes = {.data = item.data, .size = item.bytes};
            sim_cluster_put(cluster, until_ns - cluster->now_ns, item, bytes);
            sim_agenda_free(&item);
            continue;
        }
        dispatch(cluster, &item);
        sim_agenda_free(&item);
        if (cluster->calm && is_idle(cluster) && !sim_examine_ask_last(cluster)) break;
        if (!cluster->calm) {
            calm_since_ns = cluster->now_ns;
            calm_since_events = cluster->events;
        }
        if (cluster->now_ns - calm_since_ns > CALM_NS_MAX ||
            cluster->events - calm_since_events > CALM_EVENTS_MAX)
            sim_cluster_fail(cluster, "no faults any more, and calls do not end");
        if (run->events_max > 0 && cluster->events >= run->events_max) break;
    }
    uint64_t hash = cluster->hash;
    if (run->events_max == 0) expect_idle(cluster);
    destroy(cluster);
    return hash;
}

/* Every call, resize and examination has ended, and so have the steps that still named their
 * requests. */
static bool is_idle(const struct sim_cluster *cluster) {
    return sim_client_all_ended(cluster) && sim_resize_all_ended(cluster) &&
           sim_examine_all_ended(cluster) &&
           core_snapshot(cluster->core, cluster->now_ns).requests_running == 0;
}

static void create(struct sim_cluster *cluster, const struct sim_run *run) {
    struct arena wire = cluster->wire, lent = cluster->lent;
    if (!wire.base) {
        arena_init(&wire, WIRE_BYTES);
        arena_init(&lent, WIRE_BYTES);
    }
    memset(cluster, 0, sizeof *cluster);
    cluster->wire = wire;
    cluster->lent = lent;
    cluster->seed = run->seed;
    cluster->verbose = run->verbose;
    cluster->storm = run->storm;
    cluster->canary = run->canary;
    cluster->journal = run->journal;
    cluster->random.state = sim_random_mix(run->seed);
    cluster->now_ns = START_NS;
    cluster->spec = sim_model_spec();
    sim_scenario_choose(cluster);
    struct error err;
    if (core_create(&cluster->options, &cluster->core, &err) != STATUS_OK)
        sim_cluster_fail(cluster, "no core: %s", err.text);
    if (cluster->journal) journal_options(cluster->journal, &cluster->options, "");
    sim_coverage_begin();
    tick_after(cluster, TICK_NS);
    sim_scenario_put(cluster);
}

static void destroy(struct sim_cluster *cluster) {
    struct snapshot snapshot = core_snapshot(cluster->core, cluster->now_ns);
    sim_cluster_totals.steps += snapshot.steps;
    sim_cluster_totals.retractions += snapshot.retractions;
    sim_cluster_totals.evictions += snapshot.evictions;
    sim_cluster_totals.tokens_cached += snapshot.tokens_cached;
    for (uint32_t rank = 0; rank < TP_MAX; rank++)
        sim_process_free(&cluster->process[rank]);
    sim_agenda_clear(&cluster->agenda);
    core_destroy(&cluster->core);
}

void sim_cluster_put(struct sim_cluster *cluster, int64_t delay_ns, struct sim_item item,
                     struct bytes bytes) {
    item.at_ns = cluster->now_ns + delay_ns;
    sim_agenda_put(&cluster->agenda, item, bytes);
}

int64_t sim_cluster_chance_us(struct sim_cluster *cluster, uint32_t us_max) {
    return us_max == 0 ? 0 : sim_random_below(&cluster->random, us_max) * INT64_C(1000);
}

/* What would reach a stopped process, or the coordinator while it stands still, waits. */
static bool is_held(struct sim_cluster *cluster, const struct sim_item *item,
                    int64_t *until_ns_out) {
    const struct sim_process *process;
    *until_ns_out = cluster->paused_until_ns;
    switch ((enum sim_item_kind)item->kind) {
    case SIM_ITEM_TICK:
    case SIM_ITEM_TO_COORDINATOR:
    case SIM_ITEM_LOST:
    case SIM_ITEM_CALL:
    case SIM_ITEM_CANCEL:
    case SIM_ITEM_JOB:
    case SIM_ITEM_FLUSH:
    case SIM_ITEM_RESIZE:
    case SIM_ITEM_EXAMINE:
    case SIM_ITEM_EXAMINE_CANCEL:
    case SIM_ITEM_LIE_DUE:
    case SIM_ITEM_DRAIN_DUE:
    case SIM_ITEM_DRAIN: break;
    case SIM_ITEM_TO_WORKER:
        process = &cluster->process[cluster->connection[item->who].rank];
        *until_ns_out = process->connection == item->who ? process->stopped_until_ns : 0;
        break;
    case SIM_ITEM_PROCESS: *until_ns_out = cluster->process[item->who].stopped_until_ns; break;
    case SIM_ITEM_CLOSED: /* a process that does not end by itself is killed */
    case SIM_ITEM_LAUNCH:
    case SIM_ITEM_RESUME:
    case SIM_ITEM_FAULT:
    case SIM_ITEM_CALM: return false;
    }
    return *until_ns_out > cluster->now_ns;
}

/* ---- events ---------------------------------------------------------------------------------- */

static bool serves(struct sim_cluster *cluster) {
    struct snapshot snapshot = core_snapshot(cluster->core, cluster->now_ns);
    for (uint32_t rank = 0; rank < snapshot.rank_count; rank++)
        if (snapshot.rank[rank].state != RANK_READY) return false;
    return true;
}

static void scribble(struct arena *arena) {
    size_t used = arena->used;
    arena_reset(arena);
    memset(arena_alloc(arena, used), 0xA5, used);
    arena_reset(arena);
}

void sim_cluster_event(struct sim_cluster *cluster, struct event *event) {
    int64_t now_ns = cluster->now_ns + cluster->skew_ns;
    event->now_ns = now_ns;
    mix(cluster, &event->type, sizeof event->type);
    mix(cluster, &now_ns, sizeof now_ns);
    cluster->events++;
    sim_cluster_totals.events++;
    cluster->was_serving = cluster->is_serving;
    struct snapshot before = core_snapshot(cluster->core, now_ns);
    cluster->was_waiting = before.requests_waiting;
    cluster->was_evicted = before.evictions;
    if (cluster->journal) journal_event(cluster->journal, event);
    struct effects effects = core_step(cluster->core, event);
    if (cluster->journal) journal_effects(cluster->journal, effects);
    /* What the event lent is gone before the effects are looked at, but for the text of a
     * job and what a report points to. */
    for (uint32_t i = 0; i < effects.count; i++)
        if (effects.effect[i].type == EFFECT_JOB_TOKENIZE)
            sim_client_tokenize(cluster, &effects.effect[i]);
        else if (effects.effect[i].type == EFFECT_EXAMINED)
            sim_examine_report(cluster, &effects.effect[i]);
        else
            cluster->is_exiting = cluster->is_exiting || effects.effect[i].type == EFFECT_EXIT;
    scribble(&cluster->lent);
    cluster->is_serving = serves(cluster);
    if (cluster->was_serving && !cluster->is_serving && !cluster->disturbed && !cluster->draining)
        sim_cluster_fail(cluster, "a generation ends and nothing happened");
    perform(cluster, effects);
    core_check(cluster->core);
}

static void lose(struct sim_cluster *cluster, uint32_t connection) {
    if (cluster->connection[connection].lost || cluster->connection[connection].dropped) return;
    cluster->connection[connection].lost = true;
    struct event event = {.type = EVENT_WORKER_LOST};
    event.worker.worker.value = connection;
    sim_cluster_event(cluster, &event);
}

static void to_coordinator(struct sim_cluster *cluster, const struct sim_item *item) {
    const struct sim_connection *connection = &cluster->connection[item->who];
    struct bytes bytes = {.data = item->data, .size = item->bytes};
    struct worker_message message;
    struct error err;
    if (connection->lost) return;
    mix(cluster, item->data, item->bytes);
    arena_reset(&cluster->lent);
    if (codec_decode_worker_message(bytes, &cluster->lent, &message, &err) != STATUS_OK) {
        if (!cluster->disturbed) sim_cluster_fail(cluster, "a worker's message: %s", err.text);
        sim_process_closed(cluster, connection->rank);
        lose(cluster, item->who);
        return;
    }
    /* The last words of a dropped process may still be read, or not. */
    if (connection->dropped &&
        (message.type == WORKER_HELLO || sim_random_percent(&cluster->random, 70)))
        return;
    struct event event = {.type = EVENT_WORKER_MESSAGE};
    event.worker.worker.value = item->who;
    event.worker.message = &message;
    sim_cluster_event(cluster, &event);
}

void sim_cluster_cut(struct sim_cluster *cluster, uint32_t rank) {
    const struct sim_process *process = &cluster->process[rank];
    if (!process->alive) return;
    cluster->disturbed = true;
    sim_cluster_put(cluster, sim_cluster_chance_us(cluster, 300000),
                    (struct sim_item){.kind = SIM_ITEM_LOST, .who = process->connection},
                    (struct bytes){0});
    sim_cluster_put(cluster, sim_cluster_chance_us(cluster, 300000),
                    (struct sim_item){.kind = SIM_ITEM_CLOSED, .who = process->connection},
                    (struct bytes){0});
}

/* The next tick; one that was put in before is void. */
static void tick_after(struct sim_cluster *cluster, int64_t delay_ns) {
    cluster->tick_at_ns = cluster->now_ns + delay_ns;
    struct sim_item item = {.kind = SIM_ITEM_TICK, .value = (uint64_t)cluster->tick_at_ns};
    sim_cluster_put(cluster, delay_ns, item, (struct bytes){0});
}

static void tick(struct sim_cluster *cluster, const struct sim_item *item) {
    if (item->value != (uint64_t)cluster->tick_at_ns) return;
    tick_after(cluster, TICK_NS);
    sim_cluster_event(cluster, &(struct event){.type = EVENT_TICK});
}

static void drain(struct sim_cluster *cluster, int64_t time_ns) {
    sim_cluster_say(cluster, "drain");
    cluster->draining = true;
    struct event event = {.type = EVENT_DRAIN};
    event.drain.deadline_ns = cluster->now_ns + cluster->skew_ns + time_ns;
    sim_cluster_put(cluster, time_ns + 2 * TICK_NS, (struct sim_item){.kind = SIM_ITEM_DRAIN_DUE},
                    (struct bytes){0});
    sim_cluster_event(cluster, &event);
}

/* What a worker says and is not so ends the generation. */
static void expect_disbelief(struct sim_cluster *cluster, uint64_t generation) {
    if (core_snapshot(cluster->core, cluster->now_ns).generation != generation) return;
    if (cluster->is_serving) sim_cluster_fail(cluster, "a worker's lie was believed");
}

/* Everything, or what begins as some prompt does. */
static void flush(struct sim_cluster *cluster) {
    const struct sim_call *call =
        &cluster->client.call[sim_random_below(&cluster->random, cluster->client.call_count)];
    struct event event = {.type = EVENT_FLUSH};
    event.flush.tenant = call->tenant;
    event.flush.token = call->prompt;
    if (sim_random_percent(&cluster->random, 60))
        event.flush.token_count = 1 + sim_random_below(&cluster->random, call->prompt_count);
    sim_cluster_say(cluster, "flush of %u tokens", event.flush.token_count);
    sim_examine_flushed(cluster);
    sim_cluster_event(cluster, &event);
    if (event.flush.token_count == 0) sim_client_flushed(cluster);
}

static void become_calm(struct sim_cluster *cluster) {
    sim_cluster_say(cluster, "no more faults");
    cluster->calm = true;
    cluster->weather = (struct sim_weather){
        .delay_us_max = 100,
        .compute_us_max = 1000,
        .load_us_max = 100000,
        .relaunch_ms_max = 50,
        .draft_len = cluster->weather.draft_len,
        .draft_luck = cluster->weather.draft_luck,
    };
    for (uint32_t rank = 0; rank < cluster->options.tp; rank++)
        sim_process_calm(cluster, rank);
}

static void dispatch(struct sim_cluster *cluster, struct sim_item *item) {
    struct bytes bytes = {.data = item->data, .size = item->bytes};
    struct sim_process *process;
    switch ((enum sim_item_kind)item->kind) {
    case SIM_ITEM_TICK: tick(cluster, item); break;
    case SIM_ITEM_TO_COORDINATOR: to_coordinator(cluster, item); break;
    case SIM_ITEM_LOST: lose(cluster, item->who); break;
    case SIM_ITEM_TO_WORKER:
    case SIM_ITEM_CLOSED:
        process = &cluster->process[cluster->connection[item->who].rank];
        if (!process->alive || process->connection != item->who) break;
        if (item->kind == SIM_ITEM_CLOSED)
            sim_process_closed(cluster, process->worker.rank);
        else
            sim_process_message(cluster, process->worker.rank, bytes);
        break;
    case SIM_ITEM_LAUNCH: sim_process_launch(cluster, item->who); break;
    case SIM_ITEM_RESUME: sim_process_resume(cluster, item->who); break;
    case SIM_ITEM_PROCESS: sim_process_timer(cluster, item->who, item->what, item->value); break;
    case SIM_ITEM_CALL: sim_client_arrive(cluster, item->who, bytes); break;
    case SIM_ITEM_CANCEL: sim_client_cancel(cluster, item->who, (enum status)item->what); break;
    case SIM_ITEM_JOB: sim_client_job(cluster, item->who, item->value); break;
    case SIM_ITEM_FAULT: sim_scenario_fault(cluster); break;
    case SIM_ITEM_DRAIN: drain(cluster, (int64_t)item->value); break;
    case SIM_ITEM_FLUSH: flush(cluster); break;
    case SIM_ITEM_RESIZE: sim_resize_ask(cluster); break;
    case SIM_ITEM_EXAMINE: sim_examine_ask(cluster); break;
    case SIM_ITEM_EXAMINE_CANCEL: sim_examine_cancel(cluster, item->who); break;
    case SIM_ITEM_LIE_DUE: expect_disbelief(cluster, item->value); break;
    case SIM_ITEM_DRAIN_DUE: sim_cluster_fail(cluster, "the drain's deadline has passed");
    case SIM_ITEM_CALM: become_calm(cluster); break;
    }
}

/* ---- effects --------------------------------------------------------------------------------- */

static void send_down(struct sim_cluster *cluster, struct worker_id worker, struct bytes bytes) {
    CHECK(worker.value <= cluster->connection_count);
    struct sim_connection *connection = &cluster->connection[worker.value];
    if (connection->dropped) sim_cluster_fail(cluster, "the core sends to whom it dropped");
    int64_t at_ns = cluster->now_ns + sim_cluster_chance_us(cluster, cluster->weather.delay_us_max);
    if (at_ns < connection->down_ns) at_ns = connection->down_ns;
    connection->down_ns = at_ns;
    sim_cluster_put(cluster, at_ns - cluster->now_ns,
                    (struct sim_item){.kind = SIM_ITEM_TO_WORKER, .who = worker.value}, bytes);
}

static void drop(struct sim_cluster *cluster, struct worker_id worker) {
    struct sim_connection *connection = &cluster->connection[worker.value];
    const struct sim_process *process = &cluster->process[connection->rank];
    if (process->loading && process->connection == worker.value && !cluster->disturbed)
        sim_cluster_fail(cluster, "rank %u is dropped while it loads", connection->rank);
    connection->dropped = true;
    int64_t at_ns = cluster->now_ns + sim_cluster_chance_us(cluster, 20000);
    if (at_ns < connection->down_ns) at_ns = connection->down_ns; /* after what was sent */
    sim_cluster_put(cluster, at_ns - cluster->now_ns,
                    (struct sim_item){.kind = SIM_ITEM_CLOSED, .who = worker.value},
                    (struct bytes){0});
}

static void exit_cluster(struct sim_cluster *cluster, const struct effect *effect) {
    if (cluster->exited) sim_cluster_fail(cluster, "the core exits twice");
    if (!cluster->disturbed && !cluster->draining)
        sim_cluster_fail(cluster, "the core exits and nothing happened: %s", effect->exit.text);
    cluster->exited = true;
    cluster->exit_code = effect->exit.code;
    sim_cluster_say(cluster, "exit %d: %s", effect->exit.code, effect->exit.text);
}

static void perform_one(struct sim_cluster *cluster, const struct effect *effect) {
    switch (effect->type) {
    case EFFECT_SEND_WORKER:
        arena_reset(&cluster->wire);
        struct bytes bytes = codec_encode_control_message(effect->send_worker.message,
                                                          &cluster->wire);
        mix(cluster, bytes.data, bytes.size);
        if (effect->send_worker.message->type == CONTROL_EXAMINE)
            sim_examine_order(cluster, &effect->send_worker.message->examine);
        send_down(cluster, effect->send_worker.worker, bytes);
        break;
    case EFFECT_DROP_WORKER: drop(cluster, effect->drop_worker.worker); break;
    case EFFECT_CALL_DATA:
        mix(cluster, effect->call_data.delta.text.data, effect->call_data.delta.text.size);
        sim_client_data(cluster, effect->call_data.call, &effect->call_data.delta);
        break;
    case EFFECT_CALL_END:
        mix(cluster, effect->call_end.text, strlen(effect->call_end.text));
        if (!sim_resize_end(cluster, effect) && !sim_examine_end(cluster, effect))
            sim_client_end(cluster, effect);
        break;
    case EFFECT_JOB_TOKENIZE: break; /* begun already */
    case EFFECT_TIMER: {
        int64_t delay_ns = effect->timer.at_ns - cluster->now_ns - cluster->skew_ns;
        if (delay_ns < 0) delay_ns = 0;
        if (cluster->now_ns + delay_ns < cluster->tick_at_ns) tick_after(cluster, delay_ns);
        break;
    }
    case EFFECT_LOG:
        mix(cluster, effect->log.text, strlen(effect->log.text));
        sim_cluster_say(cluster, "log %s %s", effect->log.event, effect->log.text);
        break;
    case EFFECT_RESIZE:
        mix(cluster, &effect->resize.progress, sizeof effect->resize.progress);
        if (!sim_resize_progress(cluster, effect->resize.call, &effect->resize.progress))
            sim_cluster_fail(cluster, "progress of no resize");
        break;
    case EFFECT_EXAMINED: sim_examine_goes_on(cluster, effect->examined.call); break;
    case EFFECT_EXIT: exit_cluster(cluster, effect); break;
    }
}

/* What a step gave a reply comes as one delta a channel. */
static void expect_whole_delta(const struct sim_cluster *cluster, const struct effect *effect) {
    const struct effect *last = effect - 1;
    if (effect->type != EFFECT_CALL_DATA || last->type != EFFECT_CALL_DATA) return;
    const struct generate_delta *delta = &effect->call_data.delta, *before = &last->call_data.delta;
    if (pool_id_equal(last->call_data.call, effect->call_data.call) &&
        before->channel == delta->channel && before->choice == delta->choice &&
        before->token_count > 0 && before->token + before->token_count == delta->token)
        sim_cluster_fail(cluster, "call %u: two deltas of one step", effect->call_data.call.slot);
}

static void perform(struct sim_cluster *cluster, struct effects effects) {
    for (uint32_t i = 0; i < effects.count; i++) {
        mix(cluster, &effects.effect[i].type, sizeof effects.effect[i].type);
        if (i > 0) expect_whole_delta(cluster, &effects.effect[i]);
        perform_one(cluster, &effects.effect[i]);
    }
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void expect_idle(struct sim_cluster *cluster) {
    if (cluster->exited) { /* calls that never reached the core have nobody to answer them */
        for (uint32_t i = 0; i < cluster->client.call_count; i++)
            if (cluster->client.call[i].arrived && !cluster->client.call[i].ended)
                sim_cluster_fail(cluster, "the core has exited and call %u has no end", i);
    }
    core_check(cluster->core);
    sim_resize_expect_ended(cluster);
    sim_examine_expect_ended(cluster);
    struct snapshot snapshot = core_snapshot(cluster->core, cluster->now_ns);
    if (snapshot.requests_running > 0)
        sim_cluster_fail(cluster, "%u requests run, and nothing more will happen",
                         snapshot.requests_running);
    if (snapshot.pages_free + snapshot.pages_cached != snapshot.pages_total)
        sim_cluster_fail(cluster, "%u pages of %u are free and %u cached, and nothing runs",
                         snapshot.pages_free, snapshot.pages_total, snapshot.pages_cached);
    if (snapshot.requests_waiting > 0)
        sim_cluster_fail(cluster, "%u requests wait, and no call is open",
                         snapshot.requests_waiting);
    if (!cluster->exited && !sim_client_all_ended(cluster))
        sim_cluster_fail(cluster, "nothing more will happen, and calls are open");
}

static void mix(struct sim_cluster *cluster, const void *data, size_t bytes) {
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++)
        cluster->hash = (cluster->hash ^ at[i]) * UINT64_C(0x100000001b3);
}

static double seconds(const struct sim_cluster *cluster) {
    return (double)(cluster->now_ns - START_NS) / 1e9;
}

void sim_cluster_say(struct sim_cluster *cluster, const char *format, ...) {
    if (!cluster->verbose) return;
    printf("%9.6f #%-6llu ", seconds(cluster), (unsigned long long)cluster->events);
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
}

_Noreturn void sim_cluster_fail(const struct sim_cluster *cluster, const char *format, ...) {
    fflush(stdout);
    fprintf(stderr, "sim: seed %llu, event %llu, %.6f s: ", (unsigned long long)cluster->seed,
            (unsigned long long)cluster->events, seconds(cluster));
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\nsim: replay it with: sim --seed %llu%s --verbose\n",
            (unsigned long long)cluster->seed, cluster->storm ? " --stormy" : "");
    exit(EXIT_CODE_FAILED);
}
