#include "draft_source_suffix.h"

#include "base/check.h"
#include "base/hash.h"
#include "draft_heap.h"

#define KEY_TOK         2u   /* a match is no shorter */
#define OCCURRENCES_MAX 128u /* looked at */
#define TRIES_MAX       8u   /* lengths of match */
#define SEPARATOR       UINT32_MAX

_Static_assert(OCCURRENCES_MAX <= DRAFT_HEAP_MAX, "a frontier's nodes share no occurrence");

size_t draft_suffix_memory(uint32_t capacity) {
    return capacity * sizeof(struct draft_suffix_place) + capacity * sizeof(uint32_t) +
           (size_t)2 * ARENA_ALIGN;
}

void draft_suffix_init(struct draft_suffix *suffix, uint32_t capacity, struct arena *memory) {
    CHECK(capacity > 0 && (capacity & (capacity - 1)) == 0);
    *suffix = (struct draft_suffix){
        .place = arena_calloc(memory, capacity, sizeof(struct draft_suffix_place)),
        .head = arena_calloc(memory, capacity, sizeof(uint32_t)),
        .capacity = capacity,
    };
    CHECK(suffix->place && suffix->head);
}

void draft_suffix_clear(struct draft_suffix *suffix) {
    suffix->begin = suffix->written;
}

static struct draft_suffix_place *place_at(const struct draft_suffix *suffix, uint64_t at) {
    return &suffix->place[at & (suffix->capacity - 1)];
}

/* The oldest place that can be found. */
static uint64_t oldest(const struct draft_suffix *suffix) {
    uint64_t kept = suffix->written > suffix->capacity ? suffix->written - suffix->capacity : 0;
    return kept > suffix->begin ? kept : suffix->begin;
}

static uint32_t *head_of(const struct draft_suffix *suffix, uint32_t mark, uint32_t before,
                         uint32_t last) {
    uint64_t key = hash_chain(hash_chain(mark, before), last);
    return &suffix->head[key & (suffix->capacity - 1)];
}

static void append_one(struct draft_suffix *suffix, uint32_t mark, uint32_t token) {
    uint64_t at = suffix->written++;
    struct draft_suffix_place *place = place_at(suffix, at);
    *place = (struct draft_suffix_place){.token = token, .mark = mark};
    if (at <= oldest(suffix)) return;
    const struct draft_suffix_place *before = place_at(suffix, at - 1);
    if (token == SEPARATOR || before->token == SEPARATOR || before->mark != mark) return;
    uint32_t *head = head_of(suffix, mark, before->token, token);
    uint32_t back = (uint32_t)at - *head; /* heads wrap with the places; what is stale is too far */
    if (back <= at - oldest(suffix)) place->back = back;
    *head = (uint32_t)at;
}

void draft_suffix_append(struct draft_suffix *suffix, uint32_t mark, const uint32_t *token,
                         uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        append_one(suffix, mark, token[i]);
}

void draft_suffix_separate(struct draft_suffix *suffix) {
    if (suffix->written > oldest(suffix)) append_one(suffix, 0, SEPARATOR);
}

uint32_t draft_suffix_end(const struct draft_suffix *suffix, uint32_t *token_out) {
    uint64_t kept = suffix->written - oldest(suffix);
    uint32_t count = kept < DRAFT_SUFFIX_MATCH_MAX ? (uint32_t)kept : DRAFT_SUFFIX_MATCH_MAX;
    for (uint32_t i = 0; i < count; i++)
        token_out[i] = place_at(suffix, suffix->written - count + i)->token;
    return count;
}

/* ============================== occurrences =================================================== */

/* A place behind which the history goes on: where, and how many tokens before it match. */
struct occurrence {
    uint64_t next;
    uint32_t match;
};

struct occurrences {
    struct occurrence of[OCCURRENCES_MAX];
    uint32_t count;
};

