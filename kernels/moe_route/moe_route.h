/* Which experts serve a row, and with what weight (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).
 *
 *     s = sigmoid(logit) = 1 / (1 + exp(-logit)),  or  softmax(logit) = exp(logit - max) / sum,
 *     the sum by ascending index. Selection uses s + bias, the weight uses s
 *     groups > 1: a group's score is the sum of its two best selections (best + second); the
 *                 topk_groups best groups stay, the others are -inf
 *     expert[t,0..K): the K best selections, best first; a tie goes to the lower index, for groups
 *                 too; a NaN selects as -inf
 *     weight = s[expert]; if renormalize: weight /= (sum + 1e-20), summed in that order;
 *     weight *= scale
 *
 * Selected experts are then put in ascending order of index: the order in which their outputs are
 * summed. Rows from *row_count on fill up a launch that was captured for more: their experts are E,
 * which is none, and weigh nothing. The fast variants agree to the bit among themselves. The
 * reference uses libm's exp: weights to 2e-6 relative; the choice may differ only where two
 * selections are nearer than 1e-6.
 */
#ifndef ESPALIER_MOE_ROUTE_H
#define ESPALIER_MOE_ROUTE_H

#include <stdbool.h>

#include "kernel.h"

enum moe_scoring { MOE_SIGMOID, MOE_SOFTMAX };

struct moe_route_args {
    const float *logits;       /* [T, E] */
    const float *bias;         /* [E], or NULL */
    uint32_t *expert;          /* [T, K] ascending */
    float *weight;             /* [T, K] */
    uint32_t rows;             /* T */
    const uint32_t *row_count; /* of rows that are any; NULL: all */
    uint32_t experts;          /* E, at most 1024 */
    uint32_t topk;             /* K, at most 32 and at most the experts of topk_groups groups */
    uint32_t groups;           /* divides E, at least two experts each; 1 for none */
    uint32_t topk_groups;      /* at most 32 and at most groups */
    enum moe_scoring scoring;
    bool renormalize;
    float scale;
};

void moe_route_ref(const struct moe_route_args *args, struct kernel_ctx *ctx);
void moe_route_cpu(const struct moe_route_args *args, struct kernel_ctx *ctx);
void moe_route_cuda(const struct moe_route_args *args, struct kernel_ctx *ctx);

#endif
