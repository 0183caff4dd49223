/* The tokens that a model gives to one fixed prompt, recorded in a file: a line a model and number
 * formats,
 *
 *     MODEL-FINGERPRINT KV-DTYPE ACTIVATION-DTYPE TOKEN TOKEN ...        # a comment
 *
 * Logits are the same to the bit whatever the batch, the ranks, the threads: so one line serves
 * every group that serves the model so. */
#ifndef ESPALIER_VERIFY_TOKENS_H
#define ESPALIER_VERIFY_TOKENS_H

#include <stdbool.h>

#include "message.h"

#define VERIFY_TOKENS_MAX 64u
#define VERIFY_PROMPT                                                                              \
    "An espalier is a tree trained flat against a wall. The gardener who trains one begins with "  \
    "a young tree, "

/* What decides the tokens. */
struct verify_tokens_of {
    uint64_t fingerprint;
    enum kv_dtype kv;
    enum activation_dtype activation;
};

struct verify_tokens {
    uint32_t token[VERIFY_TOKENS_MAX], count; /* 0: nothing is recorded */
};

/* A file that is not there has recorded nothing. INVALID_ARGUMENT names the line. */
enum status verify_tokens_find(const char *path, const struct verify_tokens_of *of,
                               struct verify_tokens *tokens_out, struct error *err) MUST_USE;

/* Add a line, in place of that which is there for the same. */
enum status verify_tokens_record(const char *path, const struct verify_tokens_of *of,
                                 const struct verify_tokens *tokens, struct error *err) MUST_USE;

#endif
