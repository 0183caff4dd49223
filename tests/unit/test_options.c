/* Command lines against the words of options.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "options.h"

struct values {
    bool on;
    uint32_t count;
    uint64_t wide, bytes;
    double real;
    const char *text, *choice, *choice_or_count;
    struct option_list list;
};

#define ROWS_MAX 9

static void fill_rows(struct option rows[ROWS_MAX], struct values *values) {
    const struct option all[ROWS_MAX] = {
        {.name = "--switch-it", .type = OPTION_SWITCH, .value = &values->on, .scope = 1},
        {.name = "--count",
         .aliases = "--max-count -c",
         .type = OPTION_COUNT,
         .value = &values->count,
         .min = 1,
         .max = 1u << 30,
         .scope = 2},
        {.name = "--wide", .type = OPTION_WIDE, .value = &values->wide},
        {.name = "--real",
         .type = OPTION_REAL,
         .value = &values->real,
         .real_min = 0,
         .real_max = 2},
        {.name = "--text", .type = OPTION_TEXT, .value = &values->text, .scope = 3},
        {.name = "--choice",
         .type = OPTION_CHOICE,
         .value = &values->choice,
         .choices = "bf16|f32|f3"},
        {.name = "--choice-or-count",
         .type = OPTION_CHOICE_OR_COUNT,
         .value = &values->choice_or_count,
         .choices = "auto|off",
         .min = 2,
         .max = 1023},
        {.name = "--bytes", .type = OPTION_BYTES, .value = &values->bytes},
        {.name = "--list", .type = OPTION_LIST, .value = &values->list},
    };
    memcpy(rows, all, sizeof all);
}

#define ARGV_MAX 40

struct parsed {
    struct values values;
    struct option rows[ROWS_MAX];
    struct options_program program;
    struct options_result result;
    struct error err;
    enum status status;
};

/* `line` is split at spaces; "''" stands for an empty argument. copy holds the pieces. */
static void parse(struct parsed *parsed, const char *line, char *copy) {
    char *argv[ARGV_MAX] = {"program"};
    int argc = 1;
    memcpy(copy, line, strlen(line) + 1);
    char *rest = copy, *piece;
    while ((piece = strsep(&rest, " ")) != NULL) {
        assert_true(argc < ARGV_MAX);
        if (*piece) argv[argc++] = strcmp(piece, "''") == 0 ? piece + 2 : piece;
    }
    memset(parsed, 0, sizeof *parsed);
    parsed->values = (struct values){.count = 5, .choice = "bf16"};
    fill_rows(parsed->rows, &parsed->values);
    parsed->program = (struct options_program){.name = "program",
                                               .usage = "",
                                               .summary = "",
                                               .option = parsed->rows,
                                               .option_count = ROWS_MAX,
                                               .positional_name = "WHAT",
                                               .positional_max = 2};
    parsed->status = options_parse(&parsed->program, argc, argv, &parsed->result, &parsed->err);
}

static void good_lines(void **state) {
    (void)state;
    struct parsed p;
    char copy[512];
    parse(&p, "", copy);
    assert_int_equal(p.status, STATUS_OK);
    assert_int_equal(p.values.count, 5);
    assert_null(p.rows[1].given);

    parse(&p, "--switch_it --count 7 --wide=18446744073709551615 --real 1.5 --text a=b one", copy);
    assert_int_equal(p.status, STATUS_OK);
    assert_true(p.values.on);
    assert_int_equal(p.values.count, 7);
    assert_true(p.values.wide == UINT64_MAX);
    assert_true(p.values.real == 1.5);
    assert_string_equal(p.values.text, "a=b");
    assert_string_equal(p.rows[0].given, "");
    assert_string_equal(p.rows[1].given, "7");
    assert_int_equal(p.result.positional_count, 1);
    assert_string_equal(p.result.positional[0], "one");

    parse(&p, "--count 1 -c 2 --max_count=3 --choice f3 --choice=f32", copy);
    assert_int_equal(p.status, STATUS_OK);
    assert_int_equal(p.values.count, 3);
    assert_string_equal(p.values.choice, "f32");

    static const char *const either[] = {"auto", "off", "2", "1023", "0007"};
    for (size_t i = 0; i < sizeof either / sizeof *either; i++) {
        char line[64];
        snprintf(line, sizeof line, "--choice-or-count %s", either[i]);
        parse(&p, line, copy);
        assert_int_equal(p.status, STATUS_OK);
        assert_string_equal(p.values.choice_or_count, either[i]);
    }

    parse(&p, "--list a --list b - -- --count -c", copy);
    assert_int_equal(p.status, STATUS_INVALID_ARGUMENT); /* three arguments, two taken */
    parse(&p, "--list a --list b -- --count -c", copy);
    assert_int_equal(p.status, STATUS_OK);
    assert_int_equal(p.values.list.count, 2);
    assert_string_equal(p.values.list.item[1], "b");
    assert_string_equal(p.result.positional[0], "--count");

    parse(&p, "--count 4 --help --nonsense", copy);
    assert_int_equal(p.status, STATUS_OK);
    assert_true(p.result.help && !p.result.version);
    parse(&p, "__count 1", copy); /* nobody's habit: two arguments */
    assert_int_equal(p.status, STATUS_OK);
    assert_int_equal(p.result.positional_count, 2);
    parse(&p, "--version", copy);
    assert_true(p.result.version);
}

