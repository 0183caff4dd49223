/* One GPU: is it one that we run on, and memory whose address never changes while its size does.
 *
 * Opening refuses in one line what would fail later without one: no driver or too old a one, no
 * GPU, another architecture than the kernels were compiled for. FAILED_PRECONDITION each: exit
 * code 78.
 *
 * A region is address space reserved at a cap, with memory mapped into its front, in granules of
 * the device (2 MiB): what points into it stays valid, captured graphs among it. Work of the
 * device's stream that may use memory which is given back is waited for.
 *
 * Owner: main, of the device; the KV pool, of regions. One thread. */
#ifndef ESPALIER_DEVICE_CUDA_H
#define ESPALIER_DEVICE_CUDA_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "base/status.h"
#include "kernel.h"

struct device_cuda;

/* What operators ask of it. */
struct device_cuda_facts {
    char name[64];
    int major, minor;                /* of the architecture */
    int driver;                      /* 13000: 13.0 */
    size_t memory_bytes, free_bytes; /* free: when it was opened */
    bool ecc;                        /* are flipped bits seen */
};

enum status device_cuda_open(uint32_t ordinal, struct device_cuda **device_out,
                             struct error *err) MUST_USE;
void device_cuda_close(struct device_cuda **device);

struct device_cuda_facts device_cuda_facts(const struct device_cuda *device);
const struct kernel_device *device_cuda_kernel_device(const struct device_cuda *device);
cudaStream_t device_cuda_stream(const struct device_cuda *device);

/* OK for cudaSuccess. `doing` is what failed, as in "uploading weights: out of memory". */
enum status device_cuda_status(cudaError_t error, const char *doing, struct error *err) MUST_USE;

struct device_region;

/* Empty, at most cap_bytes. RESOURCE_EXHAUSTED where the address space cannot be had. */
enum status device_region_create(struct device_cuda *device, size_t cap_bytes,
                                 struct device_region **region_out, struct error *err) MUST_USE;
void device_region_destroy(struct device_region **region);

/* Have at least `bytes`, at most the cap, with memory behind them; what lies below both sizes keeps
 * its contents. The region is as it was where it fails: RESOURCE_EXHAUSTED. */
enum status device_region_resize(struct device_region *region, size_t bytes,
                                 struct error *err) MUST_USE;

void *device_region_begin(const struct device_region *region);
size_t device_region_bytes(const struct device_region *region); /* mapped: whole granules */

#endif
