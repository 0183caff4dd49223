/* Every bound of what coordinator and worker say to each other, one row each. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "codec_rows.h"

/* --- worker to coordinator ------------------------------------------------------------------ */

struct worker_message_fixture {
    uint32_t token[4];
    struct result_sequence sequence[2];
    struct token_logprob logprob[2];
    float draft_lse[3];
    struct draft_candidate candidate[3 * (DRAFT_TOP_MAX + 1)]; /* as many as a row asks for */
    uint8_t key[GROUP_KEY_BYTES_MAX + 1];
    struct worker_message message;
};

static void worker_message_fixture_init(struct worker_message_fixture *f) {
    memset(f, 0, sizeof *f);
    f->sequence[0] = (struct result_sequence){.slot = 5, .token_begin = 0, .token_count = 1};
    f->sequence[1] = (struct result_sequence){
        .slot = 6, .token_begin = 1, .token_count = 3, .draft_count = 3};
    for (uint32_t i = 0; i < 6; i++)
        f->candidate[i] = (struct draft_candidate){.token = 10 + i, .logit = -(float)i};
    f->message = (struct worker_message){.type = WORKER_STEP_RESULT,
                                         .step_result = {.generation = 1,
                                                         .step = 1,
                                                         .sequence = f->sequence,
                                                         .sequence_count = 2,
                                                         .token = f->token,
                                                         .token_count = 4,
                                                         .logprob = f->logprob,
                                                         .logprob_count = 2,
                                                         .draft_lse = f->draft_lse,
                                                         .candidate = f->candidate,
                                                         .draft_count = 3,
                                                         .draft_top = 2}};
}

static struct worker_hello *to_hello(struct worker_message *message) {
    *message = (struct worker_message){.type = WORKER_HELLO, .hello = {.tp = 2, .pid = 1}};
    return &message->hello;
}

static struct worker_loaded *to_loaded(struct worker_message *message) {
    *message = (struct worker_message){.type = WORKER_LOADED};
    return &message->loaded;
}

static struct worker_fault *to_fault(struct worker_message *message) {
    *message = (struct worker_message){.type = WORKER_FAULT,
                                       .fault = {.status = STATUS_INTERNAL, .text = "x"}};
    return &message->fault;
}

static void to_group_key(struct worker_message *message, uint64_t generation, const uint8_t *key,
                         size_t bytes) {
    *message = (struct worker_message){
        .type = WORKER_GROUP_KEY,
        .group_key = {.generation = generation, .key = {.data = key, .size = bytes}}};
}

static void worker_message_bounds(void **state) {
    (void)state;
    ACCEPTED(worker_message, to_hello(m)->rank = 1);
    REFUSED(worker_message, to_hello(m)->rank = 2, "hello.rank: 2, accepted 0..1");
    REFUSED(worker_message, to_hello(m)->tp = 0, "hello.tp: 0, accepted 1..8");
    REFUSED(worker_message, to_hello(m)->tp = TP_MAX + 1, "hello.tp: 9, accepted 1..8");
    REFUSED(worker_message, to_loaded(m)->page_count = KV_PAGES_MAX + 1,
            "loaded.page_count: 67108865, accepted 0..67108864");
    REFUSED(worker_message, to_loaded(m)->fraction_needed = FRACTION_ONE + 1,
            "loaded.fraction_needed: 1000001, accepted 0..1000000");
    REFUSED(worker_message, to_hello(m)->pid = 0, "hello.pid: 0, accepted 1..18446744073709551615");
    REFUSED(worker_message, to_hello(m)->device = codec_rows_chars(257),
            "hello.device: 257 bytes, accepted 0..256");
    REFUSED(worker_message, to_hello(m)->probe = codec_rows_chars(257),
            "hello.probe: 257 bytes, accepted 0..256");
    ACCEPTED(worker_message, (to_hello(m)->draft_len = 32, m->hello.draft_fingerprint = 1));
    REFUSED(worker_message, (to_hello(m)->draft_len = 33, m->hello.draft_fingerprint = 1),
            "hello.draft_len: 33, accepted 1..32");
    REFUSED(worker_message, to_hello(m)->draft_fingerprint = 1,
            "hello.draft_len: 0, accepted 1..32");
    REFUSED(worker_message, to_hello(m)->draft_len = 1, "hello.draft_len: 1, accepted 0..0");
    ACCEPTED(worker_message, to_group_key(m, 1, f.key, GROUP_KEY_BYTES_MAX));
    REFUSED(worker_message, to_group_key(m, 1, f.key, GROUP_KEY_BYTES_MAX + 1),
            "group_key.key: 129 bytes, accepted 0..128");
    REFUSED(worker_message, to_group_key(m, 0, f.key, 1),
            "group_key.generation: 0, accepted 1..18446744073709551615");
    REFUSED(worker_message, *m = (struct worker_message){.type = WORKER_JOINED},
            "joined.generation: 0, accepted 1..18446744073709551615");
    REFUSED(worker_message, to_fault(m)->status = STATUS_OK, "fault.status: 0, accepted 1..16");
    REFUSED(worker_message, to_fault(m)->status = (enum status)17,
            "fault.status: 17, accepted 1..16");
}

