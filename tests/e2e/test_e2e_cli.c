/* Command lines apart from test_e2e_bad_input: help, the environment, limits, directories. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "processes.h"

#define MODEL ESPALIER_SOURCE_DIR "/deploy/model"

static struct processes_result result;

#define COORDINATOR "espalier-coordinator"
#define WORKER      "espalier-worker"
#define CLI         "espalier"

static bool is_one_line(const char *text) {
    const char *end = strchr(text, '\n');
    return end && end[1] == '\0' && end != text;
}

static void directories_open_to_others_are_refused(void **state) {
    (void)state;
    char dir[64];
    processes_make_dir(dir);
    chmod(dir, 0755);
    const char *arguments[] = {"--model-path", MODEL, "--run-dir", dir, NULL};
    processes_run(&result, NULL, COORDINATOR, arguments);
    assert_int_equal(result.exit_code, 77);
    assert_non_null(strstr(result.err, "--run-dir"));
    assert_true(is_one_line(result.err));
    processes_remove_dir(dir);
}

/* Too few files to open: said by every program, before a library ends it without a word. */
static void too_few_open_files(void **state) {
    (void)state;
    static const struct {
        const char *program, *arguments[3], *accepted;
        long files;
    } rows[] = {
        {COORDINATOR, {"--model-path", MODEL}, "256 or more", 255},
        {WORKER, {"--model-path", MODEL}, "64 or more", 63},
        {CLI, {"status"}, "64 or more", 63},
        {CLI, {"generate", "a"}, "64 or more", 8},
        {CLI, {"bench", "--concurrency=64"}, "1600 or more", 1599},
        {CLI, {"serve"}, "256 or more", 255},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct processes_surroundings surroundings = {.files_max = rows[i].files};
        processes_run_in(&result, &surroundings, rows[i].program, rows[i].arguments);
        if (result.exit_code != 78 || !strstr(result.err, "RLIMIT_NOFILE") ||
            !strstr(result.err, rows[i].accepted) || !is_one_line(result.err))
            fail_msg("%s: exit code %d, said \"%s\"", rows[i].program, result.exit_code,
                     result.err);
    }
    const char *enough[] = {"generate", "--tokens", "1", "a", NULL};
    processes_run_in(&result, &(struct processes_surroundings){.files_max = 256}, CLI, enough);
    assert_int_equal(result.exit_code, 0);
}

