/* Verifying guesses changes no token: toy models against plain decoding, for any drafter, tree and
 * budget, greedy and drawn. The verifier here keeps a cache of places as a worker does. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "draft_source_block.h"
#include "tree.h"

#define VOCAB     6u
#define REPLY_MAX 60u
#define PLACES    (REPLY_MAX + TREE_ROWS_MAX + 4)

static uint32_t draw(uint64_t *state, uint32_t bound) {
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(hash_mix(*state) % bound);
}

static double unit(uint64_t *state) {
    return ((double)draw(state, 1u << 30) + 0.5) / (1u << 30);
}

/* A model: what follows a prefix, which is known by its hash. */
struct toy {
    uint64_t seed;
    bool greedy;
};

static void probabilities(const struct toy *toy, uint64_t prefix, double *p) {
    double sum = 0;
    for (uint32_t token = 0; token < VOCAB; token++) {
        uint64_t state = hash_chain(prefix ^ toy->seed, token);
        p[token] = exp(3 * unit(&state));
        sum += p[token];
    }
    for (uint32_t token = 0; token < VOCAB; token++)
        p[token] /= sum;
}

/* Drawn with noise that the position and the token fix (Gumbel), or the likeliest; the lowest id of
 * equals. */
static uint32_t choose(const struct toy *toy, uint64_t prefix, uint32_t position) {
    double p[VOCAB], best = -INFINITY;
    uint32_t chosen = 0;
    probabilities(toy, prefix, p);
    for (uint32_t token = 0; token < VOCAB; token++) {
        uint64_t state = hash_chain(hash_chain(toy->seed, position), token);
        double score = log(p[token]) - (toy->greedy ? 0 : log(-log(unit(&state))));
        if (score > best) best = score, chosen = token;
    }
    return chosen;
}

struct reply {
    uint32_t token[REPLY_MAX + TREE_ROWS_MAX], count, steps;
};

static void decode_plainly(const struct toy *toy, uint32_t eos, struct reply *reply) {
    uint64_t prefix = HASH_CHAIN_EMPTY;
    *reply = (struct reply){.count = 0};
    while (reply->count < REPLY_MAX) {
        uint32_t token = choose(toy, prefix, reply->count);
        reply->token[reply->count++] = token;
        prefix = hash_chain(prefix, token);
        if (token == eos) return;
    }
}

/* A drafter: luck of ten is how often its likeliest token is what will be drawn. */
static void draft(const struct toy *toy, uint64_t prefix, uint32_t position, uint32_t luck,
                  uint64_t *source, struct draft_block *block) {
    *block = (struct draft_block){.len = 1 + draw(source, 9), .top = 1 + draw(source, VOCAB)};
    for (uint32_t i = 0; i < block->len; i++) {
        uint32_t right = choose(toy, prefix, position + i);
        uint32_t first = draw(source, 10) < luck ? right : draw(source, VOCAB);
        float left = 1;
        for (uint32_t rank = 0; rank < block->top; rank++) {
            block->token[i][rank] = (first + rank) % VOCAB;
            block->probability[i][rank] = left * 0.6f;
            left *= 0.4f;
        }
        prefix = hash_chain(prefix, right);
    }
}

/* The cache: places hold the prefix that ends there. Rows are written behind the committed ones,
 * and after the walk moved together, in place. */
struct cache {
    uint64_t place[PLACES];
    uint32_t committed;
};

static uint64_t prefix_of(const struct cache *cache) {
    return cache->committed > 0 ? cache->place[cache->committed - 1] : HASH_CHAIN_EMPTY;
}