/* The token at a place, where it is there, of the tenant, and no separator. */
static bool read_place(const struct draft_suffix *suffix, uint32_t mark, uint64_t at,
                       uint32_t *token_out) {
    if (at < oldest(suffix) || at >= suffix->written) return false;
    const struct draft_suffix_place *place = place_at(suffix, at);
    *token_out = place->token;
    return place->mark == mark && place->token != SEPARATOR;
}

static uint32_t match_at(const struct draft_suffix *suffix, uint32_t mark, uint64_t last,
                         const uint32_t *end, uint32_t end_count) {
    uint32_t match = 0, token;
    while (match < end_count && match < DRAFT_SUFFIX_MATCH_MAX && last >= match &&
           read_place(suffix, mark, last - match, &token) && token == end[end_count - 1 - match])
        match++;
    return match;
}

static void find_occurrences(const struct draft_suffix *suffix, uint32_t mark, const uint32_t *end,
                             uint32_t end_count, struct occurrences *found) {
    found->count = 0;
    if (end_count < KEY_TOK || suffix->written == oldest(suffix)) return;
    uint64_t newest = suffix->written - 1;
    uint32_t back = (uint32_t)newest -
                    *head_of(suffix, mark, end[end_count - 2], end[end_count - 1]);
    uint64_t at = newest;
    for (uint32_t looked = 0; looked < OCCURRENCES_MAX; looked++) {
        if (back > at - oldest(suffix)) return;
        at -= back;
        uint32_t token, match = match_at(suffix, mark, at, end, end_count);
        if (match >= KEY_TOK && read_place(suffix, mark, at + 1, &token))
            found->of[found->count++] = (struct occurrence){.next = at + 1, .match = match};
        back = place_at(suffix, at)->back;
        if (back == 0) return;
    }
}

/* ============================== the tree ====================================================== */

/* One search: occurrences of a length at least, ordered by what follows them, so that those of a
 * trie's node are a range. */
struct search {
    const struct draft_suffix *suffix;
    const struct draft_calibration *calibration;
    const struct draft_bounds *bounds;
    enum draft_source source;
    uint32_t mark, match, depth_max;
    struct occurrence of[OCCURRENCES_MAX];
    uint32_t count;
    struct draft_tree *out;
    struct draft_heap heap;
};

/* The token `depth` behind an occurrence; SEPARATOR where nothing is. Of a request's own history
 * the end is that of the request, and what repeats itself up to there is taken to go on doing so.
 */
static uint32_t token_behind(const struct search *search, const struct occurrence *occurrence,
                             uint32_t depth) {
    uint64_t at = occurrence->next + depth - 1, written = search->suffix->written;
    if (search->source == DRAFT_OWN && at >= written)
        at = occurrence->next + (at - occurrence->next) % (written - occurrence->next);
    uint32_t token;
    return read_place(search->suffix, search->mark, at, &token) ? token : SEPARATOR;
}

/* Those that end go last. */
static bool goes_before(const struct search *search, const struct occurrence *a,
                        const struct occurrence *b) {
    for (uint32_t depth = 1; depth <= search->depth_max; depth++) {
        uint32_t of_a = token_behind(search, a, depth), of_b = token_behind(search, b, depth);
        if (of_a != of_b) return of_a < of_b;
        if (of_a == SEPARATOR) return false;
    }
    return false;
}

/* Insert in order; few are, and most come in runs. */
static void insert(struct search *search, const struct occurrence *occurrence) {
    uint32_t low = 0, high = search->count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (goes_before(search, occurrence, &search->of[middle]))
            high = middle;
        else
            low = middle + 1;
    }
    for (uint32_t i = search->count++; i > low; i--)
        search->of[i] = search->of[i - 1];
    search->of[low] = *occurrence;
}

/* Classes: the length of the match, to which every further token adds one; of what was there once,
 * and of what was there several times. */
static uint8_t class_of(uint32_t match, uint32_t depth, uint32_t of) {
    uint32_t length = match + depth - 1, lengths = DRAFT_CLASSES / 2;
    return (uint8_t)((length < lengths ? length : lengths - 1) + (of > 1 ? lengths : 0));
}

