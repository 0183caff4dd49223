#include "verify_climb.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "log_scan.h"
#include "verify_replicas.h"
#include "verify_tokens.h"

#define REPLY_TOK        16u   /* of each request that is timed */
#define FIXED_REPLY_TOK  32u   /* of the fixed prompt */
#define SHORT_TOK        1024u /* the shortest length, where the context is longer */
#define ATTENTION_ROWS   8u
#define PROMPT_IDS       256u /* below every vocabulary's special tokens */
#define STEP_SECONDS_MAX 120  /* for ranks that are at work to come to the question */
#define RETRY_MS         100

struct climb {
    const struct verify_options *options;
    const struct client_options *client_options;
    struct client *client;
    struct verify_report *report;
    struct snapshot snapshot; /* numbers alone, of the first look */
    uint32_t *prompt;         /* [context_tok], once that is known */
    uint32_t prompt_tok;      /* of the longest request */
    enum status failed_by;    /* of the call that the rung failed by; OK: none */
};

/* ---- what came of a rung ------------------------------------------------------------------- */

static void __attribute__((format(printf, 4, 5)))
conclude(struct climb *climb, enum verify_rung rung, enum verify_result result, const char *format,
         ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(climb->report->rung[rung].text, VERIFY_TEXT_BYTES_MAX, format, arguments);
    va_end(arguments);
    climb->report->rung[rung].result = result;
}

static bool is_interrupted(const struct climb *climb) {
    return climb->client_options->cancel && *climb->client_options->cancel != 0;
}

static void fail_by(struct climb *climb, enum verify_rung rung, const struct error *err) {
    climb->failed_by = err->code;
    if (err->code == STATUS_CANCELLED && is_interrupted(climb))
        conclude(climb, rung, VERIFY_FAILED, "interrupted: nothing more is asked");
    else
        conclude(climb, rung, VERIFY_FAILED, "%s: %s", status_name(err->code), err->text);
}

static void show(const struct climb *climb, const char *what) {
    if (climb->options->show_progress) fprintf(stderr, "\r\033[K%s", what);
}

/* ---- ranks --------------------------------------------------------------------------------- */

struct look {
    struct snapshot snapshot;
    char reason[VERIFY_TEXT_BYTES_MAX], model[64];
};

static bool take_snapshot(void *user, const struct snapshot *snapshot) {
    struct look *look = user;
    snprintf(look->reason, sizeof look->reason, "%s", snapshot->reason);
    snprintf(look->model, sizeof look->model, "%s", snapshot->model);
    look->snapshot = *snapshot;
    look->snapshot.reason = look->snapshot.model = look->snapshot.speculation = NULL;
    look->snapshot.rank = NULL;
    return true;
}

static enum status look_at(struct climb *climb, struct look *look_out, struct error *err) {
    return client_watch(climb->client, &(struct watch_request){0}, take_snapshot, look_out, err);
}

/* A group that does not serve, or a rank in trouble: DEADLINE_EXCEEDED says why. */
static enum status expect_well(struct climb *climb, struct error *err) {
    struct look look;
    enum status status = look_at(climb, &look, err);
    if (status != STATUS_OK || look.reason[0] == '\0') return status;
    return error_set(err, STATUS_UNAVAILABLE, "%s", look.reason);
}

/* Ask all ranks to answer, within the limit; longer only while none is in trouble, for a step may
 * take its time. */
