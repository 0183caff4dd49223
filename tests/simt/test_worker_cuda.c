/* The whole worker on emulated GPUs: `espalier` starts the coordinator and ranks that load the
 * embedded model, or one as DeepSeek-V3 is, into the memory of their devices, climb the self-test,
 * meet by NCCL's calls and generate; the same tokens as on the CPU, at TP 1, 2 and 8, greedy and
 * drawn, also by a drafter's trees, while the pool is resized, and when a rank was lost. What a GPU
 * does not do yet is refused in one line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "processes.h"
#include "tensor_store.h"
#include "v3_model.h"

#define PROMPT "The capital of France is"

/* One of those behind which test_engine_cuda finds margins between the tokens of random weights. */
#define CLEAR_PROMPT "The sqlite3_open() function"

static struct processes_result result;

/* What `espalier generate` prints for a prompt, with these flags (ended by NULL) besides. */
static void generate(const char *prompt, const char *device, const char *tokens,
                     const char *const *flags, char *out, size_t bytes) {
    const char *arguments[32] = {
        "generate", "--print-tokens", "--context-length", "128", "--log-level", "error",
        "--device", device,           "--tokens",         tokens};
    size_t count = 10;
    while (*flags)
        arguments[count++] = *flags++;
    arguments[count] = prompt;
    processes_run(&result, NULL, "espalier", arguments);
    if (result.exit_code != 0) fail_msg("exit code %d: %s", result.exit_code, result.err);
    assert_true(snprintf(out, bytes, "%s", result.out) < (int)bytes);
}

static void tokens_are_the_cpus(void **state) {
    (void)state;
    static const struct {
        const char *tp, *tokens, *algorithm; /* of the GPU; the CPU guesses nothing */
        const char *flags[8];
    } cases[] = {
        {"1", "8", "none", {NULL}},
        {"2", "8", "none", {NULL}},
        {"2", "8", "none", {"--kv-cache-dtype", "fp8", NULL}},
        {"8", "2", "none", {NULL}},
        {"2",
         "6",
         "none",
         {"--temperature", "0.8", "--seed", "7", "--presence-penalty", "0.5", NULL}},
        {"1", "16", "dflash", {"--speculative-fixed-tree", NULL}},
        {"2",
         "12",
         "dflash",
         {"--speculative-fixed-tree", "--temperature", "0.8", "--seed", "7", NULL}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char want[1024], got[1024];
        const char *flags[12] = {"--tp", cases[i].tp, "--speculative-algorithm", "none"};
        for (size_t f = 0; cases[i].flags[f]; f++)
            flags[4 + f] = cases[i].flags[f];
        generate(PROMPT, "cpu", cases[i].tokens, flags, want, sizeof want);
        flags[3] = cases[i].algorithm;
        generate(PROMPT, "cuda", cases[i].tokens, flags, got, sizeof got);
        assert_true(strlen(want) > 4);
        assert_string_equal(got, want);
    }
}

static void so_are_those_of_another_model(void **state) {
    (void)state;
    static const struct {
        const char *tp, *tokens, *kv_dtype;
    } cases[] = {{"1", "6", "bf16"}, {"2", "6", "bf16"}, {"8", "3", "bf16"}, {"2", "6", "fp8"}};
    char folder[64];
    v3_model_write(folder);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char want[1024], got[1024];
        const char *flags[] = {"--model-path",
                               folder,
                               "--tp",
                               cases[i].tp,
                               "--kv-cache-dtype",
                               cases[i].kv_dtype,
                               "--speculative-algorithm",
                               "none",
                               NULL};
        generate(CLEAR_PROMPT, "cpu", cases[i].tokens, flags, want, sizeof want);
        generate(CLEAR_PROMPT, "cuda", cases[i].tokens, flags, got, sizeof got);
        assert_true(strlen(want) > 4);
        assert_string_equal(got, want);
    }
    folder_remove(folder);
}

/* Runs a command of a group that serves; its standard output stays in result. */
static void command(const char *dir, const char *const *words) {
    const char *arguments[16] = {words[0], "--run-dir", dir};
    size_t count = 3;
    for (words++; *words; words++)
        arguments[count++] = *words;
    processes_run(&result, NULL, "espalier", arguments);
    if (result.exit_code != 0) fail_msg("%s: %s", arguments[0], result.err);
}

/* The first of the numbers of this name that `espalier status --json` has. */
static long number_of(const char *dir, const char *name) {
    char quoted[64];
    command(dir, (const char *const[]){"status", "--json", NULL});
    snprintf(quoted, sizeof quoted, "\"%s\"", name);
    const char *at = strstr(result.out, quoted);
    assert_non_null(at);
    return strtol(at + strlen(quoted) + strspn(at + strlen(quoted), ": ["), NULL, 10);
}

/* A pool that grows and shrinks while a reply is on its way, verified in trees of guesses: the
 * reply is the one it would be. */