static void step_result_bounds(void **state) {
    (void)state;
    ACCEPTED(worker_message, f.token[3] = MODEL_VOCAB_MAX - 1);
    REFUSED(worker_message, f.token[3] = MODEL_VOCAB_MAX,
            "result.token: 1048576 at [3], accepted 0..1048575");
    REFUSED(worker_message, m->step_result.generation = 0,
            "result.generation: 0, accepted 1..18446744073709551615");
    REFUSED(worker_message, m->step_result.step = 0,
            "result.step: 0, accepted 1..18446744073709551615");
    REFUSED(worker_message, m->step_result.rank = TP_MAX, "result.rank: 8, accepted 0..7");
    REFUSED(worker_message,
            (m->step_result.token = codec_rows_zeros(8193), m->step_result.token_count = 8193),
            "result.token: 8193 elements, accepted 0..8192");
    REFUSED(worker_message, f.sequence[1].slot = PLAN_SEQS_MAX,
            "result.sequence[1].slot: 1024, accepted 0..1023");
    REFUSED(worker_message, f.sequence[1].slot = 5,
            "result.sequence[1].slot: slot 5 for the second time, accepted once");
    REFUSED(worker_message, f.sequence[1].token_begin = 2,
            "result.sequence[1].token_begin: 2, accepted 1, where the one before ended");
    REFUSED(worker_message, f.sequence[1].token_begin = 0,
            "result.sequence[1].token_begin: 0, accepted 1, where the one before ended");
    REFUSED(worker_message, f.sequence[1].token_count = 4,
            "result.sequence[1].token_count: 4 from 1 on, accepted 0..3");
    REFUSED(worker_message, f.sequence[1].token_count = UINT32_MAX,
            "result.sequence[1].token_count: 4294967295 from 1 on, accepted 0..3");
    REFUSED(worker_message, f.sequence[1].token_count = 2,
            "result: sequences cover 3 of 4 tokens, accepted all");
    REFUSED(worker_message, f.logprob[0].logprob = NAN,
            "result.logprob_value: nan at [0], accepted finite numbers");
    REFUSED(worker_message, f.logprob[1].token = MODEL_VOCAB_MAX,
            "result.logprob_token: 1048576 at [1], accepted 0..1048575");
    REFUSED(worker_message, (m->step_result.token_count = 0, m->step_result.sequence_count = 0),
            "result.logprob: 2 elements, accepted 0..0");
}

/* A result of so many positions, all of the second sequence. */
static void to_positions(struct worker_message_fixture *f, uint32_t count) {
    struct step_result *result = &f->message.step_result;
    result->draft_lse = (float *)codec_rows_zeros(count);
    result->candidate = arena_calloc(&codec_rows_arena, count, sizeof *result->candidate);
    result->draft_count = f->sequence[1].draft_count = count;
    result->draft_top = 1;
}

static void draft_bounds(void **state) {
    (void)state;
    ACCEPTED(worker_message, to_positions(&f, DRAFT_LEN_MAX));
    REFUSED(worker_message, to_positions(&f, DRAFT_LEN_MAX + 1),
            "result.sequence[1].draft_count: 33, accepted 0..32");
    REFUSED(worker_message, to_positions(&f, DRAFT_POSITIONS_MAX + 1),
            "result.draft_lse: 2049 elements, accepted 0..2048");
    ACCEPTED(worker_message, (f.sequence[0].draft_count = 1, f.sequence[1].draft_begin = 1,
                              f.sequence[1].draft_count = 2));
    REFUSED(worker_message, f.sequence[0].draft_count = 1,
            "result.sequence[1].draft_begin: 0, accepted 1, where the one before ended");
    REFUSED(worker_message, f.sequence[1].draft_count = 2,
            "result: sequences cover 2 of 3 drafted positions, accepted all");
    REFUSED(worker_message, f.sequence[1].draft_count = 4,
            "result.sequence[1].draft_count: 4 from 0 on, accepted 0..3");
    REFUSED(worker_message, m->step_result.draft_top = 17, "result.draft_top: 17, accepted 1..16");
    REFUSED(worker_message, m->step_result.draft_top = 0, "result.draft_top: 0, accepted 1..16");
    REFUSED(worker_message, f.draft_lse[1] = INFINITY,
            "result.draft[1].lse: inf, accepted -3.40282e+38..3.40282e+38");
    REFUSED(worker_message, f.candidate[3].logit = NAN,
            "result.draft[1].logit: nan, accepted -3.40282e+38..3.40282e+38");
    REFUSED(worker_message, f.candidate[5].token = MODEL_VOCAB_MAX,
            "result.candidate_token: 1048576 at [5], accepted 0..1048575");
    ACCEPTED(worker_message, f.candidate[1].logit = f.candidate[0].logit);
    REFUSED(worker_message, f.candidate[1].logit = 1,
            "result.draft[0].logit: [1] out of order, accepted descending, then by token");
    REFUSED(worker_message, (f.candidate[3].logit = -2, f.candidate[3].token = 11),
            "result.draft[1].logit: [1] out of order, accepted descending, then by token");
    REFUSED(worker_message, f.candidate[3].token = 12,
            "result.draft[1].token: 12 for the second time, accepted once");
}

/* --- coordinator to worker ------------------------------------------------------------------ */

/* Three sequences: a chain of four rows with two extents, a tree of three rows, a chain of one
 * row that wants nothing. */
struct control_message_fixture {
    uint32_t token[8], parent[8];
    struct plan_sequence sequence[3];
    struct page_extent extent[3];
    struct page_copy copy[2];
    uint32_t release[2];
    uint8_t key[GROUP_KEY_BYTES_MAX + 1];
    struct control_message message;
};

