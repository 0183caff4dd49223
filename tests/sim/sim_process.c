#include "sim_process.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "codec.h"
#include "sim_cluster.h"

#define KEY_BYTES  16u
#define LIE_NS_MAX (500 * SIM_MS) /* that a lie may go unnoticed: on its way, or not judged yet */

enum timer {
    TIMER_HEARTBEAT,
    TIMER_LOADED,
    TIMER_KEY,
    TIMER_JOINED,
    TIMER_COMPLETE,
    TIMER_PEER_LOST,
    TIMER_EAGER,
};

static void send(struct sim_cluster *cluster, uint32_t rank, const struct worker_message *message);
static void send_bytes(struct sim_cluster *cluster, uint32_t rank, struct bytes bytes);
static void say_hello(struct sim_cluster *cluster, uint32_t rank);
static void send_loaded(struct sim_cluster *cluster, uint32_t rank);
static void beat(struct sim_cluster *cluster, uint32_t rank);
static void start_step(struct sim_cluster *cluster);
static void complete_step(struct sim_cluster *cluster, uint32_t rank);
static void leave_step(struct sim_cluster *cluster, uint32_t rank);
static void do_orders(struct sim_cluster *cluster, uint32_t rank);
static void forget_plans(struct sim_process *process);
static void set_timer(struct sim_cluster *cluster, uint32_t rank, enum timer timer,
                      int64_t delay_ns);

static uint64_t timer_value(const struct sim_process *process) {
    return (uint64_t)process->life << 32 | process->turn;
}

static void set_timer(struct sim_cluster *cluster, uint32_t rank, enum timer timer,
                      int64_t delay_ns) {
    struct sim_item item = {.kind = SIM_ITEM_PROCESS, .who = rank, .what = timer};
    item.value = timer_value(&cluster->process[rank]);
    sim_cluster_put(cluster, delay_ns, item, (struct bytes){0});
}

void sim_process_launch(struct sim_cluster *cluster, uint32_t rank) {
    struct sim_process *process = &cluster->process[rank];
    if (process->alive || cluster->exited) return;
    CHECK(cluster->connection_count + 1 < SIM_CONNECTIONS);
    process->alive = true;
    process->life++;
    process->busy = process->stuck = false;
    process->stopped_until_ns = process->slow_until_ns = 0;
    process->lie = SIM_LIE_NONE;
    process->ghost_bytes = 0;
    process->loading = process->stalls = false;
    process->connection = ++cluster->connection_count;
    cluster->connection[process->connection] = (struct sim_connection){.rank = rank};
    sim_worker_start(&process->worker, rank, cluster->options.chunked_prefill_size);
    process->worker.tree_rows_max = cluster->options.speculative_tree_rows;
    process->worker.draft_len = cluster->weather.draft_len;
    process->worker.draft_luck = cluster->weather.draft_luck;
    process->gets_twice = process->is_mute = false;
    sim_cluster_say(cluster, "rank %u starts, connection %u", rank, process->connection);
    say_hello(cluster, rank);
    set_timer(cluster, rank, TIMER_HEARTBEAT, cluster->options.heartbeat_ms * SIM_MS);
}

static void say_hello(struct sim_cluster *cluster, uint32_t rank) {
    const struct sim_process *process = &cluster->process[rank];
    struct worker_message message = {.type = WORKER_HELLO};
    message.hello = (struct worker_hello){
        .wire_version = WIRE_VERSION,
        .rank = rank,
        .tp = cluster->options.tp,
        .pid = 1000 + process->connection,
        .process_start = process->life,
        .model_fingerprint = cluster->options.model_fingerprint,
        .device = "simulated",
        .probe = "127.0.0.1:1",
        .draft_fingerprint = process->worker.draft_len,
        .draft_len = process->worker.draft_len,
    };
    send(cluster, rank, &message);
}

