/* One request's tokens turned into what its client sees: text in channels, and when to end.
 *
 *   token ─▶ channel ─▶ detok ─▶ stop scan ─▶ delta
 *
 * A channel is a text of its own: where it changes, what was held of the old one (half a character,
 * the beginning of a stop string) is let out first, so no stop string spans two channels. Every
 * token drawn is in exactly one delta, marks and stop tokens included; their bytes are not text.
 * Values without memory behind them; live inside a request.
 */
#ifndef ESPALIER_REPLY_H
#define ESPALIER_REPLY_H

#include "base/pool.h"
#include "message.h"
#include "text/channel.h"
#include "text/detok.h"
#include "text/stop.h"
#include "text/vocab.h"

#define REPLY_DELTAS_MAX 2u /* of one token: the end of the old channel, and its own */

/* Text of one delta: what was held, one token's, and a character cut off. */
#define REPLY_DELTA_BYTES_MAX (STOP_HELD_BYTES_MAX + DETOK_OUT_BYTES_MAX + UTF8_REPLACEMENT_BYTES)

struct effect_buf;

/* What is the same for all requests. */
struct reply_context {
    const struct vocab *vocab;
    struct channel_marks marks;
    const uint32_t *stop_token; /* the model's */
    uint32_t stop_token_count;
};

/* What the request asked for; written once. */
struct reply_wish {
    struct stop_set stop;
    uint32_t stop_token[STOP_TOKENS_MAX]; /* besides the model's */
    uint32_t stop_token_count;
    bool ignore_eos; /* no token ends the reply; stop strings still do */
    bool keep_special;
};

struct reply {
    uint32_t choice;
    bool is_one_of_many; /* so its deltas say when it ends */
    struct channel_state channel;
    enum channel text_channel; /* of what detok and scan hold */
    struct detok detok;
    struct stop_scan scan;
};

/* One token as it was drawn. */
struct reply_token {
    const uint32_t *token; /* lives as long as the effects; so does logprob */
    const struct token_logprob *logprob;
    uint32_t logprob_count;
    bool is_last; /* max_tokens or the context are reached with it */
};

/* Of choice 0; for others, the caller changes that. */
void reply_init(struct reply *reply, const struct reply_wish *wish, bool in_reasoning,
                bool is_one_of_many);

/* Take a token and emit its deltas. FINISH_NONE: more is to come. */
enum finish_reason reply_take(struct reply *reply, const struct reply_wish *wish,
                              const struct reply_context *context, const struct reply_token *token,
                              struct effect_buf *effects, struct pool_id call);

#endif
