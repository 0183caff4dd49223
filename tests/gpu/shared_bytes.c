/* The dynamic shared memory that the GPU kernels' plans ask for, a line a kernel, by the names of
 * compile.sh; the rest ask for little, and state it where they are launched. */
#include <stdio.h>

#include "linear/linear_cuda.h"
#include "mla_tree/mla_tree_tile.h"
#include "moe_experts/moe_experts_tile.h"

static void print_mla_tree(enum kernel_dtype kv_dtype, uint32_t latent_dim, uint32_t rope_dim) {
    const char *cache = kv_dtype == KERNEL_FP8 ? "FP8" : "BF16";
#define X(name, queries, tok, stages, blocks)                                                      \
    printf("mla_tree_split<%s, %u, %u, %u, %u, %u, %u>|%zu\n", cache, latent_dim, rope_dim,        \
           queries, tok, stages, (uint32_t)blocks,                                                 \
           mla_tile_shared_bytes((struct mla_tile_shape){queries, tok, stages, blocks}, kv_dtype,  \
                                 latent_dim, rope_dim));
    MLA_CUDA_TILES(X)
#undef X
    printf("mla_tree_wgmma<%u, %u>|%zu\n", latent_dim, rope_dim,
           mla_wgmma_shared_bytes(latent_dim));
}

int main(void) {
    static const char *const formats[] = {
        [LINEAR_BF16] = "BF16", [LINEAR_INT4] = "INT4", [LINEAR_FP8] = "FP8"};
    print_mla_tree(KERNEL_BF16, 512, 64);
    print_mla_tree(KERNEL_BF16, 128, 32);
    print_mla_tree(KERNEL_FP8, 512, 64);
    print_mla_tree(KERNEL_FP8, 128, 32);
    printf("mla_tree_merge|%zu\n", MLA_MERGE_FLOATS * sizeof(float));
    for (int format = LINEAR_BF16; format <= LINEAR_FP8; format++) {
        uint32_t ring = format == LINEAR_BF16 ? PANEL_RING_BF16 : PANEL_RING_NARROW;
        printf("linear_product<%s>|%u\n", formats[format], LINEAR_CUDA_WARPS * ring);
        for (int down = 0; down < 2; down++) {
            const char *what = down ? "down" : "gate, up";
            printf("moe_product<%s, %u, %s>|%u\n", formats[format], ring, what,
                   MOE_CUDA_WARPS * ring);
            printf("moe_product<%s, %u, %s>|%u\n", formats[format], MOE_RING_DEEP, what,
                   MOE_CUDA_WARPS * MOE_RING_DEEP);
        }
    }
    return 0;
}