static void control_message_fixture_init(struct control_message_fixture *f) {
    static const uint32_t parent[8] = {PLAN_NO_PARENT, 0, 1, 2,
                                       PLAN_NO_PARENT, 0, 0, PLAN_NO_PARENT};
    memset(f, 0, sizeof *f);
    memcpy(f->parent, parent, sizeof parent);
    f->token[6] = 1; /* siblings differ */
    f->sequence[0] = (struct plan_sequence){.slot = 7,
                                            .kind = PLAN_CHAIN,
                                            .row_begin = 0,
                                            .row_count = 4,
                                            .extent_begin = 0,
                                            .extent_count = 2,
                                            .want = PLAN_WANT_TOKEN,
                                            .top_p = 1};
    f->sequence[1] = (struct plan_sequence){.slot = 8,
                                            .kind = PLAN_TREE,
                                            .row_begin = 4,
                                            .row_count = 3,
                                            .extent_begin = 2,
                                            .extent_count = 0,
                                            .want = PLAN_WANT_TOKEN,
                                            .top_p = 0.5f};
    f->sequence[2] = (struct plan_sequence){.slot = 9,
                                            .kind = PLAN_CHAIN,
                                            .row_begin = 7,
                                            .row_count = 1,
                                            .extent_begin = 2,
                                            .extent_count = 1,
                                            .want = PLAN_WANT_NOTHING};
    for (uint32_t i = 0; i < 3; i++)
        f->extent[i] = (struct page_extent){.first_page = 10 * i, .page_count = 2};
    for (uint32_t i = 0; i < 2; i++)
        f->copy[i] = (struct page_copy){.source = i, .target = i + 5, .tok_count = 3};
    f->release[1] = 1;
    f->message = (struct control_message){.type = CONTROL_STEP_PLAN,
                                          .step_plan = {.generation = 1,
                                                        .step = 1,
                                                        .token = f->token,
                                                        .parent = f->parent,
                                                        .row_count = 8,
                                                        .sequence = f->sequence,
                                                        .sequence_count = 3,
                                                        .extent = f->extent,
                                                        .extent_count = 3,
                                                        .copy = f->copy,
                                                        .copy_count = 2,
                                                        .release = f->release,
                                                        .release_count = 2,
                                                        .draft_top = 4}};
}

/* A plan of one sequence of so many rows. */
static void to_rows(struct control_message_fixture *f, enum plan_kind kind, uint32_t rows) {
    struct step_plan *plan = &f->message.step_plan;
    uint32_t *parent = codec_rows_zeros(rows);
    for (uint32_t row = 0; row < rows; row++)
        parent[row] = row ? row - 1 : PLAN_NO_PARENT;
    plan->token = codec_rows_zeros(rows);
    plan->parent = parent;
    plan->row_count = rows;
    plan->sequence_count = 1;
    plan->extent_count = 2;
    f->sequence[0].kind = kind;
    f->sequence[0].row_count = rows;
}

/* A plan of so many sequences of one row; slots repeat after `slots`. */
static void to_sequences(struct control_message_fixture *f, uint32_t count, uint32_t slots) {
    struct step_plan *plan = &f->message.step_plan;
    struct plan_sequence *sequence = arena_calloc(&codec_rows_arena, count, sizeof *sequence);
    for (uint32_t i = 0; i < count; i++)
        sequence[i] = (struct plan_sequence){.slot = i % slots, .row_begin = i, .row_count = 1};
    plan->token = codec_rows_zeros(count);
    plan->parent = NULL;
    plan->row_count = count;
    plan->sequence = sequence;
    plan->sequence_count = count;
    plan->extent_count = 0;
}

static void to_all_drafting(struct control_message_fixture *f, uint32_t count, uint32_t draft_len) {
    to_sequences(f, count, count);
    struct plan_sequence *sequence = (struct plan_sequence *)f->message.step_plan.sequence;
    for (uint32_t i = 0; i < count; i++) {
        sequence[i].want = PLAN_WANT_TOKEN;
        sequence[i].top_p = 1;
        sequence[i].draft_len = draft_len;
    }
}

static void to_extents(struct control_message_fixture *f, uint32_t count) {
    struct page_extent *extent = arena_calloc(&codec_rows_arena, count, sizeof *extent);
    for (uint32_t i = 0; i < count; i++)
        extent[i].page_count = 1;
    f->message.step_plan.extent = extent;
    f->message.step_plan.extent_count = count;
    f->sequence[2].extent_count = count - 2;
}

static void to_copies(struct control_message_fixture *f, uint32_t count) {
    struct page_copy *copy = arena_calloc(&codec_rows_arena, count, sizeof *copy);
    for (uint32_t i = 0; i < count; i++)
        copy[i] = (struct page_copy){1, 2, 3};
    f->message.step_plan.copy = copy;
    f->message.step_plan.copy_count = count;
}

/* Sequence 0 begins with so many biases; sequence 1 has the next three. */
static void to_biases(struct control_message_fixture *f, uint32_t count) {
    struct logit_bias *bias = arena_calloc(&codec_rows_arena, count + 3, sizeof *bias);
    for (uint32_t i = 0; i < count + 3; i++)
        bias[i].token = i < count ? i : i - count;
    f->message.step_plan.bias = bias;
    f->message.step_plan.bias_count = count + 3;
    f->sequence[0].bias_count = f->sequence[1].bias_begin = count;
    f->sequence[1].bias_count = 3;
    f->sequence[2].bias_begin = count + 3;
}

static void to_bias(struct control_message_fixture *f, uint32_t at, struct logit_bias value) {
    to_biases(f, 2);
    ((struct logit_bias *)f->message.step_plan.bias)[at] = value;
}

