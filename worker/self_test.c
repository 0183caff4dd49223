#include "self_test.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention.h"
#include "base/check.h"
#include "base/hash.h"

/* ============================== attention ===================================================== */

/* The last four positions, as a tree: 0 is the root, 1 and 2 its children, 3 that of 1. */
#define ROWS 4u
static const uint64_t ancestors[ROWS] = {0x1, 0x3, 0x5, 0xb};

/* What the score of the position asked for is: others lie far enough below, and exp is exact
 * enough, for the sum to be its code to within the tolerance. */
#define SCORE             96.0f
#define TOLERANCE         1e-3f
#define TOLERANCE_ROUNDED 1e-2f /* of a device, which rounds queries and weights (mla_tree.h) */

struct attention_test {
    const struct model *model;
    struct self_test_progress *progress;
    uint32_t tok_count, committed; /* the rows are the positions behind */
    uint32_t *page;                /* [pages of tok_count] */
    uint32_t *slot;                /* [max_rows] */
    uint32_t max_rows;
    double *sum; /* [R] of the codes of all committed positions */
};

/* The codes of [begin, begin + count), `size` or -size: a hash has those of 64 elements. */
static void put_codes(uint32_t position, uint32_t begin, uint32_t count, float size, float *out) {
    uint64_t bits = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t element = begin + i;
        if (i == 0 || element % 64 == 0) bits = hash_chain(position + 1ull, element / 64);
        out[i] = bits >> element % 64 & 1 ? size : -size;
    }
}

static float code(uint32_t position, uint32_t element) {
    float value;
    put_codes(position, element, 1, 1, &value);
    return value;
}

static uint32_t slot_of(const struct attention_test *test, uint32_t position) {
    uint32_t page_tok = test->model->page_tok;
    return test->page[position / page_tok] * page_tok + position % page_tok;
}

/* Floats of scratch, for the host to fill: NULL, with err, where there is no memory. */
static float *fill(const struct model *model, float *array, size_t count, struct error *err) {
    float *memory = device_fill(model->device, array, count * sizeof *array);
    if (!memory) error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for the self-test");
    return memory;
}

static enum status filled(const struct model *model, float *array, float *memory, size_t count,
                          struct error *err) {
    return device_filled(model->device, array, memory, count * sizeof *array, err);
}

/* The codes of [begin, begin + rows), through the op that steps use. */
static enum status store_codes(struct attention_test *test, uint32_t begin, uint32_t rows,
                               struct error *err) {
    const struct model *model = test->model;
    const struct model_spec *spec = &model->weights->spec;
    const uint32_t dim = spec->kv_rank + spec->rope_dim;
    float *kv = fill(model, model->scratch->kv, (size_t)rows * dim, err);
    if (!kv) return STATUS_RESOURCE_EXHAUSTED;
    for (uint32_t row = 0; row < rows; row++) {
        put_codes(begin + row, 0, dim, 1, kv + (size_t)row * dim);
        for (uint32_t i = 0; begin + row < test->committed && i < spec->kv_rank; i++)
            test->sum[i] += (double)kv[(size_t)row * dim + i];
        test->slot[row] = slot_of(test, begin + row);
    }
    device_begin(model->device);
    const uint32_t *slot = device_put(model->device, test->slot, rows * sizeof *slot);
    enum status status = device_send(model->device, err);
    if (status == STATUS_OK)
        status = filled(model, model->scratch->kv, kv, (size_t)rows * dim, err);
    if (status != STATUS_OK) return status;
    kv = model->scratch->kv;
    model->backend->kv_store(&(struct kv_store_args){.latent = kv,
                                                     .latent_stride = dim,
                                                     .rope_key = kv + spec->kv_rank,
                                                     .rope_stride = dim,
                                                     .kv = kv_pool_layer(model->kv, 0),
                                                     .kv_dtype = model->kv_dtype,
                                                     .slot = slot,
                                                     .rows = rows,
                                                     .latent_dim = spec->kv_rank,
                                                     .rope_dim = spec->rope_dim},
                             model->ctx);
    return STATUS_OK;
}

