#include "roster.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "step_plan.h"

#define NS_PER_MS EVENT_NS_PER_MS
#define NO_RANK   UINT32_MAX
#define NEVER     INT64_MAX

#define TO_RANK(state)  (1u << RANK_##state)
#define TO_GROUP(state) (1u << ROSTER_##state)

static const uint8_t rank_arrow[] = {
    [RANK_ABSENT] = TO_RANK(LOADING),
    [RANK_LOADING] = TO_RANK(LOADED) | TO_RANK(LOST),
    [RANK_LOADED] = TO_RANK(READY) | TO_RANK(LOST),
    [RANK_READY] = TO_RANK(LOADED) | TO_RANK(LOST),
    [RANK_LOST] = TO_RANK(LOADING),
};

static const uint8_t group_arrow[ROSTER_GROUP_COUNT] = {
    [ROSTER_GATHERING] = TO_GROUP(PREPARING) | TO_GROUP(GONE),
    [ROSTER_PREPARING] = TO_GROUP(FORMING) | TO_GROUP(GATHERING) | TO_GROUP(GONE),
    [ROSTER_FORMING] = TO_GROUP(SERVING) | TO_GROUP(GATHERING) | TO_GROUP(GONE),
    [ROSTER_SERVING] = TO_GROUP(GATHERING) | TO_GROUP(GONE),
    [ROSTER_GONE] = 0,
};

static const char *const rank_state_name[] = {
    [RANK_ABSENT] = "absent", [RANK_LOADING] = "loading", [RANK_LOADED] = "loaded",
    [RANK_READY] = "ready",   [RANK_LOST] = "lost",
};

static void on_hello(struct roster *roster, struct effect_buf *effects, struct worker_id worker,
                     const struct worker_hello *hello, int64_t now_ns);
static void on_loaded(struct roster *roster, struct effect_buf *effects, uint32_t rank,
                      const struct worker_loaded *loaded, int64_t now_ns);
static void on_group_key(struct roster *roster, struct effect_buf *effects, uint32_t rank,
                         const struct worker_group_key *group_key, int64_t now_ns);
static void on_joined(struct roster *roster, struct effect_buf *effects, uint32_t rank,
                      const struct worker_joined *joined, int64_t now_ns);
static void on_heartbeat(struct roster *roster, struct effect_buf *effects, uint32_t rank,
                         const struct worker_heartbeat *heartbeat, int64_t now_ns);
static void on_fault(struct roster *roster, struct effect_buf *effects, uint32_t rank,
                     const struct worker_fault *fault, int64_t now_ns);
static void breach(struct roster *roster, struct effect_buf *effects, uint32_t rank,
                   const char *what, int64_t now_ns);
static void end_generation(struct roster *roster, struct effect_buf *effects, int64_t now_ns);
static void describe_gathering(struct roster *roster);
static void __attribute__((format(printf, 2, 3)))
give_reason(struct roster *roster, const char *format, ...);

void roster_init(struct roster *roster, const struct core_options *options) {
    *roster = (struct roster){.options = options, .group = ROSTER_GATHERING};
    describe_gathering(roster);
}

static void set_rank_state(struct roster_seat *seat, enum rank_state state) {
    CHECK(rank_arrow[seat->state] & (1u << state));
    seat->state = state;
}

static void set_group(struct roster *roster, enum roster_group group, int64_t now_ns) {
    CHECK(group_arrow[roster->group] & (1u << group));
    roster->group = group;
    roster->group_ns = now_ns;
}

static bool in_generation(const struct roster *roster) {
    return roster->group == ROSTER_PREPARING || roster->group == ROSTER_FORMING ||
           roster->group == ROSTER_SERVING;
}

static bool is_there(const struct roster_seat *seat) {
    return seat->worker.value != 0;
}

static uint32_t rank_of(const struct roster *roster, struct worker_id worker) {
    for (uint32_t rank = 0; rank < roster->options->tp; rank++)
        if (is_there(&roster->seat[rank]) && roster->seat[rank].worker.value == worker.value)
            return rank;
    return NO_RANK;
}

static uint32_t count_state(const struct roster *roster, enum rank_state state) {
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < roster->options->tp; rank++)
        count += roster->seat[rank].state == state;
    return count;
}

