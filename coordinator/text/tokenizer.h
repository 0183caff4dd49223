/* Text to token ids and back: split (piece_split.h), then merge (bpe.h), over a vocabulary.
 *
 * Text is only ever text. "<|im_end|>" inside it becomes the tokens of those ten characters, never
 * the control token: control tokens enter a prompt by id (prompt.h), so nothing a user writes can
 * forge one.
 *
 * The ids of a text do not depend on how long it is or on runs within it; other implementations cut
 * text at 400,000 characters, or runs at 25,000, before they split, and differ there.
 *
 * A tokenizer is immutable; any number of threads may encode with one. Encoding allocates; it is
 * work for a job, not for the loop.
 */
#ifndef ESPALIER_TOKENIZER_H
#define ESPALIER_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "text/text_buf.h"
#include "text/token_list.h"
#include "text/vocab.h"

struct tokenizer;

/* vocab is borrowed and must outlive the tokenizer. */
struct tokenizer *tokenizer_create(const struct vocab *vocab);
void tokenizer_destroy(struct tokenizer *tokenizer);

const struct vocab *tokenizer_vocab(const struct tokenizer *tokenizer);

/* Append the ids of text[0, bytes) to ids: at most one a byte. INVALID_ARGUMENT: not UTF-8; err
 * names the byte. RESOURCE_EXHAUSTED: more ids than ids->count_max, or no memory. O(n log n). */
MUST_USE enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text,
                                      size_t bytes, struct token_list *ids, struct error *err);

/* Append the bytes of ids[0, count) to out; special tokens as their names. Ids must be below
 * vocab_size(). The result need not be UTF-8: any token may hold a part of a character. */
MUST_USE enum status tokenizer_decode(const struct tokenizer *tokenizer, const uint32_t *ids,
                                      size_t count, struct text_buf *out, struct error *err);

#endif
