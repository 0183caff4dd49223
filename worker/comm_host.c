/* Collectives over shared memory (comm_shm.h). Every operation is cut into pieces that fit a slot;
 * a piece of a small sum, an all-gather or a broadcast takes one barrier, of a large sum two:
 *
 *     small   write mine │ barrier │ read all, sum
 *     large   write mine │ barrier │ sum my slice of all, write it │ barrier │ read the sum
 *
 * Buffers alternate from piece to piece. A rank that writes buffer b for piece i + 2 has passed a
 * barrier of piece i + 1, to which every rank came only after it had read b for piece i: so what is
 * still read is never written, with no barrier for that alone. */
#include "comm_kind.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm_shm.h"

/* Up to here a second barrier costs more than summing everything on every rank. */
#define SMALL_SUM_BYTES 4096u

/* Floats summed at a time: the ranks' copies of them stay in the first-level cache. */
#define SUM_BLOCK 64u

#define SLOT_FLOATS (COMM_SHM_SLOT_BYTES / sizeof(float))
#define LINE_FLOATS (COMM_SHM_LINE / sizeof(float))

/* What ranks must agree on at a barrier: kind, root and bytes of the operation's rest. */
enum operation_kind { OPERATION_SUM = 1, OPERATION_SUMMED, OPERATION_GATHER, OPERATION_BROADCAST };
#define OPERATION(kind, root, bytes)                                                               \
    ((uint64_t)(kind) << 56 | (uint64_t)(root) << 48 | ((uint64_t)(bytes)&0xffffffffffff))

struct seed {
    struct comm_seed base;
    int fd; /* -1 for a group of one */
};

struct host {
    struct comm base;
    uint32_t buffer;        /* of the next piece */
    _Atomic bool aborted;   /* a group of one has no shared memory to say so */
    struct histogram times; /* of all-reduces, not taken yet */
    struct comm_shm shm;    /* size > 1 */
};

static enum status check(struct host *comm, struct error *err);
static enum status sum_piece(struct host *comm, float *data, size_t count, size_t left,
                             struct error *err);
static void sum_slots(const struct host *comm, uint32_t buffer, size_t begin, size_t end,
                      float *out);
static size_t slice_begin(size_t count, uint32_t rank, uint32_t size);
static enum status put_piece(struct host *comm, uint32_t peer, const void *data, size_t left,
                             struct error *err);
static enum status take_piece(struct host *comm, uint32_t peer, void *data, size_t left,
                              struct error *err);
static size_t min_size(size_t a, size_t b);
static uint32_t next_buffer(struct host *comm);

static enum status seed_create(uint32_t size, uint64_t generation, struct comm_seed **seed_out,
                               struct comm_key *key_out, struct error *err) {
    struct seed *seed = malloc(sizeof *seed);
    if (!seed) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a group's seed");
    seed->fd = -1;
    key_out->bytes = 0;
    enum status status = STATUS_OK;
    if (size > 1) status = comm_shm_create(size, generation, &seed->fd, key_out, err);
    if (status != STATUS_OK) {
        free(seed);
        return status;
    }
    *seed_out = &seed->base;
    return STATUS_OK;
}

static void seed_destroy(struct comm_seed *base) {
    struct seed *seed = (struct seed *)base;
    if (seed->fd >= 0) close(seed->fd);
    free(seed);
}

static enum status join(const struct comm_key *key, uint32_t rank, uint32_t size,
                        uint64_t generation, uint32_t timeout_ms, const _Atomic bool *cancel,
                        struct comm **comm_out, struct error *err) {
    struct host *comm = calloc(1, sizeof *comm);
    if (!comm) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a communicator");
    comm->base.rank = rank;
    comm->base.size = size;
    enum status status = STATUS_OK;
    if (size > 1)
        status = comm_shm_join(&comm->shm, key, rank, size, generation, timeout_ms, cancel, err);
    if (status != STATUS_OK) {
        free(comm);
        return status;
    }
    *comm_out = &comm->base;
    return STATUS_OK;
}

static void leave(struct comm *base) {
    struct host *comm = (struct host *)base;
    if (base->size > 1) comm_shm_leave(&comm->shm);
    free(comm);
}

static const void *memory(const struct comm *base, size_t *bytes_out) {
    const struct host *comm = (const struct host *)base;
    *bytes_out = comm->base.size > 1 ? comm->shm.bytes : 0;
    return comm->base.size > 1 ? comm->shm.head : NULL;
}