static enum status ask_ranks(struct climb *climb, struct error *err) {
    struct client_options options = *climb->client_options;
    options.deadline_ms = (uint32_t)(climb->options->limits.answer_seconds * 1000) + 1;
    struct client *client;
    enum status status = client_open(&options, &client, err);
    if (status != STATUS_OK) return status;
    int64_t end_ns = clock_now_ns() + STEP_SECONDS_MAX * NS_PER_S;
    do {
        struct verify_replicas replicas;
        verify_replicas_init(&replicas);
        struct examine_request nothing = {.token = &(uint32_t){0}, .token_count = 1};
        status = client_examine(client, &nothing, verify_replicas_take, &replicas, err);
        verify_replicas_deinit(&replicas);
        bool again = status == STATUS_DEADLINE_EXCEEDED || status == STATUS_ABORTED;
        if (!again) break;
        struct error why;
        if (expect_well(climb, &why) != STATUS_OK) *err = why, status = why.code, end_ns = 0;
        nanosleep(&(struct timespec){.tv_nsec = RETRY_MS * NS_PER_MS}, NULL);
    } while (clock_now_ns() < end_ns);
    client_close(&client);
    return status;
}

static void climb_ranks(struct climb *climb) {
    struct error err;
    struct look look;
    struct verify_report *report = climb->report;
    enum status status = look_at(climb, &look, &err);
    if (status == STATUS_OK) {
        climb->snapshot = look.snapshot;
        report->boot_id = look.snapshot.boot_id;
        report->model_fingerprint = look.snapshot.model_fingerprint;
        report->tp = look.snapshot.tp;
        report->others_running = look.snapshot.requests_running + look.snapshot.requests_waiting;
        snprintf(report->model, sizeof report->model, "%s", look.model);
        if (look.reason[0] != '\0') status = error_set(&err, STATUS_UNAVAILABLE, "%s", look.reason);
    }
    int64_t begin_ns = clock_now_ns();
    if (status == STATUS_OK) status = ask_ranks(climb, &err);
    if (status != STATUS_OK)
        fail_by(climb, VERIFY_RANKS, &err);
    else
        conclude(climb, VERIFY_RANKS, VERIFY_OK,
                 "generation %" PRIu64 "; %u of %u answer in %.1f ms", look.snapshot.generation,
                 report->tp, report->tp, (double)(clock_now_ns() - begin_ns) / 1e6);
}

/* ---- capacity ------------------------------------------------------------------------------ */

static void make_prompt(struct climb *climb) {
    uint32_t count = climb->report->context_tok;
    climb->prompt = calloc(count, sizeof *climb->prompt);
    CHECK(climb->prompt);
    for (uint32_t i = 0; i < count; i++)
        climb->prompt[i] = (uint32_t)(hash_chain(count, i) % PROMPT_IDS);
    climb->prompt_tok = count > REPLY_TOK ? count - REPLY_TOK : 1;
}

static void climb_capacity(struct climb *climb) {
    const struct snapshot *now = &climb->snapshot;
    uint32_t wanted = climb->options->context_tok;
    uint32_t asked = wanted ? wanted : now->context_promised;
    uint64_t pool_tok = (uint64_t)now->pages_total * now->page_tok;
    struct verify_report *report = climb->report;
    report->context_tok = asked < now->context_len ? asked : now->context_len;
    report->context_why = report->context_tok < asked ? "what fits"
                          : wanted                    ? "as asked"
                                                      : "what the service promises";
    make_prompt(climb);
    if (asked > now->context_promised)
        conclude(climb, VERIFY_CAPACITY, VERIFY_FAILED,
                 "%u tokens asked for; the service was started with --context-length %u", asked,
                 now->context_promised);
    else if (asked > pool_tok)
        conclude(climb, VERIFY_CAPACITY, VERIFY_FAILED,
                 "the pool holds %" PRIu64 " tokens, and a request %s %u; espalier resize --tokens "
                 "%u, or less --context-length",
                 pool_tok, wanted ? "was to have" : "is promised", asked, asked);
    else
        conclude(climb, VERIFY_CAPACITY, VERIFY_OK,
                 "a pool of %" PRIu64 " tokens holds %u, and %" PRIu64 " beside them", pool_tok,
                 asked, pool_tok - asked);
}

/* ---- requests ------------------------------------------------------------------------------ */

struct reply {
    uint32_t token[VERIFY_TOKENS_MAX], token_count;
    int64_t sent_ns, first_ns, last_ns;
};

