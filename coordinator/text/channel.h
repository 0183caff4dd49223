/* Which channel a generated token belongs to: content, reasoning or tool calls.
 *
 *                       </think>                     <|tool_calls_section_begin|>
 *    prompt ends  ┌───────────┐ ────────▶ ┌─────────┐ ────────▶ ┌──────┐
 *    in <think> ▶ │ REASONING │           │ CONTENT │           │ TOOL │
 *                 └───────────┘ ◀──────── └─────────┘ ◀──────── └──────┘
 *                       <think>       ▲              <|tool_calls_section_end|>
 *                                     └ prompt ends elsewhere
 *
 * A token that moves, or would move, between channels is a mark: structure, not text. Marks of tool
 * calls inside reasoning are text of the reasoning, for a model thinks about calls it does not
 * make; so are marks of thinking inside a call. Marks inside the tool section (one call's begin,
 * argument, end) are tokens of the tool channel: whoever parses calls needs them.
 *
 * Tokens, not text, decide: text that spells a mark is text. Values; one thread at a time.
 */
#ifndef ESPALIER_CHANNEL_H
#define ESPALIER_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "message.h"
#include "text/vocab.h"

/* The ids that separate channels; VOCAB_NO_ID where the vocabulary lacks one. */
struct channel_marks {
    uint32_t think_begin, think_end;
    uint32_t tools_begin, tools_end;
};

struct channel_state {
    enum channel now;
};

struct channel_token {
    enum channel channel; /* of a mark: the one it opens or closes */
    bool is_mark;
};

struct channel_marks channel_marks_find(const struct vocab *vocab);

void channel_state_init(struct channel_state *state, bool in_reasoning);

/* Take the next generated token and say where it belongs. */
struct channel_token channel_state_take(struct channel_state *state,
                                        const struct channel_marks *marks, uint32_t id);

/* True where a prompt leaves its last <think> open. */
bool channel_in_reasoning(const struct channel_marks *marks, const uint32_t *ids, size_t count);

#endif
