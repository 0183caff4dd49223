#include "tame_weights.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/hash.h"
#include "kernel.h"

/* A half not far from it: any will do. */
static uint16_t half_near(float value) {
    int exponent;
    double fraction = frexp(fabs((double)value), &exponent) * 2 - 1;
    if (value == 0 || exponent < -13) return 0;
    uint32_t bits = (uint32_t)(exponent + 14) << 10 | (uint32_t)(fraction * 1024);
    return (uint16_t)(bits | (value < 0 ? 0x8000u : 0));
}

void tame_weights(struct tensor_store *store) {
    for (uint32_t t = 0; t < store->count; t++) {
        struct store_tensor *tensor = &store->tensor[t];
        if (strcmp(tensor->dtype, "I32") == 0 || strcmp(tensor->dtype, "F8_E4M3") == 0) continue;
        bool vector = tensor->dims == 1, scale = strstr(tensor->name, "_scale") != NULL;
        bool blocks = strstr(tensor->name, "_scale_inv") != NULL;
        double columns = (double)tensor->shape[1] * (blocks ? 128 : scale ? 32 : 1);
        double size = vector ? 0.2 : 1.5 / sqrt(columns) / (blocks ? 80 : scale ? 8 : 1);
        bool bf16_type = strcmp(tensor->dtype, "BF16") == 0;
        bool f16_type = strcmp(tensor->dtype, "F16") == 0;
        for (uint64_t i = 0; i < tensor->bytes / (bf16_type || f16_type ? 2 : 4); i++) {
            double unit = (double)(hash_mix(t * 1000003 + i) >> 11) / 0x1p53 * 2 - 1;
            float value = (float)(scale ? size * (1 + 0.5 * unit) : size * unit + vector);
            if (bf16_type)
                ((uint16_t *)tensor->data)[i] = bf16_from_f32(value);
            else if (f16_type)
                ((uint16_t *)tensor->data)[i] = half_near(value);
            else
                ((float *)tensor->data)[i] = value;
        }
    }
}
