/* The messages of the wire as plain structures: what the coordinator's core, the worker and the
 * client library handle. codec.h turns them into bytes (runtime.proto) and back, and validates.
 *
 * Pointers are borrowed: from the arena a message was decoded into, or from whoever encodes it.
 * A text field is a NUL-terminated string; decoded it is never NULL, and encoding NULL gives the
 * empty one. Arrays of no elements may be NULL. Every bound is written beside its field in
 * runtime.proto.
 */
#ifndef ESPALIER_MESSAGE_H
#define ESPALIER_MESSAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/limits.h"
#include "base/status.h"
#include "kv_dtype.h"
#include "tree.h"

#define WIRE_VERSION 1u

/* ============================== envelope ====================================================== */

/* Every message is three parts after the routing id: header, body, attachment (may be empty). */
enum frame_kind {
    FRAME_CALL = 1,   /* caller: starts call_id; method, deadline, credits */
    FRAME_DATA = 2,   /* callee: one element of the stream; seq dense from 0 */
    FRAME_END = 3,    /* callee: the trailer; exactly one a call, also for OK; body may hold a last
                       * message */
    FRAME_CANCEL = 4, /* caller: no longer wanted; the callee still sends END */
    FRAME_WINDOW = 5, /* caller: `credits` more DATA messages may be sent */
    FRAME_PING = 6,   /* caller: I am alive; once a second while calls are open */
    FRAME_PONG = 7,
    FRAME_DRAIN = 8, /* callee: call_id is the last call accepted; later ones never started */
    FRAME_NOTE = 9,  /* between coordinator and worker: one message, no answer owed */
};

struct metadata {
    const char *key;   /* lower case */
    const char *value; /* text; base64 where the key ends in `-bin` */
};

struct header {
    uint32_t version;
    enum frame_kind kind;
    uint64_t call_id;            /* unique within the caller's connection, ascending */
    const char *method;          /* CALL */
    uint64_t generation;         /* of the group, 0 if none is meant */
    uint32_t deadline_ms;        /* CALL: relative; 0: the callee's cap */
    const char *idempotency_key; /* CALL */
    const char *tenant;          /* CALL */
    int32_t priority;            /* CALL: higher is sooner */
    const struct metadata *metadata;
    uint32_t metadata_count;
    uint64_t seq;            /* DATA */
    uint32_t credits;        /* CALL: initial window, in messages; WINDOW: more of them */
    enum status status;      /* END */
    const char *status_text; /* END */
};

/* ============================== client calls ================================================== */

#define METHOD_GENERATE     "Generate"     /* GenerateRequest -> stream GenerateDelta, summary */
#define METHOD_WATCH        "Watch"        /* WatchRequest -> stream Snapshot */
#define METHOD_HEALTH_CHECK "Health.Check" /* HealthRequest -> HealthReply */
#define METHOD_HEALTH_WATCH "Health.Watch" /* HealthRequest -> stream HealthReply */
#define METHOD_DRAIN        "Drain"        /* DrainRequest -> END when drained */
#define METHOD_FLUSH        "Flush"        /* FlushRequest -> END when withdrawn */
#define METHOD_RESIZE       "Resize"       /* ResizeRequest -> stream ResizeProgress */
#define METHOD_EXAMINE      "Examine"      /* ExamineRequest -> stream ExamineReport, one a rank */

enum prompt_kind {
    PROMPT_TEXT = 1,   /* tokenized as it is; special strings stay text */
    PROMPT_TOKENS = 2, /* ids */
    PROMPT_CHAT = 3,   /* JSON {"messages": [...], "tools": [...], "chat_template_kwargs": {...}} */
};

/* What is added to a token's logit. */
struct logit_bias {
    uint32_t token;
    float value;
};

struct sampling {
    float temperature;        /* 0: greedy */
    float top_p;              /* (0, 1] */
    uint32_t top_k;           /* 0: no limit */
    float min_p;              /* [0, 1]: least probability, of the likeliest token's; 0: no limit */
    float repetition_penalty; /* of tokens in prompt or reply; 0 and 1: none */
    float presence_penalty;   /* of tokens in the reply */
    float frequency_penalty;  /* likewise, times how often they are there */
    const struct logit_bias *logit_bias; /* token ids ascending */
    uint32_t logit_bias_count;
    bool has_seed;
    uint64_t seed; /* where !has_seed the coordinator draws one and it becomes an input */
};

