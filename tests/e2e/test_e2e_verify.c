/* `espalier verify`: it passes on a sound service, and of six planted faults it fails each at the
 * rung that is there for it, but the one that is no fault. Faults are planted from outside: in a
 * checkpoint, in the memory of a process, by a signal, by the instruction set, by a pool too small,
 * in an old log. */
#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "processes.h"

#define MODEL_DIR       ESPALIER_SOURCE_DIR "/deploy/model"
#define TOKEN_BYTES     320u /* of a layer: 128 + 32 values of two bytes */
#define LAYER_CAP_BYTES ((uint64_t)TOKEN_BYTES << 24)
#define PAGE_BYTES      (64u * TOKEN_BYTES)
#define FLAGS_MAX       16

static struct processes_result result;

/* Where a group lives, and what is made for it. */
struct group {
    char dir[64], log[96], old_logs[64], thresholds[128];
    pid_t pid;
};

/* Limits that no machine misses, but for what a row asks. */
static void write_thresholds(const struct group *group, double attention_percent,
                             double answer_seconds) {
    FILE *file = fopen(group->thresholds, "w");
    assert_non_null(file);
    fprintf(file,
            "# a test's\nanswer_seconds_max %g\nattention_percent_min %g # or more\n"
            "sum_ms_max 1e9\nfirst_token_seconds_max 1e9\ntoken_ms_max 1e9\n"
            "token_growth_max 1e9\n",
            answer_seconds, attention_percent);
    assert_int_equal(fclose(file), 0);
}

static void name_files(struct group *group) {
    processes_make_dir(group->dir);
    processes_make_dir(group->old_logs);
    snprintf(group->log, sizeof group->log, "%s.log", group->dir);
    snprintf(group->thresholds, sizeof group->thresholds, "%s/limits", group->old_logs);
    write_thresholds(group, 0, 30);
}

static void start_group(struct group *group, const char *const *flags) {
    const char *serve[FLAGS_MAX + 8] = {"serve", "--run-dir", group->dir, "--tp", "2"};
    for (int i = 0; flags && flags[i]; i++)
        serve[5 + i] = flags[i];
    group->pid = processes_start(group->log, "espalier", serve);
    processes_wait_for(group->log, "espalier: ready");
}

static void stop_group(struct group *group) {
    kill(group->pid, SIGTERM);
    processes_wait(group->pid);
    assert_true(processes_wait_gone(group->dir) >= 0);
    processes_remove_dir(group->dir);
    processes_remove_dir(group->old_logs);
    remove(group->log);
}

/* Its exit code; more flags end with NULL. */
static int verify(const struct group *group, const char *a, const char *b, const char *c) {
    const char *arguments[] = {
        "verify", "--run-dir", group->dir, "--thresholds", group->thresholds, a, b, c, NULL};
    processes_run(&result, NULL, "espalier", arguments);
    return result.exit_code;
}

static void expect_sound(const struct group *group, const char *log_dir) {
    char flag[128];
    snprintf(flag, sizeof flag, "--log-dir=%s", log_dir);
    if (verify(group, "--context=256", flag, NULL) != 0)
        fail_msg("a sound service: %s%s", result.out, result.err);
}

static void expect_failure(const char *rung, const char *words) {
    char line[64];
    snprintf(line, sizeof line, "espalier verify: rung %s failed: ", rung);
    if (result.exit_code != 1 || !strstr(result.err, line) || !strstr(result.err, words))
        fail_msg("exit code %d and not \"%s\" with \"%s\": %s%s", result.exit_code, line, words,
                 result.out, result.err);
}

/* ---- what is wrong from outside ------------------------------------------------------------ */

/* Of an older boot, in the folder where this group's logs go. */
static void write_stale_error(const struct group *group) {
    char path[128];
    snprintf(path, sizeof path, "%s/worker-1.log", group->old_logs);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "2026-01-01T00:00:00.000Z level=error comp=worker rank=1 boot=0123456789abcdef "
                  "event=fault generation=7 reason=\"all is lost\"\n");
    assert_int_equal(fclose(file), 0);
}

/* Where the cache of the first layer begins in a process: memory, and behind it the rest of an
 * address space as large as only a layer has. 0: not found. */
static uint64_t find_cache(long pid) {
    char path[64], line[512];
    uint64_t begin, end, before_begin = 0, before_end = 0;
    snprintf(path, sizeof path, "/proc/%ld/maps", pid);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    bool found = false;
    while (!found && fgets(line, sizeof line, file)) {
        char mode[8];
        assert_int_equal(sscanf(line, "%lx-%lx %7s", &begin, &end, mode), 3);
        found = strcmp(mode, "---p") == 0 && begin == before_end &&
                end - before_begin == LAYER_CAP_BYTES;
        if (found) break;
        before_begin = begin;
        before_end = end;
    }
    fclose(file);
    return found ? before_begin : 0;
}