static void plan_row_bounds(void **state) {
    (void)state;
    ACCEPTED(control_message, f.token[7] = MODEL_VOCAB_MAX - 1);
    REFUSED(control_message, f.token[7] = MODEL_VOCAB_MAX,
            "plan.token: 1048576 at [7], accepted 0..1048575");
    ACCEPTED(control_message, f.token[7] = PLAN_TOKEN_DRAWN);
    REFUSED(control_message, f.token[2] = PLAN_TOKEN_DRAWN,
            "plan.sequence[0]: row 2: the token drawn last, accepted as the only row");
    REFUSED(control_message, m->step_plan.generation = 0,
            "plan.generation: 0, accepted 1..18446744073709551615");
    REFUSED(control_message, m->step_plan.step = 0,
            "plan.step: 0, accepted 1..18446744073709551615");
    ACCEPTED(control_message, to_rows(&f, PLAN_CHAIN, PLAN_ROWS_MAX));
    REFUSED(control_message, to_rows(&f, PLAN_CHAIN, PLAN_ROWS_MAX + 1),
            "plan.token: 8193 elements, accepted 1..8192");
    ACCEPTED(control_message, to_rows(&f, PLAN_TREE, TREE_ROWS_MAX));
    REFUSED(control_message, to_rows(&f, PLAN_TREE, TREE_ROWS_MAX + 1),
            "plan.sequence[0].row_count: 65, accepted 1..64");
    REFUSED(control_message, m->step_plan.row_count = 0,
            "plan.token: 0 elements, accepted 1..8192");
    REFUSED(control_message, m->step_plan.parent = NULL,
            "plan.sequence[1].kind: a tree without plan.parent, accepted a chain");
    ACCEPTED(control_message, (m->step_plan.parent = NULL, f.sequence[1].kind = PLAN_CHAIN));
    ACCEPTED(control_message, f.parent[6] = 1);
    REFUSED(control_message, f.parent[6] = 2, "plan.sequence[1]: row 2: parent 2, accepted 0..1");
    REFUSED(control_message, f.parent[6] = PLAN_NO_PARENT,
            "plan.sequence[1]: row 2: parent 4294967295, accepted 0..1");
    REFUSED(control_message, f.parent[4] = 3,
            "plan.sequence[1]: row 0: parent 3, accepted 4294967295, none");
    REFUSED(control_message, f.parent[2] = 0,
            "plan.sequence[0]: row 2: parent 0, accepted 1, the row before");
    REFUSED(control_message, f.parent[3] = 3,
            "plan.sequence[0]: row 3: parent 3, accepted 2, the row before");
    ACCEPTED(control_message, (f.token[6] = 0, f.parent[6] = 1));
    REFUSED(control_message, f.token[6] = 0,
            "plan.sequence[1]: row 2: token 0, as its sibling row 1, accepted once");
    REFUSED(control_message, f.sequence[1].want = PLAN_WANT_NOTHING,
            "plan.sequence[1].want: nothing of a tree, accepted a token");
}

static void plan_draft_bounds(void **state) {
    (void)state;
    ACCEPTED(control_message, f.sequence[0].draft_len = f.sequence[1].draft_len = DRAFT_LEN_MAX);
    REFUSED(control_message, f.sequence[1].draft_len = DRAFT_LEN_MAX + 1,
            "plan.sequence[1].draft_len: 33, accepted 0..32");
    REFUSED(control_message, f.sequence[2].draft_len = 1,
            "plan.sequence[2].draft_len: 1, accepted 0..0");
    REFUSED(control_message, (f.sequence[1].draft_len = 1, m->step_plan.draft_top = 0),
            "plan.sequence[1].draft_len: 1, accepted 0..0");
    ACCEPTED(control_message, m->step_plan.draft_top = DRAFT_TOP_MAX);
    REFUSED(control_message, m->step_plan.draft_top = DRAFT_TOP_MAX + 1,
            "plan.draft_top: 17, accepted 0..16");
    ACCEPTED(control_message, to_all_drafting(&f, 64, 32));
    REFUSED(control_message, to_all_drafting(&f, 65, 32),
            "plan.sequence[64].draft_len with those before: 2080, accepted 0..2048");
}

