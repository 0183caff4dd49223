#include "compute.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "codec.h"
#include "ledger.h"
#include "mailbox.h"

#define JOIN_TIMEOUT_MS  5000u
#define JOIN_GPUS_MS     60000u /* NCCL first looks for the ways between them */
#define NOTE_BYTES_SMALL 4096u
#define GIB              1073741824.0

struct compute {
    struct compute_options options;
    pthread_t thread;
    struct mailbox orders, notes;

    struct weights_progress load, draft_load;
    _Atomic bool loading, loaded, computing;
    _Atomic uint32_t weight_loads;
    _Atomic uint64_t ended_generation; /* plans of it and of earlier ones are skipped */

    /* Of the compute thread alone. */
    struct weights *weights;
    struct drafter_weights *drafter; /* NULL without one */
    struct control_welcome welcome;  /* what the engine was made for */
    struct ledger ledger;            /* of it */
    bool told;                       /* the ledger was logged as it is now */
    struct comm_seed *seed;          /* rank 0, between PREPARE_GROUP and the join */
    uint64_t load_ns;
    uint32_t connection;  /* of the order being done */
    int64_t step_done_ns; /* when it had the last result */

    struct self_test_progress self_test;

    _Atomic bool join_cancelled; /* the join under way, if any, is for nothing */

    /* The engine is used by the compute thread; others may abort it and look at its progress, and
     * must find it whole: the pointer changes under the lock. */
    pthread_mutex_t engine_lock;
    struct engine *engine;
    struct comm *joined; /* by the same lock: from the join until the engine has it */
};

/* ---- orders and notes ---------------------------------------------------------------------- */

struct compute_order *compute_order_create(size_t wire_bytes) {
    struct compute_order *order = calloc(1, sizeof *order);
    CHECK(order);
    arena_init(&order->arena, wire_bytes + codec_arena_budget(wire_bytes));
    order->received_ns = clock_now_ns();
    return order;
}

void compute_order_destroy(struct compute_order *order) {
    arena_deinit(&order->arena);
    free(order);
}

void compute_note_destroy(struct compute_note *note) {
    arena_deinit(&note->arena);
    free(note);
}

static void post(struct compute *compute, const struct worker_message *message, uint64_t generation,
                 int exit_code) {
    struct compute_note *note = calloc(1, sizeof *note);
    CHECK(note);
    size_t wire_bytes = NOTE_BYTES_SMALL;
    if (message->type == WORKER_STEP_RESULT)
        wire_bytes += message->step_result.sequence_count * sizeof(struct result_sequence) +
                      message->step_result.token_count * sizeof(uint32_t) +
                      message->step_result.logprob_count * sizeof(struct token_logprob) +
                      message->step_result.draft_count *
                          (sizeof(float) +
                           message->step_result.draft_top * sizeof(struct draft_candidate));
    if (message->type == WORKER_EXAMINED)
        wire_bytes += message->examined.report.hash_count * sizeof(uint64_t);
    arena_init(&note->arena, codec_arena_budget(wire_bytes));
    note->type = message->type;
    note->connection = compute->connection;
    note->generation = generation;
    note->exit_code = exit_code;
    note->body = codec_encode_worker_message(message, &note->arena);
    /* The coordinator answers every message of ours before it gives the next order, so a full box
     * means that the control thread is gone. */
    CHECK(mailbox_put(&compute->notes, note));
    compute->options.notify(compute->options.user);
}

static bool is_fatal(enum status status) {
    switch (status) {
    case STATUS_INTERNAL:
    case STATUS_DATA_LOSS:
    case STATUS_UNKNOWN:
    case STATUS_RESOURCE_EXHAUSTED: return true;
    default: return false;
    }
}

static void post_fault(struct compute *compute, uint64_t generation, uint64_t step,
                       const struct error *err, int exit_code) {
    log_error("fault", "generation=%llu step=%llu status=%s reason=\"%s\"",
              (unsigned long long)generation, (unsigned long long)step, status_name(err->code),
              err->text);
    post(compute,
         &(struct worker_message){.type = WORKER_FAULT,
                                  .fault = {.generation = generation,
                                            .step = step,
                                            .status = err->code,
                                            .text = err->text,
                                            .fatal = exit_code >= 0}},
         generation, exit_code);
}

/* ---- loading ------------------------------------------------------------------------------- */

