/* Streams of marks and text against the channels they must fall into. */
#include <string.h>

#include "text/channel.h"
#include "text_fixture.h"

/* Letters stand for tokens: ( ) begin and end thinking, [ ] the tool section, others are text. In
 * `channels` each stands for its token's channel (c, r, t), capital for a mark. */
static void test_streams(void **state) {
    (void)state;
    static const struct {
        bool in_reasoning;
        const char *tokens, *channels;
    } cases[] = {
        {false, "ab", "cc"},
        {true, "ab)cd", "rrRcc"},
        {true, "a", "r"},
        {false, "(a)b", "RrRc"},
        {true, "a)b[x]c", "rRcTtTc"},
        {true, "a[x]b)c", "rrrrrRc"},    /* thinking about a call */
        {true, "a(b)c", "rRrRc"},        /* thinking twice is thinking */
        {false, "a)b", "cCc"},           /* the end of no thinking */
        {false, "a]b", "cCc"},           /* the end of no call */
        {false, "[x(y)z]a", "TtttttTc"}, /* marks of thinking in arguments */
        {false, "[x[y]z", "TtTtTc"},
        {true, ")[x][y]", "RTtTTtT"},
    };
    const struct vocab *vocab = tokenizer_vocab(fixture_tokenizer_or_skip(FIXTURE_EMBEDDED));
    struct channel_marks marks = channel_marks_find(vocab);
    assert_int_equal(marks.think_begin, vocab_special(vocab, "<think>"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct channel_state channel;
        channel_state_init(&channel, cases[i].in_reasoning);
        for (size_t k = 0; cases[i].tokens[k]; k++) {
            char token = cases[i].tokens[k];
            uint32_t id = token == '('   ? vocab_special(vocab, "<think>")
                          : token == ')' ? vocab_special(vocab, "</think>")
                          : token == '[' ? vocab_special(vocab, "<|tool_calls_section_begin|>")
                          : token == ']' ? vocab_special(vocab, "<|tool_calls_section_end|>")
                                         : (uint32_t)token;
            struct channel_token got = channel_state_take(&channel, &marks, id);
            char letter = got.is_mark ? "CRT"[got.channel] : "crt"[got.channel];
            if (letter != cases[i].channels[k])
                fail_msg("'%s' at %zu: %c, expected %c", cases[i].tokens, k, letter,
                         cases[i].channels[k]);
        }
        assert_int_equal(strlen(cases[i].tokens), strlen(cases[i].channels));
    }
}

static void test_the_prompt_says_where_to_start(void **state) {
    (void)state;
    struct channel_marks marks = {
        .think_begin = 1, .think_end = 2, .tools_begin = 3, .tools_end = 4};
    static const struct {
        uint32_t ids[4];
        size_t count;
        bool in_reasoning;
    } cases[] = {
        {{0}, 0, false},         {{9, 9}, 2, false},       {{9, 1}, 2, true},
        {{1, 2}, 2, false},      {{1, 2, 1}, 3, true},     {{1, 9, 9}, 3, true},
        {{1, 3, 4, 9}, 4, true}, {{2, 9, 9, 9}, 4, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(channel_in_reasoning(&marks, cases[i].ids, cases[i].count),
                         cases[i].in_reasoning);
}

static void test_a_vocabulary_without_marks_has_one_channel(void **state) {
    (void)state;
    struct channel_marks none = {VOCAB_NO_ID, VOCAB_NO_ID, VOCAB_NO_ID, VOCAB_NO_ID};
    struct channel_state channel;
    channel_state_init(&channel, false);
    for (uint32_t id = 0; id < 100; id++) {
        struct channel_token got = channel_state_take(&channel, &none, id);
        assert_int_equal(got.channel, CHANNEL_CONTENT);
        assert_false(got.is_mark);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_the_prompt_says_where_to_start),
        cmocka_unit_test(test_a_vocabulary_without_marks_has_one_channel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
