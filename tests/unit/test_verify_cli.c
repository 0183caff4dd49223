/* What `espalier verify` makes of what it is told: which rank holds other bytes, which limits hold,
 * which tokens were recorded. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "verify_limits.h"
#include "verify_replicas.h"
#include "verify_tokens.h"

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])
#define HASHES          3u

/* ---- replicas ------------------------------------------------------------------------------ */

/* Ranks that report hashes of one digit each: "112 112 912". */
static void report(struct verify_replicas *replicas, const char *digits) {
    verify_replicas_init(replicas);
    for (uint32_t rank = 0; *digits; rank++) {
        uint64_t hash[HASHES];
        struct examine_report one = {
            .rank = rank, .device = "cpu", .pages_per_hash = 1, .hash = hash};
        while (*digits && *digits != ' ')
            hash[one.hash_count++] = (uint64_t)*digits++;
        one.page_count = one.hash_count;
        verify_replicas_take(replicas, &one);
        if (*digits) digits++;
    }
}

static void the_odd_rank_is_found(void **state) {
    (void)state;
    static const struct {
        const char *digits;
        bool differ;
        uint32_t hash_idx, hash_count, rank, other;
    } rows[] = {
        {"112", false, 0, 0, VERIFY_NO_RANK, 0},
        {"112 112", false, 0, 0, VERIFY_NO_RANK, 0},
        {"112 112 112 112", false, 0, 0, VERIFY_NO_RANK, 0},
        {"112 192", true, 1, 1, VERIFY_NO_RANK, 1}, /* one against one */
        {"112 112 912", true, 0, 1, 2, 2},
        {"912 112 112", true, 0, 1, 0,
         1}, /* the first is compared with, and may be the wrong one */
        {"112 119 112 112", true, 2, 1, 1, 1},
        {"112 799 112 112", true, 0, 3, 1, 1},
        {"112 112 192 192", true, 1, 1, VERIFY_NO_RANK, 2}, /* two against two */
        {"112 132 142 152", true, 1, 1, VERIFY_NO_RANK, 1}, /* all against all */
        {"112 112 11", true, 2, 1, 2, 2},                   /* a page is missing */
        {"", false, 0, 0, VERIFY_NO_RANK, 0},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct verify_replicas replicas;
        struct verify_difference difference;
        report(&replicas, rows[i].digits);
        bool differ = verify_replicas_differ(&replicas, &difference);
        if (differ != rows[i].differ || difference.hash_idx != rows[i].hash_idx ||
            difference.hash_count != rows[i].hash_count || difference.rank != rows[i].rank ||
            difference.other != rows[i].other)
            fail_msg("%s: hash %u, %u of them, rank %u, ranks 0 and %u", rows[i].digits,
                     difference.hash_idx, difference.hash_count, difference.rank, difference.other);
        verify_replicas_deinit(&replicas);
    }
}

static void computing_again_tells_who_was_right(void **state) {
    (void)state;
    static const struct {
        const char *before, *again;
        uint32_t hash_idx, wrong;
    } rows[] = {
        {"112 192", "112 112", 1, 1},
        {"192 112", "112 112", 1, 0},
        {"112 192", "132 132", 1, VERIFY_NO_RANK}, /* neither */
        {"112 192", "112 192", 1, VERIFY_NO_RANK}, /* no better than before */
        {"112 192", "1 1", 1, VERIFY_NO_RANK},     /* that page was not computed again */
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct verify_replicas before, again;
        report(&before, rows[i].before);
        report(&again, rows[i].again);
        uint32_t wrong = verify_replicas_judge(&before, &again, rows[i].hash_idx);
        if (wrong != rows[i].wrong) fail_msg("%s, %s: %u", rows[i].before, rows[i].again, wrong);
        verify_replicas_deinit(&before);
        verify_replicas_deinit(&again);
    }
}

/* ---- limits -------------------------------------------------------------------------------- */

#define ALL_BUT_LAST                                                                               \
    "answer_seconds_max 5\nattention_percent_min 0.5 # of the roof\n\n  sum_ms_max\t50\n"          \
    "first_token_seconds_max 120\ntoken_ms_max 1000\n"

