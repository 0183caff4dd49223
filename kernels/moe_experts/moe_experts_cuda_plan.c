#include "moe_experts/moe_experts_tile.h"

#define DOWN_TILES_A_WARP_MAX 8u

static uint32_t units_max(const struct moe_experts_args *args) {
    uint32_t pairs = args->rows * args->topk;
    return min_u32(pairs, args->expert_count) + pairs / MOE_CUDA_UNIT_ROWS;
}

static void *take(void *base, size_t *offset, size_t count, size_t element_bytes) {
    void *out = (void *)((uintptr_t)base + *offset);
    *offset += (count * element_bytes + 127) & ~(size_t)127;
    return out;
}

size_t moe_cuda_scratch_lay(struct moe_cuda_scratch *scratch, void *base,
                            const struct moe_experts_args *args) {
    size_t bytes = 0, pairs = (size_t)args->rows * args->topk;
    size_t segment_values = (size_t)moe_segment_steps(args) * PANEL_STEP;
    scratch->pair = take(base, &bytes, pairs, sizeof *scratch->pair);
    scratch->unit = take(base, &bytes, units_max(args), sizeof *scratch->unit);
    scratch->unit_count = take(base, &bytes, 1, sizeof *scratch->unit_count);
    scratch->x = take(base, &bytes,
                      (size_t)args->rows * divide_up(args->dim, PANEL_STEP) * PANEL_STEP,
                      sizeof *scratch->x);
    scratch->activation = take(base, &bytes, pairs * args->segments * segment_values,
                               sizeof *scratch->activation);
    scratch->dot = take(base, &bytes, args->segments * pairs * args->dim, sizeof *scratch->dot);
    return bytes;
}

bool moe_experts_cuda_takes(const struct moe_experts_args *args) {
    return args->gate_up_format != LINEAR_F32 && args->down_format != LINEAR_F32 &&
           args->dim % 4 == 0 && args->width % KERNEL_PANEL == 0 &&
           args->expert_count <= MOE_EXPERTS_MAX && args->activation != KERNEL_INT8;
}

/* Deep where every block of the launch has a multiprocessor to itself. */
static uint32_t choose_ring(enum linear_format format, uint32_t blocks,
                            const struct kernel_device *device) {
    if (blocks <= device->multiprocessors &&
        MOE_CUDA_WARPS * MOE_RING_DEEP <= device->shared_bytes_max)
        return MOE_RING_DEEP;
    return format == LINEAR_BF16 ? PANEL_RING_BF16 : PANEL_RING_NARROW;
}

/* A warp streams on from tile to tile without a pause, so it gets several as soon as there are
 * enough for all warps that run at a time. */
static uint32_t choose_tiles_a_warp(uint32_t tiles, uint32_t units, uint32_t ring_bytes,
                                    const struct kernel_device *device) {
    uint32_t blocks = (uint32_t)(device->shared_bytes_max / (MOE_CUDA_WARPS * ring_bytes));
    uint32_t warps = device->multiprocessors * (blocks > 0 ? blocks : 1) * MOE_CUDA_WARPS;
    uint32_t tiles_a_warp = (uint32_t)((uint64_t)tiles * units / warps);
    if (tiles_a_warp > DOWN_TILES_A_WARP_MAX) return DOWN_TILES_A_WARP_MAX;
    return tiles_a_warp > 0 ? tiles_a_warp : 1;
}

struct moe_cuda_plan moe_experts_cuda_plan(const struct moe_experts_args *args,
                                           const struct kernel_device *device) {
    KERNEL_CHECK(moe_experts_cuda_takes(args));
    struct moe_cuda_plan plan = {.units_max = units_max(args)};
    struct moe_cuda_scratch scratch;
    plan.scratch_bytes = moe_cuda_scratch_lay(&scratch, NULL, args);
    plan.gate_up_ring = choose_ring(args->gate_up_format,
                                    args->width / KERNEL_PANEL * plan.units_max, device);

    uint32_t tiles = divide_up(args->dim, PANEL_OUTPUTS);
    uint32_t shallow = choose_ring(args->down_format, UINT32_MAX, device);
    plan.down_tiles_a_warp = choose_tiles_a_warp(tiles, plan.units_max, shallow, device);
    plan.down_blocks = divide_up(tiles, plan.down_tiles_a_warp * MOE_CUDA_WARPS);
    plan.down_ring = choose_ring(args->down_format, plan.down_blocks * plan.units_max, device);
    KERNEL_CHECK(MOE_CUDA_WARPS * plan.gate_up_ring <= device->shared_bytes_max &&
                 MOE_CUDA_WARPS * plan.down_ring <= device->shared_bytes_max);
    return plan;
}