void roster_message(struct roster *roster, struct effect_buf *effects, struct worker_id worker,
                    const struct worker_message *message, int64_t now_ns) {
    CHECK(message->type != WORKER_STEP_RESULT && message->type != WORKER_RESIZED &&
          message->type != WORKER_SIZED && message->type != WORKER_EXAMINED);
    if (roster->group == ROSTER_GONE) return;
    uint32_t rank = rank_of(roster, worker);
    if (message->type == WORKER_HELLO && rank == NO_RANK) {
        on_hello(roster, effects, worker, &message->hello, now_ns);
        return;
    }
    if (rank == NO_RANK) { /* refused or dropped before, and its last words come late */
        roster->ignored++;
        return;
    }
    struct roster_seat *seat = &roster->seat[rank];
    seat->heard_ns = now_ns;
    switch (message->type) {
    case WORKER_HELLO: breach(roster, effects, rank, "a second hello", now_ns); break;
    case WORKER_LOAD_PROGRESS:
        if (seat->state != RANK_LOADING) break; /* late */
        if (message->load_progress.bytes > seat->load_bytes) seat->load_moved_ns = now_ns;
        seat->load_bytes = message->load_progress.bytes;
        seat->load_bytes_total = message->load_progress.bytes_total;
        break;
    case WORKER_LOADED: on_loaded(roster, effects, rank, &message->loaded, now_ns); break;
    case WORKER_GROUP_KEY: on_group_key(roster, effects, rank, &message->group_key, now_ns); break;
    case WORKER_JOINED: on_joined(roster, effects, rank, &message->joined, now_ns); break;
    case WORKER_HEARTBEAT: on_heartbeat(roster, effects, rank, &message->heartbeat, now_ns); break;
    case WORKER_FAULT: on_fault(roster, effects, rank, &message->fault, now_ns); break;
    case WORKER_STEP_RESULT:
    case WORKER_RESIZED:
    case WORKER_SIZED:
    case WORKER_EXAMINED: break; /* roster_answer_rank's */
    }
}

/* A rank that is there with another drafter, where drafts are used; NULL: there is none. */
static const struct roster_seat *other_drafter(const struct roster *roster,
                                               const struct worker_hello *hello) {
    enum speculative_algorithm algorithm = roster->options->speculative_algorithm;
    if (algorithm != SPECULATE_DFLASH && algorithm != SPECULATE_AUTO) return NULL;
    for (uint32_t rank = 0; rank < roster->options->tp; rank++) {
        const struct roster_seat *seat = &roster->seat[rank];
        bool differs = seat->draft_fingerprint != hello->draft_fingerprint ||
                       seat->draft_len != hello->draft_len;
        if (rank != hello->rank && is_there(seat) && differs) return seat;
    }
    return NULL;
}

uint32_t roster_draft_len(const struct roster *roster) {
    return roster->seat[0].draft_len; /* all ranks' alike: other_drafter */
}

/* Why a process cannot take the rank it asks for; NULL: it can. */
static const char *find_objection(const struct roster *roster, struct effect_buf *effects,
                                  const struct worker_hello *hello, enum status *status_out) {
    const struct core_options *options = roster->options;
    *status_out = STATUS_FAILED_PRECONDITION;
    if (hello->wire_version != WIRE_VERSION) {
        return effect_buf_text(effects,
                               "wire version: found %u, accepted: %u; build both from the "
                               "same source",
                               hello->wire_version, WIRE_VERSION);
    }
    if (hello->tp != options->tp) {
        return effect_buf_text(effects, "--tp: found %u, accepted: %u as the coordinator's",
                               hello->tp, options->tp);
    }
    if (hello->rank >= options->tp) {
        return effect_buf_text(effects, "--rank: found %u, accepted: 0 to %u", hello->rank,
                               options->tp - 1);
    }
    if (hello->model_fingerprint != options->model_fingerprint) {
        return effect_buf_text(effects,
                               "model fingerprint: found %016llx, accepted: %016llx as "
                               "the coordinator's; check --model-path",
                               (unsigned long long)hello->model_fingerprint,
                               (unsigned long long)options->model_fingerprint);
    }
    if (options->speculative_algorithm == SPECULATE_DFLASH && hello->draft_fingerprint == 0) {
        return effect_buf_text(effects,
                               "--speculative-algorithm dflash: rank %u has no drafter, accepted: "
                               "workers with --speculative-draft-model-path",
                               hello->rank);
    }
    const struct roster_seat *other = other_drafter(roster, hello);
    if (other) {
        return effect_buf_text(effects,
                               "drafter fingerprint: found %016llx of %u positions, accepted: "
                               "%016llx of %u as rank %u's; check --speculative-draft-model-path",
                               (unsigned long long)hello->draft_fingerprint, hello->draft_len,
                               (unsigned long long)other->draft_fingerprint, other->draft_len,
                               (unsigned)(other - roster->seat));
    }
    const struct roster_seat *seat = &roster->seat[hello->rank];
    if (is_there(seat)) {
        *status_out = STATUS_ALREADY_EXISTS;
        return effect_buf_text(effects,
                               "--rank: found %u, which the live process %llu holds; "
                               "accepted: a rank that is free",
                               hello->rank, (unsigned long long)seat->pid);
    }
    return NULL;
}