/* Flip a bit of the cache; the owner of a process may write to its memory. False: not here. */
static bool flip_bit(long pid, uint64_t offset) {
    char path[64];
    uint8_t byte;
    uint64_t begin = find_cache(pid);
    assert_true(begin != 0);
    snprintf(path, sizeof path, "/proc/%ld/mem", pid);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 && (errno == EACCES || errno == EPERM)) return false;
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)(begin + offset)), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)(begin + offset)), 1);
    close(fd);
    return true;
}

static void link_model(const char *into) {
    static const char *const names[] = {"config.json",
                                        "generation_config.json",
                                        "model-00001-of-000002.safetensors",
                                        "model-00002-of-000002.safetensors",
                                        "model.safetensors.index.json",
                                        "tiktoken.model",
                                        "tokenizer_config.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char from[512], to[128];
        snprintf(from, sizeof from, "%s/%s", MODEL_DIR, names[i]);
        snprintf(to, sizeof to, "%s/%s", into, names[i]);
        assert_int_equal(symlink(from, to), 0);
    }
}

/* A copy of the model in which one tensor has the other sign; its headers, and so its fingerprint,
 * are as they were. */
static void make_wrong_model(const char *into) {
    static const char file_name[] = "model-00001-of-000002.safetensors";
    static const char tensor[] = "\"model.layers.1.self_attn.o_proj.weight\"";
    char path[512];
    struct stat state;
    link_model(into);
    snprintf(path, sizeof path, "%s/%s", MODEL_DIR, file_name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fstat(fileno(file), &state), 0);
    uint8_t *data = malloc((size_t)state.st_size);
    assert_int_equal(fread(data, 1, (size_t)state.st_size, file), (size_t)state.st_size);
    fclose(file);
    uint64_t header_bytes, begin, end;
    memcpy(&header_bytes, data, sizeof header_bytes);
    const char *at = memmem(data + 8, header_bytes, tensor, strlen(tensor));
    assert_non_null(at);
    at = strstr(at, "\"data_offsets\":[");
    assert_int_equal(sscanf(at, "\"data_offsets\":[%lu,%lu]", &begin, &end), 2);
    for (uint64_t i = 8 + header_bytes + begin + 1; i < 8 + header_bytes + end; i += 2)
        data[i] ^= 0x80; /* bf16, its high byte behind */
    snprintf(path, sizeof path, "%s/%s", into, file_name);
    assert_int_equal(unlink(path), 0);
    file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, (size_t)state.st_size, file), (size_t)state.st_size);
    assert_int_equal(fclose(file), 0);
    free(data);
}

/* ---- what must come of it ------------------------------------------------------------------ */

static struct json_object *part(struct json_object *object, const char *key) {
    struct json_object *value;
    if (!json_object_object_get_ex(object, key, &value)) fail_msg("no %s in %s", key, result.out);
    return value;
}

/* The least percent of the roof, of the last --json. */
static double attention_percent(void) {
    struct json_object *object = json_tokener_parse(result.out);
    assert_non_null(object);
    struct json_object *ranks = part(object, "ranks");
    double least = 1e9;
    assert_int_equal(json_object_array_length(ranks), 2);
    for (size_t i = 0; i < 2; i++) {
        double percent = json_object_get_double(
            part(json_object_array_get_idx(ranks, i), "percent"));
        if (percent < least) least = percent;
    }
    json_object_put(object);
    return least;
}

static void expect_table(void) {
    static const char *const words[] = {"ranks      ok",         "capacity   ok",
                                        "cache      ok",         "tokens     ok",
                                        "request    ok",         "attention  ok",
                                        "latency    ok",         "errors     ok",
                                        "32 tokens as recorded", "context 256 tokens, as asked",
                                        "  FIRST TOKEN",         " ms  #"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strstr(result.out, words[i])) fail_msg("no \"%s\" in %s", words[i], result.out);
}

static void expect_json(void) {
    struct json_object *object = json_tokener_parse(result.out);
    assert_non_null(object);
    assert_true(json_object_get_boolean(part(object, "ok")));
    assert_int_equal(json_object_array_length(part(object, "rungs")), 8);
    struct json_object *points = part(object, "points");
    static const int lengths[] = {64, 128, 256};
    assert_int_equal(json_object_array_length(points), 3);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(json_object_get_int(part(json_object_array_get_idx(points, i), "context")),
                         lengths[i]);
    json_object_put(object);
}

