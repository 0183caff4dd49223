#include "moe_experts/moe_experts.h"

#include <math.h>
#include <string.h>

#include "linear/linear_ref.h"

/* a_e[t,:] of one row and one expert. */
static void activate(const struct moe_experts_args *args, const struct moe_expert *expert,
                     const float *x, float *a) {
    for (size_t f = 0; f < args->width; f++) {
        float gate = linear_ref_dot(&expert->gate_up, args->activation, x, f, 0, args->dim);
        float up = linear_ref_dot(&expert->gate_up, args->activation, x, args->width + f, 0,
                                  args->dim);
        a[f] = gate / (1.0f + expf(-gate)) * up;
    }
}

void moe_experts_ref(const struct moe_experts_args *args, struct kernel_ctx *ctx) {
    KERNEL_CHECK(args->width % args->segments == 0);
    KERNEL_CHECK(args->width * sizeof(float) <= ctx->scratch_bytes);
    float *a = ctx->scratch; /* [F] */
    size_t part = args->width / args->segments;

    memset(args->y, 0, (size_t)args->segments * args->rows * args->dim * sizeof(float));
    for (size_t t = 0; t < args->rows; t++) {
        for (size_t k = 0; k < args->topk; k++) {
            KERNEL_CHECK(args->expert[t * args->topk + k] <= args->expert_count);
            if (args->expert[t * args->topk + k] == args->expert_count) continue;
            const struct moe_expert *expert = &args->experts[args->expert[t * args->topk + k]];
            float weight = args->weight[t * args->topk + k];
            activate(args, expert, args->x + t * args->dim, a);
            for (size_t s = 0; s < args->segments; s++) {
                float *y = args->y + (s * args->rows + t) * args->dim;
                for (size_t n = 0; n < args->dim; n++) {
                    float dot = linear_ref_dot(&expert->down, args->activation, a, n, s * part,
                                               (s + 1) * part);
                    y[n] = fmaf(weight, dot, y[n]);
                }
            }
        }
    }
}
