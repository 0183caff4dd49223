#include "simt_view.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"
#include "simt.h"

#define SEEN_BITS  15 /* places; a table that is full sees no more, which only hides mistakes */
#define SEEN_COUNT (1u << SEEN_BITS)
#define SEEN_MAX   (SEEN_COUNT / 2)

struct kept {
    float *to;
    float value[SIMT_VIEW_FLOATS];
    uint32_t thread, epoch;
};

struct seen {
    const float *from;
    float value[SIMT_VIEW_FLOATS];
    uint64_t time;
    uint64_t fill; /* of the table that it is from */
};

struct simt_view {
    uint32_t epoch; /* barriers so far */
    struct kept *kept;
    size_t kept_count, kept_cap;
    uint64_t time;                             /* counts loads and acquires */
    uint64_t acquired[SIMT_THREADS_MAX];       /* when each thread did last */
    uint64_t acquired_by_any, acquired_by_all; /* all: as of the last barrier */
    struct seen *seen;                         /* [SEEN_COUNT] */
    uint64_t fill;
    uint32_t seen_count;
};

struct simt_view *simt_view_create(void) {
    struct simt_view *view = calloc(1, sizeof *view);
    KERNEL_CHECK(view != NULL);
    view->seen = calloc(SEEN_COUNT, sizeof *view->seen);
    KERNEL_CHECK(view->seen != NULL);
    return view;
}

static void forget_seen(struct simt_view *view) {
    view->fill++;
    view->seen_count = 0;
}

void simt_view_begin(struct simt_view *view) {
    if (view->acquired_by_any > 0) memset(view->acquired, 0, sizeof view->acquired);
    view->epoch = 0;
    view->time = view->acquired_by_any = view->acquired_by_all = 0;
    forget_seen(view);
}

static void deliver(struct simt_view *view,
                    bool (*is_due)(const struct simt_view *view, const struct kept *kept,
                                   uint32_t thread),
                    uint32_t thread) {
    size_t left = 0;
    for (size_t i = 0; i < view->kept_count; i++) {
        const struct kept *kept = &view->kept[i];
        if (is_due(view, kept, thread))
            memcpy(kept->to, kept->value, sizeof kept->value);
        else
            view->kept[left++] = *kept;
    }
    view->kept_count = left;
}

static bool always(const struct simt_view *view, const struct kept *kept, uint32_t thread) {
    (void)view;
    (void)kept;
    (void)thread;
    return true;
}

void simt_view_end(struct simt_view *view) {
    deliver(view, always, 0);
}

/* Its own place, or the free one where it would go. NULL: the table is full. */
static struct seen *find_seen(struct simt_view *view, const float *from) {
    uint32_t at = (uint32_t)(((uintptr_t)from >> 4) * 0x9e3779b97f4a7c15u >> (64 - SEEN_BITS));
    for (;; at = (at + 1) % SEEN_COUNT) {
        struct seen *seen = &view->seen[at];
        if (seen->fill == view->fill && seen->from != from) continue;
        if (seen->fill == view->fill || view->seen_count < SEEN_MAX) return seen;
        return NULL;
    }
}

void simt_view_store(struct simt_view *view, uint32_t thread, float *to, const float *value) {
    if (view->kept_count == view->kept_cap) {
        view->kept_cap = view->kept_cap > 0 ? 2 * view->kept_cap : 64;
        view->kept = realloc(view->kept, view->kept_cap * sizeof *view->kept);
        KERNEL_CHECK(view->kept != NULL);
    }
    struct kept *kept = &view->kept[view->kept_count++];
    *kept = (struct kept){.to = to, .thread = thread, .epoch = view->epoch};
    memcpy(kept->value, value, sizeof kept->value);
    struct seen *seen = find_seen(view, to);
    if (seen != NULL && seen->fill == view->fill) memcpy(seen->value, value, sizeof seen->value);
}

void simt_view_load(struct simt_view *view, uint32_t thread, float *value_out, const float *from) {
    const float *value = from;
    uint64_t acquired = view->acquired[thread];
    if (acquired < view->acquired_by_all) acquired = view->acquired_by_all;
    struct seen *seen = find_seen(view, from);
    bool is_known = seen != NULL && seen->fill == view->fill;
    if (is_known && seen->time > acquired) value = seen->value;
    for (size_t i = view->kept_count; i-- > 0 && value == from;)
        if (view->kept[i].to == from) value = view->kept[i].value;
    memcpy(value_out, value, SIMT_VIEW_FLOATS * sizeof *value);
    if (seen == NULL || value == seen->value) return;
    if (!is_known) view->seen_count++;
    *seen = (struct seen){.from = from, .time = ++view->time, .fill = view->fill};
    memcpy(seen->value, value_out, sizeof seen->value);
}

/* What the thread stored itself, or knows of by a barrier. */
static bool is_behind(const struct simt_view *view, const struct kept *kept, uint32_t thread) {
    return kept->thread == thread || kept->epoch < view->epoch;
}

void simt_view_release(struct simt_view *view, uint32_t thread) {
    deliver(view, is_behind, thread);
}

void simt_view_acquire(struct simt_view *view, uint32_t thread) {
    view->acquired[thread] = view->acquired_by_any = ++view->time;
}

void simt_view_barrier(struct simt_view *view) {
    view->epoch++;
    if (view->acquired_by_all == view->acquired_by_any) return;
    view->acquired_by_all = view->acquired_by_any;
    forget_seen(view);
}