/* Sound, with a stale error; then a rank stands still; then one dies. */
static void a_service_and_what_befalls_it(void **state) {
    (void)state;
    struct group group;
    name_files(&group);
    write_stale_error(&group);
    const char *flags[] = {"--context-length", "512", "--log-dir", group.old_logs, NULL};
    start_group(&group, flags);
    expect_sound(&group, group.old_logs);
    expect_table();
    assert_non_null(strstr(result.out, "no errors in boot"));
    assert_int_equal(verify(&group, "--context=256", "--json", NULL), 0);
    expect_json();

    long pid = processes_ready_pid(group.dir, "worker-1");
    write_thresholds(&group, 0, 1.5);
    assert_int_equal(kill((pid_t)pid, SIGSTOP), 0);
    verify(&group, "--context=256", NULL, NULL);
    assert_int_equal(kill((pid_t)pid, SIGCONT), 0);
    expect_failure("ranks", "rank 1: nothing was heard of it for ");
    assert_non_null(strstr(result.out, "request    -  ")); /* nothing more was asked of it */

    write_thresholds(&group, 0, 30);
    assert_int_equal(kill((pid_t)pid, SIGKILL), 0);
    processes_wait_for(group.log, "event=group_ready generation=2");
    char flag[128];
    snprintf(flag, sizeof flag, "--log-dir=%s", group.old_logs);
    verify(&group, "--context=256", flag, NULL);
    expect_failure("errors", "errors in boot ");
    stop_group(&group);
}

/* A test of its own: where no process may write to another's memory, it shows as skipped. */
static void a_bit_of_the_cache_flips(void **state) {
    (void)state;
    static const char *const flags[] = {"--context-length", "512", NULL};
    struct group group;
    name_files(&group);
    start_group(&group, flags);
    expect_sound(&group, group.dir);
    bool flipped = flip_bit(processes_ready_pid(group.dir, "worker-1"), 2 * PAGE_BYTES + 1001);
    if (flipped) {
        verify(&group, "--context=256", NULL, NULL);
        expect_failure("cache", "rank 1 holds other bytes than it should, in 1 of ");
        expect_sound(&group, group.dir); /* it has been computed again */
    }
    stop_group(&group);
    if (!flipped) skip();
}

static void a_short_pool(void **state) {
    (void)state;
    static const char *const flags[] = {"--context-length",   "1024", "--max-total-tokens", "512",
                                        "--allow-short-pool", NULL};
    struct group group;
    name_files(&group);
    start_group(&group, flags);
    verify(&group, NULL, NULL, NULL);
    expect_failure("capacity", "the pool holds 512 tokens, and a request is promised 1024");
    assert_non_null(strstr(result.out, "context 512 tokens, what fits"));
    assert_non_null(strstr(result.out, "request    ok")); /* of what fits */
    expect_sound(&group, group.dir);                      /* asked for less, all is well */
    stop_group(&group);
}

/* While `pid` runs; 0: nobody in particular. */
static void wait_status(const struct group *group, const char *words, pid_t pid) {
    const char *status[] = {"status", "--run-dir", group->dir, "--json", NULL};
    do {
        assert_true(pid == 0 || processes_is_running(pid));
        processes_run(&result, NULL, "espalier", status);
        assert_int_equal(result.exit_code, 0);
    } while (!strstr(result.out, words));
}

/* A `verify` in the background, in the middle of its own requests. */
static pid_t start_verify(const struct group *group, const char *log) {
    const char *verify[] = {"verify",          "--run-dir",      group->dir, "--thresholds",
                            group->thresholds, "--context=4096", NULL};
    wait_status(group, "\"requests_running\":0", 0);
    pid_t pid = processes_start(log, "espalier", verify);
    wait_status(group, "\"requests_running\":1", pid);
    return pid;
}

static void expect_end_of_climb(pid_t pid, const char *log, const char *words) {
    result.exit_code = processes_wait(pid);
    processes_read_file(log, result.out, sizeof result.out);
    if (result.exit_code != 1 || !strstr(result.out, words) ||
        !strstr(result.out, "attention  -  "))
        fail_msg("exit code %d and not \"%s\": %s", result.exit_code, words, result.out);
    remove(log);
}

static void a_climb_that_is_cut_short(void **state) {
    (void)state;
    static const char *const flags[] = {"--context-length", "4096", NULL};
    struct group group;
    char log[96];
    name_files(&group);
    snprintf(log, sizeof log, "%s/verify.log", group.old_logs);
    start_group(&group, flags);
    pid_t pid = start_verify(&group, log);
    assert_int_equal(kill(pid, SIGTERM), 0);
    expect_end_of_climb(pid, log, "interrupted: nothing more is asked");

    pid = start_verify(&group, log);
    assert_int_equal(kill((pid_t)processes_ready_pid(group.dir, "coordinator"), SIGKILL), 0);
    expect_end_of_climb(pid, log, "the service cannot be reached any more: nothing more is asked");
    stop_group(&group);
}

