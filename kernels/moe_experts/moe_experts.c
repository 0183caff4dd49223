/* The workspace of moe_experts, the same for every instruction set. */
#include "moe_experts/moe_experts_scratch.h"

size_t moe_experts_scratch_lay(struct moe_experts_scratch *scratch, void *base,
                               const struct moe_experts_args *args) {
    /* The reference keeps one row's activation, also in a step without rows. */
    size_t bytes = 0, pairs = args->rows * args->topk > 0 ? (size_t)args->rows * args->topk : 1;
    size_t x_bytes = linear_row_bytes(args->activation, args->dim);
    scratch->x = kernel_take(base, &bytes, args->activation == KERNEL_F32 ? 0 : args->rows,
                             x_bytes);
    scratch->activation = kernel_take(base, &bytes, pairs,
                                      linear_row_bytes(args->activation, args->width));
    scratch->pair = kernel_take(base, &bytes, pairs, sizeof(uint32_t));
    scratch->pair_begin = kernel_take(base, &bytes, (size_t)args->expert_count + 1,
                                      sizeof(uint32_t));
    scratch->active = kernel_take(base, &bytes, args->expert_count, sizeof(uint32_t));
    return bytes;
}

size_t moe_experts_scratch_bytes(uint32_t rows, uint32_t topk, uint32_t expert_count, uint32_t dim,
                                 uint32_t width) {
    struct moe_experts_args args = {
        .rows = rows, .topk = topk, .expert_count = expert_count, .dim = dim, .width = width};
    struct moe_experts_scratch scratch;
    args.activation = KERNEL_F32;
    size_t wide = moe_experts_scratch_lay(&scratch, NULL, &args);
    args.activation = KERNEL_BF16;
    size_t narrow = moe_experts_scratch_lay(&scratch, NULL, &args);
    return wide > narrow ? wide : narrow;
}
