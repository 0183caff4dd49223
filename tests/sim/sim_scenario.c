#include "sim_scenario.h"

#include <string.h>

#include "base/check.h"
#include "sim_cluster.h"

#define FAMILIES      3u /* of prompts that share a beginning */
#define FAULT_MS_MOST 6000u
#define CALM_MS       6500u

/* What the calls of a seed have in common, in percent. */
static struct {
    uint32_t shares;      /* prompts that begin like others */
    uint32_t short_reply; /* they ask for a few tokens, not for many */
    uint32_t goes_on;     /* they do not stop at the end of the text */
    uint32_t choices;     /* they want several choices */
    bool turns;           /* short replies at first, then long ones, which nobody expects */
} load;

static uint32_t below(struct sim_cluster *cluster, uint32_t bound) {
    return sim_random_below(&cluster->random, bound);
}

static bool percent(struct sim_cluster *cluster, uint32_t chance) {
    return sim_random_percent(&cluster->random, chance);
}

static void choose_pool(struct sim_cluster *cluster) {
    static const uint32_t page_tok[] = {1, 2, 4, 4, 16, 64}, context[] = {24, 64, 96, 192};
    struct core_options *options = &cluster->options;
    options->page_tok = page_tok[below(cluster, 6)];
    options->context_len = context[below(cluster, 4)];
    uint32_t least = (options->context_len + options->page_tok - 1) / options->page_tok;
    uint32_t spare = load.turns ? least : percent(cluster, 50) ? 5 * least : 1;
    options->page_count = least + below(cluster, spare);
    options->page_cap = options->page_count * (1 + below(cluster, 3)) + 1;
    if (options->page_cap > SIM_WORKER_PLACES / options->page_tok)
        options->page_cap = SIM_WORKER_PLACES / options->page_tok;
    if (options->page_cap > SIM_WORKER_PAGES) options->page_cap = SIM_WORKER_PAGES;
    if (percent(cluster, 10)) {
        options->page_count = options->page_cap = least / 2 + 1;
        options->allow_short_pool = true;
    }
}

/* Limits that most clusters run without. */
static void choose_limits(struct sim_cluster *cluster) {
    struct core_options *options = &cluster->options;
    options->schedule_policy = (enum schedule_policy)below(cluster, SCHEDULE_PRIORITY + 1);
    options->disable_prefix_cache = percent(cluster, 15);
    options->overlap_steps = percent(cluster, 50);
    if (percent(cluster, 15)) options->max_queued_tokens = 64 + below(cluster, 1000);
    if (percent(cluster, 15)) options->queue_timeout_ms = 1 + below(cluster, 2000);
    if (percent(cluster, 30)) options->max_prefill_tokens = 1 + below(cluster, 100);
    if (percent(cluster, 20)) options->target_step_ms = 1 + below(cluster, 30);
    if (percent(cluster, 30))
        options->max_step_rows = options->max_running_requests + below(cluster, 20);
}

/* Half of all clusters guess, from anything, trees of any size. */
static void choose_speculation(struct sim_cluster *cluster) {
    static const uint32_t tree_rows[] = {2, 4, 8, 24, 64};
    struct core_options *options = &cluster->options;
    if (percent(cluster, 50)) return;
    options->speculative_algorithm = (enum speculative_algorithm)(1 + below(cluster, 3));
    options->speculative_tree_rows = tree_rows[below(cluster, 5)];
    options->speculative_history_tok = 64u << below(cluster, 4);
    options->speculative_fixed = percent(cluster, 70);
    options->speculative_seed_chain = percent(cluster, 50);
}

static bool has_drafter(struct sim_cluster *cluster) {
    return cluster->options.speculative_algorithm == SPECULATE_DFLASH || percent(cluster, 50);
}