static void send_bytes(struct sim_cluster *cluster, uint32_t rank, struct bytes bytes) {
    struct sim_process *process = &cluster->process[rank];
    struct sim_connection *connection = &cluster->connection[process->connection];
    int64_t at_ns = cluster->now_ns + sim_cluster_chance_us(cluster, cluster->weather.delay_us_max);
    if (rank > 0 && rank + 1 == cluster->options.tp)
        at_ns += sim_cluster_chance_us(cluster, cluster->weather.laggard_us_max);
    if (at_ns < connection->up_ns) at_ns = connection->up_ns;
    connection->up_ns = at_ns;
    struct sim_item item = {.kind = SIM_ITEM_TO_COORDINATOR, .who = process->connection};
    sim_cluster_put(cluster, at_ns - cluster->now_ns, item, bytes);
}

static void send(struct sim_cluster *cluster, uint32_t rank, const struct worker_message *message) {
    arena_reset(&cluster->wire);
    send_bytes(cluster, rank, codec_encode_worker_message(message, &cluster->wire));
}

static void begin_load(struct sim_cluster *cluster, uint32_t rank) {
    struct sim_process *process = &cluster->process[rank];
    process->loading = true;
    process->stalls = sim_random_percent(&cluster->random, cluster->weather.stall_percent);
    process->load_begin_ns = cluster->now_ns;
    process->load_ns = sim_cluster_chance_us(cluster, cluster->weather.load_us_max);
    cluster->disturbed = cluster->disturbed || process->stalls;
    set_timer(cluster, rank, TIMER_LOADED, process->load_ns);
}

static void end_load(struct sim_cluster *cluster, uint32_t rank) {
    struct sim_process *process = &cluster->process[rank];
    if (process->stalls) return;
    process->loading = false;
    send_loaded(cluster, rank);
}

/* A byte a nanosecond; a stalled load ends with the first half. */
static void send_progress(struct sim_cluster *cluster, uint32_t rank) {
    const struct sim_process *process = &cluster->process[rank];
    int64_t bytes = cluster->now_ns - process->load_begin_ns;
    int64_t most = process->stalls ? process->load_ns / 2 : process->load_ns;
    struct worker_message message = {.type = WORKER_LOAD_PROGRESS};
    message.load_progress = (struct worker_load_progress){
        .bytes = (uint64_t)(bytes < most ? bytes : most),
        .bytes_total = (uint64_t)process->load_ns,
    };
    send(cluster, rank, &message);
}

static void beat(struct sim_cluster *cluster, uint32_t rank) {
    struct sim_process *process = &cluster->process[rank];
    set_timer(cluster, rank, TIMER_HEARTBEAT, cluster->options.heartbeat_ms * SIM_MS);
    if (process->worker.limits.page_tok == 0) return;
    if (process->loading) send_progress(cluster, rank);
    if (process->busy && !process->stuck) process->collective_seq += 3;
    struct worker_message message = {.type = WORKER_HEARTBEAT};
    message.heartbeat = (struct worker_heartbeat){
        .generation = process->worker.generation,
        .step = process->worker.step,
        .collective_seq = process->collective_seq,
        .computing = process->busy,
    };
    send(cluster, rank, &message);
}

/* The key of a generation, which every rank must be given as rank 0 made it. */
static void make_key(uint64_t seed, uint64_t generation, uint8_t key[KEY_BYTES]) {
    for (uint32_t i = 0; i < KEY_BYTES; i++)
        key[i] = (uint8_t)sim_random_mix(seed ^ generation << 8 ^ i);
}

static void send_key(struct sim_cluster *cluster, uint32_t rank, uint64_t generation,
                     uint32_t wrong) {
    uint8_t key[KEY_BYTES];
    make_key(cluster->seed, generation, key);
    key[0] ^= (uint8_t)wrong;
    struct worker_message message = {.type = WORKER_GROUP_KEY};
    message.group_key.generation = generation;
    message.group_key.key = (struct bytes){.data = key, .size = sizeof key};
    send(cluster, rank, &message);
}

static void send_joined(struct sim_cluster *cluster, uint32_t rank, uint64_t generation) {
    struct worker_message message = {.type = WORKER_JOINED};
    message.joined.generation = generation;
    send(cluster, rank, &message);
}

static void send_loaded(struct sim_cluster *cluster, uint32_t rank) {
    struct worker_message message = {.type = WORKER_LOADED};
    message.loaded = (struct worker_loaded){.bytes = 100, .elapsed_ns = 1000};
    send(cluster, rank, &message);
}