static bool take_delta(void *user, const struct generate_delta *delta) {
    struct reply *reply = user;
    if (delta->token_count == 0) return true;
    reply->last_ns = clock_now_ns();
    if (reply->token_count == 0) reply->first_ns = reply->last_ns;
    for (uint32_t i = 0; i < delta->token_count && reply->token_count < VERIFY_TOKENS_MAX; i++)
        reply->token[reply->token_count++] = delta->token[i];
    return true;
}

static enum status generate(struct climb *climb, const struct generate_request *request,
                            struct reply *reply_out, struct error *err) {
    struct generate_summary summary;
    *reply_out = (struct reply){.sent_ns = clock_now_ns()};
    enum status status = client_generate(climb->client, request, take_delta, reply_out, &summary,
                                         err);
    if (status != STATUS_OK) return status;
    if (reply_out->token_count == request->max_tokens) return STATUS_OK;
    return error_set(err, STATUS_DATA_LOSS, "%u tokens were asked for, and %u came",
                     request->max_tokens, reply_out->token_count);
}

/* The beginning of the long prompt, and a reply, so many tokens together. */
static enum status generate_long(struct climb *climb, uint32_t tok_count, struct reply *reply_out,
                                 struct error *err) {
    uint32_t reply_tok = tok_count > REPLY_TOK ? REPLY_TOK : tok_count - 1;
    const struct generate_request request = {
        .prompt_kind = PROMPT_TOKENS,
        .prompt_token = climb->prompt,
        .prompt_token_count = tok_count - reply_tok,
        .max_tokens = reply_tok,
        .sampling = {.top_p = 1},
        .ignore_eos = true,
    };
    return generate(climb, &request, reply_out, err);
}

/* What an earlier request left of the long prompt. */
static enum status forget(struct climb *climb, struct error *err) {
    uint32_t first_page = climb->snapshot.page_tok;
    if (first_page > climb->prompt_tok) return STATUS_OK; /* nothing of it is ever cached */
    return client_flush(climb->client,
                        &(struct flush_request){.token = climb->prompt, .token_count = first_page},
                        err);
}

/* ---- cache --------------------------------------------------------------------------------- */

static enum status examine(struct climb *climb, const uint32_t *token, uint32_t token_count,
                           uint32_t rows, struct verify_replicas *replicas_out, struct error *err) {
    verify_replicas_init(replicas_out);
    enum status status = client_examine(
        climb->client,
        &(struct examine_request){.token = token, .token_count = token_count, .rows = rows},
        verify_replicas_take, replicas_out, err);
    if (status == STATUS_OK && replicas_out->rank_count != climb->report->tp)
        status = error_set(err, STATUS_INTERNAL, "%u of %u ranks reported",
                           replicas_out->rank_count, climb->report->tp);
    return status;
}

/* Two ranks speak against each other. Of the long prompt's own pages it can be told who is right:
 * they are computed once more. */
static uint32_t find_wrong_rank(struct climb *climb) {
    struct verify_replicas before, again;
    struct verify_difference difference;
    struct reply reply;
    struct error err;
    uint32_t wrong = VERIFY_NO_RANK;
    verify_replicas_init(&again);
    if (examine(climb, climb->prompt, climb->prompt_tok, 0, &before, &err) == STATUS_OK &&
        verify_replicas_differ(&before, &difference) && forget(climb, &err) == STATUS_OK &&
        generate_long(climb, climb->report->context_tok, &reply, &err) == STATUS_OK &&
        examine(climb, climb->prompt, climb->prompt_tok, 0, &again, &err) == STATUS_OK)
        wrong = verify_replicas_judge(&before, &again, difference.hash_idx);
    verify_replicas_deinit(&before);
    verify_replicas_deinit(&again);
    return wrong;
}