static enum status all_reduce(struct comm *base, float *data, size_t count, struct error *err) {
    struct host *comm = (struct host *)base;
    enum status status = check(comm, err);
    if (comm->base.size == 1) return status;
    int64_t begin_ns = clock_now_ns();
    for (size_t done = 0; done < count && status == STATUS_OK;) {
        size_t piece = min_size(count - done, SLOT_FLOATS);
        status = sum_piece(comm, data + done, piece, count - done, err);
        done += piece;
    }
    histogram_take(&comm->times, (uint64_t)(clock_now_ns() - begin_ns));
    return status;
}

static enum status all_gather(struct comm *base, const void *mine, size_t bytes, void *out,
                              struct error *err) {
    struct host *comm = (struct host *)base;
    enum status status = check(comm, err);
    uint8_t *own = (uint8_t *)out + comm->base.rank * bytes;
    if (status != STATUS_OK) return status;
    if (own != mine) memcpy(own, mine, bytes);
    if (comm->base.size == 1) return STATUS_OK;
    for (size_t done = 0; done < bytes && status == STATUS_OK;) {
        size_t piece = min_size(bytes - done, COMM_SHM_SLOT_BYTES);
        uint32_t buffer = next_buffer(comm);
        memcpy(comm_shm_slot(&comm->shm, buffer, comm->base.rank), own + done, piece);
        status = comm_shm_meet(&comm->shm, OPERATION(OPERATION_GATHER, 0, bytes - done), err);
        for (uint32_t rank = 0; rank < comm->base.size && status == STATUS_OK; rank++)
            if (rank != comm->base.rank)
                memcpy((uint8_t *)out + rank * bytes + done,
                       comm_shm_slot(&comm->shm, buffer, rank), piece);
        done += piece;
    }
    return status;
}

static enum status broadcast(struct comm *base, void *data, size_t bytes, uint32_t root,
                             struct error *err) {
    struct host *comm = (struct host *)base;
    enum status status = check(comm, err);
    if (comm->base.size == 1) return status;
    for (size_t done = 0; done < bytes && status == STATUS_OK;) {
        size_t piece = min_size(bytes - done, COMM_SHM_SLOT_BYTES);
        void *slot = comm_shm_slot(&comm->shm, next_buffer(comm), root);
        if (root == comm->base.rank) memcpy(slot, (uint8_t *)data + done, piece);
        status = comm_shm_meet(&comm->shm, OPERATION(OPERATION_BROADCAST, root, bytes - done), err);
        if (root != comm->base.rank && status == STATUS_OK)
            memcpy((uint8_t *)data + done, slot, piece);
        done += piece;
    }
    return status;
}

static enum status send_to(struct comm *base, uint32_t peer, const void *data, size_t bytes,
                           struct error *err) {
    struct host *comm = (struct host *)base;
    enum status status = check(comm, err);
    if (status != STATUS_OK) return status;
    size_t left = bytes;
    do { /* at least one piece: a message of no bytes is a message */
        status = put_piece(comm, peer, (const uint8_t *)data + (bytes - left), left, err);
        left -= min_size(left, COMM_SHM_PIECE_BYTES);
    } while (left > 0 && status == STATUS_OK);
    return status;
}

static enum status recv_from(struct comm *base, uint32_t peer, void *data, size_t bytes,
                             struct error *err) {
    struct host *comm = (struct host *)base;
    enum status status = check(comm, err);
    if (status != STATUS_OK) return status;
    size_t left = bytes;
    do {
        status = take_piece(comm, peer, (uint8_t *)data + (bytes - left), left, err);
        left -= min_size(left, COMM_SHM_PIECE_BYTES);
    } while (left > 0 && status == STATUS_OK);
    return status;
}

static void break_off(struct comm *base) {
    struct host *comm = (struct host *)base;
    atomic_store(&comm->aborted, true);
    if (comm->base.size > 1) comm_shm_break(&comm->shm, COMM_SHM_ABORTED, comm->base.rank);
}

static void take_times(struct comm *base, struct histogram *into) {
    struct host *comm = (struct host *)base;
    histogram_add(into, &comm->times);
    comm->times = (struct histogram){.sum_ns = 0};
}

static enum status check(struct host *comm, struct error *err) {
    if (comm->base.size > 1) return comm_shm_status(&comm->shm, err);
    if (!atomic_load(&comm->aborted)) return STATUS_OK;
    return error_set(err, STATUS_ABORTED, "collectives were aborted by rank 0");
}

