/* Peers that keep no rule reach both sockets; whoever keeps them notices nothing. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "processes.h"
#include "raw_peer.h"

static struct processes_result result;
static char dir[64], log_path[96];
static pid_t serve_pid, coordinator_pid;

static struct raw_message header_of(int kind, uint64_t call_id, const char *method) {
    struct raw_message header = {.bytes = 0};
    raw_varint(&header, 1, 1);
    raw_varint(&header, 2, (uint64_t)kind);
    if (call_id) raw_varint(&header, 3, call_id);
    if (method) raw_text(&header, 4, method);
    return header;
}

/* A request for `tokens` tokens. */
static struct raw_message request_of(uint64_t tokens) {
    static const uint8_t sampling[] = {0x15, 0, 0, 0x80, 0x3f}; /* top_p 1 */
    struct raw_message body = {.bytes = 0};
    raw_varint(&body, 1, 1);
    raw_text(&body, 2, "Once");
    raw_varint(&body, 4, tokens);
    raw_bytes(&body, 5, sampling, sizeof sampling);
    raw_varint(&body, 9, 1);
    return body;
}

static struct raw_message hello_of(uint64_t version, uint64_t rank, uint64_t tp, uint64_t pid) {
    struct raw_message hello = {.bytes = 0}, message = {.bytes = 0};
    raw_varint(&hello, 1, version);
    raw_varint(&hello, 2, rank);
    raw_varint(&hello, 3, tp);
    raw_varint(&hello, 4, pid);
    raw_bytes(&message, 1, hello.data, hello.bytes);
    return message;
}

/* The same processes as before serve a client as before. */
static void expect_unharmed(void) {
    const char *arguments[] = {
        "generate", "--run-dir",      dir,        "--tokens",
        "4",        "--print-tokens", "--prompt", "The sqlite3_open() function",
        NULL};
    long begin_ms = processes_now_ms();
    do { /* who has just gone may still have its calls in the queue, for as long as it may be silent
          */
        processes_run(&result, NULL, "espalier", arguments);
    } while (strstr(result.err, "the queue is full") &&
             processes_now_ms() - begin_ms < PROCESSES_PATIENCE_MS);
    if (result.exit_code != 0) fail_msg("generate: %s", result.err);
    assert_int_equal(strncmp(result.out, "290 468 291 845", 15), 0);
    assert_int_equal((pid_t)processes_ready_pid(dir, "coordinator"), coordinator_pid);
    assert_true(processes_is_running(serve_pid));
}

static void noise(void **state) {
    (void)state;
    static const char *const sockets[] = {"client.sock", "worker.sock"};
    for (int s = 0; s < 2; s++) {
        struct raw_peer peer;
        raw_peer_open(&peer, dir, sockets[s]);
        for (uint32_t i = 0; i < 300; i++)
            raw_peer_send_noise(&peer, 1 + i % 5, i % 7 == 0 ? 20000 : 40);
        const struct raw_message header = header_of(RAW_NOTE, 0, NULL);
        for (uint32_t i = 0; i < 300; i++) { /* a true header, and a body of one wrong field */
            struct raw_message body = {.bytes = 0};
            raw_text(&body, 1 + raw_peer_draw(&peer, 12), "\x0a\x0a\x0a\x0a\xff\xff\xff\xff\x7f");
            raw_peer_send(&peer, &header, &body);
        }
        raw_peer_send_noise(&peer, 2000, 10);
        expect_unharmed();
        raw_peer_close(&peer);
    }
    expect_unharmed();
}

static uint32_t count_lines(const char *words) {
    static char log[PROCESSES_OUTPUT_MAX];
    uint32_t count = 0;
    processes_read_file(log_path, log, sizeof log);
    for (const char *at = log; (at = strstr(at, words)) != NULL; at++)
        count++;
    return count;
}

/* What it logs of them does not grow with what they send: twenty lines of a kind in ten seconds. */
static void floods_do_not_fill_the_log(void **state) {
    (void)state;
    struct raw_peer peer;
    raw_peer_open(&peer, dir, "worker.sock");
    long begin_ms = processes_now_ms();
    const struct raw_message header = header_of(RAW_NOTE, 0, NULL);
    for (uint32_t i = 0; i < 2000; i++) {
        struct raw_message body = {.bytes = 0};
        raw_text(&body, 1 + i % 12, "\x0a\x0a\x0a\x0a\xff");
        raw_peer_send(&peer, &header, &body);
        struct raw_message hello = hello_of(1, 1, 8, 1 + i);
        raw_peer_send(&peer, &header, &hello);
        if (i % 100 == 99) processes_sleep_ms(2); /* what finds a full queue is lost */
    }
    expect_unharmed();
    raw_peer_close(&peer);
    processes_wait_for(log_path, "event=worker_frame_refused");
    processes_wait_for(log_path, "event=worker_refused");
    uint32_t windows = 2 + (uint32_t)(processes_now_ms() - begin_ms) / 10000;
    assert_in_range(count_lines("event=worker_frame_refused"), 1, 20 * (windows + 4));
    assert_in_range(count_lines("event=worker_refused"), 1, 20 * (windows + 4));
    assert_true(count_lines("boot=") < 1000);
}