static void refuse(struct roster *roster, struct effect_buf *effects, struct worker_id worker,
                   enum status status, const char *text, int64_t now_ns) {
    struct control_message *message = effect_buf_message(effects, CONTROL_REFUSE);
    message->refuse = (struct control_refuse){.status = status, .text = text};
    effect_buf_send(effects, worker, message);
    effect_buf_drop(effects, worker);
    effect_buf_log_limited(effects, &roster->refused_lines, now_ns, LOG_LEVEL_WARN,
                           "worker_refused", "status=%s text=\"%s\"", status_name(status), text);
}

static void welcome(const struct roster *roster, struct effect_buf *effects,
                    struct worker_id worker) {
    const struct core_options *options = roster->options;
    struct control_message *message = effect_buf_message(effects, CONTROL_WELCOME);
    message->welcome = (struct control_welcome){
        .coordinator_pid = options->pid,
        .coordinator_start = options->process_start,
        .boot_id = options->boot_id,
        .heartbeat_ms = options->heartbeat_ms,
        .max_rows = step_plan_rows_max(options),
        .max_sequences = core_running_cap(options),
        .page_tok = options->page_tok,
        .page_count = options->page_count,
        .page_cap = options->page_cap,
        .context_len = options->context_len,
        .kv_dtype = options->kv_dtype,
        .activation_dtype = options->activation_dtype,
        .prefill_form = options->prefill_form,
        .mem_fraction = options->mem_fraction,
        .self_test = !options->no_self_test,
    };
    effect_buf_send(effects, worker, message);
}

static void on_hello(struct roster *roster, struct effect_buf *effects, struct worker_id worker,
                     const struct worker_hello *hello, int64_t now_ns) {
    enum status status;
    const char *objection = find_objection(roster, effects, hello, &status);
    if (objection) {
        refuse(roster, effects, worker, status, objection, now_ns);
        return;
    }
    struct roster_seat *seat = &roster->seat[hello->rank];
    set_rank_state(seat, RANK_LOADING);
    *seat = (struct roster_seat){
        .state = seat->state,
        .worker = worker,
        .pid = hello->pid,
        .draft_fingerprint = hello->draft_fingerprint,
        .draft_len = hello->draft_len,
        .hello_ns = now_ns,
        .load_moved_ns = now_ns,
        .heard_ns = now_ns,
    };
    snprintf(seat->device, sizeof seat->device, "%s", hello->device);
    snprintf(seat->probe, sizeof seat->probe, "%s", hello->probe);
    welcome(roster, effects, worker);
    describe_gathering(roster);
    effect_buf_log_limited(effects, &roster->hello_lines, now_ns, LOG_LEVEL_INFO, "worker_hello",
                           "rank=%u worker_pid=%llu device=\"%s\" probe=%s", hello->rank,
                           (unsigned long long)hello->pid, seat->device, seat->probe);
}

static void on_loaded(struct roster *roster, struct effect_buf *effects, uint32_t rank,
                      const struct worker_loaded *loaded, int64_t now_ns) {
    struct roster_seat *seat = &roster->seat[rank];
    if (seat->state != RANK_LOADING) {
        breach(roster, effects, rank, "loaded", now_ns);
        return;
    }
    set_rank_state(seat, RANK_LOADED);
    seat->load_bytes = seat->load_bytes_total = loaded->bytes;
    seat->load_ns = loaded->elapsed_ns;
    seat->page_count = loaded->page_count ? loaded->page_count : roster->options->page_count;
    seat->fraction_needed = loaded->fraction_needed;
    seat->free_bytes = loaded->free_bytes;
    describe_gathering(roster);
    effect_buf_log_limited(effects, &roster->loaded_lines, now_ns, LOG_LEVEL_INFO, "worker_loaded",
                           "rank=%u bytes=%llu elapsed_ms=%llu", rank,
                           (unsigned long long)loaded->bytes,
                           (unsigned long long)(loaded->elapsed_ns / (uint64_t)NS_PER_MS));
}

