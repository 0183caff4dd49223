#include "sim_examine.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "codec.h"
#include "sim_cluster.h"

#define REFUSAL "a page that it has not"

struct sim_examine_totals sim_examine_totals;

static void expect_reason(const struct sim_cluster *cluster, const struct sim_examine *examine,
                          enum status status, const char *text);

static struct pool_id call_of(uint32_t idx) {
    return (struct pool_id){.slot = SIM_EXAMINE_SLOT + idx, .generation = 1};
}

static struct sim_examine *find(struct sim_cluster *cluster, struct pool_id call) {
    uint32_t idx = call.slot - SIM_EXAMINE_SLOT;
    bool is_one = call.slot >= SIM_EXAMINE_SLOT && idx < cluster->examines.count;
    return is_one ? &cluster->examines.of[idx] : NULL;
}

static struct sim_examine *find_number(struct sim_cluster *cluster, uint32_t number) {
    for (uint32_t i = 0; i < cluster->examines.count; i++)
        if (cluster->examines.of[i].number == number) return &cluster->examines.of[i];
    sim_cluster_fail(cluster, "an order to examine with number %u, which none had", number);
}

static unsigned index_of(const struct sim_cluster *cluster, const struct sim_examine *examine) {
    return (unsigned)(examine - cluster->examines.of);
}

/* ---- what is asked --------------------------------------------------------------------------- */

static void add_tokens(struct sim_examine *examine, const uint32_t *token, uint32_t count) {
    memcpy(examine->token + examine->token_count, token, count * sizeof *token);
    examine->token_count += count;
}

/* Of the call that is kept, or of any: its prompt and what it got, often cut somewhere. */
static void choose_tokens(struct sim_cluster *cluster, struct sim_examine *examine) {
    const struct sim_client *client = &cluster->client;
    const struct sim_call *call = cluster->examines.kept.call;
    if (!call || sim_random_percent(&cluster->random, 50))
        call = &client->call[sim_random_below(&cluster->random, client->call_count)];
    examine->tenant = call->tenant;
    add_tokens(examine, call->prompt, call->prompt_count);
    add_tokens(examine, call->choice[0].token, call->choice[0].token_count);
    if (sim_random_percent(&cluster->random, 40))
        examine->token_count = 1 + sim_random_below(&cluster->random, examine->token_count);
}

/* The tree is what is cached, and of what is in use that part which is published. */
static void bound_everything(struct sim_examine *examine, const struct snapshot *snapshot) {
    examine->pages_least = snapshot->pages_cached;
    examine->pages_most = snapshot->pages_total - snapshot->pages_free;
    if (snapshot->requests_running == 0) examine->pages_most = snapshot->pages_cached;
}

/* How many of the tokens those of the call that is kept are. */
static uint32_t kept_tok(const struct sim_examine *examine, const struct sim_call *call) {
    uint32_t count = 0;
    while (count < examine->token_count && count < call->prompt_count &&
           examine->token[count] == call->prompt[count])
        count++;
    return count;
}

static void bound_prefix(struct sim_cluster *cluster, struct sim_examine *examine,
                         const struct snapshot *snapshot) {
    const struct sim_kept *kept = &cluster->examines.kept;
    uint32_t page_tok = cluster->options.page_tok;
    examine->pages_most = examine->token_count / page_tok;
    if (!kept->call || kept->generation != snapshot->generation ||
        kept->evictions != snapshot->evictions || strcmp(kept->call->tenant, examine->tenant) != 0)
        return;
    examine->pages_least = kept_tok(examine, kept->call) / page_tok;
}

/* The event that ends the call may make room at once; what a flush took from a call that runs stays
 * taken. */
void sim_examine_keep(struct sim_cluster *cluster, const struct sim_call *call) {
    struct snapshot snapshot = core_snapshot(cluster->core, cluster->now_ns);
    if (cluster->options.disable_prefix_cache || call->choice_count > 1 ||
        call->came_ns <= cluster->examines.flushed_ns)
        return;
    cluster->examines.kept = (struct sim_kept){
        .call = call, .generation = snapshot.generation, .evictions = cluster->was_evicted};
}

