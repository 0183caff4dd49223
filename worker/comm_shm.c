#include "comm_shm.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "cpus.h"

#define SHM_MAGIC UINT64_C(0x315f6d6873707365) /* "espshm_1" */

/* How long a waiter sleeps before it looks whether its peers live. */
#define WAIT_SLICE_MS 100

/* Fewest looks before sleeping, where spinning is allowed at all: the budget can grow again. */
#define SPIN_MIN 64u

#define BROKEN   1u /* in a word */
#define COUNT_BY 2u

enum { WORD_BARRIER, WORD_JOINED, WORD_CHANNELS };
#define WORD_COUNT (WORD_CHANNELS + 2 * TP_MAX * TP_MAX)

/* The descriptor of the process that holds the seed, and an id against a number used again. */
#define KEY_FORMAT "/proc/%u/fd/%u#%016" PRIx64
#define KEY_SCAN   "/proc/%u/fd/%u#%16" SCNx64

struct comm_shm_head {
    uint64_t magic, generation, nonce;
    uint32_t size;
    _Alignas(COMM_SHM_LINE) _Atomic uint64_t fault; /* fault | rank << 8, once */
    _Alignas(COMM_SHM_LINE) _Atomic uint32_t arrived;
    struct comm_shm_line line[TP_MAX];
    struct comm_shm_word word[WORD_COUNT];
};

#define SLOTS_OFFSET                                                                               \
    ((sizeof(struct comm_shm_head) + COMM_SHM_SLOT_BYTES - 1) / COMM_SHM_SLOT_BYTES *              \
     COMM_SHM_SLOT_BYTES)

static size_t mapping_bytes(uint32_t size);
static enum status map(int fd, uint32_t size, struct comm_shm *shm, struct error *err);
static enum status open_key(const struct comm_key *key, int *fd_out, uint64_t *nonce_out,
                            struct error *err);
static enum status check_head(const struct comm_shm *shm, uint64_t generation, uint64_t nonce,
                              struct error *err);
static enum status enrol(struct comm_shm *shm, struct error *err);
static enum status wait_until(struct comm_shm *shm, struct comm_shm_word *word, uint32_t seen,
                              uint32_t suspect, int64_t deadline_ns, const _Atomic bool *cancel,
                              struct error *err);
static bool moved(const struct comm_shm_word *word, uint32_t seen);
static bool spin(struct comm_shm *shm, const struct comm_shm_word *word, uint32_t seen);
static bool sleep_slice(struct comm_shm_word *word, uint32_t seen);
static void break_if_dead(struct comm_shm *shm);
static uint32_t laggard(const struct comm_shm *shm);
static bool process_read(uint32_t pid, uint64_t *start_out);
static long futex(_Atomic uint32_t *word, int op, uint32_t value, const struct timespec *timeout);
static void pause_cpu(void);

