#include "prompt_flags.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "ID=VALUE" at text, ended by a comma or the end: what is behind it; NULL where it is no such. */
static const char *parse_bias(const char *text, struct logit_bias *bias_out) {
    char *end;
    if (*text < '0' || *text > '9') return NULL;
    unsigned long token = strtoul(text, &end, 10);
    if (*end != '=' || token >= MODEL_VOCAB_MAX) return NULL;
    const char *number = end + 1;
    double value = strtod(number, &end);
    if (end == number || (*end != ',' && *end != '\0')) return NULL;
    if (!(fabs(value) <= (double)LOGIT_BIAS_VALUE_MAX)) return NULL;
    *bias_out = (struct logit_bias){.token = (uint32_t)token, .value = (float)value};
    return *end == ',' ? end + 1 : end;
}

/* Into its place by ascending id. False: the id is there already. */
static bool insert_bias(struct logit_bias *bias, uint32_t count, struct logit_bias added) {
    uint32_t at = count;
    for (; at > 0 && bias[at - 1].token >= added.token; at--) {
        if (bias[at - 1].token == added.token) return false;
        bias[at] = bias[at - 1];
    }
    bias[at] = added;
    return true;
}

static enum status take_biases(struct prompt_flags *flags, uint32_t *count_out, struct error *err) {
    uint32_t count = *count_out = 0;
    for (uint32_t i = 0; i < flags->logit_bias.count; i++) {
        const char *text = flags->logit_bias.item[i];
        do {
            struct logit_bias bias;
            const char *rest = parse_bias(text, &bias);
            if (!rest)
                return error_set(
                    err, STATUS_INVALID_ARGUMENT,
                    "--logit-bias: found \"%s\", accepted: ID=VALUE,... with ids below "
                    "%u and values from -%g to %g",
                    text, MODEL_VOCAB_MAX, (double)LOGIT_BIAS_VALUE_MAX,
                    (double)LOGIT_BIAS_VALUE_MAX);
            if (count == LOGIT_BIAS_MAX)
                return error_set(err, STATUS_INVALID_ARGUMENT,
                                 "--logit-bias: found \"%s\" as one more, accepted: up to %u ids",
                                 text, LOGIT_BIAS_MAX);
            if (!insert_bias(flags->bias, count++, bias))
                return error_set(err, STATUS_INVALID_ARGUMENT,
                                 "--logit-bias: found id %u twice, accepted: each id once",
                                 bias.token);
            text = rest;
        } while (*text != '\0');
    }
    *count_out = count;
    return STATUS_OK;
}

enum status prompt_flags_apply(struct prompt_flags *flags, const struct options_program *program,
                               struct generate_request *request, struct error *err) {
    uint32_t bias_count;
    enum status status = take_biases(flags, &bias_count, err);
    if (status != STATUS_OK) return status;
    request->max_tokens = flags->tokens;
    request->sampling = (struct sampling){.temperature = (float)flags->temperature,
                                          .top_p = (float)flags->top_p,
                                          .top_k = flags->top_k,
                                          .min_p = (float)flags->min_p,
                                          .repetition_penalty = (float)flags->repetition_penalty,
                                          .presence_penalty = (float)flags->presence_penalty,
                                          .frequency_penalty = (float)flags->frequency_penalty,
                                          .logit_bias = flags->bias,
                                          .logit_bias_count = bias_count,
                                          .seed = flags->seed};
    for (uint32_t i = 0; i < program->option_count; i++)
        if (strcmp(program->option[i].name, "--seed") == 0)
            request->sampling.has_seed = program->option[i].given != NULL;
    request->stop = flags->stop.item;
    request->stop_count = flags->stop.count;
    request->ignore_eos = flags->ignore_eos;
    return STATUS_OK;
}

static const char *finish_word(enum finish_reason reason) {
    switch (reason) {
    case FINISH_STOP: return "stop";
    case FINISH_LENGTH: return "length";
    case FINISH_CANCELLED: return "cancelled";
    case FINISH_ERROR: return "error";
    case FINISH_NONE: break;
    }
    return "none";
}

void prompt_flags_print_stats(const struct generate_summary *summary) {
    double first = (double)summary->first_token_ns / 1e9;
    double rest = (double)summary->total_ns / 1e9 - first;
    double rate = summary->completion_tokens > 1 && rest > 0
                      ? (double)(summary->completion_tokens - 1) / rest
                      : 0;
    fprintf(stderr,
            "%u prompt tokens, first token after %.2f s, %u tokens in %.2f s, %.1f tokens/s, "
            "finish %s, seed %llu\n",
            summary->prompt_tokens, first, summary->completion_tokens,
            (double)summary->total_ns / 1e9, rate, finish_word(summary->finish_reason),
            (unsigned long long)summary->seed);
    for (uint32_t i = 0; i < summary->choice_count; i++) {
        const struct choice_summary *choice = &summary->choice[i];
        fprintf(stderr, "choice %u: %u tokens, finish %s\n", i, choice->completion_tokens,
                finish_word(choice->finish_reason));
    }
}