static void plan_sequence_bounds(void **state) {
    (void)state;
    ACCEPTED(control_message, f.sequence[1].slot = PLAN_SEQS_MAX - 1);
    REFUSED(control_message, f.sequence[1].slot = PLAN_SEQS_MAX,
            "plan.sequence[1].slot: 1024, accepted 0..1023");
    REFUSED(control_message, f.sequence[2].slot = 7,
            "plan.sequence[2].slot: slot 7 for the second time, accepted once");
    REFUSED(control_message, f.sequence[0].kind = (enum plan_kind)2,
            "plan.sequence[0].kind: 2, accepted 0..1");
    REFUSED(control_message, f.sequence[0].row_count = 0,
            "plan.sequence[0].row_count: 0, accepted 1..8192");
    REFUSED(control_message, f.sequence[0].row_begin = 1,
            "plan.sequence[0].row_begin: 1, accepted 0, where the one before ended");
    REFUSED(control_message, f.sequence[1].row_begin = 3,
            "plan.sequence[1].row_begin: 3, accepted 4, where the one before ended");
    REFUSED(control_message, f.sequence[1].row_begin = UINT32_MAX,
            "plan.sequence[1].row_begin: 4294967295, accepted 4, where the one before ended");
    REFUSED(control_message, f.sequence[2].row_count = 2,
            "plan.sequence[2].row_count: 2 from 7 on, accepted 0..1");
    REFUSED(control_message, (m->step_plan.sequence_count = 2, m->step_plan.extent_count = 2),
            "plan: sequences cover 7 of 8 rows, accepted all");
    REFUSED(control_message, m->step_plan.sequence_count = 0,
            "plan.sequence: 0 elements, accepted 1..1024");
    ACCEPTED(control_message, to_sequences(&f, PLAN_SEQS_MAX, PLAN_SEQS_MAX));
    REFUSED(control_message, to_sequences(&f, PLAN_SEQS_MAX + 1, PLAN_SEQS_MAX),
            "plan.sequence: 1025 elements, accepted 1..1024");
    ACCEPTED(control_message, f.sequence[0].committed = CONTEXT_TOK_MAX - 4);
    REFUSED(control_message, f.sequence[0].committed = CONTEXT_TOK_MAX - 3,
            "plan.sequence[0].committed: 4194301, accepted 0..4194300");
    ACCEPTED(control_message, f.sequence[0].page_base = CONTEXT_TOK_MAX - 4);
    REFUSED(control_message, f.sequence[0].page_base = CONTEXT_TOK_MAX - 3,
            "plan.sequence[0].page_base with new pages: 4194305, accepted 0..4194304");
    REFUSED(control_message, f.sequence[1].extent_begin = 1,
            "plan.sequence[1].extent_begin: 1, accepted 2, where the one before ended");
    REFUSED(control_message, f.sequence[2].extent_count = 2,
            "plan.sequence[2].extent_count: 2 from 2 on, accepted 0..1");
    REFUSED(control_message, f.sequence[2].extent_count = 0,
            "plan: sequences cover 2 of 3 extents, accepted all");
    REFUSED(control_message, f.sequence[0].want = (enum plan_want)2,
            "plan.sequence[0].want: 2, accepted 0..1");
    REFUSED(control_message, f.sequence[0].top_logprobs = 1,
            "plan.sequence[0].top_logprobs: 1, accepted 0..0");
    REFUSED(control_message, (f.sequence[0].logprobs = true, f.sequence[0].top_logprobs = 21),
            "plan.sequence[0].top_logprobs: 21, accepted 0..20");
    REFUSED(control_message, f.sequence[0].temperature = -1,
            "plan.sequence[0].temperature: -1, accepted 0..3.40282e+38");
    REFUSED(control_message, f.sequence[2].temperature = NAN,
            "plan.sequence[2].temperature: nan, accepted 0..3.40282e+38");
    REFUSED(control_message, f.sequence[0].top_p = 0,
            "plan.sequence[0].top_p: 0, accepted above 0 and at most 1");
    REFUSED(control_message, f.sequence[2].top_p = 2,
            "plan.sequence[2].top_p: 2, accepted above 0 and at most 1");
    REFUSED(control_message, f.sequence[0].min_p = -0.5f,
            "plan.sequence[0].min_p: -0.5, accepted 0..1");
    REFUSED(control_message, f.sequence[0].top_k = MODEL_VOCAB_MAX + 1,
            "plan.sequence[0].top_k: 1048577, accepted 0..1048576");
}

static void plan_penalty_bounds(void **state) {
    (void)state;
    REFUSED(control_message, f.sequence[0].repetition_penalty = 101,
            "plan.sequence[0].repetition_penalty: 101, accepted 0..100");
    REFUSED(control_message, f.sequence[1].presence_penalty = -3,
            "plan.sequence[1].presence_penalty: -3, accepted -2..2");
    REFUSED(control_message, f.sequence[2].frequency_penalty = NAN,
            "plan.sequence[2].frequency_penalty: nan, accepted -2..2");
    ACCEPTED(control_message, f.sequence[0].reply_begin = CONTEXT_TOK_MAX);
    REFUSED(control_message, f.sequence[0].reply_begin = CONTEXT_TOK_MAX + 1,
            "plan.sequence[0].reply_begin: 4194305, accepted 0..4194304");
    ACCEPTED(control_message, to_biases(&f, LOGIT_BIAS_MAX));
    REFUSED(control_message, to_biases(&f, LOGIT_BIAS_MAX + 1),
            "plan.sequence[0].bias_count: 1025, accepted 0..1024");
    REFUSED(control_message, to_biases(&f, PLAN_BIASES_MAX),
            "plan.bias: 32771 elements, accepted 0..32768");
    REFUSED(control_message, (to_biases(&f, 5), f.sequence[1].page_base = 1),
            "plan.sequence[1].bias_count: 3, accepted 0..0");
    REFUSED(control_message, (to_biases(&f, 5), f.sequence[1].bias_begin = 4),
            "plan.sequence[1].bias_begin: 4, accepted 5, where the one before ended");
    REFUSED(control_message, (to_biases(&f, 5), f.sequence[1].bias_count = 4),
            "plan.sequence[1].bias_count: 4 from 5 on, accepted 0..3");
    REFUSED(control_message,
            (to_biases(&f, 5), f.sequence[1].bias_count = 2, f.sequence[2].bias_begin = 7),
            "plan: sequences cover 7 of 8 biases, accepted all");
    REFUSED(control_message, to_bias(&f, 1, (struct logit_bias){0, 1}),
            "plan.sequence[0].bias: token 0 after token 0, accepted ascending ids");
    REFUSED(control_message, to_bias(&f, 4, (struct logit_bias){MODEL_VOCAB_MAX, 1}),
            "plan.bias: 1048576 at [4], accepted 0..1048575");
    REFUSED(control_message, to_bias(&f, 4, (struct logit_bias){9, -100.5f}),
            "plan.bias: -100.5, accepted -100..100");
}

