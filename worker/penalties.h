/* What the tokens of each sequence have to say about the next one: how often which token is in its
 * path, and its bias. The op penalize reads it.
 *
 *   ids      [pages, page_tok]        the token at every place of the cache
 *   counts   [slots, vocab]           of a slot's path, where its sequence has penalties
 *   bias     [slots, LOGIT_BIAS_MAX]  as the slot's first plan brought it
 *
 * A sequence that begins with pages of the prefix cache is counted from the ids in them, and their
 * hash must be the plan's; so nothing but its own path is ever counted, however it came to be here:
 * in chunks, found in the cache, computed again after a retraction, or drawn a moment ago.
 *
 * Memory is address space until it is touched: counts and bias cost only the sequences that have
 * them, ids four bytes a place. Owner: the engine. One thread.
 */
#ifndef ESPALIER_PENALTIES_H
#define ESPALIER_PENALTIES_H

#include "kv_copy/kv_copy.h"
#include "message.h"
#include "penalize/penalize.h"

struct penalties_shape {
    uint32_t page_count, page_tok;
    uint32_t slot_count;
    uint32_t vocab;
};

struct penalties;

/* RESOURCE_EXHAUSTED with the bytes asked for. */
enum status penalties_create(const struct penalties_shape *shape, struct penalties **penalties_out,
                             struct error *err) MUST_USE;
void penalties_destroy(struct penalties **penalties);

/* Whether a sequence's penalties are any. */
bool penalties_are_wanted(const struct plan_sequence *sequence);

/* Whether the slot's path is counted. */
bool penalties_are_counted(const struct penalties *penalties, uint32_t slot);

/* As the cache is copied, so are ids. */
void penalties_copy(struct penalties *penalties, const struct kv_page_copy *copies, uint32_t count);

/* The token whose KV is put at a place of the cache. */
void penalties_store(struct penalties *penalties, uint32_t place, uint32_t token);

/* A slot starts anew with sequence->committed tokens in these pages. FAILED_PRECONDITION: they are
 * to be counted, and are not the tokens that the plan's hash is of. */
enum status penalties_begin(struct penalties *penalties, const struct step_plan *plan,
                            const struct plan_sequence *sequence, const uint32_t *page,
                            struct error *err) MUST_USE;

/* The slot's path has this token at `position`; nothing where it is not counted. */
void penalties_add(struct penalties *penalties, const struct plan_sequence *sequence,
                   uint32_t position, uint32_t token);

/* Fill what penalize reads of the slot: counts, bias, and the sequence's penalties. False: the
 * sequence has neither, its logits stay as they are. */
bool penalties_fill(const struct penalties *penalties, const struct plan_sequence *sequence,
                    struct penalize_args *args);

#endif
