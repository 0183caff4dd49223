/* A group that is reached over TCP: who is let in, who is not and what he is told, keys that come
 * and go while it serves. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "processes.h"

#define PROMPT        "The sqlite3_open() function"
#define PROMPT_TOKENS "290 468 291 845"
#define MODEL         ESPALIER_SOURCE_DIR "/deploy/model"
#define PATH_BYTES    160
#define TEXT_BYTES    8192

static struct processes_result result;
static char scratch[64]; /* keys and logs of a test */

static int set_up(void **state) {
    (void)state;
    processes_make_dir(scratch);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    processes_kill_all();
    processes_remove_dir(scratch);
    return 0;
}

/* ---- files of a test ----------------------------------------------------------------------- */

/* In one of eight places in turn. */
static const char *in_scratch(const char *name) {
    static char path[8][PATH_BYTES];
    static unsigned turn;
    char *out = path[turn++ % 8];
    snprintf(out, PATH_BYTES, "%s/%s", scratch, name);
    return out;
}

static void keygen(const char *name, const char *client) {
    const char *arguments[] = {"keygen", in_scratch(name), client ? "--client" : NULL, client,
                               NULL};
    processes_run(&result, NULL, "espalier", arguments);
    if (result.exit_code != 0) fail_msg("keygen: %d, %s", result.exit_code, result.err);
}

static void copy(const char *from, const char *to) {
    static char text[TEXT_BYTES];
    processes_read_file(in_scratch(from), text, sizeof text);
    FILE *out = fopen(in_scratch(to), "w");
    assert_non_null(out);
    assert_true(fputs(text, out) >= 0);
    assert_int_equal(fclose(out), 0);
}

static unsigned mode_of(const char *name) {
    struct stat info;
    if (stat(in_scratch(name), &info) != 0) fail_msg("no %s", name);
    return info.st_mode & 07777;
}

/* ---- a group ------------------------------------------------------------------------------- */

static struct {
    pid_t pid; /* of `espalier serve` */
    char run_dir[PATH_BYTES], log[PATH_BYTES], clients[PATH_BYTES], workers[PATH_BYTES];
    char log_text[1u << 20];
} group;

/* Any free port at both doors, on every interface. */
static void start_group(void) {
    snprintf(group.run_dir, sizeof group.run_dir, "%s", in_scratch("run"));
    snprintf(group.log, sizeof group.log, "%s", in_scratch("log"));
    const char *serve[] = {
        "serve",     "--run-dir",         group.run_dir,      "--tp",
        "2",         "--curve-keys",      in_scratch("keys"), "--client-endpoint",
        "tcp://*:0", "--worker-endpoint", "tcp://*:0",        NULL};
    group.pid = processes_start(group.log, "espalier", serve);
    processes_wait_for(group.log, "espalier: ready");
    processes_ready_value(group.run_dir, "coordinator", "endpoint", group.clients, PATH_BYTES);
    processes_ready_value(group.run_dir, "coordinator", "workers", group.workers, PATH_BYTES);
    assert_true(group.clients[0] && group.workers[0]);
}

static void end_group(void) {
    kill(group.pid, SIGTERM);
    assert_int_equal(processes_wait(group.pid), 0);
    assert_true(processes_wait_gone(group.run_dir) >= 0);
    assert_int_equal(processes_dir_entries(group.run_dir), 0);
}

static int generate(const char *keys) {
    const char *arguments[] = {"generate",
                               "--endpoint",
                               group.clients,
                               keys ? "--curve-keys" : "--tokens",
                               keys ? in_scratch(keys) : "4",
                               "--tokens",
                               "4",
                               "--print-tokens",
                               PROMPT,
                               NULL};
    processes_run(&result, NULL, "espalier", arguments);
    return result.exit_code;
}

static void expect(int line, const char *who, int exit_code, const char *word) {
    if (result.exit_code != exit_code || !strstr(result.err, word))
        fail_msg("line %d, %s: %d, \"%s\"", line, who, result.exit_code, result.err);
}

/* ---- what is shown ------------------------------------------------------------------------- */

