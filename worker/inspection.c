#include "inspection.h"

#include <stdlib.h>

#include "attention.h"
#include "base/clock.h"
#include "base/hash.h"
#include "team.h"

/* ============================== what they hold ================================================ */

struct hashing {
    const struct kv_pool *pool;
    const struct control_examine *order;
    uint32_t pages_per_hash;
    uint64_t *hash;
};

static void hash_pages(void *user, uint32_t task, uint32_t thread) {
    (void)thread;
    struct hashing *hashing = user;
    const struct control_examine *order = hashing->order;
    uint32_t begin = task * hashing->pages_per_hash, end = begin + hashing->pages_per_hash;
    size_t page_bytes = kv_pool_page_bytes(hashing->pool);
    uint64_t hash = HASH_CHAIN_EMPTY;
    for (uint32_t i = begin; i < end && i < order->page_count; i++)
        for (uint32_t layer = 0; layer < kv_pool_layers(hashing->pool); layer++) {
            const uint8_t *base = kv_pool_layer(hashing->pool, layer);
            hash = hash_bytes(base + order->page[i] * page_bytes, page_bytes, hash);
        }
    hashing->hash[task] = hash;
}

/* The same of a device's pages, which are fetched one by one. */
static enum status hash_far_pages(const struct hashing *hashing, uint32_t count,
                                  struct error *err) {
    const struct kv_pool *pool = hashing->pool;
    const struct control_examine *order = hashing->order;
    const size_t page_bytes = kv_pool_page_bytes(pool);
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < count; i++)
        hashing->hash[i] = HASH_CHAIN_EMPTY;
    for (uint32_t i = 0; i < order->page_count; i++) {
        uint64_t *hash = &hashing->hash[i / hashing->pages_per_hash];
        for (uint32_t layer = 0; layer < kv_pool_layers(pool) && status == STATUS_OK; layer++) {
            const uint8_t *base = kv_pool_layer(pool, layer);
            const void *page;
            status = device_look(kv_pool_device(pool), base + order->page[i] * page_bytes,
                                 page_bytes, &page, err);
            if (status != STATUS_OK) return status;
            *hash = hash_bytes(page, page_bytes, *hash);
            device_looked(kv_pool_device(pool), page);
        }
    }
    return STATUS_OK;
}

enum status inspection_hash(const struct kv_pool *pool, struct kernel_team *team,
                            const struct control_examine *order, struct examine_report *report_out,
                            uint64_t **hash_out, struct error *err) {
    for (uint32_t i = 0; i < order->page_count; i++)
        if (order->page[i] >= kv_pool_pages(pool))
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "page %u is to be examined, of a pool of %u", order->page[i],
                             kv_pool_pages(pool));
    uint32_t per_hash = (order->page_count + EXAMINE_HASHES_MAX - 1) / EXAMINE_HASHES_MAX;
    if (per_hash == 0) per_hash = 1;
    uint32_t count = (order->page_count + per_hash - 1) / per_hash;
    struct hashing hashing = {.pool = pool, .order = order, .pages_per_hash = per_hash};
    hashing.hash = calloc(count + 1, sizeof *hashing.hash);
    if (!hashing.hash)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for %u hashes", count);
    if (kv_pool_device(pool)) {
        enum status status = hash_far_pages(&hashing, count, err);
        if (status != STATUS_OK) {
            free(hashing.hash);
            return status;
        }
    } else {
        team_run(team, hash_pages, &hashing, count);
    }
    report_out->page_count = order->page_count;
    report_out->pages_per_hash = per_hash;
    report_out->hash = *hash_out = hashing.hash;
    report_out->hash_count = count;
    return STATUS_OK;
}

/* ============================== how fast they are read ======================================== */

#define REPEATS_MAX 16u
#define BUDGET_NS   (500 * NS_PER_MS) /* for the attention, and for the reading */

struct reading {
    const uint8_t *base; /* of the layer */
    size_t page_bytes;
    const struct control_examine *order;
    uint32_t share; /* pages of a task */
    uint64_t *sum;  /* [tasks], so that nothing is left out */
};

static void read_pages(void *user, uint32_t task, uint32_t thread) {
    (void)thread;
    struct reading *reading = user;
    const struct control_examine *order = reading->order;
    uint32_t begin = task * reading->share, end = begin + reading->share;
    uint64_t sum[8] = {0};
    for (uint32_t i = begin; i < end && i < order->page_count; i++) {
        const uint64_t *word = (const void *)(reading->base + order->page[i] * reading->page_bytes);
        for (size_t k = 0; k + 8 <= reading->page_bytes / sizeof *word; k += 8)
            for (uint32_t lane = 0; lane < 8; lane++)
                sum[lane] += word[k + lane];
    }
    uint64_t all = 0;
    for (uint32_t lane = 0; lane < 8; lane++)
        all += sum[lane];
    reading->sum[task] = all;
}

/* A tree that is one path: what a chain of guesses would be. The queries are what scratch holds;
 * the time does not depend on them. */
struct timing {
    const struct model *model;
    const struct control_examine *order;
    uint32_t threads;
    struct mla_sequence sequence;
    struct model_sequences sequences; /* it alone */
    uint64_t ancestors[TREE_ROWS_MAX];
    uint64_t sum[TEAM_THREADS_MAX];
    enum status status; /* of the device */
    struct error *err;
};

