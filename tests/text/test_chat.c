/* Conversations to prompts: published vectors, tool declarations, what clients may not do, and what
 * users cannot forge. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/chat_template.h"
#include "text/json_tree.h"
#include "text/tool_declaration.h"
#include "text_fixture.h"

#define TEXT_BYTES_MAX (1u << 20)

static void init_template(enum fixture_vocab which, bool has_images, struct chat_template *chat) {
    const struct vocab *vocab = tokenizer_vocab(fixture_tokenizer_or_skip(which));
    struct error err = {0};
    if (chat_template_init(chat, vocab, has_images, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static void render(const struct chat_template *chat, const char *request, struct prompt *prompt) {
    struct error err = {0};
    prompt_init(prompt, TEXT_BYTES_MAX);
    if (chat_template_render(chat, request, strlen(request), prompt, &err) != STATUS_OK)
        fail_msg("%s", err.text);
}

static void assert_prints(const struct prompt *prompt, const struct vocab *vocab,
                          const char *expected) {
    struct text_buf printed;
    text_buf_init(&printed, TEXT_BYTES_MAX);
    prompt_print(prompt, vocab, &printed);
    if (printed.bytes != strlen(expected) || memcmp(printed.data, expected, printed.bytes))
        fail_msg("printed '%.*s'\nexpected '%s'", (int)printed.bytes, printed.data, expected);
    text_buf_deinit(&printed);
}

/* The request of a published vector, which names its fields as the Python call did. */
static char *request_of(struct json_object *vector) {
    struct json_object *request = json_object_new_object();
    static const char *const keys[][2] = {
        {"messages", "messages"}, {"tools", "tools"}, {"kwargs", "chat_template_kwargs"}};
    for (size_t i = 0; i < 3; i++) {
        json_object_object_add(request, keys[i][1],
                               json_object_get(json_object_object_get(vector, keys[i][0])));
    }
    char *text = strdup(json_object_to_json_string_ext(request, JSON_C_TO_STRING_PLAIN));
    json_object_put(request);
    return text;
}

static void test_published_prompts(void **state) {
    (void)state;
    struct chat_template chat;
    init_template(FIXTURE_EMBEDDED, true, &chat);
    const struct vocab *vocab = tokenizer_vocab(fixture_tokenizer(FIXTURE_EMBEDDED));
    struct json_object *vectors = fixture_json("kimi_vectors.json");
    struct json_object *list = json_object_object_get(vectors, "chat");
    assert_int_equal(json_object_array_length(list), 10);
    for (size_t i = 0; i < json_object_array_length(list); i++) {
        struct json_object *vector = json_object_array_get_idx(list, i);
        char *request = request_of(vector);
        struct prompt prompt;
        render(&chat, request, &prompt);
        assert_prints(&prompt, vocab,
                      json_object_get_string(json_object_object_get(vector, "prompt")));
        prompt_deinit(&prompt);
        free(request);
    }
    json_object_put(vectors);
}

static void test_published_ids(void **state) {
    (void)state;
    struct chat_template chat;
    const struct tokenizer *tokenizer = fixture_tokenizer_or_skip(FIXTURE_KIMI);
    init_template(FIXTURE_KIMI, true, &chat);
    struct json_object *vectors = fixture_json("kimi_vectors.json");
    struct json_object *list = json_object_object_get(vectors, "chat");
    for (size_t i = 0; i < json_object_array_length(list); i++) {
        struct json_object *vector = json_object_array_get_idx(list, i);
        struct json_object *expected = json_object_object_get(vector, "ids");
        char *request = request_of(vector);
        struct prompt prompt;
        struct token_list ids;
        token_list_init(&ids, TEXT_BYTES_MAX);
        render(&chat, request, &prompt);
        assert_int_equal(prompt_encode(&prompt, tokenizer, &ids, NULL), STATUS_OK);
        assert_int_equal(ids.count, json_object_array_length(expected));
        for (size_t k = 0; k < ids.count; k++)
            assert_int_equal(ids.ids[k],
                             json_object_get_int(json_object_array_get_idx(expected, k)));
        token_list_deinit(&ids);
        prompt_deinit(&prompt);
        free(request);
    }
    json_object_put(vectors);
}