static void keys_are_made_once_and_closed(void **state) {
    (void)state;
    static char first[TEXT_BYTES], again[TEXT_BYTES];
    keygen("keys", NULL);
    static const char *const secrets[] = {"keys/coordinator.secret", "keys/worker.secret",
                                          "keys/client.secret"};
    for (size_t i = 0; i < sizeof secrets / sizeof *secrets; i++)
        assert_int_equal(mode_of(secrets[i]), 0600);
    assert_int_equal(mode_of("keys"), 0700);
    processes_read_file(in_scratch("keys/coordinator.secret"), first, sizeof first);

    const char *repeated[] = {"keygen", in_scratch("keys"), NULL};
    processes_run(&result, NULL, "espalier", repeated);
    expect(__LINE__, "keygen again", 1, "keys/coordinator.secret, accepted: a folder without keys");
    processes_read_file(in_scratch("keys/coordinator.secret"), again, sizeof again);
    assert_string_equal(first, again);

    keygen("keys", "alice");
    assert_int_equal(mode_of("keys/alice/client.secret"), 0600);
    const char *twice[] = {"keygen", in_scratch("keys"), "--client", "alice", NULL};
    processes_run(&result, NULL, "espalier", twice);
    expect(__LINE__, "alice again", 1, "keys/alice/client.secret");
    processes_read_file(in_scratch("keys/clients.allowed"), first, sizeof first);
    const char *line = strstr(first, " alice\n");
    assert_true(line && !strstr(line + 1, " alice\n"));
}

static void a_coordinator_refuses_keys_that_others_can_read(void **state) {
    (void)state;
    keygen("keys", NULL);
    const struct {
        const char *file;
        mode_t mode;
        int exit_code;
        const char *word;
    } rows[] = {
        {"keys/coordinator.secret", 0640, 77, "coordinator.secret: found mode 0640"},
        {"keys/clients.allowed", 0666, 77, "clients.allowed: found mode 0666"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mode_t before = mode_of(rows[i].file);
        assert_int_equal(chmod(in_scratch(rows[i].file), rows[i].mode), 0);
        const char *arguments[] = {
            "--model-path",     MODEL, "--run-dir", in_scratch("run"), "--curve-keys",
            in_scratch("keys"), NULL};
        processes_run(&result, NULL, "espalier-coordinator", arguments);
        expect(__LINE__, rows[i].file, rows[i].exit_code, rows[i].word);
        assert_int_equal(chmod(in_scratch(rows[i].file), before), 0);
    }
}

/* Where no keys are needed, a folder that is not there is a mistake all the same. */
static void a_folder_that_is_not_there_is_refused(void **state) {
    (void)state;
    const char *arguments[] = {"status",       "--endpoint",          "ipc:///nowhere",
                               "--curve-keys", in_scratch("nowhere"), NULL};
    processes_run(&result, NULL, "espalier", arguments);
    expect(__LINE__, "a folder that is not there", 1, "found no folder");
}

/* A worker of another folder's keys, at the door of workers. */
static void knock_as_worker(const char *keys) {
    const char *arguments[] = {"--model-path",
                               MODEL,
                               "--run-dir",
                               in_scratch("other"),
                               "--rank",
                               "0",
                               "--tp",
                               "2",
                               "--connect-timeout",
                               "1",
                               "--worker-endpoint",
                               group.workers,
                               keys ? "--curve-keys" : NULL,
                               keys ? in_scratch(keys) : NULL,
                               NULL};
    processes_run(&result, NULL, "espalier-worker", arguments);
}

static void every_command_has_keys(void) {
    static const char *const commands[][6] = {
        {"status"},
        {"flush"},
        {"resize", "--tokens", "8192"},
        {"bench", "--requests=2", "--concurrency=2", "--tokens=2", "--prompt-tokens=4"},
        {"chat", "--tokens=2"},
    };
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        const char *arguments[12] = {commands[i][0], "--endpoint", group.clients, "--curve-keys",
                                     in_scratch("keys")};
        for (int a = 1; a < 6 && commands[i][a]; a++)
            arguments[4 + a] = commands[i][a];
        processes_run(&result, "Hello\n", "espalier", arguments);
        if (result.exit_code != 0)
            fail_msg("%s: %d, \"%s\"", commands[i][0], result.exit_code, result.err);
    }
}