/* Offer the tokens that follow the occurrences [begin, end) of a row. */
static void offer_range(struct search *search, uint32_t parent, uint32_t depth, uint32_t begin,
                        uint32_t end) {
    while (end > begin && token_behind(search, &search->of[end - 1], depth) == SEPARATOR)
        end--; /* what has no end yet says nothing */
    double above = parent > 0 ? search->out->node[parent - 1].weight : 1;
    double factor = draft_calibration_factor(search->calibration, search->source,
                                             class_of(search->match, depth, end - begin));
    for (uint32_t from = begin, to; from < end; from = to) {
        uint32_t token = token_behind(search, &search->of[from], depth);
        for (to = from + 1; to < end && token_behind(search, &search->of[to], depth) == token;)
            to++;
        double probability = (double)(to - from) / (end - begin) * factor;
        draft_heap_push(&search->heap, &(struct draft_heap_entry){
                                           .weight = above * (probability < 1 ? probability : 1),
                                           .rank = from,
                                           .end = to,
                                           .of = end - begin,
                                           .parent = (uint8_t)parent,
                                           .depth = (uint8_t)depth,
                                       });
    }
}

/* The tree of the occurrences inserted so far; returns how many tokens it is expected to give. */
static double build(struct search *search, struct draft_tree *out) {
    double expected = 0;
    struct draft_heap_entry entry;
    search->out = out;
    search->heap.count = out->count = out->seed_count = 0;
    if (search->depth_max > 0) offer_range(search, 0, 1, 0, search->count);
    while (out->count < search->bounds->node_max && draft_heap_pop(&search->heap, &entry)) {
        uint32_t token = token_behind(search, &search->of[entry.rank], entry.depth);
        out->node[out->count++] = (struct draft_node){
            .weight = entry.weight,
            .stated = (float)(entry.end - entry.rank) / (float)entry.of,
            .token = token,
            .parent = entry.parent,
            .depth = entry.depth,
            .source = (uint8_t)search->source,
            .class = class_of(search->match, entry.depth, entry.of),
        };
        expected += entry.weight;
        if (entry.depth < search->depth_max && !draft_bounds_is_stop(search->bounds, token))
            offer_range(search, out->count, entry.depth + 1u, entry.rank, entry.end);
    }
    return expected;
}

/* The longest match shorter than this; 0: none. */
static uint32_t next_match(const struct occurrences *found, uint32_t below) {
    uint32_t match = 0;
    for (uint32_t i = 0; i < found->count; i++)
        if (found->of[i].match < below && found->of[i].match > match) match = found->of[i].match;
    return match;
}

void draft_suffix_guess(const struct draft_suffix *suffix, enum draft_source source, uint32_t mark,
                        const uint32_t *end, uint32_t end_count,
                        const struct draft_calibration *calibration,
                        const struct draft_bounds *bounds, struct draft_tree *out) {
    CHECK(bounds->node_max <= DRAFT_NODES_MAX);
    struct occurrences found;
    find_occurrences(suffix, mark, end, end_count, &found);
    struct search search = {
        .suffix = suffix,
        .calibration = calibration,
        .bounds = bounds,
        .source = source,
        .mark = mark,
        .depth_max = bounds->depth_max < DRAFT_NODES_MAX ? bounds->depth_max : DRAFT_NODES_MAX,
    };
    struct draft_tree tree;
    double best = 0;
    out->count = out->seed_count = 0;
    for (uint32_t match = next_match(&found, UINT32_MAX), tried = 0; match > 0 && tried < TRIES_MAX;
         match = next_match(&found, match), tried++) {
        search.match = match;
        for (uint32_t i = 0; i < found.count; i++)
            if (found.of[i].match == match) insert(&search, &found.of[i]);
        double expected = build(&search, &tree);
        if (expected > best) {
            best = expected;
            *out = tree;
        }
    }
}