void sim_process_timer(struct sim_cluster *cluster, uint32_t rank, uint32_t what, uint64_t value) {
    struct sim_process *process = &cluster->process[rank];
    if (!process->alive || value >> 32 != process->life) return;
    bool of_turn = (uint32_t)value == process->turn;
    switch ((enum timer)what) {
    case TIMER_HEARTBEAT: beat(cluster, rank); return;
    case TIMER_LOADED: end_load(cluster, rank); return;
    case TIMER_KEY:
        if (of_turn) send_key(cluster, rank, process->worker.generation, 0);
        return;
    case TIMER_JOINED:
        if (of_turn) send_joined(cluster, rank, process->worker.generation);
        return;
    case TIMER_COMPLETE:
        if (of_turn) complete_step(cluster, rank);
        return;
    case TIMER_PEER_LOST:
        if (of_turn && process->stuck) sim_process_fault(cluster, rank, false);
        return;
    case TIMER_EAGER: send_key(cluster, rank, process->over + 1, rank); return;
    }
}

static void join(struct sim_cluster *cluster, uint32_t rank, const struct control_group *group) {
    struct sim_process *process = &cluster->process[rank];
    uint8_t key[KEY_BYTES];
    make_key(cluster->seed, group->generation, key);
    bool right = group->size == cluster->options.tp && group->key.size == KEY_BYTES &&
                 memcmp(group->key.data, key, KEY_BYTES) == 0;
    if (!right) sim_cluster_fail(cluster, "rank %u got another key than rank 0 made", rank);
    process->turn++;
    process->collective_seq = 0;
    sim_worker_join(&process->worker, group->generation);
    process->worker.limits.page_count = group->page_count;
    set_timer(cluster, rank, TIMER_JOINED, sim_cluster_chance_us(cluster, 20000));
}

static uint8_t *keep(struct bytes bytes) {
    uint8_t *data = malloc(bytes.size + 1);
    CHECK(data != NULL);
    memcpy(data, bytes.data, bytes.size);
    return data;
}

static void take_plan(struct sim_cluster *cluster, uint32_t rank, const struct step_plan *plan,
                      struct bytes bytes) {
    struct sim_process *process = &cluster->process[rank];
    if (process->plan_count == SIM_PROCESS_PLANS)
        sim_cluster_fail(cluster, "rank %u has %u plans waiting", rank, process->plan_count);
    struct sim_plan *kept = &process->plan[process->plan_count++];
    kept->step = plan->step;
    kept->bytes = bytes.size;
    kept->data = keep(bytes);
    start_step(cluster);
    if (!process->gets_twice) return;
    process->gets_twice = false; /* a plan that does not follow is refused, and not run */
    sim_process_fault(cluster, rank, false);
}

static void forget_plans(struct sim_process *process) {
    while (process->plan_count > 0)
        free(process->plan[--process->plan_count].data);
    while (process->order_count > 0)
        free(process->order[--process->order_count].data);
    process->busy = process->stuck = false;
    process->turn++;
}

static void send_resized(struct sim_cluster *cluster, uint32_t rank, uint32_t number,
                         enum status status) {
    struct worker_message message = {.type = WORKER_RESIZED};
    message.resized = (struct worker_resized){
        .generation = cluster->process[rank].worker.generation,
        .number = number,
        .status = status,
        .text = "no memory"};
    send(cluster, rank, &message);
}

/* The order is done, and the rank goes on as if it had said so: nobody may wait for it for ever. */
static bool keeps_silent(struct sim_cluster *cluster, uint32_t rank) {
    struct sim_process *process = &cluster->process[rank];
    if (!process->is_mute) return false;
    sim_cluster_say(cluster, "rank %u does not answer", rank);
    process->is_mute = false;
    cluster->disturbed = true;
    return true;
}