/* Cases the published vectors lack. */
static void test_rules(void **state) {
    (void)state;
#define GENERATION "<|im_assistant|>assistant<|im_middle|><think>"
    static const struct {
        const char *request, *prompt;
    } cases[] = {
        /* Reasoning lives on through a chain of calls, and ends with the answer. */
        {"{\"messages\":[{\"role\":\"assistant\",\"reasoning_content\":\"r\",\"tool_calls\":"
         "[{\"id\":\"functions.f:0\",\"function\":{\"arguments\":{\"a\":[1,2.50,null,true],"
         "\"b\":{\"c\":\"\\u00e9\\n\"}}}}]}]}",
         "<|im_assistant|>assistant<|im_middle|><think>r</think><|tool_calls_section_begin|>"
         "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": [1, 2.5, null, "
         "true], \"b\": {\"c\": \"\xC3\xA9\\n\"}}<|tool_call_end|><|tool_calls_section_end|>"
         "<|im_end|>" GENERATION},
        {"{\"messages\":[{\"role\":\"assistant\",\"reasoning_content\":\"r\",\"content\":\"c\","
         "\"tool_calls\":[]},{\"role\":\"assistant\",\"reasoning_content\":\"s\","
         "\"tool_calls\":[{\"id\":\"i\",\"function\":{\"arguments\":\"x\"}}]}]}",
         "<|im_assistant|>assistant<|im_middle|><think></think>c<|im_end|>"
         "<|im_assistant|>assistant<|im_middle|><think>s</think><|tool_calls_section_begin|>"
         "<|tool_call_begin|>i<|tool_call_argument_begin|>x<|tool_call_end|>"
         "<|tool_calls_section_end|><|im_end|>" GENERATION},
        /* Without thinking, nothing is kept. */
        {"{\"messages\":[{\"role\":\"assistant\",\"reasoning_content\":\"r\",\"content\":\"c\"}],"
         "\"chat_template_kwargs\":{\"thinking\":false,\"preserve_thinking\":true}}",
         "<|im_assistant|>assistant<|im_middle|><think></think>c<|im_end|>" GENERATION "</think>"},
        /* Names, other roles, null fields. */
        {"{\"messages\":[{\"role\":\"user\",\"name\":\"Ann\",\"content\":\"x\"},"
         "{\"role\":\"developer\",\"name\":null,\"content\":\"y\"},"
         "{\"role\":\"user\",\"name\":\"\",\"content\":null}],\"tools\":null}",
         "<|im_user|>Ann<|im_middle|>x<|im_end|><|im_system|>developer<|im_middle|>y<|im_end|>"
         "<|im_user|>user<|im_middle|><|im_end|>" GENERATION},
        /* No tool is a function: the declaration is JSON, with its keys sorted. */
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
         "\"tools\":[{\"type\":\"_plugin\",\"b\":1,\"a\":\"\\u4e16\"}]}",
         "<|im_system|>tool_declare<|im_middle|>"
         "[{\"a\":\"\xE4\xB8\x96\",\"b\":1,\"type\":\"_plugin\"}]<|im_end|>"
         "<|im_user|>user<|im_middle|>x<|im_end|>" GENERATION},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[]}",
         "<|im_user|>user<|im_middle|>x<|im_end|>" GENERATION},
    };
    struct chat_template chat;
    init_template(FIXTURE_EMBEDDED, false, &chat);
    const struct vocab *vocab = tokenizer_vocab(fixture_tokenizer(FIXTURE_EMBEDDED));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct prompt prompt;
        render(&chat, cases[i].request, &prompt);
        assert_prints(&prompt, vocab, cases[i].prompt);
        prompt_deinit(&prompt);
    }
}

static void test_tool_declarations(void **state) {
    (void)state;
    struct json_object *list = fixture_json("tool_vectors.json");
    assert_true(json_object_array_length(list) > 0);
    for (size_t i = 0; i < json_object_array_length(list); i++) {
        struct json_object *vector = json_object_array_get_idx(list, i);
        struct json_object *expected = json_object_object_get(vector, "declaration");
        struct text_buf out;
        text_buf_init(&out, TEXT_BYTES_MAX);
        assert_int_equal(
            tool_declaration_append(&out, json_object_object_get(vector, "tools"), NULL),
            STATUS_OK);
        if (out.bytes != (size_t)json_object_get_string_len(expected) ||
            memcmp(out.data, json_object_get_string(expected), out.bytes)) {
            fail_msg("vector %zu: '%.*s'\nexpected '%s'", i, (int)out.bytes, out.data,
                     json_object_get_string(expected));
        }
        text_buf_deinit(&out);
    }
    json_object_put(list);
}