/* One step; how many tokens it gave. */
static uint32_t verify(const struct toy *toy, struct cache *cache, const struct draft_tree *guesses,
                       uint32_t node_count, struct reply *reply) {
    uint32_t token[TREE_ROWS_MAX], parent[TREE_ROWS_MAX], begin = cache->committed;
    struct tree tree;
    struct error err = {0};
    draft_tree_rows(guesses, node_count, reply->token[reply->count - 1], token, parent);
    assert_int_equal(tree_init(&tree, token, parent, node_count + 1, &err), STATUS_OK);
    for (uint32_t row = 0; row <= node_count; row++) {
        uint64_t before = row > 0 ? cache->place[begin + parent[row]] : prefix_of(cache);
        cache->place[begin + row] = hash_chain(before, token[row]);
    }
    struct tree_walk walk;
    tree_walk_begin(&walk);
    do {
        uint32_t row = walk.row[walk.row_count - 1];
        reply->token[reply->count++] = choose(toy, cache->place[begin + row],
                                              begin + tree.depth[row] + 1);
    } while (tree_walk_take(&walk, &tree, reply->token[reply->count - 1]));
    for (uint32_t j = 0; j < walk.row_count; j++)
        cache->place[begin + j] = cache->place[begin + walk.row[j]];
    cache->committed += walk.row_count;
    reply->steps++;
    return walk.row_count;
}

static void decode_guessing(const struct toy *toy, uint32_t eos, uint32_t luck, uint64_t *source,
                            struct reply *reply, struct cache *cache) {
    struct draft_calibration calibration;
    draft_calibration_init(&calibration);
    *reply = (struct reply){.count = 0};
    *cache = (struct cache){.committed = 0};
    reply->token[reply->count++] = choose(toy, HASH_CHAIN_EMPTY, 0);
    for (uint32_t done = 1; done < REPLY_MAX && reply->token[done - 1] != eos;) {
        struct draft_block block;
        struct draft_tree tree;
        struct draft_bounds bounds = {.node_max = draw(source, TREE_ROWS_MAX),
                                      .depth_max = REPLY_MAX - done - 1,
                                      .stop_token = {&eos},
                                      .stop_token_count = {draw(source, 2)}};
        uint64_t prefix = hash_chain(prefix_of(cache), reply->token[done - 1]);
        draft(toy, prefix, done, luck, source, &block);
        draft_block_guess(&block, &calibration, &bounds, draw(source, 2), &tree);
        uint32_t given = verify(toy, cache, &tree, draw(source, tree.count + 1), reply);
        for (uint32_t i = 0; i < given; i++) { /* what comes behind the end is dropped */
            done++;
            if (reply->token[done - 1] == eos) reply->count = done;
            if (reply->count == done) break;
        }
    }
}

/* Any model, drafter, tree and budget, with the end anywhere: the same tokens, and the same places
 * in the cache as plain decoding leaves. A good drafter saves steps. */
static void tokens_are_the_same(void **state) {
    (void)state;
    uint64_t source = 1;
    uint32_t steps[11] = {0}, tokens[11] = {0};
    for (uint32_t round = 0; round < 4400; round++) {
        struct toy toy = {.seed = round, .greedy = round % 2};
        uint32_t luck = round % 11, eos = draw(&source, 2 * VOCAB);
        struct reply plain, reply;
        struct cache cache;
        decode_plainly(&toy, eos, &plain);
        decode_guessing(&toy, eos, luck, &source, &reply, &cache);
        assert_int_equal(reply.count, plain.count);
        assert_memory_equal(reply.token, plain.token, plain.count * sizeof *plain.token);
        uint64_t prefix = HASH_CHAIN_EMPTY;
        for (uint32_t i = 0; i < cache.committed && i < plain.count; i++) {
            prefix = hash_chain(prefix, plain.token[i]);
            assert_true(cache.place[i] == prefix);
        }
        steps[luck] += reply.steps;
        tokens[luck] += plain.count;
    }
    assert_true(steps[10] * 2 < tokens[10]);
    assert_true(steps[0] > steps[10]);
}

/* A tree that holds a chain accepts at least what the chain does, and more nodes never less. */
static void more_guesses_accept_no_less(void **state) {
    (void)state;
    uint64_t source = 2;
    uint64_t by_chains = 0, by_trees = 0;
    for (uint32_t round = 0; round < 2000; round++) {
        struct toy toy = {.seed = round, .greedy = round % 2};
        struct draft_calibration calibration;
        struct draft_block block;
        draft_calibration_init(&calibration);
        uint32_t root = choose(&toy, HASH_CHAIN_EMPTY, 0), last = 0;
        draft(&toy, hash_chain(HASH_CHAIN_EMPTY, root), 1, 6, &source, &block);
        for (uint32_t seeded = 0; seeded < 2; seeded++) {
            struct draft_tree tree;
            struct draft_bounds bounds = {.node_max = DRAFT_NODES_MAX,
                                          .depth_max = DRAFT_NODES_MAX};
            draft_block_guess(&block, &calibration, &bounds, seeded, &tree);
            last = 0;
            for (uint32_t node_count = 0; node_count <= tree.count; node_count++) {
                struct cache cache = {.committed = 0};
                struct reply reply = {.token = {root}, .count = 1};
                uint32_t given = verify(&toy, &cache, &tree, node_count, &reply);
                assert_true(given >= last);
                if (seeded && node_count == tree.seed_count) by_chains += given;
                last = given;
            }
            if (seeded) by_trees += last;
        }
    }
    assert_true(by_trees > by_chains);
}

