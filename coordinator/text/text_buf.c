#include "text/text_buf.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define CAPACITY_MIN 256u

static bool reserve(struct text_buf *buf, size_t bytes);

void text_buf_init(struct text_buf *buf, size_t bytes_max) {
    *buf = (struct text_buf){.bytes_max = bytes_max};
}

void text_buf_deinit(struct text_buf *buf) {
    free(buf->data);
    *buf = (struct text_buf){0};
}

void text_buf_append(struct text_buf *buf, const char *data, size_t bytes) {
    if (bytes == 0 || !reserve(buf, bytes)) return;
    memcpy(buf->data + buf->bytes, data, bytes);
    buf->bytes += bytes;
}

void text_buf_append_str(struct text_buf *buf, const char *str) {
    text_buf_append(buf, str, strlen(str));
}

void text_buf_append_spaces(struct text_buf *buf, size_t count) {
    if (count == 0 || !reserve(buf, count)) return;
    memset(buf->data + buf->bytes, ' ', count);
    buf->bytes += count;
}

void text_buf_truncate(struct text_buf *buf, size_t bytes) {
    CHECK(bytes <= buf->bytes);
    buf->bytes = bytes;
}

static bool reserve(struct text_buf *buf, size_t bytes) {
    if (buf->full) return false;
    if (bytes > buf->bytes_max - buf->bytes) {
        buf->full = true;
        return false;
    }
    size_t needed = buf->bytes + bytes;
    if (needed <= buf->capacity) return true;

    size_t capacity = buf->capacity < CAPACITY_MIN ? CAPACITY_MIN : buf->capacity;
    while (capacity < needed)
        capacity *= 2;
    char *data = realloc(buf->data, capacity);
    if (!data) {
        buf->full = true;
        return false;
    }
    buf->data = data;
    buf->capacity = capacity;
    return true;
}
