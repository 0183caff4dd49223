#include "cmd_probe.h"

#include <stdio.h>
#include <string.h>

#include "flags.h"
#include "http.h"
#include "printed.h"
#include "run_dir.h"

#define PROGRAM_NAME     "espalier probe"
#define ANSWER_BYTES_MAX (HTTP_ANSWER_BYTES_MAX + 1)

static const char *path_of(const char *check) {
    if (strcmp(check, "live") == 0) return "/livez";
    if (strcmp(check, "startup") == 0) return "/startupz";
    if (strcmp(check, "metrics") == 0) return "/metrics";
    return "/readyz";
}

static enum status ask(const char *address, const char *check, int rank, int timeout_ms,
                       int *code_out, char answer[ANSWER_BYTES_MAX], struct error *err) {
    char path[64];
    if (rank == RUN_DIR_COORDINATOR)
        snprintf(path, sizeof path, "%s", path_of(check));
    else
        snprintf(path, sizeof path, "%s?rank=%d", path_of(check), rank);
    return http_get(address, path, timeout_ms, code_out, answer, ANSWER_BYTES_MAX, err);
}

/* Whoever is asked, the process itself answers: what the coordinator believes of a rank is not
 * what the rank is. */
static int probe(const char *run_dir, const char *check, int rank, int timeout_ms) {
    struct run_dir dir;
    struct error err;
    if (run_dir_choose(run_dir, &dir, &err) != STATUS_OK)
        return options_refuse(PROGRAM_NAME, EXIT_CODE_USAGE, &err);
    struct ready_file ready;
    static char answer[ANSWER_BYTES_MAX];
    int code = 0;
    enum status status = run_dir_find(&dir, rank, &ready, &err);
    if (status == STATUS_OK)
        status = ask(ready.probe, check, rank, timeout_ms, &code, answer, &err);
    if (status != STATUS_OK) return options_refuse(PROGRAM_NAME, EXIT_CODE_FAILED, &err);
    fputs(answer, stdout);
    int exit_code = code == 200 ? EXIT_CODE_OK : EXIT_CODE_FAILED;
    /* Of health the exit code is the answer: a full disk does not make a process ill. */
    return strcmp(check, "metrics") == 0 ? printed(PROGRAM_NAME, exit_code) : exit_code;
}

int cmd_probe(int argc, char *const *argv) {
    const char *run_dir = NULL;
    const char *check = "ready";
    uint32_t rank = 0, timeout_ms = 800;
    struct option table[] = {
        {.name = "--rank",
         .type = OPTION_COUNT,
         .value = &rank,
         .min = 0,
         .max = TP_MAX - 1,
         .fallback = "the coordinator",
         .help = "ask this worker"},
        {.name = "--check",
         .type = OPTION_CHOICE,
         .value = &check,
         .choices = "live|startup|ready|metrics",
         .fallback = "ready",
         .help = "what to ask; metrics: print them"},
        {.name = "--timeout",
         .type = OPTION_COUNT,
         .value = &timeout_ms,
         .min = 1,
         .max = 60000,
         .argument = "MS",
         .fallback = "800",
         .help = "no answer by then is a no"},
        FLAG_RUN_DIR(&run_dir),
    };
    const struct options_program program = {
        .name = PROGRAM_NAME,
        .usage = "[flags]",
        .summary = "Exit code 0 where the process is well, 1 where it is not or does not answer.",
        .option = table,
        .option_count = sizeof table / sizeof *table,
    };
    struct options_result result;
    int exit_code;
    if (!options_take(&program, argc, argv, &result, &exit_code)) return exit_code;
    return probe(run_dir, check, table[0].given ? (int)rank : RUN_DIR_COORDINATOR, (int)timeout_ms);
}
