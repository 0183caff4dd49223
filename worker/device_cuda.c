#include "device_cuda.h"

#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "linear/linear_cublaslt.h"

#define DRIVER_LEAST     13000  /* CUDA 13.0: the least that knows both architectures and our PTX */
#define DRIVER_CALLS     12000  /* the version whose meaning of the calls below we ask for */
#define SHARED_BYTES_MIN 101376 /* of a block; kernels are laid out for at least this */

/* Calls of the driver, found when the device is opened. */
struct driver {
    CUresult (*granularity)(size_t *, const CUmemAllocationProp *,
                            CUmemAllocationGranularity_flags);
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*unreserve)(CUdeviceptr, size_t);
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                       unsigned long long);
    CUresult (*release)(CUmemGenericAllocationHandle);
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
    CUresult (*unmap)(CUdeviceptr, size_t);
    CUresult (*allow)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
};

struct device_cuda {
    int ordinal;
    struct device_cuda_facts facts;
    struct kernel_device kernel;
    struct driver driver;
    size_t granule_bytes;
    cudaStream_t stream;
};

struct device_region {
    struct device_cuda *device;
    CUdeviceptr begin;
    size_t cap_granules, granules;         /* mapped */
    CUmemGenericAllocationHandle handle[]; /* [cap_granules] */
};

/* ============================== opening ======================================================= */

static enum status refuse(struct error *err, const char *found, const char *accepted) {
    return error_set(err, STATUS_FAILED_PRECONDITION, "--device cuda: found %s, accepted: %s",
                     found, accepted);
}

static enum status check_driver(struct device_cuda *device, struct error *err) {
    char found[96];
    int version = 0;
    cudaError_t error = cudaDriverGetVersion(&version);
    if (error == cudaSuccess && version == 0)
        return refuse(err, "no NVIDIA driver", "one for CUDA 13.0 or later");
    if (error != cudaSuccess) return device_cuda_status(error, "--device cuda: the driver", err);
    device->facts.driver = version;
    if (version >= DRIVER_LEAST) return STATUS_OK;
    snprintf(found, sizeof found, "a driver for CUDA %d.%d", version / 1000, version % 1000 / 10);
    return refuse(err, found, "13.0 or later");
}

static enum status check_count(const struct device_cuda *device, struct error *err) {
    char found[96];
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        snprintf(found, sizeof found, "no GPU (%s)", cudaGetErrorString(error));
        return refuse(err, found, "a machine with one for each rank");
    }
    if (device->ordinal < count) return STATUS_OK;
    snprintf(found, sizeof found, "%d visible GPU%s, and this rank is to have number %d", count,
             count > 1 ? "s" : "", device->ordinal);
    return refuse(err, found, "one for each rank of the machine (CUDA_VISIBLE_DEVICES)");
}

static bool is_built_for(int major, int minor) {
    return (major == 9 && minor == 0) || (major == 12 && minor == 0);
}

static enum status check_architecture(struct device_cuda *device, struct error *err) {
    struct cudaDeviceProp properties;
    char found[160];
    cudaError_t error = cudaGetDeviceProperties(&properties, device->ordinal);
    if (error != cudaSuccess)
        return device_cuda_status(error, "--device cuda: properties of the GPU", err);
    struct device_cuda_facts *facts = &device->facts;
    snprintf(facts->name, sizeof facts->name, "%s", properties.name);
    facts->major = properties.major;
    facts->minor = properties.minor;
    facts->ecc = properties.ECCEnabled != 0;
    device->kernel = (struct kernel_device){
        .multiprocessors = (uint32_t)properties.multiProcessorCount,
        .shared_bytes_max = properties.sharedMemPerBlockOptin,
        .has_wgmma = properties.major == 9,
    };
    snprintf(found, sizeof found, "%s of compute capability %d.%d", facts->name, facts->major,
             facts->minor);
    if (!is_built_for(facts->major, facts->minor))
        return refuse(err, found, "9.0 (H100, H200) and 12.0 (RTX PRO 6000 Blackwell)");
    if (properties.sharedMemPerBlockOptin >= SHARED_BYTES_MIN) return STATUS_OK;
    return refuse(err, found, "at least 99 KiB of shared memory a block");
}