static uint64_t resident_bytes(const struct compute *compute) {
    return compute->weights->bytes + (compute->drafter ? compute->drafter->bytes : 0);
}

static enum status load_weights(struct compute *compute, struct error *err) {
    const struct compute_options *options = &compute->options;
    int64_t begin_ns = clock_now_ns();
    compute->loading = true;
    compute->weight_loads++;
    enum status status = weights_load(options->device, &options->checkpoint->spec,
                                      options->checkpoint->tensors, options->rank, options->tp,
                                      options->threads, &compute->load, &compute->weights, err);
    if (status == STATUS_OK && options->drafter) {
        status = drafter_weights_load(
            options->device, &options->drafter->spec, options->drafter->tensors, options->rank,
            options->tp, options->threads, &compute->draft_load, &compute->drafter, err);
        if (status != STATUS_OK) error_wrap(err, status, "drafter");
    }
    compute->loading = false;
    compute->load_ns = (uint64_t)(clock_now_ns() - begin_ns);
    if (status == STATUS_OK)
        log_info("weights_loaded", "bytes=%llu seconds=%.2f",
                 (unsigned long long)resident_bytes(compute), (double)compute->load_ns / 1e9);
    return status;
}

static void replace_engine(struct compute *compute, struct engine *engine) {
    pthread_mutex_lock(&compute->engine_lock);
    struct engine *old = compute->engine;
    compute->engine = engine;
    pthread_mutex_unlock(&compute->engine_lock);
    if (old) engine_destroy(&old);
}

/* The words operators know. */
static void tell_memory_left(const struct compute *compute) {
    if (compute->options.quiet) return;
    char prefix[8];
    snprintf(prefix, sizeof prefix, "TP%u", compute->options.rank);
    log_plain(prefix, "Memory pool end. avail mem=%.2f GB",
              (double)ledger_free_bytes(&compute->ledger) / GIB);
}

static struct engine_options engine_options(const struct compute *compute,
                                            const struct control_welcome *welcome) {
    return (struct engine_options){
        .threads = compute->options.threads,
        .max_rows = welcome->max_rows,
        .max_sequences = welcome->max_sequences,
        .page_tok = welcome->page_tok,
        .page_count = welcome->page_count,
        .page_cap = welcome->page_cap,
        .context_len = welcome->context_len,
        .kv_dtype = welcome->kv_dtype,
        .activation_dtype = welcome->activation_dtype,
        .prefill_form = welcome->prefill_form,
        .drafter = compute->drafter,
        .draft_window = compute->options.draft_window,
        .device = compute->options.device,
#ifdef ESPALIER_DCHECK
        .shadow_hash = true,
#endif
    };
}

/* Before the pool is planned: what a device's ops need beside it. */
static enum status plan_workspace(struct compute *compute, const struct control_welcome *welcome,
                                  struct error *err) {
    struct device *device = compute->options.device;
    if (!device) return STATUS_OK;
    const struct engine_options options = engine_options(compute, welcome);
    const struct device_bounds bounds = engine_bounds(&options);
    size_t bytes;
    enum status status = device->workspace_bytes(device->kernel, compute->weights, compute->drafter,
                                                 &bounds, &bytes, err);
    if (status == STATUS_OK) compute->ledger.rank.workspace_bytes = bytes;
    return status;
}

static enum status create_engine(struct compute *compute, struct error *err) {
    struct engine_options options = engine_options(compute, &compute->welcome);
    options.page_count = ledger_page_count(&compute->ledger);
    struct engine *engine;
    enum status status = engine_create(compute->weights, &options, &engine, err);
    if (status != STATUS_OK) return status;
    replace_engine(compute, engine);
    ledger_measure(&compute->ledger, compute->weights, compute->drafter, engine);
    tell_memory_left(compute);
    return STATUS_OK;
}

static bool same_geometry(const struct control_welcome *a, const struct control_welcome *b) {
    return a->max_rows == b->max_rows && a->max_sequences == b->max_sequences &&
           a->page_tok == b->page_tok && a->page_count == b->page_count &&
           a->page_cap == b->page_cap && a->context_len == b->context_len &&
           a->kv_dtype == b->kv_dtype && a->activation_dtype == b->activation_dtype &&
           a->prefill_form == b->prefill_form && a->mem_fraction == b->mem_fraction;
}

