/* The fast variants of every op, by instruction set. Programs call <op>_cpu; tests and benchmarks
 * reach one variant by dispatch_<op>[isa], NULL where the program was built without it. */
#ifndef ESPALIER_DISPATCH_H
#define ESPALIER_DISPATCH_H

#include "add/add.h"
#include "embed/embed.h"
#include "gqa_block/gqa_block.h"
#include "kv_copy/kv_copy.h"
#include "kv_move/kv_move.h"
#include "kv_store/kv_store.h"
#include "linear/linear.h"
#include "mla_expanded/mla_expanded.h"
#include "mla_tree/mla_tree.h"
#include "moe_experts/moe_experts.h"
#include "moe_route/moe_route.h"
#include "penalize/penalize.h"
#include "rms_norm/rms_norm.h"
#include "rope/rope.h"
#include "sample/sample.h"
#include "simd/isa.h"
#include "swiglu/swiglu.h"
#include "top_tokens/top_tokens.h"

/* All ops, in the order a token meets them. */
#define DISPATCH_OPS(X)                                                                            \
    X(embed)                                                                                       \
    X(rms_norm)                                                                                    \
    X(linear)                                                                                      \
    X(rope)                                                                                        \
    X(kv_copy)                                                                                     \
    X(kv_store)                                                                                    \
    X(mla_tree)                                                                                    \
    X(mla_expanded)                                                                                \
    X(gqa_block)                                                                                   \
    X(add)                                                                                         \
    X(moe_route)                                                                                   \
    X(moe_experts)                                                                                 \
    X(swiglu)                                                                                      \
    X(penalize)                                                                                    \
    X(sample)                                                                                      \
    X(kv_move)                                                                                     \
    X(top_tokens)

#define DISPATCH_DECLARE(op)                                                                       \
    typedef void op##_fn(const struct op##_args *args, struct kernel_ctx *ctx);                    \
    extern op##_fn *const dispatch_##op[ISA_COUNT];
DISPATCH_OPS(DISPATCH_DECLARE)
#undef DISPATCH_DECLARE

#endif