static void do_resize(struct sim_cluster *cluster, uint32_t rank,
                      const struct control_resize *resize) {
    struct sim_process *process = &cluster->process[rank];
    bool fails = cluster->resizes.may_fail && sim_random_percent(&cluster->random, 30);
    if (fails) cluster->resizes.may_fail = false;
    sim_worker_resize(&process->worker, resize, fails);
    sim_cluster_say(cluster, "rank %u: %u pages, %u moved%s", rank, resize->page_count,
                    resize->move_count, fails ? ", fails" : "");
    if (process->worker.complaint[0] != '\0')
        sim_cluster_fail(cluster, "rank %u, resize: %s", rank, process->worker.complaint);
    if (keeps_silent(cluster, rank)) return;
    send_resized(cluster, rank, resize->number, fails ? STATUS_RESOURCE_EXHAUSTED : STATUS_OK);
}

static void send_sized(struct sim_cluster *cluster, uint32_t rank, uint32_t number,
                       uint32_t page_count) {
    struct worker_message message = {.type = WORKER_SIZED};
    message.sized = (struct worker_sized){.generation = cluster->process[rank].worker.generation,
                                          .number = number,
                                          .page_count = page_count};
    send(cluster, rank, &message);
}

static void do_size(struct sim_cluster *cluster, uint32_t rank, const struct control_size *size) {
    uint32_t page_count = sim_resize_hold(cluster, rank, size);
    if (!keeps_silent(cluster, rank)) send_sized(cluster, rank, size->number, page_count);
}

static void send_examined(struct sim_cluster *cluster, uint32_t rank,
                          const struct worker_examined *examined) {
    struct worker_message message = {.type = WORKER_EXAMINED, .examined = *examined};
    message.examined.generation = cluster->process[rank].worker.generation;
    send(cluster, rank, &message);
}

static void do_examine(struct sim_cluster *cluster, uint32_t rank,
                       const struct control_examine *order) {
    struct worker_examined examined = sim_examine_answer(cluster, rank, order);
    sim_cluster_say(cluster, "rank %u: %u pages examined%s%s", rank, examined.report.page_count,
                    examined.text[0] ? ": " : "", examined.text);
    if (keeps_silent(cluster, rank)) return;
    send_examined(cluster, rank, &examined);
    if (sim_examine_stutters(cluster, rank, examined.number))
        send_examined(cluster, rank, &examined);
}

/* Those whose turn it is. */
static void do_orders(struct sim_cluster *cluster, uint32_t rank) {
    struct sim_process *process = &cluster->process[rank];
    while (process->order_count > 0 && process->order[0].behind <= process->worker.step) {
        struct sim_order order = process->order[0];
        struct control_message message;
        struct error err;
        process->order_count--;
        memmove(process->order, process->order + 1, process->order_count * sizeof order);
        arena_reset(&cluster->wire);
        struct bytes bytes = {.data = order.data, .size = order.bytes};
        CHECK(codec_decode_control_message(bytes, &cluster->wire, &message, &err) == STATUS_OK);
        if (message.type == CONTROL_RESIZE)
            do_resize(cluster, rank, &message.resize);
        else if (message.type == CONTROL_SIZE)
            do_size(cluster, rank, &message.size);
        else
            do_examine(cluster, rank, &message.examine);
        free(order.data);
    }
}

static void take_order(struct sim_cluster *cluster, uint32_t rank, uint64_t generation,
                       struct bytes bytes) {
    struct sim_process *process = &cluster->process[rank];
    if (generation != process->worker.generation) return; /* it has left it by itself */
    if (process->order_count == SIM_PROCESS_ORDERS)
        sim_cluster_fail(cluster, "rank %u has %u orders waiting", rank, process->order_count);
    process->order[process->order_count++] = (struct sim_order){
        .behind = process->plan_count > 0 ? process->plan[process->plan_count - 1].step : 0,
        .data = keep(bytes),
        .bytes = bytes.size};
    do_orders(cluster, rank);
}

/* One that moves pages must find no plan before it. */
static void take_resize(struct sim_cluster *cluster, uint32_t rank,
                        const struct control_resize *resize, struct bytes bytes) {
    const struct sim_process *process = &cluster->process[rank];
    bool shrinks = resize->page_count < process->worker.limits.page_count;
    if (shrinks && resize->move_count > 0 && process->plan_count > 0 &&
        resize->generation == process->worker.generation)
        sim_cluster_fail(cluster, "pages move on rank %u under a plan", rank);
    take_order(cluster, rank, resize->generation, bytes);
}

