/* Runs GPU kernels on the CPU, one block after another, to find what a GPU may or may not show:
 * missing barriers, reads of memory that was not written or whose copy was not waited for, accesses
 * out of bounds, threads that wait for each other for ever. Or kernels of several devices side by
 * side, which share memory: then blocks come between each other wherever they wait or share, as the
 * schedule says, and what was stored there is seen as late as a GPU allows (simt_view.h).
 *
 * A thread is a fiber. It runs until it meets others: at a barrier, or at an instruction of the
 * whole warp. Who runs next is the schedule's choice, and a kernel must give the same result under
 * all of them. Shared memory begins as NaN, and so does the target of a copy until the thread that
 * began it has waited for it. The kernels are the same source that nvcc compiles; they find their
 * instructions in emulated/cuda/device.cuh. Products of warpgroups happen early, late, or at any
 * time between issue and wait, as the schedule says, and see only what was fenced for them
 * (simt_async.h).
 *
 * Not seen: data races that need two threads inside one stretch between two meetings, the memory
 * model, registers, time. */
#ifndef ESPALIER_SIMT_H
#define ESPALIER_SIMT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIMT_WARP_LANES       32u
#define SIMT_THREADS_MAX      1024u
#define SIMT_TEXT_BYTES       256u
#define SIMT_COPIES_MAX       512u    /* copies of a thread under way */
#define SIMT_SHARED_BYTES_MAX 232448u /* of a block: sm_90 */
#define SIMT_DEVICES_MAX      8u

enum simt_order {
    SIMT_ROUND_ROBIN, /* every thread as far as the next meeting, in turn */
    SIMT_GREEDY_WARP, /* one warp as far as it gets, then another by the seed */
    SIMT_RANDOM,      /* any thread that can run, by the seed; in some blocks a warp lags behind */
    SIMT_ORDER_COUNT
};

struct simt_schedule {
    enum simt_order order;
    uint64_t seed;
};

/* What a run cost; of all blocks together. */
struct simt_counters {
    uint64_t copied_bytes; /* by asynchronous copies, from global memory */
    uint64_t products;     /* of 16 x 8 x 16 */
    uint64_t matrix_loads;
    uint64_t bank_conflicts; /* of warp-wide loads: passes over shared memory beyond the first */
    uint64_t barriers;       /* of blocks */
};

struct simt_report {
    bool failed;
    char text[SIMT_TEXT_BYTES]; /* what failed, in which block and thread */
    struct simt_counters counters;
};

struct simt_grid {
    uint32_t x, y, z; /* blocks */
    uint32_t threads; /* a block */
    size_t shared_bytes;
};

/* Under which schedule the following kernels run, and where their reports are added up; the first
 * failure is kept, and what is launched after it does not run. The report outlives the runs. */
void simt_begin(struct simt_schedule schedule, struct simt_report *report);

/* Run kernel(user) in every thread of every block. False where it, or one before it, failed. */
bool simt_launch(const struct simt_grid *grid, void (*kernel)(void *user), void *user);

struct simt_work {
    struct simt_grid grid;
    void (*kernel)(void *user);
    void *user;
};

/* The same with several devices at a time: works[d] one after another, [work_counts[d]]. */
bool simt_launch_together(const struct simt_work *const *works, const uint32_t *work_counts,
                          uint32_t device_count);

/* Kernels that wait for each other may also be run by several threads of the process, one at a
 * time: let_in, called by one that waits, returns when others have had a turn, and how many ns that
 * took. NULL: there are none. */
void simt_share_threads(uint64_t (*let_in)(void));

/* ---- for emulated/cuda/device.cuh: called by the threads of a kernel ------------------------- */

struct simt_index {
    uint32_t x, y, z;
};
extern struct simt_index simt_thread_index, simt_block_index;

unsigned char *simt_shared(void);
void simt_barrier(void);
void simt_warp_barrier(void);
float simt_shuffle_xor(float value, uint32_t lane_mask);
void simt_copy16(void *shared, const void *global, bool wanted);
void simt_copy_commit(void);
void simt_copy_wait(uint32_t pending);
void simt_load(void *out, const void *shared, uint32_t bytes); /* 4 or 16 */
void simt_load_matrix(uint32_t *out, const void *shared_row, uint32_t matrices, bool transposed);
void simt_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]);
void simt_meet(uint32_t id, uint32_t threads);
void simt_signal(uint32_t id, uint32_t threads);

/* Products of warpgroups, on what was written by copies and simt_store4 and then fenced
 * (simt_async.h); `count`: a thread's sums, half of the columns. */
uint32_t simt_shared_address(const void *shared);
void simt_store4(void *shared, uint32_t value);
void simt_async_proxy_fence(void);
void simt_wgmma_fence(float *sums, uint32_t count);
void simt_wgmma(float *sums, uint32_t count, uint64_t a, uint64_t b, bool line_is_step, bool adds);
void simt_wgmma_commit(void);
void simt_wgmma_wait(uint32_t pending);

/* Memory that devices share. Four floats; a word. */
void simt_share_store(float *to, const float *value);
void simt_share_load(float *value_out, const float *from);
void simt_store_release(uint32_t *at, uint32_t value);
uint32_t simt_load_acquire(const uint32_t *at);

/* In a loop that waits for another block; the clock, in ns since simt_begin, stands still but for
 * it. */
void simt_pause(void);
uint64_t simt_time(void);

#endif