/* Once an engine is there; a rank that keeps it for another coordinator has been here before. What
 * fails will fail again: no other try is asked for. */
static enum status climb(struct compute *compute, struct error *err) {
    if (!compute->welcome.self_test) return STATUS_OK;
    int64_t begin_ns = clock_now_ns();
    enum status status = engine_self_test(compute->engine, &compute->self_test, err);
    if (status == STATUS_OK)
        log_info("self_test", "rungs=\"attention pool\" context_len=%u elapsed_ms=%lld",
                 compute->welcome.context_len,
                 (long long)((clock_now_ns() - begin_ns) / NS_PER_MS));
    return status;
}

static void do_welcome(struct compute *compute, const struct control_welcome *welcome) {
    struct error err;
    int exit_code = EXIT_CODE_CONFIG; /* a checkpoint that fails would fail again */
    compute->ended_generation = 0;    /* another coordinator counts from one again */
    enum status status = STATUS_OK;
    if (!compute->weights) status = load_weights(compute, &err);
    if (status == STATUS_CANCELLED) return;
    compute->told = false;
    if (status == STATUS_OK) status = plan_workspace(compute, welcome, &err);
    if (status == STATUS_OK) status = ledger_plan(&compute->ledger, welcome, &err);
    bool fits = compute->engine && same_geometry(welcome, &compute->welcome);
    compute->welcome = *welcome;
    if (status == STATUS_OK && fits) {
        status = engine_resize(compute->engine, ledger_page_count(&compute->ledger), NULL, 0, &err);
        if (status == STATUS_OK) tell_memory_left(compute);
    } else if (status == STATUS_OK) {
        replace_engine(compute, NULL); /* the old pool makes room for the new one */
        status = create_engine(compute, &err);
        if (status == STATUS_OK) {
            status = climb(compute, &err);
            if (status == STATUS_DATA_LOSS) exit_code = EXIT_CODE_INVARIANT;
        }
    }
    if (status == STATUS_INTERNAL) exit_code = EXIT_CODE_TEMPORARY; /* a device's need not */
    if (status != STATUS_OK) {
        post_fault(compute, 0, 0, &err, exit_code);
        return;
    }
    compute->loaded = true;
    post(compute,
         &(struct worker_message){
             .type = WORKER_LOADED,
             .loaded = {.bytes = resident_bytes(compute),
                        .elapsed_ns = compute->load_ns,
                        .page_count = ledger_page_count(&compute->ledger),
                        .fraction_needed = ledger_fraction_needed(&compute->ledger),
                        .free_bytes = ledger_free_bytes(&compute->ledger)}},
         0, -1);
}

/* ---- groups -------------------------------------------------------------------------------- */

static const struct comm_kind *comm_kind(const struct compute *compute) {
    return compute->options.device ? compute->options.device->comm : &comm_host;
}

static void do_prepare(struct compute *compute, const struct control_group *group) {
    struct comm_key key = {0};
    struct error err;
    comm_seed_destroy(&compute->seed);
    enum status status = comm_seed_create(comm_kind(compute), group->size, group->generation,
                                          &compute->seed, &key, &err);
    if (status != STATUS_OK) {
        post_fault(compute, group->generation, 0, &err, -1);
        return;
    }
    post(compute,
         &(struct worker_message){
             .type = WORKER_GROUP_KEY,
             .group_key = {.generation = group->generation, .key = {key.data, key.bytes}}},
         group->generation, -1);
}

static enum status copy_key(const struct control_group *group, struct comm_key *key_out,
                            struct error *err) {
    if (group->key.size > sizeof key_out->data)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "group.key: found %zu bytes, accepted: up to %zu", group->key.size,
                         sizeof key_out->data);
    *key_out = (struct comm_key){.bytes = (uint32_t)group->key.size};
    if (group->key.size > 0) memcpy(key_out->data, group->key.data, group->key.size);
    return STATUS_OK;
}

/* In its first group an engine has all its memory. */
static void tell_ledger(struct compute *compute) {
    if (compute->told || compute->options.quiet) return;
    compute->told = true;
    ledger_measure(&compute->ledger, compute->weights, compute->drafter, compute->engine);
    ledger_log(&compute->ledger);
    numa_log_placement(compute->options.numa);
}

