/* The effects of one core_step: a fixed array, and an arena for what they point to.
 *
 * Both are sized at create as a sum with one line a holder (effect_buf.c says why each line is
 * enough), so running out of either is a bug and CHECKed. Everything put in lives until
 * effect_buf_reset, which the next core_step calls first.
 */
#ifndef ESPALIER_EFFECT_BUF_H
#define ESPALIER_EFFECT_BUF_H

#include "base/arena.h"
#include "base/log_limit.h"
#include "core.h"

#define EFFECT_BUF_TEXT_BYTES_MAX 512u /* of one text, its NUL included; longer ones are cut */

struct effect_buf {
    struct effect *effect; /* [capacity] */
    uint32_t count, capacity;
    struct arena arena;
};

size_t effect_buf_memory(const struct core_options *options);
void effect_buf_init(struct effect_buf *buf, const struct core_options *options,
                     struct arena *memory);
void effect_buf_reset(struct effect_buf *buf);

/* A zeroed message to fill and send, to one worker or to several. */
struct control_message *effect_buf_message(struct effect_buf *buf, enum control_message_type type);
void effect_buf_send(struct effect_buf *buf, struct worker_id worker,
                     const struct control_message *message);
void effect_buf_drop(struct effect_buf *buf, struct worker_id worker);

/* bytes of text for a delta to come, to be written by the caller. */
char *effect_buf_delta_text(struct effect_buf *buf, size_t bytes);

/* Where it goes on with the delta put in last, its tokens and log-probabilities with the array of
 * those, in the same channel, it becomes a part of it: what one step gave a reply is one message.
 * Its text must be what effect_buf_delta_text gave last. */
void effect_buf_data(struct effect_buf *buf, struct pool_id call,
                     const struct generate_delta *delta);

/* text is borrowed and must live as long as the effects; summary (may be NULL) is copied. */
void effect_buf_end(struct effect_buf *buf, struct pool_id call, enum status status,
                    const char *text, const struct generate_summary *summary);

void effect_buf_job(struct effect_buf *buf, uint64_t job, enum prompt_kind kind, struct bytes text);
void effect_buf_timer(struct effect_buf *buf, int64_t at_ns);
void effect_buf_resize(struct effect_buf *buf, struct pool_id call,
                       const struct resize_progress *progress);

/* What the report points to is borrowed from the event. */
void effect_buf_examined(struct effect_buf *buf, struct pool_id call, uint32_t rank,
                         const struct examine_report *report);
void effect_buf_exit(struct effect_buf *buf, int code, const char *text);

/* level: enum log_level. */
void effect_buf_log(struct effect_buf *buf, int level, const char *event, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The same for a line that a peer can cause at will. */
void effect_buf_log_limited(struct effect_buf *buf, struct log_limit *limit, int64_t now_ns,
                            int level, const char *event, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

/* A copy of at most EFFECT_BUF_TEXT_BYTES_MAX bytes that lives as long as the effects. */
struct bytes effect_buf_copy(struct effect_buf *buf, struct bytes bytes);

/* A formatted text that lives as long as the effects. */
const char *effect_buf_text(struct effect_buf *buf, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