struct generate_request {
    enum prompt_kind prompt_kind;
    struct bytes prompt_text;     /* TEXT, CHAT: UTF-8 */
    const uint32_t *prompt_token; /* TOKENS */
    uint32_t prompt_token_count;
    uint32_t max_tokens; /* 0: what the context leaves */
    struct sampling sampling;
    const char *const *stop; /* stop strings */
    uint32_t stop_count;
    const uint32_t *stop_token; /* besides the model's own */
    uint32_t stop_token_count;
    bool include_stop;     /* the text ends with the stop string */
    bool ignore_eos;       /* go on to max_tokens whatever is drawn */
    bool keep_special;     /* special tokens appear in the text */
    bool logprobs;         /* of each token */
    uint32_t top_logprobs; /* alternatives a token, with logprobs */
    uint32_t choice_count; /* replies to the prompt, each drawn by itself; 0: one */
};

enum channel { CHANNEL_CONTENT = 0, CHANNEL_REASONING = 1, CHANNEL_TOOL = 2 };

struct token_logprob {
    uint32_t token;
    float logprob;
};

enum finish_reason {
    FINISH_NONE = 0,
    FINISH_STOP = 1,   /* a stop token or stop string */
    FINISH_LENGTH = 2, /* max_tokens or the context */
    FINISH_CANCELLED = 3,
    FINISH_ERROR = 4,
};

struct generate_delta {
    enum channel channel;
    struct bytes text;     /* whole UTF-8 characters; may be empty */
    const uint32_t *token; /* drawn since the last delta */
    uint32_t token_count;
    const struct token_logprob *logprob; /* [token_count] if asked, then top_count a token */
    uint32_t logprob_count;              /* token_count * (1 + top_logprobs) */
    uint32_t choice;                     /* whose it is, below choice_count */
    enum finish_reason finish_reason; /* not NONE: the choice ends with it. Always NONE where there
                                       * is one choice, which ends with the call */
};

/* What became of one choice of several. */
struct choice_summary {
    enum finish_reason finish_reason;
    uint32_t completion_tokens;
    uint32_t cached_tokens; /* of the prompt, not computed for this choice */
    uint32_t freed_tokens;  /* what it shared with a choice that went on is not counted */
};

/* The body of Generate's END. */
struct generate_summary {
    enum finish_reason finish_reason; /* of choice 0, as is cached_tokens */
    uint32_t prompt_tokens;
    uint32_t completion_tokens; /* of all choices, as is freed_tokens */
    uint32_t cached_tokens;     /* of the prompt, not computed again */
    uint32_t freed_tokens;      /* whose KV the request held at its end */
    uint64_t seed;              /* the one used */
    uint64_t queue_ns;          /* from arrival to the first step */
    uint64_t first_token_ns;    /* from arrival to the first token */
    uint64_t total_ns;
    struct choice_summary choice[CHOICES_MAX]; /* in their order */
    uint32_t choice_count;                     /* 0 where there is one choice */
};

enum rank_state {
    RANK_ABSENT = 0,
    RANK_LOADING = 1,
    RANK_LOADED = 2,
    RANK_READY = 3, /* in the current group */
    RANK_LOST = 4,
};

/* The rungs that a rank climbs before it is ready, the last with its group. */
enum self_test {
    SELF_TEST_NONE = 0,
    SELF_TEST_ATTENTION = 1,
    SELF_TEST_POOL = 2,
    SELF_TEST_COLLECTIVE = 3,
};
const char *self_test_name(enum self_test rung); /* "attention"; "" for none */

struct rank_status {
    uint32_t rank;
    enum rank_state state;
    uint64_t pid;
    uint64_t load_bytes, load_bytes_total; /* of weights */
    uint64_t load_ns;                      /* so far, or what it took */
    uint64_t heartbeat_age_ns;
    uint64_t step;              /* last finished */
    const char *probe;          /* "127.0.0.1:41234" */
    uint64_t collective_ns;     /* spent in all-reduces by its process */
    const char *trouble;        /* silent, or stuck in a step; empty: neither */
    enum self_test self_test;   /* the rung it is on, and */
    uint32_t self_test_percent; /* how far */
};

#define SPECULATION_DEPTHS  16u /* guesses are counted by depth; the last counts all deeper ones */
#define SPECULATION_SOURCES 3u  /* the block drafter, the request's own tokens, its tenant's */

