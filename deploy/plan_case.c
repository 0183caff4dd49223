#include "plan_case.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"

enum status plan_case_make(struct plan_case *plan_case, struct error *err) {
    struct memory_request *request = &plan_case->request;
    request->spec = &plan_case->spec;
    request->max_running = memory_plan_running(plan_case->running, plan_case->running_cap);
    uint64_t rows = (uint64_t)request->max_running * plan_case->tree_rows + plan_case->chunk_tok;
    request->step_rows = rows < PLAN_ROWS_MAX ? (uint32_t)rows : PLAN_ROWS_MAX;
    return memory_plan_make(request, &plan_case->plan, err);
}

/* The same model and machine after a change that was made to `changed`; it cannot fail where the
 * case could be planned. */
static const struct memory_plan *replan(struct plan_case *changed) {
    struct error err;
    CHECK(plan_case_make(changed, &err) == STATUS_OK);
    return &changed->plan;
}

/* ---- knobs --------------------------------------------------------------------------------- */

static void __attribute__((format(printf, 4, 5)))
add_knob(struct plan_knob *knob, uint32_t *count, int64_t tokens, const char *format, ...) {
    CHECK(*count < PLAN_KNOBS_MAX);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(knob[*count].text, sizeof knob[*count].text, format, arguments);
    va_end(arguments);
    knob[(*count)++].tokens = tokens;
}

/* Bytes that a change adds beside the pool, as tokens the pool could have had instead. */
static int64_t worth(const struct plan_case *before, struct plan_case *after) {
    const struct memory_plan *plan = replan(after);
    int64_t bytes = (int64_t)plan->other_bytes - (int64_t)before->plan.other_bytes;
    return -bytes / (int64_t)before->plan.token_bytes;
}

static int64_t pool_gain(const struct plan_case *before, struct plan_case *after) {
    return (int64_t)replan(after)->pool_tok - (int64_t)before->plan.pool_tok;
}

uint32_t plan_case_knobs(const struct plan_case *plan_case, struct plan_knob knob[PLAN_KNOBS_MAX]) {
    const struct memory_request *request = &plan_case->request;
    uint32_t count = 0;
    add_knob(knob, &count,
             (int64_t)(0.01 * (double)request->free_bytes / (double)plan_case->plan.token_bytes),
             "--mem-fraction-static +0.01");
    struct plan_case changed = *plan_case;
    changed.running_cap = request->max_running + 1;
    add_knob(knob, &count, worth(plan_case, &changed), "--max-running-cap +1");
    changed = *plan_case;
    changed.tree_rows++;
    add_knob(knob, &count, worth(plan_case, &changed), "one more tree row a request");
    changed = *plan_case;
    changed.chunk_tok += 1024;
    add_knob(knob, &count, worth(plan_case, &changed), "--chunked-prefill-size +1024");
    changed = *plan_case;
    changed.request.page_tok = request->page_tok == 1 ? 64 : 1;
    add_knob(knob, &count, worth(plan_case, &changed), "--page-size %u", changed.request.page_tok);
    changed = *plan_case;
    if (request->kv != KV_FP8) {
        changed.request.kv = KV_FP8;
        add_knob(knob, &count, pool_gain(plan_case, &changed), "--kv-cache-dtype fp8");
    }
    changed = *plan_case;
    if (request->draft && request->draft_as_target_layers) {
        changed.request.draft_as_target_layers = false;
        add_knob(knob, &count, pool_gain(plan_case, &changed), "--draft-pricing true");
    }
    return count;
}

/* ---- intent -------------------------------------------------------------------------------- */

