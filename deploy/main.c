/* espalier: starts, asks and talks to a group of processes. */
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "cmd_bench.h"
#include "cmd_chat.h"
#include "cmd_drain.h"
#include "cmd_flush.h"
#include "cmd_generate.h"
#include "cmd_keygen.h"
#include "cmd_logs.h"
#include "cmd_plan.h"
#include "cmd_probe.h"
#include "cmd_resize.h"
#include "cmd_serve.h"
#include "cmd_status.h"
#include "cmd_verify.h"
#include "options.h"
#include "process.h"

#define FILES_NEEDED 64u /* by any command, children aside */

static const struct {
    const char *name;
    int (*run)(int argc, char *const *argv);
    const char *help;
} commands[] = {
    {"serve", cmd_serve, "start a coordinator and its workers on this machine"},
    {"generate", cmd_generate, "complete a prompt, streaming the text"},
    {"chat", cmd_chat, "talk to the model"},
    {"bench", cmd_bench, "put a load on a group and say how fast it was"},
    {"plan", cmd_plan, "what a rank will hold and how many tokens, before it starts"},
    {"status", cmd_status, "what a group does now"},
    {"logs", cmd_logs, "the log lines of this boot, or its errors"},
    {"probe", cmd_probe, "is a process well? exit code 0 or 1"},
    {"verify", cmd_verify, "can a group do what it promises? rung by rung"},
    {"resize", cmd_resize, "change the pool or the batch of a group that serves"},
    {"flush", cmd_flush, "make a group forget cached prefixes"},
    {"drain", cmd_drain, "let a group finish what runs, and end"},
    {"keygen", cmd_keygen, "make keys for a group that is reached over TCP"},
};
#define COMMAND_COUNT (sizeof commands / sizeof *commands)

static void print_help(FILE *out) {
    fprintf(out, "espalier COMMAND [flags]\n"
                 "Runs Kimi-K2-class models on one machine. Commands (--help after one lists its "
                 "flags):\n\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].help);
}

static int refuse(const char *found) {
    fprintf(stderr, "espalier: found %s, accepted:", found);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        fprintf(stderr, "%s %s", i ? "," : "", commands[i].name);
    fprintf(stderr, ", --help, --version\n");
    return EXIT_CODE_USAGE;
}

int main(int argc, char **argv) {
    process_fill_standard_streams();
    process_let_writes_fail();
    if (argc < 2) return refuse("no command");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
        return EXIT_CODE_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("espalier %s\n", ESPALIER_VERSION);
        return EXIT_CODE_OK;
    }
    struct error err;
    if (process_require_files(FILES_NEEDED, &err) != STATUS_OK)
        return options_refuse("espalier", EXIT_CODE_CONFIG, &err);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    char found[160];
    snprintf(found, sizeof found, "\"%s\"", argv[1]);
    return refuse(found);
}