static bool can_gather(const struct roster *roster) {
    return roster->group == ROSTER_GATHERING &&
           count_state(roster, RANK_LOADED) == roster->options->tp;
}

void roster_hold_pages(struct roster *roster, uint32_t page_count) {
    for (uint32_t rank = 0; rank < roster->options->tp; rank++)
        if (roster->seat[rank].page_count < page_count) roster->seat[rank].page_count = page_count;
}

bool roster_memory(const struct roster *roster, struct roster_memory *memory_out) {
    if (!can_gather(roster)) return false;
    const struct roster_seat *first = &roster->seat[0];
    *memory_out = (struct roster_memory){.page_count = first->page_count,
                                         .fraction_needed = first->fraction_needed};
    for (uint32_t rank = 1; rank < roster->options->tp; rank++) {
        const struct roster_seat *seat = &roster->seat[rank];
        if (seat->page_count >= memory_out->page_count) continue;
        memory_out->page_count = seat->page_count;
        memory_out->fraction_needed = seat->fraction_needed;
        memory_out->rank = rank;
    }
    return true;
}

void roster_note_free(struct roster *roster, uint32_t rank, uint64_t free_bytes) {
    roster->seat[rank].free_bytes = free_bytes;
}

uint64_t roster_free_bytes(const struct roster *roster) {
    uint64_t least = UINT64_MAX;
    for (uint32_t rank = 0; rank < roster->options->tp; rank++)
        if (roster->seat[rank].free_bytes < least) least = roster->seat[rank].free_bytes;
    return least;
}

void roster_gather(struct roster *roster, struct effect_buf *effects, int64_t now_ns) {
    if (!can_gather(roster) || now_ns < roster->gather_ns) return;
    set_group(roster, ROSTER_PREPARING, now_ns);
    roster->generation++;
    give_reason(roster, "generation %llu is forming", (unsigned long long)roster->generation);
    struct control_message *message = effect_buf_message(effects, CONTROL_PREPARE_GROUP);
    message->group = (struct control_group){
        .generation = roster->generation,
        .size = roster->options->tp,
    };
    effect_buf_send(effects, roster->seat[0].worker, message);
}

/* Is a message about the generation now under way? An older one is counted and ignored, one that
 * never was is a breach. */
static bool is_current(struct roster *roster, struct effect_buf *effects, uint32_t rank,
                       uint64_t generation, int64_t now_ns) {
    if (generation == roster->generation && in_generation(roster)) return true;
    if (generation > roster->generation)
        breach(roster, effects, rank, "a generation that never was", now_ns);
    else
        roster->ignored++;
    return false;
}

static void on_group_key(struct roster *roster, struct effect_buf *effects, uint32_t rank,
                         const struct worker_group_key *group_key, int64_t now_ns) {
    if (!is_current(roster, effects, rank, group_key->generation, now_ns)) return;
    bool has_key = group_key->key.size > 0 || roster->options->tp == 1; /* alone it needs none */
    if (rank != 0 || roster->group != ROSTER_PREPARING || !has_key ||
        group_key->key.size > GROUP_KEY_BYTES_MAX) {
        breach(roster, effects, rank, "a group key", now_ns);
        return;
    }
    set_group(roster, ROSTER_FORMING, now_ns);
    struct control_message *message = effect_buf_message(effects, CONTROL_FORM_GROUP);
    message->group = (struct control_group){
        .generation = roster->generation,
        .size = roster->options->tp,
        .key = effect_buf_copy(effects, group_key->key),
        .page_count = roster->options->page_count,
    };
    roster_broadcast(roster, effects, message);
}

/* The words operators know are the shell's to print; these are their values. */
static void log_serving(const struct roster *roster, struct effect_buf *effects) {
    const struct core_options *options = roster->options;
    effect_buf_log(effects, LOG_LEVEL_INFO, "group_ready",
                   "generation=%llu tp=%u max_total_num_tokens=%llu chunked_prefill_size=%u "
                   "max_running_requests=%u context_len=%u",
                   (unsigned long long)roster->generation, options->tp,
                   (unsigned long long)options->page_count * options->page_tok,
                   options->chunked_prefill_size, options->max_running_requests,
                   options->context_len);
}

