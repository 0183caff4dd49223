/* How fast the engine runs a model, end to end and without the processes around it.
 *
 *     bench_model CHECKPOINT [--tp N] [--threads N] [--activation-dtype bf16|f32|int8]
 *                 [--prefill-form absorbed|expanded] [--repeats N] [--only TEXT] [--csv FILE]
 *     bench_model CHECKPOINT ... --serve
 *
 * First the roofs of this machine at this moment (roof.h), then each figure: the median of the
 * repeats, tokens a second, and the share of the roof, which is the time that reading the weights
 * and the cache or computing the products alone would take, whichever is longer, over the time
 * taken; products of rounded activations are computed at the peak of their dot products, and
 * attention always counts as absorbed; beside it the same over the processor time taken, which on a
 * machine that others use too is the better measure, though it counts threads that spin. With --csv
 * a line a figure is appended to the file.
 *
 * --serve reads points from standard input, a line each, `rows context steps`, and answers each
 * with `wall_ns cpu_ns drawn_token`, so that a script can measure in turns with something else.
 *
 * Ranks are processes, as they are in production; this one only asks and adds up. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_rank.h"
#include "kernel.h"
#include "roof.h"

#define EXIT_USAGE    64
#define REPEATS_MAX   99u
#define ROOF_SPIN     2000u
#define MACHINE_BYTES 128u

static const struct figure {
    const char *name;
    struct bench_point point;
} figures[] = {
    {"decode", {1, 0, 32}},
    {"prefill_512", {512, 0, 1}},
    {"prefill_2048", {512, 0, 4}},
    {"decode_after_4096", {1, 4096, 16}},
    {"prefill_512_after_4096", {512, 4096, 1}},
    {"decode_after_16384", {1, 16384, 8}},
    {"rows_8_after_16384", {8, 16384, 1}},
    {"rows_16_after_16384", {16, 16384, 1}},
    {"prefill_512_after_16384", {512, 16384, 1}},
};

struct options {
    const char *model;
    uint32_t tp, threads, repeats;
    enum activation_dtype activation;
    enum prefill_form form;
    const char *only; /* part of a figure's name, or NULL */
    const char *csv;
    bool serve;
};

struct group {
    uint32_t tp;
    pid_t pid[TP_MAX];
    int fd[TP_MAX]; /* points to the rank, measurements from it */
};

struct roofs {
    double read, fma, dot_bf16, dot_int8;
};

static struct options parse(int argc, char **argv);
static void open_group(const struct options *options, struct group *group);
static void close_group(struct group *group);
static struct bench_measurement ask(const struct group *group, const struct bench_point *point);
static void serve(const struct group *group);
static struct roofs measure_roofs(uint32_t threads);
static void run_figures(const struct options *options, const struct group *group,
                        const struct roofs *roofs);

_Noreturn static void die(const char *what) {
    fprintf(stderr, "bench_model: %s: %s\n", what, strerror(errno));
    exit(1);
}

int main(int argc, char **argv) {
    struct options options = parse(argc, argv);
    struct group group;
    if (options.serve) {
        open_group(&options, &group);
        serve(&group);
    } else {
        struct roofs roofs = measure_roofs(options.threads * options.tp);
        open_group(&options, &group);
        run_figures(&options, &group, &roofs);
    }
    close_group(&group);
    return 0;
}

_Noreturn static void usage(void) {
    fprintf(
        stderr,
        "usage: bench_model CHECKPOINT [--tp 1..%u] [--threads 1..%u] [--repeats 1..%u]\n"
        "                   [--activation-dtype bf16|f32|int8] [--prefill-form absorbed|expanded]\n"
        "                   [--only TEXT] [--csv FILE] [--serve]\n",
        TP_MAX, TEAM_THREADS_MAX / TP_MAX, REPEATS_MAX);
    exit(EXIT_USAGE);
}

static uint32_t number(const char *text, uint32_t max) {
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    if (*end != '\0' || value < 1 || value > max) usage();
    return (uint32_t)value;
}

static const char *const activation_names[] = {"f32", "bf16", "int8"};

static enum activation_dtype activation_of(const char *text) {
    for (int i = ACTIVATION_F32; i <= ACTIVATION_INT8; i++)
        if (strcmp(text, activation_names[i]) == 0) return (enum activation_dtype)i;
    usage();
}

static enum prefill_form form_of(const char *text) {
    if (strcmp(text, "expanded") == 0) return PREFILL_EXPANDED;
    if (strcmp(text, "absorbed") != 0) usage();
    return PREFILL_ABSORBED;
}

