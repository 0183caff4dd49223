/* The one vocabulary of outcomes: gRPC's seventeen codes, inside the process and on the wire.
 *
 * A function that can fail under honest operation returns `enum status`, which callers must use.
 * Where a human will read the reason, the last parameter is `struct error *err`: filled where the
 * fault is detected, prefixed on the way up. A bug is not a status: it is a CHECK (check.h).
 *
 * RESOURCE_EXHAUSTED and UNAVAILABLE double as back-pressure: "full" and "try again".
 */
#ifndef ESPALIER_STATUS_H
#define ESPALIER_STATUS_H

#define STATUS_TABLE(X)                                                                            \
    X(OK, 0)                                                                                       \
    X(CANCELLED, 1)                                                                                \
    X(UNKNOWN, 2)                                                                                  \
    X(INVALID_ARGUMENT, 3)                                                                         \
    X(DEADLINE_EXCEEDED, 4)                                                                        \
    X(NOT_FOUND, 5)                                                                                \
    X(ALREADY_EXISTS, 6)                                                                           \
    X(PERMISSION_DENIED, 7)                                                                        \
    X(RESOURCE_EXHAUSTED, 8)                                                                       \
    X(FAILED_PRECONDITION, 9)                                                                      \
    X(ABORTED, 10)                                                                                 \
    X(OUT_OF_RANGE, 11)                                                                            \
    X(UNIMPLEMENTED, 12)                                                                           \
    X(INTERNAL, 13)                                                                                \
    X(UNAVAILABLE, 14)                                                                             \
    X(DATA_LOSS, 15)                                                                               \
    X(UNAUTHENTICATED, 16)

enum status {
#define X(name, value) STATUS_##name = value,
    STATUS_TABLE(X)
#undef X
};
#define STATUS_COUNT 17

#define MUST_USE __attribute__((warn_unused_result))

#define ERROR_TEXT_MAX 512

/* Why something failed, in one line for a person. Owned by the caller; no memory behind it. */
struct error {
    enum status code;
    char text[ERROR_TEXT_MAX];
};

/* "OK", "INVALID_ARGUMENT", ...; never NULL ("UNKNOWN" for a value outside the table). */
const char *status_name(enum status code);

/* Fill *err (may be NULL) and return code, so that `return error_set(...)` reads as one step. */
enum status error_set(struct error *err, enum status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Put "prefix: " before the text already in *err (may be NULL) and return its code. */
enum status error_wrap(struct error *err, enum status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Process exit codes; the contract with launchers and service managers. */
enum exit_code {
    EXIT_CODE_OK = 0,
    EXIT_CODE_FAILED = 1, /* a command's own "no": not ready, an RPC that failed or was cut short */
    EXIT_CODE_USAGE = 64,
    EXIT_CODE_GROUP_LOST = 69,
    EXIT_CODE_INVARIANT = 70, /* a CHECK failed */
    EXIT_CODE_TEMPORARY = 75,
    EXIT_CODE_PERMISSION = 77,
    EXIT_CODE_CONFIG = 78,
};

#endif
