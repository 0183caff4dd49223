/* Keys in files: which are read, which are refused and with what words, and lists that change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>
#include <zmq.h>

#include <cmocka.h>

#include "allow_list.h"
#include "curve_keys.h"
#include "net_support.h"

/* The pair of RFC 32's examples, and a public key with what may begin a comment. */
#define SECRET "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"
#define PUBLIC "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
#define HASHED "Y#e@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"

static struct net_dir dir;

static const char *file(const char *name, const char *text, mode_t mode) {
    static char path[NET_PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s", dir.path, name);
    remove(path);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    assert_true(fputs(text, out) >= 0);
    assert_int_equal(fclose(out), 0);
    assert_int_equal(chmod(path, mode), 0);
    return path;
}

static int set_up(void **state) {
    (void)state;
    net_dir_init(&dir);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    net_dir_deinit(&dir);
    return 0;
}

static void secret_keys_are_closed_to_others(void **state) {
    (void)state;
    const struct {
        const char *text;
        mode_t mode;
        enum status expected;
        const char *words[3];
    } rows[] = {
        {SECRET "\n", 0600, STATUS_OK, {NULL}},
        {SECRET, 0400, STATUS_OK, {NULL}},
        {SECRET "\r\n", 0600, STATUS_OK, {NULL}},
        {SECRET "\n", 0640, STATUS_PERMISSION_DENIED, {"worker.secret", "0640", "0600"}},
        {SECRET "\n", 0604, STATUS_PERMISSION_DENIED, {"worker.secret", "0604", "0600"}},
        {SECRET "\n", 0610, STATUS_PERMISSION_DENIED, {"worker.secret", "0610", "0600"}},
        {"", 0600, STATUS_INVALID_ARGUMENT, {"worker.secret", "0 bytes", "40 characters"}},
        {"short\n", 0600, STATUS_INVALID_ARGUMENT, {"worker.secret", "6 bytes", "Z85"}},
        {SECRET "x\n", 0600, STATUS_INVALID_ARGUMENT, {"42 bytes"}},
        {SECRET SECRET "\n", 0600, STATUS_INVALID_ARGUMENT, {"81 bytes"}},
        {"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"",
         0600,
         STATUS_INVALID_ARGUMENT,
         {"40 bytes", "Z85"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct curve_pair pair;
        struct error err = {.text = ""};
        file(CURVE_WORKER_SECRET, rows[i].text, rows[i].mode);
        enum status status = curve_keys_read_pair(dir.path, CURVE_WORKER_SECRET, &pair, &err);
        bool right = status == rows[i].expected && !strstr(err.text, "D:)Q");
        if (status == STATUS_OK)
            right = right && strcmp(pair.public_key, PUBLIC) == 0 &&
                    strcmp(pair.secret_key, SECRET) == 0;
        for (int w = 0; w < 3 && rows[i].words[w]; w++)
            right = right && strstr(err.text, rows[i].words[w]);
        if (!right) fail_msg("row %zu: %s, \"%s\"", i, status_name(status), err.text);
    }
}

static void a_file_is_ours_or_roots(void **state) {
    (void)state;
    if (geteuid() != 0) skip(); /* who is not root cannot give files away */
    struct curve_pair pair;
    struct allow_list *list;
    struct error err;
    assert_int_equal(chown(file(CURVE_WORKER_SECRET, SECRET, 0600), 4242, 4242), 0);
    assert_int_equal(curve_keys_read_pair(dir.path, CURVE_WORKER_SECRET, &pair, &err),
                     STATUS_PERMISSION_DENIED);
    assert_non_null(strstr(err.text, "uid 4242"));
    const char *path = file("allowed", PUBLIC, 0644);
    assert_int_equal(chown(path, 4242, 4242), 0);
    assert_int_equal(allow_list_open(path, &list, &err), STATUS_PERMISSION_DENIED);
}

static void a_caller_needs_both_its_files(void **state) {
    (void)state;
    struct curve_caller caller;
    struct error err;
    file(CURVE_CLIENT_SECRET, SECRET "\n", 0600);
    assert_int_equal(curve_keys_read_caller(dir.path, CURVE_CLIENT_SECRET, &caller, &err),
                     STATUS_NOT_FOUND);
    assert_non_null(strstr(err.text, "/" CURVE_COORDINATOR_PUBLIC));
    file(CURVE_COORDINATOR_PUBLIC, HASHED "\n", 0644); /* anybody may read it */
    assert_int_equal(curve_keys_read_caller(dir.path, CURVE_CLIENT_SECRET, &caller, &err),
                     STATUS_OK);
    assert_string_equal(caller.server_public_key, HASHED);
    assert_string_equal(caller.own.public_key, PUBLIC);
}

static bool holds(struct allow_list *list, const char *text) {
    uint8_t key[ALLOW_LIST_KEY_BYTES];
    assert_non_null(zmq_z85_decode(key, text));
    return allow_list_holds(list, key);
}

static void lists_are_read_line_by_line(void **state) {
    (void)state;
    const struct {
        const char *text;
        mode_t mode;
        enum status expected;
        bool has_public, has_hashed;
        const char *word;
    } rows[] = {
        {PUBLIC, 0644, STATUS_OK, true, false, ""},
        {PUBLIC " alice\n", 0600, STATUS_OK, true, false, ""},
        {"\n# a key\n \t\n  " PUBLIC "\talice of  sales \r\n", 0644, STATUS_OK, true, false, ""},
        {HASHED " one # of two\n" PUBLIC " other\n", 0644, STATUS_OK, true, true, ""},
        {"# " PUBLIC "\n" HASHED, 0644, STATUS_OK, false, true, ""},
        {"#\n" PUBLIC " #\n", 0644, STATUS_OK, true, false, ""},
        {"#comment\n" PUBLIC " " HASHED "\n", 0644, STATUS_OK, true, false, ""},
        {PUBLIC "\r\n" HASHED "\r\n", 0644, STATUS_OK, true, true, ""},
        {"", 0644, STATUS_INVALID_ARGUMENT, false, false, "at least one"},
        {"# nobody\n\n", 0644, STATUS_INVALID_ARGUMENT, false, false, "at least one"},
        {PUBLIC "\nalice\n", 0644, STATUS_INVALID_ARGUMENT, false, false,
         "line 2: found \"alice\""},
        {PUBLIC "x\n", 0644, STATUS_INVALID_ARGUMENT, false, false, "line 1"},
        {PUBLIC "#x\n", 0644, STATUS_INVALID_ARGUMENT, false, false, "line 1"},
        {PUBLIC, 0664, STATUS_PERMISSION_DENIED, false, false, "0664"},
        {PUBLIC, 0646, STATUS_PERMISSION_DENIED, false, false, "0646"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct allow_list *list;
        struct error err = {.text = ""};
        enum status status = allow_list_open(file("allowed", rows[i].text, rows[i].mode), &list,
                                             &err);
        bool right = status == rows[i].expected && strstr(err.text, rows[i].word);
        if (status == STATUS_OK) {
            right = right && holds(list, PUBLIC) == rows[i].has_public &&
                    holds(list, HASHED) == rows[i].has_hashed;
            allow_list_close(&list);
        }
        if (!right) fail_msg("row %zu: %s, \"%s\"", i, status_name(status), err.text);
    }
}

/* One of many keys, as a line; returns its end. */
static char *put_key(char *out, uint32_t number) {
    uint8_t key[ALLOW_LIST_KEY_BYTES] = {0};
    memcpy(key, &number, sizeof number);
    assert_non_null(zmq_z85_encode(out, key, sizeof key));
    memcpy(out + CURVE_KEY_TEXT_LEN, "\n", 2);
    return out + CURVE_KEY_TEXT_LEN + 1;
}

static void a_list_has_its_bound(void **state) {
    (void)state;
    char *text = malloc((ALLOW_LIST_KEYS_MAX + 1) * 41 + 1), *end = text;
    assert_non_null(text);
    for (uint32_t i = 0; i < ALLOW_LIST_KEYS_MAX; i++)
        end = put_key(end, i);
    struct allow_list *list;
    struct error err;
    assert_int_equal(allow_list_open(file("allowed", text, 0644), &list, &err), STATUS_OK);
    assert_int_equal(allow_list_count(list), ALLOW_LIST_KEYS_MAX);
    allow_list_close(&list);
    put_key(end, ALLOW_LIST_KEYS_MAX);
    assert_int_equal(allow_list_open(file("allowed", text, 0644), &list, &err),
                     STATUS_INVALID_ARGUMENT);
    free(text);
}

/* A file written twice within the grain of its time stamp, to the same length. */
static void a_change_is_seen_that_no_stamp_shows(void **state) {
    (void)state;
    struct allow_list *list;
    struct error err;
    const char *path = file("allowed", PUBLIC "\n", 0644);
    struct timeval now[2];
    gettimeofday(&now[0], NULL);
    now[1] = now[0];
    assert_int_equal(utimes(path, now), 0);
    assert_int_equal(allow_list_open(path, &list, &err), STATUS_OK);
    FILE *out = fopen(path, "r+"); /* the same inode */
    assert_non_null(out);
    assert_true(fputs(HASHED "\n", out) >= 0);
    assert_int_equal(fclose(out), 0);
    assert_int_equal(utimes(path, now), 0);
    assert_false(holds(list, PUBLIC));
    assert_true(holds(list, HASHED));
    allow_list_close(&list);
}

static void a_list_that_is_gone_stays_as_it_was(void **state) {
    (void)state;
    struct allow_list *list;
    struct error err;
    const char *path = file("allowed", PUBLIC " alice\n", 0644);
    assert_int_equal(allow_list_open(path, &list, &err), STATUS_OK);
    remove(path);
    assert_true(holds(list, PUBLIC));
    assert_int_equal(allow_list_reread(list, &err), STATUS_NOT_FOUND);
    assert_true(holds(list, PUBLIC));
    file("allowed", HASHED " bob\n", 0666); /* anybody could have written this */
    assert_false(holds(list, HASHED));
    file("allowed", HASHED " bob\n", 0644);
    assert_true(holds(list, HASHED));
    assert_false(holds(list, PUBLIC));
    allow_list_close(&list);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(secret_keys_are_closed_to_others, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_file_is_ours_or_roots, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_caller_needs_both_its_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(lists_are_read_line_by_line, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_list_has_its_bound, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_change_is_seen_that_no_stamp_shows, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_list_that_is_gone_stays_as_it_was, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
