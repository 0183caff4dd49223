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
#define SCORE     96.0f
#define TOLERANCE 1e-3f

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

/* The codes of [begin, begin + rows), through the op that steps use. */
static void store_codes(struct attention_test *test, uint32_t begin, uint32_t rows) {
    const struct model *model = test->model;
    const struct model_spec *spec = &model->weights->spec;
    const uint32_t dim = spec->kv_rank + spec->rope_dim;
    float *kv = model->scratch->kv;
    for (uint32_t row = 0; row < rows; row++) {
        put_codes(begin + row, 0, dim, 1, kv + (size_t)row * dim);
        for (uint32_t i = 0; begin + row < test->committed && i < spec->kv_rank; i++)
            test->sum[i] += (double)kv[(size_t)row * dim + i];
        test->slot[row] = slot_of(test, begin + row);
    }
    model->backend->kv_store(&(struct kv_store_args){.latent = kv,
                                                     .latent_stride = dim,
                                                     .rope_key = kv + spec->kv_rank,
                                                     .rope_stride = dim,
                                                     .kv = kv_pool_layer(model->kv, 0),
                                                     .kv_dtype = model->kv_dtype,
                                                     .slot = test->slot,
                                                     .rows = rows,
                                                     .latent_dim = spec->kv_rank,
                                                     .rope_dim = spec->rope_dim},
                             model->ctx);
}