/* Scores and sums element by element, where the processor has vectors: what a kernel is that was
 * built for another machine. How fast it is, of what the memory gives, is judged by what the same
 * machine does otherwise. */
static void slow_attention(void **state) {
    (void)state;
    static const char *const flags[] = {"--context-length",
                                        "128",
                                        "--page-size",
                                        "16",
                                        "--kv-cache-dtype",
                                        "f32",
                                        "--activation-dtype",
                                        "f32",
                                        "--speculative-algorithm",
                                        "none",
                                        NULL};
#ifdef __SANITIZE_ADDRESS__
    skip(); /* without vectors, and every access looked at, it takes minutes */
#endif
    struct group group;
    name_files(&group);
    start_group(&group, flags);
    assert_int_equal(verify(&group, "--context=64", "--json", NULL), 0);
    double sound = attention_percent();
    stop_group(&group);

    name_files(&group);
    write_thresholds(&group, sound / 4, 30);
    setenv("ESPALIER_ISA", "generic", 1);
    start_group(&group, flags);
    unsetenv("ESPALIER_ISA");
    verify(&group, "--context=64", "--json", NULL);
    print_message("%.2f %% of a plain read, and %.2f %% without vectors\n", sound,
                  attention_percent());
    expect_failure("attention", "less than");
    stop_group(&group);
}

static void wrong_weights_on_one_rank(void **state) {
    (void)state;
    struct group group;
    char model[64];
    name_files(&group);
    processes_make_dir(model);
    make_wrong_model(model);
    const char *coordinator[] = {"--run-dir", group.dir,          "--tp", "2", "--model-path",
                                 MODEL_DIR,   "--context-length", "512",  NULL};
    const char *right[] = {"--run-dir", group.dir,      "--tp",    "2", "--rank",
                           "0",         "--model-path", MODEL_DIR, NULL};
    const char *wrong[] = {"--run-dir", group.dir,      "--tp", "2", "--rank",
                           "1",         "--model-path", model,  NULL};
    group.pid = processes_start(group.log, "espalier-coordinator", coordinator);
    pid_t rank_0 = processes_start(group.log, "espalier-worker", right);
    pid_t rank_1 = processes_start(group.log, "espalier-worker", wrong);
    processes_wait_for(group.log, "event=group_ready generation=1");
    verify(&group, "--context=256", NULL, NULL);
    expect_failure("tokens", "is recorded: weights or kernels are not those");
    kill(group.pid, SIGTERM);
    assert_int_equal(processes_wait(rank_0), 0);
    assert_int_equal(processes_wait(rank_1), 0);
    processes_remove_dir(model);
    stop_group(&group);
}

/* A model of which nothing is known is recorded first, and compared from then on. */
static void tokens_are_recorded(void **state) {
    (void)state;
    static const char *const flags[] = {"--context-length", "256", NULL};
    struct group group;
    char record[160], tokens[160], text[2048];
    name_files(&group);
    snprintf(record, sizeof record, "--record=%s/tokens", group.old_logs);
    snprintf(tokens, sizeof tokens, "--tokens=%s/tokens", group.old_logs);
    start_group(&group, flags);
    verify(&group, "--context=64", tokens, NULL);
    expect_failure("tokens", "found nothing recorded for this model");
    assert_int_equal(verify(&group, "--context=64", record, NULL), 0);
    assert_non_null(strstr(result.out, "32 tokens recorded"));
    assert_int_equal(verify(&group, "--context=64", tokens, NULL), 0);
    assert_non_null(strstr(result.out, "32 tokens as recorded"));
    processes_read_file(tokens + strlen("--tokens="), text, sizeof text);
    assert_non_null(strstr(text, " bf16 bf16 "));

    verify(&group, "--context=512", NULL, NULL);
    expect_failure("capacity", "512 tokens asked for; the service was started with "
                               "--context-length 256");
    stop_group(&group);
}

static int tear_down(void **state) {
    (void)state;
    processes_kill_all();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_service_and_what_befalls_it, tear_down),
        cmocka_unit_test_teardown(a_bit_of_the_cache_flips, tear_down),
        cmocka_unit_test_teardown(a_short_pool, tear_down),
        cmocka_unit_test_teardown(a_climb_that_is_cut_short, tear_down),
        cmocka_unit_test_teardown(slow_attention, tear_down),
        cmocka_unit_test_teardown(wrong_weights_on_one_rank, tear_down),
        cmocka_unit_test_teardown(tokens_are_recorded, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
