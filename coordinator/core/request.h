/* The requests: what each asked for, how far it is, and the table that holds them all.
 *
 *                 prompt                                    prompt
 *   call          known            admitted                 computed          finish
 *   ────▶ QUEUED ───────▶ WAITING ──────────▶ PREFILL ──────────────▶ DECODE ────────▶ (free)
 *           │              │   ▲                 │                      │                 ▲
 *           │ refused,     │   └── retracted ────┴──────────────────────┤                 │
 *           │ cancelled,   │                     └───────── cancelled, in the step ──┐    │
 *           │ timed out    │                                in flight ▶ LEAVING ─────┼────┘
 *           └──────────────┴── or not in it: straight to free ───────────────────────┘ result in
 *
 * A call ends once, when its last request leaves the first five states; LEAVING has ended already
 * and keeps its pages and slot until every rank has finished the step that names them. A retracted
 * request has given its pages up for want of room; it keeps its tokens, and PREFILL then means
 * computing again what the prefix cache no longer has of prompt and reply.
 *
 * A call for several choices is one request until its prompt is computed. Then the others join it:
 * requests of their own, from FREE straight to PREFILL, which begin with what the first has
 * computed and lack one token. A sequence slot for each is kept from the admission of the first.
 * From then on each runs, is retracted and ends by itself; the call ends with the last (struct
 * choices).
 *
 * Lists: arrivals (QUEUED, and WAITING for the first time, in the order of arrival) and running
 * (PREFILL, DECODE, LEAVING, in the order of admission). WAITING ones are in the queue, which knows
 * who is next.
 *
 * Token memory: the ids of prompts and replies live in one store of blocks (token_tape). Requests
 * once admitted, at most max_running_requests, have room for a whole context each; waiting prompts
 * have a budget, and a prompt that does not fit it is refused.
 */
#ifndef ESPALIER_REQUEST_H
#define ESPALIER_REQUEST_H

#include "base/histogram.h"
#include "base/pool.h"
#include "choices.h"
#include "core.h"
#include "id_index.h"
#include "reply.h"
#include "token_tape.h"
#include "wait_queue.h"

#define REQUEST_NONE UINT32_MAX /* no request, no slot */

enum request_state {
    REQUEST_FREE,
    REQUEST_QUEUED,  /* its prompt's ids are not known yet */
    REQUEST_WAITING, /* for room */
    REQUEST_PREFILL, /* part of its tokens is to be computed before the next is drawn */
    REQUEST_DECODE,
    REQUEST_LEAVING, /* ended, but a step in flight names its pages */
};
#define REQUEST_STATE_COUNT 6

struct request {
    enum request_state state;
    struct pool_id id;
    struct pool_id call;
    uint64_t arrival;    /* the how manieth request it is: older ones have lower numbers */
    uint32_t prev, next; /* in its list; REQUEST_NONE at the ends */

    struct sampling sampling; /* but its bias, which is the next */
    struct logit_bias logit_bias[LOGIT_BIAS_MAX];
    uint64_t seed;
    uint32_t max_tokens; /* as asked; 0: what context and pool leave */
    bool logprobs;
    uint32_t top_logprobs;
    struct reply_wish wish;
    uint32_t choice, choice_count; /* of its call */
    uint32_t to_join;              /* choices that will begin when its prompt is computed */
    struct choices *choices;       /* it is one of; NULL: alone, or alone so far */
    uint32_t shared_tok;           /* in the pages that they began with together */
    int32_t priority;
    uint64_t salt;      /* of its tenant */
    bool is_idempotent; /* it has a key, which no other live call has */

    struct token_tape tape; /* the prompt, then what was drawn */
    uint32_t prompt_count;
    uint32_t tok_limit;     /* prompt and reply together at most */
    uint32_t committed;     /* tokens whose KV is final on every rank */
    uint32_t committed_max; /* the most it ever was */
    uint32_t prefill_end;   /* PREFILL: tokens to be computed before the next is drawn */
    uint32_t cached_tokens; /* of the prompt, found when it was first admitted */
    uint64_t prefix_hash;   /* hash_chain over the committed ones */
    uint32_t seq_slot;      /* on the workers; REQUEST_NONE while not admitted */
    uint32_t page_sent;     /* pages in the workers' table */
    uint32_t retractions;
    uint32_t in_steps;       /* steps in flight that name it */
    uint32_t rows_in_flight; /* of it, in them */