void sim_process_message(struct sim_cluster *cluster, uint32_t rank, struct bytes bytes) {
    struct sim_process *process = &cluster->process[rank];
    struct control_message message;
    struct error err;
    arena_reset(&cluster->wire);
    if (codec_decode_control_message(bytes, &cluster->wire, &message, &err) != STATUS_OK)
        sim_cluster_fail(cluster, "rank %u cannot read what the core sent: %s", rank, err.text);
    switch (message.type) {
    case CONTROL_WELCOME:
        sim_worker_welcome(&process->worker, &message.welcome);
        begin_load(cluster, rank);
        break;
    case CONTROL_REFUSE: sim_process_closed(cluster, rank); break;
    case CONTROL_PREPARE_GROUP:
        if (rank != 0) sim_cluster_fail(cluster, "rank %u is asked for a key", rank);
        process->turn++;
        process->worker.generation = message.group.generation;
        set_timer(cluster, rank, TIMER_KEY, sim_cluster_chance_us(cluster, 10000));
        break;
    case CONTROL_FORM_GROUP: join(cluster, rank, &message.group); break;
    case CONTROL_STEP_PLAN: take_plan(cluster, rank, &message.step_plan, bytes); break;
    case CONTROL_END_GENERATION:
        if (message.end_generation.generation != process->worker.generation &&
            process->worker.generation != 0)
            sim_cluster_fail(cluster, "rank %u is to end a generation it is not in", rank);
        forget_plans(process);
        sim_worker_join(&process->worker, 0);
        process->over = message.end_generation.generation;
        if (process->lie != SIM_LIE_EAGER || rank == 0) break;
        process->lie = SIM_LIE_NONE; /* about when rank 0 is asked for the next key */
        set_timer(cluster, rank, TIMER_EAGER,
                  cluster->options.heartbeat_ms * SIM_MS + sim_cluster_chance_us(cluster, 10000));
        break;
    case CONTROL_SHUTDOWN: sim_process_kill(cluster, rank); break;
    case CONTROL_RESIZE: take_resize(cluster, rank, &message.resize, bytes); break;
    case CONTROL_SIZE: take_order(cluster, rank, message.size.generation, bytes); break;
    case CONTROL_EXAMINE: take_order(cluster, rank, message.examine.generation, bytes); break;
    }
}

static bool is_ready(const struct sim_cluster *cluster, const struct sim_process *process,
                     const struct sim_process *first) {
    return process->alive && !process->busy && process->plan_count > 0 &&
           process->stopped_until_ns <= cluster->now_ns &&
           process->worker.generation == first->worker.generation &&
           process->plan[0].step == first->plan[0].step;
}

/* Let a step begin where every rank has its plan. */
static void start_step(struct sim_cluster *cluster) {
    for (uint32_t rank = 0; rank < cluster->options.tp; rank++)
        if (!is_ready(cluster, &cluster->process[rank], &cluster->process[0])) return;
    int64_t compute_ns = sim_cluster_chance_us(cluster, cluster->weather.compute_us_max);
    for (uint32_t rank = 0; rank < cluster->options.tp; rank++)
        if (cluster->process[rank].slow_until_ns > cluster->now_ns) compute_ns += 2500 * SIM_MS;
    for (uint32_t rank = 0; rank < cluster->options.tp; rank++) {
        struct sim_process *process = &cluster->process[rank];
        process->busy = true;
        process->turn++;
        process->collective_seq++;
        if (cluster->canary == SIM_CANARY_STALL && process->plan[0].step == 8) continue;
        set_timer(cluster, rank, TIMER_COMPLETE, compute_ns + sim_cluster_chance_us(cluster, 1000));
    }
}

/* In the same step, and not past its last collective yet. */
static bool is_held_by(struct sim_cluster *cluster, const struct sim_process *process,
                       const struct sim_process *peer) {
    return process->busy && !process->stuck && process->plan[0].step == peer->plan[0].step &&
           sim_random_percent(&cluster->random, 60);
}

