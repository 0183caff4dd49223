/* The model of the simulated world: which token follows which prefix, and what a request alone
 * gives.
 *
 * Every place of the KV cache stands for a prefix:
 *
 *     place(i) = extend(place(i - 1), token(i), i)         what a worker stores at position i
 *     fold     = fold of place(0), place(1), ... place(n)  what attention over them reads
 *     token    = draw(fold, sampling)
 *
 * A worker gets its places through page tables that plans built; sim_model_serial gets them from
 * the tokens alone, one after the other. Whatever goes wrong with a page, a slot, a chunk or a
 * position between the two changes a token.
 */
#ifndef ESPALIER_SIM_MODEL_H
#define ESPALIER_SIM_MODEL_H

#include "message.h"
#include "model_spec.h"
#include "text/vocab.h"

#define SIM_MODEL_TOKENS     384u  /* of one reply at most */
#define SIM_MODEL_TEXT_BYTES 4096u /* of one reply's channel */
#define SIM_MODEL_CHANNELS   2u    /* content and reasoning */

/* Ids of the vocabulary: bytes are their own ids, then these. */
enum sim_token {
    SIM_TOKEN_THE = 256, /* "the " */
    SIM_TOKEN_AB,        /* "ab" */
    SIM_TOKEN_WORD,      /* "END" */
    SIM_TOKEN_SPECIAL,
    SIM_TOKEN_EOS = SIM_TOKEN_SPECIAL, /* "[EOS]", the model's stop token */
    SIM_TOKEN_THINK,
    SIM_TOKEN_THINK_END,
    SIM_TOKEN_VOCAB = SIM_TOKEN_SPECIAL + 256,
};

/* Loaded once, through files, as the coordinator loads its own. */
const struct vocab *sim_model_vocab(void);
struct model_spec sim_model_spec(void);

#define SIM_MODEL_START UINT64_C(0x51)

uint64_t sim_model_extend(uint64_t before, uint32_t token, uint32_t position);
uint64_t sim_model_fold(uint64_t fold, uint64_t place);

struct sim_model_sampling {
    float temperature, top_p;
    uint32_t top_k, choice;
    uint64_t seed;
    float repetition_penalty, presence_penalty, frequency_penalty;
    uint32_t reply_begin;
    uint64_t bias; /* sim_model_bias of it */
};

/* Greedy drawing looks at penalties and bias alone. What of the prefix is prompt and what is reply
 * matters to penalties only. */

uint32_t sim_model_draw(uint64_t fold, const struct sim_model_sampling *sampling);

uint64_t sim_model_bias(const struct logit_bias *bias, uint32_t count); /* 0 of none */

/* What comes with alternative `index` (0: the token's own). */
struct token_logprob sim_model_logprob(uint32_t token, uint32_t index);

/* What a request gives when it runs alone. */
struct sim_model_stream {
    uint32_t token[SIM_MODEL_TOKENS];
    uint32_t count;
    char text[SIM_MODEL_CHANNELS][SIM_MODEL_TEXT_BYTES]; /* by channel */
    enum finish_reason finish;
};

struct sim_model_wish {
    const struct generate_request *request;
    const uint32_t *prompt;
    uint32_t prompt_count;
    bool in_reasoning;
    uint64_t seed;
    uint32_t choice;
    uint32_t tok_limit; /* prompt and reply together */
};

void sim_model_serial(const struct sim_model_wish *wish, struct sim_model_stream *stream);

#endif
