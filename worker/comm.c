#include "comm.h"

#include <stdatomic.h>

#include "base/check.h"
#include "comm_kind.h"

enum status comm_seed_create(const struct comm_kind *kind, uint32_t size, uint64_t generation,
                             struct comm_seed **seed_out, struct comm_key *key_out,
                             struct error *err) {
    CHECK(size >= 1 && size <= TP_MAX);
    enum status status = kind->seed_create(size, generation, seed_out, key_out, err);
    if (status == STATUS_OK) (*seed_out)->kind = kind;
    return status;
}

void comm_seed_destroy(struct comm_seed **seed) {
    if (!*seed) return;
    (*seed)->kind->seed_destroy(*seed);
    *seed = NULL;
}

enum status comm_join(const struct comm_kind *kind, const struct comm_key *key, uint32_t rank,
                      uint32_t size, uint64_t generation, uint32_t timeout_ms,
                      const _Atomic bool *cancel, struct comm **comm_out, struct error *err) {
    CHECK(size >= 1 && size <= TP_MAX && rank < size);
    enum status status = kind->join(key, rank, size, generation, timeout_ms, cancel, comm_out, err);
    if (status == STATUS_OK) (*comm_out)->kind = kind;
    return status;
}

void comm_close(struct comm **comm) {
    if (!*comm) return;
    (*comm)->kind->close(*comm);
    *comm = NULL;
}

void comm_use(struct comm *comm, void *stream, uint32_t wait_ms) {
    if (comm->kind->use) comm->kind->use(comm, stream, wait_ms);
}

enum status comm_wait(struct comm *comm, struct error *err) {
    return comm->kind->wait ? comm->kind->wait(comm, err) : STATUS_OK;
}

enum status comm_replay(struct comm *comm, uint64_t operations, struct error *err) {
    atomic_fetch_add_explicit(&comm->sequence, operations, memory_order_relaxed);
    return comm->kind->check ? comm->kind->check(comm, err) : STATUS_OK;
}

uint32_t comm_rank(const struct comm *comm) {
    return comm->rank;
}

uint32_t comm_size(const struct comm *comm) {
    return comm->size;
}

static void enter(struct comm *comm) {
    atomic_fetch_add_explicit(&comm->sequence, 1, memory_order_relaxed);
}

enum status comm_all_reduce(struct comm *comm, float *data, size_t count, struct error *err) {
    enter(comm);
    return comm->kind->all_reduce(comm, data, count, err);
}

enum status comm_all_gather(struct comm *comm, const void *mine, size_t bytes, void *out,
                            struct error *err) {
    enter(comm);
    return comm->kind->all_gather(comm, mine, bytes, out, err);
}

enum status comm_broadcast(struct comm *comm, void *data, size_t bytes, uint32_t root,
                           struct error *err) {
    CHECK(root < comm->size);
    enter(comm);
    return comm->kind->broadcast(comm, data, bytes, root, err);
}

enum status comm_send(struct comm *comm, uint32_t peer, const void *data, size_t bytes,
                      struct error *err) {
    CHECK(peer < comm->size && peer != comm->rank);
    enter(comm);
    return comm->kind->send(comm, peer, data, bytes, err);
}

enum status comm_recv(struct comm *comm, uint32_t peer, void *data, size_t bytes,
                      struct error *err) {
    CHECK(peer < comm->size && peer != comm->rank);
    enter(comm);
    return comm->kind->recv(comm, peer, data, bytes, err);
}

const void *comm_memory(const struct comm *comm, size_t *bytes_out) {
    *bytes_out = 0;
    return comm->kind->memory ? comm->kind->memory(comm, bytes_out) : NULL;
}

void comm_abort(struct comm *comm) {
    comm->kind->abort(comm);
}

void comm_take_times(struct comm *comm, struct histogram *into) {
    if (comm->kind->take_times) comm->kind->take_times(comm, into);
}

uint64_t comm_sequence(const struct comm *comm) {
    return atomic_load_explicit(&comm->sequence, memory_order_relaxed);
}