static void limits_are_all_there_and_no_others(void **state) {
    (void)state;
    static const struct {
        const char *text, *complaint;
    } rows[] = {
        {"# all of them\n" ALL_BUT_LAST "token_growth_max 10", NULL},
        {ALL_BUT_LAST, "f: found no token_growth_max, accepted: a line"},
        {ALL_BUT_LAST "token_growth_max\n", "f, line 7: found \"\" for token_growth_max"},
        {ALL_BUT_LAST "token_growth_max x\n", "f, line 7: found \"x\" for token_growth_max"},
        {ALL_BUT_LAST "token_growth_max 1 2\n", "f, line 7: found \"2\" for token_growth_max"},
        {ALL_BUT_LAST "token_growth_max -1\n", "accepted: one number of 0 or more"},
        {ALL_BUT_LAST "token_growth_max nan\n", "accepted: one number of 0 or more"},
        {ALL_BUT_LAST "token_growth 1\n", "f, line 7: found \"token_growth\", accepted:"},
        {ALL_BUT_LAST "sum_ms_max 1\n", "f, line 7: found \"sum_ms_max\" again, accepted:"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char text[1024];
        struct verify_limits limits;
        struct error err = {.text = ""};
        snprintf(text, sizeof text, "%s", rows[i].text);
        enum status status = verify_limits_parse("f", text, &limits, &err);
        if ((status == STATUS_OK) != (rows[i].complaint == NULL) ||
            (rows[i].complaint && !strstr(err.text, rows[i].complaint)))
            fail_msg("row %zu: %s", i, err.text);
        if (status != STATUS_OK) continue;
        assert_true(limits.attention_percent == 0.5 && limits.sum_ms == 50 &&
                    limits.token_growth == 10);
    }
}

static void the_shipped_limits_are_read(void **state) {
    (void)state;
    struct verify_limits limits;
    struct error err = {.text = ""};
    if (verify_limits_read(ESPALIER_SOURCE_DIR "/deploy/verify.thresholds", &limits, &err) !=
        STATUS_OK)
        fail_msg("%s", err.text);
    assert_true(limits.answer_seconds > 0 && limits.attention_percent > 0);
}

/* ---- tokens -------------------------------------------------------------------------------- */

static void tokens_are_found_as_recorded(void **state) {
    (void)state;
    char path[] = "/tmp/espalier-verify-XXXXXX";
    struct error err = {.text = ""};
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "# a comment\n", 12), 12);
    close(fd);
    const struct verify_tokens_of one = {.fingerprint = 0xabc};
    const struct verify_tokens_of other = {.fingerprint = 0xabc, .activation = ACTIVATION_BF16};
    const struct verify_tokens_of third = {.fingerprint = 0xabc, .kv = KV_F32};
    const struct verify_tokens_of int8 = {.fingerprint = 0xabc, .activation = ACTIVATION_INT8};
    const struct verify_tokens first = {.token = {7, 8, 9}, .count = 3};
    const struct verify_tokens second = {.token = {5}, .count = 1};
    struct verify_tokens found;
    assert_int_equal(verify_tokens_record(path, &one, &first, &err), STATUS_OK);
    assert_int_equal(verify_tokens_record(path, &other, &second, &err), STATUS_OK);
    assert_int_equal(verify_tokens_find(path, &one, &found, &err), STATUS_OK);
    assert_int_equal(found.count, 3);
    assert_memory_equal(found.token, first.token, 3 * sizeof *found.token);
    assert_int_equal(verify_tokens_record(path, &one, &second, &err), STATUS_OK); /* in its place */
    assert_int_equal(verify_tokens_find(path, &one, &found, &err), STATUS_OK);
    assert_int_equal(found.count, 1);
    assert_int_equal(verify_tokens_find(path, &other, &found, &err), STATUS_OK);
    assert_int_equal(found.token[0], 5);
    assert_int_equal(verify_tokens_find(path, &third, &found, &err), STATUS_OK);
    assert_int_equal(found.count, 0);
    assert_int_equal(verify_tokens_find(path, &int8, &found, &err), STATUS_OK);
    assert_int_equal(found.count, 0);
    FILE *file = fopen(path, "a");
    fputs("0000000000000abc f32 f32 1 x 3\n", file);
    fclose(file);
    assert_int_equal(verify_tokens_find(path, &third, &found, &err), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.text, "found \"x\" after 1 tokens, accepted: up to 64 token ids"));
    unlink(path);
    assert_int_equal(verify_tokens_find(path, &one, &found, &err), STATUS_OK); /* no file */
    assert_int_equal(found.count, 0);
}

/* A disk that is full costs nothing that was recorded before. */
static void recording_replaces_all_or_nothing(void **state) {
    (void)state;
    char path[] = "/tmp/espalier-verify-XXXXXX", fresh[64];
    struct error err = {.text = ""};
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    const struct verify_tokens_of one = {.fingerprint = 1}, other = {.fingerprint = 2};
    const struct verify_tokens tokens = {.token = {7, 8, 9}, .count = 3};
    struct verify_tokens found;
    assert_int_equal(verify_tokens_record(path, &one, &tokens, &err), STATUS_OK);
    struct rlimit room, before;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    room = before;
    room.rlim_cur = 20; /* bytes: less than a line */
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &room), 0);
    enum status status = verify_tokens_record(path, &other, &tokens, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.text, "File too large"));
    assert_int_equal(verify_tokens_find(path, &one, &found, &err), STATUS_OK);
    assert_int_equal(found.count, 3);
    snprintf(fresh, sizeof fresh, "%s.new", path);
    assert_int_equal(access(fresh, F_OK), -1);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_odd_rank_is_found),
        cmocka_unit_test(computing_again_tells_who_was_right),
        cmocka_unit_test(limits_are_all_there_and_no_others),
        cmocka_unit_test(the_shipped_limits_are_read),
        cmocka_unit_test(tokens_are_found_as_recorded),
        cmocka_unit_test(recording_replaces_all_or_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
