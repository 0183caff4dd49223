/* How fast weights load, against what the disk and the page cache give in the same run.
 *
 *     bench_load MODEL [--tp N] [--rank R] [--threads N] [--rounds N] [--warm-only]
 *
 * Each round measures, one after the other:
 *
 *   disk     the files read once, cold, in pieces of 4 MB, by the loader's number of threads
 *   cold     the loader, with nothing of the files in the page cache
 *   cache    the files read once, warm, into memory that was never touched: where weights go too
 *   copy     the same into one small buffer a thread, which shows what touching memory costs
 *   warm     the loader, with the files in the page cache
 *
 * (not the first two with --warm-only), and prints medians, their ratios, and the loader's peak of
 * resident memory beside the shard's.
 * Files leave the page cache by posix_fadvise, and where we may (root) the kernel is asked to drop
 * what is clean; mincore says whether that worked. */
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "model_spec.h"
#include "safetensors.h"
#include "weights.h"

#define PIECE_BYTES (UINT64_C(4) << 20)
#define FILES_MAX   1024u
#define THREADS_MAX 64u
#define ROUNDS_MAX  32u

struct bench {
    const char *model;
    uint32_t rank, tp, threads, rounds;
    bool warm_only; /* neither disk nor cold */
    struct model_spec spec;
    struct safetensors *checkpoint;
    uint32_t file_count;
    int fd[FILES_MAX];
    uint64_t bytes[FILES_MAX], bytes_total;
};

enum figure { DISK, COLD, CACHE, COPY, WARM, FIGURE_COUNT };
static const char *const figure_names[] = {"disk", "cold", "cache", "copy", "warm"};

static _Noreturn void fail(const char *what, const char *why) {
    fprintf(stderr, "bench_load: %s: %s\n", what, why);
    exit(EXIT_CODE_CONFIG);
}

/* ---- the page cache ------------------------------------------------------------------------ */

static void drop(const struct bench *bench) {
    for (uint32_t i = 0; i < bench->file_count; i++)
        (void)posix_fadvise(bench->fd[i], 0, 0, POSIX_FADV_DONTNEED);
    int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t ignored = write(fd, "1", 1);
    (void)ignored;
    close(fd);
}

/* The share of the files that is in the page cache. */
static double resident(const struct bench *bench) {
    uint64_t pages = 0, present = 0;
    for (uint32_t i = 0; i < bench->file_count; i++) {
        uint64_t count = (bench->bytes[i] + 4095) / 4096;
        void *at = mmap(NULL, bench->bytes[i], PROT_READ, MAP_SHARED, bench->fd[i], 0);
        unsigned char *bits = malloc(count);
        CHECK(at != MAP_FAILED && bits && mincore(at, bench->bytes[i], bits) == 0);
        for (uint64_t p = 0; p < count; p++)
            present += bits[p] & 1;
        pages += count;
        free(bits);
        munmap(at, bench->bytes[i]);
    }
    return (double)present / (double)pages;
}

/* ---- plain reading ------------------------------------------------------------------------- */

struct reading {
    const struct bench *bench;
    unsigned char *target; /* the files one behind the other; NULL: a buffer of the thread's own */
    _Atomic uint64_t next; /* piece */
    uint64_t piece_count;
};

static void read_piece(const struct reading *reading, uint64_t piece, unsigned char *buffer) {
    const struct bench *bench = reading->bench;
    uint64_t at = piece * PIECE_BYTES, file_begin = 0;
    uint64_t end = at + PIECE_BYTES < bench->bytes_total ? at + PIECE_BYTES : bench->bytes_total;
    for (uint32_t i = 0; i < bench->file_count && at < end; file_begin += bench->bytes[i], i++) {
        uint64_t file_end = file_begin + bench->bytes[i];
        while (at < end && at < file_end) {
            uint64_t want = (end < file_end ? end : file_end) - at;
            void *to = reading->target ? reading->target + at : buffer;
            ssize_t got = pread(bench->fd[i], to, want, (off_t)(at - file_begin));
            CHECK(got > 0);
            at += (uint64_t)got;
        }
    }
}