static struct options parse(int argc, char **argv) {
    static const struct option flags[] = {
        {"tp", required_argument, NULL, 't'},
        {"threads", required_argument, NULL, 'n'},
        {"activation-dtype", required_argument, NULL, 'a'},
        {"prefill-form", required_argument, NULL, 'p'},
        {"repeats", required_argument, NULL, 'r'},
        {"only", required_argument, NULL, 'o'},
        {"csv", required_argument, NULL, 'c'},
        {"serve", no_argument, NULL, 's'},
        {NULL, 0, NULL, 0},
    };
    struct options options = {.tp = 1, .threads = 1, .repeats = 5, .activation = ACTIVATION_BF16};
    for (int flag; (flag = getopt_long(argc, argv, "", flags, NULL)) != -1;) {
        switch (flag) {
        case 't': options.tp = number(optarg, TP_MAX); break;
        case 'a': options.activation = activation_of(optarg); break;
        case 'p': options.form = form_of(optarg); break;
        case 'n': options.threads = number(optarg, TEAM_THREADS_MAX / TP_MAX); break;
        case 'r': options.repeats = number(optarg, REPEATS_MAX); break;
        case 'o': options.only = optarg; break;
        case 'c': options.csv = optarg; break;
        case 's': options.serve = true; break;
        default: usage();
        }
    }
    if (optind + 1 != argc) usage();
    options.model = argv[optind];
    return options;
}

/* ============================== ranks ========================================================= */

static void run_rank(const struct options *options, uint32_t index, const struct comm_key *key,
                     int fd) {
    struct bench_rank *rank = bench_rank_open(options->model, index, options->tp, options->threads,
                                              options->activation, options->form, key);
    struct bench_measurement measured = {0}; /* the first one says that the rank is ready */
    struct bench_point point;
    while (write(fd, &measured, sizeof measured) == sizeof measured &&
           read(fd, &point, sizeof point) == sizeof point)
        measured = bench_rank_run(rank, &point);
    bench_rank_close(&rank);
}

/* The next measurement of every rank: the slowest one's time, the sum of the rest. */
static struct bench_measurement gather(const struct group *group) {
    struct bench_measurement sum = {0}, one;
    for (uint32_t rank = 0; rank < group->tp; rank++) {
        if (read(group->fd[rank], &one, sizeof one) != sizeof one) {
            fprintf(stderr, "bench_model: rank %u has ended\n", rank);
            exit(1);
        }
        sum.wall_ns = one.wall_ns > sum.wall_ns ? one.wall_ns : sum.wall_ns;
        sum.cpu_ns += one.cpu_ns;
        sum.bytes += one.bytes;
        sum.flops += one.flops;
        sum.drawn = one.drawn;
    }
    return sum;
}

static void open_group(const struct options *options, struct group *group) {
    struct comm_seed *seed = NULL;
    struct comm_key key = {.bytes = 0};
    struct error err;
    if (options->tp > 1 &&
        comm_seed_create(&comm_host, options->tp, 1, &seed, &key, &err) != STATUS_OK) {
        fprintf(stderr, "bench_model: %s\n", err.text);
        exit(1);
    }
    *group = (struct group){.tp = options->tp};
    for (uint32_t rank = 0; rank < group->tp; rank++) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) die("socketpair");
        group->fd[rank] = pair[0];
        group->pid[rank] = fork();
        if (group->pid[rank] < 0) die("fork");
        if (group->pid[rank] == 0) {
            /* Only the parent may hold its ends: their closing is what ends the ranks. */
            for (uint32_t other = 0; other <= rank; other++)
                close(group->fd[other]);
            run_rank(options, rank, &key, pair[1]);
            exit(0);
        }
        close(pair[1]);
    }
    (void)gather(group);
    comm_seed_destroy(&seed);
}

static void close_group(struct group *group) {
    for (uint32_t rank = 0; rank < group->tp; rank++)
        close(group->fd[rank]);
    for (uint32_t rank = 0; rank < group->tp; rank++)
        waitpid(group->pid[rank], NULL, 0);
}

static struct bench_measurement ask(const struct group *group, const struct bench_point *point) {
    for (uint32_t rank = 0; rank < group->tp; rank++)
        if (write(group->fd[rank], point, sizeof *point) != sizeof *point) die("a rank has ended");
    return gather(group);
}

static void serve(const struct group *group) {
    char line[128];
    printf("ready %s\n", kernel_isa_name());
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        struct bench_point point;
        if (sscanf(line, "%u %u %u", &point.rows, &point.context, &point.steps) != 3) {
            fprintf(stderr, "bench_model: not `rows context steps`: %s", line);
            exit(EXIT_USAGE);
        }
        struct bench_measurement measured = ask(group, &point);
        printf("%lld %lld %u\n", (long long)measured.wall_ns, (long long)measured.cpu_ns,
               measured.drawn);
        fflush(stdout);
    }
}

/* ============================== figures ======================================================= */

static struct roofs measure_roofs(uint32_t threads) {
    struct kernel_team *team = team_create(threads, ROOF_SPIN);
    if (!team) die("threads");
    struct roofs roofs = {.read = roof_read(team),
                          .fma = roof_fma_f32(team),
                          .dot_bf16 = roof_dot_bf16(team),
                          .dot_int8 = roof_dot_int8(team)};
    team_destroy(&team);
    return roofs;
}

static void machine_name(char *name, size_t bytes) {
    char line[256];
    snprintf(name, bytes, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "model name : %127[^\n,]", name) == 1) break;
    if (file) fclose(file);
}