static enum status set_pages(struct compute *compute, uint32_t page_count,
                             const struct page_move *move, uint32_t move_count, struct error *err) {
    struct ledger before = compute->ledger;
    enum status status = ledger_replan(&compute->ledger, page_count, err);
    if (status == STATUS_OK)
        status = engine_resize(compute->engine, page_count, move, move_count, err);
    if (status != STATUS_OK) compute->ledger = before;
    return status;
}

static bool has_ended(const struct compute *compute, uint64_t generation) {
    return generation <= compute->ended_generation;
}

/* The group cannot go on, and this rank leaves it, unless it broke off because it was told to: the
 * coordinator knows. */
static void fail_group(struct compute *compute, uint64_t generation, uint64_t step,
                       const struct error *err) {
    if (err->code == STATUS_ABORTED && has_ended(compute, generation)) return;
    engine_set_group(compute->engine, 0, NULL);
    int exit_code = err->code == STATUS_DATA_LOSS ? EXIT_CODE_INVARIANT : EXIT_CODE_TEMPORARY;
    post_fault(compute, generation, step, err, is_fatal(err->code) ? exit_code : -1);
}

/* Whoever aborts finds a communicator from its join on, and breaks it off. */
static void set_joined(struct compute *compute, struct comm *comm) {
    pthread_mutex_lock(&compute->engine_lock);
    compute->joined = comm;
    pthread_mutex_unlock(&compute->engine_lock);
}

static void do_form(struct compute *compute, const struct control_group *group) {
    struct comm_key key;
    struct error err;
    struct comm *comm = NULL;
    engine_set_group(compute->engine, 0, NULL);
    compute->join_cancelled = false; /* before the look at what ended: none is missed */
    if (has_ended(compute, group->generation)) return;
    enum status status = copy_key(group, &key, &err);
    /* A resize may have been cut off by the end of the generation before. */
    if (status == STATUS_OK) status = set_pages(compute, group->page_count, NULL, 0, &err);
    if (status == STATUS_OK)
        status = comm_join(comm_kind(compute), &key, compute->options.rank, group->size,
                           group->generation,
                           compute->options.device ? JOIN_GPUS_MS : JOIN_TIMEOUT_MS,
                           &compute->join_cancelled, &comm, &err);
    comm_seed_destroy(&compute->seed);
    if (status == STATUS_OK) {
        set_joined(compute, comm);
        if (compute->join_cancelled) comm_abort(comm); /* before anybody could find it */
        engine_set_group(compute->engine, group->generation, comm);
        set_joined(compute, NULL);
        if (compute->welcome.self_test)
            status = engine_test_group(compute->engine, &compute->self_test, &err);
    }
    if (status == STATUS_OK) status = engine_capture_steps(compute->engine, &err);
    if (status != STATUS_OK) {
        fail_group(compute, group->generation, 0, &err);
        return;
    }
    tell_ledger(compute);
    log_info("joined", "generation=%llu size=%u", (unsigned long long)group->generation,
             group->size);
    post(compute,
         &(struct worker_message){.type = WORKER_JOINED,
                                  .joined = {.generation = group->generation}},
         group->generation, -1);
}

static void do_end(struct compute *compute, const struct control_end_generation *end) {
    log_info("generation_ended", "generation=%llu reason=\"%s\"",
             (unsigned long long)end->generation, end->text);
    comm_seed_destroy(&compute->seed);
    engine_set_group(compute->engine, 0, NULL);
}

/* ---- steps --------------------------------------------------------------------------------- */

static void do_step(struct compute *compute, const struct step_plan *plan, int64_t received_ns) {
    if (has_ended(compute, plan->generation)) return;
    int64_t begin_ns = clock_now_ns(), before_ns = compute->step_done_ns;
    struct step_result result;
    struct error err;
    compute->computing = true;
    enum status status = engine_step(compute->engine, plan, &result, &err);
    compute->computing = false;
    if (status != STATUS_OK) {
        fail_group(compute, plan->generation, plan->step, &err);
        return;
    }
    result.rank = compute->options.rank;
    /* A plan may have come while the step before it ran. */
    compute->step_done_ns = clock_now_ns();
    if (plan->step > 1) result.idle_ns = (uint64_t)(begin_ns - before_ns);
    if (plan->step > 1 && before_ns > received_ns) received_ns = before_ns;
    result.compute_ns = (uint64_t)(compute->step_done_ns - received_ns);
    if (compute->options.rank != 0) {
        result.sequence_count = 0;
        result.token_count = 0;
        result.logprob_count = 0;
        result.draft_count = 0;
        result.draft_top = 0;
    }
    post(compute, &(struct worker_message){.type = WORKER_STEP_RESULT, .step_result = result},
         plan->generation, -1);
}