void sim_scenario_choose(struct sim_cluster *cluster) {
    static const uint32_t chunk_max[] = {2, 8, 24, 24, 64, 256}, tp[] = {1, 1, 2, 2, 4, 8};
    cluster->options = (struct core_options){
        .spec = &cluster->spec,
        .vocab = sim_model_vocab(),
        .model_fingerprint = 0xfeed,
        .boot_id = 9,
        .pid = 1,
        .process_start = 2,
        .tp = tp[below(cluster, 6)],
        .max_running_requests = 1 + below(cluster, percent(cluster, 50) ? 4 : 16),
        .max_queued_requests = percent(cluster, 20) ? 1 + below(cluster, 4) : SIM_CALLS,
        .chunked_prefill_size = 1 + below(cluster, chunk_max[below(cluster, 6)]),
        .heartbeat_ms = 200,
        .step_timeout_ms = 1000,
        .load_timeout_ms = 1000,
        .rejoin_timeout_ms = 5000,
    };
    static const uint32_t shares[] = {0, 50, 95}, short_reply[] = {90, 50, 5},
                          goes_on[] = {50, 10, 20}, choices[] = {0, 10, 50};
    load.shares = shares[below(cluster, 3)];
    load.short_reply = short_reply[below(cluster, 3)];
    load.goes_on = goes_on[below(cluster, 3)];
    load.choices = choices[below(cluster, 3)];
    load.turns = percent(cluster, 40);
    if (load.turns) cluster->options.max_running_requests = 4 + below(cluster, 12);
    cluster->options.max_running_cap = cluster->options.max_running_requests + below(cluster, 8);
    choose_pool(cluster);
    choose_limits(cluster);
    choose_speculation(cluster);
    cluster->weather = (struct sim_weather){
        .delay_us_max = percent(cluster, 30) ? 100000 : 500,
        .compute_us_max = percent(cluster, 30) ? 60000 : 8000,
        .laggard_us_max = percent(cluster, 40) ? 60000 : 0,
        .load_us_max = percent(cluster, 8) ? 3000000 : 100000,
        .stall_percent = percent(cluster, 8) ? 25 : 0,
        .relaunch_ms_max = percent(cluster, 30) ? 1500 : 100,
        .stay_dead_percent = percent(cluster, 20) ? 30 : 0,
        .draft_len = has_drafter(cluster) ? 1 + below(cluster, 9) : 0,
        .draft_luck = below(cluster, 11),
    };
}

/* A length below `most`, mostly short. */
static uint32_t some_length(struct sim_cluster *cluster, uint32_t most) {
    uint32_t dice = below(cluster, 10);
    if (dice < (load.turns ? 8u : 5u)) return 1 + below(cluster, most / 6 + 1);
    return 1 + below(cluster, dice < 9 ? most : most + most / 3);
}

static void choose_prompt(struct sim_cluster *cluster, struct sim_call *call) {
    uint32_t count = some_length(cluster, cluster->options.context_len - 1);
    if (count > SIM_PROMPT_MAX) count = SIM_PROMPT_MAX;
    uint32_t shared = 0, own_end = percent(cluster, 50) ? 4 : count + 1;
    if (percent(cluster, load.shares)) shared = count - below(cluster, own_end) % (count + 1);
    uint32_t family = below(cluster, FAMILIES);
    for (uint32_t i = 0; i < count; i++) {
        call->prompt[i] = i < shared ? 'a' + (uint32_t)(sim_random_mix(family << 16 | i) % 6)
                                     : 'a' + below(cluster, 6);
        call->text[i] = (char)call->prompt[i];
    }
    call->prompt_count = count;
    struct generate_request *request = &call->request;
    request->prompt_kind = PROMPT_TOKENS;
    if (percent(cluster, 30)) {
        request->prompt_kind = percent(cluster, 50) ? PROMPT_TEXT : PROMPT_CHAT;
        request->prompt_text = bytes_of_text(call->text);
        call->in_reasoning = request->prompt_kind == PROMPT_CHAT && percent(cluster, 50);
        call->job_fails = percent(cluster, 5);
        return;
    }
    request->prompt_token = call->prompt;
    request->prompt_token_count = count;
    if (percent(cluster, 10)) {
        call->prompt[count - 1] = SIM_TOKEN_THINK;
        call->in_reasoning = true;
    }
    if (percent(cluster, 3)) {
        call->prompt[below(cluster, count)] = SIM_TOKEN_VOCAB;
        call->has_bad_token = true;
    }
}