void sim_examine_flushed(struct sim_cluster *cluster) {
    cluster->examines.flushed_ns = cluster->now_ns;
    sim_examine_forget(cluster);
}

void sim_examine_forget(struct sim_cluster *cluster) {
    cluster->examines.kept.call = NULL;
}

/* ---- asking ---------------------------------------------------------------------------------- */

static enum status refusal_due(const struct sim_cluster *cluster, const struct sim_examine *asks) {
    if (cluster->draining) return STATUS_UNAVAILABLE;
    for (uint32_t i = 0; i < cluster->examines.count; i++)
        if (&cluster->examines.of[i] != asks && !cluster->examines.of[i].ended)
            return STATUS_ABORTED;
    return cluster->is_serving ? STATUS_OK : STATUS_UNAVAILABLE;
}

static void send_event(struct sim_cluster *cluster, struct sim_examine *examine) {
    struct examine_request request = {
        .token = examine->token, .token_count = examine->token_count, .rows = examine->rows};
    struct error err;
    arena_reset(&cluster->wire);
    arena_reset(&cluster->lent);
    struct bytes bytes = codec_encode_examine_request(&request, &cluster->wire);
    if (codec_decode_examine_request(bytes, &cluster->lent, &request, &err) != STATUS_OK)
        sim_cluster_fail(cluster, "an examination that no coordinator can read: %s", err.text);
    struct event event = {.type = EVENT_EXAMINE};
    event.examine.call = call_of(index_of(cluster, examine));
    event.examine.tenant = examine->tenant;
    event.examine.token = request.token;
    event.examine.token_count = request.token_count;
    event.examine.rows = request.rows;
    sim_cluster_event(cluster, &event);
}

static struct sim_examine *add(struct sim_cluster *cluster) {
    struct sim_examine *examine = &cluster->examines.of[cluster->examines.count++];
    *examine = (struct sim_examine){.tenant = "", .stutters = TP_MAX};
    return examine;
}

static void begin(struct sim_cluster *cluster, struct sim_examine *examine) {
    struct snapshot snapshot = core_snapshot(cluster->core, cluster->now_ns);
    if (examine->token_count == 0)
        bound_everything(examine, &snapshot);
    else
        bound_prefix(cluster, examine, &snapshot);
    sim_cluster_say(cluster, "examine %u: %u tokens of \"%s\", %u rows; %u to %u pages",
                    index_of(cluster, examine), examine->token_count, examine->tenant,
                    examine->rows, examine->pages_least, examine->pages_most);
    examine->refusal = refusal_due(cluster, examine);
    bool refused = examine->refusal != STATUS_OK;
    send_event(cluster, examine);
    if (refused == (examine->number > 0) || (refused && !examine->ended))
        sim_cluster_fail(cluster, "examine %u must be %s, and is not", index_of(cluster, examine),
                         refused ? "refused" : "carried out");
}

static void ask_one(struct sim_cluster *cluster) {
    struct sim_random *random = &cluster->random;
    if (cluster->examines.count + 1 >= SIM_EXAMINES) return; /* but the last */
    struct sim_examine *examine = add(cluster);
    if (sim_random_percent(random, 75)) choose_tokens(cluster, examine);
    if (sim_random_percent(random, 40)) examine->rows = 1 + sim_random_below(random, TREE_ROWS_MAX);
    examine->may_refuse = !cluster->calm && sim_random_percent(random, 20);
    if (!cluster->calm && sim_random_percent(random, 3))
        examine->stutters = sim_random_below(random, cluster->options.tp);
    sim_process_may_be_mute(cluster);
    begin(cluster, examine);
    if (examine->ended || sim_random_percent(random, 80)) return;
    examine->cancel_as = sim_random_percent(random, 50) ? STATUS_CANCELLED
                                                        : STATUS_DEADLINE_EXCEEDED;
    struct sim_item item = {.kind = SIM_ITEM_EXAMINE_CANCEL, .who = index_of(cluster, examine)};
    uint32_t us_max = sim_random_percent(random, 40) ? 0 : 20000;
    sim_cluster_put(cluster, sim_cluster_chance_us(cluster, us_max), item, (struct bytes){0});
}

