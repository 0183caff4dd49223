#include "bench_report.h"

#include <json-c/json.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"

/* ---- figures ------------------------------------------------------------------------------- */

struct spread {
    double median, p90, p99;
};

static int compare(const void *a, const void *b) {
    float left = *(const float *)a, right = *(const float *)b;
    return (left > right) - (left < right);
}

/* The least value that so large a share of all does not exceed. */
static double percentile(const float *sorted, uint32_t count, double share) {
    return (double)sorted[(uint32_t)ceil(share * count) - 1];
}

static struct spread spread_of(float *value, uint32_t count) {
    if (count == 0) return (struct spread){0};
    qsort(value, count, sizeof *value, compare);
    return (struct spread){.median = percentile(value, count, 0.5),
                           .p90 = percentile(value, count, 0.9),
                           .p99 = percentile(value, count, 0.99)};
}

static double ratio(double part, double whole) {
    return whole > 0 ? part / whole : 0;
}

static uint64_t accepted(const struct speculation_counts *counts) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < SPECULATION_DEPTHS; i++)
        sum += counts->accepted[i];
    return sum;
}

struct bench_report_group bench_report_group_between(const struct snapshot *before,
                                                     const struct snapshot *after) {
    const struct speculation_counts *old = &before->speculated, *new = &after->speculated;
    if (before->boot_id != after->boot_id) return (struct bench_report_group){0};
    return (struct bench_report_group){.is_known = true,
                                       .steps = after->steps - before->steps,
                                       .tokens_generated = after->tokens_generated -
                                                           before->tokens_generated,
                                       .trees = new->trees - old->trees,
                                       .guesses = new->guesses - old->guesses,
                                       .accepted = accepted(new) - accepted(old)};
}

/* All that is derived, once, for both forms. */
struct figures {
    double duration_s, prompt_per_s, output_per_s, cached_share;
    double tokens_per_step, tokens_per_tree, accepted_share;
    struct spread first_ms, gap_ms;
};

static struct figures derive(const struct bench_load *load, struct bench_load_result *result,
                             const struct bench_report_group *group) {
    double duration_s = (double)result->duration_ns / (double)NS_PER_S;
    return (struct figures){
        .duration_s = duration_s,
        .prompt_per_s = ratio((double)result->prompt_tokens, duration_s),
        .output_per_s = ratio((double)result->output_tokens, duration_s),
        .cached_share = ratio((double)result->cached_tokens,
                              (double)result->finished * load->prompt_tok),
        .tokens_per_step = ratio((double)group->tokens_generated, (double)group->steps),
        .tokens_per_tree = 1 + ratio((double)group->accepted, (double)group->trees),
        .accepted_share = ratio((double)group->accepted, (double)group->guesses),
        .first_ms = spread_of(result->first_ms, result->first_count),
        .gap_ms = spread_of(result->gap_ms, result->gap_count)};
}

/* ---- for people ---------------------------------------------------------------------------- */

static void print_outcome(const struct bench_load *load, const struct bench_load_result *result,
                          const struct figures *figures) {
    printf("requests  %u of %u finished in %.2f s, %u at a time", result->finished,
           load->request_count, figures->duration_s, load->concurrency);
    if (result->cut_off + result->unsent > 0)
        printf("; stopped: %u cut off, %u not sent", result->cut_off, result->unsent);
    printf("\n");
    if (result->failed == 0) return;
    printf("failed    %u:", result->failed);
    for (uint32_t i = 0, shown = 0; i < STATUS_COUNT; i++)
        if (result->failed_by[i] > 0)
            printf("%s %u %s", shown++ > 0 ? "," : "", result->failed_by[i],
                   status_name((enum status)i));
    printf("; the first: %s\n", result->first_error.text);
}

static void print_spread(const char *what, const struct spread *spread, uint32_t count) {
    if (count == 0)
        printf("%-16s %9s %9s %9s\n", what, "-", "-", "-");
    else
        printf("%-16s %9.2f %9.2f %9.2f\n", what, spread->median, spread->p90, spread->p99);
}

static void print_group(const struct bench_report_group *group, const struct figures *figures) {
    if (!group->is_known) return;
    printf("group     %.2f tokens a step in %llu steps", figures->tokens_per_step,
           (unsigned long long)group->steps);
    if (group->trees > 0)
        printf("; guessing: %.2f tokens a tree, %.1f %% of %llu guesses right",
               figures->tokens_per_tree, 100 * figures->accepted_share,
               (unsigned long long)group->guesses);
    printf("\n");
}