/* A rank is out of the step it runs: those that still wait for it are stuck. */
static void leave_step(struct sim_cluster *cluster, uint32_t rank) {
    if (!cluster->process[rank].busy) return;
    for (uint32_t other = 0; other < cluster->options.tp; other++) {
        struct sim_process *process = &cluster->process[other];
        if (other == rank || !is_held_by(cluster, process, &cluster->process[rank])) continue;
        process->stuck = true;
        process->turn++;
        if (sim_random_percent(&cluster->random, 30))
            set_timer(cluster, other, TIMER_PEER_LOST, sim_cluster_chance_us(cluster, 50000));
    }
}

static struct worker_message run_plan(struct sim_cluster *cluster, uint32_t rank,
                                      const struct sim_plan *plan);
static bool spoil(struct sim_process *process, struct step_result *result);
static void say_more(struct sim_cluster *cluster, uint32_t rank);

static void keep_ghost(struct sim_process *process, struct bytes result) {
    CHECK(result.size <= sizeof process->ghost);
    process->ghost_bytes = result.size;
    memcpy(process->ghost, result.data, result.size);
    process->ghost_generation = process->worker.generation;
}

static void complete_step(struct sim_cluster *cluster, uint32_t rank) {
    struct sim_process *process = &cluster->process[rank];
    struct sim_plan plan = process->plan[0];
    process->plan_count--;
    memmove(process->plan, process->plan + 1, process->plan_count * sizeof plan);
    process->busy = process->stuck = false;
    struct worker_message answer = run_plan(cluster, rank, &plan);
    free(plan.data);
    bool lies = spoil(process, &answer.step_result);
    arena_reset(&cluster->wire);
    struct bytes bytes = codec_encode_worker_message(&answer, &cluster->wire);
    if (process->lie == SIM_LIE_GARBLED) bytes.size--;
    struct bytes ghost = {.data = process->ghost, .size = process->ghost_bytes};
    if (lies && process->lie == SIM_LIE_GHOST) send_bytes(cluster, rank, ghost);
    send_bytes(cluster, rank, bytes);
    if (process->lie == SIM_LIE_TWICE) send_bytes(cluster, rank, bytes);
    keep_ghost(process, bytes);
    if (lies) say_more(cluster, rank);
    do_orders(cluster, rank);
    start_step(cluster);
}

static struct worker_message run_plan(struct sim_cluster *cluster, uint32_t rank,
                                      const struct sim_plan *plan) {
    struct sim_worker *worker = &cluster->process[rank].worker;
    struct control_message message;
    struct error err;
    arena_reset(&cluster->wire);
    struct bytes bytes = {.data = plan->data, .size = plan->bytes};
    CHECK(codec_decode_control_message(bytes, &cluster->wire, &message, &err) == STATUS_OK);
    const struct step_plan *step = &message.step_plan;
    uint64_t rows_ahead = worker->rows_ahead, trees = worker->trees,
             guesses_right = worker->guesses_right;
    struct worker_message answer = {.type = WORKER_STEP_RESULT};
    answer.step_result = sim_worker_run(worker, step);
    sim_cluster_totals.rows_ahead += worker->rows_ahead - rows_ahead;
    sim_cluster_totals.trees += worker->trees - trees;
    sim_cluster_totals.guesses_right += worker->guesses_right - guesses_right;
    sim_cluster_say(cluster, "rank %u ran step %llu: %u rows, %u sequences, %u copies", rank,
                    (unsigned long long)step->step, step->row_count, step->sequence_count,
                    step->copy_count);
    if (worker->complaint[0] != '\0')
        sim_cluster_fail(cluster, "rank %u, step %llu: %s", rank, (unsigned long long)step->step,
                         worker->complaint);
    if (cluster->canary == SIM_CANARY_TOKEN && rank == 0 && step->step % 8 == 0)
        worker->token[0] ^= 1;
    if (cluster->canary == SIM_CANARY_CACHE && step->step % 8 == 0)
        worker->place[step->sequence_count].own ^= 1;
    return answer;
}