/* Guesses verified since the start. */
struct speculation_counts {
    uint64_t trees; /* a sequence in a step, with guesses */
    uint64_t guesses;
    uint64_t accepted[SPECULATION_DEPTHS]; /* trees whose walk came so deep, from 1 */
    uint64_t source_guesses[SPECULATION_SOURCES], source_accepted[SPECULATION_SOURCES];
};

/* What products round their activations to, where the weights are stored as bf16 or INT4. INT8 is
 * for INT4 weights alone; the others then take bf16. */
enum activation_dtype { ACTIVATION_F32 = 0, ACTIVATION_BF16 = 1, ACTIVATION_INT8 = 2 };
const char *activation_dtype_name(enum activation_dtype dtype); /* as --activation-dtype has it */

struct snapshot {
    uint64_t boot_id;
    uint64_t generation; /* 0 before the first group */
    bool ready;
    bool draining;
    bool has_served;    /* a group of this boot has once been ready */
    const char *reason; /* why not ready; empty when ready */
    const char *model;
    uint32_t tp;
    uint32_t context_len;
    uint32_t page_tok;
    uint32_t pages_total, pages_free;
    uint32_t pages_cached;   /* used by nobody, kept for their prefix */
    uint64_t pages_promised; /* what running requests may need at most; above pages_total the
                              * pool is over-committed */
    uint64_t tokens_unused;  /* places of used pages that hold no token: fragmentation */
    uint32_t max_running_requests;
    uint32_t requests_running, requests_waiting;
    uint64_t requests_finished;
    uint64_t tokens_prompt, tokens_generated;
    uint64_t tokens_looked_up;  /* of prompts, in the prefix cache, and */
    uint64_t tokens_cached;     /* found there */
    uint64_t tokens_recomputed; /* after a retraction */
    uint64_t evictions;         /* pages that left the prefix cache for want of room */
    uint64_t retractions;       /* requests sent back to wait for want of room */
    uint64_t steps;
    uint64_t step_ns_last; /* duration of the last step, as the coordinator saw it, */
    uint64_t step_ns;      /* and of all steps together */
    uint64_t compute_ns;   /* of all steps, on the slowest rank, and the time that rank 0 */
    uint64_t idle_ns;      /* waited between them while there was something to do */
    uint64_t uptime_ns;
    const char *speculation; /* the algorithm, and why the last step had so many guesses */
    struct speculation_counts speculated;
    const struct rank_status *rank;
    uint32_t rank_count;
    uint64_t model_fingerprint;
    uint32_t context_promised; /* --context-length, whatever the pool holds */
    enum kv_dtype kv_dtype;
    enum activation_dtype activation_dtype;
};

struct watch_request {
    uint32_t interval_ms; /* between snapshots; 0: one snapshot, then END */
};

enum health {
    HEALTH_UNKNOWN = 0,
    HEALTH_SERVING = 1,
    HEALTH_NOT_SERVING = 2,
    HEALTH_SERVICE_UNKNOWN = 3
};

struct health_request {
    const char *service; /* "" the whole, "engine", "rank/N" */
};

struct health_reply {
    enum health health;
    const char *reason;
};

/* Of the prefix cache: what begins with these tokens, under the call's tenant. */
struct flush_request {
    const uint32_t *token;
    uint32_t token_count; /* 0: everything, of all tenants */
};

/* Of the token pool, and of the batch. */
struct resize_request {
    uint32_t tokens;               /* up to whole pages; 0: as it is */
    uint32_t max_running_requests; /* 0: as it is */
    bool force;                    /* send requests back to wait where the rest does not suffice */
    uint32_t mem_fraction;         /* what weights and pool may take of every rank's memory, in
                                    * units of FRACTION_ONE, instead of tokens; 0: not said */
};

enum resize_phase {
    RESIZE_WAITING = 0,  /* for the steps in flight */
    RESIZE_CHANGING = 1, /* on every rank */
    RESIZE_UNDOING = 2,  /* some rank could not: the old size comes back */
    RESIZE_DONE = 3,
    RESIZE_SIZING = 4, /* every rank is asked what the fraction of its memory holds */
};

struct resize_progress {
    enum resize_phase phase;
    uint32_t page_tok;
    uint32_t pages_before, pages_wanted, pages_now;
    uint32_t pages_evicted; /* of the prefix cache, for want of room */
    uint32_t pages_moved;
    uint32_t requests_retracted;
    uint32_t max_running_requests;
};

