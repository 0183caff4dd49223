#include "verify_report.h"

#include <inttypes.h>
#include <json-c/json.h>
#include <stdio.h>

#define BAR_CELLS 40u

const char *const verify_rung_name[VERIFY_RUNG_COUNT] = {
    [VERIFY_RANKS] = "ranks",     [VERIFY_CAPACITY] = "capacity", [VERIFY_CACHE] = "cache",
    [VERIFY_TOKENS] = "tokens",   [VERIFY_REQUEST] = "request",   [VERIFY_ATTENTION] = "attention",
    [VERIFY_LATENCY] = "latency", [VERIFY_ERRORS] = "errors",
};

static const char *const result_word[] = {[VERIFY_NOT_REACHED] = "-",
                                          [VERIFY_OK] = "ok",
                                          [VERIFY_FAILED] = "FAILED",
                                          [VERIFY_SKIPPED] = "skipped"};

enum verify_rung verify_report_failed(const struct verify_report *report) {
    int rung = 0;
    while (rung < VERIFY_RUNG_COUNT && report->rung[rung].result != VERIFY_FAILED)
        rung++;
    return (enum verify_rung)rung;
}

/* ---- for a person -------------------------------------------------------------------------- */

/* "4,096" */
static const char *grouped(uint32_t value, char out[16]) {
    if (value < 1000)
        snprintf(out, 16, "%u", value);
    else if (value < 1000000)
        snprintf(out, 16, "%u,%03u", value / 1000, value % 1000);
    else
        snprintf(out, 16, "%u,%03u,%03u", value / 1000000, value / 1000 % 1000, value % 1000);
    return out;
}

static void print_chart(const struct verify_report *report) {
    double most = 0;
    char tokens[16];
    for (uint32_t i = 0; i < report->point_count; i++)
        if (report->point[i].token_ms > most) most = report->point[i].token_ms;
    printf("\n  CONTEXT   FIRST TOKEN      A TOKEN\n");
    for (uint32_t i = 0; i < report->point_count; i++) {
        const struct verify_point *point = &report->point[i];
        uint32_t cells = most > 0 ? (uint32_t)(point->token_ms / most * BAR_CELLS + 0.5) : 0;
        printf("%9s  %9.1f ms  %8.2f ms  ", grouped(point->tok_count, tokens),
               point->first_token_ms, point->token_ms);
        for (uint32_t cell = 0; cell < cells; cell++)
            putchar('#');
        putchar('\n');
    }
}

static void print_table(const struct verify_report *report) {
    char tokens[16];
    printf("model %s %016" PRIx64 "  tp %u  boot %016" PRIx64 "\n", report->model,
           report->model_fingerprint, report->tp, report->boot_id);
    if (report->context_tok > 0)
        printf("context %s tokens, %s\n", grouped(report->context_tok, tokens),
               report->context_why);
    if (report->others_running > 0)
        printf("beside %u requests of others: times are theirs too\n", report->others_running);
    printf("\nRUNG       RESULT   SECONDS  WHAT WAS SEEN\n");
    for (int i = 0; i < VERIFY_RUNG_COUNT; i++)
        printf("%-9s  %-7s  %7.2f  %s\n", verify_rung_name[i], result_word[report->rung[i].result],
               report->rung[i].seconds, report->rung[i].text);
    if (report->point_count > 0) print_chart(report);
}

/* ---- for a program ------------------------------------------------------------------------- */

static void add(struct json_object *object, const char *key, struct json_object *value) {
    json_object_object_add(object, key, value);
}

static void add_hex(struct json_object *object, const char *key, uint64_t value) {
    char text[17];
    snprintf(text, sizeof text, "%016" PRIx64, value);
    add(object, key, json_object_new_string(text));
}

static struct json_object *rungs_json(const struct verify_report *report) {
    struct json_object *rungs = json_object_new_array();
    for (int i = 0; i < VERIFY_RUNG_COUNT; i++) {
        struct json_object *rung = json_object_new_object();
        enum verify_result result = report->rung[i].result;
        add(rung, "rung", json_object_new_string(verify_rung_name[i]));
        add(rung, "result",
            json_object_new_string(result == VERIFY_NOT_REACHED ? "not reached"
                                   : result == VERIFY_FAILED    ? "failed"
                                                                : result_word[result]));
        add(rung, "text", json_object_new_string(report->rung[i].text));
        add(rung, "seconds", json_object_new_double(report->rung[i].seconds));
        json_object_array_add(rungs, rung);
    }
    return rungs;
}

static struct json_object *points_json(const struct verify_report *report) {
    struct json_object *points = json_object_new_array();
    for (uint32_t i = 0; i < report->point_count; i++) {
        struct json_object *point = json_object_new_object();
        add(point, "context", json_object_new_int64(report->point[i].tok_count));
        add(point, "first_token_ms", json_object_new_double(report->point[i].first_token_ms));
        add(point, "token_ms", json_object_new_double(report->point[i].token_ms));
        json_object_array_add(points, point);
    }
    return points;
}

static struct json_object *ranks_json(const struct verify_report *report) {
    struct json_object *ranks = json_object_new_array();
    for (uint32_t i = 0; i < report->tp && report->rank[i].percent > 0; i++) {
        struct json_object *rank = json_object_new_object();
        add(rank, "rank", json_object_new_int64(i));
        add(rank, "attention_gb_s", json_object_new_double(report->rank[i].attention_gb_s));
        add(rank, "read_gb_s", json_object_new_double(report->rank[i].read_gb_s));
        add(rank, "percent", json_object_new_double(report->rank[i].percent));
        add(rank, "sum_ms", json_object_new_double(report->rank[i].sum_ms));
        json_object_array_add(ranks, rank);
    }
    return ranks;
}

static void print_json(const struct verify_report *report) {
    struct json_object *object = json_object_new_object();
    enum verify_rung failed = verify_report_failed(report);
    add(object, "ok", json_object_new_boolean(failed == VERIFY_RUNG_COUNT));
    add(object, "failed",
        failed == VERIFY_RUNG_COUNT ? NULL : json_object_new_string(verify_rung_name[failed]));
    add_hex(object, "boot", report->boot_id);
    add(object, "model", json_object_new_string(report->model));
    add_hex(object, "model_fingerprint", report->model_fingerprint);
    add(object, "tp", json_object_new_int64(report->tp));
    add(object, "context", json_object_new_int64(report->context_tok));
    add(object, "attention_rows", json_object_new_int64(report->rows));
    add(object, "rungs", rungs_json(report));
    add(object, "points", points_json(report));
    add(object, "ranks", ranks_json(report));
    puts(json_object_to_json_string_ext(object, JSON_C_TO_STRING_PLAIN));
    json_object_put(object);
}

bool verify_report_print(const struct verify_report *report, bool json) {
    if (json)
        print_json(report);
    else
        print_table(report);
    return fflush(stdout) == 0 && ferror(stdout) == 0;
}
