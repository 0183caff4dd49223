/* Another size of the token pool, or of the batch, while requests run.
 *
 *   by memory IDLE ── SIZE to all ──▶ SIZING ── all have said what they hold: the least ─┐
 *                                                                                        ▼
 *   larger    IDLE ── RESIZE to all ──▶ ASKED ── all have mapped ──▶ pool grows ──▶ IDLE
 *
 *   smaller   IDLE ──▶ HOLDING ── no step in flight: evict, move, shrink; RESIZE to all ──▶ ASKED
 *                         ▲                                                              │
 *                         └──────── more to move than one order carries ─────────────────┴──▶ IDLE
 *
 *   either    ASKED ── a rank could not ──▶ the old size, to all ──▶ UNDOING ── all have ──▶ IDLE
 *
 * One size on all ranks: a plan never names a page that some rank has not. Orders and plans reach a
 * worker in the order in which they leave, so what runs goes on as soon as a smaller pool's order
 * is out: the moves come before the next step on every rank. A larger pool is used when all have
 * it. Where the generation ends in between, or a rank cannot, the old size stands, and every new
 * group is formed with it (FORM_GROUP says the size).
 *
 * What does not fit a smaller pool: cached pages go first, the least valuable; pages in use move
 * below the new end; and only with `force` requests are sent back to wait. It is refused, with what
 * would be accepted, where a live request could not finish alone in it.
 *
 * A fraction of memory becomes a size as it does at the start: each rank plans with its own memory,
 * and the smallest rank rules. From then on it is the group's fraction, also for a rank that comes
 * back; a size in tokens leaves none.
 *
 * Why moves are no part of a plan: docs/decisions/0008.
 *
 * No memory after init; the moves live until the next order.
 */
#ifndef ESPALIER_RESIZE_H
#define ESPALIER_RESIZE_H

#include "effect_buf.h"
#include "roll_call.h"
#include "roster.h"
#include "scheduler.h"

enum resize_state {
    RESIZE_STATE_IDLE,
    RESIZE_STATE_SIZING,  /* waits for what every rank's memory holds; nothing has changed */
    RESIZE_STATE_HOLDING, /* no further plan; waits for the steps in flight */
    RESIZE_STATE_ASKED,   /* waits for every rank's answer */
    RESIZE_STATE_UNDOING, /* likewise, to the order that brings the old size back */
};

/* Borrowed for the life of what is resized. */
struct resize_parts {
    struct core_options *options; /* the core's own: the sizes that hold now */
    struct scheduler *scheduler;
    const struct roster *roster;
    struct effect_buf *effects;
};

#define RESIZE_FOUND_BYTES_MAX 128u

struct resize {
    struct resize_parts parts;
    enum resize_state state;
    struct pool_id call;
    bool has_call; /* somebody waits for the end */
    struct resize_request request;
    char found[RESIZE_FOUND_BYTES_MAX]; /* the flag and what it comes to, for refusals */
    struct roster_memory memory;        /* what ranks' memory holds, while SIZING */
    struct resize_progress progress;
    struct roll_call roll; /* open: SIZING, ASKED, UNDOING */
    enum status failure;   /* the first rank's that could not */
    char failure_text[EFFECT_BUF_TEXT_BYTES_MAX];
    struct page_move *move; /* [RESIZE_MOVES_MAX], at most the pool's pages */
};

size_t resize_memory(const struct core_options *options);
void resize_init(struct resize *resize, const struct resize_parts *parts, struct arena *memory);

/* A Resize call: refuse it, carry it out, or begin. */
void resize_begin(struct resize *resize, const struct event *event);

/* No plan may leave now. */
bool resize_holds_plans(const struct resize *resize);

/* No step is in flight: go on where that was waited for. */
void resize_advance(struct resize *resize, int64_t now_ns);

/* A rank's answer, to an order and to a question. False: none is owed with this number. */
bool resize_take(struct resize *resize, uint32_t rank, const struct worker_resized *resized,
                 int64_t now_ns);
bool resize_take_size(struct resize *resize, uint32_t rank, const struct worker_sized *sized,
                      int64_t now_ns);

/* The caller no longer waits; the resize goes on. False: it is not this call's. */
bool resize_cancel(struct resize *resize, struct pool_id call, enum status reason);

/* The generation is over, no page is in use, workers' sizes differ: the old one stands. */
void resize_abandon(struct resize *resize, const char *reason);

#endif