/* What ranks hold of cached prefixes: of these tokens under the call's tenant, in whole pages. */
struct examine_request {
    const uint32_t *token;
    uint32_t token_count; /* 0: everything that is cached, of all tenants */
    uint32_t rows;        /* also time an attention of so many rows over them; 0: do not */
};

/* What one rank found. Latents are replicated: hashes are equal on all ranks, or one is wrong. */
struct examine_report {
    uint32_t rank;
    const char *device;
    uint32_t page_count; /* examined */
    uint32_t pages_per_hash;
    const uint64_t *hash; /* over all layers of so many pages, in order */
    uint32_t hash_count;
    uint64_t attention_bytes, attention_ns; /* of one layer, the fastest of several */
    uint64_t read_bytes, read_ns;           /* the same bytes, read and nothing else; likewise */
    uint64_t collective_ns;                 /* of a sum over the ranks, the fastest of several */
};

struct drain_request {
    uint32_t timeout_ms; /* running requests are cut after it */
};

/* ============================== one step ====================================================== */

/* A chain's rows are certain: all of them become committed. A tree's (tree.h) are the last token
 * drawn and guesses: committed are the rows of the walk's path, which the worker moves together
 * (row path[j] to cache slot s + j) before anything else reads them; what the other rows wrote is
 * nothing, and the next step writes over it. A decode row is a chain of one. */
enum plan_kind { PLAN_CHAIN = 0, PLAN_TREE = 1 };

#define PLAN_NO_PARENT TREE_NO_PARENT /* of row 0, whose parent is the committed end */
#define PLAN_NO_MASK   0u             /* no grammar mask */

/* In place of a token, as the only row of a chain: the one that the last step drew for the slot.
 * Such a plan can leave before the coordinator has seen that step's results. */
#define PLAN_TOKEN_DRAWN UINT32_MAX

/* What a sequence's rows ask back. */
enum plan_want {
    PLAN_WANT_NOTHING = 0, /* a chunk that does not end its prompt */
    PLAN_WANT_TOKEN = 1,   /* draw at the last row (chain), or along the walk (tree: always) */
};

/* One sequence's part of a step. Its rows are [row_begin, row_begin + row_count) of the plan; row i
 * sits at position committed + depth(i) and is written at cache slot committed + i. */
struct plan_sequence {
    uint32_t slot; /* sequence slot on the worker, below max_sequences */
    enum plan_kind kind;
    uint32_t row_begin, row_count;
    uint32_t committed;   /* s: tokens of the sequence whose KV is final */
    uint64_t prefix_hash; /* hash_chain over those tokens */
    uint32_t page_base;   /* pages the slot's table holds already; 0 starts the slot anew */
    uint32_t extent_begin, extent_count; /* pages appended to the table, in order */
    enum plan_want want;
    bool logprobs;
    uint32_t top_logprobs;
    float temperature, top_p;
    uint32_t top_k;
    uint32_t choice;
    uint64_t seed;
    uint32_t mask_id; /* PLAN_NO_MASK */
    float min_p;
    float repetition_penalty, presence_penalty, frequency_penalty; /* as in sampling */
    uint32_t reply_begin;            /* position of the reply's first token */
    uint32_t bias_begin, bias_count; /* brought by a slot's first plan, which has page_base 0, and
                                      * kept with the slot */
    uint32_t draft_len; /* after the step, guess so many tokens behind the last one drawn: at
                         * most what the worker's hello said; 0: none. Wants a token. */
};

struct page_extent {
    uint32_t first_page, page_count;
};

struct page_copy {
    uint32_t source, target; /* pages */
    uint32_t tok_count;
};

struct step_plan {
    uint64_t generation;
    uint64_t step;          /* 1, 2, ... within a generation */
    const uint32_t *token;  /* [row_count] or PLAN_TOKEN_DRAWN */
    const uint32_t *parent; /* [row_count] row within the sequence, or PLAN_NO_PARENT; empty
                             * (NULL) where every sequence is a chain */
    uint32_t row_count;
    const struct plan_sequence *sequence; /* own the rows and extents one after the other */
    uint32_t sequence_count;              /* at least 1 */
    const struct page_extent *extent;
    uint32_t extent_count;
    const struct page_copy *copy; /* done first, in order */
    uint32_t copy_count;
    const uint32_t *release; /* sequence slots forgotten before the step */
    uint32_t release_count;
    const struct logit_bias *bias; /* the sequences', one after the other; ids ascending in each */
    uint32_t bias_count;
    uint32_t draft_top; /* candidates a position of every draft; 0 where there is none */
};