static void on_joined(struct roster *roster, struct effect_buf *effects, uint32_t rank,
                      const struct worker_joined *joined, int64_t now_ns) {
    if (!is_current(roster, effects, rank, joined->generation, now_ns)) return;
    struct roster_seat *seat = &roster->seat[rank];
    if (roster->group != ROSTER_FORMING || seat->state != RANK_LOADED) {
        breach(roster, effects, rank, "joined", now_ns);
        return;
    }
    set_rank_state(seat, RANK_READY);
    seat->step = seat->collective_seq = 0;
    seat->progress_ns = now_ns;
    if (count_state(roster, RANK_READY) < roster->options->tp) return;
    set_group(roster, ROSTER_SERVING, now_ns);
    roster->reason[0] = '\0';
    roster->has_served = true;
    log_serving(roster, effects);
}

static void on_heartbeat(struct roster *roster, struct effect_buf *effects, uint32_t rank,
                         const struct worker_heartbeat *heartbeat, int64_t now_ns) {
    roster->seat[rank].collective_ns = heartbeat->collective_ns;
    roster->seat[rank].self_test = heartbeat->self_test;
    roster->seat[rank].self_test_percent = heartbeat->self_test_percent;
    if (heartbeat->generation == 0) return; /* not in a group yet: it lives, and that is all */
    if (!is_current(roster, effects, rank, heartbeat->generation, now_ns)) return;
    struct roster_seat *seat = &roster->seat[rank];
    bool grew = heartbeat->step > seat->step ||
                (heartbeat->step == seat->step && heartbeat->collective_seq > seat->collective_seq);
    if (!grew) return;
    seat->step = heartbeat->step;
    seat->collective_seq = heartbeat->collective_seq;
    seat->progress_ns = now_ns;
}

static void lose_rank(struct roster *roster, uint32_t rank, int64_t now_ns) {
    struct roster_seat *seat = &roster->seat[rank];
    set_rank_state(seat, RANK_LOST);
    seat->worker = (struct worker_id){0};
    seat->lost_ns = now_ns;
}

static void on_fault(struct roster *roster, struct effect_buf *effects, uint32_t rank,
                     const struct worker_fault *fault, int64_t now_ns) {
    struct roster_seat *seat = &roster->seat[rank];
    if (!fault->fatal && !is_current(roster, effects, rank, fault->generation, now_ns)) return;
    give_reason(roster, "rank %u: %s: %s", rank, status_name(fault->status), fault->text);
    if (fault->fatal) {
        effect_buf_drop(effects, seat->worker);
        lose_rank(roster, rank, now_ns);
    }
    end_generation(roster, effects, now_ns);
}

static void breach(struct roster *roster, struct effect_buf *effects, uint32_t rank,
                   const char *what, int64_t now_ns) {
    struct roster_seat *seat = &roster->seat[rank];
    give_reason(roster, "rank %u sent %s while %s; its process %llu is dropped", rank, what,
                rank_state_name[seat->state], (unsigned long long)seat->pid);
    effect_buf_drop(effects, seat->worker);
    lose_rank(roster, rank, now_ns);
    end_generation(roster, effects, now_ns);
}

/* What is only said by members of a group that serves, and of which generation. */
struct answer {
    uint64_t generation;
    const char *what;
};

static struct answer answer_of(const struct worker_message *message) {
    switch (message->type) {
    case WORKER_STEP_RESULT:
        return (struct answer){message->step_result.generation, "a step result"};
    case WORKER_RESIZED:
        return (struct answer){message->resized.generation, "an answer to a resize"};
    case WORKER_SIZED: return (struct answer){message->sized.generation, "an answer to a resize"};
    default: CHECK(message->type == WORKER_EXAMINED);
    }
    return (struct answer){message->examined.generation, "an answer to an examination"};
}

bool roster_answer_rank(struct roster *roster, struct effect_buf *effects, struct worker_id worker,
                        const struct worker_message *message, int64_t now_ns, uint32_t *rank_out) {
    struct answer answer = answer_of(message);
    uint32_t rank = rank_of(roster, worker);
    if (roster->group == ROSTER_GONE || rank == NO_RANK) {
        roster->ignored++;
        return false;
    }
    struct roster_seat *seat = &roster->seat[rank];
    seat->heard_ns = now_ns;
    if (!is_current(roster, effects, rank, answer.generation, now_ns)) return false;
    if (roster->group != ROSTER_SERVING) {
        breach(roster, effects, rank, answer.what, now_ns);
        return false;
    }
    *rank_out = rank;
    if (message->type != WORKER_STEP_RESULT) return true;
    if (message->step_result.step > seat->step) seat->step = message->step_result.step;
    seat->progress_ns = now_ns;
    return true;
}

