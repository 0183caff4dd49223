#include "rig.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/hash.h"
#include "device.h"

#define RIG_GENERATION  7u
#define RIG_PIECES_MAX  RIG_SLOTS
#define RIG_EXTENTS_MAX 8192u
#define RIG_BIASES_MAX  64u
#define RIG_WAIT_S      120

/* A step through the pool that meets every page once: coprime to any power of two, and to most. */
#define PAGE_STRIDE 37u

#define REQUIRE(condition, ...)                                                                    \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "rig: " __VA_ARGS__);                                                  \
            fprintf(stderr, " (%s:%d)\n", __FILE__, __LINE__);                                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static struct {
    struct step_plan plan;
    struct plan_sequence sequence[RIG_PIECES_MAX];
    struct page_extent extent[RIG_EXTENTS_MAX];
    struct page_copy copy;
    struct logit_bias bias[RIG_BIASES_MAX];
    uint32_t token[PLAN_ROWS_MAX], parent[PLAN_ROWS_MAX];
} planned;

static struct weights *load_weights(struct device *device, const struct rig_options *options,
                                    uint32_t rank);
static struct drafter_weights *load_drafter(struct device *device,
                                            const struct rig_options *options, uint32_t rank,
                                            const struct model_spec *target);
static void plan_rows(struct step_plan *plan, const struct rig_piece *piece);
static void keep_rows(struct rig_slot *slot, const struct rig_piece *piece, const uint32_t *drawn,
                      uint32_t drawn_count);
static void take_page(struct rig *rig, struct rig_slot *slot, uint32_t page);
static uint32_t find_page(const struct rig *rig, uint32_t *cursor);
static void plan_penalties(struct step_plan *plan, struct plan_sequence *sequence,
                           const struct rig_penalties *penalties);
static void await_rank(pid_t pid, uint32_t rank);

static const struct comm_kind *kind_of(const struct rig_options *options) {
    return options->comm ? options->comm : &comm_host;
}

struct rig *rig_open(const struct rig_options *options, uint32_t rank, const struct comm_key *key) {
    struct rig *rig = calloc(1, sizeof *rig);
    struct error err;
    if (options->open_device) rig->device = options->open_device();
    device_enter(rig->device);
    rig->weights = load_weights(rig->device, options, rank);
    if (options->drafter)
        rig->drafter = load_drafter(rig->device, options, rank, &rig->weights->spec);
    rig->options = *options;
    uint32_t pages = (options->context_len + options->page_tok - 1) / options->page_tok;
    rig->page_count = (pages + 1) * RIG_SLOTS;
    while (rig->page_count % PAGE_STRIDE == 0)
        rig->page_count++;
    const struct engine_options engine = {
        .threads = options->threads,
        .max_rows = options->max_rows,
        .max_sequences = RIG_SLOTS,
        .page_tok = options->page_tok,
        .page_count = rig->page_count,
        .page_cap = options->page_cap,
        .context_len = options->context_len,
        .kv_dtype = options->kv_dtype,
        .activation_dtype = options->activation_dtype,
        .prefill_form = options->prefill_form,
        .shadow_hash = options->shadow_hash,
        .drafter = rig->drafter,
        .draft_window = options->draft_window,
        .device = rig->device,
    };
    REQUIRE(engine_create(rig->weights, &engine, &rig->engine, &err) == STATUS_OK, "%s", err.text);
    struct comm *comm = NULL;
    const struct comm_key no_key = {.bytes = 0};
    REQUIRE(comm_join(kind_of(options), key ? key : &no_key, rank, options->tp, RIG_GENERATION,
                      RIG_WAIT_S * 1000, NULL, &comm, &err) == STATUS_OK,
            "%s", err.text);
    engine_set_group(rig->engine, RIG_GENERATION, comm);
    REQUIRE(engine_capture_steps(rig->engine, &err) == STATUS_OK, "%s", err.text);
    uint32_t page_cap = max_u32(rig->page_count, options->page_cap);
    rig->page_taken = calloc(page_cap, sizeof *rig->page_taken);
    REQUIRE(rig->page_taken, "no memory");
    for (uint32_t slot = 0; slot < RIG_SLOTS; slot++) {
        rig->slot[slot].page = calloc(page_cap, sizeof *rig->slot[slot].page);
        REQUIRE(rig->slot[slot].page, "no memory");
        rig_forget(rig, slot);
    }
    return rig;
}

