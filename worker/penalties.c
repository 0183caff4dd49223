#include "penalties.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/hash.h"

struct slot {
    bool counted;
    uint32_t bias_count;
};

struct penalties {
    struct penalties_shape shape;
    uint32_t *id;               /* [page_count, page_tok] */
    uint32_t *count;            /* [slot_count, vocab] */
    struct penalize_bias *bias; /* [slot_count, LOGIT_BIAS_MAX] */
    void *memory;               /* behind all three */
    size_t bytes;
    struct slot slot[]; /* [slot_count] */
};

static void clear_counts(struct penalties *penalties, uint32_t slot);

static uint32_t *counts_of(const struct penalties *penalties, uint32_t slot) {
    return penalties->count + (size_t)slot * penalties->shape.vocab;
}

enum status penalties_create(const struct penalties_shape *shape, struct penalties **penalties_out,
                             struct error *err) {
    size_t ids = (size_t)shape->page_count * shape->page_tok;
    size_t counts = (size_t)shape->slot_count * shape->vocab;
    size_t biases = (size_t)shape->slot_count * LOGIT_BIAS_MAX;
    size_t bytes = ids * sizeof(uint32_t) + counts * sizeof(uint32_t) +
                   biases * sizeof(struct penalize_bias);
    struct penalties *penalties = calloc(1, sizeof *penalties +
                                                shape->slot_count * sizeof penalties->slot[0]);
    if (!penalties)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for penalties of %u slots",
                         shape->slot_count);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        free(penalties);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "token counts of %zu bytes: %s", bytes,
                         strerror(errno));
    }
    penalties->shape = *shape;
    penalties->memory = memory;
    penalties->bytes = bytes;
    penalties->id = memory;
    penalties->count = penalties->id + ids;
    penalties->bias = (struct penalize_bias *)(penalties->count + counts);
    *penalties_out = penalties;
    return STATUS_OK;
}

void penalties_destroy(struct penalties **penalties) {
    if (!*penalties) return;
    munmap((*penalties)->memory, (*penalties)->bytes);
    free(*penalties);
    *penalties = NULL;
}

/* 0 is what a plan says that was made without them. */
static float repetition_of(const struct plan_sequence *sequence) {
    return sequence->repetition_penalty == 0 ? 1 : sequence->repetition_penalty;
}

bool penalties_are_wanted(const struct plan_sequence *sequence) {
    return repetition_of(sequence) != 1 || sequence->presence_penalty != 0 ||
           sequence->frequency_penalty != 0;
}

bool penalties_are_counted(const struct penalties *penalties, uint32_t slot) {
    return penalties->slot[slot].counted;
}

void penalties_copy(struct penalties *penalties, const struct kv_page_copy *copies,
                    uint32_t count) {
    size_t page_tok = penalties->shape.page_tok;
    for (uint32_t i = 0; i < count; i++)
        memcpy(penalties->id + copies[i].target * page_tok,
               penalties->id + copies[i].source * page_tok, copies[i].tok_count * sizeof(uint32_t));
}

void penalties_store(struct penalties *penalties, uint32_t place, uint32_t token) {
    penalties->id[place] = token;
}

enum status penalties_begin(struct penalties *penalties, const struct step_plan *plan,
                            const struct plan_sequence *sequence, const uint32_t *page,
                            struct error *err) {
    struct slot *slot = &penalties->slot[sequence->slot];
    struct penalize_bias *bias = penalties->bias + (size_t)sequence->slot * LOGIT_BIAS_MAX;
    slot->bias_count = sequence->bias_count;
    for (uint32_t i = 0; i < sequence->bias_count; i++) {
        const struct logit_bias *one = &plan->bias[sequence->bias_begin + i];
        bias[i] = (struct penalize_bias){.token = one->token, .value = one->value};
    }
    if (slot->counted) clear_counts(penalties, sequence->slot);
    slot->counted = penalties_are_wanted(sequence);
    if (!slot->counted) return STATUS_OK;
    uint32_t page_tok = penalties->shape.page_tok;
    uint64_t hash = HASH_CHAIN_EMPTY;
    for (uint32_t tok = 0; tok < sequence->committed; tok++) {
        uint32_t id = penalties->id[(size_t)page[tok / page_tok] * page_tok + tok % page_tok];
        hash = hash_chain(hash, id);
        penalties_add(penalties, sequence, tok, id);
    }
    if (hash == sequence->prefix_hash) return STATUS_OK;
    return error_set(err, STATUS_FAILED_PRECONDITION,
                     "the %u tokens in its pages have the hash %016" PRIx64
                     ", the plan's is %016" PRIx64,
                     sequence->committed, hash, sequence->prefix_hash);
}

static void clear_counts(struct penalties *penalties, uint32_t slot) {
    memset(counts_of(penalties, slot), 0, penalties->shape.vocab * sizeof(uint32_t));
}

void penalties_add(struct penalties *penalties, const struct plan_sequence *sequence,
                   uint32_t position, uint32_t token) {
    if (!penalties->slot[sequence->slot].counted) return;
    uint32_t *count = &counts_of(penalties, sequence->slot)[token];
    if (position < sequence->reply_begin)
        *count |= PENALIZE_PROMPT;
    else
        *count += PENALIZE_REPLY_ONE;
}

bool penalties_fill(const struct penalties *penalties, const struct plan_sequence *sequence,
                    struct penalize_args *args) {
    const struct slot *slot = &penalties->slot[sequence->slot];
    if (!slot->counted && slot->bias_count == 0) return false;
    args->count = slot->counted ? counts_of(penalties, sequence->slot) : NULL;
    args->bias = penalties->bias + (size_t)sequence->slot * LOGIT_BIAS_MAX;
    args->bias_count = slot->bias_count;
    args->repetition = repetition_of(sequence);
    args->presence = sequence->presence_penalty;
    args->frequency = sequence->frequency_penalty;
    return true;
}