static enum status place_tree(struct timing *timing, struct error *err) {
    const struct model *model = timing->model;
    const struct control_examine *order = timing->order;
    uint32_t tok_count = order->page_count * model->page_tok;
    for (uint32_t row = 0; row < order->rows; row++)
        timing->ancestors[row] = UINT64_MAX >> (63 - row);
    timing->sequence = (struct mla_sequence){.row_count = order->rows,
                                             .committed = tok_count - order->rows,
                                             .page = order->page,
                                             .ancestors = timing->ancestors};
    device_begin(model->device);
    timing->sequences = model_put_sequences(model, &timing->sequence, 1);
    return device_send(model->device, err);
}

static void attend(struct timing *timing, uint32_t layer) {
    attention_attend(timing->model, kv_pool_layer(timing->model->kv, layer), &timing->sequences);
}

static size_t copied_bytes(const struct timing *timing) {
    size_t bytes = timing->order->page_count * kv_pool_page_bytes(timing->model->kv);
    return bytes < timing->model->scratch->bytes ? bytes : timing->model->scratch->bytes;
}

/* A copy moves every byte twice; it goes from the layer's front into scratch, which holds nothing
 * between steps. */
static void copy_layer(struct timing *timing, uint32_t layer) {
    const struct model *model = timing->model;
    const size_t bytes = copied_bytes(timing);
    timing->status = device_copy_rows(model->device,
                                      &(struct device_rows){.to = model->scratch->memory,
                                                            .to_stride = bytes,
                                                            .from = kv_pool_layer(model->kv, layer),
                                                            .from_stride = bytes,
                                                            .bytes = bytes,
                                                            .count = 1},
                                      timing->err);
}

static void read_layer(struct timing *timing, uint32_t layer) {
    struct kv_pool *pool = timing->model->kv;
    const struct control_examine *order = timing->order;
    struct reading reading = {.base = kv_pool_layer(pool, layer),
                              .page_bytes = kv_pool_page_bytes(pool),
                              .order = order,
                              .share = (order->page_count + timing->threads - 1) / timing->threads,
                              .sum = timing->sum};
    team_run(timing->model->ctx->team, read_pages, &reading, timing->threads);
}

static uint64_t fastest(struct timing *timing, void (*run)(struct timing *timing, uint32_t layer)) {
    uint64_t best_ns = UINT64_MAX;
    int64_t begin_ns = clock_now_ns(), before_ns = begin_ns;
    for (uint32_t i = 0; i < REPEATS_MAX && before_ns - begin_ns < BUDGET_NS; i++) {
        run(timing, i % kv_pool_layers(timing->model->kv));
        if (timing->status == STATUS_OK)
            timing->status = device_wait(timing->model->device, timing->err);
        if (timing->status != STATUS_OK) break;
        int64_t now_ns = clock_now_ns();
        if ((uint64_t)(now_ns - before_ns) < best_ns) best_ns = (uint64_t)(now_ns - before_ns);
        before_ns = now_ns;
    }
    return best_ns;
}

/* Zeros for queries: whatever scratch holds from the last step need not be a number. */
static enum status clear_queries(const struct model *model, uint32_t rows, struct error *err) {
    const struct model_spec *spec = &model->weights->spec;
    size_t row_heads = (size_t)rows * model->weights->heads;
    enum status status = device_clear(model->device, model->scratch->q_latent,
                                      row_heads * spec->kv_rank * sizeof(float), err);
    if (status != STATUS_OK) return status;
    return device_clear(model->device, model->scratch->q,
                        row_heads * (spec->nope_dim + spec->rope_dim) * sizeof(float), err);
}

enum status inspection_time(const struct model *model, uint32_t max_rows,
                            const struct control_examine *order, struct examine_report *report_out,
                            struct error *err) {
    uint64_t bytes = (uint64_t)order->page_count * kv_pool_page_bytes(model->kv);
    if ((uint64_t)order->page_count * model->page_tok <= order->rows || order->rows > max_rows)
        return STATUS_OK;
    struct timing timing = {
        .model = model, .order = order, .threads = team_threads(model->ctx->team), .err = err};
    enum status status = clear_queries(model, order->rows, err);
    if (status == STATUS_OK) status = place_tree(&timing, err);
    if (status == STATUS_OK) status = device_wait(model->device, err);
    if (status != STATUS_OK) return status;
    report_out->attention_bytes = report_out->read_bytes = bytes;
    report_out->attention_ns = fastest(&timing, attend);
    if (timing.status == STATUS_OK && !model->device)
        report_out->read_ns = fastest(&timing, read_layer);
    if (timing.status == STATUS_OK && model->device)
        report_out->read_ns = (uint64_t)((double)fastest(&timing, copy_layer) / 2 * (double)bytes /
                                         (double)copied_bytes(&timing));
    return timing.status;
}

/* ============================== how fast ranks add ============================================ */

#define SUM_REPEATS 32u

enum status inspection_time_sum(const struct model *model, struct comm *comm,
                                struct examine_report *report_out, struct error *err) {
    uint64_t best_ns = UINT64_MAX;
    size_t count = model->weights->spec.hidden;
    enum status status = device_clear(model->device, model->scratch->x, count * sizeof(float), err);
    if (status == STATUS_OK) status = device_wait(model->device, err);
    if (status != STATUS_OK) return status;
    for (uint32_t i = 0; i < SUM_REPEATS; i++) {
        int64_t begin_ns = clock_now_ns();
        status = comm_all_reduce(comm, model->scratch->x, count, err);
        if (status == STATUS_OK) status = comm_wait(comm, err);
        if (status != STATUS_OK) return status;
        uint64_t took_ns = (uint64_t)(clock_now_ns() - begin_ns);
        if (took_ns < best_ns) best_ns = took_ns;
    }
    report_out->collective_ns = best_ns;
    return STATUS_OK;
}
