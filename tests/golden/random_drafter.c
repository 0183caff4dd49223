#include "random_drafter.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "kernel.h"

static void fill(struct tensor_store *store, const char *dtype, int layer, const char *module,
                 uint32_t rows, uint32_t columns) {
    char name[STORE_NAME_BYTES];
    if (layer < 0)
        snprintf(name, sizeof name, "%s.weight", module);
    else
        snprintf(name, sizeof name, "layers.%d.%s.weight", layer, module);
    struct store_tensor *tensor = tensor_store_add(store, name, dtype, rows, columns);
    size_t count = (size_t)(rows > 0 ? rows : 1) * columns;
    for (size_t i = 0; i < count; i++) {
        double unit = (double)(hash_mix(store->count * 1000003 + i) >> 11) / 0x1p53 * 2 - 1;
        float value = (float)(rows > 0 ? 1.5 / sqrt(columns) * unit : 1 + 0.2 * unit);
        if (strcmp(dtype, "BF16") == 0)
            ((uint16_t *)tensor->data)[i] = bf16_from_f32(value);
        else
            ((float *)tensor->data)[i] = value;
    }
}

struct tensor_store *random_drafter_store(const struct random_drafter *kind) {
    struct tensor_store *store = tensor_store_create();
    uint32_t q_dim = kind->heads * kind->head_dim, kv_dim = kind->kv_heads * kind->head_dim;
    fill(store, kind->dtype, -1, "fc", RANDOM_DRAFTER_HIDDEN,
         kind->tap_count * RANDOM_DRAFTER_HIDDEN);
    fill(store, "BF16", -1, "hidden_norm", 0, RANDOM_DRAFTER_HIDDEN);
    fill(store, "F32", -1, "norm", 0, RANDOM_DRAFTER_HIDDEN);
    for (int l = 0; l < (int)kind->layers; l++) {
        fill(store, "BF16", l, "input_layernorm", 0, RANDOM_DRAFTER_HIDDEN);
        fill(store, "BF16", l, "post_attention_layernorm", 0, RANDOM_DRAFTER_HIDDEN);
        fill(store, "BF16", l, "self_attn.q_norm", 0, kind->head_dim);
        fill(store, "F32", l, "self_attn.k_norm", 0, kind->head_dim);
        fill(store, kind->dtype, l, "self_attn.q_proj", q_dim, RANDOM_DRAFTER_HIDDEN);
        fill(store, kind->dtype, l, "self_attn.k_proj", kv_dim, RANDOM_DRAFTER_HIDDEN);
        fill(store, kind->dtype, l, "self_attn.v_proj", kv_dim, RANDOM_DRAFTER_HIDDEN);
        fill(store, kind->dtype, l, "self_attn.o_proj", RANDOM_DRAFTER_HIDDEN, q_dim);
        fill(store, kind->dtype, l, "mlp.gate_proj", kind->width, RANDOM_DRAFTER_HIDDEN);
        fill(store, kind->dtype, l, "mlp.up_proj", kind->width, RANDOM_DRAFTER_HIDDEN);
        fill(store, kind->dtype, l, "mlp.down_proj", RANDOM_DRAFTER_HIDDEN, kind->width);
    }
    return store;
}

void random_drafter_write(const struct random_drafter *kind, const struct tensor_store *store,
                          char folder_out[64]) {
    char config[2048], taps[64] = "";
    for (uint32_t i = 0; i < kind->tap_count; i++)
        snprintf(taps + strlen(taps), sizeof taps - strlen(taps), "%s%u", i ? "," : "",
                 kind->tap[i]);
    int length = snprintf(config, sizeof config,
                          "{\"architectures\":[\"DFlashDraftModel\"],\"hidden_size\":%u,"
                          "\"num_hidden_layers\":%u,\"num_attention_heads\":%u,"
                          "\"num_key_value_heads\":%u,\"head_dim\":%u,\"intermediate_size\":%u,"
                          "\"rms_norm_eps\":1e-5,%s\"dflash_config\":{\"mask_token_id\":4094,"
                          "\"block_size\":%u,\"target_layer_ids\":[%s]%s}}",
                          RANDOM_DRAFTER_HIDDEN, kind->layers, kind->heads, kind->kv_heads,
                          kind->head_dim, kind->width, kind->more, kind->block, taps, kind->dflash);
    folder_create(folder_out);
    folder_write(folder_out, "config.json", config, (size_t)length);
    tensor_store_write(store, folder_out, 1);
}
