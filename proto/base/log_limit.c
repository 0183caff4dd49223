#include "base/log_limit.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#define TEXT_BYTES_MAX 1024u

bool log_limit_pass(struct log_limit *limit, int64_t now_ns, uint64_t *held_back_out) {
    bool is_new = limit->lines == 0 || now_ns - limit->window_ns >= LOG_LIMIT_WINDOW_NS;
    if (is_new) {
        limit->window_ns = now_ns;
        limit->lines = 0;
    } else if (limit->lines == LOG_LIMIT_LINES) {
        limit->held_back++;
        return false;
    }
    limit->lines++;
    *held_back_out = limit->held_back;
    limit->held_back = 0;
    return true;
}

void log_limited(struct log_limit *limit, int64_t now_ns, enum log_level level, const char *event,
                 const char *format, ...) {
    uint64_t held_back;
    if (!log_limit_pass(limit, now_ns, &held_back)) return;
    char text[TEXT_BYTES_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (held_back > 0)
        log_write(level, event, "%s held_back=%" PRIu64, text, held_back);
    else
        log_write(level, event, "%s", text);
}
