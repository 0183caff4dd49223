#include "commit.h"

#include <string.h>

#include "base/check.h"
#include "base/hash.h"

size_t commit_memory(const struct core_options *options) {
    size_t a_token = sizeof(uint32_t) + (1 + TOP_LOGPROBS_MAX) * sizeof(struct token_logprob);
    size_t a_sequence = sizeof(uint64_t) + sizeof(struct tree_walk);
    return COMMIT_STEPS_MAX *
               (step_plan_tokens_max(options) * a_token + core_running_cap(options) * a_sequence) +
           core_running_cap(options) * sizeof(uint32_t) +
           (size_t)(4 * COMMIT_STEPS_MAX + 1) * ARENA_ALIGN;
}

void commit_init(struct commit *commit, const struct core_options *options, struct arena *memory) {
    size_t slots = core_running_cap(options), tokens = step_plan_tokens_max(options);
    *commit = (struct commit){.options = options};
    for (uint32_t i = 0; i < COMMIT_STEPS_MAX; i++) {
        struct commit_step *step = &commit->step[i];
        step->prefix_after = arena_calloc(memory, slots, sizeof *step->prefix_after);
        step->walk = arena_calloc(memory, slots, sizeof *step->walk);
        step->token = arena_calloc(memory, tokens, sizeof *step->token);
        step->logprob = arena_calloc(memory, tokens * (1 + TOP_LOGPROBS_MAX),
                                     sizeof *step->logprob);
        CHECK(step->prefix_after && step->walk && step->token && step->logprob);
    }
    commit->drawn = arena_calloc(memory, slots, sizeof *commit->drawn);
    CHECK(commit->drawn != NULL);
}

static struct commit_step *step_at(struct commit *commit, uint32_t idx) {
    return &commit->step[(commit->first + idx) % COMMIT_STEPS_MAX];
}

const struct commit_step *commit_first(const struct commit *commit) {
    return commit->count > 0 ? &commit->step[commit->first] : NULL;
}

/* The tree of a plan's sequence, which we made. */
static struct tree tree_of(const struct step_plan *plan, const struct plan_sequence *sequence) {
    struct tree tree;
    struct error err;
    enum status status = tree_init(&tree, plan->token + sequence->row_begin,
                                   plan->parent + sequence->row_begin, sequence->row_count, &err);
    CHECK(status == STATUS_OK);
    return tree;
}

static uint64_t chain_state(const struct commit *commit, struct commit_step *step, uint32_t idx) {
    const struct plan_sequence *sequence = &step->plan->plan.sequence[idx];
    uint32_t *token = step->plan->token + sequence->row_begin;
    if (token[0] == PLAN_TOKEN_DRAWN) token[0] = commit->drawn[sequence->slot];
    uint64_t prefix = sequence->prefix_hash;
    for (uint32_t row = 0; row < sequence->row_count; row++)
        prefix = hash_chain(prefix, token[row]);
    step->prefix_after[idx] = prefix;
    return step_state_hash(step->state_hash, sequence->slot,
                           sequence->committed + sequence->row_count, prefix);
}

static uint64_t tree_state(const struct commit_step *step, uint32_t idx) {
    const struct plan_sequence *sequence = &step->plan->plan.sequence[idx];
    const struct tree_walk *walk = &step->walk[idx];
    struct tree tree = tree_of(&step->plan->plan, sequence);
    uint64_t prefix = tree_walk_prefix(walk, &tree, sequence->prefix_hash);
    return step_state_hash(step->state_hash, sequence->slot, sequence->committed + walk->row_count,
                           hash_chain(prefix, walk->next));
}

/* Every token before this step is known, and what was drawn along its trees: write what the step
 * before drew into the plan, and compute what all ranks must report. */
static void resolve(const struct commit *commit, struct commit_step *step) {
    const struct step_plan *plan = &step->plan->plan;
    step->state_hash = STEP_STATE_HASH_EMPTY;
    for (uint32_t i = 0; i < plan->sequence_count; i++)
        step->state_hash = plan->sequence[i].kind == PLAN_TREE ? tree_state(step, i)
                                                               : chain_state(commit, step, i);
    step->resolved = true;
}

static bool can_resolve(const struct commit_step *step) {
    return !step->has_tree || step->reported[0];
}

void commit_expect(struct commit *commit, const struct step_plan_buf *plan, int64_t now_ns) {
    CHECK(commit->count < COMMIT_STEPS_MAX);
    struct commit_step *step = step_at(commit, commit->count);
    step->plan = plan;
    step->sent_ns = now_ns;
    step->reported_count = 0;
    step->compute_ns = step->draft_ns = 0;
    step->resolved = false;
    step->has_tree = plan->plan.parent != NULL;
    memset(step->reported, 0, sizeof step->reported);
    if (commit->count++ == 0 && can_resolve(step)) resolve(commit, step);
}

