#include "reply.h"

#include <string.h>

#include "base/check.h"
#include "effect_buf.h"

/* Text on its way to a delta. Nothing is let out that was not held or fed, so the delta's bound is
 * that of its parts; the scan's own contract wants room for as much as it may hold. */
struct outgoing {
    char text[REPLY_DELTA_BYTES_MAX + STOP_HELD_BYTES_MAX];
    size_t bytes;
};

void reply_init(struct reply *reply, const struct reply_wish *wish, bool in_reasoning,
                bool is_one_of_many) {
    *reply = (struct reply){.is_one_of_many = is_one_of_many};
    channel_state_init(&reply->channel, in_reasoning);
    reply->text_channel = reply->channel.now;
    detok_init(&reply->detok, wish->keep_special);
    stop_scan_init(&reply->scan);
}

static bool is_among(uint32_t token, const uint32_t *list, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (list[i] == token) return true;
    return false;
}

static bool is_stop_token(const struct reply_wish *wish, const struct reply_context *context,
                          uint32_t token) {
    return !wish->ignore_eos && (is_among(token, context->stop_token, context->stop_token_count) ||
                                 is_among(token, wish->stop_token, wish->stop_token_count));
}

static void scan(struct reply *reply, const struct reply_wish *wish, const char *text, size_t bytes,
                 struct outgoing *out) {
    CHECK(out->bytes + bytes + STOP_HELD_BYTES_MAX <= sizeof out->text);
    out->bytes += stop_scan_feed(&reply->scan, &wish->stop, text, bytes, out->text + out->bytes);
}

static void feed(struct reply *reply, const struct reply_wish *wish, const struct vocab *vocab,
                 uint32_t token, struct outgoing *out) {
    char text[DETOK_OUT_BYTES_MAX];
    size_t bytes = detok_feed(&reply->detok, vocab, token, text);
    scan(reply, wish, text, bytes, out);
}

/* Let out what is held of the text so far, which ends here. */
static void flush(struct reply *reply, const struct reply_wish *wish, struct outgoing *out) {
    char text[DETOK_OUT_BYTES_MAX];
    size_t bytes = detok_finish(&reply->detok, text);
    scan(reply, wish, text, bytes, out);
    CHECK(out->bytes + STOP_HELD_BYTES_MAX <= sizeof out->text);
    out->bytes += stop_scan_finish(&reply->scan, out->text + out->bytes);
}

/* token is NULL, and finish NONE, for what is let out before a token's own text. */
static void emit(const struct reply *reply, const struct outgoing *out,
                 const struct reply_token *token, enum finish_reason finish,
                 struct effect_buf *effects, struct pool_id call) {
    struct generate_delta delta = {
        .channel = reply->text_channel,
        .choice = reply->choice,
        .finish_reason = reply->is_one_of_many ? finish : FINISH_NONE,
    };
    if (out->bytes > 0) {
        char *text = effect_buf_delta_text(effects, out->bytes);
        memcpy(text, out->text, out->bytes);
        delta.text = (struct bytes){.data = (const uint8_t *)text, .size = out->bytes};
    }
    if (token) {
        delta.token = token->token;
        delta.token_count = 1;
        delta.logprob = token->logprob;
        delta.logprob_count = token->logprob_count;
    }
    effect_buf_data(effects, call, &delta);
}

/* Text goes to another channel from here on. True: the old one's end completed a stop string. */
static bool change_channel(struct reply *reply, const struct reply_wish *wish, enum channel channel,
                           struct effect_buf *effects, struct pool_id call) {
    struct outgoing out = {.bytes = 0};
    flush(reply, wish, &out);
    if (out.bytes > 0) emit(reply, &out, NULL, FINISH_NONE, effects, call);
    if (reply->scan.found != STOP_NONE) return true;
    stop_scan_init(&reply->scan);
    reply->text_channel = channel;
    return false;
}

enum finish_reason reply_take(struct reply *reply, const struct reply_wish *wish,
                              const struct reply_context *context, const struct reply_token *token,
                              struct effect_buf *effects, struct pool_id call) {
    struct outgoing out = {.bytes = 0};
    bool stopped = is_stop_token(wish, context, *token->token);
    if (!stopped) {
        struct channel_token place = channel_state_take(&reply->channel, &context->marks,
                                                        *token->token);
        if (place.channel != reply->text_channel)
            stopped = change_channel(reply, wish, place.channel, effects, call);
        if (!stopped && (!place.is_mark || wish->keep_special))
            feed(reply, wish, context->vocab, *token->token, &out);
        stopped = stopped || reply->scan.found != STOP_NONE;
    }
    if (stopped || token->is_last) flush(reply, wish, &out);
    stopped = stopped || reply->scan.found != STOP_NONE; /* of what was held */
    enum finish_reason finish = stopped          ? FINISH_STOP
                                : token->is_last ? FINISH_LENGTH
                                                 : FINISH_NONE;
    emit(reply, &out, token, finish, effects, call);
    return finish;
}