static void strangers_are_told_why(void **state) {
    (void)state;
    keygen("keys", NULL);
    keygen("keys", "alice");
    keygen("stranger", NULL);
    copy("keys/coordinator.public", "stranger/coordinator.public");
    keygen("elsewhere", NULL);
    start_group();

    assert_int_equal(generate("keys"), 0);
    assert_non_null(strstr(result.out, PROMPT_TOKENS));
    assert_int_equal(generate("keys/alice"), 0);
    every_command_has_keys();
    generate("stranger");
    expect(__LINE__, "a stranger", 1, "UNAUTHENTICATED: ");
    expect(__LINE__, "a stranger", 1, "the server does not allow our key");
    generate("elsewhere");
    expect(__LINE__, "who expects another server", 1, "that has the key we expect");
    generate(NULL);
    expect(__LINE__, "who has no keys", 1, "--curve-keys");

    /* The same port, as a local address: clear text would be allowed, and is not understood. */
    char port[16];
    snprintf(port, sizeof port, "%s", strrchr(group.clients, ':'));
    snprintf(group.clients, sizeof group.clients, "tcp://127.0.0.1%s", port);
    generate(NULL);
    expect(__LINE__, "who speaks clear text", 1, "speaks CURVE, and we have no keys");

    /* A client's key opens no place among the workers. */
    copy("keys/client.secret", "stranger/worker.secret");
    assert_int_equal(chmod(in_scratch("stranger/worker.secret"), 0600), 0);
    knock_as_worker("stranger");
    expect(__LINE__, "a client among the workers", 77, "accepted at tcp://");
    knock_as_worker("elsewhere");
    expect(__LINE__, "a worker of another group", 75, "handshakes are ended there");
    knock_as_worker(NULL);
    expect(__LINE__, "a worker without keys", 77, "--curve-keys");

    processes_read_file(group.log, group.log_text, sizeof group.log_text);
    assert_non_null(strstr(group.log_text, "event=key_refused of=clients address=127.0.0.1 key="));
    assert_non_null(strstr(group.log_text, "event=key_refused of=workers address=127.0.0.1 key="));
    static char secret[TEXT_BYTES];
    processes_read_file(in_scratch("keys/coordinator.secret"), secret, sizeof secret);
    secret[strcspn(secret, "\n")] = '\0';
    assert_null(strstr(group.log_text, secret));
    assert_int_equal(processes_count(secret), 0);
    end_group();
}

static void keys_come_and_go_while_it_serves(void **state) {
    (void)state;
    keygen("keys", NULL);
    start_group();
    processes_read_file(group.log, group.log_text, sizeof group.log_text);
    assert_null(strstr(group.log_text, "key_refused")); /* its own knocking is no news */
    copy("keys/clients.allowed", "before");
    keygen("keys", "alice");
    assert_int_equal(generate("keys/alice"), 0);

    copy("before", "keys/clients.allowed");
    generate("keys/alice");
    expect(__LINE__, "who was taken off the list", 1, "the server does not allow our key");
    assert_int_equal(generate("keys"), 0);

    /* A list that makes no sense changes nothing, and SIGHUP says so. */
    FILE *out = fopen(in_scratch("keys/clients.allowed"), "w");
    assert_non_null(out);
    assert_true(fputs("half a key", out) >= 0);
    assert_int_equal(fclose(out), 0);
    kill((pid_t)processes_ready_pid(group.run_dir, "coordinator"), SIGHUP);
    processes_wait_for(group.log, "event=allow_list_not_read keys_kept=1");
    processes_wait_for(group.log, "workers.allowed\" keys=1");
    assert_int_equal(generate("keys"), 0);
    end_group();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(keys_are_made_once_and_closed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_coordinator_refuses_keys_that_others_can_read, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_folder_that_is_not_there_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(strangers_are_told_why, set_up, tear_down),
        cmocka_unit_test_setup_teardown(keys_come_and_go_while_it_serves, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