/* A tree of random guesses behind any root; siblings differ. */
static uint32_t random_tree(uint64_t *source, uint32_t *token, uint32_t *parent) {
    uint32_t row_count = 1, wanted = 1 + draw(source, 12);
    token[0] = 0, parent[0] = TREE_NO_PARENT;
    while (row_count < wanted) {
        bool is_new = true;
        token[row_count] = draw(source, VOCAB), parent[row_count] = draw(source, row_count);
        for (uint32_t row = 1; row < row_count; row++)
            is_new = is_new && (token[row] != token[row_count] || parent[row] != parent[row_count]);
        if (!is_new) return row_count;
        row_count++;
    }
    return row_count;
}

static uint32_t flip(const struct toy *model, uint64_t prefix, uint64_t *source) {
    double p[VOCAB], coin = unit(source);
    uint32_t drawn = 0;
    probabilities(model, prefix, p);
    for (; drawn + 1 < VOCAB && coin >= p[drawn]; drawn++)
        coin -= p[drawn];
    return drawn;
}

/* The next three tokens, from as many walks as it takes, with coins that nothing fixes. */
static void draw_three(const struct toy *model, uint64_t *source, uint32_t *out) {
    uint64_t prefix = HASH_CHAIN_EMPTY;
    for (uint32_t count = 0; count < 3;) {
        uint32_t token[TREE_ROWS_MAX], parent[TREE_ROWS_MAX];
        struct tree tree;
        struct error err = {0};
        uint32_t row_count = random_tree(source, token, parent);
        assert_int_equal(tree_init(&tree, token, parent, row_count, &err), STATUS_OK);
        struct tree_walk walk;
        tree_walk_begin(&walk);
        for (bool goes_on = true; goes_on;) {
            uint32_t drawn = flip(model, prefix, source);
            if (count < 3) out[count++] = drawn;
            prefix = hash_chain(prefix, drawn);
            goes_on = tree_walk_take(&walk, &tree, drawn);
            if (goes_on) assert_int_equal(token[walk.row[walk.row_count - 1]], drawn);
        }
    }
}

/* Tokens are distributed as the model says: three together, by chi-square with the 99.9 % quantile
 * of 215 degrees of freedom. */
static void draws_have_their_distribution(void **state) {
    (void)state;
    const uint32_t draws = 40000;
    static uint32_t seen[VOCAB * VOCAB * VOCAB];
    struct toy model = {.seed = 77};
    uint64_t source = 3;
    memset(seen, 0, sizeof seen);
    for (uint32_t i = 0; i < draws; i++) {
        uint32_t token[3];
        draw_three(&model, &source, token);
        seen[(token[0] * VOCAB + token[1]) * VOCAB + token[2]]++;
    }
    double chi = 0;
    for (uint32_t i = 0; i < VOCAB * VOCAB * VOCAB; i++) {
        uint32_t path[3] = {i / VOCAB / VOCAB, i / VOCAB % VOCAB, i % VOCAB};
        double p[VOCAB], expected = draws;
        uint64_t prefix = HASH_CHAIN_EMPTY;
        for (uint32_t j = 0; j < 3; j++) {
            probabilities(&model, prefix, p);
            expected *= p[path[j]];
            prefix = hash_chain(prefix, path[j]);
        }
        chi += (seen[i] - expected) * (seen[i] - expected) / expected;
    }
    assert_true(chi < 286);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_the_same),
        cmocka_unit_test(more_guesses_accept_no_less),
        cmocka_unit_test(draws_have_their_distribution),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