/* What the worker itself says where the coordinator is of another version. */
static void a_coordinator_of_another_version(void **state) {
    (void)state;
    char old_dir[64], old_log[96];
    processes_make_dir(old_dir);
    snprintf(old_log, sizeof old_log, "%s.log", old_dir);
    struct raw_peer coordinator;
    raw_peer_serve(&coordinator, old_dir, "worker.sock");
    const char *arguments[] = {"--model-path", ESPALIER_SOURCE_DIR "/deploy/model", "--run-dir",
                               old_dir, NULL};
    pid_t worker = processes_start(old_log, "espalier-worker", arguments);
    raw_peer_expect(&coordinator, "cpu threads="); /* its HELLO */
    struct raw_message header = {.bytes = 0}, body = {.bytes = 0};
    raw_varint(&header, 1, 99);
    raw_varint(&header, 2, RAW_NOTE);
    raw_text(&body, 15, "words of another age");
    raw_peer_send(&coordinator, &header, &body);
    assert_int_equal(processes_wait(worker), 78);
    static char said[4096];
    processes_read_file(old_log, said, sizeof said);
    assert_string_equal(said, "espalier-worker: the coordinator is of another version: "
                              "header.version: 99, accepted 1\n");
    raw_peer_close(&coordinator);
    processes_remove_dir(old_dir);
    remove(old_log);
}

static void wrong_headers(void **state) {
    (void)state;
    struct raw_peer peer;
    raw_peer_open(&peer, dir, "client.sock");
    struct raw_message version = {.bytes = 0}, body = request_of(1);
    raw_varint(&version, 1, 99);
    raw_varint(&version, 2, RAW_CALL);
    raw_varint(&version, 3, 1);
    raw_text(&version, 4, "Generate");
    raw_peer_send(&peer, &version, &body);
    raw_peer_expect(&peer, "version");
    const struct raw_message unknown = header_of(RAW_CALL, 2, "Destroy");
    raw_peer_send(&peer, &unknown, &body);
    raw_peer_expect(&peer, "unknown \"Destroy\"");
    const struct raw_message call = header_of(RAW_CALL, 3, "Generate");
    const struct raw_message nothing = {.bytes = 0};
    raw_peer_send(&peer, &call, &nothing);
    raw_peer_expect(&peer, "prompt_kind");
    raw_peer_close(&peer);
    expect_unharmed();
}

static void a_worker_of_another_version(void **state) {
    (void)state;
    struct raw_peer peer;
    raw_peer_open(&peer, dir, "worker.sock");
    struct raw_message note = {.bytes = 0}, hello = hello_of(99, 0, 2, 1);
    raw_varint(&note, 1, 99);
    raw_varint(&note, 2, RAW_NOTE);
    raw_peer_send(&peer, &note, &hello);
    raw_peer_expect(&peer, "header.version: 99, accepted 1");
    raw_peer_close(&peer);
    expect_unharmed();
}

static void a_flood_of_hellos(void **state) {
    (void)state;
    const struct raw_message note = header_of(RAW_NOTE, 0, NULL);
    struct raw_peer peer[20];
    for (uint32_t i = 0; i < 20; i++) {
        raw_peer_open(&peer[i], dir, "worker.sock");
        for (uint32_t n = 0; n < 100; n++) {
            /* Wrong versions, wrong widths, ranks that are taken; pids of nobody, and of init. */
            struct raw_message hello = hello_of(n % 3, n % 2, n % 5 ? 2 : 8, 1 + n % 40);
            raw_peer_send(&peer[i], &note, &hello);
        }
    }
    expect_unharmed();
    for (uint32_t i = 0; i < 20; i++)
        raw_peer_close(&peer[i]);
    expect_unharmed();
}

/* More calls than a client may have, none of which it reads, and then it is gone. */
static void a_client_that_opens_ten_thousand_calls(void **state) {
    (void)state;
    struct raw_peer peer;
    raw_peer_open(&peer, dir, "client.sock");
    const struct raw_message body = request_of(3000), watch = {.bytes = 0};
    for (uint64_t id = 1; id <= 10000; id++) {
        const struct raw_message header = header_of(RAW_CALL, id, id % 2 ? "Generate" : "Watch");
        raw_peer_send(&peer, &header, id % 2 ? &body : &watch);
    }
    expect_unharmed();
    raw_peer_close(&peer);
    expect_unharmed();
}

static void a_client_that_never_reads(void **state) {
    (void)state;
    struct raw_peer peer;
    raw_peer_open(&peer, dir, "client.sock");
    const struct raw_message call = header_of(RAW_CALL, 1, "Generate"), body = request_of(4000);
    raw_peer_send(&peer, &call, &body);
    expect_unharmed();
    raw_peer_close(&peer);
    expect_unharmed();
}

static int set_up(void **state) {
    (void)state;
    processes_make_dir(dir);
    snprintf(log_path, sizeof log_path, "%s.log", dir);
    const char *serve[] = {"serve", "--run-dir", dir, "--tp", "2", NULL};
    serve_pid = processes_start(log_path, "espalier", serve);
    processes_wait_for(log_path, "espalier: ready");
    coordinator_pid = (pid_t)processes_ready_pid(dir, "coordinator");
    return 0;
}

static int end(void **state) {
    (void)state;
    kill(serve_pid, SIGTERM);
    assert_int_equal(processes_wait(serve_pid), 0);
    assert_int_equal(processes_count(dir), 0);
    assert_int_equal(processes_dir_entries(dir), 0);
    processes_remove_dir(dir);
    remove(log_path);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(noise),
        cmocka_unit_test(wrong_headers),
        cmocka_unit_test(floods_do_not_fill_the_log),
        cmocka_unit_test(a_coordinator_of_another_version),
        cmocka_unit_test(a_worker_of_another_version),
        cmocka_unit_test(a_flood_of_hellos),
        cmocka_unit_test(a_client_that_opens_ten_thousand_calls),
        cmocka_unit_test(a_client_that_never_reads),
    };
    int failed = cmocka_run_group_tests(tests, set_up, end);
    processes_kill_all();
    return failed;
}