static enum status check_hash(const struct commit_step *step, uint32_t rank, struct error *err) {
    if (!step->resolved || step->reported_hash[rank] == step->state_hash) return STATUS_OK;
    return error_set(
        err, STATUS_ABORTED, "after step %llu its state is %016llx; the coordinator's is %016llx",
        (unsigned long long)step->plan->plan.step, (unsigned long long)step->reported_hash[rank],
        (unsigned long long)step->state_hash);
}

/* The step a result is of, where it is the next that this rank owes. */
static enum status find_step(struct commit *commit, uint32_t rank, const struct step_result *result,
                             struct commit_step **step_out, struct error *err) {
    unsigned long long number = result->step;
    if (commit->count == 0)
        return error_set(err, STATUS_ABORTED, "a result of step %llu, and none is in flight",
                         number);
    for (uint32_t i = 0; i < commit->count; i++) {
        struct commit_step *step = step_at(commit, i);
        if (result->step == step->plan->plan.step && step->reported[rank])
            return error_set(err, STATUS_ABORTED, "a second result of step %llu", number);
        if (step->reported[rank]) continue;
        if (result->step != step->plan->plan.step) break;
        *step_out = step;
        return STATUS_OK;
    }
    return error_set(err, STATUS_ABORTED, "a result of step %llu; step %llu is in flight", number,
                     (unsigned long long)step_at(commit, 0)->plan->plan.step);
}

/* The first step, where all of its tokens are known now: what must every rank have reported? */
static enum status resolve_first(struct commit *commit, uint32_t *rank_out, struct error *err) {
    if (commit->count == 0) return STATUS_OK;
    struct commit_step *step = step_at(commit, 0);
    if (step->resolved || !can_resolve(step)) return STATUS_OK;
    resolve(commit, step);
    enum status status = STATUS_OK;
    for (uint32_t rank = 0; rank < commit->options->tp && status == STATUS_OK; rank++) {
        *rank_out = rank;
        if (step->reported[rank]) status = check_hash(step, rank, err);
    }
    return status;
}

static enum status keep_payload(const struct commit *commit, struct commit_step *step,
                                struct speculation *speculation, const struct step_result *result,
                                struct error *err);

enum status commit_take(struct commit *commit, struct speculation *speculation, uint32_t rank,
                        const struct step_result *result, uint32_t *rank_out, struct error *err) {
    CHECK(rank < commit->options->tp);
    *rank_out = rank;
    struct commit_step *step = NULL;
    enum status status = find_step(commit, rank, result, &step, err);
    if (status != STATUS_OK) return status;
    if (result->rank != rank) {
        return error_set(err, STATUS_ABORTED, "the result of step %llu says rank %u",
                         (unsigned long long)result->step, result->rank);
    }
    step->reported_hash[rank] = result->state_hash;
    status = check_hash(step, rank, err);
    if (status == STATUS_OK && rank == 0)
        status = keep_payload(commit, step, speculation, result, err);
    if (status != STATUS_OK) return status;
    if (rank == 0) step->idle_ns = result->idle_ns;
    if (result->compute_ns > step->compute_ns) {
        step->compute_ns = result->compute_ns;
        step->draft_ns = result->draft_ns;
    }
    step->reported[rank] = true;
    step->reported_count++;
    return resolve_first(commit, rank_out, err);
}

/* The next sequence of the result that has tokens; the codec has checked its range. */
static const struct result_sequence *next_drawn(const struct step_result *result, uint32_t *at) {
    while (*at < result->sequence_count && result->sequence[*at].token_count == 0)
        (*at)++;
    return *at < result->sequence_count ? &result->sequence[(*at)++] : NULL;
}

/* True where the tokens drawn are one walk from the root to where no guess was right. */
static bool is_walk(const struct step_plan *plan, const struct plan_sequence *sequence,
                    const uint32_t *token, uint32_t count, struct tree_walk *walk) {
    struct tree tree = tree_of(plan, sequence);
    tree_walk_begin(walk);
    for (uint32_t i = 0; i < count; i++)
        if (tree_walk_take(walk, &tree, token[i]) != (i + 1 < count)) return false;
    return walk->done;
}

