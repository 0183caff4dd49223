/* sim: the cluster of sim_cluster.h from the command line.
 *
 *   sim --seed N [--stormy] [--verbose] [--steps N] [--journal FILE] [--canary NAME]
 *   sim --seeds A..B [--coverage]
 *   sim --storm N
 *   sim --replay FILE [--model-path DIR] [--verbose]
 *
 * Of several seeds every tenth runs twice and must give the same hash. A storm is as many seeds as
 * it takes until N calls were cancelled or met their deadline; in it, and with --stormy, every
 * client does one or the other, at any moment of its call. Exit codes: 0 nothing found, 1 a
 * violation (its seed is printed), 70 the core's own CHECK, 64 usage.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "journal.h"
#include "sim_cluster.h"
#include "sim_coverage.h"
#include "sim_replay.h"

#define TWICE_EVERY 10u

struct arguments {
    uint64_t first, last; /* seeds */
    uint64_t events_max;
    uint64_t storm; /* calls to be cancelled; 0: no storm */
    bool has_seeds, stormy, verbose, coverage;
    const char *journal, *replay, *model_path;
    enum sim_canary canary;
};

/* The core gives up: say which seed did it. */
_Noreturn void __real_check_failed(const char *expression, const char *file, int line,
                                   const char *func);
_Noreturn void __wrap_check_failed(const char *expression, const char *file, int line,
                                   const char *func);
_Noreturn void __wrap_check_failed(const char *expression, const char *file, int line,
                                   const char *func) {
    const struct sim_cluster *cluster = sim_cluster_now();
    fflush(stdout);
    if (cluster)
        fprintf(stderr, "sim: seed %" PRIu64 ", event %" PRIu64 ": a CHECK failed\n", cluster->seed,
                cluster->events);
    __real_check_failed(expression, file, line, func);
}

static _Noreturn void usage(const char *what) {
    fprintf(stderr,
            "sim: %s; accepted: --seed N, --seeds A..B, --storm N, --replay FILE, and --steps N, "
            "--journal FILE, --canary token|cache|end|delta|stall, --model-path DIR, --coverage, "
            "--stormy, --verbose\n",
            what);
    exit(EXIT_CODE_USAGE);
}

static uint64_t parse_number(const char *text, const char **rest_out) {
    char *end;
    errno = 0;
    uint64_t number = strtoull(text, &end, 10);
    if (end == text || errno != 0) usage(text);
    *rest_out = end;
    return number;
}

static enum sim_canary parse_canary(const char *text) {
    static const char *const name[SIM_CANARY_COUNT] = {"",    "token", "cache",
                                                       "end", "delta", "stall"};
    for (int canary = SIM_CANARY_NONE + 1; canary < SIM_CANARY_COUNT; canary++)
        if (strcmp(text, name[canary]) == 0) return (enum sim_canary)canary;
    usage(text);
}

static void take_option(struct arguments *arguments, const char *option, const char *value) {
    const char *rest = "";
    if (strcmp(option, "--seed") == 0) {
        arguments->first = arguments->last = parse_number(value, &rest);
        arguments->has_seeds = true;
    } else if (strcmp(option, "--seeds") == 0) {
        arguments->first = parse_number(value, &rest);
        if (strncmp(rest, "..", 2) != 0) usage(value);
        arguments->last = parse_number(rest + 2, &rest);
        arguments->has_seeds = true;
    } else if (strcmp(option, "--storm") == 0) {
        arguments->storm = parse_number(value, &rest);
    } else if (strcmp(option, "--steps") == 0) {
        arguments->events_max = parse_number(value, &rest);
    } else if (strcmp(option, "--journal") == 0) {
        arguments->journal = value;
    } else if (strcmp(option, "--replay") == 0) {
        arguments->replay = value;
    } else if (strcmp(option, "--model-path") == 0) {
        arguments->model_path = value;
    } else if (strcmp(option, "--canary") == 0) {
        arguments->canary = parse_canary(value);
    } else {
        usage(option);
    }
    if (*rest != '\0') usage(value);
}

static struct arguments parse(int argc, char **argv) {
    struct arguments arguments = {0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--verbose") == 0) {
            arguments.verbose = true;
        } else if (strcmp(argv[i], "--stormy") == 0) {
            arguments.stormy = true;
        } else if (strcmp(argv[i], "--coverage") == 0) {
            arguments.coverage = true;
        } else {
            if (i + 1 == argc) usage(argv[i]);
            take_option(&arguments, argv[i], argv[i + 1]);
            i++;
        }
    }
    if (arguments.has_seeds + (arguments.replay != NULL) + (arguments.storm > 0) != 1)
        usage("one of --seed, --seeds, --storm, --replay");
    return arguments;
}