static void plan_page_bounds(void **state) {
    (void)state;
    REFUSED(control_message, f.extent[1].page_count = 0,
            "plan.extent[1].page_count: 0, accepted 1..67108854");
    ACCEPTED(control_message, f.extent[1].first_page = KV_PAGES_MAX - 2);
    REFUSED(control_message, f.extent[1].first_page = KV_PAGES_MAX - 1,
            "plan.extent[1].page_count: 2, accepted 1..1");
    REFUSED(control_message, f.extent[1].first_page = KV_PAGES_MAX,
            "plan.extent[1].first_page: 67108864, accepted 0..67108863");
    REFUSED(control_message, f.extent[1].page_count = UINT32_MAX,
            "plan.extent[1].page_count: 4294967295, accepted 1..67108854");
    ACCEPTED(control_message, to_extents(&f, PLAN_EXTENTS_MAX));
    REFUSED(control_message, to_extents(&f, PLAN_EXTENTS_MAX + 1),
            "plan.extent: 65537 elements, accepted 0..65536");
    REFUSED(control_message, f.copy[1].target = 1,
            "plan.copy[1].target: 1, the source, accepted another page");
    REFUSED(control_message, f.copy[0].tok_count = 0, "plan.copy[0].tok_count: 0, accepted 1..128");
    ACCEPTED(control_message, f.copy[0].tok_count = KV_PAGE_TOK_MAX);
    REFUSED(control_message, f.copy[0].tok_count = KV_PAGE_TOK_MAX + 1,
            "plan.copy[0].tok_count: 129, accepted 1..128");
    REFUSED(control_message, f.copy[0].source = KV_PAGES_MAX,
            "plan.copy[0].source: 67108864, accepted 0..67108863");
    REFUSED(control_message, f.copy[0].target = KV_PAGES_MAX,
            "plan.copy[0].target: 67108864, accepted 0..67108863");
    ACCEPTED(control_message, to_copies(&f, PLAN_EXTENTS_MAX));
    REFUSED(control_message, to_copies(&f, PLAN_EXTENTS_MAX + 1),
            "plan.copy: 65537 elements, accepted 0..65536");
    REFUSED(control_message, f.release[0] = PLAN_SEQS_MAX,
            "plan.release[0]: 1024, accepted 0..1023");
    REFUSED(control_message, f.release[0] = 1,
            "plan.release[1]: slot 1 for the second time, accepted once");
    REFUSED(control_message,
            (m->step_plan.release = codec_rows_zeros(1025), m->step_plan.release_count = 1025),
            "plan.release: 1025 elements, accepted 0..1024");
}

static struct control_welcome *to_welcome(struct control_message *message) {
    *message = (struct control_message){.type = CONTROL_WELCOME,
                                        .welcome = {.coordinator_pid = 1,
                                                    .heartbeat_ms = 500,
                                                    .max_rows = 1,
                                                    .max_sequences = 1,
                                                    .page_tok = 1,
                                                    .page_count = 1,
                                                    .page_cap = 1,
                                                    .context_len = 1}};
    return &message->welcome;
}

static void to_group(struct control_message *message, enum control_message_type type,
                     uint64_t generation, uint32_t size, struct bytes key) {
    *message = (struct control_message){.type = type,
                                        .group = {.generation = generation,
                                                  .size = size,
                                                  .key = key,
                                                  .page_count = type == CONTROL_FORM_GROUP}};
}

static struct control_resize *to_resize(struct control_message *message, uint32_t move_count) {
    static struct page_move move[RESIZE_MOVES_MAX + 1];
    for (uint32_t i = 0; i < move_count; i++)
        move[i] = (struct page_move){.source = i + 1, .target = i};
    *message = (struct control_message){
        .type = CONTROL_RESIZE,
        .resize = {.generation = 1, .page_count = 1, .move = move, .move_count = move_count}};
    move[0].target = 0;
    return &message->resize;
}

static struct control_examine *to_examine(struct control_message *message, uint32_t page_count) {
    static uint32_t page[EXAMINE_PAGES_MAX + 1];
    memset(page, 0, sizeof page);
    *message = (struct control_message){
        .type = CONTROL_EXAMINE,
        .examine = {.generation = 1, .page = page, .page_count = page_count}};
    return &message->examine;
}

static struct worker_examined *to_examined(struct worker_message *message, uint32_t hash_count) {
    static uint64_t hash[EXAMINE_HASHES_MAX + 1];
    *message = (struct worker_message){
        .type = WORKER_EXAMINED,
        .examined = {.generation = 1,
                     .text = "",
                     .report = {.device = "", .pages_per_hash = 1, .hash = hash}}};
    message->examined.report.hash_count = hash_count;
    return &message->examined;
}

static struct worker_heartbeat *to_heartbeat(struct worker_message *message) {
    *message = (struct worker_message){.type = WORKER_HEARTBEAT};
    return &message->heartbeat;
}

static void examine_bounds(void **state) {
    (void)state;
    ACCEPTED(control_message, to_examine(m, 0));
    ACCEPTED(control_message, to_examine(m, EXAMINE_PAGES_MAX));
    REFUSED(control_message, to_examine(m, EXAMINE_PAGES_MAX + 1),
            "examine.page: 262145 elements, accepted 0..262144");
    REFUSED(control_message, to_examine(m, 0)->generation = 0,
            "examine.generation: 0, accepted 1..18446744073709551615");
    REFUSED(control_message, to_examine(m, 0)->rows = TREE_ROWS_MAX + 1,
            "examine.rows: 65, accepted 0..64");
    REFUSED(control_message, ((uint32_t *)(uintptr_t)to_examine(m, 2)->page)[1] = KV_PAGES_MAX,
            "examine.page: 67108864 at [1], accepted 0..67108863");
    ACCEPTED(worker_message, to_examined(m, EXAMINE_HASHES_MAX));
    REFUSED(worker_message, to_examined(m, EXAMINE_HASHES_MAX + 1),
            "examined.hash: 8193 elements, accepted 0..8192");
    REFUSED(worker_message, to_examined(m, 0)->report.pages_per_hash = 0,
            "examined.pages_per_hash: 0, accepted 1..262144");
    REFUSED(worker_message, to_examined(m, 0)->report.rank = TP_MAX,
            "examined.rank: 8, accepted 0..7");
    REFUSED(worker_message, to_examined(m, 0)->status = STATUS_COUNT,
            "examined.status: 17, accepted 0..16");
    REFUSED(worker_message, to_heartbeat(m)->self_test_percent = 101,
            "heartbeat.self_test_percent: 101, accepted 0..100");
    REFUSED(worker_message, to_heartbeat(m)->self_test = (enum self_test)4,
            "heartbeat.self_test: 4, accepted 0..3");
}