    struct reply reply;
    int64_t arrival_ns, first_step_ns, first_token_ns; /* 0: not yet */
    int64_t token_ns;                                  /* when the last token was drawn */
};

struct request_list {
    uint32_t first, last;
    uint32_t count;
};

struct request_totals {
    uint64_t finished;      /* calls ended, refused ones not counted */
    uint64_t tokens_prompt; /* computed for the first time */
    uint64_t tokens_generated;
    uint64_t tokens_cached; /* found in the prefix cache, of */
    uint64_t tokens_looked_up;
    uint64_t tokens_recomputed;
    uint64_t retractions;
};

struct request_times {
    struct histogram queue;       /* from arrival to the first step */
    struct histogram first_token; /* from arrival */
    struct histogram inter_token;
    struct histogram total; /* from arrival to the end, whatever it was */
};

struct request_table {
    struct pool pool;
    struct request *request; /* [capacity] */
    struct id_index calls;   /* of calls that have not ended */
    struct id_index keys;    /* of their idempotency keys, hashed with the tenant */
    struct token_tape_store tapes;
    struct wait_queue queue;
    struct choices_store choices;
    uint32_t waiting_blocks, waiting_blocks_max;
    uint32_t queued_count, retracted_count;
    uint32_t joining_count; /* choices that will join requests once admitted */
    uint64_t opened, known; /* requests so far, and those whose prompt became known */
    struct request_list arrivals, running;
    struct request_totals totals;
    struct request_times times;
};

size_t request_memory(const struct core_options *options);
void request_table_init(struct request_table *table, const struct core_options *options,
                        struct arena *memory);
void request_table_deinit(struct request_table *table);

/* A request in QUEUED, for so many choices. The caller has looked: there is room. */
struct request *request_open(struct request_table *table, struct pool_id call,
                             uint32_t choice_count, int64_t now_ns);

/* The first's prompt is computed: the call's next choice, which is given the prompt. The caller
 * gives it a sequence slot and lets it run; all that were to join do so at once. */
struct request *request_join(struct request_table *table, struct request *first);

/* One of the call's requests; NULL where the call, or the job, is of no live request. O(1). */
struct request *request_of_call(struct request_table *table, struct pool_id call);
struct request *request_of_job(struct request_table *table, uint64_t job);
uint64_t request_job(const struct request *request);

/* Requests that were never admitted: what max_queued_requests bounds. */
uint32_t request_queue_count(const struct request_table *table);

/* The next of a list; NULL at its end. */
struct request *request_first(struct request_table *table, const struct request_list *list);
struct request *request_next(struct request_table *table, const struct request *request);

/* True where a prompt of so many tokens fits the budget of waiting ones. */
bool request_prompt_fits(const struct request_table *table, uint32_t prompt_count);

/* Change the state; CHECKs that the diagram has the arrow. Moves it between lists; REQUEST_FREE
 * forgets it (its slot must be gone). WAITING needs a place in the queue: request_wait. */
void request_set_state(struct request_table *table, struct request *request,
                       enum request_state state);
void request_wait(struct request_table *table, struct request *request,
                  const struct wait_order *order);

/* The request ends, and with the last of its call's choices the call: emit its one END, with a
 * summary where the prompt was known. The caller moves the request on. */
void request_end(struct request_table *table, struct request *request, struct effect_buf *effects,
                 enum status status, enum finish_reason finish, const char *text, int64_t now_ns);

/* The next token is drawn now, or the first step that computes it is planned. */
void request_note_token(struct request_table *table, struct request *request, int64_t now_ns);
void request_note_step(struct request_table *table, struct request *request, int64_t now_ns);

uint32_t request_drawn_count(const struct request *request);

/* Tokens whose KV is final once the steps in flight are. */
static inline uint32_t request_planned(const struct request *request) {
    return request->committed + request->rows_in_flight;
}

/* A step in flight draws its next token: planned is all there is. */
static inline bool request_is_drawing(const struct request *request) {
    return request->rows_in_flight > 0 && request_planned(request) >= request->tape.count;
}

/* CHECK lists, counts and token memory. */
void request_table_check(const struct request_table *table);

#endif