/* Digits, with commas between them as people write them, and k or m. NULL: none here. */
static const char *read_count(const char *text, uint64_t *value_out) {
    uint64_t value = 0;
    if (*text < '0' || *text > '9') return NULL;
    for (; (*text >= '0' && *text <= '9') || *text == ','; text++) {
        if (*text == ',') continue;
        if (value > UINT64_MAX / 10000) return NULL;
        value = value * 10 + (uint64_t)(*text - '0');
    }
    uint64_t factor = *text == 'k' ? 1000 : *text == 'K' ? 1024 : *text == 'm' ? 1000000 : 1;
    if (factor > 1) text++;
    if (value > UINT64_MAX / 1000000) return NULL;
    *value_out = value * factor;
    return text;
}

enum status plan_want_parse(const char *text, struct plan_want *want_out, struct error *err) {
    uint64_t count = 1, tok_count = 0;
    const char *at = read_count(text, &tok_count);
    if (at && *at == 'x') {
        count = tok_count;
        at = read_count(at + 1, &tok_count);
    }
    if (!at || *at != '\0' || count < 1 || count > PLAN_SEQS_MAX || tok_count < 1 ||
        tok_count > CONTEXT_TOK_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--want: found \"%s\", accepted: tokens of a request, or requests x "
                         "tokens, as 200k or 8x25k; up to %u x %u",
                         text, PLAN_SEQS_MAX, CONTEXT_TOK_MAX);
    *want_out = (struct plan_want){.count = (uint32_t)count, .tok_count = tok_count};
    return STATUS_OK;
}

/* What so many requests of such a length leave of the machine, in bytes; negative where they do
 * not fit. */
static int64_t left_with(const struct plan_case *plan_case, uint32_t count, uint64_t tok_count) {
    struct plan_case changed = *plan_case;
    struct memory_request *request = &changed.request;
    changed.running = count;
    request->context_len = (uint32_t)tok_count;
    request->pool_tok = count * memory_plan_request_tok(request, tok_count);
    const struct memory_plan *plan = replan(&changed);
    return (int64_t)request->free_bytes -
           (int64_t)(plan->resident_bytes + plan->pool_bytes + plan->other_bytes);
}

static uint32_t most_requests(const struct plan_case *plan_case, const struct plan_want *want) {
    uint32_t low = 0, high = want->count;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (left_with(plan_case, middle, want->tok_count) >= 0)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static uint64_t longest_requests(const struct plan_case *plan_case, const struct plan_want *want) {
    uint64_t low = 0, high = want->tok_count;
    while (low < high) {
        uint64_t middle = low + (high - low + 1) / 2;
        if (left_with(plan_case, want->count, middle) >= 0)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

enum status plan_want_answer(const struct plan_case *plan_case, const struct plan_want *want,
                             struct plan_answer *answer_out, struct error *err) {
    struct plan_case wanted = *plan_case;
    struct memory_request *request = &wanted.request;
    if (want->tok_count > wanted.spec.context_max)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--want: found requests of %llu tokens, accepted: up to %u, the "
                         "max_position_embeddings of this model",
                         (unsigned long long)want->tok_count, wanted.spec.context_max);
    wanted.running = want->count;
    request->context_len = (uint32_t)want->tok_count;
    request->pool_tok = want->count * memory_plan_request_tok(request, want->tok_count);
    enum status status = plan_case_make(&wanted, err);
    if (status != STATUS_OK) return status;
    struct plan_case as_fp8 = *plan_case;
    as_fp8.request.kv = KV_FP8;
    *answer_out = (struct plan_answer){
        .pool_tok = wanted.plan.pool_tok,
        .kv_bytes = wanted.plan.pool_bytes,
        .rest_bytes = wanted.plan.other_bytes,
        .fits = wanted.plan.shortfall_bytes == 0,
        .fraction = request->free_bytes > 0
                        ? memory_plan_fraction_for(request, &wanted.plan, request->pool_tok)
                        : 0,
        .fitting_count = most_requests(plan_case, want),
        .fitting_tok = longest_requests(plan_case, want),
        .fits_as_fp8 = left_with(&as_fp8, want->count, want->tok_count) >= 0,
    };
    return STATUS_OK;
}
