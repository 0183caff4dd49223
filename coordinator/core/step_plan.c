#include "step_plan.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/check.h"

#define GUESSES_MAX 1024u /* of a step: more never pay */

uint32_t step_plan_guesses_max(const struct core_options *options) {
    if (options->speculative_algorithm == SPECULATE_NONE) return 0;
    uint64_t guesses = (uint64_t)core_running_cap(options) * (options->speculative_tree_rows - 1);
    return guesses < GUESSES_MAX ? (uint32_t)guesses : GUESSES_MAX;
}

uint32_t step_plan_tokens_max(const struct core_options *options) {
    return core_running_cap(options) + step_plan_guesses_max(options);
}

uint32_t step_plan_rows_max(const struct core_options *options) {
    uint64_t rows = (uint64_t)step_plan_tokens_max(options) + options->chunked_prefill_size;
    if (options->max_step_rows > 0 && options->max_step_rows < rows) rows = options->max_step_rows;
    return rows < PLAN_ROWS_MAX ? (uint32_t)rows : PLAN_ROWS_MAX;
}

/* Tables that are sent whole share what the rows do not take. */
static uint32_t extents_max(const struct core_options *options) {
    uint64_t pages = (uint64_t)options->context_len / options->page_tok + 1;
    uint64_t extents = step_plan_rows_max(options) + pages * core_running_cap(options);
    return extents < PLAN_EXTENTS_MAX ? (uint32_t)extents : PLAN_EXTENTS_MAX;
}

uint32_t step_plan_runs_max(const struct core_options *options) {
    return extents_max(options) - step_plan_rows_max(options);
}

/* More candidates a position than a tree has guesses are of no use. */
static uint32_t draft_top(const struct core_options *options) {
    uint32_t guesses = options->speculative_tree_rows - 1;
    return guesses < DRAFT_TOP_MAX ? guesses : DRAFT_TOP_MAX;
}

static uint32_t biases_max(const struct core_options *options) {
    uint64_t biases = (uint64_t)core_running_cap(options) * LOGIT_BIAS_MAX;
    return biases < PLAN_BIASES_MAX ? (uint32_t)biases : PLAN_BIASES_MAX;
}

size_t step_plan_memory(const struct core_options *options) {
    size_t rows = step_plan_rows_max(options), sequences = core_running_cap(options);
    return rows * 2 * sizeof(uint32_t) + extents_max(options) * sizeof(struct page_extent) +
           sequences *
               (sizeof(struct plan_sequence) + sizeof(struct page_copy) + sizeof(uint32_t)) +
           biases_max(options) * sizeof(struct logit_bias) + (size_t)7 * ARENA_ALIGN;
}

void step_plan_init(struct step_plan_buf *buf, const struct core_options *options,
                    struct arena *memory) {
    *buf = (struct step_plan_buf){
        .rows_max = step_plan_rows_max(options),
        .sequences_max = core_running_cap(options),
        .extents_max = extents_max(options),
        .biases_max = biases_max(options),
        .drafts_max = DRAFT_POSITIONS_MAX,
        .draft_top = draft_top(options),
    };
    buf->token = arena_calloc(memory, buf->rows_max, sizeof *buf->token);
    buf->parent = arena_calloc(memory, buf->rows_max, sizeof *buf->parent);
    buf->sequence = arena_calloc(memory, buf->sequences_max, sizeof *buf->sequence);
    buf->extent = arena_calloc(memory, buf->extents_max, sizeof *buf->extent);
    buf->copy = arena_calloc(memory, buf->sequences_max, sizeof *buf->copy);
    buf->release = arena_calloc(memory, buf->sequences_max, sizeof *buf->release);
    buf->bias = arena_calloc(memory, buf->biases_max, sizeof *buf->bias);
    CHECK(buf->token && buf->parent && buf->sequence && buf->extent && buf->copy && buf->release &&
          buf->bias);
}

void step_plan_begin(struct step_plan_buf *buf, uint64_t generation, uint64_t step) {
    buf->draft_count = 0;
    buf->plan = (struct step_plan){
        .generation = generation,
        .step = step,
        .token = buf->token,
        .sequence = buf->sequence,
        .extent = buf->extent,
        .copy = buf->copy,
        .release = buf->release,
        .bias = buf->bias,
    };
}

void step_plan_release(struct step_plan_buf *buf, uint32_t slot) {
    CHECK(buf->plan.release_count < buf->sequences_max);
    buf->release[buf->plan.release_count++] = slot;
}

void step_plan_copy(struct step_plan_buf *buf, const struct page_copy *copy) {
    CHECK(buf->plan.copy_count < buf->sequences_max);
    buf->copy[buf->plan.copy_count++] = *copy;
}

bool step_plan_fits(const struct step_plan_buf *buf, const struct page_ref *page,
                    uint32_t page_count, uint32_t bias_count) {
    if (bias_count > buf->biases_max - buf->plan.bias_count) return false;
    /* Every row still to come may bring a page of its own. */
    uint32_t kept = buf->rows_max - buf->plan.row_count, runs = 0;
    for (uint32_t i = 0; i < page_count; i++)
        runs += i == 0 || page[i].page != page[i - 1].page + 1;
    return runs <= 1 || buf->plan.extent_count + kept + runs <= buf->extents_max;
}

