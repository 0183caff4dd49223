#include "sim_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "sim_random.h"

#define NAME_BYTES 64

static const struct {
    uint32_t id;
    const char *text;
} word[] = {{SIM_TOKEN_THE, "the "},      {SIM_TOKEN_AB, "ab"},
            {SIM_TOKEN_WORD, "END"},      {SIM_TOKEN_EOS, "[EOS]"},
            {SIM_TOKEN_THINK, "<think>"}, {SIM_TOKEN_THINK_END, "</think>"}};
#define WORD_COUNT (sizeof word / sizeof word[0])

static const char *text_of(uint32_t token, char byte[2]) {
    for (size_t i = 0; i < WORD_COUNT; i++)
        if (word[i].id == token) return word[i].text;
    byte[0] = (char)token;
    byte[1] = '\0';
    return byte;
}

static void put_base64(FILE *file, const char *text, size_t bytes, uint32_t rank) {
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < bytes; i += 3) {
        uint32_t bits = 0;
        for (size_t j = 0; j < 3; j++)
            bits = bits << 8 | (i + j < bytes ? (unsigned char)text[i + j] : 0);
        for (size_t j = 0; j < 4; j++)
            fputc(i + j > bytes ? '=' : digit[bits >> (18 - 6 * j) & 63], file);
    }
    fprintf(file, " %u\n", rank);
}

static void write_ranks(const char *path) {
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    for (uint32_t id = 0; id < SIM_TOKEN_SPECIAL; id++) {
        char byte[2];
        const char *text = text_of(id, byte);
        put_base64(file, text, id < 256 ? 1 : strlen(text), id);
    }
    CHECK(fclose(file) == 0);
}

static void write_specials(const char *path) {
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    fprintf(file, "{\"added_tokens_decoder\": {");
    for (uint32_t id = SIM_TOKEN_EOS; id <= SIM_TOKEN_THINK_END; id++) {
        char byte[2];
        fprintf(file, "%s\"%u\": {\"content\": \"%s\", \"special\": %s}",
                id == SIM_TOKEN_EOS ? "" : ", ", id, text_of(id, byte),
                id == SIM_TOKEN_EOS ? "true" : "false");
    }
    fprintf(file, "}}");
    CHECK(fclose(file) == 0);
}

const struct vocab *sim_model_vocab(void) {
    static struct vocab *vocab;
    if (vocab) return vocab;
    char folder[] = "/tmp/espalier-sim-XXXXXX", ranks[NAME_BYTES], specials[NAME_BYTES];
    CHECK(mkdtemp(folder) != NULL);
    snprintf(ranks, sizeof ranks, "%s/ranks", folder);
    snprintf(specials, sizeof specials, "%s/specials", folder);
    write_ranks(ranks);
    write_specials(specials);
    struct error err;
    CHECK(vocab_load(ranks, specials, &vocab, &err) == STATUS_OK);
    unlink(ranks);
    unlink(specials);
    rmdir(folder);
    return vocab;
}

struct model_spec sim_model_spec(void) {
    return (struct model_spec){
        .model_type = "simulated",
        .vocab = SIM_TOKEN_VOCAB,
        .stop_token = {SIM_TOKEN_EOS},
        .stop_token_count = 1,
    };
}

uint64_t sim_model_extend(uint64_t before, uint32_t token, uint32_t position) {
    return sim_random_mix(before ^ sim_random_mix(((uint64_t)position << 32 | token) + 1));
}

uint64_t sim_model_fold(uint64_t fold, uint64_t place) {
    return sim_random_mix(fold * 3 + place);
}

static uint64_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static bool is_penalized(const struct sim_model_sampling *sampling) {
    bool repetition = sampling->repetition_penalty != 0 && sampling->repetition_penalty != 1;
    return repetition || sampling->presence_penalty != 0 || sampling->frequency_penalty != 0;
}

uint64_t sim_model_bias(const struct logit_bias *bias, uint32_t count) {
    uint64_t hash = 0;
    for (uint32_t i = 0; i < count; i++)
        hash = sim_random_mix(hash ^ ((uint64_t)bias[i].token << 32 | bits_of(bias[i].value)));
    return hash;
}

uint32_t sim_model_draw(uint64_t fold, const struct sim_model_sampling *sampling) {
    static const uint32_t common[] = {'a', 'b', 'c', 'd', 'e', ' ',           'E',
                                      'N', 'D', '.', 'a', 'b', SIM_TOKEN_THE, SIM_TOKEN_AB};
    static const uint32_t rare[] = {SIM_TOKEN_WORD, SIM_TOKEN_EOS, SIM_TOKEN_THINK_END,
                                    SIM_TOKEN_THINK, SIM_TOKEN_EOS};
    uint64_t hash = fold;
    if (is_penalized(sampling)) {
        hash = sim_random_mix(hash ^ bits_of(sampling->repetition_penalty) << 24);
        hash = sim_random_mix(hash ^ bits_of(sampling->presence_penalty));
        hash = sim_random_mix(hash ^ bits_of(sampling->frequency_penalty));
        hash = sim_random_mix(hash ^ sampling->reply_begin);
    }
    if (sampling->bias != 0) hash = sim_random_mix(hash ^ sampling->bias);
    if (sampling->temperature > 0) {
        hash = sim_random_mix(hash ^ sim_random_mix(sampling->seed + 77));
        hash = sim_random_mix(hash ^ bits_of(sampling->temperature));
        hash = sim_random_mix(hash ^ bits_of(sampling->top_p) << 24 ^ sampling->top_k);
        hash = sim_random_mix(hash ^ sampling->choice);
    }
    if (hash % 16 == 0) return rare[(hash >> 32) % (sizeof rare / sizeof rare[0])];
    return common[(hash >> 32) % (sizeof common / sizeof common[0])];
}

