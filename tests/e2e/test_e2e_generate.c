/* From a prompt on a command line to the reference's tokens, through every process, at each width.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <json-c/json.h>

#include "processes.h"

static struct processes_result result;

static struct json_object *load_golden(void) {
    struct json_object *root = json_object_from_file(ESPALIER_SOURCE_DIR
                                                     "/tests/golden/data/golden.json");
    assert_non_null(root);
    return root;
}

static const char *text_of(struct json_object *prompt, const char *key) {
    return json_object_get_string(json_object_object_get(prompt, key));
}

static void expect_ids(struct json_object *prompt, const char *printed, const char *width) {
    struct json_object *ids = json_object_object_get(prompt, "greedy_ids");
    const char *at = printed;
    for (size_t i = 0; i < json_object_array_length(ids); i++) {
        char *end;
        long found = strtol(at, &end, 10);
        long expected = json_object_get_int(json_object_array_get_idx(ids, i));
        if (end == at || found != expected)
            fail_msg("tp %s, \"%s\", token %zu: found %ld, expected %ld", width,
                     text_of(prompt, "prompt"), i, found, expected);
        at = end;
    }
    assert_int_equal(strspn(at, " \n"), strlen(at));
}

static void generate_all(const char *dir, const char *width) {
    struct json_object *root = load_golden();
    struct json_object *prompts = json_object_object_get(root, "prompts");
    assert_true(json_object_array_length(prompts) >= 12);
    for (size_t i = 0; i < json_object_array_length(prompts); i++) {
        struct json_object *prompt = json_object_array_get_idx(prompts, i);
        bool chat = strcmp(text_of(prompt, "kind"), "chat") == 0;
        const char *arguments[] = {"generate",
                                   "--run-dir",
                                   dir,
                                   "--tokens",
                                   "64",
                                   "--ignore-eos",
                                   "--print-tokens",
                                   "--prompt",
                                   text_of(prompt, "prompt"),
                                   chat ? "--chat" : NULL,
                                   NULL};
        processes_run(&result, NULL, "espalier", arguments);
        if (result.exit_code != 0) fail_msg("exit %d: %s", result.exit_code, result.err);
        expect_ids(prompt, result.out, width);
    }
    json_object_put(root);
}

static const struct changed_draw {
    const char *flags[6];
    int exit_code;
    const char *out, *err; /* all of what is printed; a part of the complaint */
} changed_draws[] = {
    {{"--logit-bias", "5=100"}, 0, "5 5 5 5 \n", ""},
    {{"--logit-bias", "6=60,5=100", "--repetition-penalty=100", "--tokens=2"}, 0, "5 6 \n", ""},
    {{"--logit-bias", "5=100,6=98", "--frequency-penalty", "2", "--presence-penalty", "2"},
     0,
     NULL, /* the model has a say: but it is these two, and both */
     ""},
    {{"--logit-bias", "7=1,100000=1"}, 1, "", "logit_bias names token 100000"},
};

static void draw_otherwise(const char *dir) {
    for (size_t i = 0; i < sizeof changed_draws / sizeof changed_draws[0]; i++) {
        const struct changed_draw *draw = &changed_draws[i];
        const char *arguments[16] = {"generate",     "--run-dir",      dir,      "--tokens", "4",
                                     "--ignore-eos", "--print-tokens", "a b c d"};
        for (size_t k = 0; k < 6 && draw->flags[k]; k++)
            arguments[8 + k] = draw->flags[k];
        processes_run(&result, NULL, "espalier", arguments);
        if (result.exit_code != draw->exit_code)
            fail_msg("row %zu: exit %d: %s", i, result.exit_code, result.err);
        assert_non_null(strstr(result.err, draw->err));
        if (draw->out) assert_string_equal(result.out, draw->out);
        if (draw->out) continue;
        assert_non_null(strchr(result.out, '5'));
        assert_non_null(strchr(result.out, '6'));
        assert_int_equal(strspn(result.out, "56 \n"), strlen(result.out));
    }
}

static void same_tokens(const char *width) {
    char dir[64], log[96];
    processes_make_dir(dir);
    snprintf(log, sizeof log, "%s.log", dir);
    const char *serve[] = {"serve", "--run-dir",          dir,   "--tp", width, "--kv-cache-dtype",
                           "f32",   "--activation-dtype", "f32", NULL};
    pid_t pid = processes_start(log, "espalier", serve);
    processes_wait_for(log, "espalier: ready");
    generate_all(dir, width);
    draw_otherwise(dir);
    const char *drain[] = {"drain", "--run-dir", dir, NULL};
    processes_run(&result, NULL, "espalier", drain);
    assert_int_equal(result.exit_code, 0);
    assert_int_equal(processes_wait(pid), 0);
    assert_int_equal(processes_count(dir), 0);
    assert_int_equal(processes_dir_entries(dir), 0);
    processes_remove_dir(dir);
    remove(log);
}

static void golden_tokens_at_tp_1(void **state) {
    (void)state;
    same_tokens("1");
}

static void golden_tokens_at_tp_2(void **state) {
    (void)state;
    same_tokens("2");
}

static void golden_tokens_at_tp_8(void **state) {
    (void)state;
    same_tokens("8");
}