static enum status fill_cache(struct attention_test *test, struct error *err) {
    enum status status = STATUS_OK;
    for (uint32_t begin = 0; begin < test->tok_count && status == STATUS_OK;
         begin += test->max_rows) {
        status = store_codes(test, begin, min_u32(test->tok_count - begin, test->max_rows), err);
        test->progress->percent = (uint32_t)(50ull * begin / test->tok_count);
    }
    return status;
}

/* Which position the query of (row, head) asks for; UINT32_MAX: the mean of all. The first, the
 * last, the row's own, then any. */
static uint32_t asked_of(const struct attention_test *test, uint32_t row, uint32_t head) {
    uint32_t query = row * test->model->weights->heads + head;
    if (query % 2 == 1) return UINT32_MAX;
    switch (query / 2) {
    case 0: return 0;
    case 1: return test->committed - 1;
    case 2: return test->committed + row;
    default: return (uint32_t)(hash_mix(query) % test->committed);
    }
}

static enum status fill_queries(const struct attention_test *test, struct error *err) {
    const struct model *model = test->model;
    const struct model_spec *spec = &model->weights->spec;
    const uint32_t heads = model->weights->heads;
    const size_t query_dim = spec->nope_dim + spec->rope_dim;
    struct scratch *s = model->scratch;
    const size_t latents = (size_t)ROWS * heads * spec->kv_rank, ropes = ROWS * heads * query_dim;
    float *q_latent = fill(model, s->q_latent, latents, err);
    float *q = fill(model, s->q, ropes, err);
    if (!q_latent || !q) return STATUS_RESOURCE_EXHAUSTED;
    const float size = SCORE / (model->softmax_scale * (float)(spec->kv_rank + spec->rope_dim));
    for (uint32_t query = 0; query < ROWS * heads; query++) {
        uint32_t position = asked_of(test, query / heads, query % heads);
        float *latent = q_latent + (size_t)query * spec->kv_rank;
        float *rope = q + query * query_dim + spec->nope_dim;
        if (position != UINT32_MAX) {
            put_codes(position, 0, spec->kv_rank, size, latent);
            put_codes(position, spec->kv_rank, spec->rope_dim, size, rope);
        } else {
            memset(latent, 0, spec->kv_rank * sizeof *latent);
            memset(rope, 0, spec->rope_dim * sizeof *rope);
        }
    }
    enum status status = filled(model, s->q_latent, q_latent, latents, err);
    return status == STATUS_OK ? filled(model, s->q, q, ropes, err) : status;
}

static float expected(const struct attention_test *test, uint32_t row, uint32_t position,
                      uint32_t element) {
    if (position != UINT32_MAX) return code(position, element);
    double sum = test->sum[element];
    for (uint32_t member = 0; member < ROWS; member++)
        if (ancestors[row] >> member & 1) sum += (double)code(test->committed + member, element);
    uint32_t path = (uint32_t)__builtin_popcountll(ancestors[row]);
    return (float)(sum / (test->committed + path));
}

static enum status check_sums(const struct attention_test *test, const float *sums,
                              struct error *err) {
    const float tolerance = test->model->device ? TOLERANCE_ROUNDED : TOLERANCE;
    const uint32_t heads = test->model->weights->heads, dim = test->model->weights->spec.kv_rank;
    for (uint32_t query = 0; query < ROWS * heads; query++) {
        uint32_t row = query / heads, position = asked_of(test, row, query % heads);
        const float *out = sums + (size_t)query * dim;
        for (uint32_t i = 0; i < dim; i++) {
            float right = expected(test, row, position, i);
            if (fabsf(out[i] - right) <= tolerance) continue;
            return error_set(err, STATUS_DATA_LOSS,
                             "self-test attention: over %u tokens, row %u head %u element %u is "
                             "%g where %g is right",
                             test->tok_count, row, query % heads, i, (double)out[i], (double)right);
        }
    }
    return STATUS_OK;
}

