#include "text/tokenizer.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/utf8.h"
#include "text/bpe.h"
#include "text/piece_split.h"

struct tokenizer {
    const struct vocab *vocab;
    struct piece_split *split;
};

struct tokenizer *tokenizer_create(const struct vocab *vocab) {
    struct tokenizer *tokenizer = malloc(sizeof *tokenizer);
    CHECK(tokenizer);
    *tokenizer = (struct tokenizer){.vocab = vocab, .split = piece_split_create()};
    return tokenizer;
}

void tokenizer_destroy(struct tokenizer *tokenizer) {
    if (!tokenizer) return;
    piece_split_destroy(tokenizer->split);
    free(tokenizer);
}

const struct vocab *tokenizer_vocab(const struct tokenizer *tokenizer) {
    return tokenizer->vocab;
}

enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                             struct token_list *ids, struct error *err) {
    size_t bad_offset;
    if (!utf8_validate(text, bytes, &bad_offset)) {
        return error_set(err, STATUS_INVALID_ARGUMENT, "text is not UTF-8 at byte %zu", bad_offset);
    }
    struct piece_walk *walk = piece_split_walk_create(tokenizer->split, text, bytes);
    enum status status;
    size_t begin, end;
    for (;;) {
        status = piece_split_walk_next(walk, &begin, &end, err);
        if (status != STATUS_OK || begin == end) break;
        status = bpe_encode(tokenizer->vocab, text + begin, end - begin, ids);
        if (status != STATUS_OK) {
            error_set(err, status, "no memory to encode a word of %zu bytes", end - begin);
            break;
        }
        if (ids->full) {
            status = error_set(err, STATUS_RESOURCE_EXHAUSTED, "text is longer than %zu tokens",
                               ids->count_max);
            break;
        }
    }
    piece_split_walk_destroy(walk);
    return status;
}

enum status tokenizer_decode(const struct tokenizer *tokenizer, const uint32_t *ids, size_t count,
                             struct text_buf *out, struct error *err) {
    for (size_t i = 0; i < count; i++) {
        uint32_t bytes;
        const char *data = vocab_bytes(tokenizer->vocab, ids[i], &bytes);
        text_buf_append(out, data, bytes);
    }
    if (!out->full) return STATUS_OK;
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "text is longer than %zu bytes",
                     out->bytes_max);
}