/* A group of its own, for one call: the text of the reference, and nothing left. */
static void a_private_group_leaves_nothing(void **state) {
    (void)state;
    struct json_object *root = load_golden();
    struct json_object *prompt = json_object_array_get_idx(json_object_object_get(root, "prompts"),
                                                           0);
    const char *arguments[] = {"generate", "--tp",
                               "2",        "--tokens",
                               "64",       "--ignore-eos",
                               "--stats",  "--kv-cache-dtype",
                               "f32",      "--activation-dtype",
                               "f32",      text_of(prompt, "prompt"),
                               NULL};
    char dir[64], variable[80];
    processes_make_dir(dir);
    snprintf(variable, sizeof variable, "TMPDIR=%s", dir);
    const char *variables[] = {variable, NULL};
    processes_run_with(&result, variables, "espalier", arguments);
    assert_int_equal(result.exit_code, 0);
    const char *text = text_of(prompt, "greedy_text");
    assert_int_equal(strncmp(result.out, text, strlen(text)), 0);
    assert_non_null(strstr(result.err, "64 tokens in"));
    assert_non_null(strstr(result.err, "tokens/s"));
    assert_ptr_equal(strchr(result.err, '\n') + 1, result.err + strlen(result.err));
    assert_int_equal(processes_count(dir), 0);
    assert_int_equal(processes_dir_entries(dir), 0);
    processes_remove_dir(dir);
    json_object_put(root);
}

/* What the user says is data: a control token spelled in a prompt changes nothing but text. */
static void text_and_limits(void **state) {
    (void)state;
    char dir[64], log[96];
    processes_make_dir(dir);
    snprintf(log, sizeof log, "%s.log", dir);
    const char *serve[] = {
        "serve",       "--run-dir", dir, "--context-length", "256", "--max-total-tokens", "512",
        "--page-size", "16",        NULL};
    pid_t pid = processes_start(log, "espalier", serve);
    processes_wait_for(log, "espalier: ready");
    static char long_prompt[400001];
    for (size_t i = 0; i + 1 < sizeof long_prompt; i++)
        long_prompt[i] = "word "[i % 5];
    const struct {
        const char *name, *input;
        const char *arguments[10];
        int exit_code;
        const char *out, *err; /* parts, or NULL */
    } rows[] = {
        {"standard input", "CREATE TABLE", {"-", "--tokens", "4", "--print-tokens"}, 0, " ", NULL},
        {"seeded draws",
         NULL,
         {"a", "--temperature", "1", "--seed", "7", "--stats"},
         0,
         NULL,
         "seed 7"},
        {"one token", NULL, {"a", "--tokens", "1", "--stats"}, 0, NULL, "1 tokens in"},
        {"a stop string",
         NULL,
         {"The sqlite3_open() function", "--stop", "sqlite3_reset", "--stats"},
         0,
         " is used to implement the ",
         "finish stop"},
        {"the context ends it",
         NULL,
         {"CREATE TABLE", "--ignore-eos", "--tokens", "4000", "--stats"},
         0,
         NULL,
         "finish length"},
        {"too long a prompt, tokenized off the loop", long_prompt, {"-"}, 1, NULL, "OUT_OF_RANGE"},
        {"not UTF-8", "\xff\xfe", {"-"}, 1, NULL, "INVALID_ARGUMENT"},
        {"nothing", "", {"-"}, 64, NULL, "PROMPT: found nothing"},
        {"greedy where one token is left",
         NULL,
         {"The sqlite3_open() function", "--temperature", "2", "--top-k", "1", "--tokens", "4",
          "--print-tokens"},
         0,
         "290 468 291 845",
         NULL},
        {"greedy where the rest is improbable",
         NULL,
         {"The sqlite3_open() function", "--temperature", "2", "--top-p", "1e-6", "--tokens", "4",
          "--print-tokens"},
         0,
         "290 468 291 845",
         NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *arguments[14] = {"generate", "--run-dir", dir};
        memcpy(arguments + 3, rows[i].arguments, sizeof rows[i].arguments);
        processes_run(&result, rows[i].input, "espalier", arguments);
        if (result.exit_code != rows[i].exit_code ||
            (rows[i].out && !strstr(result.out, rows[i].out)) ||
            (rows[i].err && !strstr(result.err, rows[i].err)))
            fail_msg("%s: exit %d, \"%s\", \"%s\"", rows[i].name, result.exit_code, result.out,
                     result.err);
    }
    const char *chat[] = {"chat", "--run-dir", dir, "--tokens", "8", NULL};
    processes_run(&result, "Hello!\n/reset\nHello!\n/exit\nnever\n", "espalier", chat);
    assert_int_equal(result.exit_code, 0);
    char *half = strchr(result.out, '\n');
    assert_non_null(half);
    assert_memory_equal(result.out, half + 1, (size_t)(half - result.out));
    kill(pid, SIGTERM);
    assert_int_equal(processes_wait(pid), 0);
    processes_remove_dir(dir);
    remove(log);
}

static int tear_down(void **state) {
    (void)state;
    processes_kill_all();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(golden_tokens_at_tp_1, tear_down),
        cmocka_unit_test_teardown(golden_tokens_at_tp_2, tear_down),
        cmocka_unit_test_teardown(golden_tokens_at_tp_8, tear_down),
        cmocka_unit_test_teardown(a_private_group_leaves_nothing, tear_down),
        cmocka_unit_test_teardown(text_and_limits, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