static void *read_pieces(void *argument) {
    struct reading *reading = argument;
    unsigned char *buffer = aligned_alloc(4096, PIECE_BYTES);
    CHECK(buffer);
    memset(buffer, 1, PIECE_BYTES);
    for (uint64_t piece; (piece = atomic_fetch_add(&reading->next, 1)) < reading->piece_count;)
        read_piece(reading, piece, buffer);
    free(buffer);
    return NULL;
}

static double read_all(const struct bench *bench, bool into_fresh_memory) {
    struct reading reading = {.bench = bench,
                              .piece_count = (bench->bytes_total + PIECE_BYTES - 1) / PIECE_BYTES};
    int64_t begin_ns = clock_now_ns();
    if (into_fresh_memory) {
        void *memory = mmap(NULL, bench->bytes_total, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(memory != MAP_FAILED);
        (void)madvise(memory, bench->bytes_total, MADV_HUGEPAGE);
        reading.target = memory;
    }
    pthread_t thread[THREADS_MAX];
    for (uint32_t i = 1; i < bench->threads; i++)
        CHECK(pthread_create(&thread[i], NULL, read_pieces, &reading) == 0);
    read_pieces(&reading);
    for (uint32_t i = 1; i < bench->threads; i++)
        pthread_join(thread[i], NULL);
    double seconds = (double)(clock_now_ns() - begin_ns) / 1e9;
    if (reading.target) munmap(reading.target, bench->bytes_total);
    return (double)bench->bytes_total / seconds;
}

/* ---- the loader ---------------------------------------------------------------------------- */

static uint64_t status_kb(const char *field) {
    char line[256];
    uint64_t kb = 0;
    FILE *file = fopen("/proc/self/status", "re");
    CHECK(file);
    while (fgets(line, sizeof line, file))
        if (strncmp(line, field, strlen(field)) == 0) kb = strtoull(line + strlen(field), NULL, 10);
    fclose(file);
    return kb;
}

struct load {
    double bytes_per_s;
    uint64_t shard_bytes, peak_bytes;
};

static struct load load(const struct bench *bench) {
    struct weights_progress progress = {0};
    struct weights *weights;
    struct error err;
    int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC); /* begin the peak anew */
    if (fd >= 0 && write(fd, "5", 1) != 1) fail("/proc/self/clear_refs", "cannot be written");
    if (fd >= 0) close(fd);
    uint64_t before_kb = status_kb("VmRSS:");
    int64_t begin_ns = clock_now_ns();
    if (weights_load(NULL, &bench->spec, bench->checkpoint, bench->rank, bench->tp, bench->threads,
                     &progress, &weights, &err) != STATUS_OK)
        fail(bench->model, err.text);
    double seconds = (double)(clock_now_ns() - begin_ns) / 1e9;
    struct load result = {.bytes_per_s = (double)progress.bytes / seconds,
                          .shard_bytes = weights->bytes,
                          .peak_bytes = (status_kb("VmHWM:") - before_kb) << 10};
    weights_destroy(&weights);
    return result;
}

/* ---- all of it ----------------------------------------------------------------------------- */