enum status comm_shm_create(uint32_t size, uint64_t generation, int *fd_out,
                            struct comm_key *key_out, struct error *err) {
    uint64_t nonce = 0;
    if (getrandom(&nonce, sizeof nonce, 0) != sizeof nonce)
        return error_set(err, STATUS_INTERNAL, "getrandom: %s", strerror(errno));
    int fd = memfd_create("espalier-comm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "memfd_create: %s", strerror(errno));
    struct comm_shm shm;
    enum status status;
    if (ftruncate(fd, (off_t)mapping_bytes(size)) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        status = error_set(err, STATUS_RESOURCE_EXHAUSTED, "memfd of %zu bytes: %s",
                           mapping_bytes(size), strerror(errno));
    else
        status = map(fd, size, &shm, err);
    if (status != STATUS_OK) {
        close(fd);
        return status;
    }
    shm.head->generation = generation;
    shm.head->nonce = nonce;
    shm.head->size = size;
    shm.head->magic = SHM_MAGIC;
    munmap(shm.head, shm.bytes);
    key_out->bytes = (uint32_t)snprintf((char *)key_out->data, sizeof key_out->data, KEY_FORMAT,
                                        (unsigned)getpid(), (unsigned)fd, nonce);
    *fd_out = fd;
    return STATUS_OK;
}

enum status comm_shm_join(struct comm_shm *shm, const struct comm_key *key, uint32_t rank,
                          uint32_t size, uint64_t generation, uint32_t timeout_ms,
                          const _Atomic bool *cancel, struct error *err) {
    int64_t deadline_ns = clock_now_ns() + timeout_ms * NS_PER_MS;
    int fd = -1;
    uint64_t nonce = 0;
    enum status status = open_key(key, &fd, &nonce, err);
    if (status != STATUS_OK) return status;
    status = map(fd, size, shm, err);
    close(fd);
    if (status != STATUS_OK) return status;
    shm->rank = rank;
    status = check_head(shm, generation, nonce, err);
    if (status == STATUS_OK) status = enrol(shm, err);
    if (status != STATUS_OK) {
        munmap(shm->head, shm->bytes);
        return status;
    }
    struct comm_shm_word *joined = &shm->head->word[WORD_JOINED];
    comm_shm_advance(joined);
    uint32_t count = comm_shm_count(joined);
    for (; count < size && status == STATUS_OK; count = comm_shm_count(joined))
        status = wait_until(shm, joined, count, UINT32_MAX, deadline_ns, cancel, err);
    if (status != STATUS_OK) comm_shm_leave(shm);
    return status;
}

void comm_shm_leave(struct comm_shm *shm) {
    comm_shm_break(shm, COMM_SHM_LEFT, shm->rank);
    munmap(shm->head, shm->bytes);
    shm->head = NULL;
}

enum status comm_shm_meet(struct comm_shm *shm, uint64_t operation, struct error *err) {
    struct comm_shm_head *head = shm->head;
    struct comm_shm_word *barrier = &head->word[WORD_BARRIER];
    struct comm_shm_line *mine = &head->line[shm->rank];
    uint64_t meeting = atomic_load_explicit(&mine->meetings, memory_order_relaxed);
    atomic_store_explicit(&mine->operation[meeting & 1], operation, memory_order_relaxed);
    atomic_store_explicit(&mine->meetings, meeting + 1, memory_order_relaxed);
    uint32_t seen = comm_shm_count(barrier);
    if (atomic_fetch_add(&head->arrived, 1) + 1 == shm->size) {
        atomic_store_explicit(&head->arrived, 0, memory_order_relaxed);
        comm_shm_advance(barrier);
    } else {
        enum status status = comm_shm_wait(shm, barrier, seen, UINT32_MAX, err);
        if (status != STATUS_OK) return status;
    }
    for (uint32_t rank = 0; rank < shm->size; rank++) {
        uint64_t theirs = atomic_load_explicit(&head->line[rank].operation[meeting & 1],
                                               memory_order_relaxed);
        if (theirs == operation) continue;
        comm_shm_break(shm, COMM_SHM_DIFFERENT, rank);
        return comm_shm_status(shm, err);
    }
    return STATUS_OK;
}

enum status comm_shm_wait(struct comm_shm *shm, struct comm_shm_word *word, uint32_t seen,
                          uint32_t suspect, struct error *err) {
    if (moved(word, seen) || spin(shm, word, seen)) return STATUS_OK;
    int64_t deadline_ns = clock_now_ns() + COMM_SHM_WAIT_MS * NS_PER_MS;
    return wait_until(shm, word, seen, suspect, deadline_ns, NULL, err);
}

uint32_t comm_shm_count(const struct comm_shm_word *word) {
    return atomic_load_explicit(&word->value, memory_order_acquire) / COUNT_BY;
}

void comm_shm_advance(struct comm_shm_word *word) {
    atomic_fetch_add(&word->value, COUNT_BY);
    if (atomic_load(&word->sleepers) > 0) futex(&word->value, FUTEX_WAKE, INT32_MAX, NULL);
}

enum status comm_shm_status(const struct comm_shm *shm, struct error *err) {
    uint64_t fault = atomic_load(&shm->head->fault);
    uint32_t rank = (uint32_t)(fault >> 8);
    switch ((enum comm_shm_fault)(fault & 0xff)) {
    case COMM_SHM_WHOLE: return STATUS_OK;
    case COMM_SHM_ABORTED:
        return error_set(err, STATUS_ABORTED, "collectives were aborted by rank %u", rank);
    case COMM_SHM_LEFT: return error_set(err, STATUS_UNAVAILABLE, "rank %u left the group", rank);
    case COMM_SHM_DEAD:
        return error_set(err, STATUS_UNAVAILABLE, "rank %u (pid %u) is gone", rank,
                         atomic_load(&shm->head->line[rank].pid));
    case COMM_SHM_LATE:
        return error_set(err, STATUS_DEADLINE_EXCEEDED, "rank %u did not come in time", rank);
    case COMM_SHM_DIFFERENT:
        return error_set(err, STATUS_INTERNAL,
                         "rank %u came with another operation or size than its peers", rank);
    }
    return error_set(err, STATUS_INTERNAL, "communicator fault %" PRIu64, fault);
}

void comm_shm_break(struct comm_shm *shm, enum comm_shm_fault fault, uint32_t rank) {
    uint64_t whole = COMM_SHM_WHOLE;
    atomic_compare_exchange_strong(&shm->head->fault, &whole, fault | (uint64_t)rank << 8);
    for (uint32_t i = 0; i < WORD_COUNT; i++) {
        struct comm_shm_word *word = &shm->head->word[i];
        if (atomic_fetch_or(&word->value, BROKEN) & BROKEN) continue;
        if (atomic_load(&word->sleepers) > 0) futex(&word->value, FUTEX_WAKE, INT32_MAX, NULL);
    }
}

void *comm_shm_slot(const struct comm_shm *shm, uint32_t buffer, uint32_t idx) {
    size_t slot = (size_t)buffer * (shm->size + 1) + idx;
    return (uint8_t *)shm->head + SLOTS_OFFSET + slot * COMM_SHM_SLOT_BYTES;
}

struct comm_shm_channel comm_shm_channel(const struct comm_shm *shm, uint32_t source,
                                         uint32_t target) {
    uint32_t idx = source * TP_MAX + target;
    uint8_t *pieces = comm_shm_slot(shm, 2, 0);
    return (struct comm_shm_channel){
        .sent = &shm->head->word[WORD_CHANNELS + 2 * idx],
        .taken = &shm->head->word[WORD_CHANNELS + 2 * idx + 1],
        .piece = (struct comm_shm_piece *)pieces +
                 (size_t)(source * shm->size + target) * COMM_SHM_PIECES,
    };
}

/* ============================== joining ======================================================= */

static size_t mapping_bytes(uint32_t size) {
    return SLOTS_OFFSET + (size_t)2 * (size + 1) * COMM_SHM_SLOT_BYTES +
           (size_t)size * size * COMM_SHM_PIECES * sizeof(struct comm_shm_piece);
}

static enum status map(int fd, uint32_t size, struct comm_shm *shm, struct error *err) {
    size_t bytes = mapping_bytes(size);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "mapping %zu bytes of shared memory: %s",
                         bytes, strerror(errno));
    uint32_t spin_max = cpus_spin_budget(1, size);
    *shm = (struct comm_shm){
        .head = memory, .bytes = bytes, .size = size, .spin = spin_max, .spin_max = spin_max};
    return STATUS_OK;
}

/* The descriptor behind a key, if it is what a seed makes: a sealed memfd of this process's user.
 * A stale key may name anything that has the number now, so nothing is believed. */
static enum status open_key(const struct comm_key *key, int *fd_out, uint64_t *nonce_out,
                            struct error *err) {
    char text[GROUP_KEY_BYTES_MAX + 1], again[GROUP_KEY_BYTES_MAX + 1];
    uint32_t bytes = key->bytes <= GROUP_KEY_BYTES_MAX ? key->bytes : 0;
    memcpy(text, key->data, bytes);
    text[bytes] = '\0';
    unsigned pid = 0, number = 0;
    if (sscanf(text, KEY_SCAN, &pid, &number, nonce_out) == 3)
        snprintf(again, sizeof again, KEY_FORMAT, pid, number, *nonce_out);
    else
        again[0] = '\0';
    if (bytes == 0 || strcmp(text, again) != 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "group key \"%s\" is not /proc/PID/fd/N#ID",
                         text);
    *strchr(text, '#') = '\0';
    int fd = open(text, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return error_set(err, STATUS_UNAVAILABLE, "the group's seed %s is gone: %s", text,
                         strerror(errno));
    struct stat file;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &file) != 0 ||
        file.st_size < (off_t)sizeof(struct comm_shm_head)) {
        close(fd);
        return error_set(err, STATUS_UNAVAILABLE, "the group's seed %s is gone", text);
    }
    *fd_out = fd;
    return STATUS_OK;
}

