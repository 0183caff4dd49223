/* What a worker finds that is linked with the emulator: eight GPUs, a rank's each, of which a
 * process sees the others' memory as free. */
#include "simt_cuda.h"

static void plug_in(void) __attribute__((constructor));

static void plug_in(void) {
    struct simt_device device = simt_device_default;
    device.count = 8;
    simt_cuda_plug(&device);
}
