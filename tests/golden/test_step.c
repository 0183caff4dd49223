/* Rows of trees in a step, without a model: where each lies, and what becomes of it.
 *
 * Trees are random, of several sequences at once, with tokens that begin at 0, and so are the
 * walks; what must come of them is worked out here from the plan alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "penalties.h"
#include "step.h"
#include "tree.h"

#define SLOTS     3u
#define ROWS_MAX  96u
#define PAGE_TOK  5u
#define PAGES     96u
#define CONTEXT   140u
#define TREE_ROWS 20u
#define VOCAB     4u /* small: cousins are often alike */
#define ROUNDS    60u

static uint32_t draw(uint64_t *state, uint32_t bound) {
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(hash_mix(*state) % bound);
}

/* A slot as it must be. Its pages are every third, from the slot's number on. */
struct account {
    uint32_t committed, page_count, root;
    uint64_t prefix_hash;
};

static uint32_t place_of(uint32_t slot, uint32_t tok) {
    return (slot + SLOTS * (tok / PAGE_TOK)) * PAGE_TOK + tok % PAGE_TOK;
}

struct plan_memory {
    struct step_plan plan;
    struct plan_sequence sequence[SLOTS];
    struct page_extent extent[PAGES];
    uint32_t token[ROWS_MAX], parent[ROWS_MAX];
};

/* Rows of one sequence behind those there are: a first token, or a tree. */
static void add_sequence(struct plan_memory *memory, struct account *account, uint32_t slot,
                         uint64_t *source) {
    struct step_plan *plan = &memory->plan;
    uint32_t begin = plan->row_count, rows = 1;
    uint32_t *token = memory->token + begin, *parent = memory->parent + begin;
    bool is_new = account->committed == 0;
    token[0] = account->root;
    parent[0] = TREE_NO_PARENT;
    for (uint32_t wanted = 1 + draw(source, TREE_ROWS); !is_new && rows < wanted; rows++) {
        bool is_twin = false;
        token[rows] = draw(source, VOCAB), parent[rows] = draw(source, rows);
        for (uint32_t other = 1; other < rows; other++)
            is_twin |= parent[other] == parent[rows] && token[other] == token[rows];
        if (is_twin) break;
    }
    uint32_t page_end = (account->committed + rows + PAGE_TOK - 1) / PAGE_TOK;
    if (page_end < account->page_count) page_end = account->page_count;
    memory->sequence[plan->sequence_count++] = (struct plan_sequence){
        .slot = slot,
        .kind = is_new ? PLAN_CHAIN : PLAN_TREE,
        .row_begin = begin,
        .row_count = rows,
        .committed = account->committed,
        .prefix_hash = account->prefix_hash,
        .page_base = account->page_count,
        .extent_begin = plan->extent_count,
        .extent_count = page_end - account->page_count,
        .want = PLAN_WANT_TOKEN,
        .top_p = 1,
        .seed = 1};
    for (; account->page_count < page_end; account->page_count++)
        memory->extent[plan->extent_count++] = (struct page_extent){
            .first_page = slot + SLOTS * account->page_count, .page_count = 1};
    plan->row_count += rows;
}

/* Each row's position and place, from its parents alone. */
static void check_places(const struct plan_memory *memory, const struct step_batch *batch) {
    assert_int_equal(batch->rows, memory->plan.row_count);
    for (uint32_t i = 0; i < memory->plan.sequence_count; i++) {
        const struct plan_sequence *sequence = &memory->sequence[i];
        const uint32_t *parent = memory->parent + sequence->row_begin;
        for (uint32_t row = 0; row < sequence->row_count; row++) {
            uint32_t at = sequence->row_begin + row, depth = 0;
            for (uint32_t above = row; parent[above] != TREE_NO_PARENT; above = parent[above])
                depth++;
            assert_int_equal(batch->token[at], memory->token[at]);
            assert_int_equal(batch->position[at], sequence->committed + depth);
            assert_int_equal(batch->kv_slot[at],
                             place_of(sequence->slot, sequence->committed + row));
        }
    }
}

/* A walk of the tree, mostly along its rows; how many tokens are drawn. */
static uint32_t draw_walk(const struct plan_memory *memory, const struct plan_sequence *sequence,
                          uint64_t *source, uint32_t *drawn, uint32_t *path) {
    const uint32_t *token = memory->token + sequence->row_begin;
    const uint32_t *parent = memory->parent + sequence->row_begin;
    uint32_t count = 0;
    for (uint32_t row = 0, next = 0;; row = next) {
        path[count] = row;
        drawn[count] = draw(source, VOCAB);
        for (uint32_t child = row + 1; child < sequence->row_count; child++)
            if (parent[child] == row && draw(source, 4) > 0) drawn[count] = token[child];
        next = 0;
        for (uint32_t child = row + 1; child < sequence->row_count; child++)
            if (parent[child] == row && token[child] == drawn[count]) next = child;
        count++;
        if (next == 0) return count;
    }
}

/* What one sequence's walk makes final: its path's rows, in order, at the places behind what was
 * committed; only those that lie elsewhere move. Adds to final_at and move_at. */
