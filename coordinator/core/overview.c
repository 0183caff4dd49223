#include "overview.h"

#include <stdio.h>
#include <string.h>

void overview_init(struct overview *overview, const struct overview_parts *parts) {
    *overview = (struct overview){.parts = *parts};
}

const struct roster_step *overview_step(const struct overview *overview,
                                        struct roster_step *step_out) {
    const struct commit_step *first = commit_first(overview->parts.commit);
    if (!first) return NULL;
    int64_t applied_ns = overview->parts.commit->applied_ns; /* ranks began with it no earlier */
    *step_out = (struct roster_step){
        .sent_ns = first->sent_ns > applied_ns ? first->sent_ns : applied_ns,
        .reported = first->reported,
        .expected_ns = scheduler_expects_ns(overview->parts.scheduler, &first->plan->plan),
    };
    return step_out;
}

static uint64_t age(int64_t since_ns, int64_t now_ns) {
    return now_ns > since_ns ? (uint64_t)(now_ns - since_ns) : 0;
}

static void describe_self_test(struct overview *overview, uint32_t rank) {
    const struct roster_seat *seat = &overview->parts.roster->seat[rank];
    bool tests = seat->state == RANK_LOADING || seat->state == RANK_LOADED;
    if (!tests || seat->self_test == SELF_TEST_NONE || overview->test_line[0] != '\0') return;
    snprintf(overview->test_line, sizeof overview->test_line, "rank %u: self-test: %s, %u %%", rank,
             self_test_name(seat->self_test), seat->self_test_percent);
}

/* What is wrong with each rank, and with the first of them. */
static void look_at_ranks(struct overview *overview, int64_t now_ns) {
    struct roster_step in_flight;
    const struct roster_step *step = overview_step(overview, &in_flight);
    overview->trouble_line[0] = overview->test_line[0] = '\0';
    for (uint32_t rank = 0; rank < overview->parts.options->tp; rank++) {
        char *trouble = overview->trouble[rank];
        roster_find_trouble(overview->parts.roster, step, rank, now_ns, trouble,
                            OVERVIEW_TROUBLE_BYTES_MAX);
        if (trouble[0] != '\0' && overview->trouble_line[0] == '\0')
            snprintf(overview->trouble_line, sizeof overview->trouble_line, "rank %u: %s", rank,
                     trouble);
        describe_self_test(overview, rank);
    }
}

static struct rank_status rank_status(const struct roster_seat *seat, uint32_t rank,
                                      int64_t now_ns) {
    bool there = seat->worker.value != 0;
    return (struct rank_status){
        .rank = rank,
        .state = seat->state,
        .pid = seat->pid,
        .load_bytes = seat->load_bytes,
        .load_bytes_total = seat->load_bytes_total,
        .load_ns = seat->state == RANK_LOADING ? age(seat->hello_ns, now_ns) : seat->load_ns,
        .heartbeat_age_ns = there ? age(seat->heard_ns, now_ns) : 0,
        .step = seat->step,
        .probe = seat->probe,
        .collective_ns = seat->collective_ns,
        .self_test = there ? seat->self_test : SELF_TEST_NONE,
        .self_test_percent = seat->self_test_percent,
    };
}

/* Why calls are not served; empty where they are. */
static const char *find_reason(const struct overview *overview) {
    if (overview->parts.roster->reason[0] != '\0')
        return overview->test_line[0] != '\0' ? overview->test_line
                                              : overview->parts.roster->reason;
    return *overview->parts.draining ? "draining" : overview->trouble_line;
}

/* What a request may have: a short pool is the limit that clients are told. */
static uint32_t request_tok_max(const struct core_options *options) {
    uint64_t pool_tok = (uint64_t)options->page_count * options->page_tok;
    return pool_tok < options->context_len ? (uint32_t)pool_tok : options->context_len;
}

