/* The host's side of an emulated GPU: the calls of emulated/cuda_runtime_api.h, so that host code
 * written for CUDA runs on a machine without one.
 *
 * What a stream is told runs as late as CUDA allows: when somebody waits for it. So a result that
 * is read too early, or a buffer that is filled again too early, shows. Work of streams that no
 * event orders runs in whatever order the waits ask for. Device memory cannot be touched between
 * waits: the host that reads it dies of a signal, as it would with a GPU. Pinned memory is the
 * host's own; copies to and from other host memory are done as CUDA does them, at once.
 *
 * A kernel that fails (simt.h) fails its stream, and with it every later call of the process.
 *
 * Threads: any; each drives its own streams, as the ranks of a test do. Kernels run one at a time,
 * except that one which waits for another device lets other threads run theirs meanwhile. */
#ifndef ESPALIER_SIMT_CUDA_H
#define ESPALIER_SIMT_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "simt.h"

/* What is plugged in; the default is a small sm_120 with 1 GiB. */
struct simt_device {
    uint32_t count; /* devices, all alike */
    int major, minor;
    uint32_t multiprocessors;
    size_t shared_bytes_max, memory_bytes;
    size_t pitch_bytes_max; /* of a copy of rows */
    int driver_version; /* 13000: 13.0 */
    bool ecc;
    bool apart; /* cannot reach each other's memory */
};
extern const struct simt_device simt_device_default;

/* Of the calls that follow. */
void simt_cuda_plug(const struct simt_device *device);

/* Let call number `calls` from now on, 0 the next, return cudaError `error` once; a call of the
 * driver says that memory is out. */
void simt_cuda_fail(uint32_t calls, int error);

/* Forget errors that stick, as a new process would. */
void simt_cuda_recover(void);

struct simt_cuda_counters {
    uint64_t kernels, graph_launches;
    uint64_t graphs_made, graphs; /* instantiated ever, and those that are not destroyed */
    uint64_t allocations;         /* of the device's and of pinned memory, graphs' among them */
};
struct simt_cuda_counters simt_cuda_count(void);

/* A kernel behind what the stream was told already, with a copy of its arguments; at once where
 * stream is NULL, without device memory. */
void simt_cuda_launch(void *stream, const struct simt_grid *grid, void (*kernel)(void *user),
                      const void *args, size_t args_bytes);

/* Run what the streams were told, kernels alone, as if each were a device of its own: side by side,
 * as the schedule says. False where one failed. */
bool simt_cuda_run_together(void *const *streams, uint32_t count);

#endif