static void check_final(const struct plan_memory *memory, const struct plan_sequence *sequence,
                        const struct step_final *final, const uint32_t *path, uint32_t count,
                        struct account *account, uint32_t *final_at, uint32_t *move_at) {
    for (uint32_t i = 0; i < count; i++, (*final_at)++) {
        uint32_t at = *final_at, to = place_of(sequence->slot, account->committed);
        uint32_t from = place_of(sequence->slot, sequence->committed + path[i]);
        uint32_t row = sequence->row_begin + path[i];
        assert_true(at < final->count);
        assert_int_equal(final->row[at], row);
        assert_int_equal(final->position[at], account->committed);
        assert_int_equal(final->kv_slot[at], to);
        assert_true(final->prefix_before[at] == account->prefix_hash);
        account->prefix_hash = hash_chain(account->prefix_hash, memory->token[row]);
        assert_true(final->prefix_with[at] == account->prefix_hash);
        account->committed++;
        if (from == to) continue;
        assert_true(*move_at < final->move_count);
        assert_int_equal(final->move[*move_at].from, from);
        assert_int_equal(final->move[(*move_at)++].to, to);
    }
}

static void one_step(struct step *step, struct account *account, uint64_t number, uint64_t *source,
                     uint32_t *moves) {
    static struct plan_memory memory;
    static uint32_t drawn[SLOTS][TREE_ROWS_MAX], path[SLOTS][TREE_ROWS_MAX], tokens[ROWS_MAX];
    uint32_t count[SLOTS], token_count = 0, final_at = 0, move_at = 0;
    struct result_sequence sequence[SLOTS];
    struct error err = {0};
    memory = (struct plan_memory){.plan = {.generation = 3, .step = number}};
    memory.plan.sequence = memory.sequence, memory.plan.extent = memory.extent;
    memory.plan.token = memory.token, memory.plan.parent = memory.parent;
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        if (account[slot].committed + TREE_ROWS < CONTEXT && draw(source, 4) > 0)
            add_sequence(&memory, &account[slot], slot, source);
    const struct step_batch *batch;
    enum status status = step_check(step, &memory.plan, &err);
    if (status == STATUS_OK) status = step_begin(step, &memory.plan, &batch, &err);
    if (status != STATUS_OK) fail_msg("%s", err.text);
    check_places(&memory, batch);
    for (uint32_t i = 0; i < memory.plan.sequence_count; i++) {
        count[i] = draw_walk(&memory, &memory.sequence[i], source, drawn[i], path[i]);
        sequence[i] = (struct result_sequence){
            .slot = memory.sequence[i].slot, .token_begin = token_count, .token_count = count[i]};
        memcpy(tokens + token_count, drawn[i], count[i] * sizeof *tokens);
        token_count += count[i];
    }
    const struct step_result result = {.sequence = sequence,
                                       .sequence_count = memory.plan.sequence_count,
                                       .token = tokens,
                                       .token_count = token_count};
    const struct step_final *final = step_commit(step, &memory.plan, &result);
    for (uint32_t i = 0; i < memory.plan.sequence_count; i++) {
        struct account *own = &account[memory.sequence[i].slot];
        check_final(&memory, &memory.sequence[i], final, path[i], count[i], own, &final_at,
                    &move_at);
        own->root = drawn[i][count[i] - 1];
        struct step_end end = step_end_of(step, memory.sequence[i].slot);
        assert_int_equal(end.root, own->root);
        assert_int_equal(end.committed, own->committed);
        assert_true(end.prefix_hash == own->prefix_hash);
    }
    assert_int_equal(final->count, final_at);
    assert_int_equal(final->move_count, move_at);
    *moves += move_at;
}

static void rows_lie_where_their_paths_say(void **state) {
    (void)state;
    uint64_t source = 1;
    uint32_t moves = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const struct step_limits limits = {.rows_max = ROWS_MAX,
                                           .slot_count = SLOTS,
                                           .page_tok = PAGE_TOK,
                                           .page_count = PAGES,
                                           .page_cap = PAGES,
                                           .context_len = CONTEXT,
                                           .vocab = VOCAB};
        const struct penalties_shape shape = {
            .page_count = PAGES, .page_tok = PAGE_TOK, .slot_count = SLOTS, .vocab = VOCAB};
        struct account account[SLOTS];
        struct penalties *penalties = NULL;
        struct step *step = NULL;
        struct error err = {0};
        assert_int_equal(penalties_create(&shape, &penalties, &err), STATUS_OK);
        assert_int_equal(step_create(&limits, NULL, penalties, &step, &err), STATUS_OK);
        step_restart(step, 3);
        for (uint32_t slot = 0; slot < SLOTS; slot++)
            account[slot] = (struct account){.prefix_hash = HASH_CHAIN_EMPTY};
        for (uint64_t number = 1; number <= 25; number++)
            one_step(step, account, number, &source, &moves);
        step_destroy(&step);
        penalties_destroy(&penalties);
    }
    assert_true(moves > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_lie_where_their_paths_say)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
