#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *status_name(enum status code) {
    switch (code) {
#define X(name, value)                                                                             \
    case STATUS_##name: return #name;
        STATUS_TABLE(X)
#undef X
    }
    return "UNKNOWN";
}

enum status error_set(struct error *err, enum status code, const char *format, ...) {
    if (!err) return code;
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    err->code = code;
    return code;
}

enum status error_wrap(struct error *err, enum status code, const char *format, ...) {
    if (!err) return code;
    char inner[ERROR_TEXT_MAX];
    memcpy(inner, err->text, sizeof inner);
    va_list args;
    va_start(args, format);
    int length = vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    if (length >= 0 && (size_t)length < sizeof err->text)
        snprintf(err->text + length, sizeof err->text - (size_t)length, ": %s", inner);
    err->code = code;
    return code;
}
