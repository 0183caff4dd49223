/* Everything that users and peers get wrong, in three tables: checkpoints, command lines, requests.
 * Whatever it is, the answer is one line that names it, says what was found and what is accepted,
 * and the right code; nothing crashes, nothing leaks (the sanitizers' presets run this too), no
 * process and no file is left. A table is run to its end, and says every row that failed. */
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "bad_input.h"
#include "processes.h"
#include "raw_peer.h"
#include "tensor_store.h"

#define LONG_PROMPT_WORDS 100

static struct processes_result result;
static char dir[64];     /* of what the programs of a row may leave behind */
static char run_dir[64]; /* of the group that serves */
static char log_path[96], port[16], long_prompt[LONG_PROMPT_WORDS * 6 + 1];
static pid_t serve_pid;
static unsigned failures;

/* ---- what is right ------------------------------------------------------------------------- */

static bool is_one_line(const char *text) {
    const char *end = strchr(text, '\n');
    return end && end[1] == '\0' && end != text;
}

/* With @RUN, @PORT and @LONG in their places; the result is used before the next eight. */
static const char *expand(const char *text) {
    static char expanded[8][1024];
    static unsigned turn;
    const struct {
        const char *name, *value;
    } names[] = {{"@RUN", run_dir}, {"@PORT", port}, {"@LONG", long_prompt}};
    for (size_t i = 0; text && i < sizeof names / sizeof *names; i++) {
        const char *at = strstr(text, names[i].name);
        if (!at) continue;
        char *out = expanded[turn++ % 8];
        snprintf(out, sizeof expanded[0], "%.*s%s%s", (int)(at - text), text, names[i].value,
                 at + strlen(names[i].name));
        return out;
    }
    return text;
}

static bool has_parts(const char *text, const char *const parts[BAD_INPUT_PARTS]) {
    for (int i = 0; i < BAD_INPUT_PARTS && parts[i]; i++)
        if (!strstr(text, expand(parts[i]))) return false;
    return true;
}

static uint32_t shared_memory_files(void) {
    uint32_t count = 0;
    DIR *shm = opendir("/dev/shm");
    struct dirent *entry;
    while (shm && (entry = readdir(shm)) != NULL)
        count += strstr(entry->d_name, "espalier") != NULL;
    if (shm) closedir(shm);
    return count;
}

/* Nothing of a row's is left: no process, no file. */
static const char *find_rest(void) {
    static char rest[160];
    if (processes_wait_gone(dir) < 0) return "processes are left";
    char path[96];
    snprintf(path, sizeof path, "%s/espalier", dir); /* the default run directory may stay, empty */
    if (processes_dir_entries(path) == 0) rmdir(path);
    int entries = processes_dir_entries(dir);
    if (entries == 0 && shared_memory_files() == 0) return NULL;
    snprintf(rest, sizeof rest, "%d files are left in %s, %u in /dev/shm", entries, dir,
             shared_memory_files());
    return rest;
}

static void judge(const char *label, int code, const char *said,
                  const char *const parts[BAD_INPUT_PARTS]) {
    const char *rest = find_rest();
    if (result.exit_code == code && has_parts(said, parts) && is_one_line(said) &&
        result.out[0] == '\0' && !rest)
        return;
    failures++;
    print_error("%s: exit code %d (expected %d)%s%s, said on stderr:\n%s%s%s", label,
                result.exit_code, code, rest ? ", " : "", rest ? rest : "", said,
                result.out[0] ? "and on stdout:\n" : "", result.out);
}

static void run(bool no_override, const char *program, const char *const *arguments) {
    char runtime[96], temporary[96];
    snprintf(runtime, sizeof runtime, "XDG_RUNTIME_DIR=%s", dir);
    snprintf(temporary, sizeof temporary, "TMPDIR=%s", dir);
    const char *variables[] = {runtime, temporary, NULL};
    processes_run_in(
        &result,
        &(struct processes_surroundings){.variables = variables, .no_override = no_override},
        program, arguments);
}

/* ---- checkpoints --------------------------------------------------------------------------- */

