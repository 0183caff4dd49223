/* The vocabulary: what bytes a token stands for, and which token a byte string is.
 *
 *   ids   0 .. base_count             base_count .. base_count + 256
 *         |--- base tokens -----------|--- special tokens ---|
 *         byte strings, id == rank    names: "<|im_end|>", "<think>", ...; the unnamed ones are
 *                                     "<|reserved_token_ID|>"
 *
 * Base tokens come from a tiktoken file (`base64 SP rank LF` a line, ranks ascending from 0), names
 * from added_tokens_decoder of tokenizer_config.json. Nobody writes a special id down: models
 * number them differently, so ids are found by name.
 *
 * Immutable after load; any number of threads may read it.
 */
#ifndef ESPALIER_VOCAB_H
#define ESPALIER_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define VOCAB_TOKEN_BYTES_MAX 256u /* of a base token or a special name */
#define VOCAB_SPECIALS        256u
#define VOCAB_NO_ID           UINT32_MAX

struct vocab;

/* Read both files. INVALID_ARGUMENT: malformed, err names file and line. NOT_FOUND: cannot be read.
 * On OK the caller owns *vocab_out. */
MUST_USE enum status vocab_load(const char *model_path, const char *config_path,
                                struct vocab **vocab_out, struct error *err);
void vocab_destroy(struct vocab *vocab);

/* Base and special tokens together. */
uint32_t vocab_size(const struct vocab *vocab);

/* The bytes of a base token or the name of a special one; borrowed, no NUL at its end.
 * id < vocab_size(). */
const char *vocab_bytes(const struct vocab *vocab, uint32_t id, uint32_t *bytes_out);

/* The base token that is exactly these bytes, or VOCAB_NO_ID. Never a special token. */
uint32_t vocab_find(const struct vocab *vocab, const char *data, size_t bytes);

/* The id of a special token, or VOCAB_NO_ID. */
uint32_t vocab_special(const struct vocab *vocab, const char *name);

bool vocab_is_special(const struct vocab *vocab, uint32_t id);

/* A special token that readers of the text are not meant to see: all of them but those marked
 * `"special": false` (<think>, </think> and the tool-call marks). */
bool vocab_is_hidden(const struct vocab *vocab, uint32_t id);

#endif
