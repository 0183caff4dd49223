/* What a checkpoint's config.json says, parsed and validated once.
 *
 * Accepts flat configs and those with a `text_config` (K2.5, K2.6). Every number is checked against
 * limits.h and against the others, so that code behind it needs no further checks. Tables:
 * docs/MODEL.md.
 */
#ifndef ESPALIER_MODEL_SPEC_H
#define ESPALIER_MODEL_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include "base/limits.h"
#include "base/status.h"
#include "rope_spec.h"

#define MODEL_STOP_TOKENS_MAX 8u

/* What projections may be stored as beside BF16, F16 and F32, from quantization_config. */
enum model_quantization { MODEL_QUANT_NONE, MODEL_QUANT_INT4_GROUP32, MODEL_QUANT_FP8_BLOCK128 };

enum model_scoring { MODEL_SCORING_SIGMOID, MODEL_SCORING_SOFTMAX };

struct model_spec {
    char model_type[32];
    uint32_t hidden; /* D */
    uint32_t layers;
    uint32_t dense_layers;   /* first_k_dense_replace: the first ones have a plain MLP */
    uint32_t heads;          /* H of the whole model */
    uint32_t q_rank;         /* q_lora_rank; 0: a plain q_proj */
    uint32_t kv_rank;        /* R */
    uint32_t nope_dim;       /* N */
    uint32_t rope_dim;       /* P */
    uint32_t value_dim;      /* V */
    uint32_t dense_width;    /* intermediate_size */
    uint32_t expert_width;   /* moe_intermediate_size */
    uint32_t experts;        /* E */
    uint32_t topk;           /* K */
    uint32_t shared_experts; /* one MLP of shared_experts * expert_width; 0 for none */
    uint32_t groups, topk_groups;
    enum model_scoring scoring;
    bool renormalize;   /* norm_topk_prob */
    float routed_scale; /* routed_scaling_factor */
    uint32_t vocab;
    uint32_t context_max; /* max_position_embeddings */
    float norm_eps;
    float inner_norm_eps; /* of q_a_layernorm and kv_a_layernorm: 1e-6 in the reference */
    struct rope_spec rope;
    enum model_quantization quantization;
    uint32_t stop_token[MODEL_STOP_TOKENS_MAX]; /* eos of config and generation_config, merged */
    uint32_t stop_token_count;
};

/* Read `directory`/config.json (and generation_config.json where present). err: file, field, what
 * was found, what is accepted. NOT_FOUND, INVALID_ARGUMENT or UNIMPLEMENTED. */
enum status model_spec_load(const char *directory, struct model_spec *spec_out,
                            struct error *err) MUST_USE;

/* Can the model be split over tp ranks? INVALID_ARGUMENT names the dimension and the sizes that
 * work. */
enum status model_spec_check_tp(const struct model_spec *spec, uint32_t tp,
                                struct error *err) MUST_USE;

/* rope_dim / 2 inverse frequencies with YaRN applied. */
void model_spec_inv_freq(const struct model_spec *spec, double *inv_freq_out);

/* (N + P)^-0.5, times mscale(factor, mscale_all_dim)^2 with YaRN: 0.1446796258 for K2.6. */
float model_spec_softmax_scale(const struct model_spec *spec);

/* Equal for equal specs: what coordinator and workers compare before they form a group. */
uint64_t model_spec_fingerprint(const struct model_spec *spec);

#endif
