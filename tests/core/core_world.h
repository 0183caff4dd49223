/* A world for tests: one core, its workers, its clients, a clock that tests set.
 *
 * Effects are carried out at once; what workers answer waits in their rings until world_deliver.
 * What an event lent is overwritten when core_step returns, before its effects are looked at.
 * After every step the core's own invariants are checked, and no memory may have been asked for
 * within it. Every call's stream is kept.
 */
#ifndef ESPALIER_CORE_WORLD_H
#define ESPALIER_CORE_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core.h"
#include "fake_group.h"

#define WORLD_CALLS       64u
#define WORLD_TOKENS      512u
#define WORLD_TEXT        4096u
#define WORLD_CHANNELS    3u
#define WORLD_CHOICES     4u
#define WORLD_MS          INT64_C(1000000)
#define WORLD_FINGERPRINT UINT64_C(0xfeed)

/* Ids of the test vocabulary: bytes are their own ids, then these. */
enum world_token {
    WORLD_THE = 256, /* "the " */
    WORLD_AB,        /* "ab" */
    WORLD_STOP_WORD, /* "END" */
    WORLD_BASE_COUNT,
    WORLD_EOS = WORLD_BASE_COUNT, /* the model's stop token */
    WORLD_THINK,
    WORLD_THINK_END,
    WORLD_TOOLS,
    WORLD_TOOLS_END,
    WORLD_HIDDEN,
    WORLD_VOCAB = WORLD_BASE_COUNT + 256,
};

struct world_call {
    bool used, ended;
    struct pool_id id;
    uint32_t token[WORLD_TOKENS]; /* of all choices, as they came */
    uint32_t token_count;
    struct {
        uint32_t token[WORLD_TOKENS];
        uint32_t token_count;
        enum finish_reason finish;
    } choice[WORLD_CHOICES];
    char text[WORLD_CHANNELS][WORLD_TEXT]; /* by channel */
    size_t text_bytes[WORLD_CHANNELS];
    struct token_logprob logprob[WORLD_TOKENS];
    uint32_t logprob_count;
    uint32_t deltas;
    enum status status;
    char status_text[512];
    bool has_summary;
    struct generate_summary summary;
    bool job_pending;
    uint64_t job;
    enum prompt_kind job_kind;
};

#define WORLD_RESIZE_SLOT 9999u /* of the one Resize call at a time */

#define WORLD_EXAMINE_SLOT 9998u /* and of the Examine call */
#define WORLD_HASHES       64u

/* What the last Examine call was told. */
struct world_examine {
    uint32_t reports, page_count, rows;
    uint64_t hash[TP_MAX][WORLD_HASHES];
    bool ended;
    enum status status;
    char text[256];
};

struct world_resize {
    bool ended;
    enum status status;
    char text[512];
    struct resize_progress progress; /* the last */
    uint32_t phases;                 /* bits of those seen */
};

struct world {
    struct core *core;
    struct core_options options;
    struct model_spec spec;
    int64_t now_ns;
    struct fake_worker worker[FAKE_RANKS]; /* by rank */
    struct fake_worker stranger;           /* says a hello of its own */
    uint32_t worker_ids;
    uint32_t draft_len[FAKE_RANKS], draft_luck; /* of workers launched */
    struct world_call call[WORLD_CALLS];
    uint32_t call_count;
    uint32_t dropped_count;
    struct worker_id dropped; /* the last one */
    bool exited;
    int exit_code;
    char exit_text[512];
    int64_t timer_ns; /* the last one asked for; 0: none */
    char log[2048];   /* of the last step, a line each */
    struct world_resize resize;
    struct world_examine examine;
    const char *next_tenant, *next_key; /* of the next call */
    int32_t next_priority;
    void *lent; /* to the next event: overwritten after it */
    size_t lent_bytes;
    uint64_t effect_hash; /* of all effects so far */
};

/* Options that tests change before world_start: tp 1, context 96, 8 running, 8 queued, pages of 4
 * tokens for two whole contexts, chunks of 16. */
void world_init(struct world *world);
void world_start(struct world *world); /* create the core */
void world_stop(struct world *world);  /* also checks that no worker complained */

/* One event through the core. */
void world_step(struct world *world, struct event event); /* sets now_ns */

/* Let time pass, with a tick at least every second. */
void world_tick(struct world *world, int64_t advance_ns);

/* A new process for a rank says hello; a process is gone. */
void world_launch(struct world *world, uint32_t rank);
void world_kill(struct world *world, uint32_t rank);

/* Deliver the oldest answer of a rank. False: there is none. */
bool world_deliver(struct world *world, uint32_t rank);

/* Deliver a message of the test's own in a rank's name. */
void world_message(struct world *world, uint32_t rank, const struct worker_message *message);

/* Take the oldest answer of a rank without delivering it; NULL: there is none. Valid until the
 * worker has answered FAKE_REPLIES times more. */
struct worker_message *world_take_answer(struct world *world, uint32_t rank);

/* Deliver answers, rank by rank, until there are none. */
void world_settle(struct world *world);

/* Settle after a loss: the next group forms one heartbeat later. */
void world_recover(struct world *world);

/* Launch all ranks and settle: the group serves. */
void world_serve(struct world *world);

/* A request with these tokens as its prompt, greedy; more is set by the caller. */
struct generate_request world_request(const uint32_t *prompt, uint32_t count, uint32_t max_tokens);
struct world_call *world_call(struct world *world, const struct generate_request *request);
void world_cancel(struct world *world, struct world_call *call, enum status reason);
void world_job_done(struct world *world, struct world_call *call, const uint32_t *token,
                    uint32_t count, bool in_reasoning);
/* Ask for another size; what came of it is in world->resize. */
void world_examine(struct world *world, const uint32_t *token, uint32_t token_count, uint32_t rows);
void world_resize(struct world *world, uint32_t tokens, uint32_t running, bool force);
void world_resize_by_memory(struct world *world, uint32_t mem_fraction);

void world_drain(struct world *world, int64_t deadline_ns);

/* Check a call against what its request alone gives (fake_draw, stop tokens, stop strings, limits):
 * all of it where it ended OK, else a beginning of it. */
void world_expect_stream(const struct world *world, const struct world_call *call,
                         const struct generate_request *request);

/* Check text of a channel. */
void world_expect_text(const struct world_call *call, enum channel channel, const char *text);

/* All pages are free and nothing runs. */
void world_expect_idle(struct world *world);

uint64_t world_random(uint64_t *state);

#endif