/* One candidate for one position of a draft, with its logit from the head. */
struct draft_candidate {
    uint32_t token;
    float logit;
};

/* Sequences own the tokens and the positions of drafts one after the other.
 *
 * token: those drawn. One for a chain that wanted one; for a tree those drawn along the walk, in
 * its order, the last being the walk's `next`: as many as rows became committed.
 *
 * draft: position i of draft_len guesses the token i + 1 behind the last one drawn. All of what the
 * plan asked for, or nothing: a drafter may have no context yet, or no room. */
struct result_sequence {
    uint32_t slot;
    uint32_t token_begin, token_count;
    uint32_t draft_begin, draft_count;
};

struct step_result {
    uint64_t generation;
    uint64_t step;
    uint32_t rank;
    uint64_t state_hash; /* step_state_hash after the step: the same on every rank */
    uint64_t compute_ns; /* from plan received, and the step before done, to result sent */
    uint64_t idle_ns;    /* from the result before to this; 0 for a generation's first step */
    /* Rank 0 adds the payload; empty from others. */
    const struct result_sequence *sequence;
    uint32_t sequence_count;
    const uint32_t *token;
    uint32_t token_count;
    const struct token_logprob *logprob; /* for each token of a sequence with logprobs: its own,
                                          * then top_logprobs alternatives */
    uint32_t logprob_count;
    const float *draft_lse; /* [draft_count]: log-sum-exp of a position's logits, over the whole
                             * vocabulary: a candidate's log-probability is logit - lse */
    const struct draft_candidate *candidate; /* [draft_count, draft_top]: by descending logit, then
                                              * ascending token; no token twice a position */
    uint32_t draft_count, draft_top;
    uint64_t draft_ns; /* of compute_ns, for drafting alone */
};

/* The hash of what a step leaves committed: over its sequences in plan order, their slot, committed
 * length and prefix hash. Both sides compute it; a difference ends the generation. Of a tree the
 * prefix hash counts with the walk's next token behind it (hash_chain): what is committed depends
 * on what was drawn, so all ranks must have drawn the same, and the last too, to draft from it. */
uint64_t step_state_hash(uint64_t hash, uint32_t slot, uint32_t committed, uint64_t prefix_hash);
#define STEP_STATE_HASH_EMPTY UINT64_C(0)

/* ============================== coordinator and worker ======================================== */

enum worker_message_type {
    WORKER_HELLO = 1,
    WORKER_LOAD_PROGRESS = 2,
    WORKER_LOADED = 3,
    WORKER_GROUP_KEY = 4, /* rank 0's answer to PREPARE_GROUP */
    WORKER_JOINED = 5,
    WORKER_HEARTBEAT = 6,
    WORKER_STEP_RESULT = 7,
    WORKER_FAULT = 8,     /* this rank cannot go on with the generation, or at all */
    WORKER_RESIZED = 9,   /* the answer to RESIZE */
    WORKER_SIZED = 10,    /* the answer to SIZE */
    WORKER_EXAMINED = 11, /* the answer to EXAMINE */
};

struct worker_hello {
    uint32_t wire_version;
    uint32_t rank, tp;
    uint64_t pid;
    uint64_t process_start;     /* clock ticks after boot, /proc/PID/stat field 22 */
    uint64_t model_fingerprint; /* model_spec and checkpoint headers */
    const char *device;         /* "cpu avx512 threads=1" */
    const char *probe;          /* "127.0.0.1:41234" */
    uint64_t draft_fingerprint; /* of the drafter's checkpoint; 0: this rank has no drafter */
    uint32_t draft_len;         /* positions one of its blocks guesses; 0 without one */
};

struct worker_load_progress {
    uint64_t bytes, bytes_total;
};

#define FRACTION_ONE 1000000u /* fractions of memory are told in millionths */

struct worker_loaded {
    uint64_t bytes, elapsed_ns;
    uint32_t page_count;      /* that this rank's memory holds; 0: all that WELCOME names */
    uint32_t fraction_needed; /* of memory, for one request of the context; 0: not short, or none */
    uint64_t free_bytes;      /* of its memory, beside weights, pool and all */
};

#define GROUP_KEY_BYTES_MAX 128u /* an NCCL unique id, or the path of a memfd */

struct worker_group_key {
    uint64_t generation;
    struct bytes key;
};

struct worker_joined {
    uint64_t generation;
};