void sim_examine_ask(struct sim_cluster *cluster) {
    ask_one(cluster);
    if (sim_random_percent(&cluster->random, 25)) ask_one(cluster);
}

bool sim_examine_ask_last(struct sim_cluster *cluster) {
    struct sim_examines *examines = &cluster->examines;
    if (examines->is_last_asked || examines->count == 0 || !cluster->is_serving ||
        cluster->draining)
        return false;
    examines->is_last_asked = true;
    begin(cluster, add(cluster));
    return true;
}

void sim_examine_cancel(struct sim_cluster *cluster, uint32_t idx) {
    struct sim_examine *examine = &cluster->examines.of[idx];
    bool live = !examine->ended;
    struct event event = {.type = EVENT_CANCEL};
    event.cancel.call = call_of(idx);
    event.cancel.reason = examine->cancel_as;
    examine->cancelled = live;
    sim_cluster_event(cluster, &event);
    if (!examine->ended) sim_cluster_fail(cluster, "examine %u is cancelled and goes on", idx);
}

/* ---- the ranks' part ------------------------------------------------------------------------- */

/* A page of the prefix holds the prefix. */
static void expect_prefix(struct sim_cluster *cluster, const struct sim_examine *examine,
                          uint32_t rank, const struct control_examine *order) {
    const struct sim_worker *worker = &cluster->process[rank].worker;
    uint32_t page_tok = worker->limits.page_tok;
    uint64_t own = SIM_MODEL_START;
    for (uint32_t at = 0; at < order->page_count * page_tok; at++) {
        const struct sim_place *place =
            &worker->place[order->page[at / page_tok] * page_tok + at % page_tok];
        own = sim_model_extend(own, examine->token[at], at);
        if (place->own != own)
            sim_cluster_fail(cluster, "rank %u: page %u is examined and is not of the prefix", rank,
                             order->page[at / page_tok]);
    }
}

/* One hash a page. What nobody has written, or what was wiped, is no page of a prefix. */
static uint64_t look(struct sim_cluster *cluster, uint32_t rank,
                     const struct control_examine *order, uint64_t *hash_out) {
    const struct sim_worker *worker = &cluster->process[rank].worker;
    uint32_t page_tok = worker->limits.page_tok;
    uint64_t all = 0;
    for (uint32_t i = 0; i < order->page_count; i++) {
        hash_out[i] = 0;
        for (uint32_t j = 0; j < page_tok; j++) {
            uint64_t own = worker->place[order->page[i] * page_tok + j].own;
            if (own == UINT64_C(0xEEEEEEEEEEEEEEEE) || own == UINT64_C(0xDDDDDDDDDDDDDDDD))
                sim_cluster_fail(cluster, "rank %u: page %u is examined and holds nothing", rank,
                                 order->page[i]);
            hash_out[i] = sim_random_mix(hash_out[i] ^ own);
        }
        all = sim_random_mix(all ^ hash_out[i]);
    }
    return all;
}

static void expect_alike(struct sim_cluster *cluster, struct sim_examine *examine, uint32_t rank,
                         uint64_t hash) {
    if (examine->has_hash && examine->hash != hash)
        sim_cluster_fail(cluster, "examine %u: rank %u holds something else",
                         index_of(cluster, examine), rank);
    examine->has_hash = true;
    examine->hash = hash;
}

/* What tells the report of one rank and order from all others. */
static uint64_t mark_of(uint32_t number, uint32_t rank) {
    return (uint64_t)number * TP_MAX + rank;
}