static void fail_replicas(struct climb *climb, enum verify_rung rung,
                          const struct verify_replicas *replicas,
                          const struct verify_difference *difference, const char *of_what) {
    uint32_t hash_count = replicas->report[0].hash_count, rank = difference->rank;
    if (rank == VERIFY_NO_RANK && rung == VERIFY_CACHE) rank = find_wrong_rank(climb);
    if (rank != VERIFY_NO_RANK)
        conclude(climb, rung, VERIFY_FAILED,
                 "rank %u holds other bytes than it should, in %u of %u %s, the first of them "
                 "number %u; espalier flush forgets them",
                 rank, difference->hash_count, hash_count, of_what, difference->hash_idx);
    else
        conclude(climb, rung, VERIFY_FAILED,
                 "ranks 0 and %u hold different bytes in %u of %u %s, the first of them number %u; "
                 "which of the two is wrong cannot be told",
                 difference->other, difference->hash_count, hash_count, of_what,
                 difference->hash_idx);
}

static void climb_cache(struct climb *climb) {
    struct verify_replicas replicas;
    struct verify_difference difference;
    struct error err;
    if (examine(climb, NULL, 0, 0, &replicas, &err) != STATUS_OK)
        fail_by(climb, VERIFY_CACHE, &err);
    else if (verify_replicas_differ(&replicas, &difference))
        fail_replicas(climb, VERIFY_CACHE, &replicas, &difference, "cached pages");
    else if (replicas.report[0].page_count == 0)
        conclude(climb, VERIFY_CACHE, VERIFY_OK, "nothing is cached yet");
    else
        conclude(climb, VERIFY_CACHE, VERIFY_OK, "%u cached pages, the same on every rank",
                 replicas.report[0].page_count);
    verify_replicas_deinit(&replicas);
}

/* ---- tokens -------------------------------------------------------------------------------- */

static void record(struct climb *climb, const struct verify_tokens_of *of,
                   const struct reply *reply) {
    struct verify_tokens tokens = {.count = reply->token_count};
    struct error err;
    memcpy(tokens.token, reply->token, sizeof tokens.token);
    if (verify_tokens_record(climb->options->record_path, of, &tokens, &err) != STATUS_OK)
        fail_by(climb, VERIFY_TOKENS, &err);
    else
        conclude(climb, VERIFY_TOKENS, VERIFY_SKIPPED, "%u tokens recorded in %s", tokens.count,
                 climb->options->record_path);
}

static void compare(struct climb *climb, const struct verify_tokens_of *of,
                    const struct reply *reply) {
    struct verify_tokens right;
    struct error err;
    uint32_t same = 0;
    if (verify_tokens_find(climb->options->tokens_path, of, &right, &err) != STATUS_OK) {
        fail_by(climb, VERIFY_TOKENS, &err);
        return;
    }
    while (same < right.count && same < reply->token_count &&
           right.token[same] == reply->token[same])
        same++;
    if (right.count == 0 && climb->options->tokens_must_be_there)
        conclude(climb, VERIFY_TOKENS, VERIFY_FAILED,
                 "--tokens: %s: found nothing recorded for this model and its number formats, "
                 "accepted: a file of --record",
                 climb->options->tokens_path);
    else if (right.count == 0)
        conclude(climb, VERIFY_TOKENS, VERIFY_SKIPPED,
                 "nothing is recorded for this model and its number formats; --record FILE does, "
                 "--tokens FILE compares");
    else if (same < right.count)
        conclude(climb, VERIFY_TOKENS, VERIFY_FAILED,
                 "token %u of %u is %u where %u is recorded: weights or kernels are not those that "
                 "were recorded with",
                 same, right.count, reply->token[same], right.token[same]);
    else
        conclude(climb, VERIFY_TOKENS, VERIFY_OK,
                 "%u tokens as recorded; every rank agreed on every step", right.count);
}