static void run_seeds(const struct arguments *arguments, struct journal *journal) {
    for (uint64_t seed = arguments->first; seed <= arguments->last; seed++) {
        const struct sim_run run = {.seed = seed,
                                    .storm = arguments->stormy,
                                    .verbose = arguments->verbose,
                                    .canary = arguments->canary,
                                    .events_max = arguments->events_max,
                                    .journal = journal};
        uint64_t hash = sim_cluster_run(&run);
        if (arguments->first == arguments->last)
            printf("seed %" PRIu64 ": hash %016" PRIx64 "\n", seed, hash);
        else if (seed % TWICE_EVERY == 0 && sim_cluster_run(&run) != hash) {
            fprintf(stderr, "sim: seed %" PRIu64 ": its second run is another one\n", seed);
            exit(EXIT_CODE_FAILED);
        }
    }
}

/* Each seed ends only with its pool whole and nothing running or waiting. */
static void run_storm(uint64_t wanted) {
    const uint64_t *ended = sim_client_totals.ended;
    uint64_t seed = 0;
    while (ended[STATUS_CANCELLED] + ended[STATUS_DEADLINE_EXCEEDED] < wanted)
        sim_cluster_run(&(struct sim_run){.seed = ++seed, .storm = true});
    printf("storm: %" PRIu64 " cancels and %" PRIu64 " deadlines in %" PRIu64
           " worlds; at the end of each the pool is whole, nothing runs, nothing waits\n",
           ended[STATUS_CANCELLED], ended[STATUS_DEADLINE_EXCEEDED], seed);
}

static void print_ends(const uint64_t ended[STATUS_COUNT]) {
    for (int status = 0; status < STATUS_COUNT; status++)
        if (ended[status] > 0)
            printf(" %s %" PRIu64, status_name((enum status)status), ended[status]);
    printf("\n");
}

static void report(void) {
    const struct sim_client_totals *totals = &sim_client_totals;
    const struct sim_cluster_totals *cores = &sim_cluster_totals;
    printf("events %" PRIu64 ", steps %" PRIu64 ", retractions %" PRIu64 ", evictions %" PRIu64
           ", tokens cached %" PRIu64 ", rows ahead %" PRIu64 ", trees %" PRIu64
           ", guesses right %" PRIu64 "\n",
           cores->events, cores->steps, cores->retractions, cores->evictions, cores->tokens_cached,
           cores->rows_ahead, cores->trees, cores->guesses_right);
    printf("resizes %" PRIu64 ", undone %" PRIu64 ", pages moved %" PRIu64 "\n", cores->resizes,
           cores->resizes_undone, cores->pages_moved);
    const struct sim_examine_totals *examined = &sim_examine_totals;
    printf("reports %" PRIu64 ", of pages %" PRIu64 ", prefixes found %" PRIu64 ", late %" PRIu64
           ", lost %" PRIu64 ", ends:",
           examined->reports, examined->pages, examined->found, examined->late, examined->lost);
    print_ends(examined->ended);
    printf("calls %" PRIu64 ", tokens %" PRIu64 ", deltas of several %" PRIu64 ", ends:",
           totals->calls, totals->tokens, totals->joined);
    print_ends(totals->ended);
}

/* Something that the seeds were to meet was not met. */
static bool lacks(bool met, const char *what) {
    if (!met) fprintf(stderr, "sim: %s\n", what);
    return !met;
}

static bool covers(void) {
    const struct sim_examine_totals *examined = &sim_examine_totals;
    bool examinations_end = true;
    static const enum status end[] = {STATUS_OK,          STATUS_ABORTED,
                                      STATUS_UNAVAILABLE, STATUS_INVALID_ARGUMENT,
                                      STATUS_CANCELLED,   STATUS_DEADLINE_EXCEEDED};
    for (size_t i = 0; i < sizeof end / sizeof end[0]; i++)
        examinations_end = examinations_end && examined->ended[end[i]] > 0;
    bool lack = lacks(sim_coverage_report(), "a legal transition was not reached");
    lack = lacks(sim_cluster_totals.guesses_right > 0, "no guess was right") || lack;
    lack = lacks(sim_client_totals.joined > 0, "no delta had several tokens") || lack;
    lack = lacks(examinations_end, "examinations did not end in all their ways") || lack;
    lack = lacks(examined->found > 0, "no prefix was examined that had to be there") || lack;
    lack = lacks(examined->late > 0, "no rank was late to report") || lack;
    return !lack;
}

int main(int argc, char **argv) {
    struct arguments arguments = parse(argc, argv);
    if (arguments.replay)
        return sim_replay(arguments.replay, arguments.model_path, arguments.verbose);
    struct journal *journal = NULL;
    struct error err;
    if (arguments.journal && journal_create(arguments.journal, &journal, &err) != STATUS_OK)
        usage(err.text);
    if (arguments.storm > 0)
        run_storm(arguments.storm);
    else
        run_seeds(&arguments, journal);
    journal_close(&journal);
    report();
    return !arguments.coverage || covers() ? EXIT_CODE_OK : EXIT_CODE_FAILED;
}