static void add_page(struct step_plan_buf *buf, struct plan_sequence *sequence, uint32_t page) {
    struct step_plan *plan = &buf->plan;
    if (sequence->extent_count > 0) {
        struct page_extent *last = &buf->extent[plan->extent_count - 1];
        if (last->first_page + last->page_count == page) {
            last->page_count++;
            return;
        }
    }
    CHECK(plan->extent_count < buf->extents_max);
    buf->extent[plan->extent_count++] = (struct page_extent){.first_page = page, .page_count = 1};
    sequence->extent_count++;
}

uint32_t *step_plan_add(struct step_plan_buf *buf, const struct plan_sequence *sequence,
                        const struct page_ref *page, uint32_t page_count) {
    struct step_plan *plan = &buf->plan;
    CHECK(plan->sequence_count < buf->sequences_max && sequence->row_count > 0);
    CHECK(sequence->row_count <= buf->rows_max - plan->row_count);
    struct plan_sequence *added = &buf->sequence[plan->sequence_count++];
    *added = *sequence;
    added->row_begin = plan->row_count;
    added->extent_begin = plan->extent_count;
    added->extent_count = 0;
    added->bias_begin = plan->bias_count;
    added->bias_count = 0;
    plan->row_count += sequence->row_count;
    if (sequence->kind == PLAN_TREE) plan->parent = buf->parent;
    if (sequence->draft_len > 0) plan->draft_top = buf->draft_top;
    buf->draft_count += sequence->draft_len;
    CHECK(buf->draft_count <= buf->drafts_max);
    for (uint32_t row = 0; row < sequence->row_count; row++)
        buf->parent[added->row_begin + row] = row > 0 ? row - 1 : PLAN_NO_PARENT;
    for (uint32_t i = 0; i < page_count; i++)
        add_page(buf, added, page[i].page);
    return buf->token + added->row_begin;
}

uint32_t *step_plan_parents(struct step_plan_buf *buf) {
    CHECK(buf->plan.sequence_count > 0);
    return buf->parent + buf->sequence[buf->plan.sequence_count - 1].row_begin;
}

void step_plan_add_bias(struct step_plan_buf *buf, const struct logit_bias *bias, uint32_t count) {
    struct step_plan *plan = &buf->plan;
    CHECK(plan->sequence_count > 0 && count <= buf->biases_max - plan->bias_count);
    for (uint32_t i = 0; i < count; i++)
        buf->bias[plan->bias_count++] = bias[i];
    buf->sequence[plan->sequence_count - 1].bias_count += count;
}

struct print {
    char *out;
    size_t bytes, used; /* used < bytes always */
};

static void __attribute__((format(printf, 2, 3)))
put(struct print *print, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(print->out + print->used, print->bytes - print->used, format, arguments);
    va_end(arguments);
    CHECK(length >= 0);
    size_t room = print->bytes - print->used - 1;
    print->used += (size_t)length < room ? (size_t)length : room;
}

static void put_sequence(struct print *print, const struct step_plan *plan,
                         const struct plan_sequence *sequence) {
    put(print, " [slot=%u s=%u %s=%u first=%u pages=%u", sequence->slot, sequence->committed,
        sequence->kind == PLAN_TREE ? "tree" : "rows", sequence->row_count,
        plan->token[sequence->row_begin], sequence->page_base);
    for (uint32_t i = 0; i < sequence->extent_count; i++) {
        struct page_extent extent = plan->extent[sequence->extent_begin + i];
        put(print, "+%u..%u", extent.first_page, extent.first_page + extent.page_count);
    }
    if (sequence->bias_count > 0) put(print, " biases=%u", sequence->bias_count);
    if (sequence->draft_len > 0) put(print, " draft=%u", sequence->draft_len);
    put(print, "%s]", sequence->want == PLAN_WANT_TOKEN ? " draw" : "");
}

size_t step_plan_print(const struct step_plan *plan, char *out, size_t bytes) {
    CHECK(bytes > 0);
    struct print print = {.out = out, .bytes = bytes};
    out[0] = '\0';
    put(&print, "generation=%llu step=%llu rows=%u sequences=%u",
        (unsigned long long)plan->generation, (unsigned long long)plan->step, plan->row_count,
        plan->sequence_count);
    for (uint32_t i = 0; i < plan->release_count; i++)
        put(&print, "%s%u", i == 0 ? " release=" : ",", plan->release[i]);
    for (uint32_t i = 0; i < plan->copy_count; i++)
        put(&print, " copy=%u:%u+%u", plan->copy[i].source, plan->copy[i].target,
            plan->copy[i].tok_count);
    for (uint32_t i = 0; i < plan->sequence_count; i++)
        put_sequence(&print, plan, &plan->sequence[i]);
    return print.used;
}
