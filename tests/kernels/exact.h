/* The references again, with the exp of kernels/simd in the place of libm's: what the fast variants
 * must equal to the bit, sums, order and all. */
#ifndef ESPALIER_EXACT_H
#define ESPALIER_EXACT_H

#include "dispatch.h"

void exact_swiglu(const struct swiglu_args *args, struct kernel_ctx *ctx);
void exact_moe_route(const struct moe_route_args *args, struct kernel_ctx *ctx);
void exact_moe_experts(const struct moe_experts_args *args, struct kernel_ctx *ctx);
void exact_mla_tree(const struct mla_tree_args *args, struct kernel_ctx *ctx);
void exact_mla_expanded(const struct mla_expanded_args *args, struct kernel_ctx *ctx);
void exact_gqa_block(const struct gqa_block_args *args, struct kernel_ctx *ctx);
void exact_top_tokens(const struct top_tokens_args *args, struct kernel_ctx *ctx);

#endif