static void checkpoints(void **state) {
    (void)state;
    failures = 0;
    for (size_t i = 0; i < bad_checkpoint_count; i++) {
        const struct bad_checkpoint *bad = &bad_checkpoints[i];
        char model[64];
        broken_model_make(&bad->broken, model);
        const char *arguments[] = {"generate",
                                   "--model-path",
                                   model,
                                   "--tp",
                                   bad->broken.tp ? bad->broken.tp : "1",
                                   "--tokens",
                                   "1",
                                   "a",
                                   NULL};
        run(bad->broken.how == BROKEN_SECRET, "espalier", arguments);
        judge(bad->label, bad->exit_code, result.err, bad->parts);
        folder_remove(model);
    }
    print_message("%zu malformed checkpoints\n", bad_checkpoint_count);
    assert_int_equal(failures, 0);
    assert_true(bad_checkpoint_count >= 40);
}

/* What the table breaks is sound otherwise. */
static void sound_checkpoints_load(void **state) {
    (void)state;
    static const char *const kinds[] = {"plain", "int4", "fp8", "v2"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char model[64];
        broken_model_make(&(struct broken_model){.kind = kinds[i]}, model);
        const char *arguments[] = {"generate",     "--model-path",   model, "--tokens", "1",
                                   "--ignore-eos", "--print-tokens", "0",   NULL};
        run(false, "espalier", arguments);
        if (strstr(result.err, "prompt token")) result.exit_code = 0; /* its vocabulary is small */
        if (result.exit_code != 0) fail_msg("%s: %s", kinds[i], result.err);
        folder_remove(model);
    }
}

/* ---- command lines ------------------------------------------------------------------------- */

static void command_lines(void **state) {
    (void)state;
    failures = 0;
    for (size_t i = 0; i < bad_line_count; i++) {
        const struct bad_line *bad = &bad_lines[i];
        const char *arguments[BAD_INPUT_ARGUMENTS + 1] = {NULL};
        char label[256];
        snprintf(label, sizeof label, "%s", bad->program);
        for (int a = 0; bad->arguments[a]; a++) {
            arguments[a] = expand(bad->arguments[a]);
            size_t used = strlen(label);
            snprintf(label + used, sizeof label - used, " %.60s", arguments[a]);
        }
        run(false, bad->program, arguments);
        judge(label, bad->exit_code, result.err, bad->parts);
    }
    print_message("%zu bad command lines\n", bad_line_count);
    assert_int_equal(failures, 0);
    assert_true(bad_line_count >= 40);
}

/* ---- requests ------------------------------------------------------------------------------ */

static void put_ids(struct raw_message *message, unsigned field, unsigned first, unsigned count,
                    unsigned step) {
    uint32_t ids[256];
    assert_true(count <= sizeof ids / sizeof *ids);
    for (unsigned i = 0; i < count; i++)
        ids[i] = first + i * step;
    raw_bytes(message, field, ids, count * sizeof *ids);
}

static void put_wrong(struct raw_message *request, struct raw_message *sampling,
                      const struct bad_field *wrong) {
    char letters[512];
    memset(letters, 'a', sizeof letters);
    unsigned times = wrong->count ? wrong->count : 1;
    switch (wrong->kind) {
    case BAD_NOTHING: return;
    case BAD_NUMBER: raw_varint(request, wrong->field, wrong->number); return;
    case BAD_BYTES:
        for (unsigned i = 0; i < times; i++)
            raw_bytes(request, wrong->field, wrong->text ? wrong->text : letters, wrong->bytes);
        return;
    case BAD_IDS: put_ids(request, wrong->field, wrong->number, wrong->count, 1); return;
    case BAD_REAL: raw_float(sampling, wrong->field, wrong->real); return;
    case BAD_SAMPLING_NUMBER: raw_varint(sampling, wrong->field, wrong->number); return;
    case BAD_BIAS:
        put_ids(sampling, 9, wrong->number, wrong->count, 0);
        for (unsigned i = 0; i < wrong->count; i++)
            raw_float(sampling, 10, wrong->real);
        return;
    case BAD_NO_SAMPLING: sampling->bytes = 0; return;
    case BAD_BODY:
        request->bytes = sampling->bytes = 0;
        raw_bytes(request, 1, letters, 100);
        return;
    }
}