static void climb_tokens(struct climb *climb) {
    const struct verify_tokens_of of = {.fingerprint = climb->snapshot.model_fingerprint,
                                        .kv = climb->snapshot.kv_dtype,
                                        .activation = climb->snapshot.activation_dtype};
    const struct generate_request request = {
        .prompt_kind = PROMPT_TEXT,
        .prompt_text = bytes_of_text(VERIFY_PROMPT),
        .max_tokens = FIXED_REPLY_TOK,
        .sampling = {.top_p = 1},
        .ignore_eos = true,
    };
    struct reply reply;
    struct error err;
    show(climb, "tokens of a fixed prompt");
    if (generate(climb, &request, &reply, &err) != STATUS_OK)
        fail_by(climb, VERIFY_TOKENS, &err);
    else if (climb->options->record_path)
        record(climb, &of, &reply);
    else
        compare(climb, &of, &reply);
}

/* ---- request ------------------------------------------------------------------------------- */

/* A thousand tokens, a quarter, half, all of it: ascending, each once. */
static uint32_t choose_lengths(uint32_t all, uint32_t out[VERIFY_POINTS_MAX]) {
    const uint32_t wanted[VERIFY_POINTS_MAX] = {SHORT_TOK, all / 4, all / 2, all};
    uint32_t count = 0;
    for (uint32_t i = 0; i < VERIFY_POINTS_MAX; i++) {
        uint32_t at = 0;
        if (wanted[i] != all && (wanted[i] > all || wanted[i] <= REPLY_TOK)) continue;
        while (at < count && out[at] < wanted[i])
            at++;
        if (at < count && out[at] == wanted[i]) continue;
        memmove(out + at + 1, out + at, (count++ - at) * sizeof *out);
        out[at] = wanted[i];
    }
    return count;
}

static enum status time_request(struct climb *climb, uint32_t tok_count, struct error *err) {
    struct reply reply;
    char what[96];
    snprintf(what, sizeof what, "a request of %u of %u tokens", tok_count,
             climb->report->context_tok);
    show(climb, what);
    enum status status = forget(climb, err);
    if (status == STATUS_OK) status = generate_long(climb, tok_count, &reply, err);
    if (status != STATUS_OK) return error_wrap(err, status, "%u tokens", tok_count);
    uint32_t gaps = reply.token_count > 1 ? reply.token_count - 1 : 1;
    climb->report->point[climb->report->point_count++] = (struct verify_point){
        .tok_count = tok_count,
        .first_token_ms = (double)(reply.first_ns - reply.sent_ns) / 1e6,
        .token_ms = (double)(reply.last_ns - reply.first_ns) / 1e6 / gaps};
    return STATUS_OK;
}

static void climb_request(struct climb *climb) {
    uint32_t length[VERIFY_POINTS_MAX];
    uint32_t count = choose_lengths(climb->report->context_tok, length);
    struct error err;
    struct look look;
    for (uint32_t i = 0; i < count; i++)
        if (time_request(climb, length[i], &err) != STATUS_OK) {
            fail_by(climb, VERIFY_REQUEST, &err);
            return;
        }
    if (look_at(climb, &look, &err) != STATUS_OK)
        fail_by(climb, VERIFY_REQUEST, &err);
    else if (look.snapshot.generation != climb->snapshot.generation)
        conclude(climb, VERIFY_REQUEST, VERIFY_FAILED,
                 "the group formed anew meanwhile: generation %" PRIu64 ", now %" PRIu64,
                 climb->snapshot.generation, look.snapshot.generation);
    else
        conclude(climb, VERIFY_REQUEST, VERIFY_OK,
                 "%u tokens answered in one generation; %u lengths, %" PRIu64 " steps",
                 climb->report->context_tok, count, look.snapshot.steps - climb->snapshot.steps);
}

/* ---- attention ----------------------------------------------------------------------------- */

static double gb_s(uint64_t bytes, uint64_t ns) {
    return ns > 0 ? (double)bytes / (double)ns : 0;
}

