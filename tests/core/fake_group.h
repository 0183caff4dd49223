/* Workers for tests of the core: they answer control messages as a group would, without a model.
 *
 * Each worker keeps, for every place of every page, a mark made of the token and position written
 * there. The token drawn at a row is a function of the marks of all places from the sequence's
 * first position to the row, read through the page table that the plans built. So a page given to
 * two sequences, freed too early, left out or put in the wrong order changes a token, and so does a
 * chunk cut wrongly. fake_draw says what must come out, from the tokens alone.
 *
 * Rows of a tree are written one place after the other, as the wire says; each draws from its own
 * path. After the walk the path's rows move to where they belong, and the other places hold
 * nothing. A drafter guesses right, nearly right, or at random, as its luck is set.
 *
 * A worker also checks every plan against what it holds and keeps the first complaint. Nothing here
 * is shared with the core but the wire's structures and its two hashes.
 */
#ifndef ESPALIER_FAKE_GROUP_H
#define ESPALIER_FAKE_GROUP_H

#include "event.h"

#define FAKE_RANKS    8u
#define FAKE_SEQS     16u /* of a step */
#define FAKE_ROWS     128u
#define FAKE_PAGES    2048u
#define FAKE_PLACES   4096u /* pages x page_tok */
#define FAKE_REPLIES  16u
#define FAKE_TOKENS   256u /* drawn in a step */
#define FAKE_LOGPROBS (FAKE_TOKENS * (1 + TOP_LOGPROBS_MAX))
#define FAKE_DRAFTS   128u /* positions drafted in a step */
#define FAKE_SCRIPTS  8u

/* A message on its way to the coordinator, with the memory behind it. */
struct fake_reply {
    struct worker_message message;
    struct result_sequence sequence[FAKE_SEQS];
    uint32_t token[FAKE_TOKENS];
    float draft_lse[FAKE_DRAFTS];
    struct draft_candidate candidate[FAKE_DRAFTS * DRAFT_TOP_MAX];
    struct token_logprob logprob[FAKE_LOGPROBS];
    uint8_t key[4];
    uint64_t hash[FAKE_PAGES];
};

struct fake_slot {
    bool live;
    uint32_t page[FAKE_PAGES];
    uint32_t page_count;
    uint32_t row_end; /* of all plans that named it */
    uint32_t committed;
    uint64_t prefix_hash;
    uint32_t drawn; /* tokens drawn for it */
    uint32_t token; /* the last of them */
    bool has_token; /* and its last step drew it */
};

struct fake_worker {
    struct worker_id id; /* 0: no process */
    uint32_t rank, tp;
    bool stuck;            /* plans are kept and not answered */
    bool cannot_resize;    /* once */
    bool cannot_examine;   /* likewise */
    uint32_t examined;     /* the number of the last order to examine */
    uint32_t memory_pages; /* what it could hold, of weights and pool */
    uint32_t moves;        /* of pages, so far */
    uint32_t draft_len;    /* positions its drafter guesses; 0: it has none */
    uint32_t draft_luck;   /* of 8 positions so many are guessed right */
    uint64_t cost_row_ns;  /* what a row is said to take; a step takes as much again */
    struct control_welcome limits;
    bool refused, shut_down;
    char refusal[256];
    uint64_t generation, step;
    struct fake_slot slot[FAKE_SEQS];
    uint64_t place[FAKE_PLACES];
    struct fake_reply reply[FAKE_REPLIES]; /* a ring */
    uint32_t reply_begin, reply_count;
    uint32_t rows_most; /* of a step so far */
    uint32_t rows_last;
    uint64_t trees, guesses_right; /* so far */
    uint32_t rows_drawn;           /* so far, that said "the token drawn last" */
    char complaint[256];           /* about a plan; empty: none */
};

/* Draws follow a script instead of the marks where a request's seed is FAKE_SCRIPT_SEED + index. */
#define FAKE_SCRIPT_SEED UINT64_C(0x5c00000000000000)
struct fake_script {
    const uint32_t *token;
    uint32_t count; /* then its last token again and again */
};
extern struct fake_script fake_script[FAKE_SCRIPTS];

/* Ids that draws without a script choose from. */
extern const uint32_t *fake_choice;
extern uint32_t fake_choice_count;

/* What a choice is drawn with in place of the seed. */
uint64_t fake_seed(uint64_t seed, uint32_t choice);

/* The token that follows token[0, count) for a request with this sampling and seed. */
uint32_t fake_draw(const uint32_t *token, uint32_t count, float temperature, uint64_t seed);

/* The log-probability that comes with alternative `index` (0: the token's own) of a token. */
struct token_logprob fake_logprob(uint32_t token, uint32_t index);

void fake_worker_init(struct fake_worker *worker, uint32_t rank, uint32_t tp, struct worker_id id);

/* Say HELLO. */
void fake_worker_hello(struct fake_worker *worker, uint64_t fingerprint);

/* Take a message of the coordinator; answers go to the ring. */
void fake_worker_take(struct fake_worker *worker, const struct control_message *message);

/* A fresh reply at the end of the ring, and the oldest one (NULL: none), which is then gone. */
struct fake_reply *fake_worker_push(struct fake_worker *worker, enum worker_message_type type);
const struct fake_reply *fake_worker_pop(struct fake_worker *worker);

#endif
