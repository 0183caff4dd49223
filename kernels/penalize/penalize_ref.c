#include "penalize/penalize.h"

void penalize_ref(const struct penalize_args *args, struct kernel_ctx *ctx) {
    (void)ctx;
    for (uint32_t id = 0; id < args->vocab; id++) {
        float x = args->logits[id];
        for (uint32_t i = 0; i < args->bias_count; i++)
            if (args->bias[i].token == id) x = x + args->bias[i].value;
        uint32_t in_reply = 0, in_prompt = 0;
        if (args->count) {
            in_prompt = args->count[id] % 2;
            in_reply = args->count[id] / 2;
            for (uint32_t i = 0; i < args->tail_count; i++)
                in_reply += args->tail[i] == id;
        }
        if (in_prompt || in_reply > 0) x = x > 0 ? x / args->repetition : x * args->repetition;
        if (in_reply > 0) {
            x = x - args->frequency * (float)in_reply;
            x = x - args->presence;
        }
        args->out[id] = x;
    }
}