/* left: floats of the operation from this piece on; peers with another number are found out. */
static enum status sum_piece(struct host *comm, float *data, size_t count, size_t left,
                             struct error *err) {
    struct comm_shm *shm = &comm->shm;
    uint32_t buffer = next_buffer(comm);
    memcpy(comm_shm_slot(shm, buffer, comm->base.rank), data, count * sizeof(float));
    enum status status = comm_shm_meet(shm, OPERATION(OPERATION_SUM, 0, left), err);
    if (status != STATUS_OK) return status;
    if (count * sizeof(float) <= SMALL_SUM_BYTES) {
        sum_slots(comm, buffer, 0, count, data);
        return STATUS_OK;
    }
    float *sum = comm_shm_slot(shm, buffer, comm->base.size);
    size_t begin = slice_begin(count, comm->base.rank, comm->base.size);
    size_t end = slice_begin(count, comm->base.rank + 1, comm->base.size);
    sum_slots(comm, buffer, begin, end, sum + begin);
    status = comm_shm_meet(shm, OPERATION(OPERATION_SUMMED, 0, left), err);
    if (status == STATUS_OK) memcpy(data, sum, count * sizeof(float));
    return status;
}

/* out[0, end - begin) = the ranks' [begin, end), summed by the tree of comm.h. */
static void sum_slots(const struct host *comm, uint32_t buffer, size_t begin, size_t end,
                      float *out) {
    float part[TP_MAX][SUM_BLOCK] = {{0}};
    for (size_t at = begin; at < end; at += SUM_BLOCK) {
        size_t count = min_size(end - at, SUM_BLOCK);
        for (uint32_t rank = 0; rank < comm->base.size; rank++) {
            const float *slot = comm_shm_slot(&comm->shm, buffer, rank);
            memcpy(part[rank], slot + at, count * sizeof(float));
        }
        for (uint32_t width = 1; width < comm->base.size; width *= 2)
            for (uint32_t rank = 0; rank + width < comm->base.size; rank += 2 * width)
                for (uint32_t i = 0; i < SUM_BLOCK; i++)
                    part[rank][i] += part[rank + width][i];
        memcpy(out + (at - begin), part[0], count * sizeof(float));
    }
}

/* Slices are whole cache lines, so that no two ranks write one. */
static size_t slice_begin(size_t count, uint32_t rank, uint32_t size) {
    size_t lines = (count + LINE_FLOATS - 1) / LINE_FLOATS;
    return min_size(count, lines * rank / size * LINE_FLOATS);
}

static enum status put_piece(struct host *comm, uint32_t peer, const void *data, size_t left,
                             struct error *err) {
    struct comm_shm_channel channel = comm_shm_channel(&comm->shm, comm->base.rank, peer);
    uint32_t sent = comm_shm_count(channel.sent);
    uint32_t taken_when_full = (sent - COMM_SHM_PIECES) & COMM_SHM_COUNT_MASK;
    enum status status = comm_shm_wait(&comm->shm, channel.taken, taken_when_full, peer, err);
    if (status != STATUS_OK) return status;
    struct comm_shm_piece *piece = &channel.piece[sent % COMM_SHM_PIECES];
    piece->bytes_left = left;
    memcpy(piece->data, data, min_size(left, COMM_SHM_PIECE_BYTES));
    comm_shm_advance(channel.sent);
    return STATUS_OK;
}

static enum status take_piece(struct host *comm, uint32_t peer, void *data, size_t left,
                              struct error *err) {
    struct comm_shm_channel channel = comm_shm_channel(&comm->shm, peer, comm->base.rank);
    uint32_t taken = comm_shm_count(channel.taken);
    enum status status = comm_shm_wait(&comm->shm, channel.sent, taken, peer, err);
    if (status != STATUS_OK) return status;
    const struct comm_shm_piece *piece = &channel.piece[taken % COMM_SHM_PIECES];
    if (piece->bytes_left != left) {
        comm_shm_break(&comm->shm, COMM_SHM_DIFFERENT, peer);
        return comm_shm_status(&comm->shm, err);
    }
    memcpy(data, piece->data, min_size(left, COMM_SHM_PIECE_BYTES));
    comm_shm_advance(channel.taken);
    return STATUS_OK;
}

static size_t min_size(size_t a, size_t b) {
    return a < b ? a : b;
}

static uint32_t next_buffer(struct host *comm) {
    uint32_t buffer = comm->buffer;
    comm->buffer ^= 1;
    return buffer;
}

const struct comm_kind comm_host = {
    .seed_create = seed_create,
    .seed_destroy = seed_destroy,
    .join = join,
    .close = leave,
    .all_reduce = all_reduce,
    .all_gather = all_gather,
    .broadcast = broadcast,
    .send = send_to,
    .recv = recv_from,
    .memory = memory,
    .abort = break_off,
    .take_times = take_times,
};