struct worker_examined sim_examine_answer(struct sim_cluster *cluster, uint32_t rank,
                                          const struct control_examine *order) {
    static uint64_t hash[SIM_WORKER_PAGES];
    struct sim_examine *examine = find_number(cluster, order->number);
    examine->answered[rank] = true;
    if (order->rows != examine->rows)
        sim_cluster_fail(cluster, "rank %u is to time %u rows of %u", rank, order->rows,
                         examine->rows);
    if (examine->token_count > 0) expect_prefix(cluster, examine, rank, order);
    expect_alike(cluster, examine, rank, look(cluster, rank, order, hash));
    struct worker_examined examined = {.number = order->number, .text = ""};
    examined.report = (struct examine_report){.rank = rank, .device = "", .pages_per_hash = 1};
    if (examine->may_refuse && sim_random_percent(&cluster->random, 40)) {
        examine->refused[rank] = true;
        examined.status = STATUS_INVALID_ARGUMENT;
        examined.text = REFUSAL;
        return examined;
    }
    examined.report.device = "simulated";
    examined.report.page_count = examined.report.hash_count = order->page_count;
    examined.report.hash = hash;
    examined.report.attention_ns = order->rows;
    examined.report.collective_ns = mark_of(order->number, rank);
    return examined;
}

bool sim_examine_stutters(struct sim_cluster *cluster, uint32_t rank, uint32_t number) {
    if (find_number(cluster, number)->stutters != rank) return false;
    cluster->disturbed = true;
    return true;
}

/* ---- what the core makes of it --------------------------------------------------------------- */

static void expect_pages(const struct sim_cluster *cluster, const struct sim_examine *examine,
                         const struct control_examine *order) {
    static bool named[SIM_WORKER_PAGES];
    memset(named, 0, sizeof named);
    if (order->page_count < examine->pages_least || order->page_count > examine->pages_most)
        sim_cluster_fail(cluster, "examine %u: %u pages, there are %u to %u",
                         index_of(cluster, examine), order->page_count, examine->pages_least,
                         examine->pages_most);
    for (uint32_t i = 0; i < order->page_count; i++) {
        uint32_t page = order->page[i];
        if (page >= cluster->options.page_cap || named[page])
            sim_cluster_fail(cluster, "examine %u: page %u is named twice, or is none",
                             index_of(cluster, examine), page);
        named[page] = true;
    }
}

void sim_examine_order(struct sim_cluster *cluster, const struct control_examine *order) {
    struct sim_examines *examines = &cluster->examines;
    if (examines->count == 0) sim_cluster_fail(cluster, "nobody has asked to examine");
    struct sim_examine *examine = &examines->of[examines->count - 1];
    if (examine->number == order->number) return; /* to the next rank */
    if (examine->number > 0 || order->number <= examines->number)
        sim_cluster_fail(cluster, "order %u to examine after %u", order->number, examines->number);
    examine->number = examines->number = order->number;
    examine->page_count = order->page_count;
    sim_examine_totals.pages += order->page_count;
    sim_examine_totals.found += examine->token_count > 0 && examine->pages_least > 0;
    expect_pages(cluster, examine, order);
}

void sim_examine_report(struct sim_cluster *cluster, const struct effect *effect) {
    const struct examine_report *report = &effect->examined.report;
    struct sim_examine *examine = find(cluster, effect->examined.call);
    if (!examine) sim_cluster_fail(cluster, "a report that nobody asked for");
    uint32_t rank = report->rank;
    bool right = rank < cluster->options.tp && examine->answered[rank] && !examine->refused[rank] &&
                 report->page_count == examine->page_count &&
                 report->hash_count == examine->page_count &&
                 report->attention_ns == examine->rows &&
                 report->collective_ns == mark_of(examine->number, rank);
    uint64_t all = 0;
    for (uint32_t i = 0; right && i < report->hash_count; i++)
        all = sim_random_mix(all ^ report->hash[i]);
    if (!right || all != examine->hash)
        sim_cluster_fail(cluster, "examine %u: a report that rank %u did not give",
                         index_of(cluster, examine), rank);
    if (examine->reported[rank])
        sim_cluster_fail(cluster, "examine %u: rank %u reports twice", index_of(cluster, examine),
                         rank);
    examine->reported[rank] = true;
    sim_examine_totals.reports++;
}

void sim_examine_goes_on(struct sim_cluster *cluster, struct pool_id call) {
    const struct sim_examine *examine = find(cluster, call);
    if (examine->ended)
        sim_cluster_fail(cluster, "examine %u goes on after its end", index_of(cluster, examine));
}