void rig_close(struct rig **rig) {
    engine_destroy(&(*rig)->engine);
    drafter_weights_destroy(&(*rig)->drafter);
    weights_destroy(&(*rig)->weights);
    device_close(&(*rig)->device);
    for (uint32_t slot = 0; slot < RIG_SLOTS; slot++)
        free((*rig)->slot[slot].page);
    free((*rig)->page_taken);
    free(*rig);
    *rig = NULL;
}

void rig_restart(struct rig *rig) {
    const struct comm_key no_key = {.bytes = 0};
    struct comm *comm = NULL;
    struct error err;
    REQUIRE(comm_join(kind_of(&rig->options), &no_key, 0, 1, RIG_GENERATION, 0, NULL, &comm,
                      &err) == STATUS_OK,
            "%s", err.text);
    engine_set_group(rig->engine, RIG_GENERATION, comm);
    REQUIRE(engine_capture_steps(rig->engine, &err) == STATUS_OK, "%s", err.text);
    rig->step = 0;
    for (uint32_t slot = 0; slot < RIG_SLOTS; slot++)
        rig_forget(rig, slot);
}

void rig_resize(struct rig *rig, uint32_t page_count) {
    struct error err;
    REQUIRE(page_count >= rig->page_count && page_count % PAGE_STRIDE != 0, "%u pages", page_count);
    REQUIRE(engine_resize(rig->engine, page_count, NULL, 0, &err) == STATUS_OK, "%s", err.text);
    rig->page_count = page_count;
}

struct step_plan *rig_plan(struct rig *rig, const struct rig_piece *piece, uint32_t piece_count) {
    REQUIRE(piece_count <= RIG_PIECES_MAX, "%u pieces", piece_count);
    struct step_plan *plan = &planned.plan;
    *plan = (struct step_plan){.generation = RIG_GENERATION,
                               .step = rig->step + 1,
                               .token = planned.token,
                               .sequence = planned.sequence,
                               .sequence_count = piece_count,
                               .extent = planned.extent,
                               .bias = planned.bias};
    uint32_t cursor = rig->page_cursor;
    for (uint32_t i = 0; i < piece_count; i++) {
        const struct rig_slot *slot = &rig->slot[piece[i].slot];
        struct plan_sequence *sequence = &planned.sequence[i];
        *sequence = (struct plan_sequence){
            .slot = piece[i].slot,
            .row_begin = plan->row_count,
            .row_count = piece[i].count,
            .committed = slot->committed,
            .prefix_hash = slot->prefix_hash,
            .page_base = slot->page_count,
            .extent_begin = plan->extent_count,
            .want = piece[i].wants ? PLAN_WANT_TOKEN : PLAN_WANT_NOTHING,
            .logprobs = piece[i].wants,
            .top_logprobs = piece[i].wants ? 2 : 0,
            .temperature = piece[i].temperature,
            .top_p = 0.95f,
            .top_k = 50,
            .seed = piece[i].seed,
            .kind = piece[i].parent ? PLAN_TREE : PLAN_CHAIN,
            .draft_len = piece[i].draft_len,
        };
        if (piece[i].draft_len > 0) plan->draft_top = RIG_DRAFT_TOP;
        if (piece[i].penalties) plan_penalties(plan, sequence, piece[i].penalties);
        plan_rows(plan, &piece[i]);
        uint32_t tok_count = slot->committed + piece[i].count;
        uint32_t pages = (tok_count + rig->options.page_tok - 1) / rig->options.page_tok;
        for (uint32_t page = slot->page_count; page < pages; page++) {
            REQUIRE(plan->extent_count < RIG_EXTENTS_MAX, "too many extents");
            planned.extent[plan->extent_count++] = (struct page_extent){
                .first_page = find_page(rig, &cursor), .page_count = 1};
            sequence->extent_count++;
        }
    }
    return plan;
}

