/* A GPU as the device of a rank (device.h): gpu.c, or gpu_none.c in a build without CUDA, where
 * every one is refused. */
#ifndef ESPALIER_GPU_H
#define ESPALIER_GPU_H

#include "device.h"

/* Number `ordinal` of those that this process sees. FAILED_PRECONDITION, in one line, where it is
 * none that we run on. */
enum status gpu_open(uint32_t ordinal, struct device **device_out, struct error *err) MUST_USE;

#endif