/* Tell the lie that is due, if this result is one to tell it with. */
static bool spoil(struct sim_process *process, struct step_result *result) {
    struct sim_worker *worker = &process->worker;
    bool has_tokens = result->token_count > 0;
    switch (process->lie) {
    case SIM_LIE_NONE:
    case SIM_LIE_EAGER:
    case SIM_LIE_COUNT: return false;
    case SIM_LIE_HASH: result->state_hash ^= 64; return true;
    case SIM_LIE_STEP: result->step++; return true;
    case SIM_LIE_RANK: result->rank = (result->rank + 1) % TP_MAX; return true;
    case SIM_LIE_FEWER:
        if (!has_tokens) return false;
        result->sequence_count--;
        result->token_count -= worker->drawn[result->sequence_count].token_count;
        result->draft_count -= worker->drawn[result->sequence_count].draft_count;
        result->logprob_count = 0;
        return true;
    case SIM_LIE_MORE:
        if (!has_tokens) return false;
        worker->drawn[result->sequence_count++] = (struct result_sequence){
            .slot = SIM_WORKER_SLOTS,
            .token_begin = result->token_count,
            .token_count = 1,
            .draft_begin = result->draft_count};
        worker->token[result->token_count++] = 'a';
        return true;
    case SIM_LIE_DOUBLE:
        if (!has_tokens) return false;
        worker->drawn[result->sequence_count - 1].token_count++;
        worker->token[result->token_count++] = 'a';
        return true;
    case SIM_LIE_TOKEN:
        if (!has_tokens) return false;
        worker->token[result->token_count - 1] = SIM_TOKEN_VOCAB;
        return true;
    case SIM_LIE_LOGPROBS:
        if (!has_tokens || result->logprob_count > 0) return false;
        worker->logprob[result->logprob_count++] = sim_model_logprob('a', 0);
        return true;
    case SIM_LIE_WALK:
        if (!has_tokens || worker->drawn[result->sequence_count - 1].token_count < 2) return false;
        worker->drawn[result->sequence_count - 1].token_count--;
        result->token_count--;
        return true;
    case SIM_LIE_DRAFT_TOKEN:
        if (result->draft_count == 0) return false;
        worker->candidate[0].token = SIM_TOKEN_VOCAB;
        return true;
    case SIM_LIE_DRAFT_LENGTH:
        if (!has_tokens || worker->drawn[result->sequence_count - 1].draft_count < 2) return false;
        worker->drawn[result->sequence_count - 1].draft_count--;
        result->draft_count--;
        return true;
    case SIM_LIE_GHOST:
        return process->ghost_bytes > 0 && process->ghost_generation < worker->generation;
    case SIM_LIE_TWICE:
    case SIM_LIE_JOINED:
    case SIM_LIE_HELLO:
    case SIM_LIE_LOADED:
    case SIM_LIE_KEY:
    case SIM_LIE_FUTURE:
    case SIM_LIE_RESIZED:
    case SIM_LIE_SIZED:
    case SIM_LIE_EXAMINED:
    case SIM_LIE_GARBLED: return true;
    }
    return false;
}

static void say_more(struct sim_cluster *cluster, uint32_t rank) {
    struct sim_process *process = &cluster->process[rank];
    uint64_t generation = process->worker.generation;
    struct sim_item due = {.kind = SIM_ITEM_LIE_DUE, .value = generation};
    if (process->lie != SIM_LIE_GHOST) sim_cluster_put(cluster, LIE_NS_MAX, due, (struct bytes){0});
    switch (process->lie) {
    case SIM_LIE_JOINED: send_joined(cluster, rank, generation); break;
    case SIM_LIE_FUTURE: send_joined(cluster, rank, generation + 3); break;
    case SIM_LIE_HELLO: say_hello(cluster, rank); break;
    case SIM_LIE_LOADED: send_loaded(cluster, rank); break;
    case SIM_LIE_KEY: send_key(cluster, rank, generation, 1); break;
    case SIM_LIE_RESIZED: send_resized(cluster, rank, 7777, STATUS_OK); break;
    case SIM_LIE_SIZED: send_sized(cluster, rank, 7777, 1); break;
    case SIM_LIE_EXAMINED:
        send_examined(cluster, rank,
                      &(struct worker_examined){.number = 7777,
                                                .text = "",
                                                .report = {.device = "", .pages_per_hash = 1}});
        break;
    default: break;
    }
    process->lie = SIM_LIE_NONE;
}