struct step_plan *rig_plan_behind(struct rig *rig, const struct rig_piece *piece, uint32_t owner,
                                  const uint32_t *token, uint32_t tok_count) {
    const uint32_t page_tok = rig->options.page_tok, whole = tok_count / page_tok;
    const struct rig_slot *from = &rig->slot[owner];
    struct rig_slot *slot = &rig->slot[piece->slot];
    REQUIRE(slot->page_count == 0 && tok_count <= from->committed, "no such prefix");
    slot->committed = tok_count;
    for (uint32_t i = 0; i < tok_count; i++)
        slot->prefix_hash = hash_chain(slot->prefix_hash, token[i]);
    struct step_plan *plan = rig_plan(rig, piece, 1);
    for (uint32_t i = 0; i < whole; i++)
        planned.extent[i].first_page = from->page[i];
    if (tok_count % page_tok == 0) return plan;
    planned.copy = (struct page_copy){.source = from->page[whole],
                                      .target = planned.extent[whole].first_page,
                                      .tok_count = tok_count % page_tok};
    plan->copy = &planned.copy;
    plan->copy_count = 1;
    return plan;
}

static void plan_penalties(struct step_plan *plan, struct plan_sequence *sequence,
                           const struct rig_penalties *penalties) {
    sequence->repetition_penalty = penalties->repetition;
    sequence->presence_penalty = penalties->presence;
    sequence->frequency_penalty = penalties->frequency;
    sequence->reply_begin = penalties->reply_begin;
    if (sequence->page_base > 0) return;
    REQUIRE(penalties->bias_count <= RIG_BIASES_MAX - plan->bias_count, "too many biases");
    sequence->bias_begin = plan->bias_count;
    sequence->bias_count = penalties->bias_count;
    for (uint32_t i = 0; i < penalties->bias_count; i++)
        planned.bias[plan->bias_count++] = penalties->bias[i];
}

struct step_result rig_step(struct rig *rig, const struct rig_piece *piece, uint32_t piece_count) {
    struct step_result result;
    struct error err;
    const struct step_plan *plan = rig_plan(rig, piece, piece_count);
    REQUIRE(rig_run(rig, plan, piece, &result, &err) == STATUS_OK, "%s", err.text);
    return result;
}

enum status rig_run(struct rig *rig, const struct step_plan *plan, const struct rig_piece *piece,
                    struct step_result *result_out, struct error *err) {
    enum status status = engine_step(rig->engine, plan, result_out, err);
    if (status != STATUS_OK) return status;
    rig->step++;
    uint64_t state_hash = STEP_STATE_HASH_EMPTY;
    for (uint32_t i = 0; i < plan->sequence_count; i++) {
        struct rig_slot *slot = &rig->slot[piece[i].slot];
        const struct result_sequence *result = &result_out->sequence[i];
        const uint32_t *drawn = result_out->token + result->token_begin;
        keep_rows(slot, &piece[i], drawn, result->token_count);
        for (uint32_t e = 0; e < plan->sequence[i].extent_count; e++)
            take_page(rig, slot, plan->extent[plan->sequence[i].extent_begin + e].first_page);
        uint64_t hash = slot->prefix_hash;
        if (piece[i].parent) hash = hash_chain(hash, drawn[result->token_count - 1]);
        state_hash = step_state_hash(state_hash, piece[i].slot, slot->committed, hash);
    }
    REQUIRE(result_out->state_hash == state_hash && result_out->step == rig->step,
            "another state hash or step");
    return STATUS_OK;
}

void rig_forget(struct rig *rig, uint32_t slot) {
    struct rig_slot *state = &rig->slot[slot];
    for (uint32_t i = 0; i < state->page_count; i++)
        rig->page_taken[state->page[i]] = false;
    state->committed = state->page_count = 0;
    state->prefix_hash = HASH_CHAIN_EMPTY;
}

void rig_fork_ranks(const struct rig_options *options,
                    void (*fn)(struct rig *rig, uint32_t rank, void *user), void *user) {
    struct comm_seed *seed = NULL;
    struct comm_key key;
    struct error err;
    pid_t pid[TP_MAX];
    REQUIRE(comm_seed_create(kind_of(options), options->tp, RIG_GENERATION, &seed, &key, &err) ==
                STATUS_OK,
            "%s", err.text);
    fflush(NULL);
    for (uint32_t rank = 0; rank < options->tp; rank++) {
        pid[rank] = fork();
        REQUIRE(pid[rank] >= 0, "fork failed");
        if (pid[rank] > 0) continue;
        alarm(RIG_WAIT_S);
        struct rig *rig = rig_open(options, rank, &key);
        fn(rig, rank, user);
        rig_close(&rig);
        exit(0);
    }
    for (uint32_t rank = 0; rank < options->tp; rank++)
        await_rank(pid[rank], rank);
    comm_seed_destroy(&seed);
}

void *rig_shared_alloc(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED, "no shared memory");
    return memory;
}

