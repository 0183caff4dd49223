#include "text/prompt.h"

#include <stdlib.h>

#include "base/check.h"

void prompt_init(struct prompt *prompt, size_t text_bytes_max) {
    *prompt = (struct prompt){0};
    text_buf_init(&prompt->text, text_bytes_max);
}

void prompt_deinit(struct prompt *prompt) {
    text_buf_deinit(&prompt->text);
    free(prompt->special);
    *prompt = (struct prompt){0};
}

void prompt_add_text(struct prompt *prompt, const char *text, size_t bytes) {
    text_buf_append(&prompt->text, text, bytes);
}

void prompt_add_special(struct prompt *prompt, uint32_t id) {
    if (prompt->special_count == prompt->special_capacity) {
        size_t capacity = prompt->special_capacity == 0 ? 32 : 2 * prompt->special_capacity;
        prompt->special = realloc(prompt->special, capacity * sizeof *prompt->special);
        CHECK(prompt->special);
        prompt->special_capacity = capacity;
    }
    prompt->special[prompt->special_count++] = (struct prompt_special){prompt->text.bytes, id};
}

enum status prompt_encode(const struct prompt *prompt, const struct tokenizer *tokenizer,
                          struct token_list *ids, struct error *err) {
    size_t at = 0;
    for (size_t i = 0; i <= prompt->special_count; i++) {
        bool is_last = i == prompt->special_count;
        size_t end = is_last ? prompt->text.bytes : prompt->special[i].at;
        if (end > at) {
            enum status status = tokenizer_encode(tokenizer, prompt->text.data + at, end - at, ids,
                                                  err);
            if (status != STATUS_OK) return status;
        }
        if (!is_last) token_list_push(ids, prompt->special[i].id);
        at = end;
    }
    if (!ids->full) return STATUS_OK;
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "prompt is longer than %zu tokens",
                     ids->count_max);
}

void prompt_print(const struct prompt *prompt, const struct vocab *vocab, struct text_buf *out) {
    size_t at = 0;
    for (size_t i = 0; i < prompt->special_count; i++) {
        const struct prompt_special *special = &prompt->special[i];
        text_buf_append(out, prompt->text.data + at, special->at - at);
        at = special->at;
        uint32_t bytes;
        const char *name = vocab_bytes(vocab, special->id, &bytes);
        text_buf_append(out, name, bytes);
    }
    text_buf_append(out, prompt->text.data + at, prompt->text.bytes - at);
}