/* How long a reply may get, and whether it gets that long. */
static void choose_length(struct sim_cluster *cluster, struct sim_call *call, bool is_late) {
    struct generate_request *request = &call->request;
    uint32_t most = cluster->options.context_len;
    bool is_short = load.turns ? !is_late : percent(cluster, load.short_reply);
    request->max_tokens = 1 + below(cluster, is_short ? 12 : most);
    if (percent(cluster, 10)) request->max_tokens = 0;
    request->ignore_eos = percent(cluster, load.goes_on);
    if (!load.turns || !is_late || percent(cluster, 20)) return;
    request->ignore_eos = true;
    request->stop_count = request->stop_token_count = 0;
}

/* Ids far enough apart to ascend. */
static void choose_bias(struct sim_cluster *cluster, struct sim_call *call) {
    struct sampling *sampling = &call->request.sampling;
    if (percent(cluster, 80)) return;
    sampling->logit_bias = call->bias;
    sampling->logit_bias_count = 1 + below(cluster, SIM_BIASES);
    for (uint32_t i = 0; i < SIM_BIASES; i++)
        call->bias[i] = (struct logit_bias){.token = i * 100 + below(cluster, 100),
                                            .value = (float)below(cluster, 9) - 4};
    if (percent(cluster, 95)) return;
    call->bias[sampling->logit_bias_count - 1].token = SIM_TOKEN_VOCAB;
    call->has_bad_token = true;
}

static void choose_penalties(struct sim_cluster *cluster, struct sampling *sampling) {
    sampling->repetition_penalty = (float)below(cluster, 2); /* neither is one */
    if (percent(cluster, 70)) return;
    sampling->repetition_penalty = (float)below(cluster, 4) * 0.5f;
    sampling->presence_penalty = (float)below(cluster, 5) - 2;
    sampling->frequency_penalty = (float)below(cluster, 5) - 2;
}

static void choose_wish(struct sim_cluster *cluster, struct sim_call *call) {
    static const char *const stop[] = {"END", "ab", "e e", "the a", ".b", "cc", "</think>d"};
    struct generate_request *request = &call->request;
    request->sampling.top_p = 1;
    if (percent(cluster, 50)) {
        request->sampling.temperature = 0.5f;
        request->sampling.top_p = percent(cluster, 50) ? 0.75f : 1;
        request->sampling.top_k = below(cluster, 3) * 10;
    }
    choose_penalties(cluster, &request->sampling);
    choose_bias(cluster, call);
    request->sampling.has_seed = percent(cluster, 50);
    request->sampling.seed = below(cluster, 4);
    request->keep_special = percent(cluster, 20);
    request->include_stop = percent(cluster, 30);
    request->logprobs = percent(cluster, 15);
    request->top_logprobs = request->logprobs ? below(cluster, 4) : 0;
    request->stop_count = percent(cluster, 40) ? 1 + below(cluster, SIM_STOPS) : 0;
    request->stop = call->stop;
    for (uint32_t i = 0; i < SIM_STOPS; i++)
        call->stop[i] = stop[below(cluster, sizeof stop / sizeof stop[0])];
    request->stop_token_count = percent(cluster, 15);
    request->stop_token = call->stop_token;
    call->stop_token[0] = 'c';
    call->is_malformed = percent(cluster, 2);
    if (call->is_malformed) request->sampling.top_p = 1.5f;
    request->choice_count = below(cluster, 2);
    if (percent(cluster, load.choices)) request->choice_count = 2 + below(cluster, SIM_CHOICES - 1);
    call->choice_count = request->choice_count > 1 ? request->choice_count : 1;
    call->random = below(cluster, 1000);
}