static void fill_cache(struct attention_test *test) {
    for (uint32_t begin = 0; begin < test->tok_count; begin += test->max_rows) {
        uint32_t left = test->tok_count - begin;
        store_codes(test, begin, left < test->max_rows ? left : test->max_rows);
        test->progress->percent = (uint32_t)(50ull * begin / test->tok_count);
    }
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

static void fill_queries(const struct attention_test *test) {
    const struct model *model = test->model;
    const struct model_spec *spec = &model->weights->spec;
    const uint32_t heads = model->weights->heads;
    const size_t query_dim = spec->nope_dim + spec->rope_dim;
    const float size = SCORE / (model->softmax_scale * (float)(spec->kv_rank + spec->rope_dim));
    for (uint32_t query = 0; query < ROWS * heads; query++) {
        uint32_t position = asked_of(test, query / heads, query % heads);
        float *latent = model->scratch->q_latent + (size_t)query * spec->kv_rank;
        float *rope = model->scratch->q + query * query_dim + spec->nope_dim;
        if (position != UINT32_MAX) {
            put_codes(position, 0, spec->kv_rank, size, latent);
            put_codes(position, spec->kv_rank, spec->rope_dim, size, rope);
        } else {
            memset(latent, 0, spec->kv_rank * sizeof *latent);
            memset(rope, 0, spec->rope_dim * sizeof *rope);
        }
    }
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

static enum status check_sums(const struct attention_test *test, struct error *err) {
    const uint32_t heads = test->model->weights->heads, dim = test->model->weights->spec.kv_rank;
    for (uint32_t query = 0; query < ROWS * heads; query++) {
        uint32_t row = query / heads, position = asked_of(test, row, query % heads);
        const float *out = test->model->scratch->o_latent + (size_t)query * dim;
        for (uint32_t i = 0; i < dim; i++) {
            float right = expected(test, row, position, i);
            if (fabsf(out[i] - right) <= TOLERANCE) continue;
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
    fill_cache(test);
    fill_queries(test);
    const struct mla_sequence sequence = {.row_count = ROWS,
                                          .committed = test->committed,
                                          .page = test->page,
                                          .ancestors = ancestors};
    attention_attend(model, kv_pool_layer(model->kv, 0), &sequence, 1);
    return check_sums(test, err);
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

#define WORD_STRIDE 4096u

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

/* fn of a page's words: the first, the last, and those at multiples of the stride in its layer, of
 * which each page of the system has one. Returns where in the layer fn first said false;
 * UINT64_MAX: nowhere. */
static uint64_t visit_page(const struct kv_pool *pool, uint32_t layer, uint32_t page, word_fn *fn) {
    uint8_t *base = kv_pool_layer(pool, layer);
    size_t page_bytes = kv_pool_page_bytes(pool);
    size_t at = page * page_bytes, last = at + page_bytes - sizeof(uint64_t);
    for (;;) {
        if (!fn(base + at, hash_chain(layer + 1ull, at))) return at;
        if (at == last) return UINT64_MAX;
        at = (at / WORD_STRIDE + 1) * WORD_STRIDE;
        if (at > last) at = last;
    }
}

static enum status read_back(const struct kv_pool *pool, const char *name, uint32_t layer,
                             struct error *err) {
    for (uint32_t page = 0; page < kv_pool_pages(pool); page++) {
        uint64_t at = visit_page(pool, layer, page, has_word);
        if (at != UINT64_MAX)
            return error_set(err, STATUS_DATA_LOSS,
                             "self-test pool: %s, page %u of %u in layer %u: what was written at "
                             "byte %" PRIu64 " of the layer does not come back",
                             name, page, kv_pool_pages(pool), layer, at);
        visit_page(pool, layer, page, wipe_word);
    }
    return STATUS_OK;
}

enum status self_test_pool(const struct kv_pool *pool, const char *name,
                           struct self_test_progress *progress, struct error *err) {
    uint32_t layers = kv_pool_layers(pool);
    progress->percent = 0;
    progress->rung = SELF_TEST_POOL;
    CHECK(kv_pool_page_bytes(pool) % sizeof(uint64_t) == 0); /* words must not overlap */
    for (uint32_t layer = 0; layer < layers; layer++) {
        for (uint32_t page = 0; page < kv_pool_pages(pool); page++)
            visit_page(pool, layer, page, write_word);
        progress->percent = 50 * (layer + 1) / layers;
    }
    for (uint32_t layer = 0; layer < layers; layer++) {
        enum status status = read_back(pool, name, layer, err);
        if (status != STATUS_OK) return status;
        progress->percent = 50 + 50 * (layer + 1) / layers;
    }
    return STATUS_OK;
}

/* ============================== collectives =================================================== */

#define SMALL_FLOATS 16u   /* summed in one go */
#define LARGE_FLOATS 4096u /* by slices; no more than a step touches of what ranks share */

static float term(uint32_t rank, size_t i) {
    return (float)((rank + 1) * (i % 251 + 1)); /* sums of small integers are exact */
}

static enum status test_sum(struct comm *comm, float *data, size_t count, struct error *err) {
    uint32_t size = comm_size(comm);
    for (size_t i = 0; i < count; i++)
        data[i] = term(comm_rank(comm), i);
    enum status status = comm_all_reduce(comm, data, count, err);
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        float right = (float)(size * (size + 1) / 2 * (i % 251 + 1));
        if (data[i] != right)
            status = error_set(err, STATUS_DATA_LOSS,
                               "self-test collective: element %zu of a sum of %zu over %u ranks is "
                               "%g where %g is right",
                               i, count, size, (double)data[i], (double)right);
    }
    return status;
}

static enum status test_gather(struct comm *comm, float *data, struct error *err) {
    uint32_t size = comm_size(comm);
    float mine[SMALL_FLOATS];
    for (uint32_t i = 0; i < SMALL_FLOATS; i++)
        mine[i] = term(comm_rank(comm), i);
    enum status status = comm_all_gather(comm, mine, sizeof mine, data, err);
    for (uint32_t rank = 0; rank < size && status == STATUS_OK; rank++)
        for (uint32_t i = 0; i < SMALL_FLOATS; i++)
            if (data[rank * SMALL_FLOATS + i] != term(rank, i))
                return error_set(err, STATUS_DATA_LOSS,
                                 "self-test collective: of a gather over %u ranks, what rank %u "
                                 "gave is another's",
                                 size, rank);
    return status;
}

static enum status test_broadcast(struct comm *comm, struct error *err) {
    uint32_t root = comm_size(comm) - 1;
    float word = term(comm_rank(comm), 7);
    enum status status = comm_broadcast(comm, &word, sizeof word, root, err);
    if (status != STATUS_OK || word == term(root, 7)) return status;
    return error_set(err, STATUS_DATA_LOSS,
                     "self-test collective: a broadcast brings not what rank %u gave", root);
}

enum status self_test_collective(const struct model *model, uint32_t max_rows, struct comm *comm,
                                 struct error *err) {
    float *data = model->scratch->x;
    size_t room = (size_t)max_rows * model->weights->spec.hidden;
    enum status status = test_sum(comm, data, room < SMALL_FLOATS ? room : SMALL_FLOATS, err);
    if (status == STATUS_OK)
        status = test_sum(comm, data, room < LARGE_FLOATS ? room : LARGE_FLOATS, err);
    if (status == STATUS_OK && room >= (size_t)SMALL_FLOATS * comm_size(comm))
        status = test_gather(comm, data, err);
    return status == STATUS_OK ? test_broadcast(comm, err) : status;
}