static enum status run_attention(struct attention_test *test, struct error *err) {
    const struct model *model = test->model;
    uint32_t page_count = kv_pool_pages(model->kv);
    for (uint32_t i = 0; i * model->page_tok < test->tok_count; i++)
        test->page[i] = page_count - 1 - i;
    enum status status = fill_cache(test, err);
    if (status == STATUS_OK) status = fill_queries(test, err);
    if (status != STATUS_OK) return status;
    const struct mla_sequence sequence = {.row_count = ROWS,
                                          .committed = test->committed,
                                          .page = test->page,
                                          .ancestors = ancestors};
    device_begin(model->device);
    const struct model_sequences sequences = model_put_sequences(model, &sequence, 1);
    status = device_send(model->device, err);
    if (status != STATUS_OK) return status;
    attention_attend(model, kv_pool_layer(model->kv, 0), &sequences);
    const size_t count = (size_t)ROWS * model->weights->heads * model->weights->spec.kv_rank;
    const void *sums;
    status = device_look(model->device, model->scratch->o_latent, count * sizeof(float), &sums,
                         err);
    if (status != STATUS_OK) return status;
    status = check_sums(test, sums, err);
    device_looked(model->device, sums);
    return status;
}

enum status self_test_attention(const struct model *model, uint32_t context_len, uint32_t max_rows,
                                struct self_test_progress *progress, struct error *err) {
    progress->percent = 0;
    progress->rung = SELF_TEST_ATTENTION;
    uint64_t pool_tok = (uint64_t)kv_pool_pages(model->kv) * model->page_tok;
    struct attention_test test = {
        .model = model,
        .progress = progress,
        .tok_count = pool_tok < context_len ? (uint32_t)pool_tok : context_len,
        .max_rows = max_rows,
    };
    /* So small a pool, or step, that no tree fits it: there is nothing to be seen. */
    if (test.tok_count <= ROWS || max_rows < ROWS) return STATUS_OK;
    test.committed = test.tok_count - ROWS;
    test.page = calloc(test.tok_count / model->page_tok + 1, sizeof *test.page);
    test.slot = calloc(max_rows, sizeof *test.slot);
    test.sum = calloc(model->weights->spec.kv_rank, sizeof *test.sum);
    enum status status = STATUS_OK;
    if (test.page && test.slot && test.sum)
        status = run_attention(&test, err);
    else
        status = error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for the self-test");
    free(test.page);
    free(test.slot);
    free(test.sum);
    return status;
}

/* ============================== the pool ====================================================== */

#define WORD_STRIDE  4096u
#define MIRROR_BYTES ((size_t)8 << 20) /* of a device, at a time */

typedef bool word_fn(uint8_t *word, uint64_t pattern);

static bool write_word(uint8_t *word, uint64_t pattern) {
    memcpy(word, &pattern, sizeof pattern);
    return true;
}

static bool has_word(uint8_t *word, uint64_t pattern) {
    return memcmp(word, &pattern, sizeof pattern) == 0;
}

static bool wipe_word(uint8_t *word, uint64_t pattern) {
    (void)pattern;
    memset(word, 0, sizeof pattern);
    return true;
}

/* Pages of one layer as the host sees them: all of them, or on a device some at a time. */
struct window {
    const struct kv_pool *pool;
    uint32_t layer;
    uint32_t page_begin, page_count;
    uint8_t *begin; /* of the first */
};

/* fn of a page's words: the first, the last, and those at multiples of the stride in its layer, of
 * which each page of the system has one. Returns where in the layer fn first said false;
 * UINT64_MAX: nowhere. */
static uint64_t visit_page(const struct window *window, uint32_t page, word_fn *fn) {
    size_t page_bytes = kv_pool_page_bytes(window->pool);
    size_t begin = window->page_begin * page_bytes;
    size_t at = page * page_bytes, last = at + page_bytes - sizeof(uint64_t);
    for (;;) {
        if (!fn(window->begin + (at - begin), hash_chain(window->layer + 1ull, at))) return at;
        if (at == last) return UINT64_MAX;
        at = (at / WORD_STRIDE + 1) * WORD_STRIDE;
        if (at > last) at = last;
    }
}

