#include "comm_ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"

/* A rank that hangs ends here, long after the slowest machine would have finished. */
#define RANK_LIFE_S 100

struct rank_thread {
    pthread_t thread;
    const struct comm_key *key;
    uint32_t rank, size;
    rank_fn *fn;
    void *user;
    bool good;
};

static bool run_rank(const struct comm_key *key, uint32_t rank, uint32_t size, rank_fn *fn,
                     void *user) {
    struct comm *comm = NULL;
    struct error err;
    if (comm_join(&comm_host, key, rank, size, RANKS_GENERATION, RANKS_JOIN_MS, NULL, &comm,
                  &err) != STATUS_OK) {
        fprintf(stderr, "rank %u: join: %s\n", rank, err.text);
        return false;
    }
    bool good = fn(comm, user);
    comm_close(&comm);
    return good;
}

static void *thread_main(void *arg) {
    struct rank_thread *self = arg;
    self->good = run_rank(self->key, self->rank, self->size, self->fn, self->user);
    return NULL;
}

bool comm_ranks_threads(uint32_t size, rank_fn *fn, void *user) {
    struct comm_seed *seed = NULL;
    struct comm_key key;
    struct rank_thread rank[TP_MAX];
    CHECK(comm_seed_create(&comm_host, size, RANKS_GENERATION, &seed, &key, NULL) == STATUS_OK);
    for (uint32_t i = 0; i < size; i++) {
        rank[i] = (struct rank_thread){
            .key = &key, .rank = i, .size = size, .fn = fn, .user = user};
        CHECK(pthread_create(&rank[i].thread, NULL, thread_main, &rank[i]) == 0);
    }
    bool good = true;
    for (uint32_t i = 0; i < size; i++) {
        pthread_join(rank[i].thread, NULL);
        good = good && rank[i].good;
    }
    comm_seed_destroy(&seed);
    return good;
}

bool comm_ranks_processes(uint32_t size, rank_fn *fn, void *user) {
    struct comm_seed *seed = NULL;
    struct comm_key key;
    pid_t pid[TP_MAX];
    CHECK(comm_seed_create(&comm_host, size, RANKS_GENERATION, &seed, &key, NULL) == STATUS_OK);
    for (uint32_t i = 0; i < size; i++)
        pid[i] = comm_ranks_fork(&key, i, size, fn, user);
    bool good = true;
    for (uint32_t i = 0; i < size; i++)
        good = comm_ranks_await(pid[i]) == 0 && good;
    comm_seed_destroy(&seed);
    return good;
}

pid_t comm_ranks_fork(const struct comm_key *key, uint32_t rank, uint32_t size, rank_fn *fn,
                      void *user) {
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid > 0) return pid;
    alarm(RANK_LIFE_S);
    bool good = run_rank(key, rank, size, fn, user);
    fflush(NULL);
    _exit(good ? 0 : 1);
}

int comm_ranks_await(pid_t pid) {
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    return status;
}