bool sim_examine_end(struct sim_cluster *cluster, const struct effect *effect) {
    struct sim_examine *examine = find(cluster, effect->call_end.call);
    if (!examine) return false;
    enum status status = effect->call_end.status;
    sim_cluster_say(cluster, "examine %u ends: %s %s", index_of(cluster, examine),
                    status_name(status), effect->call_end.text);
    sim_examine_goes_on(cluster, effect->call_end.call);
    expect_reason(cluster, examine, status, effect->call_end.text);
    examine->ended = true;
    sim_examine_totals.ended[status]++;
    return true;
}

static bool all_reported(const struct sim_cluster *cluster, const struct sim_examine *examine) {
    for (uint32_t rank = 0; rank < cluster->options.tp; rank++)
        if (!examine->reported[rank]) return false;
    return true;
}

/* "rank N: ..." of a rank that refused. */
static bool is_refusal(const struct sim_cluster *cluster, const struct sim_examine *examine,
                       const char *text) {
    char wanted[64];
    for (uint32_t rank = 0; rank < cluster->options.tp; rank++) {
        snprintf(wanted, sizeof wanted, "rank %u: " REFUSAL, rank);
        if (examine->refused[rank] && strcmp(text, wanted) == 0) return true;
    }
    return false;
}

/* Who is late has not been heard. */
static bool is_late(const struct sim_cluster *cluster, const struct sim_examine *examine,
                    const char *text) {
    unsigned rank;
    int end = 0;
    sscanf(text, "the worker group is lost: rank %u: it does not answer the order to examine%n",
           &rank, &end);
    if (end == 0) return true; /* lost for another reason */
    sim_examine_totals.late++;
    return rank < cluster->options.tp && !examine->reported[rank];
}

/* A group that was there, asked, and is gone: or none that could be asked. */
static bool is_unavailable(const struct sim_cluster *cluster, const struct sim_examine *examine,
                           const char *text) {
    static const char lost[] = "the worker group is lost: ";
    if (examine->number == 0)
        return cluster->draining ? strncmp(text, "draining: ", 10) == 0
                                 : strncmp(text, "no group serves: ", 17) == 0;
    sim_examine_totals.lost++;
    if (cluster->is_exiting) return true;
    return cluster->was_serving && !cluster->is_serving &&
           strncmp(text, lost, sizeof lost - 1) == 0 && is_late(cluster, examine, text);
}

static void expect_reason(const struct sim_cluster *cluster, const struct sim_examine *examine,
                          enum status status, const char *text) {
    bool right = false;
    if (examine->number == 0 && status != examine->refusal)
        sim_cluster_fail(cluster, "examine %u is refused as %s: %s", index_of(cluster, examine),
                         status_name(status), text);
    switch (status) {
    case STATUS_OK: right = all_reported(cluster, examine) && text[0] == '\0'; break;
    case STATUS_ABORTED:
        right = examine->number == 0 && strcmp(text, "another examination is under way") == 0;
        break;
    case STATUS_UNAVAILABLE: right = is_unavailable(cluster, examine, text); break;
    case STATUS_INVALID_ARGUMENT: right = is_refusal(cluster, examine, text); break;
    case STATUS_CANCELLED:
    case STATUS_DEADLINE_EXCEEDED:
        right = examine->cancelled && examine->cancel_as == status &&
                strcmp(text, "not all ranks have answered") == 0;
        break;
    default: break;
    }
    if (!right)
        sim_cluster_fail(cluster, "examine %u ends as %s without a reason: %s",
                         index_of(cluster, examine), status_name(status), text);
}

bool sim_examine_all_ended(const struct sim_cluster *cluster) {
    for (uint32_t i = 0; i < cluster->examines.count; i++)
        if (!cluster->examines.of[i].ended) return false;
    return true;
}

void sim_examine_expect_ended(const struct sim_cluster *cluster) {
    for (uint32_t i = 0; i < cluster->examines.count; i++)
        if (!cluster->examines.of[i].ended) sim_cluster_fail(cluster, "examine %u has no end", i);
}
