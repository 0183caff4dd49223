#include "sim_resize.h"

#include "base/check.h"
#include "sim_cluster.h"

static struct pool_id call_of(uint32_t idx) {
    return (struct pool_id){.slot = SIM_RESIZE_SLOT + idx, .generation = 1};
}

static struct sim_resize *find(struct sim_cluster *cluster, struct pool_id call) {
    uint32_t idx = call.slot - SIM_RESIZE_SLOT;
    return call.slot >= SIM_RESIZE_SLOT && idx < cluster->resizes.count ? &cluster->resizes.of[idx]
                                                                        : NULL;
}

static uint32_t pages_now(struct sim_cluster *cluster) {
    return core_snapshot(cluster->core, cluster->now_ns).pages_total;
}

static struct resize_request choose(struct sim_cluster *cluster) {
    const struct core_options *options = &cluster->options;
    struct resize_request request = {.force = sim_random_percent(&cluster->random, 40)};
    uint32_t least = (options->context_len + options->page_tok - 1) / options->page_tok;
    uint32_t most = options->page_cap + options->page_cap / 8, pages = least;
    if (sim_random_percent(&cluster->random, 70)) /* often just about what is in use */
        pages = least / 2 + sim_random_below(&cluster->random, most - least / 2);
    uint32_t dice = sim_random_below(&cluster->random, 100);
    if (dice < 70) request.tokens = pages * options->page_tok;
    if (dice >= 68 && dice < 85) /* seldom both: refused */
        request.mem_fraction = 1 + sim_random_below(&cluster->random, FRACTION_ONE);
    if (sim_random_percent(&cluster->random, 30))
        request.max_running_requests = sim_random_below(&cluster->random, 34);
    return request;
}

static void cancel(struct sim_cluster *cluster, uint32_t idx) {
    struct event event = {.type = EVENT_CANCEL};
    event.cancel.call = call_of(idx);
    event.cancel.reason = STATUS_CANCELLED;
    cluster->resizes.of[idx].cancelled = true;
    sim_cluster_event(cluster, &event);
}

void sim_resize_ask(struct sim_cluster *cluster) {
    struct sim_resizes *resizes = &cluster->resizes;
    if (resizes->count == SIM_RESIZES) return;
    uint32_t idx = resizes->count++;
    struct sim_resize *resize = &resizes->of[idx];
    *resize = (struct sim_resize){.request = choose(cluster), .pages_before = pages_now(cluster)};
    bool may_fail = sim_random_percent(&cluster->random, 25);
    sim_process_may_be_mute(cluster);
    sim_cluster_say(cluster, "resize %u of %u pages: %u tokens, fraction %u, %u running%s", idx,
                    resize->pages_before, resize->request.tokens, resize->request.mem_fraction,
                    resize->request.max_running_requests, resize->request.force ? ", force" : "");
    struct event event = {.type = EVENT_RESIZE};
    event.resize.call = call_of(idx);
    event.resize.request = resize->request;
    sim_examine_forget(cluster);
    sim_cluster_event(cluster, &event);
    if (resize->ended) return;
    resizes->may_fail = may_fail;
    if (sim_random_percent(&cluster->random, 10)) cancel(cluster, idx);
}

uint32_t sim_resize_hold(struct sim_cluster *cluster, uint32_t rank,
                         const struct control_size *question) {
    struct sim_resizes *resizes = &cluster->resizes;
    uint32_t most = cluster->options.page_cap + cluster->options.page_cap / 4;
    uint32_t pages = (uint32_t)((uint64_t)most * question->mem_fraction / FRACTION_ONE);
    pages -= sim_random_below(&cluster->random, pages / 8 + 1);
    sim_cluster_say(cluster, "rank %u: memory for %u pages", rank, pages);
    if (question->number != resizes->sized_number || pages < resizes->sized_least)
        resizes->sized_least = pages;
    resizes->sized_number = question->number;
    return pages;
}

bool sim_resize_progress(struct sim_cluster *cluster, struct pool_id call,
                         const struct resize_progress *progress) {
    struct sim_resize *resize = find(cluster, call);
    if (!resize) return false;
    if (resize->ended || resize->done) sim_cluster_fail(cluster, "a resize goes on after its end");
    resize->done = progress->phase == RESIZE_DONE;
    sim_examine_forget(cluster);
    sim_cluster_totals.pages_moved += resize->done ? progress->pages_moved : 0;
    if (progress->requests_retracted > 0 && !resize->request.force)
        sim_cluster_fail(cluster, "a resize sends requests back and was not asked to");
    if (resize->done && progress->pages_now != pages_now(cluster))
        sim_cluster_fail(cluster, "a resize says %u pages and there are %u", progress->pages_now,
                         pages_now(cluster));
    if (resize->done && resize->request.mem_fraction > 0 &&
        progress->pages_now != cluster->resizes.sized_least)
        sim_cluster_fail(cluster, "a resize by memory gives %u pages, the least rank holds %u",
                         progress->pages_now, cluster->resizes.sized_least);
    return true;
}

bool sim_resize_end(struct sim_cluster *cluster, const struct effect *effect) {
    struct sim_resize *resize = find(cluster, effect->call_end.call);
    if (!resize) return false;
    enum status status = effect->call_end.status;
    sim_cluster_say(cluster, "resize ends: %s %s", status_name(status), effect->call_end.text);
    if (resize->ended) sim_cluster_fail(cluster, "a resize ends twice");
    if (resize->done != (status == STATUS_OK))
        sim_cluster_fail(cluster, "a resize that is %sdone ends with %s",
                         resize->done ? "" : "not ", status_name(status));
    resize->ended = true;
    bool stands = status != STATUS_OK && status != STATUS_CANCELLED && status != STATUS_ABORTED;
    if (stands && pages_now(cluster) != resize->pages_before)
        sim_cluster_fail(cluster, "a resize that failed leaves %u pages of %u", pages_now(cluster),
                         resize->pages_before);
    if (status == STATUS_OK) sim_cluster_totals.resizes++;
    if (status == STATUS_RESOURCE_EXHAUSTED) sim_cluster_totals.resizes_undone++;
    return true;
}

bool sim_resize_all_ended(const struct sim_cluster *cluster) {
    for (uint32_t i = 0; i < cluster->resizes.count; i++)
        if (!cluster->resizes.of[i].ended) return false;
    return true;
}

void sim_resize_expect_ended(const struct sim_cluster *cluster) {
    const struct sim_resizes *resizes = &cluster->resizes;
    for (uint32_t i = 0; i < resizes->count; i++)
        if (!resizes->of[i].ended) sim_cluster_fail(cluster, "resize %u has no end", i);
}