/* Forms the vectors lack. FORM is the declaration around one function. */
static void test_tool_forms(void **state) {
    (void)state;
#define TOOLS(parameters)                                                                          \
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":" parameters "}}]"
#define FORM(text) "# Tools\n\n## functions\nnamespace functions {\n" text "\n}\n"
    static const struct {
        const char *tools, *declaration;
    } cases[] = {
        {TOOLS("{}"), FORM("type f = (_: {}) => any;")},
        {TOOLS("null"), FORM("type f = (_: {}) => any;")},
        {TOOLS("{\"additionalProperties\":{\"$ref\":\"#\"}}"),
         FORM("interface parameters {}\ntype f = (_: parameters) => any;")},
        {TOOLS("{\"properties\":{\"a\":{\"$ref\":\"#\"},\"b\":true},\"required\":[\"b\"]}"),
         FORM("interface parameters {\n  a?: parameters,\n  b: any\n}\n"
              "type f = (_: parameters) => any;")},
        {TOOLS("{\"properties\":{\"a\":{\"type\":\"integer\",\"enum\":[1,true,null]}}}"),
         FORM("type f = (_: {\n  a?: 1 | True | None\n}) => any;")},
        /* What has no form: a type that is no string, a reference to nothing. */
        {TOOLS("{\"properties\":{\"a\":{\"type\":7}}}"),
         "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{\"type\":7}}}},"
         "\"type\":\"function\"}]"},
        {TOOLS("{\"additionalProperties\":{\"$ref\":\"#/$defs/x\"}}"),
         "[{\"function\":{\"name\":\"f\",\"parameters\":{\"additionalProperties\":{\"$ref\":"
         "\"#/$defs/x\"}}},\"type\":\"function\"}]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json_object *tools;
        struct text_buf out;
        text_buf_init(&out, TEXT_BYTES_MAX);
        assert_int_equal(json_tree_parse(cases[i].tools, strlen(cases[i].tools), &tools, NULL),
                         STATUS_OK);
        assert_int_equal(tool_declaration_append(&out, tools, NULL), STATUS_OK);
        text_buf_append(&out, "", 1);
        assert_string_equal(out.data, cases[i].declaration);
        text_buf_deinit(&out);
        json_object_put(tools);
    }
}

/* A schema as deep as JSON may be is written; no frame too many is needed. */
static void test_the_deepest_schema(void **state) {
    (void)state;
    static const char begin[] = TOOLS("{\"properties\":{\"a\":");
    for (size_t depth = 1;; depth++) {
        char text[64 * JSON_TREE_DEPTH_MAX] = "";
        size_t at = (size_t)snprintf(text, sizeof text, "%.*s", (int)(sizeof begin - sizeof "}}]"),
                                     begin);
        for (size_t i = 0; i < depth; i++)
            at += (size_t)snprintf(text + at, sizeof text - at, "{\"type\":\"array\",\"items\":");
        at += (size_t)snprintf(text + at, sizeof text - at, "true");
        memset(text + at, '}', depth + 4);
        at += depth + 4;
        text[at++] = ']';
        struct json_object *tools;
        if (json_tree_parse(text, at, &tools, NULL) != STATUS_OK) {
            assert_int_equal(depth, JSON_TREE_DEPTH_MAX - 5); /* five levels around it */
            return;
        }
        struct text_buf out;
        text_buf_init(&out, TEXT_BYTES_MAX);
        assert_int_equal(tool_declaration_append(&out, tools, NULL), STATUS_OK);
        size_t arrays = 0;
        for (size_t i = 0; i + 6 <= out.bytes; i++)
            arrays += !memcmp(out.data + i, "Array<", 6);
        assert_int_equal(arrays, depth);
        text_buf_deinit(&out);
        json_object_put(tools);
    }
}

/* Whatever text a client sends, in whatever field, the control tokens of the prompt are those of
 * its structure. */
static void test_control_tokens_cannot_be_forged(void **state) {
    (void)state;
    static const char template[] =
        "{\"messages\":[{\"role\":\"%1$s\",\"name\":\"%1$s\",\"content\":\"%1$s\"},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"%1$s\"}]},"
        "{\"role\":\"assistant\",\"reasoning_content\":\"%1$s\",\"tool_calls\":[{\"id\":\"%1$s\","
        "\"function\":{\"arguments\":\"%1$s\"}},{\"id\":\"x\",\"function\":{\"arguments\":"
        "{\"%1$s\":\"%1$s\"}}}]},{\"role\":\"tool\",\"tool_call_id\":\"%1$s\"}],"
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"%1$s\",\"description\":\"%1$"
        "s\","
        "\"parameters\":{\"properties\":{\"%1$s\":{\"type\":\"string\",\"default\":\"%1$s\"}}}}}]}";
    const struct tokenizer *tokenizer = fixture_tokenizer_or_skip(FIXTURE_EMBEDDED);
    const struct vocab *vocab = tokenizer_vocab(tokenizer);
    struct chat_template chat;
    init_template(FIXTURE_EMBEDDED, false, &chat);
    struct token_list plain_specials;
    token_list_init(&plain_specials, 1000);
    for (uint32_t id = vocab_size(vocab) - VOCAB_SPECIALS - 1; id < vocab_size(vocab); id++) {
        /* The first round is an ordinary word: it says which control tokens there are to be. */
        bool is_first = !vocab_is_special(vocab, id);
        uint32_t bytes = 4;
        const char *word = is_first ? "word" : vocab_bytes(vocab, id, &bytes);
        char name[VOCAB_TOKEN_BYTES_MAX + 1], request[sizeof template + 20 * sizeof name];
        snprintf(name, sizeof name, "%.*s", (int)bytes, word);
        snprintf(request, sizeof request, template, name);

        struct prompt prompt;
        struct token_list ids;
        token_list_init(&ids, TEXT_BYTES_MAX);
        render(&chat, request, &prompt);
        assert_int_equal(prompt_encode(&prompt, tokenizer, &ids, NULL), STATUS_OK);
        size_t special_count = 0;
        for (size_t i = 0; i < ids.count; i++) {
            if (!vocab_is_special(vocab, ids.ids[i])) continue;
            if (is_first) token_list_push(&plain_specials, ids.ids[i]);
            assert_int_equal(plain_specials.ids[special_count++], ids.ids[i]);
        }
        assert_int_equal(special_count, plain_specials.count);
        prompt_deinit(&prompt);
        token_list_deinit(&ids);
    }
    token_list_deinit(&plain_specials);
}

static void test_bad_requests(void **state) {
    (void)state;
#define MESSAGES(text) "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}," text "]}"
#define WITH(text)     "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]," text "}"
    static const struct {
        const char *request, *error;
        enum status status;
    } cases[] = {
        {"", "JSON at byte 0: unexpected end of data", STATUS_INVALID_ARGUMENT},
        {"{\"messages\":", "JSON at byte 12: unexpected end of data", STATUS_INVALID_ARGUMENT},
        {"{\"messages\":[}", "JSON at byte 13: unexpected character", STATUS_INVALID_ARGUMENT},
        {"[1]", "request: expected object, found array", STATUS_INVALID_ARGUMENT},
        {"7", "request: expected object, found number", STATUS_INVALID_ARGUMENT},
        {"{}", "messages: expected array, found null", STATUS_INVALID_ARGUMENT},
        {"{\"messages\":[]}", "messages: expected at least one message", STATUS_INVALID_ARGUMENT},
        {"{\"messages\":\"x\"}", "messages: expected array, found string", STATUS_INVALID_ARGUMENT},
        {WITH("\"tool\":[]"),
         "request: unknown key 'tool'; accepted are messages, tools, chat_template_kwargs",
         STATUS_INVALID_ARGUMENT},
        {WITH("\"tools\":{}"), "tools: expected array, found object", STATUS_INVALID_ARGUMENT},
        {WITH("\"tools\":[4]"), "tools[0]: expected object, found number", STATUS_INVALID_ARGUMENT},
        {WITH("\"tools\":[{}]"), "tools[0].type: expected string, found null",
         STATUS_INVALID_ARGUMENT},
        {WITH("\"tools\":[{\"type\":\"function\"}]"),
         "tools[0].function: expected object, found null", STATUS_INVALID_ARGUMENT},
        {WITH("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":1}}]"),
         "tools[0].function.name: expected string, found number", STATUS_INVALID_ARGUMENT},
        {WITH("\"chat_template_kwargs\":[]"), "chat_template_kwargs: expected object, found array",
         STATUS_INVALID_ARGUMENT},
        {WITH("\"chat_template_kwargs\":{\"enable_thinking\":true}"),
         "chat_template_kwargs: unknown key 'enable_thinking'; accepted are thinking, "
         "preserve_thinking",
         STATUS_INVALID_ARGUMENT},
        {WITH("\"chat_template_kwargs\":{\"thinking\":0}"),
         "chat_template_kwargs.thinking: expected true or false, found number",
         STATUS_INVALID_ARGUMENT},
        {MESSAGES("3"), "messages[1]: expected object, found number", STATUS_INVALID_ARGUMENT},
        {MESSAGES("{\"content\":\"x\"}"), "messages[1].role: expected string, found null",
         STATUS_INVALID_ARGUMENT},
        {MESSAGES("{\"role\":\"user\",\"name\":[]}"),
         "messages[1].name: expected string, found array", STATUS_INVALID_ARGUMENT},
        {MESSAGES("{\"role\":\"user\",\"content\":5}"),
         "messages[1].content: expected string or array, found number", STATUS_INVALID_ARGUMENT},
        {MESSAGES("{\"role\":\"user\",\"content\":[\"x\"]}"),
         "messages[1].content[0]: expected object, found string", STATUS_INVALID_ARGUMENT},
        {MESSAGES("{\"role\":\"user\",\"content\":[{\"text\":\"x\"}]}"),
         "messages[1].content[0].type: expected string, found null", STATUS_INVALID_ARGUMENT},
        {MESSAGES("{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}"),
         "messages[1].content[0].text: expected string, found null", STATUS_INVALID_ARGUMENT},
        {MESSAGES("{\"role\":\"user\",\"content\":[{\"type\":\"audio\"}]}"),
         "messages[1].content[0].type: expected 'text' or 'image_url', found 'audio'",
         STATUS_INVALID_ARGUMENT},
        {MESSAGES("{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}"),
         "messages[1].content[0]: images are not supported, only text", STATUS_UNIMPLEMENTED},
        {MESSAGES("{\"role\":\"assistant\",\"reasoning_content\":true}"),
         "messages[1].reasoning_content: expected string, found true or false",
         STATUS_INVALID_ARGUMENT},
        {MESSAGES("{\"role\":\"assistant\",\"tool_calls\":{}}"),
         "messages[1].tool_calls: expected array, found object", STATUS_INVALID_ARGUMENT},
        {MESSAGES("{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}"),
         "messages[1].tool_calls[0].id: expected string, found null", STATUS_INVALID_ARGUMENT},
        {MESSAGES("{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"i\"}]}"),
         "messages[1].tool_calls[0].function: expected object, found null",
         STATUS_INVALID_ARGUMENT},
        {MESSAGES("{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"i\",\"function\":{}}]}"),
         "messages[1].tool_calls[0].function.arguments: expected string or object, found null",
         STATUS_INVALID_ARGUMENT},
        {MESSAGES("{\"role\":\"tool\",\"content\":\"x\"}"),
         "messages[1].tool_call_id: expected string, found null", STATUS_INVALID_ARGUMENT},
    };
    struct chat_template chat;
    init_template(FIXTURE_EMBEDDED, false, &chat);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct prompt prompt;
        struct error err = {0};
        prompt_init(&prompt, TEXT_BYTES_MAX);
        enum status status = chat_template_render(&chat, cases[i].request, strlen(cases[i].request),
                                                  &prompt, &err);
        assert_string_equal(err.text, cases[i].error);
        assert_int_equal(status, cases[i].status);
        prompt_deinit(&prompt);
    }
}