/* Who sends it, and under which name. */
static void choose_origin(struct sim_cluster *cluster, struct sim_call *call) {
    static const char *const tenant[] = {"", "", "", "red", "blue"}, *const key[] = {"k1", "k2"};
    call->tenant = tenant[below(cluster, 5)];
    call->key = percent(cluster, 10) ? key[below(cluster, 2)] : "";
    call->priority = (int32_t)below(cluster, 5) - 2;
}

/* What its client does to a call: cancels at once or later, gives up at a deadline, dies in
 * silence, reads too slowly. */
static void choose_manners(struct sim_cluster *cluster, struct sim_call *call, uint32_t call_idx,
                           int64_t at_ns) {
    call->cancel_at = UINT32_MAX;
    call->cancels_again = percent(cluster, 10);
    uint32_t dice = below(cluster, cluster->storm ? 30 : 100);
    struct sim_item item = {.kind = SIM_ITEM_CANCEL, .who = call_idx};
    int64_t later_ns = 0;
    if (dice < 10) {
        item.what = STATUS_CANCELLED;
        later_ns = sim_cluster_chance_us(cluster, percent(cluster, 50) ? 300 : 500000);
    } else if (dice < 16) {
        item.what = STATUS_DEADLINE_EXCEEDED;
        later_ns = sim_cluster_chance_us(cluster, 800000);
    } else if (dice < 18) {
        item.what = STATUS_UNAVAILABLE; /* six seconds of silence, as the rpc server finds out */
        later_ns = 6000 * SIM_MS;
    } else if (dice < 30) {
        call->cancel_at = 1 + below(cluster, 20);
        call->cancel_as = percent(cluster, 70) ? STATUS_CANCELLED : STATUS_RESOURCE_EXHAUSTED;
        return;
    } else {
        return;
    }
    sim_cluster_put(cluster, at_ns + later_ns, item, (struct bytes){0});
}

static void put_call(struct sim_cluster *cluster, uint32_t call_idx, uint32_t span_ms) {
    struct sim_call *call = &cluster->client.call[call_idx];
    memset(call, 0, sizeof *call);
    choose_prompt(cluster, call);
    choose_wish(cluster, call);
    choose_origin(cluster, call);
    int64_t at_ns = 10 * SIM_MS + sim_cluster_chance_us(cluster, span_ms * 1000);
    choose_length(cluster, call, at_ns > span_ms * SIM_MS / 2);
    choose_manners(cluster, call, call_idx, at_ns);
    struct sim_item item = {.kind = SIM_ITEM_CALL, .who = call_idx};
    sim_cluster_put(cluster, at_ns, item, sim_client_encode(cluster, call));
}

/* Sometimes while the first group still forms, and then without mercy. */
static void put_drain(struct sim_cluster *cluster) {
    bool is_early = percent(cluster, 50);
    int64_t at_ns = is_early ? 40 * SIM_MS + sim_cluster_chance_us(cluster, 150000)
                             : sim_cluster_chance_us(cluster, FAULT_MS_MOST * 1000);
    struct sim_item item = {.kind = SIM_ITEM_DRAIN};
    item.value = (uint64_t)sim_cluster_chance_us(cluster, is_early ? 1000 : 4000000);
    sim_cluster_put(cluster, at_ns, item, (struct bytes){0});
}