static void numbers_with_suffixes(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint32_t value; /* 0: refused */
    } rows[] = {
        {"--count 32k", 32000},    {"--count 32K", 32768},
        {"--count 1m", 1000000},   {"--count 1M", 1u << 20},
        {"--count 1G", 1u << 30},  {"--count 1g", 1000000000},
        {"--count 2G", 0},         {"--count 32kk", 0},
        {"--count k", 0},          {"--count 1073741824", 1u << 30},
        {"--count 1073741825", 0}, {"--count 0", 0},
        {"--count +1", 0},         {"--count 1.0", 0},
        {"--count 0x10", 0},       {"--count 18446744073709551615G", 0},
        {"--count 1x", 0},         {"--count -1", 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct parsed p;
        char copy[512];
        parse(&p, rows[i].text, copy);
        bool good = rows[i].value != 0;
        if ((p.status == STATUS_OK) != good || (good && p.values.count != rows[i].value))
            fail_msg("%s: status %d, %u", rows[i].text, (int)p.status, p.values.count);
    }
}

static void sizes(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t value; /* 0: refused */
    } rows[] = {
        {"--bytes 4096", 4096},
        {"--bytes 96G", UINT64_C(96) << 30},
        {"--bytes 1.5K", 1536},
        {"--bytes 93.728G", UINT64_C(100639673679)},
        {"--bytes 0.5g", 500000000},
        {"--bytes 1e3", 1000},
        {"--bytes 0", 0},
        {"--bytes -1G", 0},
        {"--bytes nan", 0},
        {"--bytes 1T", 0},
        {"--bytes 1GB", 0},
        {"--bytes .5G", 0},
        {"--bytes 99999999999G", 0},
        {"--bytes inf", 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct parsed p;
        char copy[512];
        parse(&p, rows[i].text, copy);
        bool good = rows[i].value != 0;
        if ((p.status == STATUS_OK) != good || (good && p.values.bytes != rows[i].value))
            fail_msg("%s: status %d, %llu", rows[i].text, (int)p.status,
                     (unsigned long long)p.values.bytes);
    }
}

static void bad_lines(void **state) {
    (void)state;
    static const struct {
        const char *line, *text;
    } rows[] = {
        {"--count", "--count: found no value, accepted: N after it"},
        {"--count=", "--count: found \"\", accepted: an integer from 1 to 1073741824"},
        {"-c x", "--count: found \"x\", accepted: an integer from 1 to 1073741824"},
        {"--wide -1", "--wide: found \"-1\", accepted: an integer from 0 to 2^64 - 1"},
        {"--real 2.5", "--real: found \"2.5\", accepted: a number from 0 to 2"},
        {"--real inf", "--real: found \"inf\", accepted: a number from 0 to 2"},
        {"--real 1e", "--real: found \"1e\", accepted: a number from 0 to 2"},
        {"--text ''", "--text: found an empty value, accepted: a text"},
        {"--choice f", "--choice: found \"f\", accepted: bf16|f32|f3"},
        {"--choice f32|f3", "--choice: found \"f32|f3\", accepted: bf16|f32|f3"},
        {"--choice-or-count on",
         "--choice-or-count: found \"on\", accepted: auto|off, or an integer from 2 to 1023"},
        {"--choice-or-count 1",
         "--choice-or-count: found \"1\", accepted: auto|off, or an integer from 2 to 1023"},
        {"--choice-or-count 1024",
         "--choice-or-count: found \"1024\", accepted: auto|off, or an integer from 2 to 1023"},
        {"--choice-or-count 1k",
         "--choice-or-count: found \"1k\", accepted: auto|off, or an integer from 2 to 1023"},
        {"--choice-or-count ''",
         "--choice-or-count: found \"\", accepted: auto|off, or an integer from 2 to 1023"},
        {"--switch-it=1", "--switch-it: found \"1\", accepted: no value, it is a switch"},
        {"--cuont 1", "--cuont: no such flag, did you mean --count? (--help lists all)"},
        {"--entirely-else", "--entirely-else: no such flag (--help lists all)"},
        {"a b c", "found \"c\" after the last argument, accepted: 2 WHAT (quote it)"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct parsed p;
        char copy[512];
        parse(&p, rows[i].line, copy);
        assert_int_equal(p.status, STATUS_INVALID_ARGUMENT);
        assert_string_equal(p.err.text, rows[i].text);
    }
    struct parsed p;
    char copy[512];
    parse(&p,
          "--list 1 --list 2 --list 3 --list 4 --list 5 --list 6 --list 7 --list 8 --list 9 "
          "--list 10 --list 11 --list 12 --list 13 --list 14 --list 15 --list 16",
          copy);
    assert_int_equal(p.status, STATUS_OK);
    parse(&p,
          "--list=1 --list=2 --list=3 --list=4 --list=5 --list=6 --list=7 --list=8 --list=9 "
          "--list=10 --list=11 --list=12 --list=13 --list=14 --list=15 --list=16 --list=17",
          copy);
    assert_string_equal(p.err.text, "--list: found one more, accepted: up to 16 texts");
}

static void forwards_by_scope(void **state) {
    (void)state;
    struct parsed p;
    char copy[512], *out[4];
    parse(&p, "--text=t -c 32k --switch-it --real 1", copy);
    assert_int_equal(p.status, STATUS_OK);
    assert_int_equal(options_forward(&p.program, 1, out, 4), 2);
    assert_string_equal(out[0], "--switch-it");
    assert_string_equal(out[1], "--text=t");
    free(out[0]);
    free(out[1]);
    assert_int_equal(options_forward(&p.program, 2, out, 4), 2);
    assert_string_equal(out[0], "--count=32k");
    assert_string_equal(out[1], "--text=t");
    free(out[0]);
    free(out[1]);
    assert_int_equal(options_forward(&p.program, 4, out, 4), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_lines),
        cmocka_unit_test(numbers_with_suffixes),
        cmocka_unit_test(sizes),
        cmocka_unit_test(bad_lines),
        cmocka_unit_test(forwards_by_scope),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