/* The tokens of the sequence at this place in the plan; false: they are not what must come. */
static bool fits_plan(struct commit_step *step, uint32_t idx, const struct step_result *result,
                      const struct result_sequence *drawn) {
    const struct step_plan *plan = &step->plan->plan;
    const struct plan_sequence *wanted = &plan->sequence[idx];
    if (!drawn || drawn->slot != wanted->slot) return false;
    if (drawn->token_begin > result->token_count ||
        drawn->token_count > result->token_count - drawn->token_begin)
        return false;
    if (drawn->draft_count != 0 &&
        (drawn->draft_count != wanted->draft_len || result->draft_top != plan->draft_top))
        return false;
    if (wanted->kind == PLAN_CHAIN) return drawn->token_count == 1;
    return is_walk(plan, wanted, result->token + drawn->token_begin, drawn->token_count,
                   &step->walk[idx]);
}

static enum status check_vocab(const struct commit *commit, const struct step_result *result,
                               struct error *err) {
    uint32_t vocab = commit->options->spec->vocab;
    for (uint32_t i = 0; i < result->draft_count * result->draft_top; i++)
        if (result->candidate[i].token >= vocab) {
            return error_set(err, STATUS_ABORTED,
                             "step %llu drafted token %u; the vocabulary has %u",
                             (unsigned long long)result->step, result->candidate[i].token, vocab);
        }
    for (uint32_t i = 0; i < result->token_count; i++)
        if (result->token[i] >= vocab) {
            return error_set(err, STATUS_ABORTED, "step %llu drew token %u; the vocabulary has %u",
                             (unsigned long long)result->step, result->token[i], vocab);
        }
    return STATUS_OK;
}

static enum status keep_payload(const struct commit *commit, struct commit_step *step,
                                struct speculation *speculation, const struct step_result *result,
                                struct error *err) {
    const struct step_plan *plan = &step->plan->plan;
    unsigned long long number = plan->step;
    uint32_t at = 0, drawn_count = 0, logprob_count = 0;
    enum status status = check_vocab(commit, result, err);
    if (status != STATUS_OK) return status;
    for (uint32_t i = 0; i < plan->sequence_count; i++) {
        const struct plan_sequence *wanted = &plan->sequence[i];
        if (wanted->want != PLAN_WANT_TOKEN) continue;
        const struct result_sequence *drawn = next_drawn(result, &at);
        if (!fits_plan(step, i, result, drawn)) {
            return error_set(err, STATUS_ABORTED,
                             wanted->kind == PLAN_TREE
                                 ? "the result of step %llu has no walk of the tree of slot %u"
                                 : "the result of step %llu lacks the one token of slot %u",
                             number, wanted->slot);
        }
        memcpy(step->token + drawn_count, result->token + drawn->token_begin,
               drawn->token_count * sizeof *step->token);
        drawn_count += drawn->token_count;
        if (wanted->logprobs) logprob_count += drawn->token_count * (1 + wanted->top_logprobs);
        if (wanted->draft_len > 0) speculation_take_draft(speculation, wanted->slot, result, drawn);
    }
    if (next_drawn(result, &at)) {
        return error_set(err, STATUS_ABORTED,
                         "the result of step %llu has more tokens than the %u drawn", number,
                         drawn_count);
    }
    if (result->logprob_count != logprob_count) {
        return error_set(err, STATUS_ABORTED, "the result of step %llu has %u logprobs of %u",
                         number, result->logprob_count, logprob_count);
    }
    if (logprob_count > 0)
        memcpy(step->logprob, result->logprob, logprob_count * sizeof *step->logprob);
    return STATUS_OK;
}

bool commit_is_complete(const struct commit *commit) {
    return commit->count > 0 && commit_first(commit)->reported_count == commit->options->tp;
}

/* What a step is applied with. */
struct applying {
    struct commit *commit;
    struct scheduler *scheduler;
    const struct reply_context *context;
    struct effect_buf *effects;
    int64_t now_ns;
    const uint32_t *token; /* of the next sequence that draws, and its log-probabilities */
    const struct token_logprob *logprob;
};

/* A live request gets its token, which may end it: true. */
static bool take_token(struct applying *applying, struct request *request, const uint32_t *token,
                       const struct token_logprob *logprob) {
    struct request_table *table = applying->scheduler->table;
    token_tape_append(&table->tapes, &request->tape, token, 1);
    speculation_follow(&applying->scheduler->speculation, request->seq_slot, *token);
    table->totals.tokens_generated++;
    request_note_token(table, request, applying->now_ns);
    if (request->state == REQUEST_PREFILL) request_set_state(table, request, REQUEST_DECODE);
    struct reply_token drawn = {
        .token = token,
        .logprob = request->logprobs ? logprob : NULL,
        .logprob_count = request->logprobs ? 1 + request->top_logprobs : 0,
        .is_last = request->tape.count == request->tok_limit,
    };
    enum finish_reason finish = reply_take(&request->reply, &request->wish, applying->context,
                                           &drawn, applying->effects, request->call);
    if (finish == FINISH_NONE) return false;
    struct scheduler_ending ending = {.status = STATUS_OK, .finish = finish, .text = ""};
    scheduler_end(applying->scheduler, request, &ending, applying->effects, applying->now_ns);
    return true;
}

