/* Two ways to the same tokens. Nearly all pieces are a few bytes long: for those, an array of parts
 * that is searched for the best pair again after every merge. The square of a megabyte is another
 * matter: for long pieces, a linked list of parts and a heap of pairs.
 *
 *   piece   i n t e r n a t
 *   parts   |in|t|er|n|a|t|        a part is known by its first byte
 *   pair    of part p: p together with the part after it; its rank is that of the joined bytes
 */
#include "text/bpe.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define SHORT_BYTES_MAX 96u
#define NO_RANK         VOCAB_NO_ID /* greater than every rank */

static void encode_short(const struct vocab *vocab, const char *piece, size_t bytes,
                         struct token_list *ids);
static enum status encode_long(const struct vocab *vocab, const char *piece, size_t bytes,
                               struct token_list *ids);

enum status bpe_encode(const struct vocab *vocab, const char *piece, size_t bytes,
                       struct token_list *ids) {
    CHECK(bytes > 0 && bytes < UINT32_MAX);
    uint32_t whole = vocab_find(vocab, piece, bytes);
    if (whole != VOCAB_NO_ID) {
        token_list_push(ids, whole);
        return STATUS_OK;
    }
    if (bytes > SHORT_BYTES_MAX) return encode_long(vocab, piece, bytes, ids);
    encode_short(vocab, piece, bytes, ids);
    return STATUS_OK;
}

static void encode_short(const struct vocab *vocab, const char *piece, size_t bytes,
                         struct token_list *ids) {
    /* Part i is piece[begin[i], begin[i + 1]); rank[i] is its pair's. */
    uint32_t begin[SHORT_BYTES_MAX + 1], rank[SHORT_BYTES_MAX];
    size_t count = bytes;
    for (size_t i = 0; i <= count; i++)
        begin[i] = (uint32_t)i;
    for (size_t i = 0; i < count; i++)
        rank[i] = i + 1 < count ? vocab_find(vocab, piece + i, 2) : NO_RANK;

    for (;;) {
        size_t best = 0;
        for (size_t i = 1; i < count; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == NO_RANK) break;

        memmove(begin + best + 1, begin + best + 2, (count - best - 1) * sizeof *begin);
        memmove(rank + best + 1, rank + best + 2, (count - best - 2) * sizeof *rank);
        count--;
        for (size_t i = best > 0 ? best - 1 : 0; i <= best; i++) {
            rank[i] = i + 1 < count ? vocab_find(vocab, piece + begin[i], begin[i + 2] - begin[i])
                                    : NO_RANK;
        }
    }
    for (size_t i = 0; i < count; i++)
        token_list_push(ids, vocab_find(vocab, piece + begin[i], begin[i + 1] - begin[i]));
}

struct part {
    uint32_t before, after; /* the first byte of the neighbour; `after` of the last is the end */
    uint32_t rank;          /* of the pair; NO_RANK too where the part is merged away */
};

/* A binary heap of pairs, rank in the high and first byte in the low half, so that the least is the
 * lowest rank and among those the leftmost. Entries are not removed when their pair changes; one is
 * current while its rank is its part's. Each merge takes one entry and adds at most two, so 2 x
 * bytes entries are enough. */
struct heap {
    uint64_t *entry;
    size_t count;
};

static void heap_push(struct heap *heap, uint64_t value) {
    size_t at = heap->count++;
    while (at > 0 && heap->entry[(at - 1) / 2] > value) {
        heap->entry[at] = heap->entry[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap->entry[at] = value;
}

static uint64_t heap_pop(struct heap *heap) {
    uint64_t least = heap->entry[0], last = heap->entry[--heap->count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= heap->count) break;
        if (child + 1 < heap->count && heap->entry[child + 1] < heap->entry[child]) child++;
        if (heap->entry[child] >= last) break;
        heap->entry[at] = heap->entry[child];
        at = child;
    }
    heap->entry[at] = last;
    return least;
}

/* Look up the pair of part `at` again and, where it is a token, enter it. */
static void renew_pair(const struct vocab *vocab, const char *piece, size_t bytes,
                       struct part *part, struct heap *heap, uint32_t at) {
    uint32_t after = part[at].after;
    part[at].rank = after < bytes ? vocab_find(vocab, piece + at, part[after].after - at) : NO_RANK;
    if (part[at].rank != NO_RANK) heap_push(heap, (uint64_t)part[at].rank << 32 | at);
}

static enum status encode_long(const struct vocab *vocab, const char *piece, size_t bytes,
                               struct token_list *ids) {
    enum status status = STATUS_RESOURCE_EXHAUSTED;
    struct part *part = malloc(bytes * sizeof *part);
    struct heap heap = {.entry = malloc(2 * bytes * sizeof *heap.entry)};
    if (!part || !heap.entry) goto out_free;

    for (uint32_t i = 0; i < bytes; i++)
        part[i] = (struct part){.before = i - 1, .after = i + 1}; /* before of the first: unused */
    for (uint32_t i = 0; i < bytes; i++)
        renew_pair(vocab, piece, bytes, part, &heap, i);

    while (heap.count > 0) {
        uint64_t entry = heap_pop(&heap);
        uint32_t at = (uint32_t)entry;
        if (part[at].rank != entry >> 32) continue;
        uint32_t merged = part[at].after, after = part[merged].after;
        part[at].after = after;
        part[merged].rank = NO_RANK;
        if (after < bytes) part[after].before = at;
        renew_pair(vocab, piece, bytes, part, &heap, at);
        if (at > 0) renew_pair(vocab, piece, bytes, part, &heap, part[at].before);
    }
    for (uint32_t at = 0; at < bytes; at = part[at].after)
        token_list_push(ids, vocab_find(vocab, piece + at, part[at].after - at));
    status = STATUS_OK;
out_free:
    free(part);
    free(heap.entry);
    return status;
}