/* The rank that is slowest, by percent of the roof; and slowest to add. */
static void judge_speed(struct climb *climb, const struct verify_replicas *replicas) {
    struct verify_report *report = climb->report;
    const struct verify_limits *limits = &climb->options->limits;
    uint32_t slow = 0, late = 0;
    for (uint32_t rank = 0; rank < report->tp; rank++) {
        const struct examine_report *found = &replicas->report[rank];
        report->rank[rank].attention_gb_s = gb_s(found->attention_bytes, found->attention_ns);
        report->rank[rank].read_gb_s = gb_s(found->read_bytes, found->read_ns);
        report->rank[rank].sum_ms = (double)found->collective_ns / 1e6;
        if (found->attention_ns > 0)
            report->rank[rank].percent = 100 * (double)found->read_ns / (double)found->attention_ns;
        if (report->rank[rank].percent < report->rank[slow].percent) slow = rank;
        if (report->rank[rank].sum_ms > report->rank[late].sum_ms) late = rank;
    }
    double percent = report->rank[slow].percent, sum_ms = report->rank[late].sum_ms;
    bool too_slow = percent<limits->attention_percent, too_late = sum_ms> limits->sum_ms;
    conclude(
        climb, VERIFY_ATTENTION, too_slow || too_late ? VERIFY_FAILED : VERIFY_OK,
        "rank %u reads the cache for %u rows at %.2f GB/s, %.1f %% of the %.2f of a plain read "
        "(%s%s %.1f %%); a sum over ranks %.3f ms (%s %.3f ms)",
        slow, report->rows, report->rank[slow].attention_gb_s, percent,
        report->rank[slow].read_gb_s, replicas->device[slow],
        too_slow ? ": less than" : "; at least", limits->attention_percent, sum_ms,
        too_late ? "more than" : "at most", limits->sum_ms);
}

static void climb_attention(struct climb *climb) {
    struct verify_replicas replicas;
    struct verify_difference difference;
    struct error err;
    show(climb, "attention over the cache of that request");
    climb->report->rows = ATTENTION_ROWS;
    if (examine(climb, climb->prompt, climb->prompt_tok, ATTENTION_ROWS, &replicas, &err) !=
        STATUS_OK)
        fail_by(climb, VERIFY_ATTENTION, &err);
    else if (verify_replicas_differ(&replicas, &difference))
        fail_replicas(climb, VERIFY_ATTENTION, &replicas, &difference, "pages of that request");
    else if (replicas.report[0].attention_ns == 0)
        conclude(climb, VERIFY_ATTENTION, VERIFY_SKIPPED,
                 "%u pages of that request are cached: too few to be timed",
                 replicas.report[0].page_count);
    else
        judge_speed(climb, &replicas);
    verify_replicas_deinit(&replicas);
}

/* ---- latency ------------------------------------------------------------------------------- */

static void climb_latency(struct climb *climb) {
    const struct verify_report *report = climb->report;
    const struct verify_limits *limits = &climb->options->limits;
    if (report->rung[VERIFY_REQUEST].result != VERIFY_OK) return;
    double first_ms = 0, token_ms = 0;
    for (uint32_t i = 0; i < report->point_count; i++) {
        if (report->point[i].first_token_ms > first_ms) first_ms = report->point[i].first_token_ms;
        if (report->point[i].token_ms > token_ms) token_ms = report->point[i].token_ms;
    }
    const struct verify_point *shortest = &report->point[0];
    const struct verify_point *longest = &report->point[report->point_count - 1];
    double growth = shortest->token_ms > 0 ? longest->token_ms / shortest->token_ms : 1;
    bool slow = first_ms > limits->first_token_seconds * 1000 || token_ms > limits->token_ms ||
                growth > limits->token_growth;
    conclude(climb, VERIFY_LATENCY, slow ? VERIFY_FAILED : VERIFY_OK,
             "first token within %.2f s (at most %g), %.2f ms a token (at most %g); at %u tokens "
             "%.2f times what it is at %u (at most %g)",
             first_ms / 1000, limits->first_token_seconds, token_ms, limits->token_ms,
             longest->tok_count, growth, shortest->tok_count, limits->token_growth);
}

/* ---- errors -------------------------------------------------------------------------------- */