struct worker_heartbeat {
    uint64_t generation;
    uint64_t step;           /* last finished */
    uint64_t collective_seq; /* collectives entered in this generation: progress within a step */
    bool computing;
    uint64_t collective_ns; /* spent in all-reduces by this process so far */
    enum self_test self_test;
    uint32_t self_test_percent;
};

struct worker_fault {
    uint64_t generation;
    uint64_t step;
    enum status status;
    const char *text; /* one line: rank, step, op, what differed */
    bool fatal;       /* the process is about to exit */
};

struct worker_resized {
    uint64_t generation;
    uint32_t number;    /* that of the order */
    enum status status; /* where not OK, the size is as it was before the order */
    const char *text;
    uint64_t free_bytes; /* as in LOADED, with the new size */
};

struct worker_sized {
    uint64_t generation;
    uint32_t number;                      /* that of the question */
    uint32_t page_count, fraction_needed; /* as in LOADED */
};

struct worker_examined {
    uint64_t generation;
    uint32_t number;    /* that of the order */
    enum status status; /* where not OK, there is no report */
    const char *text;
    struct examine_report report;
};

struct worker_message {
    enum worker_message_type type;
    union {
        struct worker_hello hello;
        struct worker_load_progress load_progress;
        struct worker_loaded loaded;
        struct worker_group_key group_key;
        struct worker_joined joined;
        struct worker_heartbeat heartbeat;
        struct step_result step_result;
        struct worker_fault fault;
        struct worker_resized resized;
        struct worker_sized sized;
        struct worker_examined examined;
    };
};

enum control_message_type {
    CONTROL_WELCOME = 1,
    CONTROL_REFUSE = 2, /* the worker prints the text and exits with code 78 */
    CONTROL_PREPARE_GROUP = 3,
    CONTROL_FORM_GROUP = 4,
    CONTROL_STEP_PLAN = 5,
    CONTROL_END_GENERATION = 6, /* abort collectives, keep weights, wait for the next group */
    CONTROL_SHUTDOWN = 7,
    CONTROL_RESIZE = 8,
    CONTROL_SIZE = 9, /* a question: nothing changes */
    CONTROL_EXAMINE = 10,
};

/* Of attention over chunks of many rows (kernels/mla_expanded). EXPANDED gives up that logits
 * depend on the prefix alone. */
enum prefill_form { PREFILL_ABSORBED = 0, PREFILL_EXPANDED = 1 };

struct control_welcome {
    uint64_t coordinator_pid;
    uint64_t coordinator_start; /* as worker_hello.process_start */
    uint64_t boot_id;
    uint32_t heartbeat_ms;
    uint32_t max_rows, max_sequences; /* of a step */
    uint32_t page_tok, page_count;
    uint32_t page_cap; /* what the pool may ever grow to */
    uint32_t context_len;
    enum kv_dtype kv_dtype;
    uint32_t mem_fraction; /* of a rank's memory, for weights and pool; 0: all that fits */
    enum activation_dtype activation_dtype;
    bool self_test; /* climb the rungs before being ready */
    enum prefill_form prefill_form;
};

struct control_refuse {
    enum status status;
    const char *text;
};

struct control_group {
    uint64_t generation;
    uint32_t size;
    struct bytes key;    /* FORM_GROUP */
    uint32_t page_count; /* FORM_GROUP: of the pool, whatever a resize left */
};

struct control_end_generation {
    uint64_t generation;
    const char *text;
};

struct page_move {
    uint32_t source, target;
};

struct control_resize {
    uint64_t generation;
    uint32_t number; /* ascending within a generation */
    uint32_t page_count;
    const struct page_move *move; /* whole pages, done first, in order */
    uint32_t move_count;
};

struct control_size {
    uint64_t generation;
    uint32_t number; /* ascending within a generation, with those of RESIZE */
    uint32_t mem_fraction;
};

struct control_examine {
    uint64_t generation;
    uint32_t number;      /* ascending within a generation */
    const uint32_t *page; /* what they hold is hashed, in this order */
    uint32_t page_count;
    uint32_t rows; /* as in examine_request */
};

struct control_message {
    enum control_message_type type;
    union {
        struct control_welcome welcome;
        struct control_refuse refuse;
        struct control_group group; /* PREPARE_GROUP, FORM_GROUP */
        struct step_plan step_plan;
        struct control_end_generation end_generation;
        struct control_resize resize;
        struct control_size size;
        struct control_examine examine;
    };
};

#endif