struct token_logprob sim_model_logprob(uint32_t token, uint32_t index) {
    uint32_t alternative = (token + 7 * index) % SIM_TOKEN_VOCAB;
    return (struct token_logprob){.token = alternative, .logprob = -0.5f - (float)index};
}

/* The text of one channel between two marks; stop strings are looked for in it alone. */
struct segment {
    enum channel now; /* of the next token */
    enum channel channel;
    char text[SIM_MODEL_TEXT_BYTES];
    size_t bytes;
};

/* The stop string that ends first ends the text; of those that end there, the longest. */
static bool cut_at_stop(const struct generate_request *request, struct segment *segment) {
    size_t end = SIZE_MAX, begin = 0;
    for (uint32_t i = 0; i < request->stop_count; i++) {
        const char *found = strstr(segment->text, request->stop[i]);
        if (!found) continue;
        size_t at = (size_t)(found - segment->text), found_end = at + strlen(request->stop[i]);
        if (found_end > end || (found_end == end && at > begin)) continue;
        begin = at;
        end = found_end;
    }
    if (end == SIZE_MAX) return false;
    segment->bytes = request->include_stop ? end : begin;
    segment->text[segment->bytes] = '\0';
    return true;
}

static void close_segment(struct sim_model_stream *stream, const struct segment *segment) {
    char *text = stream->text[segment->channel];
    size_t bytes = strlen(text);
    CHECK(bytes + segment->bytes < SIM_MODEL_TEXT_BYTES);
    memcpy(text + bytes, segment->text, segment->bytes + 1);
}

static bool is_stop_token(const struct generate_request *request, uint32_t token) {
    if (request->ignore_eos) return false;
    for (uint32_t i = 0; i < request->stop_token_count; i++)
        if (request->stop_token[i] == token) return true;
    return token == SIM_TOKEN_EOS;
}

/* A mark of either kind is no text; </think> is the last token of the reasoning it ends. */
static bool take_text(const struct generate_request *request, uint32_t token,
                      struct sim_model_stream *stream, struct segment *segment) {
    bool is_mark = token == SIM_TOKEN_THINK || token == SIM_TOKEN_THINK_END;
    enum channel channel = token == SIM_TOKEN_THINK ? CHANNEL_REASONING : segment->now;
    segment->now = token == SIM_TOKEN_THINK_END ? CHANNEL_CONTENT : channel;
    if (channel != segment->channel) {
        close_segment(stream, segment);
        segment->channel = channel;
        segment->bytes = 0;
    }
    char byte[2];
    const char *text = text_of(token, byte);
    if ((is_mark || token == SIM_TOKEN_EOS) && !request->keep_special) text = "";
    size_t bytes = strlen(text);
    CHECK(segment->bytes + bytes < SIM_MODEL_TEXT_BYTES);
    memcpy(segment->text + segment->bytes, text, bytes + 1);
    segment->bytes += bytes;
    return cut_at_stop(request, segment);
}

void sim_model_serial(const struct sim_model_wish *wish, struct sim_model_stream *stream) {
    static struct segment segment;
    const struct generate_request *request = wish->request;
    const struct sim_model_sampling sampling = {
        .temperature = request->sampling.temperature,
        .top_p = request->sampling.top_p,
        .top_k = request->sampling.top_k,
        .choice = wish->choice,
        .seed = wish->seed,
        .repetition_penalty = request->sampling.repetition_penalty,
        .presence_penalty = request->sampling.presence_penalty,
        .frequency_penalty = request->sampling.frequency_penalty,
        .reply_begin = wish->prompt_count,
        .bias = sim_model_bias(request->sampling.logit_bias, request->sampling.logit_bias_count)};
    segment.now = segment.channel = wish->in_reasoning ? CHANNEL_REASONING : CHANNEL_CONTENT;
    segment.bytes = 0;
    segment.text[0] = '\0';
    memset(stream->text, 0, sizeof stream->text);
    stream->count = 0;
    uint64_t place = SIM_MODEL_START, fold = 0;
    for (uint32_t i = 0; i < wish->prompt_count; i++) {
        place = sim_model_extend(place, wish->prompt[i], i);
        fold = sim_model_fold(fold, place);
    }
    stream->finish = FINISH_LENGTH;
    for (uint32_t at = wish->prompt_count; at < wish->tok_limit; at++) {
        uint32_t token = sim_model_draw(fold, &sampling);
        CHECK(stream->count < SIM_MODEL_TOKENS);
        stream->token[stream->count++] = token;
        place = sim_model_extend(place, token, at);
        fold = sim_model_fold(fold, place);
        if (is_stop_token(request, token) || take_text(request, token, stream, &segment)) {
            stream->finish = FINISH_STOP;
            break;
        }
    }
    close_segment(stream, &segment);
}
