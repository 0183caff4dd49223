#include "cmd_status.h"

#include <errno.h>
#include <json-c/json.h>
#include <stdio.h>
#include <unistd.h>

#include "flags.h"
#include "printed.h"
#include "session.h"

#define PROGRAM_NAME "espalier status"

struct view {
    bool json, watch;
    uint32_t interval_ms;
    bool looked; /* once before, and found */
    uint64_t steps_before, step_ns_before;
    int write_errno; /* why the output cannot be written; 0: it can */
};

static const char *rank_word(enum rank_state state) {
    switch (state) {
    case RANK_ABSENT: return "absent";
    case RANK_LOADING: return "loading";
    case RANK_LOADED: return "loaded";
    case RANK_READY: return "ready";
    case RANK_LOST: break;
    }
    return "lost";
}

static const char *group_word(const struct snapshot *snapshot) {
    if (snapshot->draining) return "draining";
    return snapshot->ready ? "ready" : "not ready";
}

/* ---- for people ---------------------------------------------------------------------------- */

static double percent(uint64_t part, uint64_t whole) {
    return whole > 0 ? 100.0 * (double)part / (double)whole : 0;
}

static double mean_ms(uint64_t sum_ns, uint64_t count) {
    return count > 0 ? (double)sum_ns / (double)count / 1e6 : 0;
}

static void print_cache(const struct snapshot *s) {
    uint32_t used = s->pages_total - s->pages_free - s->pages_cached;
    printf("KV cache  %u pages of %u tokens: %u used (%llu tokens unused), %u cached, %u free; "
           "%.0f %% promised\n",
           s->pages_total, s->page_tok, used, (unsigned long long)s->tokens_unused, s->pages_cached,
           s->pages_free, percent(s->pages_promised, s->pages_total));
    printf("prefixes  %.1f %% of prompt tokens found, %llu pages evicted, %llu retractions, "
           "%llu tokens computed again\n\n",
           percent(s->tokens_cached, s->tokens_looked_up), (unsigned long long)s->evictions,
           (unsigned long long)s->retractions, (unsigned long long)s->tokens_recomputed);
}

/* Guesses verified, and how deep they were right. */
static void print_speculation(const struct snapshot *s) {
    static const char *const source[SPECULATION_SOURCES] = {"drafter", "own text", "shared text"};
    const struct speculation_counts *counts = &s->speculated;
    uint64_t accepted = 0;
    printf("guessing  %s\n", s->speculation);
    if (counts->trees == 0) return;
    for (uint32_t i = 0; i < SPECULATION_DEPTHS; i++)
        accepted += counts->accepted[i];
    printf("          %.2f tokens a tree of %.1f rows; of %llu trees were right at depth",
           1 + (double)accepted / (double)counts->trees,
           1 + (double)counts->guesses / (double)counts->trees, (unsigned long long)counts->trees);
    for (uint32_t i = 0; i < SPECULATION_DEPTHS && counts->accepted[i] > 0; i++)
        printf(" %u: %.0f %%", i + 1, percent(counts->accepted[i], counts->trees));
    printf("\n          right by source");
    for (uint32_t i = 0; i < SPECULATION_SOURCES; i++)
        printf("%s %s %.1f %% of %llu", i > 0 ? "," : "", source[i],
               percent(counts->source_accepted[i], counts->source_guesses[i]),
               (unsigned long long)counts->source_guesses[i]);
    printf("\n");
}

/* Of all steps; of a watch also those since the snapshot before. */
static void print_steps(const struct view *view, const struct snapshot *s) {
    printf("steps     %llu, %.2f ms each, the last %.2f ms", (unsigned long long)s->steps,
           mean_ms(s->step_ns, s->steps), (double)s->step_ns_last / 1e6);
    if (view->watch) {
        uint64_t steps = s->steps - view->steps_before;
        printf("; %llu since the last look, %.2f ms each", (unsigned long long)steps,
               mean_ms(s->step_ns - view->step_ns_before, steps));
    }
    printf("\n");
}