void sim_process_fault(struct sim_cluster *cluster, uint32_t rank, bool fatal) {
    struct sim_process *process = &cluster->process[rank];
    if (!process->alive || process->worker.limits.page_tok == 0) return;
    if (!fatal && process->worker.generation == 0) return;
    cluster->disturbed = true;
    struct worker_message message = {.type = WORKER_FAULT};
    message.fault = (struct worker_fault){
        .generation = process->worker.generation,
        .step = process->worker.step,
        .status = STATUS_INTERNAL,
        .text = fatal ? "the device is gone" : "a peer is lost",
        .fatal = fatal,
    };
    send(cluster, rank, &message);
    if (fatal) sim_process_kill(cluster, rank);
}

void sim_process_may_be_mute(struct sim_cluster *cluster) {
    uint32_t rank = sim_random_below(&cluster->random, cluster->options.tp);
    if (!cluster->calm && sim_random_percent(&cluster->random, 1))
        cluster->process[rank].is_mute = true;
}

static void end_process(struct sim_cluster *cluster, uint32_t rank) {
    struct sim_process *process = &cluster->process[rank];
    leave_step(cluster, rank);
    forget_plans(process);
    process->alive = false;
    process->life++;
    sim_cluster_say(cluster, "rank %u ends, connection %u", rank, process->connection);
    bool stays_dead = !cluster->calm &&
                      sim_random_percent(&cluster->random, cluster->weather.stay_dead_percent);
    if (stays_dead) return;
    int64_t delay_ns = sim_cluster_chance_us(cluster, cluster->weather.relaunch_ms_max * 1000);
    sim_cluster_put(cluster, delay_ns + SIM_MS,
                    (struct sim_item){.kind = SIM_ITEM_LAUNCH, .who = rank}, (struct bytes){0});
}

void sim_process_kill(struct sim_cluster *cluster, uint32_t rank) {
    struct sim_process *process = &cluster->process[rank];
    if (!process->alive) return;
    if (!cluster->exited && !cluster->draining) cluster->disturbed = true;
    /* What it sent before may still arrive, unless its connection is lost first. */
    int64_t delay_ns = sim_cluster_chance_us(cluster, 2 * cluster->weather.delay_us_max);
    sim_cluster_put(cluster, delay_ns,
                    (struct sim_item){.kind = SIM_ITEM_LOST, .who = process->connection},
                    (struct bytes){0});
    end_process(cluster, rank);
}

void sim_process_closed(struct sim_cluster *cluster, uint32_t rank) {
    if (cluster->process[rank].alive) end_process(cluster, rank);
}

void sim_process_stop(struct sim_cluster *cluster, uint32_t rank, int64_t until_ns) {
    struct sim_process *process = &cluster->process[rank];
    if (!process->alive || until_ns <= process->stopped_until_ns) return;
    process->stopped_until_ns = until_ns;
    for (uint32_t other = 0; process->busy && other < cluster->options.tp; other++) {
        struct sim_process *peer = &cluster->process[other];
        if (other == rank || !is_held_by(cluster, peer, process)) continue;
        peer->stuck = true;
        peer->turn++;
        set_timer(cluster, other, TIMER_COMPLETE, until_ns - cluster->now_ns);
    }
    sim_cluster_put(cluster, until_ns - cluster->now_ns,
                    (struct sim_item){.kind = SIM_ITEM_RESUME, .who = rank}, (struct bytes){0});
}

void sim_process_resume(struct sim_cluster *cluster, uint32_t rank) {
    if (cluster->process[rank].stopped_until_ns > cluster->now_ns) return;
    start_step(cluster);
}

void sim_process_calm(struct sim_cluster *cluster, uint32_t rank) {
    struct sim_process *process = &cluster->process[rank];
    process->lie = SIM_LIE_NONE;
    process->slow_until_ns = 0;
    process->is_mute = false;
    if (!process->alive) sim_process_launch(cluster, rank);
    start_step(cluster);
}

void sim_process_free(struct sim_process *process) {
    forget_plans(process);
}