static void print_table(const struct bench_load *load, const struct bench_load_result *result,
                        const struct bench_report_group *group, const struct figures *figures) {
    print_outcome(load, result, figures);
    printf("tokens    prompt %llu, %.1f/s, %.1f %% of them cached; output %llu, %.1f/s\n",
           (unsigned long long)result->prompt_tokens, figures->prompt_per_s,
           100 * figures->cached_share, (unsigned long long)result->output_tokens,
           figures->output_per_s);
    print_group(group, figures);
    printf(
        "load      %u prompt tokens (%u shared), %u output tokens, temperature %g, seed %llu\n\n",
        load->prompt_tok, load->shared_prefix_tok, load->max_tokens, (double)load->temperature,
        (unsigned long long)load->seed);
    printf("TIME, MS            MEDIAN       P90       P99\n");
    print_spread("to first token", &figures->first_ms, result->first_count);
    print_spread("between tokens", &figures->gap_ms, result->gap_count);
}

/* ---- for programs -------------------------------------------------------------------------- */

static void add_number(struct json_object *object, const char *key, uint64_t value) {
    json_object_object_add(object, key, json_object_new_uint64(value));
}

static void add_real(struct json_object *object, const char *key, double value) {
    struct json_object *number = json_object_new_double(value);
    json_object_set_serializer(number, json_object_double_to_json_string, "%.4f", NULL);
    json_object_object_add(object, key, number);
}

/* null where there is nothing to say it of. */
static void add_spread(struct json_object *object, const char *key, const struct spread *spread,
                       uint32_t count) {
    struct json_object *three = count > 0 ? json_object_new_object() : NULL;
    if (three) {
        add_real(three, "median", spread->median);
        add_real(three, "p90", spread->p90);
        add_real(three, "p99", spread->p99);
    }
    json_object_object_add(object, key, three);
}

static void add_failures(struct json_object *object, const struct bench_load_result *result) {
    struct json_object *by = json_object_new_object();
    for (uint32_t i = 0; i < STATUS_COUNT; i++)
        if (result->failed_by[i] > 0)
            add_number(by, status_name((enum status)i), result->failed_by[i]);
    add_number(object, "failed", result->failed);
    json_object_object_add(object, "failed_by_status", by);
}

static void add_group(struct json_object *object, const struct bench_report_group *group,
                      const struct figures *figures) {
    struct json_object *speculation = group->trees > 0 ? json_object_new_object() : NULL;
    add_number(object, "steps", group->steps);
    add_real(object, "tokens_per_step", figures->tokens_per_step);
    if (speculation) {
        add_number(speculation, "trees", group->trees);
        add_number(speculation, "guesses", group->guesses);
        add_number(speculation, "accepted", group->accepted);
        add_real(speculation, "tokens_per_tree", figures->tokens_per_tree);
    }
    json_object_object_add(object, "speculation", speculation);
}

static void print_json(const struct bench_load *load, const struct bench_load_result *result,
                       const struct bench_report_group *group, const struct figures *figures) {
    struct json_object *object = json_object_new_object();
    add_number(object, "requests", load->request_count);
    add_number(object, "concurrency", load->concurrency);
    add_number(object, "prompt_tokens_each", load->prompt_tok);
    add_number(object, "shared_prefix_tokens", load->shared_prefix_tok);
    add_number(object, "output_tokens_each", load->max_tokens);
    add_real(object, "temperature", (double)load->temperature);
    add_number(object, "seed", load->seed);
    add_real(object, "duration_s", figures->duration_s);
    add_number(object, "finished", result->finished);
    add_failures(object, result);
    add_number(object, "cut_off", result->cut_off);
    add_number(object, "unsent", result->unsent);
    add_number(object, "prompt_tokens", result->prompt_tokens);
    add_number(object, "output_tokens", result->output_tokens);
    add_number(object, "cached_tokens", result->cached_tokens);
    add_real(object, "prompt_tokens_per_s", figures->prompt_per_s);
    add_real(object, "output_tokens_per_s", figures->output_per_s);
    add_spread(object, "first_token_ms", &figures->first_ms, result->first_count);
    add_spread(object, "between_tokens_ms", &figures->gap_ms, result->gap_count);
    if (group->is_known) add_group(object, group, figures);
    puts(json_object_to_json_string_ext(object, JSON_C_TO_STRING_PLAIN));
    json_object_put(object);
}

bool bench_report_print(const struct bench_load *load, struct bench_load_result *result,
                        const struct bench_report_group *group, bool json) {
    const struct figures figures = derive(load, result, group);
    (json ? print_json : print_table)(load, result, group, &figures);
    return fflush(stdout) == 0;
}
