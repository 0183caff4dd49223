/* The ops of a GPU, and the workspace that they need: device memory, the more the more blocks a
 * launch is split over. */
#ifndef ESPALIER_BACKEND_CUDA_H
#define ESPALIER_BACKEND_CUDA_H

#include "backend.h"
#include "device.h"
#include "drafter_weights.h"

extern const struct backend backend_cuda;

/* As much as the greediest op of a step, drafter's (NULL: there is none) among them. UNIMPLEMENTED
 * where a kernel does not take the model's shapes, formats or types, named in err. */
enum status backend_cuda_workspace_bytes(const struct kernel_device *device,
                                         const struct weights *weights,
                                         const struct drafter_weights *drafter,
                                         const struct device_bounds *bounds, size_t *bytes_out,
                                         struct error *err) MUST_USE;

#endif
