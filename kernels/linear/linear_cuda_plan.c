#include "linear/linear_cuda.h"

#include "cuda/panels.h"
#include "linear/linear_cublaslt.h"

#define BLOCKS_AT_A_TIME 2u /* on a multiprocessor */
#define WARP_STEPS_MIN   2u /* that make a split worth its merge */

bool linear_cuda_takes(const struct linear_args *args) {
    return args->activation != KERNEL_INT8 &&
           (args->weight.format != LINEAR_FP8 || args->weight.block_begin % PANEL_STEP == 0);
}

/* As many blocks as run at a time, whatever the rows. */
static uint32_t choose_splits(const struct linear_args *args, uint32_t segment_steps,
                              const struct kernel_device *device) {
    if (args->weight.format == LINEAR_F32 || args->rows > LINEAR_CUDA_FEW_ROWS) return 1;
    uint32_t blocks = divide_up(args->weight.n, PANEL_OUTPUTS) * args->batch * args->segments;
    uint32_t splits = device->multiprocessors * BLOCKS_AT_A_TIME / blocks;
    uint32_t worth = segment_steps / (LINEAR_CUDA_WARPS * WARP_STEPS_MIN);
    if (splits > worth) splits = worth;
    return splits > 0 ? splits : 1;
}

static bool is_for_cublaslt(const struct linear_args *args, const struct kernel_device *device) {
    return device->cublaslt && args->rows >= LINEAR_CUDA_MANY_ROWS &&
           args->weight.format == LINEAR_BF16 && args->activation == KERNEL_BF16 &&
           args->weight.k / args->segments % LINEAR_CUBLASLT_UNIT == 0;
}

/* At least a panel of each batch, and at most all of them. */
static uint32_t choose_slab(const struct linear_args *args) {
    size_t panel_bytes = (size_t)args->batch * KERNEL_PANEL * args->weight.k * sizeof(bf16);
    size_t fit = LINEAR_CUDA_SLAB_BYTES / panel_bytes;
    uint32_t panels = divide_up(args->weight.n, KERNEL_PANEL);
    if (fit < panels) panels = fit > 0 ? (uint32_t)fit : 1;
    return panels * KERNEL_PANEL;
}

size_t linear_cuda_lay_out(const struct linear_args *args, const struct linear_cuda_shape *plan,
                           void *scratch, struct linear_cuda_room *room_out) {
    size_t rows = (size_t)args->batch * args->rows, k = args->weight.k, bytes = 0;
    size_t slab = (size_t)args->batch * plan->slab_outputs;
    size_t sums = plan->is_direct ? 0 : args->segments * rows * args->weight.n;
    room_out->x = kernel_take(scratch, &bytes, rows * k, sizeof(bf16));
    room_out->slab = kernel_take(scratch, &bytes, slab * k, sizeof(bf16));
    room_out->sums = kernel_take(scratch, &bytes, sums, sizeof(float));
    room_out->workspace = kernel_take(scratch, &bytes, LINEAR_CUBLASLT_WORKSPACE_BYTES, 1);
    return bytes;
}

struct linear_cuda_shape linear_cuda_plan(const struct linear_args *args,
                                          const struct kernel_device *device) {
    KERNEL_CHECK(linear_cuda_takes(args));
    uint32_t part = args->weight.k / args->segments;
    struct linear_cuda_shape plan = {.parts = args->activation == KERNEL_F32 ? 3 : 1};
    plan.segment_steps = args->segments == 1 ? divide_up(part, PANEL_STEP) : panel_steps(part);
    plan.splits = choose_splits(args, plan.segment_steps, device);
    if (args->weight.format == LINEAR_F32) return plan;
    if (is_for_cublaslt(args, device)) {
        struct linear_cuda_room room;
        plan.slab_outputs = choose_slab(args);
        plan.is_direct = args->segments == 1 && !args->add;
        plan.scratch_bytes = linear_cuda_lay_out(args, &plan, NULL, &room);
        return plan;
    }
    size_t rows = (size_t)args->batch * args->rows * plan.parts;
    size_t x_bytes = rows * args->segments * plan.segment_steps * PANEL_STEP * sizeof(bf16);
    size_t partial_bytes = rows * args->segments * plan.splits * args->weight.n * sizeof(float);
    plan.is_direct = plan.parts * plan.splits * args->segments == 1 && !args->add;
    plan.scratch_bytes = x_bytes + (plan.is_direct ? 0 : partial_bytes);
    return plan;
}