static int by_size(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(const double *values, uint32_t count) {
    double sorted[ROUNDS_MAX];
    memcpy(sorted, values, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, by_size);
    return (sorted[count / 2] + sorted[(count - 1) / 2]) / 2;
}

struct figures {
    double rate[FIGURE_COUNT][ROUNDS_MAX], cold_share[ROUNDS_MAX], warm_share[ROUNDS_MAX];
    uint64_t shard_bytes, peak_bytes;
};

static double measure_load(const struct bench *bench, struct figures *figures) {
    struct load loaded = load(bench);
    figures->shard_bytes = loaded.shard_bytes;
    if (loaded.peak_bytes > figures->peak_bytes) figures->peak_bytes = loaded.peak_bytes;
    return loaded.bytes_per_s;
}

static void run_cold(const struct bench *bench, uint32_t round, struct figures *figures) {
    drop(bench);
    double left = resident(bench);
    figures->rate[DISK][round] = read_all(bench, false);
    drop(bench);
    figures->rate[COLD][round] = measure_load(bench, figures);
    figures->cold_share[round] = figures->rate[COLD][round] / figures->rate[DISK][round];
    printf("round %u: %.1f %% of the files were still cached\n", round + 1, 100 * left);
}

static void run_warm(const struct bench *bench, uint32_t round, struct figures *figures) {
    (void)read_all(bench, false); /* all of it is in the cache now */
    figures->rate[CACHE][round] = read_all(bench, true);
    figures->rate[COPY][round] = read_all(bench, false);
    figures->rate[WARM][round] = measure_load(bench, figures);
    figures->warm_share[round] = figures->rate[WARM][round] / figures->rate[CACHE][round];
}

static void run(const struct bench *bench) {
    static struct figures figures;
    const enum figure first = bench->warm_only ? CACHE : DISK;
    for (uint32_t round = 0; round < bench->rounds; round++) {
        if (!bench->warm_only) run_cold(bench, round, &figures);
        run_warm(bench, round, &figures);
        printf("round %u:", round + 1);
        for (uint32_t f = first; f < FIGURE_COUNT; f++)
            printf(" %s %.0f", figure_names[f], figures.rate[f][round] / 1e6);
        printf(" MB/s\n");
        fflush(stdout);
    }
    for (uint32_t f = first; f < FIGURE_COUNT; f++)
        printf("%-6s %8.0f MB/s\n", figure_names[f], median(figures.rate[f], bench->rounds) / 1e6);
    if (!bench->warm_only)
        printf("cold / disk   %.2f (wanted 0.90)\n", median(figures.cold_share, bench->rounds));
    printf("warm / cache  %.2f (wanted 1.00)\n", median(figures.warm_share, bench->rounds));
    printf("shard %.0f MB, peak %.0f MB: %.0f MB more (wanted at most 256)\n",
           (double)figures.shard_bytes / 1e6, (double)figures.peak_bytes / 1e6,
           ((double)figures.peak_bytes - (double)figures.shard_bytes) / 1e6);
}

static uint32_t number(const char *flag, const char *text, uint32_t least, uint32_t most) {
    char *end;
    unsigned long value = text ? strtoul(text, &end, 10) : 0;
    if (!text || *end || value < least || value > most) fail(flag, "out of range");
    return (uint32_t)value;
}

static void parse(struct bench *bench, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : NULL;
        if (argv[i][0] != '-')
            bench->model = argv[i];
        else if (strcmp(argv[i], "--tp") == 0)
            bench->tp = number(argv[i++], next, 1, TP_MAX);
        else if (strcmp(argv[i], "--rank") == 0)
            bench->rank = number(argv[i++], next, 0, TP_MAX - 1);
        else if (strcmp(argv[i], "--threads") == 0)
            bench->threads = number(argv[i++], next, 1, THREADS_MAX);
        else if (strcmp(argv[i], "--rounds") == 0)
            bench->rounds = number(argv[i++], next, 1, ROUNDS_MAX);
        else if (strcmp(argv[i], "--warm-only") == 0)
            bench->warm_only = true;
        else
            fail(argv[i], "no such flag");
    }
    if (!bench->model) fail("MODEL", "found nothing");
    if (bench->rank >= bench->tp) fail("--rank", "must be below --tp");
}

int main(int argc, char **argv) {
    static struct bench bench = {.tp = 1, .threads = 2, .rounds = 3};
    parse(&bench, argc, argv);
    struct error err;
    if (model_spec_load(bench.model, &bench.spec, &err) != STATUS_OK) fail(bench.model, err.text);
    if (safetensors_open(bench.model, &bench.checkpoint, &err) != STATUS_OK)
        fail(bench.model, err.text);
    bench.file_count = safetensors_file_count(bench.checkpoint);
    CHECK(bench.file_count <= FILES_MAX);
    for (uint32_t i = 0; i < bench.file_count; i++) {
        struct stat info;
        bench.fd[i] = open(safetensors_path(bench.checkpoint, i), O_RDONLY | O_CLOEXEC);
        if (bench.fd[i] < 0 || fstat(bench.fd[i], &info) != 0)
            fail(safetensors_path(bench.checkpoint, i), "cannot be opened");
        bench.bytes[i] = (uint64_t)info.st_size;
        bench.bytes_total += bench.bytes[i];
    }
    run(&bench);
    safetensors_close(&bench.checkpoint);
    return 0;
}