void rig_shared_free(void *memory, size_t bytes) {
    munmap(memory, bytes);
}

const char *rig_path(const char *below) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", ESPALIER_SOURCE_DIR, below);
    return path;
}

uint32_t rig_vocab(const struct rig *rig) {
    return rig->weights->spec.vocab;
}

static struct weights *load_weights(struct device *device, const struct rig_options *options,
                                    uint32_t rank) {
    const char *directory = options->model ? options->model : rig_path("deploy/model");
    struct model_spec spec;
    struct safetensors *checkpoint = NULL;
    struct weights_progress progress = {0};
    struct weights *weights = NULL;
    struct error err;
    enum status status = model_spec_load(directory, &spec, &err);
    if (status == STATUS_OK) status = model_spec_check_tp(&spec, options->tp, &err);
    if (status == STATUS_OK) status = safetensors_open(directory, &checkpoint, &err);
    if (status == STATUS_OK)
        status = weights_load(device, &spec, checkpoint, rank, options->tp, 1, &progress, &weights,
                              &err);
    REQUIRE(status == STATUS_OK, "%s", err.text);
    safetensors_close(&checkpoint);
    return weights;
}

static struct drafter_weights *load_drafter(struct device *device,
                                            const struct rig_options *options, uint32_t rank,
                                            const struct model_spec *target) {
    struct drafter_spec spec;
    struct safetensors *checkpoint = NULL;
    struct weights_progress progress = {0};
    struct drafter_weights *drafter = NULL;
    struct error err;
    enum status status = drafter_spec_load(options->drafter, target, &spec, &err);
    if (status == STATUS_OK) status = drafter_spec_check_tp(&spec, options->tp, &err);
    if (status == STATUS_OK) status = safetensors_open(options->drafter, &checkpoint, &err);
    if (status == STATUS_OK)
        status = drafter_weights_load(device, &spec, checkpoint, rank, options->tp, 1, &progress,
                                      &drafter, &err);
    REQUIRE(status == STATUS_OK, "%s", err.text);
    safetensors_close(&checkpoint);
    return drafter;
}

static void plan_rows(struct step_plan *plan, const struct rig_piece *piece) {
    REQUIRE(plan->row_count + piece->count <= PLAN_ROWS_MAX, "too many rows");
    for (uint32_t row = 0; row < piece->count; row++) {
        planned.token[plan->row_count] = piece->token[row];
        planned.parent[plan->row_count++] = piece->parent ? piece->parent[row] : row - 1;
    }
    if (piece->parent) plan->parent = planned.parent;
}

/* The account of a sequence by what was drawn: a chain's rows all count, a tree's as long as the
 * token drawn is that of a child. */
static void keep_rows(struct rig_slot *slot, const struct rig_piece *piece, const uint32_t *drawn,
                      uint32_t drawn_count) {
    for (uint32_t row = 0; row < piece->count && !piece->parent; row++) {
        slot->prefix_hash = hash_chain(slot->prefix_hash, piece->token[row]);
        slot->committed++;
    }
    for (uint32_t i = 0, row = 0; piece->parent && i < drawn_count; i++) {
        slot->prefix_hash = hash_chain(slot->prefix_hash, piece->token[row]);
        slot->committed++;
        uint32_t child = row + 1;
        while (child < piece->count &&
               (piece->parent[child] != row || piece->token[child] != drawn[i]))
            child++;
        REQUIRE((child < piece->count) == (i + 1 < drawn_count), "the walk ends elsewhere");
        row = child;
    }
}

static void take_page(struct rig *rig, struct rig_slot *slot, uint32_t page) {
    slot->page[slot->page_count++] = page;
    rig->page_taken[page] = true;
    rig->page_cursor++;
}

/* The next free page behind the cursor, which moves on. */
static uint32_t find_page(const struct rig *rig, uint32_t *cursor) {
    for (uint32_t i = 0; i < rig->page_count; i++) {
        uint32_t page = (uint32_t)((uint64_t)(*cursor)++ * PAGE_STRIDE % rig->page_count);
        if (!rig->page_taken[page]) return page;
    }
    REQUIRE(false, "out of pages");
}

static void await_rank(pid_t pid, uint32_t rank) {
    int status = 0;
    REQUIRE(waitpid(pid, &status, 0) == pid, "waitpid");
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank %u ended with status %x", rank,
            status);
}