static enum status find_driver_calls(struct device_cuda *device, struct error *err) {
    struct driver *driver = &device->driver;
    const struct {
        const char *name;
        void **call;
    } calls[] = {
        {"cuMemGetAllocationGranularity", (void **)&driver->granularity},
        {"cuMemAddressReserve", (void **)&driver->reserve},
        {"cuMemAddressFree", (void **)&driver->unreserve},
        {"cuMemCreate", (void **)&driver->create},
        {"cuMemRelease", (void **)&driver->release},
        {"cuMemMap", (void **)&driver->map},
        {"cuMemUnmap", (void **)&driver->unmap},
        {"cuMemSetAccess", (void **)&driver->allow},
    };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        enum cudaDriverEntryPointQueryResult result;
        cudaError_t error = cudaGetDriverEntryPointByVersion(
            calls[i].name, calls[i].call, DRIVER_CALLS, cudaEnableDefault, &result);
        if (error != cudaSuccess) return device_cuda_status(error, calls[i].name, err);
        if (result == cudaDriverEntryPointSuccess) continue;
        char found[96];
        snprintf(found, sizeof found, "a driver without %s", calls[i].name);
        return refuse(err, found, "one for CUDA 13.0 or later");
    }
    return STATUS_OK;
}

static CUmemAllocationProp kind_of(const struct device_cuda *device) {
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal}};
}

static enum status take(struct device_cuda *device, struct error *err) {
    cudaError_t error = cudaSetDevice(device->ordinal);
    if (error == cudaSuccess)
        error = cudaMemGetInfo(&device->facts.free_bytes, &device->facts.memory_bytes);
    if (error == cudaSuccess)
        error = cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking);
    if (error != cudaSuccess)
        return device_cuda_status(error, "--device cuda: taking the GPU", err);
    CUmemAllocationProp kind = kind_of(device);
    if (device->driver.granularity(&device->granule_bytes, &kind,
                                   CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS)
        return refuse(err, "a GPU that cannot map memory", "one that can");
    const char *trouble = linear_cublaslt_open(&device->kernel.cublaslt);
    if (!trouble) return STATUS_OK;
    return error_set(err, STATUS_FAILED_PRECONDITION, "--device cuda: cuBLASLt: %s", trouble);
}

enum status device_cuda_open(uint32_t ordinal, struct device_cuda **device_out, struct error *err) {
    struct device_cuda *device = calloc(1, sizeof *device);
    if (!device) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a device");
    device->ordinal = (int)ordinal;
    enum status status = check_driver(device, err);
    if (status == STATUS_OK) status = check_count(device, err);
    if (status == STATUS_OK) status = check_architecture(device, err);
    if (status == STATUS_OK) status = find_driver_calls(device, err);
    if (status == STATUS_OK) status = take(device, err);
    if (status != STATUS_OK)
        device_cuda_close(&device);
    else
        *device_out = device;
    return status;
}

void device_cuda_close(struct device_cuda **device) {
    if (!*device) return;
    linear_cublaslt_close(&(*device)->kernel.cublaslt);
    if ((*device)->stream) (void)cudaStreamDestroy((*device)->stream);
    free(*device);
    *device = NULL;
}

struct device_cuda_facts device_cuda_facts(const struct device_cuda *device) {
    return device->facts;
}

const struct kernel_device *device_cuda_kernel_device(const struct device_cuda *device) {
    return &device->kernel;
}

cudaStream_t device_cuda_stream(const struct device_cuda *device) {
    return device->stream;
}

