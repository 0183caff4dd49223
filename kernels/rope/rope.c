/* The part of rope that no variant changes: the angles of a step's positions. */
#include "rope/rope.h"

#include <math.h>

void rope_angles(float *cos_sin, const uint32_t *position, uint32_t rows, const double *inv_freq,
                 uint32_t dim) {
    KERNEL_CHECK(dim % 2 == 0);
    uint32_t half = dim / 2;
    for (size_t t = 0; t < rows; t++) {
        float *row = cos_sin + t * dim;
        for (uint32_t i = 0; i < half; i++) {
            double angle = (double)position[t] * inv_freq[i];
            row[i] = (float)cos(angle);
            row[half + i] = (float)sin(angle);
        }
    }
}