static enum status read_back(const struct window *window, const char *name, struct error *err) {
    for (uint32_t i = 0; i < window->page_count; i++) {
        uint32_t page = window->page_begin + i;
        uint64_t at = visit_page(window, page, has_word);
        if (at != UINT64_MAX)
            return error_set(err, STATUS_DATA_LOSS,
                             "self-test pool: %s, page %u of %u in layer %u: what was written at "
                             "byte %" PRIu64 " of the layer does not come back",
                             name, page, kv_pool_pages(window->pool), window->layer, at);
        visit_page(window, page, wipe_word);
    }
    return STATUS_OK;
}

/* A window of a device goes over as a whole, once in each direction, and is zero at last. */
static enum status write_window(const struct window *window, uint8_t *there, size_t bytes,
                                struct error *err) {
    struct device *device = kv_pool_device(window->pool);
    for (uint32_t i = 0; i < window->page_count; i++)
        visit_page(window, window->page_begin + i, write_word);
    return device ? device_write(device, there, window->begin, bytes, err) : STATUS_OK;
}

static enum status check_window(const struct window *window, uint8_t *there, size_t bytes,
                                const char *name, struct error *err) {
    struct device *device = kv_pool_device(window->pool);
    enum status status = STATUS_OK;
    if (device) status = device_read(device, window->begin, there, bytes, err);
    if (status == STATUS_OK) status = read_back(window, name, err);
    if (status == STATUS_OK && device) status = device_clear(device, there, bytes, err);
    return status;
}

/* One layer, written (name NULL) or read back and wiped. */
static enum status visit_layer(const struct kv_pool *pool, uint32_t layer, const char *name,
                               uint8_t *mirror, struct error *err) {
    const size_t page_bytes = kv_pool_page_bytes(pool);
    const uint32_t pages = kv_pool_pages(pool);
    const uint32_t at_a_time = mirror ? (uint32_t)(MIRROR_BYTES / page_bytes) + 1 : pages;
    enum status status = STATUS_OK;
    for (uint32_t page = 0; page < pages && status == STATUS_OK; page += at_a_time) {
        uint8_t *there = (uint8_t *)kv_pool_layer(pool, layer) + page * page_bytes;
        const struct window window = {.pool = pool,
                                      .layer = layer,
                                      .page_begin = page,
                                      .page_count = min_u32(pages - page, at_a_time),
                                      .begin = mirror ? mirror : there};
        const size_t bytes = window.page_count * page_bytes;
        status = name ? check_window(&window, there, bytes, name, err)
                      : write_window(&window, there, bytes, err);
    }
    return status;
}

enum status self_test_pool(const struct kv_pool *pool, const char *name,
                           struct self_test_progress *progress, struct error *err) {
    uint32_t layers = kv_pool_layers(pool);
    struct device *device = kv_pool_device(pool);
    void *mirror = NULL; /* of a device */
    progress->percent = 0;
    progress->rung = SELF_TEST_POOL;
    CHECK(kv_pool_page_bytes(pool) % sizeof(uint64_t) == 0); /* words must not overlap */
    enum status status = STATUS_OK;
    if (device) status = device_pin(device, MIRROR_BYTES + kv_pool_page_bytes(pool), &mirror, err);
    for (uint32_t layer = 0; layer < layers && status == STATUS_OK; layer++) {
        status = visit_layer(pool, layer, NULL, mirror, err);
        progress->percent = 50 * (layer + 1) / layers;
    }
    for (uint32_t layer = 0; layer < layers && status == STATUS_OK; layer++) {
        status = visit_layer(pool, layer, name, mirror, err);
        progress->percent = 50 + 50 * (layer + 1) / layers;
    }
    if (device) device_unpin(device, mirror);
    return status;
}

/* ============================== collectives =================================================== */

#define SMALL_FLOATS 16u   /* summed in one go */
#define LARGE_FLOATS 4096u /* by slices; no more than a step touches of what ranks share */

static float term(uint32_t rank, size_t i) {
    return (float)((rank + 1) * (i % 251 + 1)); /* sums of small integers are exact */
}

/* What scratch->x holds once the collective has ended. */
static enum status see(const struct model *model, struct comm *comm, const float *there,
                       size_t count, const void **look_out, struct error *err) {
    enum status status = comm_wait(comm, err);
    if (status != STATUS_OK) return status;
    return device_look(model->device, there, count * sizeof *there, look_out, err);
}

