/* A prompt as it is put together: text, and control tokens at places in it.
 *
 *   text      u s e r H e l l o
 *   specials ^       ^         ^        <|im_user|> at 0, <|im_middle|> at 4, <|im_end|> at 9
 *
 * The two never mix: what comes as text is encoded as text, so no user can write a control token.
 * Text added in several calls with no control token between is one text, and encoded as one.
 * Owns its memory; one thread at a time.
 */
#ifndef ESPALIER_PROMPT_H
#define ESPALIER_PROMPT_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "text/text_buf.h"
#include "text/token_list.h"
#include "text/tokenizer.h"

struct prompt_special {
    size_t at; /* before this byte of the text */
    uint32_t id;
};

struct prompt {
    struct text_buf text;
    struct prompt_special *special; /* [special_count], by place; owned */
    size_t special_count, special_capacity;
};

void prompt_init(struct prompt *prompt, size_t text_bytes_max);
void prompt_deinit(struct prompt *prompt);

/* Text that exceeds text_bytes_max, and all after it, is not added; prompt->text.full tells. */
void prompt_add_text(struct prompt *prompt, const char *text, size_t bytes);
void prompt_add_special(struct prompt *prompt, uint32_t id);

/* Append the prompt's ids. Statuses as tokenizer_encode. */
MUST_USE enum status prompt_encode(const struct prompt *prompt, const struct tokenizer *tokenizer,
                                   struct token_list *ids, struct error *err);

/* Append the prompt as one text with control tokens by name: for people. It cannot be encoded back.
 */
void prompt_print(const struct prompt *prompt, const struct vocab *vocab, struct text_buf *out);

#endif