static void resize_bounds(void **state) {
    (void)state;
    ACCEPTED(control_message, to_resize(m, 0));
    ACCEPTED(control_message, to_resize(m, RESIZE_MOVES_MAX));
    REFUSED(control_message, to_resize(m, RESIZE_MOVES_MAX + 1),
            "resize.move_source: 65537 elements, accepted 0..65536");
    REFUSED(control_message, to_resize(m, 0)->generation = 0,
            "resize.generation: 0, accepted 1..18446744073709551615");
    REFUSED(control_message, to_resize(m, 0)->page_count = 0,
            "resize.page_count: 0, accepted 1..67108864");
    REFUSED(control_message,
            ((struct page_move *)(uintptr_t)to_resize(m, 2)->move)[1].target = KV_PAGES_MAX,
            "resize.move_target: 67108864 at [1], accepted 0..67108863");
    REFUSED(control_message,
            ((struct page_move *)(uintptr_t)to_resize(m, 2)->move)[0].source = KV_PAGES_MAX,
            "resize.move_source: 67108864 at [0], accepted 0..67108863");
}

static struct control_size *to_size(struct control_message *message) {
    *message = (struct control_message){.type = CONTROL_SIZE,
                                        .size = {.generation = 1, .mem_fraction = 1}};
    return &message->size;
}

static struct worker_sized *to_sized(struct worker_message *message) {
    *message = (struct worker_message){.type = WORKER_SIZED, .sized = {.generation = 1}};
    return &message->sized;
}

static void size_bounds(void **state) {
    (void)state;
    ACCEPTED(control_message, to_size(m)->mem_fraction = FRACTION_ONE);
    REFUSED(control_message, to_size(m)->mem_fraction = 0,
            "size.mem_fraction: 0, accepted 1..1000000");
    REFUSED(control_message, to_size(m)->generation = 0,
            "size.generation: 0, accepted 1..18446744073709551615");
    ACCEPTED(worker_message, to_sized(m)->page_count = KV_PAGES_MAX);
    REFUSED(worker_message, to_sized(m)->page_count = KV_PAGES_MAX + 1,
            "sized.page_count: 67108865, accepted 0..67108864");
    REFUSED(worker_message, to_sized(m)->fraction_needed = FRACTION_ONE + 1,
            "sized.fraction_needed: 1000001, accepted 0..1000000");
}

static void control_message_bounds(void **state) {
    (void)state;
    static const uint8_t key[GROUP_KEY_BYTES_MAX + 1];
    const struct bytes none = {0}, full = {key, GROUP_KEY_BYTES_MAX},
                       over = {key, GROUP_KEY_BYTES_MAX + 1};
    REFUSED(control_message, to_welcome(m)->coordinator_pid = 0,
            "welcome.coordinator_pid: 0, accepted 1..18446744073709551615");
    REFUSED(control_message, to_welcome(m)->heartbeat_ms = 0,
            "welcome.heartbeat_ms: 0, accepted 1..86400000");
    REFUSED(control_message, to_welcome(m)->max_rows = PLAN_ROWS_MAX + 1,
            "welcome.max_rows: 8193, accepted 1..8192");
    REFUSED(control_message, to_welcome(m)->max_sequences = 0,
            "welcome.max_sequences: 0, accepted 1..1024");
    REFUSED(control_message, to_welcome(m)->page_tok = 0, "welcome.page_tok: 0, accepted 1..128");
    REFUSED(control_message, to_welcome(m)->page_tok = 129,
            "welcome.page_tok: 129, accepted 1..128");
    REFUSED(control_message, to_welcome(m)->page_count = 0,
            "welcome.page_count: 0, accepted 1..67108864");
    REFUSED(control_message, to_welcome(m)->page_cap = 0,
            "welcome.page_cap: 0, accepted 1..67108864");
    REFUSED(control_message, to_welcome(m)->context_len = CONTEXT_TOK_MAX + 1,
            "welcome.context_len: 4194305, accepted 1..4194304");
    REFUSED(control_message, to_welcome(m)->kv_dtype = (enum kv_dtype)3,
            "welcome.kv_dtype: 3, accepted 0..2");
    REFUSED(control_message, to_welcome(m)->mem_fraction = FRACTION_ONE + 1,
            "welcome.mem_fraction: 1000001, accepted 0..1000000");
    REFUSED(control_message, to_welcome(m)->activation_dtype = (enum activation_dtype)3,
            "welcome.activation_dtype: 3, accepted 0..2");
    REFUSED(control_message, to_welcome(m)->prefill_form = (enum prefill_form)2,
            "welcome.prefill_form: 2, accepted 0..1");
    REFUSED(control_message, *m = (struct control_message){.type = CONTROL_REFUSE},
            "refuse.status: 0, accepted 1..16");
    ACCEPTED(control_message, to_group(m, CONTROL_PREPARE_GROUP, 1, 8, none));
    REFUSED(control_message, to_group(m, CONTROL_PREPARE_GROUP, 1, 8, full),
            "prepare_group.key: 128 bytes, accepted 0..0");
    ACCEPTED(control_message, to_group(m, CONTROL_FORM_GROUP, 1, 1, none));
    ACCEPTED(control_message, to_group(m, CONTROL_FORM_GROUP, 1, 2, full));
    REFUSED(control_message, to_group(m, CONTROL_FORM_GROUP, 1, 2, none),
            "form_group.key: 0 bytes, accepted 1..128");
    REFUSED(control_message, to_group(m, CONTROL_FORM_GROUP, 1, 2, over),
            "form_group.key: 129 bytes, accepted 1..128");
    REFUSED(control_message, to_group(m, CONTROL_FORM_GROUP, 1, 9, full),
            "form_group.size: 9, accepted 1..8");
    REFUSED(control_message, to_group(m, CONTROL_FORM_GROUP, 0, 2, full),
            "form_group.generation: 0, accepted 1..18446744073709551615");
    REFUSED(control_message, (to_group(m, CONTROL_FORM_GROUP, 1, 1, none), m->group.page_count = 0),
            "form_group.page_count: 0, accepted 1..67108864");
    REFUSED(control_message,
            (to_group(m, CONTROL_PREPARE_GROUP, 1, 1, none), m->group.page_count = 1),
            "prepare_group.page_count: 1, accepted 0..0");
    REFUSED(control_message, *m = (struct control_message){.type = CONTROL_END_GENERATION},
            "end_generation.generation: 0, accepted 1..18446744073709551615");
}