static enum status test_sum(const struct model *model, struct comm *comm, size_t count,
                            struct error *err) {
    uint32_t size = comm_size(comm);
    float *there = model->scratch->x;
    float *data = fill(model, there, count, err);
    if (!data) return STATUS_RESOURCE_EXHAUSTED;
    for (size_t i = 0; i < count; i++)
        data[i] = term(comm_rank(comm), i);
    const void *look = NULL;
    enum status status = filled(model, there, data, count, err);
    if (status == STATUS_OK) status = comm_all_reduce(comm, there, count, err);
    if (status == STATUS_OK) status = see(model, comm, there, count, &look, err);
    const float *sum = look;
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        float right = (float)(size * (size + 1) / 2 * (i % 251 + 1));
        if (sum[i] != right)
            status = error_set(err, STATUS_DATA_LOSS,
                               "self-test collective: element %zu of a sum of %zu over %u ranks is "
                               "%g where %g is right",
                               i, count, size, (double)sum[i], (double)right);
    }
    device_looked(model->device, look);
    return status;
}

/* The rank's own lies at its place. */
static enum status test_gather(const struct model *model, struct comm *comm, struct error *err) {
    const uint32_t size = comm_size(comm), mine = comm_rank(comm) * SMALL_FLOATS;
    const size_t count = (size_t)size * SMALL_FLOATS;
    float *there = model->scratch->x;
    float *data = fill(model, there, count, err);
    if (!data) return STATUS_RESOURCE_EXHAUSTED;
    memset(data, 0, count * sizeof *data);
    for (uint32_t i = 0; i < SMALL_FLOATS; i++)
        data[mine + i] = term(comm_rank(comm), i);
    const void *look = NULL;
    enum status status = filled(model, there, data, count, err);
    if (status == STATUS_OK)
        status = comm_all_gather(comm, there + mine, SMALL_FLOATS * sizeof *there, there, err);
    if (status == STATUS_OK) status = see(model, comm, there, count, &look, err);
    const float *gathered = look;
    for (uint32_t rank = 0; rank < size && status == STATUS_OK; rank++)
        for (uint32_t i = 0; i < SMALL_FLOATS && status == STATUS_OK; i++)
            if (gathered[rank * SMALL_FLOATS + i] != term(rank, i))
                status = error_set(err, STATUS_DATA_LOSS,
                                   "self-test collective: of a gather over %u ranks, what rank %u "
                                   "gave is another's",
                                   size, rank);
    device_looked(model->device, look);
    return status;
}

static enum status test_broadcast(const struct model *model, struct comm *comm, struct error *err) {
    uint32_t root = comm_size(comm) - 1;
    float *there = model->scratch->x;
    float *word = fill(model, there, 1, err);
    if (!word) return STATUS_RESOURCE_EXHAUSTED;
    *word = term(comm_rank(comm), 7);
    const void *look = NULL;
    enum status status = filled(model, there, word, 1, err);
    if (status == STATUS_OK) status = comm_broadcast(comm, there, sizeof *there, root, err);
    if (status == STATUS_OK) status = see(model, comm, there, 1, &look, err);
    if (status == STATUS_OK && *(const float *)look != term(root, 7))
        status = error_set(err, STATUS_DATA_LOSS,
                           "self-test collective: a broadcast brings not what rank %u gave", root);
    device_looked(model->device, look);
    return status;
}

enum status self_test_collective(const struct model *model, uint32_t max_rows, struct comm *comm,
                                 struct error *err) {
    size_t room = (size_t)max_rows * model->weights->spec.hidden;
    enum status status = test_sum(model, comm, room < SMALL_FLOATS ? room : SMALL_FLOATS, err);
    if (status == STATUS_OK)
        status = test_sum(model, comm, room < LARGE_FLOATS ? room : LARGE_FLOATS, err);
    if (status == STATUS_OK && room >= (size_t)SMALL_FLOATS * comm_size(comm))
        status = test_gather(model, comm, err);
    return status == STATUS_OK ? test_broadcast(model, comm, err) : status;
}