static const char *first_error(struct log_scan *scan) {
    log_scan_keep_errors(scan);
    return scan->line_count > 0 ? scan->line[0].text : "";
}

static void climb_errors(struct climb *climb) {
    const struct verify_options *options = climb->options;
    struct log_scan scan;
    struct error err;
    char boot[BOOT_ID_LEN + 1];
    if (!options->logs) {
        conclude(climb, VERIFY_ERRORS, VERIFY_SKIPPED,
                 "a group that is named by its endpoint has its logs elsewhere: espalier logs "
                 "--errors");
        return;
    }
    snprintf(boot, sizeof boot, "%016" PRIx64, climb->snapshot.boot_id);
    log_scan_init(&scan);
    if (log_scan_read_group(&scan, options->logs, options->log_dir, &err) != STATUS_OK) {
        conclude(climb, VERIFY_ERRORS, VERIFY_SKIPPED, "%s", err.text);
        log_scan_deinit(&scan);
        return;
    }
    log_scan_finish(&scan, boot);
    if (scan.error_count == 0)
        conclude(climb, VERIFY_ERRORS, VERIFY_OK, "no errors in boot %s (since %s)", boot,
                 scan.since);
    else
        conclude(climb, VERIFY_ERRORS, VERIFY_FAILED, "%u errors in boot %s, the first: %.300s",
                 scan.error_count, boot, first_error(&scan));
    log_scan_deinit(&scan);
}

/* ---- the ladder ---------------------------------------------------------------------------- */

/* Whether there is anybody to ask more: each rung would wait for a service that is gone. */
static bool is_reached(struct climb *climb, enum verify_rung rung) {
    struct look look;
    struct error err;
    if (climb->failed_by == STATUS_CANCELLED && is_interrupted(climb)) return false;
    if (climb->failed_by != STATUS_UNAVAILABLE) return true;
    if (look_at(climb, &look, &err) == STATUS_OK) return true;
    char *text = climb->report->rung[rung].text;
    size_t used = strlen(text);
    snprintf(text + used, VERIFY_TEXT_BYTES_MAX - used,
             "; the service cannot be reached any more: nothing more is asked");
    return false;
}

static void take_rung(struct climb *climb, enum verify_rung rung, void (*run)(struct climb *)) {
    int64_t begin_ns = clock_now_ns();
    climb->failed_by = STATUS_OK;
    run(climb);
    climb->report->rung[rung].seconds = (double)(clock_now_ns() - begin_ns) / 1e9;
}

void verify_climb(const struct verify_options *options, const struct client_options *client,
                  struct verify_report *report_out) {
    static void (*const run[VERIFY_RUNG_COUNT])(struct climb *) = {
        [VERIFY_RANKS] = climb_ranks,     [VERIFY_CAPACITY] = climb_capacity,
        [VERIFY_CACHE] = climb_cache,     [VERIFY_TOKENS] = climb_tokens,
        [VERIFY_REQUEST] = climb_request, [VERIFY_ATTENTION] = climb_attention,
        [VERIFY_LATENCY] = climb_latency, [VERIFY_ERRORS] = climb_errors};
    *report_out = (struct verify_report){.tp = 0};
    struct climb climb = {.options = options, .client_options = client, .report = report_out};
    struct error err;
    if (client_open(client, &climb.client, &err) != STATUS_OK) {
        fail_by(&climb, VERIFY_RANKS, &err);
        return;
    }
    take_rung(&climb, VERIFY_RANKS, climb_ranks);
    bool answers = report_out->rung[VERIFY_RANKS].result == VERIFY_OK;
    for (int rung = VERIFY_CAPACITY; answers && rung < VERIFY_ERRORS; rung++) {
        take_rung(&climb, (enum verify_rung)rung, run[rung]);
        answers = is_reached(&climb, (enum verify_rung)rung);
    }
    if (climb.snapshot.boot_id != 0) take_rung(&climb, VERIFY_ERRORS, climb_errors);
    show(&climb, "");
    free(climb.prompt);
    client_close(&climb.client);
}