static void print_table(const struct view *view, const struct snapshot *s) {
    printf("%s%s%s  model %s  tp %u  context %u  generation %llu  up %llu s\n", group_word(s),
           *s->reason ? ": " : "", s->reason, s->model, s->tp, s->context_len,
           (unsigned long long)s->generation, (unsigned long long)(s->uptime_ns / 1000000000));
    printf("requests  %u running, %u waiting, %llu finished\n", s->requests_running,
           s->requests_waiting, (unsigned long long)s->requests_finished);
    printf("tokens    %llu of prompts, %llu generated\n", (unsigned long long)s->tokens_prompt,
           (unsigned long long)s->tokens_generated);
    print_steps(view, s);
    printf("workers   %.3f s computing, %.3f s waiting for the next step while there was one\n",
           (double)s->compute_ns / 1e9, (double)s->idle_ns / 1e9);
    print_speculation(s);
    print_cache(s);
    printf("RANK  STATE    PID      WEIGHTS MB  STEP      HEARTBEAT  PROBE\n");
    for (uint32_t i = 0; i < s->rank_count; i++) {
        const struct rank_status *rank = &s->rank[i];
        printf("%4u  %-7s  %-7llu  %10.1f  %-8llu  %6llu ms  %s", rank->rank,
               rank_word(rank->state), (unsigned long long)rank->pid,
               (double)rank->load_bytes / 1e6, (unsigned long long)rank->step,
               (unsigned long long)(rank->heartbeat_age_ns / 1000000), rank->probe);
        if (rank->self_test != SELF_TEST_NONE)
            printf("  self-test: %s, %u %%", self_test_name(rank->self_test),
                   rank->self_test_percent);
        printf("\n");
    }
}

/* ---- for programs -------------------------------------------------------------------------- */

static void add_number(struct json_object *object, const char *key, uint64_t value) {
    json_object_object_add(object, key, json_object_new_uint64(value));
}

static void add_text(struct json_object *object, const char *key, const char *value) {
    json_object_object_add(object, key, json_object_new_string(value));
}

static void add_bool(struct json_object *object, const char *key, bool value) {
    json_object_object_add(object, key, json_object_new_boolean(value));
}

static struct json_object *rank_json(const struct rank_status *rank) {
    struct json_object *object = json_object_new_object();
    add_number(object, "rank", rank->rank);
    add_text(object, "state", rank_word(rank->state));
    add_number(object, "pid", rank->pid);
    add_number(object, "load_bytes", rank->load_bytes);
    add_number(object, "load_bytes_total", rank->load_bytes_total);
    add_number(object, "load_ns", rank->load_ns);
    add_number(object, "heartbeat_age_ns", rank->heartbeat_age_ns);
    add_number(object, "step", rank->step);
    add_text(object, "probe", rank->probe);
    add_text(object, "self_test", self_test_name(rank->self_test));
    add_number(object, "self_test_percent", rank->self_test_percent);
    return object;
}

static struct json_object *numbers_json(const uint64_t *value, uint32_t count) {
    struct json_object *array = json_object_new_array();
    for (uint32_t i = 0; i < count; i++)
        json_object_array_add(array, json_object_new_uint64(value[i]));
    return array;
}

static struct json_object *speculation_json(const struct snapshot *s) {
    const struct speculation_counts *counts = &s->speculated;
    struct json_object *object = json_object_new_object();
    add_text(object, "choice", s->speculation);
    add_number(object, "trees", counts->trees);
    add_number(object, "guesses", counts->guesses);
    json_object_object_add(object, "accepted_by_depth",
                           numbers_json(counts->accepted, SPECULATION_DEPTHS));
    json_object_object_add(object, "guesses_by_source",
                           numbers_json(counts->source_guesses, SPECULATION_SOURCES));
    json_object_object_add(object, "accepted_by_source",
                           numbers_json(counts->source_accepted, SPECULATION_SOURCES));
    return object;
}

