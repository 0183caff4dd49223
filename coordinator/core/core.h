/* The coordinator's core: a pure function of events (event.h).
 *
 *     core_step(core, &event) -> effects
 *
 * It holds the roster of workers and the group's generation, the requests, the token pool and the
 * step in flight. No clock, socket, malloc or random number inside: loop.c drives it from libuv,
 * tests drive it from a table or a seed, a benchmark drives it flat out. All memory is taken in
 * core_create.
 *
 * What it does, module by module: roster (who is there, when a group forms and ends), request (one
 * request's life), admission (who is let in), scheduler (who runs in the next step), prefill (how a
 * prompt is cut), seq_pages (which pages, over radix and token_pool), step_plan (the plan as flat
 * arrays), commit (what a result means).
 */
#ifndef ESPALIER_CORE_H
#define ESPALIER_CORE_H

#include "base/histogram.h"
#include "event.h"
#include "model_spec.h"

struct core;
struct vocab;

/* Who of those that wait is let in first. Waiting counts in all of them: nobody starves. */
enum schedule_policy {
    SCHEDULE_FCFS,           /* who came first */
    SCHEDULE_SHORTEST,       /* the shortest prompt; a token weighs a millisecond of waiting */
    SCHEDULE_LONGEST_PREFIX, /* the most cached tokens, weighed likewise */
    SCHEDULE_PRIORITY,       /* the highest priority; one weighs ten seconds of waiting */
};

/* What guesses the next tokens, for several to be verified in a step. Whatever it is, what is drawn
 * is the same. */
enum speculative_algorithm {
    SPECULATE_NONE,
    SPECULATE_SUFFIX, /* what stood behind the same tokens before */
    SPECULATE_DFLASH, /* the workers' block drafter */
    SPECULATE_AUTO,   /* both together, where the workers have a drafter */
};

struct core_options {
    const struct model_spec *spec; /* borrowed for the core's life */
    const struct vocab *vocab;     /* likewise; token to bytes */
    uint64_t model_fingerprint;    /* what workers must report */
    uint64_t boot_id;
    uint64_t pid, process_start; /* the coordinator's own, told to workers */
    uint32_t tp;
    uint32_t context_len;
    uint32_t page_tok;
    uint32_t page_count;   /* of the pool, now; a rank with less memory lowers it */
    uint32_t page_cap;     /* what a resize may raise it to; 0: no more than at first */
    uint32_t mem_fraction; /* of a rank's memory, in millionths; 0: all that fits */
    enum kv_dtype kv_dtype;
    enum activation_dtype activation_dtype;
    enum prefill_form prefill_form;
    uint32_t max_running_requests; /* now */
    uint32_t max_running_cap;      /* what a resize may raise it to; 0: no more than at first */
    uint32_t max_queued_requests;
    uint32_t max_queued_tokens; /* of prompts that wait; 0: enough for most queues */
    uint32_t queue_timeout_ms;  /* a request that waits longer is refused; 0: never */
    enum schedule_policy schedule_policy;
    uint32_t chunked_prefill_size; /* prompt tokens a step */
    uint32_t max_prefill_tokens;   /* admitted and not computed yet; 0: no limit */
    uint32_t max_step_rows;        /* decode rows and chunks; 0: as many as both can be */
    uint32_t target_step_ms;       /* chunks shrink so that a step beside decoding takes no longer;
                                    * 0: they do not */
    bool disable_prefix_cache;
    bool overlap_steps;         /* a plan leaves while the step before it runs, where it can */
    uint32_t heartbeat_ms;      /* workers' */
    uint32_t step_timeout_ms;   /* no result and no progress: the group is lost */
    uint32_t load_timeout_ms;   /* a rank that loads and reads nothing for so long is lost */
    uint32_t rejoin_timeout_ms; /* a lost rank must come back within this: else exit 69 */
    enum speculative_algorithm speculative_algorithm;
    uint32_t speculative_tree_rows;   /* of one request at most, the last token drawn among them */
    uint32_t speculative_history_tok; /* of finished replies, kept to guess from */
    bool speculative_fixed;           /* as many as there are guesses for, whatever they cost */
    bool speculative_seed_chain;      /* the drafter's likeliest chain goes first */
    bool allow_short_pool;            /* accept a pool that cannot hold context_len tokens */
    bool no_self_test;                /* ranks are ready without having climbed any rung */
};

/* What memory is laid out for. */
static inline uint32_t core_running_cap(const struct core_options *options) {
    return options->max_running_cap > options->max_running_requests ? options->max_running_cap
                                                                    : options->max_running_requests;
}

static inline uint32_t core_page_cap(const struct core_options *options) {
    return options->page_cap > options->page_count ? options->page_cap : options->page_count;
}

/* CONFIG errors (a pool that cannot hold one request, ...) as INVALID_ARGUMENT. */
enum status core_create(const struct core_options *options, struct core **core_out,
                        struct error *err) MUST_USE;
void core_destroy(struct core **core);

struct effects core_step(struct core *core, const struct event *event);

/* What Watch, status and probes show; pointers live until the next core_step. */
struct snapshot core_snapshot(struct core *core, int64_t now_ns);

/* The least that a rank has left of its memory; 0 where none has said so. */
uint64_t core_free_bytes(const struct core *core);

/* The health of "" or "engine" (the group serves) or "rank/N". now_ns, here and above: when
 * workers' connections were last seen to hold nothing more, for silence is judged by it. */
struct health_reply core_health(struct core *core, const char *service, int64_t now_ns);

/* Some rank is silent, or makes no progress in its step. */
bool core_in_trouble(struct core *core, int64_t now_ns);

/* What the group that serves can hold. */
struct core_capacity {
    uint64_t generation; /* 0: none serves */
    uint32_t pool_tok;
    uint32_t max_running_requests;
};
struct core_capacity core_capacity(const struct core *core);

/* How long things took, of all times; pointers live as long as the core. */
struct core_times {
    const struct histogram *step;        /* from plan sent to result applied */
    const struct histogram *queue;       /* of a request: from arrival to its first step, */
    const struct histogram *first_token; /* to its first token, */
    const struct histogram *inter_token; /* from token to token, */
    const struct histogram *total;       /* from arrival to its end */
};
struct core_times core_times(const struct core *core);

/* CHECK every invariant that spans modules: pages conserved, slots live, one end a call. For tests
 * after each step, and for production when idle. */
void core_check(const struct core *core);

#endif
