/* A worker without a model: what it holds and what it makes of a plan.
 *
 *   page table of a slot     [ 7 | 3 | 9 ]
 *   places of page 7         p0 p1 p2 p3        each is the prefix that ends there, two ways:
 *                                               the wire's hash_chain, and the model's own
 *
 * It keeps places, page tables and slots as a real worker would and makes the checks a real one
 * makes before its first collective (generation, step number, page_base, committed length, prefix
 * hash), and more: the place before the first row must hold the prefix that the plan names, no row
 * is written into a page that another sequence of the step uses, a slot is released before it
 * starts anew, the step stays within the budgets of the welcome. The first thing found wrong is its
 * complaint, and an end of the simulation: no fault of the simulated world excuses a wrong plan.
 *
 * A tree's rows are written one place each behind the committed ones, and the places are those of
 * their paths; after the walk the path's places are moved together, and the others hold nothing. A
 * drafter guesses what the model will draw as often as it has luck, else anything.
 *
 * Nothing here is shared with the coordinator but the wire's structures and its two hashes.
 */
#ifndef ESPALIER_SIM_WORKER_H
#define ESPALIER_SIM_WORKER_H

#include "message.h"

#define SIM_WORKER_SLOTS  32u
#define SIM_WORKER_PAGES  2048u /* of a pool */
#define SIM_WORKER_TABLE  512u  /* pages of a slot */
#define SIM_WORKER_PLACES 4096u
#define SIM_WORKER_TOKENS 1200u /* drawn in a step */
#define SIM_WORKER_DRAFTS 256u  /* positions drafted in a step */
#define SIM_WORKER_LINE   256u

struct sim_place {
    uint64_t wire, own;
};

struct sim_slot {
    bool live;
    uint32_t page[SIM_WORKER_TABLE];
    uint32_t page_count;
    uint32_t committed;
    uint64_t prefix_hash;
    bool has_drawn; /* its last step ended in a token: */
    uint32_t drawn;
    uint64_t bias; /* sim_model_bias of what its first plan brought */
};

struct sim_worker {
    uint32_t rank;
    uint32_t chunk_tok_max;        /* what a step may compute of prompts */
    uint32_t tree_rows_max;        /* rows of a tree */
    uint32_t draft_len;            /* positions its drafter guesses; 0: it has none */
    uint32_t draft_luck;           /* of ten positions so many are guessed right */
    struct control_welcome limits; /* page_tok 0: not welcomed yet */
    uint64_t generation, step;     /* 0: in no group */
    struct sim_slot slot[SIM_WORKER_SLOTS];
    struct sim_place place[SIM_WORKER_PLACES];
    uint16_t page_users[SIM_WORKER_PAGES]; /* sequences of the last plan that name the page */
    struct result_sequence drawn[SIM_WORKER_SLOTS + 1]; /* of the last plan, as all below */
    uint32_t token[SIM_WORKER_TOKENS + 1];              /* and room for a lie */
    struct token_logprob logprob[SIM_WORKER_TOKENS * (1 + TOP_LOGPROBS_MAX)];
    float draft_lse[SIM_WORKER_DRAFTS];
    struct draft_candidate candidate[SIM_WORKER_DRAFTS * DRAFT_TOP_MAX];
    uint64_t rows_ahead;             /* so far, that were planned before their token was known */
    uint64_t trees, guesses_right;   /* so far */
    char complaint[SIM_WORKER_LINE]; /* empty: none */
};

void sim_worker_start(struct sim_worker *worker, uint32_t rank, uint32_t chunk_tok_max);
void sim_worker_welcome(struct sim_worker *worker, const struct control_welcome *welcome);

/* Join a generation, or with 0 leave it: all slots are forgotten, and what places hold is none of
 * the next generation's business. */
void sim_worker_join(struct sim_worker *worker, uint64_t generation);

/* Move pages, then have another size, unless it fails. */
void sim_worker_resize(struct sim_worker *worker, const struct control_resize *resize, bool fails);

/* Check and run a plan. The result's arrays are the worker's, until its next plan. */
struct step_result sim_worker_run(struct sim_worker *worker, const struct step_plan *plan);

#endif
