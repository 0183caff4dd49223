/* What a way to meet does for comm.h, whose words say what each of these is to do. For comm.c and
 * the kinds alone. */
#ifndef ESPALIER_COMM_KIND_H
#define ESPALIER_COMM_KIND_H

#include <stdatomic.h>

#include "comm.h"

/* The beginning of every kind's own; `kind` is filled in by comm.c. */
struct comm_seed {
    const struct comm_kind *kind;
};

struct comm {
    const struct comm_kind *kind;
    uint32_t rank, size;       /* filled in by join */
    _Atomic uint64_t sequence; /* operations entered */
};

struct comm_kind {
    enum status (*seed_create)(uint32_t size, uint64_t generation, struct comm_seed **seed_out,
                               struct comm_key *key_out, struct error *err);
    void (*seed_destroy)(struct comm_seed *seed);
    enum status (*join)(const struct comm_key *key, uint32_t rank, uint32_t size,
                        uint64_t generation, uint32_t timeout_ms, const _Atomic bool *cancel,
                        struct comm **comm_out, struct error *err);
    void (*close)(struct comm *comm);
    void (*use)(struct comm *comm, void *stream, uint32_t wait_ms); /* NULL: there is no stream */
    enum status (*wait)(struct comm *comm, struct error *err);      /* likewise */
    enum status (*check)(struct comm *comm, struct error *err);     /* likewise: is it broken */
    enum status (*all_reduce)(struct comm *comm, float *data, size_t count, struct error *err);
    enum status (*all_gather)(struct comm *comm, const void *mine, size_t bytes, void *out,
                              struct error *err);
    enum status (*broadcast)(struct comm *comm, void *data, size_t bytes, uint32_t root,
                             struct error *err);
    enum status (*send)(struct comm *comm, uint32_t peer, const void *data, size_t bytes,
                        struct error *err);
    enum status (*recv)(struct comm *comm, uint32_t peer, void *data, size_t bytes,
                        struct error *err);
    const void *(*memory)(const struct comm *comm, size_t *bytes_out); /* NULL: not told */
    void (*abort)(struct comm *comm);
    void (*take_times)(struct comm *comm, struct histogram *into); /* NULL: not measured */
};

#endif