static void print_json(const struct snapshot *s) {
    struct json_object *object = json_object_new_object();
    char boot[17];
    snprintf(boot, sizeof boot, "%016llx", (unsigned long long)s->boot_id);
    add_text(object, "boot_id", boot);
    add_number(object, "generation", s->generation);
    add_bool(object, "ready", s->ready);
    add_bool(object, "draining", s->draining);
    add_text(object, "reason", s->reason);
    add_text(object, "model", s->model);
    add_number(object, "tp", s->tp);
    add_number(object, "context_len", s->context_len);
    add_number(object, "page_tok", s->page_tok);
    add_number(object, "pages_total", s->pages_total);
    add_number(object, "pages_free", s->pages_free);
    add_number(object, "pages_cached", s->pages_cached);
    add_number(object, "pages_promised", s->pages_promised);
    add_number(object, "tokens_unused", s->tokens_unused);
    add_number(object, "tokens_looked_up", s->tokens_looked_up);
    add_number(object, "tokens_cached", s->tokens_cached);
    add_number(object, "tokens_recomputed", s->tokens_recomputed);
    add_number(object, "evictions", s->evictions);
    add_number(object, "retractions", s->retractions);
    add_number(object, "requests_running", s->requests_running);
    add_number(object, "requests_waiting", s->requests_waiting);
    add_number(object, "requests_finished", s->requests_finished);
    add_number(object, "tokens_prompt", s->tokens_prompt);
    add_number(object, "tokens_generated", s->tokens_generated);
    add_number(object, "steps", s->steps);
    add_number(object, "step_ns_last", s->step_ns_last);
    add_number(object, "step_ns", s->step_ns);
    add_number(object, "compute_ns", s->compute_ns);
    add_number(object, "idle_ns", s->idle_ns);
    add_number(object, "uptime_ns", s->uptime_ns);
    json_object_object_add(object, "speculation", speculation_json(s));
    struct json_object *ranks = json_object_new_array();
    for (uint32_t i = 0; i < s->rank_count; i++)
        json_object_array_add(ranks, rank_json(&s->rank[i]));
    json_object_object_add(object, "ranks", ranks);
    puts(json_object_to_json_string_ext(object, JSON_C_TO_STRING_PLAIN));
    json_object_put(object);
}

/* ---- the command --------------------------------------------------------------------------- */

static void remember_steps(struct view *view, const struct snapshot *s) {
    view->looked = true;
    view->steps_before = s->steps;
    view->step_ns_before = s->step_ns;
}

static bool on_snapshot(void *user, const struct snapshot *snapshot) {
    struct view *view = user;
    if (view->json) {
        print_json(snapshot);
    } else {
        if (view->watch && isatty(STDOUT_FILENO)) fputs("\033[H\033[2J", stdout);
        if (!view->looked) remember_steps(view, snapshot);
        print_table(view, snapshot);
        remember_steps(view, snapshot);
    }
    if (fflush(stdout) != 0) view->write_errno = errno;
    return view->write_errno == 0;
}

static int look(void *user, struct client *client) {
    struct view *view = user;
    const struct watch_request request = {.interval_ms = view->watch ? view->interval_ms : 0};
    struct error err;
    enum status status = client_watch(client, &request, on_snapshot, view, &err);
    if (view->write_errno != 0) return printed_not(PROGRAM_NAME, EXIT_CODE_OK, view->write_errno);
    bool by_user = view->watch && status == STATUS_CANCELLED;
    return status == STATUS_OK || by_user ? EXIT_CODE_OK : session_failed(PROGRAM_NAME, &err);
}

int cmd_status(int argc, char *const *argv) {
    struct session_flags session = {0};
    struct view view = {.interval_ms = 1000};
    struct option table[] = {
        {.name = "--json", .type = OPTION_SWITCH, .value = &view.json, .help = "a line of JSON"},
        {.name = "--watch",
         .type = OPTION_SWITCH,
         .value = &view.watch,
         .help = "again and again, until Ctrl-C"},
        {.name = "--interval",
         .type = OPTION_COUNT,
         .value = &view.interval_ms,
         .min = 50,
         .max = 3600000,
         .argument = "MS",
         .fallback = "1000",
         .help = "between two of --watch"},
        FLAG_RUN_DIR(&session.run_dir),
        SESSION_FLAG_ENDPOINT(&session.endpoint),
        SESSION_FLAG_CURVE_KEYS(&session.curve_keys),
    };
    const struct options_program program = {
        .name = PROGRAM_NAME,
        .usage = "[flags]",
        .summary = "Shows what a group does now.",
        .option = table,
        .option_count = sizeof table / sizeof *table,
    };
    struct options_result result;
    int exit_code;
    if (!options_take(&program, argc, argv, &result, &exit_code)) return exit_code;
    return session_attach(PROGRAM_NAME, &session, look, &view);
}