static void help_and_version(void **state) {
    (void)state;
    static const struct {
        const char *program;
        const char *arguments[3];
        const char *part;
    } rows[] = {
        {CLI, {"--help"}, "probe"},
        {CLI, {"--version"}, "espalier 0."},
        {CLI, {"serve", "--help"}, "--kv-cache-dtype bf16|f32|fp8"},
        {CLI, {"serve", "--help"}, "--activation-dtype bf16|f32|int8"},
        {CLI, {"serve", "--help"}, "--prefill-form absorbed|expanded"},
        {CLI, {"serve", "--help"}, "--numa auto|off|NODE"},
        {CLI, {"generate", "--help"}, "--temperature"},
        {CLI, {"chat", "--help"}, "--system"},
        {CLI, {"bench", "--help"}, "--shared-prefix TOKENS"},
        {CLI, {"status", "--help"}, "--json"},
        {CLI, {"probe", "--help"}, "--rank"},
        {CLI, {"drain", "--help"}, "--timeout"},
        {COORDINATOR, {"--help"}, "--max-total-tokens"},
        {COORDINATOR, {"--version"}, "espalier-coordinator 0."},
        {WORKER, {"--help"}, "--linger"},
        {WORKER, {"--rank", "0", "--help"}, "--linger"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *arguments[] = {rows[i].arguments[0], rows[i].arguments[1], rows[i].arguments[2],
                                   NULL};
        processes_run(&result, NULL, rows[i].program, arguments);
        assert_int_equal(result.exit_code, 0);
        assert_string_equal(result.err, "");
        if (!strstr(result.out, rows[i].part))
            fail_msg("%s %s says nothing of \"%s\"", rows[i].program, arguments[0], rows[i].part);
    }
}

/* The environment of a batch system says who a worker is; two that disagree are refused. */
static void ranks_from_the_environment(void **state) {
    (void)state;
    static const struct {
        const char *variables[6];
        const char *flags[4];
        const char *parts[4]; /* of the line; all refuse, since no coordinator runs */
        int exit_code;
    } rows[] = {
        {{"RANK=3", "WORLD_SIZE=2"}, {NULL}, {"RANK", "3", "below 2"}, 78},
        {{"RANK=0", "WORLD_SIZE=2", "SLURM_PROCID=1", "SLURM_NTASKS=2"},
         {NULL},
         {"RANK is 0", "SLURM_PROCID is 1"},
         78},
        {{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2"},
         {"--tp", "4"},
         {"--tp is 4", "OMPI_COMM_WORLD_SIZE is 2"},
         78},
        {{"PMI_RANK=x", "PMI_SIZE=2"}, {NULL}, {"PMI_RANK", "\"x\""}, 78},
        {{"SLURM_PROCID=1", "SLURM_NTASKS=9"}, {NULL}, {"SLURM_NTASKS", "9"}, 78},
        {{"RANK=1", "WORLD_SIZE=2"}, {NULL}, {"no coordinator answers"}, 75},
        {{"RANK=5", "WORLD_SIZE=2"}, {"--rank", "0"}, {"no coordinator answers"}, 75},
    };
    char dir[64];
    processes_make_dir(dir);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *arguments[] = {
            "--model-path",   MODEL, "--run-dir", dir, "--connect-timeout", "1", rows[i].flags[0],
            rows[i].flags[1], NULL};
        processes_run_with(&result, rows[i].variables, WORKER, arguments);
        bool parts = true;
        for (int p = 0; p < 4 && rows[i].parts[p]; p++)
            parts = parts && strstr(result.err, rows[i].parts[p]);
        if (result.exit_code != rows[i].exit_code || !parts || !is_one_line(result.err))
            fail_msg("%s: exit code %d, said \"%s\"", rows[i].variables[0], result.exit_code,
                     result.err);
    }
    assert_int_equal(processes_dir_entries(dir), 0);
    processes_remove_dir(dir);
}

#define KIMI                                                                                       \
    "plan", "--model-path", ESPALIER_SOURCE_DIR "/tests/unit/configs/kimi-k2.6", "--device=cuda",  \
        "--tp=8", "--page-size=1", "--context-length=200000", "--device-memory=93.728G",           \
        "--resident=72.399G", "--draft-pricing=layers", "--speculative-draft-model-path",          \
        ESPALIER_SOURCE_DIR "/tests/unit/configs/kimi-k2.6-dflash"

/* The pool of a model too large for this machine; the answers are exit codes, too. */
static void plans_what_was_seen(void **state) {
    (void)state;
    processes_run(&result, NULL, CLI,
                  (const char *const[]){KIMI, "--mem-fraction-static=0.94", NULL});
    assert_int_equal(result.exit_code, 0);
    assert_non_null(strstr(result.out, "1,026,408,232,448 parameters"));
    assert_non_null(strstr(result.out, "= pool                        15.705  218,483 tokens\n"));
    assert_non_null(strstr(result.out, "A request of 200,000 tokens fits, 18,483 tokens remain"));
    assert_non_null(strstr(result.out, "holds it: --mem-fraction-static 0.926\n"));
    processes_run(&result, NULL, CLI,
                  (const char *const[]){KIMI, "--mem-fraction-static=0.85", NULL});
    assert_int_equal(result.exit_code, 1);
    assert_non_null(strstr(result.out, "DOES NOT FIT: 98,867 are missing."));
    processes_run(&result, NULL, CLI, (const char *const[]){KIMI, "--want=8x25k", "--json", NULL});
    assert_int_equal(result.exit_code, 0);
    assert_non_null(strstr(result.out, "\"mem_fraction_static\":0.926"));
    processes_run(&result, NULL, CLI, (const char *const[]){KIMI, "--want=4x200k", NULL});
    assert_int_equal(result.exit_code, 1);
    assert_non_null(strstr(result.out, "IT DOES NOT FIT. 1 of them would"));
}

/* What is left in MiB is said in MiB. */
static void plans_say_what_no_line_explains(void **state) {
    (void)state;
    processes_run(&result, NULL, CLI,
                  (const char *const[]){"plan", "--device-memory=100M", "--resident=30M", NULL});
    assert_int_equal(result.exit_code, 0);
    assert_non_null(strstr(result.out, "= weights                     21.885\n"
                                       "= as measured                 30.000  8.12 of it unexpl"));
}

/* An answer that the disk had no room for is not an answer; health is the exit code alone. */
static void answers_that_cannot_be_written(void **state) {
    (void)state;
    static struct processes_surroundings full = {.out_path = "/dev/full", .input = "Hi\n"};
    char dir[64], log[96], run_dir[96];
    processes_make_dir(dir);
    snprintf(log, sizeof log, "%s/log", dir);
    snprintf(run_dir, sizeof run_dir, "--run-dir=%s", dir);
    const char *serve[] = {"serve", "--context-length=256", run_dir, NULL};
    pid_t group = processes_start(log, CLI, serve);
    processes_wait_for(log, "espalier: ready");
    const struct {
        const char *arguments[4];
        int exit_code;
    } rows[] = {
        {{"plan"}, 1},
        {{"plan", "--json"}, 1},
        {{"logs", run_dir}, 1},
        {{"logs", "--errors", run_dir}, 1},
        {{"status", run_dir}, 1},
        {{"chat", "--tokens=2", run_dir}, 1},
        {{"generate", "--tokens=2", run_dir, "a"}, 1},
        {{"probe", "--check=metrics", run_dir}, 1},
        {{"probe", run_dir}, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *arguments[5] = {NULL};
        memcpy(arguments, rows[i].arguments, sizeof rows[i].arguments);
        processes_run_in(&result, &full, CLI, arguments);
        bool told = strstr(result.err, ": cannot write the ") && is_one_line(result.err) &&
                    strstr(result.err, "No space left on device");
        if (result.exit_code != rows[i].exit_code || told != (rows[i].exit_code == 1))
            fail_msg("%s: exit code %d, said \"%s\"", arguments[0], result.exit_code, result.err);
    }
    assert_int_equal(kill(group, SIGTERM), 0);
    assert_int_equal(processes_wait(group), 0);
    processes_remove_dir(dir);
}

/* A folder opens like a file; what cannot be read is not empty. */
static void input_that_cannot_be_read(void **state) {
    (void)state;
    static const char *const rows[][3] = {{"logs", "/"}, {"plan", "--calibrate=/"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *arguments[] = {rows[i][0], rows[i][1], NULL};
        processes_run(&result, NULL, CLI, arguments);
        if (result.exit_code == 0 || !strstr(result.err, "/: Is a directory"))
            fail_msg("%s: exit code %d, said \"%s\"", rows[i][0], result.exit_code, result.err);
    }
}

static int tear_down(void **state) {
    (void)state;
    processes_kill_all();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(directories_open_to_others_are_refused, tear_down),
        cmocka_unit_test_teardown(too_few_open_files, tear_down),
        cmocka_unit_test_teardown(help_and_version, tear_down),
        cmocka_unit_test_teardown(ranks_from_the_environment, tear_down),
        cmocka_unit_test_teardown(plans_what_was_seen, tear_down),
        cmocka_unit_test_teardown(plans_say_what_no_line_explains, tear_down),
        cmocka_unit_test_teardown(answers_that_cannot_be_written, tear_down),
        cmocka_unit_test_teardown(input_that_cannot_be_read, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