/* ---- another size -------------------------------------------------------------------------- */

static void do_resize(struct compute *compute, const struct control_resize *resize) {
    if (has_ended(compute, resize->generation)) return;
    struct error err = {.text = ""};
    int64_t begin_ns = clock_now_ns();
    uint32_t before = ledger_page_count(&compute->ledger);
    enum status status = set_pages(compute, resize->page_count, resize->move, resize->move_count,
                                   &err);
    ledger_measure_engine(&compute->ledger, compute->engine);
    log_info("resized", "status=%s pages=%u moved=%u elapsed_ms=%lld reason=\"%s\"",
             status_name(status), resize->page_count, resize->move_count,
             (long long)((clock_now_ns() - begin_ns) / NS_PER_MS), err.text);
    post(compute,
         &(struct worker_message){.type = WORKER_RESIZED,
                                  .resized = {.generation = resize->generation,
                                              .number = resize->number,
                                              .status = status,
                                              .text = err.text,
                                              .free_bytes = ledger_free_bytes(&compute->ledger)}},
         resize->generation, -1);
    bool same = ledger_page_count(&compute->ledger) == before; /* it failed, or was undone */
    if (same || compute->options.quiet) return;
    ledger_log_pool(&compute->ledger);
    tell_memory_left(compute);
}

static void do_size(struct compute *compute, const struct control_size *size) {
    if (has_ended(compute, size->generation)) return;
    struct worker_sized sized = {.generation = size->generation, .number = size->number};
    ledger_size(&compute->ledger, size->mem_fraction, &sized.page_count, &sized.fraction_needed);
    post(compute, &(struct worker_message){.type = WORKER_SIZED, .sized = sized}, size->generation,
         -1);
}

/* ---- a look at what is held ---------------------------------------------------------------- */

static void do_examine(struct compute *compute, const struct control_examine *order) {
    if (has_ended(compute, order->generation)) return;
    struct error err = {.text = ""};
    struct examine_report report = {.device = "", .pages_per_hash = 1};
    uint64_t *hash;
    compute->computing = true;
    enum status status = engine_examine(compute->engine, order, &report, &hash, &err);
    compute->computing = false;
    if (status == STATUS_OK || status == STATUS_INVALID_ARGUMENT)
        post(compute,
             &(struct worker_message){.type = WORKER_EXAMINED,
                                      .examined = {.generation = order->generation,
                                                   .number = order->number,
                                                   .status = status,
                                                   .text = err.text,
                                                   .report = report}},
             order->generation, -1);
    else
        fail_group(compute, order->generation, 0, &err);
    free(hash);
}

/* ---- the thread ---------------------------------------------------------------------------- */

/* Group orders before the weights are there are the coordinator's mistake, and have no engine. */
static void do_order(struct compute *compute, const struct compute_order *order) {
    const struct control_message *message = &order->message;
    if (message->type != CONTROL_WELCOME && !compute->engine) {
        struct error err;
        error_set(&err, STATUS_FAILED_PRECONDITION, "order %d came before the weights were loaded",
                  (int)message->type);
        post_fault(compute, 0, 0, &err, -1);
        return;
    }
    switch (message->type) {
    case CONTROL_WELCOME: do_welcome(compute, &message->welcome); break;
    case CONTROL_PREPARE_GROUP: do_prepare(compute, &message->group); break;
    case CONTROL_FORM_GROUP: do_form(compute, &message->group); break;
    case CONTROL_STEP_PLAN: do_step(compute, &message->step_plan, order->received_ns); break;
    case CONTROL_END_GENERATION: do_end(compute, &message->end_generation); break;
    case CONTROL_RESIZE: do_resize(compute, &message->resize); break;
    case CONTROL_SIZE: do_size(compute, &message->size); break;
    case CONTROL_EXAMINE: do_examine(compute, &message->examine); break;
    case CONTROL_REFUSE:
    case CONTROL_SHUTDOWN: break; /* the control thread's */
    }
}

