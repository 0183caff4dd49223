#include "cmd_logs.h"

#include <stdio.h>
#include <string.h>

#include "flags.h"
#include "journald.h"
#include "log_scan.h"
#include "printed.h"
#include "run_dir.h"

#define PROGRAM_NAME "espalier logs"

struct logs_flags {
    const char *run_dir, *log_dir, *boot;
    uint32_t rank;
    bool has_rank, errors, journald;
};

static enum status read_named(struct log_scan *scan, const struct options_result *named,
                              struct error *err) {
    for (uint32_t i = 0; i < named->positional_count; i++) {
        enum status status = log_scan_read(scan, named->positional[i], err);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

static enum status read_all(struct log_scan *scan, const struct logs_flags *flags,
                            const struct run_dir *dir, const struct options_result *named,
                            struct error *err) {
    if (flags->journald) return journald_read(scan, err);
    if (named->positional_count > 0) return read_named(scan, named, err);
    return log_scan_read_group(scan, dir, flags->log_dir, err);
}

static void print_lines(const struct log_scan *scan, const struct logs_flags *flags) {
    for (uint32_t i = 0; i < scan->line_count; i++)
        if (!flags->has_rank || scan->line[i].rank == (int)flags->rank) puts(scan->line[i].text);
}

static void print_errors(struct log_scan *scan, const struct logs_flags *flags) {
    log_scan_keep_errors(scan);
    int before = LOG_SCAN_NO_RANK - 1;
    for (uint32_t i = 0; i < scan->line_count; i++) {
        int rank = scan->line[i].rank;
        if (flags->has_rank && rank != (int)flags->rank) continue;
        if (rank != before && rank == LOG_SCAN_NO_RANK) printf("--- no rank in particular\n");
        if (rank != before && rank != LOG_SCAN_NO_RANK)
            printf("--- rank %d%s\n", rank, i == 0 ? ", which failed first" : "");
        before = rank;
        puts(scan->line[i].text);
    }
}

static uint32_t count_errors(const struct log_scan *scan, const struct logs_flags *flags) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < scan->line_count; i++)
        count += scan->line[i].is_error &&
                 (!flags->has_rank || scan->line[i].rank == (int)flags->rank);
    return count;
}

static int show(struct log_scan *scan, const struct logs_flags *flags, const char *boot) {
    log_scan_finish(scan, boot);
    if (scan->line_count == 0) {
        fprintf(stderr, "%s: no line of boot %s\n", PROGRAM_NAME,
                scan->boot[0] ? scan->boot : "(none is named)");
        return EXIT_CODE_FAILED;
    }
    if (!flags->errors) {
        print_lines(scan, flags);
        return printed(PROGRAM_NAME, EXIT_CODE_OK);
    }
    if (count_errors(scan, flags) == 0) {
        printf("no errors in boot %s (since %s)\n", scan->boot, scan->since);
        return printed(PROGRAM_NAME, EXIT_CODE_OK);
    }
    print_errors(scan, flags);
    return printed(PROGRAM_NAME, EXIT_CODE_FAILED);
}

static int logs(const struct logs_flags *flags, const struct options_result *named) {
    struct run_dir dir;
    struct error err;
    if (run_dir_choose(flags->run_dir, &dir, &err) != STATUS_OK)
        return options_refuse(PROGRAM_NAME, EXIT_CODE_USAGE, &err);
    struct log_scan scan;
    log_scan_init(&scan);
    enum status status = read_all(&scan, flags, &dir, named, &err);
    int exit_code;
    if (status != STATUS_OK) {
        exit_code = options_refuse(PROGRAM_NAME, EXIT_CODE_FAILED, &err);
    } else {
        /* The boot that runs now, even where it has not written a line yet. */
        struct ready_file ready;
        bool runs = named->positional_count == 0 &&
                    run_dir_find(&dir, RUN_DIR_COORDINATOR, &ready, &err) == STATUS_OK;
        exit_code = show(&scan, flags, flags->boot ? flags->boot : runs ? ready.boot : NULL);
    }
    log_scan_deinit(&scan);
    return exit_code;
}

int cmd_logs(int argc, char *const *argv) {
    struct logs_flags flags = {0};
    struct option table[] = {
        {.name = "--errors",
         .type = OPTION_SWITCH,
         .value = &flags.errors,
         .help = "errors alone, of the rank that failed first before the others'; exit code 1 "
                 "where there are any"},
        {.name = "--rank",
         .type = OPTION_COUNT,
         .value = &flags.rank,
         .min = 0,
         .max = TP_MAX - 1,
         .fallback = "all, and the coordinator",
         .help = "lines of this rank"},
        {.name = "--boot",
         .type = OPTION_TEXT,
         .value = &flags.boot,
         .argument = "ID",
         .fallback = "the one that runs, else the last",
         .help = "lines of this boot"},
        {.name = "--journald",
         .type = OPTION_SWITCH,
         .value = &flags.journald,
         .help = "of the units espalier-coordinator and espalier-worker@N, from systemd's journal"},
        FLAG_LOG_DIR(&flags.log_dir),
        FLAG_RUN_DIR(&flags.run_dir),
    };
    const struct options_program program = {
        .name = PROGRAM_NAME,
        .usage = "[flags] [FILE...]",
        .summary =
            "Shows the log lines of one boot, by time: of the group's files, of systemd's journal, "
            "of FILEs, or of - for standard input.",
        .option = table,
        .option_count = sizeof table / sizeof *table,
        .positional_name = "FILE",
        .positional_max = OPTIONS_LIST_MAX,
    };
    struct options_result result;
    int exit_code;
    if (!options_take(&program, argc, argv, &result, &exit_code)) return exit_code;
    flags.has_rank = table[1].given != NULL;
    if (flags.journald && (flags.log_dir || result.positional_count > 0)) {
        struct error err;
        error_set(&err, STATUS_INVALID_ARGUMENT,
                  "--journald: found together with %s, accepted: "
                  "one of them",
                  flags.log_dir ? "--log-dir" : "a file");
        return options_refuse(PROGRAM_NAME, EXIT_CODE_USAGE, &err);
    }
    return logs(&flags, &result);
}