void roster_lost(struct roster *roster, struct effect_buf *effects, struct worker_id worker,
                 int64_t now_ns) {
    uint32_t rank = rank_of(roster, worker);
    if (rank == NO_RANK) return; /* refused, or dropped by us before */
    give_reason(roster, "rank %u is lost: its process %llu or connection is gone", rank,
                (unsigned long long)roster->seat[rank].pid);
    lose_rank(roster, rank, now_ns);
    end_generation(roster, effects, now_ns);
}

void roster_fail(struct roster *roster, struct effect_buf *effects, uint32_t rank, const char *text,
                 int64_t now_ns) {
    give_reason(roster, "rank %u: %s", rank, text);
    end_generation(roster, effects, now_ns);
}

static int64_t latest(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t earliest(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t load_due_ns(const struct roster *roster, const struct roster_seat *seat) {
    bool all_read = seat->load_bytes_total > 0 && seat->load_bytes >= seat->load_bytes_total;
    int64_t since_ns = all_read ? seat->heard_ns : seat->load_moved_ns;
    return latest(since_ns, roster->woke_ns) + roster->options->load_timeout_ms * NS_PER_MS;
}

/* When the rank is overdue if nothing more is heard of it: the rest of its weights, its part in
 * forming the group, its progress in the step in flight, or any word at all. NEVER: nothing is
 * owed. */
static int64_t rank_due_ns(const struct roster *roster, const struct roster_step *step,
                           uint32_t rank) {
    const struct roster_seat *seat = &roster->seat[rank];
    int64_t since_ns = NEVER;
    if (roster->group == ROSTER_GONE) return NEVER;
    if (seat->state == RANK_LOADING) return load_due_ns(roster, seat);
    if (roster->group == ROSTER_PREPARING && rank == 0) since_ns = roster->group_ns;
    /* A rank that is silent makes its peers' joins fail, and each new try begins anew: what counts
     * is when it was heard. */
    if (roster->group == ROSTER_FORMING && seat->state == RANK_LOADED)
        since_ns = earliest(roster->group_ns, seat->heard_ns);
    if (roster->group == ROSTER_SERVING) {
        since_ns = latest(seat->heard_ns, roster->group_ns);
        if (step && !step->reported[rank])
            since_ns = earliest(since_ns, latest(seat->progress_ns, step->sent_ns));
    }
    if (since_ns == NEVER) return NEVER;
    return latest(since_ns, roster->woke_ns) + roster->options->step_timeout_ms * NS_PER_MS;
}

static int64_t rejoin_due_ns(const struct roster *roster, uint32_t rank) {
    const struct roster_seat *seat = &roster->seat[rank];
    if (seat->state != RANK_LOST || roster->group == ROSTER_GONE) return NEVER;
    return latest(seat->lost_ns, roster->woke_ns) + roster->options->rejoin_timeout_ms * NS_PER_MS;
}

int64_t roster_due_ns(const struct roster *roster, const struct roster_step *step) {
    int64_t due_ns = can_gather(roster) ? roster->gather_ns : NEVER;
    for (uint32_t rank = 0; rank < roster->options->tp; rank++) {
        due_ns = earliest(due_ns, rank_due_ns(roster, step, rank));
        due_ns = earliest(due_ns, rejoin_due_ns(roster, rank));
    }
    return due_ns;
}

/* Of two overdue ranks, which one holds the other up? In a collective all wait for the one that has
 * entered the fewest. */
static bool is_further_behind(const struct roster_seat *a, const struct roster_seat *b) {
    if (a->step != b->step) return a->step < b->step;
    if (a->collective_seq != b->collective_seq) return a->collective_seq < b->collective_seq;
    return a->heard_ns < b->heard_ns;
}

/* Whether no rank that owes the step's result is further behind. */
static bool holds_up(const struct roster *roster, const struct roster_step *step, uint32_t rank) {
    for (uint32_t other = 0; other < roster->options->tp; other++)
        if (!step->reported[other] && is_further_behind(&roster->seat[other], &roster->seat[rank]))
            return false;
    return true;
}

/* When any rank last made progress: in a collective all wait for one, and whoever waited is not to
 * blame for the time before that one went on. */
static int64_t group_progress_ns(const struct roster *roster) {
    int64_t progress_ns = 0;
    for (uint32_t rank = 0; rank < roster->options->tp; rank++)
        progress_ns = latest(progress_ns, roster->seat[rank].progress_ns);
    return progress_ns;
}

void roster_find_trouble(const struct roster *roster, const struct roster_step *step, uint32_t rank,
                         int64_t now_ns, char *out, size_t bytes) {
    const struct roster_seat *seat = &roster->seat[rank];
    int64_t limit_ns = ROSTER_TROUBLE_MS * NS_PER_MS;
    int64_t beats_ns = ROSTER_TROUBLE_BEATS * roster->options->heartbeat_ms * NS_PER_MS;
    int64_t silent_ns = now_ns - latest(seat->heard_ns, roster->woke_ns);
    out[0] = '\0';
    if (!is_there(seat)) return;
    if (silent_ns > latest(limit_ns, beats_ns)) {
        snprintf(out, bytes, "nothing was heard of it for %lld ms",
                 (long long)(silent_ns / NS_PER_MS));
        return;
    }
    if (roster->group != ROSTER_SERVING || !step || step->expected_ns == 0) return;
    if (step->reported[rank] || !holds_up(roster, step, rank)) return;
    int64_t since_ns = latest(latest(group_progress_ns(roster), step->sent_ns), roster->woke_ns);
    int64_t expected_ns = (int64_t)(ROSTER_TROUBLE_EXPECTS * step->expected_ns);
    if (now_ns - since_ns > latest(limit_ns, latest(beats_ns, expected_ns)))
        snprintf(out, bytes, "no progress for %lld ms in step %llu, which is expected to take %lld",
                 (long long)((now_ns - since_ns) / NS_PER_MS), (unsigned long long)seat->step + 1,
                 (long long)step->expected_ns / NS_PER_MS);
}

static void describe_overdue(struct roster *roster, uint32_t rank, int64_t now_ns) {
    const struct roster_seat *seat = &roster->seat[rank];
    long long silent_ms = (now_ns - seat->heard_ns) / NS_PER_MS;
    if (seat->state == RANK_LOADING)
        give_reason(roster,
                    "rank %u loaded nothing for %u ms (--load-timeout; %llu of %llu bytes, last "
                    "heard %lld ms ago); its process %llu is dropped",
                    rank, roster->options->load_timeout_ms, (unsigned long long)seat->load_bytes,
                    (unsigned long long)seat->load_bytes_total, silent_ms,
                    (unsigned long long)seat->pid);
    else
        give_reason(roster,
                    "rank %u made no progress for %u ms (step %llu, collective %llu, last heard "
                    "%lld ms ago); its process %llu is dropped",
                    rank, roster->options->step_timeout_ms, (unsigned long long)seat->step,
                    (unsigned long long)seat->collective_seq, silent_ms,
                    (unsigned long long)seat->pid);
}

static void give_up(struct roster *roster, struct effect_buf *effects, int64_t now_ns) {
    set_group(roster, ROSTER_GONE, now_ns);
    roster->news = ROSTER_EXIT;
    effect_buf_log(effects, LOG_LEVEL_ERROR, "group_gone", "reason=\"%s\"", roster->reason);
}

void roster_tick(struct roster *roster, struct effect_buf *effects, const struct roster_step *step,
                 int64_t now_ns) {
    if (now_ns - roster->tick_ns > ROSTER_PAUSE_S * 1000 * NS_PER_MS) roster->woke_ns = now_ns;
    roster->tick_ns = now_ns;
    uint32_t culprit = NO_RANK;
    for (uint32_t rank = 0; rank < roster->options->tp; rank++) {
        if (rejoin_due_ns(roster, rank) <= now_ns) {
            give_reason(roster, "rank %u did not come back within %u ms (--rejoin-timeout)", rank,
                        roster->options->rejoin_timeout_ms);
            give_up(roster, effects, now_ns);
            return;
        }
        if (rank_due_ns(roster, step, rank) > now_ns) continue;
        if (culprit == NO_RANK || is_further_behind(&roster->seat[rank], &roster->seat[culprit]))
            culprit = rank;
    }
    if (culprit == NO_RANK) return;
    describe_overdue(roster, culprit, now_ns);
    effect_buf_drop(effects, roster->seat[culprit].worker);
    lose_rank(roster, culprit, now_ns);
    end_generation(roster, effects, now_ns);
}

/* True where this loss is one too many within the window. */
static bool count_loss(struct roster *roster, int64_t now_ns) {
    int64_t *oldest = &roster->loss_ns[roster->losses % ROSTER_LOSSES_MAX];
    bool too_many = roster->losses >= ROSTER_LOSSES_MAX &&
                    now_ns - *oldest < ROSTER_LOSS_WINDOW_S * 1000 * NS_PER_MS;
    *oldest = now_ns;
    roster->losses++;
    return too_many;
}

/* The reason is known; a rank may be lost already. Ends the generation if there is one. */
static void end_generation(struct roster *roster, struct effect_buf *effects, int64_t now_ns) {
    effect_buf_log_limited(effects, &roster->lost_lines, now_ns, LOG_LEVEL_WARN,
                           in_generation(roster) ? "generation_over" : "rank_lost",
                           "generation=%llu reason=\"%s\"", (unsigned long long)roster->generation,
                           roster->reason);
    if (!in_generation(roster)) return;
    struct control_message *message = effect_buf_message(effects, CONTROL_END_GENERATION);
    message->end_generation = (struct control_end_generation){
        .generation = roster->generation,
        .text = effect_buf_text(effects, "%s", roster->reason),
    };
    for (uint32_t rank = 0; rank < roster->options->tp; rank++) {
        struct roster_seat *seat = &roster->seat[rank];
        if (!is_there(seat)) continue;
        effect_buf_send(effects, seat->worker, message);
        if (seat->state == RANK_READY) set_rank_state(seat, RANK_LOADED);
    }
    set_group(roster, ROSTER_GATHERING, now_ns);
    roster->gather_ns = now_ns + roster->options->heartbeat_ms * NS_PER_MS;
    roster->news = ROSTER_ENDED;
    if (!count_loss(roster, now_ns)) return;
    give_reason(roster, "%u losses within %d s, the last: %s", ROSTER_LOSSES_MAX + 1,
                ROSTER_LOSS_WINDOW_S, message->end_generation.text);
    give_up(roster, effects, now_ns);
}

static void give_reason(struct roster *roster, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(roster->reason, sizeof roster->reason, format, arguments);
    va_end(arguments);
}

static void describe_gathering(struct roster *roster) {
    give_reason(roster, "%u of %u ranks are loaded; %u loading, %u absent, %u lost",
                count_state(roster, RANK_LOADED), roster->options->tp,
                count_state(roster, RANK_LOADING), count_state(roster, RANK_ABSENT),
                count_state(roster, RANK_LOST));
}

bool roster_is_serving(const struct roster *roster) {
    return roster->group == ROSTER_SERVING;
}

enum roster_news roster_take_news(struct roster *roster) {
    enum roster_news news = roster->news;
    roster->news = ROSTER_NO_NEWS;
    return news;
}

void roster_broadcast(const struct roster *roster, struct effect_buf *effects,
                      const struct control_message *message) {
    for (uint32_t rank = 0; rank < roster->options->tp; rank++)
        if (is_there(&roster->seat[rank]))
            effect_buf_send(effects, roster->seat[rank].worker, message);
}

void roster_shutdown(struct roster *roster, struct effect_buf *effects, int64_t now_ns) {
    if (roster->group != ROSTER_GONE) {
        set_group(roster, ROSTER_GONE, now_ns);
        give_reason(roster, "the coordinator has drained and exits");
    }
    roster_broadcast(roster, effects, effect_buf_message(effects, CONTROL_SHUTDOWN));
}

void roster_check(const struct roster *roster) {
    uint32_t ready = 0;
    for (uint32_t rank = 0; rank < TP_MAX; rank++) {
        const struct roster_seat *seat = &roster->seat[rank];
        CHECK(rank < roster->options->tp || seat->state == RANK_ABSENT);
        CHECK(is_there(seat) == (seat->state == RANK_LOADING || seat->state == RANK_LOADED ||
                                 seat->state == RANK_READY));
        CHECK(!is_there(seat) || rank_of(roster, seat->worker) == rank);
        ready += seat->state == RANK_READY;
    }
    CHECK((roster->reason[0] == '\0') == roster_is_serving(roster));
    CHECK(!roster_is_serving(roster) || ready == roster->options->tp);
    CHECK(ready == 0 || roster->group == ROSTER_FORMING || roster->group == ROSTER_SERVING ||
          roster->group == ROSTER_GONE);
}
