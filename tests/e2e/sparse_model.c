#include "sparse_model.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MODEL ESPALIER_SOURCE_DIR "/deploy/model/"

/* Its dimensions, as the config below has them. */
enum {
    LAYERS = 6,
    HIDDEN = 512,
    HEADS = 8,
    Q_RANK = 128,
    KV_RANK = 128,
    NOPE = 32,
    ROPE = 32,
    VALUE = 32,
    DENSE = 1024,
    EXPERTS = 64,
    EXPERT = 1024,
    VOCAB = 4096
};

static const char config[] =
    "{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"model_type\": \"kimi_k2\","
    " \"bos_token_id\": 3840, \"eos_token_id\": 3842, \"hidden_act\": \"silu\","
    " \"first_k_dense_replace\": 1, \"hidden_size\": 512, \"intermediate_size\": 1024,"
    " \"kv_lora_rank\": 128, \"max_position_embeddings\": 4096, \"moe_intermediate_size\": 1024,"
    " \"moe_layer_freq\": 1, \"n_group\": 1, \"n_routed_experts\": 64, \"n_shared_experts\": 1,"
    " \"norm_topk_prob\": true, \"num_attention_heads\": 8, \"num_experts_per_tok\": 4,"
    " \"num_hidden_layers\": 6, \"num_key_value_heads\": 8, \"q_lora_rank\": 128,"
    " \"qk_nope_head_dim\": 32, \"qk_rope_head_dim\": 32, \"v_head_dim\": 32,"
    " \"rms_norm_eps\": 1e-05, \"rope_theta\": 50000.0, \"routed_scaling_factor\": 2.827,"
    " \"scoring_func\": \"sigmoid\", \"tie_word_embeddings\": false, \"topk_group\": 1,"
    " \"topk_method\": \"noaux_tc\", \"torch_dtype\": \"bfloat16\", \"vocab_size\": 4096}";

/* A safetensors header in the making, and how far its tensors reach. */
struct header {
    FILE *file;
    uint64_t bytes;
    const char *comma;
};

static void add(struct header *header, const char *name, int rows, int columns) {
    uint64_t begin = header->bytes;
    header->bytes += (uint64_t)rows * (uint64_t)(columns ? columns : 1) * 2;
    fprintf(header->file, "%s\"%s\":{\"dtype\":\"F16\",\"shape\":[%d", header->comma, name, rows);
    if (columns) fprintf(header->file, ",%d", columns);
    fprintf(header->file, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin,
            (unsigned long long)header->bytes);
    header->comma = ",";
}

static void add_of_layer(struct header *header, int layer, const char *name, int rows,
                         int columns) {
    char full[128];
    snprintf(full, sizeof full, "model.layers.%d.%s.weight", layer, name);
    add(header, full, rows, columns);
}

static void add_mlp(struct header *header, int layer, const char *prefix, int inner) {
    char name[96];
    snprintf(name, sizeof name, "%s.gate_proj", prefix);
    add_of_layer(header, layer, name, inner, HIDDEN);
    snprintf(name, sizeof name, "%s.up_proj", prefix);
    add_of_layer(header, layer, name, inner, HIDDEN);
    snprintf(name, sizeof name, "%s.down_proj", prefix);
    add_of_layer(header, layer, name, HIDDEN, inner);
}

static void add_experts(struct header *header, int layer) {
    char name[64];
    add_of_layer(header, layer, "mlp.gate", EXPERTS, HIDDEN);
    snprintf(name, sizeof name, "model.layers.%d.mlp.gate.e_score_correction_bias", layer);
    add(header, name, EXPERTS, 0);
    add_mlp(header, layer, "mlp.shared_experts", EXPERT);
    for (int expert = 0; expert < EXPERTS; expert++) {
        snprintf(name, sizeof name, "mlp.experts.%d", expert);
        add_mlp(header, layer, name, EXPERT);
    }
}

static void add_layer(struct header *header, int layer) {
    add_of_layer(header, layer, "input_layernorm", HIDDEN, 0);
    add_of_layer(header, layer, "post_attention_layernorm", HIDDEN, 0);
    add_of_layer(header, layer, "self_attn.q_a_proj", Q_RANK, HIDDEN);
    add_of_layer(header, layer, "self_attn.q_a_layernorm", Q_RANK, 0);
    add_of_layer(header, layer, "self_attn.q_b_proj", HEADS * (NOPE + ROPE), Q_RANK);
    add_of_layer(header, layer, "self_attn.kv_a_proj_with_mqa", KV_RANK + ROPE, HIDDEN);
    add_of_layer(header, layer, "self_attn.kv_a_layernorm", KV_RANK, 0);
    add_of_layer(header, layer, "self_attn.kv_b_proj", HEADS * (NOPE + VALUE), KV_RANK);
    add_of_layer(header, layer, "self_attn.o_proj", HIDDEN, HEADS * VALUE);
    if (layer == 0)
        add_mlp(header, layer, "mlp", DENSE);
    else
        add_experts(header, layer);
}

static char *make_header(uint64_t *data_bytes_out, size_t *bytes_out) {
    char *text;
    struct header header = {.comma = "{"};
    header.file = open_memstream(&text, bytes_out);
    assert_non_null(header.file);
    add(&header, "model.embed_tokens.weight", VOCAB, HIDDEN);
    for (int layer = 0; layer < LAYERS; layer++)
        add_layer(&header, layer);
    add(&header, "model.norm.weight", HIDDEN, 0);
    add(&header, "lm_head.weight", VOCAB, HIDDEN);
    fputc('}', header.file);
    assert_int_equal(fclose(header.file), 0);
    *data_bytes_out = header.bytes;
    return text;
}

static int create(const char *directory, const char *name) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    return fd;
}

static void write_all(int fd, const void *data, size_t bytes) {
    assert_int_equal(write(fd, data, bytes), (ssize_t)bytes);
}

void sparse_model_make(const char *directory) {
    static const char *const tokenizer[] = {"tiktoken.model", "tokenizer_config.json"};
    for (int i = 0; i < 2; i++) {
        char from[512], to[128];
        snprintf(from, sizeof from, MODEL "%s", tokenizer[i]);
        snprintf(to, sizeof to, "%s/%s", directory, tokenizer[i]);
        assert_int_equal(symlink(from, to), 0);
    }
    int fd = create(directory, "config.json");
    write_all(fd, config, sizeof config - 1);
    close(fd);
    uint64_t data_bytes, header_bytes64;
    size_t header_bytes;
    char *header = make_header(&data_bytes, &header_bytes);
    header_bytes64 = header_bytes;
    fd = create(directory, "model.safetensors");
    write_all(fd, &header_bytes64, sizeof header_bytes64);
    write_all(fd, header, header_bytes);
    assert_int_equal(ftruncate(fd, (off_t)(8 + header_bytes + data_bytes)), 0);
    close(fd);
    free(header);
}