/* --- what our structures cannot say, but bytes can ------------------------------------------- */

static void messages_have_a_type(void **state) {
    (void)state;
    struct error err = {0};
    struct worker_message worker;
    struct control_message control;
    arena_reset(&codec_rows_arena);
    codec_rows_expect(
        __LINE__, codec_decode_worker_message((struct bytes){0}, &codec_rows_arena, &worker, &err),
        err.text, "worker message: of no type, accepted hello..examined of runtime.proto");
    codec_rows_expect(
        __LINE__,
        codec_decode_control_message((struct bytes){0}, &codec_rows_arena, &control, &err),
        err.text, "control message: of no type, accepted welcome..examine of runtime.proto");
    static const uint8_t garbage[] = {0xff, 0xff, 0xff};
    codec_rows_expect(
        __LINE__,
        codec_decode_worker_message((struct bytes){garbage, sizeof garbage}, &codec_rows_arena,
                                    &worker, &err),
        err.text,
        "worker message: 3 bytes that are no espalier.WorkerMessage, accepted protobuf of "
        "runtime.proto");
}

/* The columns of a table have one length: cut one at a time by an element. */
static void columns_have_one_length(void **state) {
    (void)state;
    static const char *const columns[] = {"parent",
                                          "extent_page_count",
                                          "copy_target",
                                          "copy_tok_count",
                                          "sequence_kind",
                                          "sequence_row_begin",
                                          "sequence_row_count",
                                          "sequence_committed",
                                          "sequence_prefix_hash",
                                          "sequence_page_base",
                                          "sequence_extent_begin",
                                          "sequence_extent_count",
                                          "sequence_want",
                                          "sequence_logprobs",
                                          "sequence_top_logprobs",
                                          "sequence_temperature",
                                          "sequence_top_p",
                                          "sequence_top_k",
                                          "sequence_choice",
                                          "sequence_seed",
                                          "sequence_mask_id",
                                          "sequence_min_p",
                                          "sequence_repetition_penalty",
                                          "sequence_presence_penalty",
                                          "sequence_frequency_penalty",
                                          "sequence_reply_begin",
                                          "sequence_bias_begin",
                                          "sequence_bias_count",
                                          "bias_value",
                                          "sequence_draft_len"};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        arena_reset(&codec_rows_arena);
        struct control_message_fixture f;
        control_message_fixture_init(&f);
        to_biases(&f, 2);
        struct bytes wire = codec_encode_control_message(&f.message, &codec_rows_arena);
        Espalier__ControlMessage *message = espalier__control_message__unpack(NULL, wire.size,
                                                                              wire.data);
        const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field_by_name(
            &espalier__step_plan__descriptor, columns[i]);
        size_t *count = (size_t *)((char *)message->step_plan + field->quantifier_offset);
        size_t full = (*count)--;
        struct bytes cut = codec_rows_pack(&message->base);
        *count = full;
        espalier__control_message__free_unpacked(message, NULL);

        struct control_message got;
        struct error err = {0};
        char expected[128];
        snprintf(expected, sizeof expected,
                 "plan.%s: %zu elements, accepted %zu as in the columns beside it", columns[i],
                 full - 1, full);
        codec_rows_expect(__LINE__,
                          codec_decode_control_message(cut, &codec_rows_arena, &got, &err),
                          err.text, expected);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worker_message_bounds),
        cmocka_unit_test(step_result_bounds),
        cmocka_unit_test(draft_bounds),
        cmocka_unit_test(plan_draft_bounds),
        cmocka_unit_test(plan_row_bounds),
        cmocka_unit_test(plan_sequence_bounds),
        cmocka_unit_test(plan_penalty_bounds),
        cmocka_unit_test(plan_page_bounds),
        cmocka_unit_test(control_message_bounds),
        cmocka_unit_test(resize_bounds),
        cmocka_unit_test(size_bounds),
        cmocka_unit_test(examine_bounds),
        cmocka_unit_test(messages_have_a_type),
        cmocka_unit_test(columns_have_one_length),
    };
    return cmocka_run_group_tests(tests, codec_rows_setup, codec_rows_teardown);
}
