/* The ops of one device. Everything the engine computes goes through this table, so another device
 * is another table. Each op is what kernels/<op>/<op>.h says; BACKEND_OPS are in every table. */
#ifndef ESPALIER_BACKEND_H
#define ESPALIER_BACKEND_H

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
#include "swiglu/swiglu.h"
#include "top_tokens/top_tokens.h"

#define BACKEND_OPS(X)                                                                             \
    X(embed)                                                                                       \
    X(rms_norm)                                                                                    \
    X(linear)                                                                                      \
    X(rope)                                                                                        \
    X(kv_copy)                                                                                     \
    X(kv_store)                                                                                    \
    X(mla_tree)                                                                                    \
    X(swiglu)                                                                                      \
    X(moe_route)                                                                                   \
    X(moe_experts)                                                                                 \
    X(add)                                                                                         \
    X(penalize)                                                                                    \
    X(sample)                                                                                      \
    X(kv_move)                                                                                     \
    X(gqa_block)                                                                                   \
    X(top_tokens)

struct backend {
#define X(op) void (*op)(const struct op##_args *args, struct kernel_ctx *ctx);
    BACKEND_OPS(X)
#undef X
    /* NULL: the device has the absorbed form alone. */
    void (*mla_expanded)(const struct mla_expanded_args *args, struct kernel_ctx *ctx);
};

extern const struct backend backend_cpu;

#endif