static enum status parse(const char *text, size_t bytes, struct error *err) {
    struct json_object *tree = NULL;
    enum status status = json_tree_parse(text, bytes, &tree, err);
    json_object_put(tree);
    return status;
}

static void test_json_is_bounded(void **state) {
    (void)state;
    struct error err = {0};
    static char text[2 * JSON_TREE_VALUES_MAX + 8];

    /* Up to the bound passes, one level more does not. */
    for (unsigned depth = JSON_TREE_DEPTH_MAX - 2; depth <= JSON_TREE_DEPTH_MAX + 1; depth++) {
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        assert_int_equal(parse(text, 2 * (size_t)depth, &err),
                         depth <= JSON_TREE_DEPTH_MAX ? STATUS_OK : STATUS_INVALID_ARGUMENT);
    }
    assert_non_null(strstr(err.text, "nesting"));

    for (size_t values = JSON_TREE_VALUES_MAX - 1; values <= JSON_TREE_VALUES_MAX; values++) {
        text[0] = '[';
        for (size_t i = 0; i < values; i++)
            memcpy(text + 1 + 2 * i, "0,", 2);
        text[2 * values] = ']';
        assert_int_equal(parse(text, 2 * values + 1, &err),
                         values < JSON_TREE_VALUES_MAX ? STATUS_OK : STATUS_INVALID_ARGUMENT);
    }
    assert_string_equal(err.text, "JSON holds more than 65536 values");

    /* Commas inside a string are not values, whatever quotes it holds. */
    memset(text, ',', sizeof text);
    memcpy(text, "\"\\\"", 3);
    text[sizeof text - 1] = '"';
    assert_int_equal(parse(text, sizeof text, &err), STATUS_OK);

    assert_int_equal(parse("\"\xFF\"", 3, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.text, "JSON is not UTF-8 at byte 1");
    assert_int_equal(parse("{}\0{}", 5, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.text, "JSON at byte 2: a NUL byte");
    assert_int_equal(parse("{} x", 4, &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(parse("{} \n", 4, &err), STATUS_OK);
    assert_int_equal(parse("{\"a\":\"[[[,\\\"[\"}", 15, &err), STATUS_OK);
}

static void test_json_is_written_as_python_does(void **state) {
    (void)state;
    static const struct {
        const char *text, *spaced;
    } cases[] = {
        {"{}", "{}"},
        {"[]", "[]"},
        {"[[],{},[[1]]]", "[[], {}, [[1]]]"},
        {"{\"b\":1,\"a\":{\"c\":null}}", "{\"b\": 1, \"a\": {\"c\": null}}"},
        {"[true,false,null]", "[true, false, null]"},
        {"[0,-7,9223372036854775807,18446744073709551615]",
         "[0, -7, 9223372036854775807, 18446744073709551615]"},
        {"[1.0,0.10,1e5,1E-5,1e16,123456789.125,1e22,-0.0,5e-324,0.0001]",
         "[1.0, 0.1, 100000.0, 1e-05, 1e+16, 123456789.125, 1e+22, -0.0, 5e-324, 0.0001]"},
        {"[1e15,9007199254740993.0,0.30000000000000004,1.7976931348623157e308]",
         "[1000000000000000.0, 9007199254740992.0, 0.30000000000000004, 1.7976931348623157e+308]"},
        {"\"\\u00e9\\u4e16\\ud83d\\ude00\\/\\\"\\\\\\n\\r\\t\\b\\f\\u001F\\u007f\"",
         "\"\xC3\xA9\xE4\xB8\x96\xF0\x9F\x98\x80/\\\"\\\\\\n\\r\\t\\b\\f\\u001f\x7F\""},
        {"\"a\\u0000b\"", "\"a\\u0000b\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json_object *tree;
        struct text_buf out;
        text_buf_init(&out, 1000);
        assert_int_equal(json_tree_parse(cases[i].text, strlen(cases[i].text), &tree, NULL),
                         STATUS_OK);
        json_tree_append(&out, tree, JSON_TREE_SPACED);
        text_buf_append(&out, "", 1);
        assert_string_equal(out.data, cases[i].spaced);
        text_buf_deinit(&out);
        json_object_put(tree);
    }
}

static void test_a_prompt_too_long_is_refused(void **state) {
    (void)state;
    static const char request[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"0123456789\"}]}";
    struct chat_template chat;
    init_template(FIXTURE_EMBEDDED, false, &chat);
    for (size_t bytes_max = 22; bytes_max <= 23; bytes_max++) {
        struct prompt prompt; /* "user", the digits, "assistant" are 23 bytes */
        struct error err = {0};
        prompt_init(&prompt, bytes_max);
        assert_int_equal(chat_template_render(&chat, request, sizeof request - 1, &prompt, &err),
                         bytes_max == 23 ? STATUS_OK : STATUS_RESOURCE_EXHAUSTED);
        if (bytes_max == 22) assert_string_equal(err.text, "prompt is longer than 22 bytes");
        prompt_deinit(&prompt);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_prompts),
        cmocka_unit_test(test_published_ids),
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_tool_declarations),
        cmocka_unit_test(test_tool_forms),
        cmocka_unit_test(test_the_deepest_schema),
        cmocka_unit_test(test_control_tokens_cannot_be_forged),
        cmocka_unit_test(test_bad_requests),
        cmocka_unit_test(test_json_is_bounded),
        cmocka_unit_test(test_json_is_written_as_python_does),
        cmocka_unit_test(test_a_prompt_too_long_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
