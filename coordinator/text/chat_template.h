/* A conversation to a prompt, by the rules of Kimi K2.5 and K2.6.
 *
 *   message   <|im_ROLE|>NAME<|im_middle|>BODY<|im_end|>     ROLE: user, assistant, else system
 *                                                            NAME: the message's name, or its role
 *   prompt    [tool declarations] message* <|im_assistant|>assistant<|im_middle|><think>[</think>]
 *
 *   BODY of an assistant  <think>REASONING</think>CONTENT[TOOL CALLS]
 *           a tool        ## Return of CALL_ID LF CONTENT
 *           others        CONTENT
 *
 * There is no system message but the client's. Reasoning of the past is dropped, its empty marks
 * stay: the past ends with the last assistant message that calls no tool, so that reasoning lives
 * on through a chain of calls. `preserve_thinking` keeps all of it. With `thinking` false no
 * reasoning is kept, and the prompt ends with the marks closed.
 *
 * The request is one JSON object:
 *
 *   {"messages": [{"role": "user", "content": "Hello"}, ...],
 *    "tools": [...],                                                  may be absent or null
 *    "chat_template_kwargs": {"thinking": true, "preserve_thinking": false}}            likewise
 *
 * Clients' text enters the prompt as text (prompt.h). A template is a value, immutable after init;
 * any thread. Rendering allocates; it is work for a job.
 */
#ifndef ESPALIER_CHAT_TEMPLATE_H
#define ESPALIER_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "text/prompt.h"
#include "text/vocab.h"

#define CHAT_MARK_TABLE(X)                                                                         \
    X(IM_USER, "<|im_user|>")                                                                      \
    X(IM_ASSISTANT, "<|im_assistant|>")                                                            \
    X(IM_SYSTEM, "<|im_system|>")                                                                  \
    X(IM_MIDDLE, "<|im_middle|>")                                                                  \
    X(IM_END, "<|im_end|>")                                                                        \
    X(THINK_BEGIN, "<think>")                                                                      \
    X(THINK_END, "</think>")                                                                       \
    X(TOOLS_BEGIN, "<|tool_calls_section_begin|>")                                                 \
    X(TOOLS_END, "<|tool_calls_section_end|>")                                                     \
    X(CALL_BEGIN, "<|tool_call_begin|>")                                                           \
    X(CALL_ARGUMENT, "<|tool_call_argument_begin|>")                                               \
    X(CALL_END, "<|tool_call_end|>")                                                               \
    X(MEDIA_BEGIN, "<|media_begin|>")                                                              \
    X(MEDIA_CONTENT, "<|media_content|>")                                                          \
    X(MEDIA_PAD, "<|media_pad|>")                                                                  \
    X(MEDIA_END, "<|media_end|>")

enum chat_mark {
#define X(name, text) CHAT_##name,
    CHAT_MARK_TABLE(X)
#undef X
        CHAT_MARK_COUNT
};

struct chat_template {
    uint32_t mark[CHAT_MARK_COUNT]; /* ids */
    bool has_images;                /* an image becomes its placeholder; else it is refused */
};

/* FAILED_PRECONDITION: the vocabulary lacks a mark; err names it. */
MUST_USE enum status chat_template_init(struct chat_template *chat, const struct vocab *vocab,
                                        bool has_images, struct error *err);

/* Append a request's prompt. INVALID_ARGUMENT: not such a request; err names the path and what was
 * found there. UNIMPLEMENTED: an image. RESOURCE_EXHAUSTED: more text than the prompt may hold. */
MUST_USE enum status chat_template_render(const struct chat_template *chat, const char *request,
                                          size_t bytes, struct prompt *prompt, struct error *err);

#endif
