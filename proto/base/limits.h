/* Every upper bound that two parts must agree on, and how the bounds relate.
 * A bound that only one module knows lives in that module. */
#ifndef ESPALIER_LIMITS_H
#define ESPALIER_LIMITS_H

/* --- the group ----------------------------------------------------------------------------- */
#define TP_MAX       8u /* ranks; the exactness contract sums eight segments */
#define SUM_SEGMENTS 8u /* fixed segments of every split inner dimension */

/* --- the model ------------------------------------------------------------------------------ */
#define MODEL_LAYERS_MAX  256u
#define MODEL_EXPERTS_MAX 1024u
#define MODEL_TOPK_MAX    32u
#define MODEL_VOCAB_MAX   (1u << 20)
#define CONTEXT_TOK_MAX   (1u << 22)

/* --- a step --------------------------------------------------------------------------------- */
#define PLAN_ROWS_MAX       8192u      /* rows of one step, all sequences together */
#define PLAN_SEQS_MAX       1024u      /* sequences of one step, and live sequences of a worker */
#define TREE_ROWS_MAX       64u        /* rows of a draft tree: one 64-bit ancestor mask a row */
#define DRAFT_LEN_MAX       32u        /* positions that one block of a drafter guesses */
#define DRAFT_TOP_MAX       16u        /* candidates a position */
#define DRAFT_POSITIONS_MAX 2048u      /* of one step, all sequences together */
#define KV_PAGE_TOK_MAX     128u       /* tokens of a page; 64 by default, 1 works */
#define KV_PAGES_MAX        (1u << 26) /* pages of a pool */
#define POOL_TOK_MAX        (1u << 24) /* tokens of a pool that is sized by memory */
#define PLAN_EXTENTS_MAX    65536u     /* page extents and page copies of one step */
#define RESIZE_MOVES_MAX    65536u     /* pages that one order to resize moves */
#define PLAN_BIASES_MAX     32768u     /* logit biases that one step's new sequences bring */
#define EXAMINE_PAGES_MAX   (1u << 18) /* cached pages that one order to examine names */
#define EXAMINE_HASHES_MAX  8192u      /* of them, several pages a hash where there are more */

/* --- a request ------------------------------------------------------------------------------ */
#define STOP_STRINGS_MAX       16u
#define STOP_STRING_BYTES_MAX  256u
#define STOP_TOKENS_MAX        16u
#define TOP_LOGPROBS_MAX       20u /* alternatives a client may ask for, as OpenAI's API allows */
#define CHOICES_MAX            16u /* replies to one prompt that a client may ask for */
#define PROMPT_BYTES_MAX       (8u << 20)
#define REPETITION_PENALTY_MAX 100.0f
#define REPLY_PENALTY_MAX      2.0f   /* presence and frequency, either sign, as in OpenAI's API */
#define LOGIT_BIAS_VALUE_MAX   100.0f /* either sign, as in OpenAI's API */
#define LOGIT_BIAS_MAX         1024u  /* tokens of one request */

/* --- the wire ------------------------------------------------------------------------------- */
#define FRAME_HEADER_BYTES_MAX   8192u
#define FRAME_BODY_BYTES_MAX     (16u << 20) /* of a client; holds the longest prompt with room */
#define FRAME_PARTS              3u          /* header, body, attachment */
#define WORKER_BODY_BYTES_MAX    (2u << 20)  /* between coordinator and worker; holds any plan */
#define METADATA_ENTRIES_MAX     32u
#define METADATA_KEY_BYTES_MAX   64u
#define METADATA_VALUE_BYTES_MAX 4096u
#define METHOD_BYTES_MAX         64u
#define NAME_BYTES_MAX           256u /* a tenant, a service, a model, a device, an address */
#define LINE_BYTES_MAX           511u /* a reason for a person: what a struct error holds */
#define CREDITS_MAX              (1u << 20)
#define INTERVAL_MS_MAX          (24u * 3600u * 1000u)

_Static_assert(SUM_SEGMENTS % TP_MAX == 0, "a rank owns whole segments");
_Static_assert(PROMPT_BYTES_MAX < FRAME_BODY_BYTES_MAX, "a prompt fits a frame");
_Static_assert(TREE_ROWS_MAX <= PLAN_ROWS_MAX, "a tree fits a step");
_Static_assert(EXAMINE_PAGES_MAX * 4u < WORKER_BODY_BYTES_MAX, "the pages fit a message");
_Static_assert(LOGIT_BIAS_MAX <= PLAN_BIASES_MAX, "any request's bias fits a step");

#endif
