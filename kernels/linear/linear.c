/* The packed sizes every variant and the loader agree on. */
#include "linear/linear.h"

#include "linear/linear_int8.h"

static size_t panel_count(uint32_t n) {
    return ((size_t)n + KERNEL_PANEL - 1) / KERNEL_PANEL;
}

size_t linear_data_bytes(enum linear_format format, uint32_t n, uint32_t k) {
    static const size_t panel_row_bytes[] = {
        [LINEAR_F32] = KERNEL_PANEL * sizeof(float),
        [LINEAR_BF16] = KERNEL_PANEL * sizeof(bf16),
        [LINEAR_INT4] = KERNEL_PANEL / 2,
        [LINEAR_FP8] = KERNEL_PANEL,
    };
    size_t inputs = format == LINEAR_BF16 ? ((size_t)k + 1) & ~(size_t)1 : k; /* whole pairs */
    return panel_count(n) * inputs * panel_row_bytes[format];
}

size_t linear_scale_bytes(enum linear_format format, uint32_t n, uint32_t k) {
    if (format == LINEAR_INT4)
        return panel_count(n) * (k / INT4_GROUP) * KERNEL_PANEL * sizeof(bf16);
    if (format == LINEAR_FP8)
        return panel_count(n) * linear_fp8_blocks(k) * KERNEL_PANEL * sizeof(float);
    return 0;
}

size_t linear_row_bytes(enum kernel_dtype activation, uint32_t k) {
    size_t chunks = ((size_t)k + LINEAR_CHUNK - 1) / LINEAR_CHUNK;
    if (activation == KERNEL_INT8) return chunks * sizeof(struct linear_int8_group);
    if (activation == KERNEL_BF16) return chunks * LINEAR_CHUNK * sizeof(bf16);
    return k * sizeof(float);
}

size_t linear_scratch_bytes(enum kernel_dtype activation, size_t rows, uint32_t k) {
    return activation == KERNEL_F32 ? 0 : rows * linear_row_bytes(activation, k);
}