static int by_wall(const void *a, const void *b) {
    const struct bench_measurement *left = a, *right = b;
    return (left->wall_ns > right->wall_ns) - (left->wall_ns < right->wall_ns);
}

static FILE *open_csv(const char *path) {
    FILE *csv = fopen(path, "ae");
    if (!csv) die(path);
    if (ftell(csv) == 0)
        fprintf(csv,
                "machine,isa,read_gb_s,fma_gflop_s,dot_bf16_gflop_s,model,activation,tp,threads,"
                "figure,repeats,median_ms,best_ms,cpu_ms,tok_s,roof_ms,roof_percent,roof_percent_"
                "cpu\n");
    return csv;
}

/* Of a step, unless it says otherwise. */
struct summary {
    double median_ms, best_ms;
    double cpu_ms; /* of all threads and ranks */
    double tok_s;
    double gb_s, gflop_s;
    double roof_ms;
    const char *roof; /* which of the two */
    double percent;
    double cpu_percent; /* the same if it had all the processors that it used to itself */
};

static struct summary summarize(const struct options *options, const struct roofs *roofs,
                                const struct bench_point *point, struct bench_measurement *run) {
    qsort(run, options->repeats, sizeof *run, by_wall);
    const struct bench_measurement *median = &run[options->repeats / 2];
    const double seconds = (double)median->wall_ns * 1e-9;
    const double read_ms = median->bytes / roofs->read / point->steps * 1e3;
    const double dot[] = {0, roofs->dot_bf16, roofs->dot_int8}; /* of activation_names */
    const bool narrow = dot[options->activation] > roofs->fma;
    const double peak = narrow ? dot[options->activation] : roofs->fma;
    const double fma_ms = median->flops / peak / point->steps * 1e3;
    struct summary out = {
        .median_ms = seconds / point->steps * 1e3,
        .best_ms = (double)run[0].wall_ns / point->steps * 1e-6,
        .cpu_ms = (double)median->cpu_ns / point->steps * 1e-6,
        .tok_s = (double)point->rows * point->steps / seconds,
        .gb_s = median->bytes / seconds * 1e-9,
        .gflop_s = median->flops / seconds * 1e-9,
        .roof_ms = read_ms > fma_ms ? read_ms : fma_ms,
        .roof = read_ms > fma_ms ? "read"
                : narrow         ? "dot"
                                 : "fma",
    };
    out.percent = 100 * out.roof_ms / out.median_ms;
    out.cpu_percent = 100 * out.roof_ms * options->threads * options->tp / out.cpu_ms;
    return out;
}

static void write_csv(FILE *csv, const struct options *options, const struct roofs *roofs,
                      const char *figure, const struct summary *summary) {
    char machine[MACHINE_BYTES];
    machine_name(machine, sizeof machine);
    const char *slash = strrchr(options->model, '/');
    fprintf(csv, "%s,%s,%.2f,%.1f,%.1f,%s,%s,%u,%u,%s,%u,%.3f,%.3f,%.3f,%.3f,%.3f,%.1f,%.1f\n",
            machine, kernel_isa_name(), roofs->read * 1e-9, roofs->fma * 1e-9,
            roofs->dot_bf16 * 1e-9, slash ? slash + 1 : options->model,
            activation_names[options->activation], options->tp, options->threads, figure,
            options->repeats, summary->median_ms, summary->best_ms, summary->cpu_ms, summary->tok_s,
            summary->roof_ms, summary->percent, summary->cpu_percent);
}

static void run_figure(const struct options *options, const struct group *group,
                       const struct roofs *roofs, const struct figure *figure, FILE *csv) {
    struct bench_measurement run[REPEATS_MAX];
    for (uint32_t i = 0; i < options->repeats; i++)
        run[i] = ask(group, &figure->point);
    struct summary summary = summarize(options, roofs, &figure->point, run);
    printf("%-24s %9.2f ms (best %9.2f, cpu %9.2f) %9.2f tok/s %6.2f GB/s %6.1f GFLOP/s: %3.0f %% "
           "of the %s roof, %3.0f %% by cpu\n",
           figure->name, summary.median_ms, summary.best_ms, summary.cpu_ms, summary.tok_s,
           summary.gb_s, summary.gflop_s, summary.percent, summary.roof, summary.cpu_percent);
    fflush(stdout);
    if (csv) write_csv(csv, options, roofs, figure->name, &summary);
}

static void run_figures(const struct options *options, const struct group *group,
                        const struct roofs *roofs) {
    FILE *csv = options->csv ? open_csv(options->csv) : NULL;
    printf("%s, tp %u, %u threads a rank: read %.1f GB/s, fma %.1f GFLOP/s (dot of bf16 %.1f, of "
           "int8 %.1f)\n",
           kernel_isa_name(), options->tp, options->threads, roofs->read * 1e-9, roofs->fma * 1e-9,
           roofs->dot_bf16 * 1e-9, roofs->dot_int8 * 1e-9);
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        if (!options->only || strstr(figures[i].name, options->only))
            run_figure(options, group, roofs, &figures[i], csv);
    if (csv) fclose(csv);
}