enum status device_cuda_status(cudaError_t error, const char *doing, struct error *err) {
    if (error == cudaSuccess) return STATUS_OK;
    (void)cudaGetLastError(); /* dealt with: the next launch must not take it for its own */
    return error_set(
        err, error == cudaErrorMemoryAllocation ? STATUS_RESOURCE_EXHAUSTED : STATUS_INTERNAL,
        "%s: %s", doing, cudaGetErrorString(error));
}

/* ============================== regions ======================================================= */

enum status device_region_create(struct device_cuda *device, size_t cap_bytes,
                                 struct device_region **region_out, struct error *err) {
    size_t granules = (cap_bytes + device->granule_bytes - 1) / device->granule_bytes;
    struct device_region *region = calloc(1, sizeof *region + granules * sizeof region->handle[0]);
    if (!region)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for %zu granules", granules);
    region->device = device;
    region->cap_granules = granules;
    if (device->driver.reserve(&region->begin, granules * device->granule_bytes, 0, 0, 0) !=
        CUDA_SUCCESS) {
        free(region);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%zu bytes of the GPU's address space",
                         cap_bytes);
    }
    *region_out = region;
    return STATUS_OK;
}

static bool add_granule(struct device_region *region) {
    const struct driver *driver = &region->device->driver;
    size_t bytes = region->device->granule_bytes;
    CUdeviceptr at = region->begin + region->granules * bytes;
    CUmemGenericAllocationHandle *handle = &region->handle[region->granules];
    CUmemAllocationProp kind = kind_of(region->device);
    const CUmemAccessDesc access = {.location = kind.location,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (driver->create(handle, bytes, &kind, 0) != CUDA_SUCCESS) return false;
    if (driver->map(at, bytes, 0, *handle, 0) != CUDA_SUCCESS) {
        CHECK(driver->release(*handle) == CUDA_SUCCESS);
        return false;
    }
    region->granules++;
    return driver->allow(at, bytes, &access, 1) == CUDA_SUCCESS;
}

/* False: the driver does not take back what it gave. */
static bool drop_granule(struct device_region *region) {
    const struct driver *driver = &region->device->driver;
    size_t bytes = region->device->granule_bytes;
    region->granules--;
    return driver->unmap(region->begin + region->granules * bytes, bytes) == CUDA_SUCCESS &&
           driver->release(region->handle[region->granules]) == CUDA_SUCCESS;
}

enum status device_region_resize(struct device_region *region, size_t bytes, struct error *err) {
    size_t granule_bytes = region->device->granule_bytes, before = region->granules;
    size_t wanted = (bytes + granule_bytes - 1) / granule_bytes;
    if (wanted > region->cap_granules)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%zu bytes in a region of %zu", bytes,
                         region->cap_granules * granule_bytes);
    if (wanted < before) {
        enum status status = device_cuda_status(cudaStreamSynchronize(region->device->stream),
                                                "before memory is given back", err);
        if (status != STATUS_OK) return status;
    }
    bool grows = true;
    while (region->granules < wanted && grows)
        grows = add_granule(region);
    while (region->granules > (grows ? wanted : before))
        CHECK(drop_granule(region)); /* nothing is left to do for a caller */
    if (grows) return STATUS_OK;
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%zu bytes of the GPU's memory: out of memory",
                     bytes);
}

void device_region_destroy(struct device_region **region) {
    if (!*region) return;
    /* A dead device uses nothing, takes nothing back, and ends with the process. */
    (void)cudaStreamSynchronize((*region)->device->stream);
    while ((*region)->granules > 0)
        (void)drop_granule(*region);
    (void)(*region)->device->driver.unreserve(
        (*region)->begin, (*region)->cap_granules * (*region)->device->granule_bytes);
    free(*region);
    *region = NULL;
}

void *device_region_begin(const struct device_region *region) {
    return (void *)(uintptr_t)region->begin;
}

size_t device_region_bytes(const struct device_region *region) {
    return region->granules * region->device->granule_bytes;
}