/* Reads the head alone: the mapping is larger than the file where the sizes differ. */
static enum status check_head(const struct comm_shm *shm, uint64_t generation, uint64_t nonce,
                              struct error *err) {
    const struct comm_shm_head *head = shm->head;
    if (head->magic != SHM_MAGIC || head->nonce != nonce)
        return error_set(err, STATUS_UNAVAILABLE, "the group's seed is gone");
    if (head->generation != generation)
        return error_set(err, STATUS_UNAVAILABLE,
                         "the group's key is of generation %" PRIu64 ", not %" PRIu64,
                         head->generation, generation);
    if (head->size != shm->size)
        return error_set(err, STATUS_INVALID_ARGUMENT, "the group's key is for %u ranks, not %u",
                         head->size, shm->size);
    return comm_shm_status(shm, err);
}

static enum status enrol(struct comm_shm *shm, struct error *err) {
    struct comm_shm_line *line = &shm->head->line[shm->rank];
    uint32_t pid = (uint32_t)getpid(), nobody = 0;
    uint64_t start = 0;
    if (!atomic_compare_exchange_strong(&line->pid, &nobody, pid))
        return error_set(err, STATUS_ALREADY_EXISTS, "rank %u has joined already, as pid %u",
                         shm->rank, nobody);
    if (process_read(pid, &start)) atomic_store(&line->process_start, start);
    return STATUS_OK;
}

