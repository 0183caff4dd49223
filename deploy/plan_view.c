#include "plan_view.h"

#include <json-c/json.h>
#include <stdio.h>
#include <string.h>

#define GIB 1073741824.0
#define MIB 1048576.0

static double gib(uint64_t bytes) {
    return (double)bytes / GIB;
}

/* The ledger's: small models would be a column of zeros in GiB. */
static double unit(const struct plan_case *c) {
    return c->plan.weight_bytes < (uint64_t)GIB ? MIB : GIB;
}

static const char *unit_name(const struct plan_case *c) {
    return unit(c) == MIB ? "MiB" : "GiB";
}

/* 218484 as "218,484"; valid until the eighth call after. */
static const char *grouped(uint64_t value) {
    static char text[8][32];
    static unsigned turn;
    char digits[24], *out = text[turn++ % 8];
    int count = snprintf(digits, sizeof digits, "%llu", (unsigned long long)value), at = 0;
    for (int i = 0; i < count; i++) {
        if (i > 0 && (count - i) % 3 == 0) out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
    return out;
}

static const char *quantization_name(enum model_quantization quantization) {
    switch (quantization) {
    case MODEL_QUANT_INT4_GROUP32: return "INT4 experts";
    case MODEL_QUANT_FP8_BLOCK128: return "FP8";
    case MODEL_QUANT_NONE: break;
    }
    return "not quantised";
}

/* ---- the ledger ---------------------------------------------------------------------------- */

static void print_head(const struct plan_view *view) {
    const struct plan_case *c = view->plan_case;
    const struct memory_request *request = &c->request;
    printf("%s  %s, %u layers, %s parameters, %s%s\n", view->model_path, c->spec.model_type,
           c->spec.layers, grouped(c->plan.parameters), quantization_name(c->spec.quantization),
           request->tensors ? "" : "; from config.json alone");
    printf("a rank of %u, %s, %s KV in pages of %u", request->tp,
           request->layout == MEMORY_PANELS ? "on a CPU" : "on a GPU", kv_dtype_name(request->kv),
           request->page_tok);
    if (request->free_bytes > 0)
        printf(": %.2f %s free before the load", (double)request->free_bytes / unit(c),
               unit_name(c));
    if (request->fraction > 0) printf(", of which --mem-fraction-static %g", request->fraction);
    printf("\n\n%-26s%10s\n", "", unit_name(c));
}

static void print_row(const struct plan_case *c, char mark, const char *text, uint64_t bytes,
                      const char *note) {
    printf("%c %-24s%10.3f%s%s\n", mark, text, (double)bytes / unit(c), *note ? "  " : "", note);
}

static void print_line(const struct plan_case *c, const char *text, uint64_t bytes,
                       const char *note) {
    print_row(c, ' ', text, bytes, note);
}

static void print_sum(const struct plan_case *c, const char *text, uint64_t bytes,
                      const char *note) {
    print_row(c, '=', text, bytes, note);
}

static void print_measured(const struct plan_case *c) {
    char note[64];
    if (c->plan.resident_bytes == c->plan.weight_bytes) return;
    double off = (double)c->plan.resident_bytes - (double)c->plan.weight_bytes;
    snprintf(note, sizeof note, "%.2f of it unexplained", off / unit(c));
    print_sum(c, "as measured", c->plan.resident_bytes, note);
}

static void print_weights(const struct plan_case *c) {
    for (int line = 0; line < MEMORY_WEIGHT_LINES; line++)
        if (c->plan.line[line] > 0)
            print_line(c, memory_line_info[line].text, c->plan.line[line],
                       memory_line_info[line].replicated && c->request.tp > 1
                           ? "all of it on every rank"
                           : "");
    print_sum(c, "weights", c->plan.weight_bytes, "");
    print_measured(c);
}

static void print_kv(const struct plan_case *c) {
    const struct memory_plan *plan = &c->plan;
    const struct memory_request *request = &c->request;
    uint64_t draft = plan->draft_token_bytes;
    char note[96];
    snprintf(note, sizeof note, "%s bytes a token", grouped(plan->token_bytes - draft));
    print_line(c, memory_line_info[MEMORY_KV_TARGET].text, plan->line[MEMORY_KV_TARGET], note);
    if (draft > 0) {
        snprintf(note, sizeof note, "%s bytes a token%s", grouped(draft),
                 request->draft_as_target_layers ? ", priced as layers of the target" : "");
        print_line(c, memory_line_info[MEMORY_KV_DRAFT].text, plan->line[MEMORY_KV_DRAFT], note);
    }
    snprintf(note, sizeof note, "%s tokens", grouped(plan->pool_tok));
    print_sum(c, "pool", plan->pool_bytes, note);
}

static void print_rest(const struct plan_case *c) {
    const struct memory_plan *plan = &c->plan;
    for (int line = MEMORY_PAGE_TABLE; line < MEMORY_LINE_COUNT; line++)
        if (plan->line[line] > 0)
            print_line(c, memory_line_info[line].text, plan->line[line],
                       memory_line_info[line].at_most ? "at most" : "");
    print_sum(c, "the rest", plan->other_bytes, "");
    if (c->request.free_bytes == 0)
        print_sum(c, "a rank needs", plan->resident_bytes + plan->pool_bytes + plan->other_bytes,
                  "");
    else if (plan->shortfall_bytes > 0)
        print_sum(c, "too much by", plan->shortfall_bytes, "DOES NOT FIT");
    else
        print_sum(c, "left", plan->headroom_bytes - plan->other_bytes, "for what no line knows");
}

/* ---- what it means ------------------------------------------------------------------------- */

static void print_pool(const struct plan_case *c) {
    const struct memory_request *request = &c->request;
    uint64_t one = memory_plan_request_tok(request, request->context_len);
    if (request->free_bytes == 0) {
        printf("\nFor one request of %s tokens. --device-memory says what a rank has.\n",
               grouped(request->context_len));
        return;
    }
    printf("\nPool: %s tokens. ", grouped(c->plan.pool_tok));
    if (c->plan.pool_tok >= one)
        printf("A request of %s tokens fits, %s tokens remain beside it.\n",
               grouped(request->context_len), grouped(c->plan.pool_tok - one));
    else
        printf("A request of %s tokens DOES NOT FIT: %s are missing.\n",
               grouped(request->context_len), grouped(one - c->plan.pool_tok));
    double fraction = memory_plan_fraction_for(request, &c->plan, one);
    if (fraction > 1)
        printf("No fraction holds it on this memory.\n");
    else
        printf("The smallest fraction that holds it: --mem-fraction-static %.3f\n", fraction);
}

static void print_knobs(const struct plan_case *c) {
    if (c->request.free_bytes == 0) return;
    struct plan_knob knob[PLAN_KNOBS_MAX];
    uint32_t count = plan_case_knobs(c, knob);
    printf("\n%-36s%12s\n", "a knob", "tokens");
    for (uint32_t i = 0; i < count; i++) {
        bool less = knob[i].tokens < 0;
        uint64_t size = less ? (uint64_t)-knob[i].tokens : (uint64_t)knob[i].tokens;
        char signed_text[40];
        snprintf(signed_text, sizeof signed_text, "%s%s", less ? "-" : "+", grouped(size));
        printf("  %-34s%12s\n", knob[i].text, signed_text);
    }
}

static void print_answer(const struct plan_view *view) {
    const struct plan_want *want = view->want;
    const struct plan_answer *answer = view->answer;
    if (!want) return;
    const struct plan_case *c = view->plan_case;
    printf("\nWanted: %u %s of %s tokens: %s tokens of KV cache, %.2f %s, and %.2f beside it.\n",
           want->count, want->count == 1 ? "request" : "requests", grouped(want->tok_count),
           grouped(answer->pool_tok), (double)answer->kv_bytes / unit(c), unit_name(c),
           (double)answer->rest_bytes / unit(c));
    if (c->request.free_bytes == 0) return;
    if (answer->fits) {
        printf("Start with: --mem-fraction-static %.3f --context-length %llu "
               "--max-running-requests %u\n",
               answer->fraction, (unsigned long long)want->tok_count, want->count);
        return;
    }
    printf("IT DOES NOT FIT.");
    if (answer->fitting_count > 0) printf(" %u of them would, or", answer->fitting_count);
    printf(" %u of %s tokens", want->count, grouped(answer->fitting_tok));
    printf("%s.\n", answer->fits_as_fp8 ? ", or all with --kv-cache-dtype fp8" : "");
}

/* ---- calibration --------------------------------------------------------------------------- */

static void print_boots(const struct plan_calibration *k) {
    printf("%-6s%10s%10s%12s%14s%14s%12s\n", "boot", "fraction", "running", "tokens", "before load",
           "after load", "pool end");
    for (uint32_t i = 0; i < k->boot_count; i++) {
        const struct plan_boot *boot = &k->boot[i];
        printf("%-6u%10.3g%10u%12s%14.2f%14.2f%12.2f\n", i + 1, boot->fraction, boot->max_running,
               grouped(boot->pool_tok), boot->begin_gib, boot->loaded_gib, boot->pool_end_gib);
    }
}

static void print_own_ledger(const struct plan_calibration *k) {
    for (int line = 0; line < MEMORY_LINE_COUNT; line++)
        if (k->measured[line] > 0)
            printf("  %-24s predicted %8.3f  measured %8.3f GiB\n", memory_line_info[line].text,
                   gib(k->predicted[line]), gib(k->measured[line]));
    if (k->residual_bytes > 0)
        printf("  %-24s %37.3f GiB\n", "unexplained: the process", gib(k->residual_bytes));
}

static void print_calibration(const struct plan_view *view) {
    const struct plan_calibration *k = view->calibration;
    const struct plan_case *c = view->plan_case;
    if (!k) return;
    printf("\nFrom the log (0: not said)\n");
    print_boots(k);
    print_own_ledger(k);
    if (k->tokens_per_fraction > 0)
        printf("%s tokens for 0.01 of fraction, none at %.4f; no boot is further than %.1f tokens "
               "from that line.\n",
               grouped((uint64_t)(k->tokens_per_fraction / 100)), k->fraction_of_nothing,
               k->worst_tok);
    if (k->free_bytes > 0)
        printf("So %.3f GiB were free before the load, %.3f resident after it, at %s bytes a "
               "token%s.\n",
               gib(k->free_bytes), gib(k->resident_bytes), grouped(k->token_bytes),
               k->priced_as_target_layers ? " (the drafter priced as layers of the target)" : "");
    if (k->pool_end_bytes > 0 && k->headroom_bytes > 0)
        printf("At the pool's end %.2f GiB were free of a headroom of %.2f: %.2f were gone, of "
               "which the plan names %.2f. Unexplained: %.2f GiB.\n",
               gib(k->pool_end_bytes), gib(k->headroom_bytes),
               gib(k->headroom_bytes) - gib(k->pool_end_bytes), gib(c->plan.other_bytes),
               gib(k->headroom_bytes) - gib(k->pool_end_bytes) - gib(c->plan.other_bytes));
    if (k->tokens_per_fraction == 0 && k->boot_count == 1 && k->boot[0].fraction == 0)
        printf("Not fitted: the log does not say the fraction; a second boot with another one "
               "would tell.\n");
}

void plan_view_print(const struct plan_view *view) {
    print_head(view);
    print_weights(view->plan_case);
    print_kv(view->plan_case);
    print_rest(view->plan_case);
    print_pool(view->plan_case);
    print_knobs(view->plan_case);
    print_answer(view);
    print_calibration(view);
}

/* ---- for programs -------------------------------------------------------------------------- */

static void add_number(struct json_object *object, const char *key, uint64_t value) {
    json_object_object_add(object, key, json_object_new_uint64(value));
}

static void add_real(struct json_object *object, const char *key, double value) {
    json_object_object_add(object, key, json_object_new_double(value));
}

static void add_bool(struct json_object *object, const char *key, bool value) {
    json_object_object_add(object, key, json_object_new_boolean(value));
}

static struct json_object *lines_json(const uint64_t line[MEMORY_LINE_COUNT]) {
    struct json_object *lines = json_object_new_object();
    for (int i = 0; i < MEMORY_LINE_COUNT; i++)
        add_number(lines, memory_line_info[i].key, line[i]);
    return lines;
}

static struct json_object *knobs_json(const struct plan_case *c) {
    struct plan_knob knob[PLAN_KNOBS_MAX];
    uint32_t count = plan_case_knobs(c, knob);
    struct json_object *knobs = json_object_new_object();
    for (uint32_t i = 0; i < count; i++)
        json_object_object_add(knobs, knob[i].text, json_object_new_int64(knob[i].tokens));
    return knobs;
}

static struct json_object *answer_json(const struct plan_view *view) {
    struct json_object *object = json_object_new_object();
    add_number(object, "requests", view->want->count);
    add_number(object, "tokens_each", view->want->tok_count);
    add_number(object, "pool_tokens", view->answer->pool_tok);
    add_number(object, "kv_bytes", view->answer->kv_bytes);
    add_bool(object, "fits", view->answer->fits);
    add_real(object, "mem_fraction_static", view->answer->fraction);
    add_number(object, "requests_that_fit", view->answer->fitting_count);
    add_number(object, "tokens_each_that_fit", view->answer->fitting_tok);
    add_bool(object, "fits_with_fp8", view->answer->fits_as_fp8);
    return object;
}

static struct json_object *calibration_json(const struct plan_calibration *k) {
    struct json_object *object = json_object_new_object();
    add_number(object, "boots", k->boot_count);
    add_real(object, "tokens_per_fraction", k->tokens_per_fraction);
    add_real(object, "fraction_of_nothing", k->fraction_of_nothing);
    add_number(object, "token_bytes", k->token_bytes);
    add_number(object, "free_bytes", k->free_bytes);
    add_number(object, "resident_bytes", k->resident_bytes);
    add_number(object, "headroom_bytes", k->headroom_bytes);
    add_number(object, "pool_end_bytes", k->pool_end_bytes);
    json_object_object_add(object, "measured", lines_json(k->measured));
    return object;
}

void plan_view_print_json(const struct plan_view *view) {
    const struct plan_case *c = view->plan_case;
    uint64_t one = memory_plan_request_tok(&c->request, c->request.context_len);
    struct json_object *object = json_object_new_object();
    json_object_object_add(object, "model", json_object_new_string(view->model_path));
    add_number(object, "tp", c->request.tp);
    add_number(object, "parameters", c->plan.parameters);
    add_bool(object, "from_headers", c->request.tensors != NULL);
    json_object_object_add(object, "line_bytes", lines_json(c->plan.line));
    add_number(object, "weight_bytes", c->plan.weight_bytes);
    add_number(object, "resident_bytes", c->plan.resident_bytes);
    add_number(object, "pool_bytes", c->plan.pool_bytes);
    add_number(object, "other_bytes", c->plan.other_bytes);
    add_number(object, "free_bytes", c->request.free_bytes);
    add_number(object, "headroom_bytes", c->plan.headroom_bytes);
    add_number(object, "shortfall_bytes", c->plan.shortfall_bytes);
    add_number(object, "token_bytes", c->plan.token_bytes);
    add_number(object, "pool_tokens", c->plan.pool_tok);
    add_number(object, "context_len", c->request.context_len);
    add_bool(object, "context_fits", c->plan.pool_tok >= one);
    if (c->request.free_bytes > 0) {
        add_real(object, "mem_fraction_static", c->plan.fraction);
        add_real(object, "smallest_fraction", memory_plan_fraction_for(&c->request, &c->plan, one));
        json_object_object_add(object, "knobs", knobs_json(c));
    }
    if (view->want) json_object_object_add(object, "want", answer_json(view));
    if (view->calibration)
        json_object_object_add(object, "calibration", calibration_json(view->calibration));
    puts(json_object_to_json_string_ext(object, JSON_C_TO_STRING_PLAIN));
    json_object_put(object);
}
