/* The ops of a GPU, and the workspace that they need: device memory, the more the more blocks a
 * launch is split over. */
#ifndef ESPALIER_BACKEND_CUDA_H
#define ESPALIER_BACKEND_CUDA_H

#include "backend.h"
#include "weights.h"

extern const struct backend backend_cuda;

/* The steps that a workspace is for. */
struct backend_cuda_bounds {
    uint32_t rows_max; /* of a step */
    uint32_t sequences_max;
    uint32_t positions_max; /* of a sequence, the step's rows included */
    enum kernel_dtype activation;
    enum kernel_dtype kv_dtype;
};

/* As much as the greediest op of a step of the target's; a drafter's products are not among them.
 * UNIMPLEMENTED where a kernel does not take the model's shapes, formats or types, named in err. */
enum status backend_cuda_workspace_bytes(const struct weights *weights,
                                         const struct backend_cuda_bounds *bounds,
                                         const struct kernel_device *device, size_t *bytes_out,
                                         struct error *err) MUST_USE;

#endif