/* The rows of a walk, one after the other, each with the token drawn at it, as if each had had a
 * step of its own: where one ends the request, what was drawn behind it is dropped. */
static void apply_walk(struct applying *applying, struct request *request, uint32_t idx) {
    const struct commit_step *step = commit_first(applying->commit);
    const struct plan_sequence *sequence = &step->plan->plan.sequence[idx];
    const uint32_t *row_token = step->plan->token + sequence->row_begin;
    const struct tree_walk *walk = &step->walk[idx];
    const struct token_logprob *logprob = applying->logprob;
    uint64_t prefix = sequence->prefix_hash;
    for (uint32_t i = 0; i < walk->row_count; i++) {
        prefix = hash_chain(prefix, row_token[walk->row[i]]);
        scheduler_advance(applying->scheduler, request, 1, prefix);
        if (take_token(applying, request, applying->token + i, logprob)) return;
        if (sequence->logprobs) logprob += 1 + sequence->top_logprobs;
    }
}

static void apply_chain(struct applying *applying, struct request *request, uint32_t idx) {
    const struct commit_step *step = commit_first(applying->commit);
    const struct plan_sequence *sequence = &step->plan->plan.sequence[idx];
    scheduler_advance(applying->scheduler, request, sequence->row_count, step->prefix_after[idx]);
    if (request->state != REQUEST_LEAVING && sequence->want == PLAN_WANT_TOKEN)
        take_token(applying, request, applying->token, applying->logprob);
}

static void apply_sequence(struct applying *applying, uint32_t idx) {
    const struct commit_step *step = commit_first(applying->commit);
    const struct plan_sequence *sequence = &step->plan->plan.sequence[idx];
    const struct tree_walk *walk = sequence->kind == PLAN_TREE ? &step->walk[idx] : NULL;
    struct request *request = scheduler_owner(applying->scheduler, sequence->slot);
    uint32_t drawn_count = walk ? walk->row_count : sequence->want == PLAN_WANT_TOKEN;
    if (drawn_count > 0) {
        applying->commit->drawn[sequence->slot] = applying->token[drawn_count - 1];
        speculation_verified(&applying->scheduler->speculation, sequence->slot, walk,
                             sequence->draft_len > 0);
    }
    scheduler_land(request, walk ? 1 : sequence->row_count);
    bool left = request->state == REQUEST_LEAVING;
    if (!walk)
        apply_chain(applying, request, idx);
    else if (!left)
        apply_walk(applying, request, idx);
    if (left && request->in_steps == 0) scheduler_retire(applying->scheduler, request);
    applying->token += drawn_count;
    if (sequence->logprobs) applying->logprob += drawn_count * (1 + sequence->top_logprobs);
}

enum status commit_apply(struct commit *commit, struct scheduler *scheduler,
                         const struct reply_context *context, struct effect_buf *effects,
                         int64_t now_ns, uint32_t *rank_out, struct error *err) {
    CHECK(commit_is_complete(commit));
    const struct commit_step *step = commit_first(commit);
    const struct step_plan *plan = &step->plan->plan;
    struct applying applying = {
        .commit = commit,
        .scheduler = scheduler,
        .context = context,
        .effects = effects,
        .now_ns = now_ns,
        .token = step->token,
        .logprob = step->logprob,
    };
    for (uint32_t i = 0; i < plan->sequence_count; i++)
        apply_sequence(&applying, i);
    bool at_once = step->sent_ns == commit->applied_ns; /* when the step before was done */
    struct scheduler_times times = {
        .compute_ns = step->compute_ns,
        .draft_ns = step->draft_ns,
        .gap_ns = at_once ? (int64_t)(step->idle_ns & INT64_MAX) : -1,
    };
    scheduler_measure(scheduler, plan, &times);
    /* One that left while its forerunner ran began when that was done. */
    int64_t begin_ns = step->sent_ns > commit->applied_ns ? step->sent_ns : commit->applied_ns;
    commit->step_ns_last = (uint64_t)(now_ns - begin_ns);
    histogram_take(&commit->step_times, commit->step_ns_last);
    commit->compute_ns += step->compute_ns;
    if (step->sent_ns <= commit->applied_ns) commit->idle_ns += step->idle_ns;
    commit->applied_ns = now_ns;
    commit->steps++;
    commit->first = (commit->first + 1) % COMMIT_STEPS_MAX;
    commit->count--;
    return resolve_first(commit, rank_out, err);
}

void commit_forget(struct commit *commit) {
    commit->count = 0;
}
