/* A run is cut into as many shares as there are threads: neighbouring tasks, which mostly read
 * neighbouring memory, so that what a thread asks for ahead of time it comes to itself. A share is
 * claimed task by task from a 64-bit word, by its thread first and by any other that has nothing
 * else to do: whoever is awake does the work, and the caller never waits for a thread that is still
 * asleep.
 *
 *     claim = [ end : 32 | next : 32 ]      next < end: there is a task to take
 *
 * A successful compare-and-swap on one belongs to the run that is going on, whenever the thread
 * last looked, and that run cannot end before the thread has reported the task in `done`. So a
 * thread may read fn and arg after a claim and never else. */
#include "team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernel.h"

struct member {
    _Alignas(64) _Atomic uint64_t claim; /* of its share */
    struct kernel_team *team;
    pthread_t thread; /* none for the caller */
    uint32_t idx;
};

struct kernel_team {
    uint32_t threads;
    uint32_t spin;
    team_task_fn *fn;
    void *arg;
    _Alignas(64) _Atomic uint32_t done; /* tasks reported; the caller sleeps on it */
    _Atomic uint32_t caller_sleeps;
    _Alignas(64) _Atomic uint32_t epoch; /* one more a run; members sleep on it */
    _Atomic uint32_t sleepers;
    _Atomic uint32_t stop;
    struct member member[]; /* [threads], the caller first */
};

static void *member_main(void *arg);
static void join_members(struct kernel_team *team, uint32_t end);
static uint64_t share_of(const struct kernel_team *team, uint32_t task_count, uint32_t idx);
static uint32_t work(struct kernel_team *team, uint32_t thread);
static void wake_members(struct kernel_team *team, uint32_t count);
static void futex_wait(_Atomic uint32_t *word, uint32_t expected);
static void futex_wake(_Atomic uint32_t *word, uint32_t count);
static void relax(void);

struct kernel_team *team_create(uint32_t threads, uint32_t spin) {
    KERNEL_CHECK(threads >= 1 && threads <= TEAM_THREADS_MAX);
    size_t bytes = sizeof(struct kernel_team) + threads * sizeof(struct member);
    struct kernel_team *team = aligned_alloc(_Alignof(struct member), bytes);
    if (!team) return NULL;
    team->threads = threads;
    team->spin = spin;
    team->fn = NULL;
    team->arg = NULL;
    atomic_init(&team->done, 0);
    atomic_init(&team->caller_sleeps, 0);
    atomic_init(&team->epoch, 0);
    atomic_init(&team->sleepers, 0);
    atomic_init(&team->stop, 0);
    for (uint32_t i = 0; i < threads; i++) {
        atomic_init(&team->member[i].claim, 0);
        team->member[i].team = team;
        team->member[i].idx = i;
    }
    for (uint32_t i = 1; i < threads; i++) {
        if (pthread_create(&team->member[i].thread, NULL, member_main, &team->member[i]) != 0) {
            join_members(team, i);
            free(team);
            return NULL;
        }
    }
    return team;
}

void team_destroy(struct kernel_team **team) {
    if (!*team) return;
    join_members(*team, (*team)->threads);
    free(*team);
    *team = NULL;
}

uint32_t team_threads(const struct kernel_team *team) {
    return team ? team->threads : 1;
}

void team_run(struct kernel_team *team, team_task_fn *fn, void *arg, uint32_t task_count) {
    if (!team || team->threads == 1 || task_count <= 1) {
        for (uint32_t task = 0; task < task_count; task++)
            fn(arg, task, 0);
        return;
    }
    team->fn = fn;
    team->arg = arg;
    atomic_store_explicit(&team->done, 0, memory_order_relaxed);
    for (uint32_t i = 0; i < team->threads; i++)
        atomic_store_explicit(&team->member[i].claim, share_of(team, task_count, i),
                              memory_order_release);
    wake_members(team, task_count - 1);

    uint32_t done = work(team, 0);
    if (done > 0) done += atomic_fetch_add(&team->done, done);
    for (uint32_t i = 0; i < team->spin && done != task_count; i++) {
        relax();
        done = atomic_load_explicit(&team->done, memory_order_acquire);
    }
    /* A member adds to done, then looks at caller_sleeps; here it is the other way round. One of
     * the two sees the other. */
    atomic_store(&team->caller_sleeps, 1);
    while ((done = atomic_load(&team->done)) != task_count)
        futex_wait(&team->done, done);
    atomic_store_explicit(&team->caller_sleeps, 0, memory_order_relaxed);
}

static void *member_main(void *arg) {
    struct member *member = arg;
    struct kernel_team *team = member->team;
    uint32_t seen = 0;
    while (!atomic_load(&team->stop)) {
        uint32_t done = work(team, member->idx);
        if (done > 0) {
            atomic_fetch_add(&team->done, done);
            if (atomic_load(&team->caller_sleeps)) futex_wake(&team->done, 1);
        }
        uint32_t epoch = atomic_load(&team->epoch);
        for (uint32_t i = 0; i < team->spin && epoch == seen; i++) {
            relax();
            epoch = atomic_load_explicit(&team->epoch, memory_order_acquire);
        }
        if (epoch == seen) {
            atomic_fetch_add(&team->sleepers, 1);
            futex_wait(&team->epoch, seen);
            atomic_fetch_sub(&team->sleepers, 1);
            epoch = atomic_load(&team->epoch);
        }
        seen = epoch;
    }
    return NULL;
}

/* Those before `end`. */
static void join_members(struct kernel_team *team, uint32_t end) {
    atomic_store(&team->stop, 1);
    wake_members(team, end - 1);
    for (uint32_t i = 1; i < end; i++)
        pthread_join(team->member[i].thread, NULL);
}

static uint64_t share_of(const struct kernel_team *team, uint32_t task_count, uint32_t idx) {
    uint64_t begin = (uint64_t)task_count * idx / team->threads;
    uint64_t end = (uint64_t)task_count * (idx + 1) / team->threads;
    return end << 32 | begin;
}

/* Take tasks of a share until there are none; how many were done. */
static uint32_t work_share(struct kernel_team *team, _Atomic uint64_t *share, uint32_t thread) {
    uint32_t done = 0;
    uint64_t claim = atomic_load_explicit(share, memory_order_relaxed);
    for (;;) {
        uint32_t next = (uint32_t)claim;
        if (next >= (uint32_t)(claim >> 32)) return done;
        if (!atomic_compare_exchange_weak_explicit(share, &claim, claim + 1, memory_order_acquire,
                                                   memory_order_relaxed))
            continue;
        team->fn(team->arg, next, thread);
        done++;
        claim = atomic_load_explicit(share, memory_order_relaxed);
    }
}

/* One's own share first, then what is left of the others'. */
static uint32_t work(struct kernel_team *team, uint32_t thread) {
    uint32_t done = 0;
    for (uint32_t i = 0; i < team->threads; i++)
        done += work_share(team, &team->member[(thread + i) % team->threads].claim, thread);
    return done;
}

static void wake_members(struct kernel_team *team, uint32_t count) {
    uint32_t members = team->threads - 1;
    atomic_fetch_add(&team->epoch, 1);
    if (atomic_load(&team->sleepers) > 0)
        futex_wake(&team->epoch, count < members ? count : members);
}

/* May return early; callers look again. */
static void futex_wait(_Atomic uint32_t *word, uint32_t expected) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, uint32_t count) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}