static void a_resize_changes_no_token(void **state) {
    (void)state;
    char dir[64], log[96], reply[96], want[1024], got[1024];
    processes_make_dir(dir);
    snprintf(log, sizeof log, "%s.log", dir);
    snprintf(reply, sizeof reply, "%s.reply", dir);
    const char *none[] = {"--speculative-algorithm", "none", NULL};
    generate(PROMPT, "cpu", "24", none, want, sizeof want);
    const char *serve[] = {"serve",  "--run-dir",
                           dir,      "--device",
                           "cuda",   "--tp",
                           "2",      "--context-length",
                           "128",    "--max-total-tokens",
                           "256",    "--speculative-algorithm",
                           "dflash", "--speculative-fixed-tree",
                           NULL};
    pid_t server = processes_start(log, "espalier", serve);
    processes_wait_for(log, "espalier: ready");
    const char *ask[] = {"generate", "--run-dir", dir,    "--print-tokens",
                         "--tokens", "24",        PROMPT, NULL};
    pid_t asking = processes_start(reply, "espalier", ask);
    const char *const sizes[] = {"512", "192", "256"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        command(dir, (const char *const[]){"resize", "--tokens", sizes[i], NULL});
    assert_int_equal(processes_wait(asking), 0);
    processes_read_file(reply, got, sizeof got);
    assert_string_equal(got, want);
    assert_true(number_of(dir, "accepted_by_source") > 0);
    kill(server, SIGTERM);
    assert_int_equal(processes_wait(server), 0);
    char text[PROCESSES_OUTPUT_MAX];
    processes_read_file(log, text, sizeof text);
    assert_non_null(strstr(text, "event=device name=\"emulated device\" number=1"));
    assert_non_null(strstr(text, "event=resized status=OK pages=8"));
    assert_non_null(strstr(text, "event=self_test rungs=\"attention pool\""));
    assert_null(strstr(text, "level=error"));
    processes_remove_dir(dir);
    remove(log);
    remove(reply);
}

/* Who stays drops the graphs with collectives of a group that is gone, and captures those of the
 * next; weights stay. */
static void a_new_generation_captures_anew(void **state) {
    (void)state;
    char dir[64], log[96], want[1024], text[PROCESSES_OUTPUT_MAX];
    processes_make_dir(dir);
    snprintf(log, sizeof log, "%s.log", dir);
    const char *none[] = {NULL};
    generate(PROMPT, "cpu", "4", none, want, sizeof want);
    const char *serve[] = {"serve", "--run-dir",        dir,   "--device",       "cuda", "--tp",
                           "2",     "--context-length", "128", "--no-self-test", NULL};
    pid_t server = processes_start(log, "espalier", serve);
    processes_wait_for(log, "event=joined generation=1");
    command(dir,
            (const char *const[]){"generate", "--print-tokens", "--tokens", "4", PROMPT, NULL});
    assert_string_equal(result.out, want);
    kill((pid_t)processes_ready_pid(dir, "worker-1"), SIGKILL);
    processes_wait_for(log, "event=joined generation=2");
    command(dir,
            (const char *const[]){"generate", "--print-tokens", "--tokens", "4", PROMPT, NULL});
    assert_string_equal(result.out, want);
    kill(server, SIGTERM);
    assert_int_equal(processes_wait(server), 0);
    processes_read_file(log, text, sizeof text);
    uint32_t captures = 0, loads = 0;
    for (const char *at = text; (at = strstr(at, "event=graphs count=")) != NULL; at++)
        captures++;
    for (const char *at = text; (at = strstr(at, "event=weights_loaded")) != NULL; at++)
        loads++;
    assert_int_equal(captures, 4);
    assert_int_equal(loads, 3);
    assert_non_null(strstr(text, "event=memory line=graphs"));
    processes_remove_dir(dir);
    remove(log);
}

static void what_it_does_not_do_is_said(void **state) {
    (void)state;
    static const struct {
        const char *flag, *value, *said;
    } cases[] = {
        {"--kv-cache-dtype", "f32", "--kv-cache-dtype f32, accepted: bf16 and fp8"},
        {"--activation-dtype", "int8", "--activation-dtype int8, accepted: f32 and bf16"},
        {"--prefill-form", "expanded", "--prefill-form expanded, accepted: absorbed"},
        {"--device-memory", "1G", "--device-memory: found 1073741824 with --device cuda"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *arguments[] = {"serve", "--device",    "cuda",         "--log-level",
                                   "error", cases[i].flag, cases[i].value, NULL};
        char dir[64];
        processes_make_dir(dir);
        const char *variables[] = {"XDG_RUNTIME_DIR", NULL};
        char run_dir[96];
        snprintf(run_dir, sizeof run_dir, "XDG_RUNTIME_DIR=%s", dir);
        variables[0] = run_dir;
        processes_run_with(&result, variables, "espalier", arguments);
        assert_int_equal(result.exit_code, 78);
        if (!strstr(result.err, cases[i].said)) fail_msg("%s: %s", cases[i].flag, result.err);
        processes_remove_dir(dir);
    }
}

static int tear_down(void **state) {
    (void)state;
    processes_kill_all();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(what_it_does_not_do_is_said, tear_down),
        cmocka_unit_test_teardown(tokens_are_the_cpus, tear_down),
        cmocka_unit_test_teardown(so_are_those_of_another_model, tear_down),
        cmocka_unit_test_teardown(a_resize_changes_no_token, tear_down),
        cmocka_unit_test_teardown(a_new_generation_captures_anew, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
