/* A borrowed range of bytes. Who owns the memory, and for how long, is said where one is given. */
#ifndef ESPALIER_BYTES_H
#define ESPALIER_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct bytes {
    const uint8_t *data; /* may be NULL where size is 0 */
    size_t size;
};

/* The characters of a C string, without its NUL. */
static inline struct bytes bytes_of_text(const char *text) {
    return (struct bytes){.data = (const uint8_t *)text, .size = strlen(text)};
}

#endif