/* ============================== waiting ======================================================= */

static enum status wait_until(struct comm_shm *shm, struct comm_shm_word *word, uint32_t seen,
                              uint32_t suspect, int64_t deadline_ns, const _Atomic bool *cancel,
                              struct error *err) {
    while (!moved(word, seen)) {
        if (atomic_load(&word->value) & BROKEN) {
            if (moved(word, seen)) break;
            return comm_shm_status(shm, err);
        }
        if (!sleep_slice(word, seen)) continue;
        break_if_dead(shm);
        if (cancel && atomic_load(cancel)) comm_shm_break(shm, COMM_SHM_ABORTED, shm->rank);
        if (clock_now_ns() >= deadline_ns)
            comm_shm_break(shm, COMM_SHM_LATE, suspect < shm->size ? suspect : laggard(shm));
    }
    return STATUS_OK;
}

static bool moved(const struct comm_shm_word *word, uint32_t seen) {
    return comm_shm_count(word) != seen;
}

/* Spinning pays where peers run at the same time, and only costs where they wait for this CPU. So
 * the budget doubles each time it was enough and halves each time it was not. */
static bool spin(struct comm_shm *shm, const struct comm_shm_word *word, uint32_t seen) {
    uint32_t budget = shm->spin;
    for (uint32_t i = 0; i < budget; i++) {
        pause_cpu();
        if (!moved(word, seen)) continue;
        shm->spin = budget * 2 < shm->spin_max ? budget * 2 : shm->spin_max;
        return true;
    }
    shm->spin = budget / 2 > SPIN_MIN ? budget / 2 : SPIN_MIN;
    if (shm->spin > shm->spin_max) shm->spin = shm->spin_max;
    return false;
}

/* Sleep while the word is `seen` and whole. True where the whole slice went by. */
static bool sleep_slice(struct comm_shm_word *word, uint32_t seen) {
    struct timespec slice = {.tv_nsec = WAIT_SLICE_MS * NS_PER_MS};
    atomic_fetch_add(&word->sleepers, 1);
    long result = futex(&word->value, FUTEX_WAIT, seen * COUNT_BY, &slice);
    bool timed_out = result != 0 && errno == ETIMEDOUT;
    atomic_fetch_sub(&word->sleepers, 1);
    return timed_out;
}

static void break_if_dead(struct comm_shm *shm) {
    for (uint32_t rank = 0; rank < shm->size; rank++) {
        const struct comm_shm_line *line = &shm->head->line[rank];
        uint32_t pid = atomic_load(&line->pid);
        uint64_t known = atomic_load(&line->process_start), start = 0;
        if (pid == 0 || rank == shm->rank) continue;
        bool lives = process_read(pid, &start);
        if (!lives || (known != 0 && start != 0 && start != known))
            comm_shm_break(shm, COMM_SHM_DEAD, rank);
    }
}

/* The first rank that has not joined, or that came to fewer barriers than this one. */
static uint32_t laggard(const struct comm_shm *shm) {
    uint64_t mine = atomic_load(&shm->head->line[shm->rank].meetings);
    for (uint32_t rank = 0; rank < shm->size; rank++) {
        const struct comm_shm_line *line = &shm->head->line[rank];
        if (atomic_load(&line->pid) == 0 || atomic_load(&line->meetings) < mine) return rank;
    }
    return shm->rank;
}

/* Does the process run (not: is there still an entry for its parent to reap), and since when?
 * /proc/PID/stat: the name, field 2, may hold anything, so fields count from its last ')'. */
static bool process_read(uint32_t pid, uint64_t *start_out) {
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno != ENOENT; /* no descriptors left says nothing about the peer */
    ssize_t bytes = read(fd, text, sizeof text - 1);
    close(fd);
    if (bytes <= 0) return false;
    text[bytes] = '\0';
    const char *name_end = strrchr(text, ')');
    char state = 'X';
    if (!name_end || sscanf(name_end + 1,
                            " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                            "%*s %*s %" SCNu64,
                            &state, start_out) != 2)
        return false;
    return state != 'Z' && state != 'X';
}

static long futex(_Atomic uint32_t *word, int op, uint32_t value, const struct timespec *timeout) {
    return syscall(SYS_futex, word, op, value, timeout, NULL, 0);
}

static void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("" ::: "memory");
#endif
}
