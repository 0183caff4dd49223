#include "gpu.h"

enum status gpu_open(uint32_t ordinal, struct device **device_out, struct error *err) {
    (void)ordinal;
    *device_out = NULL;
    return error_set(err, STATUS_FAILED_PRECONDITION,
                     "--device: found \"cuda\", which this build does not have; accepted: cpu");
}