struct snapshot overview_snapshot(struct overview *overview, int64_t now_ns) {
    const struct core_options *options = overview->parts.options;
    look_at_ranks(overview, now_ns);
    for (uint32_t rank = 0; rank < options->tp; rank++) {
        overview->rank_status[rank] = rank_status(&overview->parts.roster->seat[rank], rank,
                                                  now_ns);
        overview->rank_status[rank].trouble = overview->trouble[rank];
    }
    return (struct snapshot){
        .boot_id = options->boot_id,
        .generation = overview->parts.roster->generation,
        .ready = roster_is_serving(overview->parts.roster) && !*overview->parts.draining,
        .draining = *overview->parts.draining,
        .has_served = overview->parts.roster->has_served,
        .reason = find_reason(overview),
        .model = options->spec->model_type,
        .tp = options->tp,
        .context_len = request_tok_max(options),
        .page_tok = options->page_tok,
        .pages_total = options->page_count,
        .pages_free = overview->parts.scheduler->pages.pool.free_count,
        .pages_cached = overview->parts.scheduler->pages.pool.cached_count,
        .pages_promised = scheduler_pages_promised(overview->parts.scheduler),
        .tokens_unused = scheduler_tokens_unused(overview->parts.scheduler),
        .max_running_requests = options->max_running_requests,
        .requests_running = overview->parts.requests->running.count,
        .requests_waiting = request_queue_count(overview->parts.requests) +
                            overview->parts.requests->retracted_count,
        .requests_finished = overview->parts.requests->totals.finished,
        .tokens_prompt = overview->parts.requests->totals.tokens_prompt,
        .tokens_generated = overview->parts.requests->totals.tokens_generated,
        .tokens_cached = overview->parts.requests->totals.tokens_cached,
        .tokens_looked_up = overview->parts.requests->totals.tokens_looked_up,
        .tokens_recomputed = overview->parts.requests->totals.tokens_recomputed,
        .evictions = overview->parts.scheduler->pages.radix.evictions,
        .retractions = overview->parts.requests->totals.retractions,
        .speculation = speculation_reason(&overview->parts.scheduler->speculation),
        .speculated = overview->parts.scheduler->speculation.counts,
        .steps = overview->parts.commit->steps,
        .step_ns_last = overview->parts.commit->step_ns_last,
        .step_ns = overview->parts.commit->step_times.sum_ns,
        .compute_ns = overview->parts.commit->compute_ns,
        .idle_ns = overview->parts.commit->idle_ns,
        .uptime_ns = *overview->parts.start_ns == 0 ? 0 : age(*overview->parts.start_ns, now_ns),
        .rank = overview->rank_status,
        .rank_count = options->tp,
        .model_fingerprint = options->model_fingerprint,
        .context_promised = options->context_len,
        .kv_dtype = options->kv_dtype,
        .activation_dtype = options->activation_dtype,
    };
}

/* The N of "rank/N", or UINT32_MAX where the name is not of that form. */
static uint32_t parse_rank(const char *service) {
    static const char prefix[] = "rank/";
    if (strncmp(service, prefix, sizeof prefix - 1) != 0) return UINT32_MAX;
    const char *digit = service + sizeof prefix - 1;
    if (digit[0] < '0' || digit[0] > '9' || digit[1] != '\0') return UINT32_MAX;
    return (uint32_t)(digit[0] - '0');
}

struct health_reply overview_health(struct overview *overview, const char *service,
                                    int64_t now_ns) {
    static const char *const rank_reason[] = {
        [RANK_ABSENT] = "no worker has come for this rank",
        [RANK_LOADING] = "it loads its weights",
        [RANK_LOADED] = "it waits for its group",
        [RANK_READY] = "",
        [RANK_LOST] = "its worker is lost",
    };
    const char *reason;
    uint32_t rank = parse_rank(service);
    look_at_ranks(overview, now_ns);
    if (service[0] == '\0' || strcmp(service, "engine") == 0) {
        reason = find_reason(overview);
    } else if (rank < overview->parts.options->tp) {
        reason = rank_reason[overview->parts.roster->seat[rank].state];
        if (reason[0] == '\0') reason = overview->trouble[rank];
    } else {
        return (struct health_reply){
            .health = HEALTH_SERVICE_UNKNOWN,
            .reason = "accepted: \"\", \"engine\", \"rank/N\" with N below --tp",
        };
    }
    return (struct health_reply){
        .health = reason[0] == '\0' ? HEALTH_SERVING : HEALTH_NOT_SERVING,
        .reason = reason,
    };
}

bool overview_in_trouble(struct overview *overview, int64_t now_ns) {
    look_at_ranks(overview, now_ns);
    return overview->trouble_line[0] != '\0';
}
