#include "text/channel.h"

enum symbol { SYMBOL_TEXT, THINK_BEGIN, THINK_END, TOOLS_BEGIN, TOOLS_END, SYMBOL_COUNT };

static const struct transition {
    enum channel next, of_token;
    bool is_mark;
} table[3][SYMBOL_COUNT] = {
#define STAY(channel)                                                                              \
    { channel, channel, false }
#define SKIP(channel)                                                                              \
    { channel, channel, true }
    [CHANNEL_CONTENT] = {[SYMBOL_TEXT] = STAY(CHANNEL_CONTENT),
                         [THINK_BEGIN] = {CHANNEL_REASONING, CHANNEL_REASONING, true},
                         [THINK_END] = SKIP(CHANNEL_CONTENT),
                         [TOOLS_BEGIN] = {CHANNEL_TOOL, CHANNEL_TOOL, true},
                         [TOOLS_END] = SKIP(CHANNEL_CONTENT)},
    [CHANNEL_REASONING] = {[SYMBOL_TEXT] = STAY(CHANNEL_REASONING),
                           [THINK_BEGIN] = SKIP(CHANNEL_REASONING),
                           [THINK_END] = {CHANNEL_CONTENT, CHANNEL_REASONING, true},
                           [TOOLS_BEGIN] = STAY(CHANNEL_REASONING),
                           [TOOLS_END] = STAY(CHANNEL_REASONING)},
    [CHANNEL_TOOL] = {[SYMBOL_TEXT] = STAY(CHANNEL_TOOL),
                      [THINK_BEGIN] = STAY(CHANNEL_TOOL),
                      [THINK_END] = STAY(CHANNEL_TOOL),
                      [TOOLS_BEGIN] = SKIP(CHANNEL_TOOL),
                      [TOOLS_END] = {CHANNEL_CONTENT, CHANNEL_TOOL, true}},
#undef STAY
#undef SKIP
};

struct channel_marks channel_marks_find(const struct vocab *vocab) {
    return (struct channel_marks){
        .think_begin = vocab_special(vocab, "<think>"),
        .think_end = vocab_special(vocab, "</think>"),
        .tools_begin = vocab_special(vocab, "<|tool_calls_section_begin|>"),
        .tools_end = vocab_special(vocab, "<|tool_calls_section_end|>"),
    };
}

void channel_state_init(struct channel_state *state, bool in_reasoning) {
    *state = (struct channel_state){in_reasoning ? CHANNEL_REASONING : CHANNEL_CONTENT};
}

static enum symbol symbol_of(const struct channel_marks *marks, uint32_t id) {
    if (id == marks->think_begin) return THINK_BEGIN;
    if (id == marks->think_end) return THINK_END;
    if (id == marks->tools_begin) return TOOLS_BEGIN;
    if (id == marks->tools_end) return TOOLS_END;
    return SYMBOL_TEXT;
}

struct channel_token channel_state_take(struct channel_state *state,
                                        const struct channel_marks *marks, uint32_t id) {
    struct transition transition = table[state->now][symbol_of(marks, id)];
    state->now = transition.next;
    return (struct channel_token){transition.of_token, transition.is_mark};
}

bool channel_in_reasoning(const struct channel_marks *marks, const uint32_t *ids, size_t count) {
    for (size_t i = count; i > 0; i--) {
        enum symbol symbol = symbol_of(marks, ids[i - 1]);
        if (symbol == THINK_BEGIN) return true;
        if (symbol == THINK_END) return false;
    }
    return false;
}
