/* Bytes that grow up to a bound. An append that does not fit, or for which memory is refused, marks
 * the buffer as full and changes nothing; so does every later one. Writers append without looking
 * and ask once at the end. One thread at a time; owns its memory. */
#ifndef ESPALIER_TEXT_BUF_H
#define ESPALIER_TEXT_BUF_H

#include <stdbool.h>
#include <stddef.h>

struct text_buf {
    char *data; /* [bytes], owned; NULL while empty; no NUL at its end */
    size_t bytes;
    size_t capacity;
    size_t bytes_max;
    bool full;
};

void text_buf_init(struct text_buf *buf, size_t bytes_max);
void text_buf_deinit(struct text_buf *buf);

void text_buf_append(struct text_buf *buf, const char *data, size_t bytes);
void text_buf_append_str(struct text_buf *buf, const char *str);
void text_buf_append_spaces(struct text_buf *buf, size_t count);

/* Forget what lies at and after `bytes`. A full buffer stays full. */
void text_buf_truncate(struct text_buf *buf, size_t bytes);

#endif