static void *run(void *argument) {
    struct compute *compute = argument;
    device_enter(compute->options.device);
    for (;;) {
        struct compute_order *order = mailbox_wait(&compute->orders);
        bool last = order->message.type == CONTROL_SHUTDOWN;
        compute->connection = order->connection;
        if (!last) do_order(compute, order);
        compute_order_destroy(order);
        if (!last) continue;
        struct error err; /* what was told to the device, before others free its memory */
        if (device_wait(compute->options.device, &err) != STATUS_OK)
            log_warn("device", "reason=\"%s\"", err.text);
        return NULL;
    }
}

struct compute *compute_create(const struct compute_options *options) {
    struct compute *compute = calloc(1, sizeof *compute);
    CHECK(compute);
    compute->options = *options;
    ledger_init(&compute->ledger, &(struct ledger_rank){.checkpoint = options->checkpoint,
                                                        .drafter = options->drafter,
                                                        .tp = options->tp,
                                                        .threads = options->threads,
                                                        .device_bytes = options->device_bytes,
                                                        .device = options->device});
    mailbox_init(&compute->orders);
    mailbox_init(&compute->notes);
    CHECK(pthread_mutex_init(&compute->engine_lock, NULL) == 0);
    /* Signals are the control thread's. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    CHECK(pthread_create(&compute->thread, NULL, run, compute) == 0);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return compute;
}

bool compute_give(struct compute *compute, struct compute_order **order) {
    if (!mailbox_put(&compute->orders, *order)) return false;
    *order = NULL;
    return true;
}

struct compute_note *compute_take(struct compute *compute) {
    return mailbox_take(&compute->notes);
}

void compute_abort(struct compute *compute, uint64_t generation) {
    if (generation > compute->ended_generation) compute->ended_generation = generation;
    compute->join_cancelled = true;
    pthread_mutex_lock(&compute->engine_lock);
    if (compute->joined) comm_abort(compute->joined);
    if (compute->engine) engine_abort(compute->engine);
    pthread_mutex_unlock(&compute->engine_lock);
}

struct compute_progress compute_progress(struct compute *compute) {
    struct compute_progress progress = {
        .loading = compute->loading,
        .loaded = compute->loaded,
        .computing = compute->computing,
        .self_test = (enum self_test)compute->self_test.rung,
        .self_test_percent = compute->self_test.percent,
        .load_bytes = compute->load.bytes + compute->draft_load.bytes,
        .load_bytes_total = compute->load.bytes_total + compute->draft_load.bytes_total,
    };
    pthread_mutex_lock(&compute->engine_lock);
    if (compute->engine) progress.engine = engine_progress(compute->engine);
    pthread_mutex_unlock(&compute->engine_lock);
    return progress;
}

struct compute_numbers compute_numbers(struct compute *compute) {
    struct compute_numbers numbers = {.weight_loads = compute->weight_loads};
    pthread_mutex_lock(&compute->engine_lock);
    if (compute->engine) numbers.engine = engine_numbers(compute->engine);
    pthread_mutex_unlock(&compute->engine_lock);
    return numbers;
}

static void empty(struct compute *compute) {
    struct compute_order *order;
    while ((order = mailbox_take(&compute->orders)) != NULL)
        compute_order_destroy(order);
    struct compute_note *note;
    while ((note = mailbox_take(&compute->notes)) != NULL)
        compute_note_destroy(note);
}

void compute_destroy(struct compute **compute_in) {
    struct compute *compute = *compute_in;
    *compute_in = NULL;
    compute->load.cancel = 1;
    compute->draft_load.cancel = 1;
    compute_abort(compute, UINT64_MAX);
    struct compute_order *last = compute_order_create(0);
    last->message.type = CONTROL_SHUTDOWN;
    while (!mailbox_put(&compute->orders, last)) { /* full of orders nobody wants any more */
        struct compute_order *order = mailbox_take(&compute->orders);
        if (order) compute_order_destroy(order);
    }
    CHECK(pthread_join(compute->thread, NULL) == 0);
    empty(compute);
    comm_seed_destroy(&compute->seed);
    if (compute->engine) engine_destroy(&compute->engine);
    drafter_weights_destroy(&compute->drafter);
    if (compute->weights) weights_destroy(&compute->weights);
    mailbox_deinit(&compute->orders);
    mailbox_deinit(&compute->notes);
    pthread_mutex_destroy(&compute->engine_lock);
    free(compute);
}