static struct raw_message make_request(const struct bad_request *bad) {
    struct raw_message request = {.bytes = 0}, sampling = {.bytes = 0};
    raw_varint(&request, 1, 1); /* TEXT */
    raw_text(&request, 2, "Once");
    raw_varint(&request, 4, 2);
    raw_float(&sampling, 2, 1);
    for (size_t w = 0; w < sizeof bad->wrong / sizeof *bad->wrong; w++)
        put_wrong(&request, &sampling, &bad->wrong[w]);
    if (sampling.bytes > 0) raw_bytes(&request, 5, sampling.data, sampling.bytes);
    return request;
}

static void requests(void **state) {
    (void)state;
    failures = 0;
    struct raw_peer peer;
    raw_peer_open(&peer, run_dir, "client.sock");
    for (size_t i = 0; i <= bad_request_count; i++) {
        static const struct bad_request sound = {.label = "a sound request", .status = 0};
        const struct bad_request *bad = i < bad_request_count ? &bad_requests[i] : &sound;
        struct raw_message header = {.bytes = 0}, body = make_request(bad);
        raw_varint(&header, 1, 1);
        raw_varint(&header, 2, RAW_CALL);
        raw_varint(&header, 3, i + 1);
        raw_text(&header, 4, "Generate");
        raw_peer_send(&peer, &header, &body);
        struct raw_end end = raw_peer_expect_end(&peer, i + 1);
        bool is_line = end.status == 0 || (end.text[0] && !strchr(end.text, '\n'));
        if (end.status == bad->status && is_line && has_parts(end.text, bad->parts)) continue;
        failures++;
        print_error("%s: status %u (expected %u), text:\n%s\n", bad->label, end.status, bad->status,
                    end.text);
    }
    raw_peer_close(&peer);
    print_message("%zu bad requests\n", bad_request_count);
    assert_int_equal(failures, 0);
    assert_true(processes_is_running(serve_pid));
    processes_read_file(log_path, result.err, sizeof result.err);
    assert_null(strstr(result.err, "level=error"));
}

/* ---- life ---------------------------------------------------------------------------------- */

static int take_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    snprintf(port, sizeof port, "%u", ntohs(address.sin_port));
    return fd;
}

static int taken_fd;

static int set_up(void **state) {
    (void)state;
    processes_make_dir(dir);
    processes_make_dir(run_dir);
    snprintf(log_path, sizeof log_path, "%s.log", run_dir);
    taken_fd = take_port();
    for (int i = 0; i < LONG_PROMPT_WORDS; i++)
        memcpy(long_prompt + i * 6, "apple ", 6);
    const char *serve[] = {"serve", "--run-dir", run_dir, "--context-length", "64", NULL};
    serve_pid = processes_start(log_path, "espalier", serve);
    processes_wait_for(log_path, "espalier: ready");
    return 0;
}

static int end(void **state) {
    (void)state;
    kill(serve_pid, SIGTERM);
    assert_int_equal(processes_wait(serve_pid), 0);
    assert_int_equal(processes_count(run_dir), 0);
    assert_int_equal(processes_dir_entries(run_dir), 0);
    processes_remove_dir(run_dir);
    processes_remove_dir(dir);
    remove(log_path);
    close(taken_fd);
    return 0;
}

/* One line a row: what is wrong, and how it ends. */
static int list(void) {
    for (size_t i = 0; i < bad_checkpoint_count; i++)
        printf("checkpoint: %s: exit code %d\n", bad_checkpoints[i].label,
               bad_checkpoints[i].exit_code);
    for (size_t i = 0; i < bad_line_count; i++) {
        printf("line: %s", bad_lines[i].program);
        for (int a = 0; a < BAD_INPUT_ARGUMENTS && bad_lines[i].arguments[a]; a++)
            printf(" '%s'", bad_lines[i].arguments[a]);
        printf(": exit code %d\n", bad_lines[i].exit_code);
    }
    for (size_t i = 0; i < bad_request_count; i++)
        printf("request: %s: status %u\n", bad_requests[i].label, bad_requests[i].status);
    printf("%zu checkpoints, %zu command lines, %zu requests\n", bad_checkpoint_count,
           bad_line_count, bad_request_count);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--list") == 0) return list();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sound_checkpoints_load),
        cmocka_unit_test(checkpoints),
        cmocka_unit_test(command_lines),
        cmocka_unit_test(requests),
    };
    int failed = cmocka_run_group_tests(tests, set_up, end);
    processes_kill_all();
    return failed;
}
