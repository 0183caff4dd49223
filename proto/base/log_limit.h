/* Lines that somebody outside can cause as often as he likes: some are written, the rest counted.
 *
 * At most LOG_LIMIT_LINES lines of a kind pass in a window of LOG_LIMIT_WINDOW_NS; the first one of
 * a later window says how many were held back. So a peer that sends rubbish is seen, and neither
 * fills a disk nor drives what matters out of the log.
 *
 * One limit a kind of line and thread; zeros are its beginning. Pure: time comes from the caller.
 */
#ifndef ESPALIER_LOG_LIMIT_H
#define ESPALIER_LOG_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"

#define LOG_LIMIT_LINES     20u
#define LOG_LIMIT_WINDOW_NS INT64_C(10000000000)

struct log_limit {
    int64_t window_ns; /* its beginning */
    uint32_t lines;    /* passed in it */
    uint64_t held_back;
};

/* May a line be written now? Then *held_back_out is how many were not since the last one. */
bool log_limit_pass(struct log_limit *limit, int64_t now_ns, uint64_t *held_back_out);

/* log_write, where it passes; `held_back=N` is added where N were held back. */
void log_limited(struct log_limit *limit, int64_t now_ns, enum log_level level, const char *event,
                 const char *format, ...) __attribute__((format(printf, 5, 6)));

#endif