void sim_scenario_put(struct sim_cluster *cluster) {
    static const uint32_t fault_count[] = {0, 0, 1, 2, 4, 8};
    struct bytes none = {0};
    for (uint32_t rank = 0; rank < cluster->options.tp; rank++)
        sim_cluster_put(cluster, sim_cluster_chance_us(cluster, 50000),
                        (struct sim_item){.kind = SIM_ITEM_LAUNCH, .who = rank}, none);
    uint32_t least = load.turns ? SIM_CALLS * 2 / 3 : 4;
    cluster->client.call_count = least + below(cluster, SIM_CALLS - least);
    uint32_t span_ms = percent(cluster, 30) ? 50 : percent(cluster, 50) ? 1000 : 5000;
    for (uint32_t i = 0; i < cluster->client.call_count; i++)
        put_call(cluster, i, span_ms);
    uint32_t faults = cluster->canary ? 0 : fault_count[below(cluster, 6)];
    for (uint32_t i = 0; i < faults; i++)
        sim_cluster_put(cluster, sim_cluster_chance_us(cluster, FAULT_MS_MOST * 1000),
                        (struct sim_item){.kind = SIM_ITEM_FAULT}, none);
    for (uint32_t i = percent(cluster, 30) ? 1 + below(cluster, 4) : 0; i > 0; i--)
        sim_cluster_put(cluster, sim_cluster_chance_us(cluster, FAULT_MS_MOST * 1000),
                        (struct sim_item){.kind = SIM_ITEM_FLUSH}, none);
    bool resizes = !cluster->canary && !cluster->options.allow_short_pool && percent(cluster, 40);
    for (uint32_t i = resizes ? 1 + below(cluster, SIM_RESIZES) : 0; i > 0; i--)
        sim_cluster_put(cluster, sim_cluster_chance_us(cluster, span_ms * 1000 + 200000),
                        (struct sim_item){.kind = SIM_ITEM_RESIZE}, none);
    bool examines = !cluster->canary && percent(cluster, 40);
    for (uint32_t i = examines ? 1 + below(cluster, SIM_EXAMINES) : 0; i > 0; i--)
        sim_cluster_put(cluster,
                        50 * SIM_MS + sim_cluster_chance_us(cluster, span_ms * 1000 + 300000),
                        (struct sim_item){.kind = SIM_ITEM_EXAMINE}, none);
    if (!cluster->canary && percent(cluster, 12)) put_drain(cluster);
    sim_cluster_put(cluster, CALM_MS * SIM_MS, (struct sim_item){.kind = SIM_ITEM_CALM}, none);
}

void sim_scenario_fault(struct sim_cluster *cluster) {
    uint32_t rank = below(cluster, cluster->options.tp);
    struct sim_process *process = &cluster->process[rank];
    /* Half a microsecond: no message is due just then, and overtakes those that wait. */
    int64_t short_ns = 500 + sim_cluster_chance_us(cluster, 250000);
    int64_t long_ns = 1500 * SIM_MS + 500 + sim_cluster_chance_us(cluster, 2500000);
    uint32_t dice = below(cluster, 100);
    sim_cluster_say(cluster, "fault %u at rank %u", dice, rank);
    if (dice < 20) {
        sim_process_kill(cluster, rank);
    } else if (dice < 30) {
        sim_process_stop(cluster, rank, cluster->now_ns + short_ns);
    } else if (dice < 37) {
        cluster->disturbed = true;
        sim_process_stop(cluster, rank, cluster->now_ns + long_ns);
    } else if (dice < 42) {
        process->slow_until_ns = cluster->now_ns + long_ns;
    } else if (dice < 47) {
        sim_process_fault(cluster, rank, percent(cluster, 50));
    } else if (dice < 50) {
        sim_cluster_cut(cluster, rank);
    } else if (dice < 52) {
        process->gets_twice = true;
    } else if (dice < 57) {
        bool is_long = percent(cluster, 50);
        cluster->disturbed = cluster->disturbed || is_long;
        cluster->paused_until_ns = cluster->now_ns + (is_long ? long_ns : short_ns);
    } else if (dice < 62) {
        cluster->disturbed = true;
        cluster->skew_ns += percent(cluster, 50) ? -short_ns : 4 * long_ns;
    } else {
        process->lie = percent(cluster, 35) ? SIM_LIE_HASH : 1 + below(cluster, SIM_LIE_COUNT - 1);
        if (process->lie != SIM_LIE_GHOST) cluster->disturbed = true;
    }
}
