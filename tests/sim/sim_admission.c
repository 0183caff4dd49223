#include "sim_admission.h"

#include "request.h"
#include "sim_cluster.h"

#define REQUESTS_MAX 256u

static uint64_t known_count;
static uint64_t known[REQUESTS_MAX]; /* by request slot: as the how manieth its prompt was known */

void sim_admission_known(const struct request *request) {
    if (sim_cluster_now()) known[request->id.slot % REQUESTS_MAX] = known_count++;
}

static bool is_retracted(const struct request *request) {
    return request->retractions > 0;
}

static int64_t key_of(const struct core_options *options, const struct request *request,
                      uint32_t cached_tok) {
    int64_t arrival_ms = request->arrival_ns / SIM_MS;
    switch (options->schedule_policy) {
    case SCHEDULE_FCFS: return 0;
    case SCHEDULE_SHORTEST: return arrival_ms + request->prompt_count;
    case SCHEDULE_PRIORITY: return arrival_ms - 10000 * (int64_t)request->priority;
    case SCHEDULE_LONGEST_PREFIX: break;
    }
    return arrival_ms - cached_tok;
}

/* The most that the cache can ever have of a prompt: whole pages, without its last token. */
static uint32_t cached_tok_most(const struct core_options *options, const struct request *request) {
    if (options->disable_prefix_cache) return 0;
    return (request->prompt_count - 1) / options->page_tok * options->page_tok;
}

/* Whether the policy wants `a` before `b`, whatever the cache had of either: retracted ones first,
 * the oldest of them first. */
static bool goes_before(const struct core_options *options, const struct request *a,
                        const struct request *b) {
    if (is_retracted(a) != is_retracted(b)) return is_retracted(a);
    if (is_retracted(a)) return a->arrival < b->arrival;
    int64_t a_key = key_of(options, a, 0), b_key = key_of(options, b, cached_tok_most(options, b));
    if (a_key != b_key) return a_key < b_key;
    return known[a->id.slot % REQUESTS_MAX] < known[b->id.slot % REQUESTS_MAX];
}

/* A prompt being computed begins with a whole page of the request's tokens: it may wait for it. */
static bool may_wait_for_prefix(struct request_table *table, const struct core_options *options,
                                const struct request *request) {
    if (options->disable_prefix_cache) return false;
    for (const struct request *other = request_first(table, &table->running); other;
         other = request_next(table, other)) {
        if (other->state != REQUEST_PREFILL || other->salt != request->salt) continue;
        if (token_tape_common(&table->tapes, &other->tape, &request->tape) >= options->page_tok)
            return true;
    }
    return false;
}

static void expect_order(const struct sim_cluster *cluster, struct request_table *table,
                         const struct request *admitted) {
    const struct core_options *options = &cluster->options;
    for (uint32_t slot = pool_next_used(&table->pool, 0); slot != POOL_NO_SLOT;
         slot = pool_next_used(&table->pool, slot + 1)) {
        const struct request *other = &table->request[slot];
        if (other == admitted || other->state != REQUEST_WAITING) continue;
        if (!goes_before(options, other, admitted)) continue;
        if (!may_wait_for_prefix(table, options, other))
            sim_cluster_fail(cluster, "a request is let in past one that goes before it");
    }
}

static uint32_t lacking(const struct request *request) {
    return request->tape.count - request->committed + request->to_join;
}

static void expect_budget(const struct sim_cluster *cluster, struct request_table *table,
                          const struct request *admitted) {
    uint32_t most = cluster->options.max_prefill_tokens, others = 0;
    for (const struct request *other = request_first(table, &table->running); other;
         other = request_next(table, other))
        if (other->state == REQUEST_PREFILL) others += lacking(other);
    if (most > 0 && others > 0 && others + lacking(admitted) > most)
        sim_cluster_fail(cluster, "%u prompt tokens under way, at most %u",
                         others + lacking(admitted), most);
}

static void expect_in_time(const struct sim_cluster *cluster, const struct request *admitted) {
    int64_t waited_ns = cluster->now_ns + cluster->skew_ns - admitted->arrival_ns;
    uint32_t most_ms = cluster->options.queue_timeout_ms;
    if (most_ms > 0 && !is_retracted(admitted) && waited_ns >= most_ms * SIM_MS)
        sim_cluster_fail(cluster, "a request is admitted after the queue's time-out");
}

void sim_admission_check(struct request_table *table, const struct request *admitted) {
    const struct sim_cluster *cluster = sim_cluster_now();
    if (!cluster) return;
    expect_order(cluster, table, admitted);
    expect_budget(cluster, table, admitted);
    expect_in_time(cluster, admitted);
}
