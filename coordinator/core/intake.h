/* What is let in: a call becomes a request, a prompt's ids become its tape.
 *
 * The codec has judged what a call says by itself; here it meets the model, the context, the pool
 * and the queue. Every refusal is one line with what was found, the limit, and the flag behind it.
 */
#ifndef ESPALIER_INTAKE_H
#define ESPALIER_INTAKE_H

#include "request.h"

/* What a call says of itself, beside what it asks for. */
struct intake_origin {
    const char *tenant; /* may be NULL, as the key may */
    const char *idempotency_key;
    int32_t priority;
    uint64_t random; /* the seed where the call brings none */
};

/* The salt of a tenant's prefixes: 0 for the nameless one. */
uint64_t intake_salt(const char *tenant);

/* Copy what the call asks for into a fresh request; the prompt is not looked at. INVALID_ARGUMENT;
 * ALREADY_EXISTS: a live request of the tenant has the key. */
enum status intake_wish(struct request_table *table, struct request *request,
                        const struct generate_request *call, const struct intake_origin *origin,
                        struct error *err) MUST_USE;

struct intake_prompt {
    const uint32_t *token;
    uint32_t count;
    bool in_reasoning; /* it ends inside <think> */
};

/* The prompt's ids are known: check them and keep them; the caller lets the request wait.
 * INVALID_ARGUMENT: empty, or an id outside the vocabulary, of the prompt or of a logit bias.
 * OUT_OF_RANGE: longer, with its reply, than the context or the pool can ever hold, or for more
 * choices than ever run at once.
 * RESOURCE_EXHAUSTED: the waiting prompts together are too long. */
enum status intake_prompt(struct request_table *table, struct request *request,
                          const struct core_options *options, const struct intake_prompt *prompt,
                          struct error *err) MUST_USE;

#endif
